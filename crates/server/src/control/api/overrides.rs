//! Calls that list, read, set and delete overrides: limits that replace a rule's limits for one attribute value, such
//! as one customer. Billing systems and operators set overrides.

use bytes::Bytes;
use serde::Deserialize;
use utoipa::IntoParams;

use super::body::{self, RULE_TYPES};
use super::call::{ApiCall, PageQuery, PathParams, QueryParams, RulePath};
use super::describe::shared::{CommentHeader, IfMatch, IfNoneMatch, NotModified};
use super::etag;
use super::reply::{self, ApiResult, reply_written};
use crate::control::auth::Scope;
use crate::control::model::{Page, Role, StoredOverride};

/// Lists the overrides of a rule, ordered by value.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules/{id}/overrides", tag = "overrides", operation_id = "list_overrides",
    params(RulePath, PageQuery),
    responses((status = 200, description = "One page of the list", body = Page<StoredOverride>), NotModified),
)]
pub(super) async fn list(
    call: ApiCall,
    PathParams(RulePath { domain, id }): PathParams<RulePath>,
    QueryParams(page): QueryParams<PageQuery>,
) -> ApiResult {
    let tag = call.revision_tag();
    call.reply_authored_or_not_modified(
        &domain,
        &tag,
        call.control().overrides().list(&domain, &id, &page.into()).await?,
    )
}

/// Lists the overrides of all rules of a domain, ordered by rule and value.
#[utoipa::path(get, path = "/v1/domains/{domain}/overrides", tag = "overrides", operation_id = "list_overrides_of_domain",
    params(("domain" = String, Path, description = "The domain", example = "api"), PageQuery),
    responses((status = 200, description = "One page of the list", body = Page<StoredOverride>), NotModified),
)]
pub(super) async fn list_in_domain(
    call: ApiCall,
    PathParams(domain): PathParams<String>,
    QueryParams(page): QueryParams<PageQuery>,
) -> ApiResult {
    let tag = call.revision_tag();
    call.reply_authored_or_not_modified(
        &domain,
        &tag,
        call.control().overrides().list_in_domain(&domain, &page.into()).await?,
    )
}

/// The path of an override.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct OverridePath {
    #[serde(flatten)]
    #[param(ignore)]
    rule: RulePath,
    /// The value of the attribute: any text, percent-encoded.
    #[param(min_length = 1, max_length = 1024, example = "acme")]
    value: String,
}

/// Returns an override.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules/{id}/overrides/{value}", tag = "overrides", operation_id = "get_override",
    params(RulePath, OverridePath),
    responses((status = 200, description = "The override", body = StoredOverride), NotModified),
)]
pub(super) async fn get(call: ApiCall, PathParams(path): PathParams<OverridePath>) -> ApiResult {
    let OverridePath { rule: RulePath { domain, id }, value } = path;
    let stored = call.control().overrides().get(&domain, &id, &value).await?;
    call.reply_authored_or_not_modified(&domain, &etag::etag_of_version(stored.version), stored)
}

/// Creates or replaces an override. Writing the stored override again changes nothing.
#[utoipa::path(put, path = "/v1/domains/{domain}/rules/{id}/overrides/{value}", tag = "overrides", operation_id = "put_override",
    params(RulePath, OverridePath, IfMatch, IfNoneMatch, CommentHeader),
    request_body(description = "An override as in a file, without `when`. `attribute` defaults to the first attribute of the rule's `per`; it is required if `per` begins with `a or b`", content((Object = "application/json"), (Object = "application/yaml"))),
    responses(
        (status = 200, description = "The override, changed or unchanged", body = StoredOverride),
        (status = 201, description = "The override, created", body = StoredOverride),
    ),
)]
pub(super) async fn put(call: ApiCall, PathParams(path): PathParams<OverridePath>, text: Bytes) -> ApiResult {
    let OverridePath { rule: RulePath { domain, id }, value } = path;
    let change = call.authorize_change(Role::Operator, Scope::Domain(&domain))?;
    body::check_content_type(&call.headers, RULE_TYPES)?;
    reply_written(&call.control().overrides().put(&change, &domain, &id, &value, &text).await?)
}

/// Deletes an override. The rule's own limits apply again.
#[utoipa::path(delete, path = "/v1/domains/{domain}/rules/{id}/overrides/{value}", tag = "overrides", operation_id = "delete_override",
    params(RulePath, OverridePath, IfMatch, CommentHeader),
    responses((status = 204, description = "Deleted")),
)]
pub(super) async fn delete(call: ApiCall, PathParams(path): PathParams<OverridePath>) -> ApiResult {
    let OverridePath { rule: RulePath { domain, id }, value } = path;
    let change = call.authorize_change(Role::Operator, Scope::Domain(&domain))?;
    call.control().overrides().delete(&change, &domain, &id, &value).await?;
    Ok(reply::no_content())
}
