//! Locks the entries of several keys together, so that they change atomically.

use smallvec::SmallVec;
use tollgate_core::{Cells, CellsMut, Spent};

use super::bucket::{Bucket, BucketLayout, State};
use super::{Buckets, Presence, StateReader};
use crate::fingerprint::Fingerprint;

/// The locked buckets of a group of keys. The existing entries of the group's keys are [kept](Bucket::keep), so that
/// keys of a group do not evict or displace each other's entries.
pub(crate) struct LockedGroup<'t, S> {
    table: &'t Buckets<S>,
    keys: SmallVec<[GroupKey; INLINE_KEYS]>,
    /// First the buckets that were locked in index order, then those that were locked with try-lock.
    buckets: SmallVec<[Bucket<'t, S>; INLINE_BUCKETS]>,
    /// The number of buckets that were locked in index order.
    locked_in_order: usize,
    /// Whether two keys have the same entry, because they are equal.
    has_repeats: bool,
    /// Copies of the entries that this group evicted, each with [`EVICTED_HEAD_WORDS`] words before its state.
    evicted: Vec<u64>,
}

/// A key of the group, and its location in the table.
#[derive(Clone, Copy)]
struct GroupKey {
    fingerprint: Fingerprint,
    /// The position of the home bucket in the group's list.
    home: u32,
    /// The position of the other bucket, which is locked only if the key has no entry in its home bucket.
    other: u32,
    /// The position of the bucket that has the key's entry, and the index of the entry. `None` if the key had no entry
    /// when its buckets were locked.
    known: Option<(u32, u32)>,
}

/// Number of keys that a group can have without allocating. Smaller under loom, because its stacks are small.
const INLINE_KEYS: usize = if cfg!(loom) { 4 } else { 16 };

/// Number of buckets that a group can lock without allocating: two for each key.
const INLINE_BUCKETS: usize = 2 * INLINE_KEYS;

/// Words of an evicted entry before its state: bucket, entry, fingerprint (two words) and generation.
const EVICTED_HEAD_WORDS: usize = 5;

impl<'t, S: BucketLayout> LockedGroup<'t, S> {
    /// Locks the bucket of every key in `fingerprints`, or both buckets of a key that is not in its home bucket.
    ///
    /// Home buckets are locked in index order. The other buckets are out of order, so they are locked with try-lock. If
    /// one of them is locked by another thread, all buckets are unlocked, and both buckets of every key are locked in
    /// index order.
    pub(crate) fn lock<R: StateReader>(table: &'t Buckets<S>, fingerprints: &[Fingerprint], reader: &R) -> Self {
        let key = |fingerprint: &Fingerprint| GroupKey { fingerprint: *fingerprint, home: 0, other: 0, known: None };
        let mut group = Self {
            table,
            keys: fingerprints.iter().map(key).collect(),
            buckets: SmallVec::new(),
            locked_in_order: 0,
            has_repeats: false,
            evicted: Vec::new(),
        };
        group.lock_homes(reader);
        if !group.try_lock_others(reader) {
            group.lock_all(reader);
        }
        group
    }

    fn lock_homes<R: StateReader>(&mut self, reader: &R) {
        let table = self.table;
        let homes = self.keys.iter().map(|key| table.home_of(key.fingerprint));
        self.buckets.reserve(homes.len());
        for (index, key) in sorted_by_bucket(homes.zip(0..)) {
            if self.buckets.last().is_none_or(|bucket| bucket.index != index) {
                self.buckets.push(table.lock(index, reader));
            }
            let home = self.buckets.len() as u32 - 1;
            self.keys[key as usize].home = home;
            self.find_known(key, home);
        }
        self.locked_in_order = self.buckets.len();
    }

    /// Locks the other bucket of every key that is not in its home bucket. Returns `false` if another thread holds one
    /// of these locks.
    fn try_lock_others<R: StateReader>(&mut self, reader: &R) -> bool {
        let table = self.table;
        let missing = self.keys.iter().zip(0..).filter(|(key, _)| key.known.is_none());
        let others = sorted_by_bucket(missing.map(|(key, number)| (table.other_of(key.fingerprint), number)));
        let mut next = 0;
        for (index, key) in others {
            // Both lists are sorted, so one pass finds the buckets that are home buckets of other keys.
            while next < self.locked_in_order && self.buckets[next].index < index {
                next += 1;
            }
            let is_home = next < self.locked_in_order && self.buckets[next].index == index;
            if !is_home && self.buckets.last().is_none_or(|bucket| bucket.index != index) {
                let Some(bucket) = table.try_lock(index, reader) else { return false };
                self.buckets.push(bucket);
            }
            let other = if is_home { next } else { self.buckets.len() - 1 } as u32;
            self.keys[key as usize].other = other;
            self.find_known(key, other);
        }
        true
    }

    /// Unlocks all buckets, then locks both buckets of every key in index order.
    #[cold]
    fn lock_all<R: StateReader>(&mut self, reader: &R) {
        let table = self.table;
        self.buckets.clear();
        self.has_repeats = false;
        let both = |key: &GroupKey| [table.home_of(key.fingerprint), table.other_of(key.fingerprint)];
        let mut indexes: SmallVec<[usize; INLINE_BUCKETS]> = self.keys.iter().flat_map(both).collect();
        indexes.sort_unstable();
        indexes.dedup();
        self.buckets.extend(indexes.iter().map(|index| table.lock(*index, reader)));
        let position = |index| indexes.binary_search(&index).unwrap_or_default() as u32;
        for key in 0..self.keys.len() {
            let [home, other] = both(&self.keys[key]).map(position);
            self.keys[key] = GroupKey { home, other, known: None, ..self.keys[key] };
            self.find_known(key as u32, home);
            if self.keys[key].known.is_none() {
                self.find_known(key as u32, other);
            }
        }
    }

    /// Searches the bucket at `position` for the entry of a key.
    #[inline]
    fn find_known(&mut self, key: u32, position: u32) {
        let (key, bucket) = (&mut self.keys[key as usize], &mut self.buckets[position as usize]);
        if let Some(entry) = bucket.find(key.fingerprint) {
            self.has_repeats |= bucket.keep(entry);
            key.known = Some((position, entry as u32));
        }
    }

    /// Returns the state of the key at this index of the group. Inserts the key if necessary, like
    /// [`upsert`](Buckets::upsert). `None`: no entry is available. The state may be used until the group is dropped,
    /// which unlocks it.
    #[inline]
    pub(crate) fn find_or_insert<R: StateReader>(
        &mut self,
        key: usize,
        reader: &R,
        arrival: impl FnOnce() -> Spent,
    ) -> Option<(State<'t>, Presence)> {
        match self.keys[key].known {
            Some((bucket, entry)) => Some((self.buckets[bucket as usize].state(entry as usize), Presence::Known)),
            None => self.insert(key, reader, arrival()),
        }
    }

    fn insert<R: StateReader>(&mut self, key: usize, reader: &R, arrival: Spent) -> Option<(State<'t>, Presence)> {
        let GroupKey { fingerprint, home, other, .. } = self.keys[key];
        let both = self.buckets.get_disjoint_mut([home as usize, other as usize]).ok()?;
        // Finds the key if it is in the group twice and was just inserted.
        let chosen = self.table.choose(both, fingerprint, reader, arrival)?;
        let position = if chosen.elsewhere { other } else { home } as usize;
        if chosen.evicts {
            self.save_before_eviction(position, chosen.entry);
        }
        let bucket = &mut self.buckets[position];
        if chosen.presence == Presence::New {
            bucket.assign_entry(chosen.entry, fingerprint, reader.generation(), |_, _| ());
        }
        self.has_repeats |= bucket.keep(chosen.entry);
        Some((bucket.state(chosen.entry), chosen.presence))
    }

    /// Returns whether two keys that were found or inserted have the same entry.
    pub(crate) fn has_repeats(&self) -> bool {
        self.has_repeats
    }

    /// Restores evicted entries in reverse order. Called if the group is refused.
    pub(crate) fn restore_evicted(&mut self) {
        for record in self.evicted.chunks_exact(EVICTED_HEAD_WORDS + self.table.state_words()).rev() {
            let &[bucket, entry, low, high, generation, ref words @ ..] = record else { continue };
            let Some(bucket) = self.buckets.get_mut(bucket as usize) else { continue };
            bucket.assign_entry(entry as usize, Fingerprint { low, high: high as u32 }, generation, |locked, _| {
                words.iter().enumerate().for_each(|(index, word)| locked.state.set(index, *word));
            });
        }
        self.evicted.clear();
    }

    /// Saves an entry of the bucket at `position` before its eviction.
    fn save_before_eviction(&mut self, position: usize, entry: usize) {
        let bucket = &self.buckets[position];
        let (fingerprint, state) = (bucket.fingerprint(entry), bucket.state(entry));
        let (low, high) = (fingerprint.low, fingerprint.high.into());
        let head: [u64; EVICTED_HEAD_WORDS] = [position as u64, entry as u64, low, high, bucket.generation(entry)];
        self.evicted.extend(head);
        self.evicted.extend((0..self.table.state_words()).map(|word| state.get(word)));
    }
}

/// Sorts pairs of a bucket index and a key by the bucket index, which is the lock order.
fn sorted_by_bucket(pairs: impl Iterator<Item = (usize, u32)>) -> SmallVec<[(usize, u32); INLINE_KEYS]> {
    let mut pairs: SmallVec<[(usize, u32); INLINE_KEYS]> = pairs.collect();
    pairs.sort_unstable_by_key(|(index, _)| *index);
    pairs
}

/// Buckets that are locked one after the other with try-lock, in any order.
pub(crate) struct TryLockedGroup<'t, S> {
    table: &'t Buckets<S>,
    buckets: Vec<Bucket<'t, S>>,
}

impl<'t, S: BucketLayout> TryLockedGroup<'t, S> {
    pub(crate) fn with_capacity(table: &'t Buckets<S>, capacity: usize) -> Self {
        Self { table, buckets: Vec::with_capacity(capacity) }
    }

    /// Locks the entry of `fingerprint` until the group is dropped, and returns its state. `None`: another thread holds
    /// the lock, the key has no entry, or this group has already locked the entry.
    #[inline]
    pub(crate) fn try_lock(&mut self, fingerprint: Fingerprint) -> Option<State<'t>> {
        let home = self.try_lock_bucket(self.table.home_of(fingerprint))?;
        let (position, entry) = match self.buckets[home].find(fingerprint) {
            Some(entry) => (home, entry),
            None if !self.buckets[home].has_spilled() => return None,
            // The home bucket stays locked, so that the entry cannot move there.
            None => {
                let other = self.try_lock_bucket(self.table.other_of(fingerprint))?;
                (other, self.buckets[other].find(fingerprint)?)
            }
        };
        let bucket = &mut self.buckets[position];
        (!bucket.keep(entry)).then(|| bucket.state(entry))
    }

    /// Locks a bucket and returns its position in the list. `None` if another thread holds the lock. Searches the list
    /// only if the bucket is already locked, because in a large table hardly any two keys of a group share a bucket.
    #[inline]
    fn try_lock_bucket(&mut self, index: usize) -> Option<usize> {
        let table = self.table;
        match Bucket::lock_at(table.layout.flags(0), table.words_of(index), index, table.layout) {
            Some(bucket) => {
                self.buckets.push(bucket);
                Some(self.buckets.len() - 1)
            }
            None => self.buckets.iter().position(|bucket| bucket.index == index),
        }
    }
}
