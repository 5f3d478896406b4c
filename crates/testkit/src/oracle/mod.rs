//! Replays recorded decisions of existing rate limiters, which ran on a controlled clock.
//!
//! Each step is replayed separately: our limiter is loaded with the state recorded before the step and runs one
//! operation. Then verdict, remaining amount and wait are compared. Because each step starts from the recorded state,
//! the rounding errors of a reference do not accumulate, and its floating-point arithmetic need not be imitated. The
//! cases of redis-cell are also replayed freely: from the first step to the last, without loading recorded states.
//!
//! Each reference has one module, which translates a recorded step into a call of our limiter, and the result into the
//! form of the reference. Where a reference errs and we differ, a [`KnownDifference`] documents the difference. A
//! known difference is recognised by the recorded behaviour, never by the name of a case, so it also applies to new
//! traces. The traces are in `traces/`; `TOLLGATE_ORACLES` names another directory.

mod bucket4j;
mod guava;
mod nginx;
mod python;
mod redis_cell;
mod resilience4j;
mod rolling;
mod tally;
mod trace;

pub use tally::{Comparison, KnownDifference, Mismatch, Skip, StepResult, Tally};
pub use trace::{Case, Fields, ReadResult, TraceDirectory, TraceStep};

/// Replays one case: tracks the recorded state of the reference and compares it with ours.
pub trait Player {
    /// Runs the step on our limiter and compares the results.
    ///
    /// # Errors
    /// Returns an error if the step cannot be compared.
    fn compare(&self, step: &TraceStep) -> ReadResult<StepResult>;

    /// Advances to the state after the step, whether or not the step was compared.
    ///
    /// # Errors
    /// Returns an error if the state after the step is unknown.
    fn follow(&mut self, step: &TraceStep) -> ReadResult<()>;
}

/// A trace file and its player.
#[derive(Clone, Copy, Debug)]
pub struct Replay {
    /// File name without extension.
    pub file: &'static str,
    /// Name of the replay in the output.
    pub title: &'static str,
    /// Creates the player for a case, or returns the reason why the case cannot be replayed.
    new_player: fn(&Case) -> ReadResult<Box<dyn Player>>,
}

/// All replays.
pub const REPLAYS: &[Replay] = &[
    Replay { file: "bucket4j", title: "bucket4j", new_player: bucket4j::new_player },
    Replay { file: "guava_rate_limiter", title: "guava_rate_limiter", new_player: guava::new_player },
    Replay { file: "resilience4j_atomic", title: "resilience4j_atomic", new_player: resilience4j::new_player },
    Replay { file: "redis_cell", title: "redis_cell, step by step", new_player: redis_cell::new_stepwise_player },
    Replay { file: "redis_cell", title: "redis_cell, without loading states", new_player: redis_cell::new_free_player },
    Replay { file: "rolling_rate_limiter", title: "rolling_rate_limiter", new_player: rolling::new_player },
    Replay { file: "nginx_limit_req", title: "nginx_limit_req", new_player: nginx::new_player },
    Replay { file: "python_limits", title: "python_limits", new_player: python::new_player },
];

impl Replay {
    /// Replays the cases of this file.
    pub fn run(&self, cases: &[Case]) -> Tally {
        let mut tally = Tally::new(self.title);
        for case in cases {
            tally.cases += 1;
            // A limiter that could not be constructed has no steps.
            if case.steps.is_empty() {
                continue;
            }
            match (self.new_player)(case) {
                Ok(mut player) => replay_case(case, player.as_mut(), &mut tally),
                Err(skip) => case.steps.iter().for_each(|_| tally.add_result(StepResult::Skipped(skip), String::new)),
            }
        }
        tally
    }
}

fn replay_case(case: &Case, player: &mut dyn Player, tally: &mut Tally) {
    let mut last = case.start().unwrap_or(i64::MIN);
    // Reason why the remaining steps are not compared, set when the state of the reference becomes unknown.
    let mut lost = None;
    for (number, step) in case.steps.iter().enumerate() {
        if step.at < last {
            lost = lost.or(Some(Skip::ClockBack));
        }
        last = step.at.saturating_add(time_slept(case, step));
        let seen = match lost {
            Some(skip) => StepResult::Skipped(skip),
            None if step.failed() => StepResult::Skipped(Skip::Error),
            None if step.has_extreme_argument() => StepResult::Skipped(Skip::Extreme),
            None => player.compare(step).unwrap_or_else(StepResult::Skipped),
        };
        if lost.is_none()
            && let Err(skip) = player.follow(step)
        {
            lost = Some(skip).filter(|_| !step.failed());
        }
        tally.add_result(seen, || {
            format!("{} · {} · step {number} at {}: {} {}", case.algorithm, case.name, step.at, step.op, step.args)
        });
    }
}

/// Returns the time by which a blocking call advanced the clock, in units of the reference's clock.
fn time_slept(case: &Case, step: &TraceStep) -> i64 {
    let parked = step.result.optional_int("now_ns").map(|now| now - i128::from(step.at));
    let advances = case.config.field("sleep_advances_clock").as_bool() == Some(true);
    let slept = step.result.optional_int("slept_us").filter(|_| advances);
    parked.or(slept).and_then(|slept| slept.try_into().ok()).unwrap_or(0)
}
