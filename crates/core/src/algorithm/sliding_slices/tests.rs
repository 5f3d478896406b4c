use super::*;
use crate::algorithm::testing::{StepBounds, assert_never_panics, assert_steps, assert_waits_exact, random_steps};

const SECOND: u64 = 1_000_000_000;

/// Returns a limit of 10 in 60 s with slices of 10 s.
fn limit() -> SlidingSlices {
    SlidingSlices::new(10, Nanos::from_secs(60), Nanos::from_secs(10)).unwrap()
}

#[test]
fn amount_expires_with_its_slice() {
    let steps = "11@5 4@5 6@35 1@59 4@70 1@70 6@100 1@129 4@140 6@170 10@400";
    assert_steps(&limit(), steps, "Never 6 0 no11 0 no30 0 no11 0 0 0");
    // Every slice has a count; the counts expire one by one.
    let steps = "1@0 1@10 1@20 1@30 1@40 1@50 1@60 4@69 3@69 3@70 1@70 5@79 2@80";
    assert_steps(&limit(), steps, "9 8 7 6 5 4 3 no1 0 no20 0 no41 no10");
}

#[test]
fn slices_of_any_width_are_kept_apart() {
    for amount in [10, 100, 10_000, 1 << 20, 1 << 40] {
        let limit = SlidingSlices::new(amount * 6, Nanos::from_secs(60), Nanos::from_secs(10)).unwrap();
        let mut state = vec![0; limit.words()];
        limit.init(&mut *state, &Now::at(0));
        // Each slice has one request. Seven slices count at any time, and the limit is six times `amount`, so every
        // seventh request is refused.
        for slice in 0..40u64 {
            let now = Now::at((slice * 10 + 3) * SECOND);
            let passes = limit.decide(&mut *state, &now, Ask::Exactly(Cost::new(amount - slice % 2))).is_admitted();
            assert_eq!(passes, slice % 7 != 6, "slice {slice}, amount {amount}");
        }
        assert!(limit.is_unused(&*state, &Now::at(470 * SECOND)));
    }
}

#[test]
fn state_is_as_small_as_the_limit_allows() {
    let words = |limit, slices: u64| {
        SlidingSlices::new(limit, Nanos::from_secs(slices), Nanos::SECOND).unwrap().max_debt(0).unwrap().words()
    };
    assert_eq!((words(255, 10), words(256, 10), words(65_535, 60), words(65_536, 60)), (4, 5, 17, 32));
    assert_eq!((words(u32::MAX.into(), 64), words(1 << 32, 64), words(1, 1)), (34, 67, 3));
    assert_eq!(SlidingSlices::MAX_WORDS, words(1 << 32, SlidingSlices::MAX_SLICES));
}

#[test]
fn amount_expires_at_most_one_slice_late() {
    for (length, precision) in [(10, 6), (25, 10), (60, 7), (60, 10), (61, 60), (100, 3), (86_400, 2_000), (7, 99)] {
        let limit = SlidingSlices::new(5, Nanos::from_secs(length), Nanos::from_secs(precision)).unwrap();
        for at in (0..50).map(|step| 1_000 * SECOND + step * SECOND / 7) {
            let mut state = [0; 20];
            let _ = limit.decide(&mut state, &Now::at(at), Ask::Exactly(Cost::new(5)));
            let Retry::After(wait) = limit.report(&state, &Now::at(at), Cost::ONE).retry else { panic!("never") };
            let forgotten = wait.as_nanos() - length * SECOND;
            assert!(
                forgotten <= precision * SECOND,
                "expires {forgotten} ns late, with slices of {precision} s in {length} s"
            );
        }
    }
    let longer = SlidingSlices::new(5, Nanos::from_secs(10), Nanos::from_secs(99)).unwrap();
    assert_eq!(longer.precision(), Nanos::from_secs(10));
}

#[test]
fn charge_above_the_limit_counts_until_it_expires() {
    assert_steps(&limit(), "+21@0 +20@5 1@69 1@70", "Never 0 no1 9");
}

#[test]
fn refund_applies_to_the_slice_of_its_charge() {
    let limit = limit();
    let mut state = [0; 4];
    let mut take =
        |at: u64, cost| limit.decide(&mut state, &Now::at(at * SECOND), Ask::Exactly(Cost::new(cost))).stamp();
    let (first, second) = (take(5, 4), take(25, 3));
    let remaining = |state: &[u64], at: u64| limit.report(state, &Now::at(at * SECOND), Cost::ONE).remaining;
    let mut refund =
        |at: u64, cost, stamp| limit.refund(&mut state, &Now::at(at * SECOND), Cost::new(cost), stamp).get();
    assert_eq!(refund(45, 1, None), 0, "nothing was taken in this slice");
    assert_eq!(refund(45, 3, Some(first)), 3);
    assert_eq!(refund(45, 3, Some(first)), 1);
    assert_eq!(refund(45, 3, Some(first)), 0);
    assert_eq!(refund(45, 9, Some(second)), 3);
    assert_eq!(remaining(&state, 45), 10);
    let third = limit.decide(&mut state, &Now::at(46 * SECOND), Ask::Exactly(Cost::new(4))).stamp();
    assert_eq!(limit.refund(&mut state, &Now::at(46 * SECOND), Cost::ONE, None), Cost::ONE);
    assert_eq!(limit.refund(&mut state, &Now::at(109 * SECOND), Cost::ONE, Some(third)), Cost::ONE);
    assert_eq!(limit.refund(&mut state, &Now::at(110 * SECOND), Cost::ONE, Some(third)), Cost::ZERO);
}

#[test]
fn counts_are_kept_when_the_clock_is_set_back_by_up_to_a_window() {
    assert_steps(&limit(), "5@95 5@125 1@70 1@159 1@160", "5 0 no90 no1 4");
}

#[test]
fn clock_step_back_neither_grants_nor_locks_out_for_longer_than_a_window() {
    assert_steps(&limit(), "10@100000 1@75 1@139 1@140", "0 no65 no1 9");
    assert_steps(&limit(), "4@100000 3@100020 4@75 3@75 1@75 10@140", "6 3 no65 0 no65 0");
}

#[test]
fn any_window_admits_at_most_its_limit() {
    let limit = SlidingSlices::new(5, Nanos::from_nanos(20), Nanos::from_nanos(4)).unwrap();
    for start in 0..20 {
        let bounds = StepBounds { pause: 9, cost: 6, all_verbs: false };
        let passed = random_steps(&limit, Now::at, start, 500, &bounds);
        for from in &passed {
            let same = passed.iter().filter(|other| (from.asked..from.asked + 20).contains(&other.asked));
            assert!(same.map(|passed| passed.cost).sum::<u64>() <= 5);
        }
    }
}

#[test]
fn refusal_spends_nothing_and_a_retry_after_the_wait_succeeds() {
    for (slices, amount) in [(1, 3), (3, 90), (5, 300), (7, 70_000), (2, 1 << 33)] {
        let limit = SlidingSlices::new(amount, Nanos::from_nanos(slices * 4 - 1), Nanos::from_nanos(4)).unwrap();
        for start in 0..20 {
            let bounds = StepBounds { pause: slices * 4, cost: amount, all_verbs: true };
            random_steps(&limit, Now::at, start, 500, &bounds);
        }
    }
}

#[test]
fn wait_is_exact_while_the_clock_is_behind() {
    let mut state = [0; 4];
    let _ = limit().decide(&mut state, &Now::at(95 * SECOND), Ask::Exactly(Cost::new(3)));
    let _ = limit().decide(&mut state, &Now::at(125 * SECOND), Ask::Regardless(Cost::new(9)));
    for second in 60..200 {
        for cost in 0..11 {
            assert_waits_exact(&limit(), &state, Now::at, second * SECOND, Ask::Exactly(Cost::new(cost)));
        }
    }
}

#[test]
fn other_parameters_keep_the_spent_amount() {
    // Takes 3 at 100 s and 4 at 120 s, and checks the remaining amount and the reset at 130 s under `new`.
    let check = |new: SlidingSlices, remaining: u64, reset: u64| {
        let mut state = [0; 20];
        let _ = limit().decide(&mut state, &Now::at(100 * SECOND), Ask::Exactly(Cost::new(3)));
        let _ = limit().decide(&mut state, &Now::at(120 * SECOND), Ask::Exactly(Cost::new(4)));
        new.convert(&limit(), &mut state, &Now::at(130 * SECOND));
        let report = new.report(&state, &Now::at(130 * SECOND), Cost::ONE);
        assert_eq!((report.remaining, report.reset), (remaining, Nanos::from_secs(reset)), "{new:?}");
        assert!(new.is_unused(&state, &Now::at((130 + reset) * SECOND)));
    };
    let new = |limit, length, precision| {
        SlidingSlices::new(limit, Nanos::from_secs(length), Nanos::from_secs(precision)).unwrap()
    };
    check(new(12, 60, 10), 5, 60);
    check(new(300, 60, 10), 293, 60);
    check(new(1 << 40, 60, 10), (1 << 40) - 7, 60);
    check(new(12, 20, 10), 5, 30);
    check(new(12, 60, 20), 5, 70);
}

#[test]
fn new_key_has_the_initial_amount() {
    assert_steps(&limit().initial(2).unwrap(), "3@5 2@5 10@70", "no65 0 0");
}

#[test]
fn invalid_parameters_are_errors() {
    let message = |limit, length, precision| {
        SlidingSlices::new(limit, Nanos::from_nanos(length), Nanos::from_nanos(precision)).unwrap_err().to_string()
    };
    assert_eq!(message(0, 10, 1), "the limit is 0; it must be at least 1");
    assert_eq!(message(1, 0, 1), "the length of the window is 0; it must be at least 1");
    assert_eq!(message(1, 10, 0), "the precision is 0; it must be at least 1");
    let what = "the number of slices (the length divided by the precision)";
    assert_eq!(message(1, 65, 1), format!("{what} is 65; it must be between 1 and 64"));
    assert!(limit().initial(11).is_err() && limit().max_debt(u64::MAX).is_err());
}

#[test]
fn no_words_time_or_cost_cause_a_panic() {
    let century = crate::Rate::MAX_PERIOD;
    assert_never_panics(&[limit(), SlidingSlices::new(1, Nanos::from_nanos(64), Nanos::from_nanos(1)).unwrap()]);
    let wide = SlidingSlices::new(u64::MAX, century, century).unwrap();
    assert_never_panics(&[
        wide,
        SlidingSlices::new(40_000, century, Nanos::from_nanos(century.as_nanos() / 63)).unwrap(),
    ]);
}

#[test]
fn last_instant_does_not_restart_the_count_with_every_request() {
    let mut state = [0; 4];
    let passed =
        (0..19).filter(|_| limit().decide(&mut state, &Now::at(u64::MAX), Ask::Exactly(Cost::ONE)).is_admitted());
    assert_eq!(passed.count(), 10);
}

#[test]
fn fast_path_does_not_apply_when_the_clock_was_set_back_far() {
    let mut state = vec![0; limit().words()];
    limit().init(&mut *state, &Now::at(0));
    assert!(limit().decide(&mut *state, &Now::at(100_000 * SECOND), Ask::Exactly(Cost::new(3))).is_admitted());
    let applies = |at| limit().decide_fast(&mut *state.clone(), &Now::at(at), Cost::ONE).is_some();
    let end = 100_010 * SECOND;
    let earliest = end - limit().max_plausible;
    assert_eq!([end, end - 1, earliest, earliest - 1].map(applies), [true, true, true, false]);
}

#[test]
fn fast_path_applies_while_older_slices_are_counted() {
    let mut state = vec![0; limit().words()];
    for second in [100, 110] {
        assert!(limit().decide(&mut *state, &Now::at(second * SECOND), Ask::Exactly(Cost::new(3))).is_admitted());
    }
    // The first instant is in the same slice as the last request; the second instant is in a later slice.
    for now in [111, 121].map(|second| Now::at(second * SECOND)) {
        let fast = |cost| limit().decide_fast(&mut *state.clone(), &now, Cost::new(cost)).is_some();
        assert_eq!([1, 4, 5, 11].map(fast), [true, true, false, false], "{now:?}");
    }
}

#[test]
fn slices_are_shorter_than_requested_to_divide_the_window() {
    let slice = |length, precision| {
        SlidingSlices::new(5, Nanos::from_secs(length), Nanos::from_secs(precision)).unwrap().precision()
    };
    assert_eq!([slice(10, 6), slice(60, 7), slice(60, 10)], [5, 6, 10].map(Nanos::from_secs));
    // No slice count up to 64 divides a window of 67 ns, so six slices of 12 ns extend beyond it.
    let prime = SlidingSlices::new(5, Nanos::from_nanos(67), Nanos::from_nanos(12)).unwrap();
    assert_eq!(prime.precision(), Nanos::from_nanos(12));
}

/// Slice 12 is from 110 s to 120 s. The index of a count is its slice number modulo six.
#[test]
fn restored_counts_expire_with_their_slices() {
    for amount in [10, 300, 1 << 40] {
        let limit = SlidingSlices::new(amount, Nanos::from_secs(60), Nanos::from_secs(10)).unwrap();
        let mut state = vec![0; limit.words()];
        limit.restore(&mut *state, 120 * SECOND, 2, &[0, 0, 0, 0, 3, 1]);
        let used = |second| limit.used(&*state, &Now::at(second * SECOND)).ceil();
        assert_eq!([119, 159, 160, 169, 170, 179, 180].map(used), [6, 6, 3, 3, 2, 2, 0], "{amount}");
        // An amount beyond the limit plus debt is not counted.
        limit.restore(&mut *state, 120 * SECOND, 3, &[u64::MAX; 6]);
        let used = |second| limit.used(&*state, &Now::at(second * SECOND)).ceil();
        assert_eq!([119, 120, 179, 180].map(used), [2 * amount, 3, 3, 0], "the oldest slice has the other units");
    }
}
