//! Calls that validate, apply and export whole rule files.

use std::sync::OnceLock;

use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use super::body::{self, RULE_TYPES};
use super::call::{ApiCall, QueryParams};
use super::describe::shared::{CommentHeader, IfMatch, NotModified};
use super::etag;
use super::reply::{self, ApiResult};
use crate::control::auth::Scope;
use crate::control::model::{OtherRulesPolicy, Plan, Role, Validation};
use crate::http::problem::Problem;

/// Validates a rule file with the checks of `tollgate check`. The status is 200 even if the file has mistakes.
#[utoipa::path(post, path = "/v1/validate", tag = "files",
    request_body(description = "A Tollgate rule file, or a rule file of the reference Envoy service", content((Object = "application/yaml"), (Object = "application/json"))),
    responses((status = 200, description = "The mistakes and warnings", body = Validation)),
)]
pub(super) async fn validate(call: ApiCall, text: Bytes) -> ApiResult {
    body::check_content_type(&call.headers, RULE_TYPES)?;
    reply::reply_uncached(StatusCode::OK, &call.control().rule_files().validate(&text).await?)
}

/// Options for applying a file.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ApplyQuery {
    /// Return the changes without applying them.
    #[serde(default)]
    #[param(default = false)]
    plan: bool,
    /// Whether to keep or delete stored rules that are missing from the file. Only the domains in the file are
    /// affected.
    #[serde(default)]
    #[param(inline, default = "keep")]
    others: OtherRulesPolicy,
}

/// Applies a rule file atomically. With `plan`, returns the changes without applying them.
#[utoipa::path(post, path = "/v1/apply", tag = "files",
    params(ApplyQuery, IfMatch, CommentHeader),
    request_body(description = "A Tollgate rule file, or a rule file of the reference Envoy service", content((Object = "application/yaml"), (Object = "application/json"))),
    responses((status = 200, description = "The changes", body = Plan)),
)]
pub(super) async fn apply(call: ApiCall, QueryParams(query): QueryParams<ApplyQuery>, text: Bytes) -> ApiResult {
    body::check_content_type(&call.headers, RULE_TYPES)?;
    let files = call.control().rule_files();
    let plan = if query.plan {
        files.plan(&text, query.others).await?
    } else {
        // The domains are known only after parsing. A caller who may not change rules in any domain is refused before
        // parsing.
        if !call.access.has_role_in_some_domain(Role::Editor) {
            call.access.require_role(Role::Editor, Scope::AllDomains)?;
        }
        let denied = OnceLock::new();
        let allowed = |domain: &str| {
            let allowed = call.access.require_role(Role::Editor, Scope::Domain(domain));
            allowed.map_err(|why| denied.set(why)).is_ok()
        };
        let applied = files.apply(&call.unchecked_change()?, &text, query.others, &allowed).await;
        match denied.into_inner() {
            Some(denied) => return Err(denied.into()),
            None => applied?,
        }
    };
    reply::reply_json(StatusCode::OK, &etag::etag_of_version(plan.revision), &plan)
}

/// Exports the rules of some or all domains as a formatted rule file that `apply` accepts. Comments at the head of the
/// file mention the overrides and the disabled rules, because a rule file cannot contain them.
#[utoipa::path(get, path = "/v1/export", tag = "files",
    params(
        ("domain" = Option<Vec<String>>, Query, description = "A domain; may be repeated"),
        ("rule" = Option<String>, Query, description = "Only this rule; requires exactly one domain"),
    ),
    responses((status = 200, description = "A rule file", body = Object, content_type = "application/yaml"), NotModified),
)]
pub(super) async fn export(call: ApiCall, QueryParams(query): QueryParams<Vec<(String, String)>>) -> ApiResult {
    let (mut domains, mut rules) = (Vec::new(), Vec::new());
    for (name, value) in query {
        match &*name {
            "domain" => domains.push(value),
            "rule" => rules.push(value),
            other => {
                return Err(Problem::bad_request(format!("unknown field `{other}`, expected `domain` or `rule`")));
            }
        }
    }
    if rules.len() > 1 || (rules.len() == 1 && domains.len() != 1) {
        return Err(Problem::bad_request("`rule` needs exactly one `domain`, and may be given once"));
    }
    let tag = call.revision_tag();
    if etag::reader_has_version(&call.headers, &tag)? {
        return Ok(reply::not_modified(&tag));
    }
    let text = call.control().rule_files().export(&domains, rules.first().map(String::as_str)).await?;
    Ok(reply::reply_bytes(StatusCode::OK, &tag, "application/yaml", text))
}
