use crate::*;

properties!(TokenParams);

impl Subject for TokenParams {
    subject_types!(
        TokenBucket,
        TokenBucketModel,
        |own, model, now| own.limit(),
        TokenBucketModel::new(*own, now),
        model.change_params(*own, now)
    );

    fn any_params() -> BoxedStrategy<Self> {
        let parameters =
            (any_rate(), any_amount(), any_debt(), any_initial()).prop_map(|(rate, burst, max_debt, initial)| {
                let burst = largest_valid(burst, |n| TokenBucket::new(rate, n));
                let limit = TokenBucket::new(rate, burst).expect("valid");
                let max_debt = largest_valid(max_debt, |n| limit.max_debt(n));
                TokenParams { rate, burst, max_debt, initial: initial.min(burst) }
            });
        parameters.boxed()
    }

    /// Checks that at most `burst + rate × T` is admitted in any interval of length `T`, up to the
    /// end of representable time.
    fn check_admitted(&self, events: &[AdmittedRequest]) -> Result<(), TestCaseError> {
        let events: Vec<_> = events.iter().map(|event| (event.passes, event.cost)).collect();
        let bound = Bound::from_rate(self.rate, self.burst);
        prop_assert_eq!(first_excess_by_pairs(&bound, &events), None);
        prop_assert_eq!(Checker::new(&bound).admit_all(&events), Ok(()));
        Ok(())
    }

    fn initial_allowance(&self) -> Exact {
        to_exact(self.initial)
    }

    fn extra_after_clock_step(&self, from: u64, to: u64) -> Exact {
        to_exact(to.saturating_sub(from)) * per_nano(self.rate)
    }

    /// Returns the time to refill capacity and debt, plus one second of clock difference between threads.
    fn longest_reset(&self) -> u64 {
        let refill = ceil_nanos(&((to_exact(self.burst) + to_exact(self.max_debt)) / per_nano(self.rate)));
        refill.saturating_add(Nanos::SECOND).as_nanos()
    }
}

proptest! {
    #![proptest_config(config_with_cases(1500))]

    #[test]
    fn no_state_owes_more_than_burst_and_debt(
        params in TokenParams::any_params(), words in [any_word(), any_word()], now in any_word(),
    ) {
        let report = params.limit().expect("valid").report(&words, &Now::at(now), Cost::ONE);
        prop_assert!(report.reset.as_nanos() <= params.longest_reset(), "{:?}", report);
    }
}
