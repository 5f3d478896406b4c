//! Sliding slices against their exact model, and the laws they keep where no model can follow.

use proptest::prelude::*;
use tollgate_core::{Algorithm, Ask, Cost, LimitError, Nanos, Now, Phase, Rate, SlidingSlices, Stamp};
use tollgate_testkit::model::laws::{Calendar, Clock, OneClock, garbage_is_survived};
use tollgate_testkit::model::lockstep::{HORIZON, Lockstep, walk};
use tollgate_testkit::model::script::{any_size, any_word, cases, greedy_scripts, scripts, some, starts};
use tollgate_testkit::model::{SlidingSlicesModel, WindowNumbers};

/// Numbers with a precision.
fn numbers() -> impl Strategy<Value = (WindowNumbers, u64)> {
    let lengths = prop_oneof![1_u64..100, any_size(Rate::MAX_PERIOD.as_nanos()).prop_map(|n| n.max(1))];
    let debts = prop_oneof![Just(0), any_size(u64::MAX)];
    let initials = prop_oneof![2 => Just(u64::MAX), 1 => any_size(u64::MAX)];
    (some(), lengths, 1..=SlidingSlices::MAX_SLICES, debts, initials).prop_map(
        |(limit, length, slices, max_debt, initial)| {
            let numbers = WindowNumbers { limit, length, max_debt, initial: initial.min(limit), phase: Phase::Epoch };
            let precision = length.div_ceil(slices);
            match numbers.slices(precision) {
                Err(LimitError::FillTooLong { max, .. }) => (WindowNumbers { max_debt: max, ..numbers }, precision),
                Ok(_) | Err(_) => (numbers, precision),
            }
        },
    )
}

fn calendars() -> impl Strategy<Value = Calendar> {
    any_size(1 << 60).prop_map(|ahead| Calendar { ahead, spread: 0, windows: Vec::new() })
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn every_answer_equals_the_models(
        (numbers, precision) in numbers(), calendar in calendars(), start in starts(), script in scripts(40),
    ) {
        let limit = numbers.slices(precision).expect("valid numbers");
        let model = SlidingSlicesModel::new(numbers, precision, &calendar.at(start));
        Lockstep::new(&limit, model, &calendar, start).run(&script);
    }

    /// In any interval of the length at most the limit. Up to the year 2262: the last slice of all time may be cut short by
    /// its end.
    #[test]
    fn no_window_admits_more_than_the_limit(
        (numbers, precision) in numbers(), start in any_word(), script in greedy_scripts(60),
    ) {
        let mut events = walk(&numbers.slices(precision).expect("valid numbers"), &OneClock, start, &script);
        events.retain(|event| event.passes < 1 << 63);
        for last in &events {
            let inside = |at: u64| at <= last.passes && last.passes - at < numbers.length;
            let sum: u128 = events.iter().filter(|event| inside(event.passes)).map(|event| u128::from(event.cost)).sum();
            prop_assert!(sum <= numbers.limit.into(), "{sum} in the window up to {last:?}");
        }
    }

    #[test]
    fn garbage_neither_panics_nor_answers_nonsense(
        ((numbers, precision), (old, old_precision)) in (numbers(), numbers()),
        words in prop::collection::vec(any_word(), 0..70),
        (now, cost, stamp) in (any_word(), any_word(), any_word()),
    ) {
        let limit = numbers.slices(precision).expect("valid numbers");
        let old = old.slices(old_precision).expect("valid numbers");
        for ask in [Ask::Exactly, Ask::UpTo, Ask::Regardless] {
            garbage_is_survived(&limit, &old, &words, &Now::at(now), ask(Cost::new(cost)), Stamp::from_bits(stamp));
        }
    }

    /// Only steps forward let anything leave, and however the clock was stepped, nobody is locked out for more than one window
    /// and slice longer, or the second by which threads may race.
    #[test]
    fn clock_steps_neither_grant_nor_lock_out(
        (numbers, precision) in numbers(),
        steps in prop::collection::vec((any_size(HORIZON), prop_oneof![Just(u64::MAX), any_size(u64::MAX)]), 1..30),
    ) {
        let numbers = WindowNumbers { max_debt: 0, ..numbers };
        let limit = numbers.slices(precision).expect("valid numbers");
        let mut state = vec![0; limit.words()];
        let (state, mut at) = (state.as_mut_slice(), steps[0].0);
        limit.fresh(state, &Now::at(at));
        let (mut admitted, mut windows) = (0_u128, 1_u128);
        for (instant, cost) in steps {
            if instant > at {
                windows += u128::from((instant - at) / numbers.length) + 1;
            }
            at = instant;
            admitted += u128::from(limit.decide(state, &Now::at(at), Ask::UpTo(Cost::new(cost))).taken().get());
            prop_assert!(admitted <= windows.saturating_mul(numbers.limit.into()), "{admitted} in {windows} windows");
            let reset = limit.report(state, &Now::at(at), Cost::ONE).reset.as_nanos();
            let window = numbers.length.div_ceil(precision) * precision;
            prop_assert!(reset <= window + precision + window.max(Nanos::SECOND.as_nanos()), "{reset} ns");
            prop_assert!(limit.is_new(state, &Now::at(at + reset)));
        }
    }

    #[test]
    fn a_change_of_numbers_keeps_what_was_used(
        ((old, old_precision), (new, precision)) in (numbers(), numbers()), alike in any::<bool>(),
        (calendar, start) in (calendars(), starts()), (before, after) in (scripts(10), scripts(10)),
    ) {
        let precision = if alike && new.length.div_ceil(old_precision) <= SlidingSlices::MAX_SLICES && old_precision <= new.length {
            old_precision
        } else {
            precision
        };
        let old_limit = old.slices(old_precision).expect("valid numbers");
        let new_limit = new.slices(precision).expect("valid numbers");
        let model = SlidingSlicesModel::new(old, old_precision, &calendar.at(start));
        let mut lockstep = Lockstep::new(&old_limit, model, &calendar, start);
        lockstep.run(&before);
        lockstep.change(&new_limit, |model, now| model.change(new, precision, now));
        lockstep.run(&after);
    }
}
