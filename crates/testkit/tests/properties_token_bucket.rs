//! The token bucket against its exact model, and the laws it keeps where no model can follow.

use proptest::prelude::*;
use tollgate_core::{Algorithm, Ask, Cost, LimitError, Nanos, Now, Stamp, TokenBucket};
use tollgate_testkit::history::{Bound, Checker, fullest_excess};
use tollgate_testkit::model::laws::{OneClock, garbage_is_survived};
use tollgate_testkit::model::lockstep::{HORIZON, Lockstep, walk};
use tollgate_testkit::model::script::{any_size, any_word, cases, greedy_scripts, rates, scripts, some, starts};
use tollgate_testkit::model::{TokenBucketModel, TokenNumbers, ceil_nanos, exact, per_nano};

/// How long until a bucket as deep in debt as can be is full again.
fn longest_reset(numbers: &TokenNumbers) -> Nanos {
    ceil_nanos(&((exact(numbers.burst) + exact(numbers.max_debt)) / per_nano(numbers.rate)))
}

/// Makes an amount valid by going down to the largest that the error names.
fn largest_valid(amount: u64, make: impl Fn(u64) -> Result<TokenBucket, LimitError>) -> u64 {
    match make(amount) {
        Ok(_) => amount,
        Err(LimitError::FillTooLong { max, .. }) => {
            assert!(make(max).is_ok() && make(max + 1).is_err(), "{max} is not the largest valid amount");
            max
        }
        Err(error) => panic!("{error}"),
    }
}

fn numbers() -> impl Strategy<Value = TokenNumbers> {
    let debts = prop_oneof![Just(0), any_size(u64::MAX)];
    let initials = prop_oneof![2 => Just(u64::MAX), 1 => any_size(u64::MAX)];
    (rates(), some(), debts, initials).prop_map(|(rate, burst, max_debt, initial)| {
        let burst = largest_valid(burst, |n| TokenBucket::new(rate, n));
        let limit = TokenBucket::new(rate, burst).expect("valid");
        let max_debt = largest_valid(max_debt, |n| limit.max_debt(n));
        TokenNumbers { rate, burst, max_debt, initial: initial.min(burst) }
    })
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn every_answer_equals_the_models(numbers in numbers(), start in starts(), script in scripts(40)) {
        let limit = numbers.limit().expect("valid numbers");
        Lockstep::new(&limit, TokenBucketModel::new(numbers, &Now::at(start)), &OneClock, start).run(&script);
    }

    /// From any start to the end of time, where instants no longer fit.
    #[test]
    fn no_interval_admits_more_than_burst_plus_rate_times_its_length(
        numbers in numbers(), start in any_word(), script in greedy_scripts(60),
    ) {
        let events: Vec<_> =
            walk(&numbers.limit().expect("valid numbers"), &OneClock, start, &script).iter().map(|event| (event.passes, event.cost)).collect();
        let bound = Bound::of(numbers.rate, numbers.burst);
        prop_assert_eq!(fullest_excess(&bound, &events), None);
        prop_assert_eq!(Checker::new(&bound).admit_all(&events), Ok(()));
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

    #[test]
    fn no_state_owes_more_than_burst_and_debt(numbers in numbers(), words in [any_word(), any_word()], now in any_word()) {
        let report = numbers.limit().expect("valid numbers").report(&words, &Now::at(now), Cost::ONE);
        prop_assert!(report.reset <= longest_reset(&numbers).saturating_add(Nanos::SECOND), "{:?}", report);
    }

    /// What passes while the clock is stepped to and fro is paid for by its steps forward alone, and however it was stepped,
    /// the bucket is as good as new after one refill of all it can hold and owe, and the second by which threads may race.
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
            admitted += exact(limit.decide(&mut state, &Now::at(at), Ask::UpTo(Cost::new(cost))).taken().get());
            prop_assert!(admitted <= exact(numbers.initial) + &forward * per_nano(numbers.rate));
            let healed = at + longest_reset(&numbers).as_nanos() + Nanos::SECOND.as_nanos();
            prop_assert!(limit.is_new(&state, &Now::at(healed)));
        }
    }

    /// Both are changed in mid-history; from then on every answer is that of a bucket that had spent as much.
    #[test]
    fn a_change_of_numbers_keeps_the_tokens_spent(
        (old, new) in (numbers(), numbers()), start in starts(), (before, after) in (scripts(10), scripts(10)),
    ) {
        let (old_limit, new_limit) = (old.limit().expect("valid numbers"), new.limit().expect("valid numbers"));
        let mut lockstep = Lockstep::new(&old_limit, TokenBucketModel::new(old, &Now::at(start)), &OneClock, start);
        lockstep.run(&before);
        lockstep.change(&new_limit, |model, now| model.change(new, now));
        lockstep.run(&after);
    }
}
