//! Envoy's rate-limit service (RLS v3) over gRPC: `ShouldRateLimit`, and `grpc.health.v1` for load balancers.
//!
//! A descriptor of a request is an item whose attributes are the descriptor's entries. The items of a request are charged
//! together, all or none. The messages are decoded and encoded by hand ([`wire`]), so neither generated code nor a compiler for
//! it is needed. The transport is [`http2`]. `POST /json` and `GET /healthcheck` of the reference service are on the HTTP port (`json.rs`).

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
pub(crate) use json::{HEALTHCHECK, JSON, answer as answer_json, healthcheck_body};
pub use options::{AddedHeaders, MetadataWhen, ResponseOptions};
pub use serve::serve;
pub use slots::HeldSlots;
pub use zero_cost::ZeroCostChecks;

/// The whole reply to a connection beyond the limit: SETTINGS, and GOAWAY with the last stream 0, so that the client may repeat
/// its calls elsewhere.
pub(crate) const TOO_MANY_CONNECTIONS: &[u8] = b"\0\0\0\x04\0\0\0\0\0\
    \0\0\x1c\x07\0\0\0\0\0\0\0\0\0\0\0\0\0too many connections";
