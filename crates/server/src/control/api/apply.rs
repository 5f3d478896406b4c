//! Whole rule files: looked through, applied and written out again.

use std::sync::{Arc, OnceLock};

use axum::extract::State;
use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::comment::change;
use super::fault::Fault;
use super::kind::{self, RULES};
use super::query::{Asked, By};
use super::reply::{self, Reply};
use super::told::{Comment, IfMatch, Unchanged};
use super::{Desk, etag};
use crate::control::Others as Rest;
use crate::control::auth::Place;
use crate::control::model::{Plan, Role, Validation};

/// Looks for mistakes in a rule file, as `tollgate check` does. It is answered 200 whatever is found.
#[utoipa::path(post, path = "/v1/validate", tag = "files",
    request_body(description = "A rule file: ours, or one of the reference Envoy service", content((Object = "application/yaml"), (Object = "application/json"))),
    responses((status = 200, description = "What was found", body = Validation)),
)]
pub(super) async fn validate(State(desk): State<Arc<Desk>>, headers: HeaderMap, body: Bytes) -> Reply {
    kind::check(&headers, RULES)?;
    reply::once(StatusCode::OK, &desk.control.validate(&body).await?)
}

/// What becomes of rules that the file does not have, in the domains that it names.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Others {
    /// They stay.
    #[default]
    Keep,
    /// They are deleted.
    Delete,
}

/// How a file is applied.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Applying {
    /// Only tell what would change.
    #[serde(default)]
    #[param(default = false)]
    plan: bool,
    /// What becomes of rules that the file does not have, in the domains that it names.
    #[serde(default)]
    #[param(inline, default = "keep")]
    others: Others,
}

/// Applies a rule file: all of it or nothing. With `plan` it only tells what would change.
#[utoipa::path(post, path = "/v1/apply", tag = "files",
    params(Applying, IfMatch, Comment),
    request_body(description = "A rule file: ours, or one of the reference Envoy service", content((Object = "application/yaml"), (Object = "application/json"))),
    responses((status = 200, description = "What changes, or has changed", body = Plan)),
)]
pub(super) async fn apply(
    State(desk): State<Arc<Desk>>,
    By(access): By,
    Asked(applying): Asked<Applying>,
    headers: HeaderMap,
    body: Bytes,
) -> Reply {
    kind::check(&headers, RULES)?;
    let others = match applying.others {
        Others::Keep => Rest::Keep,
        Others::Delete => Rest::Delete,
    };
    let plan = if applying.plan {
        desk.control.plan(&body, others).await?
    } else {
        // In which domains is known once the file is read; who may change rules nowhere need not wait for that.
        if !access.is_at_least(Role::Editor) {
            access.require(Role::Editor, Place::Everywhere)?;
        }
        let (change, expected) = (change(&access, &headers)?, etag::expected(&headers)?);
        let denied = OnceLock::new();
        let allowed = |domain: &str| {
            let allowed = access.require(Role::Editor, Place::Domain(domain));
            allowed.map_err(|why| denied.set(why)).is_ok()
        };
        let applied = desk.control.apply(&change, &body, others, expected, &allowed).await;
        match denied.into_inner() {
            Some(denied) => return Err(denied.into()),
            None => applied?,
        }
    };
    reply::json(StatusCode::OK, &etag::of(plan.revision), &plan)
}

/// The rules of some domains, or of all, as a rule file in its one form, which `apply` takes back. What is no part of a file is told in
/// comments at its head: overrides beside rules, and which rules are disabled.
#[utoipa::path(get, path = "/v1/export", tag = "files",
    params(("domain" = Option<Vec<String>>, Query, description = "Of this domain; may be given several times")),
    responses((status = 200, description = "A rule file", body = Object, content_type = "application/yaml"), Unchanged),
)]
pub(super) async fn export(
    State(desk): State<Arc<Desk>>,
    Asked(asked): Asked<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Reply {
    if let Some((other, _)) = asked.iter().find(|(name, _)| name != "domain") {
        return Err(Fault::bad_request(format!("unknown field `{other}`, expected `domain`")));
    }
    let domains: Vec<String> = asked.into_iter().map(|(_, domain)| domain).collect();
    let tag = etag::of(desk.revision());
    if etag::is_known(&headers, &tag)? {
        return Ok(reply::unchanged(&tag));
    }
    let text = desk.control.export(&domains).await?;
    Ok(reply::bytes(StatusCode::OK, &tag, "application/yaml", text))
}
