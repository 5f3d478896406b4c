//! The versions of a rule: what it was, what changed, and back.

use std::sync::Arc;

use axum::extract::State;
use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::comment::change;
use super::kind::{self, JSON};
use super::query::{Asked, At, By, Paging, RuleAt};
use super::reply::{self, Reply};
use super::rules::written;
use super::told::{Comment, IfMatch, Unchanged};
use super::{Desk, etag};
use crate::control::auth::Place;
use crate::control::model::{Page, Role, StoredRule, Version};

/// All versions of a rule, the newest first. Those of a rule that was deleted stay.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules/{id}/versions", tag = "history", operation_id = "list_versions",
    params(RuleAt, Paging),
    responses((status = 200, description = "A part of the list", body = Page<Version>), Unchanged),
)]
pub(super) async fn list(
    State(desk): State<Arc<Desk>>,
    At(at): At<RuleAt>,
    Asked(paging): Asked<Paging>,
    headers: HeaderMap,
) -> Reply {
    let tag = etag::of(desk.revision());
    reply::read(&headers, &tag, &desk.control.versions(&at.domain, &at.id, &paging.into()).await?)
}

/// Which version of which rule.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct VersionAt {
    #[serde(flatten)]
    #[param(ignore)]
    of: RuleAt,
    /// Which version.
    #[param(minimum = 1, example = 1)]
    version: i64,
}

/// One version of a rule.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules/{id}/versions/{version}", tag = "history", operation_id = "get_version",
    params(RuleAt, VersionAt),
    responses((status = 200, description = "The version", body = Version), Unchanged),
)]
pub(super) async fn get(State(desk): State<Arc<Desk>>, At(at): At<VersionAt>, headers: HeaderMap) -> Reply {
    let version = desk.control.version(&at.of.domain, &at.of.id, at.version).await?;
    reply::read(&headers, &etag::of(version.version), &version)
}

/// Between which versions.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Between {
    /// The older one; the one before `to` unless given. 0 is nothing.
    #[param(minimum = 0)]
    from: Option<i64>,
    /// The newer one; the current one unless given.
    #[param(minimum = 0)]
    to: Option<i64>,
}

/// What changed between two versions, line by line with `-`, `+` and space.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules/{id}/diff", tag = "history",
    params(RuleAt, Between),
    responses((status = 200, description = "What changed", body = String, content_type = "text/plain; charset=utf-8"), Unchanged),
)]
pub(super) async fn diff(
    State(desk): State<Arc<Desk>>,
    At(at): At<RuleAt>,
    Asked(between): Asked<Between>,
    headers: HeaderMap,
) -> Reply {
    let tag = etag::of(desk.revision());
    let to = match between.to {
        Some(to) => to,
        None => desk.control.rule(&at.domain, &at.id).await?.version,
    };
    let from = between.from.unwrap_or(to.saturating_sub(1));
    let diff = desk.control.diff(&at.domain, &at.id, from, to).await?;
    if etag::is_known(&headers, &tag)? {
        return Ok(reply::unchanged(&tag));
    }
    Ok(reply::bytes(StatusCode::OK, &tag, "text/plain; charset=utf-8", diff))
}

/// Which version is to be the current one.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rollback {
    /// One that there was.
    #[schema(minimum = 1, example = 1)]
    version: i64,
}

/// Makes an earlier version the current one, as a new version.
#[utoipa::path(post, path = "/v1/domains/{domain}/rules/{id}/rollback", tag = "history",
    params(RuleAt, IfMatch, Comment),
    request_body(content = Rollback, content_type = "application/json"),
    responses(
        (status = 200, description = "The rule as it is again", body = StoredRule),
        (status = 201, description = "The rule, which had been deleted", body = StoredRule),
    ),
)]
pub(super) async fn rollback(
    State(desk): State<Arc<Desk>>,
    By(access): By,
    At(at): At<RuleAt>,
    headers: HeaderMap,
    body: Bytes,
) -> Reply {
    access.require(Role::Editor, Place::Domain(&at.domain))?;
    kind::check(&headers, JSON)?;
    let Rollback { version } = kind::json(&body)?;
    let (change, expected) = (change(&access, &headers)?, etag::expected(&headers)?);
    written(&desk.control.rollback(&change, &at.domain, &at.id, version, expected).await?)
}
