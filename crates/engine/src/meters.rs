//! What has been decided, counted as cheaply as counting goes.

use crate::store::StoreError;
use crate::striped::{Stripe, Striped};

/// What has been decided by one rule, since its id was first seen.
#[derive(Debug, Default)]
pub struct RuleMeter {
    counts: Striped<4>,
}

/// What came of a rule in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleEvent {
    Allowed,
    Refused,
    ShadowRefused,
    Fallback,
}

impl RuleMeter {
    /// Prefetches the memory that the calling thread is going to count in: with thousands of rules it is not in a cache, and
    /// counting would have to wait for it.
    #[inline]
    pub(crate) fn touch(&self) {
        self.counts.prefetch(Stripe::of_thread());
    }

    #[inline]
    pub(crate) fn count_in(&self, stripe: Stripe, event: RuleEvent) {
        self.counts.add(stripe, event as usize, 1);
    }

    /// The counts as they are now.
    pub fn read(&self) -> RuleCounts {
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
    /// Requests that met the rule and were within its limits.
    pub allowed: u64,
    /// Requests that met the rule and were beyond its limits.
    pub refused: u64,
    /// Requests that were beyond the limits of the rule and passed because it is a shadow.
    pub shadow_refused: u64,
    /// Requests that were decided without the store. They are counted as allowed or refused, too.
    pub fallback: u64,
}

/// What an engine has decided.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    decisions: Striped<7>,
    faults: Striped<4>,
}

/// What came of a decision.
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

/// How a store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
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

    /// Counts a group that a store did not answer.
    pub(crate) fn store_error(&self, error: &StoreError) {
        let fault = match error {
            StoreError::Unavailable { .. } => Fault::Unavailable,
            StoreError::Unknown { .. } => Fault::Unknown,
            StoreError::Stale { .. } => Fault::Stale,
            StoreError::Rejected { .. } => Fault::Rejected,
        };
        self.faults.add(Stripe::of_thread(), fault as usize, 1);
    }

    pub(crate) fn read(&self) -> Counts {
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
            unavailable: faults(Fault::Unavailable),
            unknown: faults(Fault::Unknown),
            stale: faults(Fault::Stale),
            rejected: faults(Fault::Rejected),
        }
    }
}

/// What an engine has decided since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that passed at once, those that met no rule and those observed among them.
    pub allowed: u64,
    /// Requests that passed after a wait.
    pub delayed: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that passed only because refusals are being observed.
    pub observed: u64,
    /// Requests that a shadow rule would have refused.
    pub shadow_refused: u64,
    /// Requests that were decided without the store.
    pub fallback: u64,
    /// Counters that were banned.
    pub bans: u64,
    /// Groups that were not sent, because the store was not to be reached.
    pub unavailable: u64,
    /// Groups that were sent and not answered.
    pub unknown: u64,
    /// Groups whose calendar windows did not fit the store's time.
    pub stale: u64,
    /// Groups that the store rejected.
    pub rejected: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_are_added_up() {
        let meters = Meters::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1_000).for_each(|_| meters.count(Event::Allowed)));
            }
        });
        meters.count(Event::Refused);
        meters.store_error(&StoreError::Stale { store_time: tollgate::core::Time::ZERO });
        let allowed = 8_000;
        assert_eq!(meters.read(), Counts { allowed, refused: 1, stale: 1, ..Counts::default() });
    }
}
