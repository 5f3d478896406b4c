//! Calls that list, compare and restore the versions of a rule.

use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::call::{ApiCall, PageQuery, PathParams, QueryParams, RulePath};
use super::describe::shared::{CommentHeader, IfMatch, NotModified};
use super::reply::{self, ApiResult, reply_written};
use super::{body, etag};
use crate::control::auth::Scope;
use crate::control::model::{Page, Role, StoredRule, Version};

/// Lists the versions of a rule, newest first. The versions of a deleted rule remain.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules/{id}/versions", tag = "history", operation_id = "list_versions",
    params(RulePath, PageQuery),
    responses((status = 200, description = "One page of the list", body = Page<Version>), NotModified),
)]
pub(super) async fn list(
    call: ApiCall,
    PathParams(path): PathParams<RulePath>,
    QueryParams(page): QueryParams<PageQuery>,
) -> ApiResult {
    let tag = call.revision_tag();
    call.reply_authored_or_not_modified(
        &path.domain,
        &tag,
        call.control().history().list(&path.domain, &path.id, &page.into()).await?,
    )
}

/// The path of a version.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct VersionPath {
    #[serde(flatten)]
    #[param(ignore)]
    rule: RulePath,
    /// The number of the version.
    #[param(minimum = 1, example = 1)]
    version: i64,
}

/// Returns a version of a rule.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules/{id}/versions/{version}", tag = "history", operation_id = "get_version",
    params(RulePath, VersionPath),
    responses((status = 200, description = "The version", body = Version), NotModified),
)]
pub(super) async fn get(call: ApiCall, PathParams(path): PathParams<VersionPath>) -> ApiResult {
    let version = call.control().history().get(&path.rule.domain, &path.rule.id, path.version).await?;
    call.reply_authored_or_not_modified(&path.rule.domain, &etag::etag_of_version(version.version), version)
}

/// The versions to compare.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct DiffQuery {
    /// The older version; by default the version before `to`. Version 0 is empty.
    #[param(minimum = 0)]
    from: Option<i64>,
    /// The newer version; by default the current version.
    #[param(minimum = 0)]
    to: Option<i64>,
}

/// Returns the line diff of two versions. Each line begins with `-`, `+` or a space.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules/{id}/diff", tag = "history",
    params(RulePath, DiffQuery),
    responses((status = 200, description = "The changes", body = String, content_type = "text/plain; charset=utf-8"), NotModified),
)]
pub(super) async fn diff(
    call: ApiCall,
    PathParams(path): PathParams<RulePath>,
    QueryParams(query): QueryParams<DiffQuery>,
) -> ApiResult {
    let tag = call.revision_tag();
    let to = match query.to {
        Some(to) => to,
        None => call.control().rules().get(&path.domain, &path.id).await?.version,
    };
    let from = query.from.unwrap_or(to.saturating_sub(1));
    let diff = call.control().history().diff(&path.domain, &path.id, from, to).await?;
    if etag::reader_has_version(&call.headers, &tag)? {
        return Ok(reply::not_modified(&tag));
    }
    Ok(reply::reply_bytes(StatusCode::OK, &tag, "text/plain; charset=utf-8", diff))
}

/// The version to roll back to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rollback {
    /// The number of an existing version.
    #[schema(minimum = 1, example = 1)]
    version: i64,
}

/// Restores an earlier version as a new version.
#[utoipa::path(post, path = "/v1/domains/{domain}/rules/{id}/rollback", tag = "history",
    params(RulePath, IfMatch, CommentHeader),
    request_body(content = Rollback, content_type = "application/json"),
    responses(
        (status = 200, description = "The rule, rolled back", body = StoredRule),
        (status = 201, description = "The deleted rule, created again", body = StoredRule),
    ),
)]
pub(super) async fn rollback(call: ApiCall, PathParams(path): PathParams<RulePath>, text: Bytes) -> ApiResult {
    let change = call.authorize_change(Role::Editor, Scope::Domain(&path.domain))?;
    let Rollback { version } = body::parse_json(&call, &text)?;
    reply_written(&call.control().history().rollback(&change, &path.domain, &path.id, version).await?)
}
