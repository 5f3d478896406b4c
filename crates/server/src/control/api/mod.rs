//! The HTTP API of the rules service ([`Control`]).
//!
//! The decision threads pass requests for the rules service to the control thread, so a slow database does not delay
//! decisions.
#![allow(unused_qualifications, reason = "the macros that describe calls write full paths")]

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::response::IntoResponse;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tower::ServiceExt;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use self::audit::{AuditQueue, AuditQueues, AuditSink, AuditSlot};
use self::nodes::Nodes;
use self::replay::ReplayPermit;
pub(crate) use self::replay::check_may_replay;
use self::snapshot::SnapshotBytes;
use super::Control;
use super::auth::Access;
use crate::http::HttpResponse;
use crate::http::problem::Problem;
use crate::net::shutdown::Connections;

mod audit;
mod body;
pub mod bounds;
mod call;
pub mod describe;
mod etag;
mod files;
mod fleet;
pub mod form;
mod history;
mod nodes;
mod overrides;
mod replay;
mod reply;
mod rules;
mod snapshot;
mod tokens;

/// The rules service of this process.
#[derive(Debug)]
pub struct RulesService {
    state: Arc<ApiState>,
    router: Router,
    runtime: Handle,
    audit: AuditQueues,
    /// Permits for processing rule files.
    rule_file_permits: Semaphore,
    /// Permits for kilobytes of rule files.
    upload_permits: Semaphore,
    /// Permits for logs that are received or replayed.
    replays: Arc<Semaphore>,
}

/// State shared by all calls.
#[derive(Debug)]
struct ApiState {
    control: Arc<Control>,
    nodes: Nodes,
    /// Permits for nodes that wait for the next revision.
    waiters: Semaphore,
    /// The last snapshot in serialised form.
    snapshot: SnapshotBytes,
    connections: Arc<Connections>,
}

impl ApiState {
    /// Returns the current revision.
    fn revision(&self) -> i64 {
        *self.control.watch_revision().borrow()
    }
}

impl RulesService {
    /// Creates the HTTP service for `control`. The service runs on `runtime`, whose thread makes no decisions. Waiting
    /// calls end when `connections` is stopped.
    pub fn new(control: Arc<Control>, runtime: Handle, connections: Arc<Connections>) -> Self {
        let audit = AuditQueues::start(AuditSink::Database(control.clone()), &runtime);
        let state = Arc::new(ApiState {
            control,
            nodes: Nodes::default(),
            waiters: Semaphore::new(bounds::MAX_WAITING_NODES),
            snapshot: SnapshotBytes::default(),
            connections,
        });
        let (router, _) = routes().split_for_parts();
        let router = router
            .fallback(not_found)
            .method_not_allowed_fallback(method_not_allowed)
            // The front end has already read the body and limited its size.
            .layer(DefaultBodyLimit::disable())
            .with_state(state.clone());
        let (rule_file_permits, upload_permits) =
            (Semaphore::new(bounds::MAX_PROCESSED_FILES), Semaphore::new(bounds::MAX_RECEIVED_KB));
        let replays = Arc::new(Semaphore::new(bounds::MAX_REPLAYS));
        Self { state, router, runtime, audit, rule_file_permits, upload_permits, replays }
    }

    /// Returns the rules service without its HTTP layer.
    pub fn control(&self) -> &Arc<Control> {
        &self.state.control
    }

    /// Returns the permits for processing rule files.
    pub(crate) fn rule_file_permits(&self) -> &Semaphore {
        &self.rule_file_permits
    }

    /// Returns the permits for kilobytes of rule files that are received or processed.
    pub(crate) fn upload_permits(&self) -> &Semaphore {
        &self.upload_permits
    }

    /// Begins a replay. Returns `None` if too many replays are running.
    pub(crate) fn begin_replay(&self) -> Option<ReplayPermit> {
        self.replays.clone().try_acquire_owned().ok().map(ReplayPermit::new)
    }

    /// Returns the queues of pending audit entries.
    pub fn audit_queues(&self) -> &AuditQueues {
        &self.audit
    }

    /// Answers a request on the control thread.
    pub async fn answer(&self, mut head: Parts, body: Bytes, access: Access) -> HttpResponse {
        let reads = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS) || uploads_log(&head);
        head.extensions.insert(access);
        let answer = self.router.clone().oneshot(Request::from_parts(head, Body::from(body)));
        let task = self.runtime.spawn(async move {
            let Ok(answer) = answer.await;
            let (head, body) = answer.into_parts();
            // Collecting the body cannot fail, because it is in memory.
            let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            Response::from_parts(head, body.into())
        });
        // A read is cancelled when its caller disconnects. A write is always completed.
        let _guard = reads.then(|| AbortOnDrop(task.abort_handle()));
        match timeout(bounds::CALL_TIMEOUT, task).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Problem::internal_error("call of the rules service failed", &error).to_response(),
            Err(_) => timeout_problem().to_response(),
        }
    }
}

/// Aborts a task when dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn timeout_problem() -> Problem {
    let seconds = bounds::CALL_TIMEOUT.as_secs();
    let detail = format!("no answer within {seconds} s; the change may or may not have been made");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Too slow", detail).with_retry_after(10)
}

/// Returns the routes, with their descriptions.
fn routes() -> OpenApiRouter<Arc<ApiState>> {
    OpenApiRouter::default()
        .routes(routes!(rules::domains))
        .routes(routes!(rules::list))
        .routes(routes!(rules::get, rules::put, rules::patch, rules::delete))
        .routes(routes!(rules::enable))
        .routes(routes!(rules::disable))
        .routes(routes!(history::list))
        .routes(routes!(history::get))
        .routes(routes!(history::diff))
        .routes(routes!(history::rollback))
        .routes(routes!(overrides::list))
        .routes(routes!(overrides::list_in_domain))
        .routes(routes!(overrides::get, overrides::put, overrides::delete))
        .routes(routes!(files::validate))
        .routes(routes!(files::apply))
        .routes(routes!(files::export))
        .routes(routes!(replay::replay_logs))
        .routes(routes!(snapshot::get))
        .routes(routes!(nodes::list))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(audit::list, audit::report_actions))
        .routes(routes!(fleet::get, fleet::put))
}

/// Replies to a path without a route.
async fn not_found(uri: Uri) -> Problem {
    let path: String = uri.path().chars().take(200).collect();
    Problem::not_found(format!("no such endpoint: {path}; /openapi.json lists all endpoints"))
}

/// Replies to a method that the route does not accept. The router adds the header `Allow`.
async fn method_not_allowed(method: Method) -> axum::response::Response {
    match method {
        Method::OPTIONS => reply::no_content(),
        _ => {
            let detail = format!("{method} is not allowed here; the header Allow lists the methods");
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", detail).into_response()
        }
    }
}

/// Returns whether a path belongs to the rules service. The front end matches the paths of decisions first.
pub fn owns_path(path: &str) -> bool {
    const PATH_PREFIXES: [&str; 10] = [
        "/v1/domains",
        "/v1/validate",
        "/v1/apply",
        "/v1/export",
        replay::REPLAY_PATH,
        "/v1/snapshot",
        "/v1/nodes",
        "/v1/tokens",
        "/v1/audit",
        "/v1/fleet",
    ];
    PATH_PREFIXES
        .iter()
        .any(|prefix| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Returns whether a path accepts whole rule files, which need a larger body limit.
pub fn accepts_rule_files(path: &str) -> bool {
    matches!(path, "/v1/validate" | "/v1/apply")
}

/// Returns whether a request uploads a log. Such a request has its own body limit, and counts as a read, because it
/// changes nothing.
pub fn uploads_log(head: &Parts) -> bool {
    head.method == Method::POST && head.uri.path() == replay::REPLAY_PATH
}

const _: () = assert!(
    bounds::CALL_TIMEOUT.as_secs() > bounds::MAX_NODE_WAIT.as_secs(),
    "the wait of a node ends before the timeout of its call"
);
