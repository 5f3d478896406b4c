//! Tests every algorithm and its options, mostly without letting time pass.

use tollgate_core::{
    Ask, Concurrency, Cost, FixedWindow, IntervalBucket, LeakyBucket, Limit, Nanos, Outcome, Phase, Rate, Retry,
    SlidingLog, SlidingSlices, SlidingWindow, Steps, TokenBucket,
};

use super::Subject;
use super::groups::slow_bucket;
use super::harness::Harness;

/// A window length that every store supports. No window of this length ends during a test case.
pub(super) const YEAR: Nanos = Nanos::from_secs(365 * 86_400);

/// Returns one limit of capacity `limit` for each algorithm. Each name begins with the algorithm's name.
pub(super) fn limit_of_each_algorithm(limit: u64) -> Vec<(&'static str, Limit)> {
    let rate: Rate = "1/day".parse().expect("a rate");
    let fixed = FixedWindow::new(limit, YEAR).expect("a window");
    let interval = IntervalBucket::new(limit, YEAR).expect("a bucket");
    vec![
        ("token bucket", TokenBucket::new(rate, limit).expect("a bucket").into()),
        ("token bucket with an uneven rate", {
            let rate = Rate::new(7_777, Nanos::from_secs(100 * 86_400)).expect("a rate");
            TokenBucket::new(rate, limit).expect("a bucket").into()
        }),
        ("leaky bucket", LeakyBucket::new(rate, limit).expect("a bucket").free(limit).expect("a free part").into()),
        ("fixed window", fixed.into()),
        ("fixed window that starts with the first request", fixed.phase(Phase::FirstRequest).into()),
        ("fixed window spread", fixed.phase(Phase::Spread).into()),
        ("sliding window", SlidingWindow::new(limit, YEAR).expect("a window").into()),
        ("sliding log", SlidingLog::new(limit, YEAR).expect("a log").into()),
        ("concurrency", Concurrency::new(limit, YEAR).expect("leases").into()),
        ("interval bucket", interval.into()),
        ("interval bucket that starts with the first request", interval.steps(Steps::FirstRequest).into()),
        ("sliding slices", SlidingSlices::new(limit, YEAR, Nanos::from_secs(7 * 86_400)).expect("slices").into()),
    ]
}

/// Checks that a limit of 3 admits exactly three requests, for each algorithm.
pub async fn every_algorithm_counts_to_its_limit(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    for (name, limit) in harness.limit_of_each_algorithm(3) {
        let charge = harness.new_charge_with_limit(limit, name);
        for left in [2, 1, 0] {
            let answer = harness.check(&charge).await;
            assert_eq!((answer.outcome, answer.taken, answer.remaining()), (Outcome::Allow, 1, vec![left]), "{name}");
            assert_eq!(answer.reports[0].limit, 3, "{name}");
        }
        let answer = harness.check(&charge).await;
        assert!(!answer.passed() && answer.taken == 0, "{name}");
        assert_eq!(answer.remaining(), [0], "{name}");
        assert_ne!(answer.outcome, Outcome::Deny(Retry::NOW), "{name}: a refusal never has a wait of zero");
        assert_ne!(answer.reports[0].reset, Nanos::ZERO, "{name}");
    }
}

/// Checks costs above 1, above the capacity, and 0.
pub async fn costs_are_counted(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    for (name, limit) in harness.limit_of_each_algorithm(5) {
        let charge = harness.new_charge_with_limit(limit, name);
        assert_eq!(harness.check(&charge.clone().cost(6)).await.outcome, Outcome::Deny(Retry::Never), "{name}");
        assert_eq!(harness.check(&charge.clone().cost(3)).await.remaining(), [2], "{name}");
        assert!(!harness.check(&charge.clone().cost(3)).await.passed(), "{name}");
        assert_eq!(harness.check(&charge.clone().cost(0)).await.remaining(), [2], "{name}");
        let answer = harness.check(&charge.clone().cost(2)).await;
        assert_eq!((answer.passed(), answer.taken, answer.remaining()), (true, 2, vec![0]), "{name}");
        assert!(harness.check(&charge.cost(0)).await.passed(), "{name}: a cost of 0 always passes");
    }
}

/// Checks that a key with several limits admits a cost only if all limits admit it, and otherwise charges none of the
/// limits.
pub async fn several_limits_on_one_key_decide_as_one(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    let limits = [
        slow_bucket(10),
        FixedWindow::new(8, YEAR).expect("a window").into(),
        harness.log_or_slices(6),
        harness.slots_or_window(4),
    ];
    let limits_id = harness.register_limits(limits);
    let charge = harness.new_charge(limits_id, "k");
    assert_eq!(harness.check(&charge.clone().cost(3)).await.remaining(), [7, 5, 3, 1]);
    let answer = harness.check(&charge.clone().cost(2)).await;
    assert_eq!((answer.passed(), answer.remaining()), (false, vec![7, 5, 3, 1]), "a refused cost is not charged");
    assert_eq!(harness.check(&charge).await.remaining(), [6, 4, 2, 0]);
}

/// Checks that the reports are in the order of the limits.
pub async fn reports_come_in_the_order_of_the_limits(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    let each = harness.limit_of_each_algorithm(9);
    let limits: Vec<Limit> = each.iter().map(|(_, limit)| *limit).take(7).chain([slow_bucket(8)]).collect();
    let limits_id = harness.register_limits(limits);
    let charge = harness.new_charge(limits_id, "k");
    let answer = harness.check(&charge.cost(2)).await;
    let limits: Vec<u64> = answer.reports.iter().map(|report| report.limit).collect();
    assert_eq!(limits, [9, 9, 9, 9, 9, 9, 9, 8]);
    assert_eq!(answer.remaining(), [7, 7, 7, 7, 7, 7, 7, 6]);
}

/// Checks `UpTo` and `Regardless` asks.
pub async fn up_to_and_regardless_take_less_and_more(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    for (name, limit) in harness.limit_of_each_algorithm(5) {
        let charge = harness.new_charge_with_limit(limit, name);
        let up_to = charge.clone().ask(Ask::UpTo(Cost::new(3)));
        assert_eq!(harness.check(&up_to).await.taken, 3, "{name}");
        let answer = harness.check(&up_to).await;
        assert_eq!((answer.passed(), answer.taken, answer.remaining()), (true, 2, vec![0]), "{name}");
        assert!(!harness.check(&up_to).await.passed(), "{name}: no tokens remain");
    }
    let indebted = TokenBucket::new("1/day".parse().expect("a rate"), 5).expect("a bucket").max_debt(4).expect("debt");
    let charge = harness.new_charge_with_limit(indebted, "debt");
    let regardless = |cost| charge.clone().ask(Ask::Regardless(Cost::new(cost)));
    let answer = harness.check(&regardless(8)).await;
    assert_eq!((answer.passed(), answer.taken, answer.remaining()), (true, 8, vec![0]));
    assert!(!harness.check(&regardless(2)).await.passed(), "debt is bounded");
    assert!(harness.check(&regardless(1)).await.passed());
}

/// Checks that requests above the free amount are delayed, each longer than the one before, and that a request is
/// refused if its wait would exceed the longest wait.
pub async fn leaky_bucket_returns_delays(subject: &mut impl Subject) {
    let mut harness = Harness::new(subject);
    if harness.refuses("leaky bucket") {
        return;
    }
    let leaky = LeakyBucket::new("1/h".parse().expect("a rate"), 4).expect("a bucket").free(1).expect("a part");
    let charge = harness.new_charge_with_limit(leaky.max_wait(Nanos::from_secs(3 * 3_600)), "k");
    let hours = |answer: &super::harness::ChargeAnswer| match answer.outcome {
        Outcome::Allow => 0,
        // The store's clock may advance between calls, so waits are slightly below whole hours.
        Outcome::Delay(wait) => wait.as_secs_ceil().div_ceil(3_600),
        Outcome::Deny(_) => 99,
    };
    let mut waits = Vec::new();
    for _ in 0..5 {
        waits.push(hours(&harness.check(&charge).await));
    }
    assert_eq!(waits, [0, 0, 1, 2, 99]);
}

/// Checks a log's minimum gap and its option to count refused requests.
pub async fn log_keeps_minimum_gap_and_counts_refusals_if_configured(subject: &mut impl Subject) {
    let unit = subject.unit();
    let mut harness = Harness::new(subject);
    if harness.refuses("sliding log") {
        return;
    }
    let log = SlidingLog::new(9, YEAR).expect("a log");
    let spaced = harness.new_charge_with_limit(log.minimum_gap(unit).expect("a gap"), "spaced");
    assert!(harness.check(&spaced).await.passed());
    let answer = harness.check(&spaced).await;
    assert!(!answer.passed() && answer.wait() <= unit);
    harness.subject.wait(unit).await;
    assert!(harness.check(&spaced).await.passed());

    let stubborn = SlidingLog::new(1, Nanos::from_nanos(4 * unit.as_nanos())).expect("a log").count_refused();
    let charge = harness.new_charge_with_limit(stubborn, "stubborn");
    assert!(harness.check(&charge).await.passed());
    harness.subject.wait(Nanos::from_nanos(2 * unit.as_nanos())).await;
    assert!(!harness.check(&charge).await.passed(), "the refused attempt counts");
    harness.subject.wait(Nanos::from_nanos(2 * unit.as_nanos())).await;
    assert!(!harness.check(&charge).await.passed(), "the first entry has expired, but the attempt has not");
    harness.subject.wait(Nanos::from_nanos(4 * unit.as_nanos())).await;
    assert!(harness.check(&charge).await.passed());
}
