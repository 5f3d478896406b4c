//! The memory under [`Keyed`](crate::Keyed): a fixed number of entries, each a fingerprint and a few words of state.
//!
//! ```text
//!            ┌──────────┬────────────────┬────────────────┬─────┐
//!  bucket →  │  header  │ entry 0        │ entry 1        │ ... │   one cache line for single-word states
//!            └──────────┴────────────────┴────────────────┴─────┘
//!               │            └ fingerprint, state
//!               └ lock, spilled, generations
//! ```
//!
//! A key lives in one of two buckets, both told by its fingerprint: at home, or in the other one if home was full when it
//! came, and then home is marked as *spilled*. Finding a key that is at home touches one bucket. If both are full, an
//! entry in them moves to its own other bucket, where another may move on. With two choices and two moves a table holds the
//! keys it was made for, at 38 bytes each.
//!
//! Nothing is ever cleaned up. An entry that is as good as new says the same as no entry, so it counts as vacant. Where
//! everything is in use, the least spent entry of both buckets gives way, but never to a newcomer that is less spent: a
//! flood of made-up keys washes out other made-up keys and nobody else.
//!
//! The words are atomics only so that they can be shared without unsafe code. A bucket's words are read and written by
//! whoever holds its lock, a bit in the header, for a few nanoseconds: every access but the header's is relaxed, and
//! the header's acquire on locking pairs with its release on unlocking.

mod batch;
mod bucket;
mod group;
mod room;

use tollgate_core::{Cells, CellsMut, Spent};

use crate::fingerprint::Fingerprint;
use crate::sync::{AtomicU64, Ordering, zeroed};

pub(crate) use batch::BATCH;
use bucket::{Bucket, LINE_WORDS, Shape, Single};
pub(crate) use bucket::{GENERATIONS, Slot, State, Wide};
pub(crate) use group::{Group, Place};
#[cfg(test)]
pub(crate) use places::Placed;

/// Who the entries belong to: knows what their state means at this instant.
pub(crate) trait Owner {
    /// The generation of parameters in force, below [`GENERATIONS`].
    fn generation(&self) -> u64;
    /// Whether the entry says no more than no entry would, under the parameters that it belongs to.
    fn is_new(&self, print: Fingerprint, slot: &Slot<'_>) -> bool;
    /// How much of the limit that it belongs to the entry has used up.
    fn spent(&self, print: Fingerprint, slot: &Slot<'_>) -> Spent;
}

/// Whether an entry was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Known,
    New,
}

/// A table of entries of either shape.
#[derive(Debug)]
pub(crate) enum Table {
    Single(Buckets<Single>),
    Wide(Buckets<Wide>),
}

/// Runs the same code for whichever shape it is.
macro_rules! either {
    ($table:expr, $buckets:ident => $run:expr) => {
        match $table {
            Table::Single($buckets) => $run,
            Table::Wide($buckets) => $run,
        }
    };
}

impl Table {
    /// Room for `capacity` entries of `state_words` each; `None` if that is more memory than there is.
    pub(crate) fn new(capacity: usize, state_words: usize) -> Option<Self> {
        match state_words {
            1 => Buckets::new(capacity, Single).map(Self::Single),
            _ => Buckets::new(capacity, Wide::new(state_words)?).map(Self::Wide),
        }
    }

    /// How many words of state an entry has room for.
    pub(crate) fn state_words(&self) -> usize {
        either!(self, buckets => buckets.state_words())
    }

    /// The memory the table takes once all of it is used.
    pub(crate) fn bytes(&self) -> usize {
        either!(self, buckets => buckets.bytes())
    }

    /// What [`try_take_fast`](Self::try_take_fast) and its like expect of buckets whose entries all belong to `generation`.
    pub(crate) fn flags(&self, generation: u64) -> u64 {
        either!(self, buckets => buckets.shape.flags(generation))
    }

    /// See [`Buckets::try_home_many`].
    #[inline]
    pub(crate) fn try_home_many(
        &self,
        prints: &[Fingerprint],
        flags: u64,
        visit: impl FnMut(usize, Option<&mut State<'_>>),
    ) {
        either!(self, buckets => buckets.try_home_many(prints, flags, visit));
    }

    /// The fastest path: replaces a state that is a single word by what `take` makes of it, for a key that is at home, in a bucket
    /// with these [`flags`](Self::flags). `false`: it does not apply, take the next path.
    ///
    /// This is all that most decisions need. What is left out (looking elsewhere, arriving, moving, other parameters) is left
    /// out of the caller's machine code too, and need not be set up for.
    #[inline(always)]
    pub(crate) fn try_take_fast(&self, print: Fingerprint, flags: u64, take: impl FnOnce(u64) -> Option<u64>) -> bool {
        match self {
            Self::Single(buckets) => buckets.try_take_fast(print, flags, take),
            Self::Wide(_) => false,
        }
    }

    /// The fast path: runs `write` on the state of a key that is there, in buckets with these [`flags`](Self::flags). `None`: it
    /// does not apply, take the slow path.
    #[inline]
    pub(crate) fn known<R>(
        &self,
        print: Fingerprint,
        flags: u64,
        write: impl FnOnce(&mut State<'_>) -> R,
    ) -> Option<R> {
        either!(self, buckets => buckets.known(print, flags, write))
    }

    /// Runs `read` on the state of `print`, if there is one. Nothing is inserted or moved.
    pub(crate) fn find<O: Owner, R>(
        &self,
        print: Fingerprint,
        owner: &O,
        read: impl FnOnce(&mut Slot<'_>) -> R,
    ) -> Option<R> {
        either!(self, buckets => buckets.find(print, owner, read))
    }

    /// Runs `write` on the state of `print`, with whether it is a new entry whose words must be set first. A newcomer
    /// that finds everything taken replaces an entry that is spent no more than `newcomer`; `None` if there is none.
    pub(crate) fn enter<O: Owner, R>(
        &self,
        print: Fingerprint,
        owner: &O,
        newcomer: Spent,
        write: impl FnOnce(&mut Slot<'_>, Arrival) -> R,
    ) -> Option<R> {
        either!(self, buckets => buckets.enter(print, owner, newcomer, write))
    }

    /// Runs `each` on every entry, bucket by bucket. Nobody else may be using the table.
    pub(crate) fn for_each<O: Owner>(&self, owner: &O, each: impl FnMut(Fingerprint, &mut Slot<'_>)) {
        either!(self, buckets => buckets.for_each(owner, each));
    }

    /// How many buckets there are.
    pub(crate) fn buckets(&self) -> usize {
        either!(self, buckets => buckets.buckets)
    }

    /// Begins a walk through the table while others use it. Only one may be under way.
    pub(crate) fn walk(&self) -> Walk<'_> {
        Walk { table: self }
    }
}

/// A walk from the first bucket to the last, during which every entry that stays in the table is met at least once: none moves
/// from ahead of the walk to behind it.
pub(crate) struct Walk<'t> {
    table: &'t Table,
}

impl Walk<'_> {
    /// Runs `each` on the entries of the bucket at `index`, the one after that of the last time, while it is locked.
    pub(crate) fn visit<O: Owner>(&self, index: usize, owner: &O, each: impl FnMut(Fingerprint, &mut Slot<'_>)) {
        either!(self.table, buckets => buckets.visit(index, owner, each));
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        either!(self.table, buckets => buckets.walked.store(0, Ordering::Relaxed));
    }
}

pub(crate) struct Buckets<S> {
    words: Box<[AtomicU64]>,
    /// Words before the first that starts a cache line.
    first: usize,
    buckets: usize,
    shape: S,
    /// How many searches for room found none since the last that did. It is only a hint, so nothing is ordered by it and a
    /// count lost in a race does no harm.
    failed_searches: AtomicU64,
    /// How many buckets, from the first on, a walk has been through. It is written by the walk while it holds the last of these,
    /// so whoever locks one of them afterwards knows that the walk was there. Zero when there is none.
    walked: AtomicU64,
}

impl<S: Shape> Buckets<S> {
    pub(crate) fn new(capacity: usize, shape: S) -> Option<Self> {
        let buckets = shape.entries_for(capacity).div_ceil(shape.entries()).max(2);
        let len = buckets.checked_mul(shape.bucket_words())?.checked_add(LINE_WORDS - 1)?;
        if len > isize::MAX as usize / size_of::<u64>() {
            return None;
        }
        let words = zeroed(len)?;
        let first = words.as_ptr().align_offset(LINE_WORDS * size_of::<u64>()).min(LINE_WORDS - 1);
        Some(Self { words, first, buckets, shape, failed_searches: AtomicU64::new(0), walked: AtomicU64::new(0) })
    }

    pub(crate) fn state_words(&self) -> usize {
        self.shape.state_words()
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    #[inline(always)]
    fn try_take_fast(&self, print: Fingerprint, flags: u64, take: impl FnOnce(u64) -> Option<u64>) -> bool {
        let index = self.home(print);
        let Some(home) = Bucket::lock_at(flags, self.words_of(index), index, self.shape) else { return false };
        let Some(entry) = home.find(print) else { return false };
        let mut state = home.state(entry);
        let Some(word) = take(state.get(0)) else { return false };
        state.set(0, word);
        true
    }

    #[inline]
    fn known<R>(&self, print: Fingerprint, flags: u64, write: impl FnOnce(&mut State<'_>) -> R) -> Option<R> {
        let index = self.home(print);
        let home = Bucket::lock_at(flags, self.words_of(index), index, self.shape)?;
        if let Some(entry) = home.find(print) {
            return Some(write(&mut home.state(entry)));
        }
        if !home.has_spilled() {
            return None;
        }
        // Home stays locked, so that the entry cannot move there in the meantime.
        let index = self.other(print);
        let other = Bucket::lock_at(flags, self.words_of(index), index, self.shape)?;
        let entry = other.find(print)?;
        Some(write(&mut other.state(entry)))
    }

    pub(crate) fn find<O: Owner, R>(
        &self,
        print: Fingerprint,
        owner: &O,
        read: impl FnOnce(&mut Slot<'_>) -> R,
    ) -> Option<R> {
        let mut home = self.lock(self.home(print), owner);
        if let Some(entry) = home.find(print) {
            return Some(home.visit(entry, read));
        }
        if !home.has_spilled() {
            return None;
        }
        drop(home);
        // Both at once: an entry that is being moved must not be missed in one because it is just reaching the other.
        let (mut home, mut other) = self.lock_both(print, owner);
        let (bucket, entry) =
            [&mut home, &mut other].into_iter().find_map(|bucket| bucket.find(print).map(|entry| (bucket, entry)))?;
        Some(bucket.visit(entry, read))
    }

    pub(crate) fn for_each<O: Owner>(&self, owner: &O, mut each: impl FnMut(Fingerprint, &mut Slot<'_>)) {
        (0..self.buckets).for_each(|index| self.visit(index, owner, &mut each));
        self.walked.store(0, Ordering::Relaxed);
    }

    fn visit<O: Owner>(&self, index: usize, owner: &O, mut each: impl FnMut(Fingerprint, &mut Slot<'_>)) {
        let mut bucket = self.lock(index, owner);
        for entry in 0..self.shape.entries() {
            if bucket.is_taken(entry) {
                let print = bucket.print(entry);
                bucket.visit(entry, |slot| each(print, slot));
            }
        }
        self.walked.store(index as u64 + 1, Ordering::Relaxed);
    }

    #[inline(always)]
    fn home(&self, print: Fingerprint) -> usize {
        scale(print.low, self.buckets)
    }

    /// Any bucket but home.
    fn other(&self, print: Fingerprint) -> usize {
        let further = self.home(print) + 1 + scale(print.low.rotate_left(32), self.buckets - 1);
        if further < self.buckets { further } else { further - self.buckets }
    }

    #[inline(always)]
    fn words_of(&self, index: usize) -> &[AtomicU64] {
        &self.words[self.first + index * self.shape.bucket_words()..][..self.shape.bucket_words()]
    }

    /// Locks the bucket, and forgets entries of earlier generations that are as good as new.
    fn lock<O: Owner>(&self, index: usize, owner: &O) -> Bucket<'_, S> {
        let mut bucket = Bucket::lock(self.words_of(index), index, self.shape);
        bucket.tidy(owner);
        bucket
    }

    /// The same, if nobody else holds it: for who already holds another, and would wait out of order.
    fn try_lock<O: Owner>(&self, index: usize, owner: &O) -> Option<Bucket<'_, S>> {
        let mut bucket = Bucket::try_lock(self.words_of(index), index, self.shape)?;
        bucket.tidy(owner);
        Some(bucket)
    }

    /// Both buckets of a key, the lower one locked first as everybody does.
    fn lock_both<O: Owner>(&self, print: Fingerprint, owner: &O) -> (Bucket<'_, S>, Bucket<'_, S>) {
        let (home, other) = (self.home(print), self.other(print));
        let low = self.lock(home.min(other), owner);
        let high = self.lock(home.max(other), owner);
        if home < other { (low, high) } else { (high, low) }
    }
}

impl<S: Shape> std::fmt::Debug for Buckets<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buckets").field("buckets", &self.buckets).field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// `number` of 2⁶⁴, as the same part of `count`.
#[inline]
fn scale(number: u64, count: usize) -> usize {
    ((u128::from(number) * count as u128) >> 64) as usize
}

#[cfg(test)]
mod places;
