//! Several entries held at once, so that they change together or not at all.

use smallvec::SmallVec;
use tollgate_core::{Cells, CellsMut, Spent};

use super::bucket::{Bucket, Shape, State};
use super::{Arrival, Buckets, Owner};
use crate::fingerprint::Fingerprint;

/// The locked buckets of a group of keys.
pub(crate) struct Group<'t, S> {
    table: &'t Buckets<S>,
    /// The keys. None of them loses its entry to another.
    prints: &'t [Fingerprint],
    /// In the order of their index, which is the order everybody locks in.
    buckets: SmallVec<[Bucket<'t, S>; FEW]>,
    /// Entries that gave way to newcomers of this group, each as [`EVICTED_HEAD`] words and its state.
    evicted: Vec<u64>,
}

/// Where a key of the group has its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    bucket: usize,
    entry: usize,
}

/// As many as nearly all groups have; a larger one allocates. Each key may be in two. In a model there is no stack for so many.
const FEW: usize = if cfg!(loom) { 8 } else { 32 };

/// Bucket, entry, fingerprint and generation.
const EVICTED_HEAD: usize = 5;

impl<S: Shape> Buckets<S> {
    /// The fast path of one key: runs `visit` on its state if it is at home, in a bucket that nobody holds, ourselves among them.
    /// `None`: the fast path does not apply, or `visit` said so.
    #[inline(always)]
    pub(crate) fn try_home<R>(
        &self,
        print: Fingerprint,
        flags: u64,
        visit: impl FnOnce(&mut State<'_>) -> Option<R>,
    ) -> Option<R> {
        let index = self.home(print);
        let bucket = Bucket::lock_at(flags, self.words_of(index), index, self.shape)?;
        visit(&mut bucket.state(bucket.find(print)?))
    }

    /// Locks every bucket that a key of `prints` may be in.
    pub(crate) fn lock_all<'t, O: Owner>(&'t self, prints: &'t [Fingerprint], owner: &O) -> Group<'t, S> {
        let mut indexes: SmallVec<[usize; FEW]> =
            prints.iter().flat_map(|print| [self.home(*print), self.other(*print)]).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let mut group = Group { table: self, prints, buckets: SmallVec::new(), evicted: Vec::new() };
        indexes.iter().for_each(|index| group.buckets.push(self.lock(*index, owner)));
        group
    }
}

impl<'t, S: Shape> Group<'t, S> {
    /// The entry of `print`, or one that it takes over as [`enter`](Buckets::enter) would; `None` if there is no room.
    pub(crate) fn seat<O: Owner>(
        &mut self,
        print: Fingerprint,
        owner: &O,
        newcomer: Spent,
    ) -> Option<(Place, Arrival)> {
        let (home, other) = (self.position(self.table.home(print))?, self.position(self.table.other(print))?);
        let both = self.buckets.get_disjoint_mut([home, other]).ok()?;
        // None of the group is moved: both buckets of each are held, and no entry goes where somebody holds the bucket.
        let chosen = self.table.choose(both, print, owner, newcomer, self.prints)?;
        let place = Place { bucket: if chosen.elsewhere { other } else { home }, entry: chosen.entry };
        if chosen.evicts {
            self.remember(place);
        }
        if chosen.arrival == Arrival::New {
            self.buckets[place.bucket].settle(place.entry, print, owner.generation(), |_, _| ());
        }
        Some((place, chosen.arrival))
    }

    /// The state at a place.
    pub(crate) fn state(&self, place: Place) -> State<'t> {
        self.buckets[place.bucket].state(place.entry)
    }

    /// Puts back what gave way, the last first: its newcomer came for nothing.
    pub(crate) fn restore_evicted(&mut self) {
        for record in self.evicted.chunks_exact(EVICTED_HEAD + self.table.state_words()).rev() {
            let &[bucket, entry, low, high, generation, ref words @ ..] = record else { continue };
            let Some(bucket) = self.buckets.get_mut(bucket as usize) else { continue };
            bucket.settle(entry as usize, Fingerprint { low, high: high as u32 }, generation, |slot, _| {
                words.iter().enumerate().for_each(|(index, word)| slot.state.set(index, *word));
            });
        }
        self.evicted.clear();
    }

    fn position(&self, index: usize) -> Option<usize> {
        self.buckets.binary_search_by_key(&index, |bucket| bucket.index).ok()
    }

    /// Keeps a copy of an entry that gives way, to put it back if the group is refused.
    fn remember(&mut self, place: Place) {
        let bucket = &self.buckets[place.bucket];
        let (print, state) = (bucket.print(place.entry), bucket.state(place.entry));
        let head =
            [place.bucket as u64, place.entry as u64, print.low, print.high.into(), bucket.generation(place.entry)];
        self.evicted.extend(head);
        self.evicted.extend((0..self.table.state_words()).map(|word| state.get(word)));
    }
}
