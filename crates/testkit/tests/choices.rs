//! One test for each design choice in which rate limiters differ, with numbers that can be checked by hand.
//!
//! The order of waiters within a process is tested in the crate `tollgate`.

#[path = "choices/key.rs"]
mod key;

use tollgate_core::{Algorithm, Ask, Cost, Limit, Limits, Nanos, Outcome, PacerParams, Phase, Retry, Steps, Time};
use tollgate_testkit::clock::TestClock;

use key::{
    Key, SECOND, START, concurrency, fixed_window, for_each_algorithm, from_millis, interval_bucket, leaky_bucket,
    sliding_log, sliding_slices, sliding_window, token_bucket,
};

#[test]
fn refused_requests_do_not_count_unless_configured() {
    fn refusal_changes_nothing<A: Algorithm>(mut key: Key<A>) {
        assert!(key.passes(7));
        let before = key.state.clone();
        for cost in [4, 10, 11, u64::MAX] {
            assert!(!key.passes(cost));
        }
        assert_eq!(key.state, before);
    }
    for_each_algorithm!(refusal_changes_nothing);

    let mut counting = Key::new(sliding_log(10, SECOND).count_refused());
    assert!(counting.passes(7) && !counting.passes(4));
    assert_eq!(counting.remaining(), 0, "the refused request was recorded");
}

#[test]
fn caller_pays_its_own_cost() {
    let mut bucket = Key::new(token_bucket("10/s", 10));
    assert_eq!(bucket.check(10), Outcome::Allow);
    assert_eq!(bucket.check(5), Outcome::Deny(Retry::After(from_millis(500))), "the caller waits for its own cost");
    assert_eq!(bucket.wait(from_millis(500)).check(5), Outcome::Allow);
    assert_eq!(bucket.check(1), Outcome::Deny(Retry::After(from_millis(100))), "the previous caller left no debt");
}

#[test]
fn pacer_makes_the_next_caller_pay() {
    let pacing = PacerParams::bursty("10/s".parse().expect("a rate"), Nanos::ZERO).expect("a pacer");
    let mut pace = pacing.initial_state(Time::ZERO);
    assert_eq!(pacing.reserve(&mut pace, Time::ZERO, Cost::new(5)), Nanos::ZERO, "the first caller never waits");
    assert_eq!(pacing.reserve(&mut pace, Time::ZERO, Cost::ONE), from_millis(500));
    assert_eq!(pacing.reserve(&mut pace, Time::ZERO, Cost::ONE), from_millis(600));
}

#[test]
fn cost_above_capacity_is_refused_with_never() {
    fn refuses_eleven_with_never<A: Algorithm>(mut key: Key<A>) {
        for cost in [11, u64::MAX] {
            assert_eq!(key.check(cost), Outcome::Deny(Retry::Never));
            assert_eq!(key.report(cost).retry, Retry::Never);
        }
        assert_eq!(key.remaining(), 10);
    }
    for_each_algorithm!(refuses_eleven_with_never);
    // The request is refused even if the limit allows long waits.
    let patient = leaky_bucket("10/s", 10).max_wait(Nanos::MAX);
    assert_eq!(Key::new(patient).check(11), Outcome::Deny(Retry::Never));
    let patient = interval_bucket(10, SECOND).max_wait(Nanos::from_secs(60)).expect("a limit");
    assert_eq!(Key::new(patient).check(11), Outcome::Deny(Retry::Never));
}

#[test]
fn request_that_would_wait_too_long_is_refused_immediately_and_takes_nothing() {
    let mut bucket = Key::new(leaky_bucket("10/s", 10).max_wait(from_millis(250)));
    assert_eq!(bucket.check(2), Outcome::Delay(from_millis(100)), "the wait lasts until the second unit leaves");
    assert_eq!(bucket.check(1), Outcome::Delay(from_millis(200)));
    let before = bucket.state.clone();
    assert_eq!(
        bucket.check(1),
        Outcome::Deny(Retry::After(from_millis(50))),
        "the wait would be 300 ms, above the maximum of 250 ms"
    );
    assert_eq!(bucket.state, before);
    assert_eq!(bucket.wait(from_millis(50)).check(1), Outcome::Delay(from_millis(250)));

    let mut bucket = Key::new(interval_bucket(2, SECOND).max_wait(from_millis(1_500)).expect("a limit"));
    assert_eq!(bucket.check(2), Outcome::Allow);
    assert_eq!(bucket.check(2), Outcome::Delay(SECOND));
    let before = bucket.state.clone();
    assert_eq!(
        bucket.check(1),
        Outcome::Deny(Retry::After(from_millis(500))),
        "the next step is used up, and the step after it exceeds the maximum wait"
    );
    assert_eq!(bucket.state, before);
    assert_eq!(bucket.wait(from_millis(500)).check(1), Outcome::Delay(from_millis(1_500)));

    let pacing = PacerParams::bursty("10/s".parse().expect("a rate"), Nanos::ZERO).expect("a pacer");
    let mut pace = pacing.initial_state(Time::ZERO);
    pacing.reserve(&mut pace, Time::ZERO, Cost::new(5));
    let before = pace;
    assert_eq!(pacing.try_reserve(&mut pace, Time::ZERO, Cost::ONE, from_millis(499)), None);
    assert_eq!(pace, before);
    assert_eq!(pacing.try_reserve(&mut pace, Time::ZERO, Cost::ONE, from_millis(500)), Some(from_millis(500)));
}

#[test]
fn burst_is_the_total_at_one_instant() {
    fn admits_exactly_ten<A: Algorithm>(mut key: Key<A>) {
        key.wait(Nanos::from_secs(3600));
        for _ in 0..10 {
            assert!(key.passes(1));
        }
        assert!(!key.passes(1));
        assert!(key.wait(Nanos::from_secs(3600)).passes(10), "ten also pass as a single request");
        assert!(!key.passes(1));
    }
    for_each_algorithm!(admits_exactly_ten);
}

#[test]
fn new_key_starts_full_unless_initial_is_set() {
    fn assert_capacity<A: Algorithm>(limit: A, expected: u64) {
        assert_eq!(Key::new(limit).drain(), expected);
    }
    fn starts_full<A: Algorithm>(key: Key<A>) {
        assert_capacity(key.limit, 10);
    }
    for_each_algorithm!(starts_full);
    assert_capacity(token_bucket("10/s", 10).initial(3).expect("a limit"), 3);
    assert_capacity(leaky_bucket("10/s", 10).initial(3).expect("a limit"), 3);
    assert_capacity(fixed_window(10, SECOND).initial(3).expect("a limit"), 3);
    assert_capacity(sliding_window(10, SECOND).initial(3).expect("a limit"), 3);
    assert_capacity(interval_bucket(10, SECOND).initial(3).expect("a limit"), 3);
    assert_capacity(sliding_slices(10, SECOND).initial(3).expect("a limit"), 3);
    assert_capacity(sliding_log(10, SECOND).initial(3).expect("a limit"), 3);
}

#[test]
fn buckets_follow_the_monotonic_clock() {
    fn ignores_wall_clock_steps<A: Algorithm>(mut key: Key<A>) {
        assert!(!key.limit.uses_wall_clock());
        assert!(key.passes(10));
        key.clock.step_wall(86_400_000_000_000);
        assert!(!key.passes(1), "a step forward grants nothing");
        key.clock.step_wall(-172_800_000_000_000);
        assert!(key.wait(Nanos::from_secs(30)).passes(10), "a step back does not lock the key out");
    }
    ignores_wall_clock_steps(Key::new(token_bucket("10/s", 10)));
    ignores_wall_clock_steps(Key::new(leaky_bucket("10/s", 10)));
    ignores_wall_clock_steps(Key::new(sliding_log(10, SECOND)));
    ignores_wall_clock_steps(Key::new(concurrency(10)));
    ignores_wall_clock_steps(Key::new(fixed_window(10, SECOND).phase(Phase::FirstRequest)));
    ignores_wall_clock_steps(Key::new(interval_bucket(10, SECOND).steps(Steps::FirstRequest)));
}

#[test]
fn aligned_windows_follow_the_wall_clock_and_never_go_back() {
    let mut key = Key::new(fixed_window(10, Nanos::from_secs(60)));
    assert!(key.limit.uses_wall_clock());
    // The start time, 1000 s, is 40 s into its minute.
    assert!(key.passes(10));
    assert_eq!(key.check(1), Outcome::Deny(Retry::After(Nanos::from_secs(20))));
    key.clock.step_wall(20_000_000_000);
    assert!(key.passes(10), "the next minute starts");
    key.clock.step_wall(-30_000_000_000);
    assert!(!key.passes(1), "the previous minute does not start again");
    assert_eq!(key.report(1).retry, Retry::After(Nanos::from_secs(90)), "the wait lasts until the later minute ends");
}

#[test]
fn clock_steps_neither_grant_nor_lock_out_beyond_one_burst() {
    fn step_back_by_a_day<A: Algorithm>(limit: A, longest: Nanos) {
        let mut key = Key::new(limit);
        key.wait(Nanos::from_secs(172_800));
        assert!(key.passes(10));
        key.clock = TestClock::new(START, START);
        assert!(!key.passes(1), "a step back grants nothing");
        assert!(key.report(1).reset <= longest, "{:?} until unused", key.report(1).reset);
        assert!(key.wait(longest).passes(10), "no lockout until the clock has caught up");
    }
    // Without debt, the lockout lasts at most as long as one burst takes to refill.
    step_back_by_a_day(token_bucket("10/s", 10).max_debt(0).expect("a limit"), SECOND);
    step_back_by_a_day(leaky_bucket("10/s", 10).max_debt(0).expect("a limit"), SECOND);
    step_back_by_a_day(fixed_window(10, SECOND), SECOND);
    step_back_by_a_day(fixed_window(10, SECOND).phase(Phase::FirstRequest), SECOND);
    step_back_by_a_day(sliding_window(10, SECOND), Nanos::from_secs(2));
    step_back_by_a_day(sliding_slices(10, SECOND), from_millis(1_100));
    let interval = interval_bucket(10, SECOND).max_debt(0).expect("a limit");
    step_back_by_a_day(interval, SECOND);
    step_back_by_a_day(interval.steps(Steps::FirstRequest), SECOND);
    step_back_by_a_day(sliding_log(10, SECOND), SECOND);
    step_back_by_a_day(concurrency(10), Nanos::from_secs(30));

    fn step_forward_by_a_day<A: Algorithm>(mut key: Key<A>) {
        assert!(key.passes(10));
        key.wait(Nanos::from_secs(86_400));
        assert_eq!(key.drain(), 10, "one burst, not the refill of a day");
    }
    for_each_algorithm!(step_forward_by_a_day);
}

#[test]
fn reset_is_until_unused_and_retry_is_until_this_cost_passes() {
    let mut bucket = Key::new(token_bucket("10/s", 10));
    assert!(bucket.passes(9));
    let report = bucket.report(5);
    assert_eq!((report.retry, report.reset), (Retry::After(from_millis(400)), from_millis(900)));
    assert_eq!(bucket.report(1).retry, Retry::NOW);
    bucket.wait(from_millis(900));
    assert!(bucket.limit.is_unused(bucket.state.as_slice(), &bucket.clock.now()));

    let mut log = Key::new(sliding_log(10, SECOND));
    assert!(log.passes(6) && log.wait(from_millis(300)).passes(4));
    let report = log.report(5);
    assert_eq!((report.retry, report.reset), (Retry::After(from_millis(700)), SECOND));
}

#[test]
fn waits_round_up_remaining_rounds_down_and_no_refusal_has_a_zero_wait() {
    // One token is refilled every 333,333,333⅓ ns.
    let mut bucket = Key::new(token_bucket("3/s", 3));
    assert!(bucket.passes(3));
    assert_eq!(bucket.check(1), Outcome::Deny(Retry::After(Nanos::from_nanos(333_333_334))));
    bucket.wait(Nanos::from_nanos(333_333_333));
    assert_eq!(bucket.remaining(), 0, "a third of a nanosecond is missing");
    assert_eq!(bucket.check(1), Outcome::Deny(Retry::After(Nanos::from_nanos(1))));
    assert!(bucket.wait(Nanos::from_nanos(1)).passes(1));

    // Nine units were used in the previous second, and 500,000,001 ns of that second still overlap, so 4.500000009
    // units count. A cost of 6 passes when at most 4 units count, that is, at an overlap of at most 444,444,444
    // ns.
    let mut window = Key::new(sliding_window(10, SECOND));
    assert!(window.passes(9));
    window.wait(Nanos::from_nanos(1_499_999_999));
    assert_eq!(window.remaining(), 5);
    assert_eq!(window.check(6), Outcome::Deny(Retry::After(Nanos::from_nanos(55_555_557))));
    assert_eq!(Nanos::from_nanos(1).as_millis_ceil(), 1, "milliseconds are rounded up too");
}

#[test]
fn changed_parameters_keep_the_amount_spent() {
    fn keeps_seven_spent<A: Algorithm>(mut key: Key<A>, larger: A, smaller: A) {
        assert!(key.passes(7));
        key.change_limit(larger);
        assert_eq!(key.remaining(), 13, "of 20");
        key.change_limit(smaller);
        assert_eq!(key.remaining(), 0, "of 5");
        assert!(!key.passes(1));
        key.reset();
        assert_eq!(key.remaining(), 5, "after a reset");
    }
    keeps_seven_spent(Key::new(token_bucket("10/s", 10)), token_bucket("7777/s", 20), token_bucket("1/h", 5));
    keeps_seven_spent(Key::new(leaky_bucket("10/s", 10)), leaky_bucket("7777/s", 20), leaky_bucket("1/h", 5));
    keeps_seven_spent(Key::new(fixed_window(10, SECOND)), fixed_window(20, SECOND), fixed_window(5, from_millis(100)));
    keeps_seven_spent(
        Key::new(sliding_window(10, SECOND)),
        sliding_window(20, SECOND),
        sliding_window(5, from_millis(100)),
    );
    keeps_seven_spent(
        Key::new(interval_bucket(10, SECOND)),
        interval_bucket(20, SECOND),
        interval_bucket(5, from_millis(100)),
    );
    keeps_seven_spent(
        Key::new(sliding_slices(10, SECOND)),
        sliding_slices(20, SECOND),
        sliding_slices(5, from_millis(100)),
    );
    keeps_seven_spent(Key::new(sliding_log(10, SECOND)), sliding_log(20, SECOND), sliding_log(5, from_millis(100)));
    keeps_seven_spent(Key::new(concurrency(10)), concurrency(20), concurrency(5));
}

#[test]
fn debt_is_bounded() {
    fn is_bounded_by_four<A: Algorithm>(limit: A) {
        let mut key = Key::new(limit);
        assert_eq!(key.charge(12), Outcome::Allow, "a debt of 2, of at most 4");
        assert_eq!(key.remaining(), 0);
        assert!(!key.charge(3).is_admitted(), "the debt would be 5");
        assert!(!key.passes(1), "a key in debt is refused");
        assert_eq!(key.charge(2), Outcome::Allow);
        assert_eq!(key.charge(15), Outcome::Deny(Retry::Never), "above limit plus debt");
    }
    is_bounded_by_four(token_bucket("10/s", 10).max_debt(4).expect("a limit"));
    is_bounded_by_four(leaky_bucket("10/s", 10).max_debt(4).expect("a limit"));
    is_bounded_by_four(fixed_window(10, SECOND).max_debt(4).expect("a limit"));
    is_bounded_by_four(sliding_window(10, SECOND).max_debt(4).expect("a limit"));
    is_bounded_by_four(interval_bucket(10, SECOND).max_debt(4).expect("a limit"));
    is_bounded_by_four(sliding_slices(10, SECOND).max_debt(4).expect("a limit"));
    is_bounded_by_four(sliding_log(10, SECOND).max_debt(4).expect("a limit"));
    is_bounded_by_four(concurrency(10).max_debt(4).expect("a limit"));
}

#[test]
fn only_buckets_delay_and_a_group_waits_the_longest_delay() {
    fn never_delays<A: Algorithm>(mut key: Key<A>) {
        assert!(key.passes(10));
        assert!(matches!(key.check(1), Outcome::Deny(_)));
    }
    for_each_algorithm!(never_delays);
    // The last of 4 + 3 units waits for six other units: 600 ms at 10/s, 1200 ms at 5/s.
    let group = Limits::new([leaky_bucket("10/s", 10).into(), leaky_bucket("5/s", 10).into(), Limit::Unlimited]);
    let mut group = Key::new(group.expect("a group"));
    assert!(group.passes(4));
    let verdict = group.ask(Ask::Exactly(Cost::new(3)));
    assert_eq!(verdict.outcome(), Outcome::Delay(from_millis(1_200)));
    assert_eq!(remaining_of_each(&group), [3, 3, u64::MAX]);
    let now = group.clock.now();
    let given = group.limit.refund(group.state.as_mut_slice(), &now, verdict.taken(), Some(verdict.stamp()));
    assert_eq!((given, remaining_of_each(&group)), (Cost::new(3), vec![6, 6, u64::MAX]), "cancelling refunds all");
}

#[test]
fn only_the_fixed_window_admits_twice_its_limit_across_a_boundary() {
    /// Returns the amount that passes within 20 ms around the end of a second.
    fn amount_around_a_boundary<A: Algorithm>(limit: A) -> u64 {
        let mut key = Key::new(limit);
        key.wait(from_millis(990)).drain() + key.wait(from_millis(20)).drain()
    }
    assert_eq!(amount_around_a_boundary(fixed_window(100, SECOND)), 200);
    assert_eq!(
        amount_around_a_boundary(sliding_window(100, SECOND)),
        101,
        "the overlap is 99 % of the previous window"
    );
    assert_eq!(amount_around_a_boundary(sliding_slices(100, SECOND)), 100);
    assert_eq!(amount_around_a_boundary(sliding_log(100, SECOND)), 100);
    assert_eq!(amount_around_a_boundary(token_bucket("100/s", 100)), 102, "the burst plus the refill of 20 ms");
}

#[test]
fn several_limits_are_charged_all_or_none() {
    let limits = [
        token_bucket("10/s", 10).into(),
        leaky_bucket("10/s", 9).into(),
        fixed_window(8, SECOND).into(),
        sliding_window(7, SECOND).into(),
        sliding_log(6, SECOND).into(),
        concurrency(5).into(),
        interval_bucket(7, SECOND).into(),
        sliding_slices(6, SECOND).into(),
    ];
    let mut group = Key::new(Limits::new(limits).expect("a group"));
    assert!(group.passes(3));
    let before = group.state.clone();
    for refused in [3, 6, 11] {
        assert!(!group.passes(refused));
    }
    assert_eq!(group.state, before, "a refusal by one limit charges none of the others");
    assert_eq!(group.drain(), 2, "the smallest remaining amount of all limits");
    assert_eq!(remaining_of_each(&group), [5, 4, 3, 2, 1, 0, 2, 1]);
}

/// Returns the remaining amount of each limit.
fn remaining_of_each(group: &Key<Limits>) -> Vec<u64> {
    let now = group.clock.now();
    group.limit.reports(group.state.as_slice(), &now, Cost::ONE).map(|report| report.remaining).collect()
}
