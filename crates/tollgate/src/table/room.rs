//! Room for newcomers: vacant entries, entries that move on, and those that give way.

use tollgate_core::{Cells, CellsMut, Spent};

use super::bucket::{Bucket, Shape, Slot};
use super::{Arrival, Buckets, Owner};
use crate::fingerprint::Fingerprint;
use crate::sync::Ordering;

/// How many entries may move, one making room for the other, to let a newcomer in.
pub(super) const MOVES: u32 = 2;
/// After so many searches in failed_searches the table is full. A flood of newcomers must not look at two dozen buckets each to find
/// that out again; but one in [`STILL_SEARCHING`] does, to notice when it no longer is.
const FULL: u64 = 16;
const STILL_SEARCHING: u32 = 64;

/// The entry that a key has or gets.
pub(super) struct Chosen {
    /// Whether it is in the other bucket instead of at home.
    pub(super) elsewhere: bool,
    pub(super) entry: usize,
    pub(super) arrival: Arrival,
    /// Whether another key loses it.
    pub(super) evicts: bool,
}

impl<S: Shape> Buckets<S> {
    pub(crate) fn enter<O: Owner, R>(
        &self,
        print: Fingerprint,
        owner: &O,
        newcomer: Spent,
        write: impl FnOnce(&mut Slot<'_>, Arrival) -> R,
    ) -> Option<R> {
        let mut home = self.lock(self.home(print), owner);
        if let Some(entry) = home.find(print) {
            return Some(home.visit(entry, |slot| write(slot, Arrival::Known)));
        }
        if !home.has_spilled() {
            if let Some(entry) = home.vacancy(owner, &[]) {
                return Some(home.settle(entry, print, owner.generation(), write));
            }
        } else if let Some(mut other) = self.try_lock(self.other(print), owner)
            && let Some(entry) = other.find(print)
        {
            return Some(other.visit(entry, |slot| write(slot, Arrival::Known)));
        }
        drop(home);
        self.enter_either(print, owner, newcomer, write)
    }

    fn enter_either<O: Owner, R>(
        &self,
        print: Fingerprint,
        owner: &O,
        newcomer: Spent,
        write: impl FnOnce(&mut Slot<'_>, Arrival) -> R,
    ) -> Option<R> {
        let (mut home, mut other) = self.lock_both(print, owner);
        let chosen = self.choose([&mut home, &mut other], print, owner, newcomer, &[])?;
        let bucket = if chosen.elsewhere { &mut other } else { &mut home };
        Some(match chosen.arrival {
            Arrival::Known => bucket.visit(chosen.entry, |slot| write(slot, Arrival::Known)),
            Arrival::New => bucket.settle(chosen.entry, print, owner.generation(), write),
        })
    }

    /// Finds the entry of a key in its two buckets, or chooses one for a new key: a vacant one, one whose owner moves to its own
    /// other bucket, or the least spent one, if it is spent no more than `newcomer` and belongs to none of `kept`. `None`: there
    /// is no entry for the key.
    pub(super) fn choose<O: Owner>(
        &self,
        [home, other]: [&mut Bucket<'_, S>; 2],
        print: Fingerprint,
        owner: &O,
        newcomer: Spent,
        kept: &[Fingerprint],
    ) -> Option<Chosen> {
        let chosen = |elsewhere, entry, arrival, evicts| Chosen { elsewhere, entry, arrival, evicts };
        for (elsewhere, bucket) in [(false, &*home), (true, &*other)] {
            if let Some(entry) = bucket.find(print) {
                return Some(chosen(elsewhere, entry, Arrival::Known, false));
            }
        }
        let vacancy = || {
            let entry = home.vacancy(owner, kept).map(|entry| (false, entry));
            entry.or_else(|| other.vacancy(owner, kept).map(|entry| (true, entry)))
        };
        let mut free = vacancy();
        for (elsewhere, bucket) in [(false, &mut *home), (true, &mut *other)] {
            free = free.or_else(|| {
                let entry = self.search(print, || self.make_room(bucket, owner, MOVES))?;
                Some((elsewhere, entry))
            });
        }
        let chosen = match free {
            Some((elsewhere, entry)) => chosen(elsewhere, entry, Arrival::New, false),
            None => {
                let candidates = [(false, home.least_spent(owner, kept)), (true, other.least_spent(owner, kept))];
                let candidates = candidates.into_iter().filter_map(|(elsewhere, entry)| Some((elsewhere, entry?)));
                let (elsewhere, (spent, entry)) = candidates.min_by_key(|(_, (spent, _))| *spent)?;
                if spent > newcomer {
                    return None;
                }
                chosen(elsewhere, entry, Arrival::New, true)
            }
        };
        if chosen.elsewhere {
            home.set_spilled();
        }
        Some(chosen)
    }

    /// Runs a search for room on behalf of a newcomer, unless the table is known to be full.
    pub(super) fn search<R>(&self, newcomer: Fingerprint, search: impl FnOnce() -> Option<R>) -> Option<R> {
        let failed_searches = self.failed_searches.load(Ordering::Relaxed);
        if failed_searches >= FULL && !newcomer.high.is_multiple_of(STILL_SEARCHING) {
            return None;
        }
        let found = search();
        match found {
            None => self.failed_searches.store(failed_searches + 1, Ordering::Relaxed),
            Some(_) if failed_searches > 0 => self.failed_searches.store(0, Ordering::Relaxed),
            Some(_) => {}
        }
        found
    }

    /// Makes room in a bucket by moving one of its entries to that entry's own other bucket, where room may be made in the
    /// same way. Buckets in use are passed by, among them those that the caller holds.
    pub(super) fn make_room<O: Owner>(&self, from: &mut Bucket<'_, S>, owner: &O, moves: u32) -> Option<usize> {
        for entry in 0..self.shape.entries() {
            let print = from.print(entry);
            let (home, other) = (self.home(print), self.other(print));
            let target = if home == from.index { other } else { home };
            let Some(mut target) = self.try_lock(target, owner) else { continue };
            // Not behind the back of a walk that is yet to come here, or it would miss the entry.
            let walked = self.walked.load(Ordering::Relaxed) as usize;
            if target.index < walked && walked <= from.index {
                continue;
            }
            let place = target.vacancy(owner, &[]);
            let place = place.or_else(|| if moves > 1 { self.make_room(&mut target, owner, moves - 1) } else { None });
            let Some(place) = place else { continue };
            let state = from.state(entry);
            target.settle(place, print, from.generation(entry), |to, _| {
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
