//! The bounds of the rules service. Everything is bounded before memory is allocated for it.

use std::time::Duration;

use tollgate_engine::rules::MAX_FILE_BYTES;

use crate::control::MAX_RULE_BYTES;

/// Maximum number of bytes of one rule, or of one override.
pub const MAX_RULE: usize = MAX_RULE_BYTES;

/// Maximum number of bytes of a whole rule file.
pub const MAX_FILE: usize = MAX_FILE_BYTES;

/// Maximum number of rule files that are processed at a time.
pub const MAX_LARGE_BODIES: usize = 4;

/// Maximum number of kilobytes of rule files that are received at a time. Memory is counted as a file arrives, so that slow clients hold little.
pub const MAX_RECEIVED_KB: usize = 4 * MAX_FILE / 1024;

/// How long a client may take to send a whole rule file, and wait for its turn.
pub const FILE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of logs that are received or replayed at a time. Further ones are refused: a replay uses all cores, beside decisions.
pub const MAX_REPLAYS: usize = 1;

/// Maximum number of bytes of a log to replay as it is sent, together with the rules.
pub const MAX_UPLOAD: usize = 32 << 20;

/// Maximum number of bytes of a log to replay after decompression; the rest is left out, and the report says so.
pub const MAX_LOG_BYTES: u64 = 512 << 20;

/// Maximum number of keys that each rule set of a replay counts exactly; the report says when there are more.
pub const MAX_LOG_KEYS: usize = 1_000_000;

/// How long a replay may take. It then reports what was read of the log.
pub const REPLAY_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of nodes that wait for the next revision at a time.
pub const MAX_WAITERS: usize = 10_000;

/// How long a node may wait for it.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// How long a call may take: a large file into a slow database.
pub const ANSWER: Duration = Duration::from_secs(120);

/// Maximum number of nodes that are listed; the one that reported least recently is dropped.
pub const MAX_NODES: usize = 10_000;

/// Maximum number of characters of a node's name.
pub const MAX_NODE_NAME: usize = 255;

/// Maximum number of characters of the reason why a node refused rules; the rest is cut off.
pub const MAX_WHY: usize = 1_000;

/// Maximum number of resets whose entries wait for the database; further resets are refused.
pub const MAX_QUEUED_RESETS: usize = 4_096;

/// Maximum number of switches of enforcement whose entries wait for the database; further switches are refused. They have a queue of their own, so
/// that resets do not keep an operator from switching.
pub const MAX_QUEUED_SWITCHES: usize = 64;

/// Maximum number of entries that are written in one transaction.
pub const MAX_AUDIT_BATCH: usize = 256;

/// How long the server waits at shutdown for queued entries to be written.
pub const AUDIT_FLUSH: Duration = Duration::from_secs(5);

/// Maximum number of characters of the subject of such an entry; the rest is cut off.
pub const MAX_SUBJECT: usize = 1_000;
