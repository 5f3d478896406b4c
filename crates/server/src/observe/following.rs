//! How following a rules service goes, for people and machines that look after the server.
//!
//! A node whose service is gone is ready: it decides by the rules it has. See [`health`](super::health) for why it does not say
//! otherwise; alarms belong on `tollgate_rules_age_seconds`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tollgate::core::{Mono, Time};

use crate::rules_source::poll::Outcome;

/// What came of asking the service. These order nothing, so every access is relaxed.
#[derive(Debug, Default)]
pub struct Following {
    changed: AtomicU64,
    unchanged: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    /// When it last answered, in nanoseconds and one more; none if it never did.
    heard: AtomicU64,
    away: AtomicBool,
}

impl Following {
    /// Adds a question and what came of it.
    pub fn polled(&self, outcome: Outcome, now: Time<Mono>) {
        let counter = match outcome {
            Outcome::Changed => &self.changed,
            Outcome::Unchanged | Outcome::NoWait => &self.unchanged,
            Outcome::Refused => &self.refused,
            Outcome::Failed => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.away.store(outcome == Outcome::Failed, Ordering::Relaxed);
        // What was refused is newer than what is in force, which ages from then on.
        if matches!(outcome, Outcome::Changed | Outcome::Unchanged | Outcome::NoWait) {
            self.heard.store(now.as_nanos().saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Whether the service did not answer when it was last asked.
    pub fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    /// How many questions there were, by what came of them.
    pub fn polls(&self) -> [(&'static str, u64); 4] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("changed", get(&self.changed)),
            ("unchanged", get(&self.unchanged)),
            ("refused", get(&self.refused)),
            ("failed", get(&self.failed)),
        ]
    }

    /// For how many seconds nobody has said that the rules in force are the newest; none if nobody ever has.
    pub fn age_seconds(&self, now: Time<Mono>) -> Option<u64> {
        let heard = self.heard.load(Ordering::Relaxed).checked_sub(1)?;
        Some(now.since(Time::from_nanos(heard)).as_nanos() / 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_age_while_nobody_says_that_they_are_the_newest() {
        let following = Following::default();
        let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        assert_eq!((following.age_seconds(at(5)), following.is_away()), (None, false));
        following.polled(Outcome::Changed, at(0));
        following.polled(Outcome::Unchanged, at(10));
        following.polled(Outcome::Failed, at(20));
        assert_eq!((following.age_seconds(at(25)), following.is_away()), (Some(15), true));
        following.polled(Outcome::Refused, at(30));
        assert_eq!((following.age_seconds(at(35)), following.is_away()), (Some(25), false));
        assert_eq!(following.polls(), [("changed", 1), ("unchanged", 1), ("refused", 1), ("failed", 1)]);
    }
}
