//! Records descriptors that are checked with a cost of 0 first and charged later, when the cost is known.
//!
//! Envoy charges a token budget in two calls: a check with `hits_addend: 0` when a stream begins, and a call with the
//! real cost when it ends (`apply_on_stream_done`). On the wire, the second call looks like any check. If it were
//! refused and charged nothing, a budget with fewer tokens than the cost would never run out, and all further checks
//! would be admitted. The cost has already been incurred. Therefore, if a descriptor was recently checked with 0 and
//! its charge is refused, the charge is made anyway and puts the budget into debt. The response stays OVER_LIMIT, which
//! Envoy ignores for the second call. Other callers that check with 0 before they take see the usual refusal.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// Maximum number of descriptors per generation. Two generations are kept. When the current one is full, the previous
/// one is dropped.
const MAX_GENERATION: usize = 50_000;

/// Hashes of the descriptors that were recently checked with a cost of 0.
#[derive(Debug, Default)]
pub struct ZeroCostChecks {
    hasher: RandomState,
    generations: Mutex<[HashSet<u64>; 2]>,
}

impl ZeroCostChecks {
    /// Records a check with a cost of 0.
    pub(super) fn add(&self, descriptor: &[u8]) {
        let hash = self.hasher.hash_one(descriptor);
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let [current, previous] = &mut *generations;
        if current.len() == MAX_GENERATION && !current.contains(&hash) {
            *previous = std::mem::take(current);
        }
        current.insert(hash);
    }

    /// Returns whether a descriptor was recently checked with a cost of 0.
    pub(super) fn contains(&self, descriptor: &[u8]) -> bool {
        let hash = self.hasher.hash_one(descriptor);
        let generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        generations.iter().any(|generation| generation.contains(&hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_bounded_and_the_latest_are_kept() {
        let checks = ZeroCostChecks::default();
        for number in 0..3 * MAX_GENERATION as u32 {
            checks.add(&number.to_be_bytes());
        }
        assert!(!checks.contains(&0_u32.to_be_bytes()));
        assert!(checks.contains(&(3 * MAX_GENERATION as u32 - 1).to_be_bytes()));
        let generations = checks.generations.lock().unwrap();
        assert!(generations.iter().map(HashSet::len).sum::<usize>() <= 2 * MAX_GENERATION);
    }
}
