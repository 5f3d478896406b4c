//! Snapshots: a table is written to a file, and another process restores it.
//!
//! ```text
//!  magic version │ limit counts │ mono wall │ secret │ a record for each limit           │ seal
//!  entry count   │ low high state … │ low high state … │ …                              │ seal     repeated
//!  0             │ total number of entries                                               │ seal
//! ```
//!
//! Every field is a little-endian word of eight bytes. A seal is a checksum of all earlier words except seals, so the
//! next seal detects missing, repeated or misplaced parts. Seals protect against accidents, not against forgery.
//!
//! **Time.** States contain instants of the monotonic clock, whose zero differs in every process. The head contains one
//! reading of both clocks, and the restoring process reads both clocks again. The difference between the wall-clock
//! readings is the elapsed time. The old monotonic reading plus the elapsed time corresponds to the present on the new
//! clock. So buckets refill and windows end in the time between the two processes. If the wall clock was set back, the
//! elapsed time is zero.
//!
//! **Parameters.** An entry belongs to the limit under which it was last charged, which may be an earlier limit. The
//! upper half of the snapshot's third word is the number of earlier limit sets. The earlier sets follow the current
//! set. Each earlier set is stored as its number of limits and one record per limit. The upper half of an entry's
//! second word is the index of its limit set: 0 for the current set, or the number of an earlier set, counted from 1.
//! So a snapshot converts no state. Version 1 had no earlier sets.
//!
//! **Consistency.** Entries are copied while their bucket is locked, and written to the file after it is unlocked. Each
//! entry is written as it was at some instant during the snapshot. No entry is missed, because entries are never
//! displaced from a bucket that the walk has not reached to a bucket that it has passed.

pub(crate) mod file;
pub(crate) mod frames;
pub(crate) mod records;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::{Mutex, PoisonError, RwLock};

use tollgate_core::{Algorithm, Cells, CellsMut, Limits, Mono, Spent, Time, Wall};

use super::change::KeyedReader;
use super::overflow::OverflowEntry;
use super::{CapacityError, Keyed};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Secret};
use crate::sync::AtomicU64;
use crate::table::{LockedEntry, MAX_GENERATIONS, StateReader, Table};
use frames::{FrameReader, FrameWriter};
use records::LimitRecord;

/// The bytes `tollgate`, read as a word.
const MAGIC: u64 = u64::from_le_bytes(*b"tollgate");
/// Incremented when the meaning of any word changes, including the state of any algorithm.
const VERSION: u64 = 2;
/// Approximate number of words between two seals, large enough for efficient writes.
pub(crate) const FRAME_WORDS: usize = 8_192;
/// Upper bound on the entries that one bucket adds to a frame.
const MAX_ENTRIES_PER_BUCKET: usize = 8;
/// Words of an entry before its state: the fingerprint and the generation.
const ENTRY_HEAD_WORDS: usize = 2;

/// Reason why a snapshot was not restored. The limiter is unchanged.
#[derive(Debug)]
#[non_exhaustive]
pub enum RestoreError {
    /// The snapshot could not be read. The error is [`io::ErrorKind::NotFound`] if the file does not exist.
    Unreadable(io::Error),
    /// The data is not a snapshot.
    NotASnapshot,
    /// The format version of the snapshot is not supported.
    OtherVersion {
        /// The version of the snapshot.
        found: u64,
    },
    /// The end of the snapshot is missing.
    CutShort,
    /// A checksum does not match, or the content is invalid.
    Damaged,
    /// The snapshot was taken under a different algorithm, or a different combination of algorithms. Different
    /// parameters of the same algorithm are not an error.
    OtherLimit {
        /// The algorithm of the snapshot.
        stored: String,
        /// The algorithm of the limiter.
        wanted: String,
    },
    /// There is not enough memory for a second table besides the current table.
    CapacityError(CapacityError),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "the snapshot cannot be read: {error}"),
            Self::NotASnapshot => f.write_str("this is not a snapshot"),
            Self::OtherVersion { found } => write!(f, "unsupported snapshot version: {found}"),
            Self::CutShort => f.write_str("the end of the snapshot is missing"),
            Self::Damaged => f.write_str("the snapshot is damaged"),
            Self::OtherLimit { stored, wanted } => write!(f, "the snapshot is for a {stored}, not for a {wanted}"),
            Self::CapacityError(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RestoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable(error) => Some(error),
            Self::CapacityError(error) => Some(error),
            Self::NotASnapshot
            | Self::OtherVersion { .. }
            | Self::CutShort
            | Self::Damaged
            | Self::OtherLimit { .. } => None,
        }
    }
}

/// Writes a snapshot of `keyed`, and returns the number of entries.
pub(super) fn write<A: Algorithm + Clone + Into<Limits>, C: Clock>(
    keyed: &Keyed<A, C>,
    to: impl Write,
) -> io::Result<u64> {
    // Only one walk through the table is allowed at a time.
    let _one = keyed.snapshot_lock.lock().unwrap_or_else(PoisonError::into_inner);
    let (changes, now) = (keyed.changes(), keyed.clock.now());
    let reader = keyed.reader(&changes, now);
    let generations = reader.generation();
    let limits: Limits = reader.limit().clone().into();
    let earlier: Vec<Limits> = (0..generations).map(|of| reader.limit_of(of).clone().into()).collect();
    let words = earlier.iter().map(Limits::words).fold(limits.words(), usize::max);
    let mut sink =
        FrameWriter::new(to, (FRAME_WORDS + (MAX_ENTRIES_PER_BUCKET + 1) * (ENTRY_HEAD_WORDS + words)).min(1 << 20));
    let head = SnapshotHead { limits, earlier, mono: now.mono(), wall: now.wall(), secret: keyed.secret.clone() };
    head.write(&mut sink)?;

    let full = entries_per_frame(words) as u64;
    let (mut total, mut held) = (0, 0);
    let keep = |sink: &mut FrameWriter<_>, fingerprint: Fingerprint, generation: u64, state: &dyn Cells| {
        let earlier = if generation < generations { generation + 1 } else { 0 };
        sink.push(fingerprint.low);
        sink.push(u64::from(fingerprint.high) | earlier << 32);
        (0..words).for_each(|word| sink.push(state.get(word)));
    };
    sink.push(0);
    let overflow = keyed.overflow.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if !reader.limit_of(overflow.generation).is_unused(&*overflow.words, &reader.now) {
        keep(&mut sink, Fingerprint::default(), overflow.generation, &&*overflow.words);
        held += 1;
    }
    let table = keyed.table(&changes);
    let (walk, buckets) = (table.walk(), table.bucket_count());
    for index in 0..buckets {
        // Reads the clock for each bucket, because a snapshot may take seconds.
        let reader = keyed.reader(&changes, keyed.clock.now());
        walk.visit(index, &reader, |fingerprint, entry| {
            if !reader.is_unused(fingerprint, entry) {
                keep(&mut sink, fingerprint, entry.generation, &entry.state);
                held += 1;
            }
        });
        if held >= full || held > 0 && index + 1 == buckets {
            sink.finish(held)?;
            sink.push(0);
            (total, held) = (total + held, 0);
        }
    }
    sink.push(total);
    sink.finish(0)?;
    Ok(total)
}

/// Replaces the entries of `keyed` by the entries of a snapshot, and returns their number.
pub(super) fn restore<A, C: Clock>(keyed: &mut Keyed<A, C>, from: impl Read) -> Result<u64, RestoreError>
where
    A: Algorithm + Clone + Into<Limits> + TryFrom<Limits>,
{
    let mut source = FrameReader::new(from);
    let head = SnapshotHead::read(&mut source)?;
    let limit = keyed.limit();
    let limits: Limits = limit.clone().into();
    head.check_algorithms(&limits)?;
    // The first limit in the file was current at the time of the snapshot. This limit becomes an earlier limit, unless
    // it equals the limit of `keyed`.
    let changed = head.limits != limits;
    let stored: Vec<&Limits> = std::iter::once(&head.limits).chain(&head.earlier).collect();
    let earlier: Vec<A> = stored
        .iter()
        .skip(usize::from(!changed))
        .map(|limits| A::try_from((*limits).clone()).map_err(|_| RestoreError::Damaged))
        .collect::<Result<_, _>>()?;
    let generation_of = |number: u64| match (number as usize).checked_sub(usize::from(!changed)) {
        Some(earlier) => earlier as u64,
        None => earlier.len() as u64,
    };
    let words = stored.iter().map(|limits| limits.words()).max().unwrap_or(0);
    let wide = words.max(limits.words());
    let capacity = keyed.capacity;
    // Entries of earlier limits may need more words than entries of the current limit.
    let table = Table::new(capacity, if earlier.is_empty() { limits.words() } else { wide });
    let table = table.ok_or(RestoreError::CapacityError(CapacityError { capacity }))?;

    let now = keyed.clock.now();
    let away = now.wall().since(head.wall);
    let then = head.mono.saturating_add(away);
    let reader = KeyedReader { earlier: &earlier, inline: &limit, later: &[], now };
    let mut overflow = OverflowEntry { words: vec![0; wide], generation: reader.generation() };
    limit.init(&mut *overflow.words, &now);
    let mut state = vec![0; wide];
    let total = source.for_each_entry(words, &mut state, |fingerprint, number, state| {
        let Some(own) = stored.get(number as usize) else { return Err(RestoreError::Damaged) };
        let (own, generation, now) = (*own, generation_of(number), reader.now_for_key(fingerprint));
        own.rebase(state, then, now.mono());
        if fingerprint == Fingerprint::default() {
            overflow.words.copy_from_slice(state);
            overflow.generation = generation;
        } else if !own.is_unused(state, &now) {
            let copy = |to: &mut LockedEntry<'_>, _| {
                state.iter().enumerate().for_each(|(at, word)| to.state.set(at, *word));
                to.generation = generation;
            };
            // Computes the used fraction only if an entry must be evicted.
            if table.upsert(fingerprint, &reader, Spent::NOTHING, copy).is_none() {
                table.upsert(fingerprint, &reader, own.spent(state, &now), copy);
            }
        }
        Ok(())
    })?;
    keyed.flags = AtomicU64::new(table.flags(earlier.len() as u64));
    keyed.changes = RwLock::default();
    keyed.limit = limit;
    keyed.table = table;
    keyed.secret = head.secret;
    keyed.earlier = earlier;
    keyed.overflow = Mutex::new(overflow);
    keyed.overflow_charges = Mutex::default();
    Ok(total)
}

/// Returns the number of entries after which a frame is written.
fn entries_per_frame(words: usize) -> usize {
    (FRAME_WORDS / (ENTRY_HEAD_WORDS + words)).max(1)
}

/// The head of a snapshot: limits, clock readings and secret.
struct SnapshotHead {
    /// The current limits at the time of the snapshot.
    limits: Limits,
    /// Earlier limits, to which entries may belong.
    earlier: Vec<Limits>,
    mono: Time<Mono>,
    wall: Time<Wall>,
    secret: Secret,
}

impl SnapshotHead {
    fn write<W: Write>(&self, sink: &mut FrameWriter<W>) -> io::Result<()> {
        let limits = self.limits.as_slice();
        let counts = limits.len() as u64 | (self.earlier.len() as u64) << 32;
        let [first, second] = self.secret.points();
        let fixed = [counts, self.mono.as_nanos(), self.wall.as_nanos(), first, second];
        [MAGIC, VERSION].into_iter().chain(fixed).for_each(|word| sink.push(word));
        limits.iter().flat_map(|limit| LimitRecord::from_params(limit.params()).0).for_each(|word| sink.push(word));
        for limits in &self.earlier {
            sink.push(limits.as_slice().len() as u64);
            limits
                .as_slice()
                .iter()
                .flat_map(|limit| LimitRecord::from_params(limit.params()).0)
                .for_each(|word| sink.push(word));
        }
        sink.finish(MAGIC)
    }

    fn read<R: Read>(source: &mut FrameReader<R>) -> Result<Self, RestoreError> {
        if source.word()? != MAGIC {
            return Err(RestoreError::NotASnapshot);
        }
        let found = source.word()?;
        if found == 0 || found > VERSION {
            return Err(RestoreError::OtherVersion { found });
        }
        let (count, earlier) = (source.word()?, 0);
        let (count, earlier) = if found == 1 { (count, earlier) } else { (count & u64::from(u32::MAX), count >> 32) };
        if earlier >= MAX_GENERATIONS - 1 {
            return Err(RestoreError::Damaged);
        }
        let mut fixed = [0; 4];
        for word in &mut fixed {
            *word = source.word()?;
        }
        let [mono, wall, first, second] = fixed;
        let limits = read_limits(source, count)?;
        let mut sets = Vec::new();
        for _ in 0..earlier {
            let count = source.word()?;
            sets.push(read_limits(source, count)?);
        }
        source.check_seal()?;
        let known = |records: Vec<LimitRecord>| {
            let limits = records.iter().map(LimitRecord::limit).collect::<Option<Vec<_>>>();
            let limits = limits.and_then(|limits| Limits::new(limits).ok()).ok_or(RestoreError::Damaged)?;
            // Version 1 used longer windows if the slices did not divide the window length, so the meaning of such
            // states differs.
            let same = limits
                .as_slice()
                .iter()
                .zip(&records)
                .all(|(limit, record)| LimitRecord::from_params(limit.params()) == *record);
            if same || found == VERSION { Ok(limits) } else { Err(RestoreError::OtherVersion { found }) }
        };
        Ok(Self {
            limits: known(limits)?,
            earlier: sets.into_iter().map(known).collect::<Result<_, _>>()?,
            mono: Time::from_nanos(mono),
            wall: Time::from_nanos(wall),
            secret: Secret::from_points([first, second]),
        })
    }

    /// Checks that the snapshot has the algorithms of `wanted`, in the same order.
    fn check_algorithms(&self, wanted: &Limits) -> Result<(), RestoreError> {
        let [stored, asked] = [&self.limits, wanted].map(algorithm_names);
        if stored == asked { Ok(()) } else { Err(RestoreError::OtherLimit { stored, wanted: asked }) }
    }
}

fn algorithm_names(limits: &Limits) -> String {
    let names: Vec<&str> = limits.as_slice().iter().map(|limit| records::name(&limit.params())).collect();
    names.join(" with a ")
}

/// Reads the records of `count` limits.
fn read_limits<R: Read>(source: &mut FrameReader<R>, count: u64) -> Result<Vec<LimitRecord>, RestoreError> {
    if count > Limits::MAX as u64 {
        return Err(RestoreError::Damaged);
    }
    let mut records = vec![LimitRecord::default(); count as usize];
    for word in records.iter_mut().flat_map(|record| &mut record.0) {
        *word = source.word()?;
    }
    Ok(records)
}
