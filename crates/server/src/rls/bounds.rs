//! The limits of a call. Everything is bounded before memory is allocated for it.

use std::time::Duration;

use tollgate_engine::{Item, Request};

/// The bytes of a message.
pub const MAX_MESSAGE: usize = 256 * 1024;

/// The descriptors of a request.
pub const MAX_DESCRIPTORS: usize = Request::MAX_ITEMS;

/// The entries of a descriptor.
pub const MAX_ENTRIES: usize = Item::MAX_ENTRIES;

/// The calls on a connection at a time.
pub const MAX_STREAMS: u32 = 1_000;

/// The bytes of the headers of a call.
pub const MAX_HEADERS: u32 = 16 * 1024;

/// The streams that a client may reset before they are accepted; beyond that the connection is closed (rapid reset).
pub const MAX_PENDING_RESETS: usize = 20;

/// The time limit for a message.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that the calls on a connection without a valid token have to end, once its time to send one is over.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How often an idle connection is probed.
pub const KEEPALIVE_EVERY: Duration = Duration::from_secs(60);

/// The time limit for the answer to a probe.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
