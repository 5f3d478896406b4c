//! Suspects: keys that were recently refused. In a group that spans several lanes, the parts with suspects take first.
//!
//! A refused key is a suspect until its wait has passed, but for at most one second. A hash collision can evict a
//! suspect early, which is harmless: the next group then takes in all lanes at the same time.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::{Outcome, Retry};
use tollgate_engine::store::{Answers, Group, StoreVerb};

/// Number of slots in the table, and so the maximum number of suspects.
const SUSPECT_SLOTS: usize = 4_096;
/// Maximum time for which a key is a suspect.
const MAX_SUSPECT_TIME: Duration = Duration::from_secs(1);

/// A hash table of recently refused keys.
#[derive(Debug)]
pub(crate) struct Suspects {
    slots: Box<[Mutex<Option<Suspect>>]>,
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct Suspect {
    hash: u64,
    until: Instant,
}

impl Suspects {
    pub(crate) fn new() -> Self {
        Self { slots: (0..SUSPECT_SLOTS).map(|_| Mutex::new(None)).collect(), hasher: RandomState::new() }
    }

    /// Returns whether a key was recently refused.
    pub(crate) fn contains(&self, key: &[u8], now: Instant) -> bool {
        let hash = self.hasher.hash_one(key);
        let slot = self.slot_of(hash).lock().unwrap_or_else(PoisonError::into_inner);
        slot.is_some_and(|suspect| suspect.hash == hash && now < suspect.until)
    }

    /// Remembers the refused keys of a refused group. If the group is admitted, forgets all of its keys.
    pub(crate) fn record_result(&self, group: &Group<'_>, answers: &Answers, index: usize, now: Instant) {
        if group.verb != StoreVerb::Check {
            return;
        }
        let Ok(answer) = answers.group(index) else { return };
        let is_admitted = answer.outcome().is_admitted();
        for (charge, answer) in group.charges.iter().zip(answer.charges()) {
            match answer.outcome {
                Outcome::Deny(Retry::After(wait)) => self.remember(charge.key, now + MAX_SUSPECT_TIME.min(wait.into())),
                Outcome::Deny(Retry::OnRelease | Retry::Never) => self.remember(charge.key, now + MAX_SUSPECT_TIME),
                Outcome::Allow | Outcome::Delay(_) if is_admitted => self.forget(charge.key),
                Outcome::Allow | Outcome::Delay(_) => {}
            }
        }
    }

    fn forget(&self, key: &[u8]) {
        let hash = self.hasher.hash_one(key);
        self.slot_of(hash).lock().unwrap_or_else(PoisonError::into_inner).take_if(|suspect| suspect.hash == hash);
    }

    fn remember(&self, key: &[u8], until: Instant) {
        let hash = self.hasher.hash_one(key);
        *self.slot_of(hash).lock().unwrap_or_else(PoisonError::into_inner) = Some(Suspect { hash, until });
    }

    fn slot_of(&self, hash: u64) -> &Mutex<Option<Suspect>> {
        &self.slots[hash as usize % SUSPECT_SLOTS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_a_suspect_until_its_wait_has_passed() {
        let (suspects, now) = (Suspects::new(), Instant::now());
        suspects.remember(b"a", now + Duration::from_millis(20));
        let at = |millis| suspects.contains(b"a", now + Duration::from_millis(millis));
        assert_eq!([at(0), at(19), at(20)], [true, true, false]);
        assert!(!suspects.contains(b"b", now));
        suspects.forget(b"a");
        assert!(!suspects.contains(b"a", now), "it was admitted");
    }
}
