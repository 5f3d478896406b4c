//! The descriptors that are checked with a cost of 0, and charged when the cost is known.
//!
//! Envoy charges a token budget in two calls: a check with `hits_addend: 0` when a stream begins, and the cost when it
//! ends (`apply_on_stream_done`). On the wire the second looks like any check. If it were refused and spent nothing, a
//! budget with less left than the cost would never be used up, and all further checks would pass. So a refused charge
//! to a descriptor that was recently checked with 0 is taken into debt, because the cost has already been incurred. Its
//! answer stays OVER_LIMIT, which Envoy ignores for such a call; so a caller that checks with 0 before it takes is
//! refused as by any limit.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// Maximum number of descriptors of a generation. Two generations are kept, so that those no longer checked are forgotten.
const MAX_GENERATION: usize = 50_000;

/// Descriptors that were recently checked with a cost of 0, as hashes of their names.
#[derive(Debug, Default)]
pub struct ZeroCostChecks {
    hasher: RandomState,
    generations: Mutex<[HashSet<u64>; 2]>,
}

impl ZeroCostChecks {
    /// Remembers a descriptor.
    pub(super) fn add(&self, descriptor: &[u8]) {
        let hash = self.hasher.hash_one(descriptor);
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let [current, previous] = &mut *generations;
        if current.len() == MAX_GENERATION && !current.contains(&hash) {
            *previous = std::mem::take(current);
        }
        current.insert(hash);
    }

    /// Returns whether a descriptor was checked lately.
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
