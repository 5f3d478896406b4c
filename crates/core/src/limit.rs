//! Any limit, chosen at run time.

use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::interval_bucket::IntervalBucket;
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_slices::SlidingSlices;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::algorithm::{Algorithm, Cells, CellsMut};
use crate::quantity::{Cost, Nanos, Now};
use crate::verdict::{Ask, Report, Retry, Spent, Stamp, Verdict};

/// An algorithm with its numbers, or one of the two limits that need neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// Everything passes; nothing is counted.
    Unlimited,
    /// Nothing passes.
    DenyAll,
    /// See [`TokenBucket`].
    TokenBucket(TokenBucket),
    /// See [`LeakyBucket`].
    LeakyBucket(LeakyBucket),
    /// See [`IntervalBucket`].
    IntervalBucket(IntervalBucket),
    /// See [`FixedWindow`].
    FixedWindow(FixedWindow),
    /// See [`SlidingWindow`].
    SlidingWindow(SlidingWindow),
    /// See [`SlidingSlices`].
    SlidingSlices(SlidingSlices),
    /// See [`SlidingLog`].
    SlidingLog(SlidingLog),
    /// See [`Concurrency`].
    Concurrency(Concurrency),
}

macro_rules! from_algorithm {
    ($($algorithm:ident),*) => {
        $(impl From<$algorithm> for Limit {
            fn from(limit: $algorithm) -> Self {
                Self::$algorithm(limit)
            }
        })*
    };
}

from_algorithm!(
    TokenBucket,
    LeakyBucket,
    IntervalBucket,
    FixedWindow,
    SlidingWindow,
    SlidingSlices,
    SlidingLog,
    Concurrency
);

/// Asks the algorithm, or answers for the two that have none.
macro_rules! ask {
    ($limit:expr, unlimited: $unlimited:expr, deny_all: $deny_all:expr, $algorithm:ident => $answer:expr) => {
        match $limit {
            Limit::Unlimited => $unlimited,
            Limit::DenyAll => $deny_all,
            Limit::TokenBucket($algorithm) => $answer,
            Limit::LeakyBucket($algorithm) => $answer,
            Limit::IntervalBucket($algorithm) => $answer,
            Limit::FixedWindow($algorithm) => $answer,
            Limit::SlidingWindow($algorithm) => $answer,
            Limit::SlidingSlices($algorithm) => $answer,
            Limit::SlidingLog($algorithm) => $answer,
            Limit::Concurrency($algorithm) => $answer,
        }
    };
}

impl Algorithm for Limit {
    type Stamp = Stamp;

    fn words(&self) -> usize {
        ask!(self, unlimited: 0, deny_all: 0, algorithm => algorithm.words())
    }

    fn capacity(&self) -> u64 {
        ask!(self, unlimited: u64::MAX, deny_all: 0, algorithm => algorithm.capacity())
    }

    fn uses_wall_clock(&self) -> bool {
        ask!(self, unlimited: false, deny_all: false, algorithm => algorithm.uses_wall_clock())
    }

    fn fresh<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
        ask!(self, unlimited: (), deny_all: (), algorithm => algorithm.fresh(state, now));
    }

    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict {
        let refuse = Verdict::deny(Retry::Never);
        ask!(self, unlimited: Verdict::allow(ask.cost()), deny_all: refuse, algorithm => algorithm.weigh(state, now, ask))
    }

    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict) {
        ask!(self, unlimited: (), deny_all: (), algorithm => algorithm.commit(state, now, verdict));
    }

    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, stamp: Option<Stamp>) -> Cost {
        ask!(self, unlimited: cost, deny_all: Cost::ZERO, algorithm => algorithm.refund(state, now, cost, stamp))
    }

    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        let unlimited = Report { limit: u64::MAX, remaining: u64::MAX, retry: Retry::NOW, reset: Nanos::ZERO };
        let deny_all = Report { limit: 0, remaining: 0, retry: Retry::Never, reset: Nanos::ZERO };
        ask!(self, unlimited: unlimited, deny_all: deny_all, algorithm => algorithm.report(state, now, cost))
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        ask!(self, unlimited: Spent::NOTHING, deny_all: Spent::NOTHING, algorithm => algorithm.spent(state, now))
    }

    fn is_new<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        ask!(self, unlimited: true, deny_all: true, algorithm => algorithm.is_new(state, now))
    }

    #[inline]
    fn take_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<u64> {
        match self {
            Self::TokenBucket(bucket) => bucket.take_from_word(word, now, cost),
            Self::IntervalBucket(bucket) => bucket.take_from_word(word, now, cost),
            Self::Unlimited
            | Self::DenyAll
            | Self::LeakyBucket(_)
            | Self::FixedWindow(_)
            | Self::SlidingWindow(_)
            | Self::SlidingSlices(_)
            | Self::SlidingLog(_)
            | Self::Concurrency(_) => None,
        }
    }

    /// To other numbers of the same algorithm as that algorithm does it. To another algorithm, what was used up is charged
    /// to a new state; leases and instants mean nothing there and are lost.
    fn convert<S: CellsMut + ?Sized>(&self, old: &Self, state: &mut S, now: &Now<'_>) {
        match (self, old) {
            (Self::TokenBucket(new), Self::TokenBucket(old)) => new.convert(old, state, now),
            (Self::LeakyBucket(new), Self::LeakyBucket(old)) => new.convert(old, state, now),
            (Self::IntervalBucket(new), Self::IntervalBucket(old)) => new.convert(old, state, now),
            (Self::FixedWindow(new), Self::FixedWindow(old)) => new.convert(old, state, now),
            (Self::SlidingWindow(new), Self::SlidingWindow(old)) => new.convert(old, state, now),
            (Self::SlidingSlices(new), Self::SlidingSlices(old)) => new.convert(old, state, now),
            (Self::SlidingLog(new), Self::SlidingLog(old)) => new.convert(old, state, now),
            (Self::Concurrency(new), Self::Concurrency(old)) => new.convert(old, state, now),
            (new, old) => {
                let report = old.report(state, now, Cost::ZERO);
                let used = report.limit.saturating_sub(report.remaining).min(new.capacity());
                new.fresh(state, now);
                new.decide(state, now, Ask::UpTo(Cost::new(used)));
            }
        }
    }
}
