//! A limit for each key.

mod acquire;
mod change;
mod decide;
mod overflow;
pub(crate) mod snapshot;
mod takings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Mutex, RwLock};

use tollgate_core::{Algorithm, Ask, Cost, Now, Report, TokenBucket, Verdict};

use crate::clock::{Clock, PreciseClock};
pub use crate::fingerprint::Hashed;
use crate::fingerprint::{Fingerprint, Key, Secret};
use crate::sync::{AtomicU64, Ordering};
use crate::table::{BATCH, Table};
use crate::wait::Shards;
use change::Changes;
pub(crate) use decide::{spent_by_arrival, with_init};
use overflow::Overflow;
pub use overflow::WhenFull;
pub use snapshot::RestoreError;
use takings::Takings;

/// One limit, or several together, counted separately for each key: a user, an address, an API token.
///
/// Room for a fixed number of keys is reserved at the start and touched only when used. Nothing is allocated afterwards,
/// nothing is cleaned up, and no decision ever waits for either. Of a [`Key`] only a fingerprint is kept, so a long one takes
/// no more room than a short one.
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
    /// Limits before it that entries may belong to, the oldest first: those of a snapshot that was restored.
    earlier: Vec<A>,
    /// The flags of buckets whose entries all belong to `limit`; [`change::NEVER`] after a change. Relaxed: a thread that sees the
    /// value from before the change decides before it.
    flags: AtomicU64,
    changes: RwLock<Changes<A>>,
    when_full: WhenFull,
    /// What all keys without an entry of their own share.
    overflow: Mutex<Overflow>,
    /// What was taken from it; never locked together with it.
    takings: Mutex<Takings>,
    overflowed: AtomicU64,
    /// Held by whoever takes a snapshot.
    walking: Mutex<()>,
    shards: Shards<Fingerprint, A::Stamp>,
}

/// How many waiting shards there are, so that those who wait for different keys seldom meet at a lock.
const SHARDS: usize = 16;

/// How many may wait for one key unless said otherwise: far fewer than in all, lest one key keep the others from waiting.
const MAX_WAITERS_PER_KEY: usize = 1_024;

/// The table asked for does not fit in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityError {
    /// How many keys were asked for.
    pub capacity: usize,
}

impl fmt::Display for CapacityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a table of {} keys does not fit in memory, ask for fewer", self.capacity)
    }
}

impl std::error::Error for CapacityError {}

impl<A: Algorithm> Keyed<A> {
    /// Room for `capacity` keys under `limit`, with a precise clock.
    ///
    /// # Errors
    /// When that many do not fit in memory.
    pub fn new(limit: A, capacity: usize) -> Result<Self, CapacityError> {
        Self::with_clock(limit, capacity, PreciseClock::new())
    }
}

impl<A: Algorithm, C: Clock> Keyed<A, C> {
    /// Room for `capacity` keys under `limit`, with time taken from `clock`.
    ///
    /// # Errors
    /// When that many do not fit in memory.
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
            overflow: Mutex::new(Overflow { words: overflow, generation: 0 }),
            takings: Mutex::default(),
            overflowed: AtomicU64::new(0),
            walking: Mutex::new(()),
            shards: Shards::new(SHARDS).max_per_key(MAX_WAITERS_PER_KEY),
        })
    }

    /// With another fate for keys that find no room.
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
        let take = |word| self.limit.take_from_word(word, &now, cost);
        if self.table.try_take_fast(fingerprint, self.flags(), take) {
            return Verdict::granted(cost);
        }
        self.check_slow(fingerprint, now.mono(), now.wall(), cost)
    }

    /// [`check`](Self::check), with what may be told about the key's limit afterwards.
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

    /// [`check`](Self::check) for many keys, calling `each` with every answer in order.
    ///
    /// The requests are independent of each other. Sixteen at a time are hashed and their memory fetched together, on one
    /// reading of the clock: with many keys this is several times as fast as asking one by one.
    #[inline]
    pub fn check_many<K: Key>(
        &self,
        requests: impl IntoIterator<Item = (K, u64)>,
        mut each: impl FnMut(Verdict<A::Stamp>),
    ) {
        let mut requests = requests.into_iter();
        let (mut fingerprints, mut costs) = ([Fingerprint::default(); BATCH], [Cost::ZERO; BATCH]);
        let mut verdicts = [Verdict::default(); BATCH];
        loop {
            let mut len = 0;
            // The places come first: a request taken from the caller with no place left would be lost.
            for ((fingerprint, place), (key, cost)) in fingerprints.iter_mut().zip(&mut costs).zip(requests.by_ref()) {
                (*fingerprint, *place) = (key.fingerprint(&self.secret), Cost::new(cost));
                len += 1;
            }
            if len == 0 {
                return;
            }
            let now = self.clock.now_for(&self.limit);
            self.table.try_home_many(&fingerprints[..len], self.flags(), |place, state| {
                let (fingerprint, ask) = (fingerprints[place], Ask::Exactly(costs[place]));
                verdicts[place] = match state {
                    Some(state) => self.limit.decide(state, &now.with_spread(fingerprint.low), ask),
                    None => self.decide_at(fingerprint, now, ask, |_, verdict| verdict),
                };
            });
            // Not before nothing is locked any more: whoever is called may have questions of its own.
            verdicts[..len].iter().for_each(|verdict| each(*verdict));
        }
    }

    /// What [`check`](Self::check) would say. Changes nothing and inserts nothing.
    pub fn peek<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        self.read(key, |entry| entry.weigh(Ask::Exactly(Cost::new(cost))))
    }

    /// What may be told about the key's limit, with `retry` for a request of `cost`. Changes nothing, inserts nothing.
    pub fn report<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Report {
        self.read(key, |entry| entry.report(Cost::new(cost)))
    }

    /// Gives back what `verdict` took, as far as the limit still holds it against the key; returns how much that was.
    pub fn refund<K: Key + ?Sized>(&self, key: &K, verdict: &Verdict<A::Stamp>) -> u64 {
        self.refund_part(key.fingerprint(&self.secret), verdict, verdict.taken())
    }

    /// Forgets what the key has spent.
    pub fn reset<K: Key + ?Sized>(&self, key: &K) {
        let fingerprint = key.fingerprint(&self.secret);
        self.find(fingerprint, self.now(), |account| account.reset());
        self.shards.notify(shard_of(fingerprint), fingerprint);
    }

    /// With other bounds on how many may wait at the same time: in all, instead of 65,536, and for one key, instead of 1,024.
    #[must_use]
    pub fn max_waiters(mut self, in_all: usize, per_key: usize) -> Self {
        (self.shards.max, self.shards.max_per_key) = (in_all, per_key);
        self
    }

    /// How many wait, for all keys together.
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

    /// Returns the memory that the table takes once all of it has been used.
    pub fn bytes(&self) -> usize {
        self.table(&self.changes()).bytes()
    }

    /// How many decisions were about keys that found no room of their own.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }
}

impl<A: Algorithm, C> Keyed<A, C> {
    #[inline]
    fn flags(&self) -> u64 {
        self.flags.load(Ordering::Relaxed)
    }
}

/// The waiting room for a key, counted round.
const fn shard_of(fingerprint: Fingerprint) -> usize {
    // Not the bits that tell the place in the table, though any would do.
    fingerprint.high as usize
}

impl<A: Algorithm + fmt::Debug, C> fmt::Debug for Keyed<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("limit", &self.limit).field("table", &self.table).finish_non_exhaustive()
    }
}
