//! Rules of which one is enough: a request that meets several of them passes while one has room.
//!
//! A store admits all charges of a group or none, and says of each what its limits say. So all are asked; if only such rules
//! refuse and another one has room, nothing was taken, and the request is asked once more without those that refused.
//! Whoever is quicker may take the room in between: then that one is left out as well, and a third is asked. So nobody is
//! refused before each of the rules has been found without room, no limit is ever exceeded, and it ends, since every
//! question is about fewer rules than the one before. A store that decided this by itself would save the second question, which
//! only those ask who find a rule without room.
//!
//! Two things follow. A limit that counts refused attempts counts those that it had no room for, whoever let them pass. And
//! requests of one batch that are asked again come after those that were not.

use std::mem::take;

use super::decide::range;
use super::plan::{Answered, Planned};
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
                self.fall_back(verb, running, decisions).await;
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
        let charges = range(&self.plan.asked[request].charges);
        let has_room = |planned: &Planned| suffices(planned, running) && self.outcome(planned).is_allowed();
        if !self.plan.charges[charges.clone()].iter().any(has_room) {
            return false;
        }
        let (mut left_out, mut exhausted, mut refused) = (false, false, false);
        for place in charges {
            let planned = &self.plan.charges[place];
            let refuses = !planned.shadow && !self.outcome(planned).is_allowed();
            // A ban follows the charge that it belongs to.
            if !planned.is_ban() {
                exhausted = refuses && suffices(planned, running);
            }
            if exhausted {
                let planned = &mut self.plan.charges[place];
                planned.replace();
                planned.answered = Answered::Not;
            }
            left_out |= exhausted;
            refused |= refuses && !exhausted;
        }
        left_out && !refused
    }
}

fn suffices(planned: &Planned, running: &Running) -> bool {
    let rule = planned.rule().and_then(|rule| running.rules.rules().get(rule as usize));
    let special = rule.and_then(RunningRule::special);
    planned.has_limits() && !planned.shadow && !planned.is_ban() && special.is_some_and(|it| it.suffices)
}
