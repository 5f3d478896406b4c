//! Arithmetic shared by the window algorithms: a limit per length of time, and when a stored count still counts.

use crate::algorithm::STALE;
use crate::error::LimitError;
use crate::params::WindowParams;
use crate::quantity::{Nanos, Time};
use crate::rate::Rate;
use crate::tokens::Tokens;
use crate::verdict::Ask;

/// The numbers of a window. They are bounded so that no sum of lengths leaves 64 bits and no length times an amount 128.
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
        if length == Nanos::ZERO {
            return Err(LimitError::Zero { what: "the length of the window" });
        }
        if length > Rate::MAX_PERIOD {
            return Err(LimitError::PeriodTooLong { given: length, max: Rate::MAX_PERIOD });
        }
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
        if initial > self.limit {
            return Err(LimitError::OutOfRange { what: "the initial amount", given: initial, min: 0, max: self.limit });
        }
        Ok(Self { initial, ..self })
    }

    /// What can be paid back at `limit` per window within [`Rate::MAX_FILL`], after the window it was taken in.
    const fn largest_debt(&self) -> u64 {
        self.limit.saturating_mul(Rate::MAX_FILL.as_nanos() / self.length) - self.limit
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// In nanoseconds, never zero.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// The limit and all debt: no taking leaves more counted.
    pub(crate) const fn deepest(&self) -> u64 {
        self.limit + self.max_debt
    }

    /// The most that may be counted for `ask` to fit; `None` if it never does. Taking up to an amount needs one.
    pub(crate) fn room_for(&self, ask: Ask) -> Option<Tokens> {
        let room = match ask {
            Ask::Exactly(cost) => self.limit.checked_sub(cost.get()),
            Ask::UpTo(cost) => self.limit.checked_sub(cost.get().min(1)),
            Ask::Regardless(cost) => self.deepest().checked_sub(cost.get()),
        };
        room.map(Tokens::whole)
    }

    pub(crate) const fn params(&self) -> WindowParams {
        let length = Nanos::from_nanos(self.length);
        WindowParams { limit: self.limit, length, max_debt: self.max_debt, initial: self.initial }
    }

    /// What counts as used for a new key.
    pub(crate) const fn used_at_first(&self) -> u64 {
        self.limit - self.initial
    }

    /// How far ahead of the present a window of this length may be for its count to be used as it is. One window further:
    /// the clock may have been set back a little, or a thread was held up after reading it. Anything beyond was
    /// written before the clock was set back by more, and belongs to the present window, so that nobody is locked
    /// out until the clock is where it was.
    #[inline]
    pub(crate) const fn slack(&self, length: u64) -> u64 {
        if length > STALE.as_nanos() { length } else { STALE.as_nanos() }
    }

    /// The time from `at` until the next multiple of the length, counted from `offset`, which is below it: from 1 to
    /// the length.
    #[inline]
    pub(crate) const fn until_next(&self, at: u64, offset: u64) -> u64 {
        let elapsed = at % self.length;
        if elapsed < offset { offset - elapsed } else { self.length - (elapsed - offset) }
    }
}

/// An instant as windows count it. The last one of all is left out, so that every instant is before the end of its window.
#[inline]
pub(crate) fn instant<C>(time: Time<C>) -> u64 {
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
