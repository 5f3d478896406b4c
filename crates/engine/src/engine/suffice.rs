//! Rules marked `suffices`: a request that matches several of them is admitted if any one of them has capacity.
//!
//! A store admits all charges of a group or none of them, and reports the outcome of each charge. So the first attempt
//! charges all matching rules. If only rules marked `suffices` refuse and another marked rule has capacity, the
//! request is charged again without the refusing rules. The first attempt took nothing. If another request takes the
//! capacity in between, the next attempt omits that rule as well. This method has three consequences. The rules marked
//! `suffices` refuse a request only after each of them lacked capacity in some attempt. No limit is exceeded. The loop
//! ends, because every attempt charges fewer rules. A store could implement `suffices` itself and save the second
//! call, but only requests that match an exhausted rule need a second call.
//!
//! A banned counter has no capacity. A `closed` rule refuses during a store outage even if it is marked `suffices`.
//!
//! Because the first attempt charges all rules, a log with `count_refused` records every request that it refuses,
//! even a request that another rule admits.

use std::mem::take;
use std::ops::Range;

use tollgate::Outcome;

use super::decide::charge_enforced;
use super::plan::{AnswerSource, PlannedCharge, SmallList, to_usize_range};
use super::{Engine, RulesInForce, fault_policy};
use crate::decision::{Decisions, Exactness};
use crate::ruleset::ActiveRule;
use crate::store::{Store, StoreVerb};

/// Omits the charges of exhausted rules if another rule suffices, and charges the affected requests again.
pub(super) async fn omit_exhausted_rules<S: Store, F: Store>(
    engine: &Engine<S, F>,
    verb: StoreVerb,
    running: &RulesInForce,
    decisions: &mut Decisions,
    requests: Range<usize>,
) {
    let mut again = take(&mut decisions.scratch.picked);
    loop {
        again.clear();
        decisions.scratch.unanswered.clear_last_attempt();
        for request in requests.clone() {
            if !omit_exhausted_charges(decisions, request, running) {
                continue;
            }
            // A request that the store did not answer is not sent to the store again.
            let fell_back = decisions.decided[request].as_ref().is_ok_and(|it| it.exactness == Exactness::Fallback);
            let list = if fell_back { &mut decisions.scratch.unanswered.lost } else { &mut again };
            list.push(request as u32);
        }
        if !again.is_empty() {
            let among = |request: usize| again.binary_search(&(request as u32)).is_ok();
            charge_enforced(engine, verb, running, decisions, among).await;
        }
        if !decisions.scratch.unanswered.lost.is_empty() {
            fault_policy::fall_back(engine, verb, running, decisions);
        } else if again.is_empty() {
            break;
        }
    }
    decisions.scratch.picked = again;
}

/// Omits a request's charges to exhausted rules if another rule suffices. Returns whether to charge the request again.
/// Returns `false` if a rule without `suffices` refuses the request too.
fn omit_exhausted_charges(decisions: &mut Decisions, request: usize, running: &RulesInForce) -> bool {
    let charges = outcomes_including_bans(decisions, request);
    let has_capacity =
        |charge: &OutcomeIncludingBan| charge.can_suffice(decisions, running) && charge.outcome.is_admitted();
    if !charges.iter().any(has_capacity) {
        return false;
    }
    let (mut left_out, mut refused) = (false, false);
    for charge in charges.iter().filter(|charge| !charge.outcome.is_admitted()) {
        if charge.can_suffice(decisions, running) {
            for planned in &mut decisions.plan.charges[charge.charges.clone()] {
                planned.mark_omitted();
                planned.exhausted = true;
                planned.answered = AnswerSource::Unanswered;
            }
            left_out = true;
        } else {
            refused = true;
        }
    }
    left_out && !refused
}

/// Returns the outcome of a refused request with rules marked `suffices`, and its deciding charge. The request has to
/// wait until the first of these rules has capacity and all rules without `suffices` have capacity. `None` if no rule
/// is marked `suffices`.
pub(super) fn soonest_refusal(decisions: &Decisions, request: usize, running: &RulesInForce) -> Option<(Outcome, u32)> {
    let stricter =
        |one: (Outcome, u32), other: (Outcome, u32)| if one.0.stricter(other.0) == one.0 { one } else { other };
    let (mut enough, mut others) = (None, None);
    for charge in outcomes_including_bans(decisions, request) {
        let this = (charge.outcome, charge.deciding_charge);
        if charge.can_suffice(decisions, running) {
            enough = Some(enough.map_or(this, |known| if stricter(known, this) == this { known } else { this }));
        } else {
            others = Some(others.map_or(this, |known| stricter(known, this)));
        }
    }
    let enough = enough?;
    Some(others.map_or(enough, |others| stricter(others, enough)))
}

/// Returns the outcomes of a request's enforced charges, each combined with its ban.
fn outcomes_including_bans(decisions: &Decisions, request: usize) -> SmallList<OutcomeIncludingBan> {
    let mut all: SmallList<OutcomeIncludingBan> = SmallList::new();
    for index in to_usize_range(&decisions.plan.requests[request].charges) {
        let planned = &decisions.plan.charges[index];
        if planned.shadow || planned.is_omitted() {
            continue;
        }
        let (outcome, deciding_charge) = (decisions.charge_outcome(planned), index as u32);
        // In the plan, the ban of a charge follows the charge.
        match all.last_mut().filter(|_| planned.is_ban()) {
            Some(before) => {
                if before.outcome.stricter(outcome) != before.outcome {
                    (before.outcome, before.deciding_charge) = (outcome, deciding_charge);
                }
                before.charges.end = index + 1;
            }
            None => all.push(OutcomeIncludingBan { charges: index..index + 1, outcome, deciding_charge }),
        }
    }
    all
}

/// The combined outcome of a charge and its ban.
struct OutcomeIncludingBan {
    charges: Range<usize>,
    outcome: Outcome,
    deciding_charge: u32,
}

impl OutcomeIncludingBan {
    /// Returns whether the rule is marked `suffices` and does not refuse because of `on_fault: closed`.
    fn can_suffice(&self, decisions: &Decisions, running: &RulesInForce) -> bool {
        let planned = &decisions.plan.charges[self.charges.start];
        is_marked_suffices(planned, running) && planned.answered != AnswerSource::Closed
    }
}

/// Returns whether a charge belongs to an enforced rule marked `suffices`.
pub(super) fn is_marked_suffices(planned: &PlannedCharge, running: &RulesInForce) -> bool {
    let rule = planned.rule().and_then(|rule| running.rules.rules().get(rule as usize));
    let special = rule.and_then(ActiveRule::special);
    planned.is_sent() && !planned.shadow && !planned.is_ban() && special.is_some_and(|it| it.suffices)
}
