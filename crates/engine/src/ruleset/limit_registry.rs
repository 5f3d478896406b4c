//! Assigns ids to the current and earlier limits of rules.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use tollgate::core::Nanos;
use tollgate::{Limit, Limits};

use super::UNASSIGNED_ID;
use crate::calendar::CachedCalendar;
use crate::rules::LimitSet;

/// Maximum number of retired limits that are kept to read states recorded under them.
pub(super) const MAX_RETIRED: usize = 1 << 16;

/// Limits with the id that states refer to. Rules with equal limits share one value, which saves cache space.
#[derive(Debug)]
pub(crate) struct RuleLimits {
    pub(crate) id: u32,
    pub(crate) limits: Limits,
    /// The calendars whose windows the limits refer to by index. Usually empty.
    pub(crate) calendars: Box<[CachedCalendar]>,
    /// The full refill time of the first limit. If there are several limits, `refill_times` has the time of each.
    refill_time: Option<Nanos>,
    refill_times: Box<[Option<Nanos>]>,
}

impl RuleLimits {
    pub(crate) fn refill_times(&self) -> &[Option<Nanos>] {
        if self.refill_times.is_empty() { std::slice::from_ref(&self.refill_time) } else { &self.refill_times }
    }
}

/// All current and earlier limits of rules, by id.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitRegistry {
    pub(super) known: FxHashMap<u32, Arc<RuleLimits>>,
    ids: FxHashMap<LimitSet, u32>,
    /// The ids of limits that no rule uses any longer, oldest first.
    retired: VecDeque<u32>,
    next_id: u32,
    /// The ids registered since the last call to `retire`.
    in_use: FxHashSet<u32>,
}

impl LimitRegistry {
    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&Limits> {
        self.known.get(&id).map(|rule_limits| &rule_limits.limits)
    }

    /// Copies the registry and marks all ids as unused.
    pub(super) fn successor(&self) -> Self {
        Self { in_use: FxHashSet::default(), ..self.clone() }
    }

    /// Returns the limits with their existing id, or assigns a new id.
    pub(super) fn register(&mut self, set: &LimitSet) -> Arc<RuleLimits> {
        if let Some(known) = self.ids.get(set).and_then(|id| self.known.get(id)) {
            self.in_use.insert(known.id);
            return known.clone();
        }
        // Ids wrap around after two billion changes, and must not collide with ids that are still known.
        while self.known.contains_key(&self.next_id) {
            self.next_id = (self.next_id + 1) % UNASSIGNED_ID;
        }
        let id = self.next_id;
        self.next_id = (id + 1) % UNASSIGNED_ID;
        let refill_times = refill_times_of(&set.limits);
        let rule_limits = Arc::new(RuleLimits {
            id,
            limits: set.limits.clone(),
            calendars: set.calendars.iter().cloned().map(CachedCalendar::new).collect(),
            refill_time: refill_times.first().copied().flatten(),
            refill_times: if refill_times.len() == 1 { Box::default() } else { refill_times },
        });
        self.known.insert(id, rule_limits.clone());
        self.ids.insert(set.clone(), id);
        self.in_use.insert(id);
        rule_limits
    }

    /// Moves unused limits to `retired`, and drops the oldest retired limits if there are more than [`MAX_RETIRED`].
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

/// Returns the full refill time of each limit; `None` for concurrency, unlimited and deny-all.
pub(crate) fn refill_times_of(limits: &Limits) -> Box<[Option<Nanos>]> {
    limits.as_slice().iter().map(Limit::full_refill_time).collect()
}
