//! The Redis protocol: `CL.THROTTLE` for callers of redis-cell, the `TG.*` commands for the operations, and the commands that
//! clients send when they connect, so that every Redis client is a client of this server.

mod batch;
pub mod bounds;
mod command;
mod pipeline;
mod serve;
mod session;
mod throttle;
pub mod wire;
mod write;

pub use serve::serve;

/// The whole reply to a connection beyond the limit.
pub(crate) const TOO_MANY_CONNECTIONS: &[u8] = b"-ERR max number of clients reached\r\n";
