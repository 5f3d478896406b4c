//! A group of limits on one key, such as 10 per second, 1000 per day and 3 at a time. A request is charged to all
//! limits of the group or to none.

mod decide;
mod stamps;

use alloc::vec;
use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Cells, CellsMut, OffsetCells};
use crate::change::{now_for_own_parameters, with_copy};
use crate::error::LimitError;
use crate::limit::Limit;
use crate::quantity::{Cost, Mono, Now, Time};
use crate::verdict::{Ask, Outcome, Report, Spent};

pub use stamps::Stamps;

/// A group of limits that decides as one limit: if any limit refuses, no limit is charged.
///
/// ```
/// use tollgate_core::{Algorithm, Ask, Cost, FixedWindow, Limits, Nanos, Now, TokenBucket};
///
/// let limits = Limits::new([
///     TokenBucket::new("10/s".parse()?, 10)?.into(),
///     FixedWindow::new(12, Nanos::from_secs(86_400))?.into(),
/// ])?;
/// let mut state = vec![0; limits.words()];
/// limits.init(&mut *state, &Now::at(0));
/// assert!(limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(10))).is_admitted());
/// // A second later the bucket has room for ten again, but the day only for two.
/// let later = Now::at(1_000_000_000);
/// assert!(!limits.decide(&mut *state, &later, Ask::Exactly(Cost::new(3))).is_admitted());
/// assert!(limits.decide(&mut *state, &later, Ask::Exactly(Cost::new(2))).is_admitted());
/// assert_eq!(limits.reports(&*state, &later, Cost::ONE).map(|report| report.remaining).collect::<Vec<_>>(), [8, 0]);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    limits: Vec<Limit>,
    words: usize,
    starts_full: bool,
}

impl Limits {
    /// The maximum number of limits in a group.
    pub const MAX: usize = 8;

    /// The maximum state length, in words, that [`try_decide_single`](Self::try_decide_single) handles. Two words are
    /// enough for a token bucket of any rate.
    pub const MAX_FAST_WORDS: usize = 2;

    /// Creates a group of `limits`, in this order.
    ///
    /// # Errors
    /// Returns an error if `limits` is empty or has more than [`Limits::MAX`] entries.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, LimitError> {
        // Reading one limit more than allowed is enough to detect a group that is too large.
        let limits: Vec<Limit> = limits.into_iter().take(Self::MAX + 1).collect();
        LimitError::check_range("the number of limits", limits.len() as u64, 1, Self::MAX as u64)?;
        let words = limits.iter().map(Limit::words).sum();
        let starts_full = limits.iter().all(starts_full);
        Ok(Self { limits, words, starts_full })
    }

    /// Returns the limits, in order.
    pub fn as_slice(&self) -> &[Limit] {
        &self.limits
    }

    /// Returns a report for each limit, in order.
    pub fn reports<'a, S: Cells + ?Sized>(
        &'a self,
        state: &'a S,
        now: &'a Now<'_>,
        cost: Cost,
    ) -> impl Iterator<Item = Report> + 'a {
        self.limits_with_word_index()
            .map(move |(limit, first, _)| limit.report(&OffsetCells { cells: state, first }, now, cost))
    }

    /// Returns a report for each limit, for a state that was last charged under the limits `own`. See
    /// [`Algorithm::report_from`].
    pub fn reports_from<'a, S: Cells + ?Sized>(
        &'a self,
        own: &'a Self,
        state: &'a S,
        now: &'a Now<'_>,
        cost: Cost,
    ) -> impl Iterator<Item = Report> + 'a {
        let mut owns = own.limits_with_word_index();
        self.limits.iter().map(move |limit| match owns.next() {
            Some((own, first, _)) => limit.report_from(own, &OffsetCells { cells: state, first }, now, cost),
            None => limit.report_from(&Limit::Unlimited, &[0; 0], now, cost),
        })
    }

    /// Returns whether nothing is used in a state that was last charged under the limits `own`. `now` must contain the
    /// calendar windows of `self`.
    pub fn is_unused_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>) -> bool {
        own.limits_with_word_index().all(|(own, first, index)| {
            let limit = self.limits.get(index).unwrap_or(&Limit::Unlimited);
            let part = OffsetCells { cells: state, first };
            own.is_unused(&part, &now_for_own_parameters(limit, own, &part, now))
        })
    }

    /// Returns whether certainly nothing is used, so that the state can be forgotten. `now` contains no calendar
    /// windows, so the method assumes the longest possible windows since the last request.
    pub fn is_surely_unused<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.limits_with_word_index().all(|(limit, first, _)| {
            let part = OffsetCells { cells: state, first };
            match limit {
                Limit::FixedWindow(window) => window.max_used(&part, now) == 0,
                _ => limit.is_unused(&part, now),
            }
        })
    }

    /// Returns an upper bound on the largest spent fraction of any limit. `now` contains no calendar windows, so the
    /// bound assumes the longest possible windows since the last request.
    pub fn max_spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        let spent = self.limits_with_word_index().map(|(limit, first, _)| {
            let part = OffsetCells { cells: state, first };
            match limit {
                Limit::FixedWindow(window) => window.max_spent(&part, now),
                _ => limit.spent(&part, now),
            }
        });
        spent.max().unwrap_or_default()
    }

    /// Calls [`decide_fast`](Algorithm::decide_fast) for a single limit of at most
    /// [`MAX_FAST_WORDS`](Self::MAX_FAST_WORDS) words, and returns the outcome without a stamp. `None`: the fast path
    /// does not apply.
    #[inline(always)]
    pub fn try_decide_single<S: CellsMut>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Outcome> {
        let [limit] = &*self.limits else { return None };
        // Inlined for the most common limit and state only: a token bucket of one word.
        if let Limit::TokenBucket(bucket) = limit {
            let word = state.get(0);
            if let Some(after) = bucket.try_take_from_word(word, now, cost) {
                state.set(0, after);
                return Some(Outcome::Allow);
            }
            if let Some(retry) = bucket.try_refuse_from_word(word, now, cost) {
                return Some(Outcome::Deny(retry));
            }
        }
        self.try_decide_single_slow(limit, state, now, cost)
    }

    #[inline(never)]
    fn try_decide_single_slow<S: CellsMut>(
        &self,
        limit: &Limit,
        state: &mut S,
        now: &Now<'_>,
        cost: Cost,
    ) -> Option<Outcome> {
        if self.words > Self::MAX_FAST_WORDS {
            return None;
        }
        limit.decide_fast(state, now, cost).map(|verdict| verdict.outcome())
    }

    /// Returns the report of a single limit after [`try_decide_single`](Self::try_decide_single).
    #[inline(always)]
    pub fn report_single<S: Cells>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        match &*self.limits {
            [Limit::TokenBucket(bucket)] => bucket.report(state, now, cost),
            _ => self.report(state, now, cost),
        }
    }

    /// Applies [`Limit::rebase`] to the state of each limit.
    pub fn rebase<S: CellsMut + ?Sized>(&self, state: &mut S, from: Time<Mono>, to: Time<Mono>) {
        for (limit, first, _) in self.limits_with_word_index() {
            limit.rebase(&mut OffsetCells { cells: &mut *state, first }, from, to);
        }
    }

    /// Renews the leases that `stamps` identify, and returns whether all of them were still held. Skips limits that are
    /// not concurrency limits; returns `false` if no limit is a concurrency limit.
    pub fn renew<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, stamps: Stamps) -> bool {
        let renewed =
            self.limits_with_word_index().take(stamps.count()).filter_map(|(limit, first, index)| match limit {
                Limit::Concurrency(limit) => {
                    Some(limit.renew(&mut OffsetCells { cells: &mut *state, first }, now, stamps.get(index)))
                }
                _ => None,
            });
        // Renews every lease, even if an earlier lease was lost.
        renewed.fold(None, |all, one| Some(all.unwrap_or(true) && one)).unwrap_or(false)
    }

    /// Takes up to `held[i]` free slots of the limit at index `i`, if that limit is a concurrency limit. Used when a
    /// state is rebuilt from another store's report. The leases of these slots cannot be released; they end only when
    /// they expire.
    pub fn take_slots<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, held: &[u64]) {
        for (limit, first, index) in
            self.limits_with_word_index().filter(|(limit, ..)| matches!(limit, Limit::Concurrency(_)))
        {
            let held = Cost::new(held.get(index).copied().unwrap_or(0));
            let _ = limit.decide(&mut OffsetCells { cells: &mut *state, first }, now, Ask::UpTo(held));
        }
    }

    /// Returns whether every limit of a new key starts at full capacity.
    pub const fn starts_full(&self) -> bool {
        self.starts_full
    }

    /// Returns whether any limit is a concurrency limit.
    pub fn has_concurrency_limit(&self) -> bool {
        self.limits.iter().any(|limit| matches!(limit, Limit::Concurrency(_)))
    }

    /// Returns each limit with the index of its first word and its position in the group.
    fn limits_with_word_index(&self) -> impl Iterator<Item = (&Limit, usize, usize)> {
        let mut first = 0;
        self.limits.iter().enumerate().map(move |(index, limit)| {
            let part = (limit, first, index);
            first += limit.words();
            part
        })
    }
}

impl From<Limit> for Limits {
    fn from(limit: Limit) -> Self {
        Self { words: limit.words(), starts_full: starts_full(&limit), limits: vec![limit] }
    }
}

fn starts_full(limit: &Limit) -> bool {
    let now = Now::at(0);
    with_copy(&[0; 0], limit.words(), |state| {
        limit.init(state, &now);
        limit.is_unused(state, &now)
    })
}

#[cfg(test)]
mod tests;
