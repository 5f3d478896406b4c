//! Errors for invalid parameters.

use alloc::string::String;
use core::fmt;

use crate::quantity::Nanos;

/// An invalid parameter, with the valid range.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// A value that must be at least one was zero.
    Zero {
        /// Name of the value.
        what: &'static str,
    },
    /// A value is outside its allowed range.
    OutOfRange {
        /// Name of the value.
        what: &'static str,
        /// The given value.
        given: u64,
        /// The smallest valid value.
        min: u64,
        /// The largest valid value.
        max: u64,
    },
    /// A period is longer than its maximum, such as [`Rate::MAX_PERIOD`](crate::Rate::MAX_PERIOD).
    PeriodTooLong {
        /// The given period.
        given: Nanos,
        /// The longest valid period.
        max: Nanos,
    },
    /// The rate's count in lowest terms is above 2³²−1, so the state cannot represent the rate exactly.
    RateTooFine {
        /// The count in lowest terms.
        count: u64,
        /// The period in lowest terms.
        per: Nanos,
    },
    /// Refilling the burst, or repaying the maximum debt, would take longer than
    /// [`Rate::MAX_FILL_TIME`](crate::Rate::MAX_FILL_TIME).
    FillTooLong {
        /// The given burst or maximum debt.
        amount: u64,
        /// The largest valid amount.
        max: u64,
    },
    /// A string that is not a rate.
    NotARate {
        /// The string, truncated to 64 characters.
        given: String,
        /// The problem with the string.
        problem: &'static str,
    },
}

impl LimitError {
    /// Returns an error unless `given` is between `min` and `max`, both included.
    pub(crate) fn check_range(what: &'static str, given: u64, min: u64, max: u64) -> Result<(), Self> {
        if (min..=max).contains(&given) { Ok(()) } else { Err(Self::OutOfRange { what, given, min, max }) }
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero { what } => write!(f, "{what} is 0; it must be at least 1"),
            Self::OutOfRange { what, given, min, max } => {
                write!(f, "{what} is {given}; it must be between {min} and {max}")
            }
            Self::PeriodTooLong { given, max } => {
                write!(f, "the period of {given} is too long; at most {max} is valid")
            }
            Self::RateTooFine { count, per } => write!(
                f,
                "the rate of {count} per {per} cannot be kept exactly: in lowest terms the count must be at most {}; round \
                 it to a multiple of a power of ten",
                u32::MAX
            ),
            Self::FillTooLong { amount, max } => {
                write!(f, "an amount of {amount} takes too long to refill at this rate; at most {max} is valid")
            }
            Self::NotARate { given, problem } => {
                write!(f, "`{given}` is not a rate: {problem}; write it like 100/s, 5/15m or 10k/day")
            }
        }
    }
}

impl core::error::Error for LimitError {}
