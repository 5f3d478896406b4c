//! The HTTP/2 of the rate-limit service (RFC 9113 and 7541), for calls with one small request and one small response.
//!
//! A general implementation passes every frame through channels, reference counts and a task per stream, which costs several
//! times what a decision does. Here all calls of a read are decided where they are parsed, and their responses leave in one
//! write. Everything but sockets and time is a state machine: [`Connection`].

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
