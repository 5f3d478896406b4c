//! Fast path for one-word states: token bucket arithmetic in 64 bits. This path reduces an admitted `Limiter` check
//! from 204 to 36 instructions, and a refused check from 231 to 39 (callgrind).
//!
//! Until [`HORIZON`](crate::ticks::HORIZON) every sum fits in a word, because even the horizon plus the largest debt
//! fits ([`TickRate::fits_a_word`](crate::ticks::TickRate::fits_a_word)). If a method returns `None`, the 64-bit
//! arithmetic does not apply; use the 128-bit arithmetic. The methods are always inlined, because a call takes nearly as
//! long as its work. A test compares the 64-bit and the 128-bit results on random states.

use super::TokenBucket;
use crate::algorithm::CellsMut;
use crate::quantity::{Cost, Nanos, Now};
use crate::verdict::{Report, Retry, Verdict};

/// The instant that is never reached.
const NEVER_REACHED: u64 = u64::MAX;

impl TokenBucket {
    /// Returns whether sums with `cost` fit in 64 bits. For a constant cost of 1 the compiler removes the first
    /// comparison.
    #[inline]
    pub(super) fn fits_word_sums(&self, now: &Now<'_>, cost: Cost) -> bool {
        cost.get() <= self.burst.get() && now.mono().as_nanos() < self.word_until
    }

    #[inline]
    fn instant_as_word(&self, now: &Now<'_>) -> u64 {
        now.mono().as_nanos() * u64::from(self.tick_rate.rate().count())
    }

    /// Returns the word after taking `cost`; `None` if `cost` does not pass or the fast path does not apply.
    #[inline(always)]
    pub(super) fn word_after_take(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<u64> {
        if !self.fits_word_sums(now, cost) {
            return None;
        }
        let taken = cost.get() * self.tick_rate.rate().per().as_nanos();
        let instant = self.instant_as_word(now);
        let owed = word.saturating_sub(instant);
        // A cost of zero writes nothing, because a write would only advance the stored instant.
        (owed <= self.capacity as u64 - taken).then(|| if cost == Cost::ZERO { word } else { instant + owed + taken })
    }

    /// Returns the time until `cost` passes; `None` if `cost` is not refused or the fast path does not apply.
    #[inline(always)]
    pub(super) fn wait_if_refused(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<Retry> {
        if !self.fits_word_sums(now, cost) {
            return None;
        }
        let owed = word.saturating_sub(self.instant_as_word(now));
        let room = self.capacity as u64 - cost.get() * self.tick_rate.rate().per().as_nanos();
        let plausible = owed <= self.max_plausible as u64 && word != NEVER_REACHED;
        (plausible && owed > room).then(|| Retry::After(self.time_for_ticks(owed - room)))
    }

    /// Takes `cost`, or refuses with the wait.
    #[inline]
    pub(super) fn decide_word<S: CellsMut + ?Sized>(
        &self,
        state: &mut S,
        now: &Now<'_>,
        cost: Cost,
    ) -> Option<Verdict> {
        let word = state.get(0);
        if let Some(after) = self.word_after_take(word, now, cost) {
            state.set(0, after);
            return Some(Verdict::allow(cost));
        }
        self.wait_if_refused(word, now, cost).map(Verdict::deny)
    }

    /// Returns the report for a one-word state.
    #[inline(always)]
    pub(super) fn report_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<Report> {
        if !self.fits_word_sums(now, cost) || word == NEVER_REACHED {
            return None;
        }
        let owed = word.saturating_sub(self.instant_as_word(now));
        (owed <= self.max_plausible as u64).then(|| self.report_for_debt(owed, cost))
    }

    /// Returns the report for a debt of `owed` ticks. `cost` must be at most the burst.
    #[inline(always)]
    fn report_for_debt(&self, owed: u64, cost: Cost) -> Report {
        let (per, capacity) = (self.tick_rate.rate().per().as_nanos(), self.capacity as u64);
        Report {
            limit: self.burst.get(),
            remaining: capacity.saturating_sub(owed) / per,
            retry: Retry::After(self.time_for_ticks(owed.saturating_sub(capacity - cost.get() * per))),
            reset: self.time_for_ticks(owed),
        }
    }

    /// Returns the time in which `ticks` ticks flow at this rate, rounded up.
    #[inline]
    fn time_for_ticks(&self, ticks: u64) -> Nanos {
        let count = u64::from(self.tick_rate.rate().count());
        // Most rates have one tick per nanosecond and need no division. A division would take longer than the rest of
        // the decision.
        Nanos::from_nanos(if count == 1 { ticks } else { ticks.div_ceil(count) })
    }
}
