//! Lists the audit log, and records actions that do not change the database, such as resets on this server or on a
//! node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use utoipa::IntoParams;

use super::bounds::{
    AUDIT_FLUSH_TIMEOUT, MAX_AUDIT_BATCH, MAX_NODE_NAME_CHARS, MAX_QUEUED_RESETS, MAX_QUEUED_SWITCHES, MAX_RULE_BYTES,
};
use super::call::{ApiCall, QueryParams, header_text};
use super::describe::shared::NotModified;
use super::nodes::NODE_HEADER;
use super::reply::{self, ApiResult};
use super::{body, etag};
use crate::client::Client;
use crate::control::Control;
use crate::control::audit::{ActionNote, NotedAction};
use crate::control::auth::{Access, Scope};
use crate::control::model::{AuditEntry, AuditSearch, Page, PageRequest, Role};
use crate::http::problem::Problem;
use crate::ops::error::OpError;

/// Filter and page for the audit log.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    /// Only entries of this domain.
    domain: Option<String>,
    /// Only entries by this author.
    author: Option<String>,
    /// Only entries about this rule, key or token.
    subject: Option<String>,
    /// The `next` of the previous page; by default the list starts with the newest entry.
    after: Option<String>,
    /// The maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// Lists changes, newest first, with the values before and after. Requires the role `operator`, because entries name
/// tokens.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", operation_id = "list_audit", params(AuditQuery), responses(
    (status = 200, description = "One page of the log", body = Page<AuditEntry>),
    NotModified,
))]
pub(super) async fn list(call: ApiCall, QueryParams(query): QueryParams<AuditQuery>) -> ApiResult {
    call.access.require_role(Role::Operator, Scope::AllDomains)?;
    let AuditQuery { domain, author, subject, after, limit } = query;
    let search = AuditSearch { domain, author, subject };
    let page = call.control().audit().list(&search, &PageRequest { after, limit }).await?;
    // Entries are added only at the start of the first page, and never change. So if a page with the same URL still has
    // the same first entry, the page is unchanged.
    let tag = etag::etag_of_version(page.items.first().map_or(0, |entry| entry.seq));
    call.reply_or_not_modified(&tag, &page)
}

/// Records actions that were taken on a node, in order. Called by nodes. The comment of each entry names the node.
#[utoipa::path(post, path = "/v1/audit", tag = "audit", operation_id = "report_actions",
    params(("Tollgate-Node" = Option<String>, Header, description = "The name of the node, percent-encoded")),
    request_body(content = Vec<ActionNote>, content_type = "application/json"),
    responses((status = 204, description = "All actions are in the log")),
)]
pub(super) async fn report_actions(call: ApiCall, text: Bytes) -> ApiResult {
    call.access.require_role(Role::Node, Scope::AllDomains)?;
    let notes: Vec<ActionNote> = body::parse_json(&call, &text)?;
    if notes.len() > MAX_AUDIT_BATCH {
        let detail = format!("too many entries: {} (maximum {MAX_AUDIT_BATCH})", notes.len());
        return Err(Problem::bad_request(detail));
    }
    let notes: Vec<ActionNote> = notes.into_iter().map(ActionNote::into_storable).collect();
    let node = header_text(&call.headers, NODE_HEADER)?.unwrap_or_else(|| call.access.author().to_owned());
    let node: String = node.chars().filter(|char| *char != '\0').take(MAX_NODE_NAME_CHARS).collect();
    call.control().audit().record_notes(&notes, Some(format!("on {node}"))).await?;
    Ok(reply::no_content())
}

/// The queue for an audit entry of an action that does not change the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditQueue {
    /// Counter resets.
    Resets,
    /// Enforcement switches.
    Switches,
}

/// The destination of this server's audit entries.
#[derive(Debug)]
pub enum AuditSink {
    /// The database of this server.
    Database(Arc<Control>),
    /// The rules service that this server follows.
    Service {
        /// The client of the service.
        client: Client,
        /// The name of this node.
        node: String,
    },
}

/// Queues of pending audit entries. Writing an accepted entry is retried until it succeeds or the process ends.
#[derive(Debug)]
pub struct AuditQueues {
    resets: mpsc::Sender<ActionNote>,
    switches: mpsc::Sender<ActionNote>,
    /// Number of accepted entries that are not yet written.
    pending: Arc<watch::Sender<usize>>,
    refused: AtomicU64,
}

/// A reserved slot in a queue. The slot guarantees that an entry can be queued.
#[derive(Debug)]
pub struct AuditSlot<'a> {
    permit: mpsc::Permit<'a, ActionNote>,
    pending: &'a watch::Sender<usize>,
}

impl AuditQueues {
    /// Starts the tasks that write entries.
    pub fn start(sink: AuditSink, runtime: &Handle) -> Self {
        let (resets, reset_queue) = mpsc::channel(MAX_QUEUED_RESETS);
        let (switches, switch_queue) = mpsc::channel(MAX_QUEUED_SWITCHES);
        let (sink, pending) = (Arc::new(sink), Arc::new(watch::Sender::new(0)));
        for queue in [reset_queue, switch_queue] {
            runtime.spawn(write_entries(sink.clone(), queue, pending.clone()));
        }
        Self { resets, switches, pending, refused: AtomicU64::new(0) }
    }

    /// Reserves a slot without waiting for the log, because the kill switch must work while the log is unreachable.
    ///
    /// # Errors
    /// Returns an error if the queue is full.
    pub fn reserve_entry(&self, queue: AuditQueue) -> Result<AuditSlot<'_>, OpError> {
        let queue = match queue {
            AuditQueue::Resets => &self.resets,
            AuditQueue::Switches => &self.switches,
        };
        let permit = queue.try_reserve().map_err(|_| {
            // Relaxed ordering suffices for a counter.
            if self.refused.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::error!("audit log unreachable and its queue full; refusing actions");
            }
            OpError::not_recorded()
        })?;
        Ok(AuditSlot { permit, pending: &self.pending })
    }

    /// Returns the number of actions refused because the queue for their audit entries was full.
    pub fn refused_actions(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Waits until every accepted entry is written, for at most [`AUDIT_FLUSH_TIMEOUT`].
    pub async fn flush(&self) {
        let mut pending = self.pending.subscribe();
        if timeout(AUDIT_FLUSH_TIMEOUT, pending.wait_for(|count| *count == 0)).await.is_err() {
            tracing::error!(entries = *self.pending.borrow(), "audit entries were not written before the timeout");
        }
    }
}

impl AuditSlot<'_> {
    /// Queues the entry of an action.
    pub fn queue_entry(self, access: &Access, action: NotedAction, domain: Option<&str>, subject: &str) {
        self.pending.send_modify(|count| *count += 1);
        self.permit.send(ActionNote::with_current_time(access.author(), action, domain, subject));
    }
}

/// Writes queued entries in order and in batches. After an error, retries until the entries are written.
async fn write_entries(
    sink: Arc<AuditSink>,
    mut queue: mpsc::Receiver<ActionNote>,
    pending: Arc<watch::Sender<usize>>,
) {
    let mut notes = Vec::new();
    let mut is_failing = false;
    while queue.recv_many(&mut notes, MAX_AUDIT_BATCH).await > 0 {
        while !notes.is_empty() {
            match sink.write_notes(&notes).await {
                Ok(written) => {
                    notes.drain(..written);
                    pending.send_modify(|count| *count -= written);
                    if std::mem::take(&mut is_failing) {
                        tracing::info!("audit log writable again");
                    }
                }
                Err(error) => {
                    if !is_failing {
                        tracing::error!(error, "cannot write to the audit log; trying again");
                    }
                    is_failing = true;
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }
}

impl AuditSink {
    /// Writes the first of `notes`, and further notes that fit in the same request. Returns the number written.
    async fn write_notes(&self, notes: &[ActionNote]) -> Result<usize, String> {
        match self {
            Self::Database(control) => {
                control.audit().record_notes(notes, None).await.map(|()| notes.len()).map_err(|error| error.to_string())
            }
            Self::Service { client, node } => {
                let (count, body) = notes_that_fit(notes);
                let request = client.request(Method::POST, &["v1", "audit"]).header(NODE_HEADER, node);
                let request = request.header(CONTENT_TYPE, "application/json").timeout(REPORT_TIMEOUT).body(body);
                let response = request.send().await.map_err(|error| error.without_url().to_string())?;
                match response.status() {
                    StatusCode::NO_CONTENT => Ok(count),
                    status => Err(format!("{} answered {status}", client.url())),
                }
            }
        }
    }
}

/// Returns the number of leading `notes` that fit in a request body (at least one), and their JSON.
fn notes_that_fit(notes: &[ActionNote]) -> (usize, String) {
    let mut body = String::from("[");
    let mut count = 0;
    for note in notes {
        // Serialising a struct of numbers and strings cannot fail.
        let note = serde_json::to_string(note).unwrap_or_default();
        if count > 0 && body.len() + note.len() + 2 > MAX_RULE_BYTES {
            break;
        }
        if count > 0 {
            body.push(',');
        }
        body.push_str(&note);
        count += 1;
    }
    body.push(']');
    (count, body)
}

/// Timeout for a report to the rules service.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Delay before a failed write is retried.
const RETRY_DELAY: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_reset_queue_does_not_block_switches() {
        let ((resets, _reset_queue), (switches, _switch_queue)) = (mpsc::channel(2), mpsc::channel(1));
        let pending = Arc::new(watch::Sender::new(0));
        let queues = AuditQueues { resets, switches, pending, refused: AtomicU64::new(0) };
        for _ in 0..2 {
            queues.reserve_entry(AuditQueue::Resets).unwrap().queue_entry(
                &Access::Unrestricted,
                NotedAction::Reset,
                None,
                "k",
            );
        }
        assert_eq!(queues.reserve_entry(AuditQueue::Resets).unwrap_err(), OpError::not_recorded());
        assert_eq!(queues.refused_actions(), 1);
        let switch = queues.reserve_entry(AuditQueue::Switches).unwrap();
        assert_eq!(queues.reserve_entry(AuditQueue::Switches).unwrap_err(), OpError::not_recorded());
        switch.queue_entry(&Access::Unrestricted, NotedAction::Observe, None, "server");
        assert_eq!(*queues.pending.borrow(), 3);
    }

    #[test]
    fn report_fits_in_a_request_body() {
        let note = ActionNote::with_current_time("ann", NotedAction::Reset, Some("api"), &"\u{1}".repeat(5_000));
        assert_eq!(note.subject.len(), 1_000, "truncated to the maximum length of a subject");
        let notes = vec![note; 40];
        let (count, body) = notes_that_fit(&notes);
        assert!(count > 5 && count < 40 && body.len() <= MAX_RULE_BYTES, "{count} notes in {} bytes", body.len());
        assert_eq!(serde_json::from_str::<Vec<ActionNote>>(&body).unwrap(), notes[..count]);
    }
}
