//! The fast path, which decides most requests. It handles a single request that charges only plain limits in memory, or
//! only one plain limit that this node decides without contacting its store.
//!
//! The fast path gives the same results as the phases in `decide.rs` and updates the same counts, but builds no lists
//! of charges and answers. `tests/fast_path.rs` compares both paths on random requests.

use super::decide::record_reports_for_outages;
use super::plan::{AnswerSource, SmallList, Span};
use super::{Engine, RulesInForce, report};
use crate::decision::{DecisionRecord, Decisions, Exactness};
use crate::meters::{Event, RuleEvent};
use crate::store::{Answers, Store};
use crate::striped::Stripe;

/// Decides the only request of a batch if all of its rules are plain and the store answers immediately. Returns `false`
/// if the fast path does not apply; nothing has changed in this case.
#[inline]
pub(super) fn try_decide<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &RulesInForce,
    decisions: &mut Decisions,
) -> bool {
    let Decisions { plan, enforced, decided, .. } = decisions;
    let mut charges = SmallList::new();
    if !plan.collect_plain(running, &mut charges) {
        return false;
    }
    let shared =
        |enforced: &mut Answers| engine.store.try_decide_shared(&plan.only_charge_unless_strict(running)?, enforced);
    let decision = engine.store.try_decide_fast(&charges, enforced).or_else(|| shared(enforced));
    let Some(admitted) = decision else { return false };
    drop(charges);
    if enforced.exactness() == Exactness::Leased {
        record_reports_for_outages(engine, running, plan, enforced, 0, &[Span { request: 0, charges: 0..1 }]);
    }
    for (planned, index) in plan.charges.iter_mut().zip(0..) {
        planned.answered = AnswerSource::Enforced(index);
    }
    if !admitted {
        report::combine_charges(decisions, 0, running);
        if decisions.observing {
            decisions.decided.iter_mut().flatten().for_each(DecisionRecord::observe);
        }
        report::count_decisions(engine, running, decisions);
        return true;
    }
    let stripe = Stripe::of_thread();
    for rule in plan.charges.iter().filter_map(|planned| running.rules.rules().get(planned.rule()? as usize)) {
        rule.meter.count_in(stripe, RuleEvent::Allowed);
    }
    if let [Ok(decided)] = &mut **decided {
        decided.deciding = enforced.least_remaining_charge();
        if engine.store.can_fail() {
            decided.exactness = enforced.exactness();
        }
    }
    engine.meters.count_in(stripe, Event::Allowed);
    true
}
