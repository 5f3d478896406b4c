//! Cases for refill over time and for calendar windows.

use tollgate_core::{
    Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Limit, Nanos, Outcome, Phase, Rate, Retry, SlidingLog,
    SlidingSlices, SlidingWindow, Time, TokenBucket, Window,
};
use tollgate_engine::store::{StoreError, StoreVerb};

use super::Subject;
use super::harness::Harness;
use super::limits::YEAR;

fn multiple_of(unit: Nanos, n: u64) -> Nanos {
    Nanos::from_nanos(unit.as_nanos() * n)
}

/// Returns a limit of two per `length` for every algorithm that reports a wait.
fn limits_of_two_per(length: Nanos) -> Vec<(&'static str, Limit)> {
    let rate = Rate::new(2, length).expect("a rate");
    let slice = Nanos::from_nanos(length.as_nanos() / 2);
    let fixed = FixedWindow::new(2, length).expect("a window").phase(Phase::FirstRequest);
    vec![
        ("token bucket", TokenBucket::new(rate, 2).expect("a bucket").into()),
        ("leaky bucket", LeakyBucket::new(rate, 2).expect("a bucket").free(2).expect("a free part").into()),
        ("fixed window", fixed.into()),
        ("sliding window", SlidingWindow::new(2, length).expect("a window").into()),
        ("sliding slices", SlidingSlices::new(2, length, slice).expect("slices").into()),
        ("sliding log", SlidingLog::new(2, length).expect("a log").into()),
        ("interval bucket", IntervalBucket::new(2, length).expect("a bucket").into()),
    ]
}

/// Checks that every key is unused after two windows.
pub async fn used_amount_is_restored_over_time(subject: &mut impl Subject) {
    let length = multiple_of(subject.unit(), 2);
    let mut harness = Harness::new(subject);
    for (name, limit) in harness.without_refused(limits_of_two_per(length)) {
        let charge = harness.new_charge_with_limit(limit, name);
        assert!(harness.check(&charge.clone().cost(2)).await.passed(), "{name}");
        assert!(!harness.check(&charge.clone().cost(2)).await.passed(), "{name}");
        harness.subject.wait(multiple_of(length, 2)).await;
        let answer = harness.peek(&charge).await;
        assert_eq!((answer.remaining(), answer.reports[0].reset), (vec![2], Nanos::ZERO), "{name}");
        assert!(harness.check(&charge.cost(2)).await.passed(), "{name}");
    }
}

/// Checks that a request passes after the advertised wait and, on a manual clock, not one tick
/// earlier.
pub async fn advertised_wait_is_true(subject: &mut impl Subject) {
    let (unit, tick) = (subject.unit(), subject.tick());
    let mut harness = Harness::new(subject);
    for (name, limit) in harness.without_refused(limits_of_two_per(multiple_of(unit, 3))) {
        let charge = harness.new_charge_with_limit(limit, name);
        assert!(harness.check(&charge.clone().cost(2)).await.passed(), "{name}");
        let wait = harness.check(&charge).await.wait();
        assert!(wait <= multiple_of(unit, 6), "{name}: {wait}");
        if harness.subject.is_time_frozen() {
            harness.subject.wait(wait.saturating_sub(tick)).await;
            let sooner = harness.check(&charge).await;
            assert_eq!((sooner.passed(), sooner.wait()), (false, tick), "{name}");
            harness.subject.wait(tick).await;
        } else {
            harness.subject.wait(wait).await;
        }
        assert!(harness.check(&charge).await.passed(), "{name}");
    }
}

/// Checks that an unreleased slot becomes free when its lease ends.
pub async fn lost_lease_expires(subject: &mut impl Subject) {
    let lease = multiple_of(subject.unit(), 2);
    let mut harness = Harness::new(subject);
    if harness.refuses("concurrency") {
        return;
    }
    let charge = harness.new_charge_with_limit(Concurrency::new(1, lease).expect("leases"), "k");
    let lost = harness.check(&charge).await;
    assert!(lost.passed());
    assert_eq!(harness.check(&charge).await.outcome, Outcome::Deny(Retry::OnRelease));
    harness.subject.wait(lease).await;
    assert!(harness.check(&charge).await.passed());
    assert_eq!(harness.refund(&charge.clone().with_stamps_of(&lost)).await, 0, "the slot has another holder");
    assert!(!harness.check(&charge).await.passed());
}

/// Checks calendar windows: the request states the windows, and the store compares them with its own time.
pub async fn given_windows_must_contain_the_store_time(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    if harness.refuses("calendar window") {
        return;
    }
    let charge =
        harness.new_charge_with_limit(FixedWindow::new(2, YEAR).expect("a window").phase(Phase::Given(0)), "k");
    let now = harness
        .peek(&harness.new_charge(charge.limits_id, "clock").windows(&[window_around(Time::ZERO, u64::MAX)]))
        .await
        .at;
    let hour = 3_600_000_000_000;
    let this = window_around(now, hour);
    let charge = charge.windows(&[this]);
    assert!(harness.check(&charge.clone().cost(2)).await.passed());
    let answer = harness.check(&charge).await;
    assert!(!answer.passed() && answer.wait() <= Nanos::from_nanos(hour));

    let past = Window::new(Time::from_nanos(now.as_nanos() - 2 * hour), Time::from_nanos(now.as_nanos() - hour));
    let stale = charge.clone().windows(&[past.expect("an hour")]);
    let answer = harness.run_batch(&[(StoreVerb::Check, std::slice::from_ref(&stale))]).await.swap_remove(0);
    let Err(StoreError::Stale { store_time }) = answer else { panic!("expected stale, got {answer:?}") };
    assert!(store_time >= now && store_time < this.end());
    assert_eq!(harness.peek(&charge).await.remaining(), [0], "nothing was changed");
}

/// Returns the window from `nanos` before `time` to `nanos` after it, clamped to the range of the clock.
fn window_around(time: Time<tollgate_core::Wall>, nanos: u64) -> Window {
    let (start, end) = (time.as_nanos().saturating_sub(nanos), time.as_nanos().saturating_add(nanos));
    Window::new(Time::from_nanos(start), Time::from_nanos(end)).expect("a window")
}

/// Checks that the time in answers advances with the store's clock.
pub async fn answers_carry_the_store_time(subject: &mut impl Subject) {
    let unit = subject.unit();
    let mut harness = Harness::new(subject);
    let charge = harness.new_charge_with_limit(super::groups::slow_bucket(5), "k");
    let first = harness.check(&charge).await.at;
    harness.subject.wait(unit).await;
    let second = harness.check(&charge).await.at;
    let passed = second.since(first);
    assert!(passed >= unit.saturating_sub(harness.subject.tick()), "{passed} for {unit}");
    if harness.subject.is_time_frozen() {
        assert_eq!(passed, unit);
    }
}
