//! The polls of a rules service, by outcome, and the age of the rules in force.
//!
//! A node whose rules service is unreachable is still ready and decides by the rules that it has, for the reason given
//! in [`health`](super::health). For alerts, use the metric `tollgate_rules_age_seconds`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tollgate::core::{Mono, Time};

use crate::rules_source::poll::PollOutcome;

/// Counts polls. Every access is relaxed, because the counters order no other memory accesses.
#[derive(Debug, Default)]
pub struct PollCounters {
    changed: AtomicU64,
    unchanged: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    /// The time at which the rules in force were last confirmed to be current, in nanoseconds plus one; 0 if never.
    confirmed: AtomicU64,
    unreachable: AtomicBool,
}

impl PollCounters {
    /// Counts a poll.
    pub fn add(&self, outcome: PollOutcome, now: Time<Mono>) {
        let counter = match outcome {
            PollOutcome::Changed => &self.changed,
            PollOutcome::Unchanged | PollOutcome::NoWait => &self.unchanged,
            PollOutcome::Refused => &self.refused,
            PollOutcome::Failed => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.unreachable.store(outcome == PollOutcome::Failed, Ordering::Relaxed);
        // A refused snapshot does not confirm the rules in force, because it is newer than them. Their age grows from
        // then on.
        if matches!(outcome, PollOutcome::Changed | PollOutcome::Unchanged | PollOutcome::NoWait) {
            self.confirmed.store(now.as_nanos().saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Returns whether the last poll failed.
    pub fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::Relaxed)
    }

    /// Returns the number of polls, by outcome.
    pub fn counts(&self) -> [(&'static str, u64); 4] {
        [
            ("changed", &self.changed),
            ("unchanged", &self.unchanged),
            ("refused", &self.refused),
            ("failed", &self.failed),
        ]
        .map(|(outcome, counter)| (outcome, counter.load(Ordering::Relaxed)))
    }

    /// Returns the seconds since the rules in force were last confirmed to be current, or `None` if they never were.
    pub fn age_seconds(&self, now: Time<Mono>) -> Option<u64> {
        let confirmed = self.confirmed.load(Ordering::Relaxed).checked_sub(1)?;
        Some(now.since(Time::from_nanos(confirmed)).as_nanos() / 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_age_while_they_are_not_confirmed() {
        let polls = PollCounters::default();
        let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        assert_eq!((polls.age_seconds(at(5)), polls.is_unreachable()), (None, false));
        polls.add(PollOutcome::Changed, at(0));
        polls.add(PollOutcome::Unchanged, at(10));
        polls.add(PollOutcome::Failed, at(20));
        assert_eq!((polls.age_seconds(at(25)), polls.is_unreachable()), (Some(15), true));
        polls.add(PollOutcome::Refused, at(30));
        assert_eq!((polls.age_seconds(at(35)), polls.is_unreachable()), (Some(25), false));
        assert_eq!(polls.counts(), [("changed", 1), ("unchanged", 1), ("refused", 1), ("failed", 1)]);
    }
}
