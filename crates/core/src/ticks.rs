//! Exact arithmetic of a steady flow, shared by the buckets.
//!
//! A rate of `count` per `per` nanoseconds in lowest terms has `count` ticks to the nanosecond and `per` ticks to the unit
//! of cost, both whole. Everything a bucket does is adding and comparing ticks; only waits (rounded up) and
//! remainders (rounded down) divide.

use crate::algorithm::{Cells, CellsMut};
use crate::quantity::{Mono, Nanos, Time};
use crate::rate::Rate;

/// An amount or an instant, in ticks. An instant is below 2⁹⁶, since the count is below 2³²; amounts that passed the
/// checks of a constructor take at most [`Rate::MAX_FILL`] and are below 2⁹⁴. Sums of both are far from overflowing.
pub(crate) type Ticks = u128;

/// A rate, seen as ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    rate: Rate,
}

/// How much time a state of one word must be able to hold: 73 years, beyond the year 2043 on the wall clock.
pub(crate) const HORIZON: u64 = 1 << 61;
/// The high word of an instant that is never reached, at any rate kept in one word.
const NEVER_HIGH_WORD: u64 = 1 << 32;

impl Flow {
    pub(crate) const fn new(rate: Rate) -> Self {
        Self { rate }
    }

    pub(crate) const fn rate(self) -> Rate {
        self.rate
    }

    /// Returns the ticks of `amount`.
    #[inline]
    pub(crate) const fn ticks_of(self, amount: u64) -> Ticks {
        amount as u128 * self.rate.per().as_nanos() as u128
    }

    /// Returns the whole units in `ticks`, rounded down.
    #[inline]
    pub(crate) fn whole_units(self, ticks: Ticks) -> u64 {
        let per = self.rate.per().as_nanos();
        match u64::try_from(ticks) {
            // A division of 128 bits takes several times as long.
            Ok(ticks) => ticks / per,
            Err(_) => u64::try_from(ticks / u128::from(per)).unwrap_or(u64::MAX),
        }
    }

    /// Returns the instant in ticks.
    #[inline]
    pub(crate) const fn instant_in_ticks(self, time: Time<Mono>) -> Ticks {
        time.as_nanos() as u128 * self.rate.count() as u128
    }

    /// Returns the time in which `ticks` flow, rounded up.
    #[inline]
    pub(crate) fn wait(self, ticks: Ticks) -> Nanos {
        let count = self.rate.count();
        Nanos::from_nanos(match u64::try_from(ticks) {
            // A division of 128 bits takes several times as long.
            Ok(ticks) => ticks.div_ceil(count.into()),
            Err(_) => u64::try_from(ticks.div_ceil(count.into())).unwrap_or(u64::MAX),
        })
    }

    /// Returns the most units that flow within `time`.
    pub(crate) fn most_within(self, time: Nanos) -> u64 {
        self.whole_units(self.instant_in_ticks(Time::from_nanos(time.as_nanos())))
    }

    /// Returns whether instants up to `deepest` after any within the horizon fit 64 bits.
    #[inline]
    pub(crate) const fn fits_a_word(self, deepest: Ticks) -> bool {
        self.rate.count() as u128 * HORIZON as u128 + deepest <= u64::MAX as u128
    }

    #[inline]
    pub(crate) fn load<S: Cells + ?Sized>(self, state: &S, one_word: bool) -> Ticks {
        let low = state.get(0);
        let high = if one_word { if low == u64::MAX { NEVER_HIGH_WORD } else { 0 } } else { state.get(1) };
        u128::from(high) << 64 | u128::from(low)
    }

    /// Stores an instant. An instant that does not fit becomes the largest word, which is read as an instant that is
    /// never reached: the limit refuses from then on. That is after the year 2053 by the wall clock, for the fastest
    /// rate kept in one word.
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
