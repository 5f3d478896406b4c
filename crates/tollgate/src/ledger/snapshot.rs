//! Writes a ledger to a snapshot and reads it back. The format is in [`crate::snapshot`].

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::sync::PoisonError;

use tollgate_core::{Algorithm, Cells, CellsMut, Limits, Spent};

use super::{Ledger, LedgerReader, LimitTable};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Key};
use crate::snapshot::{FRAME_WORDS, FrameKind, RestoreError, SnapshotReader, SnapshotWriter, read_limits};
use crate::table::{Buckets, LockedEntry, StateReader, WideLayout};

/// Words of an entry before its state: the fingerprint and the limits id.
const ENTRY_HEAD_WORDS: usize = 3;

/// The limits of a snapshot, by their ids in this process.
#[derive(Default)]
struct RestoredLimits(HashMap<u32, Limits>);

impl LimitTable for RestoredLimits {
    fn get(&self, id: u32) -> Option<&Limits> {
        self.0.get(&id)
    }
}

impl<C: Clock> Ledger<C> {
    /// Writes every used entry with its limits, and returns the number of entries.
    ///
    /// Decisions continue during the walk. Each entry is written as it is when the walk reaches it.
    ///
    /// # Errors
    /// Returns an error if the writer fails.
    pub fn write_snapshot<W: Write, N: LimitTable + ?Sized>(
        &self,
        limits: &N,
        to: &mut SnapshotWriter<W>,
    ) -> io::Result<u64> {
        let _one = self.snapshot_lock.lock().unwrap_or_else(PoisonError::into_inner);
        to.begin_table(&self.clock.now(), &self.secret)?;
        let mut written = HashSet::new();
        let shared = self.write_entries(limits, &self.overflow, FrameKind::Overflow, &mut written, to)?;
        let total = shared + self.write_entries(limits, &self.table, FrameKind::Entries, &mut written, to)?;
        to.end_table(total)?;
        Ok(total)
    }

    /// Returns the number of used entries. If the table has more than `max_buckets` buckets, the number is an estimate
    /// from a sample of at most `max_buckets`.
    ///
    /// Decisions continue during the count.
    pub fn count_used_keys<N: LimitTable + ?Sized>(&self, limits: &N, max_buckets: usize) -> u64 {
        let reader = || LedgerReader { limit_table: limits, now: self.clock.now() };
        self.table.estimate_count(max_buckets, reader, |reader, fingerprint, entry| {
            let is_known = u32::try_from(entry.state.get(0)).is_ok_and(|id| limits.get(id).is_some());
            is_known && !reader.is_unused(fingerprint, entry)
        })
    }

    fn write_entries<W: Write, N: LimitTable + ?Sized>(
        &self,
        limits: &N,
        buckets: &Buckets<WideLayout>,
        kind: FrameKind,
        written: &mut HashSet<u64>,
        to: &mut SnapshotWriter<W>,
    ) -> io::Result<u64> {
        let _end = buckets.walk_guard();
        let (mut entries, mut ids) = (Vec::new(), Vec::new());
        let mut total = 0;
        for index in 0..buckets.bucket_count() {
            // Reads the clock for each bucket, because a walk may take seconds.
            let reader = LedgerReader { limit_table: limits, now: self.clock.now() };
            buckets.visit(index, &reader, |fingerprint, entry| {
                let id = entry.state.get(0);
                let own = u32::try_from(id).ok().and_then(|id| limits.get(id));
                let Some(own) = own.filter(|_| !reader.is_unused(fingerprint, entry)) else { return };
                if kind == FrameKind::Entries {
                    entries.extend([fingerprint.low, fingerprint.high.into()]);
                }
                entries.extend((0..=own.words()).map(|word| entry.state.get(word)));
                if !written.contains(&id) {
                    ids.push(id);
                }
                total += 1;
            });
            for id in ids.drain(..) {
                let own = u32::try_from(id).ok().and_then(|id| limits.get(id));
                if let Some(own) = own.filter(|_| written.insert(id)) {
                    to.write_limits(id, own)?;
                }
            }
            if entries.len() >= FRAME_WORDS {
                to.write_frame(kind, &entries)?;
                entries.clear();
            }
        }
        if !entries.is_empty() {
            to.write_frame(kind, &entries)?;
        }
        Ok(total)
    }

    /// Like [`with_clock`](Self::with_clock), but with the entries of a snapshot. States refill and expire as if the
    /// process had kept running since the snapshot. `id_of` maps an old id and its limits to the id in this process. If
    /// `id_of` returns `None`, the entries of these limits are dropped.
    ///
    /// # Errors
    /// Returns an error if the snapshot cannot be read or is damaged.
    pub fn restored<R: Read>(
        capacity: usize,
        state_words: usize,
        clock: C,
        from: &mut SnapshotReader<R>,
        mut id_of: impl FnMut(u32, &Limits) -> Option<u32>,
    ) -> Result<Self, RestoreError> {
        let ledger = Self::with_clock(capacity, state_words, clock).map_err(RestoreError::CapacityError)?;
        let now = ledger.clock.now();
        let head = from.read_table_head(&now)?;
        let (mut limits, mut ids, mut total) = (RestoredLimits::default(), HashMap::new(), 0);
        loop {
            let (kind, mut words) = from.read_frame()?;
            match (kind, words) {
                (FrameKind::Limits, words) => {
                    let (id, stored) = read_limits(words)?;
                    if stored.words() > state_words {
                        return Err(RestoreError::Damaged);
                    }
                    let new = u32::try_from(id).ok().and_then(|id| id_of(id, &stored));
                    limits.0.extend(new.map(|new| (new, stored.clone())));
                    ids.insert(id, (new, stored));
                }
                (FrameKind::Overflow | FrameKind::Entries, _) => {
                    let (buckets, head_words) = if kind == FrameKind::Entries {
                        (&ledger.table, ENTRY_HEAD_WORDS)
                    } else {
                        (&ledger.overflow, 1)
                    };
                    let reader = LedgerReader { limit_table: &limits, now };
                    while !words.is_empty() {
                        let (entry, rest) = words.split_at_checked(head_words).ok_or(RestoreError::Damaged)?;
                        let (id, own) = ids.get(&entry[head_words - 1]).ok_or(RestoreError::Damaged)?;
                        let (state, rest) = rest.split_at_checked(own.words()).ok_or(RestoreError::Damaged)?;
                        words = rest;
                        total += 1;
                        let Some(id) = *id else { continue };
                        let fingerprint = match entry {
                            [low, high, _] => Fingerprint { low: *low, high: *high as u32 },
                            // An overflow entry is found by its limits id, which may differ in this process.
                            _ => id.to_le_bytes().fingerprint(&head.secret),
                        };
                        let mut state = state.to_vec();
                        own.rebase(&mut *state, head.now_on_writer_clock, now.mono());
                        insert_restored(buckets, fingerprint, &reader, id, own, &state);
                    }
                }
                (FrameKind::EndTable, [entries]) if *entries == total => break,
                _ => return Err(RestoreError::Damaged),
            }
        }
        Ok(Self { secret: head.secret, ..ledger })
    }
}

/// Inserts a used state. If the table is full, either this state or the least used entry is lost, whichever has used
/// less.
fn insert_restored(
    buckets: &Buckets<WideLayout>,
    fingerprint: Fingerprint,
    reader: &LedgerReader<'_, RestoredLimits>,
    id: u32,
    own: &Limits,
    state: &[u64],
) {
    let now = reader.now.with_spread(fingerprint.low);
    if own.is_surely_unused(&state, &now) {
        return;
    }
    let copy = |entry: &mut LockedEntry<'_>, _| {
        entry.state.set(0, id.into());
        state.iter().zip(1..).for_each(|(word, index)| entry.state.set(index, *word));
    };
    // Computes the used fraction only if an entry must be evicted.
    if buckets.upsert(fingerprint, reader, Spent::NOTHING, copy).is_none() {
        buckets.upsert(fingerprint, reader, own.max_spent(&state, &now), copy);
    }
}
