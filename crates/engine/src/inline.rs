//! Inline limits, which are part of a request, and their ids.
//!
//! A state stores the id of its limits, so inline limits need ids too. Equal limits have the same id. The number of
//! limits with ids is bounded. If a caller sends a new limit with every request, limits that were not used recently are
//! dropped, and their usage is lost.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustc_hash::FxHashMap;
use tollgate::Limits;
use tollgate::core::Nanos;
use tollgate::ledger::LimitTable;

use crate::ruleset::{FIRST_INLINE_ID, refill_times_of};

/// A set of checked limits with an id: inline limits, or the share of a node. Cheap to clone; keep it for reuse.
#[derive(Clone)]
pub struct InternedLimits(Arc<InternedEntry>);

/// One set of limits with its id.
#[derive(Debug)]
pub(crate) struct InternedEntry {
    pub(crate) id: u32,
    pub(crate) limits: Limits,
    pub(crate) refill_times: Box<[Option<Nanos>]>,
    /// Whether the limit was looked up since unused limits were last dropped.
    recently_used: AtomicBool,
}

impl InternedLimits {
    /// Returns the limits.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    pub(crate) fn entry(&self) -> &Arc<InternedEntry> {
        &self.0
    }
}

impl fmt::Debug for InternedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InternedLimits").field(&self.0.limits).finish()
    }
}

/// Number of ids in a range. When a range is used up, inline limits that were not used recently are dropped.
pub(crate) const IDS_PER_RANGE: usize = 1 << 14;

/// Maps ids to limits for one range of ids. Limits can be added while other threads read.
pub(crate) struct LimitsById {
    first_id: u32,
    entries: Box<[OnceLock<Arc<InternedEntry>>]>,
    /// Limits from earlier ranges that are still in use.
    kept: FxHashMap<u32, Arc<InternedEntry>>,
}

impl LimitsById {
    pub(crate) fn new() -> Self {
        Self::starting_at(FIRST_INLINE_ID, FxHashMap::default())
    }

    fn starting_at(first_id: u32, kept: FxHashMap<u32, Arc<InternedEntry>>) -> Self {
        Self { first_id, entries: (0..IDS_PER_RANGE).map(|_| OnceLock::new()).collect(), kept }
    }
}

impl LimitTable for LimitsById {
    #[inline]
    fn get(&self, id: u32) -> Option<&Limits> {
        let entry = match self.entries.get(id.wrapping_sub(self.first_id) as usize) {
            Some(entry) => entry.get(),
            None => self.kept.get(&id),
        };
        entry.map(|entry| &entry.limits)
    }
}

impl fmt::Debug for LimitsById {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitsById")
            .field("first_id", &self.first_id)
            .field("kept", &self.kept.len())
            .finish_non_exhaustive()
    }
}

/// Assigns ids to limits. Equal limits get the same id.
#[derive(Default)]
pub(crate) struct Interner {
    /// A mutex is fast enough: a lookup takes tens of nanoseconds, and callers that need more speed cache the result.
    known: Mutex<InternTable>,
}

#[derive(Default)]
struct InternTable {
    /// Hashed with a random seed, because callers choose the keys.
    entries: HashMap<Limits, Arc<InternedEntry>>,
    /// Number of assigned ids in the current range.
    assigned: usize,
}

impl Interner {
    /// Returns `limits` with their id; `None` if they have no id yet.
    pub(crate) fn find(&self, limits: &Limits) -> Option<InternedLimits> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = known.entries.get(limits)?;
        entry.recently_used.store(true, Ordering::Relaxed);
        Some(InternedLimits(entry.clone()))
    }

    /// Assigns an id to limits. If the range is used up, also returns a new range, which must replace the old one.
    pub(crate) fn add(&self, limits: &Limits, limits_by_id: &LimitsById) -> (InternedLimits, Option<LimitsById>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = known.entries.get(limits) {
            return (InternedLimits(entry.clone()), None);
        }
        let new_ids = (known.assigned == IDS_PER_RANGE).then(|| known.start_new_range(limits_by_id));
        let index = known.assigned;
        let limits_by_id = new_ids.as_ref().unwrap_or(limits_by_id);
        let entry = Arc::new(InternedEntry {
            id: limits_by_id.first_id.wrapping_add(index as u32) | FIRST_INLINE_ID,
            limits: limits.clone(),
            refill_times: refill_times_of(limits),
            recently_used: AtomicBool::new(true),
        });
        if let Some(empty) = limits_by_id.entries.get(index) {
            // The lock is held, so no other thread can have set this entry.
            let _ = empty.set(entry.clone());
        }
        known.assigned += 1;
        known.entries.insert(limits.clone(), entry.clone());
        (InternedLimits(entry), new_ids)
    }
}

impl InternTable {
    /// Starts the next id range and keeps limits that are still in use. Limits that a caller holds are always kept,
    /// because dropping them would lose their usage: a state with an unknown limits id counts as new. Of the other
    /// limits that were looked up recently, at most `IDS_PER_RANGE / 2` are kept. This maximum bounds the cost of a
    /// flood of new limits.
    fn start_new_range(&mut self, limits_by_id: &LimitsById) -> LimitsById {
        let mut room = IDS_PER_RANGE / 2;
        self.entries.retain(|_, entry| {
            let used = entry.recently_used.swap(false, Ordering::Relaxed);
            // The map and the id range hold one reference each. Callers hold any further references.
            if Arc::strong_count(entry) > 2 {
                return true;
            }
            let stays = used && room > 0;
            room -= usize::from(stays);
            stays
        });
        self.assigned = 0;
        let kept = self.entries.values().map(|entry| (entry.id, entry.clone())).collect();
        // Ids repeat after 2³¹ limits. By then, the states recorded under the first ids have usually expired.
        LimitsById::starting_at(limits_by_id.first_id.wrapping_add(IDS_PER_RANGE as u32) | FIRST_INLINE_ID, kept)
    }
}

impl fmt::Debug for Interner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interner").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::{Rate, TokenBucket};

    fn numbered_limits(n: u64) -> Limits {
        let bucket = TokenBucket::new(Rate::per_second(1).unwrap(), n + 1).unwrap();
        Limits::from(tollgate::Limit::from(bucket))
    }

    #[test]
    fn equal_limits_have_one_id() {
        let (interner, limits_by_id) = (Interner::default(), LimitsById::new());
        let (first, _) = interner.add(&numbered_limits(1), &limits_by_id);
        let (second, _) = interner.add(&numbered_limits(2), &limits_by_id);
        let (again, _) = interner.add(&numbered_limits(1), &limits_by_id);
        assert_eq!(first.entry().id, again.entry().id);
        assert_ne!(first.entry().id, second.entry().id);
        assert_eq!(limits_by_id.get(second.entry().id), Some(&numbered_limits(2)));
        assert_eq!(interner.find(&numbered_limits(2)).map(|found| found.entry().id), Some(second.entry().id));
        assert_eq!(limits_by_id.get(second.entry().id + 1), None);
    }

    #[test]
    fn held_limits_survive_a_flood_of_new_limits() {
        let (interner, mut limits_by_id) = (Interner::default(), LimitsById::new());
        let held: Vec<InternedLimits> =
            (0..100).map(|n| interner.add(&numbered_limits(1_000_000 + n), &limits_by_id).0).collect();
        let mut ids = std::collections::HashSet::new();
        for n in 1..4 * IDS_PER_RANGE as u64 {
            let (sent, new_ids) = interner.add(&numbered_limits(n), &limits_by_id);
            limits_by_id = new_ids.unwrap_or(limits_by_id);
            assert!(ids.insert(sent.entry().id), "an id was assigned twice");
            assert_eq!(limits_by_id.get(sent.entry().id), Some(&numbered_limits(n)));
            let one = &held[n as usize % held.len()];
            assert_eq!(limits_by_id.get(one.entry().id), Some(one.limits()), "after {n} others");
        }
        assert!(limits_by_id.kept.len() <= IDS_PER_RANGE / 2 + held.len());
        assert!(interner.known.lock().unwrap().entries.len() <= 2 * IDS_PER_RANGE);
    }
}
