//! The history of rates, with one point per second and one point per ten seconds, for all decisions and for the busiest
//! rules. Points are stored in ring buffers of fixed size.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

use serde::Serialize;
use tollgate::core::{Mono, Nanos, Time};
use tollgate_engine::RuleCounts;

use crate::observe::histogram::HistogramCounts;

/// Number of one-second points, which cover 15 minutes.
pub const ONE_SECOND_POINTS: usize = 900;

/// Number of ten-second points, which cover one hour.
pub const TEN_SECOND_POINTS: usize = 360;

/// Maximum number of rules with a history.
pub const MAX_TRACKED_RULES: usize = 64;

/// Maximum number of rules among which the busiest are selected. Rules after this position in the rule set never get a
/// history.
const MAX_CANDIDATES: usize = 100_000;

/// Memory of all ring buffers and of the candidates' decision counts, in bytes.
const HISTORY_BYTES: usize = (ONE_SECOND_POINTS + TEN_SECOND_POINTS)
    * (size_of::<OverallPoint>() + MAX_TRACKED_RULES * size_of::<RulePoint>())
    + MAX_CANDIDATES * size_of::<u64>();
const _: () = assert!(HISTORY_BYTES < 4_000_000, "the history is kept in less than 4 MB");

/// Rates per second over all decisions of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OverallPoint {
    pub(super) admitted: u32,
    pub(super) refused: u32,
    /// Requests admitted only because of observe mode, plus the refusals that tracked shadow rules reported.
    pub(super) shadow: u32,
    /// Requests decided without the store.
    pub(super) fallback: u32,
    /// Mean decision time in nanoseconds.
    pub(super) mean_ns: u32,
    /// Upper bound of the 99th percentile of decision times, in nanoseconds.
    pub(super) p99_ns: u32,
}

/// Rates per second of one rule during one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RulePoint {
    pub(super) admitted: u32,
    pub(super) refused: u32,
    pub(super) shadow: u32,
}

/// The values of all counters at one instant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CounterTotals {
    pub(super) admitted: u64,
    pub(super) refused: u64,
    pub(super) observed: u64,
    pub(super) fallback: u64,
    pub(super) times: HistogramCounts,
}

/// A rule in force, with its counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleReading<'a> {
    pub(super) domain: &'a str,
    pub(super) id: &'a str,
    pub(super) counts: RuleCounts,
}

/// Provides access to individual rules in force. Most rules need not be read every second.
pub(super) struct RuleReader<'a> {
    /// The version of the rule set. Rule numbers are stable while the version is unchanged.
    pub(super) version: u64,
    /// The number of rules.
    pub(super) count: usize,
    /// Reads a rule by its number, from 0 to `count - 1`.
    pub(super) read: &'a dyn Fn(usize) -> RuleReading<'a>,
}

/// The points of one rule, or of all decisions. The oldest point is first.
#[derive(Debug)]
struct PointSeries<P> {
    seconds: VecDeque<P>,
    tens: VecDeque<P>,
}

impl<P: Copy> PointSeries<P> {
    fn new() -> Self {
        Self { seconds: VecDeque::with_capacity(ONE_SECOND_POINTS), tens: VecDeque::with_capacity(TEN_SECOND_POINTS) }
    }

    /// Adds `times` copies of a point. If the ring exceeds `max` points, drops the oldest points.
    fn push_points(ring: &mut VecDeque<P>, max: usize, point: P, times: usize) {
        for _ in 0..times.min(max) {
            if ring.len() == max {
                ring.pop_front();
            }
            ring.push_back(point);
        }
    }
}

/// A rule with a history.
#[derive(Debug)]
struct TrackedRule {
    domain: Box<str>,
    id: Box<str>,
    /// The rule number in the rule set.
    number: usize,
    /// The counts at the last sample.
    last_counts: RuleCounts,
    /// The counts at the start of the current ten-second interval.
    interval_start_counts: RuleCounts,
    /// Decision count between the last two selections.
    recent_decisions: u64,
    series: PointSeries<RulePoint>,
}

/// The rates of the last hour.
#[derive(Debug)]
pub struct LiveHistory {
    /// The last sample and its time.
    last_sample: Option<(Time<Mono>, CounterTotals)>,
    /// The sample at the start of the current ten-second interval, and its time.
    interval_start: Option<(Time<Mono>, CounterTotals)>,
    /// Seconds since the start of the current ten-second interval.
    interval_seconds: usize,
    overall: PointSeries<OverallPoint>,
    rules: Vec<TrackedRule>,
    /// The rule-set version that the rule numbers belong to.
    version: Option<u64>,
    /// Decision count of each rule at the last selection, by rule number.
    candidate_counts: Vec<u64>,
}

impl Default for LiveHistory {
    fn default() -> Self {
        Self {
            last_sample: None,
            interval_start: None,
            interval_seconds: 0,
            overall: PointSeries::new(),
            rules: Vec::new(),
            version: None,
            candidate_counts: Vec::new(),
        }
    }
}

impl LiveHistory {
    /// Adds a sample. Rates are computed from the elapsed time, so a late call does not distort them.
    pub(super) fn add_sample(&mut self, now: Time<Mono>, totals: CounterTotals, rules: &RuleReader<'_>) {
        let replaced = self.version != Some(rules.version);
        if replaced {
            self.update_rule_numbers(rules);
        }
        let Some((before, last)) = self.last_sample.replace((now, totals)) else {
            self.interval_start = Some((now, totals));
            self.select_tracked_rules(rules);
            return;
        };
        let elapsed = now.since(before);
        // If samples were missed because the process was paused, each missed second gets the mean rate.
        let seconds = (elapsed.as_nanos() + NANOS_PER_HALF_SECOND) / NANOS_PER_SECOND;
        let seconds = usize::try_from(seconds).unwrap_or(ONE_SECOND_POINTS).max(1);
        self.interval_seconds += seconds;
        let (tens, (began, at_start)) = (self.interval_seconds / 10, self.interval_start.unwrap_or((before, last)));
        let (mut second, mut ten) =
            (overall_point(&last, &totals, elapsed), overall_point(&at_start, &totals, now.since(began)));
        for rule in &mut self.rules {
            let counts = (rules.read)(rule.number).counts;
            let point = rule_point(&rule.last_counts, &counts, elapsed);
            second.shadow = second.shadow.saturating_add(point.shadow);
            PointSeries::push_points(&mut rule.series.seconds, ONE_SECOND_POINTS, point, seconds);
            rule.last_counts = counts;
            if tens > 0 {
                let point = rule_point(&rule.interval_start_counts, &counts, now.since(began));
                ten.shadow = ten.shadow.saturating_add(point.shadow);
                PointSeries::push_points(&mut rule.series.tens, TEN_SECOND_POINTS, point, tens);
                rule.interval_start_counts = counts;
            }
        }
        PointSeries::push_points(&mut self.overall.seconds, ONE_SECOND_POINTS, second, seconds);
        if tens > 0 {
            PointSeries::push_points(&mut self.overall.tens, TEN_SECOND_POINTS, ten, tens);
            self.interval_seconds %= 10;
            self.interval_start = Some((now, totals));
        }
        if tens > 0 || replaced {
            self.select_tracked_rules(rules);
        }
    }

    /// Updates the numbers of the tracked rules for a new rule set, and drops rules that no longer exist.
    fn update_rule_numbers(&mut self, rules: &RuleReader<'_>) {
        self.version = Some(rules.version);
        let names: HashMap<(Box<str>, Box<str>), usize> =
            self.rules.iter().enumerate().map(|(at, rule)| ((rule.domain.clone(), rule.id.clone()), at)).collect();
        let mut numbers = vec![None; self.rules.len()];
        self.candidate_counts.clear();
        for number in 0..rules.count.min(MAX_CANDIDATES) {
            let rule = (rules.read)(number);
            self.candidate_counts.push(total_decisions(&rule.counts));
            if let Some(at) = names.get(&(rule.domain.into(), rule.id.into())) {
                numbers[*at] = Some(number);
            }
        }
        let mut numbers = numbers.into_iter();
        self.rules.retain_mut(|rule| {
            let number = numbers.next().flatten();
            rule.number = number.unwrap_or_default();
            number.is_some()
        });
    }

    /// Selects the rules to track: the rules with the most decisions since the last selection. To avoid churn, a
    /// tracked rule is replaced only by a rule with more than twice as many decisions.
    fn select_tracked_rules(&mut self, rules: &RuleReader<'_>) {
        let tracked: HashMap<usize, usize> =
            self.rules.iter().enumerate().map(|(at, rule)| (rule.number, at)).collect();
        let mut others: Vec<(u64, usize)> = Vec::new();
        for (number, before) in self.candidate_counts.iter_mut().enumerate() {
            let now = total_decisions(&(rules.read)(number).counts);
            let recent_decisions = now.saturating_sub(*before);
            *before = now;
            match tracked.get(&number) {
                Some(at) => self.rules[*at].recent_decisions = recent_decisions,
                None => others.push((recent_decisions, number)),
            }
        }
        if others.len() > MAX_TRACKED_RULES {
            others.select_nth_unstable_by_key(MAX_TRACKED_RULES, |(decisions, number)| (Reverse(*decisions), *number));
            others.truncate(MAX_TRACKED_RULES);
        }
        others.sort_unstable_by_key(|(recent_decisions, number)| (Reverse(*recent_decisions), *number));
        for (recent_decisions, number) in others {
            let arrival = TrackedRule::new(&(rules.read)(number), number, recent_decisions);
            if self.rules.len() < MAX_TRACKED_RULES {
                self.rules.push(arrival);
                continue;
            }
            match self.rules.iter_mut().min_by_key(|rule| rule.recent_decisions) {
                Some(least) if recent_decisions > least.recent_decisions.saturating_mul(2) => *least = arrival,
                _ => return,
            }
        }
    }

    /// Returns the latest one-second point of all decisions.
    pub(super) fn last_point(&self) -> OverallPoint {
        self.overall.seconds.back().copied().unwrap_or_default()
    }

    /// Returns the domain, the id and the latest one-second point of each tracked rule. Skips rules whose point is
    /// zero.
    pub(super) fn last_points_of_rules(&self) -> impl Iterator<Item = (&str, &str, RulePoint)> {
        let last = |rule: &TrackedRule| rule.series.seconds.back().copied().unwrap_or_default();
        self.rules
            .iter()
            .map(move |rule| (&*rule.domain, &*rule.id, last(rule)))
            .filter(|(.., point)| *point != RulePoint::default())
    }

    /// Returns the history of all decisions, and the last ten minutes of each tracked rule.
    pub(super) fn history_page<T>(&self, at_ms: i64, status: T) -> HistoryPage<T> {
        let rules = self.rules.iter().map(|rule| RuleHistory {
            domain: rule.domain.to_string(),
            id: rule.id.to_string(),
            tens: RuleColumns::from_points(&rule.series.tens, SPARKLINE_POINTS),
        });
        HistoryPage {
            at_ms,
            status,
            seconds: OverallColumns::from_points(&self.overall.seconds),
            tens: OverallColumns::from_points(&self.overall.tens),
            rules: rules.collect(),
        }
    }

    /// Returns the history of a rule. The history is empty if the rule is not tracked.
    pub(super) fn rule_page(&self, domain: &str, id: &str, at_ms: i64) -> RuleHistoryPage {
        let rule = self.rules.iter().find(|rule| &*rule.domain == domain && &*rule.id == id);
        let none = VecDeque::new();
        let (seconds, tens) = rule.map_or((&none, &none), |rule| (&rule.series.seconds, &rule.series.tens));
        RuleHistoryPage {
            at_ms,
            kept: rule.is_some(),
            seconds: RuleColumns::from_points(seconds, ONE_SECOND_POINTS),
            tens: RuleColumns::from_points(tens, TEN_SECOND_POINTS),
        }
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_HALF_SECOND: u64 = NANOS_PER_SECOND / 2;

/// Number of ten-second points of each rule in [`HistoryPage`], which cover ten minutes.
const SPARKLINE_POINTS: usize = 60;

impl TrackedRule {
    fn new(rule: &RuleReading<'_>, number: usize, recent_decisions: u64) -> Self {
        Self {
            domain: rule.domain.into(),
            id: rule.id.into(),
            number,
            last_counts: rule.counts,
            interval_start_counts: rule.counts,
            recent_decisions,
            series: PointSeries::new(),
        }
    }
}

fn total_decisions(counts: &RuleCounts) -> u64 {
    counts.allowed.saturating_add(counts.refused).saturating_add(counts.shadow_refused)
}

/// Returns the rate per second between two counter values, rounded to the nearest integer.
fn rate_per_second(before: u64, now: u64, elapsed: Nanos) -> u32 {
    let (count, nanos) = (u128::from(now.saturating_sub(before)), u128::from(elapsed.as_nanos().max(1)));
    u32::try_from((count * u128::from(NANOS_PER_SECOND) + nanos / 2) / nanos).unwrap_or(u32::MAX)
}

fn overall_point(before: &CounterTotals, now: &CounterTotals, elapsed: Nanos) -> OverallPoint {
    let (mean, p99) = now.times.mean_and_p99_since(&before.times);
    OverallPoint {
        admitted: rate_per_second(before.admitted, now.admitted, elapsed),
        refused: rate_per_second(before.refused, now.refused, elapsed),
        shadow: rate_per_second(before.observed, now.observed, elapsed),
        fallback: rate_per_second(before.fallback, now.fallback, elapsed),
        mean_ns: u32::try_from(mean).unwrap_or(u32::MAX),
        p99_ns: u32::try_from(p99).unwrap_or(u32::MAX),
    }
}

fn rule_point(before: &RuleCounts, now: &RuleCounts, elapsed: Nanos) -> RulePoint {
    RulePoint {
        admitted: rate_per_second(before.allowed, now.allowed, elapsed),
        refused: rate_per_second(before.refused, now.refused, elapsed),
        shadow: rate_per_second(before.shadow_refused, now.shadow_refused, elapsed),
    }
}

/// The response of `GET /v1/history` without parameters.
#[derive(Debug, Serialize)]
pub(super) struct HistoryPage<T> {
    at_ms: i64,
    /// The current state of the server. Live events also contain this state.
    status: T,
    seconds: OverallColumns,
    tens: OverallColumns,
    rules: Vec<RuleHistory>,
}

/// The response of `GET /v1/history` for one rule.
#[derive(Debug, Serialize)]
pub(super) struct RuleHistoryPage {
    at_ms: i64,
    /// Whether the rule is tracked, that is, one of the busiest rules in force.
    kept: bool,
    seconds: RuleColumns,
    tens: RuleColumns,
}

/// The last ten minutes of one rule.
#[derive(Debug, Serialize)]
struct RuleHistory {
    domain: String,
    id: String,
    #[serde(flatten)]
    tens: RuleColumns,
}

#[derive(Debug, Serialize)]
struct OverallColumns {
    admitted: Vec<u32>,
    refused: Vec<u32>,
    shadow: Vec<u32>,
    fallback: Vec<u32>,
    mean_ns: Vec<u32>,
    p99_ns: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct RuleColumns {
    admitted: Vec<u32>,
    refused: Vec<u32>,
    shadow: Vec<u32>,
}

impl OverallColumns {
    fn from_points(points: &VecDeque<OverallPoint>) -> Self {
        let column = |value: fn(&OverallPoint) -> u32| points.iter().map(value).collect();
        Self {
            admitted: column(|point| point.admitted),
            refused: column(|point| point.refused),
            shadow: column(|point| point.shadow),
            fallback: column(|point| point.fallback),
            mean_ns: column(|point| point.mean_ns),
            p99_ns: column(|point| point.p99_ns),
        }
    }
}

impl RuleColumns {
    fn from_points(points: &VecDeque<RulePoint>, last: usize) -> Self {
        let skipped = points.len().saturating_sub(last);
        let column = |value: fn(&RulePoint) -> u32| points.iter().skip(skipped).map(value).collect();
        Self {
            admitted: column(|point| point.admitted),
            refused: column(|point| point.refused),
            shadow: column(|point| point.shadow),
        }
    }
}

#[cfg(test)]
mod tests;
