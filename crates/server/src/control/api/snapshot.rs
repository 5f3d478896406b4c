//! Snapshots for nodes. A call returns immediately, or waits for a limited time until a newer snapshot exists.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};
use utoipa::IntoParams;

use super::bounds::MAX_NODE_WAIT;
use super::call::{ApiCall, QueryParams};
use super::etag;
use super::nodes::parse_node_report;
use super::reply::{self, ApiResult};
use crate::control::auth::Scope;
use crate::control::model::{Role, Snapshot};
use crate::http::problem::Problem;

/// The last snapshot in serialised form, so that it is serialised only once for all waiting nodes.
#[derive(Debug, Default)]
pub(super) struct SnapshotBytes(Mutex<Option<(Arc<Snapshot>, Bytes)>>);

impl SnapshotBytes {
    fn get(&self, snapshot: &Arc<Snapshot>) -> Result<Bytes, Problem> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = last.as_ref().filter(|(known, _)| Arc::ptr_eq(known, snapshot)) {
            return Ok(bytes.clone());
        }
        let bytes = serde_json::to_vec(&**snapshot)
            .map_err(|error| Problem::internal_error("cannot serialise a snapshot", &error))?;
        let bytes = Bytes::from(bytes);
        *last = Some((snapshot.clone(), bytes.clone()));
        Ok(bytes)
    }
}

/// The maximum time to wait for a newer snapshot.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitQuery {
    /// Seconds to wait for a snapshot that is newer than the snapshot in If-None-Match.
    #[serde(default)]
    #[param(minimum = 0, maximum = 60, default = 0)]
    wait: u64,
}

/// Returns the ETag of a snapshot.
fn snapshot_etag(snapshot: &Snapshot) -> String {
    let checksum: String = snapshot.checksum.chars().take(16).collect();
    format!("\"{}-{checksum}\"", snapshot.revision)
}

/// Returns the snapshot that nodes run: the enabled rules with their overrides, and the valid tokens. Requires the role
/// `node`.
///
/// With `wait` and If-None-Match, the call returns when a newer snapshot exists, or replies 304 after the wait.
#[utoipa::path(get, path = "/v1/snapshot", tag = "nodes", operation_id = "get_snapshot",
    params(
        WaitQuery,
        ("If-None-Match" = Option<String>, Header, description = "The ETag of the node's snapshot"),
        ("Tollgate-Node" = Option<String>, Header, description = "The name of the node, percent-encoded"),
        ("Tollgate-Running" = Option<String>, Header, description = "The revision that the node runs"),
        ("Tollgate-Refused" = Option<String>, Header, description = "A revision that the node refused, a space, and the reason; percent-encoded"),
    ),
    responses(
        (status = 200, description = "The snapshot", body = Snapshot, headers(("etag" = String, description = "The revision and the beginning of the checksum"))),
        (status = 304, description = "No newer snapshot"),
    ),
)]
pub(super) async fn get(call: ApiCall, QueryParams(query): QueryParams<WaitQuery>) -> ApiResult {
    call.access.require_role(Role::Node, Scope::AllDomains)?;
    if query.wait > MAX_NODE_WAIT.as_secs() {
        return Err(Problem::bad_request(format!(
            "wait too long: {} s (maximum {})",
            query.wait,
            MAX_NODE_WAIT.as_secs()
        )));
    }
    let update = |now| -> Result<(), Problem> {
        if let Some((node, report)) = parse_node_report(&call.headers, now)? {
            call.state.nodes.store_report(&node, report);
        }
        Ok(())
    };
    update(Instant::now())?;
    let reply = reply_when_newer(&call, Duration::from_secs(query.wait)).await;
    // Updates the time of the report, because the node was connected while it waited.
    update(Instant::now())?;
    reply
}

/// Replies as soon as the snapshot differs from the caller's, or with 304 after `wait`.
async fn reply_when_newer(call: &ApiCall, wait: Duration) -> ApiResult {
    let state = &call.state;
    let mut revisions = state.control.watch_revision();
    let deadline = Instant::now() + wait;
    let mut permit = None;
    loop {
        revisions.borrow_and_update();
        let snapshot = state.control.snapshot().await?;
        let tag = snapshot_etag(&snapshot);
        if !etag::reader_has_version(&call.headers, &tag)? {
            return Ok(reply::reply_bytes(StatusCode::OK, &tag, "application/json", state.snapshot.get(&snapshot)?));
        }
        if wait.is_zero() {
            return Ok(reply::not_modified(&tag));
        }
        if permit.is_none() {
            let full = |_| {
                let detail = "too many nodes are waiting; try again later";
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Busy", detail).with_retry_after(5)
            };
            permit = Some(state.waiters.try_acquire().map_err(full)?);
        }
        let changed = tokio::select! {
            changed = timeout_at(deadline, revisions.changed()) => matches!(changed, Ok(Ok(()))),
            () = state.connections.wait_for_shutdown() => false,
        };
        if !changed {
            return Ok(reply::not_modified(&tag));
        }
    }
}
