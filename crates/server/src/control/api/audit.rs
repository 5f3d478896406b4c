//! The audit log: listing it, and recording what is not in the database.

use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::mpsc;
use utoipa::IntoParams;

use super::call::{Call, QueryParams};
use super::describe::shared::NotModified;
use super::etag;
use super::reply::Reply;
use crate::control::Control;
use crate::control::model::{AuditEntry, AuditSearch, Change, Page, PageRequest};

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

/// Lists changes, newest first, with the values before and after.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", operation_id = "list_audit", params(AuditQuery), responses(
    (status = 200, description = "A part of the log", body = Page<AuditEntry>),
    NotModified,
))]
pub(super) async fn list(call: Call, QueryParams(query): QueryParams<AuditQuery>) -> Reply {
    let AuditQuery { domain, author, subject, after, limit } = query;
    let search = AuditSearch { domain, author, subject };
    let page = call.control().audit().list(&search, &PageRequest { after, limit }).await?;
    // Entries are only added, at the start of the first page: the first entry identifies the page.
    let tag = etag::of(page.items.first().map_or(0, |entry| entry.seq));
    call.read(&tag, &page)
}

/// An action that does not change the database: the kill switch, or a reset.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) change: Change,
    pub(super) kind: &'static str,
    pub(super) action: &'static str,
    pub(super) domain: Option<String>,
    pub(super) subject: String,
}

/// Writes notes into the audit log, until their senders are gone.
pub(super) async fn write_notes(control: Arc<Control>, mut notes: mpsc::Receiver<Note>) {
    while let Some(note) = notes.recv().await {
        let Note { change, kind, action, domain, subject } = &note;
        if let Err(error) = control.audit().note(change, kind, action, domain.as_deref(), subject).await {
            tracing::error!(%error, ?note, "cannot write to the audit log");
        }
    }
}
