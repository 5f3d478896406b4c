//! The fast path of most requests: a single request that only charges a few plain limits in memory, all
//! of which fit.
//!
//! It gives the same results and counts as the phases in `decide.rs`, without the lists between plan,
//! store and answers. `tests/fast_path.rs` compares both on random requests.

use super::plan::{AnswerSource, SmallList};
use super::{Engine, RulesInForce};
use crate::decision::Decisions;
use crate::meters::{Event, RuleEvent};
use crate::store::Store;
use crate::striped::Stripe;

/// Charges the only request of a batch if all of its rules are plain and fit, and the store answers
/// immediately. `false`: the fast path does not apply, and nothing has happened.
#[inline]
pub(super) fn try_admit<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &RulesInForce,
    decisions: &mut Decisions,
) -> bool {
    let Decisions { plan, enforced, decided, .. } = decisions;
    let mut charges = SmallList::new();
    if !plan.collect_plain(running, &mut charges) || !engine.store.try_take_fast(&charges, enforced) {
        return false;
    }
    drop(charges);
    let least = enforced.with_least_left();
    let stripe = Stripe::of_thread();
    for (planned, place) in plan.charges.iter_mut().zip(0..) {
        planned.answered = AnswerSource::Enforced(place);
        if let Some(rule) = planned.rule().and_then(|rule| running.rules.rules().get(rule as usize)) {
            rule.meter.count_in(stripe, RuleEvent::Allowed);
        }
    }
    if let [Ok(decided)] = &mut **decided {
        decided.deciding = least;
    }
    engine.meters.count_in(stripe, Event::Allowed);
    true
}
