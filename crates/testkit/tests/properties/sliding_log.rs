use crate::*;

properties!(LogParams);

impl Subject for LogParams {
    subject_types!(
        SlidingLog,
        SlidingLogModel,
        |own, model, now| own.limit(),
        SlidingLogModel::new(*own, now),
        model.change_params(*own, now)
    );

    fn any_params() -> BoxedStrategy<Self> {
        let limits = prop_oneof![4 => 1_u64..12, 1 => 1_u64..=60];
        let debts = prop_oneof![Just(0), 0_u64..12];
        let initials = prop_oneof![3 => Just(u64::MAX), 1 => 0_u64..12];
        let gaps = prop_oneof![3 => Just(0), 1 => 1_u64..100, 1 => any_number_up_to(Rate::MAX_PERIOD.as_nanos())];
        let parameters = (limits, any_length(), debts, initials, gaps, prop::bool::weighted(0.25));
        let parameters = parameters.prop_map(|(limit, length, max_debt, initial, gap, count_refused)| {
            let initial = initial.min(limit);
            LogParams { limit, length, max_debt, initial, gap, count_refused }
        });
        parameters.boxed()
    }

    /// Checks that any window admits at most `limit`, and that requests are never closer than the minimum gap.
    fn check_admitted(&self, events: &[AdmittedRequest]) -> Result<(), TestCaseError> {
        for (nth, last) in events.iter().enumerate() {
            let inside = |asked: u64| last.passes - asked < self.length;
            let sum: u64 = events[..=nth].iter().filter(|event| inside(event.passes)).map(|event| event.cost).sum();
            prop_assert!(sum <= self.limit, "{sum} passed in the window that ends with {last:?}");
        }
        for pair in events.windows(2) {
            prop_assert!(pair[1].passes - pair[0].passes >= self.gap, "{pair:?}");
        }
        Ok(())
    }

    fn initial_allowance(&self) -> Exact {
        to_exact(self.limit)
    }

    /// Returns the extra amount after a step: one limit for a step back, one limit per window for a step forward.
    fn extra_after_clock_step(&self, from: u64, to: u64) -> Exact {
        let windows = if to < from { 1 } else { (to - from).div_ceil(self.length) };
        to_exact(windows) * to_exact(self.limit)
    }

    /// Returns the longer of window and gap, plus one second of clock difference between threads.
    fn longest_reset(&self) -> u64 {
        self.length.max(self.gap) + Nanos::SECOND.as_nanos()
    }
}
