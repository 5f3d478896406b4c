//! The operations of the server, independent of any protocol.

pub mod acquire;
pub mod idempotency;
