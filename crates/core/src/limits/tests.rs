use super::*;
use crate::quantity::{Nanos, Window};
use crate::verdict::{Retry, Stamp};
use crate::{
    Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Phase, SlidingLog, SlidingSlices, SlidingWindow, Steps,
    TokenBucket,
};

const SECOND: Nanos = Nanos::SECOND;

fn bucket(burst: u64) -> Limit {
    TokenBucket::new("1/s".parse().unwrap(), burst).unwrap().into()
}

fn new_state(limits: &Limits) -> Vec<u64> {
    let mut state = vec![0; limits.words()];
    limits.init(&mut *state, &Now::at(0));
    state
}

fn group_with_every_algorithm() -> Limits {
    Limits::new([
        bucket(10),
        LeakyBucket::new("1/s".parse().unwrap(), 9).unwrap().into(),
        FixedWindow::new(8, SECOND).unwrap().into(),
        SlidingWindow::new(7, SECOND).unwrap().into(),
        SlidingLog::new(6, SECOND).unwrap().into(),
        SlidingSlices::new(6, SECOND, Nanos::from_millis(100)).unwrap().into(),
        IntervalBucket::new(6, SECOND).unwrap().into(),
        Concurrency::new(5, SECOND).unwrap().into(),
    ])
    .unwrap()
}

#[test]
fn refusal_by_one_limit_spends_nothing_from_the_others() {
    let limits = group_with_every_algorithm();
    let mut state = new_state(&limits);
    let before = state.clone();
    let verdict = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(6)));
    assert_eq!(verdict.outcome(), Outcome::Deny(Retry::Never));
    assert_eq!(state, before);
    assert!(limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(5))).is_admitted());
    let remaining: Vec<u64> = limits.reports(&*state, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect();
    assert_eq!(remaining, [5, 4, 3, 2, 1, 1, 1, 0]);
}

#[test]
fn deny_all_makes_the_whole_group_refuse() {
    let limits = Limits::new([bucket(10), Limit::DenyAll]).unwrap();
    let mut state = new_state(&limits);
    assert!(!limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::ZERO)).is_admitted());
    assert!(limits.is_unused(&*state, &Now::at(0)));
}

#[test]
fn take_up_to_takes_the_least_available_from_all() {
    let limits = Limits::new([bucket(10), bucket(4)]).unwrap();
    let mut state = new_state(&limits);
    assert_eq!(limits.decide(&mut *state, &Now::at(0), Ask::UpTo(Cost::new(7))).taken(), Cost::new(4));
    assert_eq!(limits.report(&*state, &Now::at(0), Cost::ONE).remaining, 0);
    assert_eq!(limits.reports(&*state, &Now::at(0), Cost::ONE).next().unwrap().remaining, 6);
}

#[test]
fn delay_is_for_the_amount_taken() {
    let leaky = LeakyBucket::new("1/s".parse().unwrap(), 9).unwrap().into();
    let limits = Limits::new([leaky, bucket(2)]).unwrap();
    let state = new_state(&limits);
    let verdict = limits.weigh(&*state, &Now::at(0), Ask::UpTo(Cost::new(5)));
    assert_eq!((verdict.taken(), verdict.outcome()), (Cost::new(2), Outcome::Delay(SECOND)));
}

#[test]
fn refund_applies_to_every_limit() {
    let limits = group_with_every_algorithm();
    let mut state = new_state(&limits);
    let verdict = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(5)));
    assert_eq!(limits.refund(&mut *state, &Now::at(0), verdict.taken(), Some(verdict.stamp())), Cost::new(5));
    assert!(limits.is_unused(&*state, &Now::at(0)));
}

#[test]
fn longest_wait_and_latest_retry_are_reported() {
    let leaky = |rate: &str, burst| LeakyBucket::new(rate.parse().unwrap(), burst).unwrap().into();
    let limits = Limits::new([leaky("1/s", 3), leaky("1/5s", 2)]).unwrap();
    let mut state = new_state(&limits);
    let mut check = || limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::ONE)).outcome();
    assert_eq!(check(), Outcome::Allow);
    assert_eq!(check(), Outcome::Delay(Nanos::from_secs(5)));
    assert_eq!(check(), Outcome::Deny(Retry::After(Nanos::from_secs(5))));
}

#[test]
fn only_the_log_that_refused_counts_the_refusal() {
    let log = |limit| SlidingLog::new(limit, SECOND).unwrap().count_refused().into();
    let limits = Limits::new([log(5), log(1)]).unwrap();
    let mut state = new_state(&limits);
    for _ in 0..3 {
        let _ = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::ONE));
    }
    let remaining: Vec<u64> = limits.reports(&*state, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect();
    assert_eq!(remaining, [4, 0]);
    // After a whole second without an attempt, the request is admitted.
    assert!(limits.decide(&mut *state, &Now::at(1_000_000_000), Ask::Exactly(Cost::ONE)).is_admitted());
}

#[test]
fn changing_the_group_keeps_the_spent_amount_at_each_position() {
    let old = Limits::new([bucket(10), SlidingLog::new(5, SECOND).unwrap().into()]).unwrap();
    let new = Limits::new([
        TokenBucket::new("7777/s".parse().unwrap(), 20).unwrap().into(),
        SlidingLog::new(8, SECOND).unwrap().into(),
        bucket(3),
    ])
    .unwrap();
    let mut state = new_state(&old);
    state.resize(new.words().max(old.words()), 0);
    let _ = old.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(4)));
    new.convert(&old, &mut *state, &Now::at(0));
    let remaining: Vec<u64> = new.reports(&*state, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect();
    assert_eq!(remaining, [16, 4, 3]);
}

#[test]
fn changing_the_algorithm_keeps_the_used_amount() {
    let old = Limits::from(bucket(10));
    let new = Limits::from(Limit::from(FixedWindow::new(6, SECOND).unwrap()));
    let mut state = vec![0; 2];
    old.init(&mut *state, &Now::at(0));
    let _ = old.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(4)));
    new.convert(&old, &mut *state, &Now::at(0));
    assert_eq!(new.report(&*state, &Now::at(0), Cost::ONE).remaining, 2);
}

#[test]
fn empty_groups_and_groups_of_more_than_eight_are_errors() {
    assert_eq!(Limits::new([]).unwrap_err().to_string(), "the number of limits is 0; it must be between 1 and 8");
    assert_eq!(
        Limits::new([Limit::Unlimited; 20]).unwrap_err().to_string(),
        "the number of limits is 9; it must be between 1 and 8"
    );
}

#[test]
fn wait_in_queue_is_the_longest_of_all_limits() {
    let leaky = LeakyBucket::new("1/s".parse().unwrap(), 4).unwrap().free(1).unwrap();
    let window = FixedWindow::new(2, Nanos::from_secs(10)).unwrap();
    let wait = |limit: Limit, spent: u64, ahead, cost| {
        let limits = Limits::from(limit);
        let mut state = new_state(&limits);
        let _ = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(spent)));
        limits.wait_in_queue(&*state, &Now::at(0), Cost::new(ahead), Cost::new(cost))
    };
    let after = |secs| Retry::After(Nanos::from_secs(secs));
    assert_eq!([0, 1, 4, 100].map(|ahead| wait(bucket(3), 2, ahead, 2)), [1, 2, 5, 101].map(after));
    assert_eq!(wait(bucket(3), 2, 1, 4), Retry::Never);
    assert_eq!([0, 1, 4].map(|ahead| wait(leaky.into(), 2, ahead, 1)), [1, 2, 5].map(after));
    assert_eq!([0, 1, 2, 3].map(|ahead| wait(window.into(), 1, ahead, 1)), [0, 10, 10, 20].map(after));
    assert_eq!(wait(SlidingLog::new(2, SECOND).unwrap().into(), 2, 100, 1), after(1), "requests ahead are not counted");
    let both = Limits::new([bucket(3), window.into()]).unwrap();
    let state = new_state(&both);
    assert_eq!(both.wait_in_queue(&*state, &Now::at(0), Cost::new(3), Cost::new(2)), after(20));
    assert_eq!(Limit::Unlimited.wait_in_queue(&[0; 0], &Now::at(0), Cost::MAX, Cost::MAX), Retry::NOW);
    assert_eq!(Limit::DenyAll.wait_in_queue(&[0; 0], &Now::at(0), Cost::ZERO, Cost::ONE), Retry::Never);
}

#[test]
fn recheck_after_returns_the_next_lease_expiry() {
    let limits = Limits::new([bucket(9), Concurrency::new(3, SECOND).unwrap().into()]).unwrap();
    let mut state = new_state(&limits);
    let look = |state: &[u64], at| limits.recheck_after(state, &Now::at(at));
    assert_eq!(look(&state, 0), None);
    let first = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::ONE));
    let _ = limits.decide(&mut *state, &Now::at(400), Ask::Exactly(Cost::ONE));
    assert_eq!(
        (look(&state, 500), look(&state, 1_000_000_000)),
        (Some(Nanos::from_nanos(999_999_500)), Some(Nanos::from_nanos(400)))
    );
    limits.refund(&mut *state, &Now::at(500), Cost::ONE, Some(first.stamp()));
    assert_eq!((look(&state, 500), look(&state, 2_000_000_000)), (Some(Nanos::from_nanos(999_999_900)), None));
}

#[test]
fn stamps_record_the_refusing_limits_and_the_limit_count() {
    let stamp = Stamp::from_bits;
    let two = Stamps::from_stamps([stamp(3), stamp(7)]);
    assert_eq!([0, 1, 2, 8].map(|index| two.get(index)), [stamp(3), stamp(7), Stamp::NONE, Stamp::NONE]);
    assert_eq!((two.count(), two.is_empty()), (2, false));
    let counts = [0, 1, 8, 9].map(|count| Stamps::from_stamps(vec![Stamp::NONE; count]).count());
    assert_eq!(counts, [1, 1, 8, 8]);
    assert_eq!([0, 3, 9].map(|count| two.with_count(count).count()), [1, 3, 8]);
    assert_eq!((Stamps::default().count(), Stamps::default().is_empty()), (1, true));
    let refused = Stamps::of_refusal_by(2);
    assert_eq!([1, 2, 3, 8].map(|index| refused.has_refused(index)), [false, true, false, false]);
    assert!(!refused.is_empty() && Stamps::of_refusal_by(8).is_empty() && !Stamps::of_refusal_by(8).has_refused(8));
    assert!(Stamps::of_refusal_by(7).has_refused(7));
}

/// Every fast path matches the slow path in decision, state and report, or does not apply.
#[test]
fn fast_paths_of_a_single_limit_match_the_slow_path() {
    let fine = TokenBucket::new("7777/s".parse().unwrap(), 3).unwrap();
    let interval = IntervalBucket::new(3, SECOND).unwrap();
    let slices = SlidingSlices::new(3, SECOND, Nanos::from_millis(100)).unwrap();
    let fixed = FixedWindow::new(3, SECOND).unwrap();
    let limits: [(Limit, bool); 5] = [
        (bucket(3), true),
        (fine.into(), true),
        (interval.into(), true),
        (slices.into(), false),
        (fixed.into(), false),
    ];
    for (limit, is_short) in limits {
        let single = Limits::from(limit);
        let pair = Limits::new([limit, bucket(9)]).unwrap();
        let (mut state, mut two, mut decided) = (new_state(&single), new_state(&pair), 0);
        for step in 0..6u64 {
            let (now, cost) = (Now::at(step / 4 * 400_000_000), Cost::new(1 + step % 2));
            let (mut fast, mut short) = (state.clone(), state.clone());
            let word = single.try_take_from_word(state[0], &now, cost);
            let decided_fast = single.decide_fast(&mut *fast, &now, cost);
            let decided_short = single.try_decide_single(&mut &mut *short, &now, cost);
            assert_eq!(pair.try_take_from_word(two[0], &now, cost), None);
            assert!(pair.decide_fast(&mut *two, &now, cost).is_none());
            assert!(pair.try_decide_single(&mut &mut *two, &now, cost).is_none());
            let verdict = single.decide_slow(&mut *state, &now, Ask::Exactly(cost));
            if let Some(word) = word {
                assert_eq!((verdict.outcome(), word), (Outcome::Allow, state[0]), "{limit:?}");
            }
            if let Some(fast_verdict) = decided_fast {
                assert_eq!((fast_verdict, &fast), (verdict, &state), "{limit:?}");
            }
            if let Some(outcome) = decided_short {
                decided += 1;
                assert_eq!((outcome, &short), (verdict.outcome(), &state), "{limit:?}");
                assert_eq!(single.report_single(&&*short, &now, cost), single.report(&*state, &now, cost), "{limit:?}");
            }
        }
        assert_eq!(decided > 0, is_short, "{limit:?}");
        assert_eq!(two, new_state(&pair), "a fast path that does not apply writes nothing");
    }
}

#[test]
fn group_properties_are_derived_from_its_limits() {
    let window = FixedWindow::new(4, SECOND).unwrap();
    let leases: Limit = Concurrency::new(9, SECOND).unwrap().into();
    let partial: Limit = window.initial(1).unwrap().into();
    let group = |limits: &[Limit]| Limits::new(limits.iter().copied()).unwrap();
    for (limits, starts_full, has_leases, wall, capacity) in [
        (group(&[bucket(3)]), true, false, false, 3),
        (group(&[bucket(3), leases]), true, true, false, 3),
        (group(&[bucket(5), window.into()]), true, false, true, 4),
        (group(&[bucket(5), partial]), false, false, true, 4),
        (group(&[Limit::Unlimited]), true, false, false, u64::MAX),
    ] {
        assert_eq!((limits.starts_full(), limits.has_concurrency_limit()), (starts_full, has_leases), "{limits:?}");
        assert_eq!((limits.uses_wall_clock(), limits.capacity()), (wall, capacity), "{limits:?}");
    }
    assert!(Limits::from(bucket(3)).starts_full() && !Limits::from(partial).starts_full());
    let by_wall = |limit: Limit| Limits::from(limit).uses_wall_clock();
    let interval = IntervalBucket::new(3, SECOND).unwrap();
    let first = [window.phase(Phase::FirstRequest).into(), interval.steps(Steps::FirstRequest).into(), leases];
    assert_eq!(first.map(by_wall), [false; 3]);
    let aligned = interval.steps(Steps::Aligned(Nanos::ZERO)).into();
    let sliding = SlidingWindow::new(3, SECOND).unwrap().into();
    let slices = SlidingSlices::new(3, SECOND, SECOND).unwrap().into();
    let by_calendar = [window.phase(Phase::Spread).into(), window.phase(Phase::Given(0)).into()];
    assert!(by_calendar.into_iter().chain([aligned, sliding, slices]).all(by_wall));
}

#[test]
fn report_is_of_the_tightest_limit_with_the_longest_times() {
    // A cost of 2 passes the bucket after 2 s. The window of 9 admits this cost now; the window of 4 admits it after
    // its next boundary.
    for (limit, retry) in [(9, 2), (4, 10)] {
        let window: Limit = FixedWindow::new(limit, Nanos::from_secs(10)).unwrap().into();
        for limits in [[bucket(3), window], [window, bucket(3)]] {
            let limits = Limits::new(limits).unwrap();
            let mut state = new_state(&limits);
            let _ = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(3)));
            let report = limits.report(&*state, &Now::at(0), Cost::new(2));
            assert_eq!((report.limit, report.remaining), (3, 0));
            assert_eq!((report.retry, report.reset), (Retry::After(Nanos::from_secs(retry)), Nanos::from_secs(10)));
        }
    }
    // If several limits have the least remaining amount, the first of them is reported.
    let limits = Limits::new([bucket(5), bucket(6)]).unwrap();
    let mut state = new_state(&limits);
    let _ = limits.decide(&mut *state, &Now::at(0), Ask::Regardless(Cost::new(7)));
    assert_eq!(limits.report(&*state, &Now::at(0), Cost::ONE).limit, 5);
}

#[test]
fn renew_applies_to_the_leases_of_the_stamps() {
    let leases = |secs| Concurrency::new(3, Nanos::from_secs(secs)).unwrap().into();
    let limits = Limits::new([bucket(9), leases(2), leases(4)]).unwrap();
    let mut state = new_state(&limits);
    let at = |secs: u64| Now::at(secs * 1_000_000_000);
    let held = |state: &[u64], secs| -> Vec<u64> {
        limits.reports(state, &at(secs), Cost::ONE).skip(1).map(|report| report.limit - report.remaining).collect()
    };
    let stamps = limits.decide(&mut *state, &at(0), Ask::Exactly(Cost::ONE)).stamp();
    assert!(!limits.renew(&mut *state, &at(1), stamps.with_count(1)), "a bucket has no leases");
    assert!(limits.renew(&mut *state, &at(1), stamps.with_count(2)), "only the first lease is renewed");
    assert_eq!((held(&state, 2), held(&state, 3)), (vec![1, 1], vec![0, 1]));
    assert!(limits.renew(&mut *state, &at(2), stamps));
    assert_eq!((held(&state, 3), held(&state, 4), held(&state, 5)), (vec![1, 1], vec![0, 1], vec![0, 1]));
    // One lease has expired; the other lease is renewed anyway.
    assert!(!limits.renew(&mut *state, &at(5), stamps));
    assert_eq!((held(&state, 8), held(&state, 9)), (vec![0, 1], vec![0, 0]));
}

#[test]
fn take_slots_takes_only_free_slots() {
    let limits = Limits::new([bucket(9), Concurrency::new(5, SECOND).unwrap().into()]).unwrap();
    for (held, remaining) in [(&[9, 2][..], [9, 3]), (&[], [9, 5]), (&[0, 9], [9, 0])] {
        let mut state = new_state(&limits);
        limits.take_slots(&mut *state, &Now::at(0), held);
        let left: Vec<u64> = limits.reports(&*state, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect();
        assert_eq!(left, remaining, "{held:?}");
    }
}

#[test]
fn rebasing_moves_every_state_to_the_other_clock() {
    let limits = group_with_every_algorithm();
    let mut state = new_state(&limits);
    let _ = limits.decide(&mut *state, &Now::at(500), Ask::Exactly(Cost::new(2)));
    let reports = |state: &[u64], mono| -> Vec<Report> {
        let now = Now::new(Time::from_nanos(mono), Time::from_nanos(700));
        limits.reports(state, &now, Cost::new(5)).collect()
    };
    let before = reports(&state, 700);
    limits.rebase(&mut *state, Time::from_nanos(700), Time::from_nanos(9_000_000_000));
    assert_eq!(reports(&state, 9_000_000_000), before);
    assert_ne!(reports(&state, 10_000_000_000), before);
}

#[test]
fn state_of_other_limits_is_new_when_every_limit_is_unused() {
    let given = FixedWindow::new(5, SECOND).unwrap().max_debt(5).unwrap().phase(Phase::Given(0));
    let own = Limits::new([bucket(9), given.into()]).unwrap();
    let other = Limits::from(bucket(3));
    let day = |start, end| [Window::new(Time::from_nanos(start), Time::from_nanos(end)).unwrap()];
    let (first, second) = (day(0, 4_000_000_000), day(4_000_000_000, 9_000_000_000));
    let mut state = new_state(&own);
    let at = |at: u64| Now::at(at * 1_000_000_000);
    assert!(own.is_unused_from(&own, &*state, &at(0)) && other.is_unused_from(&own, &*state, &at(0)));
    let _ = own.decide(&mut *state, &at(0).with_windows(&first), Ask::Exactly(Cost::new(2)));
    for (limits, now, is_unused) in [
        (&own, at(3).with_windows(&first), false),
        (&own, at(4).with_windows(&second), true),
        (&other, at(3), false),
        (&other, at(4), true),
        (&own, at(1).with_windows(&first), false),
    ] {
        assert_eq!(limits.is_unused_from(&own, &*state, &now), is_unused, "{now:?}");
    }
    // Repaying this debt takes one window of four seconds, and then up to one and a half windows of a second.
    let _ = own.decide(&mut *state, &at(3).with_windows(&first), Ask::Regardless(Cost::new(7)));
    let after = |millis: u64| Now::at(4_000_000_000 + millis * 1_000_000);
    let spent = [0, 1_000, 1_499, 1_500].map(|millis| own.max_spent(&*state, &after(millis)));
    assert_eq!(spent, [Spent::of(4, 5), Spent::of(4, 5), Spent::of(4, 5), Spent::of(1, 2)]);
    let surely = [1_499, 1_500, 6_000].map(|millis| own.is_surely_unused(&*state, &after(millis)));
    assert_eq!(surely, [false, false, true], "half of the bucket is used");
    // Without the bucket, the state is surely unused after the longest possible windows.
    let window = Limits::from(given);
    let surely = [0, 1_000, 1_499, 1_500].map(|millis| window.is_surely_unused(&&state[1..], &after(millis)));
    assert_eq!(surely, [false, false, false, true]);
}

#[test]
fn refusal_under_other_limits_is_counted_by_the_log_that_refused() {
    let log = |limit| SlidingLog::new(limit, SECOND).unwrap().count_refused().into();
    let own = Limits::new([log(5), log(2)]).unwrap();
    let new = Limits::new([log(4), log(1)]).unwrap();
    let mut state = new_state(&own);
    let ask = |cost| Ask::Exactly(Cost::new(cost));
    assert!(own.decide(&mut *state, &Now::at(0), ask(1)).is_admitted());
    let (verdict, adopted) = new.decide_from(&own, &mut *state, &Now::at(0), ask(1));
    assert!(!verdict.is_admitted() && !adopted);
    let remaining = |limits: &Limits, state: &[u64]| -> Vec<u64> {
        limits.reports(state, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect()
    };
    assert_eq!(remaining(&own, &state), [4, 0], "the attempt is in the second log only");
    let (verdict, adopted) = new.decide_from(&own, &mut *state, &Now::at(0), ask(0));
    assert!(!adopted && verdict.taken() == Cost::ZERO);
    let later = Now::at(1_000_000_000);
    let (verdict, adopted) = new.decide_from(&own, &mut *state, &later, ask(1));
    assert!(verdict.is_admitted() && adopted);
    let none = Limits::from(Limit::Unlimited);
    let (verdict, adopted) = none.decide_from(&new, &mut *state, &later, ask(1));
    assert!(verdict.is_admitted() && !adopted, "nothing is written under limits without a state");
}

#[test]
fn only_a_group_of_one_has_fast_paths() {
    let odd: Limit = TokenBucket::new("7777/s".parse().unwrap(), 9).unwrap().into();
    let (now, cost) = (Now::at(0), Cost::new(4));
    let paths = |limits: &Limits| {
        let mut state = new_state(limits);
        let word = limits.try_take_from_word(state[0], &now, cost);
        let applies = limits.has_words_fast_path();
        let (mut fast, mut slow) = (state.clone(), state.clone());
        let stamps = applies.then(|| limits.try_take_from_words(&mut *fast, &now, cost).map(|stamps| stamps.count()));
        let _ = limits.decide_slow(&mut *slow, &now, Ask::Exactly(cost));
        assert!(!applies || fast == slow, "{limits:?}");
        let verdict =
            limits.decide_fast(&mut *state, &now, cost).map(|verdict| (verdict.is_admitted(), verdict.stamp().count()));
        (word, stamps, verdict)
    };
    assert_eq!(paths(&bucket(9).into()), (Some(4_000_000_000), None, Some((true, 1))));
    assert_eq!(paths(&bucket(3).into()), (None, None, None));
    assert_eq!(paths(&odd.into()), (None, Some(Some(1)), Some((true, 1))));
    for limits in [[bucket(9), bucket(9)], [odd, odd]] {
        assert_eq!(paths(&Limits::new(limits).unwrap()), (None, None, None));
    }
    let mut state = new_state(&bucket(9).into());
    let one = Limits::from(bucket(9));
    assert!(one.decide_fast(&mut *state, &now, Cost::new(9)).unwrap().is_admitted());
    let refused = one.decide_fast(&mut *state, &now, Cost::ONE).unwrap();
    assert_eq!((refused.outcome(), refused.stamp().has_refused(0)), (Outcome::Deny(Retry::After(SECOND)), true));
}

#[test]
fn group_starts_with_the_initial_amounts_and_is_new_when_every_limit_is_new() {
    let partial = |initial| TokenBucket::new("1/s".parse().unwrap(), 4).unwrap().initial(initial).unwrap().into();
    let limits = Limits::new([partial(3), partial(2)]).unwrap();
    let state = new_state(&limits);
    let remaining: Vec<u64> = limits.reports(&*state, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect();
    assert_eq!(remaining, [3, 2]);
    let at = |second: u64| Now::at(second * 1_000_000_000);
    assert_eq!(
        [0, 1, 2].map(|second| limits.spent(&*state, &at(second))),
        [Spent::of(2, 4), Spent::of(1, 4), Spent::NOTHING]
    );
    assert_eq!([0, 1, 2].map(|second| limits.is_unused(&*state, &at(second))), [false, false, true]);
    assert_eq!(limits.as_slice(), [partial(3), partial(2)]);
}
