//! Room for newcomers: vacant entries, entries that move on, and those that give way.

use tollgate_core::{Cells, CellsMut, Spent};

use super::bucket::{Bucket, Shape, Slot};
use super::{Arrival, Buckets, Owner};
use crate::fingerprint::Fingerprint;
use crate::sync::Ordering;

/// How many entries may move, one making room for the other, to let a newcomer in.
pub(super) const MOVES: u32 = 2;
/// After so many searches in vain the table is full. A flood of newcomers must not look at two dozen buckets each to find
/// that out again; but one in [`STILL_SEARCHING`] does, to notice when it no longer is.
const FULL: u64 = 16;
const STILL_SEARCHING: u32 = 64;

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
        for bucket in [&mut home, &mut other] {
            if let Some(entry) = bucket.find(print) {
                return Some(bucket.visit(entry, |slot| write(slot, Arrival::Known)));
            }
        }
        let generation = owner.generation();
        if let Some(entry) = home.vacancy(owner, &[]) {
            return Some(home.settle(entry, print, generation, write));
        }
        if let Some(entry) = other.vacancy(owner, &[]) {
            home.set_spilled();
            return Some(other.settle(entry, print, generation, write));
        }
        if let Some(entry) = self.search(print, || self.make_room(&mut home, owner, MOVES)) {
            return Some(home.settle(entry, print, generation, write));
        }
        if let Some(entry) = self.search(print, || self.make_room(&mut other, owner, MOVES)) {
            home.set_spilled();
            return Some(other.settle(entry, print, generation, write));
        }
        let (spent, entry) = home.least_spent(owner, &[])?;
        let (spent_there, entry_there) = other.least_spent(owner, &[])?;
        if spent.min(spent_there) > newcomer {
            return None;
        }
        if spent <= spent_there {
            return Some(home.settle(entry, print, generation, write));
        }
        home.set_spilled();
        Some(other.settle(entry_there, print, generation, write))
    }

    /// Runs a search for room on behalf of a newcomer, unless the table is known to be full.
    pub(super) fn search<R>(&self, newcomer: Fingerprint, search: impl FnOnce() -> Option<R>) -> Option<R> {
        let vain = self.vain.load(Ordering::Relaxed);
        if vain >= FULL && !newcomer.high.is_multiple_of(STILL_SEARCHING) {
            return None;
        }
        let found = search();
        match found {
            None => self.vain.store(vain + 1, Ordering::Relaxed),
            Some(_) if vain > 0 => self.vain.store(0, Ordering::Relaxed),
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
