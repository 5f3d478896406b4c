//! The fast path of most requests: decided alone, with nothing to do but charge a few plain limits in memory, all of which fit.
//!
//! It ends with the same results and the same counts as the phases in `decide.rs`, and skips what only other requests need: the
//! lists between plan, store and answers, and the checks for everything that could have gone differently.
//! `tests/short_way.rs` compares both on random requests.

use super::plan::{Answered, Few};
use super::{Engine, Running};
use crate::decision::Decisions;
use crate::meters::{Event, RuleEvent};
use crate::store::Store;
use crate::striped::Stripe;

/// Charges the only request of a batch if all its rules are plain and fit, and the store answers at once. `false`: the fast path
/// does not apply, and nothing has happened.
#[inline]
pub(super) fn try_admit<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &Running,
    decisions: &mut Decisions,
) -> bool {
    let Decisions { plan, enforced, decided, .. } = decisions;
    let mut charges = Few::new();
    if !plan.collect_plain(running, &mut charges) || !engine.store.try_take_fast(&charges, enforced) {
        return false;
    }
    drop(charges);
    let least = enforced.with_least_left();
    let stripe = Stripe::of_thread();
    for (planned, place) in plan.charges.iter_mut().zip(0..) {
        planned.answered = Answered::Enforced(place);
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
