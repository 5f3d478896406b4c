//! The `CL.THROTTLE` command of redis-cell, as a library.
//!
//! The command is in this crate because it needs the private hash table, and because the reference replay and the
//! benchmarks use it without the server.

mod throttle;

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::{Mutex, PoisonError};

pub use throttle::{Throttle, ThrottleError};
use tollgate_core::{Cells, Now, Spent, Time};

use crate::clock::{Clock, PreciseClock};
use crate::fingerprint::{Fingerprint, Key, Secret};
use crate::keyed::CapacityError;
use crate::snapshot::{FRAME_WORDS, FrameKind, RestoreError, SnapshotReader, SnapshotWriter};
use crate::sync::{AtomicU64, Ordering};
use crate::table::{BATCH_SIZE, LockedEntry, Presence, StateReader, Table};

/// A table of keys in which every call specifies its own limit.
///
/// The state of a key is its theoretical arrival time, one word for any parameters. A call with other parameters uses
/// the same stored time without conversion, and limits need not be registered in advance.
///
/// ```
/// use tollgate::redis_cell::{RedisCellTable, Throttle};
///
/// let table = RedisCellTable::new(1_000)?;
/// let once_a_minute = Throttle::new(0, 1, 60, 1)?;
/// assert_eq!(table.decide(b"alice", &once_a_minute), [0, 1, 0, -1, 60]);
/// assert_eq!(table.decide(b"alice", &once_a_minute)[0], 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RedisCellTable<C = PreciseClock> {
    table: Table,
    secret: Secret,
    clock: C,
    /// The theoretical arrival time that all keys without an entry share.
    overflow: Mutex<u64>,
    overflowed: AtomicU64,
    /// Locked by the thread that writes a snapshot.
    snapshot_lock: Mutex<()>,
}

impl RedisCellTable {
    /// Creates a table of `capacity` keys, with a precise clock.
    ///
    /// # Errors
    /// Returns an error if the table does not fit in memory.
    pub fn new(capacity: usize) -> Result<Self, CapacityError> {
        Self::with_clock(capacity, PreciseClock::new())
    }
}

impl<C: Clock> RedisCellTable<C> {
    /// Creates a table of `capacity` keys. The table reads the time from `clock`.
    ///
    /// # Errors
    /// Returns an error if the table does not fit in memory.
    pub fn with_clock(capacity: usize, clock: C) -> Result<Self, CapacityError> {
        let table = Table::new(capacity, 1).ok_or(CapacityError { capacity })?;
        Ok(Self {
            table,
            secret: Secret::random(),
            clock,
            overflow: Mutex::new(0),
            overflowed: AtomicU64::new(0),
            snapshot_lock: Mutex::new(()),
        })
    }

    /// Decides one call and returns the five numbers of the reply.
    pub fn decide(&self, key: &[u8], call: &Throttle) -> [i64; 5] {
        self.decide_at(key.fingerprint(&self.secret), self.clock.mono().as_nanos(), call)
    }

    /// Decides each call like [`decide`](Self::decide), and calls `each` with the replies in order.
    ///
    /// Calls are processed in batches of sixteen: a batch hashes its keys, fetches their memory concurrently, and reads
    /// the clock once.
    #[inline]
    pub fn decide_many<'a>(
        &self,
        calls: impl IntoIterator<Item = (&'a [u8], &'a Throttle)>,
        mut each: impl FnMut([i64; 5]),
    ) {
        let mut calls = calls.into_iter();
        let (mut fingerprints, mut buckets) = ([Fingerprint::default(); BATCH_SIZE], [0; BATCH_SIZE]);
        let mut batch: [Option<&Throttle>; BATCH_SIZE] = [None; BATCH_SIZE];
        let mut replies = [[0; 5]; BATCH_SIZE];
        loop {
            let mut len = 0;
            while len < BATCH_SIZE
                && let Some((key, call)) = calls.next()
            {
                fingerprints[len] = key.fingerprint(&self.secret);
                buckets[len] = self.table.prefetch_home(fingerprints[len]);
                batch[len] = Some(call);
                len += 1;
            }
            if len == 0 {
                return;
            }
            let now = self.clock.mono().as_nanos();
            self.table.try_visit_many(&fingerprints[..len], &mut buckets, 0, |place, state| {
                let Some(call) = batch[place] else { return };
                replies[place] = match state {
                    Some(state) => call.decide(state, &Now::at(now)),
                    None => self.decide_at(fingerprints[place], now, call),
                };
            });
            // Called after all locks are released, because `each` may use this table.
            replies[..len].iter().for_each(|reply| each(*reply));
        }
    }

    /// Returns the size of the table in bytes, including pages that were never touched.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Returns the number of decisions on keys without an entry.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Writes every used key, and returns the number of keys.
    ///
    /// # Errors
    /// Returns an error if the writer fails.
    pub fn write_snapshot<W: Write>(&self, to: &mut SnapshotWriter<W>) -> io::Result<u64> {
        let _one = self.snapshot_lock.lock().unwrap_or_else(PoisonError::into_inner);
        to.begin_table(&self.clock.now(), &self.secret)?;
        to.write_frame(FrameKind::Overflow, &[*self.overflow.lock().unwrap_or_else(PoisonError::into_inner)])?;
        let (walk, mut entries, mut total) = (self.table.walk(), Vec::new(), 0);
        for index in 0..self.table.bucket_count() {
            let owner = RedisCellReader { now: self.clock.mono().as_nanos() };
            walk.visit(index, &owner, |fingerprint, entry| {
                if !owner.is_unused(fingerprint, entry) {
                    entries.extend([fingerprint.low, fingerprint.high.into(), entry.state.get(0)]);
                    total += 1;
                }
            });
            if entries.len() >= FRAME_WORDS || index + 1 == self.table.bucket_count() {
                to.write_frame(FrameKind::Entries, &entries)?;
                entries.clear();
            }
        }
        to.end_table(total)?;
        Ok(total)
    }

    /// Returns the number of used keys. If the table has more than `max_buckets` buckets, the number is an estimate
    /// from a sample of at most `max_buckets`.
    ///
    /// Decisions continue during the count.
    pub fn count_used_keys(&self, max_buckets: usize) -> u64 {
        let reader = || RedisCellReader { now: self.clock.mono().as_nanos() };
        self.table
            .estimate_count(max_buckets, reader, |reader, fingerprint, entry| !reader.is_unused(fingerprint, entry))
    }

    /// Like [`with_clock`](Self::with_clock), but with the keys of a snapshot. Keys refill as if the process had kept
    /// running since the snapshot.
    ///
    /// # Errors
    /// Returns an error if the snapshot cannot be read or is damaged.
    pub fn restored<R: Read>(capacity: usize, clock: C, from: &mut SnapshotReader<R>) -> Result<Self, RestoreError> {
        let restored = Self::with_clock(capacity, clock).map_err(RestoreError::CapacityError)?;
        let at = restored.clock.now();
        let head = from.read_table_head(&at)?;
        let (owner, mut total) = (RedisCellReader { now: at.mono().as_nanos() }, 0);
        let shifted =
            |arrival| at.mono().saturating_add(Time::from_nanos(arrival).since(head.now_on_writer_clock)).as_nanos();
        loop {
            match from.read_frame()? {
                (FrameKind::Overflow, [arrival]) => {
                    *restored.overflow.lock().unwrap_or_else(PoisonError::into_inner) = shifted(*arrival);
                }
                (FrameKind::Entries, words) => {
                    let (entries, []) = words.as_chunks() else { return Err(RestoreError::Damaged) };
                    for [low, high, arrival] in entries {
                        let fingerprint = Fingerprint { low: *low, high: *high as u32 };
                        let arrival = shifted(*arrival);
                        restored.table.upsert(fingerprint, &owner, debt_rank(arrival, owner.now), |entry, _| {
                            tollgate_core::CellsMut::set(&mut entry.state, 0, arrival);
                        });
                    }
                    total += entries.len() as u64;
                }
                (FrameKind::EndTable, [entries]) if *entries == total => break,
                _ => return Err(RestoreError::Damaged),
            }
        }
        Ok(Self { secret: head.secret, ..restored })
    }

    #[inline]
    fn decide_at(&self, fingerprint: Fingerprint, now: u64, call: &Throttle) -> [i64; 5] {
        let at = Now::at(now);
        match self.table.try_visit_known(fingerprint, 0, |state| call.decide(state, &at)) {
            Some(reply) => reply,
            None => self.decide_slow(fingerprint, now, call),
        }
    }

    #[inline(never)]
    fn decide_slow(&self, fingerprint: Fingerprint, now: u64, call: &Throttle) -> [i64; 5] {
        let at = Now::at(now);
        let mut after = [0];
        call.decide(&mut after, &at);
        let decided =
            self.table.upsert(fingerprint, &RedisCellReader { now }, debt_rank(after[0], now), |entry, presence| {
                if presence == Presence::New {
                    tollgate_core::CellsMut::set(&mut entry.state, 0, 0);
                }
                call.decide(&mut entry.state, &at)
            });
        decided.unwrap_or_else(|| {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            let mut shared = self.overflow.lock().unwrap_or_else(PoisonError::into_inner);
            let mut state = [*shared];
            let reply = call.decide(&mut state, &at);
            *shared = state[0];
            reply
        })
    }
}

impl<C> fmt::Debug for RedisCellTable<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCellTable").field("table", &self.table).finish_non_exhaustive()
    }
}

/// Reads the entries of the table. Parameters differ from call to call, so entries are compared by the time until they
/// are unused: the entry with the shortest time is evicted first.
struct RedisCellReader {
    now: u64,
}

impl StateReader for RedisCellReader {
    fn generation(&self) -> u64 {
        0
    }

    fn is_unused(&self, _: Fingerprint, entry: &LockedEntry<'_>) -> bool {
        Time::<()>::from_nanos(entry.state.get(0)) <= Time::from_nanos(self.now)
    }

    fn spent(&self, _: Fingerprint, entry: &LockedEntry<'_>) -> Spent {
        debt_rank(entry.state.get(0), self.now)
    }
}

/// Maps the time until `arrival` to 32 bits, preserving the order: the position of the highest bit, then the bits below
/// it.
fn debt_rank(arrival: u64, now: u64) -> Spent {
    let owed = arrival.saturating_sub(now);
    let bits = 64 - owed.leading_zeros();
    let below = if bits > 26 { owed >> (bits - 26) } else { owed << (26 - bits) };
    let code = if owed == 0 { 0 } else { bits << 25 | (below as u32 & ((1 << 25) - 1)) };
    Spent::of(code.into(), u32::MAX.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::ManualClock;
    use tollgate_core::Nanos;

    fn table_of(capacity: usize) -> (RedisCellTable<Arc<ManualClock>>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(1_000_000_000));
        (RedisCellTable::with_clock(capacity, clock.clone()).expect("a small table"), clock)
    }

    fn call(max_burst: i64, count: i64, period_s: i64) -> Throttle {
        Throttle::new(max_burst, count, period_s, 1).expect("a valid call")
    }

    #[test]
    fn batch_decides_as_single_calls_do() {
        let ((together, _), (singly, _)) = (table_of(1_000), table_of(1_000));
        let limits = [call(2, 1, 10), call(0, 5, 1), call(-1, 5, 1), call(100, 3, 7)];
        let keys: Vec<String> = (0..100).map(|n| format!("key {}", n % 23)).collect();
        let calls = || keys.iter().enumerate().map(|(n, key)| (key.as_bytes(), &limits[n % limits.len()]));
        let mut replies = Vec::new();
        together.decide_many(calls(), |reply| replies.push(reply));
        assert_eq!(replies, calls().map(|(key, call)| singly.decide(key, call)).collect::<Vec<_>>());
    }

    #[test]
    fn other_parameters_apply_to_the_stored_time_unchanged() {
        let (table, clock) = table_of(10);
        assert_eq!(table.decide(b"k", &call(0, 1, 60)), [0, 1, 0, -1, 60]);
        assert_eq!(table.decide(b"k", &call(0, 10, 1)), [1, 1, 0, 60, 60]);
        clock.advance(Nanos::from_secs(60));
        assert_eq!(table.decide(b"k", &call(0, 10, 1)), [0, 1, 0, -1, 1]);
    }

    #[test]
    fn flood_of_short_limits_does_not_evict_a_long_limit() {
        let (table, _) = table_of(100);
        assert_eq!(table.decide(b"daily", &call(0, 1, 86_400))[0], 0);
        for n in 0..10_000 {
            table.decide(format!("flood {n}").as_bytes(), &call(0, 1, 1));
        }
        assert_eq!(table.decide(b"daily", &call(0, 1, 86_400))[0], 1);
    }

    #[test]
    fn keys_without_an_entry_share_one_state() {
        let (table, _) = table_of(1);
        let outcomes: Vec<_> =
            (0..50).map(|n| table.decide(format!("key {n}").as_bytes(), &call(0, 1, 86_400 - n))[0]).collect();
        assert!(table.overflowed() > 0, "50 keys got an entry in a table for one");
        assert!(outcomes.contains(&1), "no call was refused");
    }

    #[test]
    fn debt_rank_keeps_the_order() {
        let instants = (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + (1 << bit) / 3]);
        let mut instants: Vec<u64> = instants.chain([u64::MAX]).collect();
        instants.sort_unstable();
        assert!(instants.windows(2).all(|pair| debt_rank(pair[0], 0) <= debt_rank(pair[1], 0)));
        assert!(debt_rank(7, 7).is_nothing() && !debt_rank(8, 7).is_nothing());
    }
}
