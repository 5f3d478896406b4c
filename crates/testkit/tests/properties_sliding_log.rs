//! The sliding log against its exact model, and the laws it keeps where no model can follow.

use proptest::prelude::*;
use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, Rate, Stamp};
use tollgate_testkit::model::laws::{OneClock, garbage_is_survived};
use tollgate_testkit::model::lockstep::{HORIZON, Lockstep, walk};
use tollgate_testkit::model::script::{any_size, any_word, cases, greedy_scripts, scripts, starts};
use tollgate_testkit::model::{LogNumbers, SlidingLogModel};

fn numbers() -> impl Strategy<Value = LogNumbers> {
    let limits = prop_oneof![4 => 1_u64..12, 1 => 1_u64..=60];
    let lengths = prop_oneof![1_u64..100, any_size(Rate::MAX_PERIOD.as_nanos()).prop_map(|n| n.max(1))];
    let debts = prop_oneof![Just(0), 0_u64..12];
    let initials = prop_oneof![3 => Just(u64::MAX), 1 => 0_u64..12];
    let gaps = prop_oneof![3 => Just(0), 1 => 1_u64..100, 1 => any_size(Rate::MAX_PERIOD.as_nanos())];
    (limits, lengths, debts, initials, gaps, prop::bool::weighted(0.25)).prop_map(
        |(limit, length, max_debt, initial, gap, count_refused)| {
            let initial = initial.min(limit);
            LogNumbers { limit, length, max_debt, initial, gap, count_refused }
        },
    )
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn every_answer_equals_the_models(numbers in numbers(), start in starts(), script in scripts(40)) {
        let limit = numbers.limit().expect("valid numbers");
        Lockstep::new(&limit, SlidingLogModel::new(numbers, &Now::at(start)), &OneClock, start).run(&script);
    }

    #[test]
    fn no_window_admits_more_than_the_limit_nor_closer_than_the_gap(
        numbers in numbers(), start in any_word(), script in greedy_scripts(60),
    ) {
        let events = walk(&numbers.limit().expect("valid numbers"), &OneClock, start, &script);
        for (nth, last) in events.iter().enumerate() {
            let inside = |asked: u64| last.passes - asked < numbers.length;
            let sum: u64 = events[..=nth].iter().filter(|event| inside(event.passes)).map(|event| event.cost).sum();
            prop_assert!(sum <= numbers.limit, "{sum} passed in the window that ends with {last:?}");
        }
        for pair in events.windows(2) {
            prop_assert!(pair[1].passes - pair[0].passes >= numbers.gap, "{pair:?}");
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
    }

    /// Each step back grants at most one limit, and however the clock was stepped, the log asks for no longer wait than its
    /// memory and the second by which threads may race.
    #[test]
    fn clock_steps_neither_grant_nor_lock_out(
        numbers in numbers(),
        steps in proptest::collection::vec((any_size(HORIZON), prop_oneof![Just(u64::MAX), any_size(u64::MAX)]), 1..30),
    ) {
        let limit = numbers.limit().expect("valid numbers");
        let memory = numbers.length.max(numbers.gap);
        let mut state = vec![0; limit.words()];
        let mut at = steps[0].0;
        limit.fresh(state.as_mut_slice(), &Now::at(at));
        let (mut admitted, mut bound) = (0_u128, u128::from(numbers.limit));
        for (instant, cost) in steps {
            let step = if instant < at { 1 } else { instant.abs_diff(at).div_ceil(numbers.length) };
            bound += u128::from(step) * u128::from(numbers.limit);
            at = instant;
            let verdict = limit.decide(state.as_mut_slice(), &Now::at(at), Ask::UpTo(Cost::new(cost)));
            admitted += u128::from(verdict.taken().get());
            prop_assert!(admitted <= bound);
            let reset = limit.report(state.as_slice(), &Now::at(at), Cost::ONE).reset.as_nanos();
            prop_assert!(reset <= memory + Nanos::SECOND.as_nanos(), "{reset} ns");
            prop_assert!(limit.is_new(state.as_slice(), &Now::at(at + reset)));
        }
    }

    #[test]
    fn a_change_of_numbers_keeps_the_units_spent(
        (old, new) in (numbers(), numbers()), start in starts(), (before, after) in (scripts(10), scripts(10)),
    ) {
        let (old_limit, new_limit) = (old.limit().expect("valid numbers"), new.limit().expect("valid numbers"));
        let mut lockstep = Lockstep::new(&old_limit, SlidingLogModel::new(old, &Now::at(start)), &OneClock, start);
        lockstep.run(&before);
        lockstep.change(&new_limit, |model, now| model.change(new, now));
        lockstep.run(&after);
    }
}
