//! Parameters and arithmetic shared by the window algorithms.

use crate::algorithm::MAX_READING_AGE;
use crate::error::LimitError;
use crate::params::WindowParams;
use crate::quantity::{Cost, Nanos, Time};
use crate::rate::Rate;
use crate::tokens::Tokens;
use crate::verdict::Ask;

/// The parameters of a window. Constructors ensure that the limit plus the maximum debt, and a sum of up to four
/// lengths, fit in 64 bits. So a sum of up to four products of a length and an amount fits in 128 bits.
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
        Ok(Self { max_debt: limit.min(quota.max_repayable_debt()), ..quota })
    }

    pub(crate) fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        let largest = self.max_repayable_debt();
        if max_debt > largest {
            return Err(LimitError::FillTooLong { amount: max_debt, max: largest });
        }
        Ok(Self { max_debt, ..self })
    }

    pub(crate) fn initial(self, initial: u64) -> Result<Self, LimitError> {
        LimitError::check_range("the initial amount", initial, 0, self.limit)?;
        Ok(Self { initial, ..self })
    }

    /// Returns the largest debt that can be paid off within [`Rate::MAX_FILL_TIME`]. Each window after the window of
    /// the charge pays off `limit`.
    const fn max_repayable_debt(&self) -> u64 {
        self.limit.saturating_mul(Rate::MAX_FILL_TIME.as_nanos() / self.length) - self.limit
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the length in nanoseconds, never zero.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// Returns the largest possible count: the limit plus the maximum debt.
    pub(crate) const fn max_count(&self) -> u64 {
        self.limit + self.max_debt
    }

    /// Returns the largest count at which `ask` still passes; `None` if `ask` never passes.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        max_used_for(ask, self.limit, self.max_count())
    }

    /// Resolves a request to the amount it takes or to the condition under which it passes. `available` returns the
    /// amount that can be taken now.
    #[inline]
    pub(crate) fn resolve(&self, ask: Ask, available: impl FnOnce() -> u64) -> Demand {
        match ask {
            Ask::Exactly(cost) => Demand::Fit { cost, ceiling: self.limit },
            Ask::Regardless(cost) => Demand::Fit { cost, ceiling: self.max_count() },
            Ask::UpTo(cost) => match cost.min(Cost::new(available())) {
                // If nothing is available, asks for one unit, so that the refusal has the wait for one unit.
                Cost::ZERO if cost > Cost::ZERO => Demand::Fit { cost: Cost::ONE, ceiling: self.limit },
                taken => Demand::Take(taken),
            },
        }
    }

    pub(crate) const fn params(&self) -> WindowParams {
        let length = Nanos::from_nanos(self.length);
        WindowParams { limit: self.limit, length, max_debt: self.max_debt, initial: self.initial }
    }

    /// Returns the initial count of a new key.
    pub(crate) const fn initial_count(&self) -> u64 {
        self.limit - self.initial
    }

    /// Returns the maximum time, in nanoseconds, by which the start of a stored window may be ahead of now.
    ///
    /// This tolerance covers a small step back of the clock, and a thread that was preempted after it read the clock. A
    /// window that is further ahead was written before a larger step back. The count of such a window moves to the
    /// current window. Otherwise callers would be refused until the clock has caught up.
    #[inline]
    pub(crate) const fn max_ahead(&self, length: u64) -> u64 {
        if length > MAX_READING_AGE.as_nanos() { length } else { MAX_READING_AGE.as_nanos() }
    }

    /// Returns the time from `at` to the next window boundary: at least 1 ns, and at most the length. Boundaries are
    /// the multiples of the length plus `offset`; `offset` is below the length.
    #[inline]
    pub(crate) const fn until_next_boundary(&self, at: u64, offset: u64) -> u64 {
        let elapsed = at % self.length;
        if elapsed < offset { offset - elapsed } else { self.length - (elapsed - offset) }
    }
}

/// Implements `capacity` and `init` for a limit with a `quota`.
macro_rules! quota_start_methods {
    () => {
        fn capacity(&self) -> u64 {
            self.quota.limit()
        }

        #[inline]
        fn init<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
            self.init_with_used(state, now, Tokens::whole(self.quota.initial_count()));
        }
    };
}

/// Implements `initial`, `limit` and `length` for a limit with a `quota`.
macro_rules! quota_methods {
    () => {
        /// Sets the initial tokens of a new key, as if the missing tokens had just been spent.
        ///
        /// A key whose count has dropped to zero may be forgotten, and then starts with `initial` again.
        ///
        /// # Errors
        /// Returns an error if `initial` is above the limit.
        pub fn initial(mut self, initial: u64) -> Result<Self, LimitError> {
            self.quota = self.quota.initial(initial)?;
            Ok(self)
        }

        /// Returns the maximum amount per window.
        pub const fn limit(&self) -> u64 {
            self.quota.limit()
        }

        /// Returns the length of the window.
        pub const fn length(&self) -> Nanos {
            Nanos::from_nanos(self.quota.length())
        }
    };
}

pub(crate) use {quota_methods, quota_start_methods};

/// A request as resolved by [`Quota::resolve`].
pub(crate) enum Demand {
    /// Takes this amount.
    Take(Cost),
    /// Passes if the used amount plus `cost` is at most `ceiling`.
    Fit { cost: Cost, ceiling: u64 },
}

/// Returns the largest used amount at which `ask` still passes; `None` if `ask` never passes. `max_count` is the limit
/// plus the maximum debt. [`Ask::UpTo`] needs one unit.
pub(crate) fn max_used_for(ask: Ask, limit: u64, max_count: u64) -> Option<Tokens> {
    let room = match ask {
        Ask::Exactly(cost) => limit.checked_sub(cost.get()),
        Ask::UpTo(cost) => limit.checked_sub(cost.get().min(1)),
        Ask::Regardless(cost) => max_count.checked_sub(cost.get()),
    };
    room.map(Tokens::whole)
}

/// Returns `length`, or an error if it is zero or above [`Rate::MAX_PERIOD`].
pub(crate) fn check_length(length: Nanos, what: &'static str) -> Result<Nanos, LimitError> {
    match length {
        Nanos::ZERO => Err(LimitError::Zero { what }),
        given if given > Rate::MAX_PERIOD => Err(LimitError::PeriodTooLong { given, max: Rate::MAX_PERIOD }),
        length => Ok(length),
    }
}

/// Returns `time` in nanoseconds for window arithmetic. The last instant of the clock is excluded, so that every
/// instant is before the end of its window.
#[inline]
pub(crate) fn window_instant<C>(time: Time<C>) -> u64 {
    time.as_nanos().min(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_debt_is_the_amount_that_can_be_repaid_in_time() {
        let quota = Quota::new(10, Nanos::from_secs(60)).unwrap();
        let largest = 10 * (Rate::MAX_FILL_TIME.as_nanos() / 60_000_000_000) - 10;
        assert_eq!(quota.max_debt(largest).map(|quota| quota.params().max_debt), Ok(largest));
        let amount = largest + 1;
        assert_eq!(quota.max_debt(amount), Err(LimitError::FillTooLong { amount, max: largest }));
    }
}
