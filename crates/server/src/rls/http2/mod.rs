//! A minimal HTTP/2 server (RFC 9113 and 7541) for calls with one small request and one small response.
//!
//! General-purpose implementations use channels, reference counts and a task per stream, which cost several times as
//! much as a decision. Here, a call is passed to the service as soon as it is parsed, and the responses to the calls of
//! one read are collected for one write. [`Connection`] is a state machine without sockets or clocks.

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
