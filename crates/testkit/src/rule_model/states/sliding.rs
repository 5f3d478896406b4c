//! Sliding windows: the current window's count, plus the previous window's count in proportion to
//! its overlap.

use super::super::limit::first_instant;
use super::super::{Tokens, whole_tokens};
use super::{Stamp, When};

#[derive(Clone, Debug)]
pub(super) struct SlidingWindows {
    length: u64,
    /// Index of the current window.
    window: u64,
    present: u64,
    previous: u64,
}

impl SlidingWindows {
    pub(super) const fn new(length: u64, present: u64, at: u64) -> Self {
        Self { length, window: at / length, present, previous: 0 }
    }

    /// Returns the state as of `at`.
    fn advanced_to(&self, at: u64) -> Self {
        let window = at / self.length;
        let (present, previous) = match window - self.window {
            0 => (self.present, self.previous),
            1 => (0, self.present),
            _ => (0, 0),
        };
        Self { window, present, previous, ..*self }
    }

    fn end(&self) -> u64 {
        (self.window + 1) * self.length
    }

    /// Returns the count of the window before the window that contains `at`.
    pub(super) fn previous_count(&self, at: u64) -> u64 {
        self.advanced_to(at).previous
    }

    pub(super) fn spent(&self, at: u64) -> Tokens {
        let state = self.advanced_to(at);
        let overlap = Tokens::new((state.end() - at).into(), self.length.into());
        whole_tokens(state.present) + whole_tokens(state.previous) * overlap
    }

    pub(super) fn when_spent_at_most(&self, at: u64, room: Tokens) -> When {
        When::At(first_instant(at, |later| self.spent(later) <= room))
    }

    pub(super) fn charge(&mut self, at: u64, amount: u64) -> Stamp {
        *self = self.advanced_to(at);
        self.present += amount;
        Stamp::Time(self.end())
    }

    /// Refunds in the window of the charge if that window still counts. Without a stamp, refunds in
    /// the current window.
    pub(super) fn refund(&mut self, at: u64, amount: u64, stamp: Option<Stamp>) -> u64 {
        *self = self.advanced_to(at);
        let end = self.end();
        let count = match stamp {
            None => &mut self.present,
            Some(stamp) if stamp == Stamp::Time(end) => &mut self.present,
            Some(stamp) if stamp == Stamp::Time(end - self.length) => &mut self.previous,
            Some(_) => return 0,
        };
        let accepted = amount.min(*count);
        *count -= accepted;
        accepted
    }
}
