//! Tests the law of changed parameters for all pairs of algorithms.

use super::*;
use crate::algorithm::fixed_window::Phase;
use crate::algorithm::interval_bucket::Steps;
use crate::{
    Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Limits, Nanos, SlidingLog, SlidingSlices, SlidingWindow,
    TokenBucket,
};

const SECOND: u64 = 1_000_000_000;
const WEEK: Nanos = Nanos::from_secs(7 * 86_400);

fn token_bucket(rate: &str, burst: u64) -> Limit {
    TokenBucket::new(rate.parse().unwrap(), burst).unwrap().into()
}

fn leaky_bucket(rate: &str, burst: u64) -> LeakyBucket {
    LeakyBucket::new(rate.parse().unwrap(), burst).unwrap()
}

fn exactly(cost: u64) -> Ask {
    Ask::Exactly(Cost::new(cost))
}

/// A state, and the parameters under which it was last charged.
struct Account {
    own: Limit,
    words: Vec<u64>,
}

impl Account {
    fn new(limit: Limit, at: u64) -> Self {
        let mut words = vec![0; 5_000];
        limit.init(&mut *words, &Now::at(at));
        Self { own: limit, words }
    }

    fn ask(&mut self, limit: &Limit, at: u64, ask: Ask) -> Verdict {
        let (verdict, adopted) = limit.decide_from(&self.own, &mut *self.words, &Now::at(at), ask);
        assert_eq!(adopted, verdict.taken() > Cost::ZERO && limit.words() > 0);
        if adopted {
            self.own = *limit;
        }
        verdict
    }

    fn used_at(&self, at: u64) -> Tokens {
        self.own.used(&*self.words, &Now::at(at))
    }

    fn report(&self, limit: &Limit, at: u64, cost: u64) -> Report {
        limit.report_from(&self.own, &*self.words, &Now::at(at), Cost::new(cost))
    }
}

/// Returns a limit of every algorithm with this capacity, with windows and refills of a week.
fn one_of_each_algorithm(capacity: u64) -> Vec<Limit> {
    let rate = format!("{capacity}/week");
    vec![
        token_bucket(&rate, capacity),
        leaky_bucket(&rate, capacity).free(capacity).unwrap().into(),
        IntervalBucket::new(capacity, WEEK).unwrap().into(),
        IntervalBucket::new(capacity, WEEK).unwrap().steps(Steps::FirstRequest).into(),
        FixedWindow::new(capacity, WEEK).unwrap().into(),
        FixedWindow::new(capacity, WEEK).unwrap().phase(Phase::FirstRequest).into(),
        SlidingWindow::new(capacity, WEEK).unwrap().into(),
        SlidingSlices::new(capacity, WEEK, Nanos::from_secs(86_400)).unwrap().into(),
        SlidingLog::new(capacity, WEEK).unwrap().into(),
        Concurrency::new(capacity, WEEK).unwrap().into(),
    ]
}

#[test]
fn refused_request_under_smaller_parameters_forgives_nothing() {
    for (large, small) in one_of_each_algorithm(100)
        .into_iter()
        .flat_map(|large| one_of_each_algorithm(2).into_iter().map(move |s| (large, s)))
    {
        let mut key = Account::new(large, 0);
        assert!(key.ask(&large, 0, exactly(100)).is_admitted());
        assert_eq!(key.report(&small, 1, 1).remaining, 0, "{large:?} under {small:?}");
        assert!(!key.ask(&small, 1, exactly(1)).is_admitted(), "{large:?} under {small:?}");
        assert!(!key.ask(&small, 1, exactly(0)).is_admitted(), "{large:?} under {small:?}");
        assert!(!key.ask(&large, 2, exactly(90)).is_admitted(), "{large:?} under {small:?} and back");
        assert_eq!(key.own, large);
    }
}

#[test]
fn refused_request_under_another_override_does_not_change_the_refill() {
    let (ten, five) = (token_bucket("10/10s", 10), token_bucket("5/10s", 5));
    let mut key = Account::new(ten, 0);
    assert!(key.ask(&ten, 0, exactly(10)).is_admitted());
    // Six tokens must be refilled, at the rate of the parameters under which they were charged.
    assert_eq!(key.ask(&five, 0, exactly(1)).outcome(), Outcome::Deny(Retry::After(Nanos::from_secs(6))));
    assert_eq!(key.report(&ten, 10 * SECOND, 1).remaining, 10);
    assert!(!key.ask(&five, 6 * SECOND - 1, exactly(1)).is_admitted());
    assert!(key.ask(&five, 6 * SECOND, exactly(1)).is_admitted());
}

#[test]
fn two_versions_of_a_rule_admit_no_more_than_the_larger_limit() {
    let (large, small) = (token_bucket("1000/h", 1_000), token_bucket("10/h", 10));
    let mut key = Account::new(large, 0);
    let mut admitted = 0;
    for step in 0..1_000 {
        admitted += key.ask(&large, step * SECOND, exactly(900)).taken().get();
        admitted += key.ask(&small, step * SECOND, exactly(1)).taken().get();
    }
    assert!(admitted <= 1_000 + 1_000 * 1_000 / 3_600, "{admitted} were admitted in 1000 s");
}

#[test]
fn log_counts_refused_attempts_under_the_parameters_of_the_state() {
    let own: Limit = SlidingLog::new(3, Nanos::from_secs(10)).unwrap().into();
    let other: Limit = SlidingLog::new(2, Nanos::from_secs(5)).unwrap().count_refused().into();
    let mut key = Account::new(own, 0);
    let _ = key.ask(&own, 0, exactly(2));
    let refused = key.ask(&other, SECOND, exactly(1));
    assert_eq!(refused.outcome(), Outcome::Deny(Retry::After(Nanos::from_secs(9))));
    assert_eq!((key.own, key.used_at(SECOND).ceil()), (own, 3));
    assert_eq!(key.report(&own, 10 * SECOND, 1).remaining, 2, "the attempt expires with the window of its own log");
    let mut bucket = Account::new(token_bucket("1/s", 2), 0);
    let _ = bucket.ask(&token_bucket("1/s", 2), 0, exactly(2));
    let _ = bucket.ask(&other, 0, exactly(1));
    assert_eq!(bucket.used_at(0).ceil(), 2, "a bucket counts no attempts");
}

#[test]
fn minimum_gap_applies_to_requests_only() {
    let log = |limit| SlidingLog::new(limit, Nanos::from_secs(10)).unwrap();
    let gapped: Limit = log(9).minimum_gap(Nanos::from_secs(3)).unwrap().into();
    let mut key = Account::new(log(5).into(), 0);
    let _ = key.ask(&log(5).into(), 0, exactly(1));
    assert_eq!(key.ask(&gapped, SECOND, exactly(1)).outcome(), Outcome::Deny(Retry::After(Nanos::from_secs(2))));
    assert!(key.ask(&gapped, SECOND, exactly(0)).is_admitted(), "a cost of zero is exempt");
    assert!(key.ask(&gapped, 3 * SECOND, exactly(1)).is_admitted());
    let mut key = Account::new(token_bucket("1/h", 5), 0);
    let _ = key.ask(&token_bucket("1/h", 5), 0, exactly(4));
    assert!(key.ask(&gapped, 0, exactly(1)).is_admitted(), "a bucket does not know the time of the last request");
    assert!(!key.ask(&gapped, 1, exactly(1)).is_admitted());
}

#[test]
fn taking_under_unlimited_keeps_the_state() {
    let bucket = token_bucket("1/h", 5);
    let mut key = Account::new(bucket, 0);
    let _ = key.ask(&bucket, 0, exactly(5));
    assert!(key.ask(&Limit::Unlimited, 0, exactly(1_000)).is_admitted());
    assert!(!key.ask(&Limit::DenyAll, 0, exactly(0)).is_admitted());
    assert!(!key.ask(&bucket, 0, exactly(1)).is_admitted());
}

#[test]
fn group_of_limits_is_written_completely_or_not_at_all() {
    let old = Limits::new([token_bucket("10/10s", 10), SlidingLog::new(5, Nanos::SECOND).unwrap().into()]).unwrap();
    let new = Limits::new([
        token_bucket("5/10s", 5),
        SlidingLog::new(8, Nanos::SECOND).unwrap().into(),
        token_bucket("1/s", 3),
    ])
    .unwrap();
    let mut words = vec![0; old.words().max(new.words())];
    old.init(&mut *words, &Now::at(0));
    assert!(old.decide(&mut *words, &Now::at(0), exactly(4)).is_admitted());
    let before = words.clone();
    let (verdict, adopted) = new.decide_from(&old, &mut *words, &Now::at(0), exactly(2));
    assert_eq!((verdict.outcome(), adopted), (Outcome::Deny(Retry::After(Nanos::from_secs(1))), false));
    assert_eq!(words, before);
    let remaining = |words: &[u64]| -> Vec<u64> {
        new.reports_from(&old, words, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect()
    };
    assert_eq!(remaining(&words), [1, 4, 3]);
    let (verdict, adopted) = new.decide_from(&old, &mut *words, &Now::at(0), exactly(1));
    assert!(verdict.is_admitted() && adopted);
    let remaining: Vec<u64> = new.reports(&*words, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect();
    assert_eq!(remaining, [0, 3, 2]);
}

#[test]
fn windows_of_another_calendar_do_not_end_the_current_window() {
    let (day, month) = (86_400 * SECOND, 30 * 86_400 * SECOND);
    let window =
        |limit, length| Limit::from(FixedWindow::new(limit, Nanos::from_nanos(length)).unwrap().phase(Phase::Given(0)));
    let handed = |end: u64| [crate::Window::new(crate::Time::from_nanos(0), crate::Time::from_nanos(end)).unwrap()];
    let (days, months) = (handed(day), handed(month));
    let (daily, monthly) = (window(5, day), window(6, month));
    let mut words = [0; 2];
    let _ = daily.decide(&mut words, &Now::at(1).with_windows(&days), exactly(5));
    let now = Now::at(2).with_windows(&months);
    let report = monthly.report_from(&daily, &words, &now, Cost::new(2));
    assert_eq!((report.remaining, report.retry), (1, Retry::After(Nanos::from_nanos(day - 2))));
    assert!(monthly.decide_from(&daily, &mut words, &now, exactly(1)).1);
    assert_eq!(monthly.report(&words, &now, Cost::ONE).remaining, 0);
}

/// Returns limits of all algorithms, with short windows and rates that do not divide evenly.
fn varied_limits() -> Vec<Limit> {
    let secs = Nanos::from_secs;
    let interval = |refill, period, burst| IntervalBucket::new(refill, secs(period)).unwrap().burst(burst).unwrap();
    vec![
        token_bucket("3/s", 7),
        token_bucket("7777/h", 4),
        leaky_bucket("3/2s", 9).free(2).unwrap().into(),
        leaky_bucket("7/s", 12).max_wait(Nanos::from_millis(900)).into(),
        interval(3, 2, 8).into(),
        interval(2, 3, 5).max_wait(secs(4)).unwrap().into(),
        interval(3, 2, 6).steps(Steps::FirstRequest).into(),
        interval(2, 2, 9).steps(Steps::FirstRequest).max_wait(secs(3)).unwrap().into(),
        FixedWindow::new(6, secs(4)).unwrap().into(),
        FixedWindow::new(9, secs(4)).unwrap().into(),
        FixedWindow::new(4, secs(3)).unwrap().phase(Phase::FirstRequest).into(),
        SlidingWindow::new(7, secs(4)).unwrap().into(),
        SlidingWindow::new(3, secs(4)).unwrap().into(),
        SlidingWindow::new(11, secs(3)).unwrap().into(),
        SlidingSlices::new(8, secs(4), secs(1)).unwrap().into(),
        SlidingSlices::new(5, secs(3), secs(1)).unwrap().into(),
        SlidingLog::new(6, secs(5)).unwrap().into(),
        SlidingLog::new(4, secs(2)).unwrap().minimum_gap(Nanos::from_millis(300)).unwrap().into(),
        Concurrency::new(6, secs(4)).unwrap().into(),
        Concurrency::new(3, secs(9)).unwrap().into(),
    ]
}

/// Returns a pseudo-random number, the same in every run.
fn next_random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// Returns the number of units per token in the limit's state: ticks in token and leaky buckets, whole tokens
/// otherwise. Rounding up costs less than one unit.
fn units_per_token(limit: &Limit) -> u64 {
    match limit {
        Limit::TokenBucket(bucket) => bucket.rate().per().as_nanos(),
        Limit::LeakyBucket(bucket) => bucket.rate().per().as_nanos(),
        _ => 1,
    }
}

/// Makes one request for a key under `limit`, and checks the law of changed parameters.
fn check_law_for_request(key: &mut Account, limit: &Limit, at: u64, ask: Ask, what: &str) {
    let now = Now::at(at);
    let (before, used) = (key.words.clone(), key.used_at(at));
    let report = key.report(limit, at, ask.cost().get());
    let verdict = limit.weigh_from(&key.own, &*key.words, &now, ask);
    assert_eq!(verdict, limit.weigh_from(&key.own, &*key.words, &now, ask));
    // The request passes at the returned instant, but not one nanosecond earlier.
    let passes = |wait: u64, ask| limit.weigh_from(&key.own, &*before, &Now::at(at + wait), ask).is_admitted();
    match verdict.outcome() {
        Outcome::Deny(Retry::After(wait)) => {
            assert!(wait > Nanos::ZERO && passes(wait.as_nanos(), ask), "{ask:?} is refused after {wait}, {what}");
            assert!(!passes(wait.as_nanos() - 1, ask), "{ask:?} passes before {wait}, {what}");
        }
        Outcome::Deny(Retry::Never) => assert!(!passes(3_600 * SECOND, ask), "{ask:?} passes after all, {what}"),
        Outcome::Deny(Retry::OnRelease) | Outcome::Allow | Outcome::Delay(_) => {}
    }
    if let Ask::Exactly(_) = ask {
        let retry = match verdict.outcome() {
            Outcome::Deny(retry) => retry,
            Outcome::Allow | Outcome::Delay(_) => Retry::NOW,
        };
        assert_eq!(report.retry, retry, "{ask:?}, {what}");
    }
    let gapped = matches!(limit, Limit::SlidingLog(log) if log.gap() > Nanos::ZERO);
    if !gapped {
        assert!(report.remaining == 0 || passes(0, exactly(report.remaining)), "{report:?}, {what}");
        assert!(!passes(0, exactly(report.remaining + 1)), "{report:?}, {what}");
    }
    assert_eq!(report.reset, key.own.report(&*key.words, &now, Cost::ZERO).reset, "{what}");
    let own = key.own;
    assert_eq!(key.ask(limit, at, ask), verdict, "{what}");
    if verdict.taken() == Cost::ZERO {
        assert_eq!((key.words == before, key.own), (true, own), "nothing was taken, but the state changed, {what}");
        return;
    }
    // The used amount is the previous used amount, rounded up by less than a unit, plus the taken amount.
    let unit = units_per_token(limit);
    let after = key.used_at(at).units_ceil(unit);
    let taken = u128::from(verdict.taken().get()) * u128::from(unit);
    let exact = own == *limit || used.units_ceil(unit) == used.units_floor(unit);
    assert_eq!(after, used.units_ceil(unit) + taken, "{used:?} before {ask:?}, exact: {exact}, {what}");
}

#[test]
fn law_of_changed_parameters_holds_for_all_pairs() {
    let limits = varied_limits();
    for (first, second) in limits.iter().flat_map(|first| limits.iter().map(move |second| (first, second))) {
        let mut seed = 7;
        let (mut key, mut at) = (Account::new(*first, 100 * SECOND), 100 * SECOND);
        for nth in 0..60 {
            let limit = if next_random(&mut seed, 2) == 0 { first } else { second };
            at += match (next_random(&mut seed, 5), key.report(limit, at, 1).retry) {
                (0, Retry::After(wait)) => wait.as_nanos(),
                (1, _) => next_random(&mut seed, 3 * SECOND),
                _ => 0,
            };
            let cost = Cost::new(next_random(&mut seed, 6));
            let ask = match next_random(&mut seed, 6) {
                0 => Ask::UpTo(cost),
                1 => Ask::Regardless(cost),
                _ => Ask::Exactly(cost),
            };
            let what = format!("step {nth} at {at}: {limit:?} for a state of {:?}", key.own);
            check_law_for_request(&mut key, limit, at, ask, &what);
        }
    }
}

#[test]
fn changing_limits_and_back_without_a_charge_changes_nothing() {
    let limits = varied_limits();
    for (first, second) in limits.iter().flat_map(|first| limits.iter().map(move |second| (first, second))) {
        let (mut visited, mut alone) = (Account::new(*first, 0), Account::new(*first, 0));
        for at in (0..40).map(|step| step * SECOND / 3) {
            let _ = visited.ask(second, at, exactly(1_000));
            let _ = visited.ask(second, at, exactly(0));
            visited.report(second, at, 1);
            let ask = exactly(1 + at % 2);
            assert_eq!(visited.ask(first, at, ask), alone.ask(first, at, ask), "{first:?} with {second:?} between");
            assert_eq!(visited.words, alone.words);
        }
    }
}

#[test]
fn minimum_gap_is_checked_before_conversion() {
    let hour = SlidingLog::new(10, Nanos::from_secs(3_600)).unwrap();
    let minute = SlidingLog::new(10, Nanos::from_secs(60)).unwrap().minimum_gap(Nanos::from_secs(300)).unwrap();
    let mut state = vec![0; hour.words().max(minute.words())];
    hour.init(&mut *state, &Now::at(0));
    assert!(hour.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::ONE)).is_admitted());
    let at = |seconds: u64| Now::at(seconds * 1_000_000_000);
    assert_eq!(
        minute.weigh_from(&hour, &*state, &at(299), Ask::Exactly(Cost::ONE)).outcome(),
        Outcome::Deny(Retry::After(Nanos::SECOND))
    );
    assert!(minute.weigh_from(&hour, &*state, &at(300), Ask::Exactly(Cost::ONE)).is_admitted());
}

/// With a limit of five, twelve were charged in a window until 160 s, in a calendar with windows of a minute. The new
/// limit has another calendar, with a window from 150 s to 300 s. By that calendar, two windows would have passed at
/// 165 s.
#[test]
fn debt_of_another_calendar_is_paid_off_by_its_own_window_length() {
    let of = |limit| FixedWindow::new(limit, Nanos::from_secs(60)).unwrap().phase(Phase::Given(0));
    let windows =
        [crate::Window::new(crate::Time::from_nanos(150 * SECOND), crate::Time::from_nanos(300 * SECOND)).unwrap()];
    let now = Now::at(165 * SECOND).with_windows(&windows);
    let own = of(5).max_debt(7).unwrap();
    assert_eq!(of(20).report_from(&own, &[160 * SECOND, 12], &now, Cost::ONE).remaining, 13);
    // A window that ended at 150 s belongs to the same calendar, and the given window counts as three windows of a
    // minute.
    assert_eq!(of(20).report_from(&own, &[150 * SECOND, 12], &now, Cost::ONE).remaining, 20);
}

#[test]
fn limit_without_a_state_ignores_the_old_state() {
    let bucket = token_bucket("1/h", 5);
    let mut key = Account::new(bucket, 0);
    let _ = key.ask(&bucket, 0, exactly(5));
    for limit in [Limit::Unlimited, Limit::DenyAll] {
        for cost in [0, 1, u64::MAX].map(Cost::new) {
            for ask in [Ask::Exactly(cost), Ask::UpTo(cost), Ask::Regardless(cost)] {
                assert_eq!(key.ask(&limit, 0, ask), limit.weigh(&[0; 0], &Now::at(0), ask), "{ask:?} by {limit:?}");
            }
            assert_eq!(key.report(&limit, 0, cost.get()), limit.report(&[0; 0], &Now::at(0), cost));
        }
    }
}

/// Returns the limit with another `max_debt`.
fn with_debt(limit: &Limit, max_debt: u64) -> Limit {
    use crate::Params;
    let mut params = limit.params();
    match &mut params {
        Params::Unlimited | Params::DenyAll => {}
        Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => bucket.max_debt = max_debt,
        Params::FixedWindow { window, .. }
        | Params::SlidingWindow(window)
        | Params::SlidingSlices { window, .. }
        | Params::SlidingLog { window, .. } => window.max_debt = max_debt,
        Params::IntervalBucket { max_debt: debt, .. } | Params::Concurrency { max_debt: debt, .. } => *debt = max_debt,
    }
    Limit::from_params(params).unwrap()
}

#[test]
fn limits_that_differ_only_in_debt_decide_everything_else_the_same() {
    for (own, max_debt) in varied_limits().iter().flat_map(|own| [2, 20].map(|debt| (own, debt))) {
        let other = with_debt(own, max_debt);
        let mut seed = max_debt;
        let (mut key, mut at) = (Account::new(*own, 100 * SECOND), 100 * SECOND);
        for _ in 0..100 {
            at += next_random(&mut seed, 3) * next_random(&mut seed, SECOND);
            let now = Now::at(at);
            for cost in (0..12).map(Cost::new) {
                let what = format!("{cost:?} at {at} under {other:?}");
                for ask in [Ask::Exactly(cost), Ask::UpTo(cost)] {
                    let [expected, changed] = [own, &other].map(|limit| limit.weigh_from(own, &*key.words, &now, ask));
                    let parts = |verdict: Verdict| (verdict.outcome(), verdict.taken());
                    assert_eq!(parts(changed), parts(expected), "{what}");
                }
                let charge = other.weigh_from(own, &*key.words, &now, Ask::Regardless(cost));
                let room = (own.capacity() + max_debt).checked_sub(cost.get());
                assert_eq!(charge.is_admitted(), room.is_some_and(|room| key.used_at(at).ceil() <= room), "{what}");
                let [expected, changed] = [own, &other].map(|limit| key.report(limit, at, cost.get()));
                assert_eq!(changed, expected, "{what}");
                let wait = match own.weigh(&*key.words, &now, Ask::Exactly(cost)).outcome() {
                    Outcome::Allow => Retry::NOW,
                    Outcome::Delay(wait) => Retry::After(wait),
                    Outcome::Deny(retry) => retry,
                };
                assert_eq!(other.min_wait_from(own, &*key.words, &now, cost), wait, "{what}");
            }
            let _ = key.ask(own, at, exactly(next_random(&mut seed, 5)));
        }
    }
}
