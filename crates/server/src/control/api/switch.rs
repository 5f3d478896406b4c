//! Rules switched on and off, and what is at no path or takes another method.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::{HeaderMap, Method, StatusCode, Uri};

use super::comment::change;
use super::fault::Fault;
use super::query::{At, By, RuleAt};
use super::reply::{self, Reply};
use super::rules::written;
use super::told::{Comment, IfMatch};
use super::{Desk, etag};
use crate::control::auth::{Access, Place};
use crate::control::model::{Role, StoredRule};

/// Nodes are given the rule again.
#[utoipa::path(post, path = "/v1/domains/{domain}/rules/{id}/enable", tag = "rules",
    params(RuleAt, IfMatch, Comment),
    responses((status = 200, description = "It is enabled", body = StoredRule)),
)]
pub(super) async fn enable(desk: State<Arc<Desk>>, By(access): By, at: At<RuleAt>, headers: HeaderMap) -> Reply {
    set(&desk, &access, &at.0, &headers, true).await
}

/// Nodes are not given the rule any more. What was spent is kept as long as it would be otherwise.
#[utoipa::path(post, path = "/v1/domains/{domain}/rules/{id}/disable", tag = "rules",
    params(RuleAt, IfMatch, Comment),
    responses((status = 200, description = "It is disabled", body = StoredRule)),
)]
pub(super) async fn disable(desk: State<Arc<Desk>>, By(access): By, at: At<RuleAt>, headers: HeaderMap) -> Reply {
    set(&desk, &access, &at.0, &headers, false).await
}

async fn set(desk: &Desk, access: &Access, at: &RuleAt, headers: &HeaderMap, enabled: bool) -> Reply {
    access.require(Role::Editor, Place::Domain(&at.domain))?;
    let (change, expected) = (change(access, headers)?, etag::expected(headers)?);
    written(&desk.control.set_enabled(&change, &at.domain, &at.id, enabled, expected).await?)
}

/// The answer where there is no call.
pub(super) async fn nothing_here(uri: Uri) -> Fault {
    let path: String = uri.path().chars().take(200).collect();
    Fault::not_found(format!("there is nothing at {path}; /openapi.json describes what there is"))
}

/// The answer where there are calls with other methods, which the router adds as `Allow`.
pub(super) async fn another_method(method: Method) -> Response {
    match method {
        Method::OPTIONS => reply::done(),
        _ => {
            let detail = format!("{method} is not one of the methods here; they are in the header Allow");
            Fault::new(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", detail).into_response()
        }
    }
}
