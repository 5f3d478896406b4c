//! What an HTTP client may send. Everything is bounded before memory is taken for it.

use std::time::Duration;

use tollgate_engine::Item;

/// Bytes in a body: a full batch with room to spare.
pub const MAX_BODY: usize = 1024 * 1024;

/// Requests in a batch.
pub const MAX_BATCH: usize = 1_000;

/// Attributes of a request: as many as over every other way in.
pub const MAX_ATTRIBUTES: usize = Item::MAX_ENTRIES;

/// Bytes of a request line with all its headers.
pub const MAX_HEAD: usize = 16 * 1024;

/// Headers of a request.
pub const MAX_HEADERS: usize = 64;

/// How long a client may take to send its headers, or the next request on a connection it keeps open.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// How long a client may take to send a body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
