//! The pages about the server.

use bytes::Bytes;
use tollgate::redis_cell::RedisCellTable;
use tollgate_engine::{Enforcement, Store};

use super::ServerPage;
use super::view::PageView;
use crate::app::App;
use crate::control::api::{AuditQueues, describe};
use crate::observe::metrics::Gauges;

/// Renders a page about the server.
pub(super) fn render_page<S: Store>(app: &App<S>, page: ServerPage) -> PageView {
    let body = match page {
        ServerPage::Enforcement => enforcement_text(app).into(),
        ServerPage::Health => Bytes::from_static(b"ok\n"),
        ServerPage::Readiness => readiness_text(app).into(),
        ServerPage::Metrics => metrics_text(app).into(),
        // Structs of numbers and strings always serialise.
        ServerPage::TopKeys => serde_json::to_vec(&app.top.page()).unwrap_or_default().into(),
        ServerPage::RulesStatus => serde_json::to_vec(&app.source.status(app.now())).unwrap_or_default().into(),
        ServerPage::Peers => serde_json::to_vec(&app.metrics.peers.page()).unwrap_or_default().into(),
        ServerPage::ApiDescription => describe::openapi_document(),
    };
    PageView {
        content_type: page.content_type(),
        ready: page != ServerPage::Readiness || !app.connections.is_stopping(),
        body,
    }
}

/// Returns the enforcement mode as JSON. `fleet` is present if the fleet switch forces this server to observe.
fn enforcement_text<S: Store>(app: &App<S>) -> String {
    let mode = app.engine.enforcement().as_str();
    match app.fleet_enforcement() {
        Enforcement::Enforce => format!("{{\"mode\":\"{mode}\"}}"),
        Enforcement::Observe => format!("{{\"mode\":\"{mode}\",\"fleet\":\"observe\"}}"),
    }
}

/// Returns the readiness as text. A server that cannot reach its store or its rules service is still ready, for the
/// reason given in `observe::health`.
fn readiness_text<S: Store>(app: &App<S>) -> String {
    if app.connections.is_stopping() {
        return "stopping\n".to_owned();
    }
    let stale = app.metrics.polls.last_poll_failed().then_some("stale rules");
    let problems: Vec<&str> = app.health.problem().into_iter().chain(stale).collect();
    if problems.is_empty() { "ready\n".to_owned() } else { format!("ready ({})\n", problems.join(", ")) }
}

fn metrics_text<S: Store>(app: &App<S>) -> String {
    let status = app.source.status(app.now());
    app.metrics.to_text(&Gauges {
        audit_refused: app.source.audit_queues().map_or(0, AuditQueues::refused_actions),
        keys: app.snapshots.key_count(),
        capacity: Some(app.snapshots.key_capacity()).filter(|capacity| *capacity > 0),
        snapshot_age: app.snapshots.snapshot_age_seconds(app.now()),
        snapshot_failures: app.snapshots.failed_writes(),
        connections: app.connections.count(),
        waiting: app.waiters.waiting_count(),
        turned_away: app.waiters.turned_away(),
        idempotency: app.idempotency.counts(),
        store_up: app.health.is_up(),
        enforcing: app.engine.enforcement() == Enforcement::Enforce,
        overflowed: app.throttles.as_ref().map_or(0, RedisCellTable::overflowed)
            + app.engine.store().overflowed()
            + app.engine.fallback().overflowed(),
        engine: app.engine.counts(),
        rules: app.engine.rules(),
        // Only rules from a database have comparable revisions. For rules from files and from an xDS server, the
        // revision is only the number of loads.
        revision: app.source.audit_queues().and(status.revision).and_then(|revision| u64::try_from(revision).ok()),
        rules_age: app.metrics.polls.age_seconds(app.now()),
    })
}
