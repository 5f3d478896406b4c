use super::*;
use crate::algorithm::testing::{
    StepBounds, assert_never_panics, assert_steps_with_clock as assert_steps, assert_waits_exact, random_steps,
};
use crate::quantity::Time;

const SECOND: u64 = 1_000_000_000;

/// Returns a limit of 5 per 60 s.
fn limit() -> FixedWindow {
    FixedWindow::new(5, Nanos::from_secs(60)).unwrap()
}

fn window(start: u64, end: u64) -> Window {
    Window::new(Time::from_nanos(start), Time::from_nanos(end)).unwrap()
}

#[test]
fn each_window_has_its_limit_and_twice_as_much_passes_at_a_boundary() {
    assert_steps(&limit(), Now::at, "3@50 3@50 2@59 5@60 1@119 5@120", "2 no10 0 0 no1 0");
    assert_steps(&limit(), Now::at, "6@0 5@0 1@0 0@0 1@61", "Never 0 no60 0 4");
}

#[test]
fn phase_determines_the_window_boundaries() {
    let steps = "5@70 1@119 1@120 4@129 1@130 1@179 1@180";
    assert_steps(&limit(), Now::at, steps, "0 no1 4 0 no50 no1 4");
    assert_steps(&limit().phase(Phase::FirstRequest), Now::at, steps, "0 no11 no10 no1 4 3 2");
    let spread = |offset| move |at| Now::at(at).with_spread(offset * SECOND);
    assert_steps(&limit().phase(Phase::Spread), spread(10), steps, "0 no11 no10 no1 4 3 2");
    assert_steps(&limit().phase(Phase::Spread), spread(60 + 59), steps, "0 4 3 no50 2 4 3");
    let days = [
        window(0, 71 * SECOND),
        window(71 * SECOND, 125 * SECOND),
        window(125 * SECOND, 179 * SECOND),
        window(179 * SECOND, 999 * SECOND),
    ];
    let given = |at: u64| {
        let day = days.iter().position(|day| at < day.end().as_nanos()).unwrap();
        Now::at(at).with_windows(&days[day..])
    };
    assert_steps(&limit().phase(Phase::Given(0)), given, steps, "0 4 3 1 0 4 3");
    // Without a given window, a window begins with the first request.
    assert_steps(&limit().phase(Phase::Given(4)), given, steps, "0 no11 no10 no1 4 3 2");
}

#[test]
fn first_request_window_restarts_when_nothing_is_counted() {
    let limit = limit().phase(Phase::FirstRequest);
    let mut state = [0; 2];
    limit.init(&mut state, &Now::at(0));
    let first = limit.decide(&mut state, &Now::at(10 * SECOND), Ask::Exactly(Cost::ONE));
    assert_eq!(limit.report(&state, &Now::at(20 * SECOND), Cost::ONE).reset, Nanos::from_secs(50));
    limit.refund(&mut state, &Now::at(30 * SECOND), Cost::ONE, Some(first.stamp()));
    let _ = limit.decide(&mut state, &Now::at(40 * SECOND), Ask::Exactly(Cost::ONE));
    assert_eq!(limit.report(&state, &Now::at(40 * SECOND), Cost::ONE).reset, Nanos::from_secs(60));
    assert_eq!(limit.refund(&mut state, &Now::at(50 * SECOND), Cost::ONE, Some(first.stamp())), Cost::ZERO);
}

#[test]
fn debt_is_bounded_and_carried_into_the_following_windows() {
    let limit = limit().max_debt(7).unwrap();
    let steps = "+13@0 +12@10 +1@10 1@10 0@10 5@10 1@60 3@120 4@120 +7@170 1@180";
    let expected = "Never 0 no50 no110 no110 no170 no60 0 no60 0 no60";
    assert_steps(&limit, Now::at, steps, expected);
    let handed = |at: u64| Now::at(at);
    assert_steps(&limit.phase(Phase::FirstRequest), handed, "+12@10 1@20 3@130 1@189 1@190", "0 no110 0 no1 4");
    // Two days without requests pay off the same amount of debt as two days with requests.
    let days: Vec<_> = (0..9).map(|day| window(day * 60 * SECOND, (day + 1) * 60 * SECOND)).collect();
    let given = |at: u64| Now::at(at).with_windows(&days[(at / SECOND / 60) as usize..]);
    assert_steps(&limit.phase(Phase::Given(0)), given, "+12@10 5@70 3@120 1@150 5@180", "0 no110 0 no30 0");
}

#[test]
fn count_is_kept_when_the_clock_is_set_back_by_up_to_a_window() {
    assert_steps(&limit(), Now::at, "5@130 1@61 1@119 1@120 1@179 1@180", "0 no119 no61 no60 no1 4");
    assert_steps(&limit(), Now::at, "3@130 2@61 1@119 1@120 1@179 1@180", "2 0 no61 no60 no1 4");
    let short = FixedWindow::new(5, Nanos::from_nanos(1)).unwrap();
    let mut state = [0; 2];
    let _ = short.decide(&mut state, &Now::at(SECOND), Ask::UpTo(Cost::MAX));
    assert!(
        !short.weigh(&state, &Now::at(2), Ask::Exactly(Cost::ONE)).is_admitted(),
        "a thread may be delayed by this time"
    );
}

#[test]
fn clock_step_back_neither_grants_nor_locks_out_beyond_the_window() {
    assert_steps(&limit(), Now::at, "5@100000 1@70 1@119 1@120 4@150 1@150", "0 no50 no1 4 0 no30");
    assert_steps(&limit(), Now::at, "3@100000 3@70 2@70 1@70 5@120", "2 no50 0 no50 0");
}

#[test]
fn given_window_is_used_even_if_late_or_early() {
    let limit = limit().phase(Phase::Given(0));
    let today = [window(100 * SECOND, 160 * SECOND)];
    assert_steps(&limit, |at| Now::at(at).with_windows(&today), "5@0 1@0 1@159 1@500", "0 no60 no1 no1");
    // A request whose given window is yesterday is counted in today's window.
    let (mut state, yesterday) = ([0; 2], [window(40 * SECOND, 100 * SECOND)]);
    let _ = limit.decide(&mut state, &Now::at(100 * SECOND).with_windows(&today), Ask::UpTo(Cost::MAX));
    let late = Now::at(99 * SECOND).with_windows(&yesterday);
    let wait = Retry::After(Nanos::from_secs(61));
    assert_eq!(limit.weigh(&state, &late, Ask::Exactly(Cost::ONE)).outcome(), Outcome::Deny(wait));
}

#[test]
fn refund_applies_only_to_the_window_of_its_charge() {
    let limit = limit();
    let mut state = [0; 2];
    let first = limit.decide(&mut state, &Now::at(SECOND), Ask::Exactly(Cost::new(4))).stamp();
    assert_eq!(limit.refund(&mut state, &Now::at(2 * SECOND), Cost::ONE, Some(first)), Cost::ONE);
    assert_eq!(limit.refund(&mut state, &Now::at(2 * SECOND), Cost::ONE, None), Cost::ONE);
    assert_eq!(limit.refund(&mut state, &Now::at(60 * SECOND), Cost::ONE, Some(first)), Cost::ZERO);
    assert_eq!(limit.refund(&mut state, &Now::at(60 * SECOND), Cost::ONE, None), Cost::ZERO);
    let second = limit.decide(&mut state, &Now::at(60 * SECOND), Ask::Exactly(Cost::new(4))).stamp();
    assert_eq!(limit.refund(&mut state, &Now::at(61 * SECOND), Cost::ONE, Some(first)), Cost::ZERO);
    assert_eq!(limit.refund(&mut state, &Now::at(61 * SECOND), Cost::MAX, Some(second)), Cost::new(4));
    assert!(limit.is_unused(&state, &Now::at(61 * SECOND)));
}

#[test]
fn every_window_admits_at_most_its_limit() {
    let limit = FixedWindow::new(3, Nanos::from_nanos(10)).unwrap();
    for start in 0..20 {
        let bounds = StepBounds { pause: 7, cost: 4, all_verbs: false };
        let passed = random_steps(&limit, Now::at, start, 500, &bounds);
        for from in &passed {
            let same = passed.iter().filter(|other| other.asked / 10 == from.asked / 10);
            assert!(same.map(|passed| passed.cost).sum::<u64>() <= 3);
        }
    }
}

#[test]
fn refusal_spends_nothing_and_a_retry_after_the_wait_succeeds() {
    let limit = FixedWindow::new(3, Nanos::from_nanos(10)).unwrap().max_debt(11).unwrap();
    let days: Vec<_> = (0..2_000).map(|day| window(day * 10, (day + 1) * 10)).collect();
    let given = |at: u64| Now::at(at).with_windows(&days[(at as usize / 10)..]);
    for start in 0..20 {
        let bounds = StepBounds { pause: 25, cost: 15, all_verbs: true };
        random_steps(&limit, Now::at, start, 500, &bounds);
        random_steps(&limit.phase(Phase::FirstRequest), Now::at, start, 500, &bounds);
        random_steps(&limit.phase(Phase::Spread), |at| Now::at(at).with_spread(start), start, 500, &bounds);
        random_steps(&limit.phase(Phase::Given(0)), given, start, 300, &bounds);
        random_steps(&limit.phase(Phase::Given(9_999)), given, start, 300, &bounds);
    }
}

#[test]
fn wait_is_exact_while_the_clock_is_behind() {
    let limit = FixedWindow::new(3, Nanos::from_secs(10)).unwrap();
    let mut state = [0; 2];
    let _ = limit.decide(&mut state, &Now::at(25 * SECOND), Ask::Regardless(Cost::new(6)));
    for second in 10..50 {
        for cost in 0..4 {
            assert_waits_exact(&limit, &state, Now::at, second * SECOND, Ask::Exactly(Cost::new(cost)));
        }
    }
}

#[test]
fn other_parameters_keep_the_spent_amount() {
    // Takes `spent` at 100 s under a limit of 5 per 60 s. Checks the remaining amount and the reset at 110 s under the
    // parameters `new`, before and after taking 1 under `new`.
    let check = |spent: u64, new: FixedWindow, before: (u64, u64), after: Option<(u64, u64)>| {
        let (mut state, now) = ([0; 2], Now::at(110 * SECOND));
        let _ = limit().decide(&mut state, &Now::at(100 * SECOND), Ask::Regardless(Cost::new(spent)));
        let report = new.report_from(&limit(), &state, &now, Cost::ONE);
        assert_eq!((report.remaining, report.reset.as_nanos() / SECOND), before, "{spent} under {new:?}");
        let (_, adopted) = new.decide_from(&limit(), &mut state, &now, Ask::Exactly(Cost::ONE));
        let report = new.report(&state, &now, Cost::ONE);
        let now_its_own = adopted.then_some((report.remaining, report.reset.as_nanos() / SECOND));
        assert_eq!(now_its_own, after, "1 after {spent} under {new:?}");
    };
    let new = |limit, secs| FixedWindow::new(limit, Nanos::from_secs(secs)).unwrap();
    check(3, new(9, 60), (6, 10), Some((5, 10)));
    check(3, new(9, 50), (6, 10), Some((5, 40)));
    check(3, new(9, 60).phase(Phase::FirstRequest), (6, 10), Some((5, 60)));
    check(5, new(2, 60), (0, 10), None);
    check(7, new(2, 60), (0, 10 + 60), None);
    check(7, new(9, 60), (2, 10 + 60), Some((1, 10)));
    check(0, new(9, 50), (9, 0), Some((8, 40)));
}

#[test]
fn new_key_has_the_initial_amount_in_its_first_window() {
    assert_steps(&limit().initial(2).unwrap(), Now::at, "3@50 2@50 5@60", "no10 0 0");
}

#[test]
fn invalid_parameters_are_errors() {
    let message = |result: Result<FixedWindow, LimitError>| result.unwrap_err().to_string();
    let year = Nanos::from_secs(365 * 86_400);
    assert_eq!(message(FixedWindow::new(0, year)), "the limit is 0; it must be at least 1");
    assert_eq!(message(FixedWindow::new(1, Nanos::ZERO)), "the length of the window is 0; it must be at least 1");
    assert!(message(FixedWindow::new(1, Nanos::MAX)).ends_with("too long; at most 3153600000s is valid"));
    assert_eq!(message(limit().initial(6)), "the initial amount is 6; it must be between 0 and 5");
    let yearly = FixedWindow::new(10, year).unwrap();
    let largest = "takes too long to refill at this rate; at most 1450 is valid";
    assert_eq!(message(yearly.max_debt(1451)), format!("an amount of 1451 {largest}"));
    assert!(FixedWindow::new(u64::MAX, year).is_ok());
}

#[test]
fn no_words_time_or_cost_cause_a_panic() {
    let century = FixedWindow::new(u64::MAX, crate::Rate::MAX_PERIOD).unwrap();
    let first = limit().phase(Phase::FirstRequest);
    assert_never_panics(&[FixedWindow::new(1, Nanos::from_nanos(1)).unwrap(), limit().phase(Phase::Spread), first]);
    assert_never_panics(&[century, century.phase(Phase::FirstRequest), limit().phase(Phase::Given(0))]);
}

#[test]
fn last_window_does_not_restart_with_every_request() {
    for phase in [Phase::Epoch, Phase::FirstRequest, Phase::Spread, Phase::Given(0)] {
        let limit = limit().phase(phase);
        let mut state = [0; 2];
        let passed =
            (0..9).filter(|_| limit.decide(&mut state, &Now::at(u64::MAX), Ask::Exactly(Cost::ONE)).is_admitted());
        assert_eq!(passed.count(), 5, "{phase:?}");
    }
}

/// With a limit of five, twelve were taken in the window until 60 s. Five are paid off at the end of that window. Five
/// more are paid off at 120 s on average, or at 150 s at the latest.
#[test]
fn debt_of_given_windows_may_last_half_a_window_longer() {
    let state = [60 * SECOND, 12];
    let limit = limit().max_debt(7).unwrap();
    let given = limit.phase(Phase::Given(0));
    let most = |limit: FixedWindow, seconds| limit.max_used(&state, &Now::at(seconds * SECOND));
    assert_eq!([59, 60, 120, 180].map(|seconds| given.used(&state, &Now::at(seconds * SECOND)).floor()), [12, 7, 2, 0]);
    let instants = [59, 60, 120, 149, 150, 239, 240, u64::MAX / SECOND];
    assert_eq!(instants.map(|seconds| most(given, seconds)), [12, 7, 7, 7, 2, 2, 0, 0]);
    assert_eq!([59, 119, 120, 179, 180].map(|seconds| most(limit, seconds)), [12, 7, 2, 2, 0]);
    assert_eq!(given.max_spent(&state, &Now::at(239 * SECOND)), Spent::of(2, 5));
}

/// The given window is from 100 s to 160 s. A count in this window or an earlier window belongs to the same calendar.
#[test]
fn end_of_its_window_identifies_the_calendar_of_a_count() {
    let windows = [window(100 * SECOND, 160 * SECOND)];
    let given = |limit: u64, secs| FixedWindow::new(limit, Nanos::from_secs(secs)).unwrap().phase(Phase::Given(0));
    let is_same = |new: FixedWindow, end: u64, used| {
        new.has_same_windows(&given(5, 60), &[end * SECOND, used], &Now::at(110 * SECOND).with_windows(&windows))
    };
    let ends = [99, 100, 101, 159, 160, 161].map(|end| is_same(given(7, 60), end, 1));
    assert_eq!(ends, [true, true, false, false, true, false]);
    assert!(is_same(given(7, 60), 161, 0), "nothing is counted");
    assert!(!is_same(given(7, 61), 160, 1) && !is_same(given(7, 60).phase(Phase::Given(1)), 160, 1));
    assert!(
        given(7, 60).has_same_windows(&given(5, 60), &[161 * SECOND, 1], &Now::at(110 * SECOND)),
        "no window is given"
    );
}

#[test]
fn window_from_the_first_request_begins_only_with_the_next_request() {
    assert_steps(&limit().phase(Phase::FirstRequest), Now::at, "5@70 5@140 1@190 1@199 1@200", "0 0 no10 no1 4");
}

/// With a limit of five, twelve were taken in the window until 60 s. The average window is 60 s.
#[test]
fn number_of_windows_without_a_request_is_rounded_to_nearest() {
    let limit = limit().max_debt(7).unwrap().phase(Phase::Given(0));
    let used = |end| {
        let windows = [window(80 * SECOND, end * SECOND)];
        limit.used(&[60 * SECOND, 12], &Now::at(80 * SECOND).with_windows(&windows)).ceil()
    };
    assert_eq!([81, 120, 149, 150, 209, 210].map(used), [7, 7, 7, 2, 2, 0]);
}
