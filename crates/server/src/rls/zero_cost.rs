//! Records descriptors that are first checked with a cost of 0 and charged later, when the cost is known.
//!
//! Envoy charges a token budget in two calls. When a stream begins, Envoy checks with `hits_addend: 0`. When the stream
//! ends, Envoy sends the real cost (`apply_on_stream_done`). On the wire, the second call looks like any other check.
//! By then, the stream has already used the tokens. If a refused second call charged nothing, a budget with fewer
//! tokens than the cost would never run out, and all further checks would be admitted. Therefore, if a descriptor was
//! recently checked with 0 and its charge is refused, the descriptor is charged anyway, which puts the budget into
//! debt. The response is still OVER_LIMIT, which Envoy ignores for the second call. Other clients that first check with
//! 0 receive the usual refusal and are charged too.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// Maximum number of descriptors per generation. Two generations are kept. When the current generation is full, the
/// previous one is dropped.
const MAX_GENERATION_SIZE: usize = 50_000;

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
        if current.len() == MAX_GENERATION_SIZE && !current.contains(&hash) {
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
    fn number_of_descriptors_is_bounded_and_the_latest_are_kept() {
        let checks = ZeroCostChecks::default();
        for number in 0..3 * MAX_GENERATION_SIZE as u32 {
            checks.add(&number.to_be_bytes());
        }
        assert!(!checks.contains(&0_u32.to_be_bytes()));
        assert!(checks.contains(&(3 * MAX_GENERATION_SIZE as u32 - 1).to_be_bytes()));
        let generations = checks.generations.lock().unwrap();
        assert!(generations.iter().map(HashSet::len).sum::<usize>() <= 2 * MAX_GENERATION_SIZE);
    }
}
