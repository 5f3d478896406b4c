//! Limits as a tower layer, for axum, hyper, tonic and every other cloneable tower service for HTTP requests.
//!
//! ```text
//! request ─▶ layer ─▶ identify ─▶ decide ─▶ inner service ─▶ response with RateLimit headers
//!                        │           └ refused: 429 with Retry-After (gRPC: RESOURCE_EXHAUSTED), inner service not called
//!                        └ no identity: handled by `OnUnidentified`
//! ```
//!
//! A [`LimitLayer`] creates a [`LimitService`]. Decisions are made by a limit for each key ([`ByKey`]), by one limit
//! for all requests ([`Global`]) or, with the feature `engine`, by rules (`ByRules`). A [`LimitedBody`] holds its
//! concurrency slot until the body has ended, so a slow download counts until it is complete.

#[cfg(feature = "engine")]
mod attributes;
mod body;
mod config;
mod decide;
mod future;
mod global;
mod grant;
mod key;
mod layer;
mod refusal;
#[cfg(feature = "engine")]
mod rules;

#[cfg(feature = "engine")]
pub use attributes::Attributes;
pub use body::LimitedBody;
pub use config::{OnUnidentified, SendHeaders};
pub use future::ResponseFuture;
pub use global::Global;
pub use key::ByKey;
pub use layer::{LimitLayer, LimitService};
pub use refusal::{ObservedOutcome, Reason, Refusal};
#[cfg(feature = "engine")]
pub use rules::ByRules;
