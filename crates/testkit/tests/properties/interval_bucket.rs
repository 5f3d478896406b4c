use crate::*;

properties!(IntervalParams);

impl Subject for IntervalParams {
    subject_types!(
        IntervalBucket,
        IntervalBucketModel,
        |own, model, now| own.limit(),
        IntervalBucketModel::new(*own, now),
        model.change_params(*own, now)
    );

    fn any_params() -> BoxedStrategy<Self> {
        let waits = prop_oneof![2 => Just(0), 2 => 1_u64..300, 1 => any_number_up_to(Rate::MAX_PERIOD.as_nanos())];
        let offsets = prop_oneof![Just(None), any_word().prop_map(Some)];
        let parameters = ((any_amount(), any_length(), any_amount(), offsets), (waits, any_debt(), any_initial()));
        let parameters = parameters.prop_map(|((refill, period, burst, offset), (max_wait, max_debt, initial))| {
            let refill = refill.min(period);
            let limit = IntervalBucket::new(refill, Nanos::from_nanos(period)).expect("valid");
            let burst = largest_valid(burst, |n| limit.burst(n));
            let limit = limit.burst(burst).expect("valid");
            let max_debt = largest_valid(max_debt, |n| limit.max_debt(n));
            let steps = offset.map_or(Steps::FirstRequest, |offset| Steps::Aligned(Nanos::from_nanos(offset % period)));
            IntervalParams { refill, period, burst, steps, max_wait, max_debt, initial: initial.min(burst) }
        });
        parameters.boxed()
    }

    fn with_alignment_of(self, old: &Self) -> Self {
        if self.refill > old.period {
            return self;
        }
        let burst = self.burst.min(old.burst);
        Self { period: old.period, steps: old.steps, burst, max_debt: 0, initial: 0, ..self }
    }

    fn any_start() -> BoxedStrategy<u64> {
        any_number_up_to(1 << 62).boxed()
    }

    /// Checks that any interval admits at most the burst plus the refill of its steps. If requests can
    /// wait, a step exactly at the start of the interval also counts.
    fn check_admitted(&self, events: &[AdmittedRequest]) -> Result<(), TestCaseError> {
        let period = i128::from(self.period);
        let steps_between = |from: i128, to: i128| match self.steps {
            // The alignment is unknown here, so the largest possible number of steps is used.
            Steps::FirstRequest => (to - from) / period + 1,
            Steps::Aligned(offset) => {
                let step = |at: i128| (at - i128::from(offset.as_nanos())).div_euclid(period);
                step(to) - step(from - i128::from(self.max_wait > 0))
            }
        };
        let events: Vec<_> = events.iter().filter(|event| event.passes < u64::MAX).collect();
        for (nth, last) in events.iter().enumerate() {
            let mut sum = 0;
            for first in events[..=nth].iter().rev() {
                sum += i128::from(first.cost);
                let steps = steps_between(first.passes.into(), last.passes.into());
                let most = i128::from(self.burst) + steps * i128::from(self.refill);
                prop_assert!(sum <= most, "{sum} above {most} from {first:?} to {last:?}");
            }
        }
        Ok(())
    }

    fn for_clock_steps(self) -> Self {
        Self { max_wait: 0, ..self }
    }

    fn initial_allowance(&self) -> Exact {
        to_exact(self.initial)
    }

    /// Only forward steps refill.
    fn extra_after_clock_step(&self, from: u64, to: u64) -> Exact {
        to_exact(max_windows_begun(from, to, self.period)) * to_exact(self.refill)
    }

    /// Returns the refill time of the largest possible debt, plus one second of clock difference between threads.
    fn longest_reset(&self) -> u64 {
        let owed = (self.burst + self.max_debt).div_ceil(self.refill);
        (owed + 2) * self.period + Nanos::SECOND.as_nanos()
    }
}

/// Regression test: the steps moved with the clock, and clock steps forward refilled too much.
#[test]
fn steps_counted_from_the_first_request_do_not_move_with_the_clock() {
    let burst = 57_784_698_448_605;
    let steps = Steps::FirstRequest;
    let params = IntervalParams { refill: 1, period: 2, burst, steps, max_wait: 0, max_debt: 0, initial: burst };
    check_clock_steps(&params, &[180_809_181, 0, 1_000_001_501, 0].map(|at| (at, u64::MAX))).unwrap();
}
