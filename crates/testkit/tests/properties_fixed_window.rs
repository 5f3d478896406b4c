//! The fixed window against its exact model, and the laws it keeps where no model can follow.

use proptest::prelude::*;
use tollgate_core::{Algorithm, Ask, Cost, LimitError, Nanos, Now, Phase, Rate, Stamp, Time, Window};
use tollgate_testkit::model::laws::{Calendar, Clock, OneClock, garbage_is_survived};
use tollgate_testkit::model::lockstep::{HORIZON, Lockstep, walk};
use tollgate_testkit::model::script::{any_size, any_word, cases, greedy_scripts, scripts, some, starts};
use tollgate_testkit::model::{FixedWindowModel, WindowNumbers};

fn numbers() -> impl Strategy<Value = WindowNumbers> {
    let lengths = prop_oneof![1_u64..100, any_size(Rate::MAX_PERIOD.as_nanos()).prop_map(|n| n.max(1))];
    let debts = prop_oneof![Just(0), any_size(u64::MAX)];
    let initials = prop_oneof![2 => Just(u64::MAX), 1 => any_size(u64::MAX)];
    let phases = prop::sample::select(vec![Phase::Epoch, Phase::FirstRequest, Phase::Spread, Phase::Given(0)]);
    (some(), lengths, debts, initials, phases).prop_map(|(limit, length, max_debt, initial, phase)| {
        // How debt is paid in windows of irregular length is about, not exact.
        let max_debt = if phase == Phase::Given(0) { 0 } else { max_debt };
        let numbers = WindowNumbers { limit, length, max_debt, initial: initial.min(limit), phase };
        match numbers.fixed() {
            Err(LimitError::FillTooLong { max, .. }) => WindowNumbers { max_debt: max, ..numbers },
            Ok(_) | Err(_) => numbers,
        }
    })
}

/// Numbers with a calendar to go with them: windows of about the length around the start, and all time before and after.
fn with_calendar() -> impl Strategy<Value = (WindowNumbers, u64, Calendar)> {
    let halves = prop::collection::vec(1_u64..6, 20);
    (numbers(), starts(), any_size(1 << 60), any_word(), halves).prop_map(|(numbers, start, ahead, spread, halves)| {
        (numbers, start, Calendar { ahead, spread, windows: windows(&numbers, start + ahead, &halves) })
    })
}

fn windows(numbers: &WindowNumbers, from: u64, halves: &[u64]) -> Vec<Window> {
    let mut ends = vec![from + 1];
    ends.extend(halves.iter().scan(from + 1, |end, halves| {
        *end += (numbers.length.min(1 << 56) * halves).div_ceil(2);
        Some(*end)
    }));
    ends.push(1 << 63);
    let starts = [0].into_iter().chain(ends.clone());
    starts.zip(ends).filter_map(|(from, to)| Window::new(Time::from_nanos(from), Time::from_nanos(to))).collect()
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn every_answer_equals_the_models((numbers, start, calendar) in with_calendar(), script in scripts(40)) {
        let limit = numbers.fixed().expect("valid numbers");
        let model = FixedWindowModel::new(numbers, &calendar.at(start));
        Lockstep::new(&limit, model, &calendar, start).run(&script);
    }

    /// In any interval at most `limit × (⌈T / length⌉ + 1)`, and in windows that lie at multiples at most `limit` each. Where
    /// windows should be handed in but are not, the same holds.
    #[test]
    fn no_window_admits_more_than_the_limit(
        numbers in numbers(), start in any_word(), script in greedy_scripts(60),
    ) {
        let events = walk(&numbers.fixed().expect("valid numbers"), &OneClock, start, &script);
        let limit = u128::from(numbers.limit);
        for (nth, last) in events.iter().enumerate() {
            let (mut sum, mut of_window) = (0, 0);
            for first in events[..=nth].iter().rev() {
                sum += u128::from(first.cost);
                let length = last.passes - first.passes;
                // Both ends are inside.
                let windows = u128::from(length / numbers.length + 2);
                prop_assert!(sum <= limit.saturating_mul(windows), "{sum} from {first:?} to {last:?}");
                if first.passes / numbers.length == last.passes / numbers.length {
                    of_window += u128::from(first.cost);
                }
            }
            prop_assert!(numbers.phase != Phase::Epoch || of_window <= limit, "{of_window} in the window of {last:?}");
        }
    }

    #[test]
    fn garbage_neither_panics_nor_answers_nonsense(
        (numbers, old) in (numbers(), numbers()),
        words in prop::collection::vec(any_word(), 0..4),
        (mono, wall, spread) in (any_word(), any_word(), any_word()),
        (cost, stamp) in (any_word(), any_word()),
        ends in prop::collection::vec((any_word(), any_word()), 0..2),
    ) {
        let (limit, old) = (numbers.fixed().expect("valid numbers"), old.fixed().expect("valid numbers"));
        let handed: Vec<Window> =
            ends.iter().filter_map(|&(from, to)| Window::new(Time::from_nanos(from), Time::from_nanos(to))).collect();
        let now = Now::new(Time::from_nanos(mono), Time::from_nanos(wall)).with_spread(spread).with_windows(&handed);
        for ask in [Ask::Exactly, Ask::UpTo, Ask::Regardless] {
            garbage_is_survived(&limit, &old, &words, &now, ask(Cost::new(cost)), Stamp::from_bits(stamp));
        }
    }

    /// Only steps forward begin windows, and however the clock was stepped, nobody is locked out for more than one window
    /// longer, or the second by which threads may race.
    #[test]
    fn clock_steps_neither_grant_nor_lock_out(
        numbers in numbers(),
        steps in prop::collection::vec((any_size(HORIZON), prop_oneof![Just(u64::MAX), any_size(u64::MAX)]), 1..30),
    ) {
        let numbers = WindowNumbers { max_debt: 0, ..numbers };
        let limit = numbers.fixed().expect("valid numbers");
        let (mut state, mut at) = ([0; 2], steps[0].0);
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
            prop_assert!(reset <= numbers.length + numbers.length.max(Nanos::SECOND.as_nanos()), "{reset} ns");
            prop_assert!(limit.is_new(&state, &Now::at(at + reset)));
        }
    }

    #[test]
    fn a_change_of_numbers_keeps_what_was_used(
        (old, start, calendar) in with_calendar(), new in numbers(), alike in any::<bool>(),
        (before, after) in (scripts(10), scripts(10)),
    ) {
        let new = if alike { WindowNumbers { length: old.length, phase: old.phase, max_debt: 0, ..new } } else { new };
        let (old_limit, new_limit) = (old.fixed().expect("valid numbers"), new.fixed().expect("valid numbers"));
        let model = FixedWindowModel::new(old, &calendar.at(start));
        let mut lockstep = Lockstep::new(&old_limit, model, &calendar, start);
        lockstep.run(&before);
        lockstep.change(&new_limit, |model, now| model.change(new, now));
        lockstep.run(&after);
    }
}
