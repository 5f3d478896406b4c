//! Runs [`GroupRun`] for groups whose charges have several homes.

use std::collections::VecDeque;

use tokio::time::Instant;
use tollgate_core::{Ask as Amount, Cost, Stamps};
use tollgate_engine::store::StoreError;

use super::{GroupDecision, PeerStore, ResolvedCharge};
use crate::ask::AskCharge;
use crate::group::{GroupAction, GroupRun, Home};
use crate::table::{Charge, Verb};

impl PeerStore {
    /// Decides a group whose charges have several homes.
    pub(super) async fn decide_in_order(
        &self,
        verb: Verb,
        parts: &[ResolvedCharge<'_>],
        deadline: Instant,
    ) -> Result<GroupDecision, StoreError> {
        let charges = parts.iter().map(|part| (part.at, part.charge.ask)).collect();
        let (mut actions, mut pending) = (Vec::new(), VecDeque::new());
        let mut group = GroupRun::new(self.shared.node, verb, charges, &mut actions);
        loop {
            for action in std::mem::take(&mut actions) {
                match action {
                    GroupAction::Ask { home: None, verb, charges } => {
                        let (here, mut answers) = (charges.iter().map(|index| &parts[*index]), Vec::new());
                        self.decide_here(verb, &here.collect::<Vec<_>>(), |_, answer| answers.push(answer));
                        group.on(None, Ok(answers), &mut actions);
                    }
                    GroupAction::Ask { home: Some(node), verb, charges } => {
                        let asked = charges.iter().map(|index| parts[*index].to_ask_charge()).collect();
                        match self.ask(node, verb, asked, deadline) {
                            Ok(asked) => pending.push_back((node, verb, charges.len(), asked)),
                            Err(error) => group.on(Some(node), Err(error), &mut actions),
                        }
                    }
                    GroupAction::Return { home, verb, charges } => {
                        self.return_amounts(home, verb, parts, &charges, deadline);
                    }
                }
            }
            if actions.is_empty() {
                let Some((node, verb, count, asked)) = pending.pop_front() else { break };
                let mut answers = Vec::with_capacity(count);
                let result = self.wait_for_answer(asked, verb, count, |answer| answers.push(answer.clone())).await;
                group.on(Some(node), result.map(|()| answers), &mut actions);
            }
        }
        let answers = group.finish()?;
        let answers = parts.iter().zip(answers).map(|(part, answer)| (part.exactness(), answer));
        Ok(GroupDecision { answers: answers.collect(), at: self.shared.now().wall() })
    }

    /// Returns charged amounts to their home, without waiting for an answer.
    fn return_amounts(
        &self,
        home: Home,
        verb: Verb,
        parts: &[ResolvedCharge<'_>],
        charges: &[(usize, Cost, Stamps)],
        deadline: Instant,
    ) {
        match home {
            None => {
                let refunds = charges.iter().map(|(index, cost, stamps)| Charge {
                    ask: Amount::Exactly(*cost),
                    stamps: Some(*stamps),
                    ..parts[*index].to_table_charge()
                });
                let refunds: Vec<Charge<'_>> = refunds.collect();
                self.shared.table.decide(&self.shared.now(), verb, &refunds, |_, _| ());
            }
            Some(node) => {
                let refunds = charges.iter().map(|(index, cost, stamps)| AskCharge {
                    amount: Amount::Exactly(*cost),
                    stamps: Some(*stamps),
                    ..parts[*index].to_ask_charge()
                });
                // Best effort: an unreachable home keeps the tokens as spent.
                drop(self.ask(node, verb, refunds.collect(), deadline));
            }
        }
    }
}
