//! The fixed window, which starts with the first hit. Refused hits also count.

use tollgate_core::{Algorithm, Ask, Cost, FixedWindow, Nanos, Now, Phase};

use super::{MICRO, PythonWindow, compare_stats};
use crate::oracle::{Comparison, Fields, KnownDifference, ReadResult, Skip, StepResult, TraceStep};

const ZERO_COST_REFUSED: KnownDifference = KnownDifference {
    name: "cost of zero refused",
    reason: "refused hits raise the count above the limit, so even a cost of 0 is refused; Tollgate counts no refusals",
};

pub(super) struct PythonFixedWindow {
    ours: FixedWindow,
    amount: i128,
    length: u64,
}

/// Start of the window, and the number of hits in it, including refused hits.
pub(super) struct WindowHits {
    start: u64,
    count: i128,
}

impl PythonFixedWindow {
    pub(super) fn new(amount: u64, length: Nanos) -> ReadResult<Self> {
        let ours = FixedWindow::new(amount, length).map_err(|_| Skip::RefusedLimit)?.phase(Phase::FirstRequest);
        Ok(Self { ours, amount: amount.into(), length: length.as_nanos() })
    }
}

impl PythonWindow for PythonFixedWindow {
    type KeyState = WindowHits;

    fn compare(&self, kept: Option<&WindowHits>, step: &TraceStep) -> ReadResult<StepResult> {
        let now = Now::at(step.at_nanos(MICRO)?);
        let mut state = [0; 2];
        self.ours.init(&mut state, &now);
        if let Some(kept) = kept {
            // Counts above the limit have the same effect as a count at the limit.
            let used = u64::try_from(kept.count.min(self.amount)).map_err(|_| Skip::ImpossibleState)?;
            let _ = self.ours.decide(&mut state, &Now::at(kept.start), Ask::Exactly(Cost::new(used)));
        }
        if step.op == "get_window_stats" {
            let report = self.ours.report(&state, &now, Cost::ONE);
            let reset = (report.reset > Nanos::ZERO).then(|| report.reset.as_nanos());
            return compare_stats(step, report.remaining, reset);
        }
        let cost = step.args.read_int("cost")?;
        let ok = match u64::try_from(cost) {
            Ok(cost) => self.ours.weigh(&state, &now, Ask::Exactly(Cost::new(cost))).is_admitted(),
            Err(_) => true,
        };
        let seen = Comparison::new().expect_equal("ok", step.result.read_bool("ok")?, ok).result();
        Ok(seen
            .or_known_difference(&ZERO_COST_REFUSED, || cost == 0 && kept.is_some_and(|kept| kept.count > self.amount)))
    }

    fn state_after_hit(&self, kept: Option<WindowHits>, step: &TraceStep) -> ReadResult<WindowHits> {
        let now = step.at_nanos(MICRO)?;
        let kept = kept.filter(|kept| now - kept.start < self.length).unwrap_or(WindowHits { start: now, count: 0 });
        Ok(WindowHits { count: kept.count + step.args.read_int("cost")?, ..kept })
    }
}
