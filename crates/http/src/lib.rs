//! Rate limits for HTTP and gRPC: client identification, rate-limit headers, and a tower layer for axum, hyper and
//! tonic.
//!
//! ```
//! use tollgate::{Keyed, TokenBucket};
//! use tollgate_http::{ByHeader, ClientIp, LimitLayer};
//!
//! // 100 a second for each address, and 10 for each API key.
//! let per_address = Keyed::new(TokenBucket::new("100/s".parse()?, 100)?, 100_000)?;
//! let per_address = LimitLayer::by_key(per_address, ClientIp::direct()).name("per-address");
//! let per_key = Keyed::new(TokenBucket::new("10/s".parse()?, 20)?, 100_000)?;
//! let per_key = LimitLayer::by_key(per_key, ByHeader::named("x-api-key")).name("per-key");
//! // Router::new().route(…).layer(per_key).layer(per_address)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A client that exceeds a limit receives:
//!
//! ```text
//! HTTP/1.1 429 Too Many Requests
//! retry-after: 1
//! ratelimit-policy: "per-key";q=20;w=2
//! ratelimit: "per-key";r=0;t=1
//! content-type: application/problem+json
//! ```
//!
//! or, if the request is gRPC, `RESOURCE_EXHAUSTED` with a `google.rpc.RetryInfo` and `grpc-retry-pushback-ms`.
//!
//! # Client identification
//!
//! | counted by | use | no identity if |
//! |---|---|---|
//! | client address, through trusted proxies | [`ClientIp`] | the server does not provide the peer address |
//! | a header, such as an API key | [`ByHeader`] | the header is missing, empty or longer than [`MAX_IDENTITY`] |
//! | a cookie | [`ByCookie`] | the cookie is missing, empty or longer than [`MAX_IDENTITY`] |
//! | anything else | [`by`] a closure | the closure returns `None` |
//!
//! `LimitLayer::on_unidentified` sets how requests without an identity are handled. By default, requests without the
//! header or cookie are counted together, as one client. A missing peer address means that the server is misconfigured.
//! The layer then answers with status 500 and a configuration hint, instead of counting all clients as one.
//!
//! **axum**: enable the feature `axum` and serve the app with `into_make_service_with_connect_info::<SocketAddr>()`.
//! **tonic** and other servers: set [`ClientIp::peer`].
//!
//! A client must not be able to choose its identity, because every new identity gets a new allowance.
//! [`client_address`] describes how malformed and forged forwarding headers are handled.
//!
//! # Limits
//!
//! - **Rate per client**: `LimitLayer::by_key`, with one or more algorithms of `tollgate`.
//! - **Rate of the whole service**: `LimitLayer::global`.
//! - **Delays instead of refusals**: `LimitLayer::by_key` or `LimitLayer::global` with a
//!   [`LeakyBucket`](tollgate::LeakyBucket). Requests wait before they reach the service; a request that is cancelled
//!   while waiting refunds its charge.
//! - **Concurrency**: `LimitLayer::in_flight` and `LimitLayer::global_in_flight`. A request holds its slot until the
//!   response body has ended.
//! - **Rules**, with the state in memory or shared in Redis: `LimitLayer::by_rules`, with the feature `engine`.
//!
//! `LimitLayer::observe` tests a limit without enforcing it. Several layers can wrap one service. The outermost layer,
//! which axum's `layer` adds last, decides first; requests that it refuses are not charged to the inner layers.
//!
//! # Headers
//!
//! [`headers`] describes the styles. By default every response has rate-limit headers, as in the Tollgate server. If a
//! layer has several limits per key, `RateLimit` lists only the tightest. `SendHeaders::OnRefusal` sends the headers
//! only with refusals. This setting saves time, because writing the headers takes several times as long as a decision.
//!
//! # Cost
//!
//! With `SendHeaders::OnRefusal`, an admitted request allocates nothing and takes about twice as long as a direct call
//! of `Keyed::check` (`scripts/bench lib layer`). Allocations per request:
//!
//! | request | allocations |
//! |---|---|
//! | admitted without rate-limit headers, counted by header, cookie or address | 0 |
//! | admitted with IETF headers | 1, plus 2 if the response had no headers |
//! | admitted with both header styles | 4, plus 2 if the response had no headers |
//! | holds a concurrency slot | 2 |
//! | waits | 3, plus tokio's timer |
//! | refused | 7, for the whole response |
//! | decided by rules | 3, plus the attributes |
//!
//! # Features
//!
//! - `tower` (default): the layer.
//! - `axum`: [`ClientIp`] reads the peer address from axum's `ConnectInfo<SocketAddr>`.
//! - `engine`: headers from the decisions of `tollgate-engine` and, together with `tower`, limits by rules.

mod client;
#[cfg(feature = "tower")]
mod grpc;
pub mod headers;
mod identify;
mod request;
#[cfg(feature = "tower")]
mod tower;

pub use client::{ClientIp, ForwardedBy, MAX_ELEMENT, MAX_HOPS, Network, NetworkError, TrustedProxies, client_address};
pub use headers::Styles;
pub use identify::{ByCookie, ByHeader, Identify, Identity, MAX_IDENTITY, by};
pub use request::RequestView;
#[cfg(feature = "tower")]
pub use tower::*;
