//! Decides for a group of limits: weighs every limit, then charges all limits or none.

use alloc::vec;
use alloc::vec::Vec;

use super::{Limits, Stamps};
use crate::algorithm::{Algorithm, Cells, CellsMut, OffsetCells};
use crate::limit::Limit;
use crate::quantity::{Cost, Nanos, Now};
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Verdict};

impl Algorithm for Limits {
    type Stamp = Stamps;

    fn words(&self) -> usize {
        self.words
    }

    /// Returns the smallest capacity of all limits.
    fn capacity(&self) -> u64 {
        self.limits.iter().map(Limit::capacity).min().unwrap_or(0)
    }

    fn uses_wall_clock(&self) -> bool {
        self.limits.iter().any(Limit::uses_wall_clock)
    }

    fn init<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
        for (limit, first, _) in self.limits_with_word_index() {
            limit.init(&mut OffsetCells { cells: &mut *state, first }, now);
        }
    }

    /// Admits only if every limit admits. The verdict has the longest delay, or the latest retry.
    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict<Stamps> {
        let weigh =
            |ask| self.weigh_all(ask, |limit, first| limit.weigh(&OffsetCells { cells: state, first }, now, ask));
        with_delay_for_taken(ask, weigh(ask), weigh)
    }

    /// Only the limits that refused record a refusal.
    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict<Stamps>) {
        for (limit, first, index) in self.limits_with_word_index() {
            if verdict.is_admitted() || verdict.stamp().has_refused(index) {
                let part = Verdict::with_outcome(verdict.outcome(), verdict.taken(), verdict.stamp().get(index));
                limit.commit(&mut OffsetCells { cells: &mut *state, first }, now, &part);
            }
        }
    }

    /// Refunds the limits that issued the stamps, or all limits if there are no stamps. Returns the smallest accepted
    /// refund.
    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, stamps: Option<Stamps>) -> Cost {
        let count = stamps.map_or(Self::MAX, |stamps| stamps.count());
        let refunds = self.limits_with_word_index().take(count).map(|(limit, first, index)| {
            limit.refund(
                &mut OffsetCells { cells: &mut *state, first },
                now,
                cost,
                stamps.map(|stamps| stamps.get(index)),
            )
        });
        // Refunds every limit, even if an earlier limit accepts nothing.
        refunds.fold(cost, Cost::min)
    }

    /// Returns the capacity and remaining amount of the tightest limit, with the longest times of all limits.
    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        tightest_report(self.reports(state, now, cost))
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        let spent = self
            .limits_with_word_index()
            .map(|(limit, first, _)| limit.spent(&OffsetCells { cells: state, first }, now));
        spent.max().unwrap_or_default()
    }

    fn is_unused<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.limits_with_word_index()
            .all(|(limit, first, _)| limit.is_unused(&OffsetCells { cells: state, first }, now))
    }

    /// Returns the longest wait.
    fn wait_in_queue<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        let waits = self
            .limits_with_word_index()
            .map(|(limit, first, _)| limit.wait_in_queue(&OffsetCells { cells: state, first }, now, ahead, cost));
        waits.max().unwrap_or(Retry::NOW)
    }

    fn recheck_after<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Option<Nanos> {
        self.limits_with_word_index()
            .filter_map(|(limit, first, _)| limit.recheck_after(&OffsetCells { cells: state, first }, now))
            .min()
    }

    #[inline]
    fn try_take_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<u64> {
        match &*self.limits {
            [limit] => limit.try_take_from_word(word, now, cost),
            _ => None,
        }
    }

    #[inline]
    fn has_words_fast_path(&self) -> bool {
        matches!(&*self.limits, [limit] if limit.has_words_fast_path())
    }

    #[inline]
    fn try_take_from_words<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Stamps> {
        let [limit] = &*self.limits else { return None };
        limit.try_take_from_words(state, now, cost).map(|stamp| Stamps::from_stamps([stamp]))
    }

    #[inline]
    fn decide_fast<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Verdict<Stamps>> {
        let [limit] = &*self.limits else { return None };
        let verdict = limit.decide_fast(state, now, cost)?;
        let stamps =
            if verdict.is_admitted() { Stamps::from_stamps([verdict.stamp()]) } else { Stamps::of_refusal_by(0) };
        Some(Verdict::with_outcome(verdict.outcome(), verdict.taken(), stamps))
    }

    /// Converts limit by limit. A limit without a counterpart in `own` starts unused, because `initial` applies only to
    /// new keys.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        if self == own {
            return;
        }
        // Copies the old words first, because converted words may be at other indexes.
        let before: Vec<u64> = (0..own.words).map(|word| state.get(word)).collect();
        let mut owns = own.limits_with_word_index();
        for (limit, first, _) in self.limits_with_word_index() {
            let mut words = vec![0; limit.words()];
            match owns.next() {
                Some((own, own_first, _)) => {
                    words.resize(limit.words().max(own.words()), 0);
                    words[..own.words()].copy_from_slice(&before[own_first..][..own.words()]);
                    limit.convert(own, &mut *words, now);
                }
                None => limit.convert(&Limit::Unlimited, &mut *words, now),
            }
            words[..limit.words()].iter().enumerate().for_each(|(word, value)| state.set(first + word, *value));
        }
    }

    /// Weighs limit by limit. A limit without a counterpart in `own` decides as if unused.
    fn weigh_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict<Stamps> {
        let weigh = |ask| {
            let mut owns = own.limits_with_word_index();
            self.weigh_all(ask, |limit, _| match owns.next() {
                Some((own, first, _)) => limit.weigh_from(own, &OffsetCells { cells: state, first }, now, ask),
                None => limit.weigh_from(&Limit::Unlimited, &[0; 0], now, ask),
            })
        };
        with_delay_for_taken(ask, weigh(ask), weigh)
    }

    /// Converts and charges all limits if the verdict takes anything. Otherwise records only refusals.
    fn commit_from<S: CellsMut + ?Sized>(
        &self,
        own: &Self,
        state: &mut S,
        now: &Now<'_>,
        verdict: &Verdict<Stamps>,
    ) -> bool {
        if verdict.taken() > Cost::ZERO && self.words > 0 {
            self.convert(own, state, now);
            self.commit(state, now, verdict);
            return true;
        }
        for ((limit, _, index), (own, first, _)) in self.limits_with_word_index().zip(own.limits_with_word_index()) {
            if verdict.is_admitted() || verdict.stamp().has_refused(index) {
                let part = Verdict::with_outcome(verdict.outcome(), Cost::ZERO, verdict.stamp().get(index));
                limit.commit_from(own, &mut OffsetCells { cells: &mut *state, first }, now, &part);
            }
        }
        false
    }

    fn report_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        tightest_report(self.reports_from(own, state, now, cost))
    }
}

impl Limits {
    #[inline]
    fn weigh_all(&self, ask: Ask, mut weigh: impl FnMut(&Limit, usize) -> Verdict) -> Verdict<Stamps> {
        let mut outcome = Outcome::Allow;
        let mut taken = ask.cost();
        let mut stamps = Stamps { count: self.limits.len() as u8, ..Stamps::default() };
        for (limit, first, index) in self.limits_with_word_index() {
            let verdict = weigh(limit, first);
            outcome = outcome.stricter(verdict.outcome());
            taken = taken.min(verdict.taken());
            stamps.by_limit[index] = verdict.stamp();
            stamps.refused |= u8::from(!verdict.is_admitted()) << index;
        }
        Verdict::with_outcome(outcome, taken, stamps)
    }
}

/// Returns the verdict with the delay for the amount actually taken. Limits with more capacity than the tightest limit
/// may have computed their delay for a larger amount.
#[inline]
fn with_delay_for_taken(ask: Ask, verdict: Verdict<Stamps>, weigh: impl Fn(Ask) -> Verdict<Stamps>) -> Verdict<Stamps> {
    match (ask, verdict.outcome()) {
        (Ask::UpTo(cost), Outcome::Delay(_)) if verdict.taken() < cost => {
            Verdict::with_outcome(weigh(Ask::Exactly(verdict.taken())).outcome(), verdict.taken(), verdict.stamp())
        }
        _ => verdict,
    }
}

/// Returns the limit and remaining amount of the report with the least remaining, and the longest times of all reports.
fn tightest_report(reports: impl Iterator<Item = Report>) -> Report {
    let nothing = Report { limit: u64::MAX, remaining: u64::MAX, retry: Retry::NOW, reset: Nanos::ZERO };
    reports.fold(nothing, |all, one| {
        let tightest = if one.remaining < all.remaining { one } else { all };
        Report { retry: all.retry.max(one.retry), reset: all.reset.max(one.reset), ..tightest }
    })
}
