//! Every set of numbers that rules have or had, each with an id.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use tollgate::core::Nanos;
use tollgate::{Limit, Limits};

use super::SPARE_ID;
use crate::calendar::Kept;
use crate::rules::LimitSet;

/// How many sets of numbers are remembered that no rule has any more, for the states that were written under them.
pub(super) const MAX_RETIRED: usize = 1 << 16;

/// Limits with the id by which states remember them. Rules with equal limits share them, so that a thousand rules of one kind
/// take up no more of the nearest cache than one.
#[derive(Debug)]
pub(crate) struct Numbered {
    pub(crate) id: u32,
    pub(crate) limits: Limits,
    /// The windows of the calendar that its limits refer to by position. Mostly none.
    pub(crate) calendars: Box<[Kept]>,
    /// Of its first limit, and of all if there are several.
    window: Option<Nanos>,
    windows: Box<[Option<Nanos>]>,
}

impl Numbered {
    pub(crate) fn windows(&self) -> &[Option<Nanos>] {
        if self.windows.is_empty() { std::slice::from_ref(&self.window) } else { &self.windows }
    }
}

/// Every set of numbers that rules have or had.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    pub(super) known: FxHashMap<u32, Arc<Numbered>>,
    ids: FxHashMap<LimitSet, u32>,
    /// Those that no rule has any more, oldest first.
    retired: VecDeque<u32>,
    next: u32,
    /// Those that were asked for since the last time it was sorted out which are not needed any more.
    in_use: FxHashSet<u32>,
}

impl Numbers {
    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&Limits> {
        self.known.get(&id).map(|numbered| &numbered.limits)
    }

    /// The same numbers, of which none is in use yet.
    pub(super) fn successor(&self) -> Self {
        Self { in_use: FxHashSet::default(), ..self.clone() }
    }

    /// Limits with their id, a new one if they have none.
    pub(super) fn of(&mut self, set: &LimitSet) -> Arc<Numbered> {
        if let Some(known) = self.ids.get(set).and_then(|id| self.known.get(id)) {
            self.in_use.insert(known.id);
            return known.clone();
        }
        // They come round only after two thousand million changes, but then must not hit one that is still known.
        while self.known.contains_key(&self.next) {
            self.next = (self.next + 1) % SPARE_ID;
        }
        let id = self.next;
        self.next = (id + 1) % SPARE_ID;
        let windows = windows_of(&set.limits);
        let numbered = Arc::new(Numbered {
            id,
            limits: set.limits.clone(),
            calendars: set.calendars.iter().cloned().map(Kept::new).collect(),
            window: windows.first().copied().flatten(),
            windows: if windows.len() == 1 { Box::default() } else { windows },
        });
        self.known.insert(id, numbered.clone());
        self.ids.insert(set.clone(), id);
        self.in_use.insert(id);
        numbered
    }

    /// Sorts out which numbers nobody asked for since the last time, and forgets the oldest if they are too many.
    pub(super) fn retire(&mut self) {
        let in_use = std::mem::take(&mut self.in_use);
        self.retired.retain(|id| !in_use.contains(id));
        let already: FxHashSet<u32> = self.retired.iter().copied().collect();
        let newly = self.known.keys().copied().filter(|id| !in_use.contains(id) && !already.contains(id));
        let mut newly: Vec<u32> = newly.collect();
        newly.sort_unstable();
        self.retired.extend(newly);
        while self.retired.len() > MAX_RETIRED {
            if let Some(oldest) = self.retired.pop_front().and_then(|oldest| self.known.remove(&oldest)) {
                let calendars = oldest.calendars.iter().map(|kept| kept.calendar().clone()).collect();
                self.ids.remove(&LimitSet { limits: oldest.limits.clone(), calendars });
            }
        }
    }
}

/// For each limit, the time in which as much as the limit comes back.
pub(crate) fn windows_of(limits: &Limits) -> Box<[Option<Nanos>]> {
    limits.as_slice().iter().map(Limit::window).collect()
}
