use crate::*;

properties!(FixedWindowSubject);

#[derive(Clone, Copy, Debug)]
struct FixedWindowSubject(WindowParams);

impl Subject for FixedWindowSubject {
    subject_types!(
        FixedWindow,
        FixedWindowModel,
        |own, model, now| own.0.fixed_window(),
        FixedWindowModel::new(own.0, now),
        model.change_params(own.0, now)
    );

    fn any_params() -> BoxedStrategy<Self> {
        let phases = prop::sample::select(vec![Phase::Epoch, Phase::FirstRequest, Phase::Spread, Phase::Given(0)]);
        let parameters = (any_amount(), any_length(), any_debt(), any_initial(), phases);
        let parameters = parameters.prop_map(|(limit, length, max_debt, initial, phase)| {
            // Calendar windows have irregular lengths, so their debt payment is approximate.
            let max_debt = if phase == Phase::Given(0) { 0 } else { max_debt };
            let params = WindowParams { limit, length, max_debt, initial: initial.min(limit), phase };
            match params.fixed_window() {
                Err(LimitError::FillTooLong { max, .. }) => {
                    FixedWindowSubject(WindowParams { max_debt: max, ..params })
                }
                Ok(_) | Err(_) => FixedWindowSubject(params),
            }
        });
        parameters.boxed()
    }

    fn with_alignment_of(self, old: &Self) -> Self {
        Self(WindowParams { length: old.0.length, phase: old.0.phase, max_debt: 0, ..self.0 })
    }

    /// Returns windows of 0.5 to 2.5 times this length from the start on, plus one window for all earlier times and one
    /// for all later times.
    fn clock_with_calendar(&self, start: u64, ahead: u64, spread: u64, halves: &[u64]) -> CalendarClock {
        let first = start + ahead + 1;
        let mut ends = vec![first];
        ends.extend(halves.iter().scan(first, |end, halves| {
            *end += (self.0.length.min(1 << 56) * halves).div_ceil(2);
            Some(*end)
        }));
        ends.push(1 << 63);
        let starts = [0].into_iter().chain(ends.clone());
        let window = |(from, to)| Window::new(Time::from_nanos(from), Time::from_nanos(to));
        CalendarClock { ahead, spread, windows: starts.zip(ends).filter_map(window).collect() }
    }

    /// Checks that at most `limit × (⌊T / length⌋ + 2)` is admitted in any interval, and at most `limit` in each
    /// aligned window. The same holds if a calendar window is missing.
    fn check_admitted(&self, events: &[AdmittedRequest]) -> Result<(), TestCaseError> {
        let (limit, length) = (u128::from(self.0.limit), self.0.length);
        for (nth, last) in events.iter().enumerate() {
            let (mut sum, mut of_window) = (0, 0);
            for first in events[..=nth].iter().rev() {
                sum += u128::from(first.cost);
                // The interval includes both of its ends, so it can touch one more window.
                let windows = u128::from((last.passes - first.passes) / length + 2);
                prop_assert!(sum <= limit.saturating_mul(windows), "{sum} from {first:?} to {last:?}");
                if first.passes / length == last.passes / length {
                    of_window += u128::from(first.cost);
                }
            }
            prop_assert!(self.0.phase != Phase::Epoch || of_window <= limit, "{of_window} in the window of {last:?}");
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

    /// Returns one window plus the tolerance: another window, or one second of clock difference between threads.
    fn longest_reset(&self) -> u64 {
        self.0.length + self.0.length.max(Nanos::SECOND.as_nanos())
    }
}
