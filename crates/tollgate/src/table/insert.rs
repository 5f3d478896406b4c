//! Inserts a key into a vacant entry, by displacing an entry, or by evicting an entry.
//!
//! This is insertion into a bucketized cuckoo hash table, with bounds on its cost and on the entries that it may evict:
//!
//! 1. *Vacant.* The key gets a vacant entry in one of its two buckets. An entry is vacant if it holds no key or if
//!    nothing is used in it.
//! 2. *Displace.* An entry of either bucket moves to its alternative bucket, if that bucket has a vacant entry or can
//!    displace an entry in turn. Two displacements in a row reach about two dozen buckets of three entries, or a
//!    hundred buckets of seven, which is enough at the load factor of
//!    [`entries_for`](super::bucket::BucketLayout::entries_for). A classic cuckoo table would continue, and finally
//!    rehash.
//! 3. *Evict.* The least used entry of the two buckets is evicted, if it has used no more than the arriving key will
//!    use. So a flood of invented keys with one request each evicts other keys of the flood, but no key that has used
//!    more.
//! 4. Otherwise the key gets no entry, and the caller counts the request in an overflow entry.
//!
//! **Locks.** A key's two buckets are locked in index order. Displacement uses try-lock for further buckets. No thread
//! waits for a lock out of order, so there is no deadlock.
//!
//! **Cost of a flood.** In a full table, step 2 fails for nearly every key. After [`FAILURES_UNTIL_FULL`] failures in a
//! row, only one key in [`SEARCH_ONE_IN`] tries step 2, until a search succeeds.

use tollgate_core::{Cells, CellsMut, Spent};

use super::bucket::{Bucket, BucketLayout, LockedEntry};
use super::{Buckets, Presence, StateReader};
use crate::fingerprint::Fingerprint;
use crate::sync::{Ordering, fence};

/// Maximum length of a displacement chain.
pub(super) const MAX_DISPLACEMENTS: u32 = 2;
/// Number of consecutive failed searches after which the table counts as full.
const FAILURES_UNTIL_FULL: u64 = 16;
/// In a full table, only one in this number of arriving keys searches for an entry to displace.
const SEARCH_ONE_IN: u32 = 64;

/// The entry of a known key, or the entry chosen for a new key.
pub(super) struct ChosenEntry {
    /// Whether the entry is in the other bucket instead of the home bucket.
    pub(super) elsewhere: bool,
    pub(super) entry: usize,
    pub(super) presence: Presence,
    /// Whether the entry holds another key, which must be evicted.
    pub(super) evicts: bool,
}

impl<S: BucketLayout> Buckets<S> {
    pub(crate) fn upsert<O: StateReader, R>(
        &self,
        fingerprint: Fingerprint,
        reader: &O,
        arrival: Spent,
        write: impl FnOnce(&mut LockedEntry<'_>, Presence) -> R,
    ) -> Option<R> {
        let mut home = self.lock(self.home_of(fingerprint), reader);
        if let Some(entry) = home.find(fingerprint) {
            return Some(home.visit(entry, |locked| write(locked, Presence::Known)));
        }
        if !home.has_spilled() {
            if let Some(entry) = home.find_vacant(fingerprint, reader) {
                return Some(home.assign_entry(entry, fingerprint, reader.generation(), write));
            }
        } else if let Some(mut other) = self.try_lock(self.other_of(fingerprint), reader)
            && let Some(entry) = other.find(fingerprint)
        {
            return Some(other.visit(entry, |locked| write(locked, Presence::Known)));
        }
        drop(home);
        self.upsert_slow(fingerprint, reader, arrival, write)
    }

    fn upsert_slow<O: StateReader, R>(
        &self,
        fingerprint: Fingerprint,
        reader: &O,
        arrival: Spent,
        write: impl FnOnce(&mut LockedEntry<'_>, Presence) -> R,
    ) -> Option<R> {
        let (mut home, mut other) = self.lock_both(fingerprint, reader);
        let chosen = self.choose([&mut home, &mut other], fingerprint, reader, arrival)?;
        let bucket = if chosen.elsewhere { &mut other } else { &mut home };
        Some(match chosen.presence {
            Presence::Known => bucket.visit(chosen.entry, |locked| write(locked, Presence::Known)),
            Presence::New => bucket.assign_entry(chosen.entry, fingerprint, reader.generation(), write),
        })
    }

    /// Finds the entry of a key in its two buckets, or chooses an entry for a new key whose used fraction will be
    /// `arrival`. Does not evict or displace [kept](Bucket::keep) entries. Returns `None` if no entry is available.
    pub(super) fn choose<R: StateReader>(
        &self,
        [home, other]: [&mut Bucket<'_, S>; 2],
        fingerprint: Fingerprint,
        reader: &R,
        arrival: Spent,
    ) -> Option<ChosenEntry> {
        let chosen = |elsewhere, entry, presence, evicts| ChosenEntry { elsewhere, entry, presence, evicts };
        for (elsewhere, bucket) in [(false, &*home), (true, &*other)] {
            if let Some(entry) = bucket.find(fingerprint) {
                return Some(chosen(elsewhere, entry, Presence::Known, false));
            }
        }
        let mut free = home.find_vacant(fingerprint, reader).map(|entry| (false, entry));
        free = free.or_else(|| other.find_vacant(fingerprint, reader).map(|entry| (true, entry)));
        for (elsewhere, bucket) in [(false, &mut *home), (true, &mut *other)] {
            free = free.or_else(|| {
                let entry =
                    self.search_unless_full(fingerprint, || self.displace(bucket, reader, MAX_DISPLACEMENTS))?;
                Some((elsewhere, entry))
            });
        }
        let chosen = match free {
            Some((elsewhere, entry)) => chosen(elsewhere, entry, Presence::New, false),
            None => {
                let candidates = [(false, home.least_spent(reader)), (true, other.least_spent(reader))];
                let candidates = candidates.into_iter().filter_map(|(elsewhere, entry)| Some((elsewhere, entry?)));
                let (elsewhere, (spent, entry)) = candidates.min_by_key(|(_, (spent, _))| *spent)?;
                if spent > arrival {
                    return None;
                }
                chosen(elsewhere, entry, Presence::New, true)
            }
        };
        if chosen.elsewhere {
            home.set_spilled();
        }
        Some(chosen)
    }

    /// Runs `search` for an arriving key. If the table counts as full, runs it only for one key in [`SEARCH_ONE_IN`].
    fn search_unless_full<R>(&self, arriving: Fingerprint, search: impl FnOnce() -> Option<R>) -> Option<R> {
        let failed = self.failed_searches.load(Ordering::Relaxed);
        if failed >= FAILURES_UNTIL_FULL && !arriving.high.is_multiple_of(SEARCH_ONE_IN) {
            return None;
        }
        let found = search();
        match found {
            None => self.failed_searches.store(failed + 1, Ordering::Relaxed),
            Some(_) if failed > 0 => self.failed_searches.store(0, Ordering::Relaxed),
            Some(_) => {}
        }
        found
    }

    /// Moves one entry of `from` to its alternative bucket, and returns the vacated entry. Another entry of that bucket
    /// may be displaced in turn. Skips locked buckets, including buckets that the caller has locked.
    fn displace<R: StateReader>(&self, from: &mut Bucket<'_, S>, reader: &R, displacements: u32) -> Option<usize> {
        for entry in (0..self.layout.entries()).filter(|entry| !from.is_kept(*entry)) {
            let fingerprint = from.fingerprint(entry);
            let (home, other) = (self.home_of(fingerprint), self.other_of(fingerprint));
            let target = if home == from.index { other } else { home };
            let Some(mut target) = self.try_lock(target, reader) else { continue };
            // A walk would miss an entry that moves from a bucket it has not reached to a bucket it has passed. The
            // fence orders the lock before the load of `buckets_walked`. This fence pairs with the fence in `visit`,
            // which orders the store to `buckets_walked` before the check for an untouched bucket.
            fence(Ordering::SeqCst);
            let walked = self.buckets_walked.load(Ordering::Relaxed) as usize;
            if target.index < walked && walked <= from.index {
                continue;
            }
            let vacant = target.find_vacant(fingerprint, reader).or_else(|| match displacements {
                0 | 1 => None,
                _ => self.displace(&mut target, reader, displacements - 1),
            });
            let Some(vacant) = vacant else { continue };
            let state = from.state(entry);
            target.assign_entry(vacant, fingerprint, from.generation(entry), |to, _| {
                (0..self.state_words()).for_each(|word| to.state.set(word, state.get(word)));
            });
            if home == from.index {
                from.set_spilled();
            }
            from.vacate(entry);
            return Some(entry);
        }
        None
    }
}
