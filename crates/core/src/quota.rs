//! Arithmetic shared by the window algorithms: a limit per length of time, and which window a stored count belongs to.

use crate::algorithm::STALE;
use crate::error::LimitError;
use crate::params::WindowParams;
use crate::quantity::{Cost, Nanos, Time};
use crate::rate::Rate;
use crate::tokens::Tokens;
use crate::verdict::Ask;

/// The parameters of a window. They are bounded so that sums of lengths fit 64 bits, and a length times an amount fits 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Quota {
    limit: u64,
    length: u64,
    max_debt: u64,
    initial: u64,
}

impl Quota {
    pub(crate) fn new(limit: u64, length: Nanos) -> Result<Self, LimitError> {
        if limit == 0 {
            return Err(LimitError::Zero { what: "the limit" });
        }
        let length = check_length(length, "the length of the window")?;
        let quota = Self { limit, length: length.as_nanos(), max_debt: 0, initial: limit };
        Ok(Self { max_debt: limit.min(quota.largest_debt()), ..quota })
    }

    pub(crate) fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        let largest = self.largest_debt();
        if max_debt > largest {
            return Err(LimitError::FillTooLong { amount: max_debt, max: largest });
        }
        Ok(Self { max_debt, ..self })
    }

    pub(crate) fn initial(self, initial: u64) -> Result<Self, LimitError> {
        LimitError::check_range("the initial amount", initial, 0, self.limit)?;
        Ok(Self { initial, ..self })
    }

    /// Returns the debt that can be paid off at `limit` per window within [`Rate::MAX_FILL`], after the window in which
    /// it was taken.
    const fn largest_debt(&self) -> u64 {
        self.limit.saturating_mul(Rate::MAX_FILL.as_nanos() / self.length) - self.limit
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the length in nanoseconds, never zero.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// Returns the limit and all debt: the most that can be counted.
    pub(crate) const fn deepest(&self) -> u64 {
        self.limit + self.max_debt
    }

    /// Returns the most that may be counted for `ask` to fit; `None` if it never does.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        max_used_for(ask, self.limit, self.deepest())
    }

    /// Returns the amount that `ask` takes, where `available` is what fits now.
    #[inline]
    pub(crate) fn resolve(&self, ask: Ask, available: impl FnOnce() -> u64) -> Demand {
        match ask {
            Ask::Exactly(cost) => Demand::Fit { cost, ceiling: self.limit },
            Ask::Regardless(cost) => Demand::Fit { cost, ceiling: self.deepest() },
            Ask::UpTo(cost) => match cost.min(Cost::new(available())) {
                // With nothing left it asks for one, which is refused with the wait for one.
                Cost::ZERO if cost > Cost::ZERO => Demand::Fit { cost: Cost::ONE, ceiling: self.limit },
                taken => Demand::Take(taken),
            },
        }
    }

    pub(crate) const fn params(&self) -> WindowParams {
        let length = Nanos::from_nanos(self.length);
        WindowParams { limit: self.limit, length, max_debt: self.max_debt, initial: self.initial }
    }

    /// Returns what counts as used for a new key.
    pub(crate) const fn used_at_first(&self) -> u64 {
        self.limit - self.initial
    }

    /// Returns how far ahead of the present a window of this length may be for its count to be used as it is: one
    /// window, since the clock may have been set back a little, or a thread was preempted after reading it. A count
    /// further ahead was written before the clock was set back by more. It then counts in the present window, so that
    /// callers are not refused until the clock has caught up.
    #[inline]
    pub(crate) const fn max_ahead(&self, length: u64) -> u64 {
        if length > STALE.as_nanos() { length } else { STALE.as_nanos() }
    }

    /// Returns the time from `at` to the next multiple of the length plus `offset`, which is below the length: from 1 to the
    /// length.
    #[inline]
    pub(crate) const fn until_next(&self, at: u64, offset: u64) -> u64 {
        let elapsed = at % self.length;
        if elapsed < offset { offset - elapsed } else { self.length - (elapsed - offset) }
    }
}

/// The capacity and the new state of a limit with a `quota`.
macro_rules! start_by_quota {
    () => {
        fn capacity(&self) -> u64 {
            self.quota.limit()
        }

        #[inline]
        fn init<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
            self.start_with(state, now, Tokens::whole(self.quota.used_at_first()));
        }
    };
}

/// The setter and the getters of a limit with a `quota`.
macro_rules! quota_methods {
    () => {
        /// Sets what a new key has, as if the rest had just been spent.
        ///
        /// A key for which nothing is counted any more is forgotten, and then starts with `initial` again.
        ///
        /// # Errors
        /// When it is more than the limit.
        pub fn initial(mut self, initial: u64) -> Result<Self, LimitError> {
            self.quota = self.quota.initial(initial)?;
            Ok(self)
        }

        /// Returns the most that passes in a window.
        pub const fn limit(&self) -> u64 {
            self.quota.limit()
        }

        /// Returns the length of the window.
        pub const fn length(&self) -> Nanos {
            Nanos::from_nanos(self.quota.length())
        }
    };
}

pub(crate) use {quota_methods, start_by_quota};

/// The result of a request under a limit.
pub(crate) enum Demand {
    /// Takes this much.
    Take(Cost),
    /// Passes if `cost` fits under `ceiling`.
    Fit { cost: Cost, ceiling: u64 },
}

/// Returns the most that may be used for `ask` to fit a limit that holds `deepest` including debt; `None` if it never
/// fits. Taking up to an amount needs one unit.
pub(crate) fn max_used_for(ask: Ask, limit: u64, deepest: u64) -> Option<Tokens> {
    let room = match ask {
        Ask::Exactly(cost) => limit.checked_sub(cost.get()),
        Ask::UpTo(cost) => limit.checked_sub(cost.get().min(1)),
        Ask::Regardless(cost) => deepest.checked_sub(cost.get()),
    };
    room.map(Tokens::whole)
}

/// Returns `length` if it is neither zero nor above [`Rate::MAX_PERIOD`].
pub(crate) fn check_length(length: Nanos, what: &'static str) -> Result<Nanos, LimitError> {
    match length {
        Nanos::ZERO => Err(LimitError::Zero { what }),
        given if given > Rate::MAX_PERIOD => Err(LimitError::PeriodTooLong { given, max: Rate::MAX_PERIOD }),
        length => Ok(length),
    }
}

/// Returns an instant as windows count it. The last instant of the clock is left out, so that every instant is before
/// the end of its window.
#[inline]
pub(crate) fn window_instant<C>(time: Time<C>) -> u64 {
    time.as_nanos().min(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debt_may_be_as_large_as_can_be_paid_back_in_time() {
        let quota = Quota::new(10, Nanos::from_secs(60)).unwrap();
        let largest = 10 * (Rate::MAX_FILL.as_nanos() / 60_000_000_000) - 10;
        assert_eq!(quota.max_debt(largest).map(|quota| quota.params().max_debt), Ok(largest));
        let amount = largest + 1;
        assert_eq!(quota.max_debt(amount), Err(LimitError::FillTooLong { amount, max: largest }));
    }
}
