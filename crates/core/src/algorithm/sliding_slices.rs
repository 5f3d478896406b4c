//! Sliding slices: at most the limit in any window, from a few counters instead of a log.
//!
//! **The naive method** counts per slice of the clock, say per second, and adds up the last sixty slices for the last
//! minute. This method takes sixty additions per request, and it undercounts. A minute that begins inside a slice
//! touches sixty-one slices, so twice the limit can pass: once at the end of a slice and again 59 slices later.
//!
//! **The idea** is to count the oldest slice, in which the window begins, in full, and to keep a running sum. A count
//! expires when its slice has left the window completely: at most one slice late, never early.
//!
//! ```text
//!               │◀────────── length ──────────▶│
//!  ──┼───────┼──┬────┼───────┼───────┼───────┼─┴─────┼──▶
//!    │       │   oldest                      │ current│
//!     gone      counted in full                  now
//! ```
//!
//! Within a slice a decision reads only the sum. The first request of a slice subtracts the expired counts from the
//! sum. It also stores the count of the last used slice in a ring until that slice expires.
//!
//! **Example**: 10 in 60 s with slices of 10 s. At 0:05 a cost of 4 passes, and at 0:35 a cost of 6 passes. At 0:59 a
//! cost of 1 is refused: the first 4 are in the slice that ends at 0:10, which leaves the window at 1:10. The retry is
//! 11 s. At 1:10 another 4 pass, and 6 more at 1:40.
//!
//! **Guarantee**: in any interval of `length`, the admitted cost is at most `limit` (`limit + max_debt` with charges),
//! as for the log. A request is refused only if its cost, plus the cost admitted in the last `length` and in the slice
//! before that, exceeds the limit. A length that is not divisible by the number of slices is rounded up, by less than
//! 64 ns.
//!
//! Debt counts like any other cost until its slice expires. The algorithm uses the wall clock, and slices begin at
//! multiples of their length. If the clock is set back by up to one window (or a second), the later slice is used
//! unchanged. If the clock is set back by more, all counts move to the current slice. So setting the clock back grants
//! nothing, and delays a key by at most one window (or second).
//!
//! **State**: the end of the current slice, the sum, the current count, and the counts of the earlier slices, packed as
//! tightly as the limit allows: ten slices with a limit up to 127 take four words. **Cost**: two comparisons and an
//! addition. The first request of a slice adds one division and one step per elapsed slice. A refusal iterates over the
//! slices.
//!
//! **Poor choice** for very small limits, because a log also needs only a few words, and is exact to the nanosecond.
//! Slices are also a poor choice if an estimate is enough, because a sliding window needs only two counters.

use core::time::Duration;

use ring::{HeadLayout, SliceRing};

use super::{Algorithm, Cells, CellsMut, decide_by_current};
use crate::change::changed_parameter_methods;
use crate::error::LimitError;
use crate::params::Params;
use crate::quantity::{Cost, Nanos, Now};
use crate::quota::{Demand, Quota, quota_methods, quota_start_methods, window_instant};
use crate::tokens::Tokens;
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};

/// Admits at most the limit in any window, to the precision of a slice.
///
/// ```
/// use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, SlidingSlices};
///
/// let limit = SlidingSlices::new(10, Nanos::from_secs(60), Nanos::from_secs(10))?;
/// let mut state = [0; 4];
/// limit.init(&mut state, &Now::at(0));
/// assert!(limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::new(10))).is_admitted());
/// let later = Now::at(69_999_999_999);
/// assert_eq!(limit.report(&state, &later, Cost::ONE).retry, tollgate_core::Retry::After(Nanos::from_nanos(1)));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingSlices {
    quota: Quota,
    /// Length of a slice, in nanoseconds; never zero.
    precision: u64,
    /// Number of slices in the window, without the current slice.
    slices: u64,
    /// Maximum time from now to the end of the stored slice, in nanoseconds. A slice that ends later was written before
    /// the clock was set back.
    max_plausible: u64,
    ring: SliceRing,
}

/// The current slice and its counts.
struct CurrentSlice {
    /// First instant after the slice.
    end: u64,
    /// Time until `end`, at least 1 ns; more than a slice if the clock was set back.
    time_left: u64,
    /// Count of the whole window.
    sum: u64,
    /// Count of the current slice, included in `sum`.
    current_count: u64,
    /// Slices that began since the last write.
    shift: SliceShift,
}

/// Number of slices that began since the state was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SliceShift {
    /// No slice began.
    None,
    /// The number of slices that began, at most the number of slices in the window.
    By(u64),
    /// The counts of all slices before the current slice have left the window, or moved to the current slice because
    /// the clock was set back.
    All,
}

impl SlidingSlices {
    /// Maximum number of slices in a window.
    pub const MAX_SLICES: u64 = 64;
    /// Maximum number of words in a state.
    pub const MAX_WORDS: usize = 3 + Self::MAX_SLICES as usize;

    /// Creates a limit of `limit` in any `length`, with slices of `precision`. If the precision does not divide the
    /// length, shorter slices are used: a length of 10 s with a precision of 6 s gives two slices of 5 s. The maximum
    /// debt defaults to `limit`.
    ///
    /// # Errors
    /// Returns an error if an argument is zero, if `length` is above [`Rate::MAX_PERIOD`](crate::Rate::MAX_PERIOD), or
    /// if `precision` would need more than [`SlidingSlices::MAX_SLICES`] slices.
    pub fn new(limit: u64, length: impl Into<Duration>, precision: impl Into<Duration>) -> Result<Self, LimitError> {
        let length = Nanos::from(length.into());
        let precision = Nanos::from(precision.into());
        let quota = Quota::new(limit, length)?;
        if precision == Nanos::ZERO {
            return Err(LimitError::Zero { what: "the precision" });
        }
        // A slice is at most as long as the window.
        let precision = precision.min(length).as_nanos();
        let fewest = quota.length().div_ceil(precision);
        let slices = (fewest..=Self::MAX_SLICES).find(|slices| quota.length() % slices == 0).unwrap_or(fewest);
        let what = "the number of slices (the length divided by the precision)";
        LimitError::check_range(what, slices, 1, Self::MAX_SLICES)?;
        let precision = quota.length().div_ceil(slices);
        // No overflow: neither sum exceeds three times the longest period.
        let max_plausible = precision + quota.max_ahead(slices * precision);
        Ok(Self { quota, precision, slices, max_plausible, ring: SliceRing::new(slices, quota.max_count()) })
    }

    /// Sets the maximum amount beyond the limit that [`Ask::Regardless`] may take.
    ///
    /// # Errors
    /// Returns an error if repaying the debt at `limit` per window takes longer than
    /// [`Rate::MAX_FILL_TIME`](crate::Rate::MAX_FILL_TIME).
    pub fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        let quota = self.quota.max_debt(max_debt)?;
        Ok(Self { quota, ring: SliceRing::new(self.slices, quota.max_count()), ..self })
    }

    quota_methods!();

    /// Returns the length of a slice; at most the requested precision.
    pub const fn precision(&self) -> Nanos {
        Nanos::from_nanos(self.precision)
    }

    pub(crate) const fn params(&self) -> Params {
        Params::SlidingSlices { window: self.quota.params(), precision: Nanos::from_nanos(self.precision) }
    }

    /// Writes a state with the count `current_count` in the slice that ends at `end`, in nanoseconds, and the counts
    /// `older` in the slices before it. The index in `older` is the slice number modulo the number of slices. Used by
    /// stores that keep the counts in another form, such as a Redis script.
    pub fn restore<S: CellsMut + ?Sized>(&self, state: &mut S, end: u64, current_count: u64, older: &[u64]) {
        let ring = self.ring;
        let max_count = self.quota.max_count();
        let mut sum = current_count.min(max_count);
        for (index, count) in (0..self.slices).zip(older) {
            let count = (*count).min(max_count - sum);
            sum += count;
            ring.set(state, index, count);
        }
        self.write_head(state, end, sum, current_count.min(max_count));
    }

    pub(crate) fn used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Tokens {
        Tokens::whole(self.current_at(state, now).sum)
    }

    pub(crate) fn until_used_at_most<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        Retry::After(Nanos::from_nanos(self.wait_until_at_most(state, &self.current_at(state, now), at_most.floor())))
    }

    /// Returns the largest count at which `ask` still passes; `None` if `ask` never passes.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        self.quota.max_used_for(ask)
    }

    /// Writes a state with `used` in the current slice, rounded up to a whole number.
    pub(crate) fn init_with_used<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, used: Tokens) {
        let used = used.ceil().min(self.quota.max_count());
        // With a count of zero, the slice does not matter.
        let end = if used == 0 { 0 } else { self.advance_to(&[0u64; 0], window_instant(now.wall()), 0, 0).end };
        self.ring.clear(state);
        self.write_head(state, end, used, used);
    }

    /// Returns the sum and the current count, each capped at its maximum.
    #[inline]
    fn load_counts<S: Cells + ?Sized>(&self, state: &S) -> (u64, u64) {
        let (sum, current_count) = match self.ring.head {
            HeadLayout::Packed => (state.get(1) >> 32, state.get(1) & u64::from(u32::MAX)),
            HeadLayout::Wide => (state.get(1), state.get(2)),
        };
        let sum = sum.min(self.quota.max_count());
        (sum, current_count.min(sum))
    }

    #[inline]
    fn current_at<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> CurrentSlice {
        let at = window_instant(now.wall());
        let end = state.get(0);
        let (sum, current_count) = self.load_counts(state);
        // The state is in the current slice, or in a later slice if the clock was set back.
        if at < end && end <= at.saturating_add(self.max_plausible) {
            return CurrentSlice { end, time_left: end - at, sum, current_count, shift: SliceShift::None };
        }
        self.advance_to(state, at, end, sum)
    }

    /// Returns the slice that contains `at`, given the counts of the slice that ends at `end`.
    fn advance_to<S: Cells + ?Sized>(&self, state: &S, at: u64, end: u64, sum: u64) -> CurrentSlice {
        let next = at.saturating_add(self.precision - at % self.precision);
        let current =
            |sum, current_count, shift| CurrentSlice { end: next, time_left: next - at, sum, current_count, shift };
        let Some(gap) = next.checked_sub(end) else {
            // The clock was set back: all counts move to the current slice.
            return current(sum, sum, SliceShift::All);
        };
        let shifts = gap.div_ceil(self.precision);
        if shifts > self.slices || sum == 0 {
            return current(0, 0, SliceShift::All);
        }
        let ring = self.ring;
        let number = self.slice_number(end);
        // The count of the last slice and the zeros of the empty slices after it will be stored at these positions of
        // the ring. Until then, the positions hold counts that have left the window.
        let expired: u64 =
            (0..shifts).map(|shift| ring.get(state, number.wrapping_add(shift))).fold(0, u64::saturating_add);
        current(sum.saturating_sub(expired), 0, SliceShift::By(shifts))
    }

    /// Returns the total length of the slices before the current slice.
    const fn window_length(&self) -> u64 {
        self.slices * self.precision
    }

    /// Returns the number of the slice that ends at `end`.
    const fn slice_number(&self, end: u64) -> u64 {
        end.div_ceil(self.precision)
    }

    fn write_head<S: CellsMut + ?Sized>(&self, state: &mut S, end: u64, sum: u64, current_count: u64) {
        state.set(0, end);
        match self.ring.head {
            HeadLayout::Packed => state.set(1, sum << 32 | current_count),
            HeadLayout::Wide => {
                state.set(1, sum);
                state.set(2, current_count);
            }
        }
    }

    /// Writes the counts, after shifting the ring to the current slice.
    #[inline]
    fn write<S: CellsMut + ?Sized>(&self, state: &mut S, current: &CurrentSlice, sum: u64, current_count: u64) {
        if current.shift != SliceShift::None {
            self.shift_ring(state, current.shift);
        }
        self.write_head(state, current.end, sum, current_count);
    }

    fn shift_ring<S: CellsMut + ?Sized>(&self, state: &mut S, shift: SliceShift) {
        let ring = self.ring;
        match shift {
            SliceShift::None => {}
            SliceShift::All => ring.clear(state),
            SliceShift::By(shifts) => {
                let number = self.slice_number(state.get(0));
                ring.set(state, number, self.load_counts(state).1);
                (1..shifts).for_each(|step| ring.set(state, number.wrapping_add(step), 0));
            }
        }
    }

    /// Returns the counts of the slices before the current slice, oldest first, with the time until each slice expires.
    fn older_counts<'a, S: Cells + ?Sized>(
        &'a self,
        state: &'a S,
        current: &'a CurrentSlice,
    ) -> impl DoubleEndedIterator<Item = (u64, u64)> + 'a {
        let ring = self.ring;
        let (number, slices) = (self.slice_number(current.end), self.slices);
        let kept = self.slice_number(state.get(0));
        let (_, last) = self.load_counts(state);
        (1..=slices).rev().map(move |back| {
            let leaves = current.time_left + (slices - back) * self.precision;
            let count = match current.shift {
                SliceShift::All => 0,
                SliceShift::None => ring.count_before(state, number, back),
                // The last written slice is not in the ring yet, and the slices after it are empty.
                SliceShift::By(shifts) if back < shifts => 0,
                SliceShift::By(shifts) if back == shifts => last,
                SliceShift::By(shifts) => ring.count_before(state, kept, back - shifts),
            };
            (count, leaves)
        })
    }

    /// Returns the number of whole units that can be admitted in addition to the sum.
    const fn available(&self, current: &CurrentSlice) -> u64 {
        self.quota.limit().saturating_sub(current.sum)
    }

    /// Returns the time until the sum plus `cost` is at most `ceiling`.
    fn retry_for<S: Cells + ?Sized>(&self, state: &S, current: &CurrentSlice, cost: Cost, ceiling: u64) -> Retry {
        let Some(room) = ceiling.checked_sub(cost.get()) else { return Retry::Never };
        Retry::After(Nanos::from_nanos(self.wait_until_at_most(state, current, room)))
    }

    /// Returns the time until at most `room` is counted.
    fn wait_until_at_most<S: Cells + ?Sized>(&self, state: &S, current: &CurrentSlice, room: u64) -> u64 {
        let mut sum = current.sum;
        if sum <= room {
            return 0;
        }
        for (count, leaves) in self.older_counts(state, current) {
            sum = sum.saturating_sub(count);
            if sum <= room {
                return leaves;
            }
        }
        current.time_left + self.window_length()
    }

    /// Decides from the sum of the window.
    #[inline]
    fn weigh_current<S: Cells + ?Sized>(&self, state: &S, current: &CurrentSlice, ask: Ask) -> Verdict {
        let pass = |taken| Verdict::with_outcome(Outcome::Allow, taken, Stamp::from_bits(current.end));
        let (cost, ceiling) = match self.quota.resolve(ask, || self.available(current)) {
            Demand::Take(taken) => return pass(taken),
            Demand::Fit { cost, ceiling } => (cost, ceiling),
        };
        match ceiling.checked_sub(cost.get()) {
            Some(room) if current.sum <= room => pass(cost),
            _ => Verdict::deny(self.retry_for(state, current, cost, ceiling)),
        }
    }

    /// Takes `cost` in a later slice than the previous request if at most `room` is counted. `None`: nothing was taken.
    #[inline(never)]
    fn take_in_later_slice<S: CellsMut + ?Sized>(
        &self,
        state: &mut S,
        now: &Now<'_>,
        cost: Cost,
        room: u64,
    ) -> Option<Stamp> {
        let current = self.current_at(state, now);
        let verdict = Verdict::new_allowed_with_stamp(cost, Stamp::from_bits(current.end));
        if current.sum > room {
            return None;
        }
        self.commit_current(state, &current, &verdict);
        Some(verdict.stamp())
    }

    /// Applies a verdict of `weigh_current`.
    #[inline]
    fn commit_current<S: CellsMut + ?Sized>(&self, state: &mut S, current: &CurrentSlice, verdict: &Verdict) {
        // The end moves back only if the clock was set back. Even a refusal writes the earlier end, so that its wait is
        // correct.
        if verdict.taken() > Cost::ZERO || state.get(0) > current.end {
            let taken = verdict.taken().get();
            self.write(state, current, current.sum.saturating_add(taken), current.current_count.saturating_add(taken));
        }
    }
}

impl Algorithm for SlidingSlices {
    type Stamp = Stamp;

    fn words(&self) -> usize {
        let ring = self.ring;
        ring.first + ring.words()
    }

    fn uses_wall_clock(&self) -> bool {
        true
    }

    #[inline]
    fn has_words_fast_path(&self) -> bool {
        self.ring.head == HeadLayout::Packed
    }

    /// Handles only admissions. In the same slice as the previous request, an admission changes one word. This fast
    /// path reduces the check of a key from 354 to 240 instructions, and the first check in a slice from 527 to 473
    /// (callgrind).
    #[inline]
    fn try_take_from_words<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Stamp> {
        let (at, end, counts) = (window_instant(now.wall()), state.get(0), state.get(1));
        let (sum, current_count) = (counts >> 32, counts & u64::from(u32::MAX));
        let room = self.quota.limit().checked_sub(cost.get())?;
        if self.ring.head != HeadLayout::Packed {
            return None;
        }
        if at >= end {
            return self.take_in_later_slice(state, now, cost, room);
        }
        if end > at.saturating_add(self.max_plausible) || current_count > sum || sum > room {
            return None;
        }
        state.set(1, counts + (cost.get() << 32 | cost.get()));
        Some(Stamp::from_bits(end))
    }

    #[inline]
    fn decide_fast<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Verdict> {
        self.try_take_from_words(state, now, cost).map(|stamp| Verdict::new_allowed_with_stamp(cost, stamp))
    }

    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, stamp: Option<Stamp>) -> Cost {
        let current = self.current_at(state, now);
        let taken_in = stamp.map_or(current.end, Stamp::to_bits);
        // After a change of precision, slices may end at other instants.
        let Some(gap) = current.end.checked_sub(taken_in).filter(|gap| gap % self.precision == 0) else {
            return Cost::ZERO;
        };
        let back = gap / self.precision;
        let current_count = if back == 0 { current.current_count } else { 0 };
        let older = || self.older_counts(state, &current).rev().nth(back as usize - 1).map_or(0, |(count, _)| count);
        let count = match back {
            0 => current_count,
            1..=Self::MAX_SLICES => older(),
            _ => 0,
        };
        let accepted = cost.get().min(count);
        if accepted > 0 {
            self.write(
                state,
                &current,
                current.sum.saturating_sub(accepted),
                current.current_count - accepted.min(current_count),
            );
            if back > 0 {
                let ring = self.ring;
                ring.set(state, ring.slice_number_before(self.slice_number(current.end), back), count - accepted);
            }
        }
        Cost::new(accepted)
    }

    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        let current = self.current_at(state, now);
        Report {
            limit: self.quota.limit(),
            remaining: self.available(&current),
            retry: self.retry_for(state, &current, cost, self.quota.limit()),
            reset: Nanos::from_nanos(self.wait_until_at_most(state, &current, 0)),
        }
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        Spent::of(self.current_at(state, now).sum.into(), self.quota.limit().into())
    }

    fn is_unused<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.current_at(state, now).sum == 0
    }

    /// Keeps the counts if the slices have the same length and the new window is at least as long as the old window.
    /// Otherwise counts the sum in the current slice of the new parameters.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        if self.precision != own.precision || self.slices < own.slices {
            return self.init_with_used(state, now, own.used(state, now));
        }
        let before = own.current_at(state, now);
        let mut counts = [0; Self::MAX_SLICES as usize];
        own.older_counts(state, &before).rev().zip(&mut counts).for_each(|((count, _), entry)| *entry = count);
        self.ring.clear(state);
        // If the clock was set back, the old slices stay ahead of the clock.
        let (ring, number) = (self.ring, self.slice_number(before.end));
        let current_count = before.current_count.min(self.quota.max_count());
        let mut room = self.quota.max_count() - current_count;
        for (back, count) in counts.iter().take(self.slices as usize).enumerate() {
            let kept = (*count).min(room);
            room -= kept;
            ring.set(state, ring.slice_number_before(number, back as u64 + 1), kept);
        }
        self.write_head(state, before.end, self.quota.max_count() - room, current_count);
    }

    quota_start_methods!();
    decide_by_current!();
    changed_parameter_methods!();
}

mod ring;
#[cfg(test)]
mod tests;
