//! Metrics in the text format of Prometheus. Keys are never used as labels, because the number of keys is not bounded.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tollgate_engine::striped::{Stripe, Striped};
use tollgate_engine::{Counts, RuleSet};
use tollgate_redis::{BUCKET_BOUNDS_US, Counts as StoreCounts, Overshoot, SharingStats};

use super::histogram::{self, Histogram};
use super::peers::Peers;
use super::polls::PollCounters;
use super::process;
use super::rule_metrics::{RuleMetrics, escape_label};
use crate::net::protocol::Protocol;

/// All counters of the server. Relaxed ordering suffices, because no other memory access depends on the counters.
#[derive(Debug, Default)]
pub struct Metrics {
    /// The counters of each protocol, indexed by [`Protocol`].
    protocol_counters: [ProtocolCounters; Protocol::ALL.len()],
    reloads: AtomicU64,
    reloads_refused: AtomicU64,
    /// The duration of engine calls that take tokens, including store time. A call decides one request, or on a shared
    /// store a part of a list.
    pub decision_time: Histogram,
    /// The polls of the rules service, if this server polls one.
    pub polls: PollCounters,
    /// The decisions and limits of rules.
    rules: RuleMetrics,
    /// Number of rate-limit-service descriptors with a matching rule or limit (index 0), and without a match (index 1).
    descriptors: Striped<2, 8>,
    /// The counts of a shared store, if there is one.
    store: Mutex<Option<StoreCounts>>,
    /// Statistics of leases and views, with which this node decides without a store call per request.
    shared: Mutex<Option<SharingStats>>,
    /// The servers that share limits with this server, if the store is `peers`.
    pub peers: Peers,
}

/// The counters of one protocol.
#[derive(Debug, Default)]
pub struct ProtocolCounters {
    counts: Striped<4, 8>,
}

/// Index of a counter in [`ProtocolCounters`].
#[derive(Clone, Copy, Debug)]
enum ProtocolCounter {
    Allowed,
    Denied,
    Observed,
    Malformed,
}

/// Decisions by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeTotals {
    /// Number of admitted requests, except those in `observed`.
    pub allowed: u64,
    /// Number of refused requests.
    pub denied: u64,
    /// Number of requests that were admitted only because of observe mode, instead of being refused or delayed.
    pub observed: u64,
}

impl ProtocolCounters {
    /// Counts decisions.
    #[inline]
    pub fn count_decisions(&self, totals: OutcomeTotals) {
        let stripe = Stripe::of_thread();
        for (counter, count) in [
            (ProtocolCounter::Allowed, totals.allowed),
            (ProtocolCounter::Denied, totals.denied),
            (ProtocolCounter::Observed, totals.observed),
        ] {
            if count > 0 {
                self.counts.add(stripe, counter as usize, count);
            }
        }
    }

    /// Counts a malformed or unauthorized request.
    pub fn count_malformed(&self) {
        self.counts.add(Stripe::of_thread(), ProtocolCounter::Malformed as usize, 1);
    }

    fn sum(&self, counter: ProtocolCounter) -> u64 {
        self.counts.sum(counter as usize)
    }
}

/// Current values, read each time the page is written.
#[derive(Clone, Debug)]
pub struct Gauges {
    /// Open connections.
    pub connections: usize,
    /// Requests waiting to be admitted.
    pub waiting: usize,
    /// Requests that could not wait because the queue was full.
    pub turned_away: u64,
    /// Three numbers: stored idempotency keys, replayed results, and keys evicted before their expiry.
    pub idempotency: (usize, u64, u64),
    /// Whether the store answers.
    pub store_up: bool,
    /// Whether refusals are enforced.
    pub enforcing: bool,
    /// Decisions about keys without their own entry in the table of counters.
    pub overflowed: u64,
    /// The counters of the engine.
    pub engine: Counts,
    /// The rules in force, with their counters.
    pub rules: Arc<RuleSet>,
    /// The revision of the rules, if they come from a database.
    pub revision: Option<u64>,
    /// Actions that were refused because the queue for the audit log was full.
    pub audit_refused: u64,
    /// Seconds since the last snapshot of the counters, if there was one.
    pub snapshot_age: Option<u64>,
    /// Number of failed snapshots since the last successful snapshot.
    pub snapshot_failures: u64,
    /// Number of keys in use in memory, at the last count.
    pub keys: u64,
    /// Maximum number of keys in memory, or `None` if the store is shared.
    pub capacity: Option<u64>,
    /// Seconds since the rules were last confirmed to be current, if a rules service is polled.
    pub rules_age: Option<u64>,
}

impl Metrics {
    /// Returns the counters of a protocol.
    #[inline]
    pub fn protocol_counters(&self, protocol: Protocol) -> &ProtocolCounters {
        &self.protocol_counters[protocol as usize]
    }

    /// Returns the decisions of all protocols.
    pub fn outcome_totals(&self) -> OutcomeTotals {
        let sum = |counter| self.protocol_counters.iter().map(|front| front.sum(counter)).sum();
        OutcomeTotals {
            allowed: sum(ProtocolCounter::Allowed),
            denied: sum(ProtocolCounter::Denied),
            observed: sum(ProtocolCounter::Observed),
        }
    }

    /// Counts a rule change that took effect.
    pub fn count_reload(&self) {
        self.reloads.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a rule change that was refused.
    pub fn count_refused_reload(&self) {
        self.reloads_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts rate-limit-service descriptors: `matched` with a matching rule or limit, and `unmatched` without a match.
    pub fn count_descriptors(&self, matched: usize, unmatched: usize) {
        let stripe = Stripe::of_thread();
        self.descriptors.add(stripe, 0, matched as u64);
        self.descriptors.add(stripe, 1, unmatched as u64);
    }

    /// Sets the counts of a shared store.
    pub fn set_store_counts(&self, counts: StoreCounts) {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = Some(counts);
    }

    /// Sets the statistics of leases and views on a shared store.
    pub fn set_sharing_stats(&self, shared: SharingStats) {
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(shared);
    }

    /// Returns all metrics in the text format of Prometheus.
    pub fn to_text(&self, gauges: &Gauges) -> String {
        let mut page = MetricsText::default();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        page.write_head("tollgate_decisions_total", "counter", "Decisions by protocol and outcome.");
        for protocol in Protocol::ALL {
            let (front, counters) = (protocol.name(), self.protocol_counters(protocol));
            for (outcome, count) in [
                ("allow", counters.sum(ProtocolCounter::Allowed)),
                ("deny", counters.sum(ProtocolCounter::Denied)),
                ("observe", counters.sum(ProtocolCounter::Observed)),
            ] {
                page.write_line(&format!("{{front=\"{front}\",outcome=\"{outcome}\"}}"), count);
            }
        }
        page.write_head(
            "tollgate_mistaken_requests_total",
            "counter",
            "Malformed or unauthorized requests, by protocol.",
        );
        for protocol in Protocol::ALL {
            let count = self.protocol_counters(protocol).sum(ProtocolCounter::Malformed);
            page.write_line(&format!("{{front=\"{}\"}}", protocol.name()), count);
        }
        page.write_counter(
            "tollgate_overflowed_total",
            "Decisions about keys without their own entry in the table of counters.",
            gauges.overflowed,
        );
        page.write_head("tollgate_rule_reloads_total", "counter", "Rule changes, by result.");
        page.write_line("{result=\"loaded\"}", get(&self.reloads));
        page.write_line("{result=\"refused\"}", get(&self.reloads_refused));
        page.write_gauge("tollgate_rules", "Rules in force.", gauges.rules.rules().len() as u64);
        page.write_gauge(
            "tollgate_rules_version",
            "Incremented with every change of the rules.",
            gauges.rules.version(),
        );
        page.write_counter("tollgate_rules_refused_total", "Rule sets that were refused.", get(&self.reloads_refused));
        if let Some(revision) = gauges.revision {
            page.write_gauge("tollgate_rules_revision", "The database revision of the rules in force.", revision);
        }
        if let Some(age) = gauges.rules_age {
            page.write_gauge(
                "tollgate_rules_age_seconds",
                "Time since the rules in force were last confirmed to be current.",
                age,
            );
            page.write_head("tollgate_rules_polls_total", "counter", "Polls of the rules service, by outcome.");
            for (outcome, count) in self.polls.counts() {
                page.write_line(&format!("{{outcome=\"{outcome}\"}}"), count);
            }
        }
        self.rules.write(&mut page, &gauges.rules);
        page.write_head(
            "tollgate_rls_descriptors_total",
            "counter",
            "Descriptors of the rate-limit service, by whether a limit applied.",
        );
        page.write_line("{matched=\"true\"}", self.descriptors.sum(0));
        page.write_line("{matched=\"false\"}", self.descriptors.sum(1));
        page.write_head(
            "tollgate_decision_duration_seconds",
            "histogram",
            "Time to decide a request or a list, including store calls.",
        );
        self.decision_time.write(&mut page);
        page.write_counter("tollgate_fallbacks_total", "Requests decided without the store.", gauges.engine.fallback);
        page.write_head("tollgate_store_faults_total", "counter", "Store calls that failed, by fault.");
        for (fault, count) in [
            ("unavailable", gauges.engine.unavailable),
            ("unknown", gauges.engine.unknown),
            ("stale", gauges.engine.stale),
            ("rejected", gauges.engine.rejected),
        ] {
            page.write_line(&format!("{{fault=\"{fault}\"}}"), count);
        }
        page.write_gauge(
            "tollgate_store_up",
            "1 while the store answers, 0 while deciding without it.",
            u64::from(gauges.store_up),
        );
        page.write_gauge(
            "tollgate_store_breaker_open",
            "1 while the circuit breaker is open: the store is only probed.",
            u64::from(!gauges.store_up),
        );
        if let Some(store) = *self.store.lock().unwrap_or_else(PoisonError::into_inner) {
            page.write_head("tollgate_store_batch_size", "summary", "Number of charges in one call to a shared store.");
            page.write_line("_sum", store.charges);
            page.write_line("_count", store.calls);
            page.write_head(
                "tollgate_store_duration_seconds",
                "histogram",
                "Time that requests waited for a shared store, or for its deadline.",
            );
            let bounds = BUCKET_BOUNDS_US.map(|micros| micros * 1_000);
            histogram::write_counts(&mut page, &bounds, &store.durations.counts, store.durations.micros * 1_000);
        }
        if let Some(shared) = &*self.shared.lock().unwrap_or_else(PoisonError::into_inner) {
            write_sharing_metrics(&mut page, shared);
        }
        self.peers.write(&mut page);
        page.write_gauge(
            "tollgate_enforcing",
            "1 while refusals are enforced, 0 while only observed.",
            u64::from(gauges.enforcing),
        );
        page.write_counter(
            "tollgate_audit_refused_total",
            "Actions refused because the queue for the audit log was full.",
            gauges.audit_refused,
        );
        page.write_counter("tollgate_bans_total", "Bans that were started.", gauges.engine.bans);
        if let Some(age) = gauges.snapshot_age {
            page.write_gauge("tollgate_snapshot_age_seconds", "Time since the counters were written to disk.", age);
        }
        if let Some(capacity) = gauges.capacity {
            page.write_gauge(
                "tollgate_keys",
                "Keys in memory with used capacity, counted every 5 s; an estimate if there are many.",
                gauges.keys,
            );
            page.write_gauge("tollgate_keys_capacity", "Maximum number of keys in memory.", capacity);
        }
        page.write_gauge(
            "tollgate_snapshot_failures",
            "Snapshots of the counters that could not be written since the last success.",
            gauges.snapshot_failures,
        );
        page.write_gauge("tollgate_connections", "Open connections.", gauges.connections as u64);
        page.write_gauge("tollgate_waiting", "Requests waiting to be admitted.", gauges.waiting as u64);
        page.write_counter(
            "tollgate_waiting_turned_away_total",
            "Requests that could not wait: the queue was full.",
            gauges.turned_away,
        );
        let (known, replayed, evicted) = gauges.idempotency;
        page.write_gauge("tollgate_idempotency_keys", "Stored idempotency keys.", known as u64);
        page.write_counter(
            "tollgate_idempotency_replays_total",
            "Results returned again for the same idempotency key.",
            replayed,
        );
        page.write_counter(
            "tollgate_idempotency_evictions_total",
            "Idempotency keys evicted before their expiry.",
            evicted,
        );
        page.write_head("tollgate_build_info", "gauge", "The version of this server.");
        page.write_line(concat!("{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1);
        process::write(&mut page);
        page.text
    }
}

fn write_sharing_metrics(page: &mut MetricsText, shared: &SharingStats) {
    page.write_head(
        "tollgate_overshoot_tokens_total",
        "counter",
        "Tokens that this node admitted beyond a limit of a rule with consistency eventual; they are owed.",
    );
    for Overshoot { domain, rule, tokens } in &shared.overshoot {
        let (domain, rule) = (escape_label(domain), escape_label(rule));
        page.write_line(&format!("{{domain=\"{domain}\",rule=\"{rule}\"}}"), tokens);
    }
    page.write_gauge(
        "tollgate_shared_views",
        "Keys of rules with consistency eventual that this node decides from its own view.",
        shared.views as u64,
    );
    page.write_counter(
        "tollgate_shared_dropped_tokens_total",
        "Tokens taken without the store that could not be charged to it, because they were too many or too old.",
        shared.dropped,
    );
    page.write_gauge(
        "tollgate_leased_keys",
        "Keys of rules with consistency leased for which this node holds leases.",
        shared.leased_keys as u64,
    );
    page.write_gauge("tollgate_leased_tokens", "Tokens that this node holds in leases.", shared.leased_tokens);
}

/// A page in the text format of Prometheus.
#[derive(Default)]
pub(super) struct MetricsText {
    pub(super) text: String,
    name: &'static str,
}

impl MetricsText {
    pub(super) fn write_head(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        // Writing to a string does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    pub(super) fn write_counter(&mut self, name: &'static str, help: &str, value: u64) {
        self.write_head(name, "counter", help);
        self.write_line("", value);
    }

    pub(super) fn write_gauge(&mut self, name: &'static str, help: &str, value: u64) {
        self.write_head(name, "gauge", help);
        self.write_line("", value);
    }

    /// Writes a value of the current metric. `labels` is appended to the metric name: labels, a name suffix, or both.
    pub(super) fn write_line(&mut self, labels: &str, value: impl Display) {
        let _ = writeln!(self.text, "{}{labels} {value}", self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_engine::rules::{Rules, Source};
    use tollgate_engine::{Engine, MemoryStore};
    use tollgate_redis::DurationHistogram;

    const PAGE_INTRODUCTION: &str = "# Metrics\n\n`GET /metrics` returns these metrics in the text format of Prometheus. Keys are never labels, because their \
                             number is not bounded.\n\n| metric | type | meaning |\n|---|---|---|\n";

    #[test]
    fn page_has_every_metric_once_with_its_value() {
        let metrics = Metrics::default();
        metrics.protocol_counters(Protocol::Resp).count_decisions(OutcomeTotals { allowed: 5, denied: 2, observed: 0 });
        metrics.protocol_counters(Protocol::Http).count_malformed();
        metrics.count_refused_reload();
        metrics.count_descriptors(3, 1);
        let mut durations = DurationHistogram { micros: 9_000, ..DurationHistogram::default() };
        (durations.counts[0], durations.counts[1], durations.counts[10]) = (1, 2, 1);
        metrics.peers.set(crate::observe::peers::sample_status());
        metrics.set_store_counts(StoreCounts { calls: 20, charges: 50, failures: 0, durations });
        let overshoot = vec![Overshoot { domain: "a".into(), rule: "b".into(), tokens: 8 }];
        metrics.set_sharing_stats(SharingStats { overshoot, views: 2, dropped: 3, leased_keys: 4, leased_tokens: 5 });
        let engine = Engine::new(MemoryStore::new(10).unwrap()).unwrap();
        let text = "domain: a\nrules:\n- {id: b, limit: 1/s}\n";
        engine.put(&Rules::read(&[Source { name: "rules", text: text.as_bytes() }]).unwrap()).unwrap();
        let (engine, rules) = (engine.counts(), engine.rules());
        let (waiting, turned_away) = (4, 5);
        let gauges = Gauges {
            connections: 3,
            waiting,
            turned_away,
            idempotency: (6, 7, 8),
            store_up: false,
            enforcing: true,
            overflowed: 0,
            engine,
            rules,
            revision: Some(12),
            audit_refused: 3,
            snapshot_age: Some(13),
            snapshot_failures: 2,
            keys: 14,
            capacity: Some(15),
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
            "tollgate_snapshot_age_seconds 13",
            "tollgate_snapshot_failures 2",
            "tollgate_audit_refused_total 3",
            "tollgate_bans_total 0",
            "tollgate_keys 14",
            "tollgate_keys_capacity 15",
            "tollgate_decision_duration_seconds_count 0",
            "tollgate_store_duration_seconds_bucket{le=\"0.00025\"} 3",
            "tollgate_store_duration_seconds_count 4",
            "tollgate_store_duration_seconds_sum 0.009",
            "tollgate_rules_refused_total 1",
            "tollgate_rules_polls_total{outcome=\"failed\"} 0",
            "tollgate_rule_limit{domain=\"a\",rule=\"b\",limit=\"1\"} 1",
            "tollgate_rls_descriptors_total{matched=\"true\"} 3",
            "tollgate_rls_descriptors_total{matched=\"false\"} 1",
            "tollgate_store_breaker_open 1",
            "tollgate_store_batch_size_sum 50",
            "tollgate_store_batch_size_count 20",
            "tollgate_peers_nodes 2",
            "tollgate_peers_linked{peer=\"n2\"} 1",
            "tollgate_peers_overshoot_tokens_total 13",
            "tollgate_peers_received_bytes_total 14",
        ] {
            assert!(page.lines().any(|found| found == line), "no {line} in\n{page}");
        }
        let described = |line: &str| line.strip_prefix("# HELP ").map(str::to_owned);
        let kinds: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        let rows = page.lines().filter_map(described).zip(&kinds).map(|(help, (name, kind))| {
            format!("| `{name}` | {kind} | {} |\n", help.split_once(' ').map_or("", |(_, help)| help))
        });
        let reference = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        tollgate_testkit::golden::check(reference, &format!("{PAGE_INTRODUCTION}{}", rows.collect::<String>()));
        let mut names: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a metric is described twice");
    }
}
