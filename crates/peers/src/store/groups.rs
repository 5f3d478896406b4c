//! Groups whose charges have several homes.
//!
//! Such a group charges the homes one after the other, in id order, and this node last. If one refuses or does not
//! answer, the other charges are refunded. All nodes use the same order, so two groups cannot refuse each other over
//! the last tokens. Answers report the remaining amounts after the refunds, so homes with refunds are peeked at again.
//! A refusal therefore costs one more round trip unless the first home refused.
//!
//! While a group holds tokens that it later refunds, their bucket keeps refilling. That can exceed a limit by the held
//! amount, but at most by the rate times the duration of such overlapping holds.

use tokio::time::Instant;
use tollgate_core::{Ask as Amount, Cost, Stamps};
use tollgate_engine::store::StoreError;

use super::{GroupDecision, GroupPart, PeerStore, untake};
use crate::NodeId;
use crate::ask::{AskCharge, ChargeAnswer};
use crate::table::{Charge, Verb};

impl PeerStore {
    /// Refunds charges without waiting for an answer.
    fn give_back(&self, node: Option<NodeId>, taken: &[(&GroupPart<'_>, Cost, Stamps)]) {
        let taken: Vec<_> = taken.iter().filter(|(_, cost, _)| *cost > Cost::ZERO).collect();
        if taken.is_empty() {
            return;
        }
        match node {
            None => {
                let now = self.shared.now();
                let refunds: Vec<Charge<'_>> = taken
                    .iter()
                    .map(|(part, cost, stamps)| Charge {
                        ask: Amount::Exactly(*cost),
                        stamps: Some(*stamps),
                        ..part.here()
                    })
                    .collect();
                self.shared.table.decide(&now, Verb::Refund, &refunds, |_, _| ());
            }
            Some(node) => {
                let refunds = taken.iter().map(|(part, cost, stamps)| AskCharge {
                    amount: Amount::Exactly(*cost),
                    stamps: Some(*stamps),
                    ..part.asked()
                });
                // Best effort: an unreachable home keeps the tokens as spent.
                drop(self.ask(node, Verb::Refund, refunds.collect()));
            }
        }
    }

    /// Decides a group whose charges have several homes, one home after the other.
    pub(super) async fn decide_in_order(
        &self,
        verb: Verb,
        parts: &[GroupPart<'_>],
        deadline: Instant,
    ) -> Result<GroupDecision, StoreError> {
        let mut places: Vec<Option<NodeId>> = parts.iter().map(|part| part.at).collect();
        // This node comes last: it needs no round trip, so the homes hold their parts only briefly.
        places.sort_unstable_by_key(|place| (place.is_none(), *place));
        places.dedup();
        let mut answers: Vec<Option<ChargeAnswer>> = vec![None; parts.len()];
        let mut outcome = Ok(true);
        for place in &places {
            let indexes: Vec<usize> = (0..parts.len()).filter(|index| parts[*index].at == *place).collect();
            let here: Vec<&GroupPart<'_>> = indexes.iter().map(|index| &parts[*index]).collect();
            // After a refusal, the remaining homes are only peeked at for their reports.
            let verb = if verb == Verb::Check && outcome == Ok(false) { Verb::Peek } else { verb };
            let answered = match place {
                None => {
                    let mut answered = Vec::new();
                    self.decide_here(verb, &here, |_, answer| answered.push(answer));
                    Ok(answered)
                }
                Some(node) => match self.ask(*node, verb, here.iter().map(|part| part.asked()).collect()) {
                    Ok(asked) => self.wait(asked, verb, here.len(), deadline).await,
                    Err(error) => Err(error),
                },
            };
            match answered {
                Ok(mut answered) => {
                    if verb == Verb::Check && !answered.iter().all(|answer| answer.outcome.is_admitted()) {
                        outcome = Ok(false);
                        // A home charges all of its parts or none, so it has nothing to refund.
                        answered.iter_mut().for_each(untake);
                    }
                    indexes.iter().zip(answered).for_each(|(index, answer)| answers[*index] = Some(answer));
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if verb == Verb::Check {
            let changed = self.settle(parts, &places, &mut answers, outcome == Ok(true));
            if let Ok(admitted) = outcome {
                self.look_again(parts, &changed, &mut answers, admitted, deadline).await;
            }
        }
        outcome?;
        let at = self.shared.now().wall();
        let answers = parts.iter().zip(answers).filter_map(|(part, answer)| Some((part.standing(), answer?)));
        Ok(GroupDecision { answers: answers.collect(), at })
    }

    /// Refunds excess charges. A refused group refunds everything. In an admitted group, each `UpTo` part is reduced to
    /// the smallest amount that any of them took. Returns the parts with refunds, by home.
    fn settle(
        &self,
        parts: &[GroupPart<'_>],
        places: &[Option<NodeId>],
        answers: &mut [Option<ChargeAnswer>],
        admitted: bool,
    ) -> Vec<(Option<NodeId>, Vec<usize>)> {
        let up_to = |index: usize| matches!(parts[index].charge.ask, Amount::UpTo(_));
        let least = answers.iter().enumerate().filter(|(index, _)| up_to(*index));
        let least = least.filter_map(|(_, answer)| answer.as_ref().map(|answer| answer.taken)).min();
        let mut changed = Vec::new();
        for place in places {
            let (mut taken, mut indexes) = (Vec::new(), Vec::new());
            for (index, part) in parts.iter().enumerate().filter(|(_, part)| part.at == *place) {
                let Some(answer) = &mut answers[index] else { continue };
                let keep = match (admitted, up_to(index), least) {
                    (false, ..) => Cost::ZERO,
                    (true, true, Some(least)) => least,
                    (true, ..) => answer.taken,
                };
                let excess = Cost::new(answer.taken.get().saturating_sub(keep.get()));
                taken.push((part, excess, answer.stamps));
                indexes.extend((excess > Cost::ZERO).then_some(index));
                answer.taken = keep.min(answer.taken);
            }
            self.give_back(*place, &taken);
            changed.push((*place, indexes));
        }
        changed.retain(|(_, indexes)| !indexes.is_empty());
        changed
    }

    /// Updates the reports of these parts after their refunds. An answer that does not arrive in time leaves the old
    /// report in place.
    async fn look_again(
        &self,
        parts: &[GroupPart<'_>],
        changed: &[(Option<NodeId>, Vec<usize>)],
        answers: &mut [Option<ChargeAnswer>],
        admitted: bool,
        deadline: Instant,
    ) {
        let mut replace = |index: usize, seen: ChargeAnswer| {
            let Some(answer) = &mut answers[index] else { return };
            answer.reports = seen.reports;
            if !admitted {
                answer.outcome = seen.outcome;
            }
        };
        let mut asked = Vec::new();
        for (place, indexes) in changed {
            let here: Vec<&GroupPart<'_>> = indexes.iter().map(|index| &parts[*index]).collect();
            match place {
                None => {
                    let mut indexes = indexes.iter();
                    self.decide_here(Verb::Peek, &here, |_, seen| {
                        if let Some(index) = indexes.next() {
                            replace(*index, seen);
                        }
                    });
                }
                // Sent after the refund on the same link, so it is answered after the refund.
                Some(node) => {
                    let charges = here.iter().map(|part| part.asked()).collect();
                    asked.extend(self.ask(*node, Verb::Peek, charges).map(|pending| (indexes, pending)));
                }
            }
        }
        for (indexes, pending) in asked {
            if let Ok(seen) = self.wait(pending, Verb::Peek, indexes.len(), deadline).await {
                indexes.iter().zip(seen).for_each(|(index, seen)| replace(*index, seen));
            }
        }
    }
}
