//! Rules of which one is enough: a request that meets several of them passes while one has room.
//!
//! A store admits all charges of a group or none, and says of each what its limits say. So all are asked; if only such rules
//! refuse and another one has room, nothing was taken, and the request is asked once more without those that refused.
//! Whoever is quicker may take the room in between: then that one is left out as well, and a third is asked. So nobody is
//! refused before each of the rules has been found without room, no limit is ever exceeded, and it ends, since every
//! question is about fewer rules than the one before. A store that decided this by itself would save the second question, which
//! only those ask who find a rule without room.
//!
//! A counter that is banned has no room. A rule that is closed while the store does not answer refuses whatever others say.
//!
//! Two things follow. A limit that counts refused attempts counts those that it had no room for, whoever let them pass. And
//! requests of one batch that are asked again come after those that were not.

use std::mem::take;
use std::ops::Range;

use tollgate::Outcome;

use super::decide::range;
use super::plan::{Answered, Few, Planned};
use super::{Engine, Running};
use crate::decision::{Decisions, Standing};
use crate::ruleset::RunningRule;
use crate::store::{Store, Verb};

impl<S: Store, F: Store> Engine<S, F> {
    /// Leaves out the charges that have no room where another one is enough, and asks again about those requests.
    pub(super) async fn leave_out_exhausted(&self, verb: Verb, running: &Running, decisions: &mut Decisions) {
        let mut again = take(&mut decisions.plan.picked);
        loop {
            again.clear();
            decisions.faulted.clear();
            for request in 0..decisions.decided.len() {
                if !decisions.leave_out(request, running) {
                    continue;
                }
                // Whoever has waited for the store in vain does not wait for it once more.
                let fell_back = decisions.decided[request].as_ref().is_ok_and(|it| it.standing == Standing::Fallback);
                let list = if fell_back { &mut decisions.faulted.lost } else { &mut again };
                list.push(request as u32);
            }
            if !again.is_empty() {
                let among = |request: usize| again.binary_search(&(request as u32)).is_ok();
                self.ask_enforced(verb, running, decisions, among).await;
            }
            if !decisions.faulted.lost.is_empty() {
                self.fall_back(verb, running, decisions);
            } else if again.is_empty() {
                break;
            }
        }
        decisions.plan.picked = again;
    }
}

impl Decisions {
    /// Leaves out the charges of a request that have no room where another one is enough. Whether to ask again: not if
    /// something else refuses it, too.
    fn leave_out(&mut self, request: usize, running: &Running) -> bool {
        let charges = self.with_their_bans(request);
        let has_room = |said: &Together| said.is_enough(self, running) && said.outcome.is_admitted();
        if !charges.iter().any(has_room) {
            return false;
        }
        let (mut left_out, mut refused) = (false, false);
        for said in charges.iter().filter(|said| !said.outcome.is_admitted()) {
            if said.is_enough(self, running) {
                for planned in &mut self.plan.charges[said.charges.clone()] {
                    planned.replace();
                    planned.answered = Answered::Not;
                }
                left_out = true;
            } else {
                refused = true;
            }
        }
        left_out && !refused
    }

    /// What a refused request is told where one of several rules would be enough, and by which charge: it has to wait for the
    /// soonest of those, and for all of the others. None if no rule is of that kind.
    pub(super) fn soonest(&self, request: usize, running: &Running) -> Option<(Outcome, u32)> {
        let stricter =
            |one: (Outcome, u32), other: (Outcome, u32)| if one.0.and(other.0) == one.0 { one } else { other };
        let (mut enough, mut others) = (None, None);
        for said in self.with_their_bans(request) {
            let this = (said.outcome, said.decides);
            if said.is_enough(self, running) {
                enough = Some(enough.map_or(this, |known| if stricter(known, this) == this { known } else { this }));
            } else {
                others = Some(others.map_or(this, |known| stricter(known, this)));
            }
        }
        let enough = enough?;
        Some(others.map_or(enough, |others| stricter(others, enough)))
    }

    /// What the enforced charges of a request say, each together with its ban.
    fn with_their_bans(&self, request: usize) -> Few<Together> {
        let mut all: Few<Together> = Few::new();
        for place in range(&self.plan.asked[request].charges) {
            let planned = &self.plan.charges[place];
            if planned.shadow || planned.is_replaced() {
                continue;
            }
            let (outcome, decides) = (self.outcome(planned), place as u32);
            // A ban follows the charge that it belongs to.
            match all.last_mut().filter(|_| planned.is_ban()) {
                Some(before) => {
                    if before.outcome.and(outcome) != before.outcome {
                        (before.outcome, before.decides) = (outcome, decides);
                    }
                    before.charges.end = place + 1;
                }
                None => all.push(Together { charges: place..place + 1, outcome, decides }),
            }
        }
        all
    }
}

/// What a charge and its ban come to.
struct Together {
    charges: Range<usize>,
    outcome: Outcome,
    decides: u32,
}

impl Together {
    /// Whether it is one of those of which one is enough.
    fn is_enough(&self, decisions: &Decisions, running: &Running) -> bool {
        let planned = &decisions.plan.charges[self.charges.start];
        suffices(planned, running) && planned.answered != Answered::Closed
    }
}

fn suffices(planned: &Planned, running: &Running) -> bool {
    let rule = planned.rule().and_then(|rule| running.rules.rules().get(rule as usize));
    let special = rule.and_then(RunningRule::special);
    planned.has_limits() && !planned.shadow && !planned.is_ban() && special.is_some_and(|it| it.suffices)
}
