//! Key statistics with bounded memory: the number of distinct keys, and the refused keys.

use std::hash::{BuildHasher, Hasher, RandomState};

use rustc_hash::{FxHashMap, FxHasher};

use super::bounds::MAX_REFUSED_KEYS;

/// Returns a hash of a key. The hash must not be reported, because it is not seeded and may reveal the key.
#[inline]
pub(super) fn hash_key(key: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(key);
    // Mixes all bits, because `DistinctKeys` uses the high bits and hash maps use the low bits.
    let hash = hasher.finish();
    (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Counts distinct keys by linear counting. The count is nearly exact for a few keys and within about 1 % for a million
/// keys.
#[derive(Debug)]
pub(super) struct DistinctKeys {
    bits: Vec<u64>,
    set_bits: u64,
}

/// Number of bits in a table (32 KiB). Each rule has its own table.
const TABLE_BITS: u64 = 1 << 18;

impl DistinctKeys {
    pub(super) fn new() -> Self {
        Self { bits: vec![0; (TABLE_BITS / 64) as usize], set_bits: 0 }
    }

    #[inline]
    pub(super) fn add(&mut self, hash: u64) {
        let index = hash >> (64 - TABLE_BITS.trailing_zeros());
        let (word, bit) = (&mut self.bits[(index / 64) as usize], 1 << (index % 64));
        if *word & bit == 0 {
            *word |= bit;
            self.set_bits += 1;
        }
    }

    /// Estimates the number of keys as −m ln(e / m), where m is the number of bits and e is the number of empty bits.
    pub(super) fn count(&self) -> u64 {
        let (all, empty) = (TABLE_BITS as f64, TABLE_BITS.saturating_sub(self.set_bits).max(1) as f64);
        (-all * (empty / all).ln()).round() as u64
    }
}

/// Number of further refused keys that can be tracked, over all rules.
#[derive(Debug)]
pub(super) struct KeyBudget(usize);

impl Default for KeyBudget {
    fn default() -> Self {
        Self(MAX_REFUSED_KEYS)
    }
}

/// The keys that a rule refused.
#[derive(Debug, Default)]
pub(super) struct RefusedKeys {
    keys: FxHashMap<u64, RefusalPeriod>,
    /// Number of refusals of untracked keys. A key is not tracked if there are already too many keys.
    pub(super) untracked: u64,
    /// The longest time that a key was refused without interruption, in nanoseconds.
    pub(super) longest: u64,
}

/// The latest uninterrupted period of refusals of a key.
#[derive(Clone, Copy, Debug)]
struct RefusalPeriod {
    /// The start of the period, and the time at which the key may pass again.
    since: u64,
    until: u64,
}

impl RefusedKeys {
    /// Records a refusal of a key at the time `at`. `wait` is the time until the request could pass, or `None` if that
    /// time is unknown or the request can never pass.
    ///
    /// The wait is exact: until it ends, no request with the same cost passes. So a refusal during the wait of an
    /// earlier refusal belongs to the same period.
    pub(super) fn add(&mut self, hash: u64, at: u64, wait: Option<u64>, budget: &mut KeyBudget) {
        let until = at.saturating_add(wait.unwrap_or(0));
        let refusals = match self.keys.entry(hash) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(_) if budget.0 == 0 => {
                self.untracked += 1;
                return;
            }
            std::collections::hash_map::Entry::Vacant(new) => {
                budget.0 -= 1;
                new.insert(RefusalPeriod { since: at, until })
            }
        };
        if at > refusals.until {
            refusals.since = at;
        }
        refusals.until = until.max(refusals.until);
        self.longest = self.longest.max(refusals.until - refusals.since);
    }

    /// Returns the number of keys.
    pub(super) fn count(&self) -> u64 {
        self.keys.len() as u64
    }
}

/// Formats keys for the report, either in plain text or as hashes.
#[derive(Clone, Debug)]
pub(super) struct KeyFormatter {
    hasher: Option<RandomState>,
}

impl KeyFormatter {
    /// If `hashed` is true, keys are formatted as hashes that are stable within a report. Otherwise, keys are
    /// formatted as plain text.
    pub(super) fn new(hashed: bool) -> Self {
        Self { hasher: hashed.then(RandomState::new) }
    }

    pub(super) fn format_key(&self, counter: &tollgate_engine::CounterOutcome<'_>) -> String {
        match &self.hasher {
            None => counter.name(crate::observe::top_keys::MAX_NAME_CHARS),
            Some(hasher) => format!("#{:016x}", hasher.hash_one(counter.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_keys_are_estimated_within_one_percent() {
        for keys in [0_u64, 1, 1_000, 1_000_000] {
            let mut distinct = DistinctKeys::new();
            for key in 0..keys {
                distinct.add(hash_key(&key.to_le_bytes()));
                distinct.add(hash_key(&key.to_le_bytes()));
            }
            let error = distinct.count().abs_diff(keys) as f64 / (keys.max(1) as f64);
            assert!(error < 0.01, "{keys}: {}", distinct.count());
        }
    }

    #[test]
    fn refusal_during_the_wait_extends_the_period() {
        let (mut refused, mut budget) = (RefusedKeys::default(), KeyBudget(2));
        refused.add(1, 100, Some(50), &mut budget);
        assert_eq!(refused.longest, 50);
        refused.add(1, 150, Some(50), &mut budget);
        assert_eq!((refused.longest, refused.count()), (100, 1));
        refused.add(1, 201, Some(60), &mut budget);
        assert_eq!(refused.longest, 100);
        refused.add(2, 201, None, &mut budget);
        assert_eq!((refused.longest, refused.count()), (100, 2));
        refused.add(3, 202, None, &mut budget);
        assert_eq!((refused.untracked, refused.count()), (1, 2), "there is no room for a third key");
    }
}
