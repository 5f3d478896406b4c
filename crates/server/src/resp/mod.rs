//! The Redis-protocol front end: `CL.THROTTLE` as in redis-cell, the `TG.*` commands for all operations on limits, and
//! the connection commands that Redis clients send.

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

/// The complete reply sent on a connection above the connection limit.
pub(crate) const TOO_MANY_CONNECTIONS: &[u8] = b"-ERR max number of clients reached\r\n";
