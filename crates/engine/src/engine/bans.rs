//! Refusals are counted, and who has had too many is banned.
//!
//! This happens after a refusal and costs only those who are refused: one more question to the store, and another one for the
//! refusal that is one too many. That one is told what it has started: it is refused by the ban, for as long as the ban lasts. If
//! the store does not answer, the refusal goes uncounted.

use tollgate::Outcome;
use tollgate::core::{Ask, Cost};

use super::decide::range;
use super::plan::{Answered, Planned};
use super::{Engine, Running};
use crate::decision::Decisions;
use crate::key::{self, Beside};
use crate::meters::Event;
use crate::ruleset::{Banning, Numbered};
use crate::store::{Answers, Batch, Charge, Group, Store, Verb};

/// How many refusals of a counter count towards a ban.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    /// The charge to that counter.
    pub(crate) charge: u32,
    pub(crate) refusals: u64,
}

/// What is kept beside a counter.
pub(super) struct BesideKeys(Vec<u8>);

/// The keys that were banned while the requests of a batch were gone through, and what was said about it.
type Started = Vec<(BesideKeys, Answered)>;

impl<S: Store, F: Store> Engine<S, F> {
    /// Counts the refusals among `decisions` by rules that ban for them. Those that lead to a ban become refusals by the ban.
    pub(super) async fn note_refusals(&self, running: &Running, decisions: &mut Decisions) {
        let mut started = Started::new();
        for request in 0..decisions.decided.len() {
            if decisions.decided[request].as_ref().map_or(true, |decided| decided.outcome.is_admitted()) {
                continue;
            }
            let mut banned = false;
            for counter in decisions.refused_before_a_ban(request) {
                if let Some(answered) = self.note_refusal(counter, running, decisions, &mut started).await {
                    decisions.plan.charges[counter + 1].answered = answered;
                    banned = true;
                }
            }
            if banned {
                decisions.sum_up(request, running);
            }
        }
    }

    /// Counts the refusal of a charge, which that to its ban follows. What the ban says, if there is one now.
    async fn note_refusal(
        &self,
        counter: usize,
        running: &Running,
        decisions: &mut Decisions,
        started: &mut Started,
    ) -> Option<Answered> {
        let planned = &decisions.plan.charges[counter];
        let banning = banning_of(planned, running)?;
        let keys = BesideKeys::of(decisions.plan.key(planned));
        // Its requests were all decided before the first of them started the ban.
        if let Some((_, answered)) = started.iter().find(|(known, _)| known.0 == keys.0) {
            return Some(*answered);
        }
        let refusals = banning.refusals.as_ref().map(|numbered| charge(keys.refusals(), numbered, Cost::ONE));
        if let Some(refusals) = &refusals {
            let mut answers = Answers::default();
            let groups = [Group { verb: Verb::Check, charges: std::slice::from_ref(refusals) }];
            self.store.run(Batch { numbers: running, groups: &groups }, &mut answers).await;
            // If it was not answered, nobody knows.
            let group = answers.group(0).ok()?;
            if group.outcome().is_admitted() {
                decisions.noted.push(Noted { charge: counter as u32, refusals: counted(&answers) });
                return None;
            }
        }
        let asks = charge(keys.ban(), &banning.ban, Cost::ZERO);
        let begins = Charge { ask: Ask::Regardless(Banning::COST), ..asks };
        let mut groups = vec![Group { verb: Verb::Check, charges: std::slice::from_ref(&begins) }];
        // Whoever comes back after the ban begins anew.
        groups.extend(
            refusals.iter().map(|refusals| Group { verb: Verb::Reset, charges: std::slice::from_ref(refusals) }),
        );
        groups.push(Group { verb: Verb::Peek, charges: std::slice::from_ref(&asks) });
        let (first, answers) = (decisions.enforced.len(), &mut decisions.enforced);
        self.store.run(Batch { numbers: running, groups: &groups }, answers).await;
        if answers.group(first).is_ok_and(|group| group.outcome().is_admitted()) {
            self.meters.count(Event::Banned);
        }
        let said = answers.first_charge(first + groups.len() - 1)?;
        if answers.answer(said).is_none_or(|answer| answer.outcome.is_admitted()) {
            return None;
        }
        let answered = Answered::Enforced(said);
        started.push((keys, answered));
        Some(answered)
    }

    /// How many refusals count towards bans by the rules that a request meets, asked of the store, for people.
    pub(super) async fn look_at_refusals(&self, request: usize, running: &Running, decisions: &mut Decisions) {
        for counter in decisions.counters_with_bans(request) {
            let planned = &decisions.plan.charges[counter];
            let Some(banning) = banning_of(planned, running) else { continue };
            let mut refusals = 0;
            if let Some(numbered) = &banning.refusals {
                let keys = BesideKeys::of(decisions.plan.key(planned));
                let asks = charge(keys.refusals(), numbered, Cost::ZERO);
                let mut answers = Answers::default();
                let groups = [Group { verb: Verb::Peek, charges: std::slice::from_ref(&asks) }];
                self.store.run(Batch { numbers: running, groups: &groups }, &mut answers).await;
                if answers.group(0).is_err() {
                    continue;
                }
                refusals = counted(&answers);
            }
            decisions.noted.push(Noted { charge: counter as u32, refusals });
        }
    }
}

impl Decisions {
    /// The charges of a request, by place, to counters that can be banned.
    fn counters_with_bans(&self, request: usize) -> Vec<usize> {
        let charges = range(&self.plan.asked[request].charges);
        let bans = |counter: &usize| self.plan.charges[..charges.end].get(counter + 1).is_some_and(Planned::is_ban);
        charges.clone().filter(bans).collect()
    }

    /// Those of them that refused. Who is banned already is not among them.
    fn refused_before_a_ban(&self, request: usize) -> Vec<usize> {
        let mut counters = self.counters_with_bans(request);
        let said = |place: usize| self.answer(&self.plan.charges[place]).map(|(answer, _)| answer.outcome);
        counters.retain(|counter| {
            matches!(said(*counter), Some(Outcome::Deny(_))) && said(*counter + 1) == Some(Outcome::Allow)
        });
        counters
    }
}

impl Decisions {
    /// Where refusals of the only request there is are counted, with the numbers to count them by.
    pub(super) fn refusals_to_forget<'r>(&self, running: &'r Running) -> Vec<(BesideKeys, &'r Numbered)> {
        let counted = |counter: usize| {
            let planned = &self.plan.charges[counter];
            let numbered = banning_of(planned, running)?.refusals.as_ref()?;
            Some((BesideKeys::of(self.plan.key(planned)), &**numbered))
        };
        self.counters_with_bans(0).into_iter().filter_map(counted).collect()
    }
}

impl BesideKeys {
    /// One refusal.
    pub(super) fn refusals_under<'a>(&'a self, numbered: &'a Numbered) -> Charge<'a> {
        charge(self.refusals(), numbered, Cost::ONE)
    }

    /// Beside the counter with this key.
    fn of(key: &[u8]) -> Self {
        let mut keys = key.to_vec();
        key::push_beside(&mut keys, 0..key.len(), Beside::Refusals);
        key::push_beside(&mut keys, 0..key.len(), Beside::Ban);
        Self(keys)
    }

    /// They are all of the same length: that of the counter, of its refusals and of its ban.
    fn refusals(&self) -> &[u8] {
        let length = self.0.len() / 3;
        &self.0[length..2 * length]
    }

    fn ban(&self) -> &[u8] {
        &self.0[self.0.len() / 3 * 2..]
    }
}

fn banning_of<'r>(planned: &Planned, running: &'r Running) -> Option<&'r Banning> {
    let rule = running.rules.rules().get(planned.rule()? as usize)?;
    rule.special()?.ban.as_ref()
}

fn charge<'a>(key: &'a [u8], numbered: &'a Numbered, cost: Cost) -> Charge<'a> {
    let Numbered { id, limits, .. } = numbered;
    Charge { key, numbers: *id, limits, earlier: &[], ask: Ask::Exactly(cost), stamps: None, windows: &[] }
}

/// How many refusals there were, by the answer to the one question about them.
fn counted(answers: &Answers) -> u64 {
    let report = answers.answer(0).and_then(|answer| answers.reports(answer).first());
    report.map_or(0, |report| report.limit.saturating_sub(report.remaining))
}
