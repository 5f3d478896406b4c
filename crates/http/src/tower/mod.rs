//! Limits as a layer around a service: axum, hyper, tonic, or anything else that speaks tower.

mod body;
mod future;
mod hold;
mod key;
mod layer;
mod manners;
mod refusal;
#[cfg(feature = "engine")]
mod rules;

pub use body::LimitedBody;
pub use future::ResponseFuture;
pub use key::ByKey;
pub use layer::{LimitLayer, Limited};
pub use manners::{Missing, Tell};
pub use refusal::{Observed, Reason, Refusal};
#[cfg(feature = "engine")]
pub use rules::{Attributes, ByRules};
