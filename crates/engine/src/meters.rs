//! Low-cost counters of decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::store::StoreError;
use crate::striped::{Stripe, Striped};

/// Counts the decisions of one rule since its id was first loaded.
///
/// Rules share memory for their counters. When each rule had its own allocation, a decision by 2 of 10,000 rules spent
/// a fifth of its time counting, because the counters filled many more cache lines and pages.
#[derive(Clone, Debug)]
pub struct RuleMeter {
    block: Arc<MeterBlock>,
    /// The index of the rule's first counter.
    first: usize,
}

/// The counters of [`METERS_PER_BLOCK`] rules, which take 8 KiB. Freed when the last of these rules is removed.
#[derive(Debug, Default)]
struct MeterBlock {
    counts: Striped<{ METERS_PER_BLOCK * EVENTS_PER_RULE }>,
    /// The number of meters that were created in this block.
    used: AtomicUsize,
}

const METERS_PER_BLOCK: usize = 64;
const EVENTS_PER_RULE: usize = RuleEvent::Fallback as usize + 1;

/// Creates the meters of new rules. Each rule set continues with the block of its predecessor, so that rules that are
/// added one by one share blocks too.
#[derive(Clone, Debug, Default)]
pub(crate) struct MeterAllocator {
    block: Arc<MeterBlock>,
}

impl MeterAllocator {
    pub(crate) fn create(&mut self) -> RuleMeter {
        // Atomic, because a rule set may have several successors: each of them must get other counters.
        let mut index = self.block.used.fetch_add(1, Ordering::Relaxed);
        if index >= METERS_PER_BLOCK {
            self.block = Arc::default();
            index = self.block.used.fetch_add(1, Ordering::Relaxed);
        }
        RuleMeter { block: self.block.clone(), first: index * EVENTS_PER_RULE }
    }
}

/// The result of one rule in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleEvent {
    Allowed,
    Refused,
    ShadowRefused,
    Fallback,
}

impl RuleMeter {
    /// Prefetches the counters of the calling thread. With thousands of rules, they are rarely cached, and counting
    /// would wait for memory.
    #[inline]
    pub(crate) fn prefetch(&self, stripe: Stripe) {
        self.block.counts.prefetch(stripe, self.first);
    }

    #[inline]
    pub(crate) fn count_in(&self, stripe: Stripe, event: RuleEvent) {
        self.block.counts.add(stripe, self.first + event as usize, 1);
    }

    /// Returns the current counts.
    pub fn counts(&self) -> RuleCounts {
        let sum = |event| self.block.counts.sum(self.first + event as usize);
        RuleCounts {
            allowed: sum(RuleEvent::Allowed),
            refused: sum(RuleEvent::Refused),
            shadow_refused: sum(RuleEvent::ShadowRefused),
            fallback: sum(RuleEvent::Fallback),
        }
    }
}

/// The counts of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Matching requests that this rule admitted and no other rule refused.
    pub allowed: u64,
    /// Matching requests that this rule refused or, in observe mode, would have refused.
    pub refused: u64,
    /// Matching requests that this rule, as a shadow rule, would have refused.
    pub shadow_refused: u64,
    /// Requests decided without the store. These requests are also counted as allowed or refused.
    pub fallback: u64,
}

/// The counts of an engine.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    decisions: Striped<7>,
    faults: Striped<4>,
}

/// The result of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Allowed,
    Delayed,
    Refused,
    Observed,
    ShadowRefused,
    Fallback,
    Banned,
}

/// The kind of a store failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreFailure {
    Unavailable,
    Unknown,
    Stale,
    Rejected,
}

impl Meters {
    #[inline]
    pub(crate) fn count_in(&self, stripe: Stripe, event: Event) {
        self.decisions.add(stripe, event as usize, 1);
    }

    pub(crate) fn count(&self, event: Event) {
        self.count_in(Stripe::of_thread(), event);
    }

    /// Counts a group that the store did not decide.
    pub(crate) fn count_store_error(&self, error: &StoreError) {
        let fault = match error {
            StoreError::Unavailable { .. } => StoreFailure::Unavailable,
            StoreError::Unknown { .. } => StoreFailure::Unknown,
            StoreError::Stale { .. } => StoreFailure::Stale,
            StoreError::Rejected { .. } => StoreFailure::Rejected,
        };
        self.faults.add(Stripe::of_thread(), fault as usize, 1);
    }

    pub(crate) fn counts(&self) -> Counts {
        let sum = |event| self.decisions.sum(event as usize);
        let faults = |fault| self.faults.sum(fault as usize);
        Counts {
            allowed: sum(Event::Allowed),
            delayed: sum(Event::Delayed),
            refused: sum(Event::Refused),
            observed: sum(Event::Observed),
            shadow_refused: sum(Event::ShadowRefused),
            fallback: sum(Event::Fallback),
            bans: sum(Event::Banned),
            unavailable: faults(StoreFailure::Unavailable),
            unknown: faults(StoreFailure::Unknown),
            stale: faults(StoreFailure::Stale),
            rejected: faults(StoreFailure::Rejected),
        }
    }
}

/// The counts of an engine since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that passed immediately, including observed refusals and requests without a matching rule.
    pub allowed: u64,
    /// Requests that passed after a wait.
    pub delayed: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that would have been refused or delayed, but passed in observe mode.
    pub observed: u64,
    /// Requests that a shadow rule would have refused.
    pub shadow_refused: u64,
    /// Requests decided without the store.
    pub fallback: u64,
    /// Bans that were started.
    pub bans: u64,
    /// Groups that were not sent because the store was unreachable.
    pub unavailable: u64,
    /// Groups that were sent but not answered.
    pub unknown: u64,
    /// Groups whose calendar windows did not contain the store's time.
    pub stale: u64,
    /// Groups that the store rejected.
    pub rejected: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meters_created_together_count_separately() {
        let mut allocator = MeterAllocator::default();
        let meters: Vec<RuleMeter> = (0..2 * METERS_PER_BLOCK + 1).map(|_| allocator.create()).collect();
        for (meter, times) in meters.iter().zip(0..) {
            (0..times).for_each(|_| meter.count_in(Stripe::of_thread(), RuleEvent::Fallback));
        }
        for (meter, fallback) in meters.iter().zip(0..) {
            assert_eq!(meter.counts(), RuleCounts { fallback, ..RuleCounts::default() });
        }
    }

    #[test]
    fn meters_created_one_by_one_share_blocks() {
        let mut allocator = MeterAllocator::default();
        let meters: Vec<RuleMeter> = (0..1_000)
            .map(|_| {
                allocator = allocator.clone();
                allocator.create()
            })
            .collect();
        let changes = meters.windows(2).filter(|pair| !Arc::ptr_eq(&pair[0].block, &pair[1].block)).count();
        assert_eq!(changes + 1, meters.len().div_ceil(METERS_PER_BLOCK));
    }

    #[test]
    fn two_successors_of_an_allocator_create_different_meters() {
        let mut first = MeterAllocator::default();
        for _ in 0..METERS_PER_BLOCK {
            let mut second = first.clone();
            let (one, other) = (first.create(), second.create());
            one.count_in(Stripe::of_thread(), RuleEvent::Allowed);
            assert_eq!((one.counts().allowed, other.counts().allowed), (1, 0));
        }
    }

    #[test]
    fn counts_of_all_threads_are_summed() {
        let meters = Meters::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1_000).for_each(|_| meters.count(Event::Allowed)));
            }
        });
        meters.count(Event::Refused);
        meters.count_store_error(&StoreError::Stale { store_time: tollgate::core::Time::ZERO });
        let allowed = 8_000;
        assert_eq!(meters.counts(), Counts { allowed, refused: 1, stale: 1, ..Counts::default() });
    }
}
