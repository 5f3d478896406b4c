//! A separate limit for each key.
//!
//! A request takes the first of these paths that applies:
//!
//! 1. *Fastest*, inlined into the caller: the state is one word, the key is in its home bucket, that bucket is
//!    unlocked, and all its entries belong to the current limit (`Buckets::try_visit_home`). Some algorithms have the
//!    same path for longer states, not inlined (`try_take_words` in `decide.rs`).
//! 2. *Fast*: the key has an entry, its buckets are unlocked, and their entries belong to the current limit
//!    (`Table::try_visit_known`). The state may have any length.
//! 3. *Slow* (`decide.rs`): waits for locks, inserts new keys, displaces or evicts entries, and reads states that
//!    belong to earlier limits (`change.rs`).
//! 4. *Overflow* (`overflow.rs`): all keys without an entry share one overflow entry.
//!
//! A check takes 158 instructions on the fastest path and 275 on the fast path (callgrind). A refusal takes about the
//! same number.
//!
//! A path that does not apply has no effect, so the next path can start from scratch. A batch (`batch.rs`) looks for
//! each key in both buckets before it locks any, locks the bucket that probably has the key, and otherwise takes the
//! slow path.

mod acquire;
mod batch;
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
use crate::table::{MAX_GENERATIONS, State, Table};
use crate::wait::Shards;
use batch::Batch;
use change::{FLAGS_OF_NO_BUCKET, LaterLimits};
pub(crate) use decide::{max_spent_by, with_new_state};
use overflow::OverflowEntry;
pub use overflow::WhenFull;
use overflow_charges::OverflowCharges;
pub use snapshot::RestoreError;

/// One limit, or a combination of several, counted separately for each key, such as a user, an address or an API token.
///
/// The memory for a fixed number of keys is reserved on creation; its pages are touched on first use. Unless the limit
/// changes, a `check` does not allocate. Decisions never wait for a clean-up. The table stores a fingerprint of each
/// [`Key`], so a long key takes no more memory than a short key.
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
    /// The limit that applies until the first change.
    limit: A,
    /// Earlier limits from a restored snapshot, in the order of the snapshot. Entries may belong to these limits.
    earlier: Vec<A>,
    /// The flags of buckets whose entries all belong to `limit`; [`FLAGS_OF_NO_BUCKET`] after a change. Relaxed,
    /// because a decision that reads the old value counts as if it were made before the change.
    flags: AtomicU64,
    changes: RwLock<LaterLimits<A>>,
    when_full: WhenFull,
    /// The state that all keys without an entry share.
    overflow: Mutex<OverflowEntry>,
    /// Charges to the shared state, per key. Never locked together with `overflow`.
    overflow_charges: Mutex<OverflowCharges>,
    overflowed: AtomicU64,
    /// Held during a snapshot.
    snapshot_lock: Mutex<()>,
    shards: Shards<Fingerprint, A::Stamp>,
}

/// Number of waiter shards. With several shards, waiters for different keys rarely contend for a lock.
const WAITER_SHARDS: usize = 16;

/// Default maximum number of waiters per key. This default is far below the maximum for all keys, so that one key
/// cannot use up all waiter slots.
const DEFAULT_MAX_WAITERS_PER_KEY: usize = 1_024;

/// The table does not fit in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityError {
    /// The requested number of keys.
    pub capacity: usize,
}

impl fmt::Display for CapacityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a table of {} keys does not fit in memory; choose a smaller capacity", self.capacity)
    }
}

impl std::error::Error for CapacityError {}

impl<A: Algorithm> Keyed<A> {
    /// Creates a table of `capacity` keys under `limit`, with a precise clock.
    ///
    /// # Errors
    /// Returns an error if the table does not fit in memory.
    pub fn new(limit: A, capacity: usize) -> Result<Self, CapacityError> {
        Self::with_clock(limit, capacity, PreciseClock::new())
    }
}

impl<A: Algorithm, C: Clock> Keyed<A, C> {
    /// Creates a table of `capacity` keys under `limit`. The table reads the time from `clock`.
    ///
    /// # Errors
    /// Returns an error if the table does not fit in memory.
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
            snapshot_lock: Mutex::new(()),
            shards: Shards::new(WAITER_SHARDS).max_per_key(DEFAULT_MAX_WAITERS_PER_KEY),
        })
    }

    /// Sets the policy for new keys when the table is full.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// Takes `cost`, or refuses it and takes nothing.
    #[inline(always)]
    pub fn check<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        let cost = Cost::new(cost);
        let now = self.clock.now_for(&self.limit);
        let fingerprint = key.fingerprint(&self.secret);
        let taken = match &self.table {
            Table::SingleWord(buckets) => {
                let decide = |state: &mut State<'_>| match state.take(&self.limit, &now, cost) {
                    Some(stamp) => Some(Ok(stamp)),
                    None => self.refuse_word(state.get(0), now.mono(), now.wall(), cost).map(Err),
                };
                match buckets.try_visit_home(fingerprint, self.flags(), decide) {
                    Some(Ok(stamp)) => Some(stamp),
                    Some(Err(retry)) => return Verdict::new_refused(retry),
                    None => None,
                }
            }
            Table::Double(buckets) => self.try_take_words(buckets, fingerprint, now.mono(), now.wall(), cost),
            Table::Wide(buckets) => self.try_take_words(buckets, fingerprint, now.mono(), now.wall(), cost),
        };
        match taken {
            Some(stamp) => Verdict::new_allowed_with_stamp(cost, stamp),
            None => self.check_slow(fingerprint, now.mono(), now.wall(), cost),
        }
    }

    /// Decides like [`check`](Self::check), and also returns a report of the key's limit after the decision.
    pub fn check_and_report<K: Key + ?Sized>(&self, key: &K, cost: u64) -> (Verdict<A::Stamp>, Report) {
        let cost = Cost::new(cost);
        self.decide(key, Ask::Exactly(cost), |entry, verdict| (verdict, entry.report(cost)))
    }

    /// Takes as much of `cost` as is available. [`Verdict::taken`] returns the amount taken.
    pub fn take_up_to<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        self.decide(key, Ask::UpTo(Cost::new(cost)), |_, verdict| verdict)
    }

    /// Takes `cost` even if less is available, and goes into debt up to the maximum debt of the limit.
    pub fn charge<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        self.decide(key, Ask::Regardless(Cost::new(cost)), |_, verdict| verdict)
    }

    /// Takes the whole remaining capacity, and returns the amount taken.
    pub fn drain<K: Key + ?Sized>(&self, key: &K) -> u64 {
        self.decide(key, Ask::UpTo(Cost::MAX), |_, verdict| verdict).taken().get()
    }

    /// Decides each request like [`check`](Self::check), and calls `each` with the verdicts in order.
    ///
    /// Requests are processed in batches of sixteen: a batch hashes its keys, fetches their memory concurrently, and
    /// reads the clock once. On a large table, a batch is several times as fast as single checks.
    #[inline]
    pub fn check_many<K: Key>(
        &self,
        requests: impl IntoIterator<Item = (K, u64)>,
        mut each: impl FnMut(Verdict<A::Stamp>),
    ) {
        let (mut batch, mut requests) = (Batch::new(), requests.into_iter());
        while batch.fill(&mut requests, &self.secret, &self.table) {
            // All locks are released when `each` is called, because `each` may use this table.
            batch.decide(self).iter().for_each(|verdict| each(*verdict));
        }
    }

    /// Returns the verdict that [`check`](Self::check) would return, without changing or inserting anything.
    pub fn peek<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        self.read(key, |entry| entry.weigh(Ask::Exactly(Cost::new(cost))))
    }

    /// Returns a report of the key's limit, with `retry` for a request of `cost`. Changes and inserts nothing.
    pub fn report<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Report {
        self.read(key, |entry| entry.report(Cost::new(cost)))
    }

    /// Gives back the part of the `verdict`'s charge that still counts, and returns that amount.
    pub fn refund<K: Key + ?Sized>(&self, key: &K, verdict: &Verdict<A::Stamp>) -> u64 {
        self.refund_part(key.fingerprint(&self.secret), verdict, verdict.taken())
    }

    /// Resets the key to the state of a new key.
    pub fn reset<K: Key + ?Sized>(&self, key: &K) {
        let fingerprint = key.fingerprint(&self.secret);
        self.find(fingerprint, self.now(), |account| account.reset());
        self.shards.notify(shard_of(fingerprint), fingerprint);
    }

    /// Sets the maximum number of waiters for all keys together (default 65,536) and per key (default 1,024).
    #[must_use]
    pub fn max_waiters(mut self, in_all: usize, per_key: usize) -> Self {
        (self.shards.max, self.shards.max_per_key) = (in_all, per_key);
        self
    }

    /// Returns the number of waiters for all keys together.
    pub fn waiters(&self) -> usize {
        self.shards.waiter_count()
    }

    /// Returns the current limit.
    pub fn limit(&self) -> A
    where
        A: Clone,
    {
        let changes = self.changes();
        self.reader(&changes, Now::at(0)).limit().clone()
    }

    /// Replaces the limit and keeps the used amounts. The new limit also applies to waiters. An entry keeps its old
    /// parameters until the new limit admits a request for its key. Until then the entry refills at its old rate, and
    /// its used amount counts against the capacity of the new limit. Peeks, refusals and refunds do not convert an
    /// entry.
    ///
    /// After the first change, decisions take a read lock. If the new limit needs longer states than the table has, all
    /// entries are moved to a new table while decisions wait. If the table contains more entries than its capacity, the
    /// least used entries may be lost.
    ///
    /// Entries can belong to at most 1022 earlier limits at a time. Beyond that, limits without entries are dropped. If
    /// more than half of the limits have entries, each entry whose used amount is within the limit being replaced is
    /// first converted to that limit.
    ///
    /// # Errors
    /// Returns an error if the new table does not fit in memory. Also returns an error if 1022 earlier limits have
    /// entries whose used amount exceeds the current limit. The limit is then unchanged.
    pub fn set_limit(&self, limit: A) -> Result<(), CapacityError> {
        // Waits for a running snapshot, because the snapshot reads the generations.
        let snapshot_lock = self.snapshot_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        let (capacity, words) = (self.capacity, limit.words());
        let longer = match words > self.table(&changes).state_words() {
            true => Some(Table::new(capacity, words).ok_or(CapacityError { capacity })?),
            false => None,
        };
        // Disables the fast paths before the table is changed.
        self.flags.store(FLAGS_OF_NO_BUCKET, Ordering::Relaxed);
        let mut overflow = self.overflow.lock().unwrap_or_else(PoisonError::into_inner);
        let all_used =
            |changes: &LaterLimits<A>| (self.earlier.len() + changes.later.len()) as u64 == MAX_GENERATIONS - 1;
        if all_used(&changes) {
            let reader = self.reader(&changes, self.clock.now());
            let mut used = reader.renumber_generations(self.table(&changes), &mut overflow).into_iter();
            changes.later.retain(|_| used.next().unwrap_or(true));
        }
        if all_used(&changes) {
            return Err(CapacityError { capacity });
        }
        if let Some(longer) = longer {
            self.reader(&changes, self.clock.now()).move_to_longer_table(self.table(&changes), &longer);
            changes.table = Some(longer);
        }
        let words = words.max(overflow.words.len());
        overflow.words.resize(words, 0);
        drop(overflow);
        changes.later.push(limit);
        drop(changes);
        drop(snapshot_lock);
        self.shards.notify_all();
        Ok(())
    }

    /// Returns the size of the table in bytes, including pages that were never touched.
    pub fn bytes(&self) -> usize {
        self.table(&self.changes()).bytes()
    }

    /// Returns the number of decisions on keys without an entry.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }
}

impl<A: Algorithm + Clone + Into<Limits> + TryFrom<Limits>, C: Clock> Keyed<A, C> {
    /// Writes all used entries to a file for [`load`](Self::load), and returns their number.
    ///
    /// Decisions continue during the snapshot. The file contains the secret that protects against constructed hash
    /// collisions, so only its owner may read it. The snapshot is written to a temporary file whose name ends in
    /// `.tmp`, synced, and renamed over the previous file. After a crash, either the complete previous file or the
    /// complete new file exists.
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
    /// Returns an error if the file cannot be written. The previous file is then unchanged, unless only syncing its
    /// folder failed.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<u64> {
        snapshot::file::replace(path.as_ref(), |file| self.snapshot(file))
    }

    /// Writes the same snapshot as [`save`](Self::save) to any writer. The snapshot contains the secret.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn snapshot(&self, to: impl Write) -> io::Result<u64> {
        snapshot::write(self, to)
    }

    /// Replaces all entries by the entries of a file written by [`save`](Self::save), and returns their number.
    ///
    /// States refill and expire as if the process had kept running since the snapshot; the elapsed time is measured by
    /// the wall clock. If the wall clock was set back, the elapsed time is zero. The capacity may differ: if the table
    /// is too small, the least used keys are lost. The parameters of the limit may differ: used amounts are kept, as in
    /// [`set_limit`](Self::set_limit). The algorithm must be the same.
    ///
    /// A [`Verdict`] from before the snapshot can refund leases, but not charges to a log or to a window that began
    /// with its first request. Instants before the zero of the clock become zero; a log of one hour then keeps such
    /// entries for an hour after zero. Only custom clocks have such instants.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is damaged, or was written under another algorithm. The limiter is
    /// then unchanged.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<u64, RestoreError> {
        self.restore(std::fs::File::open(path).map_err(RestoreError::Unreadable)?)
    }

    /// Restores a [`snapshot`](Self::snapshot) from a reader, like [`load`](Self::load). Reads in large blocks; no data
    /// may follow the snapshot.
    ///
    /// # Errors
    /// Returns the same errors as [`load`](Self::load).
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

/// Returns a number that selects the shard for the key's waiters.
const fn shard_of(fingerprint: Fingerprint) -> usize {
    // The bits used here do not select the bucket.
    fingerprint.high as usize
}

impl<A: Algorithm + fmt::Debug, C> fmt::Debug for Keyed<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("limit", &self.limit).field("table", &self.table).finish_non_exhaustive()
    }
}
