//! Where entries are, for tests.

use super::bucket::Shape;
use super::{Buckets, Owner, Table};
use crate::fingerprint::Fingerprint;

/// Where an entry was found.
pub(crate) struct Placed {
    pub(crate) print: Fingerprint,
    pub(crate) bucket: usize,
    /// Whether a search for it comes by here.
    pub(crate) findable: bool,
}

impl Table {
    pub(crate) fn places<O: Owner>(&self, owner: &O) -> Vec<Placed> {
        either!(self, buckets => buckets.places(owner))
    }
}

impl<S: Shape> Buckets<S> {
    /// Every entry that is taken.
    pub(crate) fn places<O: Owner>(&self, owner: &O) -> Vec<Placed> {
        let spilled: Vec<bool> = (0..self.buckets).map(|index| self.lock(index, owner).has_spilled()).collect();
        let entries = (0..self.buckets).flat_map(|bucket| {
            let held = self.lock(bucket, owner);
            let taken = (0..self.shape.entries()).filter(|entry| held.is_taken(*entry));
            taken.map(|entry| (bucket, held.print(entry))).collect::<Vec<_>>()
        });
        let place = |(bucket, print)| {
            let home = self.home(print);
            Placed { print, bucket, findable: home == bucket || self.other(print) == bucket && spilled[home] }
        };
        entries.map(place).collect()
    }
}
