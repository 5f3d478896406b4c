use super::*;
use crate::verdict::Retry;
use crate::{Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket};

const SECOND: Nanos = Nanos::SECOND;

fn bucket(burst: u64) -> Limit {
    TokenBucket::new("1/s".parse().unwrap(), burst).unwrap().into()
}

fn state_of(limits: &Limits) -> Vec<u64> {
    let mut state = vec![0; limits.words()];
    limits.init(&mut *state, &Now::at(0));
    state
}

fn one_of_each() -> Limits {
    Limits::new([
        bucket(10),
        LeakyBucket::new("1/s".parse().unwrap(), 9).unwrap().into(),
        FixedWindow::new(8, SECOND).unwrap().into(),
        SlidingWindow::new(7, SECOND).unwrap().into(),
        SlidingLog::new(6, SECOND).unwrap().into(),
        Concurrency::new(5, SECOND).unwrap().into(),
        Limit::Unlimited,
    ])
    .unwrap()
}

#[test]
fn refusal_by_one_limit_spends_nothing_from_the_others() {
    let limits = one_of_each();
    let mut state = state_of(&limits);
    let before = state.clone();
    let verdict = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(6)));
    assert_eq!(verdict.outcome(), Outcome::Deny(Retry::Never));
    assert_eq!(state, before);
    assert!(limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(5))).is_admitted());
    let remaining: Vec<u64> = limits.reports(&*state, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect();
    assert_eq!(remaining, [5, 4, 3, 2, 1, 0, u64::MAX]);
}

#[test]
fn deny_all_closes_the_whole_group() {
    let limits = Limits::new([bucket(10), Limit::DenyAll]).unwrap();
    let mut state = state_of(&limits);
    assert!(!limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::ZERO)).is_admitted());
    assert!(limits.is_new(&*state, &Now::at(0)));
}

#[test]
fn take_up_to_takes_the_least_available_from_all() {
    let limits = Limits::new([bucket(10), bucket(4)]).unwrap();
    let mut state = state_of(&limits);
    assert_eq!(limits.decide(&mut *state, &Now::at(0), Ask::UpTo(Cost::new(7))).taken(), Cost::new(4));
    assert_eq!(limits.report(&*state, &Now::at(0), Cost::ONE).remaining, 0);
    assert_eq!(limits.reports(&*state, &Now::at(0), Cost::ONE).next().unwrap().remaining, 6);
}

#[test]
fn delay_is_that_of_what_is_taken() {
    let leaky = LeakyBucket::new("1/s".parse().unwrap(), 9).unwrap().into();
    let limits = Limits::new([leaky, bucket(2)]).unwrap();
    let state = state_of(&limits);
    let verdict = limits.weigh(&*state, &Now::at(0), Ask::UpTo(Cost::new(5)));
    assert_eq!((verdict.taken(), verdict.outcome()), (Cost::new(2), Outcome::Delay(SECOND)));
}

#[test]
fn refund_reaches_every_limit() {
    let limits = one_of_each();
    let mut state = state_of(&limits);
    let verdict = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(5)));
    assert_eq!(limits.refund(&mut *state, &Now::at(0), verdict.taken(), Some(verdict.stamp())), Cost::new(5));
    assert!(limits.is_new(&*state, &Now::at(0)));
}

#[test]
fn longest_wait_and_latest_retry_are_reported() {
    let leaky = |rate: &str, burst| LeakyBucket::new(rate.parse().unwrap(), burst).unwrap().into();
    let limits = Limits::new([leaky("1/s", 3), leaky("1/5s", 2)]).unwrap();
    let mut state = state_of(&limits);
    let mut check = || limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::ONE)).outcome();
    assert_eq!(check(), Outcome::Allow);
    assert_eq!(check(), Outcome::Delay(Nanos::from_secs(5)));
    assert_eq!(check(), Outcome::Deny(Retry::After(Nanos::from_secs(5))));
}

#[test]
fn only_the_log_that_refused_counts_the_refusal() {
    let log = |limit| SlidingLog::new(limit, SECOND).unwrap().count_refused().into();
    let limits = Limits::new([log(5), log(1)]).unwrap();
    let mut state = state_of(&limits);
    for _ in 0..3 {
        let _ = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::ONE));
    }
    let remaining: Vec<u64> = limits.reports(&*state, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect();
    assert_eq!(remaining, [4, 0]);
    // Quiet for a whole second after the last attempt, and it is let in.
    assert!(limits.decide(&mut *state, &Now::at(1_000_000_000), Ask::Exactly(Cost::ONE)).is_admitted());
}

#[test]
fn changing_the_group_keeps_what_was_spent_in_each_place() {
    let old = Limits::new([bucket(10), SlidingLog::new(5, SECOND).unwrap().into()]).unwrap();
    let new = Limits::new([
        TokenBucket::new("7777/s".parse().unwrap(), 20).unwrap().into(),
        SlidingLog::new(8, SECOND).unwrap().into(),
        bucket(3),
    ])
    .unwrap();
    let mut state = state_of(&old);
    state.resize(new.words().max(old.words()), 0);
    let _ = old.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(4)));
    new.convert(&old, &mut *state, &Now::at(0));
    let remaining: Vec<u64> = new.reports(&*state, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect();
    assert_eq!(remaining, [16, 4, 3]);
}

#[test]
fn changing_the_algorithm_keeps_what_was_used_up() {
    let old = Limits::from(bucket(10));
    let new = Limits::from(Limit::from(FixedWindow::new(6, SECOND).unwrap()));
    let mut state = vec![0; 2];
    old.init(&mut *state, &Now::at(0));
    let _ = old.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(4)));
    new.convert(&old, &mut *state, &Now::at(0));
    assert_eq!(new.report(&*state, &Now::at(0), Cost::ONE).remaining, 2);
}

#[test]
fn groups_of_none_and_of_more_than_eight_are_errors() {
    assert_eq!(Limits::new([]).unwrap_err().to_string(), "the number of limits is 0, it must be between 1 and 8");
    assert_eq!(
        Limits::new([Limit::Unlimited; 20]).unwrap_err().to_string(),
        "the number of limits is 9, it must be between 1 and 8"
    );
}

#[test]
fn wait_behind_is_the_longest_of_all_limits() {
    let leaky = LeakyBucket::new("1/s".parse().unwrap(), 4).unwrap().free(1).unwrap();
    let window = FixedWindow::new(2, Nanos::from_secs(10)).unwrap();
    let wait = |limit: Limit, spent: u64, ahead, cost| {
        let limits = Limits::from(limit);
        let mut state = state_of(&limits);
        let _ = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(spent)));
        limits.wait_behind(&*state, &Now::at(0), Cost::new(ahead), Cost::new(cost))
    };
    let after = |secs| Retry::After(Nanos::from_secs(secs));
    assert_eq!([0, 1, 4, 100].map(|ahead| wait(bucket(3), 2, ahead, 2)), [1, 2, 5, 101].map(after));
    assert_eq!(wait(bucket(3), 2, 1, 4), Retry::Never);
    assert_eq!([0, 1, 4].map(|ahead| wait(leaky.into(), 2, ahead, 1)), [1, 2, 5].map(after));
    assert_eq!([0, 1, 2, 3].map(|ahead| wait(window.into(), 1, ahead, 1)), [0, 10, 10, 20].map(after));
    assert_eq!(wait(SlidingLog::new(2, SECOND).unwrap().into(), 2, 100, 1), after(1), "those ahead are not counted");
    let both = Limits::new([bucket(3), window.into()]).unwrap();
    let state = state_of(&both);
    assert_eq!(both.wait_behind(&*state, &Now::at(0), Cost::new(3), Cost::new(2)), after(20));
    assert_eq!(Limit::Unlimited.wait_behind(&[0; 0], &Now::at(0), Cost::MAX, Cost::MAX), Retry::NOW);
    assert_eq!(Limit::DenyAll.wait_behind(&[0; 0], &Now::at(0), Cost::ZERO, Cost::ONE), Retry::Never);
}

#[test]
fn look_again_returns_the_next_end_of_a_lease() {
    let limits = Limits::new([bucket(9), Concurrency::new(3, SECOND).unwrap().into()]).unwrap();
    let mut state = state_of(&limits);
    let look = |state: &[u64], at| limits.look_again(state, &Now::at(at));
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
