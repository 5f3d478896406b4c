//! Rules, one by one and in lists.

use std::sync::Arc;

use axum::extract::State;
use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::comment::change;
use super::kind::{self, PATCH, RULES};
use super::query::{Asked, At, By, RuleAt};
use super::reply::{self, Reply};
use super::told::{Comment, IfMatch, IfNothing, Unchanged};
use super::{Desk, etag};
use crate::control::Written;
use crate::control::auth::Place;
use crate::control::model::{Cut, DomainSummary, Page, Role, Search, StoredRule};

/// Domains that have rules.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DomainList {
    /// By name.
    items: Vec<DomainSummary>,
}

/// The domains that have rules, how many, and when they were last changed.
#[utoipa::path(get, path = "/v1/domains", tag = "rules", responses(
    (status = 200, description = "The domains", body = DomainList),
    Unchanged,
))]
pub(super) async fn domains(State(desk): State<Arc<Desk>>, headers: HeaderMap) -> Reply {
    let tag = etag::of(desk.revision());
    reply::read(&headers, &tag, &DomainList { items: desk.control.domains().await? })
}

/// Which rules.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Searched {
    /// Whose id or text contains this.
    q: Option<String>,
    /// Those that are enabled, or those that are not.
    enabled: Option<bool>,
    /// What the last page gave as `next`; from the beginning unless given.
    after: Option<String>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// The rules of a domain, in the order in which they are looked at.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules", tag = "rules",
    params(("domain" = String, Path, description = "Whose rules", example = "api"), Searched),
    responses((status = 200, description = "A part of the list", body = Page<StoredRule>), Unchanged),
)]
pub(super) async fn list(
    State(desk): State<Arc<Desk>>,
    At(domain): At<String>,
    Asked(asked): Asked<Searched>,
    headers: HeaderMap,
) -> Reply {
    let cut = Cut { after: asked.after, limit: asked.limit };
    let search = Search { text: asked.q, enabled: asked.enabled };
    let tag = etag::of(desk.revision());
    reply::read(&headers, &tag, &desk.control.rules(&domain, &search, &cut).await?)
}

/// A rule as it stands.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules/{id}", tag = "rules", operation_id = "get_rule",
    params(RuleAt),
    responses((status = 200, description = "The rule", body = StoredRule), Unchanged),
)]
pub(super) async fn get(State(desk): State<Arc<Desk>>, At(at): At<RuleAt>, headers: HeaderMap) -> Reply {
    let rule = desk.control.rule(&at.domain, &at.id).await?;
    reply::read(&headers, &etag::of(rule.version), &rule)
}

/// Makes a rule, or replaces it. Writing what is there already changes nothing.
#[utoipa::path(put, path = "/v1/domains/{domain}/rules/{id}", tag = "rules", operation_id = "put_rule",
    params(RuleAt, IfMatch, IfNothing, Comment),
    request_body(description = "A rule as in a file; `id` may be left out", content((Object = "application/json"), (Object = "application/yaml"))),
    responses(
        (status = 200, description = "It was changed, or is as it was", body = StoredRule),
        (status = 201, description = "It was made", body = StoredRule),
    ),
)]
pub(super) async fn put(
    State(desk): State<Arc<Desk>>,
    By(access): By,
    At(at): At<RuleAt>,
    headers: HeaderMap,
    body: Bytes,
) -> Reply {
    access.require(Role::Editor, Place::Domain(&at.domain))?;
    kind::check(&headers, RULES)?;
    let (change, expected) = (change(&access, &headers)?, etag::expected(&headers)?);
    written(&desk.control.put_rule(&change, &at.domain, &at.id, &body, expected).await?)
}

/// Changes parts of a rule: a merge patch (RFC 7396), in which null removes.
#[utoipa::path(patch, path = "/v1/domains/{domain}/rules/{id}", tag = "rules", operation_id = "patch_rule",
    params(RuleAt, IfMatch, Comment),
    request_body(content = Object, content_type = "application/merge-patch+json", example = json!({"limit": "200/s"})),
    responses((status = 200, description = "It was changed, or is as it was", body = StoredRule)),
)]
pub(super) async fn patch(
    State(desk): State<Arc<Desk>>,
    By(access): By,
    At(at): At<RuleAt>,
    headers: HeaderMap,
    body: Bytes,
) -> Reply {
    access.require(Role::Editor, Place::Domain(&at.domain))?;
    kind::check(&headers, PATCH)?;
    let (change, expected) = (change(&access, &headers)?, etag::expected(&headers)?);
    written(&desk.control.patch_rule(&change, &at.domain, &at.id, &body, expected).await?)
}

/// Deletes a rule. Its history stays, and so do its overrides, which apply again when it comes back.
#[utoipa::path(delete, path = "/v1/domains/{domain}/rules/{id}", tag = "rules", operation_id = "delete_rule",
    params(RuleAt, IfMatch, Comment),
    responses((status = 204, description = "It is gone")),
)]
pub(super) async fn delete(
    State(desk): State<Arc<Desk>>,
    By(access): By,
    At(at): At<RuleAt>,
    headers: HeaderMap,
) -> Reply {
    access.require(Role::Editor, Place::Domain(&at.domain))?;
    let (change, expected) = (change(&access, &headers)?, etag::expected(&headers)?);
    desk.control.delete_rule(&change, &at.domain, &at.id, expected).await?;
    Ok(reply::done())
}

/// A rule that was written.
pub(super) fn written(written: &Written<StoredRule>) -> Reply {
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    reply::json(status, &etag::of(written.now.version), &written.now)
}
