use crate::*;

properties!(SlidingWindowSubject);

#[derive(Clone, Copy, Debug)]
struct SlidingWindowSubject(WindowParams);

impl Subject for SlidingWindowSubject {
    subject_types!(
        SlidingWindow,
        SlidingWindowModel,
        |own, model, now| own.0.sliding_window(),
        SlidingWindowModel::new(own.0, now),
        model.change_params(own.0, now)
    );

    fn any_params() -> BoxedStrategy<Self> {
        let parameters =
            (any_amount(), any_length(), any_debt(), any_initial()).prop_map(|(limit, length, max_debt, initial)| {
                let params = WindowParams { limit, length, max_debt, initial: initial.min(limit), phase: Phase::Epoch };
                match params.sliding_window() {
                    Err(LimitError::FillTooLong { max, .. }) => {
                        SlidingWindowSubject(WindowParams { max_debt: max, ..params })
                    }
                    Ok(_) | Err(_) => SlidingWindowSubject(params),
                }
            });
        parameters.boxed()
    }

    fn with_alignment_of(self, old: &Self) -> Self {
        Self(WindowParams { length: old.0.length, max_debt: 0, ..self.0 })
    }

    /// Checks that any interval admits at most `limit + limit / length × T`, and any aligned window at most `limit`.
    /// Checks only intervals up to the year 2262, because the end of the clock's range may cut the last window short.
    fn check_admitted(&self, events: &[AdmittedRequest]) -> Result<(), TestCaseError> {
        let events = events.iter().map(|event| (event.passes, event.cost)).filter(|&(at, _)| at < 1 << 63);
        let (events, length): (Vec<_>, _) = (events.collect(), self.0.length);
        let bound = Bound::new(self.0.limit, self.0.limit, length);
        prop_assert_eq!(first_excess_by_pairs(&bound, &events), None);
        prop_assert_eq!(Checker::new(&bound).admit_all(&events), Ok(()));
        for &(last, _) in &events {
            let window = events.iter().filter(|(at, _)| at / length == last / length);
            let sum: u128 = window.map(|&(_, cost)| u128::from(cost)).sum();
            prop_assert!(sum <= self.0.limit.into(), "{sum} in the window of {last}");
        }
        Ok(())
    }

    fn for_clock_steps(self) -> Self {
        Self(WindowParams { max_debt: 0, ..self.0 })
    }

    fn initial_allowance(&self) -> Exact {
        to_exact(self.0.limit)
    }

    /// Only forward steps start windows.
    fn extra_after_clock_step(&self, from: u64, to: u64) -> Exact {
        to_exact(max_windows_begun(from, to, self.0.length)) * to_exact(self.0.limit)
    }

    /// Returns two windows plus the tolerance: another window, or one second of clock difference between threads.
    fn longest_reset(&self) -> u64 {
        2 * self.0.length + self.0.length.max(Nanos::SECOND.as_nanos())
    }
}
