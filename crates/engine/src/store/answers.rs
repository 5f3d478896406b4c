//! The answers of a store.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate::core::{Cost, Nanos, Stamps, Time, Wall};
use tollgate::{Outcome, Report, Retry, Verdict};

use super::StoreError;
use crate::decision::Exactness;

/// The answers to a batch, in buffers that are reused.
///
/// For each group, in order, a store calls [`push_answer`](Self::push_answer) once per charge and then
/// [`end_group`](Self::end_group). For a group that failed, it calls [`fail_group`](Self::fail_group)
/// instead.
#[derive(Debug, Default)]
pub struct Answers {
    groups: Vec<GroupRecord>,
    /// The errors of failed groups, each with its group index.
    errors: Vec<(u32, StoreError)>,
    charges: Vec<Answer>,
    reports: Vec<Report>,
    /// The stamps, stored separately because they are large and most charges have none.
    stamps: Vec<Stamps>,
    /// The index of the first charge of the current group.
    group_start: u32,
    unsent: Option<UnsentFlag>,
}

/// A store sets this flag if its future is dropped before it has sent any part of a batch. If the flag is not set, the
/// batch counts as sent.
#[derive(Clone, Debug, Default)]
pub struct UnsentFlag(Arc<AtomicBool>);

impl UnsentFlag {
    /// Records that no part of the batch was sent or will be sent.
    pub fn set(&self) {
        // Relaxed is enough: the thread that drops the future also reads the flag.
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug)]
struct GroupRecord {
    at: Time<Wall>,
    charges: Range<u32>,
    failed: bool,
}

/// The answer to one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The outcome of this charge alone. In a refused group a charge may be allowed although nothing was taken.
    pub outcome: Outcome,
    /// The amount taken, or accepted as a refund.
    pub taken: Cost,
    /// How exact the answer is.
    pub exactness: Exactness,
    /// The index in [`Answers`] of the charge's stamps, if it has any.
    stamps: Option<u32>,
    reports: Range<u32>,
    /// The smallest remaining amount of all limits.
    least_remaining: u64,
}

impl Answer {
    /// Returns the smallest remaining amount of all limits; `u64::MAX` if there is no report.
    pub(crate) fn least_remaining(&self) -> u64 {
        self.least_remaining
    }
}

impl Answers {
    /// Creates a buffer for the answer to a single charge. After dropping the store's future, the caller reads the
    /// [`UnsentFlag`].
    pub fn with_unsent_flag() -> Self {
        Self { unsent: Some(UnsentFlag::default()), ..Self::default() }
    }

    /// Returns the flag that the store should set; `None` if the caller does not read it.
    pub fn unsent_flag(&self) -> Option<&UnsentFlag> {
        self.unsent.as_ref()
    }

    /// Returns whether the store reported that it did not send the batch.
    pub(crate) fn is_unsent(&self) -> bool {
        self.unsent.as_ref().is_some_and(|flag| flag.0.load(Ordering::Relaxed))
    }

    /// Clears the answers and keeps the buffers.
    #[inline]
    pub fn clear(&mut self) {
        if self.groups.is_empty() && self.charges.is_empty() {
            return;
        }
        self.groups.clear();
        self.errors.clear();
        self.charges.clear();
        self.reports.clear();
        self.stamps.clear();
        self.group_start = 0;
    }

    /// Adds the answer to the next charge of the current group. `reports` has one report per limit, in order, or is
    /// empty.
    #[inline]
    pub fn push_answer(
        &mut self,
        outcome: Outcome,
        taken: Cost,
        stamps: Stamps,
        reports: impl IntoIterator<Item = Report>,
    ) {
        self.push_answer_of_exactness(Exactness::Exact, outcome, taken, stamps, reports);
    }

    /// Like [`push_answer`](Self::push_answer), for a charge that may have been decided from an inexact state.
    #[inline]
    pub fn push_answer_of_exactness(
        &mut self,
        exactness: Exactness,
        outcome: Outcome,
        taken: Cost,
        stamps: Stamps,
        reports: impl IntoIterator<Item = Report>,
    ) {
        let answer = self.build_answer(outcome, taken, stamps, reports);
        self.charges.push(Answer { exactness, ..answer });
    }

    #[inline]
    fn build_answer(
        &mut self,
        outcome: Outcome,
        taken: Cost,
        stamps: Stamps,
        reports: impl IntoIterator<Item = Report>,
    ) -> Answer {
        let (first, mut least) = (self.reports.len() as u32, u64::MAX);
        // Internal iteration is faster here: the iterators are chains, whose `next` is slow.
        reports.into_iter().for_each(|report| {
            least = least.min(report.remaining);
            self.reports.push(report);
        });
        let stamps = (!stamps.is_empty()).then(|| {
            self.stamps.push(stamps);
            self.stamps.len() as u32 - 1
        });
        let reports = first..self.reports.len() as u32;
        Answer { outcome, taken, exactness: Exactness::Exact, stamps, reports, least_remaining: least }
    }

    /// Like [`push_answer`](Self::push_answer), for the most common case: an admitted charge to a single limit.
    #[inline]
    pub fn push_granted(&mut self, taken: Cost, report: Report) {
        let reports = self.reports.len() as u32..self.reports.len() as u32 + 1;
        self.reports.push(report);
        let (outcome, exactness, least) = (Outcome::Allow, Exactness::Exact, report.remaining);
        self.charges.push(Answer { outcome, taken, exactness, stamps: None, reports, least_remaining: least });
    }

    /// Like [`push_granted`](Self::push_granted), for a charge that its limit refuses.
    #[inline(never)]
    pub(crate) fn push_refused(&mut self, outcome: Outcome, report: Report) {
        self.push_answer(outcome, Cost::ZERO, Stamps::of_refusal_by(0), [report]);
    }

    /// Like [`push_answer`](Self::push_answer), from a verdict.
    #[inline]
    pub fn push_verdict(&mut self, verdict: &Verdict<Stamps>, reports: impl IntoIterator<Item = Report>) {
        self.push_answer(verdict.outcome(), verdict.taken(), verdict.stamp(), reports);
    }

    /// Ends the current group. `at` is the decision time by the store's clock. If any charge of the group was refused,
    /// sets `taken` of all its charges to zero.
    #[inline]
    pub fn end_group(&mut self, at: Time<Wall>) {
        let admitted = self.charges[self.group_start as usize..].iter().all(|answer| answer.outcome.is_admitted());
        self.end_decided_group(at, admitted);
    }

    /// Like [`end_group`](Self::end_group), for a caller that knows whether all charges of the group were admitted.
    #[inline]
    pub(crate) fn end_decided_group(&mut self, at: Time<Wall>, admitted: bool) {
        let charges = self.group_start..self.charges.len() as u32;
        self.group_start = charges.end;
        if !admitted {
            self.charges[charges.start as usize..].iter_mut().for_each(|answer| answer.taken = Cost::ZERO);
        }
        self.groups.push(GroupRecord { at, charges, failed: false });
    }

    /// Ends the current group with an error and discards its charges.
    pub fn fail_group(&mut self, error: StoreError) {
        self.charges.truncate(self.group_start as usize);
        self.errors.push((self.groups.len() as u32, error));
        self.groups.push(GroupRecord { at: Time::ZERO, charges: self.group_start..self.group_start, failed: true });
    }

    /// Returns the number of groups, including groups that failed.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Returns whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the answer to the group at `index`. The outcome of a group without an answer counts as unknown.
    ///
    /// # Errors
    /// If the group was not decided.
    pub fn group(&self, index: usize) -> Result<GroupAnswer<'_>, StoreError> {
        if let Some(record) = self.groups.get(index).filter(|record| !record.failed) {
            return Ok(GroupAnswer { answers: self, record });
        }
        let error = self.errors.binary_search_by_key(&index, |(index, _)| *index as usize);
        Err(error.map_or_else(
            |_| StoreError::Unknown { why: "the store gave fewer answers than there are groups".into() },
            |error| self.errors[error].1.clone(),
        ))
    }

    /// Returns the position of the first charge of the group at `index`; `None` if the group was not decided.
    #[inline]
    pub(crate) fn first_charge(&self, index: usize) -> Option<u32> {
        self.groups.get(index).filter(|record| !record.failed).map(|record| record.charges.start)
    }

    /// Returns the answers to all charges, of all groups.
    #[inline]
    pub(crate) fn charges(&self) -> &[Answer] {
        &self.charges
    }

    /// Returns the exactness of the least exact charge.
    #[inline]
    pub(crate) fn exactness(&self) -> Exactness {
        self.charges.iter().map(|answer| answer.exactness).max().unwrap_or(Exactness::Exact)
    }

    pub(crate) fn answer(&self, charge: u32) -> Option<&Answer> {
        self.charges.get(charge as usize)
    }

    /// Replaces the wait of a refused charge.
    pub(crate) fn set_wait(&mut self, charge: u32, wait: Nanos) {
        if let Some(answer) = self.charges.get_mut(charge as usize)
            && !answer.outcome.is_admitted()
        {
            answer.outcome = Outcome::Deny(Retry::After(wait));
        }
    }

    /// Returns the stamps that undo a charge exactly.
    pub(crate) fn stamps(&self, answer: &Answer) -> Stamps {
        answer.stamps.and_then(|index| self.stamps.get(index as usize)).copied().unwrap_or_default()
    }

    pub(crate) fn reports(&self, answer: &Answer) -> &[Report] {
        self.reports.get(answer.reports.start as usize..answer.reports.end as usize).unwrap_or_default()
    }
}

/// The answer to a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupAnswer<'a> {
    answers: &'a Answers,
    record: &'a GroupRecord,
}

impl<'a> GroupAnswer<'a> {
    /// Returns the decision time by the store's clock.
    pub fn decided_at(&self) -> Time<Wall> {
        self.record.at
    }

    /// Returns the answers to the charges, in order.
    pub fn charges(&self) -> &'a [Answer] {
        &self.answers.charges[self.record.charges.start as usize..self.record.charges.end as usize]
    }

    /// Returns a charge's reports, one per limit in order.
    pub fn reports(&self, answer: &Answer) -> &'a [Report] {
        self.answers.reports(answer)
    }

    /// Returns the stamps that undo a charge exactly.
    pub fn stamps(&self, answer: &Answer) -> Stamps {
        self.answers.stamps(answer)
    }

    /// Returns the strictest outcome of all charges.
    pub fn outcome(&self) -> Outcome {
        self.charges().iter().fold(Outcome::Allow, |all, one| all.stricter(one.outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(remaining: u64) -> Report {
        Report { limit: 10, remaining, retry: Retry::NOW, reset: Nanos::ZERO }
    }

    #[test]
    fn answers_are_returned_by_group() {
        let mut answers = Answers::default();
        answers.push_answer(Outcome::Allow, Cost::ONE, Stamps::default(), [report(1), report(2)]);
        answers.push_answer(Outcome::Allow, Cost::ONE, Stamps::default(), [report(3)]);
        answers.end_group(Time::from_nanos(7));
        answers.push_answer(Outcome::Allow, Cost::ONE, Stamps::default(), []);
        answers.fail_group(StoreError::Rejected { why: "no".into() });
        answers.push_answer(Outcome::Allow, Cost::new(4), Stamps::default(), [report(4)]);
        answers.end_group(Time::from_nanos(9));

        let first = answers.group(0).unwrap();
        assert_eq!((first.charges().len(), first.decided_at().as_nanos()), (2, 7));
        assert_eq!(first.reports(&first.charges()[1]), [report(3)]);
        assert_eq!(answers.group(1).err(), Some(StoreError::Rejected { why: "no".into() }));
        assert_eq!((0..4).map(|index| answers.first_charge(index)).collect::<Vec<_>>(), [Some(0), None, Some(2), None]);
        let third = answers.group(2).unwrap();
        assert_eq!((third.charges()[0].taken, third.reports(&third.charges()[0])), (Cost::new(4), &[report(4)][..]));
        assert!(matches!(answers.group(3), Err(StoreError::Unknown { .. })));
    }

    #[test]
    fn refused_group_has_taken_nothing() {
        let mut answers = Answers::default();
        answers.push_answer(Outcome::Allow, Cost::ONE, Stamps::default(), []);
        answers.push_answer(Outcome::Deny(Retry::Never), Cost::ZERO, Stamps::default(), []);
        answers.end_group(Time::ZERO);
        let group = answers.group(0).unwrap();
        assert_eq!(group.outcome(), Outcome::Deny(Retry::Never));
        assert!(group.charges().iter().all(|charge| charge.taken == Cost::ZERO));
    }
}
