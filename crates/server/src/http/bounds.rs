//! Bounds on HTTP connections, requests and responses.

use std::time::Duration;

use tollgate_engine::Item;

/// Maximum size of a request body, in bytes. This size is enough for [`MAX_BATCH`] requests of ordinary size.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;

/// Maximum number of requests in a batch.
pub const MAX_BATCH: usize = 1_000;

/// Maximum number of attribute values of a request. All protocols share this bound.
pub const MAX_ATTRIBUTE_VALUES: usize = Item::MAX_ATTRIBUTES;

/// Maximum size of the request line and all headers, in bytes.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Maximum number of headers of a request.
pub const MAX_HEADERS: usize = 64;

/// Timeout for receiving the headers, and for the next request on a keepalive connection.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// Timeout for receiving a body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the fast path waits for the rest of a partially received check. After that, the slow path takes over with
/// its own timeouts.
pub const PARTIAL_CHECK_TIMEOUT: Duration = Duration::from_millis(200);

/// Write timeout. A connection is closed if its socket buffer stays full for this long.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for all answers to a client that has closed its sending side. Such a client may be gone, so a call of
/// `/v1/acquire` that has to wait ends immediately.
pub const HALF_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Lifetime of a reserved connection; a request in progress may take [`BODY_TIMEOUT`] longer. Reserved connections are
/// accepted above the connection limit, for health checks only.
pub const RESERVED_CONNECTION_LIFETIME: Duration = Duration::from_secs(5);

/// Maximum number of requests in one list that may ask for an explanation.
pub const MAX_EXPLAINED_REQUESTS: usize = 100;

/// Size of the response to a list, in bytes, above which the remaining requests are not decided.
pub const FULL_RESPONSE_BYTES: usize = 8 * 1024 * 1024;
