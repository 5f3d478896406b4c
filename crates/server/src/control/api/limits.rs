//! The bounds of the rules service. Everything is bounded before memory is allocated for it.

use std::time::Duration;

use tollgate_engine::rules::MAX_FILE_BYTES;

use crate::control::MAX_RULE_BYTES;

/// Bytes of one rule, or of one override.
pub const MAX_RULE: usize = MAX_RULE_BYTES;

/// Bytes of a whole rule file.
pub const MAX_FILE: usize = MAX_FILE_BYTES;

/// Rule files that are read and processed at a time.
pub const MAX_LARGE_BODIES: usize = 4;

/// How long a client may take to send a whole rule file, and wait for a permit.
pub const FILE_TIMEOUT: Duration = Duration::from_secs(60);

/// Nodes that wait for the next revision at a time.
pub const MAX_WAITERS: usize = 10_000;

/// How long a node may wait for it.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// How long a call may take: a large file into a slow database.
pub const ANSWER: Duration = Duration::from_secs(120);

/// Nodes that are listed; the one that reported least recently is dropped.
pub const MAX_NODES: usize = 10_000;

/// Characters of a node's name.
pub const MAX_NODE_NAME: usize = 255;

/// Characters of the reason why a node refused rules; the rest is cut off.
pub const MAX_WHY: usize = 1_000;

/// Entries queued for the audit log; further ones are only logged.
pub const MAX_NOTES: usize = 4_096;

/// Characters of the subject of such an entry; the rest is cut off.
pub const MAX_SUBJECT: usize = 1_000;
