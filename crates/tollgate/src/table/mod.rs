//! The table of [`Keyed`](crate::Keyed) and [`Ledger`](crate::ledger::Ledger): a bucketized cuckoo hash table of fixed
//! size.
//!
//! A growing hash map must move all its entries at some point, and a map with expiry must search for expired entries.
//! Moving and searching cause pauses. This table is allocated once for a fixed number of keys, and a decision on one
//! key touches at most about a hundred buckets.
//!
//! ```text
//!            ┌──────────┬────────────────┬────────────────┬─────┐
//!  bucket →  │  header  │ entry 0        │ entry 1        │ ... │   one cache line for single-word states
//!            └──────────┴────────────────┴────────────────┴─────┘
//!               │            └ fingerprint, state
//!               └ lock, spilled, generations
//! ```
//!
//! A key is in one of two buckets, both computed from its fingerprint. It is in its *other* bucket if its *home* bucket
//! was full when the key arrived, or if its entry was displaced. The home bucket is then marked as *spilled*. Finding a
//! key in its home bucket touches one bucket. `insert.rs` explains how a key gets an entry if its buckets are full.
//! With two buckets per key and two displacements, nearly every key up to the capacity gets an entry. A large table of
//! single-word states takes 38 bytes per key.
//!
//! There is no clean-up. An entry in which nothing is used counts as vacant, and the next key that needs an entry
//! overwrites it. If no entry is vacant, the least used entry is evicted, unless it has used more than the arriving
//! key.
//!
//! The words are atomics only so that threads can share them without unsafe code. Except for prefetching and checks for
//! untouched buckets, a bucket's words are accessed only under its lock, which is a bit in the header and is held for a
//! few nanoseconds. So only accesses to the header are ordered: the acquire on locking pairs with the release on
//! unlocking. All other accesses are relaxed; only a walk needs fences.

mod batch;
mod bucket;
mod group;
mod insert;

use tollgate_core::Spent;

use crate::fingerprint::Fingerprint;
use crate::sync::{AtomicU64, Ordering, fence, zeroed};

pub(crate) use batch::BATCH_SIZE;
use bucket::{Bucket, LINE_WORDS, SingleWordLayout};
pub(crate) use bucket::{BucketLayout, LockedEntry, MAX_GENERATIONS, State, WideLayout};
pub(crate) use group::{LockedGroup, TryLockedGroup};
#[cfg(test)]
pub(crate) use positions::{EntryPosition, positions};

/// Reads states at one instant, each under its own parameters.
pub(crate) trait StateReader {
    /// Returns the generation of the current parameters, below [`MAX_GENERATIONS`].
    fn generation(&self) -> u64;
    /// Returns whether nothing is used in the state, so that the key can be forgotten.
    fn is_unused(&self, fingerprint: Fingerprint, entry: &LockedEntry<'_>) -> bool;
    /// Returns the used fraction of the entry's limit.
    fn spent(&self, fingerprint: Fingerprint, entry: &LockedEntry<'_>) -> Spent;
}

/// Whether the table had an entry for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Known,
    New,
}

/// A table whose buckets have one layout.
#[derive(Debug)]
pub(crate) enum Table {
    SingleWord(Buckets<SingleWordLayout>),
    /// States of two words, such as the states of token buckets with an arbitrary rate.
    Double(Buckets<WideLayout<2>>),
    Wide(Buckets<WideLayout>),
}

/// Runs the same code for every bucket layout.
macro_rules! with_buckets {
    ($table:expr, $buckets:ident => $run:expr) => {
        match $table {
            $crate::table::Table::SingleWord($buckets) => $run,
            $crate::table::Table::Double($buckets) => $run,
            $crate::table::Table::Wide($buckets) => $run,
        }
    };
}
pub(crate) use with_buckets;

impl Table {
    /// Allocates a table for `capacity` keys with states of `state_words` words; `None` if there is not enough memory.
    pub(crate) fn new(capacity: usize, state_words: usize) -> Option<Self> {
        match state_words {
            1 => Buckets::new(capacity, SingleWordLayout).map(Self::SingleWord),
            2 => Buckets::new(capacity, WideLayout::new(2)?).map(Self::Double),
            _ => Buckets::new(capacity, WideLayout::new(state_words)?).map(Self::Wide),
        }
    }

    /// Returns the length of a state in words.
    pub(crate) fn state_words(&self) -> usize {
        with_buckets!(self, buckets => buckets.state_words())
    }

    /// Returns the size of the table in bytes, including pages that were never touched.
    pub(crate) fn bytes(&self) -> usize {
        with_buckets!(self, buckets => buckets.bytes())
    }

    /// Returns the header flags that the fast paths expect: the bucket is unlocked, and all its entries belong to
    /// `generation`.
    pub(crate) fn flags(&self, generation: u64) -> u64 {
        with_buckets!(self, buckets => buckets.layout.flags(generation))
    }

    /// See [`Buckets::prefetch_home`].
    #[inline(always)]
    pub(crate) fn prefetch_home(&self, fingerprint: Fingerprint) -> usize {
        with_buckets!(self, buckets => buckets.prefetch_home(fingerprint))
    }

    /// See [`Buckets::try_visit_many`].
    #[inline]
    pub(crate) fn try_visit_many(
        &self,
        fingerprints: &[Fingerprint],
        buckets: &mut [usize; BATCH_SIZE],
        flags: u64,
        visit: impl FnMut(usize, Option<&mut State<'_>>),
    ) {
        with_buckets!(self, own => own.try_visit_many(fingerprints, buckets, flags, visit));
    }

    /// The fast path: runs `write` on the state of a key that has an entry in unlocked buckets with these
    /// [`flags`](Self::flags). `None`: take the slow path.
    #[inline]
    pub(crate) fn try_visit_known<R>(
        &self,
        fingerprint: Fingerprint,
        flags: u64,
        write: impl FnOnce(&mut State<'_>) -> R,
    ) -> Option<R> {
        with_buckets!(self, buckets => buckets.try_visit_known(fingerprint, flags, write))
    }

    /// Runs `read` on the entry of `fingerprint`, if the key has an entry. Nothing is inserted or moved.
    pub(crate) fn find<O: StateReader, R>(
        &self,
        fingerprint: Fingerprint,
        reader: &O,
        read: impl FnOnce(&mut LockedEntry<'_>) -> R,
    ) -> Option<R> {
        with_buckets!(self, buckets => buckets.find(fingerprint, reader, read))
    }

    /// Runs `write` on the entry of `fingerprint`, which is inserted if necessary. `write` must set all words of a new
    /// entry. A new key may evict an entry whose used fraction is at most `arrival`. `None`: no entry is available for
    /// the key.
    pub(crate) fn upsert<O: StateReader, R>(
        &self,
        fingerprint: Fingerprint,
        reader: &O,
        arrival: Spent,
        write: impl FnOnce(&mut LockedEntry<'_>, Presence) -> R,
    ) -> Option<R> {
        with_buckets!(self, buckets => buckets.upsert(fingerprint, reader, arrival, write))
    }

    /// Runs `each` on every entry, bucket by bucket. No other thread may be using the table.
    pub(crate) fn for_each<R: StateReader>(&self, reader: &R, each: impl FnMut(Fingerprint, &mut LockedEntry<'_>)) {
        with_buckets!(self, buckets => buckets.for_each(reader, each));
    }

    /// Runs `each` on every entry, bucket by bucket. All buckets that were ever used stay locked, so that the fast
    /// paths no longer apply. Afterwards, threads may access this table only on the fast paths.
    pub(crate) fn visit_all_and_stay_locked<R: StateReader>(
        &self,
        reader: &R,
        each: impl FnMut(Fingerprint, &mut LockedEntry<'_>),
    ) {
        with_buckets!(self, buckets => buckets.visit_all_and_stay_locked(reader, each));
    }

    /// Returns the number of buckets.
    pub(crate) fn bucket_count(&self) -> usize {
        with_buckets!(self, buckets => buckets.buckets)
    }

    /// See [`Buckets::estimate_count`].
    pub(crate) fn estimate_count<R: StateReader>(
        &self,
        max_buckets: usize,
        reader: impl FnMut() -> R,
        is_counted: impl FnMut(&R, Fingerprint, &mut LockedEntry<'_>) -> bool,
    ) -> u64 {
        with_buckets!(self, buckets => buckets.estimate_count(max_buckets, reader, is_counted))
    }

    /// Begins a walk through the table, which other threads may use concurrently. Only one walk at a time is allowed.
    pub(crate) fn walk(&self) -> Walk<'_> {
        Walk { table: self, _end: with_buckets!(self, buckets => buckets.walk_guard()) }
    }
}

/// A walk from the first bucket to the last. An entry that stays in the table is visited at least once, because no
/// entry moves from a bucket that the walk has not reached to a bucket that it has passed.
pub(crate) struct Walk<'t> {
    table: &'t Table,
    _end: WalkGuard<'t>,
}

/// A guard that ends a walk when it is dropped.
pub(crate) struct WalkGuard<'t>(&'t AtomicU64);

impl Walk<'_> {
    /// Locks the bucket at `index` and runs `each` on its entries. Calls must be in index order.
    pub(crate) fn visit<R: StateReader>(
        &self,
        index: usize,
        reader: &R,
        each: impl FnMut(Fingerprint, &mut LockedEntry<'_>),
    ) {
        with_buckets!(self.table, buckets => buckets.visit(index, reader, each));
    }
}

impl Drop for WalkGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

pub(crate) struct Buckets<S> {
    words: Box<[AtomicU64]>,
    /// The index of the first word that starts a cache line.
    first_aligned_word: usize,
    buckets: usize,
    layout: S,
    /// Failed searches for an entry to displace since the last success. The count is only a hint, so accesses are
    /// relaxed, and lost updates are harmless.
    failed_searches: AtomicU64,
    /// Number of buckets that the walk has passed; zero without a walk. The walk updates it under the lock of the
    /// bucket, so a thread that locks that bucket later sees the update. [`visit`](Self::visit) does not lock untouched
    /// buckets, and uses a fence instead.
    buckets_walked: AtomicU64,
}

impl<S: BucketLayout> Buckets<S> {
    pub(crate) fn new(capacity: usize, layout: S) -> Option<Self> {
        let buckets = layout.entries_for(capacity).div_ceil(layout.entries()).max(2);
        let len = buckets.checked_mul(layout.bucket_words())?.checked_add(LINE_WORDS - 1)?;
        if len > isize::MAX as usize / size_of::<u64>() {
            return None;
        }
        let words = zeroed(len)?;
        let first_aligned_word = words.as_ptr().align_offset(LINE_WORDS * size_of::<u64>()).min(LINE_WORDS - 1);
        Some(Self {
            words,
            first_aligned_word,
            buckets,
            layout,
            failed_searches: AtomicU64::new(0),
            buckets_walked: AtomicU64::new(0),
        })
    }

    pub(crate) fn state_words(&self) -> usize {
        self.layout.state_words()
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// The fastest path: runs `visit` on the state of a key in its home bucket, if that bucket is unlocked and has
    /// these [`flags`](Table::flags). `None`: this path does not apply, or `visit` returned `None`; take the next path.
    ///
    /// Most decisions need nothing else. The rare cases (the other bucket, a new key, other parameters) are not
    /// inlined, so they do not lengthen the caller's machine code.
    #[inline(always)]
    pub(crate) fn try_visit_home<R>(
        &self,
        fingerprint: Fingerprint,
        flags: u64,
        visit: impl FnOnce(&mut State<'_>) -> Option<R>,
    ) -> Option<R> {
        let index = self.home_of(fingerprint);
        let words = self.words_of(index);
        Bucket::prefetch(words, self.layout, fingerprint);
        let bucket = Bucket::lock_at(flags, words, index, self.layout)?;
        visit(&mut bucket.state(bucket.find(fingerprint)?))
    }

    #[inline]
    fn try_visit_known<R>(
        &self,
        fingerprint: Fingerprint,
        flags: u64,
        write: impl FnOnce(&mut State<'_>) -> R,
    ) -> Option<R> {
        let index = self.home_of(fingerprint);
        let home = Bucket::lock_at(flags, self.words_of(index), index, self.layout)?;
        if let Some(entry) = home.find(fingerprint) {
            return Some(write(&mut home.state(entry)));
        }
        if !home.has_spilled() {
            return None;
        }
        // The home bucket stays locked, so that the entry cannot move there.
        let index = self.other_of(fingerprint);
        let other = Bucket::lock_at(flags, self.words_of(index), index, self.layout)?;
        let entry = other.find(fingerprint)?;
        Some(write(&mut other.state(entry)))
    }

    pub(crate) fn find<O: StateReader, R>(
        &self,
        fingerprint: Fingerprint,
        reader: &O,
        read: impl FnOnce(&mut LockedEntry<'_>) -> R,
    ) -> Option<R> {
        let mut home = self.lock(self.home_of(fingerprint), reader);
        if let Some(entry) = home.find(fingerprint) {
            return Some(home.visit(entry, read));
        }
        if !home.has_spilled() {
            return None;
        }
        drop(home);
        // Locks both buckets, so that an entry that moves between them is not missed.
        let (mut home, mut other) = self.lock_both(fingerprint, reader);
        let (bucket, entry) = [&mut home, &mut other]
            .into_iter()
            .find_map(|bucket| bucket.find(fingerprint).map(|entry| (bucket, entry)))?;
        Some(bucket.visit(entry, read))
    }

    pub(crate) fn for_each<R: StateReader>(&self, reader: &R, mut each: impl FnMut(Fingerprint, &mut LockedEntry<'_>)) {
        (0..self.buckets).for_each(|index| self.visit(index, reader, &mut each));
        self.buckets_walked.store(0, Ordering::Relaxed);
    }

    fn visit_all_and_stay_locked<R: StateReader>(
        &self,
        reader: &R,
        mut each: impl FnMut(Fingerprint, &mut LockedEntry<'_>),
    ) {
        // The fast paths find no entries in an untouched bucket, and never insert entries.
        for index in (0..self.buckets).filter(|index| !self.is_untouched(*index)) {
            let mut bucket = self.lock(index, reader);
            bucket.visit_all(&mut each);
            bucket.stay_locked();
        }
    }

    /// Returns the number of buckets.
    pub(crate) fn bucket_count(&self) -> usize {
        self.buckets
    }

    /// Returns a guard that ends a walk of [`visit`](Self::visit) calls when it is dropped. Only one walk at a time is
    /// allowed.
    pub(crate) fn walk_guard(&self) -> WalkGuard<'_> {
        WalkGuard(&self.buckets_walked)
    }

    /// Locks the bucket at `index` and runs `each` on its entries. Calls must be in index order.
    pub(crate) fn visit<R: StateReader>(
        &self,
        index: usize,
        reader: &R,
        each: impl FnMut(Fingerprint, &mut LockedEntry<'_>),
    ) {
        if self.is_untouched(index) {
            // Locking is a write, and the first write to a page allocates memory. So instead of locking, the walk
            // stores its position, then checks the bucket again. A thread that moves an entry to this bucket either
            // sees the position (`insert.rs`), or this check sees the entry.
            self.buckets_walked.store(index as u64 + 1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.is_untouched(index) {
                return;
            }
        }
        let mut bucket = self.lock(index, reader);
        bucket.visit_all(each);
        self.buckets_walked.store(index as u64 + 1, Ordering::Relaxed);
    }

    /// Returns the number of entries for which `is_counted` holds. Other threads may use the table concurrently. Reads
    /// at most `max_buckets` evenly spaced buckets and scales the result. A sample suffices, because fingerprints
    /// distribute keys evenly.
    pub(crate) fn estimate_count<R: StateReader>(
        &self,
        max_buckets: usize,
        mut reader: impl FnMut() -> R,
        mut is_counted: impl FnMut(&R, Fingerprint, &mut LockedEntry<'_>) -> bool,
    ) -> u64 {
        let step = self.buckets.div_ceil(max_buckets.max(1)).max(1);
        let (mut counted, mut visited) = (0_u64, 0_u64);
        for index in (0..self.buckets).step_by(step) {
            visited += 1;
            // Locking is a write, and the first write to a page allocates memory.
            if self.is_untouched(index) {
                continue;
            }
            let reader = reader();
            let count = |fingerprint: Fingerprint, entry: &mut LockedEntry<'_>| {
                counted += u64::from(is_counted(&reader, fingerprint, entry));
            };
            self.lock(index, &reader).visit_all(count);
        }
        (u128::from(counted) * self.buckets as u128 / u128::from(visited.max(1))) as u64
    }

    /// Returns whether the first cache line of a bucket was never written. An untouched bucket has no entries.
    fn is_untouched(&self, index: usize) -> bool {
        self.words_of(index)[..LINE_WORDS].iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    #[inline(always)]
    fn home_of(&self, fingerprint: Fingerprint) -> usize {
        scale_to(fingerprint.low, self.buckets)
    }

    /// Returns the other bucket of a key, which is never its home bucket.
    fn other_of(&self, fingerprint: Fingerprint) -> usize {
        let further = self.home_of(fingerprint) + 1 + scale_to(fingerprint.low.rotate_left(32), self.buckets - 1);
        if further < self.buckets { further } else { further - self.buckets }
    }

    #[inline(always)]
    fn words_of(&self, index: usize) -> &[AtomicU64] {
        &self.words[self.first_aligned_word + index * self.layout.bucket_words()..][..self.layout.bucket_words()]
    }

    /// Locks the bucket, and vacates unused entries of earlier generations.
    fn lock<R: StateReader>(&self, index: usize, reader: &R) -> Bucket<'_, S> {
        let mut bucket = Bucket::lock(self.words_of(index), index, self.layout);
        bucket.vacate_unneeded(reader);
        bucket
    }

    /// Like [`lock`](Self::lock), but returns `None` instead of waiting, for threads that hold another lock and must
    /// not wait out of order.
    fn try_lock<R: StateReader>(&self, index: usize, reader: &R) -> Option<Bucket<'_, S>> {
        let mut bucket = Bucket::try_lock(self.words_of(index), index, self.layout)?;
        bucket.vacate_unneeded(reader);
        Some(bucket)
    }

    /// Locks both buckets of a key, in index order.
    fn lock_both<R: StateReader>(&self, fingerprint: Fingerprint, reader: &R) -> (Bucket<'_, S>, Bucket<'_, S>) {
        let (home, other) = (self.home_of(fingerprint), self.other_of(fingerprint));
        let low = self.lock(home.min(other), reader);
        let high = self.lock(home.max(other), reader);
        if home < other { (low, high) } else { (high, low) }
    }
}

impl<S: BucketLayout> std::fmt::Debug for Buckets<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buckets").field("buckets", &self.buckets).field("layout", &self.layout).finish_non_exhaustive()
    }
}

/// Scales `number`, a fraction of 2⁶⁴, to the same fraction of `count`.
#[inline]
fn scale_to(number: u64, count: usize) -> usize {
    ((u128::from(number) * count as u128) >> 64) as usize
}

#[cfg(test)]
mod positions;
