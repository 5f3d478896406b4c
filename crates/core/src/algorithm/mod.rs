//! The algorithms, one per module. Each algorithm is a set of pure functions of the limit, the state, the time and the
//! cost.
//!
//! No algorithm needs a timer: a request computes the refill since the last write. A token bucket stores the instant at
//! which it will be full, a window stores its end and its count, and a log stores the instants of its requests. Each
//! module derives its state from the naive method, states its guarantee as an inequality, and names the cases where it
//! is a poor choice.
//!
//! All algorithms implement the trait [`Algorithm`]. A decision has two steps: [`weigh`](Algorithm::weigh) computes the
//! verdict without changing the state, and [`commit`](Algorithm::commit) writes the verdict to the state. So several
//! limits can be weighed before any of them is committed, and a peek only weighs.

pub mod concurrency;
pub mod fixed_window;
pub mod interval_bucket;
pub mod leaky_bucket;
pub mod sliding_log;
pub mod sliding_slices;
pub mod sliding_window;
#[cfg(test)]
mod testing;
pub mod token_bucket;

use crate::quantity::{Cost, Nanos, Now};
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Verdict};

/// A limit with its parameters. The caller stores the state.
///
/// The state is a fixed number of 64-bit words, so tables, snapshots and tests can store it for any algorithm. No
/// method reads a clock, takes a lock or panics, whatever the words contain. Only the methods for changed parameters
/// may allocate.
///
/// [`weigh`](Self::weigh) defines every decision; fast paths return the same verdicts. A peek weighs without a commit,
/// and a group of limits weighs all of its limits before it commits any.
pub trait Algorithm {
    /// Identifies a charge, for an exact refund. A single limit uses [`Stamp`](crate::Stamp).
    type Stamp: Copy + Default + Send + Sync + 'static;

    /// Returns the number of words in the state. Constant for a given limit.
    fn words(&self) -> usize;

    /// Returns the maximum amount that passes at one instant, or in one window.
    fn capacity(&self) -> u64;

    /// Returns whether decisions use the wall clock. If `false`, the caller need not read the wall clock.
    fn uses_wall_clock(&self) -> bool {
        false
    }

    /// Writes the state of a new key.
    fn init<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>);

    /// Decides without changing the state.
    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict<Self::Stamp>;

    /// Applies a verdict of [`weigh`](Self::weigh) for the same state and instant. A refusal writes nothing, except
    /// repairs after a clock step and the refused attempts that a log counts.
    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict<Self::Stamp>);

    /// Refunds up to `cost` and returns the accepted amount, which never exceeds the used amount. With a stamp, only
    /// the window, the log entries or the lease of the stamp are refunded. A fixed window accepts such a refund until
    /// the window ends; other limits accept it as long as the charge counts. Without a stamp, only the count of the
    /// current window or slice is refunded, or the oldest entries of a log; a concurrency limit refunds nothing.
    /// Buckets need no stamp.
    fn refund<S: CellsMut + ?Sized>(
        &self,
        state: &mut S,
        now: &Now<'_>,
        cost: Cost,
        stamp: Option<Self::Stamp>,
    ) -> Cost;

    /// Returns the status of the limit for the caller, with `retry` for another request of `cost`.
    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report;

    /// Returns the used fraction. A state with [`Spent::NOTHING`] can be forgotten without loss.
    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent;

    /// Converts a state that was last charged under the parameters `own` to these parameters. The used amount stays the
    /// same, rounded up to the new precision. The cells must be long enough for both states.
    ///
    /// The used amount must be at most the new capacity plus the new maximum debt; any excess is lost. If
    /// [`weigh_from`](Self::weigh_from) has admitted a request, the used amount is within this bound.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>);

    /// Weighs like [`weigh`](Self::weigh), for a state that was last charged under the parameters `own`. The used
    /// amount is computed from `own`, and the capacity from the new parameters; see "Changed parameters" in
    /// ARCHITECTURE.md.
    fn weigh_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict<Self::Stamp>;

    /// Applies a verdict of [`weigh_from`](Self::weigh_from). Returns `true` if something was taken: the state then
    /// belongs to these parameters. Otherwise the state still belongs to `own`, and only counted refusals and
    /// clock-step repairs were written.
    fn commit_from<S: CellsMut + ?Sized>(
        &self,
        own: &Self,
        state: &mut S,
        now: &Now<'_>,
        verdict: &Verdict<Self::Stamp>,
    ) -> bool;

    /// Decides and applies. Returns the verdict, and whether the state now belongs to these parameters.
    fn decide_from<S: CellsMut + ?Sized>(
        &self,
        own: &Self,
        state: &mut S,
        now: &Now<'_>,
        ask: Ask,
    ) -> (Verdict<Self::Stamp>, bool) {
        let verdict = self.weigh_from(own, state, now, ask);
        let adopted = self.commit_from(own, state, now, &verdict);
        (verdict, adopted)
    }

    /// Reports like [`report`](Self::report), for a state that was last charged under the parameters `own`. The limit
    /// and the remaining amount are computed from these parameters, and the waits from `own`.
    fn report_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, cost: Cost) -> Report;

    /// Computes a lower bound on [`wait_in_queue`](Self::wait_in_queue) for a state that was last charged under the
    /// parameters `own`. Ignores requests ahead in the queue.
    fn min_wait_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, cost: Cost) -> Retry {
        match self.weigh_from(own, state, now, Ask::Exactly(cost)).outcome() {
            Outcome::Allow => Retry::NOW,
            Outcome::Delay(wait) => Retry::After(wait),
            Outcome::Deny(retry) => retry,
        }
    }

    /// The fastest path of [`check`](Ask::Exactly), short enough to be inlined. Takes `cost` from a one-word state and
    /// returns the new word if the request passes without delay. `None`: the fast path does not apply; call
    /// [`decide`](Self::decide).
    #[inline]
    fn try_take_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<u64> {
        let _ = (word, now, cost);
        None
    }

    /// The counterpart of [`try_take_from_word`](Self::try_take_from_word) for a refusal that changes nothing. Returns
    /// the time until `cost` passes. Inlined, so that the wait is computed only for callers that use it. `None`: the
    /// fast path does not apply; call [`decide`](Self::decide).
    #[inline]
    fn try_refuse_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<Retry> {
        let _ = (word, now, cost);
        None
    }

    /// Returns whether [`try_take_from_words`](Self::try_take_from_words) can apply. If `false`, the caller can skip
    /// this fast path without locking the state.
    #[inline]
    fn has_words_fast_path(&self) -> bool {
        false
    }

    /// Takes like [`try_take_from_word`](Self::try_take_from_word), but in place, from a state of several words.
    /// Returns the stamp of the charge, or `None` without changing anything. The `try_take` methods ignore the spread
    /// and the calendar windows of `now`.
    #[inline]
    fn try_take_from_words<S>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Self::Stamp>
    where
        S: CellsMut + ?Sized,
    {
        let _ = (state, now, cost);
        None
    }

    /// The fast path of [`check`](Ask::Exactly). Takes `cost`, or refuses and changes nothing; never delays. `None`:
    /// the fast path does not apply and nothing was changed; call [`decide`](Self::decide).
    #[inline]
    fn decide_fast<S>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Verdict<Self::Stamp>>
    where
        S: CellsMut + ?Sized,
    {
        let _ = (state, now, cost);
        None
    }

    /// Decides and applies.
    #[inline]
    fn decide<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, ask: Ask) -> Verdict<Self::Stamp> {
        if let Ask::Exactly(cost) = ask
            && let Some(verdict) = self.decide_fast(state, now, cost)
        {
            return verdict;
        }
        self.decide_slow(state, now, ask)
    }

    /// The slow path of [`decide`](Self::decide).
    #[inline(never)]
    fn decide_slow<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, ask: Ask) -> Verdict<Self::Stamp> {
        let verdict = self.weigh(state, now, ask);
        self.commit(state, now, &verdict);
        verdict
    }

    /// Returns the minimum wait of a request of `cost` that is queued after requests with a total cost of `ahead`, if
    /// nothing else is taken or refunded. A wait queue uses this wait to refuse a request that cannot meet its
    /// deadline. For buckets the error is less than a nanosecond per request ahead.
    ///
    /// The default ignores requests ahead, which gives a lower bound.
    fn wait_in_queue<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        let _ = ahead;
        match self.weigh(state, now, Ask::Exactly(cost)).outcome() {
            Outcome::Allow => Retry::NOW,
            Outcome::Delay(wait) => Retry::After(wait),
            Outcome::Deny(retry) => retry,
        }
    }

    /// Returns the time after which a request refused with [`Retry::OnRelease`] may pass even without a release. `None`
    /// if it can only pass after a release.
    fn recheck_after<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Option<Nanos> {
        let _ = (state, now);
        None
    }

    /// Returns whether nothing is used, so that the state can be forgotten. A new key that starts with
    /// less than its full capacity (`initial`) counts as used.
    fn is_unused<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.spent(state, now).is_nothing()
    }
}

/// Decision methods of an algorithm that first computes its `current` state at `now` and decides from that state alone.
macro_rules! decide_by_current {
    () => {
        #[inline]
        fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict {
            self.weigh_current(state, &self.current_at(state, now), ask)
        }

        #[inline]
        fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict) {
            self.commit_current(state, &self.current_at(state, now), verdict);
        }

        #[inline]
        fn decide_slow<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, ask: Ask) -> Verdict {
            let current = self.current_at(state, now);
            let verdict = self.weigh_current(state, &current, ask);
            self.commit_current(state, &current, &verdict);
            verdict
        }
    };
}

pub(crate) use decide_by_current;

/// Maximum age of a clock reading at a decision. A thread that is preempted after it reads the clock may find a state
/// that is ahead of its reading. A state that is ahead by at most this time is used unchanged; a larger difference
/// means that the clock stepped back.
pub(crate) const MAX_READING_AGE: Nanos = Nanos::SECOND;

/// Read access to the words of a state.
pub trait Cells {
    /// Returns the word at `index`; zero past the end.
    fn get(&self, index: usize) -> u64;
}

/// Write access to the words of a state.
pub trait CellsMut: Cells {
    /// Sets the word at `index`; no-op past the end.
    fn set(&mut self, index: usize, word: u64);
}

impl Cells for [u64] {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        <[u64]>::get(self, index).copied().unwrap_or(0)
    }
}

impl CellsMut for [u64] {
    #[inline]
    fn set(&mut self, index: usize, word: u64) {
        if let Some(cell) = self.get_mut(index) {
            *cell = word;
        }
    }
}

impl<T: Cells + ?Sized> Cells for &T {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        (**self).get(index)
    }
}

impl<T: Cells + ?Sized> Cells for &mut T {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        (**self).get(index)
    }
}

impl<T: CellsMut + ?Sized> CellsMut for &mut T {
    #[inline]
    fn set(&mut self, index: usize, word: u64) {
        (**self).set(index, word);
    }
}

/// A view of the words starting at `first`: one limit of a group, or a state after its header.
#[derive(Clone, Copy, Debug)]
pub struct OffsetCells<S> {
    /// All words.
    pub cells: S,
    /// The index of the first word of the view.
    pub first: usize,
}

impl<S: Cells> Cells for OffsetCells<S> {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        self.cells.get(self.first + index)
    }
}

impl<S: CellsMut> CellsMut for OffsetCells<S> {
    #[inline]
    fn set(&mut self, index: usize, word: u64) {
        self.cells.set(self.first + index, word);
    }
}

impl<const N: usize> Cells for [u64; N] {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        Cells::get(self.as_slice(), index)
    }
}

impl<const N: usize> CellsMut for [u64; N] {
    #[inline]
    fn set(&mut self, index: usize, word: u64) {
        self.as_mut_slice().set(index, word);
    }
}

#[cfg(test)]
mod tests;
