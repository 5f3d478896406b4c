//! The sliding window against its exact model, and the laws it keeps where no model can follow.

use proptest::prelude::*;
use tollgate_core::{Algorithm, Ask, Cost, LimitError, Nanos, Now, Phase, Rate, Stamp};
use tollgate_testkit::history::{Bound, Checker, fullest_excess};
use tollgate_testkit::model::laws::{Calendar, Clock, OneClock, garbage_is_survived};
use tollgate_testkit::model::lockstep::{HORIZON, Lockstep, walk};
use tollgate_testkit::model::script::{any_size, any_word, cases, greedy_scripts, scripts, some, starts};
use tollgate_testkit::model::{SlidingWindowModel, WindowNumbers};

fn numbers() -> impl Strategy<Value = WindowNumbers> {
    let lengths = prop_oneof![1_u64..100, any_size(Rate::MAX_PERIOD.as_nanos()).prop_map(|n| n.max(1))];
    let debts = prop_oneof![Just(0), any_size(u64::MAX)];
    let initials = prop_oneof![2 => Just(u64::MAX), 1 => any_size(u64::MAX)];
    (some(), lengths, debts, initials).prop_map(|(limit, length, max_debt, initial)| {
        let numbers = WindowNumbers { limit, length, max_debt, initial: initial.min(limit), phase: Phase::Epoch };
        match numbers.sliding() {
            Err(LimitError::FillTooLong { max, .. }) => WindowNumbers { max_debt: max, ..numbers },
            Ok(_) | Err(_) => numbers,
        }
    })
}

fn calendars() -> impl Strategy<Value = Calendar> {
    any_size(1 << 60).prop_map(|ahead| Calendar { ahead, spread: 0, windows: Vec::new() })
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn every_answer_equals_the_models(
        numbers in numbers(), calendar in calendars(), start in starts(), script in scripts(40),
    ) {
        let limit = numbers.sliding().expect("valid numbers");
        let model = SlidingWindowModel::new(numbers, &calendar.at(start));
        Lockstep::new(&limit, model, &calendar, start).run(&script);
    }

    /// In any interval at most `limit + limit / length × T`, and in any window of the grid at most `limit`. Up to the year
    /// 2262: the last window of all time may be cut short by its end.
    #[test]
    fn no_interval_admits_more_than_limit_plus_rate_times_its_length(
        numbers in numbers(), start in any_word(), script in greedy_scripts(60),
    ) {
        let events: Vec<_> = walk(&numbers.sliding().expect("valid numbers"), &OneClock, start, &script)
            .iter()
            .map(|event| (event.passes, event.cost))
            .filter(|&(at, _)| at < 1 << 63)
            .collect();
        let bound = Bound::new(numbers.limit, numbers.limit, numbers.length);
        prop_assert_eq!(fullest_excess(&bound, &events), None);
        prop_assert_eq!(Checker::new(&bound).admit_all(&events), Ok(()));
        for &(last, _) in &events {
            let window = events.iter().filter(|(at, _)| at / numbers.length == last / numbers.length);
            let sum: u128 = window.map(|&(_, cost)| u128::from(cost)).sum();
            prop_assert!(sum <= numbers.limit.into(), "{sum} in the window of {last}");
        }
    }

    #[test]
    fn garbage_neither_panics_nor_answers_nonsense(
        (numbers, old) in (numbers(), numbers()),
        words in prop::collection::vec(any_word(), 0..5),
        (now, cost, stamp) in (any_word(), any_word(), any_word()),
    ) {
        let (limit, old) = (numbers.sliding().expect("valid numbers"), old.sliding().expect("valid numbers"));
        for ask in [Ask::Exactly, Ask::UpTo, Ask::Regardless] {
            garbage_is_survived(&limit, &old, &words, &Now::at(now), ask(Cost::new(cost)), Stamp::from_bits(stamp));
        }
    }

    /// Only steps forward begin windows, and however the clock was stepped, nobody is locked out for more than one window
    /// longer, or the second by which threads may race.
    #[test]
    fn clock_steps_neither_grant_nor_lock_out(
        numbers in numbers(),
        steps in prop::collection::vec((any_size(HORIZON), prop_oneof![Just(u64::MAX), any_size(u64::MAX)]), 1..30),
    ) {
        let limit = WindowNumbers { max_debt: 0, ..numbers }.sliding().expect("valid numbers");
        let (mut state, mut at) = ([0; 3], steps[0].0);
        limit.fresh(&mut state, &Now::at(at));
        let (mut admitted, mut windows) = (0_u128, 1_u128);
        for (instant, cost) in steps {
            if instant > at {
                windows += u128::from((instant - at) / numbers.length) + 1;
            }
            at = instant;
            admitted += u128::from(limit.decide(&mut state, &Now::at(at), Ask::UpTo(Cost::new(cost))).taken().get());
            prop_assert!(admitted <= windows.saturating_mul(numbers.limit.into()), "{admitted} in {windows} windows");
            let reset = limit.report(&state, &Now::at(at), Cost::ONE).reset.as_nanos();
            prop_assert!(reset <= 2 * numbers.length + numbers.length.max(Nanos::SECOND.as_nanos()), "{reset} ns");
            prop_assert!(limit.is_new(&state, &Now::at(at + reset)));
        }
    }

    #[test]
    fn a_change_of_numbers_keeps_what_was_used(
        (old, new) in (numbers(), numbers()), alike in any::<bool>(), calendar in calendars(), start in starts(),
        (before, after) in (scripts(10), scripts(10)),
    ) {
        let new = if alike { WindowNumbers { length: old.length, max_debt: 0, ..new } } else { new };
        let (old_limit, new_limit) = (old.sliding().expect("valid numbers"), new.sliding().expect("valid numbers"));
        let model = SlidingWindowModel::new(old, &calendar.at(start));
        let mut lockstep = Lockstep::new(&old_limit, model, &calendar, start);
        lockstep.run(&before);
        lockstep.change(&new_limit, |model, now| model.change(new, now));
        lockstep.run(&after);
    }
}
