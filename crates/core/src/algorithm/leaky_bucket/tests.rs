use super::*;
use crate::algorithm::testing::{StepBounds, assert_never_panics, assert_waits_exact, random_steps};
use crate::verdict::Retry;

const MS: u64 = 1_000_000;

fn limit(rate: &str, burst: u64) -> LeakyBucket {
    LeakyBucket::new(rate.parse().unwrap(), burst).unwrap()
}

/// Asks for 1 at each instant, in milliseconds, and compares the results: a dot (admitted now), the wait in
/// milliseconds, or `no` and the retry.
fn assert_outcomes(limit: &LeakyBucket, instants: &[u64], expected: &str) {
    let mut state = [0; 2];
    limit.init(&mut state, &Now::at(0));
    let answers: Vec<_> = instants
        .iter()
        .map(|at| match limit.decide(&mut state, &Now::at(at * MS), Ask::Exactly(Cost::ONE)).outcome() {
            Outcome::Allow => ".".to_owned(),
            Outcome::Delay(wait) => wait.as_millis_ceil().to_string(),
            Outcome::Deny(Retry::After(wait)) => format!("no{}", wait.as_millis_ceil()),
            Outcome::Deny(retry) => format!("{retry:?}"),
        })
        .collect();
    assert_eq!(answers.join(" "), expected);
}

#[test]
fn first_request_passes_and_later_requests_are_delayed() {
    assert_outcomes(&limit("10/s", 6), &[0; 7], ". 100 200 300 400 500 no100");
    assert_outcomes(&limit("10/s", 1), &[0, 99, 100, 200, 301, 400], ". no1 . . . no1");
    assert_outcomes(&limit("10/s", 3), &[0, 50, 50, 100, 350], ". 50 150 200 50");
}

#[test]
fn free_part_of_the_burst_passes_undelayed() {
    assert_outcomes(&limit("10/s", 6).free(2).unwrap(), &[0; 7], ". . . 100 200 300 no100");
    assert_outcomes(&limit("10/s", 3).free(3).unwrap(), &[0, 0, 0, 0, 100], ". . . no100 .");
}

#[test]
fn request_that_would_wait_too_long_is_refused() {
    let limit = limit("10/s", 100).max_wait(Nanos::from_millis(250));
    assert_outcomes(&limit, &[0, 0, 0, 0, 49, 50], ". 100 200 no50 no1 250");
    assert_outcomes(&limit.free(2).unwrap(), &[0; 6], ". . . 100 200 no50");
    assert_outcomes(&limit.max_wait(Nanos::ZERO), &[0, 0, 100], ". no100 .");
}

#[test]
fn request_waits_for_the_turn_of_its_last_unit() {
    let limit = limit("10/s", 6);
    let mut state = [0; 2];
    let mut ask = |ask| limit.decide(&mut state, &Now::at(0), ask);
    assert_eq!(ask(Ask::Exactly(Cost::new(4))).outcome(), Outcome::Delay(Nanos::from_millis(300)));
    assert_eq!(ask(Ask::UpTo(Cost::new(9))).outcome(), Outcome::Delay(Nanos::from_millis(500)));
    assert_eq!(ask(Ask::UpTo(Cost::new(9))).outcome(), Outcome::Deny(Retry::After(Nanos::from_millis(100))));
    assert_eq!(ask(Ask::Exactly(Cost::new(7))).outcome(), Outcome::Deny(Retry::Never));
    assert_eq!(ask(Ask::UpTo(Cost::ZERO)).outcome(), Outcome::Allow);
}

#[test]
fn large_cost_on_a_new_key_goes_out_at_the_rate() {
    // The rate is 1/s, two units pass immediately, and the burst is these two plus the outflow of a minute.
    let limit = LeakyBucket::new("1/s".parse().unwrap(), 62).unwrap().free(1).unwrap();
    let ask = |limit: LeakyBucket, ask| {
        let mut state = [0; 2];
        limit.decide(&mut state, &Now::at(0), ask)
    };
    let twelve = Ask::Exactly(Cost::new(12));
    assert_eq!(ask(limit, Ask::Exactly(Cost::new(2))).outcome(), Outcome::Allow);
    assert_eq!(ask(limit, twelve).outcome(), Outcome::Delay(Nanos::from_secs(10)));
    assert_eq!(ask(limit.max_wait(Nanos::from_secs(10)), twelve).outcome(), Outcome::Delay(Nanos::from_secs(10)));
    let hasty = limit.max_wait(Nanos::from_secs(9));
    assert_eq!(ask(hasty, twelve).outcome(), Outcome::Deny(Retry::Never));
    let most = ask(hasty, Ask::UpTo(Cost::MAX));
    assert_eq!((most.outcome(), most.taken()), (Outcome::Delay(Nanos::from_secs(9)), Cost::new(11)));
}

#[test]
fn charge_never_waits_and_goes_into_bounded_debt() {
    let limit = limit("10/s", 6).max_wait(Nanos::ZERO).max_debt(2).unwrap();
    let mut state = [0; 2];
    let mut charge = |cost| limit.decide(&mut state, &Now::at(0), Ask::Regardless(Cost::new(cost))).outcome();
    assert_eq!(charge(9), Outcome::Deny(Retry::Never));
    assert_eq!(charge(5), Outcome::Allow);
    assert_eq!(charge(3), Outcome::Allow);
    assert_eq!(charge(1), Outcome::Deny(Retry::After(Nanos::from_millis(100))));
    let report = limit.report(&state, &Now::at(0), Cost::ONE);
    assert_eq!((report.remaining, report.reset), (0, Nanos::from_millis(800)));
    assert_eq!(report.retry, Retry::After(Nanos::from_millis(800)));
}

#[test]
fn refund_removes_the_units_still_in_the_bucket() {
    let limit = limit("10/s", 6);
    let mut state = [0; 2];
    for _ in 0..3 {
        let _ = limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::ONE));
    }
    let now = Now::at(150 * MS);
    assert_eq!(limit.refund(&mut state, &now, Cost::ONE, None), Cost::ONE);
    let next = limit.weigh(&state, &now, Ask::Exactly(Cost::ONE));
    assert_eq!(next.outcome(), Outcome::Delay(Nanos::from_millis(50)));
    assert_eq!(limit.refund(&mut state, &now, Cost::MAX, None), Cost::ONE);
    assert!(limit.is_unused(&state, &now));
}

#[test]
fn refusal_spends_nothing_and_a_retry_after_the_wait_succeeds() {
    for rate in ["10/s", "7777/s", "999983/s", "1/m"] {
        let limit = limit(rate, 5).free(1).unwrap().max_wait(limit(rate, 1).bucket.tick_rate().time_for_ticks(1 << 40));
        let unit = limit.bucket.tick_rate().time_for_ticks(limit.bucket.tick_rate().ticks_of(1)).as_nanos();
        let bounds = StepBounds { pause: 3 * unit, cost: 6, all_verbs: true };
        random_steps(&limit, Now::at, 1_000, 2_000, &bounds);
        random_steps(&limit.max_wait(Nanos::from_nanos(unit * 2)), Now::at, 1_000, 2_000, &bounds);
    }
}

#[test]
fn no_interval_exceeds_the_guarantee() {
    for (rate, free) in [("1/s", 0), ("3/s", 2), ("7/s", 4)] {
        let limit = limit(rate, 5).free(free).unwrap();
        let bounds = StepBounds { pause: 1_000 * MS, cost: 3, all_verbs: false };
        let mut passed = random_steps(&limit, Now::at, 0, 1_500, &bounds);
        passed.retain(|passed| passed.cost > 0);
        let flows = |time: u64| limit.bucket.tick_rate().instant_in_ticks(Time::from_nanos(time));
        let mut from_empty = 0;
        for to in &passed {
            from_empty += limit.bucket.tick_rate().ticks_of(to.cost);
            assert!(
                from_empty <= limit.bucket.tick_rate().ticks_of(free + 1) + flows(to.turn + 1),
                "since the start: {to:?}"
            );
        }
        for (first, from) in passed.iter().enumerate() {
            let mut sum = 0;
            for to in passed[first..].iter().take(40) {
                sum += limit.bucket.tick_rate().ticks_of(to.cost);
                assert!(
                    sum <= limit.bucket.tick_rate().ticks_of(5) + flows(to.asked - from.asked),
                    "admitted: {from:?} {to:?}"
                );
                let out = limit.bucket.tick_rate().ticks_of(free + from.cost) + flows(to.turn - from.turn + 1);
                assert!(sum <= out, "gone out: {from:?} {to:?}");
            }
        }
    }
}

#[test]
fn other_parameters_keep_the_content() {
    let (old, new) = (limit("10/s", 6), limit("1/s", 6));
    let mut state = [0; 2];
    let _ = old.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::new(4)));
    new.convert(&old, &mut state, &Now::at(100 * MS));
    let report = new.report(&state, &Now::at(100 * MS), Cost::ONE);
    assert_eq!((report.remaining, report.reset), (3, Nanos::from_secs(3)));
}

#[test]
fn new_key_has_the_initial_amount() {
    let limit = limit("10/s", 6).initial(2).unwrap();
    assert_outcomes(&limit, &[0, 0, 0], "400 500 no100");
}

#[test]
fn invalid_parameters_are_errors() {
    let message = |result: Result<LeakyBucket, LimitError>| result.unwrap_err().to_string();
    let bucket = limit("10/s", 6);
    assert_eq!(message(LeakyBucket::new(bucket.rate(), 0)), "the burst is 0; it must be at least 1");
    assert_eq!(message(bucket.free(7)), "the free amount is 7; it must be between 0 and 6");
    assert_eq!(message(bucket.initial(7)), "the initial amount is 7; it must be between 0 and 6");
    assert!(bucket.max_debt(u64::MAX).is_err());
}

#[test]
fn no_words_time_or_cost_cause_a_panic() {
    let fast = limit("4294967295/s", 1 << 40).max_wait(Nanos::from_nanos(5));
    assert_never_panics(&[limit("1/week", 1), limit("7777/s", 100).free(7).unwrap(), fast]);
}

#[test]
fn wait_is_exact_at_every_fraction_of_a_tick() {
    let limit = limit("7777/s", 3).max_wait(Nanos::from_micros(200));
    let mut state = [0; 2];
    let _ = limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::new(3)));
    for at in (0..500_000).step_by(97) {
        assert_waits_exact(&limit, &state, Now::at, at, Ask::Exactly(Cost::ONE));
    }
}

#[test]
fn cost_of_zero_is_refused_only_in_debt() {
    let limit = limit("10/s", 6).max_wait(Nanos::from_millis(100)).max_debt(1).unwrap();
    let mut state = [0; 2];
    limit.init(&mut state, &Now::at(0));
    for (charged, passes) in [(6, true), (1, false)] {
        assert!(limit.decide(&mut state, &Now::at(0), Ask::Regardless(Cost::new(charged))).is_allowed());
        assert_eq!(limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::ZERO)).is_allowed(), passes);
    }
}
