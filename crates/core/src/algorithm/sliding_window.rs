//! Sliding window: about N in the last hour, at any time, from two counters.
//!
//! **The naive method** is to count per hour of the clock and to forget at the full hour, which lets twice the limit pass
//! around it; or to remember the instant of every request, which takes a word for each.
//!
//! **The idea** is to keep only the count of the window before, and to assume that its requests came evenly. The last hour
//! overlaps that window by as much as is left of the present one, so the same fraction of its count is added to the present
//! count:
//!
//! ```text
//!          │◀──────── the last hour ────────▶│
//!  ────────┼─────────┼───────────────────────┼─────────┼──▶
//!       previous window                   present      end
//!          │ overlap │◀────── elapsed ──────▶│ overlap │
//!
//!  admitted if   previous × overlap / length  +  present + cost  ≤  limit        (overlap = length − elapsed)
//! ```
//!
//! Both sides are multiplied by the length, so that nothing is divided and nothing rounded. Others round the weighted part down to
//! a whole number and admit up to one more: with 9 before, a quarter elapsed and 5 now, they count 6 + 5, we 6.75 + 5.
//!
//! **Example**: 10 per minute; 9 in the window before and 3 in this one, of which 15 s have elapsed. The estimate is
//! 9 × 45/60 + 3 = 9.75, and a request of 1 is refused. It fits when the weighted part is down to 6, which is at an overlap
//! of 40 s: the retry is 5 s.
//!
//! **Guarantee**: with `rate = limit / length`, what passes over any interval of length `T` is at most `limit + rate ×
//! T`, like that of a token bucket, and in any window of the grid at most `limit`. Proof: let the interval end with an
//! admission when `x` of its window has elapsed, after `p` in the window before. The estimate then was `p × (1 − x /
//! length)` and what passed in this window, together at most `limit`; adding all of `p` gives at most `limit + p × x /
//! length`, and every window before that adds at most `limit` for the whole length that lies in between. So twice the
//! limit is approached over one length, when one full limit passes at the end of one window and another as late as
//! possible in the next. If the requests of the previous window came evenly, the estimate is exact, and so is the
//! limit.
//!
//! Debt needs no special treatment: what is charged beyond the limit counts like any other cost until two windows
//! later. The clock is the wall clock, and windows begin at multiples of the length; if it is set back, the rules of
//! the [fixed window](super::fixed_window) apply.
//!
//! **State**: the end of the present window and both counts, in two words if they fit 32 bits each, otherwise in three.
//! **Cost**: three multiplications; one division for the first request of a window.
//!
//! **Poor choice** for limits of a few, where the estimate is coarse against them and a log costs no more; or when the limit
//! must hold in every interval, which only a log can promise.

use core::time::Duration;

use super::{Algorithm, Cells, CellsMut, decide_by_current};
use crate::change::changed_parameters;
use crate::error::LimitError;
use crate::params::{DecodedState, Params};
use crate::quantity::{Cost, Nanos, Now};
use crate::quota::{Demand, Quota, quota_methods, start_by_quota, window_instant};
use crate::tokens::Tokens;
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};

/// About N in the last `length`.
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

/// The window that a request is counted in, and the count of the one before.
struct WindowPair {
    /// The first instant after the window.
    end: u64,
    /// The time until that instant, at least 1 ns; more than the length if the clock was set back.
    left: u64,
    previous: u64,
    used: u64,
}

/// The largest count of which two fit one word.
const MAX_PACKED: u64 = u32::MAX as u64;

impl SlidingWindow {
    /// Makes a limit of about `limit` in any `length`. Debt is bounded by another limit.
    ///
    /// # Errors
    /// When either is zero, or the length is above [`Rate::MAX_PERIOD`](crate::Rate::MAX_PERIOD).
    pub fn new(limit: u64, length: impl Into<Duration>) -> Result<Self, LimitError> {
        let length = Nanos::from(length.into());
        Ok(Self { quota: Quota::new(limit, length)? })
    }

    /// Sets the maximum `max_debt` taken beyond the limit by [`Ask::Regardless`].
    ///
    /// # Errors
    /// When windows of `limit` would take longer than [`Rate::MAX_FILL`](crate::Rate::MAX_FILL) for it.
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
        self.write(state, end, previous.min(self.quota.deepest()), used.min(self.quota.deepest()));
    }

    pub(crate) fn used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Tokens {
        Tokens::of(self.estimate(&self.current_at(state, now)), self.quota.length())
    }

    pub(crate) fn until_used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        Retry::After(self.wait(&self.current_at(state, now), at_most.units_floor(self.quota.length())))
    }

    /// Returns the most that the estimate may be for `ask` to fit; `None` if it never does.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        self.quota.max_used_for(ask)
    }

    /// Writes a state in which `used` is counted in the present window, rounded up to a whole number.
    pub(crate) fn start_with<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, used: Tokens) {
        let used = used.ceil().min(self.quota.deepest());
        // Where nothing is counted, it does not matter in which window.
        let end = if used == 0 { 0 } else { self.begin(now) };
        self.write(state, end, 0, used);
    }

    const fn is_packed(&self) -> bool {
        self.quota.deepest() <= MAX_PACKED
    }

    /// Returns the counts of the window before and of the present one, at most [`Quota::deepest`].
    #[inline]
    fn load_counts<S: Cells + ?Sized>(&self, state: &S) -> (u64, u64) {
        let (previous, used) = if self.is_packed() {
            (state.get(1) >> 32, state.get(1) & MAX_PACKED)
        } else {
            (state.get(1), state.get(2))
        };
        (previous.min(self.quota.deepest()), used.min(self.quota.deepest()))
    }

    #[inline]
    fn current_at<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> WindowPair {
        let at = window_instant(now.wall());
        let end = state.get(0);
        let (previous, used) = self.load_counts(state);
        let length = self.quota.length();
        // Returns the present window, or the later one from which the clock was set back.
        if at < end && end <= at.saturating_add(length + self.quota.max_ahead(length)) {
            return WindowPair { end, left: end - at, previous, used };
        }
        self.advance_to(at, end, previous, used)
    }

    /// Returns the window around `at`, given counts of a window that ends at `end`.
    fn advance_to(&self, at: u64, end: u64, previous: u64, used: u64) -> WindowPair {
        let next = at.saturating_add(self.quota.until_next(at, 0));
        let (previous, used) = match next.checked_sub(end) {
            // The clock was set back: the counts are those of the present window.
            None => (previous, used),
            Some(gap) if gap <= self.quota.length() => (used, 0),
            Some(_) => (0, 0),
        };
        WindowPair { end: next, left: next - at, previous, used }
    }

    /// Returns the end of the window around now.
    fn begin(&self, now: &Now<'_>) -> u64 {
        self.advance_to(window_instant(now.wall()), 0, 0, 0).end
    }

    #[inline]
    fn write<S: CellsMut + ?Sized>(&self, state: &mut S, end: u64, previous: u64, used: u64) {
        state.set(0, end);
        if self.is_packed() {
            state.set(1, previous << 32 | used);
        } else {
            state.set(1, previous);
            state.set(2, used);
        }
    }

    /// Returns an amount times the length. A length is below 2⁶², so the product of a 64-bit amount is below 2¹²⁶, and
    /// sums of a few fit 128 bits.
    #[inline]
    fn scaled(&self, amount: u64) -> u128 {
        u128::from(amount) * u128::from(self.quota.length())
    }

    /// Returns the estimate of what the last `length` holds, times the length.
    #[inline]
    fn estimate(&self, current: &WindowPair) -> u128 {
        let overlap = current.left.min(self.quota.length());
        u128::from(current.previous) * u128::from(overlap) + self.scaled(current.used)
    }

    /// Returns the whole units that fit on top of the estimate.
    fn available(&self, current: &WindowPair) -> u64 {
        let room = self.scaled(self.quota.limit()).saturating_sub(self.estimate(current));
        // This is at most the limit, so it fits.
        (room / u128::from(self.quota.length())) as u64
    }

    #[inline]
    fn fits(&self, current: &WindowPair, cost: Cost, ceiling: u64) -> bool {
        cost.get() <= ceiling && self.estimate(current) + self.scaled(cost.get()) <= self.scaled(ceiling)
    }

    /// Returns how long until `cost` fits under `ceiling`.
    fn retry_for(&self, current: &WindowPair, cost: Cost, ceiling: u64) -> Retry {
        ceiling.checked_sub(cost.get()).map_or(Retry::Never, |room| Retry::After(self.wait(current, self.scaled(room))))
    }

    /// Returns how long until the estimate is no more than `room`, which is an amount times the length.
    fn wait(&self, current: &WindowPair, room: u128) -> Nanos {
        if self.estimate(current) <= room {
            return Nanos::ZERO;
        }
        // In this window only the weight of the previous one falls. If that is not enough, the next window begins
        // without it, and there the weight of this window falls, to zero at the end.
        let beside_used = room.checked_sub(self.scaled(current.used));
        let wait = match beside_used.map(|room| self.max_overlap(current.previous, room)) {
            Some(overlap @ 1..) => current.left - overlap,
            _ => current.left + (self.quota.length() - self.max_overlap(current.used, room)),
        };
        Nanos::from_nanos(wait)
    }

    /// Returns the largest overlap at which a window of `count` weighs at most `room`, an amount times the length.
    fn max_overlap(&self, count: u64, room: u128) -> u64 {
        let length = self.quota.length();
        room.checked_div(count.into()).map_or(length, |overlap| overlap.min(length.into()) as u64)
    }

    /// Decides, once it is known what is counted.
    #[inline]
    fn weigh_current<S: Cells + ?Sized>(&self, _: &S, current: &WindowPair, ask: Ask) -> Verdict {
        let pass = |taken| Verdict::with_outcome(Outcome::Allow, taken, Stamp::from_bits(current.end));
        let (cost, ceiling) = match self.quota.resolve(ask, || self.available(current)) {
            Demand::Take(taken) => return pass(taken),
            Demand::Fit { cost, ceiling } => (cost, ceiling),
        };
        if self.fits(current, cost, ceiling) {
            return pass(cost);
        }
        Verdict::deny(self.retry_for(current, cost, ceiling))
    }

    /// Applies what was decided.
    #[inline]
    fn commit_current<S: CellsMut + ?Sized>(&self, state: &mut S, current: &WindowPair, verdict: &Verdict) {
        // Only a clock that was set back makes a window end earlier. Even a refusal writes that, so that its wait is true.
        if verdict.taken() > Cost::ZERO || state.get(0) > current.end {
            let used = current.used.saturating_add(verdict.taken().get()).min(self.quota.deepest());
            self.write(state, current.end, current.previous, used);
        }
    }
}

impl Algorithm for SlidingWindow {
    type Stamp = Stamp;

    fn words(&self) -> usize {
        if self.is_packed() { 2 } else { 3 }
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
            (_, 0) => current.left,
            (_, _) => current.left + self.quota.length(),
        };
        Report {
            limit: self.quota.limit(),
            remaining: self.available(&current),
            retry: self.retry_for(&current, cost, self.quota.limit()),
            reset: Nanos::from_nanos(reset),
        }
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        Spent::of(self.estimate(&self.current_at(state, now)), self.scaled(self.quota.limit()))
    }

    fn is_new<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        let current = self.current_at(state, now);
        current.previous == 0 && current.used == 0
    }

    /// Windows of the same length keep both counts, unless the previous one counted more than these parameters can
    /// hold. Otherwise the estimate, rounded up, counts in the present window of the new parameters.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        let current = own.current_at(state, now);
        if self.length() != own.length() || current.previous > self.quota.deepest() {
            return self.start_with(state, now, own.used(state, now));
        }
        self.write(state, current.end, current.previous, current.used.min(self.quota.deepest()));
    }

    start_by_quota!();
    decide_by_current!();
    changed_parameters!();
}

#[cfg(test)]
mod tests;
