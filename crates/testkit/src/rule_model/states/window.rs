//! Fixed windows: a count and its window. An excess over the limit counts in the following windows. Each following
//! window pays off `limit` of the excess.
//!
//! A store knows the calendar window of a request, but neither the following windows nor the windows of another
//! calendar under which the key was charged. Windows that a store does not know have the mean length of the unit.

use super::super::limit::{Limit, Windows};
use super::super::{Tokens, floor, whole_tokens};
use super::{Stamp, When};

#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) windows: Windows,
    length: u64,
    /// Amount of debt that one window pays off.
    limit: u64,
    used: u64,
    /// End of the window in which `used` is counted.
    end: u64,
    /// Whether later windows have the mean length of the calendar.
    pub(super) is_estimated: bool,
}

impl Window {
    pub(super) fn new(limit: &Limit, windows: Windows, used: u64, at: u64) -> Self {
        let length = if let Windows::Calendar(calendar) = windows { calendar.mean_length() } else { limit.period };
        let mut new = Self { windows, length, limit: limit.count, used, end: 0, is_estimated: false };
        new.end = new.window_end_at(at);
        new
    }

    /// Returns the end of the window that contains `at`, for windows that do not depend on the previous window.
    fn window_end_at(&self, at: u64) -> u64 {
        match self.windows {
            Windows::Epoch | Windows::Spread => at - at % self.length + self.length,
            Windows::FirstRequest => at + self.length,
            Windows::Calendar(calendar) => calendar.window(at).1,
        }
    }

    /// Returns the end of the window that starts at `start`.
    fn next_end(&self, start: u64) -> u64 {
        match self.windows {
            Windows::Calendar(calendar) if !self.is_estimated => calendar.window(start).1,
            _ => start + self.length,
        }
    }

    /// Returns the amount used at `at` and the end of its window.
    fn used_and_end(&self, at: u64) -> (u64, u64) {
        let (mut used, mut end) = (self.used, self.end);
        while at >= end && used > 0 {
            (used, end) = (used.saturating_sub(self.limit), self.next_end(end));
        }
        if used == 0 { (0, self.window_end_at(at)) } else { (used, end) }
    }

    pub(super) fn spent(&self, at: u64) -> Tokens {
        whole_tokens(self.used_and_end(at).0)
    }

    pub(super) fn when_spent_at_most(&self, at: u64, room: Tokens) -> When {
        let (used, end) = self.used_and_end(at);
        // A wait beyond the current window is an estimate if windows have unequal lengths.
        let further = (used - floor(room) - 1) / self.limit;
        When::At(end + further * self.length)
    }

    pub(super) fn charge(&mut self, at: u64, amount: u64) -> Stamp {
        let (used, end) = self.used_and_end(at);
        (self.used, self.end) = (used + amount, end);
        Stamp::Time(end)
    }

    pub(super) fn adopt(&mut self, limit: &Limit, at: u64) {
        (self.used, self.end) = self.used_and_end(at);
        (self.limit, self.is_estimated) = (limit.count, false);
    }

    /// Refunds only in the window of the charge.
    pub(super) fn refund(&mut self, at: u64, amount: u64, stamp: Option<Stamp>) -> u64 {
        let (used, end) = self.used_and_end(at);
        if stamp.is_some_and(|stamp| stamp != Stamp::Time(end)) {
            return 0;
        }
        let accepted = amount.min(used);
        (self.used, self.end) = (used - accepted, end);
        accepted
    }
}
