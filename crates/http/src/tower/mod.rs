//! Limits as a tower layer, for axum, hyper, tonic and every other tower service.

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
pub use layer::{LimitLayer, Limited};
pub use refusal::{Observed, Reason, Refusal};
#[cfg(feature = "engine")]
pub use rules::ByRules;
