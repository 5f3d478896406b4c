//! A table written down, to be gone on with by another process.
//!
//! ```text
//!  magic version │ limits │ mono wall │ secret │ words │ a record for each limit        │ seal
//!  entries       │ low high state … │ low high state … │ …                              │ seal     as often as it takes
//!  0             │ how many entries in all                                               │ seal
//! ```
//!
//! Everything is a word of eight bytes, the lowest first. A seal is a checksum of everything before it, so that a part that is
//! missing, doubled or in the wrong place is noticed at the next one. It guards against accidents, not against somebody
//! who may write the file: such a person has no need to forge one.
//!
//! **Time.** States tell instants of the monotonic clock, which begins elsewhere in every process. The head has one reading of
//! both clocks. Who restores it reads both again; the wall clocks say how long it was away, and that much later on the old
//! monotonic clock is now on the new one. So what would have flowed off or ended in the meantime has. A wall clock that was
//! set back counts as no time away.
//!
//! **Parameters.** An entry belongs to the limit it was last charged under, which need not be the one in force. Earlier limits are
//! written after the one in force, each as the number of its limits and a record for each, and the upper half of an entry's
//! second word says which one it belongs to: zero for the limit in force, else the number of an earlier one, from one. So
//! nothing is converted on the way. The upper half of the third word says how many earlier ones there are. Version 1 had none.
//!
//! **Whole entries.** A bucket's entries are copied while its short lock is held, as for any decision, and written when
//! nothing is. Each entry is as it was at some instant during the snapshot. None is missed: an entry that would move from
//! where the walk has not been to where it has stays where it is.

pub(crate) mod file;
pub(crate) mod frames;
pub(crate) mod records;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError, RwLock};

use tollgate_core::{Algorithm, Cells, CellsMut, Limits, Mono, Spent, Time, Wall};

use super::change::KeyedReader;
use super::overflow::Overflow;
use super::{CapacityError, Keyed};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Secret};
use crate::sync::AtomicU64;
use crate::table::{GENERATIONS, Slot, StateReader, Table};
use frames::{Sink, Source};
use records::Record;

/// `tollgate`, as a word.
const MAGIC: u64 = u64::from_le_bytes(*b"tollgate");
/// Raised when what is written changes its meaning, the words of any algorithm's state included.
const VERSION: u64 = 2;
/// About so many words lie between two seals: enough for a write to be worth its while.
pub(crate) const FRAME_WORDS: usize = 8_192;
/// The most entries that one bucket adds to a frame that was not full yet.
const MOST_AT_ONCE: usize = 8;
/// Fingerprint.
const ENTRY_HEAD: usize = 2;

/// Why a snapshot was not restored. The limiter is as it was before.
#[derive(Debug)]
#[non_exhaustive]
pub enum RestoreError {
    /// It could not be read. A file that is not there is told by [`io::ErrorKind::NotFound`].
    Unreadable(io::Error),
    /// It is something else.
    NotASnapshot,
    /// It was written in another version of the format.
    OtherVersion {
        /// The version it has.
        found: u64,
    },
    /// Its end is missing.
    CutShort,
    /// Its content is not what was written.
    Damaged,
    /// It is of another algorithm, or of another group of them. Other numbers of the same are no error.
    OtherLimit {
        /// What it is of.
        stored: String,
        /// What was to be restored.
        wanted: String,
    },
    /// There is no memory for a second table beside the one in use.
    CapacityError(CapacityError),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "the snapshot cannot be read: {error}"),
            Self::NotASnapshot => f.write_str("this is not a snapshot"),
            Self::OtherVersion { found } => {
                write!(f, "the snapshot is of version {found} of the format, this is version {VERSION}")
            }
            Self::CutShort => f.write_str("the end of the snapshot is missing"),
            Self::Damaged => f.write_str("the snapshot is damaged"),
            Self::OtherLimit { stored, wanted } => write!(f, "the snapshot is of a {stored}, not of a {wanted}"),
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

impl<A: Algorithm + Clone + Into<Limits> + TryFrom<Limits>, C: Clock> Keyed<A, C> {
    /// Writes what every key has spent to a file, which [`load`](Self::load) reads, and returns how many entries that are.
    ///
    /// Decisions go on meanwhile and do not wait for it: each key is written as it is when its turn comes. Keys that are as
    /// good as new are left out. The file contains the secret that keeps people from aiming at other people's entries, so only
    /// its reader may read it. It is written beside its final place, under a name of its own that ends in `.tmp`, brought to
    /// the disk, and then takes the place of the previous one at once: whatever happens, one of the two is there, whole.
    ///
    /// ```
    /// use tollgate::{Keyed, TokenBucket};
    ///
    /// # let folder = std::env::temp_dir().join(format!("tollgate-doc-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// let path = folder.join("limits");
    /// let limit = TokenBucket::new("10/h".parse()?, 10)?;
    /// let before = Keyed::new(limit, 1_000)?;
    /// assert!(before.check("alice", 9).is_allowed());
    /// before.save(&path)?;
    ///
    /// let mut after = Keyed::new(limit, 1_000)?;
    /// after.load(&path)?;
    /// assert!(!after.check("alice", 9).is_allowed());
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the file cannot be written; the previous one then stays as it is.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<u64> {
        file::replace(path.as_ref(), |file| self.snapshot(file))
    }

    /// [`save`](Self::save) to anything that takes bytes. What it is given is a secret.
    ///
    /// # Errors
    /// When the bytes are not taken.
    pub fn snapshot(&self, to: impl Write) -> io::Result<u64> {
        // One at a time: the table can be told of one walk.
        let _one = self.walking.lock().unwrap_or_else(PoisonError::into_inner);
        let (changes, now) = (self.changes(), self.clock.now());
        let reader = self.reader(&changes, now);
        let generations = reader.generation();
        let limits: Limits = reader.limit().clone().into();
        let earlier: Vec<Limits> = (0..generations).map(|of| reader.limit_of(of).clone().into()).collect();
        let words = earlier.iter().map(Limits::words).fold(limits.words(), usize::max);
        let mut sink = Sink::new(to, (FRAME_WORDS + (MOST_AT_ONCE + 1) * (ENTRY_HEAD + words)).min(1 << 20));
        let head = Head { limits, earlier, mono: now.mono(), wall: now.wall(), secret: self.secret.clone() };
        head.write(&mut sink)?;

        let full = full_frame(words) as u64;
        let (mut total, mut held) = (0, 0);
        let keep = |sink: &mut Sink<_>, fingerprint: Fingerprint, generation: u64, state: &dyn Cells| {
            let earlier = if generation < generations { generation + 1 } else { 0 };
            sink.push(fingerprint.low);
            sink.push(u64::from(fingerprint.high) | earlier << 32);
            (0..words).for_each(|word| sink.push(state.get(word)));
        };
        sink.push(0);
        let overflow = self.overflow.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !reader.limit_of(overflow.generation).is_new(&*overflow.words, &reader.now) {
            keep(&mut sink, Fingerprint::default(), overflow.generation, &&*overflow.words);
            held += 1;
        }
        let table = self.table(&changes);
        let (walk, buckets) = (table.walk(), table.buckets());
        for index in 0..buckets {
            // Read anew for each, or the instant would be long past for the last of them.
            let reader = self.reader(&changes, self.clock.now());
            walk.visit(index, &reader, |fingerprint, slot| {
                if !reader.is_new(fingerprint, slot) {
                    keep(&mut sink, fingerprint, slot.generation, &slot.state);
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

    /// Goes on with what [`save`](Self::save) wrote, and returns how many entries that are. What was counted before is dropped.
    ///
    /// Time has gone on meanwhile: what would have flowed off, ended or begun anew has. The clock on the wall tells how
    /// long it was; if it was set back, no time has passed. The capacity may be another: should the keys not fit, the
    /// least spent of them find no room. So may the parameters of the limit: what was spent stays spent, as with
    /// [`set_limit`](Self::set_limit), and every entry still belongs to the limit it was last charged under. Another algorithm
    /// is refused.
    ///
    /// A [`Verdict`](crate::Verdict) from before gives its leases back afterwards, but nothing to a log or to a window that
    /// began with its first request. Instants before the zero of the clock are told as that zero, which matters to none of the
    /// clocks here but may to one of your own: a log of an hour then holds its entries for up to an hour from its zero on.
    ///
    /// # Errors
    /// When it cannot be read or is not what was written. This limiter then is as it was: nothing is restored in part.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<u64, RestoreError> {
        self.restore(std::fs::File::open(path).map_err(RestoreError::Unreadable)?)
    }

    /// [`load`](Self::load) from anything that gives the bytes of a [`snapshot`](Self::snapshot). They are read in large
    /// parts; nothing may follow them.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn restore(&mut self, from: impl Read) -> Result<u64, RestoreError> {
        let mut source = Source::new(from);
        let head = Head::read(&mut source)?;
        let limit = self.limit();
        let limits: Limits = limit.clone().into();
        head.must_be_of(&limits)?;
        // Entries of the limit in force come first in the file; here they belong to an earlier one unless it is the same.
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
        let capacity = self.capacity;
        // Entries of earlier limits may be longer than those of the limit in force.
        let table = Table::new(capacity, if earlier.is_empty() { limits.words() } else { wide });
        let table = table.ok_or(RestoreError::CapacityError(CapacityError { capacity }))?;

        let now = self.clock.now();
        let away = now.wall().since(head.wall);
        let then = head.mono.saturating_add(away);
        let reader = KeyedReader { earlier: &earlier, inline: &limit, later: &[], now };
        let mut overflow = Overflow { words: vec![0; wide], generation: reader.generation() };
        limit.init(&mut *overflow.words, &now);
        let mut state = vec![0; wide];
        let total = source.entries(words, &mut state, |fingerprint, number, state| {
            let Some(own) = stored.get(number as usize) else { return Err(RestoreError::Damaged) };
            let (own, generation, now) = (*own, generation_of(number), reader.now(fingerprint));
            own.rebase(state, then, now.mono());
            if fingerprint == Fingerprint::default() {
                overflow.words.copy_from_slice(state);
                overflow.generation = generation;
            } else if !own.is_new(state, &now) {
                let copy = |to: &mut Slot<'_>, _| {
                    state.iter().enumerate().for_each(|(at, word)| to.state.set(at, *word));
                    to.generation = generation;
                };
                // How spent it is matters, and is computed, only where somebody has to give way.
                if table.upsert(fingerprint, &reader, Spent::NOTHING, copy).is_none() {
                    table.upsert(fingerprint, &reader, own.spent(state, &now), copy);
                }
            }
            Ok(())
        })?;
        self.flags = AtomicU64::new(table.flags(earlier.len() as u64));
        self.changes = RwLock::default();
        self.limit = limit;
        self.table = table;
        self.secret = head.secret;
        self.earlier = earlier;
        self.overflow = Mutex::new(overflow);
        self.takings = Mutex::default();
        Ok(total)
    }
}

/// With so many entries a frame is written.
fn full_frame(words: usize) -> usize {
    (FRAME_WORDS / (ENTRY_HEAD + words)).max(1)
}

/// What has to be known before the entries mean anything.
struct Head {
    /// Those in force.
    limits: Limits,
    /// Earlier ones that entries may belong to.
    earlier: Vec<Limits>,
    mono: Time<Mono>,
    wall: Time<Wall>,
    secret: Secret,
}

impl Head {
    fn write<W: Write>(&self, sink: &mut Sink<W>) -> io::Result<()> {
        let limits = self.limits.as_slice();
        let counts = limits.len() as u64 | (self.earlier.len() as u64) << 32;
        let [first, second] = self.secret.points();
        let fixed = [counts, self.mono.as_nanos(), self.wall.as_nanos(), first, second];
        [MAGIC, VERSION].into_iter().chain(fixed).for_each(|word| sink.push(word));
        limits.iter().flat_map(|limit| Record::of(limit.params()).0).for_each(|word| sink.push(word));
        for limits in &self.earlier {
            sink.push(limits.as_slice().len() as u64);
            limits.as_slice().iter().flat_map(|limit| Record::of(limit.params()).0).for_each(|word| sink.push(word));
        }
        sink.finish(MAGIC)
    }

    fn read<R: Read>(source: &mut Source<R>) -> Result<Self, RestoreError> {
        if source.word()? != MAGIC {
            return Err(RestoreError::NotASnapshot);
        }
        let found = source.word()?;
        if found == 0 || found > VERSION {
            return Err(RestoreError::OtherVersion { found });
        }
        let (count, earlier) = (source.word()?, 0);
        let (count, earlier) = if found == 1 { (count, earlier) } else { (count & u64::from(u32::MAX), count >> 32) };
        if earlier >= GENERATIONS - 1 {
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
        let known = |records: Vec<Record>| {
            let limits = records.iter().map(Record::limit).collect::<Option<Vec<_>>>();
            let limits = limits.and_then(|limits| Limits::new(limits).ok()).ok_or(RestoreError::Damaged)?;
            // Version 1 had longer windows for slices that do not divide the length; their states mean something else.
            let same =
                limits.as_slice().iter().zip(&records).all(|(limit, record)| Record::of(limit.params()) == *record);
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

    /// The same algorithms in the same order.
    fn must_be_of(&self, wanted: &Limits) -> Result<(), RestoreError> {
        let [stored, asked] = [&self.limits, wanted].map(names);
        if stored == asked { Ok(()) } else { Err(RestoreError::OtherLimit { stored, wanted: asked }) }
    }
}

fn names(limits: &Limits) -> String {
    let names: Vec<&str> = limits.as_slice().iter().map(|limit| records::name(&limit.params())).collect();
    names.join(" with a ")
}

/// The records of a group of so many limits.
fn read_limits<R: Read>(source: &mut Source<R>, count: u64) -> Result<Vec<Record>, RestoreError> {
    if count > Limits::MAX as u64 {
        return Err(RestoreError::Damaged);
    }
    let mut records = vec![Record::default(); count as usize];
    for word in records.iter_mut().flat_map(|record| &mut record.0) {
        *word = source.word()?;
    }
    Ok(records)
}
