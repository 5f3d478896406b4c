//! Envoy's rate-limit service (RLS v3) over gRPC: `ShouldRateLimit`, and `grpc.health.v1` for load balancers.
//!
//! Each descriptor of a request becomes an item whose attributes are the descriptor's entries. Either all items of a
//! request are charged, or no item is charged, with one exception (`zero_cost.rs`). The module [`wire`] decodes and
//! encodes the messages, so that the build needs no protobuf compiler. The transport is [`http2`]. The HTTP port also
//! serves the endpoints `POST /json` and `GET /healthcheck` of the reference service (`json.rs`).

mod bodies;
pub mod bounds;
mod decide;
mod grpc;
pub mod http2;
mod json;
mod metadata;
mod options;
mod serve;
mod slots;
mod status;
pub mod wire;
mod zero_cost;

pub use bodies::HeldBodies;
pub(crate) use json::{HEALTHCHECK_PATH, JSON_PATH, answer_json, healthcheck_body};
pub use options::{AddedHeaders, MetadataWhen, ResponseOptions};
pub use serve::serve;
pub use slots::HeldSlots;
pub use zero_cost::ZeroCostChecks;

/// The complete reply on a connection above the connection limit: SETTINGS, and GOAWAY with 0 as the last stream. The
/// client can then safely retry its calls on another server.
pub(crate) const TOO_MANY_CONNECTIONS: &[u8] = b"\0\0\0\x04\0\0\0\0\0\
    \0\0\x1c\x07\0\0\0\0\0\0\0\0\0\0\0\0\0too many connections";
