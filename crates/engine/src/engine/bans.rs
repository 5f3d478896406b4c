//! Counts refusals towards bans, and starts bans.
//!
//! After a refusal by a rule with a ban, one more call to the store counts the refusal. If that refusal starts a ban,
//! another call follows, and the request is reported as refused by the ban. If the store does not answer, the refusal
//! is not counted.

use std::ops::Range;

use tollgate::Outcome;
use tollgate::core::{Ask, Cost};

use super::plan::{AnswerSource, PlannedCharge, to_usize_range};
use super::{Engine, RulesInForce, report};
use crate::decision::Decisions;
use crate::key::{self, SideCounter};
use crate::meters::Event;
use crate::rules::Consistency;
use crate::ruleset::{BanLimits, RuleLimits};
use crate::store::{Answers, Batch, Charge, Group, Store, StoreVerb};

/// The number of refusals of one counter that count towards its ban.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusalCount {
    /// The index of the counter's charge.
    pub(crate) charge: u32,
    pub(crate) refusals: u64,
}

/// The concatenated keys of a counter, its refusals and its ban.
pub(super) struct SideKeys(Vec<u8>);

/// The bans that a request started, each with its keys and the store's answer.
type StartedBans = Vec<(SideKeys, AnswerSource)>;

/// Counts refusals by rules with a ban. A refusal that starts a ban is reported as a refusal by the ban.
pub(super) async fn count_refusals<S: Store, F: Store>(
    engine: &Engine<S, F>,
    running: &RulesInForce,
    decisions: &mut Decisions,
    requests: Range<usize>,
) {
    for request in requests {
        let mut started = StartedBans::new();
        if decisions.decided[request].as_ref().map_or(true, |decided| decided.outcome.is_admitted()) {
            continue;
        }
        let mut banned = false;
        for counter in refused_but_not_banned(decisions, request) {
            if let Some(answered) = count_refusal(engine, counter, running, decisions, &mut started).await {
                decisions.plan.charges[counter + 1].answered = answered;
                banned = true;
            }
        }
        if banned {
            report::combine_charges(decisions, request, running);
        }
    }
}

/// Counts one refusal by the charge at index `counter`. Returns the store's answer about the ban, if the counter is
/// banned now.
async fn count_refusal<S: Store, F: Store>(
    engine: &Engine<S, F>,
    counter: usize,
    running: &RulesInForce,
    decisions: &mut Decisions,
    started: &mut StartedBans,
) -> Option<AnswerSource> {
    let planned = &decisions.plan.charges[counter];
    let banning = ban_limits_of(planned, running)?;
    let keys = SideKeys::for_counter(decisions.plan.key(planned));
    // Another item of the request has already started the ban.
    if let Some((_, answered)) = started.iter().find(|(known, _)| known.0 == keys.0) {
        return Some(*answered);
    }
    let refusals = banning.refusals.as_ref().map(|rule_limits| new_charge(keys.refusals_key(), rule_limits, Cost::ONE));
    if let Some(refusals) = &refusals {
        let mut answers = Answers::default();
        let groups = [Group { verb: StoreVerb::Check, charges: std::slice::from_ref(refusals) }];
        engine.store.run(Batch { limit_table: running, groups: &groups }, &mut answers).await;
        let group = answers.group(0).ok()?;
        if group.outcome().is_admitted() {
            decisions
                .refusal_counts
                .push(RefusalCount { charge: counter as u32, refusals: counted_refusals(&answers) });
            return None;
        }
    }
    let asks = new_charge(keys.ban_key(), &banning.ban, Cost::ZERO);
    let begins = Charge { ask: Ask::Regardless(BanLimits::COST), ..asks };
    let mut groups = vec![Group { verb: StoreVerb::Check, charges: std::slice::from_ref(&begins) }];
    // After the ban, counting starts again from zero.
    groups.extend(
        refusals.iter().map(|refusals| Group { verb: StoreVerb::Reset, charges: std::slice::from_ref(refusals) }),
    );
    groups.push(Group { verb: StoreVerb::Peek, charges: std::slice::from_ref(&asks) });
    let (first, answers) = (decisions.enforced.len(), &mut decisions.enforced);
    engine.store.run(Batch { limit_table: running, groups: &groups }, answers).await;
    if answers.group(first).is_ok_and(|group| group.outcome().is_admitted()) {
        engine.meters.count(Event::Banned);
    }
    let said = answers.first_charge(first + groups.len() - 1)?;
    if answers.answer(said).is_none_or(|answer| answer.outcome.is_admitted()) {
        return None;
    }
    let answered = AnswerSource::Enforced(said);
    started.push((keys, answered));
    Some(answered)
}

/// Reads from the store how many refusals count towards the bans of a request's counters, for explanations.
pub(super) async fn read_refusals<S: Store, F: Store>(
    engine: &Engine<S, F>,
    request: usize,
    running: &RulesInForce,
    decisions: &mut Decisions,
) {
    for counter in counters_with_bans(decisions, request) {
        let planned = &decisions.plan.charges[counter];
        let Some(banning) = ban_limits_of(planned, running) else { continue };
        let mut refusals = 0;
        if let Some(rule_limits) = &banning.refusals {
            let keys = SideKeys::for_counter(decisions.plan.key(planned));
            let asks = new_charge(keys.refusals_key(), rule_limits, Cost::ZERO);
            let mut answers = Answers::default();
            let groups = [Group { verb: StoreVerb::Peek, charges: std::slice::from_ref(&asks) }];
            engine.store.run(Batch { limit_table: running, groups: &groups }, &mut answers).await;
            if answers.group(0).is_err() {
                continue;
            }
            refusals = counted_refusals(&answers);
        }
        decisions.refusal_counts.push(RefusalCount { charge: counter as u32, refusals });
    }
}

/// Returns the indices of a request's charges to counters that can be banned.
fn counters_with_bans(decisions: &Decisions, request: usize) -> Vec<usize> {
    let charges = to_usize_range(&decisions.plan.requests[request].charges);
    let bans =
        |counter: &usize| decisions.plan.charges[..charges.end].get(counter + 1).is_some_and(PlannedCharge::is_ban);
    charges.clone().filter(bans).collect()
}

/// Returns the indices of a request's charges that refused and whose counters can be banned but are not banned yet.
fn refused_but_not_banned(decisions: &Decisions, request: usize) -> Vec<usize> {
    let mut counters = counters_with_bans(decisions, request);
    let said = |index: usize| decisions.answer(&decisions.plan.charges[index]).map(|(answer, _)| answer.outcome);
    counters.retain(|counter| {
        matches!(said(*counter), Some(Outcome::Deny(_))) && said(*counter + 1) == Some(Outcome::Allow)
    });
    counters
}

/// Returns the keys of the first request's refusal counters, with their limits, for a reset.
pub(super) fn refusals_to_forget<'r>(
    decisions: &Decisions,
    running: &'r RulesInForce,
) -> Vec<(SideKeys, &'r RuleLimits)> {
    let counted = |counter: usize| {
        let planned = &decisions.plan.charges[counter];
        let rule_limits = ban_limits_of(planned, running)?.refusals.as_ref()?;
        Some((SideKeys::for_counter(decisions.plan.key(planned)), &**rule_limits))
    };
    counters_with_bans(decisions, 0).into_iter().filter_map(counted).collect()
}

impl SideKeys {
    /// Returns a charge that counts one refusal.
    pub(super) fn refusal_charge<'a>(&'a self, rule_limits: &'a RuleLimits) -> Charge<'a> {
        new_charge(self.refusals_key(), rule_limits, Cost::ONE)
    }

    /// Builds the side keys of the counter whose key is `key`.
    fn for_counter(key: &[u8]) -> Self {
        let mut keys = key.to_vec();
        key::push_side_key(&mut keys, 0..key.len(), SideCounter::Refusals);
        key::push_side_key(&mut keys, 0..key.len(), SideCounter::Ban);
        Self(keys)
    }

    /// Returns the key of the refusal counter. All three keys have the same length.
    fn refusals_key(&self) -> &[u8] {
        let length = self.0.len() / 3;
        &self.0[length..2 * length]
    }

    fn ban_key(&self) -> &[u8] {
        &self.0[self.0.len() / 3 * 2..]
    }
}

fn ban_limits_of<'r>(planned: &PlannedCharge, running: &'r RulesInForce) -> Option<&'r BanLimits> {
    let rule = running.rules.rules().get(planned.rule()? as usize)?;
    rule.special()?.ban.as_ref()
}

fn new_charge<'a>(key: &'a [u8], rule_limits: &'a RuleLimits, cost: Cost) -> Charge<'a> {
    let RuleLimits { id, limits, .. } = rule_limits;
    let (ask, consistency) = (Ask::Exactly(cost), Consistency::Strict);
    Charge { key, limits_id: *id, limits, earlier: &[], ask, stamps: None, windows: &[], consistency }
}

/// Returns the number of counted refusals, from the report of the refusal counter.
fn counted_refusals(answers: &Answers) -> u64 {
    let report = answers.answer(0).and_then(|answer| answers.reports(answer).first());
    report.map_or(0, |report| report.limit.saturating_sub(report.remaining))
}
