//! Resource limits of the rate-limit service. Sizes are checked before memory is allocated.

use std::time::Duration;

use tollgate_engine::{Item, Request};

use super::http2::frame::MAX_PAYLOAD_BYTES;

/// Maximum size of a message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// Maximum number of descriptors in a request.
pub const MAX_DESCRIPTORS: usize = Request::MAX_ITEMS;

/// Maximum number of entries in a descriptor.
pub const MAX_ENTRIES: usize = Item::MAX_ATTRIBUTES;

/// Maximum number of concurrent calls on a connection.
pub const MAX_STREAMS: u32 = 1_000;

/// Maximum size of the decoded headers of a call, in bytes.
pub const MAX_HEADERS_BYTES: u32 = 16 * 1024;

/// Maximum size of a compressed header block, in bytes.
pub const MAX_HEADER_BLOCK_BYTES: usize = 2 * MAX_HEADERS_BYTES as usize;
/// Maximum number of CONTINUATION frames in a header block.
pub const MAX_CONTINUATIONS: usize = 16;

/// Maximum size of a header block that is cached for the next call, in bytes.
pub const MAX_CACHED_BLOCK_BYTES: usize = 1_024;

/// Maximum size of a body in bytes: a message and its five-byte gRPC prefix.
pub const MAX_BODY_BYTES: usize = MAX_MESSAGE_BYTES + 5;

/// Receive window of a stream in bytes. The window has space for a body and one more frame, so that a body that is too
/// large is detected.
pub const STREAM_RECEIVE_WINDOW: u32 = (MAX_BODY_BYTES + MAX_PAYLOAD_BYTES) as u32;

/// Receive window of a connection in bytes. This window limits the total body size of the connection's unanswered
/// calls.
pub const CONNECTION_RECEIVE_WINDOW: u32 = 1024 * 1024;

/// Maximum total body size in bytes of the unanswered calls on all connections. Above this total, a connection that
/// holds more than [`SMALL_BODY_BYTES`] is closed.
pub const MAX_TOTAL_BODY_BYTES: usize = 32 * 1024 * 1024;
/// A connection with at most this many body bytes is served even if the total exceeds [`MAX_TOTAL_BODY_BYTES`].
/// Ordinary clients hold less.
pub const SMALL_BODY_BYTES: usize = 16 * 1024;

/// Maximum credit of a client for control frames (see `http2/credit.rs`). Each control frame costs 1. A client without
/// credit is disconnected.
pub const MAX_CREDIT: u32 = 10_000;
/// Credit restored per second.
pub const CREDIT_PER_SECOND: u32 = 1_000;
/// Credit restored by each answered call.
pub const CREDIT_PER_CALL: u32 = 8;
/// Cost of a stream reset in credit, in addition to the 1 for its frame. A client may reset about 900 streams, and then
/// about 90 per second. This cost limits rapid-reset attacks.
pub const RESET_COST: u32 = MAX_CREDIT / MAX_STREAMS;

/// Maximum number of calls per connection that wait for a shared store or are delayed.
pub const MAX_WAITING_CALLS: usize = MAX_STREAMS as usize;

/// Size of the read buffer in bytes. The buffer is larger than any frame.
pub const READ_BUFFER_BYTES: usize = 32 * 1024;

/// If the pending responses exceed this many bytes, they are written before more calls are processed.
pub const WRITE_THRESHOLD_BYTES: usize = 64 * 1024;

/// Maximum length of a gRPC status message, in bytes.
pub const MAX_STATUS_MESSAGE_BYTES: usize = 512;

/// Timeout for the connection preface, for a header block, and for the body of a call.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for the client to read a response or to enlarge its flow-control window.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Time between announcing that a connection will close and refusing further calls. At the end of this time, a
/// connection without a valid token is closed even if it has open calls.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Idle time before a keepalive PING.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// Timeout for the reply to a keepalive PING.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
