//! State of limits in Redis or Valkey, shared by many nodes.
//!
//! [`RedisStore`] implements the engine's `Store`. A decision is one call of one [`Script`], which decides any number of charges
//! by the store's own clock, all or none of a group; concurrent decisions of a process share calls.

mod answer;
mod batcher;
mod breaker;
mod config;
mod link;
mod numbers;
mod request;
pub mod script;
mod store;

pub use batcher::Health;
pub use config::{Config, ConfigError};
pub use request::spread;
pub use script::Script;
pub use store::{Counts, RedisStore};
