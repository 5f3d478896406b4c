//! Counts polls of the rules service by outcome, and tracks the age of the rules in force.
//!
//! A node whose rules service is unreachable is still ready and decides with its current rules.
//! [`health`](super::health) explains why. For alerts, use the metric `tollgate_rules_age_seconds`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tollgate::core::{Mono, Time};

use crate::rules_source::poll::PollOutcome;

/// Counts polls. Relaxed ordering suffices, because no other memory access depends on the counters.
#[derive(Debug, Default)]
pub struct PollCounters {
    changed: AtomicU64,
    unchanged: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    /// When the rules in force were last confirmed to be current, in nanoseconds plus one. 0 if they never were.
    confirmed_at: AtomicU64,
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
        // A refused snapshot is newer than the rules in force and does not confirm them, so their age continues to
        // grow.
        if matches!(outcome, PollOutcome::Changed | PollOutcome::Unchanged | PollOutcome::NoWait) {
            self.confirmed_at.store(now.as_nanos().saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Returns whether the last poll failed.
    pub fn last_poll_failed(&self) -> bool {
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
        let confirmed_at = self.confirmed_at.load(Ordering::Relaxed).checked_sub(1)?;
        Some(now.since(Time::from_nanos(confirmed_at)).as_nanos() / 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_age_grows_until_they_are_confirmed() {
        let polls = PollCounters::default();
        let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        assert_eq!((polls.age_seconds(at(5)), polls.last_poll_failed()), (None, false));
        polls.add(PollOutcome::Changed, at(0));
        polls.add(PollOutcome::Unchanged, at(10));
        polls.add(PollOutcome::Failed, at(20));
        assert_eq!((polls.age_seconds(at(25)), polls.last_poll_failed()), (Some(15), true));
        polls.add(PollOutcome::Refused, at(30));
        assert_eq!((polls.age_seconds(at(35)), polls.last_poll_failed()), (Some(25), false));
        assert_eq!(polls.counts(), [("changed", 1), ("unchanged", 1), ("refused", 1), ("failed", 1)]);
    }
}
