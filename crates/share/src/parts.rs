//! A group of charges at several *places*, such as the primaries of a Redis cluster. The group takes all charges or
//! none, without locks, and is usually admitted after one round trip.
//!
//! **The naive method** takes from the places one after another, and undoes the takes at the first refusal. This method
//! costs a round trip per place. Two-phase commit costs two round trips, and holds locks while a participant is slow.
//!
//! **The idea** is that a take can be undone by a refund, so all parts take at the same time. If every part took its
//! charges, the group is admitted after one round trip. Otherwise the verdict is the first in this list that any part
//! received: rejected, refused, stale, no answer. After any of the first three, the parts that took are refunded.
//!
//! **Mixed results are retried once**, in ascending order of the places. Without this retry, two groups that compete
//! for the last tokens of two places can refuse each other although one of them could be admitted. For example, group A
//! takes at place 1 and is refused at place 2, while group B takes at place 2 and is refused at place 1. In the ordered
//! round, one group is first at the lowest place that both groups use, so the other group cannot block it. The refunds
//! are queued before the ordered takes, so the ordered takes can use the refunded tokens.
//!
//! **Suspects go first.** A part whose key was recently refused takes first, while the other parts only peek. So a
//! caller whose requests keep being refused never holds tokens of the other keys.
//!
//! **If a place does not answer** and all other parts took, the verdict is [`Verdict::Partial`]. The caller reads the
//! replies, applies its own policy to the parts without an answer, and passes the result to [`Parts::conclude`]. If the
//! request is not admitted, the other parts are refunded. An *unknown* part may have been executed and counts as spent.
//! If a late answer shows that an unknown part took its charges, the part is refunded unless the request was admitted.
//!
//! **Guarantee.** While tokens are held, a bucket that would otherwise be full keeps refilling, and the refund then
//! adds to the refill. Let `V` be the level that the bucket would have if only admitted groups took tokens, and `H` the
//! amount held for groups that will be refunded. The level is `V − H + e`. The excess `e` grows at the rate `r` only
//! while `V = B` and `H > 0`, never exceeds `H`, and is discarded when the bucket is full. So each place admits at most
//! `B + r·T + E` with `E ≤ min(H, r·c)`, where `c` is the longest time in which holds overlap without a gap. (The age
//! of the oldest refund is not a bound. Example: with `B = 2` and 10 per second, overlapping groups that each hold one
//! token for 20 ms let a third token refill within 100 ms.) In a bucket, a hold lasts at most two deadlines, because
//! the place ignores older refunds. A group whose suspect part is refused holds no tokens of its other keys, so an
//! attack does not prolong the chain of overlapping holds. If no message is lost or late, every take is either part of
//! an admitted group or refunded exactly once.
//!
//! ```
//! use tollgate_share::parts::{Action, Parts, Reply, Verdict};
//!
//! let mut actions = Vec::new();
//! let mut parts = Parts::new(&[false, false], &mut actions);
//! assert_eq!(actions, [Action::Take(0), Action::Take(1)]);
//! actions.clear();
//! parts.on_reply(0, Reply::Passed, &mut actions);
//! parts.on_reply(1, Reply::Passed, &mut actions);
//! assert_eq!(actions, [Action::Answer(Verdict::Admitted)]);
//! ```

/// The reply of a place for one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The place took the charges, or would take them in the case of a peek.
    Passed,
    /// The store permanently rejects the charges. Nothing was spent.
    Rejected,
    /// Too little is left for the charges. Nothing was spent.
    Refused,
    /// The calendar windows do not match the place's time. Nothing was spent.
    Stale,
    /// The message was not sent, so nothing was spent.
    Unavailable,
    /// The message was sent, but no answer came in time. The charges count as spent.
    Unknown,
}

/// An instruction for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take this part's charges at its place; report the reply through [`Parts::on_reply`].
    Take(usize),
    /// Ask whether the place would take this part's charges; report the reply through [`Parts::on_reply`].
    Peek(usize),
    /// Refund this part's charges. Queue the refund on the place's link before any later message.
    Refund(usize),
    /// Answer the caller. Occurs once.
    Answer(Verdict),
}

/// The verdict on a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All parts took.
    Admitted,
    /// A part was rejected; the parts that took are refunded.
    Rejected,
    /// A part was refused; the parts that took are refunded.
    Refused,
    /// A part needs other calendar windows; the parts that took are refunded.
    Stale,
    /// Some parts have no answer, and all other parts took. [`Parts::reply`] returns the reply for each part. Decide
    /// the unanswered parts by another policy, then call [`Parts::conclude`].
    Partial,
}

/// The progress of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartState {
    /// Not asked in this round.
    Idle,
    Taking,
    Peeking,
    Took,
    Failed(Reply),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Suspect parts take, and the other parts peek.
    Probing,
    /// All parts take at the same time.
    Parallel,
    /// The parts take one after the other, in order of places.
    Ordered,
    /// The caller decides the parts without an answer.
    Pending,
    Admitted,
    Refused,
}

/// One group at several places. All nodes number the places in the same order.
#[derive(Debug)]
pub struct Parts {
    parts: Vec<PartState>,
    phase: Phase,
}

impl Parts {
    /// Starts a group with one part per entry of `suspects`, in ascending order of places. An entry
    /// is `true` if a key of the part was recently refused.
    pub fn new(suspects: &[bool], actions: &mut Vec<Action>) -> Self {
        let probing = suspects.contains(&true) && suspects.contains(&false);
        let phase = if probing { Phase::Probing } else { Phase::Parallel };
        let mut parts = Self { parts: vec![PartState::Idle; suspects.len()], phase };
        for (part, suspect) in suspects.iter().enumerate() {
            if probing && !suspect {
                parts.parts[part] = PartState::Peeking;
                actions.push(Action::Peek(part));
            } else {
                parts.begin_take(part, actions);
            }
        }
        parts.advance(actions);
        parts
    }

    /// Returns the last reply for a part. Returns `None` before the part is asked, while its reply is pending, after a
    /// peek that passed, and after a refund.
    pub fn reply(&self, part: usize) -> Option<Reply> {
        match self.parts.get(part)? {
            PartState::Idle | PartState::Taking | PartState::Peeking => None,
            PartState::Took => Some(Reply::Passed),
            PartState::Failed(reply) => Some(*reply),
        }
    }

    /// Processes the reply for a part. Call this function again if the answer for an unknown part arrives late.
    pub fn on_reply(&mut self, part: usize, reply: Reply, actions: &mut Vec<Action>) {
        let Some(state) = self.parts.get_mut(part) else { return };
        match (*state, reply) {
            (PartState::Taking, Reply::Passed) => *state = PartState::Took,
            (PartState::Peeking, Reply::Passed) => *state = PartState::Idle,
            // A peek spends nothing, so a late answer to a peek must not cause a refund.
            (PartState::Peeking, Reply::Unknown) => *state = PartState::Failed(Reply::Unavailable),
            (PartState::Taking | PartState::Peeking, _) => *state = PartState::Failed(reply),
            (PartState::Failed(Reply::Unknown), Reply::Passed) => return self.on_late_take(part, actions),
            // A duplicate or unsolicited answer.
            (PartState::Idle | PartState::Took | PartState::Failed(_), _) => return,
        }
        self.advance(actions);
    }

    /// Ends a [partial](Verdict::Partial) group. If the request is not admitted, the parts that
    /// took are refunded.
    pub fn conclude(&mut self, is_admitted: bool, actions: &mut Vec<Action>) {
        if self.phase != Phase::Pending {
            return;
        }
        if is_admitted {
            self.phase = Phase::Admitted;
        } else {
            self.phase = Phase::Refused;
            self.refund_all(actions);
        }
    }

    /// Handles a late answer: a part whose outcome was unknown has taken its charges. The take is kept only if the
    /// request was admitted or may still be admitted.
    fn on_late_take(&mut self, part: usize, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Refused => actions.push(Action::Refund(part)),
            // The verdict is still open, so this part will be kept or refunded together with the other parts.
            Phase::Probing | Phase::Parallel | Phase::Ordered | Phase::Pending => self.parts[part] = PartState::Took,
            Phase::Admitted => {}
        }
    }

    fn begin_take(&mut self, part: usize, actions: &mut Vec<Action>) {
        self.parts[part] = PartState::Taking;
        actions.push(Action::Take(part));
    }

    /// Refunds all parts that took their charges, in order.
    fn refund_all(&mut self, actions: &mut Vec<Action>) {
        for part in 0..self.parts.len() {
            if self.parts[part] == PartState::Took {
                self.parts[part] = PartState::Idle;
                actions.push(Action::Refund(part));
            }
        }
    }

    fn finish(&mut self, verdict: Verdict, actions: &mut Vec<Action>) {
        self.phase = match verdict {
            Verdict::Admitted => Phase::Admitted,
            Verdict::Partial => Phase::Pending,
            Verdict::Rejected | Verdict::Refused | Verdict::Stale => {
                self.refund_all(actions);
                Phase::Refused
            }
        };
        actions.push(Action::Answer(verdict));
    }

    /// Advances the group unless a reply is pending.
    fn advance(&mut self, actions: &mut Vec<Action>) {
        if self.parts.iter().any(|state| matches!(state, PartState::Taking | PartState::Peeking)) {
            return;
        }
        let has = |reply| self.parts.contains(&PartState::Failed(reply));
        let against = [Reply::Rejected, Reply::Refused, Reply::Stale].into_iter().find(|reply| has(*reply));
        match (self.phase, against) {
            (Phase::Pending | Phase::Admitted | Phase::Refused, _) => {}
            (Phase::Parallel, Some(Reply::Refused)) if self.is_mixed() => {
                self.refund_all(actions);
                self.parts.fill(PartState::Idle);
                self.phase = Phase::Ordered;
                self.begin_take(0, actions);
            }
            (_, Some(Reply::Rejected)) => self.finish(Verdict::Rejected, actions),
            (_, Some(Reply::Stale)) => self.finish(Verdict::Stale, actions),
            (_, Some(_)) => self.finish(Verdict::Refused, actions),
            (Phase::Probing, None) => {
                self.phase = Phase::Parallel;
                for part in 0..self.parts.len() {
                    if matches!(self.parts[part], PartState::Idle) {
                        self.begin_take(part, actions);
                    }
                }
                // If every peek failed, no take was sent, so no further reply would advance the group.
                self.advance(actions);
            }
            (Phase::Parallel | Phase::Ordered, None) => {
                if let Some(next) = self.parts.iter().position(|state| *state == PartState::Idle) {
                    return self.begin_take(next, actions);
                }
                let all = self.parts.iter().all(|state| *state == PartState::Took);
                self.finish(if all { Verdict::Admitted } else { Verdict::Partial }, actions);
            }
        }
    }

    /// Returns whether some parts took and all other parts were refused. A retry in order may then admit the group.
    fn is_mixed(&self) -> bool {
        self.parts.contains(&PartState::Took)
            && self.parts.iter().all(|state| matches!(state, PartState::Took | PartState::Failed(Reply::Refused)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Action::{Answer, Peek, Refund, Take};

    /// Starts a group and passes it the replies. Returns the actions after the start and after each reply.
    fn actions_per_reply(suspects: &[bool], replies: &[(usize, Reply)]) -> (Parts, Vec<Vec<Action>>) {
        let mut actions = Vec::new();
        let mut parts = Parts::new(suspects, &mut actions);
        let mut steps = vec![actions.split_off(0)];
        for (part, reply) in replies {
            parts.on_reply(*part, *reply, &mut actions);
            steps.push(actions.split_off(0));
        }
        (parts, steps)
    }

    fn last_actions(replies: &[(usize, Reply)]) -> Vec<Action> {
        actions_per_reply(&[false; 3], replies).1.pop().unwrap()
    }

    #[test]
    fn verdict_is_the_first_of_rejected_refused_stale_and_unanswered() {
        use Reply::{Passed, Refused, Rejected, Stale, Unavailable, Unknown};
        let cases = [
            ([Passed, Passed, Passed], vec![Answer(Verdict::Admitted)]),
            ([Refused, Rejected, Passed], vec![Refund(2), Answer(Verdict::Rejected)]),
            ([Unknown, Refused, Passed], vec![Refund(2), Answer(Verdict::Refused)]),
            ([Refused, Refused, Refused], vec![Answer(Verdict::Refused)]),
            ([Stale, Unknown, Passed], vec![Refund(2), Answer(Verdict::Stale)]),
            ([Refused, Stale, Passed], vec![Refund(2), Answer(Verdict::Refused)]),
            ([Passed, Unavailable, Unknown], vec![Answer(Verdict::Partial)]),
        ];
        for (replies, expected) in cases {
            let replies: Vec<_> = replies.into_iter().enumerate().collect();
            assert_eq!(last_actions(&replies), expected, "{replies:?}");
        }
    }

    #[test]
    fn mixed_result_is_retried_once_in_order_after_the_refunds() {
        let first = [(2, Reply::Passed), (1, Reply::Refused), (0, Reply::Passed)];
        let (mut parts, steps) = actions_per_reply(&[false; 3], &first);
        assert_eq!(steps[3], [Refund(0), Refund(2), Take(0)]);
        let mut actions = Vec::new();
        parts.on_reply(0, Reply::Passed, &mut actions);
        assert_eq!(actions.split_off(0), [Take(1)]);
        parts.on_reply(1, Reply::Refused, &mut actions);
        assert_eq!(actions, [Refund(0), Answer(Verdict::Refused)], "the group is retried only once");
    }

    #[test]
    fn ordered_retry_can_admit_the_group() {
        let replies = [(0, Reply::Refused), (1, Reply::Passed), (0, Reply::Passed), (1, Reply::Passed)];
        let (_, steps) = actions_per_reply(&[false; 2], &replies);
        assert_eq!(steps[2..], [vec![Refund(1), Take(0)], vec![Take(1)], vec![Answer(Verdict::Admitted)]]);
    }

    #[test]
    fn late_take_is_refunded_if_the_group_was_refused_and_kept_if_it_was_admitted() {
        let (mut parts, _) = actions_per_reply(&[false; 2], &[(0, Reply::Unknown), (1, Reply::Refused)]);
        let mut actions = Vec::new();
        parts.on_reply(0, Reply::Passed, &mut actions);
        assert_eq!(actions.split_off(0), [Refund(0)]);

        let (mut parts, steps) = actions_per_reply(&[false; 2], &[(0, Reply::Unknown), (1, Reply::Passed)]);
        assert_eq!(steps[2], [Answer(Verdict::Partial)]);
        parts.conclude(true, &mut actions);
        parts.on_reply(0, Reply::Passed, &mut actions);
        assert_eq!(actions, []);
    }

    #[test]
    fn partial_group_that_is_not_admitted_is_refunded_including_late_takes() {
        let (mut parts, _) =
            actions_per_reply(&[false; 3], &[(0, Reply::Unknown), (1, Reply::Passed), (2, Reply::Unavailable)]);
        assert_eq!(
            [0, 1, 2].map(|part| parts.reply(part)),
            [Some(Reply::Unknown), Some(Reply::Passed), Some(Reply::Unavailable)]
        );
        let mut actions = Vec::new();
        parts.conclude(false, &mut actions);
        assert_eq!(actions.split_off(0), [Refund(1)]);
        parts.on_reply(0, Reply::Passed, &mut actions);
        assert_eq!(actions, [Refund(0)]);
    }

    #[test]
    fn suspects_take_first_and_hold_no_tokens_of_other_keys_when_refused() {
        let (_, steps) = actions_per_reply(&[false, true], &[(0, Reply::Passed), (1, Reply::Refused)]);
        assert_eq!(steps, [vec![Peek(0), Take(1)], vec![], vec![Answer(Verdict::Refused)]]);
        let (_, steps) =
            actions_per_reply(&[false, true], &[(1, Reply::Passed), (0, Reply::Passed), (0, Reply::Passed)]);
        assert_eq!(steps[2..], [vec![Take(0)], vec![Answer(Verdict::Admitted)]]);
        let late = [(0, Reply::Unknown), (1, Reply::Refused), (0, Reply::Passed)];
        let (_, steps) = actions_per_reply(&[false, true], &late);
        assert_eq!(steps[3], [], "a peek takes nothing");
        let (_, steps) = actions_per_reply(&[true, true], &[]);
        assert_eq!(steps, [[Take(0), Take(1)]]);
    }

    #[test]
    fn overlapping_holds_can_exceed_the_refill_during_the_oldest_hold() {
        use tollgate_core::{Algorithm, Ask, Cost, Now, Rate, TokenBucket};
        const MILLI: u64 = 1_000_000;
        let bucket = TokenBucket::new(Rate::per_second(10).unwrap(), 2).unwrap();
        let mut state = [0; 2];
        bucket.init(&mut state, &Now::at(0));
        let take = |state: &mut [u64; 2], at: u64, cost: u64| {
            bucket.decide(state, &Now::at(at), Ask::Exactly(Cost::new(cost))).is_admitted()
        };
        // Groups start every 10 ms and hold a token for 20 ms, so at least one token is held from 0 to 100 ms.
        assert!(take(&mut state, 0, 1));
        for start in (10..=90).step_by(10) {
            assert!(take(&mut state, start * MILLI, 1));
            bucket.refund(&mut state, &Now::at((start + 10) * MILLI), Cost::ONE, None);
        }
        // The last group still holds its token. Nothing has been admitted so far, but now three tokens are admitted in
        // the same instant.
        assert!(take(&mut state, 100 * MILLI, 2));
        bucket.refund(&mut state, &Now::at(100 * MILLI), Cost::ONE, None);
        assert!(take(&mut state, 100 * MILLI, 1));
    }

    #[test]
    fn every_take_is_part_of_an_admitted_group_or_refunded_once() {
        // Tries every combination of replies for three parts, including the replies of the second round. Replies arrive
        // in the order of the takes.
        let all = [Reply::Passed, Reply::Rejected, Reply::Refused, Reply::Stale, Reply::Unavailable, Reply::Unknown];
        let digits = |mut number: usize| {
            std::array::from_fn::<Reply, 7, _>(|_| {
                let digit = all[number % 6];
                number /= 6;
                digit
            })
        };
        for number in 0..6_usize.pow(7) {
            let mut replies = digits(number).into_iter();
            let mut actions = Vec::new();
            let mut parts = Parts::new(&[false; 3], &mut actions);
            let (mut taken, mut answered) = ([0_i32; 3], None);
            let mut index = 0;
            while index < actions.len() {
                match actions[index] {
                    Take(part) => {
                        let Some(reply) = replies.next() else { break };
                        taken[part] += i32::from(reply == Reply::Passed);
                        parts.on_reply(part, reply, &mut actions);
                    }
                    Refund(part) => taken[part] -= 1,
                    Answer(verdict) => {
                        assert_eq!(answered.replace(verdict), None);
                        parts.conclude(false, &mut actions);
                    }
                    Peek(part) => panic!("part {part} is not suspect"),
                }
                index += 1;
            }
            let Some(verdict) = answered else { continue };
            let expected = i32::from(verdict == Verdict::Admitted);
            assert_eq!(taken, [expected; 3], "{:?}: {actions:?}", digits(number));
        }
    }
}
