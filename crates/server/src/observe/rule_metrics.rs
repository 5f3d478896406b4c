//! Metrics of rules, with a bounded number of series. The busiest rules have their own series, and the remaining rules
//! share one series.
//!
//! Prometheus treats a decreasing counter as a reset and counts its whole value again. A plain sum over the remaining
//! rules would decrease whenever one of them gets its own series. Instead, each scrape adds to the shared series the
//! decisions of the remaining rules since the previous scrape.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use tollgate::core::Algorithm;
use tollgate_engine::{ActiveRule, RuleSet};

use super::metrics::MetricsText;

/// Maximum number of rules with their own series.
pub const MAX_OWN_SERIES: usize = 1_000;

/// The outcomes of a rule's decisions, in the order of [`OutcomeCounts`].
const OUTCOMES: [&str; 4] = ["allow", "deny", "shadow", "fallback"];

/// Names of rules, by domain.
type RuleNames = HashMap<Box<str>, HashSet<Box<str>>>;

/// Counts by outcome.
type OutcomeCounts = [u64; OUTCOMES.len()];

/// The rules with their own series, and the shared series of the remaining rules.
#[derive(Debug, Default)]
pub struct RuleMetrics(Mutex<ScrapeState>);

/// The state kept from one scrape to the next.
#[derive(Debug, Default)]
struct ScrapeState {
    /// The rules with their own series, or `None` before the first scrape.
    shown: Option<RuleNames>,
    /// Sum of the counts of the remaining rules, at the last scrape.
    remaining_counts: OutcomeCounts,
    /// The value of the shared series.
    shared_series: OutcomeCounts,
}

/// A rule with its counts.
struct RuleSample<'a> {
    domain: &'a str,
    id: &'a str,
    counts: OutcomeCounts,
}

impl RuleMetrics {
    /// Writes the decisions and the limits of rules.
    pub(super) fn write(&self, page: &mut MetricsText, rules: &RuleSet) {
        let rules = rules.rules();
        let rows: Vec<RuleSample<'_>> = rules.iter().map(RuleSample::new).collect();
        let (shown, shared_series) =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).select_busiest(&rows, MAX_OWN_SERIES);
        page.write_head(
            "tollgate_rule_decisions_total",
            "counter",
            "Decisions by rule and outcome: the busiest rules, and `other` for the rest.",
        );
        for index in &shown {
            let labels = rows[*index].format_labels();
            for (outcome, count) in OUTCOMES.iter().zip(rows[*index].counts) {
                page.write_line(&format!("{{{labels},outcome=\"{outcome}\"}}"), count);
            }
        }
        if shown.len() < rows.len() {
            for (outcome, count) in OUTCOMES.iter().zip(shared_series) {
                // An empty domain name identifies the shared series, because no domain has an empty name.
                page.write_line(&format!("{{domain=\"\",rule=\"other\",outcome=\"{outcome}\"}}"), count);
            }
        }
        page.write_head(
            "tollgate_rule_limit",
            "gauge",
            "The capacity of each limit of the busiest rules, by its position in the rule.",
        );
        for index in &shown {
            let limits = rules[*index].limits().map_or(&[][..], |limits| limits.as_slice());
            for (position, limit) in limits.iter().enumerate() {
                let labels = rows[*index].format_labels();
                page.write_line(&format!("{{{labels},limit=\"{}\"}}", position + 1), limit.capacity());
            }
        }
    }
}

impl ScrapeState {
    /// Returns the indices of the `max` busiest rules in ascending order, and the value of the shared series.
    fn select_busiest(&mut self, rows: &[RuleSample<'_>], max: usize) -> (Vec<usize>, OutcomeCounts) {
        let mut busiest: Vec<usize> = (0..rows.len()).collect();
        if rows.len() > max {
            busiest.select_nth_unstable_by_key(max, |index| (Reverse(rows[*index].total_decisions()), *index));
            busiest.truncate(max);
            busiest.sort_unstable();
        }
        let chosen = || {
            let mut names = RuleNames::new();
            for row in busiest.iter().map(|index| &rows[*index]) {
                names.entry(row.domain.into()).or_default().insert(row.id.into());
            }
            names
        };
        let before = self.shown.take().unwrap_or_else(chosen);
        for (index, now) in sum_remaining(rows, &before).into_iter().enumerate() {
            // Saturating, because the sum decreases when a rule is deleted.
            self.shared_series[index] += now.saturating_sub(self.remaining_counts[index]);
        }
        let shown = chosen();
        self.remaining_counts = sum_remaining(rows, &shown);
        self.shown = Some(shown);
        (busiest, self.shared_series)
    }
}

/// Returns the sum of the counts of all rules that are not in `shown`.
fn sum_remaining(rows: &[RuleSample<'_>], shown: &RuleNames) -> OutcomeCounts {
    let is_shown = |row: &RuleSample<'_>| shown.get(row.domain).is_some_and(|ids| ids.contains(row.id));
    let mut sum = OutcomeCounts::default();
    for row in rows.iter().filter(|row| !is_shown(row)) {
        sum.iter_mut().zip(row.counts).for_each(|(sum, count)| *sum += count);
    }
    sum
}

impl<'a> RuleSample<'a> {
    fn new(rule: &'a ActiveRule) -> Self {
        let counts = rule.meter().counts();
        let counts = [counts.allowed, counts.refused, counts.shadow_refused, counts.fallback];
        Self { domain: rule.domain(), id: rule.id(), counts }
    }

    fn format_labels(&self) -> String {
        format!("domain=\"{}\",rule=\"{}\"", escape_label(self.domain), escape_label(self.id))
    }

    fn total_decisions(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Escapes the value of a label.
pub(super) fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_engine::rules::{Rules, Source};
    use tollgate_engine::{Engine, MemoryStore};

    fn sample_rows<'a>(counts: &[(&'a str, u64)]) -> Vec<RuleSample<'a>> {
        counts.iter().map(|(id, allowed)| RuleSample { domain: "d", id, counts: [*allowed, 0, 0, 0] }).collect()
    }

    #[test]
    fn shared_series_never_decreases_and_counts_every_decision_once() {
        let mut selection = ScrapeState::default();
        let mut scrape = |counts: &[(&str, u64)]| {
            let (shown, shared_series) = selection.select_busiest(&sample_rows(counts), 2);
            (shown.into_iter().map(|index| counts[index].0.to_owned()).collect::<Vec<_>>().join(" "), shared_series[0])
        };
        assert_eq!(scrape(&[("a", 9), ("b", 8), ("c", 1), ("d", 0)]), ("a b".into(), 1));
        assert_eq!(scrape(&[("a", 9), ("b", 8), ("c", 3), ("d", 2)]), ("a b".into(), 5));
        // `c` gets its own series. The decisions of `c` up to this scrape stay in the shared series.
        assert_eq!(scrape(&[("a", 9), ("b", 8), ("c", 23), ("d", 2)]), ("a c".into(), 25));
        // `b` has lost its own series, so its new decision is added to the shared series.
        assert_eq!(scrape(&[("a", 9), ("b", 9), ("c", 50), ("d", 2)]), ("a c".into(), 26));
        // Deleting `b` does not decrease the shared series.
        assert_eq!(scrape(&[("a", 9), ("c", 50), ("d", 2)]), ("a c".into(), 26));
        assert_eq!(scrape(&[("a", 9), ("c", 50), ("d", 4)]), ("a c".into(), 28));
    }

    #[test]
    fn number_of_series_is_bounded() {
        let engine = Engine::new(MemoryStore::new(10).unwrap()).unwrap();
        let rule = |id| format!("- {{id: r{id}, when: {{a: x{id}}}, limits: [7/s, 9/m]}}\n");
        let rules: String = (0..3 * MAX_OWN_SERIES).map(rule).collect();
        let text = format!("domain: a\nrules:\n{rules}");
        engine.put(&Rules::read(&[Source { name: "rules", text: text.as_bytes() }]).unwrap()).unwrap();
        let mut page = MetricsText::default();
        RuleMetrics::default().write(&mut page, &engine.rules());
        let count = |prefix: &str| page.text.lines().filter(|line| line.starts_with(prefix)).count();
        assert_eq!(count("tollgate_rule_decisions_total"), 4 * (MAX_OWN_SERIES + 1));
        assert_eq!(count("tollgate_rule_limit"), 2 * MAX_OWN_SERIES);
        assert!(page.text.contains("tollgate_rule_limit{domain=\"a\",rule=\"r0\",limit=\"2\"} 9\n"));
    }
}
