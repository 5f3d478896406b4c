use super::*;

/// A history, with counters that the test sets.
struct TestHistory {
    history: LiveHistory,
    version: u64,
    names: Vec<String>,
    counts: Vec<u64>,
    /// The number of shadow refusals of each rule.
    shadow: u64,
    totals: CounterTotals,
    now: u64,
}

impl TestHistory {
    fn new(rules: usize) -> Self {
        let names = (0..rules).map(|number| format!("r{number}")).collect();
        let mut subject = Self {
            history: LiveHistory::default(),
            version: 1,
            names,
            counts: vec![0; rules],
            shadow: 0,
            totals: CounterTotals::default(),
            now: NANOS_PER_SECOND,
        };
        subject.add_sample_after(0);
        subject
    }

    /// Adds a sample `millis` milliseconds after the previous sample.
    fn add_sample_after(&mut self, millis: u64) {
        self.now += millis * 1_000_000;
        let read = |number: usize| RuleReading {
            domain: "api",
            id: &self.names[number],
            counts: RuleCounts { allowed: self.counts[number], shadow_refused: self.shadow, ..RuleCounts::default() },
        };
        let rules = RuleReader { version: self.version, count: self.names.len(), read: &read };
        self.history.add_sample(Time::from_nanos(self.now), self.totals, &rules);
    }

    fn tracked_ids(&self) -> Vec<&str> {
        self.history.rules.iter().map(|rule| &*rule.id).collect()
    }
}

#[test]
fn rates_are_per_second_of_elapsed_time() {
    let mut subject = TestHistory::new(1);
    (subject.totals.admitted, subject.counts[0]) = (300, 300);
    subject.add_sample_after(1_500);
    assert_eq!(subject.history.last_point().admitted, 200);
    assert_eq!(
        subject.history.last_points_of_rules().collect::<Vec<_>>(),
        [("api", "r0", RulePoint { admitted: 200, ..RulePoint::default() })]
    );
    // An interval of 1.5 seconds is rounded to two points.
    assert_eq!(subject.history.overall.seconds.len(), 2);
    subject.add_sample_after(1_000);
    assert_eq!(subject.history.last_point(), OverallPoint::default());
    assert_eq!(subject.history.last_points_of_rules().count(), 0);
}

#[test]
fn ten_seconds_become_one_point_with_their_mean() {
    let mut subject = TestHistory::new(1);
    for second in 1..=20_u64 {
        subject.totals.refused += second;
        subject.counts[0] += second;
        subject.add_sample_after(1_000);
    }
    let page = subject.history.history_page(0, ());
    assert_eq!(page.seconds.refused, (1..=20).collect::<Vec<u32>>());
    // The means are 5.5 and 15.5, rounded up.
    assert_eq!(page.tens.refused, [6, 16]);
    assert_eq!(page.rules[0].tens.admitted, [6, 16]);
    assert_eq!(subject.history.rule_page("api", "r0", 0).seconds.admitted.len(), 20);
    assert!(!subject.history.rule_page("api", "r1", 0).kept);
}

#[test]
fn shadow_rate_adds_observed_requests_and_shadow_refusals() {
    let mut subject = TestHistory::new(2);
    for _ in 0..10 {
        subject.shadow += 3;
        subject.totals.observed += 5;
        subject.add_sample_after(1_000);
    }
    let page = subject.history.history_page(0, ());
    assert_eq!((page.seconds.shadow, page.tens.shadow), (vec![11; 10], vec![11]));
}

#[test]
fn rings_are_bounded_even_after_a_long_pause() {
    let mut subject = TestHistory::new(100);
    for _ in 0..2 * ONE_SECOND_POINTS {
        subject.add_sample_after(1_000);
    }
    subject.add_sample_after(1_000_000_000);
    assert_eq!(subject.history.overall.seconds.len(), ONE_SECOND_POINTS);
    assert_eq!(subject.history.overall.tens.len(), TEN_SECOND_POINTS);
    assert_eq!(subject.history.rules.len(), MAX_TRACKED_RULES);
    for rule in &subject.history.rules {
        assert!(rule.series.seconds.len() <= ONE_SECOND_POINTS && rule.series.tens.len() <= TEN_SECOND_POINTS);
        assert!(
            rule.series.seconds.capacity() == ONE_SECOND_POINTS && rule.series.tens.capacity() == TEN_SECOND_POINTS
        );
    }
}

#[test]
fn busiest_rules_are_tracked() {
    let mut subject = TestHistory::new(1_000);
    assert_eq!(subject.tracked_ids().len(), MAX_TRACKED_RULES);
    subject.counts[900] += 50;
    for _ in 0..10 {
        subject.add_sample_after(1_000);
    }
    assert!(subject.tracked_ids().contains(&"r900"));
    // An idle rule stays tracked until a busy rule replaces it.
    for _ in 0..10 {
        subject.add_sample_after(1_000);
    }
    assert!(subject.tracked_ids().contains(&"r900"));
}

#[test]
fn rule_history_survives_a_change_of_the_rule_set() {
    let mut subject = TestHistory::new(3);
    subject.counts[2] = 7;
    subject.add_sample_after(1_000);
    subject.version = 2;
    subject.names = vec!["r2".into(), "new".into()];
    subject.counts = vec![16, 0];
    subject.add_sample_after(1_000);
    let mut tracked = subject.tracked_ids();
    tracked.sort_unstable();
    assert_eq!(tracked, ["new", "r2"]);
    let page = subject.history.rule_page("api", "r2", 0);
    assert_eq!(page.seconds.admitted, [7, 9]);
}

#[test]
fn decision_times_cover_only_the_last_interval() {
    let mut subject = TestHistory::new(0);
    subject.totals.times.buckets[0] = 1_000;
    subject.add_sample_after(1_000);
    assert_eq!(subject.history.last_point().p99_ns, 1_000);
    subject.totals.times.buckets[2] += 100;
    subject.totals.times.sum += 100 * 9_000;
    subject.add_sample_after(1_000);
    assert_eq!((subject.history.last_point().mean_ns, subject.history.last_point().p99_ns), (9_000, 16_000));
}
