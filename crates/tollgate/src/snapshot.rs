//! Snapshots of several tables in one stream: [`Ledger`](crate::ledger::Ledger) and
//! [`RedisCellTable`](crate::redis_cell::RedisCellTable).
//!
//! ```text
//!  magic version                               │ seal
//!  TABLE     mono wall secret                  │ seal     for each table
//!  LIMITS    id count, a record for each limit │ seal     before the first entry under these limits
//!  OVERFLOW  id state …                        │ seal     the overflow entries, shared by keys without an entry
//!  ENTRIES   low high id state …               │ seal     any number of entries
//!  END_TABLE number of entries                 │ seal
//!  END                                         │ seal     nothing follows
//! ```
//!
//! Words are little-endian, eight bytes each. The first word of a frame is its kind and its length. A seal is a
//! checksum of all earlier words except seals: it detects damage, not forgery. States contain instants of the monotonic
//! clock, whose zero differs in every process, so each table starts with one reading of both clocks. The restoring
//! process reads both clocks again. The difference between the wall-clock readings is the elapsed time, by which the
//! states are shifted. If the wall clock was set back, the elapsed time is zero.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use tollgate_core::{Limits, Mono, Now, Time};

use crate::fingerprint::Secret;
pub use crate::keyed::RestoreError;
pub(crate) use crate::keyed::snapshot::FRAME_WORDS;
use crate::keyed::snapshot::file;
use crate::keyed::snapshot::frames::{FrameReader, FrameWriter};
use crate::keyed::snapshot::records::LimitRecord;

/// The bytes `tg-store`, read as a word.
const MAGIC: u64 = u64::from_le_bytes(*b"tg-store");
/// Incremented when the format or the state words of any algorithm change.
const VERSION: u64 = 1;
/// Maximum length of a frame: a nearly full frame plus one bucket of the longest states.
const MAX_FRAME_WORDS: u64 = FRAME_WORDS as u64 + 7 * (3 + (1 << 20));

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    End,
    Table,
    Limits,
    Overflow,
    Entries,
    EndTable,
}

const FRAME_KINDS: [FrameKind; 6] =
    [FrameKind::End, FrameKind::Table, FrameKind::Limits, FrameKind::Overflow, FrameKind::Entries, FrameKind::EndTable];

/// Replaces the file at `path` atomically by the output of `write`. Only the owner may read the file. Readers see
/// either the complete old file or the complete new file, even after a power failure.
///
/// # Errors
/// Returns an error if the file cannot be written. The previous file is then unchanged, unless only syncing its folder
/// failed.
pub fn replace_file<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    file::replace(path, write)
}

/// Writes tables one after another. The output contains the secrets of the tables, so only their owner may read it.
pub struct SnapshotWriter<W> {
    sink: FrameWriter<W>,
}

impl<W: Write> SnapshotWriter<W> {
    /// Starts a snapshot.
    ///
    /// # Errors
    /// Returns an error if writing to `to` fails.
    pub fn new(to: W) -> io::Result<Self> {
        let mut sink = FrameWriter::new(to, FRAME_WORDS + 2);
        sink.push(MAGIC);
        sink.push(VERSION);
        sink.finish(MAGIC)?;
        Ok(Self { sink })
    }

    /// Ends the snapshot. Without this call, a reader reports that the end is missing.
    ///
    /// # Errors
    /// Returns an error if the underlying writer fails.
    pub fn finish(mut self) -> io::Result<()> {
        self.write_frame(FrameKind::End, &[])
    }

    pub(crate) fn begin_table(&mut self, now: &Now<'_>, secret: &Secret) -> io::Result<()> {
        let [first, second] = secret.points();
        self.write_frame(FrameKind::Table, &[now.mono().as_nanos(), now.wall().as_nanos(), first, second])
    }

    pub(crate) fn write_limits(&mut self, id: u64, limits: &Limits) -> io::Result<()> {
        let records = limits.as_slice().iter().flat_map(|limit| LimitRecord::from_params(limit.params()).0);
        let words: Vec<u64> = [id, limits.as_slice().len() as u64].into_iter().chain(records).collect();
        self.write_frame(FrameKind::Limits, &words)
    }

    pub(crate) fn end_table(&mut self, entries: u64) -> io::Result<()> {
        self.write_frame(FrameKind::EndTable, &[entries])
    }

    pub(crate) fn write_frame(&mut self, kind: FrameKind, words: &[u64]) -> io::Result<()> {
        self.sink.push(0);
        words.iter().for_each(|word| self.sink.push(*word));
        self.sink.finish(kind as u64 | (words.len() as u64) << 8)
    }
}

impl<W> std::fmt::Debug for SnapshotWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotWriter").finish_non_exhaustive()
    }
}

/// Reads the tables of a snapshot, in the order in which they were written.
pub struct SnapshotReader<R> {
    source: FrameReader<R>,
}

/// Head of a table: the base for shifting its instants, and the secret of its fingerprints.
pub(crate) struct TableHead {
    /// The present, as an instant on the monotonic clock of the process that wrote the table.
    pub(crate) now_on_writer_clock: Time<Mono>,
    pub(crate) secret: Secret,
}

impl<R: Read> SnapshotReader<R> {
    /// Reads the head of the snapshot. Frames are read in large blocks, so `from` needs no buffer.
    ///
    /// # Errors
    /// Returns an error if `from` fails, or if the data is not a snapshot of this version.
    pub fn new(from: R) -> Result<Self, RestoreError> {
        let mut source = FrameReader::new(from);
        if source.word()? != MAGIC {
            return Err(RestoreError::NotASnapshot);
        }
        let found = source.word()?;
        if found != VERSION {
            return Err(RestoreError::OtherVersion { found });
        }
        source.check_seal()?;
        Ok(Self { source })
    }

    /// Checks that the snapshot ends here.
    ///
    /// # Errors
    /// Returns an error if more data follows, or if reading fails.
    pub fn finish(mut self) -> Result<(), RestoreError> {
        match self.read_frame()? {
            (FrameKind::End, []) => self.source.check_end(),
            _ => Err(RestoreError::Damaged),
        }
    }

    pub(crate) fn read_table_head(&mut self, now: &Now<'_>) -> Result<TableHead, RestoreError> {
        match self.read_frame()? {
            (FrameKind::Table, &[mono, wall, first, second]) => {
                let away = now.wall().since(Time::from_nanos(wall));
                let now_on_writer_clock = Time::from_nanos(mono).saturating_add(away);
                Ok(TableHead { now_on_writer_clock, secret: Secret::from_points([first, second]) })
            }
            _ => Err(RestoreError::Damaged),
        }
    }

    /// Reads the next frame and checks its seal.
    pub(crate) fn read_frame(&mut self) -> Result<(FrameKind, &[u64]), RestoreError> {
        let head = self.source.word()?;
        let kind = FRAME_KINDS.get((head & 0xFF) as usize).ok_or(RestoreError::Damaged)?;
        let length = Some(head >> 8).filter(|length| *length <= MAX_FRAME_WORDS).ok_or(RestoreError::Damaged)?;
        Ok((*kind, self.source.read_sealed(length as usize)?))
    }
}

impl<R> std::fmt::Debug for SnapshotReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotReader").finish_non_exhaustive()
    }
}

/// Reads a limits frame: the id in the writing process, and the limits.
pub(crate) fn read_limits(words: &[u64]) -> Result<(u64, Limits), RestoreError> {
    let [id, count, records @ ..] = words else { return Err(RestoreError::Damaged) };
    let (records, rest) = records.as_chunks();
    if records.len() as u64 != *count || !rest.is_empty() {
        return Err(RestoreError::Damaged);
    }
    let limits: Option<Vec<_>> = records.iter().map(|record| LimitRecord(*record).limit()).collect();
    let limits = limits.and_then(|limits| Limits::new(limits).ok()).ok_or(RestoreError::Damaged)?;
    Ok((*id, limits))
}
