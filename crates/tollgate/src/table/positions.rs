//! Positions of entries, for tests.

use super::bucket::BucketLayout;
use super::{Buckets, StateReader, Table};
use crate::fingerprint::Fingerprint;

/// An entry and its bucket.
pub(crate) struct EntryPosition {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) bucket: usize,
    /// Whether a search for the entry's key visits this bucket.
    pub(crate) findable: bool,
}

impl Table {
    pub(crate) fn positions<R: StateReader>(&self, reader: &R) -> Vec<EntryPosition> {
        with_buckets!(self, buckets => positions(buckets, reader))
    }
}

/// Returns all entries that hold a key.
pub(crate) fn positions<S: BucketLayout, R: StateReader>(buckets: &Buckets<S>, reader: &R) -> Vec<EntryPosition> {
    let spilled: Vec<bool> = (0..buckets.buckets).map(|index| buckets.lock(index, reader).has_spilled()).collect();
    let entries = (0..buckets.buckets).flat_map(|bucket| {
        let held = buckets.lock(bucket, reader);
        let taken = (0..buckets.layout.entries()).filter(|entry| held.is_taken(*entry));
        taken.map(|entry| (bucket, held.fingerprint(entry))).collect::<Vec<_>>()
    });
    let place = |(bucket, fingerprint)| {
        let home = buckets.home_of(fingerprint);
        EntryPosition {
            fingerprint,
            bucket,
            findable: home == bucket || buckets.other_of(fingerprint) == bucket && spilled[home],
        }
    };
    entries.map(place).collect()
}
