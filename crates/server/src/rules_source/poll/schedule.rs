//! The pause before the next poll: exponential back-off with full jitter.
//!
//! If a service fails, all nodes are disconnected at the same moment. Without jitter, all nodes would retry at the same
//! time and overload the service. The pause after a failure is therefore random, between zero and a bound that doubles
//! with each failure.

use std::time::Duration;

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollOutcome {
    /// New rules are in force.
    Changed,
    /// New rules were refused.
    Refused,
    /// There was no new snapshot. The service held the request.
    Unchanged,
    /// There was no new snapshot, and the response was immediate: the service or a proxy does not hold requests.
    NoWait,
    /// There was no answer, or the answer was invalid.
    Failed,
}

/// Upper bound of the first pause after a failure.
const MAX_FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The maximum pause.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Upper bound of a pause after a success.
const MAX_JITTER: Duration = Duration::from_millis(50);
/// The average interval between polls of a service that answers immediately instead of holding the request.
const NO_WAIT_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the pause after a poll. `failures` counts the consecutive failures, and `random` is uniformly distributed.
pub fn pause_after(outcome: PollOutcome, failures: u32, random: u64) -> Duration {
    match outcome {
        PollOutcome::Changed | PollOutcome::Refused | PollOutcome::Unchanged => random_fraction(MAX_JITTER, random),
        PollOutcome::NoWait => NO_WAIT_INTERVAL / 2 + random_fraction(NO_WAIT_INTERVAL, random),
        PollOutcome::Failed => {
            let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
            random_fraction(MAX_FIRST_PAUSE.saturating_mul(doubled.max(1)).min(MAX_PAUSE), random)
        }
    }
}

/// Returns the fraction `random / u64::MAX` of `whole`.
fn random_fraction(whole: Duration, random: u64) -> Duration {
    let nanos = whole.as_nanos() * u128::from(random) / u128::from(u64::MAX);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_after_failures_double_up_to_a_bound() {
        for (failures, longest) in [
            (0, 250),
            (1, 250),
            (2, 500),
            (3, 1_000),
            (7, 16_000),
            (8, 30_000),
            (32, 30_000),
            (33, 30_000),
            (u32::MAX, 30_000),
        ] {
            assert_eq!(
                pause_after(PollOutcome::Failed, failures, u64::MAX),
                Duration::from_millis(longest),
                "{failures}"
            );
            assert_eq!(pause_after(PollOutcome::Failed, failures, 0), Duration::ZERO);
            let half = pause_after(PollOutcome::Failed, failures, u64::MAX / 2);
            assert!(half.abs_diff(Duration::from_millis(longest) / 2) < Duration::from_micros(1), "{half:?}");
        }
    }

    #[test]
    fn service_that_does_not_wait_is_polled_less_often() {
        for outcome in [PollOutcome::Changed, PollOutcome::Refused, PollOutcome::Unchanged] {
            assert_eq!(pause_after(outcome, 0, 0), Duration::ZERO);
            assert_eq!(pause_after(outcome, 9, u64::MAX), MAX_JITTER);
        }
        assert_eq!(pause_after(PollOutcome::NoWait, 0, 0), NO_WAIT_INTERVAL / 2);
        assert_eq!(pause_after(PollOutcome::NoWait, 0, u64::MAX), NO_WAIT_INTERVAL * 3 / 2);
    }
}
