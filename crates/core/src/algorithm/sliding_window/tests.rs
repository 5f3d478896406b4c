use super::*;
use crate::algorithm::testing::{StepBounds, assert_never_panics, assert_steps, assert_waits_exact, random_steps};

const SECOND: u64 = 1_000_000_000;

/// Returns a limit of 10 per 60 s.
fn limit() -> SlidingWindow {
    SlidingWindow::new(10, Nanos::from_secs(60)).unwrap()
}

#[test]
fn previous_window_counts_by_its_overlap() {
    assert_steps(&limit(), "9@59 3@75 1@75 1@79 1@80", "1 0 no5 no1 0");
    assert_steps(&limit(), "10@0 1@59 1@60 1@65 1@66 1@90 5@90 4@90", "0 no7 no6 no1 0 3 no12 no6");
    assert_steps(&limit(), "11@0 10@0 10@1 10@61 10@119 10@120", "Never 0 no119 no59 no1 0");
}

#[test]
fn weighted_part_is_not_rounded() {
    // 9 × 3/4 + 5 is 11.75, so another request of 1 exceeds the limit of 12. If the estimate were rounded down to 11,
    // the request would pass.
    let limit = SlidingWindow::new(12, Nanos::from_secs(60)).unwrap();
    assert_steps(&limit, "9@59 5@75 1@75 1@80", "3 0 no5 0");
}

#[test]
fn debt_expires_like_other_amounts() {
    assert_steps(&limit(), "+21@0 +20@0 +1@0 1@0 0@0 1@90 1@93 10@93 10@120", "Never 0 no63 no93 no90 no3 0 no87 no60");
    assert_steps(&limit().max_debt(0).unwrap(), "+10@0 +1@0", "0 no66");
}

#[test]
fn counts_are_kept_when_the_clock_is_set_back_by_up_to_a_window() {
    assert_steps(&limit(), "10@130 1@61 1@119 1@185 1@186", "0 no125 no67 no1 0");
    assert_steps(&limit(), "5@60 4@130 1@61 1@61 1@120", "5 1 0 no71 no12");
}

#[test]
fn clock_step_back_neither_grants_nor_locks_out_beyond_the_window() {
    assert_steps(&limit(), "10@100000 1@70 1@125 1@126 10@180", "0 no56 no1 0 no60");
}

#[test]
fn refund_applies_to_the_window_of_its_charge() {
    let limit = limit();
    let mut state = [0; 2];
    let first = limit.decide(&mut state, &Now::at(SECOND), Ask::Exactly(Cost::new(6))).stamp();
    let now = Now::at(90 * SECOND);
    let second = limit.decide(&mut state, &now, Ask::Exactly(Cost::new(6))).stamp();
    let remaining = |state: &[u64; 2]| limit.report(state, &now, Cost::ONE).remaining;
    assert_eq!(remaining(&state), 1);
    assert_eq!(limit.refund(&mut state, &now, Cost::new(2), Some(first)), Cost::new(2));
    assert_eq!(remaining(&state), 2);
    assert_eq!(limit.refund(&mut state, &now, Cost::new(2), None), Cost::new(2));
    assert_eq!(remaining(&state), 4);
    assert_eq!(limit.refund(&mut state, &now, Cost::MAX, Some(second)), Cost::new(4));
    assert_eq!(limit.refund(&mut state, &now, Cost::MAX, Some(first)), Cost::new(4));
    assert!(limit.is_unused(&state, &now));
    assert_eq!(limit.refund(&mut state, &Now::at(180 * SECOND), Cost::MAX, Some(first)), Cost::ZERO);
}

#[test]
fn decisions_match_the_definition() {
    for (amount, length, start) in [(3, 10, 0), (7, 4, 3), (1, 1, 5), (5, 1_000, 999)] {
        let limit = SlidingWindow::new(amount, Nanos::from_nanos(length)).unwrap();
        let bounds = StepBounds { pause: length, cost: amount, all_verbs: false };
        let passed = random_steps(&limit, Now::at, start, 600, &bounds);
        for (nth, last) in passed.iter().enumerate().filter(|(_, last)| last.cost > 0) {
            let count =
                |window: u64| passed[..=nth].iter().filter(|p| p.asked / length == window).map(|p| p.cost).sum::<u64>();
            let present = last.asked / length;
            let previous = present.checked_sub(1).map_or(0, count);
            let estimate = previous * (length - last.asked % length) + count(present) * length;
            assert!(estimate <= amount * length, "{last:?}");
        }
    }
}

#[test]
fn no_interval_exceeds_the_guarantee() {
    for (amount, length) in [(3, 10), (7, 4), (5, 1_000)] {
        let limit = SlidingWindow::new(amount, Nanos::from_nanos(length)).unwrap();
        let passed =
            random_steps(&limit, Now::at, 1, 1_500, &StepBounds { pause: length / 2, cost: amount, all_verbs: false });
        for (first, from) in passed.iter().enumerate() {
            let mut sum = 0;
            for to in passed[first..].iter().take(60) {
                sum += to.cost * length;
                assert!(sum <= amount * length + amount * (to.asked - from.asked), "{from:?} {to:?}");
            }
        }
    }
}

#[test]
fn refusal_spends_nothing_and_a_retry_after_the_wait_succeeds() {
    for (amount, length) in [(3, 10), (7, 4), (1, 1), (5_000_000_000, 1_000), (3, 1_000_003)] {
        let limit = SlidingWindow::new(amount, Nanos::from_nanos(length)).unwrap();
        assert_eq!(limit.words(), if amount > 10 { 3 } else { 2 });
        for start in 0..5 {
            random_steps(
                &limit,
                Now::at,
                start,
                500,
                &StepBounds { pause: 2 * length, cost: 2 * amount + 1, all_verbs: true },
            );
        }
    }
}

#[test]
fn wait_is_exact_while_the_clock_is_behind() {
    let limit = SlidingWindow::new(3, Nanos::from_secs(10)).unwrap();
    let mut state = [0; 2];
    let _ = limit.decide(&mut state, &Now::at(15 * SECOND), Ask::Exactly(Cost::new(3)));
    let _ = limit.decide(&mut state, &Now::at(25 * SECOND), Ask::Regardless(Cost::new(4)));
    for at in (10 * SECOND..50 * SECOND).step_by(SECOND as usize / 3) {
        for cost in 0..4 {
            assert_waits_exact(&limit, &state, Now::at, at, Ask::Exactly(Cost::new(cost)));
        }
    }
}

#[test]
fn other_parameters_keep_the_spent_amount() {
    // Takes 8 at 50 s and 3 at 80 s, under a limit of 10 per 60 s. At 81 s the estimate is 8 × 39/60 + 3 = 8.2.
    let check = |new: SlidingWindow, remaining: u64, reset: u64| {
        let mut state = [0; 3];
        let _ = limit().decide(&mut state, &Now::at(50 * SECOND), Ask::Exactly(Cost::new(8)));
        let _ = limit().decide(&mut state, &Now::at(80 * SECOND), Ask::Exactly(Cost::new(3)));
        new.convert(&limit(), &mut state, &Now::at(81 * SECOND));
        let report = new.report(&state, &Now::at(81 * SECOND), Cost::ONE);
        assert_eq!((report.remaining, report.reset), (remaining, Nanos::from_secs(reset)), "{new:?}");
    };
    let new = |limit, secs| SlidingWindow::new(limit, Nanos::from_secs(secs)).unwrap();
    check(new(12, 60), 3, 39 + 60);
    check(new(1 << 40, 60), (1 << 40) - 9, 39 + 60);
    check(new(12, 50), 3, 19 + 50);
    check(new(2, 60), 0, 39 + 60);
}

#[test]
fn new_key_has_the_initial_amount() {
    assert_steps(&limit().initial(4).unwrap(), "5@0 4@0 1@65 1@66", "no70 0 no1 0");
}

#[test]
fn invalid_parameters_are_errors() {
    let message = |result: Result<SlidingWindow, LimitError>| result.unwrap_err().to_string();
    assert_eq!(message(SlidingWindow::new(0, Nanos::SECOND)), "the limit is 0; it must be at least 1");
    assert_eq!(message(SlidingWindow::new(1, Nanos::ZERO)), "the length of the window is 0; it must be at least 1");
    assert!(message(SlidingWindow::new(1, Nanos::MAX)).ends_with("too long; at most 3153600000s is valid"));
    assert_eq!(message(limit().initial(11)), "the initial amount is 11; it must be between 0 and 10");
    assert!(SlidingWindow::new(u64::MAX, crate::Rate::MAX_PERIOD).is_ok());
}

#[test]
fn no_words_time_or_cost_cause_a_panic() {
    let nano = SlidingWindow::new(u64::MAX / 2, Nanos::from_nanos(1)).unwrap();
    let century = SlidingWindow::new(u64::MAX, crate::Rate::MAX_PERIOD).unwrap();
    assert_never_panics(&[nano, century, limit()]);
}

#[test]
fn windows_of_the_same_length_keep_both_counts_under_another_limit() {
    let mut state = [0; 3];
    limit().init(&mut state, &Now::at(0));
    for (second, cost) in [(30, 6), (70, 2)] {
        assert!(limit().decide(&mut state, &Now::at(second * SECOND), Ask::Exactly(Cost::new(cost))).is_admitted());
    }
    let larger = SlidingWindow::new(12, Nanos::from_secs(60)).unwrap();
    let mut converted = state;
    larger.convert(&limit(), &mut converted, &Now::at(75 * SECOND));
    for second in [75, 90, 119, 120, 150, 179] {
        let now = Now::at(second * SECOND);
        assert_eq!(larger.used(&converted, &now), limit().used(&state, &now), "{second}");
    }
}

/// At 90 s half of the previous window counts.
#[test]
fn previous_count_is_kept_if_it_fits_the_other_limit_and_rounded_up_if_not() {
    let six = SlidingWindow::new(3, Nanos::from_secs(60)).unwrap();
    for (previous, at_90, at_105) in [(5, 3, 2), (6, 3, 2), (7, 4, 4)] {
        let mut state = [0; 2];
        let _ = limit().decide(&mut state, &Now::at(0), Ask::Exactly(Cost::new(previous)));
        six.convert(&limit(), &mut state, &Now::at(90 * SECOND));
        let used = |second| six.used(&state, &Now::at(second * SECOND)).ceil();
        assert_eq!((used(90), used(105)), (at_90, at_105), "{previous} in the previous window");
    }
}
