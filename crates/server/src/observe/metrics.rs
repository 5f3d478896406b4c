//! Counters, in the text form of Prometheus. Never labelled by key: there is no bound on keys.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tollgate_engine::{Counts, RuleSet};

use super::following::Following;
use crate::net::protocol::Protocol;

/// All counters of the server. They order nothing, so every access is relaxed.
#[derive(Debug, Default)]
pub struct Metrics {
    /// By protocol.
    fronts: [Front; Protocol::ALL.len()],
    reloads: AtomicU64,
    reloads_refused: AtomicU64,
    /// How following a rules service goes, if one is followed.
    pub following: Following,
}

/// What came in through one protocol. Every thread adds to a line of memory of its own, as far as there are enough: one
/// that all of them add to would be passed between cores with every decision.
#[derive(Debug, Default)]
pub struct Front {
    lines: [Line; LINES],
}

const LINES: usize = 8;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    allowed: AtomicU64,
    denied: AtomicU64,
    observed: AtomicU64,
    mistaken: AtomicU64,
}

/// The line of the calling thread; they are dealt out in turn.
fn my_line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LINES;
    }
    MINE.with(|line| *line)
}

/// What became of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Let pass.
    pub allowed: u64,
    /// Refused.
    pub denied: u64,
    /// Let pass, though a limit was exceeded: shadow rules, or while observing.
    pub observed: u64,
}

impl Front {
    /// Adds decisions.
    #[inline]
    pub fn decided(&self, tally: Tally) {
        let line = &self.lines[my_line()];
        for (counter, count) in
            [(&line.allowed, tally.allowed), (&line.denied, tally.denied), (&line.observed, tally.observed)]
        {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    /// Adds a request that was no request.
    pub fn mistaken(&self) {
        self.lines[my_line()].mistaken.fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&self, counter: fn(&Line) -> &AtomicU64) -> u64 {
        self.lines.iter().map(|line| counter(line).load(Ordering::Relaxed)).sum()
    }
}

/// What is known at the moment of asking, and counted nowhere.
#[derive(Clone, Debug)]
pub struct Gauges {
    /// Connections now.
    pub connections: usize,
    /// Requests that wait to be admitted.
    pub waiting: usize,
    /// Requests that would have waited, and found no room.
    pub turned_away: u64,
    /// Idempotency keys that are remembered, answers that were given again, and keys that gave way before their time.
    pub once: (usize, u64, u64),
    /// Whether the store answers.
    pub store_up: bool,
    /// Whether refusals are enforced.
    pub enforcing: bool,
    /// Decisions about keys that found no room of their own.
    pub overflowed: u64,
    /// What the engine counts.
    pub engine: Counts,
    /// The rules in force, with what each of them counts.
    pub rules: Arc<RuleSet>,
    /// Their revision in the database they come from, if they come from one.
    pub revision: Option<u64>,
    /// For how many seconds nobody has said that they are the newest, if somebody could.
    pub rules_age: Option<u64>,
}

impl Metrics {
    /// The counters of one protocol.
    #[inline]
    pub fn front(&self, protocol: Protocol) -> &Front {
        &self.fronts[protocol as usize]
    }

    /// Adds a change of rules that was put in force.
    pub fn reloaded(&self) {
        self.reloads.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a change of rules that was refused.
    pub fn reload_refused(&self) {
        self.reloads_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Everything, as Prometheus reads it.
    pub fn to_text(&self, gauges: &Gauges) -> String {
        let mut page = Page::default();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        page.head("tollgate_decisions_total", "counter", "Decisions by protocol and outcome.");
        for protocol in Protocol::ALL {
            let (front, counters) = (protocol.name(), self.front(protocol));
            for (outcome, count) in [
                ("allow", counters.sum(|line| &line.allowed)),
                ("deny", counters.sum(|line| &line.denied)),
                ("observe", counters.sum(|line| &line.observed)),
            ] {
                page.line(&format!("{{front=\"{front}\",outcome=\"{outcome}\"}}"), count);
            }
        }
        page.head("tollgate_mistaken_requests_total", "counter", "Requests that could not be understood, by protocol.");
        for protocol in Protocol::ALL {
            let count = self.front(protocol).sum(|line| &line.mistaken);
            page.line(&format!("{{front=\"{}\"}}", protocol.name()), count);
        }
        page.head("tollgate_overflowed_total", "counter", "Decisions about keys that found no room of their own.");
        page.line("", gauges.overflowed);
        page.head("tollgate_rule_reloads_total", "counter", "Changes of the rules, by what became of them.");
        page.line("{result=\"loaded\"}", get(&self.reloads));
        page.line("{result=\"refused\"}", get(&self.reloads_refused));
        page.head("tollgate_rules", "gauge", "Rules in force.");
        page.line("", gauges.rules.rules().len() as u64);
        page.head("tollgate_rules_version", "gauge", "Counts up with every change of the rules.");
        page.line("", gauges.rules.version());
        page.head(
            "tollgate_rules_refused_total",
            "counter",
            "Sets of rules that would not run, wherever they came from.",
        );
        page.line("", get(&self.reloads_refused));
        if let Some(revision) = gauges.revision {
            page.head("tollgate_rules_revision", "gauge", "The revision of the rules in force, where they are kept.");
            page.line("", revision);
        }
        if let Some(age) = gauges.rules_age {
            page.head(
                "tollgate_rules_age_seconds",
                "gauge",
                "Since the rules in force were last known to be the newest.",
            );
            page.line("", age);
            page.head("tollgate_rules_polls_total", "counter", "Questions to the rules service, by what came of them.");
            for (outcome, count) in self.following.polls() {
                page.line(&format!("{{outcome=\"{outcome}\"}}"), count);
            }
        }
        page.rules(&gauges.rules);
        page.head("tollgate_fallbacks_total", "counter", "Requests that were decided without the store.");
        page.line("", gauges.engine.fallback);
        page.head("tollgate_store_faults_total", "counter", "Questions the store did not answer, by what was wrong.");
        for (fault, count) in [
            ("unavailable", gauges.engine.unavailable),
            ("unknown", gauges.engine.unknown),
            ("stale", gauges.engine.stale),
            ("rejected", gauges.engine.rejected),
        ] {
            page.line(&format!("{{fault=\"{fault}\"}}"), count);
        }
        page.head("tollgate_store_up", "gauge", "1 while the store answers, 0 while decisions are made without it.");
        page.line("", u64::from(gauges.store_up));
        page.head("tollgate_enforcing", "gauge", "1 while refusals are enforced, 0 while they are only observed.");
        page.line("", u64::from(gauges.enforcing));
        page.head("tollgate_connections", "gauge", "Connections now.");
        page.line("", gauges.connections as u64);
        page.head("tollgate_waiting", "gauge", "Requests that wait to be admitted.");
        page.line("", gauges.waiting as u64);
        page.head("tollgate_waiting_turned_away_total", "counter", "Requests that found no room to wait.");
        page.line("", gauges.turned_away);
        let (known, replayed, evicted) = gauges.once;
        page.head("tollgate_idempotency_keys", "gauge", "Idempotency keys that are remembered.");
        page.line("", known as u64);
        page.head("tollgate_idempotency_replays_total", "counter", "Answers that were given again for the same key.");
        page.line("", replayed);
        page.head(
            "tollgate_idempotency_evictions_total",
            "counter",
            "Idempotency keys that gave way before their time.",
        );
        page.line("", evicted);
        page.head("tollgate_build_info", "gauge", "Which version this is.");
        page.line(concat!("{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1);
        page.text
    }
}

#[derive(Default)]
struct Page {
    text: String,
    name: &'static str,
}

impl Page {
    fn head(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        // Writing to a text does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, labels: &str, value: u64) {
        let _ = writeln!(self.text, "{}{labels} {value}", self.name);
    }

    /// What each rule has decided. There are as many as somebody wrote; keys are what callers make up.
    fn rules(&mut self, rules: &RuleSet) {
        self.head("tollgate_rule_decisions_total", "counter", "Decisions by rule and outcome.");
        for rule in rules.rules() {
            let counts = rule.meter().read();
            let (domain, id) = (escape(rule.domain()), escape(rule.id()));
            for (outcome, count) in [
                ("allow", counts.allowed),
                ("deny", counts.refused),
                ("shadow", counts.shadow_refused),
                ("fallback", counts.fallback),
            ] {
                self.line(&format!("{{domain=\"{domain}\",rule=\"{id}\",outcome=\"{outcome}\"}}"), count);
            }
        }
    }
}

/// As a label's value wants it.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_engine::rules::{Rules, Source};
    use tollgate_engine::{Engine, MemoryStore};

    #[test]
    fn the_page_names_every_metric_once_and_counts() {
        let metrics = Metrics::default();
        metrics.front(Protocol::Resp).decided(Tally { allowed: 5, denied: 2, observed: 0 });
        metrics.front(Protocol::Http).mistaken();
        metrics.reload_refused();
        let engine = Engine::new(MemoryStore::new(10).unwrap()).unwrap();
        let text = "domain: a\nrules:\n- {id: b, limit: 1/s}\n";
        engine.put(&Rules::read(&[Source { name: "rules", text: text.as_bytes() }]).unwrap()).unwrap();
        let (engine, rules) = (engine.counts(), engine.rules());
        let (waiting, turned_away) = (4, 5);
        let gauges = Gauges {
            connections: 3,
            waiting,
            turned_away,
            once: (6, 7, 8),
            store_up: false,
            enforcing: true,
            overflowed: 0,
            engine,
            rules,
            revision: Some(12),
            rules_age: Some(9),
        };
        let page = metrics.to_text(&gauges);
        for line in [
            "tollgate_decisions_total{front=\"resp\",outcome=\"allow\"} 5",
            "tollgate_decisions_total{front=\"resp\",outcome=\"deny\"} 2",
            "tollgate_decisions_total{front=\"http\",outcome=\"allow\"} 0",
            "tollgate_mistaken_requests_total{front=\"http\"} 1",
            "tollgate_rule_reloads_total{result=\"refused\"} 1",
            "tollgate_rules 1",
            "tollgate_rules_version 1",
            "tollgate_rule_decisions_total{domain=\"a\",rule=\"b\",outcome=\"deny\"} 0",
            "tollgate_store_faults_total{fault=\"unknown\"} 0",
            "tollgate_store_up 0",
            "tollgate_enforcing 1",
            "tollgate_connections 3",
            "tollgate_waiting 4",
            "tollgate_idempotency_replays_total 7",
            "tollgate_waiting_turned_away_total 5",
            "tollgate_rules_revision 12",
            "tollgate_rules_age_seconds 9",
            "tollgate_rules_refused_total 1",
            "tollgate_rules_polls_total{outcome=\"failed\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "no {line} in\n{page}");
        }
        let mut names: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a metric is described twice");
    }
}
