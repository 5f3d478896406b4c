//! The fleet-wide kill switch.

use bytes::Bytes;
use hyper::StatusCode;

use super::body;
use super::call::ApiCall;
use super::describe::shared::{CommentHeader, NotModified};
use super::reply::{self, ApiResult};
use crate::control::auth::Scope;
use crate::control::model::{FleetSwitch, Role};

/// Returns whether the fleet enforces refusals.
#[utoipa::path(get, path = "/v1/fleet/enforcement", tag = "nodes", operation_id = "get_fleet_enforcement", responses(
    (status = 200, description = "The fleet-wide kill switch", body = FleetSwitch),
    NotModified,
))]
pub(super) async fn get(call: ApiCall) -> ApiResult {
    let tag = call.revision_tag();
    call.reply_or_not_modified(&tag, &FleetSwitch { mode: call.control().fleet().mode().await? })
}

/// Sets whether the fleet enforces refusals. Requires the role `operator`. Connected nodes apply the change within a
/// second. Nodes keep the mode when they restart.
#[utoipa::path(put, path = "/v1/fleet/enforcement", tag = "nodes", operation_id = "set_fleet_enforcement",
    params(CommentHeader),
    request_body(content = FleetSwitch, content_type = "application/json"),
    responses((status = 200, description = "The fleet-wide kill switch", body = FleetSwitch)),
)]
pub(super) async fn put(call: ApiCall, text: Bytes) -> ApiResult {
    let change = call.authorize_change(Role::Operator, Scope::AllDomains)?;
    let switch: FleetSwitch = body::parse_json(&call, &text)?;
    call.control().fleet().set_mode(&change, switch.mode).await?;
    reply::reply_uncached(StatusCode::OK, &switch)
}
