//! Other numbers for one customer: small resources beside a rule, for billing systems and operators.

use std::sync::Arc;

use axum::extract::State;
use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa::IntoParams;

use super::comment::change;
use super::kind::{self, RULES};
use super::query::{Asked, At, By, Paging, RuleAt};
use super::reply::{self, Reply};
use super::told::{Comment, IfMatch, IfNothing, Unchanged};
use super::{Desk, etag};
use crate::control::auth::Place;
use crate::control::model::{Page, Role, StoredOverride};

/// The overrides of a rule, by value.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules/{id}/overrides", tag = "overrides", operation_id = "list_overrides",
    params(RuleAt, Paging),
    responses((status = 200, description = "A part of the list", body = Page<StoredOverride>), Unchanged),
)]
pub(super) async fn list(
    State(desk): State<Arc<Desk>>,
    At(at): At<RuleAt>,
    Asked(paging): Asked<Paging>,
    headers: HeaderMap,
) -> Reply {
    let tag = etag::of(desk.revision());
    reply::read(&headers, &tag, &desk.control.overrides(&at.domain, &at.id, &paging.into()).await?)
}

/// The overrides of all rules of a domain, by rule and value.
#[utoipa::path(get, path = "/v1/domains/{domain}/overrides", tag = "overrides", operation_id = "list_overrides_of_domain",
    params(("domain" = String, Path, description = "Whose rules", example = "api"), Paging),
    responses((status = 200, description = "A part of the list", body = Page<StoredOverride>), Unchanged),
)]
pub(super) async fn list_all(
    State(desk): State<Arc<Desk>>,
    At(domain): At<String>,
    Asked(paging): Asked<Paging>,
    headers: HeaderMap,
) -> Reply {
    let tag = etag::of(desk.revision());
    reply::read(&headers, &tag, &desk.control.overrides_of_domain(&domain, &paging.into()).await?)
}

/// Which override of which rule.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct OverrideAt {
    #[serde(flatten)]
    #[param(ignore)]
    of: RuleAt,
    /// For whom: the value of the attribute, any text, percent-encoded.
    #[param(min_length = 1, max_length = 1024, example = "acme")]
    value: String,
}

/// The numbers of one customer.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules/{id}/overrides/{value}", tag = "overrides", operation_id = "get_override",
    params(RuleAt, OverrideAt),
    responses((status = 200, description = "The override", body = StoredOverride), Unchanged),
)]
pub(super) async fn get(State(desk): State<Arc<Desk>>, At(at): At<OverrideAt>, headers: HeaderMap) -> Reply {
    let stored = desk.control.override_for(&at.of.domain, &at.of.id, &at.value).await?;
    reply::read(&headers, &etag::of(stored.version), &stored)
}

/// Sets the numbers of one customer. Setting what is set already changes nothing.
#[utoipa::path(put, path = "/v1/domains/{domain}/rules/{id}/overrides/{value}", tag = "overrides", operation_id = "put_override",
    params(RuleAt, OverrideAt, IfMatch, IfNothing, Comment),
    request_body(description = "An override as in a file, without `when`; with `attribute` if it is not the first one that the rule counts by, and where that is one or another", content((Object = "application/json"), (Object = "application/yaml"))),
    responses(
        (status = 200, description = "It was changed, or is as it was", body = StoredOverride),
        (status = 201, description = "It was made", body = StoredOverride),
    ),
)]
pub(super) async fn put(
    State(desk): State<Arc<Desk>>,
    By(access): By,
    At(at): At<OverrideAt>,
    headers: HeaderMap,
    body: Bytes,
) -> Reply {
    access.require(Role::Operator, Place::Domain(&at.of.domain))?;
    kind::check(&headers, RULES)?;
    let (change, expected) = (change(&access, &headers)?, etag::expected(&headers)?);
    let written = desk.control.put_override(&change, &at.of.domain, &at.of.id, &at.value, &body, expected).await?;
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    reply::json(status, &etag::of(written.now.version), &written.now)
}

/// The customer has the numbers of everybody again.
#[utoipa::path(delete, path = "/v1/domains/{domain}/rules/{id}/overrides/{value}", tag = "overrides", operation_id = "delete_override",
    params(RuleAt, OverrideAt, IfMatch, Comment),
    responses((status = 204, description = "It is gone")),
)]
pub(super) async fn delete(
    State(desk): State<Arc<Desk>>,
    By(access): By,
    At(at): At<OverrideAt>,
    headers: HeaderMap,
) -> Reply {
    access.require(Role::Operator, Place::Domain(&at.of.domain))?;
    let (change, expected) = (change(&access, &headers)?, etag::expected(&headers)?);
    desk.control.delete_override(&change, &at.of.domain, &at.of.id, &at.value, expected).await?;
    Ok(reply::done())
}
