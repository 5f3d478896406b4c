//! What nodes are to run, at once or as soon as it changes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};
use utoipa::IntoParams;

use super::fault::Fault;
use super::limits::MAX_WAIT;
use super::nodes::report;
use super::query::Asked;
use super::reply::{self, Reply};
use super::{Desk, etag};
use crate::control::model::Snapshot;

/// The snapshot as it was last sent: a thousand nodes are told of a change at once, and it is written for them once.
#[derive(Debug, Default)]
pub(super) struct Sent(Mutex<Option<(Arc<Snapshot>, Bytes)>>);

impl Sent {
    fn bytes(&self, snapshot: &Arc<Snapshot>) -> Result<Bytes, Fault> {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = sent.as_ref().filter(|(known, _)| Arc::ptr_eq(known, snapshot)) {
            return Ok(bytes.clone());
        }
        let bytes = Bytes::from(serde_json::to_vec(&**snapshot).map_err(|error| {
            tracing::error!(%error, "a snapshot cannot be written");
            Fault::bug()
        })?);
        *sent = Some((snapshot.clone(), bytes.clone()));
        Ok(bytes)
    }
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Waiting {
    /// Seconds to wait for something newer than If-None-Match names.
    #[serde(default)]
    #[param(minimum = 0, maximum = 60, default = 0)]
    wait: u64,
}

/// The tag of a snapshot.
fn tag(snapshot: &Snapshot) -> String {
    let beginning: String = snapshot.checksum.chars().take(16).collect();
    format!("\"{}-{beginning}\"", snapshot.revision)
}

/// What nodes are to run: the rules that are enabled, with their overrides, and the tokens that are good.
///
/// With `wait` and If-None-Match it is answered when there is something newer, or 304 when the time is over.
#[utoipa::path(get, path = "/v1/snapshot", tag = "nodes",
    params(
        Waiting,
        ("If-None-Match" = Option<String>, Header, description = "The ETag of what the node has"),
        ("Tollgate-Node" = Option<String>, Header, description = "What the node calls itself, percent-encoded"),
        ("Tollgate-Running" = Option<String>, Header, description = "The revision it runs"),
        ("Tollgate-Refused" = Option<String>, Header, description = "A revision it would not run, a space, and why; percent-encoded"),
    ),
    responses(
        (status = 200, description = "What to run", body = Snapshot, headers(("etag" = String, description = "The revision and the beginning of the checksum"))),
        (status = 304, description = "Nothing newer"),
    ),
)]
pub(super) async fn get(State(desk): State<Arc<Desk>>, Asked(waiting): Asked<Waiting>, headers: HeaderMap) -> Reply {
    if waiting.wait > MAX_WAIT.as_secs() {
        return Err(Fault::bad_request(format!("wait is at most {} seconds", MAX_WAIT.as_secs())));
    }
    let told = |now| report(&headers, now).map(|told| told.map(|(node, heard)| desk.nodes.heard(&node, heard)));
    told(Instant::now())?;
    let answer = newer(&desk, &headers, Duration::from_secs(waiting.wait)).await;
    // A node that waits is heard of all the while.
    told(Instant::now())?;
    answer
}

/// A snapshot that the reader does not have, as soon as there is one.
async fn newer(desk: &Desk, headers: &HeaderMap, wait: Duration) -> Reply {
    let mut revisions = desk.control.watch();
    let deadline = Instant::now() + wait;
    let mut place = None;
    loop {
        revisions.borrow_and_update();
        let snapshot = desk.control.snapshot().await?;
        let tag = tag(&snapshot);
        if !etag::is_known(headers, &tag)? {
            return told(desk, &snapshot, &tag);
        }
        if wait.is_zero() {
            return Ok(reply::unchanged(&tag));
        }
        if place.is_none() {
            let full = |_| Fault::busy("too many nodes wait for news already; ask again later", 5);
            place = Some(desk.waiters.try_acquire().map_err(full)?);
        }
        let changed = tokio::select! {
            changed = timeout_at(deadline, revisions.changed()) => matches!(changed, Ok(Ok(()))),
            () = desk.connections.stopped() => false,
        };
        if !changed {
            return Ok(reply::unchanged(&tag));
        }
    }
}

fn told(desk: &Desk, snapshot: &Arc<Snapshot>, tag: &str) -> Result<Response, Fault> {
    Ok(reply::bytes(StatusCode::OK, tag, "application/json", desk.sent.bytes(snapshot)?))
}
