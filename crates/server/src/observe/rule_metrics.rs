//! Metrics of rules, with a limited number of series. The busiest rules have their own series, and all other rules
//! share one.
//!
//! Prometheus treats a decreasing counter as reset and counts its whole value again. The shared series is therefore not
//! the sum over the rules without their own series, because that sum decreases when one of these rules becomes busy
//! enough for its own. Instead, every scrape adds to the shared series the decisions that these rules have made since
//! the previous scrape.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use tollgate::core::Algorithm;
use tollgate_engine::{ActiveRule, RuleSet};

use super::metrics::MetricsText;

/// Maximum number of rules with their own series.
pub const MAX_RULES: usize = 1_000;

/// The outcomes of a rule's decisions, in the order of [`OutcomeCounts`].
const OUTCOMES: [&str; 4] = ["allow", "deny", "shadow", "fallback"];

/// Names of rules, by domain.
type RuleNames = HashMap<Box<str>, HashSet<Box<str>>>;

/// Counts by outcome.
type OutcomeCounts = [u64; OUTCOMES.len()];

/// The rules with their own series, and the shared series of the others.
#[derive(Debug, Default)]
pub struct RuleMetrics(Mutex<Selection>);

/// The state between two scrapes.
#[derive(Debug, Default)]
struct Selection {
    /// The rules with their own series, or `None` before the first scrape.
    shown: Option<RuleNames>,
    /// The counts of the rules without their own series, added up, at the last scrape.
    rest: OutcomeCounts,
    /// The shared series.
    other: OutcomeCounts,
}

/// A rule with its counts.
struct Row<'a> {
    domain: &'a str,
    id: &'a str,
    counts: OutcomeCounts,
}

impl RuleMetrics {
    /// Writes the decisions and the limits of rules.
    pub(super) fn write(&self, page: &mut MetricsText, rules: &RuleSet) {
        let rules = rules.rules();
        let rows: Vec<Row<'_>> = rules.iter().map(Row::new).collect();
        let (shown, other) = self.0.lock().unwrap_or_else(PoisonError::into_inner).select_busiest(&rows, MAX_RULES);
        page.write_head(
            "tollgate_rule_decisions_total",
            "counter",
            "Decisions by rule and outcome: the busiest rules, and `other` for the rest.",
        );
        for index in &shown {
            let labels = rows[*index].labels();
            for (outcome, count) in OUTCOMES.iter().zip(rows[*index].counts) {
                page.write_line(&format!("{{{labels},outcome=\"{outcome}\"}}"), count);
            }
        }
        if shown.len() < rows.len() {
            for (outcome, count) in OUTCOMES.iter().zip(other) {
                // The empty domain name is unambiguous, because no domain has an empty name.
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
                page.write_line(&format!("{{{},limit=\"{}\"}}", rows[*index].labels(), position + 1), limit.capacity());
            }
        }
    }
}

impl Selection {
    /// Returns the indices of the busiest rules, at most `max`, in ascending order, and the counts of the shared
    /// series.
    fn select_busiest(&mut self, rows: &[Row<'_>], max: usize) -> (Vec<usize>, OutcomeCounts) {
        let mut busiest: Vec<usize> = (0..rows.len()).collect();
        if rows.len() > max {
            busiest.select_nth_unstable_by_key(max, |index| (Reverse(rows[*index].total()), *index));
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
        for (index, now) in sum_without(rows, &before).into_iter().enumerate() {
            // Saturates, because the sum decreases when a rule is deleted.
            self.other[index] += now.saturating_sub(self.rest[index]);
        }
        let shown = chosen();
        self.rest = sum_without(rows, &shown);
        self.shown = Some(shown);
        (busiest, self.other)
    }
}

/// Adds up the counts of all rules that are not in `shown`.
fn sum_without(rows: &[Row<'_>], shown: &RuleNames) -> OutcomeCounts {
    let is_shown = |row: &Row<'_>| shown.get(row.domain).is_some_and(|ids| ids.contains(row.id));
    let mut sum = OutcomeCounts::default();
    for row in rows.iter().filter(|row| !is_shown(row)) {
        sum.iter_mut().zip(row.counts).for_each(|(sum, count)| *sum += count);
    }
    sum
}

impl<'a> Row<'a> {
    fn new(rule: &'a ActiveRule) -> Self {
        let counts = rule.meter().read();
        let counts = [counts.allowed, counts.refused, counts.shadow_refused, counts.fallback];
        Self { domain: rule.domain(), id: rule.id(), counts }
    }

    fn labels(&self) -> String {
        format!("domain=\"{}\",rule=\"{}\"", escape(self.domain), escape(self.id))
    }

    fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Escapes the value of a label.
pub(super) fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_engine::rules::{Rules, Source};
    use tollgate_engine::{Engine, MemoryStore};

    fn sample_rows<'a>(counts: &[(&'a str, u64)]) -> Vec<Row<'a>> {
        counts.iter().map(|(id, allowed)| Row { domain: "d", id, counts: [*allowed, 0, 0, 0] }).collect()
    }

    #[test]
    fn shared_series_never_decreases_and_counts_every_decision_once() {
        let mut selection = Selection::default();
        let mut scrape = |counts: &[(&str, u64)]| {
            let (shown, other) = selection.select_busiest(&sample_rows(counts), 2);
            (shown.into_iter().map(|index| counts[index].0.to_owned()).collect::<Vec<_>>().join(" "), other[0])
        };
        assert_eq!(scrape(&[("a", 9), ("b", 8), ("c", 1), ("d", 0)]), ("a b".into(), 1));
        assert_eq!(scrape(&[("a", 9), ("b", 8), ("c", 3), ("d", 2)]), ("a b".into(), 5));
        // `c` now has its own series; its decisions before that stay in the shared series. New decisions of `b` are
        // added to the shared series.
        assert_eq!(scrape(&[("a", 9), ("b", 8), ("c", 23), ("d", 2)]), ("a c".into(), 25));
        assert_eq!(scrape(&[("a", 9), ("b", 9), ("c", 50), ("d", 2)]), ("a c".into(), 26));
        // A rule is deleted.
        assert_eq!(scrape(&[("a", 9), ("c", 50), ("d", 2)]), ("a c".into(), 26));
        assert_eq!(scrape(&[("a", 9), ("c", 50), ("d", 4)]), ("a c".into(), 28));
    }

    #[test]
    fn number_of_series_is_bounded() {
        let engine = Engine::new(MemoryStore::new(10).unwrap()).unwrap();
        let rule = |id| format!("- {{id: r{id}, when: {{a: x{id}}}, limits: [7/s, 9/m]}}\n");
        let rules: String = (0..3 * MAX_RULES).map(rule).collect();
        let text = format!("domain: a\nrules:\n{rules}");
        engine.put(&Rules::read(&[Source { name: "rules", text: text.as_bytes() }]).unwrap()).unwrap();
        let mut page = MetricsText::default();
        RuleMetrics::default().write(&mut page, &engine.rules());
        let count = |prefix: &str| page.text.lines().filter(|line| line.starts_with(prefix)).count();
        assert_eq!(count("tollgate_rule_decisions_total"), 4 * (MAX_RULES + 1));
        assert_eq!(count("tollgate_rule_limit"), 2 * MAX_RULES);
        assert!(page.text.contains("tollgate_rule_limit{domain=\"a\",rule=\"r0\",limit=\"2\"} 9\n"));
    }
}
