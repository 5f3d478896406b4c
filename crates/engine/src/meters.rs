//! Low-cost counters of decisions.

use crate::store::StoreError;
use crate::striped::{Stripe, Striped};

/// Counts the decisions of one rule since its id was first loaded.
#[derive(Debug, Default)]
pub struct RuleMeter {
    counts: Striped<4>,
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
    /// Prefetches the stripe of the calling thread. With thousands of rules, the stripe is rarely cached, and counting would
    /// wait for memory.
    #[inline]
    pub(crate) fn prefetch(&self, stripe: Stripe) {
        self.counts.prefetch(stripe);
    }

    #[inline]
    pub(crate) fn count_in(&self, stripe: Stripe, event: RuleEvent) {
        self.counts.add(stripe, event as usize, 1);
    }

    /// Returns the current counts.
    pub fn counts(&self) -> RuleCounts {
        let sum = |event| self.counts.sum(event as usize);
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
