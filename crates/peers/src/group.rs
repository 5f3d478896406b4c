//! Groups whose charges have several homes, as a state machine without I/O.
//!
//! Such a group charges one home after another, in id order. If a home refuses or does not answer, the earlier charges
//! are undone. All nodes use the same order. Otherwise two groups could each take the last token of one home, and both
//! would be refused at the other home. The group's answer must report the amounts that remain after the undo, so the
//! group peeks again at the homes that got tokens back. A refusal therefore costs one more round trip, unless the first
//! home refused.
//!
//! Every home except the last takes with [`Verb::Hold`], so that [`Verb::Undo`] can restore the key's previous limits.
//! A refused group must not move a key to changed limits.
//!
//! While a group holds tokens that it later returns, their bucket keeps refilling. A limit can therefore be exceeded.
//! The excess is at most the held amount, and at most the amount that refills while tokens are held.

use tollgate_core::{Ask as Amount, Cost, Stamps};

use crate::NodeId;
use crate::ask::ChargeAnswer;
use crate::table::Verb;

/// A node that decides charges of the group; `None` is this node.
pub type Home = Option<NodeId>;

/// The next action of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupAction {
    /// Ask the home about these charges, and pass its answers to [`GroupRun::on`].
    Ask {
        /// The home of all these charges.
        home: Home,
        /// Operation to perform.
        verb: Verb,
        /// Indices of the charges.
        charges: Vec<usize>,
    },
    /// Return amounts to the home. No answer is expected: an unreachable home keeps the tokens as spent.
    Return {
        /// The home of all these charges.
        home: Home,
        /// [`Verb::Undo`] for a refused group, [`Verb::Refund`] for an amount that an admitted group does not need.
        verb: Verb,
        /// Index, amount and stamps of each charge.
        charges: Vec<(usize, Cost, Stamps)>,
    },
}

#[derive(Debug)]
enum Phase {
    /// Waits for the home at this index.
    Asking(usize),
    /// Waits for the reports of these charges, after amounts were returned to their homes.
    Rereading(Vec<(Home, Vec<usize>)>),
}

/// One group with several homes. `E` is the type of the reason why a home did not decide.
#[derive(Debug)]
pub struct GroupRun<E> {
    verb: Verb,
    /// The home and the amount of each charge.
    charges: Vec<(Home, Amount)>,
    /// The homes, in the order in which they are asked.
    homes: Vec<Home>,
    answers: Vec<Option<ChargeAnswer>>,
    outcome: Result<bool, E>,
    phase: Phase,
}

impl<E> GroupRun<E> {
    /// Starts a group on the node `own`. Adds the first action.
    pub fn new(own: NodeId, verb: Verb, charges: Vec<(Home, Amount)>, actions: &mut Vec<GroupAction>) -> Self {
        let mut homes: Vec<Home> = charges.iter().map(|(home, _)| *home).collect();
        // If each node asked itself last, the groups of two nodes could each take the other node's last token, and both
        // would be refused.
        homes.sort_unstable_by_key(|home| home.unwrap_or(own));
        homes.dedup();
        let answers = charges.iter().map(|_| None).collect();
        let group = Self { verb, charges, homes, answers, outcome: Ok(true), phase: Phase::Asking(0) };
        group.ask_home(0, actions);
        group
    }

    /// Processes the answers of a home, or the reason why the home did not decide. Adds the next actions. The group is
    /// decided once every [`GroupAction::Ask`] is answered.
    pub fn on(&mut self, home: Home, result: Result<Vec<ChargeAnswer>, E>, actions: &mut Vec<GroupAction>) {
        match &mut self.phase {
            Phase::Asking(index) => {
                *index += 1;
                let next = *index;
                match result {
                    Ok(answers) => self.store_answers(home, answers),
                    Err(error) => self.outcome = Err(error),
                }
                if self.outcome.is_ok() && next < self.homes.len() {
                    self.ask_home(next, actions);
                } else {
                    self.return_excess(actions);
                }
            }
            Phase::Rereading(waiting) => {
                let Some(at) = waiting.iter().position(|(waiting, _)| *waiting == home) else { return };
                let (_, charges) = waiting.swap_remove(at);
                // If the home does not answer, its old reports stay.
                let Ok(answers) = result else { return };
                for (index, new) in charges.into_iter().zip(answers) {
                    let Some(answer) = &mut self.answers[index] else { continue };
                    answer.reports = new.reports;
                    if !matches!(self.outcome, Ok(true)) {
                        answer.outcome = new.outcome;
                    }
                }
            }
        }
    }

    /// Returns the answer of each charge.
    ///
    /// # Errors
    /// Returns the reason if a home did not decide. All charges of the group are then undone.
    pub fn finish(self) -> Result<Vec<ChargeAnswer>, E> {
        self.outcome?;
        Ok(self.answers.into_iter().flatten().collect())
    }

    fn charges_of(&self, home: Home) -> Vec<usize> {
        (0..self.charges.len()).filter(|index| self.charges[*index].0 == home).collect()
    }

    fn ask_home(&self, index: usize, actions: &mut Vec<GroupAction>) {
        let Some(home) = self.homes.get(index).copied() else { return };
        let verb = match (self.verb, &self.outcome) {
            // After a refusal, the group only peeks at the remaining homes, to get their reports.
            (Verb::Check, Ok(false)) => Verb::Peek,
            (Verb::Check, _) if index + 1 < self.homes.len() => Verb::Hold,
            (verb, _) => verb,
        };
        actions.push(GroupAction::Ask { home, verb, charges: self.charges_of(home) });
    }

    fn store_answers(&mut self, home: Home, mut answers: Vec<ChargeAnswer>) {
        if self.verb == Verb::Check {
            let is_admitted = answers.iter().all(|answer| answer.outcome.is_admitted());
            if !is_admitted || !matches!(self.outcome, Ok(true)) {
                self.outcome = Ok(false);
                // A home takes all of its charges or none, and a peek takes nothing. So nothing has to be returned to
                // this home.
                answers.iter_mut().for_each(ChargeAnswer::clear_taken);
            }
        }
        for (index, answer) in self.charges_of(home).into_iter().zip(answers) {
            self.answers[index] = Some(answer);
        }
    }

    /// Returns tokens to the homes. A refused group returns all tokens. An admitted group reduces every `UpTo` charge
    /// to the smallest amount that any `UpTo` charge took, and returns the difference.
    fn return_excess(&mut self, actions: &mut Vec<GroupAction>) {
        let mut rereads = Vec::new();
        if self.verb == Verb::Check {
            let is_admitted = matches!(self.outcome, Ok(true));
            let up_to = self.charges.iter().zip(&self.answers).filter(|((_, amount), _)| is_up_to(*amount));
            let least = up_to.filter_map(|(_, answer)| Some(answer.as_ref()?.taken)).min();
            for home in &self.homes {
                let mut excess = Vec::new();
                for (index, (_, amount)) in self.charges.iter().enumerate().filter(|(_, charge)| charge.0 == *home) {
                    let Some(answer) = &mut self.answers[index] else { continue };
                    let keep = match (is_admitted, is_up_to(*amount), least) {
                        (false, ..) => Cost::ZERO,
                        (true, true, Some(least)) => least.min(answer.taken),
                        (true, ..) => answer.taken,
                    };
                    let returned = Cost::new(answer.taken.get() - keep.get());
                    answer.taken = keep;
                    excess.extend((returned > Cost::ZERO).then_some((index, returned, answer.stamps)));
                }
                if !excess.is_empty() {
                    rereads.push((*home, excess.iter().map(|(index, ..)| *index).collect::<Vec<_>>()));
                    let verb = if is_admitted { Verb::Refund } else { Verb::Undo };
                    actions.push(GroupAction::Return { home: *home, verb, charges: excess });
                }
            }
        }
        if self.outcome.is_err() {
            rereads.clear();
        }
        // The peeks follow the returned amounts on the same link, so their answers include the returned amounts.
        actions.extend(rereads.iter().map(|(home, charges)| GroupAction::Ask {
            home: *home,
            verb: Verb::Peek,
            charges: charges.clone(),
        }));
        self.phase = Phase::Rereading(rereads);
    }
}

fn is_up_to(amount: Amount) -> bool {
    matches!(amount, Amount::UpTo(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::{Outcome, Retry};

    /// The node that runs the groups.
    const OWN: NodeId = NodeId(9);
    const HOME_TWO: Home = Some(NodeId(2));
    const HOME_SEVEN: Home = Some(NodeId(7));

    fn start_group(homes: &[Home], amount: Amount) -> (GroupRun<&'static str>, Vec<GroupAction>) {
        let mut actions = Vec::new();
        let charges = homes.iter().map(|home| (*home, amount)).collect();
        (GroupRun::new(OWN, Verb::Check, charges, &mut actions), actions)
    }

    fn ask(home: Home, verb: Verb, charges: &[usize]) -> GroupAction {
        GroupAction::Ask { home, verb, charges: charges.to_vec() }
    }

    fn return_action(home: Home, verb: Verb, index: usize, amount: u64) -> GroupAction {
        GroupAction::Return { home, verb, charges: vec![(index, Cost::new(amount), Stamps::default())] }
    }

    fn answers_that_took(amount: u64) -> Vec<ChargeAnswer> {
        let (taken, stamps, reports) = (Cost::new(amount), Stamps::default(), Default::default());
        vec![ChargeAnswer { outcome: Outcome::Allow, taken, stamps, reports }]
    }

    fn refused_answers() -> Vec<ChargeAnswer> {
        let mut answers = answers_that_took(0);
        answers[0].outcome = Outcome::Deny(Retry::Never);
        answers
    }

    /// Processes an answer and returns the next actions.
    fn on(
        group: &mut GroupRun<&'static str>,
        home: Home,
        result: Result<Vec<ChargeAnswer>, &'static str>,
    ) -> Vec<GroupAction> {
        let mut actions = Vec::new();
        group.on(home, result, &mut actions);
        actions
    }

    #[test]
    fn homes_are_asked_in_order_and_all_but_the_last_hold() {
        let (mut group, actions) = start_group(&[None, HOME_SEVEN, HOME_TWO], Amount::Exactly(Cost::ONE));
        assert_eq!(actions, [ask(HOME_TWO, Verb::Hold, &[2])]);
        assert_eq!(on(&mut group, HOME_TWO, Ok(answers_that_took(1))), [ask(HOME_SEVEN, Verb::Hold, &[1])]);
        assert_eq!(on(&mut group, HOME_SEVEN, Ok(answers_that_took(1))), [ask(None, Verb::Check, &[0])]);
        assert_eq!(on(&mut group, None, Ok(answers_that_took(1))), []);
        assert!(group.finish().unwrap().iter().all(|answer| answer.taken == Cost::ONE));
    }

    #[test]
    fn nodes_ask_their_common_homes_in_the_same_order() {
        let first_home = |own: u64, other: u64| {
            let mut actions = Vec::new();
            let charges = [None, Some(NodeId(other))].map(|home| (home, Amount::Exactly(Cost::ONE))).to_vec();
            GroupRun::<()>::new(NodeId(own), Verb::Check, charges, &mut actions);
            let [GroupAction::Ask { home, .. }] = &*actions else { panic!("expected one ask, got {actions:?}") };
            home.unwrap_or(NodeId(own))
        };
        assert_eq!((first_home(2, 7), first_home(7, 2)), (NodeId(2), NodeId(2)));
    }

    #[test]
    fn refused_group_undoes_its_holds_and_reads_their_reports_again() {
        let (mut group, _) = start_group(&[None, HOME_SEVEN, HOME_TWO], Amount::Exactly(Cost::ONE));
        on(&mut group, HOME_TWO, Ok(answers_that_took(1)));
        assert_eq!(on(&mut group, HOME_SEVEN, Ok(refused_answers())), [ask(None, Verb::Peek, &[0])]);
        // The answer to a peek contains an amount, although the peek took nothing. The group must not return this
        // amount.
        let actions = on(&mut group, None, Ok(answers_that_took(1)));
        assert_eq!(actions, [return_action(HOME_TWO, Verb::Undo, 2, 1), ask(HOME_TWO, Verb::Peek, &[2])]);
        assert_eq!(on(&mut group, HOME_TWO, Ok(refused_answers())), []);
        let answers = group.finish().unwrap();
        assert!(answers.iter().all(|answer| answer.taken == Cost::ZERO));
        assert_eq!(answers.iter().filter(|answer| answer.outcome.is_admitted()).count(), 1);
    }

    #[test]
    fn home_without_an_answer_ends_the_group_and_earlier_charges_are_undone() {
        let (mut group, _) = start_group(&[HOME_SEVEN, HOME_TWO], Amount::Exactly(Cost::ONE));
        on(&mut group, HOME_TWO, Ok(answers_that_took(1)));
        assert_eq!(on(&mut group, HOME_SEVEN, Err("silent")), [return_action(HOME_TWO, Verb::Undo, 1, 1)]);
        assert_eq!(group.finish().unwrap_err(), "silent");
    }

    #[test]
    fn admitted_group_refunds_what_exceeds_the_smallest_amount() {
        let (mut group, _) = start_group(&[HOME_SEVEN, HOME_TWO], Amount::UpTo(Cost::new(9)));
        on(&mut group, HOME_TWO, Ok(answers_that_took(5)));
        let actions = on(&mut group, HOME_SEVEN, Ok(answers_that_took(3)));
        assert_eq!(actions, [return_action(HOME_TWO, Verb::Refund, 1, 2), ask(HOME_TWO, Verb::Peek, &[1])]);
        on(&mut group, HOME_TWO, Err("silent"));
        assert!(group.finish().unwrap().iter().all(|answer| answer.taken == Cost::new(3)));
    }
}
