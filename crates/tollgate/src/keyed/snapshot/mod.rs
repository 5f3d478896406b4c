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
//! **Whole entries.** A bucket's entries are copied while its short lock is held, as for any decision, and written when
//! nothing is. Each entry is as it was at some instant during the snapshot. None is missed: an entry that would move from
//! where the walk has not been to where it has stays where it is.

mod file;
mod frames;
mod records;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tollgate_core::{Algorithm, Cells, CellsMut, Limits, Mono, Spent, Time, Wall};

use super::numbers::Judge;
use super::{Keyed, TooLarge};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Secret};
use crate::table::{Owner, State, Table};
use frames::{Sink, Source};
use records::Record;

/// `tollgate`, as a word.
const MAGIC: u64 = u64::from_le_bytes(*b"tollgate");
/// Raised when what is written changes its meaning, the words of any algorithm's state included.
const VERSION: u64 = 1;
/// About so many words lie between two seals: enough for a write to be worth its while.
const FRAME_WORDS: usize = 8_192;
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
    TooLarge(TooLarge),
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
            Self::TooLarge(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RestoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable(error) => Some(error),
            Self::TooLarge(error) => Some(error),
            Self::NotASnapshot
            | Self::OtherVersion { .. }
            | Self::CutShort
            | Self::Damaged
            | Self::OtherLimit { .. } => None,
        }
    }
}

impl<A: Algorithm + Clone + Into<Limits>, C: Clock> Keyed<A, C> {
    /// Writes what every key has spent to a file, which [`load`](Self::load) reads, and returns how many entries that are.
    ///
    /// Decisions go on meanwhile and do not wait for it: each key is written as it is when its turn comes. Keys that are as
    /// good as new are left out. The file contains the secret that keeps people from aiming at other people's entries, so only
    /// its owner may read it. It is written beside its final place, under a name of its own that ends in `.tmp`, brought to
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
        let limits: Limits = self.limit.clone().into();
        let words = limits.words();
        let mut sink = Sink::new(to, (FRAME_WORDS + (MOST_AT_ONCE + 1) * (ENTRY_HEAD + words)).min(1 << 20));
        let now = self.clock.now();
        let head = Head { limits, mono: now.mono(), wall: now.wall(), secret: self.secret.clone() };
        head.write(&mut sink)?;

        let full = full_frame(words) as u64;
        let (mut total, mut held) = (0, 0);
        let keep = |sink: &mut Sink<_>, print: Fingerprint, state: &dyn Cells| {
            sink.push(print.low);
            sink.push(print.high.into());
            (0..words).for_each(|word| sink.push(state.get(word)));
        };
        sink.push(0);
        let overflow = self.overflow.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !self.limit.is_new(&*overflow, &now) {
            keep(&mut sink, Fingerprint::default(), &&*overflow);
            held += 1;
        }
        let (walk, buckets) = (self.table.walk(), self.table.buckets());
        for index in 0..buckets {
            // Read anew for each, or the instant would be long past for the last of them.
            let owner = self.judge(self.clock.now());
            walk.visit(index, &owner, |print, state| {
                if !owner.is_new(print, state) {
                    keep(&mut sink, print, &*state);
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
    /// least spent of them find no room. So may the numbers of the limit: what was spent stays spent, as with
    /// [`set_limit`](Self::set_limit). Another algorithm is refused.
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
        let limits: Limits = self.limit.clone().into();
        head.must_be_of(&limits)?;
        let capacity = self.capacity;
        let table = Table::new(capacity, self.limit.words());
        let table = table.ok_or(RestoreError::TooLarge(TooLarge { capacity }))?;

        let now = self.clock.now();
        let away = now.wall().since(head.wall);
        let (then, words) = (head.mono.saturating_add(away), head.limits.words());
        let changed = head.limits != limits;
        let owner = Judge { limit: &self.limit, earlier: &[], now };
        let mut overflow = vec![0; limits.words()];
        self.limit.fresh(&mut *overflow, &now);
        let mut state = vec![0; words.max(limits.words())];
        let total = source.entries(words, &mut state, |print, state| {
            head.limits.rebase(state, then, now.mono());
            if changed {
                limits.convert(&head.limits, state, &owner.now(print));
            }
            let state = &state[..limits.words()];
            if print == Fingerprint::default() {
                overflow.copy_from_slice(state);
            } else if !self.limit.is_new(state, &owner.now(print)) {
                let copy = |to: &mut State<'_>, _| state.iter().enumerate().for_each(|(at, word)| to.set(at, *word));
                // How spent it is matters, and is computed, only where somebody has to give way.
                if table.enter(print, &owner, Spent::NOTHING, copy).is_none() {
                    table.enter(print, &owner, self.limit.spent(state, &owner.now(print)), copy);
                }
            }
        })?;
        self.table = table;
        self.secret = head.secret;
        self.earlier.clear();
        self.overflow = Mutex::new(overflow.into());
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
    limits: Limits,
    mono: Time<Mono>,
    wall: Time<Wall>,
    secret: Secret,
}

impl Head {
    fn write<W: Write>(&self, sink: &mut Sink<W>) -> io::Result<()> {
        let limits = self.limits.as_slice();
        let [first, second] = self.secret.points();
        let fixed = [limits.len() as u64, self.mono.as_nanos(), self.wall.as_nanos(), first, second];
        [MAGIC, VERSION].into_iter().chain(fixed).for_each(|word| sink.push(word));
        limits.iter().flat_map(|limit| Record::of(limit.terms()).0).for_each(|word| sink.push(word));
        sink.finish(MAGIC)
    }

    fn read<R: Read>(source: &mut Source<R>) -> Result<Self, RestoreError> {
        if source.word()? != MAGIC {
            return Err(RestoreError::NotASnapshot);
        }
        let found = source.word()?;
        if found != VERSION {
            return Err(RestoreError::OtherVersion { found });
        }
        let count = source.word()?;
        if count > Limits::MAX as u64 {
            return Err(RestoreError::Damaged);
        }
        let mut fixed = [0; 4];
        for word in &mut fixed {
            *word = source.word()?;
        }
        let [mono, wall, first, second] = fixed;
        let mut records = [Record::default(); Limits::MAX];
        for word in records.iter_mut().take(count as usize).flat_map(|record| &mut record.0) {
            *word = source.word()?;
        }
        source.check_seal()?;
        let limits = records.iter().take(count as usize).map(Record::limit).collect::<Option<Vec<_>>>();
        Ok(Self {
            limits: limits.and_then(|limits| Limits::new(limits).ok()).ok_or(RestoreError::Damaged)?,
            mono: Time::from_nanos(mono),
            wall: Time::from_nanos(wall),
            secret: Secret::from_points([first, second]),
        })
    }

    /// The same algorithms in the same order.
    fn must_be_of(&self, wanted: &Limits) -> Result<(), RestoreError> {
        let [stored, wanted] = [&self.limits, wanted].map(|limits| {
            let names: Vec<&str> = limits.as_slice().iter().map(|limit| records::name(&limit.terms())).collect();
            names.join(" with a ")
        });
        if stored == wanted { Ok(()) } else { Err(RestoreError::OtherLimit { stored, wanted }) }
    }
}
