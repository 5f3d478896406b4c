//! One bucket: its layout, its lock, and the operations under the lock.

use tollgate_core::{Algorithm, Cells, CellsMut, Cost, Now, Spent};

use super::{Presence, StateReader};
use crate::fingerprint::Fingerprint;
use crate::sync::{AtomicU64, Ordering, prefetch, spin_or_yield};

/// Maximum number of parameter generations at a time. A generation has ten bits in the header, and the last value is
/// [`MIXED_GENERATIONS`].
pub(crate) const MAX_GENERATIONS: u64 = MIXED_GENERATIONS;
const GENERATION_BITS: u32 = 10;
/// Marks a [`WideLayout`] bucket whose entries belong to several generations; its header has only one generation field.
const MIXED_GENERATIONS: u64 = (1 << GENERATION_BITS) - 1;

pub(super) const LINE_WORDS: usize = 8;
const LOCKED_BIT: u64 = 1;
const SPILLED_BIT: u64 = 1 << 1;
const GENERATION_SHIFT: u32 = 2;
/// The lower half of the header; the upper half may hold part of a fingerprint.
const FLAGS_MASK: u64 = u32::MAX as u64;

/// How entries are laid out in a bucket. Word 0 is the header.
pub(crate) trait BucketLayout: Copy + std::fmt::Debug {
    /// Returns the number of entries in a bucket.
    fn entries(self) -> usize;
    /// Returns the number of state words in an entry.
    fn state_words(self) -> usize;
    fn bucket_words(self) -> usize;
    /// Returns the number of entries to allocate, so that nearly all of `capacity` keys get an entry.
    fn entries_for(self, capacity: usize) -> usize;
    /// Returns the index of the word with the lower part of an entry's fingerprint.
    fn low_fingerprint_word(self, entry: usize) -> usize;
    /// Returns the index of the word with the upper part of the fingerprint, and its bit position in that word.
    fn high_fingerprint_word(self, entry: usize) -> (usize, u32);
    /// Returns the preferred entry of a key: the key gets this entry if it is vacant, and a search reads it first.
    /// `None` if a bucket is a single cache line.
    fn preferred_entry(self, fingerprint: Fingerprint) -> Option<usize>;
    /// Returns the index of the first word of an entry's state.
    fn first_state_word(self, entry: usize) -> usize;
    /// Returns the flags of an unlocked bucket whose entries all belong to `generation`.
    fn flags(self, generation: u64) -> u64;
    /// Returns the generation of an entry.
    fn generation(self, header: u64, words: &[AtomicU64], entry: usize) -> u64;
    /// Sets the generation of an entry, and returns the new header.
    fn set_generation(self, header: u64, words: &[AtomicU64], entry: usize, generation: u64) -> u64;
}

/// Single-word states, such as the states of token buckets: three entries per bucket of one cache line. A separate
/// type, so that the layout is known at compile time.
///
/// ```text
///  header high₀ │ high₁ high₂ │ low₀ │ low₁ │ low₂ │ state₀ │ state₁ │ state₂
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct SingleWordLayout;

impl BucketLayout for SingleWordLayout {
    #[inline]
    fn entries(self) -> usize {
        3
    }

    #[inline]
    fn state_words(self) -> usize {
        1
    }

    #[inline]
    fn bucket_words(self) -> usize {
        LINE_WORDS
    }

    /// Uses a load factor of 5/9, which takes 38.4 bytes per key. A small table has a load factor of 1/3, which costs
    /// little memory, and places nearly every key in its home bucket.
    fn entries_for(self, capacity: usize) -> usize {
        const SMALL_CAPACITY: usize = 1 << 16;
        if capacity <= SMALL_CAPACITY { capacity * 3 } else { (capacity.saturating_mul(9) / 5).max(SMALL_CAPACITY * 3) }
    }

    #[inline]
    fn low_fingerprint_word(self, entry: usize) -> usize {
        2 + entry
    }

    #[inline]
    fn high_fingerprint_word(self, entry: usize) -> (usize, u32) {
        let half = 1 + entry;
        (half / 2, 32 * (half as u32 % 2))
    }

    #[inline]
    fn preferred_entry(self, _: Fingerprint) -> Option<usize> {
        None
    }

    #[inline]
    fn first_state_word(self, entry: usize) -> usize {
        5 + entry
    }

    fn flags(self, generation: u64) -> u64 {
        (0..self.entries()).fold(0, |flags, entry| flags | generation << generation_shift_of(entry))
    }

    fn generation(self, header: u64, _: &[AtomicU64], entry: usize) -> u64 {
        header >> generation_shift_of(entry) & MIXED_GENERATIONS
    }

    fn set_generation(self, header: u64, _: &[AtomicU64], entry: usize, generation: u64) -> u64 {
        header & !(MIXED_GENERATIONS << generation_shift_of(entry)) | generation << generation_shift_of(entry)
    }
}

/// Returns the bit position of an entry's generation in the header: three fields of ten bits, after the two flags.
const fn generation_shift_of(entry: usize) -> u32 {
    GENERATION_SHIFT + GENERATION_BITS * entry as u32
}

/// Longer states: seven entries per bucket of several cache lines. The lower parts of all fingerprints are in the first
/// line, so a search fetches only that line and the entry's line. A key takes its preferred entry if that entry is
/// vacant, which is true for two thirds of the keys in a full table. A search fetches the lines of that entry
/// concurrently with the first line. With a million keys, this prefetch reduces the CPU time of a decision on a 7777/s
/// token bucket to 82 %.
///
/// ```text
///  header │ low₀ │ … │ low₆ ║ high₀ │ state₀ … │ high₁ │ state₁ … │ …
/// ```
///
/// `WORDS` is the length of a state if it is known at compile time, otherwise zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WideLayout<const WORDS: usize = 0> {
    state_words: usize,
    bucket_words: usize,
}

/// Entries per [`WideLayout`] bucket: the lower parts of their fingerprints fill the header's cache line.
const ENTRIES_PER_BUCKET: usize = LINE_WORDS - 1;

impl<const WORDS: usize> WideLayout<WORDS> {
    /// Maximum length of a state, far above the state length of any limit.
    const MAX_STATE_WORDS: usize = 1 << 20;

    pub(crate) fn new(state_words: usize) -> Option<Self> {
        let bucket_words = Self::bucket_words_for(state_words.min(Self::MAX_STATE_WORDS));
        (state_words <= Self::MAX_STATE_WORDS).then_some(Self { state_words, bucket_words })
    }

    const fn bucket_words_for(state_words: usize) -> usize {
        (LINE_WORDS + ENTRIES_PER_BUCKET * (1 + state_words)).next_multiple_of(LINE_WORDS)
    }
}

impl<const WORDS: usize> BucketLayout for WideLayout<WORDS> {
    #[inline]
    fn entries(self) -> usize {
        ENTRIES_PER_BUCKET
    }

    #[inline]
    fn state_words(self) -> usize {
        if WORDS > 0 { WORDS } else { self.state_words }
    }

    #[inline]
    fn bucket_words(self) -> usize {
        if WORDS > 0 { const { Self::bucket_words_for(WORDS) } } else { self.bucket_words }
    }

    /// Uses a load factor of 6/7: larger buckets need a smaller fraction of vacant entries.
    fn entries_for(self, capacity: usize) -> usize {
        capacity.saturating_mul(7) / 6
    }

    #[inline]
    fn low_fingerprint_word(self, entry: usize) -> usize {
        1 + entry
    }

    #[inline]
    fn high_fingerprint_word(self, entry: usize) -> (usize, u32) {
        (LINE_WORDS + entry * (1 + self.state_words()), 0)
    }

    #[inline]
    fn preferred_entry(self, fingerprint: Fingerprint) -> Option<usize> {
        Some(((u64::from(fingerprint.high) * ENTRIES_PER_BUCKET as u64) >> 32) as usize)
    }

    #[inline]
    fn first_state_word(self, entry: usize) -> usize {
        self.high_fingerprint_word(entry).0 + 1
    }

    fn flags(self, generation: u64) -> u64 {
        generation << GENERATION_SHIFT
    }

    /// Reads the upper half of the word that holds the upper part of the fingerprint.
    fn generation(self, _: u64, words: &[AtomicU64], entry: usize) -> u64 {
        words[self.high_fingerprint_word(entry).0].load(Ordering::Relaxed) >> 32
    }

    fn set_generation(self, header: u64, words: &[AtomicU64], entry: usize, generation: u64) -> u64 {
        let word = &words[self.high_fingerprint_word(entry).0];
        word.store(word.load(Ordering::Relaxed) & FLAGS_MASK | generation << 32, Ordering::Relaxed);
        let all = (0..ENTRIES_PER_BUCKET).all(|other| self.generation(header, words, other) == generation);
        header & (!FLAGS_MASK | SPILLED_BIT) | self.flags(if all { generation } else { MIXED_GENERATIONS })
    }
}

/// A locked bucket. Dropping the guard unlocks the bucket.
pub(super) struct Bucket<'t, S> {
    words: &'t [AtomicU64],
    /// The header, without the lock bit; written back on unlocking.
    header: u64,
    pub(super) index: usize,
    layout: S,
    /// A bit for each entry that must be neither evicted nor displaced, because it belongs to a key of a group.
    kept: u8,
}

impl<'t, S: BucketLayout> Bucket<'t, S> {
    /// Locks the bucket if its header has these `flags`, which mean that it is unlocked and all its entries have one
    /// generation.
    #[inline(always)]
    pub(super) fn lock_at(flags: u64, words: &'t [AtomicU64], index: usize, layout: S) -> Option<Self> {
        let header = words[0].load(Ordering::Relaxed);
        if header & FLAGS_MASK & !SPILLED_BIT != flags {
            return None;
        }
        set_lock_bit(&words[0], header)?;
        Some(Self { words, header, index, layout, kept: 0 })
    }

    pub(super) fn lock(words: &'t [AtomicU64], index: usize, layout: S) -> Self {
        let mut turn = 0;
        loop {
            if let Some(bucket) = Self::try_lock(words, index, layout) {
                return bucket;
            }
            spin_or_yield(turn);
            turn += 1;
        }
    }

    pub(super) fn try_lock(words: &'t [AtomicU64], index: usize, layout: S) -> Option<Self> {
        let header = words[0].load(Ordering::Relaxed);
        if header & LOCKED_BIT != 0 {
            return None;
        }
        set_lock_bit(&words[0], header)?;
        Some(Self { words, header, index, layout, kept: 0 })
    }

    /// Guesses, without the lock, whether this home bucket has the entry of `fingerprint`, assuming that the entry
    /// exists.
    #[inline]
    pub(super) fn is_likely_at_home(words: &[AtomicU64], layout: S, fingerprint: Fingerprint) -> bool {
        let words = &words[..=layout.low_fingerprint_word(layout.entries() - 1)];
        let has_spilled = words[0].load(Ordering::Relaxed) & SPILLED_BIT != 0;
        (0..layout.entries()).fold(!has_spilled, |found, entry| {
            found | (words[layout.low_fingerprint_word(entry)].load(Ordering::Relaxed) == fingerprint.low)
        })
    }

    /// Fetches the first and the last word of the preferred entry. Called before locking, because locking delays all later
    /// loads. So the cache lines of the header and of the entry are fetched concurrently.
    #[inline(always)]
    pub(super) fn prefetch(words: &[AtomicU64], layout: S, fingerprint: Fingerprint) {
        if let Some(entry) = layout.preferred_entry(fingerprint) {
            let (first, _) = layout.high_fingerprint_word(entry);
            let last = layout.first_state_word(entry) + layout.state_words() - 1;
            for word in [first, last] {
                words.get(word).map(prefetch);
            }
        }
    }

    #[inline(always)]
    pub(super) fn find(&self, fingerprint: Fingerprint) -> Option<usize> {
        if let Some(entry) = self.layout.preferred_entry(fingerprint)
            && self.fingerprint(entry) == fingerprint
        {
            return Some(entry);
        }
        // There is no branch per entry, because the matching entry is unpredictable, and a misprediction costs more
        // than all comparisons.
        let mut found = self.layout.entries() - 1;
        // Takes one slice first, so that there is one bounds check instead of one per entry.
        let words = &self.words[..=self.layout.low_fingerprint_word(found)];
        for entry in (0..found).rev() {
            if words[self.layout.low_fingerprint_word(entry)].load(Ordering::Relaxed) == fingerprint.low {
                found = entry;
            }
        }
        (self.fingerprint(found) == fingerprint).then_some(found)
    }

    #[inline(always)]
    pub(super) fn fingerprint(&self, entry: usize) -> Fingerprint {
        let (word, shift) = self.layout.high_fingerprint_word(entry);
        Fingerprint {
            low: self.words[self.layout.low_fingerprint_word(entry)].load(Ordering::Relaxed),
            high: (self.words[word].load(Ordering::Relaxed) >> shift) as u32,
        }
    }

    fn set_fingerprint(&mut self, entry: usize, fingerprint: Fingerprint) {
        self.words[self.layout.low_fingerprint_word(entry)].store(fingerprint.low, Ordering::Relaxed);
        let (word, shift) = self.layout.high_fingerprint_word(entry);
        let others = self.words[word].load(Ordering::Relaxed) & !(FLAGS_MASK << shift);
        let value = others | u64::from(fingerprint.high) << shift;
        self.words[word].store(value, Ordering::Relaxed);
        if word == 0 {
            self.header = self.header & FLAGS_MASK | value & !FLAGS_MASK;
        }
    }

    #[inline(always)]
    pub(super) fn state(&self, entry: usize) -> State<'t> {
        State { words: &self.words[self.layout.first_state_word(entry)..][..self.layout.state_words()] }
    }

    pub(super) fn is_taken(&self, entry: usize) -> bool {
        self.fingerprint(entry) != Fingerprint::default()
    }

    /// Returns whether a key with this home bucket may be in its other bucket.
    pub(super) fn has_spilled(&self) -> bool {
        self.header & SPILLED_BIT != 0
    }

    pub(super) fn set_spilled(&mut self) {
        self.header |= SPILLED_BIT;
    }

    pub(super) fn generation(&self, entry: usize) -> u64 {
        self.layout.generation(self.header, self.words, entry)
    }

    fn set_generation(&mut self, entry: usize, generation: u64) {
        self.header = self.layout.set_generation(self.header, self.words, entry, generation);
    }

    /// Runs `visit` on an entry, and stores the entry's generation if `visit` changes it.
    pub(super) fn visit<R>(&mut self, entry: usize, visit: impl FnOnce(&mut LockedEntry<'_>) -> R) -> R {
        let before = self.generation(entry);
        let mut locked = LockedEntry { state: self.state(entry), generation: before };
        let result = visit(&mut locked);
        if locked.generation != before {
            self.set_generation(entry, locked.generation);
        }
        result
    }

    /// Runs `each` on every entry that holds a key.
    pub(super) fn visit_all(&mut self, mut each: impl FnMut(Fingerprint, &mut LockedEntry<'_>)) {
        for entry in 0..self.layout.entries() {
            if self.is_taken(entry) {
                let fingerprint = self.fingerprint(entry);
                self.visit(entry, |locked| each(fingerprint, locked));
            }
        }
    }

    /// Consumes the guard without unlocking the bucket.
    pub(super) fn stay_locked(mut self) {
        self.header |= LOCKED_BIT;
    }

    /// Vacates unused entries of other generations. The fast path can use the bucket only if all entries belong to the
    /// current generation.
    pub(super) fn vacate_unneeded<R: StateReader>(&mut self, reader: &R) {
        let generation = reader.generation();
        if self.header & FLAGS_MASK & !SPILLED_BIT == self.layout.flags(generation) {
            return;
        }
        for entry in 0..self.layout.entries() {
            if self.generation(entry) == generation || self.is_taken(entry) && !self.is_unused(reader, entry) {
                continue;
            }
            self.vacate(entry);
            self.set_generation(entry, generation);
        }
    }

    fn is_unused<R: StateReader>(&self, reader: &R, entry: usize) -> bool {
        reader.is_unused(
            self.fingerprint(entry),
            &LockedEntry { state: self.state(entry), generation: self.generation(entry) },
        )
    }

    /// Returns a vacant entry for `fingerprint`. If no entry is vacant, returns an entry that is not kept and in which
    /// nothing is used. The key of that entry is forgotten, so it starts with the initial amount of its limits again.
    pub(super) fn find_vacant<R: StateReader>(&self, fingerprint: Fingerprint, reader: &R) -> Option<usize> {
        let preferred_first = || self.layout.preferred_entry(fingerprint).into_iter().chain(0..self.layout.entries());
        let is_vacant = |entry: &usize| !self.is_taken(*entry);
        let is_unused = |entry: &usize| !self.is_kept(*entry) && self.is_unused(reader, *entry);
        preferred_first().find(is_vacant).or_else(|| preferred_first().find(is_unused))
    }

    /// Returns the least used entry that is not kept.
    pub(super) fn least_spent<R: StateReader>(&self, reader: &R) -> Option<(Spent, usize)> {
        let locked = |entry| LockedEntry { state: self.state(entry), generation: self.generation(entry) };
        let spent = |entry| (reader.spent(self.fingerprint(entry), &locked(entry)), entry);
        (0..self.layout.entries()).filter(|entry| !self.is_kept(*entry)).map(spent).min()
    }

    /// Marks an entry as kept until the bucket is unlocked, and returns whether it was already marked.
    #[inline]
    pub(super) fn keep(&mut self, entry: usize) -> bool {
        let was_kept = self.is_kept(entry);
        self.kept |= 1 << entry;
        was_kept
    }

    /// Returns whether the entry must be neither evicted nor displaced.
    #[inline]
    pub(super) fn is_kept(&self, entry: usize) -> bool {
        self.kept >> entry & 1 == 1
    }

    /// Assigns the entry to `fingerprint` and `generation`, and calls `write` to set its state.
    pub(super) fn assign_entry<R>(
        &mut self,
        entry: usize,
        fingerprint: Fingerprint,
        generation: u64,
        write: impl FnOnce(&mut LockedEntry<'_>, Presence) -> R,
    ) -> R {
        self.set_fingerprint(entry, fingerprint);
        self.set_generation(entry, generation);
        self.visit(entry, |locked| write(locked, Presence::New))
    }

    pub(super) fn vacate(&mut self, entry: usize) {
        self.set_fingerprint(entry, Fingerprint::default());
    }
}

impl<S> Drop for Bucket<'_, S> {
    #[inline]
    fn drop(&mut self) {
        // Release: the next thread to lock sees everything written under the lock.
        self.words[0].store(self.header, Ordering::Release);
    }
}

/// Sets the lock bit of an unlocked `header` that was just read. `None` if the header has changed since.
#[inline(always)]
fn set_lock_bit(word: &AtomicU64, header: u64) -> Option<u64> {
    // Acquire: pairs with the release of the last unlock, so that this thread sees the writes made under the lock.
    word.compare_exchange(header, header | LOCKED_BIT, Ordering::Acquire, Ordering::Relaxed).ok()
}

/// One entry, while its bucket is locked.
pub(crate) struct LockedEntry<'t> {
    pub(crate) state: State<'t>,
    /// The parameter generation of the state.
    pub(crate) generation: u64,
}

/// The state of one entry, while its bucket is locked.
#[derive(Clone, Copy)]
pub(crate) struct State<'t> {
    words: &'t [AtomicU64],
}

impl State<'_> {
    /// Returns the number of words.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// Takes `cost` on the fastest path of `limit`, which ignores the spread of windows. `None`: this path does not
    /// apply, and nothing was taken.
    #[inline(always)]
    pub(crate) fn take<A: Algorithm>(&mut self, limit: &A, now: &Now<'_>, cost: Cost) -> Option<A::Stamp> {
        match self.words {
            [word] => {
                let after = limit.try_take_from_word(word.load(Ordering::Relaxed), now, cost)?;
                word.store(after, Ordering::Relaxed);
                Some(A::Stamp::default())
            }
            _ if limit.has_words_fast_path() => limit.try_take_from_words(self, now, cost),
            _ => None,
        }
    }
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
