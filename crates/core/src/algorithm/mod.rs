//! One module per algorithm, each a pure function of limit, state, now and cost.
//!
//! No algorithm needs a timer: what time restores is computed when a request comes. A bucket keeps the instant
//! at which it is full, a window its number and count, a log the instants of its requests. Each module derives
//! its state from the naive method, states its guarantee as an inequality, and says where it is a poor choice.
//!
//! [`Algorithm`] is what they have in common. A decision has two steps: [`weigh`](Algorithm::weigh) computes the
//! verdict and changes nothing, [`commit`](Algorithm::commit) writes it. So several limits can be weighed
//! before any is committed, and peeking is weighing alone.

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

/// A limit that can decide: its parameters are `self`, its state is a few words that the caller keeps.
///
/// The state of every algorithm is a fixed number of 64-bit words, so that a table, a snapshot or a test can hold any
/// of them without knowing which. Nothing here reads a clock, takes a lock, allocates or panics, whatever the words are.
///
/// There is one decision routine, [`weigh`](Self::weigh): peeking is weighing without committing, and a group of limits
/// weighs all before it commits any.
pub trait Algorithm {
    /// Identifies what one request took, so that exactly that can be refunded; [`Stamp`](crate::Stamp) for a single
    /// limit.
    type Stamp: Copy + Default + Send + Sync + 'static;

    /// Returns the number of words of the state. Constant for a given limit.
    fn words(&self) -> usize;

    /// Returns the most that passes at one instant, or in one window.
    fn capacity(&self) -> u64;

    /// Returns whether decisions use the wall clock. Otherwise the caller need not read the clock.
    fn uses_wall_clock(&self) -> bool {
        false
    }

    /// Writes the state of a new key.
    fn init<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>);

    /// Decides without changing anything.
    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict<Self::Stamp>;

    /// Applies a verdict that [`weigh`](Self::weigh) returned for this state and this instant. A refusal changes nothing, except in
    /// limits that count refused attempts.
    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict<Self::Stamp>);

    /// Refunds up to `cost` and returns how much was accepted: never above full and, for windows, only in the window in
    /// which it was taken. A stamp makes the refund exact; without one, only the current window is refunded.
    fn refund<S: CellsMut + ?Sized>(
        &self,
        state: &mut S,
        now: &Now<'_>,
        cost: Cost,
        stamp: Option<Self::Stamp>,
    ) -> Cost;

    /// Returns the state of the limit for the caller, with `retry` for another request of `cost`.
    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report;

    /// Returns how much is used up. [`Spent::NOTHING`]: the state may be forgotten without loss.
    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent;

    /// Converts a state of the parameters `own` to these parameters, so that the same amount is used up, rounded up to
    /// what they can represent. The cells must hold the larger of both states.
    ///
    /// Only for a state that these parameters can hold, with at most the capacity and the debt used: one for which
    /// [`weigh_from`](Self::weigh_from) has just admitted a request. In any other state, the amount above that would be
    /// lost.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>);

    /// [`weigh`](Self::weigh) for a state that belongs to the parameters `own`: those it was last charged under. They
    /// determine how much is used up, and the new parameters determine what fits; see "Changed parameters" in
    /// ARCHITECTURE.md.
    fn weigh_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict<Self::Stamp>;

    /// Applies a verdict that [`weigh_from`](Self::weigh_from) just gave, and returns whether the state belongs to
    /// these parameters from now on. It does if something was taken; otherwise it still belongs to `own`, and only
    /// counted refusals and the repair of a clock step were written.
    fn commit_from<S: CellsMut + ?Sized>(
        &self,
        own: &Self,
        state: &mut S,
        now: &Now<'_>,
        verdict: &Verdict<Self::Stamp>,
    ) -> bool;

    /// Decides and applies; `true` if the state belongs to these parameters from now on.
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

    /// [`report`](Self::report) for a state that belongs to the parameters `own`: the limit and what remains follow
    /// from these parameters, the waits from `own`.
    fn report_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, cost: Cost) -> Report;

    /// [`wait_behind`](Self::wait_behind) for a state that belongs to the parameters `own`. Requests ahead are not counted.
    fn wait_behind_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, cost: Cost) -> Retry {
        match self.weigh_from(own, state, now, Ask::Exactly(cost)).outcome() {
            Outcome::Allow => Retry::NOW,
            Outcome::Delay(wait) => Retry::After(wait),
            Outcome::Deny(retry) => retry,
        }
    }

    /// The fastest path of [`check`](Ask::Exactly), short enough to be inlined into callers: returns the word after taking `cost` from
    /// a state of one word, if it passes without delay. `None`: it does not apply; call [`decide`](Self::decide).
    #[inline]
    fn take_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<u64> {
        let _ = (word, now, cost);
        None
    }

    /// The counterpart of [`take_from_word`](Self::take_from_word) for a refusal that changes nothing: returns when `cost` passes.
    /// Inlined, so that the wait is computed only where a caller uses it. `None`: it does not apply; call
    /// [`decide`](Self::decide).
    #[inline]
    fn refuse_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<Retry> {
        let _ = (word, now, cost);
        None
    }

    /// Returns whether [`take_from_words`](Self::take_from_words) may apply, so that it is worth locking a state for it.
    #[inline]
    fn takes_from_words(&self) -> bool {
        false
    }

    /// [`take_from_word`](Self::take_from_word) for a state of several words, which it changes itself: returns the
    /// stamp of the charge, or `None` and changes nothing. Both ignore the spread and the given windows of `now`.
    #[inline]
    fn take_from_words<S>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Self::Stamp>
    where
        S: CellsMut + ?Sized,
    {
        let _ = (state, now, cost);
        None
    }

    /// The fast path of [`check`](Ask::Exactly): takes `cost`, or refuses and changes nothing; never delays. `None`: the fast path
    /// does not apply and nothing was changed; call [`decide`](Self::decide).
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

    /// Returns the least time that a request of `cost` has to wait after requests of `ahead` in all, if nothing else is taken or
    /// given back. A wait queue uses it to refuse a request at once that cannot meet its deadline. For the buckets it is
    /// exact, except for less than a nanosecond per request ahead.
    ///
    /// By default requests ahead are not counted: a lower bound.
    fn wait_behind<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        let _ = ahead;
        match self.weigh(state, now, Ask::Exactly(cost)).outcome() {
            Outcome::Allow => Retry::NOW,
            Outcome::Delay(wait) => Retry::After(wait),
            Outcome::Deny(retry) => retry,
        }
    }

    /// Returns, after [`Retry::OnRelease`], how long until time alone may let a request pass; `None` if it never does.
    fn recheck_after<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Option<Nanos> {
        let _ = (state, now);
        None
    }

    /// Returns whether the state is that of a new key, so that it may be forgotten.
    fn is_new<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.spent(state, now).is_nothing()
    }
}

/// The decisions of an algorithm that first computes what counts at `now`, its `current`, and then decides by that
/// alone.
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

/// How old a reading of the clock may be at a decision. A thread that is preempted between reading the clock and
/// deciding may find a state that is ahead of its reading. A state ahead by up to this length is used as it is; a
/// larger difference means that the clock stepped back.
pub(crate) const STALE: Nanos = Nanos::SECOND;

/// The words of a state, wherever they are kept.
pub trait Cells {
    /// Returns the word at `index`; zero beyond the end.
    fn get(&self, index: usize) -> u64;
}

/// Mutable words of state.
pub trait CellsMut: Cells {
    /// Sets the word at `index`; does nothing beyond the end.
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

/// A view of the words from `first` on: one limit among several, or a state after its header.
#[derive(Clone, Copy, Debug)]
pub struct Offset<S> {
    /// All words.
    pub cells: S,
    /// The index of the first word of the view.
    pub first: usize,
}

impl<S: Cells> Cells for Offset<S> {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        self.cells.get(self.first + index)
    }
}

impl<S: CellsMut> CellsMut for Offset<S> {
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
