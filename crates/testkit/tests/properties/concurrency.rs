use crate::*;

properties!(LeaseParams);

impl Subject for LeaseParams {
    subject_types!(
        Concurrency,
        ConcurrencyModel,
        |own, model, now| own.limit(),
        ConcurrencyModel::new(*own),
        model.change_params(*own, now)
    );

    fn any_params() -> BoxedStrategy<Self> {
        let limits = prop_oneof![4 => 1_u64..8, 1 => 1_u64..60];
        let parameters = (limits, any_length(), prop_oneof![Just(0), 0_u64..8]);
        let parameters = parameters.prop_map(|(limit, lease, max_debt)| LeaseParams {
            limit,
            lease: Nanos::from_nanos(lease),
            max_debt,
        });
        parameters.boxed()
    }

    /// Checks that at most `limit` is admitted within any interval of a lease's length, because the
    /// test releases nothing.
    fn check_admitted(&self, events: &[AdmittedRequest]) -> Result<(), TestCaseError> {
        for (nth, last) in events.iter().enumerate() {
            let inside = |at: u64| last.passes - at < self.lease.as_nanos();
            let held: u64 = events[..=nth].iter().filter(|event| inside(event.passes)).map(|event| event.cost).sum();
            prop_assert!(held <= self.limit, "{held} held at {last:?}");
        }
        Ok(())
    }

    fn initial_allowance(&self) -> Exact {
        to_exact(self.limit)
    }

    fn extra_after_clock_step(&self, _: u64, _: u64) -> Exact {
        to_exact(self.limit)
    }

    fn longest_reset(&self) -> u64 {
        self.lease.saturating_add(Nanos::SECOND).as_nanos()
    }
}

/// An action of a holder.
#[derive(Clone, Copy, Debug)]
enum HolderAct {
    Take(u64),
    Charge(u64),
    Release(usize),
    GiveBack(usize, u64),
    Renew(usize),
}

fn any_acts() -> impl Strategy<Value = Vec<(u64, HolderAct)>> {
    let act = prop_oneof![
        4 => (0_u64..6).prop_map(HolderAct::Take),
        1 => (0_u64..6).prop_map(HolderAct::Charge),
        2 => (0_usize..12).prop_map(HolderAct::Release),
        1 => (0_usize..12, 0_u64..4).prop_map(|(ago, cost)| HolderAct::GiveBack(ago, cost)),
        3 => (0_usize..12).prop_map(HolderAct::Renew),
    ];
    prop::collection::vec((prop_oneof![2 => Just(0), 2 => 0_u64..60, 1 => any_number_up_to(1 << 50)], act), 1..80)
}

proptest! {
    #![proptest_config(config_with_cases(1500))]

    /// The test keeps all stamps, because the stamp of an ended lease must not affect the current holder
    /// of its slot.
    #[test]
    fn renewing_and_releasing_affect_only_the_named_lease(params in LeaseParams::any_params(), start in any_start(), acts in any_acts()) {
        let (limit, mut model) = (params.limit().expect("valid"), ConcurrencyModel::new(params));
        let mut state = vec![0; limit.words()];
        let state = state.as_mut_slice();
        limit.init(state, &Now::at(start));
        let (mut at, mut stamps) = (start, Vec::<(Stamp, usize)>::new());
        for (pause, act) in acts {
            at += pause;
            let now = Now::at(at);
            let holder = |ago: usize| stamps.iter().rev().nth(ago).copied().unwrap_or((Stamp::NONE, usize::MAX));
            match act {
                HolderAct::Take(cost) | HolderAct::Charge(cost) => {
                    let ask = if matches!(act, HolderAct::Take(_)) { Ask::Exactly } else { Ask::Regardless };
                    let verdict = limit.decide(state, &now, ask(Cost::new(cost)));
                    let answer = model.ask(&now, ask(Cost::new(cost)));
                    prop_assert_eq!((verdict.outcome(), verdict.taken().get()), (answer.outcome, answer.taken));
                    if answer.taken > 0 {
                        prop_assert!(!stamps.iter().any(|&(stamp, _)| stamp == verdict.stamp()), "the stamp was issued twice");
                        stamps.push((verdict.stamp(), answer.receipt));
                    }
                }
                HolderAct::Release(ago) => {
                    let (stamp, receipt) = holder(ago);
                    let given = limit.release(state, &now, stamp).get();
                    prop_assert_eq!(given, model.refund(&now, u64::MAX, Some(receipt)));
                    prop_assert_eq!(limit.release(state, &now, stamp), Cost::ZERO, "released twice");
                }
                HolderAct::GiveBack(ago, cost) => {
                    let (stamp, receipt) = holder(ago);
                    let given = limit.refund(state, &now, Cost::new(cost), Some(stamp)).get();
                    prop_assert_eq!(given, model.refund(&now, cost, Some(receipt)));
                }
                HolderAct::Renew(ago) => {
                    let (stamp, receipt) = holder(ago);
                    prop_assert_eq!(limit.renew(state, &now, stamp), model.renew(&now, receipt));
                }
            }
            prop_assert_eq!(limit.report(state, &now, Cost::ONE), model.report(&now, 1));
            prop_assert!(model.weight_held(at) <= params.limit + params.max_debt);
        }
    }

    #[test]
    fn renewing_garbage_does_not_panic(
        params in LeaseParams::any_params(), words in any_words(), (now, stamp) in (any_word(), any_word()),
    ) {
        let mut state = words;
        params.limit().expect("valid").renew(state.as_mut_slice(), &Now::at(now), Stamp::from_bits(stamp));
    }
}
