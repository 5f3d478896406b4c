//! When to ask next: a function of what came of asking, of how often it failed in a row, and of chance.
//!
//! Chance matters. A thousand nodes lose a service in the same millisecond, and if all of them came back after the same second it
//! would be lost again. So a pause after a failure is anything between nothing and its bound, and the bound doubles.

use std::time::Duration;

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There was a new set, and it is in force.
    Changed,
    /// There was a new set that would not run.
    Refused,
    /// There was none, and the service took its time to say so.
    Unchanged,
    /// There was none, and the service said so at once: it cannot wait for a change, or something in between cannot.
    Hasty,
    /// There was no answer, or none that could be understood.
    Failed,
}

/// The bound of the first pause after a failure.
const FIRST: Duration = Duration::from_millis(250);
/// No pause is longer.
const LONGEST: Duration = Duration::from_secs(30);
/// The bound of a pause when all is well.
const BREATH: Duration = Duration::from_millis(50);
/// How often a service is asked that does not wait.
const HASTY: Duration = Duration::from_secs(1);

/// How long to wait, after `failures` in a row. All values of `random` are to be equally likely.
pub fn pause(outcome: Outcome, failures: u32, random: u64) -> Duration {
    match outcome {
        Outcome::Changed | Outcome::Refused | Outcome::Unchanged => part(BREATH, random),
        Outcome::Hasty => HASTY / 2 + part(HASTY, random),
        Outcome::Failed => {
            let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
            part(FIRST.saturating_mul(doubled.max(1)).min(LONGEST), random)
        }
    }
}

/// Between none and all of `whole`.
fn part(whole: Duration, random: u64) -> Duration {
    let nanos = whole.as_nanos() * u128::from(random) / u128::from(u64::MAX);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_after_failures_double_up_to_a_bound_and_start_at_nothing() {
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
            assert_eq!(pause(Outcome::Failed, failures, u64::MAX), Duration::from_millis(longest), "{failures}");
            assert_eq!(pause(Outcome::Failed, failures, 0), Duration::ZERO);
            let half = pause(Outcome::Failed, failures, u64::MAX / 2);
            assert!(half.abs_diff(Duration::from_millis(longest) / 2) < Duration::from_micros(1), "{half:?}");
        }
    }

    #[test]
    fn a_service_that_waits_is_asked_again_at_once_and_one_that_does_not_once_in_a_while() {
        for outcome in [Outcome::Changed, Outcome::Refused, Outcome::Unchanged] {
            assert_eq!(pause(outcome, 0, 0), Duration::ZERO);
            assert_eq!(pause(outcome, 9, u64::MAX), BREATH);
        }
        assert_eq!(pause(Outcome::Hasty, 0, 0), HASTY / 2);
        assert_eq!(pause(Outcome::Hasty, 0, u64::MAX), HASTY * 3 / 2);
    }
}
