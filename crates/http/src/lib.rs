//! Limits for HTTP and gRPC: who is asking, what they are told, and a tower layer for axum, hyper and tonic that does both.
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
//! Whoever exceeds a limit is answered
//!
//! ```text
//! HTTP/1.1 429 Too Many Requests
//! retry-after: 1
//! ratelimit-policy: "per-key";q=20;w=2
//! ratelimit: "per-key";r=0;t=1
//! content-type: application/problem+json
//! ```
//!
//! or, where the request is gRPC, `RESOURCE_EXHAUSTED` with a `google.rpc.RetryInfo` and `grpc-retry-pushback-ms`.
//!
//! # Who is asking
//!
//! | counted by | use | if there is none |
//! |---|---|---|
//! | address, through proxies you trust | [`ClientIp`] | only if nobody knows who opened the connection |
//! | a header, such as an API key | [`ByHeader`] | missing, empty or longer than [`MAX_IDENTITY`] |
//! | a cookie | [`ByCookie`] | the same |
//! | anything else | [`by`] a closure | it says so |
//!
//! Requests without an identity are [counted together](Missing::Together), unless the layer is told to let them pass or to refuse them.
//! A client must not be able to choose its identity: every new one is a new allowance. [`client_address`] says whom it
//! believes, and what comes of headers that are malformed or forged.
//!
//! # What is limited
//!
//! - **How often**: [`LimitLayer::by_key`] with any algorithm of `tollgate`, or several of them together.
//! - **With waiting instead of refusing**: the same with a [`LeakyBucket`](tollgate::LeakyBucket). Its requests wait their turn before the
//!   service sees them; who goes away meanwhile gives the turn back.
//! - **How many at a time**: [`LimitLayer::in_flight`]. A place is held until the answer's body has ended.
//! - **By rules**, with the state in memory or shared in Redis: `LimitLayer::by_rules`, with the feature `engine`.
//!
//! To try a limit before it is enforced, [observe](LimitLayer::observe). Several layers may be around one service; the outermost,
//! which axum's `layer` adds last, decides first, and what it refuses is not charged to the others.
//!
//! # What clients are told
//!
//! See [`headers`] for the styles. Refusals are always told; other answers only with [`Tell::Everybody`], since that costs several
//! times as much as deciding.
//!
//! # What it costs
//!
//! A request that passes and is told nothing allocates nothing and takes about twice what the bare `Keyed::check` takes
//! (`scripts/bench lib layer`). Allocations per request:
//!
//! | | |
//! |---|---|
//! | passes, by header, cookie or address | 0 |
//! | passes and is told, IETF style | 1, and 2 more if the answer had no headers |
//! | passes and is told, both styles | 4, and 2 more if the answer had no headers |
//! | is held as one in flight | 2 |
//! | waits | 3, and what tokio's timer takes |
//! | is refused | 7, the whole answer |
//! | is decided by rules | those of the rules' attributes, and 3 |
//!
//! # Features
//!
//! - `tower` (default): the layer.
//! - `engine`: headers from the decisions of `tollgate-engine`, and, together with `tower`, limits by rules.

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
