//! Every algorithm with its options, while no time passes.

use tollgate_core::{
    Ask, Concurrency, Cost, FixedWindow, IntervalBucket, LeakyBucket, Limit, Nanos, Outcome, Phase, Rate, Retry,
    SlidingLog, SlidingSlices, SlidingWindow, Steps, TokenBucket,
};

use super::Subject;
use super::desk::Desk;
use super::groups::bucket;

/// So long that no window ends while a case runs, and short enough for every store.
pub(super) const YEAR: Nanos = Nanos::from_secs(365 * 86_400);

/// One of each algorithm, with `limit` at a time or per window.
pub(super) fn one_of_each(limit: u64) -> Vec<(&'static str, Limit)> {
    let rate: Rate = "1/day".parse().expect("a rate");
    let fixed = FixedWindow::new(limit, YEAR).expect("a window");
    let interval = IntervalBucket::new(limit, YEAR).expect("a bucket");
    vec![
        ("token bucket", TokenBucket::new(rate, limit).expect("a bucket").into()),
        ("token bucket of an odd rate", {
            let rate = Rate::new(7_777, Nanos::from_secs(100 * 86_400)).expect("a rate");
            TokenBucket::new(rate, limit).expect("a bucket").into()
        }),
        ("leaky bucket", LeakyBucket::new(rate, limit).expect("a bucket").free(limit).expect("as much as fits").into()),
        ("fixed window", fixed.into()),
        ("fixed window from the first request on", fixed.phase(Phase::FirstRequest).into()),
        ("fixed window spread", fixed.phase(Phase::Spread).into()),
        ("sliding window", SlidingWindow::new(limit, YEAR).expect("a window").into()),
        ("sliding log", SlidingLog::new(limit, YEAR).expect("a log").into()),
        ("concurrency", Concurrency::new(limit, YEAR).expect("leases").into()),
        ("interval bucket", interval.into()),
        ("interval bucket from the first request on", interval.steps(Steps::FirstRequest).into()),
        ("sliding slices", SlidingSlices::new(limit, YEAR, Nanos::from_secs(7 * 86_400)).expect("slices").into()),
    ]
}

/// So many pass, and no more.
pub async fn every_algorithm_counts_to_its_limit(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    for (name, limit) in one_of_each(3) {
        let question = desk.about(limit, name);
        for left in [2, 1, 0] {
            let told = desk.check(&question).await;
            assert_eq!((told.outcome, told.taken, told.remaining()), (Outcome::Allow, 1, vec![left]), "{name}");
            assert_eq!(told.reports[0].limit, 3, "{name}");
        }
        let told = desk.check(&question).await;
        assert!(!told.passed() && told.taken == 0, "{name}");
        assert_eq!(told.remaining(), [0], "{name}");
        assert_ne!(told.outcome, Outcome::Deny(Retry::NOW), "{name}: a refusal never says that there is no wait");
        assert_ne!(told.reports[0].reset, Nanos::ZERO, "{name}");
    }
}

/// More than 1 at a time, more than there ever is, and nothing.
pub async fn costs_are_weighed(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    for (name, limit) in one_of_each(5) {
        let question = desk.about(limit, name);
        assert_eq!(desk.check(&question.clone().cost(6)).await.outcome, Outcome::Deny(Retry::Never), "{name}");
        assert_eq!(desk.check(&question.clone().cost(3)).await.remaining(), [2], "{name}");
        assert!(!desk.check(&question.clone().cost(3)).await.passed(), "{name}");
        assert_eq!(desk.check(&question.clone().cost(0)).await.remaining(), [2], "{name}");
        let told = desk.check(&question.clone().cost(2)).await;
        assert_eq!((told.passed(), told.taken, told.remaining()), (true, 2, vec![0]), "{name}");
        assert!(desk.check(&question.cost(0)).await.passed(), "{name}: nothing always passes");
    }
}

/// Ten a second, and a thousand a day, and three at a time.
pub async fn several_limits_on_one_key_decide_as_one(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let numbers = desk.limits([
        bucket(10),
        FixedWindow::new(8, YEAR).expect("a window").into(),
        SlidingLog::new(6, YEAR).expect("a log").into(),
        Concurrency::new(4, YEAR).expect("leases").into(),
    ]);
    let question = desk.question(numbers, "k");
    assert_eq!(desk.check(&question.clone().cost(3)).await.remaining(), [7, 5, 3, 1]);
    let told = desk.check(&question.clone().cost(2)).await;
    assert_eq!((told.passed(), told.remaining()), (false, vec![7, 5, 3, 1]), "one refused, and none was charged");
    assert_eq!(desk.check(&question).await.remaining(), [6, 4, 2, 0]);
}

/// First come, first told.
pub async fn reports_come_in_the_order_of_the_limits(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let each = one_of_each(9);
    let limits: Vec<Limit> = each.iter().map(|(_, limit)| *limit).take(7).chain([bucket(8)]).collect();
    let numbers = desk.limits(limits);
    let question = desk.question(numbers, "k");
    let told = desk.check(&question.cost(2)).await;
    let limits: Vec<u64> = told.reports.iter().map(|report| report.limit).collect();
    assert_eq!(limits, [9, 9, 9, 9, 9, 9, 9, 8]);
    assert_eq!(told.remaining(), [7, 7, 7, 7, 7, 7, 7, 6]);
}

/// The other two ways to ask.
pub async fn as_much_as_fits_and_more_than_there_is_can_be_taken(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    for (name, limit) in one_of_each(5) {
        let question = desk.about(limit, name);
        let up_to = question.clone().ask(Ask::UpTo(Cost::new(3)));
        assert_eq!(desk.check(&up_to).await.taken, 3, "{name}");
        let told = desk.check(&up_to).await;
        assert_eq!((told.passed(), told.taken, told.remaining()), (true, 2, vec![0]), "{name}");
        assert!(!desk.check(&up_to).await.passed(), "{name}: there is nothing left");
    }
    let indebted = TokenBucket::new("1/day".parse().expect("a rate"), 5).expect("a bucket").max_debt(4).expect("debt");
    let question = desk.about(indebted, "debt");
    let regardless = |cost| question.clone().ask(Ask::Regardless(Cost::new(cost)));
    let told = desk.check(&regardless(8)).await;
    assert_eq!((told.passed(), told.taken, told.remaining()), (true, 8, vec![0]));
    assert!(!desk.check(&regardless(2)).await.passed(), "debt is bounded");
    assert!(desk.check(&regardless(1)).await.passed());
}

/// Everybody passes, one after the other.
pub async fn a_leaky_bucket_tells_each_how_long_to_wait(subject: &mut impl Subject) {
    let mut desk = Desk::new(subject);
    let leaky = LeakyBucket::new("1/h".parse().expect("a rate"), 4).expect("a bucket").free(1).expect("a part");
    let question = desk.about(leaky.max_wait(Nanos::from_secs(3 * 3_600)), "k");
    let hours = |told: &super::desk::Told| match told.outcome {
        Outcome::Allow => 0,
        // A little less than whole hours on a clock that goes on meanwhile.
        Outcome::Delay(wait) => wait.as_secs_ceil().div_ceil(3_600),
        Outcome::Deny(_) => 99,
    };
    let mut waits = Vec::new();
    for _ in 0..5 {
        waits.push(hours(&desk.check(&question).await));
    }
    assert_eq!(waits, [0, 0, 1, 2, 99]);
}

/// What a log can be told.
pub async fn a_log_keeps_its_minimum_gap_and_counts_refusals_if_told_to(subject: &mut impl Subject) {
    let unit = subject.unit();
    let mut desk = Desk::new(subject);
    let log = SlidingLog::new(9, YEAR).expect("a log");
    let spaced = desk.about(log.minimum_gap(unit).expect("a gap"), "spaced");
    assert!(desk.check(&spaced).await.passed());
    let told = desk.check(&spaced).await;
    assert!(!told.passed() && told.wait() <= unit);
    desk.subject.wait(unit).await;
    assert!(desk.check(&spaced).await.passed());

    let stubborn = SlidingLog::new(1, Nanos::from_nanos(4 * unit.as_nanos())).expect("a log").count_refused();
    let question = desk.about(stubborn, "stubborn");
    assert!(desk.check(&question).await.passed());
    desk.subject.wait(Nanos::from_nanos(2 * unit.as_nanos())).await;
    assert!(!desk.check(&question).await.passed(), "and this attempt counts");
    desk.subject.wait(Nanos::from_nanos(2 * unit.as_nanos())).await;
    assert!(!desk.check(&question).await.passed(), "the first one is over, the attempt is not");
    desk.subject.wait(Nanos::from_nanos(4 * unit.as_nanos())).await;
    assert!(desk.check(&question).await.passed());
}
