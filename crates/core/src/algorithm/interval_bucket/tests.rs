use super::*;
use crate::algorithm::testing::{
    StepBounds, StepResult, assert_never_panics, assert_steps, assert_waits_exact, random_steps,
};
use crate::quantity::Time;

const SECOND: u64 = 1_000_000_000;

/// Returns a bucket that adds 5 every 10 s.
fn limit() -> IntervalBucket {
    IntervalBucket::new(5, Nanos::from_secs(10)).unwrap()
}

#[test]
fn refill_happens_in_whole_steps_up_to_the_burst() {
    let steps = "8@3 3@9 6@9 5@10 1@19 8@30 8@39 9@40";
    assert_steps(&limit().burst(8).unwrap(), steps, "0 no1 no11 0 no1 0 no11 Never");
    assert_steps(&limit(), "5@3 1@9 5@10 6@20", "0 no1 0 Never");
}

#[test]
fn parameters_determine_the_steps() {
    let steps = "5@3 1@9 1@12 1@14 5@25 1@29 1@30 1@34 1@35";
    assert_steps(&limit(), steps, "0 no1 4 3 0 no1 4 3 2");
    assert_steps(&limit().steps(Steps::Aligned(Nanos::from_secs(24))), steps, "0 4 3 4 0 no5 no4 4 3");
    // The bucket is full at 13 s, so the steps begin again with the next request.
    assert_steps(&limit().steps(Steps::FirstRequest), steps, "0 no4 no1 4 0 no6 no5 no1 4");
    assert_steps(&limit().burst(10).unwrap().steps(Steps::FirstRequest), "8@3 5@9 5@13 5@17 5@23", "2 no4 2 no6 2");
}

#[test]
fn max_wait_grants_tokens_of_later_steps() {
    let patient = limit().max_wait(Nanos::from_secs(20)).unwrap();
    assert_steps(&patient, "5@0 3@4 2@4 1@4 5@4 4@4 1@9 1@10", "5 w6 w6 w16 no6 w16 no1 w20");
    assert_steps(&patient, "6@0 +10@0 +1@0 5@1 1@1", "Never 5 no10 w19 no9");
    // A wait of exactly `max_wait` is not refused.
    let exactly = limit().max_wait(Nanos::from_secs(6)).unwrap();
    assert_steps(&exactly, "5@0 1@3 1@4 5@4", "0 no1 w6 no10");
}

#[test]
fn debt_is_bounded_and_paid_off_step_by_step() {
    let limit = limit().max_debt(7).unwrap();
    assert_steps(&limit, "+13@0 +12@1 +1@1 1@1 3@20 4@20 5@30", "Never 0 no9 no19 0 no10 0");
    assert_steps(&limit, "1@0 +12@1 +12@10", "4 no9 0");
}

#[test]
fn refund_is_accepted_up_to_the_debt() {
    for steps in [Steps::Aligned(Nanos::ZERO), Steps::FirstRequest] {
        let limit = limit().steps(steps);
        let mut state = [0; 2];
        limit.init(&mut state, &Now::at(0));
        let _ = limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::new(4)));
        assert_eq!(limit.refund(&mut state, &Now::at(SECOND), Cost::new(3), None), Cost::new(3));
        assert_eq!(limit.report(&state, &Now::at(SECOND), Cost::ONE).remaining, 4);
        assert_eq!(limit.refund(&mut state, &Now::at(SECOND), Cost::new(3), None), Cost::ONE);
        assert_eq!(limit.refund(&mut state, &Now::at(SECOND), Cost::new(3), None), Cost::ZERO);
        assert!(limit.is_unused(&state, &Now::at(SECOND)));
    }
}

#[test]
fn clock_step_back_neither_grants_nor_locks_out_for_longer_than_the_largest_debt() {
    for steps in [Steps::Aligned(Nanos::ZERO), Steps::FirstRequest] {
        let limit = limit().steps(steps);
        let mut state = [0; 2];
        let _ = limit.decide(&mut state, &Now::at(1_000_000 * SECOND), Ask::Exactly(Cost::new(5)));
        let refused = limit.decide(&mut state, &Now::at(30 * SECOND), Ask::Exactly(Cost::ONE));
        assert!(!refused.is_admitted());
        assert!(limit.is_unused(&state, &Now::at(50 * SECOND)), "{steps:?}");
    }
    // A clock reading that is less than a second old is not a clock step.
    let first = limit().steps(Steps::FirstRequest);
    let mut state = [0; 2];
    let _ = first.decide(&mut state, &Now::at(30 * SECOND), Ask::Exactly(Cost::new(5)));
    let late = Now::at(30 * SECOND - SECOND / 2);
    let wait = Retry::After(Nanos::from_millis(10_500));
    assert_eq!(first.decide(&mut state, &late, Ask::Exactly(Cost::ONE)).outcome(), Outcome::Deny(wait));
    assert_eq!(state[1], 30 * SECOND);
}

/// Checks every interval: the requests whose wait ends in the interval took at most `burst` plus the interval's
/// refills. `step` returns the step number at an instant. `first` returns the number of the last step before an
/// interval that begins at a given instant.
fn assert_within_burst(passed: &[StepResult], first: impl Fn(u64) -> u64, step: impl Fn(u64) -> u64) {
    for from in passed {
        let mut sum = 0;
        let after = passed.iter().filter(|other| other.turn >= from.turn);
        let mut after: Vec<_> = after.collect();
        after.sort_by_key(|other| other.turn);
        for other in after {
            sum += other.cost;
            assert!(sum <= 5 + 3 * (step(other.turn) - first(from.turn)), "{from:?} to {other:?}");
        }
    }
}

#[test]
fn every_interval_admits_at_most_the_burst_and_its_steps() {
    let limit = IntervalBucket::new(3, Nanos::from_nanos(10)).unwrap().burst(5).unwrap();
    for start in 0..20 {
        let bounds = StepBounds { pause: 7, cost: 6, all_verbs: false };
        assert_within_burst(&random_steps(&limit, Now::at, start, 300, &bounds), |at| at / 10, |at| at / 10);
        let shifted = limit.steps(Steps::Aligned(Nanos::from_nanos(4)));
        assert_within_burst(
            &random_steps(&shifted, Now::at, start, 300, &bounds),
            |at| (at + 6) / 10,
            |at| (at + 6) / 10,
        );
        let patient = limit.max_wait(Nanos::from_nanos(25)).unwrap();
        assert_within_burst(
            &random_steps(&patient, Now::at, start, 300, &bounds),
            |at| at.saturating_sub(1) / 10,
            |at| at / 10,
        );
    }
}

#[test]
fn refusal_spends_nothing_and_a_retry_after_the_wait_succeeds() {
    let limit = IntervalBucket::new(3, Nanos::from_nanos(10)).unwrap().burst(7).unwrap().max_debt(11).unwrap();
    for start in 0..20 {
        let bounds = StepBounds { pause: 25, cost: 20, all_verbs: true };
        for max_wait in [0, 4, 10, 33].map(Nanos::from_nanos) {
            let limit = limit.max_wait(max_wait).unwrap();
            random_steps(&limit, Now::at, start, 300, &bounds);
            random_steps(&limit.steps(Steps::Aligned(Nanos::from_nanos(start % 10))), Now::at, start, 300, &bounds);
            random_steps(&limit.steps(Steps::FirstRequest), Now::at, start, 300, &bounds);
        }
    }
}

#[test]
fn wait_is_exact_while_the_clock_is_behind() {
    for steps in [Steps::Aligned(Nanos::from_millis(400)), Steps::FirstRequest] {
        let limit = IntervalBucket::new(3, Nanos::from_millis(700)).unwrap().steps(steps);
        let mut state = [0; 2];
        let _ = limit.decide(&mut state, &Now::at(5 * SECOND), Ask::Regardless(Cost::new(5)));
        for tenth in 41..90 {
            for cost in 0..4 {
                assert_waits_exact(&limit, &state, Now::at, tenth * SECOND / 10, Ask::Exactly(Cost::new(cost)));
            }
        }
    }
}

#[test]
fn other_parameters_keep_the_spent_amount() {
    // Takes `spent` at 3 s under `old`, and checks the remaining amount and the reset at 4 s under `new`.
    let check = |old: IntervalBucket, spent: u64, new: IntervalBucket, remaining: u64, reset: u64| {
        let mut state = [0; 2];
        let _ = old.decide(&mut state, &Now::at(3 * SECOND), Ask::Regardless(Cost::new(spent)));
        new.convert(&old, &mut state, &Now::at(4 * SECOND));
        let report = new.report(&state, &Now::at(4 * SECOND), Cost::ONE);
        assert_eq!((report.remaining, report.reset), (remaining, Nanos::from_secs(reset)), "{spent} under {new:?}");
    };
    let new = |refill, secs| IntervalBucket::new(refill, Nanos::from_secs(secs)).unwrap();
    check(limit(), 3, new(9, 10), 6, 6);
    check(limit(), 3, new(2, 7), 0, 10);
    check(limit(), 9, new(9, 10), 0, 6);
    check(limit(), 0, new(9, 10), 9, 0);
    check(limit(), 3, new(9, 10).steps(Steps::FirstRequest), 6, 10);
    let first = limit().steps(Steps::FirstRequest);
    check(first, 3, new(9, 10).steps(Steps::FirstRequest), 6, 9);
    check(first, 3, new(9, 20).steps(Steps::FirstRequest), 6, 20);
    check(first, 3, new(9, 10), 6, 6);
}

#[test]
fn new_key_has_the_initial_amount() {
    assert_steps(&limit().initial(2).unwrap(), "3@3 2@3 5@10", "no7 0 0");
    assert_steps(&limit().initial(2).unwrap().steps(Steps::FirstRequest), "3@3 2@3 5@13", "no10 0 0");
}

#[test]
fn fast_path_matches_the_slow_path() {
    let limit = limit().burst(8).unwrap().steps(Steps::Aligned(Nanos::from_secs(4)));
    for (at, mark) in (0..40).flat_map(|second| (0..60).map(move |mark| (second * SECOND, mark))) {
        for cost in 0..10 {
            let (mut fast, mut slow) = ([mark], [mark]);
            let fast_verdict = limit.decide_fast(&mut fast, &Now::at(at), Cost::new(cost));
            let verdict = limit.decide_slow(&mut slow, &Now::at(at), Ask::Exactly(Cost::new(cost)));
            match fast_verdict {
                Some(fast_verdict) => assert_eq!((fast_verdict, fast), (verdict, slow)),
                None => assert!(fast == [mark] && (cost == 0 || !verdict.is_admitted())),
            }
        }
    }
    assert_eq!(limit.steps(Steps::FirstRequest).decide_fast(&mut [0, 0], &Now::at(0), Cost::ONE), None);
}

#[test]
fn invalid_parameters_are_errors() {
    let message = |result: Result<IntervalBucket, LimitError>| result.unwrap_err().to_string();
    let year = Nanos::from_secs(365 * 86_400);
    assert_eq!(message(IntervalBucket::new(0, year)), "the refill is 0; it must be at least 1");
    assert_eq!(message(IntervalBucket::new(1, Nanos::ZERO)), "the period is 0; it must be at least 1");
    assert!(message(IntervalBucket::new(1, Nanos::MAX)).ends_with("too long; at most 3153600000s is valid"));
    assert_eq!(
        message(IntervalBucket::new(11, Nanos::from_nanos(10))),
        "the refill of an interval bucket (at most one per nanosecond) is 11; it must be between 1 and 10"
    );
    assert_eq!(message(limit().burst(0)), "the burst is 0; it must be at least 1");
    assert_eq!(message(limit().initial(6)), "the initial amount is 6; it must be between 0 and 5");
    let yearly = IntervalBucket::new(10, year).unwrap();
    let largest = "takes too long to refill at this rate; at most";
    assert_eq!(message(yearly.burst(1461)), format!("an amount of 1461 {largest} 1460 is valid"));
    assert_eq!(message(yearly.max_debt(1451)), format!("an amount of 1451 {largest} 1450 is valid"));
    assert!(message(limit().max_wait(Nanos::MAX)).ends_with("too long; at most 3153600000s is valid"));
}

#[test]
fn no_words_time_or_cost_cause_a_panic() {
    let fastest = IntervalBucket::new(1, Nanos::from_nanos(1)).unwrap();
    let century = IntervalBucket::new(Rate::MAX_PERIOD.as_nanos(), Rate::MAX_PERIOD).unwrap();
    let most = Rate::MAX_FILL_TIME.as_nanos();
    let all = [fastest, fastest.burst(most).unwrap(), century, century.max_wait(Rate::MAX_PERIOD).unwrap(), limit()];
    assert_never_panics(&all);
    assert_never_panics(&all.map(|limit| limit.steps(Steps::FirstRequest)));
    assert_never_panics(&all.map(|limit| limit.steps(Steps::Aligned(Nanos::from_nanos(7)))));
}

#[test]
fn last_instant_does_not_restart_the_count_with_every_request() {
    for steps in [Steps::Aligned(Nanos::ZERO), Steps::FirstRequest] {
        for limit in [limit(), IntervalBucket::new(5, Nanos::from_nanos(5)).unwrap()] {
            let limit = limit.steps(steps);
            let mut state = [0; 2];
            let now = Now::new(Time::from_nanos(u64::MAX), Time::from_nanos(u64::MAX));
            let passed = (0..9).filter(|_| limit.decide(&mut state, &now, Ask::Exactly(Cost::ONE)).is_admitted());
            assert!(passed.count() <= 5, "{steps:?}");
        }
    }
}

/// With waits of up to 20 s, requests can take the refills of at most three steps, which are 15 tokens.
#[test]
fn clock_step_back_counts_as_the_largest_debt() {
    let short_of = |max_debt| limit().max_debt(max_debt).unwrap();
    let patient = |max_debt| short_of(max_debt).max_wait(Nanos::from_secs(20)).unwrap();
    for (limit, most) in [(short_of(3), 5 + 3), (short_of(9), 5 + 9), (patient(3), 5 + 15), (patient(40), 5 + 40)] {
        let mut state = [0];
        let _ = limit.decide(&mut state, &Now::at(1_000_000 * SECOND), Ask::Exactly(Cost::ONE));
        assert_eq!(limit.used(&state, &Now::at(30 * SECOND)), Tokens::whole(most), "{limit:?}");
    }
}

/// Steps are at multiples of 300 ms. There are four steps in the second before 9 s.
#[test]
fn clock_reading_a_second_old_owes_the_steps_since_then() {
    let limit = IntervalBucket::new(2, Nanos::from_millis(300)).unwrap();
    let mut state = [0];
    let _ = limit.decide(&mut state, &Now::at(9 * SECOND), Ask::Regardless(Cost::new(4)));
    let owed = |at| limit.used(&state, &Now::at(at)).ceil();
    let earliest = 7_800_000_000;
    assert_eq!([9 * SECOND, 9 * SECOND - 1, 8 * SECOND, earliest, earliest - 1].map(owed), [4, 6, 12, 12, 4]);
}

#[test]
fn corrupt_state_is_paid_off_like_the_largest_debt() {
    for steps in [Steps::Aligned(Nanos::ZERO), Steps::FirstRequest] {
        for mark in [u64::MAX, u64::MAX - 1, 1 << 40] {
            let (limit, mut state) = (limit().steps(steps), [mark, 0]);
            assert!(!limit.decide(&mut state, &Now::at(30 * SECOND), Ask::Exactly(Cost::ONE)).is_admitted());
            let reset = |second| limit.report(&state, &Now::at(second * SECOND), Cost::ONE).reset;
            assert_eq!([35, 45, 50].map(reset), [15, 5, 0].map(Nanos::from_secs), "{mark} with {steps:?}");
        }
    }
}

/// At 3 s, 4 of 5 are taken. With requests of 7 ahead in the queue, a cost of 5 needs three more steps.
#[test]
fn wait_behind_other_requests_skips_the_steps_that_they_use() {
    let mut state = [0];
    let now = Now::at(3 * SECOND);
    let _ = limit().decide(&mut state, &now, Ask::Exactly(Cost::new(4)));
    let wait = |ahead, cost| limit().wait_in_queue(&state, &now, Cost::new(ahead), Cost::new(cost));
    let after = |secs| Retry::After(Nanos::from_secs(secs));
    assert_eq!([wait(0, 1), wait(0, 2), wait(1, 5), wait(2, 5)], [after(0), after(7), after(7), after(17)]);
    assert_eq!([wait(7, 5), wait(0, 6), wait(0, 7)], [after(27), Retry::Never, Retry::Never]);
}

/// The limit is 2 every 300 ms, with a debt of at most 4. A mark of 10 was written at least three steps after the first
/// request, and a mark of 12 at least four steps after it. Four steps take longer than one second, the maximum age of a
/// clock reading.
#[test]
fn steps_since_the_first_request_count_towards_a_clock_step() {
    let limit = IntervalBucket::new(2, Nanos::from_millis(300)).unwrap().steps(Steps::FirstRequest);
    let owed = |mark, early| limit.used(&[mark, 10 * SECOND], &Now::at(10 * SECOND - early)).ceil();
    assert_eq!([owed(4, SECOND), owed(4, SECOND + 1), owed(5, SECOND + 1)], [4, 4, 4]);
    assert_eq!([owed(10, 1), owed(10, SECOND / 10), owed(10, SECOND / 10 + 1), owed(12, 1)], [10, 10, 4, 4]);
}

#[test]
fn default_debt_is_the_burst_or_the_most_that_refills_in_time() {
    let debt = |limit: IntervalBucket| match limit.params() {
        Params::IntervalBucket { max_debt, .. } => max_debt,
        params => panic!("{params:?}"),
    };
    let yearly = IntervalBucket::new(10, Nanos::from_secs(365 * 86_400)).unwrap();
    assert_eq!([yearly, yearly.burst(700).unwrap(), yearly.burst(1_000).unwrap()].map(debt), [10, 700, 460]);
    assert_eq!(debt(IntervalBucket::new(10, Rate::MAX_PERIOD).unwrap()), 0);
    assert_eq!(debt(yearly.max_debt(1_450).unwrap()), 1_450);
}

#[test]
fn new_key_owes_nothing_after_the_clock_is_set_back() {
    for steps in [Steps::Aligned(Nanos::ZERO), Steps::FirstRequest] {
        let limit = limit().steps(steps);
        let mut state = [0; 2];
        limit.init(&mut state, &Now::at(1_000_000 * SECOND));
        assert_eq!(limit.used(&state, &Now::at(30 * SECOND)), Tokens::ZERO, "{steps:?}");
    }
}

#[test]
fn longest_wait_of_other_parameters_does_not_overflow() {
    let longest = Retry::After(Nanos::MAX);
    let patient = limit().max_wait(Nanos::from_secs(6)).unwrap();
    assert_eq!(patient.retry_from(Some(9 * SECOND), Ask::Exactly(Cost::ONE), |_| longest), longest);
}
