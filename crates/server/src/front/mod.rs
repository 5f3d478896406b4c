//! The protocols. Each is a codec: bytes to requests, decisions to bytes.

pub mod accept;
pub mod heard;
pub mod http;
pub mod resp;
#[cfg(test)]
mod stalled;
pub mod tls;
