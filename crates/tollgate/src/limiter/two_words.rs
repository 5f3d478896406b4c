//! A two-word state with its own lock, for example the state of a token bucket of 7777/s.
//!
//! Locking takes one compare-and-swap, the same as an update of a single-word state. Unlocking is a plain store. A
//! mutex would take two read-modify-write operations, and would check for poisoning on locking and on unlocking.

use tollgate_core::{Cells, CellsMut};

use crate::sync::{AtomicU64, Ordering, spin_or_yield};

/// Two words behind a spin lock, which is held for a few nanoseconds.
pub(crate) struct TwoWords {
    lock: AtomicU64,
    words: [AtomicU64; 2],
}

const UNLOCKED: u64 = 0;
const LOCKED: u64 = 1;

/// Guard for the locked words. Dropping the guard unlocks the words.
pub(crate) struct LockedTwoWords<'a>(&'a TwoWords);

impl TwoWords {
    pub(crate) fn new(words: [u64; 2]) -> Self {
        Self { lock: AtomicU64::new(UNLOCKED), words: words.map(AtomicU64::new) }
    }

    /// Locks the words if they are unlocked.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<LockedTwoWords<'_>> {
        // Acquire: pairs with the release of the last unlock, so that this thread sees the writes made under the lock.
        self.lock.compare_exchange(UNLOCKED, LOCKED, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(LockedTwoWords(self))
    }

    pub(crate) fn lock(&self) -> LockedTwoWords<'_> {
        let mut turn = 0;
        loop {
            if let Some(locked) = self.try_lock() {
                return locked;
            }
            spin_or_yield(turn);
            turn += 1;
        }
    }

    /// Returns a copy of the words.
    pub(crate) fn load(&self) -> [u64; 2] {
        self.lock().load()
    }
}

impl LockedTwoWords<'_> {
    pub(crate) fn load(&self) -> [u64; 2] {
        [self.get(0), self.get(1)]
    }
}

impl Cells for LockedTwoWords<'_> {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        self.0.words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

impl CellsMut for LockedTwoWords<'_> {
    #[inline]
    fn set(&mut self, index: usize, word: u64) {
        if let Some(cell) = self.0.words.get(index) {
            cell.store(word, Ordering::Relaxed);
        }
    }
}

impl Drop for LockedTwoWords<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: the next thread to lock sees everything written under the lock.
        self.0.lock.store(UNLOCKED, Ordering::Release);
    }
}
