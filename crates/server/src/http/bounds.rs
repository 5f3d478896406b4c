//! The bounds of HTTP requests. Every bound is checked before memory is allocated.

use std::time::Duration;

use tollgate_engine::Item;

/// Maximum size of a body in bytes: a full batch with some reserve.
pub const MAX_BODY: usize = 1024 * 1024;

/// Maximum number of requests in a batch.
pub const MAX_BATCH: usize = 1_000;

/// Maximum number of attributes of a request. All protocols share this bound.
pub const MAX_ATTRIBUTES: usize = Item::MAX_ENTRIES;

/// Maximum size of the request line and all headers, in bytes.
pub const MAX_HEAD: usize = 16 * 1024;

/// Maximum number of headers of a request.
pub const MAX_HEADERS: usize = 64;

/// Timeout for receiving the headers, and for the next request on a keepalive connection.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// Timeout for receiving a body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The time limit for the rest of a check on the fast path. The slow path and its time limits start afterwards.
pub const REST_TIMEOUT: Duration = Duration::from_millis(200);

/// Write timeout: a client must read some bytes within this time when the socket buffer is full.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Lifetime of a reserved connection, which is accepted above the connection limit for health checks.
pub const RESERVED_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of requests to explain in a list.
pub const MAX_EXPLAINED: usize = 100;

/// Response size in bytes above which the remaining requests of a list are not decided.
pub const MAX_RESPONSE: usize = 8 * 1024 * 1024;
