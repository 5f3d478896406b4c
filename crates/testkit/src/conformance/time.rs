//! What comes back with time, and windows that are handed in.

use tollgate_core::{
    Concurrency, FixedWindow, LeakyBucket, Limit, Nanos, Outcome, Phase, Rate, Retry, SlidingLog, SlidingWindow, Time,
    TokenBucket, Window,
};
use tollgate_engine::store::{StoreError, Verb};

use super::Subject;
use super::desk::Desk;
use super::limits::YEAR;

fn times(unit: Nanos, n: u64) -> Nanos {
    Nanos::from_nanos(unit.as_nanos() * n)
}

/// Two per `length`, in every way that tells how long to wait.
fn two_per(length: Nanos) -> Vec<(&'static str, Limit)> {
    let rate = Rate::new(2, length).expect("a rate");
    let fixed = FixedWindow::new(2, length).expect("a window").phase(Phase::FirstRequest);
    vec![
        ("token bucket", TokenBucket::new(rate, 2).expect("a bucket").into()),
        ("leaky bucket", LeakyBucket::new(rate, 2).expect("a bucket").free(2).expect("as much as fits").into()),
        ("fixed window", fixed.into()),
        ("sliding window", SlidingWindow::new(2, length).expect("a window").into()),
        ("sliding log", SlidingLog::new(2, length).expect("a log").into()),
    ]
}

/// Two windows later, everything is as new.
pub async fn what_was_used_comes_back_with_time(subject: &mut impl Subject) {
    let length = times(subject.unit(), 2);
    let mut desk = Desk::new(subject);
    for (name, limit) in two_per(length) {
        let question = desk.about(limit, name);
        assert!(desk.check(&question.clone().cost(2)).await.passed(), "{name}");
        assert!(!desk.check(&question.clone().cost(2)).await.passed(), "{name}");
        desk.subject.wait(times(length, 2)).await;
        let told = desk.peek(&question).await;
        assert_eq!((told.remaining(), told.reports[0].reset), (vec![2], Nanos::ZERO), "{name}");
        assert!(desk.check(&question.cost(2)).await.passed(), "{name}");
    }
}

/// Waiting it succeeds; one tick less does not, where time stands still enough to try.
pub async fn the_advertised_wait_is_true(subject: &mut impl Subject) {
    let (unit, tick) = (subject.unit(), subject.tick());
    let mut desk = Desk::new(subject);
    for (name, limit) in two_per(times(unit, 3)) {
        let question = desk.about(limit, name);
        assert!(desk.check(&question.clone().cost(2)).await.passed(), "{name}");
        let wait = desk.check(&question).await.wait();
        assert!(wait <= times(unit, 6), "{name}: {wait}");
        if desk.subject.stands_still() {
            desk.subject.wait(wait.saturating_sub(tick)).await;
            let sooner = desk.check(&question).await;
            assert_eq!((sooner.passed(), sooner.wait()), (false, tick), "{name}");
            desk.subject.wait(tick).await;
        } else {
            desk.subject.wait(wait).await;
        }
        assert!(desk.check(&question).await.passed(), "{name}");
    }
}

/// What a holder does not give back is taken back.
pub async fn a_lost_lease_comes_back(subject: &mut impl Subject) {
    let lease = times(subject.unit(), 2);
    let mut desk = Desk::new(subject);
    let question = desk.about(Concurrency::new(1, lease).expect("leases"), "k");
    let lost = desk.check(&question).await;
    assert!(lost.passed());
    assert_eq!(desk.check(&question).await.outcome, Outcome::Deny(Retry::OnRelease));
    desk.subject.wait(lease).await;
    assert!(desk.check(&question).await.passed());
    assert_eq!(desk.refund(&question.clone().back(&lost)).await, 0, "the slot is somebody else's now");
    assert!(!desk.check(&question).await.passed());
}

/// The calendar is the caller's, the time is the store's.
pub async fn windows_handed_in_are_used_and_must_fit(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let question = desk.about(FixedWindow::new(2, YEAR).expect("a window").phase(Phase::Given(0)), "k");
    let now = desk.peek(&desk.question(question.numbers, "clock").windows(&[around(Time::ZERO, u64::MAX)])).await.at;
    let hour = 3_600_000_000_000;
    let this = around(now, hour);
    let question = question.windows(&[this]);
    assert!(desk.check(&question.clone().cost(2)).await.passed());
    let told = desk.check(&question).await;
    assert!(!told.passed() && told.wait() <= Nanos::from_nanos(hour));

    let past = Window::new(Time::from_nanos(now.as_nanos() - 2 * hour), Time::from_nanos(now.as_nanos() - hour));
    let stale = question.clone().windows(&[past.expect("an hour")]);
    let answer = desk.batch(&[(Verb::Check, std::slice::from_ref(&stale))]).await.swap_remove(0);
    let Err(StoreError::Stale { store_time }) = answer else { panic!("stale was expected, and not {answer:?}") };
    assert!(store_time >= now && store_time < this.end());
    assert_eq!(desk.peek(&question).await.remaining(), [0], "and nothing was changed");
}

/// So much on either side, as far as there is time.
fn around(time: Time<tollgate_core::Wall>, nanos: u64) -> Window {
    let (start, end) = (time.as_nanos().saturating_sub(nanos), time.as_nanos().saturating_add(nanos));
    Window::new(Time::from_nanos(start), Time::from_nanos(end)).expect("a window")
}

/// It goes on as time does.
pub async fn the_store_tells_its_time(subject: &mut impl Subject) {
    let unit = subject.unit();
    let mut desk = Desk::new(subject);
    let question = desk.about(super::groups::bucket(5), "k");
    let first = desk.check(&question).await.at;
    desk.subject.wait(unit).await;
    let second = desk.check(&question).await.at;
    let passed = second.since(first);
    assert!(passed >= unit.saturating_sub(desk.subject.tick()), "{passed} for {unit}");
    if desk.subject.stands_still() {
        assert_eq!(passed, unit);
    }
}
