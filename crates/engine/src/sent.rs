//! Limits that come along with requests: the numbers they are known by.
//!
//! A state remembers the numbers it was written under by id, so limits from outside need ids too. Equal limits get the same
//! one. There may be no more of them than fit: where a caller makes up a new limit with every request, those that nobody
//! has used for long are forgotten, and what was spent under them with them.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustc_hash::FxHashMap;
use tollgate::Limits;
use tollgate::core::Nanos;
use tollgate::ledger::LimitTable;

use crate::ruleset::{SENT_IDS, windows_of};

/// A limit that has been checked and has an id. Cheap to copy; keep it to send it again.
#[derive(Clone)]
pub struct SentLimits(Arc<Sheet>);

/// One set of numbers.
#[derive(Debug)]
pub(crate) struct Sheet {
    pub(crate) id: u32,
    pub(crate) limits: Limits,
    pub(crate) windows: Box<[Option<Nanos>]>,
    /// Whether anybody asked for it since it was last looked at whether anybody does.
    used: AtomicBool,
}

impl SentLimits {
    /// The numbers.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    pub(crate) fn sheet(&self) -> &Arc<Sheet> {
        &self.0
    }
}

impl fmt::Debug for SentLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SentLimits").field(&self.0.limits).finish()
    }
}

/// How many different limits are known at a time.
pub(crate) const MAX_SENT: usize = 1 << 14;

/// The limits with ids of a certain range, to which more can be added while others read.
pub(crate) struct Folder {
    first: u32,
    sheets: Box<[OnceLock<Arc<Sheet>>]>,
    /// Those taken over from the folder before, when that was full.
    kept: FxHashMap<u32, Arc<Sheet>>,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self::starting_at(SENT_IDS, FxHashMap::default())
    }

    fn starting_at(first: u32, kept: FxHashMap<u32, Arc<Sheet>>) -> Self {
        Self { first, sheets: (0..MAX_SENT).map(|_| OnceLock::new()).collect(), kept }
    }
}

impl LimitTable for Folder {
    #[inline]
    fn get(&self, id: u32) -> Option<&Limits> {
        let sheet = match self.sheets.get(id.wrapping_sub(self.first) as usize) {
            Some(place) => place.get(),
            None => self.kept.get(&id),
        };
        sheet.map(|sheet| &sheet.limits)
    }
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folder").field("first", &self.first).field("kept", &self.kept.len()).finish_non_exhaustive()
    }
}

/// Finds limits by what they say, and gives new ones an id.
#[derive(Default)]
pub(crate) struct Register {
    /// A mutex, because a look takes tens of nanoseconds, and callers who are in a hurry keep what they were given.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Callers choose what is in here, so it is hashed with a secret.
    sheets: HashMap<Limits, Arc<Sheet>>,
    /// How many places of the folder are taken.
    taken: usize,
}

impl Register {
    /// The limits as they are known, if they are.
    pub(crate) fn find(&self, limits: &Limits) -> Option<SentLimits> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let sheet = known.sheets.get(limits)?;
        sheet.used.store(true, Ordering::Relaxed);
        Some(SentLimits(sheet.clone()))
    }

    /// Puts limits into the folder. If that is full, they are put into a new one, which is to take its place.
    pub(crate) fn add(&self, limits: &Limits, folder: &Folder) -> (SentLimits, Option<Folder>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sheet) = known.sheets.get(limits) {
            return (SentLimits(sheet.clone()), None);
        }
        let new_folder = (known.taken == MAX_SENT).then(|| known.turn_over(folder));
        let place = known.taken;
        let folder = new_folder.as_ref().unwrap_or(folder);
        let sheet = Arc::new(Sheet {
            id: folder.first.wrapping_add(place as u32) | SENT_IDS,
            limits: limits.clone(),
            windows: windows_of(limits),
            used: AtomicBool::new(true),
        });
        if let Some(empty) = folder.sheets.get(place) {
            // Nobody else fills places: the lock is held.
            let _ = empty.set(sheet.clone());
        }
        known.taken += 1;
        known.sheets.insert(limits.clone(), sheet.clone());
        (SentLimits(sheet), new_folder)
    }
}

impl Known {
    /// An empty folder that takes over what is still in use. What somebody holds always is: a limit whose id nobody knows
    /// lets nobody pass. Of what was only asked for since the last time, no more than half a folder is taken over: a caller
    /// that invents limits must not make every further one slow.
    fn turn_over(&mut self, folder: &Folder) -> Folder {
        let mut room = MAX_SENT / 2;
        self.sheets.retain(|_, sheet| {
            let used = sheet.used.swap(false, Ordering::Relaxed);
            // Here, in the map and in the folder are two.
            if Arc::strong_count(sheet) > 2 {
                return true;
            }
            let stays = used && room > 0;
            room -= usize::from(stays);
            stays
        });
        self.taken = 0;
        let kept = self.sheets.values().map(|sheet| (sheet.id, sheet.clone())).collect();
        // Ids come round after two thousand million limits, when the states written under them are long forgotten.
        Folder::starting_at(folder.first.wrapping_add(MAX_SENT as u32) | SENT_IDS, kept)
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Register").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::{Rate, TokenBucket};

    fn limits(n: u64) -> Limits {
        let bucket = TokenBucket::new(Rate::per_second(1).unwrap(), n + 1).unwrap();
        Limits::from(tollgate::Limit::from(bucket))
    }

    #[test]
    fn equal_limits_have_one_id() {
        let (register, folder) = (Register::default(), Folder::new());
        let (first, _) = register.add(&limits(1), &folder);
        let (second, _) = register.add(&limits(2), &folder);
        let (again, _) = register.add(&limits(1), &folder);
        assert_eq!(first.sheet().id, again.sheet().id);
        assert_ne!(first.sheet().id, second.sheet().id);
        assert_eq!(folder.get(second.sheet().id), Some(&limits(2)));
        assert_eq!(register.find(&limits(2)).map(|found| found.sheet().id), Some(second.sheet().id));
        assert_eq!(folder.get(second.sheet().id + 1), None);
    }

    #[test]
    fn those_in_use_outlast_a_flood_of_others() {
        let (register, mut folder) = (Register::default(), Folder::new());
        let held: Vec<SentLimits> = (0..100).map(|n| register.add(&limits(1_000_000 + n), &folder).0).collect();
        let mut ids = std::collections::HashSet::new();
        for n in 1..4 * MAX_SENT as u64 {
            let (sent, new_folder) = register.add(&limits(n), &folder);
            folder = new_folder.unwrap_or(folder);
            assert!(ids.insert(sent.sheet().id), "an id was given twice");
            assert_eq!(folder.get(sent.sheet().id), Some(&limits(n)));
            let one = &held[n as usize % held.len()];
            assert_eq!(folder.get(one.sheet().id), Some(one.limits()), "after {n} others");
        }
        assert!(folder.kept.len() <= MAX_SENT / 2 + held.len());
        assert!(register.known.lock().unwrap().sheets.len() <= 2 * MAX_SENT);
    }
}
