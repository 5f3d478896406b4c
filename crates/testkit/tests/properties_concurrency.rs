//! Leases against their exact model, and the laws they keep where no model can follow.

use proptest::prelude::*;
use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, Rate, Stamp};
use tollgate_testkit::model::laws::{OneClock, garbage_is_survived};
use tollgate_testkit::model::lockstep::{HORIZON, Lockstep};
use tollgate_testkit::model::script::{any_size, any_word, cases, scripts, starts};
use tollgate_testkit::model::{ConcurrencyModel, LeaseNumbers, Model};

fn numbers() -> impl Strategy<Value = LeaseNumbers> {
    let limits = prop_oneof![4 => 1_u64..8, 1 => 1_u64..60];
    let leases = prop_oneof![1_u64..100, any_size(Rate::MAX_PERIOD.as_nanos()).prop_map(|n| n.max(1))];
    (limits, leases, prop_oneof![Just(0), 0_u64..8]).prop_map(|(limit, lease, max_debt)| LeaseNumbers {
        limit,
        lease: Nanos::from_nanos(lease),
        max_debt,
    })
}

/// What a holder does, and after how long.
#[derive(Clone, Copy, Debug)]
enum Act {
    Take(u64),
    Charge(u64),
    Release(usize),
    GiveBack(usize, u64),
    Renew(usize),
}

fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
    let act = prop_oneof![
        4 => (0_u64..6).prop_map(Act::Take),
        1 => (0_u64..6).prop_map(Act::Charge),
        2 => (0_usize..12).prop_map(Act::Release),
        1 => (0_usize..12, 0_u64..4).prop_map(|(ago, cost)| Act::GiveBack(ago, cost)),
        3 => (0_usize..12).prop_map(Act::Renew),
    ];
    prop::collection::vec((prop_oneof![2 => Just(0), 2 => 0_u64..60, 1 => any_size(1 << 50)], act), 1..80)
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn every_answer_equals_the_models(numbers in numbers(), start in starts(), script in scripts(40)) {
        let limit = numbers.limit().expect("valid numbers");
        Lockstep::new(&limit, ConcurrencyModel::new(numbers), &OneClock, start).run(&script);
    }

    /// Stamps are never forgotten here: one of a lease that is over must not touch whoever has its slot now.
    #[test]
    fn renewing_and_releasing_touch_the_named_lease_alone(numbers in numbers(), start in starts(), acts in acts()) {
        let (limit, mut model) = (numbers.limit().expect("valid numbers"), ConcurrencyModel::new(numbers));
        let mut state = vec![0; limit.words()];
        let state = state.as_mut_slice();
        limit.fresh(state, &Now::at(start));
        let (mut at, mut stamps) = (start, Vec::<(Stamp, usize)>::new());
        for (pause, act) in acts {
            at += pause;
            let now = Now::at(at);
            let holder = |ago: usize| stamps.iter().rev().nth(ago).copied().unwrap_or((Stamp::NONE, usize::MAX));
            match act {
                Act::Take(cost) | Act::Charge(cost) => {
                    let ask = if matches!(act, Act::Take(_)) { Ask::Exactly } else { Ask::Regardless };
                    let verdict = limit.decide(state, &now, ask(Cost::new(cost)));
                    let answer = model.ask(&now, ask(Cost::new(cost)));
                    prop_assert_eq!((verdict.outcome(), verdict.taken().get()), (answer.outcome, answer.taken));
                    if answer.taken > 0 {
                        prop_assert!(!stamps.iter().any(|&(stamp, _)| stamp == verdict.stamp()), "given twice");
                        stamps.push((verdict.stamp(), answer.receipt));
                    }
                }
                Act::Release(ago) => {
                    let (stamp, receipt) = holder(ago);
                    let given = limit.release(state, &now, stamp).get();
                    prop_assert_eq!(given, model.refund(&now, u64::MAX, Some(receipt)));
                    prop_assert_eq!(limit.release(state, &now, stamp), Cost::ZERO, "released twice");
                }
                Act::GiveBack(ago, cost) => {
                    let (stamp, receipt) = holder(ago);
                    let given = limit.refund(state, &now, Cost::new(cost), Some(stamp)).get();
                    prop_assert_eq!(given, model.refund(&now, cost, Some(receipt)));
                }
                Act::Renew(ago) => {
                    let (stamp, receipt) = holder(ago);
                    prop_assert_eq!(limit.renew(state, &now, stamp), model.renew(&now, receipt));
                }
            }
            prop_assert_eq!(limit.report(state, &now, Cost::ONE), model.report(&now, 1));
            prop_assert!(model.held(at) <= numbers.limit + numbers.max_debt);
        }
    }

    #[test]
    fn garbage_neither_panics_nor_answers_nonsense(
        (numbers, old) in (numbers(), numbers()),
        words in proptest::collection::vec(any_word(), 0..30),
        (now, cost, stamp) in (any_word(), any_word(), any_word()),
    ) {
        let (limit, old, now) = (numbers.limit().expect("valid numbers"), old.limit().expect("valid numbers"), Now::at(now));
        for ask in [Ask::Exactly, Ask::UpTo, Ask::Regardless] {
            garbage_is_survived(&limit, &old, &words, &now, ask(Cost::new(cost)), Stamp::from_bits(stamp));
        }
        let mut state = words.clone();
        limit.renew(state.as_mut_slice(), &now, Stamp::from_bits(stamp));
    }

    /// However the clock was stepped, no more is held than allowed, and all of it is back after one lease.
    #[test]
    fn clock_steps_neither_grant_nor_lock_out(
        numbers in numbers(), steps in proptest::collection::vec((any_size(HORIZON), 0_u64..6), 1..30),
    ) {
        let limit = numbers.limit().expect("valid numbers");
        let mut state = vec![0; limit.words()];
        limit.fresh(state.as_mut_slice(), &Now::at(steps[0].0));
        for (at, cost) in steps {
            let _ = limit.decide(state.as_mut_slice(), &Now::at(at), Ask::UpTo(Cost::new(cost)));
            let report = limit.report(state.as_slice(), &Now::at(at), Cost::ONE);
            let longest = numbers.lease.saturating_add(Nanos::SECOND);
            prop_assert!(report.reset <= longest, "{report:?}");
            prop_assert!(limit.is_new(state.as_slice(), &Now::at(at + longest.as_nanos())));
        }
    }

    #[test]
    fn a_change_of_numbers_keeps_the_leases(
        (old, new) in (numbers(), numbers()), start in starts(), (before, after) in (scripts(10), scripts(10)),
    ) {
        let (old_limit, new_limit) = (old.limit().expect("valid numbers"), new.limit().expect("valid numbers"));
        let mut lockstep = Lockstep::new(&old_limit, ConcurrencyModel::new(old), &OneClock, start);
        lockstep.run(&before);
        lockstep.change(&new_limit, |model, now| model.change(new, now));
        lockstep.run(&after);
    }
}
