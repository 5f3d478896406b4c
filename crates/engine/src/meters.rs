//! Low-cost counters of decisions.

use std::sync::Arc;

use crate::store::StoreError;
use crate::striped::{Stripe, Striped};

/// Counts the decisions of one rule since its id was first loaded.
///
/// The meters of rules that are loaded together share memory. With one allocation per rule, counting took a fifth of a
/// decision by 2 of 10,000 rules, because the counters of these rules filled many more cache lines and pages.
#[derive(Clone, Debug)]
pub struct RuleMeter {
    block: Arc<MeterBlock>,
    /// The index of the rule's first counter.
    first: usize,
}

/// The counters of [`METERS_PER_BLOCK`] rules. Freed when the last of these rules is removed.
type MeterBlock = Striped<{ METERS_PER_BLOCK * EVENTS_PER_RULE }>;

const METERS_PER_BLOCK: usize = 64;
/// Number of variants of [`RuleEvent`].
const EVENTS_PER_RULE: usize = 4;

/// Creates the meters of new rules.
#[derive(Debug, Default)]
pub(crate) struct NewMeters {
    /// The last block, and the number of its meters in use.
    last: Option<(Arc<MeterBlock>, usize)>,
}

impl NewMeters {
    pub(crate) fn create(&mut self) -> RuleMeter {
        let unfilled = self.last.take().filter(|(_, used)| *used < METERS_PER_BLOCK);
        let (block, used) = unfilled.unwrap_or_default();
        self.last = Some((block.clone(), used + 1));
        RuleMeter { block, first: used * EVENTS_PER_RULE }
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
        self.block.prefetch(stripe, self.first);
    }

    #[inline]
    pub(crate) fn count_in(&self, stripe: Stripe, event: RuleEvent) {
        self.block.add(stripe, self.first + event as usize, 1);
    }

    /// Returns the current counts.
    pub fn counts(&self) -> RuleCounts {
        let sum = |event| self.block.sum(self.first + event as usize);
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
    fn meters_of_one_block_count_separately() {
        let mut new = NewMeters::default();
        let meters: Vec<RuleMeter> = (0..2 * METERS_PER_BLOCK + 1).map(|_| new.create()).collect();
        for (meter, times) in meters.iter().zip(0..) {
            (0..times).for_each(|_| meter.count_in(Stripe::of_thread(), RuleEvent::Fallback));
        }
        for (meter, fallback) in meters.iter().zip(0..) {
            assert_eq!(meter.counts(), RuleCounts { fallback, ..RuleCounts::default() });
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
