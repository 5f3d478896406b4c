//! The fast path of a state of one word: the sums of the token bucket in 64 bits.
//!
//! Up to [`HORIZON`](crate::ticks::HORIZON) every sum here fits a word, because the deepest debt at the end of that time does
//! ([`Flow::fits_a_word`](crate::ticks::Flow::fits_a_word)). `None`: the fast path does not apply; use the sums in 128 bits. A
//! test compares the two on random states.

use super::TokenBucket;
use crate::quantity::{Cost, Nanos, Now};
use crate::verdict::{Report, Retry};

impl TokenBucket {
    /// Returns whether sums about `cost` fit 64 bits. For a constant cost of 1 the compiler drops the first comparison.
    #[inline]
    fn fits_word_sums(&self, now: &Now<'_>, cost: Cost) -> bool {
        cost.get() <= self.burst.get() && now.mono().as_nanos() < self.word_until
    }

    #[inline]
    fn word_instant(&self, now: &Now<'_>) -> u64 {
        now.mono().as_nanos() * u64::from(self.flow.rate().count())
    }

    /// Returns the word after taking `cost`, if it passes.
    #[inline]
    pub(super) fn word_after(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<u64> {
        if !self.fits_word_sums(now, cost) {
            return None;
        }
        let taken = cost.get() * self.flow.rate().per().as_nanos();
        let instant = self.word_instant(now);
        let owed = word.saturating_sub(instant);
        // A cost of zero writes nothing: it would only move the state along with the clock.
        (owed <= self.capacity as u64 - taken).then(|| if cost == Cost::ZERO { word } else { instant + owed + taken })
    }

    /// Returns the word after taking `cost`, if it passes, and the report for another request of the same cost.
    #[inline]
    pub(crate) fn take_and_report(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<(u64, Report)> {
        let taken = self.word_after(word, now, cost)?;
        Some((taken, self.report_ticks(taken.saturating_sub(self.word_instant(now)), cost)))
    }

    /// Returns the report of a state of one word.
    #[inline]
    pub(super) fn report_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<Report> {
        // The last word is an instant that never comes.
        if !self.fits_word_sums(now, cost) || word == u64::MAX {
            return None;
        }
        let owed = word.saturating_sub(self.word_instant(now));
        (owed <= self.max_plausible as u64).then(|| self.report_ticks(owed, cost))
    }

    /// Returns the report where `owed` ticks are owed and `cost` is at most the burst.
    #[inline]
    fn report_ticks(&self, owed: u64, cost: Cost) -> Report {
        let (per, count) = (self.flow.rate().per().as_nanos(), u64::from(self.flow.rate().count()));
        let capacity = self.capacity as u64;
        let wait = |ticks: u64| Nanos::from_nanos(if count == 1 { ticks } else { ticks.div_ceil(count) });
        Report {
            limit: self.burst.get(),
            remaining: capacity.saturating_sub(owed) / per,
            retry: Retry::After(wait(owed.saturating_sub(capacity - cost.get() * per))),
            reset: wait(owed),
        }
    }
}
