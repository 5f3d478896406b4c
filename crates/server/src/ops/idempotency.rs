//! Idempotency keys: a request that is repeated under its key is carried out once, so that a client that got no answer can repeat
//! it without being charged twice.
//!
//! The table belongs to this node and is bounded in entries, bytes and time; the oldest entries are evicted first. It covers the
//! minutes in which clients retry, on connections to one node. Only outputs of operations that took effect are stored: a
//! refusal changed nothing, and a caller who repeats it wants the current state.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::core::{Mono, Nanos, Time};

use super::error::{ErrorKind, OpError};
use super::view::Output;

/// The results of a call: one, or one for each item of a list.
pub type Results = Arc<[Result<Output<'static>, OpError>]>;

/// The longest key.
pub const MAX_KEY: usize = 255;
/// The number of keys that are kept.
const MAX_KEYS: usize = 20_000;
/// The bytes of stored values that are kept.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// How long a key is kept.
const WINDOW: Nanos = Nanos::from_secs(600);

/// Stored values by key.
#[derive(Debug)]
pub struct IdempotencyTable<V> {
    table: Mutex<Table<V>>,
    hasher: RandomState,
    replayed: AtomicU64,
    evicted: AtomicU64,
}

#[derive(Debug)]
struct Table<V> {
    entries: HashMap<Arc<[u8]>, Entry<V>>,
    /// The keys in order of arrival, with the number of their entry: a key may have been removed and inserted again.
    order: VecDeque<(Arc<[u8]>, u64)>,
    bytes: usize,
    next: u64,
}

#[derive(Debug)]
struct Entry<V> {
    number: u64,
    started: Time<Mono>,
    /// A hash of the request.
    request: u64,
    /// The stored value and its size; `None` while the request runs.
    value: Option<(V, usize)>,
}

/// What the table has under a key.
#[derive(Debug)]
pub enum Lookup<'t, V: Clone> {
    /// Nothing: run the request and store its value with the ticket.
    First(Ticket<'t, V>),
    /// The value of the same request.
    Replay(V),
    /// The same request is running.
    Running,
    /// Another request.
    Different,
}

/// The permission to run a request and store its value. Dropping it without a value removes the key.
#[derive(Debug)]
pub struct Ticket<'t, V: Clone> {
    table: &'t IdempotencyTable<V>,
    key: Arc<[u8]>,
    number: u64,
    stored: bool,
}

/// What a call does about its idempotency key.
#[derive(Debug, Default)]
pub enum Keyed<'t> {
    /// It has none, or the operation ignores it.
    #[default]
    Unkeyed,
    /// Run the call and store its results.
    First(Ticket<'t, Results>),
    /// Return these results.
    Replay(Results),
}

impl<'t> Keyed<'t> {
    /// Looks up a key for a request, given what identifies the request.
    ///
    /// # Errors
    /// When the key has a wrong length, is in use, or was used with another request.
    pub fn begin(
        table: &'t IdempotencyTable<Results>,
        key: &[u8],
        request: impl Hash,
        now: Time<Mono>,
    ) -> Result<Self, OpError> {
        if key.is_empty() || key.len() > MAX_KEY {
            let detail = format!("an idempotency key must have 1 to {MAX_KEY} bytes");
            return Err(OpError::key(ErrorKind::Invalid, detail));
        }
        match table.begin(key, request, now) {
            Lookup::First(ticket) => Ok(Self::First(ticket)),
            Lookup::Replay(results) => Ok(Self::Replay(results)),
            Lookup::Running => {
                let detail = "a request with this idempotency key is running; try again when it has finished";
                Err(OpError::key(ErrorKind::KeyInUse, detail))
            }
            Lookup::Different => {
                let detail = "this idempotency key was used with another request; use a new key for each request";
                Err(OpError::key(ErrorKind::KeyReused, detail))
            }
        }
    }

    /// Returns whether results are to be stored.
    pub fn is_first(&self) -> bool {
        matches!(self, Self::First(_))
    }

    /// Stores the results, if they are to be stored.
    pub fn store(self, results: Vec<Result<Output<'static>, OpError>>) {
        if let Self::First(ticket) = self {
            let size = |result: &Result<Output<'_>, OpError>| result.as_ref().map_or(128, Output::bytes);
            let bytes = results.iter().map(size).sum();
            ticket.store(&results.into(), bytes);
        }
    }
}

impl<V> Default for IdempotencyTable<V> {
    fn default() -> Self {
        let table = Table { entries: HashMap::new(), order: VecDeque::new(), bytes: 0, next: 0 };
        let (replayed, evicted) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { table: Mutex::new(table), hasher: RandomState::new(), replayed, evicted }
    }
}

impl<V: Clone> IdempotencyTable<V> {
    /// Looks up `key` for a request, and inserts it if it is new.
    pub fn begin(&self, key: &[u8], request: impl Hash, now: Time<Mono>) -> Lookup<'_, V> {
        let request = self.hasher.hash_one(request);
        let mut table = self.table();
        if let Some(entry) = table.entries.get(key).filter(|entry| now.since(entry.started) < WINDOW) {
            return match &entry.value {
                _ if entry.request != request => Lookup::Different,
                None => Lookup::Running,
                Some((value, _)) => {
                    self.replayed.fetch_add(1, Ordering::Relaxed);
                    Lookup::Replay(value.clone())
                }
            };
        }
        self.evict(&mut table, now);
        let (key, number) = (Arc::<[u8]>::from(key), table.next);
        table.next += 1;
        table.order.push_back((key.clone(), number));
        table.entries.insert(key.clone(), Entry { number, started: now, request, value: None });
        Lookup::First(Ticket { table: self, key, number, stored: false })
    }

    /// Returns the number of keys, of replays, and of keys evicted before their time.
    pub fn counts(&self) -> (usize, u64, u64) {
        let keys = self.table().entries.len();
        (keys, self.replayed.load(Ordering::Relaxed), self.evicted.load(Ordering::Relaxed))
    }

    fn table(&self) -> MutexGuard<'_, Table<V>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes expired entries, and the oldest ones until one more fits.
    fn evict(&self, table: &mut Table<V>, now: Time<Mono>) {
        while let Some((key, number)) = table.order.front() {
            let entry = table.entries.get(key).filter(|entry| entry.number == *number);
            let is_old = entry.is_none_or(|entry| now.since(entry.started) >= WINDOW);
            // Keys that were removed without a value may still be in `order`.
            let is_full =
                table.entries.len() >= MAX_KEYS || table.bytes > MAX_BYTES || table.order.len() >= 2 * MAX_KEYS;
            if !is_old && !is_full {
                return;
            }
            if !is_old {
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
            if let Some((key, number)) = table.order.pop_front() {
                table.remove(&key, number);
            }
        }
    }
}

impl<V> Table<V> {
    fn remove(&mut self, key: &[u8], number: u64) {
        if self.entries.get(key).is_some_and(|entry| entry.number == number)
            && let Some(Entry { value: Some((_, size)), .. }) = self.entries.remove(key)
        {
            self.bytes -= size;
        }
    }
}

impl<V: Clone> Ticket<'_, V> {
    /// Stores a value of `size` bytes.
    pub fn store(mut self, value: &V, size: usize) {
        self.stored = true;
        let mut table = self.table.table();
        let entry = table.entries.get_mut(&self.key).filter(|entry| entry.number == self.number);
        // It may have been evicted.
        if let Some(entry) = entry {
            entry.value = Some((value.clone(), size));
            table.bytes += size;
        }
    }
}

impl<V: Clone> Drop for Ticket<'_, V> {
    fn drop(&mut self) {
        if !self.stored {
            self.table.table().remove(&self.key, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first<'o>(table: &'o IdempotencyTable<u32>, key: &str, now: Time<Mono>) -> Ticket<'o, u32> {
        match table.begin(key.as_bytes(), "asked", now) {
            Lookup::First(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn stored_value_is_replayed_within_the_window() {
        let (table, now) = (IdempotencyTable::default(), Time::from_nanos(5));
        first(&table, "k", now).store(&7, 10);
        let almost = Time::from_nanos(now.as_nanos() + WINDOW.as_nanos() - 1);
        assert!(matches!(table.begin(b"k", "asked", almost), Lookup::Replay(7)));
        assert!(matches!(table.begin(b"k", "another", almost), Lookup::Different));
        let later = now.saturating_add(WINDOW);
        first(&table, "k", later).store(&8, 10);
        assert!(matches!(table.begin(b"k", "asked", later), Lookup::Replay(8)));
        assert_eq!(table.counts(), (1, 2, 0));
    }

    #[test]
    fn running_request_blocks_its_key_and_a_failed_one_frees_it() {
        let (table, now) = (IdempotencyTable::default(), Time::from_nanos(5));
        let ticket = first(&table, "k", now);
        assert!(matches!(table.begin(b"k", "asked", now), Lookup::Running));
        drop(ticket);
        drop(first(&table, "k", now));
        assert_eq!((table.counts().0, table.table().order.len()), (0, 1));
        let later = now.saturating_add(WINDOW);
        first(&table, "other", later).store(&1, 1);
        assert_eq!(table.table().order.len(), 1, "expired keys leave the order too");
        let _running = first(&table, "long", later);
        (0..3 * MAX_KEYS).for_each(|n| drop(first(&table, &n.to_string(), later)));
        assert!(table.table().order.len() <= 2 * MAX_KEYS);
    }

    #[test]
    fn keys_and_bytes_are_bounded_and_the_oldest_are_evicted() {
        let (table, now) = (IdempotencyTable::default(), Time::from_nanos(5));
        (0..=MAX_KEYS).for_each(|n| first(&table, &n.to_string(), now).store(&1, 1));
        assert_eq!(table.counts(), (MAX_KEYS, 0, 1));
        assert!(matches!(table.begin(b"1", "asked", now), Lookup::Replay(_)), "a replay evicts nothing");
        assert!(matches!(table.begin(b"0", "asked", now), Lookup::First(_)), "the oldest was evicted");
        let table = IdempotencyTable::default();
        (0..4).for_each(|n| first(&table, &n.to_string(), now).store(&1, MAX_BYTES / 2));
        assert!(table.table().bytes <= MAX_BYTES + MAX_BYTES / 2, "{} bytes", table.table().bytes);
        assert!(table.counts().2 >= 1);
        let late = first(&table, "late", now);
        (0..=MAX_KEYS).for_each(|n| first(&table, &format!("x{n}"), now).store(&1, 1));
        late.store(&1, 1);
        assert_eq!(table.table().bytes, MAX_KEYS, "the value of an evicted key is not stored");
    }
}
