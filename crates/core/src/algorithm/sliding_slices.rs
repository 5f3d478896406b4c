//! Sliding slices: never more than the limit in any window, from a few counters instead of a log.
//!
//! **The naive method** counts per slice of the clock, say per second, and adds up the last sixty for the last minute. It adds
//! up sixty numbers for each request, and it counts too little: a minute that begins within a slice touches
//! sixty-one of them, so twice the limit passes, once at the end of a slice and again 59 slices later.
//!
//! **The idea** is to count the slice that the window begins in as a whole, and to keep the sum. What was counted is forgotten
//! when its slice has left the window completely: at most one slice late, never early.
//!
//! ```text
//!               │◀────────── length ──────────▶│
//!  ──┼───────┼──┬────┼───────┼───────┼───────┼─┴─────┼──▶
//!    │       │   oldest                      │ present│
//!     gone      counted as a whole                now
//! ```
//!
//! Within a slice a decision looks at the sum alone. The first request of a slice subtracts from the sum what has left
//! since, and stores the count of the last slice in a ring, until that slice leaves.
//!
//! **Example**: 10 in 60 s by slices of 10 s. At 0:05 a cost of 4 passes, at 0:35 a cost of 6. At 0:59 a cost of 1 is
//! refused: the first 4 are in the slice that ends at 0:10, which leaves the window at 1:10. The retry is 11 s. At 1:10
//! another 4 pass, and 6 more at 1:40.
//!
//! **Guarantee**: in any interval of `length`, what passes is at most `limit` (`limit + max_debt` with charges), like
//! that of the log; and a request is refused only if it does not fit together with all that passed in `length` and one
//! slice. (A length that is not divisible by the number of slices is rounded up, by less than 64 ns.)
//!
//! Debt counts like any other cost until its slice leaves. The clock is the wall clock, and slices begin at multiples
//! of their length. If it is set back by up to a window (or a second), the later slice is used as it is; if by more,
//! everything counted is moved to the present slice. So a step back grants nothing, and no key is refused for more than
//! a window longer.
//!
//! **State**: the end of the present slice, the sum and the present count, and the counts of the slices before, packed
//! as tightly as the limit allows: with ten slices and a limit up to 127 these are four words. **Cost**: two
//! comparisons and an addition; one division for the first request of a slice, and a step for each slice that passed; a
//! walk over the slices for a refusal.
//!
//! **Poor choice** for limits of a few, where a log is as small and exact to the nanosecond; and where an estimate is enough: a
//! sliding window needs two counters.

use core::time::Duration;

use ring::{Head, SliceRing};

use super::{Algorithm, Cells, CellsMut, decide_by_current};
use crate::change::changed_parameters;
use crate::error::LimitError;
use crate::params::Params;
use crate::quantity::{Cost, Nanos, Now};
use crate::quota::{Demand, Quota, quota_methods, start_by_quota, window_instant};
use crate::tokens::Tokens;
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};

/// Never more than the limit in any window, to the precision of a slice.
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
    /// The length of a slice, in nanoseconds, never zero.
    precision: u64,
    /// The number of slices in the window, not counting the present one.
    slices: u64,
    /// How far ahead of the clock the stored slice may end and still be used as it is.
    max_plausible: u64,
    ring: SliceRing,
}

/// The slice that a request is counted in, and what is counted.
struct CurrentSlice {
    /// The first instant after the slice.
    end: u64,
    /// The time until that instant, at least 1 ns; more than a slice if the clock was set back.
    left: u64,
    /// What is counted in the window.
    sum: u64,
    /// The part of it that is counted in the present slice.
    present: u64,
    /// How many slices began since the state was written.
    shift: SliceShift,
}

/// How far the slices moved since the state was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SliceShift {
    /// No slice began.
    None,
    /// This many slices began.
    By(u64),
    /// All slices before the present one have left the window.
    All,
}

impl SlidingSlices {
    /// Maximum number of slices in a window.
    pub const MAX_SLICES: u64 = 64;
    /// Maximum number of words of a state.
    pub const MAX_WORDS: usize = 3 + Self::MAX_SLICES as usize;

    /// `limit` in any `length`, by slices of `precision`. If the precision does not divide the length, shorter slices
    /// are used: 10 s by 6 s gives two slices of 5 s. Debt is bounded by another limit.
    ///
    /// # Errors
    /// When one of them is zero, the length is above [`Rate::MAX_PERIOD`](crate::Rate::MAX_PERIOD), or there are more than
    /// [`SlidingSlices::MAX_SLICES`] slices.
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
        // Neither sum is above three times the longest period.
        let max_plausible = precision + quota.max_ahead(slices * precision);
        Ok(Self { quota, precision, slices, max_plausible, ring: SliceRing::new(slices, quota.deepest()) })
    }

    /// Sets the maximum `max_debt` taken beyond the limit by [`Ask::Regardless`].
    ///
    /// # Errors
    /// When windows of `limit` would take longer than [`Rate::MAX_FILL`](crate::Rate::MAX_FILL) for it.
    pub fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        let quota = self.quota.max_debt(max_debt)?;
        Ok(Self { quota, ring: SliceRing::new(self.slices, quota.deepest()), ..self })
    }

    quota_methods!();

    /// Returns the length of a slice, at most the precision asked for.
    pub const fn precision(&self) -> Nanos {
        Nanos::from_nanos(self.precision)
    }

    pub(crate) const fn params(&self) -> Params {
        Params::SlidingSlices { window: self.quota.params(), precision: Nanos::from_nanos(self.precision) }
    }

    /// Writes the state that counts `present` in the slice that ends at `end`, in nanoseconds, and `older` in the
    /// slices before it, each at the index of its slice number modulo the number of slices. For another implementation,
    /// such as a script in a store.
    pub fn restore<S: CellsMut + ?Sized>(&self, state: &mut S, end: u64, present: u64, older: &[u64]) {
        let ring = self.ring;
        let deepest = self.quota.deepest();
        let mut sum = present.min(deepest);
        for (place, count) in (0..self.slices).zip(older) {
            let count = (*count).min(deepest - sum);
            sum += count;
            ring.set(state, place, count);
        }
        self.write_head(state, end, sum, present.min(deepest));
    }

    pub(crate) fn used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Tokens {
        Tokens::whole(self.current_at(state, now).sum)
    }

    pub(crate) fn until_used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        Retry::After(Nanos::from_nanos(self.wait(state, &self.current_at(state, now), at_most.floor())))
    }

    /// Returns the most that may be counted for `ask` to fit; `None` if it never does.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        self.quota.max_used_for(ask)
    }

    /// Writes a state in which `used` is counted in the present slice, rounded up to a whole number.
    pub(crate) fn start_with<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, used: Tokens) {
        let used = used.ceil().min(self.quota.deepest());
        // If nothing is counted, the slice does not matter.
        let end = if used == 0 { 0 } else { self.advance_to(&[0u64; 0], window_instant(now.wall()), 0, 0).end };
        self.ring.clear(state);
        self.write_head(state, end, used, used);
    }

    /// Returns the sum and the present count, each capped at its maximum.
    #[inline]
    fn load_counts<S: Cells + ?Sized>(&self, state: &S) -> (u64, u64) {
        let (sum, present) = match self.ring.head {
            Head::Packed => (state.get(1) >> 32, state.get(1) & u64::from(u32::MAX)),
            Head::Wide => (state.get(1), state.get(2)),
        };
        let sum = sum.min(self.quota.deepest());
        (sum, present.min(sum))
    }

    #[inline]
    fn current_at<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> CurrentSlice {
        let at = window_instant(now.wall());
        let end = state.get(0);
        let (sum, present) = self.load_counts(state);
        // Returns the present slice, or the later one from which the clock was set back.
        if at < end && end <= at.saturating_add(self.max_plausible) {
            return CurrentSlice { end, left: end - at, sum, present, shift: SliceShift::None };
        }
        self.advance_to(state, at, end, sum)
    }

    /// Returns the slice around `at`, given counts of a slice that ends at `end`.
    fn advance_to<S: Cells + ?Sized>(&self, state: &S, at: u64, end: u64, sum: u64) -> CurrentSlice {
        let next = at.saturating_add(self.precision - at % self.precision);
        let current = |sum, present, shift| CurrentSlice { end: next, left: next - at, sum, present, shift };
        let Some(gap) = next.checked_sub(end) else {
            // The clock was set back: all of it belongs to the present slice.
            return current(sum, sum, SliceShift::All);
        };
        let shifts = gap.div_ceil(self.precision);
        if shifts > self.slices || sum == 0 {
            return current(0, 0, SliceShift::All);
        }
        let ring = self.ring;
        let number = self.slice_number(end);
        // The counts overwritten by the present count and by empty slices have left the window.
        let left: u64 =
            (0..shifts).map(|shift| ring.get(state, number.wrapping_add(shift))).fold(0, u64::saturating_add);
        current(sum.saturating_sub(left), 0, SliceShift::By(shifts))
    }

    /// Returns the time that the slices before the present one make up.
    const fn window(&self) -> u64 {
        self.slices * self.precision
    }

    /// Returns the number of the slice that ends at `end`.
    const fn slice_number(&self, end: u64) -> u64 {
        end.div_ceil(self.precision)
    }

    fn write_head<S: CellsMut + ?Sized>(&self, state: &mut S, end: u64, sum: u64, present: u64) {
        state.set(0, end);
        match self.ring.head {
            Head::Packed => state.set(1, sum << 32 | present),
            Head::Wide => {
                state.set(1, sum);
                state.set(2, present);
            }
        }
    }

    /// Writes what is counted, with the slices moved on to the present one.
    #[inline]
    fn write<S: CellsMut + ?Sized>(&self, state: &mut S, current: &CurrentSlice, sum: u64, present: u64) {
        if current.shift != SliceShift::None {
            self.shift_to(state, current.shift);
        }
        self.write_head(state, current.end, sum, present);
    }

    fn shift_to<S: CellsMut + ?Sized>(&self, state: &mut S, shift: SliceShift) {
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

    /// Returns the counts of the slices before the present one, from the oldest on, with how long until each leaves.
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
            let leaves = current.left + (slices - back) * self.precision;
            let count = match current.shift {
                SliceShift::All => 0,
                SliceShift::None => ring.count_before(state, number, back),
                // The last slice of the state is not in the ring yet, and the slices after it are empty.
                SliceShift::By(shifts) if back < shifts => 0,
                SliceShift::By(shifts) if back == shifts => last,
                SliceShift::By(shifts) => ring.count_before(state, kept, back - shifts),
            };
            (count, leaves)
        })
    }

    /// Returns the whole units that fit on top of the sum.
    const fn available(&self, current: &CurrentSlice) -> u64 {
        self.quota.limit().saturating_sub(current.sum)
    }

    /// Returns how long until `cost` fits under `ceiling`.
    fn retry_for<S: Cells + ?Sized>(&self, state: &S, current: &CurrentSlice, cost: Cost, ceiling: u64) -> Retry {
        let Some(room) = ceiling.checked_sub(cost.get()) else { return Retry::Never };
        Retry::After(Nanos::from_nanos(self.wait(state, current, room)))
    }

    /// Returns how long until no more than `room` is counted.
    fn wait<S: Cells + ?Sized>(&self, state: &S, current: &CurrentSlice, room: u64) -> u64 {
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
        current.left + self.window()
    }

    /// Decides, once it is known what is counted.
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

    /// Applies what was decided.
    #[inline]
    fn commit_current<S: CellsMut + ?Sized>(&self, state: &mut S, current: &CurrentSlice, verdict: &Verdict) {
        // A slice ends earlier only if the clock was set back. Even a refusal writes that, so that its wait is true.
        if verdict.taken() > Cost::ZERO || state.get(0) > current.end {
            let taken = verdict.taken().get();
            self.write(state, current, current.sum.saturating_add(taken), current.present.saturating_add(taken));
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
    fn takes_from_words(&self) -> bool {
        self.ring.head == Head::Packed
    }

    /// Applies only to an admission in the same slice as the previous request, which changes one word. A refusal walks
    /// over the slices. By callgrind, a check of a key takes 244 instructions instead of 354 with it.
    #[inline]
    fn take_from_words<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Stamp> {
        let (at, end, counts) = (window_instant(now.wall()), state.get(0), state.get(1));
        let (sum, present) = (counts >> 32, counts & u64::from(u32::MAX));
        let in_slice = at < end && end <= at.saturating_add(self.max_plausible) && self.ring.head == Head::Packed;
        if !in_slice || present > sum || sum > self.quota.limit().checked_sub(cost.get())? {
            return None;
        }
        state.set(1, counts + (cost.get() << 32 | cost.get()));
        Some(Stamp::from_bits(end))
    }

    #[inline]
    fn decide_fast<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Verdict> {
        self.take_from_words(state, now, cost).map(|stamp| Verdict::stamped(cost, stamp))
    }

    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, stamp: Option<Stamp>) -> Cost {
        let current = self.current_at(state, now);
        let taken_in = stamp.map_or(current.end, Stamp::to_bits);
        // After a change of the precision, slices may end at other instants.
        let Some(gap) = current.end.checked_sub(taken_in).filter(|gap| gap % self.precision == 0) else {
            return Cost::ZERO;
        };
        let back = gap / self.precision;
        let present = if back == 0 { current.present } else { 0 };
        let older = || self.older_counts(state, &current).rev().nth(back as usize - 1).map_or(0, |(count, _)| count);
        let count = match back {
            0 => present,
            1..=Self::MAX_SLICES => older(),
            _ => 0,
        };
        let accepted = cost.get().min(count);
        if accepted > 0 {
            self.write(state, &current, current.sum.saturating_sub(accepted), current.present - accepted.min(present));
            if back > 0 {
                let ring = self.ring;
                ring.set(state, ring.number_before(self.slice_number(current.end), back), count - accepted);
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
            reset: Nanos::from_nanos(self.wait(state, &current, 0)),
        }
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        Spent::of(self.current_at(state, now).sum.into(), self.quota.limit().into())
    }

    fn is_new<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.current_at(state, now).sum == 0
    }

    /// Slices of the same length, in a window at least as long, keep their counts. Otherwise everything counts in the
    /// present slice of the new parameters.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        if self.precision != own.precision || self.slices < own.slices {
            return self.start_with(state, now, own.used(state, now));
        }
        let before = own.current_at(state, now);
        let mut counts = [0; Self::MAX_SLICES as usize];
        own.older_counts(state, &before).rev().zip(&mut counts).for_each(|((count, _), place)| *place = count);
        self.ring.clear(state);
        // After the clock was set back, the old slices are ahead of it and stay so.
        let (ring, number) = (self.ring, self.slice_number(before.end));
        let present = before.present.min(self.quota.deepest());
        let mut room = self.quota.deepest() - present;
        for (back, count) in counts.iter().take(self.slices as usize).enumerate() {
            let kept = (*count).min(room);
            room -= kept;
            ring.set(state, ring.number_before(number, back as u64 + 1), kept);
        }
        self.write_head(state, before.end, self.quota.deepest() - room, present);
    }

    start_by_quota!();
    decide_by_current!();
    changed_parameters!();
}

mod ring;
#[cfg(test)]
mod tests;
