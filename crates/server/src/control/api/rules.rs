//! Calls that list, read, change, enable and disable rules.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::body::{self, PATCH_TYPES, RULE_TYPES};
use super::call::{ApiCall, PathParams, QueryParams, RulePath};
use super::describe::shared::{CommentHeader, IfMatch, IfNoneMatch, NotModified};
use super::etag;
use super::reply::{self, ApiResult, reply_written};
use crate::control::auth::Scope;
use crate::control::model::{DomainSummary, Page, PageRequest, Role, RuleSearch, StoredRule};

/// The domains that have rules.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DomainList {
    /// The domains, by name.
    items: Vec<DomainSummary>,
}

/// Lists the domains that have rules.
#[utoipa::path(get, path = "/v1/domains", tag = "rules", responses(
    (status = 200, description = "The domains", body = DomainList),
    NotModified,
))]
pub(super) async fn domains(call: ApiCall) -> ApiResult {
    let tag = call.revision_tag();
    call.reply_or_not_modified(&tag, &DomainList { items: call.control().rules().domains().await? })
}

/// Filter and page of rules.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleQuery {
    /// Only rules whose id or text contains this string.
    q: Option<String>,
    /// Only enabled rules (`true`) or only disabled rules (`false`).
    enabled: Option<bool>,
    /// The `next` of the previous page; by default the list starts at the beginning.
    after: Option<String>,
    /// The maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// Lists the rules of a domain, in the order in which they are evaluated.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules", tag = "rules", operation_id = "list_rules",
    params(("domain" = String, Path, description = "The domain", example = "api"), RuleQuery),
    responses((status = 200, description = "One page of the list", body = Page<StoredRule>), NotModified),
)]
pub(super) async fn list(
    call: ApiCall,
    PathParams(domain): PathParams<String>,
    QueryParams(query): QueryParams<RuleQuery>,
) -> ApiResult {
    let RuleQuery { q: text, enabled, after, limit } = query;
    let (search, page) = (RuleSearch { text, enabled }, PageRequest { after, limit });
    let tag = call.revision_tag();
    call.reply_authored_or_not_modified(&domain, &tag, call.control().rules().list(&domain, &search, &page).await?)
}

/// Returns a rule.
#[utoipa::path(get, path = "/v1/domains/{domain}/rules/{id}", tag = "rules", operation_id = "get_rule",
    params(RulePath),
    responses((status = 200, description = "The rule", body = StoredRule), NotModified),
)]
pub(super) async fn get(call: ApiCall, PathParams(path): PathParams<RulePath>) -> ApiResult {
    let rule = call.control().rules().get(&path.domain, &path.id).await?;
    call.reply_authored_or_not_modified(&path.domain, &etag::etag_of_version(rule.version), rule)
}

/// Creates or replaces a rule. Writing the stored rule again changes nothing.
#[utoipa::path(put, path = "/v1/domains/{domain}/rules/{id}", tag = "rules", operation_id = "put_rule",
    params(RulePath, IfMatch, IfNoneMatch, CommentHeader),
    request_body(description = "A rule as in a file; `id` may be omitted", content((Object = "application/json"), (Object = "application/yaml"))),
    responses(
        (status = 200, description = "The rule, changed or unchanged", body = StoredRule),
        (status = 201, description = "The rule, created", body = StoredRule),
    ),
)]
pub(super) async fn put(call: ApiCall, PathParams(path): PathParams<RulePath>, text: Bytes) -> ApiResult {
    let change = call.authorize_change(Role::Editor, Scope::Domain(&path.domain))?;
    body::check_content_type(&call.headers, RULE_TYPES)?;
    reply_written(&call.control().rules().put(&change, &path.domain, &path.id, &text).await?)
}

/// Changes parts of a rule with a merge patch (RFC 7396). In the patch, null removes a key.
#[utoipa::path(patch, path = "/v1/domains/{domain}/rules/{id}", tag = "rules", operation_id = "patch_rule",
    params(RulePath, IfMatch, CommentHeader),
    request_body(content = Object, content_type = "application/merge-patch+json", example = json!({"limit": "200/s"})),
    responses((status = 200, description = "The rule, changed or unchanged", body = StoredRule)),
)]
pub(super) async fn patch(call: ApiCall, PathParams(path): PathParams<RulePath>, patch: Bytes) -> ApiResult {
    let change = call.authorize_change(Role::Editor, Scope::Domain(&path.domain))?;
    body::check_content_type(&call.headers, PATCH_TYPES)?;
    reply_written(&call.control().rules().patch(&change, &path.domain, &path.id, &patch).await?)
}

/// Deletes a rule. The history and the overrides of the rule remain. The overrides apply again if the rule is created
/// again.
#[utoipa::path(delete, path = "/v1/domains/{domain}/rules/{id}", tag = "rules", operation_id = "delete_rule",
    params(RulePath, IfMatch, CommentHeader),
    responses((status = 204, description = "Deleted")),
)]
pub(super) async fn delete(call: ApiCall, PathParams(path): PathParams<RulePath>) -> ApiResult {
    let change = call.authorize_change(Role::Editor, Scope::Domain(&path.domain))?;
    call.control().rules().delete(&change, &path.domain, &path.id).await?;
    Ok(reply::no_content())
}

/// Enables a rule: nodes receive it again.
#[utoipa::path(post, path = "/v1/domains/{domain}/rules/{id}/enable", tag = "rules",
    params(RulePath, IfMatch, CommentHeader),
    responses((status = 200, description = "The rule, enabled", body = StoredRule)),
)]
pub(super) async fn enable(call: ApiCall, PathParams(path): PathParams<RulePath>) -> ApiResult {
    set_enabled(&call, &path, true).await
}

/// Disables a rule: nodes no longer receive it. The counters of the rule are kept until they expire.
#[utoipa::path(post, path = "/v1/domains/{domain}/rules/{id}/disable", tag = "rules",
    params(RulePath, IfMatch, CommentHeader),
    responses((status = 200, description = "The rule, disabled", body = StoredRule)),
)]
pub(super) async fn disable(call: ApiCall, PathParams(path): PathParams<RulePath>) -> ApiResult {
    set_enabled(&call, &path, false).await
}

async fn set_enabled(call: &ApiCall, path: &RulePath, enabled: bool) -> ApiResult {
    let change = call.authorize_change(Role::Editor, Scope::Domain(&path.domain))?;
    reply_written(&call.control().rules().set_enabled(&change, &path.domain, &path.id, enabled).await?)
}
