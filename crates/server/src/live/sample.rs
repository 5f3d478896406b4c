//! Samples the counters once a second.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};
use tollgate_engine::Store;

use super::history::{CounterTotals, RuleReader, RuleReading};
use crate::app::App;

/// Samples the counters once a second. Never returns.
pub async fn sample_every_second<S: Store + 'static>(app: Arc<App<S>>) {
    let mut every_second = interval(Duration::from_secs(1));
    every_second.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        every_second.tick().await;
        add_and_publish_sample(&app);
    }
}

fn add_and_publish_sample<S: Store>(app: &App<S>) {
    let totals = app.metrics.outcome_totals();
    let totals = CounterTotals {
        admitted: totals.allowed.saturating_add(totals.observed),
        refused: totals.denied,
        observed: totals.observed,
        fallback: app.engine.counts().fallback,
        times: app.metrics.decision_time.current_counts(),
    };
    let set = app.engine.rules();
    let rules = set.rules();
    let read = |number: usize| {
        let rule = &rules[number];
        RuleReading { domain: rule.domain(), id: rule.id(), counts: rule.meter().counts() }
    };
    let reader = RuleReader { version: set.version(), count: rules.len(), read: &read };
    let mut history = app.live.lock_history();
    history.add_sample(app.now(), totals, &reader);
    if app.live.events.receiver_count() == 0 {
        return;
    }
    let last = history.last_point();
    let event = LiveEvent {
        at_ms: app.wall_ms(),
        admitted: last.admitted,
        refused: last.refused,
        shadow: last.shadow,
        fallback: last.fallback,
        mean_ns: last.mean_ns,
        p99_ns: last.p99_ns,
        status: LiveStatus::current(app),
        rules: history
            .last_points_of_rules()
            .map(|(domain, id, point)| RuleEvent {
                domain,
                id,
                admitted: point.admitted,
                refused: point.refused,
                shadow: point.shadow,
            })
            .collect(),
    };
    // Serialising a struct of numbers and strings cannot fail.
    let json = serde_json::to_string(&event).unwrap_or_default();
    app.live.events.send_replace(format!("data: {json}\n\n").into());
}

/// The event that viewers receive once a second.
#[derive(Serialize)]
struct LiveEvent<'a> {
    at_ms: i64,
    admitted: u32,
    refused: u32,
    shadow: u32,
    fallback: u32,
    mean_ns: u32,
    p99_ns: u32,
    #[serde(flatten)]
    status: LiveStatus,
    /// The tracked rules with decisions in the last second.
    rules: Vec<RuleEvent<'a>>,
}

#[derive(Serialize)]
struct RuleEvent<'a> {
    domain: &'a str,
    id: &'a str,
    admitted: u32,
    refused: u32,
    shadow: u32,
}

/// The current state of the server, part of every event.
#[derive(Debug, Serialize)]
pub(super) struct LiveStatus {
    /// `enforce` or `observe`.
    mode: &'static str,
    /// Whether the store answers.
    store_up: bool,
    /// Whether this server's rules service is unreachable.
    rules_stale: bool,
    connections: usize,
    waiting: usize,
    /// The number of rules in force.
    rule_count: usize,
    /// The number of rule sets that were installed since the server started.
    rules_version: u64,
}

impl LiveStatus {
    pub(super) fn current<S: Store>(app: &App<S>) -> Self {
        let rules = app.engine.rules();
        Self {
            mode: app.engine.enforcement().as_str(),
            store_up: app.health.is_up(),
            rules_stale: app.metrics.polls.last_poll_failed(),
            connections: app.connections.count(),
            waiting: app.waiters.waiting_count(),
            rule_count: rules.rules().len(),
            rules_version: rules.version(),
        }
    }
}
