//! The moving window: a list of times, one per unit of cost. Refused hits are not recorded.

use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, Retry, SlidingLog};

use super::{MICRO, PythonWindow, compare_stats};
use crate::oracle::{Comparison, Fields, KnownDifference, ReadResult, Skip, StepResult, TraceStep};

const EXACTLY_ONE_WINDOW_LATER: KnownDifference = KnownDifference {
    name: "exactly one window later",
    reason: "units from exactly one window ago count in `hit`, but not in `test`; in Tollgate they have expired",
};

pub(super) struct PythonMovingWindow(SlidingLog);

impl PythonMovingWindow {
    pub(super) fn new(amount: u64, length: Nanos) -> ReadResult<Self> {
        SlidingLog::new(amount, length).map(Self).map_err(|_| Skip::RefusedLimit)
    }

    /// Returns the state of our log after recording `hits`, the times of the units that the Python limiter admitted.
    fn load(&self, hits: &[u64]) -> Vec<u64> {
        // Records all units, even those that our log would refuse.
        let writing = self.0.count_refused();
        let mut state = vec![0; writing.words()];
        for &at in hits {
            let _ = writing.decide(state.as_mut_slice(), &Now::at(at), Ask::Exactly(Cost::ONE));
        }
        state
    }

    fn passes(&self, state: &[u64], at: u64, cost: i128) -> bool {
        // A negative cost is a refund and always passes.
        u64::try_from(cost)
            .is_ok_and(|cost| self.0.weigh(state, &Now::at(at), Ask::Exactly(Cost::new(cost))).is_admitted())
            || cost < 0
    }
}

impl PythonWindow for PythonMovingWindow {
    /// Times of admitted units, oldest first.
    type KeyState = Vec<u64>;

    fn compare(&self, kept: Option<&Vec<u64>>, step: &TraceStep) -> ReadResult<StepResult> {
        let hits = kept.map_or(&[][..], Vec::as_slice);
        let state = self.load(hits);
        let at = step.at_nanos(MICRO)?;
        if step.op == "get_window_stats" {
            let remaining = self.0.report(state.as_slice(), &Now::at(at), Cost::ONE).remaining;
            // The time until the oldest unit expires is the wait of a request for one more unit than remains.
            let reset =
                match self.0.report(state.as_slice(), &Now::at(at), Cost::new(remaining.saturating_add(1))).retry {
                    Retry::After(wait) => Some(wait.as_nanos()),
                    Retry::OnRelease | Retry::Never => None,
                };
            return compare_stats(step, remaining, reset);
        }
        let (cost, ok) = (step.args.read_int("cost")?, step.result.read_bool("ok")?);
        let compare = |at| Comparison::new().expect_equal("ok", ok, self.passes(&state, at, cost)).result();
        Ok(compare(at).or_known_difference(&EXACTLY_ONE_WINDOW_LATER, || {
            let one_window_ago = at.checked_sub(self.0.length().as_nanos());
            step.op == "hit"
                && hits.iter().any(|&hit| Some(hit) == one_window_ago)
                && compare(at - 1) == StepResult::Equal
        }))
    }

    fn state_after_hit(&self, kept: Option<Vec<u64>>, step: &TraceStep) -> ReadResult<Vec<u64>> {
        let mut hits = kept.unwrap_or_default();
        if step.result.read_bool("ok")? {
            // A hit above the limit is never admitted.
            let units = usize::try_from(step.args.read_int("cost")?).unwrap_or(0);
            let units = if units as u64 > self.0.limit() { return Err(Skip::ImpossibleState) } else { units };
            hits.extend(std::iter::repeat_n(step.at_nanos(MICRO)?, units));
        }
        Ok(hits)
    }
}
