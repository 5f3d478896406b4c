//! The audit log: listing it, and recording what is not in the database.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use utoipa::IntoParams;

use super::bounds::{AUDIT_FLUSH, MAX_AUDIT_BATCH, MAX_QUEUED_RESETS, MAX_QUEUED_SWITCHES, MAX_SUBJECT};
use super::call::{ApiCall, QueryParams};
use super::describe::shared::NotModified;
use super::etag;
use super::reply::ApiResult;
use crate::control::Control;
use crate::control::audit::Note;
use crate::control::auth::{Access, Scope};
use crate::control::model::{AuditEntry, AuditSearch, Change, Page, PageRequest, Role};
use crate::ops::error::OpError;

/// Which entries.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    /// Of this domain.
    domain: Option<String>,
    /// By this author.
    author: Option<String>,
    /// About this rule, key or token.
    subject: Option<String>,
    /// The `next` of the previous page; from the newest by default.
    after: Option<String>,
    /// The maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// Lists changes, newest first, with the values before and after; for operators, because entries name tokens.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", operation_id = "list_audit", params(AuditQuery), responses(
    (status = 200, description = "A part of the log", body = Page<AuditEntry>),
    NotModified,
))]
pub(super) async fn list(call: ApiCall, QueryParams(query): QueryParams<AuditQuery>) -> ApiResult {
    call.access.require(Role::Operator, Scope::AllDomains)?;
    let AuditQuery { domain, author, subject, after, limit } = query;
    let search = AuditSearch { domain, author, subject };
    let page = call.control().audit().list(&search, &PageRequest { after, limit }).await?;
    // Entries are only added, at the start of the first page: the first entry identifies the page.
    let tag = etag::of(page.items.first().map_or(0, |entry| entry.seq));
    call.read(&tag, &page)
}

/// The queues of entries that do not belong to a change of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditQueue {
    /// Resets of counters.
    Resets,
    /// Switches of enforcement.
    Switches,
}

/// Entries on their way to the database. An entry that was accepted is written, however long the database is unreachable, unless
/// the process ends first.
#[derive(Debug)]
pub(super) struct AuditQueues {
    resets: mpsc::Sender<Note>,
    switches: mpsc::Sender<Note>,
    /// Entries that are reserved or accepted and not written yet.
    pending: Arc<watch::Sender<usize>>,
    refused: AtomicU64,
}

/// A reserved entry of the audit log: it can be written, whatever happens to the database.
#[derive(Debug)]
pub struct AuditSlot<'a> {
    permit: mpsc::Permit<'a, Note>,
    pending: &'a watch::Sender<usize>,
}

impl AuditQueues {
    /// Starts the task that writes entries.
    pub(super) fn start(control: &Arc<Control>, runtime: &Handle) -> Self {
        let (resets, reset_queue) = mpsc::channel(MAX_QUEUED_RESETS);
        let (switches, switch_queue) = mpsc::channel(MAX_QUEUED_SWITCHES);
        let pending = Arc::new(watch::Sender::new(0));
        for queue in [reset_queue, switch_queue] {
            runtime.spawn(write_entries(control.clone(), queue, pending.clone()));
        }
        Self { resets, switches, pending, refused: AtomicU64::new(0) }
    }

    /// Reserves an entry.
    pub(super) fn slot(&self, queue: AuditQueue) -> Result<AuditSlot<'_>, OpError> {
        let queue = match queue {
            AuditQueue::Resets => &self.resets,
            AuditQueue::Switches => &self.switches,
        };
        let permit = queue.try_reserve().map_err(|_| {
            // Relaxed: it orders nothing.
            if self.refused.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::error!("the audit log is full because the database does not answer; refusing actions");
            }
            OpError::not_recorded()
        })?;
        Ok(AuditSlot { permit, pending: &self.pending })
    }

    /// Returns how many actions were refused because the log could not keep their entry.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Waits until every accepted entry is written, for at most [`AUDIT_FLUSH`].
    pub(super) async fn flush(&self) {
        let mut pending = self.pending.subscribe();
        if timeout(AUDIT_FLUSH, pending.wait_for(|count| *count == 0)).await.is_err() {
            tracing::error!(entries = *self.pending.borrow(), "entries of the audit log were not written");
        }
    }
}

impl AuditSlot<'_> {
    /// Records an action.
    pub fn write(self, access: &Access, kind: &'static str, action: &'static str, domain: Option<&str>, subject: &str) {
        let storable = |text: &str| text.chars().filter(|char| *char != '\0').take(MAX_SUBJECT).collect();
        let (domain, subject) = (domain.map(storable), storable(subject));
        self.pending.send_modify(|count| *count += 1);
        self.permit.send(Note { change: Change::by(access.author()), kind, action, domain, subject });
    }
}

/// Writes entries in order, many in one transaction, and tries again while the database is unreachable.
async fn write_entries(control: Arc<Control>, mut queue: mpsc::Receiver<Note>, pending: Arc<watch::Sender<usize>>) {
    let mut notes = Vec::new();
    let mut is_failing = false;
    while queue.recv_many(&mut notes, MAX_AUDIT_BATCH).await > 0 {
        while let Err(error) = control.audit().note(&notes).await {
            if !is_failing {
                tracing::error!(%error, "cannot write to the audit log; trying again");
            }
            is_failing = true;
            tokio::time::sleep(RETRY).await;
        }
        if std::mem::take(&mut is_failing) {
            tracing::info!("the audit log is written again");
        }
        pending.send_modify(|count| *count -= notes.len());
        notes.clear();
    }
}

/// How long to wait before an entry is written again.
const RETRY: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_refuses_and_switches_have_their_own() {
        let ((resets, _reset_queue), (switches, _switch_queue)) = (mpsc::channel(2), mpsc::channel(1));
        let pending = Arc::new(watch::Sender::new(0));
        let queues = AuditQueues { resets, switches, pending, refused: AtomicU64::new(0) };
        for _ in 0..2 {
            queues.slot(AuditQueue::Resets).unwrap().write(&Access::Local, "key", "reset", None, "k\0k");
        }
        assert_eq!(queues.slot(AuditQueue::Resets).unwrap_err(), OpError::not_recorded());
        assert_eq!(queues.refused(), 1);
        let switch = queues.slot(AuditQueue::Switches).unwrap();
        assert_eq!(queues.slot(AuditQueue::Switches).unwrap_err(), OpError::not_recorded());
        switch.write(&Access::Local, "enforcement", "observe", None, "server");
        assert_eq!(*queues.pending.borrow(), 3);
    }
}
