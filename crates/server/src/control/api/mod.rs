//! The rules service over HTTP: what `Control` does, as paths, methods and statuses.
//!
//! Threads that decide hand such requests over to the thread of the control plane, and serve their other connections while it works:
//! a slow database holds up nobody but those who ask for what is in it.
#![allow(unused_qualifications, reason = "what describes a call writes its own path to everything it names")]

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tower::ServiceExt;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::fault::Fault;
use self::nodes::Nodes;
use self::note::Note;
use self::snapshot::Sent;
use super::Control;
use super::auth::Access;
use crate::net::shutdown::Connections;

mod apply;
mod audit;
mod comment;
pub mod describe;
mod etag;
mod fault;
mod history;
mod kind;
pub mod limits;
mod nodes;
mod note;
mod overrides;
mod query;
mod reply;
mod rules;
mod snapshot;
mod switch;
mod tokens;
mod told;

/// What is sent back.
pub type Answer = Response<Full<Bytes>>;

/// The rules service of this process.
#[derive(Debug)]
pub struct Service {
    desk: Arc<Desk>,
    router: Router,
    runtime: Handle,
    notes: mpsc::Sender<Note>,
    /// Large bodies that are held at a time.
    large: Semaphore,
}

/// What every call has at hand.
#[derive(Debug)]
struct Desk {
    control: Arc<Control>,
    nodes: Nodes,
    /// Who waits for the next revision.
    waiters: Semaphore,
    /// The snapshot as it was last sent.
    sent: Sent,
    connections: Arc<Connections>,
}

impl Desk {
    /// The revision that lists are told to be of. It is looked at before they are read, so that it is never newer than they are.
    fn revision(&self) -> i64 {
        *self.control.watch().borrow()
    }
}

impl Service {
    /// The service of `control`, which runs on `runtime`: a thread that makes no decisions. Whoever waits is sent away when `connections` stops.
    pub fn new(control: Arc<Control>, runtime: Handle, connections: Arc<Connections>) -> Self {
        let desk = Arc::new(Desk {
            control: control.clone(),
            nodes: Nodes::default(),
            waiters: Semaphore::new(limits::MAX_WAITERS),
            sent: Sent::default(),
            connections,
        });
        let (router, _) = calls().split_for_parts();
        let router = router
            .fallback(switch::nothing_here)
            .method_not_allowed_fallback(switch::another_method)
            // The front end has read the body already, within bounds of its own.
            .layer(DefaultBodyLimit::disable())
            .with_state(desk.clone());
        let (notes, queue) = mpsc::channel(limits::MAX_NOTES);
        runtime.spawn(note::write_down(control, queue));
        Self { desk, router, runtime, notes, large: Semaphore::new(limits::MAX_LARGE_BODIES) }
    }

    /// What the service keeps.
    pub fn control(&self) -> &Arc<Control> {
        &self.desk.control
    }

    /// A place to keep a large body in while it is read and worked on.
    pub(crate) fn large(&self) -> &Semaphore {
        &self.large
    }

    /// Has a request answered by the thread of the control plane.
    pub async fn answer(&self, mut head: Parts, body: Bytes, access: Access) -> Answer {
        let reads = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
        head.extensions.insert(access);
        let answer = self.router.clone().oneshot(Request::from_parts(head, Body::from(body)));
        let task = self.runtime.spawn(async move {
            let Ok(answer) = answer.await;
            let (head, body) = answer.into_parts();
            // Made of bytes that are there.
            let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            Response::from_parts(head, Full::new(body))
        });
        // Who stops waiting for an answer needs it no more. What was to be written is written all the same: half of it never is.
        let _end = reads.then(|| EndWith(task.abort_handle()));
        match timeout(limits::ANSWER, task).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::error!(%error, "a call of the rules service failed");
                Fault::bug().into_answer()
            }
            Err(_) => Fault::too_slow(limits::ANSWER).into_answer(),
        }
    }
}

/// Ends a task with the one that asked for it.
struct EndWith(AbortHandle);

impl Drop for EndWith {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// All calls, with what is to be said about each.
fn calls() -> OpenApiRouter<Arc<Desk>> {
    OpenApiRouter::default()
        .routes(routes!(rules::domains))
        .routes(routes!(rules::list))
        .routes(routes!(rules::get, rules::put, rules::patch, rules::delete))
        .routes(routes!(switch::enable))
        .routes(routes!(switch::disable))
        .routes(routes!(history::list))
        .routes(routes!(history::get))
        .routes(routes!(history::diff))
        .routes(routes!(history::rollback))
        .routes(routes!(overrides::list))
        .routes(routes!(overrides::list_all))
        .routes(routes!(overrides::get, overrides::put, overrides::delete))
        .routes(routes!(apply::validate))
        .routes(routes!(apply::apply))
        .routes(routes!(apply::export))
        .routes(routes!(snapshot::get))
        .routes(routes!(nodes::list))
        .routes(routes!(tokens::list, tokens::make))
        .routes(routes!(tokens::revoke))
        .routes(routes!(audit::list))
}

/// Whether a path is one of the rules service. Those that decide are looked for first.
pub fn owns(path: &str) -> bool {
    const PREFIXES: [&str; 8] = [
        "/v1/domains",
        "/v1/validate",
        "/v1/apply",
        "/v1/export",
        "/v1/snapshot",
        "/v1/nodes",
        "/v1/tokens",
        "/v1/audit",
    ];
    PREFIXES.iter().any(|prefix| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Whether whole rule files are sent there, which are larger than anything else.
pub fn takes_files(path: &str) -> bool {
    matches!(path, "/v1/validate" | "/v1/apply")
}

const _: () = assert!(limits::ANSWER.as_secs() > limits::MAX_WAIT.as_secs(), "who waits for news is answered");
