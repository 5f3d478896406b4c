//! A limit for each key.
//!
//! A request takes the first of these paths that applies:
//!
//! 1. *Fastest*, inlined into the caller: the state is one word, the key is in its home bucket, that bucket is unlocked
//!    and its entries all belong to the limit in force (`Buckets::try_visit_home`).
//!    The same out of line for longer states whose limit can do so (`try_take_words` in `decide.rs`).
//! 2. *Fast*: any state of a key that has an entry, in unlocked buckets of the limit in force (`Table::try_visit_known`).
//! 3. *Slow* (`decide.rs`): waits for locks, inserts a new key, displaces or evicts entries, and reads states of earlier limits
//!    (`change.rs`).
//! 4. *Overflow* (`overflow.rs`): a key without an entry is counted in one entry that all such keys share.
//!
//! By callgrind, a check takes 162 instructions on the fastest path and 275 on the fast one, and a refusal about as many.
//!
//! Each path either decides or has no effect, so the next one starts from the beginning.

mod acquire;
mod change;
mod decide;
mod overflow;
mod overflow_charges;
pub(crate) mod snapshot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError, RwLock};

use tollgate_core::{Algorithm, Ask, Cells, Cost, Limits, Now, Report, TokenBucket, Verdict};

use crate::clock::{Clock, PreciseClock};
pub use crate::fingerprint::Hashed;
use crate::fingerprint::{Fingerprint, Key, Secret};
use crate::sync::{AtomicU64, Ordering};
use crate::table::{BATCH, GENERATIONS, State, Table};
use crate::wait::Shards;
use change::{LaterLimits, NEVER};
pub(crate) use decide::{spent_by_arrival, with_init};
use overflow::OverflowEntry;
pub use overflow::WhenFull;
use overflow_charges::OverflowCharges;
pub use snapshot::RestoreError;

/// One limit, or several together, counted separately for each key: a user, an address, an API token.
///
/// The memory for a fixed number of keys is reserved at the start and touched only when used. Nothing is allocated afterwards and
/// nothing is cleaned up, so no decision waits for either. Only a fingerprint of a [`Key`] is stored, so a long key takes no
/// more memory than a short one.
///
/// ```
/// use tollgate::{Keyed, TokenBucket};
///
/// let per_user = Keyed::new(TokenBucket::new("10/s".parse()?, 5)?, 100_000)?;
/// assert!((0..5).all(|_| per_user.check("alice", 1).is_allowed()));
/// assert!(!per_user.check("alice", 1).is_allowed());
/// assert!(per_user.check("bob", 1).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Keyed<A: Algorithm = TokenBucket, C = PreciseClock> {
    table: Table,
    capacity: usize,
    secret: Secret,
    clock: C,
    /// The limit in force until the first change.
    limit: A,
    /// Earlier limits that entries may belong to, the oldest first, from a restored snapshot.
    earlier: Vec<A>,
    /// The flags of buckets whose entries all belong to `limit`; [`NEVER`] after a change. Relaxed: a thread that sees the
    /// value from before the change decides before it.
    flags: AtomicU64,
    changes: RwLock<LaterLimits<A>>,
    when_full: WhenFull,
    /// The state that all keys without an entry share.
    overflow: Mutex<OverflowEntry>,
    /// What keys took from the shared state; never locked together with it.
    overflow_charges: Mutex<OverflowCharges>,
    overflowed: AtomicU64,
    /// Locked during a snapshot.
    walking: Mutex<()>,
    shards: Shards<Fingerprint, A::Stamp>,
}

/// The number of shards of waiters, so that waiters for different keys seldom contend for a lock.
const SHARDS: usize = 16;

/// The default maximum of waiters for one key: far below the maximum for all keys, so that one key cannot fill the queue.
const MAX_WAITERS_PER_KEY: usize = 1_024;

/// The table does not fit in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityError {
    /// The number of keys asked for.
    pub capacity: usize,
}

impl fmt::Display for CapacityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a table of {} keys does not fit in memory; choose a smaller capacity", self.capacity)
    }
}

impl std::error::Error for CapacityError {}

impl<A: Algorithm> Keyed<A> {
    /// Makes a table of `capacity` keys under `limit`, with a precise clock.
    ///
    /// # Errors
    /// If it does not fit in memory.
    pub fn new(limit: A, capacity: usize) -> Result<Self, CapacityError> {
        Self::with_clock(limit, capacity, PreciseClock::new())
    }
}

impl<A: Algorithm, C: Clock> Keyed<A, C> {
    /// Makes a table of `capacity` keys under `limit` that takes its time from `clock`.
    ///
    /// # Errors
    /// If it does not fit in memory.
    pub fn with_clock(limit: A, capacity: usize, clock: C) -> Result<Self, CapacityError> {
        let table = Table::new(capacity, limit.words()).ok_or(CapacityError { capacity })?;
        let mut overflow = vec![0; limit.words()];
        limit.init(&mut *overflow, &clock.now_for(&limit));
        let flags = AtomicU64::new(table.flags(0));
        Ok(Self {
            table,
            capacity,
            secret: Secret::random(),
            clock,
            limit,
            earlier: Vec::new(),
            flags,
            changes: RwLock::default(),
            when_full: WhenFull::default(),
            overflow: Mutex::new(OverflowEntry { words: overflow, generation: 0 }),
            overflow_charges: Mutex::default(),
            overflowed: AtomicU64::new(0),
            walking: Mutex::new(()),
            shards: Shards::new(SHARDS).max_per_key(MAX_WAITERS_PER_KEY),
        })
    }

    /// Sets what happens to a new key when the table is full.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// Takes `cost` or refuses, spending nothing.
    #[inline(always)]
    pub fn check<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        let cost = Cost::new(cost);
        let now = self.clock.now_for(&self.limit);
        let fingerprint = key.fingerprint(&self.secret);
        if let Table::Single(buckets) = &self.table {
            let decide = |state: &mut State<'_>| match state.take(&self.limit, &now, cost) {
                Some(_) => Some(Ok(())),
                None => self.refuse_word(state.get(0), now.mono(), now.wall(), cost).map(Err),
            };
            match buckets.try_visit_home(fingerprint, self.flags(), decide) {
                Some(Ok(())) => return Verdict::granted(cost),
                Some(Err(retry)) => return Verdict::refused(retry),
                None => {}
            }
        } else if let Some(stamp) = self.try_take_words(fingerprint, now.mono(), now.wall(), cost) {
            return Verdict::stamped(cost, stamp);
        }
        self.check_slow(fingerprint, now.mono(), now.wall(), cost)
    }

    /// Takes `cost` or refuses, as [`check`](Self::check) does, and returns the state of the key's limit after that.
    pub fn check_and_report<K: Key + ?Sized>(&self, key: &K, cost: u64) -> (Verdict<A::Stamp>, Report) {
        let cost = Cost::new(cost);
        self.decide(key, Ask::Exactly(cost), |entry, verdict| (verdict, entry.report(cost)))
    }

    /// Takes as much of `cost` as fits; [`Verdict::taken`] says how much.
    pub fn take_up_to<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        self.decide(key, Ask::UpTo(Cost::new(cost)), |_, verdict| verdict)
    }

    /// Takes `cost` whether it fits or not, into debt as far as the limit allows.
    pub fn charge<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        self.decide(key, Ask::Regardless(Cost::new(cost)), |_, verdict| verdict)
    }

    /// Takes all that is left; returns how much.
    pub fn drain<K: Key + ?Sized>(&self, key: &K) -> u64 {
        self.decide(key, Ask::UpTo(Cost::MAX), |_, verdict| verdict).taken().get()
    }

    /// Decides many requests independently, as [`check`](Self::check) does, and calls `each` with every verdict in
    /// order.
    ///
    /// Sixteen at a time are hashed and their memory is fetched together, with one reading of the clock: on a large table this is
    /// several times as fast as single checks.
    #[inline]
    pub fn check_many<K: Key>(
        &self,
        requests: impl IntoIterator<Item = (K, u64)>,
        mut each: impl FnMut(Verdict<A::Stamp>),
    ) {
        let mut requests = requests.into_iter();
        let (mut fingerprints, mut costs) = ([Fingerprint::default(); BATCH], [Cost::ZERO; BATCH]);
        let mut verdicts = [Verdict::default(); BATCH];
        let mut previous: Option<(K, Fingerprint)> = None;
        loop {
            let mut len = 0;
            // The buffer comes first in the zip: a request taken from the iterator when the buffer is full would be
            // lost.
            for ((fingerprint, place), (key, cost)) in fingerprints.iter_mut().zip(&mut costs).zip(requests.by_ref()) {
                *place = Cost::new(cost);
                *fingerprint = match &previous {
                    // Consecutive requests for one key are hashed once.
                    Some((same, fingerprint)) if key.is_same(same) => *fingerprint,
                    _ => key.fingerprint(&self.secret),
                };
                previous = Some((key, *fingerprint));
                len += 1;
            }
            if len == 0 {
                return;
            }
            let now = self.clock.now_for(&self.limit);
            self.table.try_visit_home_many(&fingerprints[..len], self.flags(), |place, state| {
                let (fingerprint, cost) = (fingerprints[place], costs[place]);
                // One assignment per case: a verdict that is the value of the match is copied byte by byte.
                match state {
                    Some(state) => match state.take(&self.limit, &now, cost) {
                        Some(stamp) => verdicts[place] = Verdict::stamped(cost, stamp),
                        None => {
                            verdicts[place] = self.decide_locked(*state, now.mono(), now.wall(), fingerprint, cost);
                        }
                    },
                    None => verdicts[place] = self.check_slow(fingerprint, now.mono(), now.wall(), cost),
                }
            });
            // After all locks are released: `each` may use this table.
            verdicts[..len].iter().for_each(|verdict| each(*verdict));
        }
    }

    /// Returns what [`check`](Self::check) would return. Changes nothing and inserts nothing.
    pub fn peek<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        self.read(key, |entry| entry.weigh(Ask::Exactly(Cost::new(cost))))
    }

    /// Returns the state of the key's limit, with `retry` for a request of `cost`. Changes nothing and inserts nothing.
    pub fn report<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Report {
        self.read(key, |entry| entry.report(Cost::new(cost)))
    }

    /// Gives back what `verdict` took, as far as it still counts; returns how much.
    pub fn refund<K: Key + ?Sized>(&self, key: &K, verdict: &Verdict<A::Stamp>) -> u64 {
        self.refund_part(key.fingerprint(&self.secret), verdict, verdict.taken())
    }

    /// Forgets what the key has spent.
    pub fn reset<K: Key + ?Sized>(&self, key: &K) {
        let fingerprint = key.fingerprint(&self.secret);
        self.find(fingerprint, self.now(), |account| account.reset());
        self.shards.notify(shard_of(fingerprint), fingerprint);
    }

    /// Sets the maximum number of waiters for all keys together, 65,536 if it is not set, and for one key, 1,024 if it is not set.
    #[must_use]
    pub fn max_waiters(mut self, in_all: usize, per_key: usize) -> Self {
        (self.shards.max, self.shards.max_per_key) = (in_all, per_key);
        self
    }

    /// Returns the number of waiters for all keys together.
    pub fn waiters(&self) -> usize {
        self.shards.waiting()
    }

    /// Returns the limit in force.
    pub fn limit(&self) -> A
    where
        A: Clone,
    {
        let changes = self.changes();
        self.reader(&changes, Now::at(0)).limit().clone()
    }

    /// Puts another limit in force, for waiters as well. The amount spent is kept: an entry belongs to the limit under
    /// which it was last charged, until a request for its key is admitted under the new one. Until then it refills
    /// under its own limit, and what it has used up counts against the capacity of the new one. Peeks, refusals and
    /// refunds do not change that.
    ///
    /// Decisions take a read lock after the first change. If the new limit needs longer states than the table has, all entries
    /// are moved to a new table, and decisions wait for that; if there are more entries than the table was made for, the least
    /// spent of them may be lost.
    ///
    /// Entries can belong to 1022 earlier limits at a time. Beyond that, limits without entries are dropped, and if
    /// that is not enough, entries are converted to the limit in force before this change, if it can hold what they
    /// have used up.
    ///
    /// # Errors
    /// If the new table does not fit in memory, or 1022 earlier limits have entries with more used up than the limit in force can
    /// hold. The limit then stays as it was, and nothing is forgotten.
    pub fn set_limit(&self, limit: A) -> Result<(), CapacityError> {
        // A snapshot reads the generations while it runs.
        let walking = self.walking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        // Before the table is touched: from here on no fast path begins.
        self.flags.store(NEVER, Ordering::Relaxed);
        let (capacity, words) = (self.capacity, limit.words());
        let reader = self.reader(&changes, self.clock.now());
        let table = self.table(&changes);
        if words > table.state_words() {
            let table = reader.rebuild(table, capacity, words).ok_or(CapacityError { capacity })?;
            changes.table = Some(table);
        }
        let mut overflow = self.overflow.lock().unwrap_or_else(PoisonError::into_inner);
        let all_used = |changes: &LaterLimits<A>| (self.earlier.len() + changes.later.len()) as u64 == GENERATIONS - 1;
        if all_used(&changes) {
            let reader = self.reader(&changes, self.clock.now());
            let mut used = reader.renumber(self.table(&changes), &mut overflow).into_iter();
            changes.later.retain(|_| used.next().unwrap_or(true));
        }
        if all_used(&changes) {
            return Err(CapacityError { capacity });
        }
        let words = words.max(overflow.words.len());
        overflow.words.resize(words, 0);
        drop(overflow);
        changes.later.push(limit);
        drop(changes);
        drop(walking);
        self.shards.notify_all();
        Ok(())
    }

    /// Returns the memory that the table takes once all of it has been used.
    pub fn bytes(&self) -> usize {
        self.table(&self.changes()).bytes()
    }

    /// Returns how many decisions were about keys without an entry.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }
}

impl<A: Algorithm + Clone + Into<Limits> + TryFrom<Limits>, C: Clock> Keyed<A, C> {
    /// Writes what every key has spent to a file, for [`load`](Self::load), and returns the number of entries.
    ///
    /// Decisions do not wait for it. Unused entries are left out. The file contains the secret that protects keys against
    /// constructed collisions, so only its owner may read it. It is written under a temporary name that ends in `.tmp`, synced,
    /// and then renamed over the previous file: after a crash one of the two is there, complete.
    ///
    /// ```
    /// use tollgate::{Keyed, TokenBucket};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("limits");
    /// let limit = TokenBucket::new("10/h".parse()?, 10)?;
    /// let before = Keyed::new(limit, 1_000)?;
    /// assert!(before.check("alice", 9).is_allowed());
    /// before.save(&path)?;
    ///
    /// let mut after = Keyed::new(limit, 1_000)?;
    /// after.load(&path)?;
    /// assert!(!after.check("alice", 9).is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the file cannot be written; the previous file is unchanged.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<u64> {
        snapshot::file::replace(path.as_ref(), |file| self.snapshot(file))
    }

    /// Writes the snapshot that [`save`](Self::save) writes to any writer. It contains the secret.
    ///
    /// # Errors
    /// If writing fails.
    pub fn snapshot(&self, to: impl Write) -> io::Result<u64> {
        snapshot::write(self, to)
    }

    /// Replaces all entries by those that [`save`](Self::save) wrote, and returns their number.
    ///
    /// The time since then counts: buckets have refilled and windows have ended as they would have. The wall clock says
    /// how much time has passed; if it was set back, none has. The capacity may differ: if the keys do not fit, the
    /// least spent ones are lost. The parameters of the limit may differ: the amount spent is kept, as with
    /// [`set_limit`](Self::set_limit), and every entry belongs to the limit under which it was last charged. Another
    /// algorithm is an error.
    ///
    /// A [`Verdict`] from before the snapshot can refund leases, but not entries of a log or of a window that began
    /// with its first request. Instants before the zero of the clock become zero. That concerns only custom clocks: a
    /// log of an hour then keeps such entries for an hour after zero.
    ///
    /// # Errors
    /// If it cannot be read or is damaged. The limiter is then unchanged: nothing is restored in part.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<u64, RestoreError> {
        self.restore(std::fs::File::open(path).map_err(RestoreError::Unreadable)?)
    }

    /// Restores as [`load`](Self::load) does from a reader of a [`snapshot`](Self::snapshot). Reads in large parts; nothing may
    /// follow the snapshot.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub fn restore(&mut self, from: impl Read) -> Result<u64, RestoreError> {
        snapshot::restore(self, from)
    }
}

impl<A: Algorithm, C> Keyed<A, C> {
    #[inline]
    fn flags(&self) -> u64 {
        self.flags.load(Ordering::Relaxed)
    }
}

/// Returns a number that selects the shard of a key's waiters.
const fn shard_of(fingerprint: Fingerprint) -> usize {
    // Uses other bits than those that select the bucket.
    fingerprint.high as usize
}

impl<A: Algorithm + fmt::Debug, C> fmt::Debug for Keyed<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("limit", &self.limit).field("table", &self.table).finish_non_exhaustive()
    }
}
