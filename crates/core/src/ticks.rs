//! Exact arithmetic of a constant rate, shared by the bucket algorithms.
//!
//! For a rate of `count` per `per` nanoseconds, in lowest terms, a nanosecond has `count` ticks and a unit of cost has
//! `per` ticks. These tick counts are whole numbers. Buckets only add and compare ticks; divisions are needed only for
//! waits (rounded up) and remaining amounts (rounded down).

use crate::algorithm::{Cells, CellsMut};
use crate::quantity::{Mono, Nanos, Time};
use crate::rate::Rate;

/// An amount or an instant, in ticks. An instant is a 64-bit number of nanoseconds times the rate's count, which is
/// below 2³², so it is below 2⁹⁶ ticks. Constructors limit amounts to what flows within [`Rate::MAX_FILL_TIME`]: less
/// than 2⁹⁴ ticks. So the sum of an instant and an amount cannot overflow.
pub(crate) type Ticks = u128;

/// A rate with its conversions to and from ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TickRate {
    rate: Rate,
}

/// Time span that a one-word state must be able to hold: 73 years. Wall-clock instants fit until 2043.
pub(crate) const HORIZON: u64 = 1 << 61;
/// High word of an instant that is never reached, for states kept in one word.
const NEVER_HIGH_WORD: u64 = 1 << 32;

impl TickRate {
    pub(crate) const fn new(rate: Rate) -> Self {
        Self { rate }
    }

    pub(crate) const fn rate(self) -> Rate {
        self.rate
    }

    /// Converts `amount` to ticks.
    #[inline]
    pub(crate) const fn ticks_of(self, amount: u64) -> Ticks {
        amount as u128 * self.rate.per().as_nanos() as u128
    }

    /// Converts `ticks` to whole units, rounded down.
    #[inline]
    pub(crate) fn whole_units(self, ticks: Ticks) -> u64 {
        let per = self.rate.per().as_nanos();
        match u64::try_from(ticks) {
            // A 128-bit division takes several times as long as a 64-bit division.
            Ok(ticks) => ticks / per,
            Err(_) => u64::try_from(ticks / u128::from(per)).unwrap_or(u64::MAX),
        }
    }

    /// Converts an instant to ticks.
    #[inline]
    pub(crate) const fn instant_in_ticks(self, time: Time<Mono>) -> Ticks {
        time.as_nanos() as u128 * self.rate.count() as u128
    }

    /// Returns the time in which `ticks` ticks flow at this rate, rounded up.
    #[inline]
    pub(crate) fn time_for_ticks(self, ticks: Ticks) -> Nanos {
        let count = self.rate.count();
        Nanos::from_nanos(match u64::try_from(ticks) {
            // A 128-bit division takes several times as long as a 64-bit division.
            Ok(ticks) => ticks.div_ceil(count.into()),
            Err(_) => u64::try_from(ticks.div_ceil(count.into())).unwrap_or(u64::MAX),
        })
    }

    /// Returns the number of whole units that flow within `time`.
    pub(crate) fn units_within(self, time: Nanos) -> u64 {
        self.whole_units(self.instant_in_ticks(Time::from_nanos(time.as_nanos())))
    }

    /// Returns whether every instant within the horizon, plus `largest_debt`, fits in 64 bits.
    #[inline]
    pub(crate) const fn fits_a_word(self, largest_debt: Ticks) -> bool {
        self.rate.count() as u128 * HORIZON as u128 + largest_debt <= u64::MAX as u128
    }

    #[inline]
    pub(crate) fn load<S: Cells + ?Sized>(self, state: &S, one_word: bool) -> Ticks {
        let low = state.get(0);
        let high = if one_word { if low == u64::MAX { NEVER_HIGH_WORD } else { 0 } } else { state.get(1) };
        u128::from(high) << 64 | u128::from(low)
    }

    /// Stores an instant. An instant that exceeds one word is stored as the largest word. [`load`](Self::load) returns
    /// this word as an instant that is never reached, so the limit refuses every later request. At the fastest one-word
    /// rate, only instants after 2053 on the wall clock exceed one word.
    #[inline]
    pub(crate) fn store<S: CellsMut + ?Sized>(self, state: &mut S, one_word: bool, instant: Ticks) {
        if one_word {
            state.set(0, u64::try_from(instant).unwrap_or(u64::MAX));
        } else {
            state.set(0, instant as u64);
            state.set(1, (instant >> 64) as u64);
        }
    }
}
