//! Requests to a limit, and verdicts. A verdict is data: a refusal is not an error.

use core::time::Duration;

use crate::quantity::{Cost, Nanos};

/// A request to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Takes all of the cost or nothing. Used by `check`.
    Exactly(Cost),
    /// Takes the available part of the cost. Used by `take_up_to` and, with the largest cost, by `drain`.
    UpTo(Cost),
    /// Takes all of the cost. If less is available, the key goes into debt, up to the limit's `max_debt`. Used by
    /// `charge`.
    Regardless(Cost),
}

impl Ask {
    /// Returns the requested amount.
    pub const fn cost(self) -> Cost {
        match self {
            Self::Exactly(cost) | Self::UpTo(cost) | Self::Regardless(cost) => cost,
        }
    }
}

/// Whether a request is admitted.
// A separate tag makes the test for `Allow` one comparison; the niche in `Retry` would need several comparisons.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Admitted now.
    Allow,
    /// Admitted after this wait. The cost is already taken.
    Delay(Nanos),
    /// Refused. Nothing was taken, but a sliding log with `count_refused` counts the attempt.
    Deny(Retry),
}

impl Outcome {
    /// Returns whether the request is admitted, now or after a wait.
    pub const fn is_admitted(self) -> bool {
        matches!(self, Self::Allow | Self::Delay(_))
    }

    /// Returns the stricter outcome. A refusal is stricter than a delay, and a longer wait is stricter than a shorter
    /// wait.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Deny(a), Self::Deny(b)) => Self::Deny(a.max(b)),
            (Self::Deny(retry), Self::Allow | Self::Delay(_)) | (Self::Allow | Self::Delay(_), Self::Deny(retry)) => {
                Self::Deny(retry)
            }
            (Self::Delay(a), Self::Delay(b)) => Self::Delay(a.max(b)),
            (Self::Delay(wait), Self::Allow) | (Self::Allow, Self::Delay(wait)) => Self::Delay(wait),
            (Self::Allow, Self::Allow) => Self::Allow,
        }
    }
}

/// When the same request may pass. Ordered from the soonest retry to [`Never`](Self::Never).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// The same request passes after this time, if nothing else is taken before then. The time is exact: one nanosecond
    /// earlier the request is refused. Never zero in a refusal.
    After(Nanos),
    /// The request passes when a holder releases its lease, at an unknown time.
    OnRelease,
    /// The request never passes.
    Never,
}

impl Retry {
    /// No wait needed.
    pub const NOW: Self = Self::After(Nanos::ZERO);
}

/// The verdict of one limit: the outcome, the amount taken, and a stamp for an exact refund.
///
/// | | [`is_allowed`](Self::is_allowed) | [`delay`](Self::delay) | [`retry_after`](Self::retry_after) | taken |
/// |---|---|---|---|---|
/// | admitted now | `true` | `None` | `None` | yes |
/// | admitted after a wait (leaky buckets, interval buckets with a `max_wait`) | `false` | the wait | `None` | yes; refund it if you will not wait |
/// | refused | `false` | `None` | when the same request passes, if this depends only on time | no |
#[must_use = "an ignored verdict limits nothing"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict<S = Stamp> {
    outcome: Outcome,
    taken: Cost,
    stamp: S,
}

impl Verdict {
    pub(crate) const fn allow(taken: Cost) -> Self {
        Self::with_outcome(Outcome::Allow, taken, Stamp::NONE)
    }

    pub(crate) const fn deny(retry: Retry) -> Self {
        Self::with_outcome(Outcome::Deny(retry), Cost::ZERO, Stamp::NONE)
    }
}

impl<S: Default> Default for Verdict<S> {
    /// Returns the verdict for a cost of zero.
    fn default() -> Self {
        Self { outcome: Outcome::Allow, taken: Cost::ZERO, stamp: S::default() }
    }
}

impl<S: Copy + Default> Verdict<S> {
    /// Creates a verdict that allows `cost`, for a limit that needs no stamp.
    #[inline]
    pub fn new_allowed(cost: Cost) -> Self {
        Self::with_outcome(Outcome::Allow, cost, S::default())
    }

    /// Creates a verdict that allows `cost`, with the stamp for its refund.
    pub const fn new_allowed_with_stamp(cost: Cost, stamp: S) -> Self {
        Self::with_outcome(Outcome::Allow, cost, stamp)
    }

    /// Creates a refusal for a reason outside the limit, such as a full table.
    pub fn new_refused(retry: Retry) -> Self {
        Self::with_outcome(Outcome::Deny(retry), Cost::ZERO, S::default())
    }
}

impl<S: Copy> Verdict<S> {
    pub(crate) const fn with_outcome(outcome: Outcome, taken: Cost, stamp: S) -> Self {
        Self { outcome, taken, stamp }
    }

    /// Returns the outcome.
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Returns whether the request may go ahead now. Returns `false` for a request that is admitted after a wait; see
    /// [`delay`](Self::delay).
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allow)
    }

    /// Returns whether the request is admitted, now or after the [`delay`](Self::delay).
    pub const fn is_admitted(&self) -> bool {
        self.outcome.is_admitted()
    }

    /// Returns the wait of a delayed request; `None` if the request is allowed now or refused.
    pub const fn delay(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::Delay(wait) => Some(Duration::from_nanos(wait.as_nanos())),
            Outcome::Allow | Outcome::Deny(_) => None,
        }
    }

    /// Returns the time until a refused request passes, if nothing else is taken before then. `None` if the request is
    /// admitted, never passes, or waits for a release.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::Deny(Retry::After(wait)) => Some(Duration::from_nanos(wait.as_nanos())),
            Outcome::Allow | Outcome::Delay(_) | Outcome::Deny(Retry::OnRelease | Retry::Never) => None,
        }
    }

    /// Returns the amount taken: the cost, a part of the cost for [`Ask::UpTo`], or zero if the request was refused.
    pub const fn taken(&self) -> Cost {
        self.taken
    }

    /// Returns the stamp for an exact refund of this charge.
    pub const fn stamp(&self) -> S {
        self.stamp
    }
}

/// The location of a charge in a limit's state: the window, the log entry or the lease. Only that limit can read the
/// stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// The stamp of limits that need no stamp, such as buckets.
    pub const NONE: Self = Self(0);

    /// Creates a stamp from the number that [`to_bits`](Self::to_bits) returned.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the stamp as a number, to store it or to send it to another process.
    pub const fn to_bits(self) -> u64 {
        self.0
    }
}

/// The status of one limit, as reported to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Maximum amount that can pass at one instant, or in one window.
    pub limit: u64,
    /// Amount that can still be taken now, rounded down.
    pub remaining: u64,
    /// Time until the requested cost passes.
    pub retry: Retry,
    /// Time until the limit is full again.
    pub reset: Nanos,
}

impl Report {
    /// Returns the time until the limit is full again.
    pub const fn reset_after(&self) -> Duration {
        Duration::from_nanos(self.reset.as_nanos())
    }

    /// Returns the time until the requested cost passes; zero if it passes now, `None` if it never passes or waits for
    /// a release.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.retry {
            Retry::After(wait) => Some(Duration::from_nanos(wait.as_nanos())),
            Retry::OnRelease | Retry::Never => None,
        }
    }
}

/// The used fraction of a limit, in units of 1/(2³²−1); zero means unused.
///
/// The table compares these fractions to choose which entry to evict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spent(u32);

impl Spent {
    /// Unused.
    pub const NOTHING: Self = Self(0);
    /// Fully used, or in debt.
    pub const ALL: Self = Self(u32::MAX);

    /// Returns the fraction `part / whole`, rounded up so that only a `part` of zero becomes zero.
    pub fn of(part: u128, whole: u128) -> Self {
        if part >= whole {
            return Self::ALL;
        }
        // Shifts `whole` below 2^96 so that the product does not overflow. The lost precision is irrelevant for a
        // comparison.
        let shift = (128 - whole.leading_zeros()).saturating_sub(96);
        let (small, whole) = (part >> shift, whole >> shift);
        let fraction = (small * u128::from(u32::MAX)).div_ceil(whole) as u32;
        Self(fraction.max(u32::from(part > 0)))
    }

    /// Returns whether the limit is unused.
    pub const fn is_nothing(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stricter_outcome_wins() {
        let (allow, wait, longer) =
            (Outcome::Allow, Outcome::Delay(Nanos::from_nanos(1)), Outcome::Delay(Nanos::from_nanos(2)));
        let (soon, later) = (Outcome::Deny(Retry::After(Nanos::from_nanos(3))), Outcome::Deny(Retry::OnRelease));
        let ordered = [allow, wait, longer, soon, later, Outcome::Deny(Retry::Never)];
        for (index, a) in ordered.iter().enumerate() {
            for (other, b) in ordered.iter().enumerate() {
                assert_eq!(a.stricter(*b), ordered[index.max(other)], "{a:?} and {b:?}");
            }
            assert_eq!(a.is_admitted(), index < 3, "{a:?}");
        }
    }

    #[test]
    fn spent_fraction_is_rounded_up() {
        let all = u128::from(u32::MAX);
        for (part, whole, expected) in [
            (0, 5, 0),
            (1, 5, all.div_ceil(5)),
            (5, 5, all),
            (6, 5, all),
            (0, 0, all),
            (1, u128::MAX, 1),
            (u128::MAX / 2, u128::MAX, all.div_ceil(2)),
            (1 << 95, 1 << 96, all.div_ceil(2)),
            ((1 << 95) + 1, 1 << 96, all.div_ceil(2)),
            (1 << 126, 1 << 127, all.div_ceil(2)),
        ] {
            assert_eq!(Spent::of(part, whole), Spent(expected as u32), "{part} of {whole}");
        }
        assert!(Spent::NOTHING.is_nothing() && !Spent::ALL.is_nothing() && Spent::of(1, 3) < Spent::of(2, 3));
    }

    #[test]
    fn verdict_returns_its_parts_and_a_delay_is_not_allowed() {
        let granted = Verdict::<Stamp>::new_allowed(Cost::new(3));
        assert_eq!((granted.is_allowed(), granted.taken(), granted.stamp()), (true, Cost::new(3), Stamp::NONE));
        assert_eq!((granted.is_admitted(), granted.delay(), granted.retry_after()), (true, None, None));
        let (wait, second) = (Nanos::SECOND, Duration::from_secs(1));
        let delayed = Verdict::with_outcome(Outcome::Delay(wait), Cost::ONE, Stamp::NONE);
        assert_eq!((delayed.is_allowed(), delayed.is_admitted()), (false, true), "a delay is not a go-ahead");
        assert_eq!((delayed.delay(), delayed.retry_after()), (Some(second), None));
        let denied = Verdict::deny(Retry::After(wait));
        assert_eq!((denied.is_admitted(), denied.delay(), denied.retry_after()), (false, None, Some(second)));
        for retry in [Retry::OnRelease, Retry::Never] {
            assert_eq!(Verdict::deny(retry).retry_after(), None);
        }
        let refused = Verdict::<Stamp>::new_refused(Retry::Never);
        assert_eq!((refused.outcome(), refused.taken()), (Outcome::Deny(Retry::Never), Cost::ZERO));
        assert_eq!(Verdict::<Stamp>::default(), Verdict::allow(Cost::ZERO));
        assert_eq!(Stamp::from_bits(7).to_bits(), 7);
        let report = |retry| Report { limit: 1, remaining: 0, retry, reset: wait };
        assert_eq!(report(Retry::After(wait)).retry_after(), Some(second));
        assert_eq!([Retry::OnRelease, Retry::Never].map(|retry| report(retry).retry_after()), [None; 2]);
        assert_eq!(report(Retry::Never).reset_after(), second);
        let asks = [Ask::Exactly(Cost::ONE), Ask::UpTo(Cost::ONE), Ask::Regardless(Cost::ONE)];
        assert!(asks.iter().all(|ask| ask.cost() == Cost::ONE));
    }
}
