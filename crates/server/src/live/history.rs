//! The history of rates, with one point per second and one point per ten seconds, for all decisions and for the busiest
//! rules. Points are stored in ring buffers of fixed size.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

use serde::Serialize;
use tollgate::core::{Mono, Nanos, Time};
use tollgate_engine::RuleCounts;

use crate::observe::histogram::HistogramCounts;

/// Number of one-second points: 15 minutes.
pub const SECONDS: usize = 900;

/// Number of ten-second points: one hour.
pub const TENS: usize = 360;

/// Maximum number of rules with a history.
pub const MAX_RULES: usize = 64;

/// Maximum number of rules from which the busiest are selected. Rules after the first 100 000 get no history.
const MAX_CANDIDATES: usize = 100_000;

/// Memory of all ring buffers and of the candidates' decision counts, in bytes.
const MEMORY: usize = (SECONDS + TENS) * (size_of::<OverallPoint>() + MAX_RULES * size_of::<RulePoint>())
    + MAX_CANDIDATES * size_of::<u64>();
const _: () = assert!(MEMORY < 4_000_000, "the history is kept in less than 4 MB");

/// Rates per second of all decisions in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OverallPoint {
    pub(super) admitted: u32,
    pub(super) refused: u32,
    /// Requests above a limit that were admitted in observe mode or by a tracked shadow rule.
    pub(super) shadow: u32,
    /// Requests decided without the store.
    pub(super) fallback: u32,
    /// Mean decision time in nanoseconds.
    pub(super) mean_ns: u32,
    /// Upper bound of the 99th percentile of decision times, in nanoseconds.
    pub(super) p99_ns: u32,
}

/// Rates per second of one rule in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RulePoint {
    pub(super) admitted: u32,
    pub(super) refused: u32,
    pub(super) shadow: u32,
}

/// The values of all counters at one instant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
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

/// Reads rules in force one by one, because most of them need not be read every second.
pub(super) struct RuleReader<'a> {
    /// The version of the rule set. Rule numbers are stable while the version is unchanged.
    pub(super) version: u64,
    /// The number of rules.
    pub(super) count: usize,
    /// Reads a rule by its number, from 0 to `count - 1`.
    pub(super) read: &'a dyn Fn(usize) -> RuleReading<'a>,
}

/// The points of a rule or of all decisions, oldest first.
#[derive(Debug)]
struct Series<P> {
    seconds: VecDeque<P>,
    tens: VecDeque<P>,
}

impl<P: Copy> Series<P> {
    fn new() -> Self {
        Self { seconds: VecDeque::with_capacity(SECONDS), tens: VecDeque::with_capacity(TENS) }
    }

    /// Adds `times` copies of a point, and drops the oldest points beyond `max`.
    fn push(ring: &mut VecDeque<P>, max: usize, point: P, times: usize) {
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
    last: RuleCounts,
    last_ten: RuleCounts,
    /// Decision count between the last two selections.
    activity: u64,
    series: Series<RulePoint>,
}

/// The rates of the last hour.
#[derive(Debug)]
pub struct LiveHistory {
    /// The last sample and its time.
    last: Option<(Time<Mono>, Totals)>,
    /// The sample at the end of the last ten-second interval.
    last_ten: Option<(Time<Mono>, Totals)>,
    /// Seconds since the end of the last ten-second interval.
    seconds_of_ten: usize,
    overall: Series<OverallPoint>,
    rules: Vec<TrackedRule>,
    /// The rule-set version that the rule numbers belong to.
    version: Option<u64>,
    /// Decision count of each rule at the last selection, by rule number.
    candidates: Vec<u64>,
}

impl Default for LiveHistory {
    fn default() -> Self {
        Self {
            last: None,
            last_ten: None,
            seconds_of_ten: 0,
            overall: Series::new(),
            rules: Vec::new(),
            version: None,
            candidates: Vec::new(),
        }
    }
}

impl LiveHistory {
    /// Adds a sample. Rates are computed from the elapsed time, so they are exact even after a late call.
    pub(super) fn add(&mut self, now: Time<Mono>, totals: Totals, rules: &RuleReader<'_>) {
        let replaced = self.version != Some(rules.version);
        if replaced {
            self.follow_rules(rules);
        }
        let Some((before, last)) = self.last.replace((now, totals)) else {
            self.last_ten = Some((now, totals));
            self.select_tracked(rules);
            return;
        };
        let elapsed = now.since(before);
        // If samples were missed because the process was paused, each missed second gets the mean rate.
        let seconds = usize::try_from((elapsed.as_nanos() + HALF_SECOND) / SECOND).unwrap_or(SECONDS).max(1);
        self.seconds_of_ten += seconds;
        let (tens, (began, at_start)) = (self.seconds_of_ten / 10, self.last_ten.unwrap_or((before, last)));
        let (mut second, mut ten) =
            (overall_point(&last, &totals, elapsed), overall_point(&at_start, &totals, now.since(began)));
        for rule in &mut self.rules {
            let counts = (rules.read)(rule.number).counts;
            let point = rule_point(&rule.last, &counts, elapsed);
            second.shadow = second.shadow.saturating_add(point.shadow);
            Series::push(&mut rule.series.seconds, SECONDS, point, seconds);
            rule.last = counts;
            if tens > 0 {
                let point = rule_point(&rule.last_ten, &counts, now.since(began));
                ten.shadow = ten.shadow.saturating_add(point.shadow);
                Series::push(&mut rule.series.tens, TENS, point, tens);
                rule.last_ten = counts;
            }
        }
        Series::push(&mut self.overall.seconds, SECONDS, second, seconds);
        if tens > 0 {
            Series::push(&mut self.overall.tens, TENS, ten, tens);
            self.seconds_of_ten %= 10;
            self.last_ten = Some((now, totals));
        }
        if tens > 0 || replaced {
            self.select_tracked(rules);
        }
    }

    /// Finds the tracked rules in a new rule set, and drops rules that no longer exist.
    fn follow_rules(&mut self, rules: &RuleReader<'_>) {
        self.version = Some(rules.version);
        let names: HashMap<(Box<str>, Box<str>), usize> =
            self.rules.iter().enumerate().map(|(at, rule)| ((rule.domain.clone(), rule.id.clone()), at)).collect();
        let mut numbers = vec![None; self.rules.len()];
        self.candidates.clear();
        for number in 0..rules.count.min(MAX_CANDIDATES) {
            let rule = (rules.read)(number);
            self.candidates.push(total_decisions(&rule.counts));
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

    /// Selects the rules to track: those with the most decisions since the last selection. To avoid churn, a tracked
    /// rule is replaced only by a rule with more than twice as many decisions.
    fn select_tracked(&mut self, rules: &RuleReader<'_>) {
        let tracked: HashMap<usize, usize> =
            self.rules.iter().enumerate().map(|(at, rule)| (rule.number, at)).collect();
        let mut others: Vec<(u64, usize)> = Vec::new();
        for (number, before) in self.candidates.iter_mut().enumerate() {
            let now = total_decisions(&(rules.read)(number).counts);
            let activity = now.saturating_sub(*before);
            *before = now;
            match tracked.get(&number) {
                Some(at) => self.rules[*at].activity = activity,
                None => others.push((activity, number)),
            }
        }
        if others.len() > MAX_RULES {
            others.select_nth_unstable_by_key(MAX_RULES, |(activity, number)| (Reverse(*activity), *number));
            others.truncate(MAX_RULES);
        }
        others.sort_unstable_by_key(|(activity, number)| (Reverse(*activity), *number));
        for (activity, number) in others {
            let arrival = TrackedRule::new(&(rules.read)(number), number, activity);
            if self.rules.len() < MAX_RULES {
                self.rules.push(arrival);
                continue;
            }
            match self.rules.iter_mut().min_by_key(|rule| rule.activity) {
                Some(least) if activity > least.activity.saturating_mul(2) => *least = arrival,
                _ => return,
            }
        }
    }

    /// Returns the latest one-second point of all decisions.
    pub(super) fn last(&self) -> OverallPoint {
        self.overall.seconds.back().copied().unwrap_or_default()
    }

    /// Returns the domain, the id and the latest one-second point of each tracked rule whose point is not zero.
    pub(super) fn last_of_rules(&self) -> impl Iterator<Item = (&str, &str, RulePoint)> {
        let last = |rule: &TrackedRule| rule.series.seconds.back().copied().unwrap_or_default();
        self.rules
            .iter()
            .map(move |rule| (&*rule.domain, &*rule.id, last(rule)))
            .filter(|(.., point)| *point != RulePoint::default())
    }

    /// Returns the history of all decisions, and the last ten minutes of each tracked rule.
    pub(super) fn page<T>(&self, at_ms: i64, status: T) -> HistoryPage<T> {
        let rules = self.rules.iter().map(|rule| RuleHistory {
            domain: rule.domain.to_string(),
            id: rule.id.to_string(),
            tens: RuleColumns::from_points(&rule.series.tens, SPARKLINE),
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
    pub(super) fn page_of(&self, domain: &str, id: &str, at_ms: i64) -> RuleHistoryPage {
        let rule = self.rules.iter().find(|rule| &*rule.domain == domain && &*rule.id == id);
        let none = VecDeque::new();
        let (seconds, tens) = rule.map_or((&none, &none), |rule| (&rule.series.seconds, &rule.series.tens));
        RuleHistoryPage {
            at_ms,
            kept: rule.is_some(),
            seconds: RuleColumns::from_points(seconds, SECONDS),
            tens: RuleColumns::from_points(tens, TENS),
        }
    }
}

const SECOND: u64 = 1_000_000_000;
const HALF_SECOND: u64 = SECOND / 2;

/// Number of ten-second points per rule on the page of all rules: ten minutes.
const SPARKLINE: usize = 60;

impl TrackedRule {
    fn new(rule: &RuleReading<'_>, number: usize, activity: u64) -> Self {
        Self {
            domain: rule.domain.into(),
            id: rule.id.into(),
            number,
            last: rule.counts,
            last_ten: rule.counts,
            activity,
            series: Series::new(),
        }
    }
}

fn total_decisions(counts: &RuleCounts) -> u64 {
    counts.allowed.saturating_add(counts.refused).saturating_add(counts.shadow_refused)
}

/// Returns the rate per second between two counter values, rounded to the nearest integer.
fn rate_per_second(before: u64, now: u64, elapsed: Nanos) -> u32 {
    let (count, nanos) = (u128::from(now.saturating_sub(before)), u128::from(elapsed.as_nanos().max(1)));
    u32::try_from((count * u128::from(SECOND) + nanos / 2) / nanos).unwrap_or(u32::MAX)
}

fn overall_point(before: &Totals, now: &Totals, elapsed: Nanos) -> OverallPoint {
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

/// The response of `GET /v1/history`.
#[derive(Debug, Serialize)]
pub(super) struct HistoryPage<T> {
    at_ms: i64,
    /// The current state of the server, as in events.
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
