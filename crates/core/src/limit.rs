//! A limit of any algorithm, chosen at run time.

use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::interval_bucket::IntervalBucket;
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_slices::SlidingSlices;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::algorithm::{Algorithm, Cells, CellsMut};
use crate::change::changed_parameter_methods;
use crate::limits::Limits;
use crate::quantity::{Cost, Mono, Nanos, Now, Time};
use crate::tokens::Tokens;
use crate::verdict::{Ask, Report, Retry, Spent, Stamp, Verdict};

/// An algorithm with its parameters, or one of the two limits without parameters: unlimited and deny-all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// Every request passes, and nothing is counted.
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
        }

        /// Succeeds if the group is a single limit of this algorithm; otherwise returns the group as the error.
        impl TryFrom<Limits> for $algorithm {
            type Error = Limits;

            fn try_from(limits: Limits) -> Result<Self, Limits> {
                if let [Limit::$algorithm(limit)] = limits.as_slice() { Ok(*limit) } else { Err(limits) }
            }
        }

        impl From<$algorithm> for Limits {
            fn from(limit: $algorithm) -> Self {
                Limit::from(limit).into()
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

/// Succeeds if the group is a single limit; otherwise returns the group as the error.
impl TryFrom<Limits> for Limit {
    type Error = Limits;

    fn try_from(limits: Limits) -> Result<Self, Limits> {
        if let [limit] = limits.as_slice() { Ok(*limit) } else { Err(limits) }
    }
}

/// Evaluates `$answer` for the algorithm in `$limit`. For unlimited and deny-all, evaluates to the given value.
macro_rules! dispatch {
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

impl Limit {
    /// Rewrites a state for another monotonic clock. `from` on the old clock and `to` on the new clock must be the same
    /// instant.
    ///
    /// Monotonic clocks have a different zero in each process. The wall clock has the same zero everywhere, so its
    /// instants are not changed.
    pub fn rebase<S: CellsMut + ?Sized>(&self, state: &mut S, from: Time<Mono>, to: Time<Mono>) {
        match self {
            Self::Unlimited | Self::DenyAll | Self::SlidingWindow(_) | Self::SlidingSlices(_) => {}
            Self::TokenBucket(limit) => limit.rebase(state, from, to),
            Self::LeakyBucket(limit) => limit.rebase(state, from, to),
            Self::IntervalBucket(limit) => limit.rebase(state, from, to),
            Self::FixedWindow(limit) => limit.rebase(state, from, to),
            Self::SlidingLog(limit) => limit.rebase(state, from, to),
            Self::Concurrency(limit) => limit.rebase(state, from, to),
        }
    }
}

impl Algorithm for Limit {
    type Stamp = Stamp;

    fn words(&self) -> usize {
        dispatch!(self, unlimited: 0, deny_all: 0, algorithm => algorithm.words())
    }

    fn capacity(&self) -> u64 {
        dispatch!(self, unlimited: u64::MAX, deny_all: 0, algorithm => algorithm.capacity())
    }

    fn uses_wall_clock(&self) -> bool {
        dispatch!(self, unlimited: false, deny_all: false, algorithm => algorithm.uses_wall_clock())
    }

    fn init<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
        dispatch!(self, unlimited: (), deny_all: (), algorithm => algorithm.init(state, now));
    }

    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict {
        let refuse = Verdict::deny(Retry::Never);
        dispatch!(self, unlimited: Verdict::allow(ask.cost()), deny_all: refuse, algorithm => algorithm.weigh(state, now, ask))
    }

    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict) {
        dispatch!(self, unlimited: (), deny_all: (), algorithm => algorithm.commit(state, now, verdict));
    }

    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, stamp: Option<Stamp>) -> Cost {
        dispatch!(self, unlimited: cost, deny_all: Cost::ZERO, algorithm => algorithm.refund(state, now, cost, stamp))
    }

    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        let unlimited = Report { limit: u64::MAX, remaining: u64::MAX, retry: Retry::NOW, reset: Nanos::ZERO };
        let deny_all = Report { limit: 0, remaining: 0, retry: Retry::Never, reset: Nanos::ZERO };
        dispatch!(self, unlimited: unlimited, deny_all: deny_all, algorithm => algorithm.report(state, now, cost))
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        dispatch!(self, unlimited: Spent::NOTHING, deny_all: Spent::NOTHING, algorithm => algorithm.spent(state, now))
    }

    fn is_unused<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        dispatch!(self, unlimited: true, deny_all: true, algorithm => algorithm.is_unused(state, now))
    }

    fn wait_in_queue<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        dispatch!(self, unlimited: Retry::NOW, deny_all: Retry::Never, algorithm => algorithm.wait_in_queue(state, now, ahead, cost))
    }

    fn recheck_after<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Option<Nanos> {
        dispatch!(self, unlimited: None, deny_all: None, algorithm => algorithm.recheck_after(state, now))
    }

    #[inline]
    fn try_take_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<u64> {
        dispatch!(self, unlimited: None, deny_all: None, algorithm => algorithm.try_take_from_word(word, now, cost))
    }

    #[inline]
    fn try_refuse_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<Retry> {
        dispatch!(self, unlimited: None, deny_all: None, algorithm => algorithm.try_refuse_from_word(word, now, cost))
    }

    #[inline]
    fn has_words_fast_path(&self) -> bool {
        dispatch!(self, unlimited: false, deny_all: false, algorithm => algorithm.has_words_fast_path())
    }

    #[inline]
    fn try_take_from_words<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Stamp> {
        dispatch!(self, unlimited: None, deny_all: None, algorithm => algorithm.try_take_from_words(state, now, cost))
    }

    #[inline]
    fn decide_fast<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Verdict> {
        dispatch!(self, unlimited: None, deny_all: None, algorithm => algorithm.decide_fast(state, now, cost))
    }

    /// Converts the state if both limits use the same algorithm. Between different algorithms, starts a new state with
    /// the used amount; leases and the instants of earlier charges are lost. For token buckets and leaky buckets, the
    /// used amount is the whole state.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        if self == own {
            return;
        }
        match (self, own) {
            (Self::IntervalBucket(new), Self::IntervalBucket(own)) => new.convert(own, state, now),
            (Self::FixedWindow(new), Self::FixedWindow(own)) => new.convert(own, state, now),
            (Self::SlidingWindow(new), Self::SlidingWindow(own)) => new.convert(own, state, now),
            (Self::SlidingSlices(new), Self::SlidingSlices(own)) => new.convert(own, state, now),
            (Self::SlidingLog(new), Self::SlidingLog(own)) => new.convert(own, state, now),
            (Self::Concurrency(new), Self::Concurrency(own)) => new.convert(own, state, now),
            (new, own) => {
                let used = own.used(state, &now.without_windows());
                dispatch!(new, unlimited: (), deny_all: (), algorithm => algorithm.init_with_used(state, now, used));
            }
        }
    }

    changed_parameter_methods!();
}

impl Limit {
    /// Returns the exact amount used at `now`. The amount includes debt, so it may exceed the capacity.
    pub fn used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Tokens {
        dispatch!(self, unlimited: Tokens::ZERO, deny_all: Tokens::ZERO, algorithm => algorithm.used(state, now))
    }

    /// Returns the time until at most `at_most` is used, if nothing is taken before then. Returns [`Retry::OnRelease`]
    /// if a lease has to be released or expire first.
    pub fn until_used_at_most<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        dispatch!(self, unlimited: Retry::NOW, deny_all: Retry::NOW, algorithm => algorithm.until_used_at_most(state, now, at_most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::fixed_window::Phase;
    use crate::algorithm::interval_bucket::Steps;

    const SECOND: Nanos = Nanos::SECOND;

    fn sample_limits() -> Vec<Limit> {
        vec![
            TokenBucket::new("10/s".parse().unwrap(), 10).unwrap().into(),
            TokenBucket::new("7777/s".parse().unwrap(), 10).unwrap().into(),
            LeakyBucket::new("3/s".parse().unwrap(), 10).unwrap().into(),
            FixedWindow::new(10, SECOND).unwrap().phase(Phase::FirstRequest).into(),
            FixedWindow::new(10, SECOND).unwrap().into(),
            SlidingWindow::new(10, SECOND).unwrap().into(),
            SlidingSlices::new(10, SECOND, Nanos::from_millis(100)).unwrap().into(),
            IntervalBucket::new(10, SECOND).unwrap().into(),
            IntervalBucket::new(10, SECOND).unwrap().steps(Steps::FirstRequest).into(),
            SlidingLog::new(10, SECOND).unwrap().into(),
            Concurrency::new(10, SECOND).unwrap().into(),
            Limit::Unlimited,
            Limit::DenyAll,
        ]
    }

    #[test]
    fn rebased_state_reports_the_same_on_the_other_clock() {
        const ZERO: u64 = 1 << 40;
        for (limit, other) in sample_limits().into_iter().flat_map(|limit| [(limit, ZERO + 777), (limit, ZERO - 777)]) {
            let mut state = vec![0; limit.words()];
            let at =
                |mono: u64, nanos: u64| Now::new(Time::from_nanos(mono + nanos), Time::from_nanos(1 << 60 | nanos));
            limit.init(&mut *state, &at(ZERO, 0));
            for step in 0..5 {
                let _ = limit.decide(&mut *state, &at(ZERO, step * 50_000_000), Ask::Exactly(Cost::new(2)));
            }
            let mut rebased = state.clone();
            limit.rebase(&mut *rebased, Time::from_nanos(ZERO), Time::from_nanos(other));
            for nanos in (0..40).map(|step| 200_000_000 + step * 50_000_000) {
                for cost in 0..11 {
                    let report = |state: &[u64], zero| limit.report(state, &at(zero, nanos), Cost::new(cost));
                    assert_eq!(report(&rebased, other), report(&state, ZERO), "{limit:?} for {cost} at {nanos}");
                }
            }
        }
    }

    #[test]
    fn rebasing_never_panics() {
        for (limit, word) in
            sample_limits().into_iter().flat_map(|limit| [0, 5, 1 << 63, u64::MAX].map(|word| (limit, word)))
        {
            for (from, to) in [(0, u64::MAX), (u64::MAX, 0), (1 << 40, 7)] {
                let mut state = vec![word; limit.words()];
                limit.rebase(&mut *state, Time::from_nanos(from), Time::from_nanos(to));
                let _ = limit.decide(&mut *state, &Now::at(1 << 61), Ask::Exactly(Cost::ONE));
            }
        }
    }
}
