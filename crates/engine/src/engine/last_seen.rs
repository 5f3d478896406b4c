//! The usage that the store last reported for each key, for decisions during a store outage.
//!
//! A store answer reports the remaining amount of each limit, and the engine records these amounts for rules with
//! `on_fault: local`. Recording computes one key hash, takes one uncontended lock and writes a few words, which is
//! cheap compared with a round trip. The table is divided into sets of bounded size. A record is useless after its
//! limit has refilled, so a full set evicts the record whose limit refills first. A new key is not recorded if its
//! limit would refill before all limits recorded in its set. A key without a record is treated as new.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tollgate::core::{Mono, Nanos, Time, Wall};
use tollgate::{Limit, Limits, Report};
use tollgate_share::shares::LimitUsage;

/// Number of sets. With [`RECORDS_PER_SET`] records per set, each of 48 bytes with its tag, the table takes 6 MiB.
const SET_COUNT: usize = 1 << 14;

/// Number of records per set, enough for all limits of one key.
const RECORDS_PER_SET: usize = Limits::MAX;

/// Assumed maximum time by which answers to concurrent requests arrive out of order. If the existing record is newer
/// than an answer by more than this time, the store's clock has been set back.
const MAX_REORDERING: Nanos = Nanos::SECOND;

/// The records of all keys, one per limit of a key.
pub(super) struct LastSeen {
    /// Allocated with the first record, because an engine whose store cannot fail needs no table.
    sets: OnceLock<Box<[Mutex<RecordSet>]>>,
    hasher: RandomState,
}

/// Records that share a lock. The tags are contiguous: a lookup reads one cache line of tags, and another cache
/// line for the record.
#[derive(Debug, Default)]
struct RecordSet {
    /// For each record, the hash of its key and the position of its limit; zero if there is no record.
    tags: [u64; RECORDS_PER_SET],
    records: [Record; RECORDS_PER_SET],
}

/// The usage of one limit of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// The reported usage and the arrival time, by this node's clock.
    seen: LimitUsage,
    /// The decision time by the store's clock.
    store_time: u64,
    /// The id of the limits to which the report applies.
    limits_id: u32,
    /// Whether the fallback's state was already initialised from this record.
    fallback_initialised: bool,
}

/// The current usage of each limit of a key; `None` where there is no record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    per_limit: [Option<Record>; Limits::MAX],
    now: u64,
}

impl LastSeen {
    pub(super) fn new() -> Self {
        Self { sets: OnceLock::new(), hasher: RandomState::new() }
    }

    /// Records the store's reports for a key, one per limit; `limits_id` is the id of these limits.
    pub(super) fn record(
        &self,
        key: &[u8],
        limits_id: u32,
        now: Time<Mono>,
        store_time: Time<Wall>,
        reports: &[Report],
    ) {
        if reports.is_empty() {
            return;
        }
        let sets = self.sets.get_or_init(|| (0..SET_COUNT).map(|_| Mutex::new(RecordSet::default())).collect());
        let hash = self.hasher.hash_one(key);
        let mut set = lock_set(sets, hash);
        for (position, report) in reports.iter().enumerate() {
            let record = Record {
                seen: LimitUsage::new(report, now.as_nanos()),
                store_time: store_time.as_nanos(),
                limits_id,
                fallback_initialised: false,
            };
            set.insert_record(key_tag(hash, position), record, report.remaining == 0);
        }
    }

    /// Discards the records of a key.
    pub(super) fn forget(&self, key: &[u8]) {
        let Some(sets) = self.sets.get() else { return };
        let hash = self.hasher.hash_one(key);
        let mut set = lock_set(sets, hash);
        for position in 0..Limits::MAX {
            if let Some(place) = set.find_tag(key_tag(hash, position)) {
                (set.tags[place], set.records[place]) = (0, Record::default());
            }
        }
    }

    /// Returns the usage of each limit of a key. If the store has answered since the fallback's state was last
    /// initialised, calls `begin` to initialise it again. Other threads cannot read the key's records during this call.
    pub(super) fn usage_of(&self, key: &[u8], now: Time<Mono>, begin: impl FnOnce(&Usage)) -> Usage {
        let mut used = Usage { per_limit: [None; Limits::MAX], now: now.as_nanos() };
        let Some(sets) = self.sets.get() else { return used };
        let hash = self.hasher.hash_one(key);
        let mut set = lock_set(sets, hash);
        let mut newer = false;
        for (position, place) in used.per_limit.iter_mut().enumerate() {
            if let Some(found) = set.find_tag(key_tag(hash, position)) {
                let record = &mut set.records[found];
                newer |= !record.fallback_initialised;
                record.fallback_initialised = true;
                *place = Some(*record);
            }
        }
        if newer {
            begin(&used);
        }
        used
    }
}

impl Usage {
    /// Returns the id of the limits in the store's last answer; `None` if the key is unknown.
    pub(super) fn limits_id(&self) -> Option<u32> {
        self.per_limit.iter().flatten().next().map(|record| record.limits_id)
    }

    /// Returns the usage of the limit at `position`; `None` if the key is unknown.
    pub(super) fn limit_usage(&self, position: usize) -> Option<LimitUsage> {
        self.per_limit.get(position)?.map(|record| record.seen)
    }

    /// Returns the remaining amount of the limit at `position`; `None` if the key is unknown.
    pub(super) fn amount_left(&self, position: usize, limit: &Limit) -> Option<u64> {
        Some(self.limit_usage(position)?.left_at(limit, self.now))
    }

    /// Returns the wait until the limit at `position` has `cost` remaining; `cost` must be at most its capacity.
    pub(super) fn wait_until_left(&self, position: usize, limit: &Limit, cost: u64) -> Nanos {
        let at = self.limit_usage(position).map_or(0, |seen| seen.available_at(limit, cost));
        Nanos::from_nanos(at.saturating_sub(self.now))
    }

    /// Returns the time for which the usage was computed, by this node's clock.
    pub(super) fn now(&self) -> u64 {
        self.now
    }
}

impl RecordSet {
    fn find_tag(&self, tag: u64) -> Option<usize> {
        self.tags.iter().position(|known| *known == tag)
    }

    /// Replaces the record of the same limit or, if there is none, the record whose limit refills first. Keeps the old
    /// record if the new one arrived late or would replace a limit that refills later.
    fn insert_record(&mut self, tag: u64, record: Record, nothing_left: bool) {
        if let Some(place) = self.find_tag(tag) {
            let known = &mut self.records[place];
            let ahead = known.store_time.saturating_sub(record.store_time);
            let late = ahead > 0 && ahead <= MAX_REORDERING.as_nanos();
            // If the limit is exhausted and its parameters changed, the report is only a lower bound on the usage.
            let says_less = nothing_left && known.limits_id != record.limits_id && known.seen.full_at > record.seen.at;
            if !late && !says_less {
                *known = record;
            }
            return;
        }
        let first = self.records.iter_mut().zip(&mut self.tags).min_by_key(|(known, _)| known.seen.full_at);
        if let Some((known, known_tag)) = first
            && (known.seen.full_at < record.seen.full_at || known.seen.full_at <= record.seen.at)
        {
            (*known, *known_tag) = (record, tag);
        }
    }
}

fn lock_set(sets: &[Mutex<RecordSet>], hash: u64) -> MutexGuard<'_, RecordSet> {
    // The low bits select the set; the tag contains all bits.
    sets[hash as usize % sets.len()].lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the tag of a key and limit; never zero.
fn key_tag(hash: u64, position: usize) -> u64 {
    hash.wrapping_add((position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::LimitText;
    use tollgate::Retry;

    fn report(limit: u64, remaining: u64, reset: u64) -> Report {
        Report { limit, remaining, retry: Retry::NOW, reset: Nanos::from_secs(reset) }
    }

    fn parse_limit(text: &str, algorithm: &str) -> Limit {
        LimitText { limit: text, burst: None, algorithm: Some(algorithm) }.read().unwrap().as_slice()[0]
    }

    fn mono_at(seconds: u64) -> Time<Mono> {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn store_at(seconds: u64) -> Time<Wall> {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn remaining_at(seen: &LastSeen, key: &str, limit: &Limit, seconds: u64) -> Option<u64> {
        seen.usage_of(key.as_bytes(), mono_at(seconds), |_| ()).amount_left(0, limit)
    }

    #[test]
    fn remaining_grows_as_the_limit_refills() {
        let seen = LastSeen::new();
        seen.record(b"k", 0, mono_at(100), store_at(7), &[report(60, 10, 50)]);
        let cases = [("token_bucket", [10, 20, 60]), ("interval_bucket", [10, 10, 60]), ("fixed_window", [10, 10, 60])];
        for (algorithm, expected) in cases {
            let limit = parse_limit("60/m", algorithm);
            let seen = [100, 110, 150].map(|seconds| remaining_at(&seen, "k", &limit, seconds).unwrap());
            assert_eq!(seen, expected, "{algorithm}");
        }
        assert_eq!(remaining_at(&seen, "other", &parse_limit("60/m", "token_bucket"), 100), None);
    }

    #[test]
    fn wait_for_a_cost_ends_when_the_cost_is_available() {
        let seen = LastSeen::new();
        seen.record(b"k", 0, mono_at(100), store_at(7), &[report(60, 10, 50)]);
        for (algorithm, seconds) in [("token_bucket", 15), ("interval_bucket", 50), ("fixed_window", 50)] {
            let used = seen.usage_of(b"k", mono_at(105), |_| ());
            let wait = used.wait_until_left(0, &parse_limit("60/m", algorithm), 30);
            assert_eq!(wait, Nanos::from_secs(seconds.min(45)), "{algorithm}");
        }
    }

    #[test]
    fn state_is_initialised_once_per_answer() {
        let seen = LastSeen::new();
        let begun = |seconds| {
            let mut begun = false;
            seen.usage_of(b"k", mono_at(seconds), |_| begun = true);
            begun
        };
        assert!(!begun(1), "nothing is known");
        seen.record(b"k", 0, mono_at(1), store_at(1), &[report(60, 10, 50), report(9, 9, 0)]);
        assert!(begun(2) && !begun(3));
        seen.record(b"k", 0, mono_at(4), store_at(4), &[report(60, 9, 51), report(9, 9, 0)]);
        assert!(begun(5) && !begun(6));
        seen.forget(b"k");
        assert!(!begun(7));
    }

    #[test]
    fn late_record_replaces_a_newer_one_only_if_the_clock_stepped_back() {
        let (seen, limit) = (LastSeen::new(), parse_limit("60/m", "fixed_window"));
        let store_time = |nanos| Time::from_nanos(nanos);
        seen.record(b"k", 0, mono_at(1), store_time(5_000_000_000), &[report(60, 10, 50)]);
        seen.record(b"k", 0, mono_at(1), store_time(4_999_999_999), &[report(60, 11, 50)]);
        assert_eq!(remaining_at(&seen, "k", &limit, 2), Some(10));
        seen.record(b"k", 0, mono_at(2), store_time(1_000_000_000), &[report(60, 9, 50)]);
        assert_eq!(remaining_at(&seen, "k", &limit, 2), Some(9));
    }

    #[test]
    fn flood_of_keys_does_not_evict_limits_that_refill_later() {
        let (seen, limit) = (LastSeen::new(), parse_limit("1000/day", "fixed_window"));
        let keys = 20 * SET_COUNT;
        for key in 0..100_u32 {
            seen.record(&key.to_le_bytes(), 0, mono_at(1), store_at(1), &[report(1_000, 5, 80_000)]);
        }
        for key in 100..keys as u32 {
            seen.record(&key.to_le_bytes(), 0, mono_at(2), store_at(2), &[report(1_000, 999, 60)]);
        }
        for key in 0..100_u32 {
            assert_eq!(seen.usage_of(&key.to_le_bytes(), mono_at(3), |_| ()).amount_left(0, &limit), Some(5));
        }
        // Records whose limits have refilled are evicted first.
        for key in 1_000_000..1_000_100_u32 {
            seen.record(&key.to_le_bytes(), 0, mono_at(100), store_at(100), &[report(1_000, 999, 1)]);
            assert_eq!(seen.usage_of(&key.to_le_bytes(), mono_at(100), |_| ()).amount_left(0, &limit), Some(999));
        }
    }
}
