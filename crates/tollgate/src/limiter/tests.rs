use std::sync::Arc;

use super::*;
use crate::clock::ManualClock;
use crate::testing::{
    DAY, HOUR, Rng, SECOND, bucket, clock, daily_window, limits_of_ten, limits_of_ten_and_combined, on_threads,
    two_word_bucket,
};
use crate::{Concurrency, FixedWindow, LeakyBucket, Limit, Limits, Outcome, Retry, SlidingLog, SlidingWindow};
use tollgate_core::{Nanos, Phase};

fn limiter<A: Algorithm>(limit: A) -> (Limiter<A, Arc<ManualClock>>, Arc<ManualClock>) {
    let clock = clock();
    (Limiter::with_clock(limit, clock.clone()), clock)
}

/// Checks every verb on a limit with a capacity of 10 and a maximum debt of 5. The clock does not advance, so nothing
/// refills.
fn check_every_verb<A: Algorithm + Clone + fmt::Debug>(limit: &A) {
    let (limiter, _) = limiter(limit.clone());
    let remaining = || limiter.report(1).remaining;
    assert_eq!((limiter.report(1).limit, remaining()), (10, 10), "{limit:?}");

    let first = limiter.check(4);
    assert_eq!((first.outcome(), first.taken().get(), remaining()), (Outcome::Allow, 4, 6), "{limit:?}");
    assert_eq!((limiter.peek(6).is_admitted(), limiter.peek(7).is_admitted()), (true, false), "{limit:?}");
    assert_eq!(remaining(), 6, "a peek spent part of {limit:?}");
    assert_eq!((limiter.check(7).taken().get(), remaining()), (0, 6), "a refusal spent part of {limit:?}");
    assert_eq!(limiter.check(11).outcome(), Outcome::Deny(Retry::Never), "{limit:?}");
    assert_eq!(limiter.check(u64::MAX).outcome(), Outcome::Deny(Retry::Never), "{limit:?}");
    assert!(limiter.check(0).is_admitted() && remaining() == 6, "{limit:?}");

    assert_eq!((limiter.take_up_to(20).taken().get(), remaining()), (6, 0), "{limit:?}");
    assert!(!limiter.take_up_to(1).is_admitted() && !limiter.check(1).is_admitted(), "{limit:?}");
    assert_eq!((limiter.refund(&first), remaining()), (4, 4), "{limit:?}");

    assert_eq!((limiter.charge(9).taken().get(), remaining()), (9, 0), "{limit:?}");
    assert!(!limiter.charge(1).is_admitted(), "beyond the debt of {limit:?}");
    assert!(!limiter.peek(1).is_admitted() && limiter.report(1).retry > Retry::NOW, "{limit:?}");

    limiter.reset();
    assert_eq!(remaining(), 10, "{limit:?}");
    assert_eq!((limiter.drain(), remaining()), (10, 0), "{limit:?}");
    assert_eq!(limiter.drain(), 0, "{limit:?}");
}

#[test]
fn every_verb_works_with_every_state() {
    for limit in limits_of_ten(HOUR) {
        check_every_verb(&limit);
    }
    for limits in limits_of_ten_and_combined(HOUR) {
        check_every_verb(&limits);
    }
    check_every_verb(&bucket(10).max_debt(5).unwrap());
    check_every_verb(&two_word_bucket(10).max_debt(5).unwrap());
    check_every_verb(&daily_window(10).max_debt(5).unwrap());
}

#[test]
fn refill_is_available_exactly_when_due() {
    for limit in limits_of_ten(SECOND) {
        let (limiter, clock) = limiter(limit);
        limiter.drain();
        let Outcome::Deny(retry) = limiter.peek(1).outcome() else { panic!("{limit:?} was drained") };
        // A lease may be released at any time; only its expiry is known in advance.
        let wait = if let Retry::After(wait) = retry { wait } else { SECOND };
        clock.advance(Nanos::from_nanos(wait.as_nanos() - 1));
        assert!(!limiter.check(1).is_admitted(), "{limit:?}");
        clock.advance(Nanos::from_nanos(1));
        assert!(limiter.check(1).is_admitted(), "{limit:?}");
        clock.advance(Nanos::from_secs(2));
        assert_eq!(limiter.report(1).remaining, 10, "{limit:?}");
    }
}

#[test]
fn unlimited_and_deny_all_need_no_state() {
    let (unlimited, _) = limiter(Limit::Unlimited);
    assert_eq!(unlimited.check(u64::MAX).taken().get(), u64::MAX);
    assert_eq!(unlimited.report(1).remaining, u64::MAX);
    let (denying, _) = limiter(Limit::DenyAll);
    assert_eq!(denying.check(1).outcome(), Outcome::Deny(Retry::Never));
    assert_eq!((denying.drain(), denying.report(1).remaining), (0, 0));
}

/// Spends `spent` under `old`, changes to `new`, and returns the remaining amount.
fn remaining_after_change<A: Algorithm>(old: A, new: A, spent: u64) -> u64 {
    let (mut limiter, _) = limiter(old);
    assert_eq!(limiter.check(spent).taken().get(), spent);
    limiter.set_limit(new);
    let remaining = limiter.report(1).remaining;
    // Decisions continue on the new state.
    assert_eq!(limiter.drain(), remaining);
    assert!(!limiter.check(1).is_admitted());
    remaining
}

#[test]
fn changed_parameters_keep_the_used_amount() {
    // State lengths change from one word to one, from one to two, from two to one, and from two to two.
    let cases = [
        (bucket(10), bucket(20), 16),
        (bucket(10), two_word_bucket(20), 16),
        (two_word_bucket(20), bucket(10), 6),
        (two_word_bucket(10), two_word_bucket(5), 1),
        (bucket(10), bucket(3), 0),
    ];
    for (old, new, remaining) in cases {
        assert_eq!(remaining_after_change(old, new, 4), remaining, "from {old:?} to {new:?}");
    }
}

/// Changes the limit and changes it back without a charge. Every report must equal the report of an unchanged limiter.
#[test]
fn temporary_smaller_limit_forgives_nothing() {
    for (large, small) in
        limits_of_ten(HOUR).into_iter().flat_map(|l| limits_of_ten(HOUR).into_iter().map(move |s| (l, s)))
    {
        let ((mut changed, clock), (alone, other)) = (limiter(large), limiter(large));
        assert!(changed.check(6).is_admitted() && alone.check(6).is_admitted());
        changed.set_limit(small);
        assert!(!changed.check(5).is_admitted() && changed.peek(4).is_admitted(), "{large:?} under {small:?}");
        changed.set_limit(bucket(2).into());
        assert!(!changed.check(1).is_admitted(), "{large:?} under 2");
        changed.set_limit(large);
        for _ in 0..4 {
            assert_eq!(changed.report(5), alone.report(5), "{large:?} after {small:?}");
            [&clock, &other].iter().for_each(|clock| clock.advance(Nanos::from_secs(1_000)));
        }
    }
}

#[test]
fn changed_algorithm_keeps_the_used_amount() {
    let limits = limits_of_ten(HOUR);
    for old in &limits {
        for new in &limits {
            assert_eq!(remaining_after_change(*old, *new, 4), 6, "from {old:?} to {new:?}");
            let (old, new) = (Limits::from(*old), Limits::from(*new));
            assert_eq!(remaining_after_change(old, new, 4), 6, "as groups");
        }
    }
}

#[test]
fn change_to_a_stateless_limit_and_back_keeps_the_used_amount() {
    let (mut limiter, _) = limiter(Limit::from(bucket(10)));
    limiter.drain();
    limiter.set_limit(Limit::Unlimited);
    assert!(limiter.check(1_000).is_admitted());
    limiter.set_limit(bucket(10).into());
    assert_eq!(limiter.report(1).remaining, 0);
    limiter.set_limit(Limit::DenyAll);
    assert!(!limiter.check(1).is_admitted());
    limiter.set_limit(daily_window(11).into());
    assert_eq!(limiter.report(1).remaining, 1);
}

#[test]
fn added_limit_starts_unused_and_the_others_keep_their_state() {
    let (mut limiter, _) = limiter(Limits::from(Limit::from(bucket(10))));
    let _ = limiter.check(4);
    limiter.set_limit(Limits::new([two_word_bucket(10).into(), daily_window(5).into()]).unwrap());
    assert_eq!(limiter.report(1).remaining, 5, "the added limit is the tighter one");
    let _ = limiter.check(5);
    limiter.set_limit(Limits::from(Limit::from(bucket(10))));
    assert_eq!(limiter.report(1).remaining, 1);
}

#[test]
fn windows_are_converted_by_the_wall_clock() {
    // The bucket needs no wall clock, but the window that it replaces does.
    let (mut limiter, clock) = limiter(Limit::from(daily_window(10)));
    let _ = limiter.check(8);
    clock.advance(DAY);
    limiter.set_limit(bucket(10).into());
    assert_eq!(limiter.report(1).remaining, 10, "yesterday's count was kept");
}

#[test]
fn clock_that_goes_back_grants_nothing_and_refuses_for_a_bounded_time() {
    for limit in limits_of_ten(SECOND) {
        let (limiter, clock) = limiter(limit);
        let start = clock.mono().as_nanos();
        limiter.drain();
        clock.set(start - 1_000 * SECOND.as_nanos());
        assert!(!limiter.check(1).is_admitted(), "granted by {limit:?}");
        assert_eq!(limiter.report(1).remaining, 0, "{limit:?}");
        clock.advance(Nanos::from_secs(3));
        assert!(limiter.check(10).is_admitted(), "locked out by {limit:?}");
    }
}

#[test]
fn buckets_ignore_a_wall_clock_that_is_set_back() {
    let (limiter, clock) = limiter(bucket(10));
    let _ = limiter.check(4);
    clock.step_wall(-1_000_000_000_000);
    assert_eq!((limiter.report(1).remaining, limiter.check(6).is_admitted()), (6, true));
}

#[test]
fn refund_gives_back_the_amount_still_counted() {
    /// Takes 6 and then 3, advances the clock by `passed`, refunds the 6, and checks the amounts accepted and
    /// remaining.
    fn assert_refund(limit: impl Into<Limit>, passed: Nanos, accepted: u64, remaining: u64) {
        let limit = limit.into();
        let (limiter, clock) = limiter(limit);
        let (first, second) = (limiter.check(6), limiter.check(3));
        assert!(first.is_admitted() && second.is_admitted());
        clock.advance(passed);
        assert_eq!(limiter.refund(&first), accepted, "{limit:?} after {passed:?}");
        assert_eq!(limiter.report(1).remaining, remaining, "{limit:?} after {passed:?}");
    }
    assert_refund(bucket(10), Nanos::ZERO, 6, 7);
    // Of nine units, 4.5 have refilled; a unit that has partly refilled can still be refunded as a whole.
    assert_refund(bucket(10), Nanos::from_millis(450), 5, 10);
    assert_refund(bucket(10), Nanos::from_secs(1), 0, 10);
    assert_refund(two_word_bucket(10), Nanos::ZERO, 6, 7);
    assert_refund(daily_window(10), HOUR, 6, 7);
    assert_refund(daily_window(10), DAY, 0, 10);
    assert_refund(FixedWindow::new(10, DAY).unwrap().phase(Phase::FirstRequest), HOUR, 6, 7);
    assert_refund(SlidingWindow::new(10, DAY).unwrap(), HOUR, 6, 7);
    // In the next window both requests still count. After the refund only the second request counts.
    assert_refund(SlidingWindow::new(10, DAY).unwrap(), DAY, 6, 7);
    assert_refund(SlidingLog::new(10, DAY).unwrap(), HOUR, 6, 7);
    assert_refund(SlidingLog::new(10, DAY).unwrap(), DAY, 0, 10);
    assert_refund(Concurrency::new(10, DAY).unwrap(), HOUR, 6, 7);
    assert_refund(Concurrency::new(10, DAY).unwrap(), DAY, 0, 10);
}

#[test]
fn refusal_cannot_be_refunded_but_a_lease_can() {
    for limit in limits_of_ten(HOUR) {
        let (limiter, _) = limiter(limit);
        let _ = limiter.check(8);
        assert_eq!((limiter.refund(&limiter.check(5)), limiter.report(1).remaining), (0, 2), "{limit:?}");
    }
    let (limiter, _) = limiter(Concurrency::new(2, HOUR).unwrap());
    let (mine, _yours) = (limiter.check(1), limiter.check(1));
    assert_eq!((limiter.refund(&mine), limiter.refund(&mine)), (1, 0));
    assert_eq!(limiter.report(1).remaining, 1);
}

#[test]
fn concurrent_threads_take_exactly_the_limit() {
    const BURST: u64 = 20_000;
    // The fast path takes a few nanoseconds, so it must run many times before two threads overlap in it.
    const LARGE_BURST: u64 = 1_000_000;
    fn assert_exact_limit<A: Algorithm + Send + Sync>(limit: A, what: &str)
    where
        A::Stamp: Send,
    {
        let (limiter, _) = limiter(limit);
        let most = limiter.report(1).limit;
        let taken = on_threads(4, |_| (0..most).filter(|_| limiter.check(1).is_admitted()).count() as u64);
        assert_eq!(taken.iter().sum::<u64>(), most, "{what}");
        assert!(limiter.report(1).remaining == 0 && !limiter.check(1).is_admitted(), "{what}");
    }
    let leaky = LeakyBucket::new("10/s".parse().unwrap(), BURST).unwrap();
    assert_exact_limit(bucket(LARGE_BURST), "one word");
    assert_exact_limit(two_word_bucket(BURST), "two words");
    assert_exact_limit(Limit::from(bucket(BURST)), "any limit");
    assert_exact_limit(leaky, "one word, slow path");
    assert_exact_limit(daily_window(BURST), "a window");
    assert_exact_limit(SlidingLog::new(1_000, DAY).unwrap(), "a log");
    assert_exact_limit(Concurrency::new(1_000, DAY).unwrap(), "leases");
}

#[test]
fn concurrent_refunds_lose_and_gain_nothing() {
    const BURST: u64 = 500;
    for limit in [bucket(BURST), two_word_bucket(BURST)] {
        let (limiter, _) = limiter(limit);
        let kept = on_threads(4, |thread| {
            let (mut dice, mut kept) = (Rng::new(thread), 0);
            for _ in 0..20_000 {
                let verdict = match dice.below(3) {
                    0 => limiter.take_up_to(dice.below(9)),
                    _ => limiter.check(dice.below(9)),
                };
                // Most charges are kept, so that the bucket is often empty. At the end everything is refunded.
                let taken = verdict.taken().get();
                if dice.below(4) == 0 {
                    assert_eq!(limiter.refund(&verdict), taken);
                } else {
                    kept += taken;
                }
                if kept > BURST / 5 {
                    assert_eq!(limiter.refund(&Verdict::new_allowed(Cost::new(kept))), kept);
                    kept = 0;
                }
            }
            kept
        });
        assert_eq!(limiter.report(1).remaining, BURST - kept.iter().sum::<u64>(), "{limit:?}");
    }
}
