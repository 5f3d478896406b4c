//! Idempotency keys: a request that is repeated with the same key is carried out only once. A client that got no
//! response can repeat its request without being charged twice.
//!
//! The table is local to this node, is bounded in entries, bytes and time, and evicts the oldest entries first. The
//! table therefore covers retries to the same node within minutes. The output of a single call is stored only if the
//! operation took effect, because a caller who repeats a refused request wants the current state. The results of a list
//! are always stored. A key belongs to the token of its caller, so that no caller sees or blocks the results of another.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::core::{Mono, Nanos, Time};

use super::error::{ErrorKind, OpError};
use super::view::Output;
use crate::control::auth::Access;

/// The results of a call: one result, or one per list item.
pub type Results = Arc<[Result<Output<'static>, OpError>]>;

/// Maximum length of a key, in bytes.
pub const MAX_KEY_BYTES: usize = 255;
/// Maximum number of stored keys.
pub const MAX_KEYS: usize = 20_000;
/// Total size of the stored results, in bytes, above which a new key evicts the oldest entries.
pub const MAX_STORED_BYTES: usize = 32 * 1024 * 1024;
/// Lifetime of a key.
pub const KEY_LIFETIME: Nanos = Nanos::from_secs(600);

/// Stored results by key.
#[derive(Debug, Default)]
pub struct IdempotencyTable {
    table: Mutex<StoredOutputs>,
    hasher: RandomState,
    replayed: AtomicU64,
    evicted: AtomicU64,
}

#[derive(Debug, Default)]
struct StoredOutputs {
    entries: HashMap<Arc<[u8]>, StoredEntry>,
    /// Keys in order of arrival, each with the number of its entry. The number distinguishes a removed entry from a
    /// later entry with the same key.
    arrival_order: VecDeque<(Arc<[u8]>, u64)>,
    stored_bytes: usize,
    next_number: u64,
}

#[derive(Debug)]
struct StoredEntry {
    number: u64,
    started_at: Time<Mono>,
    /// Hash of the request.
    request_hash: u64,
    /// The results and their size; `None` while the request runs.
    results: Option<(Results, usize)>,
}

/// Result of looking up the idempotency key of a call.
#[derive(Debug, Default)]
pub enum KeyLookup<'t> {
    /// The call has no idempotency key, or the operation ignores it.
    #[default]
    NoKey,
    /// The key is new: run the call, then store its results.
    First(Ticket<'t>),
    /// The key is known: return these results.
    Replay(Results),
}

/// Permission to run a request and store its results. Dropping the ticket without storing removes the key.
#[derive(Debug)]
pub struct Ticket<'t> {
    table: &'t IdempotencyTable,
    key: Arc<[u8]>,
    number: u64,
    stored: bool,
}

impl IdempotencyTable {
    /// Looks up a key of a caller, and inserts it if it is new. The table stores a hash of `request`, to detect that a
    /// key is reused with another request.
    ///
    /// # Errors
    /// Returns an error if the key has an invalid length, is in use, or was used with another request.
    pub fn look_up_or_insert(
        &self,
        access: &Access,
        key: &[u8],
        request: impl Hash,
        now: Time<Mono>,
    ) -> Result<KeyLookup<'_>, OpError> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            let detail = format!("an idempotency key must have 1 to {MAX_KEY_BYTES} bytes");
            return Err(OpError::about_key(ErrorKind::Invalid, detail));
        }
        let request_hash = self.hasher.hash_one(request);
        // The digests of all tokens have the same length, so different pairs never give the same key.
        let key = &*[access.token_digest().as_bytes(), key].concat();
        let mut table = self.lock_table();
        if let Some(entry) = table.entries.get(key).filter(|entry| now.since(entry.started_at) < KEY_LIFETIME) {
            return match &entry.results {
                _ if entry.request_hash != request_hash => {
                    let detail = "this idempotency key was used with another request; use a new key for each request";
                    Err(OpError::about_key(ErrorKind::KeyReused, detail))
                }
                None => {
                    let detail = "a request with this idempotency key is running; try again when it has finished";
                    Err(OpError::about_key(ErrorKind::KeyInUse, detail))
                }
                Some((results, _)) => {
                    self.replayed.fetch_add(1, Ordering::Relaxed);
                    Ok(KeyLookup::Replay(results.clone()))
                }
            };
        }
        self.evict(&mut table, now);
        let (key, number) = (Arc::<[u8]>::from(key), table.next_number);
        table.next_number += 1;
        table.arrival_order.push_back((key.clone(), number));
        table.entries.insert(key.clone(), StoredEntry { number, started_at: now, request_hash, results: None });
        Ok(KeyLookup::First(Ticket { table: self, key, number, stored: false }))
    }

    /// Returns three numbers: stored keys, replays, and keys evicted before they expired.
    pub fn counts(&self) -> (usize, u64, u64) {
        let keys = self.lock_table().entries.len();
        (keys, self.replayed.load(Ordering::Relaxed), self.evicted.load(Ordering::Relaxed))
    }

    fn lock_table(&self) -> MutexGuard<'_, StoredOutputs> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes expired entries, then the oldest entries until a new entry fits.
    fn evict(&self, table: &mut StoredOutputs, now: Time<Mono>) {
        while let Some((key, number)) = table.arrival_order.front() {
            let entry = table.entries.get(key).filter(|entry| entry.number == *number);
            let is_old = entry.is_none_or(|entry| now.since(entry.started_at) >= KEY_LIFETIME);
            // `arrival_order` may still contain keys whose entries were removed, so its length is bounded separately.
            let is_full = table.entries.len() >= MAX_KEYS
                || table.stored_bytes > MAX_STORED_BYTES
                || table.arrival_order.len() >= 2 * MAX_KEYS;
            if !is_old && !is_full {
                return;
            }
            if !is_old {
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
            if let Some((key, number)) = table.arrival_order.pop_front() {
                table.remove(&key, number);
            }
        }
    }
}

impl StoredOutputs {
    fn remove(&mut self, key: &[u8], number: u64) {
        if self.entries.get(key).is_some_and(|entry| entry.number == number)
            && let Some(StoredEntry { results: Some((_, size)), .. }) = self.entries.remove(key)
        {
            self.stored_bytes -= size;
        }
    }
}

impl KeyLookup<'_> {
    /// Stores the results if this is the first call with the key.
    pub fn store(self, results: Vec<Result<Output<'static>, OpError>>) {
        if let Self::First(ticket) = self {
            let size = |result: &Result<Output<'_>, OpError>| result.as_ref().map_or(128, Output::approximate_bytes);
            let size = results.iter().map(size).sum();
            ticket.store(results.into(), size);
        }
    }
}

impl Ticket<'_> {
    fn store(mut self, results: Results, size: usize) {
        self.stored = true;
        let mut table = self.table.lock_table();
        let entry = table.entries.get_mut(&self.key).filter(|entry| entry.number == self.number);
        // The entry may have been evicted in the meantime.
        if let Some(entry) = entry {
            entry.results = Some((results, size));
            table.stored_bytes += size;
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.stored {
            self.table.lock_table().remove(&self.key, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::model::{Role, TokenGrant, Verifier};

    fn begin_with_new_key<'t>(table: &'t IdempotencyTable, key: &str, now: Time<Mono>) -> Ticket<'t> {
        match table.look_up_or_insert(&Access::Unrestricted, key.as_bytes(), "asked", now) {
            Ok(KeyLookup::First(ticket)) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn reset_results(counters: usize) -> Results {
        Arc::from([Ok(Output::Reset(counters))])
    }

    /// Returns the number of counters in the result that is stored under `key`.
    fn stored_counter_count(table: &IdempotencyTable, key: &str, now: Time<Mono>) -> Option<usize> {
        match table.look_up_or_insert(&Access::Unrestricted, key.as_bytes(), "asked", now) {
            Ok(KeyLookup::Replay(results)) => match &results[..] {
                [Ok(Output::Reset(counters))] => Some(*counters),
                other => panic!("{other:?}"),
            },
            Ok(KeyLookup::NoKey | KeyLookup::First(_)) | Err(_) => None,
        }
    }

    fn error_kind(result: Result<KeyLookup<'_>, OpError>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind)
    }

    #[test]
    fn stored_result_is_replayed_until_its_key_expires() {
        let (table, now) = (IdempotencyTable::default(), Time::from_nanos(5));
        begin_with_new_key(&table, "k", now).store(reset_results(7), 10);
        let almost = Time::from_nanos(now.as_nanos() + KEY_LIFETIME.as_nanos() - 1);
        assert_eq!(stored_counter_count(&table, "k", almost), Some(7));
        assert_eq!(
            error_kind(table.look_up_or_insert(&Access::Unrestricted, b"k", "another", almost)),
            Some(ErrorKind::KeyReused)
        );
        let later = now.saturating_add(KEY_LIFETIME);
        begin_with_new_key(&table, "k", later).store(reset_results(8), 10);
        assert_eq!(stored_counter_count(&table, "k", later), Some(8));
        assert_eq!(table.counts(), (1, 2, 0));
    }

    #[test]
    fn callers_with_different_tokens_do_not_share_keys() {
        let (table, now) = (IdempotencyTable::default(), Time::from_nanos(5));
        let caller = |digest: &str| {
            let grant = TokenGrant { name: "n".to_owned(), role: Role::Reader, domains: Vec::new(), expires_ms: None };
            Access::Token(Arc::new(Verifier { digest: digest.to_owned(), id: "t".to_owned(), grant }))
        };
        let (one, other) = (caller("11"), caller("22"));
        let first = |access| table.look_up_or_insert(access, b"k", "asked", now);
        let Ok(KeyLookup::First(ticket)) = first(&one) else { panic!("the key is new") };
        ticket.store(reset_results(7), 10);
        assert!(matches!(first(&one), Ok(KeyLookup::Replay(_))));
        assert!(matches!(first(&other), Ok(KeyLookup::First(_))), "neither a replay nor a reused key");
    }

    #[test]
    fn running_request_blocks_its_key_and_a_failed_one_frees_it() {
        let (table, now) = (IdempotencyTable::default(), Time::from_nanos(5));
        let ticket = begin_with_new_key(&table, "k", now);
        assert_eq!(
            error_kind(table.look_up_or_insert(&Access::Unrestricted, b"k", "asked", now)),
            Some(ErrorKind::KeyInUse)
        );
        drop(ticket);
        drop(begin_with_new_key(&table, "k", now));
        assert_eq!((table.counts().0, table.lock_table().arrival_order.len()), (0, 1));
        let later = now.saturating_add(KEY_LIFETIME);
        begin_with_new_key(&table, "other", later).store(reset_results(1), 1);
        assert_eq!(table.lock_table().arrival_order.len(), 1, "expired keys leave the order too");
        let _running = begin_with_new_key(&table, "long", later);
        (0..3 * MAX_KEYS).for_each(|n| drop(begin_with_new_key(&table, &n.to_string(), later)));
        assert!(table.lock_table().arrival_order.len() <= 2 * MAX_KEYS);
    }

    #[test]
    fn keys_and_bytes_are_bounded_and_the_oldest_are_evicted() {
        let (table, now) = (IdempotencyTable::default(), Time::from_nanos(5));
        (0..=MAX_KEYS).for_each(|n| begin_with_new_key(&table, &n.to_string(), now).store(reset_results(1), 1));
        assert_eq!(table.counts(), (MAX_KEYS, 0, 1));
        assert_eq!(stored_counter_count(&table, "1", now), Some(1), "a replay evicts nothing");
        assert_eq!(stored_counter_count(&table, "0", now), None, "the oldest was evicted");
        let table = IdempotencyTable::default();
        (0..4).for_each(|n| {
            begin_with_new_key(&table, &n.to_string(), now).store(reset_results(1), MAX_STORED_BYTES / 2);
        });
        let stored_bytes = table.lock_table().stored_bytes;
        assert!(stored_bytes <= MAX_STORED_BYTES + MAX_STORED_BYTES / 2, "{stored_bytes} bytes");
        assert!(table.counts().2 >= 1);
        let late = begin_with_new_key(&table, "late", now);
        (0..=MAX_KEYS).for_each(|n| begin_with_new_key(&table, &format!("x{n}"), now).store(reset_results(1), 1));
        late.store(reset_results(1), 1);
        assert_eq!(table.lock_table().stored_bytes, MAX_KEYS, "the result of an evicted key is not stored");
    }
}
