//! The sliding counter: the previous window's count, weighted by its overlap. Both counts are
//! recorded before each call, so the player keeps no state.

use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, Retry, SlidingWindow};

use super::{MICRO, PythonWindow, RESET_OF_UNUSED_WINDOW, reset_us};
use crate::oracle::{Comparison, Fields, KnownDifference, ReadResult, Skip, StepResult, TraceStep};

const SUM_ROUNDED_DOWN: KnownDifference = KnownDifference {
    name: "weighted sum rounded down",
    reason: "truncating the weighted sum admits up to one more request; Tollgate is exact",
};
const ROUNDING_OF_DOUBLES: KnownDifference = KnownDifference {
    name: "last bits of a double",
    reason: "the exact weighted sum is an integer, but the sum of doubles is slightly off; Tollgate is exact",
};
const RESET_DEFINED_DIFFERENTLY: KnownDifference = KnownDifference {
    name: "different definition of reset",
    reason: "the reset is when the rounded sum changes or the window ends; Tollgate's is when one more request passes",
};

pub(super) struct PythonSlidingCounter(SlidingWindow);

impl PythonSlidingCounter {
    pub(super) fn new(amount: u64, length: Nanos) -> ReadResult<Self> {
        SlidingWindow::new(amount, length).map(Self).map_err(|_| Skip::RefusedLimit)
    }

    /// Returns our window with these counts, or `None` if our window cannot represent them.
    fn load(&self, counts: &RecordedCounts) -> Option<[u64; 3]> {
        let now = Now::at(counts.at);
        let mut state = [0; 3];
        self.0.init(&mut state, &now);
        let mut count = |at, count| {
            let ask = Ask::Regardless(Cost::new(u64::try_from(count).ok()?));
            self.0.decide(&mut state, &Now::at(at), ask).is_admitted().then_some(())
        };
        count(counts.at.checked_sub(counts.length)?, counts.previous)?;
        count(counts.at, counts.current)?;
        Some(state)
    }
}

/// Counts recorded before a call, and the time of the call in nanoseconds.
struct RecordedCounts {
    previous: i128,
    current: i128,
    at: u64,
    length: u64,
    near_boundary: bool,
}

impl RecordedCounts {
    fn until_window_end(&self) -> i128 {
        i128::from(self.length - self.at % self.length)
    }

    /// Returns the weighted sum, multiplied by the length.
    fn weighted_sum(&self) -> i128 {
        self.previous * self.until_window_end() + self.current * i128::from(self.length)
    }

    fn rounded_down(&self) -> i128 {
        self.weighted_sum().div_euclid(self.length.into())
    }

    /// Returns whether `reset_us` is one of three instants, within the precision of doubles: the next change of
    /// the rounded sum, the end of the window, or now.
    fn is_known_reset(&self, reset_us: i128) -> bool {
        let micro = i128::from(MICRO);
        let change = (self.previous > 0).then(|| self.weighted_sum() % i128::from(self.length) / self.previous / micro);
        [Some(0), Some(self.until_window_end() / micro), change]
            .into_iter()
            .flatten()
            .any(|known| (known - reset_us).abs() <= 1)
    }
}

impl PythonWindow for PythonSlidingCounter {
    type KeyState = ();

    fn compare(&self, _: Option<&()>, step: &TraceStep) -> ReadResult<StepResult> {
        let before = step.result.field("before");
        let counts = RecordedCounts {
            previous: before.read_int("previous_count")?,
            current: before.read_int("current_count")?,
            at: step.at_nanos(MICRO)?,
            length: self.0.length().as_nanos(),
            near_boundary: before.get("near_boundary").is_some(),
        };
        let state = self.load(&counts).ok_or(Skip::ImpossibleState)?;
        let seen = match step.op.as_str() {
            "get_window_stats" => self.compare_stats(&state, &counts, step)?,
            _ => self.compare_verdict(&state, &counts, step)?,
        };
        Ok(seen.or_known_difference(&ROUNDING_OF_DOUBLES, || {
            counts.near_boundary && self.is_one_off(&counts, step) == Ok(true)
        }))
    }

    fn state_after_hit(&self, _: Option<()>, _: &TraceStep) -> ReadResult<()> {
        Ok(())
    }
}

impl PythonSlidingCounter {
    /// Returns whether the recorded result would follow if the rounded sum were one higher or lower.
    fn is_one_off(&self, counts: &RecordedCounts, step: &TraceStep) -> ReadResult<bool> {
        let limit = i128::from(self.0.limit());
        let matches_record = |rounded: i128| {
            Ok(match step.result.optional_int("remaining") {
                Some(remaining) => remaining == (limit - rounded).max(0),
                None => step.result.read_bool("ok")? == (rounded + step.args.read_int("cost")? <= limit),
            })
        };
        Ok(matches_record(counts.rounded_down() - 1)? || matches_record(counts.rounded_down() + 1)?)
    }

    fn compare_verdict(&self, state: &[u64; 3], counts: &RecordedCounts, step: &TraceStep) -> ReadResult<StepResult> {
        let cost = step.args.read_int("cost")?;
        // A negative cost is a refund and always passes.
        let passes = u64::try_from(cost)
            .map_or(true, |cost| self.0.weigh(state, &Now::at(counts.at), Ask::Exactly(Cost::new(cost))).is_admitted());
        let ok = step.result.read_bool("ok")?;
        let rounded_passes = counts.rounded_down() + cost <= i128::from(self.0.limit());
        Ok(Comparison::new()
            .expect_equal("ok", ok, passes)
            .result()
            .or_known_difference(&SUM_ROUNDED_DOWN, || ok && rounded_passes))
    }

    fn compare_stats(&self, state: &[u64; 3], counts: &RecordedCounts, step: &TraceStep) -> ReadResult<StepResult> {
        let now = Now::at(counts.at);
        let remaining = self.0.report(state, &now, Cost::ONE).remaining;
        let recorded = step.result.read_count("remaining")?;
        let told_reset = reset_us(step)? - i128::from(step.at);
        // As for the moving window, the reset is the wait of a request for one more unit than remains.
        let Retry::After(reset) = self.0.report(state, &now, Cost::new(remaining.saturating_add(1))).retry else {
            let seen = Comparison::new().expect_equal("remaining", recorded, remaining).result();
            return Ok(if seen == StepResult::Equal && told_reset != 0 {
                StepResult::ByRule(&RESET_OF_UNUSED_WINDOW)
            } else {
                seen
            });
        };
        let is_rounded = i128::from(recorded) == (i128::from(self.0.limit()) - counts.rounded_down()).max(0);
        Ok(Comparison::new()
            .expect_equal("remaining", recorded, remaining)
            .expect_within_one("reset_us", told_reset, i128::from(reset.as_nanos() / MICRO))
            .result()
            .or_known_difference(&RESET_DEFINED_DIFFERENTLY, || {
                recorded == remaining && counts.is_known_reset(told_reset)
            })
            .or_known_difference(&SUM_ROUNDED_DOWN, || is_rounded && counts.is_known_reset(told_reset)))
    }
}
