//! A minimal HTTP/2 server (RFC 9113 and 7541) for calls with one small request and one small response.
//!
//! A general implementation passes every frame through channels, reference counts and a task per stream, which costs
//! several times as much as a decision. Here, all calls that arrive in one read are decided as they are parsed, and
//! their responses are sent in one write. [`Connection`] is a state machine without sockets or clocks.

mod connection;
mod credit;
pub mod field;
pub mod frame;
pub mod head;
pub mod hpack;
pub mod huffman;
mod receive;
mod respond;
mod streams;
#[cfg(test)]
mod tests;

pub use connection::{CallError, Connection, StreamCall};
