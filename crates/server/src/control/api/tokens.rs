//! Calls with which admins create, list and revoke tokens.

use bytes::Bytes;
use hyper::StatusCode;

use super::body;
use super::call::{ApiCall, PageQuery, PathParams, QueryParams};
use super::describe::shared::{CommentHeader, NotModified};
use super::reply::{self, ApiResult};
use crate::control::auth::Scope;
use crate::control::model::{CreatedToken, Page, Role, StoredToken, TokenGrant};

/// Lists tokens, without their secrets.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", operation_id = "list_tokens", params(PageQuery), responses(
    (status = 200, description = "One page of the list", body = Page<StoredToken>),
    NotModified,
))]
pub(super) async fn list(call: ApiCall, QueryParams(page): QueryParams<PageQuery>) -> ApiResult {
    call.access.require_role(Role::Admin, Scope::AllDomains)?;
    let tag = call.revision_tag();
    call.reply_or_not_modified(&tag, &call.control().tokens().list(&page.into()).await?)
}

/// Creates a token. Only this response contains the secret of the token.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", operation_id = "create_token",
    params(CommentHeader),
    request_body(content = TokenGrant, content_type = "application/json"),
    responses((status = 201, description = "The token", body = CreatedToken)),
)]
pub(super) async fn create(call: ApiCall, text: Bytes) -> ApiResult {
    let change = call.authorize_change(Role::Admin, Scope::AllDomains)?;
    let grant: TokenGrant = body::parse_json(&call, &text)?;
    reply::reply_uncached(StatusCode::CREATED, &call.control().tokens().create(&change, &grant).await?)
}

/// Revokes a token. Connected nodes refuse the token within a second.
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens", operation_id = "revoke_token",
    params(("id" = String, Path, description = "The id of the token", example = "1a2b3c4d5e6f7081"), CommentHeader),
    responses((status = 200, description = "The revoked token", body = StoredToken)),
)]
pub(super) async fn revoke(call: ApiCall, PathParams(id): PathParams<String>) -> ApiResult {
    let change = call.authorize_change(Role::Admin, Scope::AllDomains)?;
    reply::reply_uncached(StatusCode::OK, &call.control().tokens().revoke(&change, &id).await?)
}
