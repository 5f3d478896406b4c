//! One bucket: its layout, its lock, and what can be done while holding it.

use tollgate_core::{Cells, CellsMut, Spent};

use super::{Arrival, Owner};
use crate::fingerprint::Fingerprint;
use crate::sync::{AtomicU64, Ordering, relax};

/// How many generations of numbers there may be at a time. A header could tell far more apart, but who keeps so many?
pub(crate) const GENERATIONS: u64 = 1 << 10;

pub(super) const LINE_WORDS: usize = 8;
const LOCKED: u64 = 1;
const SPILLED: u64 = 1 << 1;
const GENERATION_SHIFT: u32 = 2;

/// How entries are laid out in a bucket.
pub(crate) trait Shape: Copy + std::fmt::Debug {
    /// Entries in a bucket.
    fn entries(self) -> usize;
    fn entry_words(self) -> usize;
    fn bucket_words(self) -> usize;
    /// Entries to provide so that `capacity` of them find a place.
    fn entries_for(self, capacity: usize) -> usize;
}

/// Entries of single-word states: five of them and the header are exactly two cache lines. Known at compile time, because
/// this is what token buckets use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Single;

impl Shape for Single {
    #[inline]
    fn entries(self) -> usize {
        5
    }

    #[inline]
    fn entry_words(self) -> usize {
        3
    }

    #[inline]
    fn bucket_words(self) -> usize {
        2 * LINE_WORDS
    }

    /// Two thirds full.
    fn entries_for(self, capacity: usize) -> usize {
        capacity.saturating_mul(3) / 2
    }
}

/// Entries of longer states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wide {
    entry_words: usize,
}

impl Wide {
    pub(crate) fn new(state_words: usize) -> Option<Self> {
        Some(Self { entry_words: state_words.checked_add(2)? })
    }
}

impl Shape for Wide {
    #[inline]
    fn entries(self) -> usize {
        7
    }

    #[inline]
    fn entry_words(self) -> usize {
        self.entry_words
    }

    #[inline]
    fn bucket_words(self) -> usize {
        (1 + self.entries() * self.entry_words).next_multiple_of(LINE_WORDS)
    }

    /// Three quarters full: with more entries to a bucket, fewer of them stay empty.
    fn entries_for(self, capacity: usize) -> usize {
        capacity.saturating_mul(4) / 3
    }
}

/// A locked bucket; dropping it unlocks.
pub(super) struct Bucket<'t, S> {
    words: &'t [AtomicU64],
    /// What the header will be once unlocked.
    header: u64,
    pub(super) index: usize,
    shape: S,
}

impl<'t, S: Shape> Bucket<'t, S> {
    #[inline]
    pub(super) fn lock(words: &'t [AtomicU64], index: usize, shape: S) -> Self {
        let header = acquire(&words[0]).unwrap_or_else(|| wait_for(&words[0]));
        Self { words, header, index, shape }
    }

    pub(super) fn try_lock(words: &'t [AtomicU64], index: usize, shape: S) -> Option<Self> {
        let header = acquire(&words[0])?;
        Some(Self { words, header, index, shape })
    }

    #[inline]
    pub(super) fn find(&self, print: Fingerprint) -> Option<usize> {
        (0..self.shape.entries()).find(|entry| self.print(*entry) == print)
    }

    #[inline]
    pub(super) fn print(&self, entry: usize) -> Fingerprint {
        let words = self.entry(entry);
        Fingerprint { low: words[0].load(Ordering::Relaxed), high: words[1].load(Ordering::Relaxed) }
    }

    #[inline]
    pub(super) fn state(&self, entry: usize) -> State<'t> {
        State { words: &self.entry(entry)[2..] }
    }

    #[inline]
    fn entry(&self, entry: usize) -> &'t [AtomicU64] {
        &self.words[1 + entry * self.shape.entry_words()..][..self.shape.entry_words()]
    }

    pub(super) fn is_taken(&self, entry: usize) -> bool {
        self.print(entry) != Fingerprint::default()
    }

    /// Whether a key whose home this is may live in its other bucket.
    pub(super) fn has_spilled(&self) -> bool {
        self.header & SPILLED != 0
    }

    pub(super) fn set_spilled(&mut self) {
        self.header |= SPILLED;
    }

    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.header >> GENERATION_SHIFT
    }

    /// Brings all entries to the owner's generation.
    pub(super) fn convert<O: Owner>(&mut self, owner: &O) {
        let written_under = self.generation();
        if written_under == owner.generation() {
            return;
        }
        for entry in (0..self.shape.entries()).filter(|entry| self.is_taken(*entry)) {
            owner.convert(self.print(entry), &mut self.state(entry), written_under);
        }
        self.header = self.header & SPILLED | owner.generation() << GENERATION_SHIFT;
    }

    /// An entry nobody needs.
    pub(super) fn vacancy<O: Owner>(&self, owner: &O) -> Option<usize> {
        let mut entries = 0..self.shape.entries();
        let vacant = entries.clone().find(|entry| !self.is_taken(*entry));
        vacant.or_else(|| entries.find(|entry| owner.is_new(self.print(*entry), &self.state(*entry))))
    }

    pub(super) fn least_spent<O: Owner>(&self, owner: &O) -> (Spent, usize) {
        let spent = |entry| (owner.spent(self.print(entry), &self.state(entry)), entry);
        (0..self.shape.entries()).map(spent).min().unwrap_or((Spent::ALL, 0))
    }

    /// Gives the entry to `print` and has its state written.
    pub(super) fn settle<R>(
        &mut self,
        entry: usize,
        print: Fingerprint,
        write: impl FnOnce(&mut State<'_>, Arrival) -> R,
    ) -> R {
        self.set_print(entry, print);
        write(&mut self.state(entry), Arrival::New)
    }

    pub(super) fn vacate(&mut self, entry: usize) {
        self.set_print(entry, Fingerprint::default());
    }

    fn set_print(&mut self, entry: usize, print: Fingerprint) {
        let words = self.entry(entry);
        words[0].store(print.low, Ordering::Relaxed);
        words[1].store(print.high, Ordering::Relaxed);
    }
}

impl<S> Drop for Bucket<'_, S> {
    #[inline]
    fn drop(&mut self) {
        // Release: everything written under the lock is seen by whoever locks next.
        self.words[0].store(self.header, Ordering::Release);
    }
}

/// Sets the lock bit and returns the header as it was, or nothing if somebody else holds it.
#[inline]
fn acquire(word: &AtomicU64) -> Option<u64> {
    let header = word.load(Ordering::Relaxed);
    if header & LOCKED != 0 {
        return None;
    }
    // Acquire: pairs with the release of whoever unlocked last, so that its writes are seen.
    word.compare_exchange(header, header | LOCKED, Ordering::Acquire, Ordering::Relaxed).ok()
}

#[cold]
#[inline(never)]
fn wait_for(word: &AtomicU64) -> u64 {
    let mut turn = 0;
    loop {
        if let Some(header) = acquire(word) {
            return header;
        }
        relax(turn);
        turn += 1;
    }
}

/// The state of one entry, while its bucket is locked.
pub(crate) struct State<'t> {
    words: &'t [AtomicU64],
}

impl Cells for State<'_> {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        self.words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

impl CellsMut for State<'_> {
    #[inline]
    fn set(&mut self, index: usize, word: u64) {
        if let Some(cell) = self.words.get(index) {
            cell.store(word, Ordering::Relaxed);
        }
    }
}
