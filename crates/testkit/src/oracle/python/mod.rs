//! Python's `limits` 5.8.0 with memory storage, in microseconds. The clock of `limits` is a double in seconds, which is
//! precise to the microsecond.
//!
//! | theirs | ours |
//! |---|---|
//! | fixed window | [`FixedWindow`](tollgate_core::FixedWindow) that starts with the first request |
//! | moving window | [`SlidingLog`](tollgate_core::SlidingLog) |
//! | sliding window counter | [`SlidingWindow`](tollgate_core::SlidingWindow) |
//! | `hit`, `test` | check, peek; a negative cost is a refund |
//! | `get_window_stats` | a report; the reset is reported as a point in time |
//! | `clear` | reset |
//!
//! The traces contain the state of the sliding window counter only. For the other windows, the state before a step
//! follows from the recorded hits.

mod counter;
mod fixed;
mod moving;

use std::collections::HashMap;

use tollgate_core::Nanos;

use super::{Case, Comparison, Fields, KnownDifference, Player, ReadResult, Skip, StepResult, TraceStep};

const RESET_OF_UNUSED_WINDOW: KnownDifference = KnownDifference {
    name: "reset reported for an unused window",
    reason: "Python's limits reports a reset although nothing is used; Tollgate reports zero",
};

/// Nanoseconds in a unit of the reference's clock.
const MICRO: u64 = 1_000;

/// Returns a player that replays a case.
pub(super) fn new_player(case: &Case) -> ReadResult<Box<dyn Player>> {
    let length = Nanos::from_secs(case.config.read_count("window_s")?);
    let amount = case.config.read_count("amount")?;
    Ok(match case.algorithm.as_str() {
        "fixed_window" => Box::new(PythonLimitsPlayer {
            window: fixed::PythonFixedWindow::new(amount, length)?,
            keys: HashMap::new(),
        }),
        "moving_window" => Box::new(PythonLimitsPlayer {
            window: moving::PythonMovingWindow::new(amount, length)?,
            keys: HashMap::new(),
        }),
        "sliding_window_counter" => Box::new(PythonLimitsPlayer {
            window: counter::PythonSlidingCounter::new(amount, length)?,
            keys: HashMap::new(),
        }),
        _ => return Err(Skip::UnknownOperation),
    })
}

/// One kind of window.
trait PythonWindow {
    /// State of a key that was hit.
    type KeyState;

    /// Runs `hit`, `test` or `get_window_stats` on our limit, from the key's stored state, and compares the results.
    fn compare(&self, kept: Option<&Self::KeyState>, step: &TraceStep) -> ReadResult<StepResult>;

    /// Returns the state after a recorded hit.
    fn state_after_hit(&self, kept: Option<Self::KeyState>, step: &TraceStep) -> ReadResult<Self::KeyState>;
}

struct PythonLimitsPlayer<W: PythonWindow> {
    window: W,
    keys: HashMap<String, W::KeyState>,
}

impl<W: PythonWindow> Player for PythonLimitsPlayer<W> {
    fn compare(&self, step: &TraceStep) -> ReadResult<StepResult> {
        match step.op.as_str() {
            "clear" => Ok(Comparison::new().expect_equal("ok", step.result.read_bool("ok")?, true).result()),
            "hit" | "test" | "get_window_stats" => {
                self.window.compare(self.keys.get(step.args.read_text("key")?), step)
            }
            _ => Err(Skip::UnknownOperation),
        }
    }

    fn follow(&mut self, step: &TraceStep) -> ReadResult<()> {
        let key = step.args.read_text("key")?;
        match step.op.as_str() {
            "clear" => drop(self.keys.remove(key)),
            "hit" => {
                let kept = self.window.state_after_hit(self.keys.remove(key), step)?;
                self.keys.insert(key.to_owned(), kept);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Compares a window's report with our remaining amount and our time until the reset. `reset` is `None` if nothing is
/// used.
fn compare_stats(step: &TraceStep, remaining: u64, reset: Option<u64>) -> ReadResult<StepResult> {
    let recorded = step.result.read_count("remaining")?;
    let seen = Comparison::new()
        .expect_equal("remaining", recorded, remaining)
        .expect_equal("reset_us", reset_us(step)?, i128::from(step.at) + i128::from(reset.unwrap_or(0) / MICRO))
        .result();
    Ok(seen.or_known_difference(&RESET_OF_UNUSED_WINDOW, || reset.is_none() && recorded == remaining))
}

/// Returns the reported reset rounded to microseconds, which is the precision of the double.
fn reset_us(step: &TraceStep) -> ReadResult<i128> {
    Ok((step.result.read_double("reset_time_s")? * 1e6).round() as i64 as i128)
}
