use crate::*;

properties!(LeakyParams);

impl Subject for LeakyParams {
    subject_types!(
        LeakyBucket,
        LeakyBucketModel,
        |own, model, now| own.limit(),
        LeakyBucketModel::new(*own, now),
        model.change_params(*own, now)
    );

    fn any_params() -> BoxedStrategy<Self> {
        let frees = prop_oneof![Just(0), Just(u64::MAX), any_number_up_to(u64::MAX)];
        let waits =
            prop_oneof![2 => Just(u64::MAX), 1 => Just(0), 2 => any_number_up_to(u64::MAX)].prop_map(Nanos::from_nanos);
        let parameters = (any_rate(), any_amount(), frees, waits, any_debt(), any_initial());
        let parameters = parameters.prop_map(|(rate, burst, free, max_wait, max_debt, initial)| {
            let burst = largest_valid(burst, |n| LeakyBucket::new(rate, n));
            let limit = LeakyBucket::new(rate, burst).expect("valid");
            let max_debt = largest_valid(max_debt, |n| limit.max_debt(n));
            LeakyParams { rate, burst, free: free.min(burst), max_wait, max_debt, initial: initial.min(burst) }
        });
        parameters.boxed()
    }

    /// Checks that at most `burst + rate × T` is admitted in any interval of length `T`.
    fn check_admitted(&self, events: &[AdmittedRequest]) -> Result<(), TestCaseError> {
        let events: Vec<_> = events.iter().map(|event| (event.asked, event.cost)).collect();
        prop_assert_eq!(first_excess_by_pairs(&Bound::from_rate(self.rate, self.burst), &events), None);
        Ok(())
    }

    fn initial_allowance(&self) -> Exact {
        to_exact(self.initial)
    }

    fn extra_after_clock_step(&self, from: u64, to: u64) -> Exact {
        to_exact(to.saturating_sub(from)) * per_nano(self.rate)
    }

    /// Returns the time to drain a full bucket, plus one second of clock difference between threads.
    fn longest_reset(&self) -> u64 {
        let outflow = ceil_nanos(&((to_exact(self.burst) + to_exact(self.max_debt)) / per_nano(self.rate)));
        outflow.saturating_add(Nanos::SECOND).as_nanos()
    }

    fn check_verdict(&self, verdict: &Verdict) -> Result<(), TestCaseError> {
        if let Outcome::Delay(wait) = verdict.outcome() {
            prop_assert!(wait <= self.max_wait);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(config_with_cases(1500))]

    /// Within any interval of length `T`, at most `free + c + rate × (T + 1 ns)` leaves the bucket, where `c` is the
    /// cost of the first request. Requests leave in order of arrival. No request waits longer than `max_wait`.
    #[test]
    fn outflow_is_steady(params in LeakyParams::any_params(), start in any_start(), script in any_taking_script(60)) {
        let mut events = run_without_model(&params.limit().expect("valid"), &EqualClocks, start, &script);
        events.retain(|event| event.passes < u64::MAX);
        // All amounts are multiplied by the period to make them integers.
        let (count, per) = (u128::from(params.rate.count()), u128::from(params.rate.per().as_nanos()));
        for (nth, last) in events.iter().enumerate() {
            prop_assert!(last.passes - last.asked <= params.max_wait.as_nanos());
            let mut after_first = u128::from(last.cost) * per;
            for first in events[..nth].iter().rev() {
                prop_assert!(first.passes <= last.passes, "{first:?} overtaken by {last:?}");
                let flows = u128::from(last.passes - first.passes + 1) * count;
                prop_assert!(after_first <= u128::from(params.free) * per + flows, "too much from {first:?} to {last:?}");
                after_first += u128::from(first.cost) * per;
            }
        }
    }
}
