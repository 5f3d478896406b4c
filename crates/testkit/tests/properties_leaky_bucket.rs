//! The leaky bucket against its exact model, and the laws it keeps where no model can follow.

use proptest::prelude::*;
use tollgate_core::{Algorithm, Ask, Cost, LeakyBucket, LimitError, Nanos, Now, Outcome, Stamp};
use tollgate_testkit::history::{Bound, fullest_excess};
use tollgate_testkit::model::laws::{OneClock, garbage_is_survived};
use tollgate_testkit::model::lockstep::{HORIZON, Lockstep, walk};
use tollgate_testkit::model::script::{any_size, any_word, cases, greedy_scripts, rates, scripts, some, starts};
use tollgate_testkit::model::{LeakyBucketModel, LeakyNumbers, ceil_nanos, exact, per_nano};

/// Makes an amount valid by going down to the largest that the error names.
fn largest_valid(amount: u64, make: impl Fn(u64) -> Result<LeakyBucket, LimitError>) -> u64 {
    match make(amount) {
        Ok(_) => amount,
        Err(LimitError::FillTooLong { max, .. }) => max,
        Err(error) => panic!("{error}"),
    }
}

fn numbers() -> impl Strategy<Value = LeakyNumbers> {
    let frees = prop_oneof![Just(0), Just(u64::MAX), any_size(u64::MAX)];
    let waits = prop_oneof![2 => Just(u64::MAX), 1 => Just(0), 2 => any_size(u64::MAX)].prop_map(Nanos::from_nanos);
    let debts = prop_oneof![Just(0), any_size(u64::MAX)];
    let initials = prop_oneof![2 => Just(u64::MAX), 1 => any_size(u64::MAX)];
    (rates(), some(), frees, waits, debts, initials).prop_map(|(rate, burst, free, max_wait, max_debt, initial)| {
        let burst = largest_valid(burst, |n| LeakyBucket::new(rate, n));
        let limit = LeakyBucket::new(rate, burst).expect("valid");
        let max_debt = largest_valid(max_debt, |n| limit.max_debt(n));
        LeakyNumbers { rate, burst, free: free.min(burst), max_wait, max_debt, initial: initial.min(burst) }
    })
}

/// How long until a bucket as full as can be is empty.
fn longest_reset(numbers: &LeakyNumbers) -> Nanos {
    ceil_nanos(&((exact(numbers.burst) + exact(numbers.max_debt)) / per_nano(numbers.rate)))
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn every_answer_equals_the_models(numbers in numbers(), start in starts(), script in scripts(40)) {
        let limit = numbers.limit().expect("valid numbers");
        Lockstep::new(&limit, LeakyBucketModel::new(numbers, &Now::at(start)), &OneClock, start).run(&script);
    }

    #[test]
    fn no_interval_lets_in_more_than_burst_plus_rate_times_its_length(
        numbers in numbers(), start in any_word(), script in greedy_scripts(60),
    ) {
        let events: Vec<_> =
            walk(&numbers.limit().expect("valid numbers"), &OneClock, start, &script).iter().map(|event| (event.asked, event.cost)).collect();
        let bound = Bound::of(numbers.rate, numbers.burst);
        prop_assert_eq!(fullest_excess(&bound, &events), None);
    }

    /// What has its turn within `T` is at most `free + cost of the first + rate × (T + 1 ns)`, in the order of arrival, and no
    /// request waits longer than allowed.
    #[test]
    fn what_goes_out_is_steady(numbers in numbers(), start in starts(), script in greedy_scripts(60)) {
        let mut events = walk(&numbers.limit().expect("valid numbers"), &OneClock, start, &script);
        events.retain(|event| event.passes < u64::MAX);
        // All amounts times the period, so that they are whole numbers.
        let (count, per) = (u128::from(numbers.rate.count()), u128::from(numbers.rate.per().as_nanos()));
        for (nth, last) in events.iter().enumerate() {
            prop_assert!(last.passes - last.asked <= numbers.max_wait.as_nanos());
            let mut after_first = u128::from(last.cost) * per;
            for first in events[..nth].iter().rev() {
                prop_assert!(first.passes <= last.passes, "{first:?} overtaken by {last:?}");
                let flows = u128::from(last.passes - first.passes + 1) * count;
                prop_assert!(after_first <= u128::from(numbers.free) * per + flows, "too much from {first:?} to {last:?}");
                after_first += u128::from(first.cost) * per;
            }
        }
    }

    #[test]
    fn garbage_neither_panics_nor_answers_nonsense(
        (numbers, old) in (numbers(), numbers()),
        words in proptest::collection::vec(any_word(), 0..4),
        (now, cost, stamp) in (any_word(), any_word(), any_word()),
    ) {
        let (limit, old, now) = (numbers.limit().expect("valid numbers"), old.limit().expect("valid numbers"), Now::at(now));
        for ask in [Ask::Exactly, Ask::UpTo, Ask::Regardless] {
            garbage_is_survived(&limit, &old, &words, &now, ask(Cost::new(cost)), Stamp::from_bits(stamp));
        }
    }

    /// As for the token bucket, and no wait is longer than the bound either.
    #[test]
    fn clock_steps_neither_grant_nor_lock_out(
        numbers in numbers(),
        steps in proptest::collection::vec((any_size(HORIZON), prop_oneof![Just(u64::MAX), any_size(u64::MAX)]), 1..30),
    ) {
        let limit = numbers.limit().expect("valid numbers");
        let (mut state, mut at) = ([0; 2], steps[0].0);
        limit.fresh(&mut state, &Now::at(at));
        let (mut admitted, mut forward) = (exact(0), exact(0));
        for (instant, cost) in steps {
            forward += exact(instant.saturating_sub(at));
            at = instant;
            let verdict = limit.decide(&mut state, &Now::at(at), Ask::UpTo(Cost::new(cost)));
            admitted += exact(verdict.taken().get());
            prop_assert!(admitted <= exact(numbers.initial) + &forward * per_nano(numbers.rate));
            if let Outcome::Delay(wait) = verdict.outcome() {
                prop_assert!(wait <= numbers.max_wait);
            }
            let healed = at + longest_reset(&numbers).as_nanos() + Nanos::SECOND.as_nanos();
            prop_assert!(limit.is_new(&state, &Now::at(healed)));
        }
    }

    #[test]
    fn a_change_of_numbers_keeps_what_is_in_the_bucket(
        (old, new) in (numbers(), numbers()), start in starts(), (before, after) in (scripts(10), scripts(10)),
    ) {
        let (old_limit, new_limit) = (old.limit().expect("valid numbers"), new.limit().expect("valid numbers"));
        let mut lockstep = Lockstep::new(&old_limit, LeakyBucketModel::new(old, &Now::at(start)), &OneClock, start);
        lockstep.run(&before);
        lockstep.change(&new_limit, |model, now| model.change(new, now));
        lockstep.run(&after);
    }
}
