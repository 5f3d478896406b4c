//! The pages about the server.

use bytes::Bytes;
use tollgate::redis_cell::RedisCellTable;
use tollgate_engine::{Enforcement, Store};

use super::ServerPage;
use super::view::PageView;
use crate::app::App;
use crate::control::api::describe;
use crate::observe::metrics::Gauges;

/// Returns a page.
pub(super) fn page<S: Store>(app: &App<S>, page: ServerPage) -> PageView {
    let body = match page {
        ServerPage::Enforcement => format!("{{\"mode\":\"{}\"}}", app.engine.enforcement().as_str()).into(),
        ServerPage::Health => Bytes::from_static(b"ok\n"),
        ServerPage::Readiness => Bytes::from_static(readiness(app).as_bytes()),
        ServerPage::Metrics => metrics(app).into(),
        // Structs of numbers and strings always serialise.
        ServerPage::TopKeys => serde_json::to_vec(&app.top.page()).unwrap_or_default().into(),
        ServerPage::RulesStatus => serde_json::to_vec(&app.source.status(app.now())).unwrap_or_default().into(),
        ServerPage::ApiDescription => describe::document(),
    };
    PageView {
        content_type: page.content_type(),
        ready: page != ServerPage::Readiness || !app.connections.is_stopping(),
        body,
    }
}

/// Returns the readiness. A server without its store or its rules service is ready; `observe::health` says why.
fn readiness<S: Store>(app: &App<S>) -> &'static str {
    match (app.connections.is_stopping(), app.health.is_up(), app.metrics.polls.is_unreachable()) {
        (true, ..) => "stopping\n",
        (false, true, false) => "ready\n",
        (false, false, false) => "ready (store unreachable)\n",
        (false, true, true) => "ready (stale rules)\n",
        (false, false, true) => "ready (store unreachable, stale rules)\n",
    }
}

fn metrics<S: Store>(app: &App<S>) -> String {
    let status = app.source.status(app.now());
    app.metrics.to_text(&Gauges {
        audit_refused: app.source.service().map_or(0, |service| service.audit_refused()),
        keys: app.snapshots.counters(),
        capacity: Some(app.snapshots.capacity()).filter(|capacity| *capacity > 0),
        snapshot_age: app.snapshots.age(app.now()),
        snapshot_failures: app.snapshots.failures(),
        connections: app.connections.count(),
        waiting: app.waiters.waiting(),
        turned_away: app.waiters.turned_away(),
        once: app.idempotency.counts(),
        store_up: app.health.is_up(),
        enforcing: app.engine.enforcement() == Enforcement::Enforce,
        overflowed: app.throttles.as_ref().map_or(0, RedisCellTable::overflowed)
            + app.engine.store().overflowed()
            + app.engine.fallback().overflowed(),
        engine: app.engine.counts(),
        rules: app.engine.rules(),
        // A file has no revisions: its version is the number of loads.
        revision: status.checksum.and(status.revision).and_then(|revision| u64::try_from(revision).ok()),
        rules_age: app.metrics.polls.age_seconds(app.now()),
    })
}
