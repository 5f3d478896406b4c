//! The interval bucket against its exact model, and the laws it keeps where no model can follow.

use proptest::prelude::*;
use tollgate_core::{Algorithm, Ask, Cost, IntervalBucket, LimitError, Nanos, Now, Rate, Stamp, Steps, Time};
use tollgate_testkit::model::laws::{Calendar, Clock, OneClock, garbage_is_survived};
use tollgate_testkit::model::lockstep::{HORIZON, Lockstep, walk};
use tollgate_testkit::model::script::{any_size, any_word, cases, greedy_scripts, scripts, some, starts};
use tollgate_testkit::model::{IntervalBucketModel, IntervalNumbers};

/// Makes an amount valid by going down to the largest that the error names.
fn largest_valid(amount: u64, make: impl Fn(u64) -> Result<IntervalBucket, LimitError>) -> u64 {
    match make(amount) {
        Ok(_) => amount,
        Err(LimitError::FillTooLong { max, .. }) => max,
        Err(error) => panic!("{error}"),
    }
}

fn numbers() -> impl Strategy<Value = IntervalNumbers> {
    let periods = prop_oneof![1_u64..100, any_size(Rate::MAX_PERIOD.as_nanos()).prop_map(|n| n.max(1))];
    let waits = prop_oneof![2 => Just(0), 2 => 1_u64..300, 1 => any_size(Rate::MAX_PERIOD.as_nanos())];
    let debts = prop_oneof![Just(0), any_size(u64::MAX)];
    let initials = prop_oneof![2 => Just(u64::MAX), 1 => any_size(u64::MAX)];
    let offsets = prop_oneof![Just(None), any_word().prop_map(Some)];
    ((some(), periods, some(), offsets), (waits, debts, initials)).prop_map(
        |((refill, period, burst, offset), (max_wait, max_debt, initial))| {
            let refill = refill.min(period);
            let limit = IntervalBucket::new(refill, Nanos::from_nanos(period)).expect("valid");
            let burst = largest_valid(burst, |n| limit.burst(n));
            let limit = limit.burst(burst).expect("valid");
            let max_debt = largest_valid(max_debt, |n| limit.max_debt(n));
            let steps = offset.map_or(Steps::FirstRequest, |offset| Steps::Aligned(Nanos::from_nanos(offset % period)));
            IntervalNumbers { refill, period, burst, steps, max_wait, max_debt, initial: initial.min(burst) }
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
        numbers in numbers(), calendar in calendars(), start in starts(), script in scripts(40),
    ) {
        let limit = numbers.limit().expect("valid numbers");
        let model = IntervalBucketModel::new(numbers, &calendar.at(start));
        Lockstep::new(&limit, model, &calendar, start).run(&script);
    }

    /// In any interval at most the burst and what its steps bring, where with waits a step at the very beginning counts.
    #[test]
    fn no_interval_admits_more_than_the_burst_and_its_steps(
        numbers in numbers(), start in any_size(1 << 62), script in greedy_scripts(60),
    ) {
        let offset = match numbers.steps {
            Steps::Aligned(offset) => offset.as_nanos(),
            Steps::FirstRequest => 0,
        };
        let mut events = walk(&numbers.limit().expect("valid numbers"), &OneClock, start, &script);
        events.retain(|event| event.passes < u64::MAX);
        let step = |at: i128| (at - i128::from(offset)).div_euclid(numbers.period.into());
        for (nth, last) in events.iter().enumerate() {
            let mut sum = 0;
            for first in events[..=nth].iter().rev() {
                sum += i128::from(first.cost);
                let (from, to) = (i128::from(first.passes), i128::from(last.passes));
                let steps = match numbers.steps {
                    // Where the grid lies is not known here, only how many steps there can be.
                    Steps::FirstRequest => (to - from) / i128::from(numbers.period) + 1,
                    Steps::Aligned(_) => step(to) - step(from - i128::from(numbers.max_wait > 0)),
                };
                let most = i128::from(numbers.burst) + steps * i128::from(numbers.refill);
                prop_assert!(sum <= most, "{sum} above {most} from {first:?} to {last:?}");
            }
        }
    }

    #[test]
    fn garbage_neither_panics_nor_answers_nonsense(
        (numbers, old) in (numbers(), numbers()),
        words in prop::collection::vec(any_word(), 0..4),
        (mono, wall, cost, stamp) in (any_word(), any_word(), any_word(), any_word()),
    ) {
        let (limit, old) = (numbers.limit().expect("valid numbers"), old.limit().expect("valid numbers"));
        let now = Now::new(Time::from_nanos(mono), Time::from_nanos(wall));
        for ask in [Ask::Exactly, Ask::UpTo, Ask::Regardless] {
            garbage_is_survived(&limit, &old, &words, &now, ask(Cost::new(cost)), Stamp::from_bits(stamp));
        }
    }

    /// Only steps forward bring anything, and however the clock was stepped, it is as good as new when all that can be owed
    /// has been brought, and the second by which threads may race.
    #[test]
    fn clock_steps_neither_grant_nor_lock_out(
        numbers in numbers(),
        steps in prop::collection::vec((any_size(HORIZON), prop_oneof![Just(u64::MAX), any_size(u64::MAX)]), 1..30),
    ) {
        let numbers = IntervalNumbers { max_wait: 0, ..numbers };
        let limit = numbers.limit().expect("valid numbers");
        let (mut state, mut at) = ([0; 2], steps[0].0);
        limit.fresh(&mut state, &Now::at(at));
        let (mut admitted, mut brought) = (0_u128, u128::from(numbers.initial));
        for (instant, cost) in steps {
            if instant > at {
                brought += u128::from((instant - at) / numbers.period + 1) * u128::from(numbers.refill);
            }
            at = instant;
            admitted += u128::from(limit.decide(&mut state, &Now::at(at), Ask::UpTo(Cost::new(cost))).taken().get());
            prop_assert!(admitted <= brought, "{admitted} of {brought}");
            let owed = (numbers.burst + numbers.max_debt).div_ceil(numbers.refill);
            let healed = at + (owed + 1) * numbers.period + Nanos::SECOND.as_nanos() + numbers.period;
            prop_assert!(limit.is_new(&state, &Now::at(healed)), "not new at {healed}");
        }
    }

    #[test]
    fn a_change_of_numbers_keeps_what_was_taken(
        (old, new) in (numbers(), numbers()), alike in any::<bool>(), calendar in calendars(), start in starts(),
        (before, after) in (scripts(10), scripts(10)),
    ) {
        let new = if alike && new.refill <= old.period {
            IntervalNumbers { period: old.period, steps: old.steps, burst: new.burst.min(old.burst), max_debt: 0, initial: 0, ..new }
        } else {
            new
        };
        let (old_limit, Ok(new_limit)) = (old.limit().expect("valid numbers"), new.limit()) else { return Ok(()) };
        let model = IntervalBucketModel::new(old, &calendar.at(start));
        let mut lockstep = Lockstep::new(&old_limit, model, &calendar, start);
        lockstep.run(&before);
        lockstep.change(&new_limit, |model, now| model.change(new, now));
        lockstep.run(&after);
    }
}
