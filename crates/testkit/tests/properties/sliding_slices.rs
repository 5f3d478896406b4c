use crate::*;

properties!(SlidingSlicesSubject);

#[derive(Clone, Copy, Debug)]
struct SlidingSlicesSubject {
    params: WindowParams,
    precision: u64,
}

impl Subject for SlidingSlicesSubject {
    subject_types!(
        SlidingSlices,
        SlidingSlicesModel,
        |own, model, now| own.params.sliding_slices(own.precision),
        SlidingSlicesModel::new(own.params, own.precision, now),
        model.change_params(own.params, own.precision, now)
    );

    fn any_params() -> BoxedStrategy<Self> {
        let parameters = (any_amount(), any_length(), 1..=SlidingSlices::MAX_SLICES, any_debt(), any_initial());
        let parameters = parameters.prop_map(|(limit, length, slices, max_debt, initial)| {
            let params = WindowParams { limit, length, max_debt, initial: initial.min(limit), phase: Phase::Epoch };
            let precision = length.div_ceil(slices);
            let params = match params.sliding_slices(precision) {
                Err(LimitError::FillTooLong { max, .. }) => WindowParams { max_debt: max, ..params },
                Ok(_) | Err(_) => params,
            };
            SlidingSlicesSubject { params, precision }
        });
        parameters.boxed()
    }

    fn with_alignment_of(self, old: &Self) -> Self {
        let (length, precision) = (self.params.length, old.precision);
        let fits = length.div_ceil(precision) <= SlidingSlices::MAX_SLICES && precision <= length;
        if fits { Self { precision, ..self } } else { self }
    }

    /// Checks that any interval of the window's length admits at most the limit. Checks only intervals up to the year
    /// 2262, because the end of the clock's range may cut the last slice short.
    fn check_admitted(&self, events: &[AdmittedRequest]) -> Result<(), TestCaseError> {
        let events = || events.iter().filter(|event| event.passes < 1 << 63);
        for last in events() {
            let inside = |at: u64| at <= last.passes && last.passes - at < self.params.length;
            let sum: u128 = events().filter(|event| inside(event.passes)).map(|event| u128::from(event.cost)).sum();
            prop_assert!(sum <= self.params.limit.into(), "{sum} in the window up to {last:?}");
        }
        Ok(())
    }

    fn for_clock_steps(self) -> Self {
        Self { params: WindowParams { max_debt: 0, ..self.params }, ..self }
    }

    fn initial_allowance(&self) -> Exact {
        to_exact(self.params.limit)
    }

    /// Only forward steps expire charges.
    fn extra_after_clock_step(&self, from: u64, to: u64) -> Exact {
        to_exact(max_windows_begun(from, to, self.params.length)) * to_exact(self.params.limit)
    }

    /// Returns one window and one slice plus the tolerance: another window, or one second of clock difference
    /// between threads.
    fn longest_reset(&self) -> u64 {
        let window = self.params.length.div_ceil(self.precision) * self.precision;
        window + self.precision + window.max(Nanos::SECOND.as_nanos())
    }
}
