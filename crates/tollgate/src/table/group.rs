//! Locks the entries of several keys together, so that they change atomically.

use smallvec::SmallVec;
use tollgate_core::{Cells, CellsMut, Spent};

use super::bucket::{Bucket, Shape, State};
use super::{Buckets, Presence, StateReader};
use crate::fingerprint::Fingerprint;

/// The locked buckets of a group of keys.
pub(crate) struct Group<'t, S> {
    table: &'t Buckets<S>,
    /// The keys of the group. They do not evict each other's entries.
    fingerprints: &'t [Fingerprint],
    /// Sorted by index, which is the lock order.
    buckets: SmallVec<[Bucket<'t, S>; INLINE_BUCKETS]>,
    /// Copies of the entries that this group evicted, each with [`EVICTED_HEAD_WORDS`] words before its state.
    evicted: Vec<u64>,
}

/// The entry of a key of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryIndex {
    bucket: usize,
    entry: usize,
}

/// Number of buckets that a group can lock without allocating: two for each of sixteen keys. Smaller under loom,
/// because its stacks are small.
const INLINE_BUCKETS: usize = if cfg!(loom) { 8 } else { 32 };

/// Words of an evicted entry before its state: bucket, entry, fingerprint (two words) and generation.
const EVICTED_HEAD_WORDS: usize = 5;

impl<'t, S: Shape> Group<'t, S> {
    /// Locks both buckets of every key in `fingerprints`.
    pub(crate) fn lock<R: StateReader>(table: &'t Buckets<S>, fingerprints: &'t [Fingerprint], reader: &R) -> Self {
        let mut indexes: SmallVec<[usize; INLINE_BUCKETS]> = fingerprints
            .iter()
            .flat_map(|fingerprint| [table.home_of(*fingerprint), table.other_of(*fingerprint)])
            .collect();
        indexes.sort_unstable();
        indexes.dedup();
        let mut group = Self { table, fingerprints, buckets: SmallVec::new(), evicted: Vec::new() };
        indexes.iter().for_each(|index| group.buckets.push(table.lock(*index, reader)));
        group
    }

    /// Returns the entry of `fingerprint`. Inserts the key if necessary, like [`upsert`](Buckets::upsert). `None`: no
    /// entry is available.
    pub(crate) fn find_or_insert<R: StateReader>(
        &mut self,
        fingerprint: Fingerprint,
        reader: &R,
        arrival: Spent,
    ) -> Option<(EntryIndex, Presence)> {
        let (home, other) = (
            self.bucket_position(self.table.home_of(fingerprint))?,
            self.bucket_position(self.table.other_of(fingerprint))?,
        );
        let both = self.buckets.get_disjoint_mut([home, other]).ok()?;
        // No entry of the group is displaced, because displacement skips locked buckets, and both buckets of every key
        // are locked.
        let chosen = self.table.choose(both, fingerprint, reader, arrival, self.fingerprints)?;
        let index = EntryIndex { bucket: if chosen.elsewhere { other } else { home }, entry: chosen.entry };
        if chosen.evicts {
            self.save_before_eviction(index);
        }
        if chosen.presence == Presence::New {
            self.buckets[index.bucket].fill(index.entry, fingerprint, reader.generation(), |_, _| ());
        }
        Some((index, chosen.presence))
    }

    /// Returns the length of a state in words.
    pub(crate) fn state_words(&self) -> usize {
        self.table.state_words()
    }

    /// Returns the state of an entry.
    pub(crate) fn state(&self, index: EntryIndex) -> State<'t> {
        self.buckets[index.bucket].state(index.entry)
    }

    /// Restores evicted entries in reverse order. Called if the group is refused.
    pub(crate) fn restore_evicted(&mut self) {
        for record in self.evicted.chunks_exact(EVICTED_HEAD_WORDS + self.table.state_words()).rev() {
            let &[bucket, entry, low, high, generation, ref words @ ..] = record else { continue };
            let Some(bucket) = self.buckets.get_mut(bucket as usize) else { continue };
            bucket.fill(entry as usize, Fingerprint { low, high: high as u32 }, generation, |locked, _| {
                words.iter().enumerate().for_each(|(index, word)| locked.state.set(index, *word));
            });
        }
        self.evicted.clear();
    }

    fn bucket_position(&self, index: usize) -> Option<usize> {
        self.buckets.binary_search_by_key(&index, |bucket| bucket.index).ok()
    }

    /// Saves an entry before its eviction.
    fn save_before_eviction(&mut self, index: EntryIndex) {
        let bucket = &self.buckets[index.bucket];
        let (fingerprint, state) = (bucket.fingerprint(index.entry), bucket.state(index.entry));
        let head = [
            index.bucket as u64,
            index.entry as u64,
            fingerprint.low,
            fingerprint.high.into(),
            bucket.generation(index.entry),
        ];
        self.evicted.extend(head);
        self.evicted.extend((0..self.table.state_words()).map(|word| state.get(word)));
    }
}
