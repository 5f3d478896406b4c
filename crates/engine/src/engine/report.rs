//! Combines the charges of a request into an outcome and a deciding charge, and counts decisions.

use std::sync::Arc;

use tollgate::Outcome;

use super::plan::{AnswerSource, PlannedCharge, to_usize_range};
use super::suffice::soonest_refusal;
use super::{Engine, RulesInForce, TakeMode};
use crate::decision::{Decisions, Exactness};
use crate::meters::{Event, RuleEvent};
use crate::rules::Refusal;
use crate::store::Store;
use crate::striped::Stripe;

/// Combines the enforced charges of a request. Returns whether the request also matches shadow rules.
#[inline]
pub(super) fn combine_charges(decisions: &mut Decisions, request: usize, running: &RulesInForce) -> bool {
    if decisions.decided[request].is_err() {
        return false;
    }
    let (mut outcome, mut deciding, mut shadow_refused, mut matches_shadow) = (Outcome::Allow, None, false, false);
    let charges = to_usize_range(&decisions.plan.requests[request].charges);
    let (mut least, mut exactness) = (u64::MAX, Exactness::Exact);
    for (charge, planned) in charges.clone().zip(&decisions.plan.charges[charges]) {
        if planned.is_omitted() {
            continue;
        }
        if planned.shadow {
            matches_shadow = true;
            shadow_refused |= planned.is_denied();
            continue;
        }
        let (charge_outcome, remaining) = match decisions.answer(planned) {
            // A ban has no remaining amount to report.
            Some((answer, _)) => {
                exactness = exactness.max(answer.exactness);
                (answer.outcome, if planned.is_ban() { u64::MAX } else { answer.least_remaining() })
            }
            None => (planned.outcome_without_answer(), u64::MAX),
        };
        if charge_outcome == Outcome::Allow && outcome == Outcome::Allow {
            if remaining < least || deciding.is_none() {
                (deciding, least) = (Some(charge as u32), remaining);
            }
            continue;
        }
        let together = outcome.stricter(charge_outcome);
        if together != outcome {
            deciding = Some(charge as u32);
        }
        outcome = together;
    }
    if !outcome.is_admitted()
        && running.rules.may_omit_rules()
        // `suffices` applies only to requests that take their exact cost; other requests wait for all rules.
        && decisions.plan.take_mode() == TakeMode::Exactly
        && let Some((soonest, by)) = soonest_refusal(decisions, request, running).filter(|(soonest, _)| !soonest.is_admitted())
    {
        (outcome, deciding) = (soonest, Some(by));
    }
    let refusal =
        if outcome.is_admitted() { None } else { deciding.and_then(|charge| refusal_of(decisions, charge, running)) };
    if let Ok(decided) = &mut decisions.decided[request] {
        (decided.outcome, decided.deciding) = (outcome, deciding);
        decided.exactness = decided.exactness.max(exactness);
        // Shadow rules are evaluated only for requests that the enforced rules admit.
        decided.shadow_refused = shadow_refused && outcome.is_admitted();
        decided.refusal = refusal;
    }
    matches_shadow
}

/// Returns the rule's own response to a refusal, if it has one.
fn refusal_of(decisions: &Decisions, charge: u32, running: &RulesInForce) -> Option<Arc<Refusal>> {
    let rule = decisions.plan.charges[charge as usize].rule()?;
    running.rules.rules().get(rule as usize)?.special()?.refusal.clone()
}

/// Counts decisions in the meters of the engine and of each rule.
pub(super) fn count_decisions<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &RulesInForce,
    decisions: &Decisions,
) {
    let (bans, stripe) = (running.rules.has_bans(), Stripe::of_thread());
    for (request, decided) in decisions.decided.iter().enumerate() {
        let Ok(decided) = decided else { continue };
        let event = match decided.outcome {
            Outcome::Allow => Event::Allowed,
            Outcome::Delay(_) => Event::Delayed,
            Outcome::Deny(_) => Event::Refused,
        };
        engine.meters.count_in(stripe, event);
        for (event, is_so) in [
            (Event::Observed, decided.observed.is_some()),
            (Event::ShadowRefused, decided.shadow_refused),
            (Event::Fallback, decided.exactness == Exactness::Fallback),
        ] {
            if is_so {
                engine.meters.count_in(stripe, event);
            }
        }
        // If another rule refused the request, rules that would have admitted it were not charged.
        let charged = decided.outcome.is_admitted() && decided.observed.is_none();
        let charges = decisions.charges_of(request);
        for (index, planned) in charges.iter().enumerate() {
            // Shadow rules are evaluated only for requests that the enforced rules admit.
            if planned.shadow && !charged || bans && is_not_counted(decisions, charges, index) {
                continue;
            }
            let Some(rule) = planned.rule().and_then(|rule| running.rules.rules().get(rule as usize)) else {
                continue;
            };
            let event = rule_event(decisions, planned);
            if let Some(event) = event.filter(|event| charged || *event != RuleEvent::Allowed) {
                rule.meter.count_in(stripe, event);
            }
            if matches!(planned.answered, AnswerSource::Fallback(_) | AnswerSource::Open | AnswerSource::Closed) {
                rule.meter.count_in(stripe, RuleEvent::Fallback);
            }
        }
    }
}

/// Returns whether a charge is not counted. If a ban refuses, the ban is counted instead of its charge. A ban that does
/// not refuse is not counted.
fn is_not_counted(decisions: &Decisions, charges: &[PlannedCharge], index: usize) -> bool {
    let refuses = |planned: &PlannedCharge| planned.is_ban() && !decisions.charge_outcome(planned).is_admitted();
    charges[index].is_ban() != refuses(&charges[index]) || charges.get(index + 1).is_some_and(refuses)
}

fn rule_event(decisions: &Decisions, planned: &PlannedCharge) -> Option<RuleEvent> {
    let unasked = planned.shadow && planned.is_sent() && planned.answered == AnswerSource::Unanswered;
    if unasked || planned.is_omitted() {
        return None;
    }
    Some(match (decisions.charge_outcome(planned), planned.shadow) {
        (Outcome::Allow | Outcome::Delay(_), _) => RuleEvent::Allowed,
        (Outcome::Deny(_), false) => RuleEvent::Refused,
        (Outcome::Deny(_), true) => RuleEvent::ShadowRefused,
    })
}
