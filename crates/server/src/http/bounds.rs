//! The limits of an HTTP request. Everything is bounded before memory is allocated for it.

use std::time::Duration;

use tollgate_engine::Item;

/// Maximum number of bytes of a body: a full batch with a reserve.
pub const MAX_BODY: usize = 1024 * 1024;

/// Maximum number of requests in a batch.
pub const MAX_BATCH: usize = 1_000;

/// Maximum number of attributes of a request, the same in every protocol.
pub const MAX_ATTRIBUTES: usize = Item::MAX_ENTRIES;

/// Maximum number of bytes of a request line with all headers.
pub const MAX_HEAD: usize = 16 * 1024;

/// Maximum number of headers of a request.
pub const MAX_HEADERS: usize = 64;

/// The time limit for the headers, and for the next request on a kept-alive connection.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// The time limit for a body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The time in which a client must read part of a response once the socket buffer is full.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The time limit of a connection above the maximum, which is accepted for health checks.
pub const RESERVED_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of requests to explain in a list.
pub const MAX_EXPLAINED: usize = 100;

/// Maximum number of bytes of the response to a list after which no further request of the list is decided.
pub const MAX_ANSWER: usize = 8 * 1024 * 1024;
