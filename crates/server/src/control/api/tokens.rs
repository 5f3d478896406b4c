//! Tokens: made, listed and revoked by admins.

use std::sync::Arc;

use axum::extract::State;
use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};

use super::comment::change;
use super::kind::{self, JSON};
use super::query::{Asked, At, By, Paging};
use super::reply::{self, Reply};
use super::told::{Comment, Unchanged};
use super::{Desk, etag};
use crate::control::auth::Place;
use crate::control::model::{MadeToken, NewToken, Page, Role, StoredToken};

/// Tokens, without their secrets.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", params(Paging), responses(
    (status = 200, description = "A part of the list", body = Page<StoredToken>),
    Unchanged,
))]
pub(super) async fn list(
    State(desk): State<Arc<Desk>>,
    By(access): By,
    Asked(paging): Asked<Paging>,
    headers: HeaderMap,
) -> Reply {
    access.require(Role::Admin, Place::Everywhere)?;
    let tag = etag::of(desk.revision());
    reply::read(&headers, &tag, &desk.control.tokens(&paging.into()).await?)
}

/// Makes a token. The answer is the only time its secret is told.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens",
    params(Comment),
    request_body(content = NewToken, content_type = "application/json"),
    responses((status = 201, description = "The token", body = MadeToken)),
)]
pub(super) async fn make(State(desk): State<Arc<Desk>>, By(access): By, headers: HeaderMap, body: Bytes) -> Reply {
    access.require(Role::Admin, Place::Everywhere)?;
    kind::check(&headers, JSON)?;
    let token: NewToken = kind::json(&body)?;
    let made = desk.control.make_token(&change(&access, &headers)?, &token).await?;
    reply::once(StatusCode::CREATED, &made)
}

/// Revokes a token. Nodes that follow refuse it within a second.
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens",
    params(("id" = String, Path, description = "What it is called by in the list", example = "tg_1a2b3c4d"), Comment),
    responses((status = 200, description = "The token, as it is kept for the log", body = StoredToken)),
)]
pub(super) async fn revoke(
    State(desk): State<Arc<Desk>>,
    By(access): By,
    At(id): At<String>,
    headers: HeaderMap,
) -> Reply {
    access.require(Role::Admin, Place::Everywhere)?;
    let revoked = desk.control.revoke_token(&change(&access, &headers)?, &id).await?;
    reply::once(StatusCode::OK, &revoked)
}
