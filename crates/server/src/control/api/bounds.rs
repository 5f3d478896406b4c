//! Limits of the rules service. Limits on sizes are checked before memory is allocated.

use std::time::Duration;

pub use tollgate_engine::rules::MAX_FILE_BYTES;

pub use crate::control::MAX_RULE_BYTES;

/// Maximum number of rule files that are processed at a time.
pub const MAX_PROCESSED_FILES: usize = 4;

/// Maximum number of kilobytes of rule files that are received at a time. Bytes are counted as they arrive, so a slow
/// client uses little of this limit.
pub const MAX_RECEIVED_KB: usize = 4 * MAX_FILE_BYTES / 1024;

/// Maximum time for a client to send a rule file. The wait for a processing permit has the same maximum.
pub const FILE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of logs that are received or replayed at a time. Further logs are refused, because a replay competes
/// with decisions for all cores.
pub const MAX_REPLAYS: usize = 1;

/// Maximum number of bytes of an upload: the log as sent, together with the rules.
pub const MAX_UPLOAD_BYTES: usize = 32 << 20;

/// Maximum number of bytes of an uploaded log after decompression. Longer logs are cut off, and the report says so.
pub const MAX_LOG_BYTES: u64 = 512 << 20;

/// Maximum number of keys that each rule set of a replay counts exactly. If there are more keys, the report says so.
pub const MAX_LOG_KEYS: usize = 1_000_000;

/// Maximum duration of a replay. After that, the replay reports on the part of the log that it has read.
pub const REPLAY_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of nodes that wait for the next revision at a time.
pub const MAX_WAITING_NODES: usize = 10_000;

/// Maximum time that a node waits for the next revision.
pub const MAX_NODE_WAIT: Duration = Duration::from_secs(60);

/// Maximum duration of a call. The slowest call applies a large file to a slow database.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum number of listed nodes. If there are more nodes, the node that reported least recently is dropped.
pub const MAX_NODES: usize = 10_000;

/// Maximum number of characters of a node's name.
pub const MAX_NODE_NAME_CHARS: usize = 255;

/// Maximum length of the reason why a node refused rules, in characters. Longer reasons are truncated.
pub const MAX_REASON_CHARS: usize = 1_000;

/// Maximum number of resets with pending audit entries; further resets are refused.
pub const MAX_QUEUED_RESETS: usize = 4_096;

/// Maximum number of enforcement switches with pending audit entries; further switches are refused. Switches have their
/// own queue, so that resets cannot block the kill switch.
pub const MAX_QUEUED_SWITCHES: usize = 64;

/// Maximum number of audit entries that are written in one transaction.
pub const MAX_AUDIT_BATCH: usize = 256;

/// Maximum time that a shutdown waits for pending audit entries to be written.
pub const AUDIT_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum length of an audit entry's subject, in characters. Longer subjects are truncated.
pub const MAX_SUBJECT_CHARS: usize = 1_000;
