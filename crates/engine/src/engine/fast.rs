//! The fast path, which decides most requests. It handles a single request that charges only plain limits in memory, or
//! only one plain limit that this node decides without contacting its store.
//!
//! The fast path gives the same results as the phases in `decide.rs` and updates the same counts, but builds no lists
//! of charges and answers. `tests/fast_path.rs` compares both paths on random requests.

use tollgate::Outcome;

use super::decide::record_reports_for_outages;
use super::plan::{AnswerSource, PlannedCharge, Span};
use super::{Engine, RulesInForce};
use crate::decision::{Decisions, Exactness};
use crate::meters::{Event, RuleEvent};
use crate::store::{Answers, Store};
use crate::striped::Stripe;

/// Decides the only request of a batch if all of its rules are plain and the store answers immediately. Returns `false`
/// if the fast path does not apply; nothing has changed in this case. Not inlined into the future of `decide`, where the
/// compiler keeps variables in memory.
#[inline(never)]
pub(super) fn try_decide<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &RulesInForce,
    decisions: &mut Decisions,
) -> bool {
    let Decisions { plan, enforced, decided, .. } = decisions;
    if !plan.is_plain() {
        return false;
    }
    let shared =
        |enforced: &mut Answers| engine.store.try_decide_shared(&plan.only_charge_unless_strict(running)?, enforced);
    let plain = |planned| plan.plain_charge(planned, running);
    let decision = engine.store.try_decide_fast(&plan.charges, plain, enforced).or_else(|| shared(enforced));
    let Some(admitted) = decision else { return false };
    if enforced.exactness() == Exactness::Leased {
        record_reports_for_outages(engine, running, plan, enforced, 0, &[Span { request: 0, charges: 0..1 }]);
    }
    if !admitted {
        report_refusal(engine, running, decisions);
        return true;
    }
    let (stripe, mut deciding, mut least) = (Stripe::of_thread(), None, u64::MAX);
    for ((planned, index), answer) in plan.charges.iter_mut().zip(0..).zip(enforced.charges()) {
        planned.answered = AnswerSource::Enforced(index);
        count_rule(running, planned, stripe, RuleEvent::Allowed);
        if answer.least_remaining() < least || deciding.is_none() {
            (deciding, least) = (Some(index), answer.least_remaining());
        }
    }
    if let [Ok(decided)] = &mut **decided {
        decided.deciding = deciding;
        if engine.store.can_fail() {
            decided.exactness = enforced.exactness();
        }
    }
    engine.meters.count_in(stripe, Event::Allowed);
    true
}

/// Reports and counts a refusal by plain limits, which never delay and have no response of their own.
#[inline(never)]
fn report_refusal<S: Store, F: Store>(engine: &Engine<S, F>, running: &RulesInForce, decisions: &mut Decisions) {
    let Decisions { plan, enforced, decided, observing, .. } = decisions;
    let (stripe, mut outcome, mut deciding) = (Stripe::of_thread(), Outcome::Allow, None);
    for ((planned, index), answer) in plan.charges.iter_mut().zip(0..).zip(enforced.charges()) {
        planned.answered = AnswerSource::Enforced(index);
        if answer.outcome == Outcome::Allow {
            continue;
        }
        count_rule(running, planned, stripe, RuleEvent::Refused);
        let together = outcome.stricter(answer.outcome);
        if together != outcome {
            (outcome, deciding) = (together, Some(index));
        }
    }
    if let [Ok(decided)] = &mut **decided {
        (decided.outcome, decided.deciding, decided.exactness) = (outcome, deciding, enforced.exactness());
        if *observing {
            decided.observe();
        }
    }
    let events = if *observing { &[Event::Allowed, Event::Observed][..] } else { &[Event::Refused] };
    events.iter().for_each(|event| engine.meters.count_in(stripe, *event));
}

/// Counts a decision in the meter of a charge's rule, if the charge has a rule.
#[inline]
fn count_rule(running: &RulesInForce, planned: &PlannedCharge, stripe: Stripe, event: RuleEvent) {
    if let Some(rule) = planned.rule().and_then(|rule| running.rules.rules().get(rule as usize)) {
        rule.meter.count_in(stripe, event);
    }
}
