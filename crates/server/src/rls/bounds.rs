//! The limits of a call. Everything is bounded before memory is allocated for it.

use std::time::Duration;

use tollgate_engine::{Item, Request};

use super::http2::frame::MAX_PAYLOAD;

/// Maximum number of bytes of a message.
pub const MAX_MESSAGE: usize = 256 * 1024;

/// Maximum number of descriptors of a request.
pub const MAX_DESCRIPTORS: usize = Request::MAX_ITEMS;

/// Maximum number of entries of a descriptor.
pub const MAX_ENTRIES: usize = Item::MAX_ENTRIES;

/// Maximum number of calls on a connection at a time.
pub const MAX_STREAMS: u32 = 1_000;

/// Maximum number of bytes of the headers of a call.
pub const MAX_HEADERS: u32 = 16 * 1024;

/// Maximum number of bytes of a compressed header block, and the CONTINUATION frames that it may come in.
pub const MAX_HEADER_BLOCK: usize = 2 * MAX_HEADERS as usize;
/// See [`MAX_HEADER_BLOCK`].
pub const MAX_CONTINUATIONS: usize = 16;

/// Maximum number of bytes of a header block that is remembered, in case the next call has the same one.
pub const MAX_LAST_BLOCK: usize = 1_024;

/// Maximum number of bytes of a body: a message with its prefix.
pub const MAX_BODY: usize = MAX_MESSAGE + 5;

/// The bytes that may arrive on a stream: a body, and enough more to see that it is too large.
pub const STREAM_WINDOW: u32 = (MAX_BODY + MAX_PAYLOAD) as u32;

/// The bytes of bodies that a connection may hold.
pub const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// The bytes of bodies that all connections together may hold. Beyond it, a connection that holds
/// more than [`SMALL_BODIES`] is closed.
pub const MAX_BODIES: usize = 32 * 1024 * 1024;
/// See [`MAX_BODIES`]: ordinary callers hold less, and are served whatever others do.
pub const SMALL_BODIES: usize = 16 * 1024;

/// The credit of a client for frames that are not calls; without credit the connection is closed. A frame costs 1.
pub const CREDIT: u32 = 10_000;
/// The credit restored per second, and by each answered call.
pub const CREDIT_PER_SECOND: u32 = 1_000;
/// See [`CREDIT_PER_SECOND`].
pub const CREDIT_PER_CALL: u32 = 8;
/// What a reset stream costs: a client may reset as many streams as it may open, and then a hundred per second (rapid reset).
pub const RESET_COST: u32 = CREDIT / MAX_STREAMS;

/// Maximum number of calls of a connection that wait for a shared store or for their delay.
pub const MAX_WAITING_CALLS: usize = MAX_STREAMS as usize;

/// The read buffer, which holds any frame.
pub const READ_BUFFER: usize = 32 * 1024;

/// The bytes of responses after which they are written before more is read.
pub const WRITE_BUFFER: usize = 64 * 1024;

/// Maximum number of bytes of the text of a status.
pub const MAX_DETAIL: usize = 512;

/// The time limit for the preface of a connection, for a header block, and for the rest of a call.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time within which the client must open its window for a response.
pub const STALLED: Duration = Duration::from_secs(30);

/// The time that a client has to read the last bytes of a connection.
pub const LINGER: Duration = Duration::from_secs(1);

/// The time that the calls on a connection without a valid token have to end, once its time to send one is over.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How often an idle connection is probed.
pub const KEEPALIVE_EVERY: Duration = Duration::from_secs(60);

/// The time limit for the answer to a probe.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
