//! Statistics about keys in limited memory: the number of distinct keys, and the refused keys.

use std::hash::{BuildHasher, Hasher, RandomState};

use rustc_hash::{FxHashMap, FxHasher};

use super::bounds::MAX_REFUSED_KEYS;

/// Returns a hash of a key, for use within this process.
#[inline]
pub(super) fn hash(key: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(key);
    // Mixes all bits, because the table of distinct keys uses the high bits and hash maps use the low bits.
    let hash = hasher.finish();
    (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Counts distinct keys by linear counting. The count is exact for few keys and within about 1 % for a million.
#[derive(Debug)]
pub(super) struct DistinctKeys {
    bits: Vec<u64>,
    set: u64,
}

/// Number of bits in the table of a rule (32 KiB).
const BITS: u64 = 1 << 18;

impl DistinctKeys {
    pub(super) fn new() -> Self {
        Self { bits: vec![0; (BITS / 64) as usize], set: 0 }
    }

    #[inline]
    pub(super) fn add(&mut self, hash: u64) {
        let index = hash >> (64 - BITS.trailing_zeros());
        let (word, bit) = (&mut self.bits[(index / 64) as usize], 1 << (index % 64));
        if *word & bit == 0 {
            *word |= bit;
            self.set += 1;
        }
    }

    /// Estimates the number of keys as −m ln(e / m), where m is the number of bits and e is the number of empty bits.
    pub(super) fn count(&self) -> u64 {
        let (all, empty) = (BITS as f64, BITS.saturating_sub(self.set).max(1) as f64);
        (-all * (empty / all).ln()).round() as u64
    }
}

/// Number of additional refused keys that may still be tracked, for all rules together.
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
    keys: FxHashMap<u64, Refusals>,
    /// Number of refusals whose keys are not tracked because there are too many keys.
    pub(super) untracked: u64,
    /// The longest time that a key was refused without interruption, in nanoseconds.
    pub(super) longest: u64,
}

/// The refusals of a key.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    /// The beginning of the current period of refusals, and the time at which the key may pass again.
    since: u64,
    until: u64,
}

impl RefusedKeys {
    /// Counts a refusal of a key at the time `at`. `wait` is the advised wait, or `None` if the request can never pass.
    ///
    /// The advised wait is exact: until it ends, no request of the same cost passes. A refusal within the wait of the
    /// previous refusal therefore belongs to the same period.
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
                new.insert(Refusals { since: at, until })
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

/// The display form of keys.
#[derive(Clone, Debug)]
pub(super) struct KeyNames {
    hasher: Option<RandomState>,
}

impl KeyNames {
    /// Creates a display form. If `hashed`, it shows keys as hashes that are stable within a report; otherwise it shows
    /// keys unchanged.
    pub(super) fn new(hashed: bool) -> Self {
        Self { hasher: hashed.then(RandomState::new) }
    }

    pub(super) fn show(&self, counter: &tollgate_engine::Counter<'_>) -> String {
        match &self.hasher {
            None => counter.name(crate::observe::top_keys::MAX_NAME),
            Some(hasher) => format!("#{:016x}", hasher.hash_one(counter.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_keys_are_counted_closely() {
        for keys in [0_u64, 1, 1_000, 1_000_000] {
            let mut distinct = DistinctKeys::new();
            for key in 0..keys {
                distinct.add(hash(&key.to_le_bytes()));
                distinct.add(hash(&key.to_le_bytes()));
            }
            let error = distinct.count().abs_diff(keys) as f64 / (keys.max(1) as f64);
            assert!(error < 0.01, "{keys}: {}", distinct.count());
        }
    }

    #[test]
    fn refusals_within_the_wait_are_one_period() {
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
