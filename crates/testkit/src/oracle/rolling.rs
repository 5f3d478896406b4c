//! rolling-rate-limiter 0.4.2 and 0.1.11, in memory and on Redis, in whole microseconds.
//!
//! Both versions are equivalent to a [`SlidingLog`] that has a minimum gap and counts refused attempts. The state
//! before a step is the reference's list of recorded attempts. Our log expires old attempts itself. Version 0.4.2
//! returns the wait of a further attempt, which equals our report after the attempt. Version 0.1.11 returns the wait
//! of this attempt as if it were not counted, which equals our answer before counting it.

use std::collections::HashMap;

use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, Outcome, Retry, SlidingLog};

use super::{Case, Comparison, Fields, KnownDifference, Player, ReadResult, Skip, StepResult, TraceStep};

const FRACTIONAL_MAXIMUM: KnownDifference = KnownDifference {
    name: "fractional maximum",
    reason: "waits are NaN and remaining amounts are fractions; Tollgate uses integers and refuses the same attempts",
};
const INTERVAL_BEYOND_TIMER: KnownDifference = KnownDifference {
    name: "interval beyond the runtime's timer",
    reason: "above 2^31-1 ms the memory variant deletes all attempts after a millisecond; Tollgate keeps them",
};
const GAP_LONGER_THAN_INTERVAL: KnownDifference = KnownDifference {
    name: "gap longer than the interval",
    reason: "after one interval the previous action no longer counts for the gap; Tollgate still enforces the gap",
};
const WHOLE_GAP_REPORTED: KnownDifference = KnownDifference {
    name: "whole gap reported",
    reason: "0.1.11 on Redis reports the whole gap as the wait; Tollgate reports the remaining part of the gap",
};
const REFUSAL_REPORTED_AS_ZERO: KnownDifference = KnownDifference {
    name: "refusal reported as a wait of zero",
    reason: "0.1.11 rounds the wait down to 0 ms, which means admitted; Tollgate refuses with the exact wait",
};

/// Nanoseconds in a unit of the reference's clock.
const MICRO: u64 = 1_000;

/// Returns a player that replays a case.
pub(super) fn new_player(case: &Case) -> ReadResult<Box<dyn Player>> {
    let config = &case.config;
    let interval = from_millis(config.read_double("interval_ms")?);
    let gap = if config.get("min_difference_ms").is_some() { config.read_double("min_difference_ms")? } else { 0.0 };
    let most = config.read_double("max_in_interval")?;
    let plain = SlidingLog::new(most as u64, interval).and_then(|log| log.minimum_gap(from_millis(gap)));
    Ok(Box::new(RollingPlayer {
        plain: plain.map_err(|_| Skip::RefusedLimit)?,
        gap: from_millis(gap),
        fractional: most.fract() != 0.0,
        store: if case.algorithm == "rolling_window_memory" { RollingStore::Memory } else { RollingStore::Redis },
        version: if case.oracle.ends_with("-0.1.11") { RollingVersion::Early } else { RollingVersion::Late },
        attempts: HashMap::new(),
    }))
}

fn from_millis(millis: f64) -> Nanos {
    Nanos::from_nanos((millis * 1e6).round() as u64)
}

#[derive(PartialEq, Eq)]
enum RollingStore {
    Memory,
    Redis,
}

#[derive(PartialEq, Eq)]
enum RollingVersion {
    /// 0.1.11.
    Early,
    /// 0.4.2.
    Late,
}

struct RollingPlayer {
    /// Our log without [`count_refused`](SlidingLog::count_refused).
    plain: SlidingLog,
    gap: Nanos,
    fractional: bool,
    store: RollingStore,
    version: RollingVersion,
    /// Times of the attempts in nanoseconds, by id.
    attempts: HashMap<String, Vec<u64>>,
}

impl Player for RollingPlayer {
    fn compare(&self, step: &TraceStep) -> ReadResult<StepResult> {
        if step.op == "clear" {
            return Ok(Comparison::new().expect_equal("ok", step.result.read_bool("ok")?, true).result());
        }
        let known = self.attempts.get(step.args.read_text("id")?).map_or(&[][..], Vec::as_slice);
        let now = step.at_nanos(MICRO)?;
        let inside: Vec<u64> = known.iter().copied().filter(|&at| self.is_inside(at, now)).collect();
        let explained = |attempts: &[u64]| self.compare_from(step, attempts).is_ok_and(|seen| seen.is_explained());
        Ok(self
            .compare_from(step, known)?
            .or_known_difference(&INTERVAL_BEYOND_TIMER, || self.timer_forgot(known, now) && explained(&[]))
            .or_known_difference(&GAP_LONGER_THAN_INTERVAL, || {
                self.gap > self.plain.length() && inside != known && explained(&inside)
            }))
    }

    fn follow(&mut self, step: &TraceStep) -> ReadResult<()> {
        let now = step.at_nanos(MICRO)?;
        let id = step.args.read_text("id")?;
        let mut attempts = self.attempts.remove(id).unwrap_or_default();
        if self.timer_forgot(&attempts, now) || step.op == "clear" {
            attempts.clear();
        }
        attempts.retain(|&at| self.is_inside(at, now));
        if step.op.starts_with("limit") {
            attempts.push(now);
        }
        self.attempts.insert(id.to_owned(), attempts);
        Ok(())
    }
}

impl RollingPlayer {
    fn is_inside(&self, at: u64, now: u64) -> bool {
        now - at < self.plain.length().as_nanos()
    }

    fn timer_forgot(&self, attempts: &[u64], now: u64) -> bool {
        let longest = Nanos::from_millis(i32::MAX as u64);
        let timer_fails = self.store == RollingStore::Memory && self.plain.length() > longest;
        timer_fails && attempts.last().is_some_and(|&last| now - last >= 1_000 * MICRO)
    }

    fn compare_from(&self, step: &TraceStep, attempts: &[u64]) -> ReadResult<StepResult> {
        let counting = self.plain.count_refused();
        let mut state = vec![0; counting.words()];
        let attempt = |state: &mut [u64], at| counting.decide(state, &Now::at(at), Ask::Exactly(Cost::ONE)).outcome();
        for &at in attempts {
            attempt(&mut state, at);
        }
        let at = step.at_nanos(MICRO)?;
        let now = Now::at(at);
        let before = self.plain.weigh(state.as_slice(), &now, Ask::Exactly(Cost::ONE)).outcome();
        let passes = attempt(&mut state, at).is_admitted();
        let after = counting.report(state.as_slice(), &now, Cost::ONE);
        if self.version == RollingVersion::Early {
            return self.compare_old_version(step, before, after.remaining);
        }
        let result = &step.result;
        let comparison = Comparison::new().expect_equal("blocked", result.read_bool("blocked")?, !passes);
        if result.get("ms_until_allowed").is_none() {
            return Ok(comparison.result());
        }
        if self.fractional {
            let seen = comparison.result();
            return Ok(if seen == StepResult::Equal { StepResult::ByRule(&FRACTIONAL_MAXIMUM) } else { seen });
        }
        Ok(comparison
            .expect_equal("remaining", result.read_count("actions_remaining")?, after.remaining)
            .expect_equal("wait_ms", result.read_count("ms_until_allowed")?, wait(after.retry).as_millis_ceil())
            .result())
    }

    /// Compares the only function of 0.1.11, which returns a wait (zero if admitted) and the
    /// remaining amount.
    fn compare_old_version(&self, step: &TraceStep, before: Outcome, remaining: u64) -> ReadResult<StepResult> {
        let ours = if let Outcome::Deny(retry) = before { wait(retry) } else { Nanos::ZERO };
        let (told_ms, ours_ms) = (step.result.read_count("wait_ms")?, ours.as_nanos() / 1_000_000);
        let told_remaining = step.result.read_int("remaining")?.max(0);
        let compare = |passes, wait_ms| {
            Comparison::new()
                .expect_equal("passes", told_ms == 0, passes)
                .expect_equal("remaining", told_remaining, remaining.into())
                .expect_equal("wait_ms", told_ms, wait_ms)
                .result()
        };
        let refused = ours > Nanos::ZERO;
        let gap_ms = self.gap.as_nanos() / 1_000_000;
        Ok(compare(!refused, ours_ms)
            .or_known_difference(&REFUSAL_REPORTED_AS_ZERO, || refused && compare(true, ours_ms) == StepResult::Equal)
            .or_known_difference(&WHOLE_GAP_REPORTED, || {
                refused && self.store == RollingStore::Redis && compare(false, gap_ms.max(ours_ms)) == StepResult::Equal
            }))
    }
}

fn wait(retry: Retry) -> Nanos {
    match retry {
        Retry::After(wait) => wait,
        Retry::OnRelease | Retry::Never => Nanos::MAX,
    }
}
