//! Sliding window: approximately N in the last hour, at any time, from two counters.
//!
//! **The naive methods** are a count that is reset at every full hour, and a list with the instant of every request.
//! The count admits twice the limit around a reset, and the list takes a word per request.
//!
//! **The idea** is to keep only the count of the previous window, and to assume that its requests were evenly spaced.
//! The last hour overlaps the previous window by the time left in the current window. So the same fraction of the
//! previous count is added to the current count:
//!
//! ```text
//!          │◀──────── the last hour ────────▶│
//!  ────────┼─────────┼───────────────────────┼─────────┼──▶
//!       previous window                   current      end
//!          │ overlap │◀────── elapsed ──────▶│ overlap │
//!
//!  admitted if   previous × overlap / length  +  current + cost  ≤  limit        (overlap = length − elapsed)
//! ```
//!
//! Both sides of the comparison are multiplied by the length, so nothing is divided or rounded. An implementation that
//! rounds the weighted part down admits up to one extra request. Example: with a previous count of 9, a quarter of the
//! window elapsed and a current count of 5, such an implementation counts 6 + 5. This module counts 6.75 + 5.
//!
//! **Example**: 10 per minute, with 9 in the previous window, 3 in the current window, and 15 s elapsed. The estimate
//! is 9 × 45/60 + 3 = 9.75, so a request of 1 is refused. The request passes when the weighted part has decreased to 6,
//! at an overlap of 40 s: the retry is 5 s.
//!
//! **Guarantee**: with `rate = limit / length`, the admitted cost over any interval of length `T` is at most `limit +
//! rate × T`, as for a token bucket. In any single window the admitted cost is at most `limit`.
//!
//! Proof: let the interval end with an admission at time `x` in its window, with count `p` in the previous window. The
//! estimate at that time was `p × (1 − x / length)` plus the count of this window, and this sum was at most `limit`.
//! Counting all of `p` instead gives at most `limit + p × x / length`. Every earlier window adds at most `limit` for
//! its whole length. So nearly twice the limit passes within one length only in one case: a full limit passes at the
//! end of one window, and another full limit passes as late as possible in the next window. If the requests of the
//! previous window were evenly spaced, the estimate is exact, and so is the limit.
//!
//! Debt needs no special treatment: a charge beyond the limit counts like any other cost, for two windows. The
//! algorithm uses the wall clock, and windows begin at multiples of the length. If the clock is set back, the rules of
//! the [fixed window](super::fixed_window) apply.
//!
//! **State**: the end of the current window and both counts; two words if each count fits in 32 bits, otherwise three.
//! **Cost**: four multiplications, plus one division for the first request of a window.
//!
//! **Poor choice** for very small limits, where the estimate is coarse and a log needs only a few words, or if the
//! limit must hold in every interval: use a log or slices.

use core::time::Duration;

use super::{Algorithm, Cells, CellsMut, decide_by_current};
use crate::change::changed_parameter_methods;
use crate::error::LimitError;
use crate::params::{DecodedState, Params};
use crate::quantity::{Cost, Nanos, Now};
use crate::quota::{Demand, Quota, quota_methods, quota_start_methods, window_instant};
use crate::tokens::Tokens;
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};

/// Admits approximately N in the last `length`.
///
/// ```
/// use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, SlidingWindow};
///
/// let limit = SlidingWindow::new(10, Nanos::from_secs(60))?;
/// let mut state = [0; 2];
/// limit.init(&mut state, &Now::at(0));
/// assert!(limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::new(10))).is_admitted());
/// let later = Now::at(90_000_000_000);
/// assert_eq!(limit.report(&state, &later, Cost::ONE).remaining, 5);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    quota: Quota,
}

/// The current window, and the count of the previous window.
struct WindowPair {
    /// First instant after the window.
    end: u64,
    /// Time until `end`, at least 1 ns; more than the length if the clock was set back.
    time_left: u64,
    previous: u64,
    used: u64,
}

/// Largest count that fits in half a word.
const MAX_PACKED_COUNT: u64 = u32::MAX as u64;

impl SlidingWindow {
    /// Creates a limit of approximately `limit` in any `length`. The maximum debt defaults to `limit`.
    ///
    /// # Errors
    /// Returns an error if `limit` or `length` is zero, or if `length` is above
    /// [`Rate::MAX_PERIOD`](crate::Rate::MAX_PERIOD).
    pub fn new(limit: u64, length: impl Into<Duration>) -> Result<Self, LimitError> {
        let length = Nanos::from(length.into());
        Ok(Self { quota: Quota::new(limit, length)? })
    }

    /// Sets the maximum amount beyond the limit that [`Ask::Regardless`] may take.
    ///
    /// # Errors
    /// Returns an error if repaying the debt at `limit` per window takes longer than
    /// [`Rate::MAX_FILL_TIME`](crate::Rate::MAX_FILL_TIME).
    pub fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        Ok(Self { quota: self.quota.max_debt(max_debt)? })
    }

    quota_methods!();

    pub(crate) const fn params(&self) -> Params {
        Params::SlidingWindow(self.quota.params())
    }

    pub(crate) fn decode<S: Cells + ?Sized>(&self, state: &S) -> DecodedState {
        let (previous, used) = self.load_counts(state);
        DecodedState::Windows { end: state.get(0), previous, used }
    }

    pub(crate) fn encode<S: CellsMut + ?Sized>(&self, state: &mut S, end: u64, previous: u64, used: u64) {
        self.write(state, end, previous.min(self.quota.max_count()), used.min(self.quota.max_count()));
    }

    pub(crate) fn used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Tokens {
        Tokens::of(self.estimate(&self.current_at(state, now)), self.quota.length())
    }

    pub(crate) fn until_used_at_most<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        Retry::After(self.wait_until_at_most(&self.current_at(state, now), at_most.units_floor(self.quota.length())))
    }

    /// Returns the largest estimate at which `ask` still passes; `None` if `ask` never passes.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        self.quota.max_used_for(ask)
    }

    /// Writes a state with `used` in the current window, rounded up to a whole number.
    pub(crate) fn init_with_used<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, used: Tokens) {
        let used = used.ceil().min(self.quota.max_count());
        // With a count of zero, the window does not matter.
        let end = if used == 0 { 0 } else { self.current_window_end(now) };
        self.write(state, end, 0, used);
    }

    const fn has_packed_counts(&self) -> bool {
        self.quota.max_count() <= MAX_PACKED_COUNT
    }

    /// Returns the counts of the previous and the current window, each at most [`Quota::max_count`].
    #[inline]
    fn load_counts<S: Cells + ?Sized>(&self, state: &S) -> (u64, u64) {
        let (previous, used) = if self.has_packed_counts() {
            (state.get(1) >> 32, state.get(1) & MAX_PACKED_COUNT)
        } else {
            (state.get(1), state.get(2))
        };
        (previous.min(self.quota.max_count()), used.min(self.quota.max_count()))
    }

    #[inline]
    fn current_at<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> WindowPair {
        let at = window_instant(now.wall());
        let end = state.get(0);
        let (previous, used) = self.load_counts(state);
        let length = self.quota.length();
        // The state is in the current window, or in a later window if the clock was set back.
        if at < end && end <= at.saturating_add(length + self.quota.max_ahead(length)) {
            return WindowPair { end, time_left: end - at, previous, used };
        }
        self.advance_to(at, end, previous, used)
    }

    /// Returns the window that contains `at`, given the counts of the window that ends at `end`.
    fn advance_to(&self, at: u64, end: u64, previous: u64, used: u64) -> WindowPair {
        let next = at.saturating_add(self.quota.until_next_boundary(at, 0));
        let (previous, used) = match next.checked_sub(end) {
            // The clock was set back: the counts move to the current window.
            None => (previous, used),
            Some(gap) if gap <= self.quota.length() => (used, 0),
            Some(_) => (0, 0),
        };
        WindowPair { end: next, time_left: next - at, previous, used }
    }

    /// Returns the end of the window that contains `now`.
    fn current_window_end(&self, now: &Now<'_>) -> u64 {
        self.advance_to(window_instant(now.wall()), 0, 0, 0).end
    }

    #[inline]
    fn write<S: CellsMut + ?Sized>(&self, state: &mut S, end: u64, previous: u64, used: u64) {
        state.set(0, end);
        if self.has_packed_counts() {
            state.set(1, previous << 32 | used);
        } else {
            state.set(1, previous);
            state.set(2, used);
        }
    }

    /// Returns `amount` times the length. A length is below 2⁶², so the product is below 2¹²⁶, and a sum of a few
    /// products fits in 128 bits.
    #[inline]
    fn times_length(&self, amount: u64) -> u128 {
        u128::from(amount) * u128::from(self.quota.length())
    }

    /// Returns the estimated count of the last `length`, times the length.
    #[inline]
    fn estimate(&self, current: &WindowPair) -> u128 {
        let overlap = current.time_left.min(self.quota.length());
        u128::from(current.previous) * u128::from(overlap) + self.times_length(current.used)
    }

    /// Returns the number of whole units that can be admitted in addition to the estimate.
    fn available(&self, current: &WindowPair) -> u64 {
        let room = self.times_length(self.quota.limit()).saturating_sub(self.estimate(current));
        // At most the limit, so the cast is lossless.
        (room / u128::from(self.quota.length())) as u64
    }

    #[inline]
    fn passes_now(&self, current: &WindowPair, cost: Cost, ceiling: u64) -> bool {
        cost.get() <= ceiling && self.estimate(current) + self.times_length(cost.get()) <= self.times_length(ceiling)
    }

    /// Returns the time until the estimate plus `cost` is at most `ceiling`.
    fn retry_for(&self, current: &WindowPair, cost: Cost, ceiling: u64) -> Retry {
        ceiling
            .checked_sub(cost.get())
            .map_or(Retry::Never, |room| Retry::After(self.wait_until_at_most(current, self.times_length(room))))
    }

    /// Returns the time until the estimate is at most `room`; `room` is an amount times the length.
    fn wait_until_at_most(&self, current: &WindowPair, room: u128) -> Nanos {
        if self.estimate(current) <= room {
            return Nanos::ZERO;
        }
        // In this window only the weight of the previous window decreases. If that is not enough, the wait extends into
        // the next window, where the weight of this window decreases to zero.
        let beside_used = room.checked_sub(self.times_length(current.used));
        let wait = match beside_used.map(|room| self.max_overlap(current.previous, room)) {
            Some(overlap @ 1..) => current.time_left - overlap,
            _ => current.time_left + (self.quota.length() - self.max_overlap(current.used, room)),
        };
        Nanos::from_nanos(wait)
    }

    /// Returns the largest overlap at which a window with `count` weighs at most `room`; `room` is an amount times the
    /// length.
    fn max_overlap(&self, count: u64, room: u128) -> u64 {
        let length = self.quota.length();
        room.checked_div(count.into()).map_or(length, |overlap| overlap.min(length.into()) as u64)
    }

    /// Decides from the weighted count of both windows.
    #[inline]
    fn weigh_current<S: Cells + ?Sized>(&self, _: &S, current: &WindowPair, ask: Ask) -> Verdict {
        let pass = |taken| Verdict::with_outcome(Outcome::Allow, taken, Stamp::from_bits(current.end));
        let (cost, ceiling) = match self.quota.resolve(ask, || self.available(current)) {
            Demand::Take(taken) => return pass(taken),
            Demand::Fit { cost, ceiling } => (cost, ceiling),
        };
        if self.passes_now(current, cost, ceiling) {
            return pass(cost);
        }
        Verdict::deny(self.retry_for(current, cost, ceiling))
    }

    /// Applies a verdict of `weigh_current`.
    #[inline]
    fn commit_current<S: CellsMut + ?Sized>(&self, state: &mut S, current: &WindowPair, verdict: &Verdict) {
        // The end moves back only if the clock was set back. Even a refusal writes the earlier end, so that its wait is
        // correct.
        if verdict.taken() > Cost::ZERO || state.get(0) > current.end {
            let used = current.used.saturating_add(verdict.taken().get()).min(self.quota.max_count());
            self.write(state, current.end, current.previous, used);
        }
    }
}

impl Algorithm for SlidingWindow {
    type Stamp = Stamp;

    fn words(&self) -> usize {
        if self.has_packed_counts() { 2 } else { 3 }
    }

    fn uses_wall_clock(&self) -> bool {
        true
    }

    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, stamp: Option<Stamp>) -> Cost {
        let mut current = self.current_at(state, now);
        let taken_in = stamp.map_or(current.end, Stamp::to_bits);
        let count = if taken_in == current.end {
            &mut current.used
        } else if taken_in.checked_add(self.quota.length()) == Some(current.end) {
            &mut current.previous
        } else {
            return Cost::ZERO;
        };
        let accepted = cost.min(Cost::new(*count));
        *count -= accepted.get();
        if accepted > Cost::ZERO {
            self.write(state, current.end, current.previous, current.used);
        }
        accepted
    }

    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        let current = self.current_at(state, now);
        let reset = match (current.previous, current.used) {
            (0, 0) => 0,
            (_, 0) => current.time_left,
            (_, _) => current.time_left + self.quota.length(),
        };
        Report {
            limit: self.quota.limit(),
            remaining: self.available(&current),
            retry: self.retry_for(&current, cost, self.quota.limit()),
            reset: Nanos::from_nanos(reset),
        }
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        Spent::of(self.estimate(&self.current_at(state, now)), self.times_length(self.quota.limit()))
    }

    fn is_unused<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        let current = self.current_at(state, now);
        current.previous == 0 && current.used == 0
    }

    /// Keeps both counts if the length is the same and the new parameters can hold the previous count. Otherwise counts
    /// the estimate, rounded up, in the current window of the new parameters.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        let current = own.current_at(state, now);
        if self.length() != own.length() || current.previous > self.quota.max_count() {
            return self.init_with_used(state, now, own.used(state, now));
        }
        self.write(state, current.end, current.previous, current.used.min(self.quota.max_count()));
    }

    quota_start_methods!();
    decide_by_current!();
    changed_parameter_methods!();
}

#[cfg(test)]
mod tests;
