//! Who did what, and when.

use std::sync::Arc;

use axum::extract::State;
use hyper::HeaderMap;
use serde::Deserialize;
use utoipa::IntoParams;

use super::query::Asked;
use super::reply::{self, Reply};
use super::told::Unchanged;
use super::{Desk, etag};
use crate::control::model::{AuditSearch, Cut, Entry, Page};

/// Which lines.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Searched {
    /// Of this domain.
    domain: Option<String>,
    /// By this author.
    author: Option<String>,
    /// About this rule, key or token.
    subject: Option<String>,
    /// What the last page gave as `next`; from the newest unless given.
    after: Option<String>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// Who changed what, the newest first, with what was there before and after.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(Searched), responses(
    (status = 200, description = "A part of the log", body = Page<Entry>),
    Unchanged,
))]
pub(super) async fn list(State(desk): State<Arc<Desk>>, Asked(asked): Asked<Searched>, headers: HeaderMap) -> Reply {
    let cut = Cut { after: asked.after, limit: asked.limit };
    let search = AuditSearch { domain: asked.domain, author: asked.author, subject: asked.subject };
    let page = desk.control.audit(&search, &cut).await?;
    // Lines are only ever added, at the beginning of the first page: its first line says which page it is.
    let tag = etag::of(page.items.first().map_or(0, |entry| entry.seq));
    reply::read(&headers, &tag, &page)
}
