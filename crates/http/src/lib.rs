//! Limits for HTTP and gRPC: who is asking, what they are told, and a tower layer that does both.

mod asked;
mod client;
#[cfg(feature = "tower")]
mod grpc;
pub mod headers;
mod identify;
#[cfg(feature = "tower")]
mod tower;

pub use asked::Asked;
pub use client::{ClientIp, ForwardedBy, MAX_ELEMENT, MAX_HOPS, Network, NetworkError, TrustedProxies, client_address};
pub use headers::Styles;
pub use identify::{ByCookie, ByHeader, Identify, Identity, MAX_IDENTITY, by};
#[cfg(feature = "tower")]
pub use tower::*;
