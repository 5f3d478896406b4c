//! Bounds of a replay.

/// Maximum number of logs.
pub const MAX_LOGS: usize = 1_000;
/// Maximum length of a line in bytes; longer lines are counted and skipped.
pub const MAX_LINE_BYTES: usize = 32 * 1024;
/// Maximum number of fields in a log format.
pub const MAX_FIELDS: usize = 64;
/// Number of bytes at the start of a log that are used to detect its format.
pub const FORMAT_SAMPLE_BYTES: usize = 256 * 1024;
/// Maximum number of lines that are used to detect the format.
pub const FORMAT_SAMPLE_LINES: usize = 200;
/// Size of a chunk in bytes if there are few logs. Lines that are out of order are sorted within two chunks.
pub const CHUNK_BYTES: usize = 1024 * 1024;
/// Minimum size of a chunk in bytes, if there are many logs.
pub const MIN_CHUNK_BYTES: usize = 2 * MAX_LINE_BYTES;
/// Maximum total size in bytes of the chunks of up to 64 logs. Each further log that is read at the same time adds
/// [`CHUNKS_PER_LOG`] chunks of [`MIN_CHUNK_BYTES`].
pub const MAX_TOTAL_CHUNK_BYTES: usize = 32 * 1024 * 1024;
/// Maximum number of chunks of one log in memory: two being merged, one read ahead, one being parsed, and up to four
/// in batches that are being decided.
pub const CHUNKS_PER_LOG: usize = 8;
/// Maximum number of requests that are spread over a second as one group. If a second has more requests, each full
/// group is spread over half of the second's remaining time.
pub const MAX_SPREAD_GROUP: usize = 128 * 1024;
/// Number of lines that are decided in one batch. A batch is larger if the log has more lines for one second.
pub const BATCH_LINES: usize = 4_096;
/// Maximum time, in nanoseconds, by which a line may be earlier than the previous line. Such a line is decided at the
/// time of the previous line. A line that is even earlier is skipped.
pub const MAX_LATE_NANOS: u64 = 60_000_000_000;
/// Maximum time, in nanoseconds, by which a line may be in the future. Lines with a later time are skipped.
pub const MAX_FUTURE_NANOS: u64 = 86_400_000_000_000;
/// Maximum number of columns in a timeline chart.
pub const MAX_TIMELINE_COLUMNS: usize = 240;
/// Maximum number of refused keys that are tracked, over all rules.
pub const MAX_REFUSED_KEYS: usize = 500_000;
/// Maximum number of clients whose peaks are tracked for suggestions.
pub const MAX_CLIENTS: usize = 1_000_000;
/// Maximum number of rules that are reported individually.
pub const MAX_REPORTED_RULES: usize = 1_000;
/// Maximum number of rules whose keys are listed. These are the rules with the most refusals.
pub const MAX_RULES_WITH_LISTED_KEYS: usize = 20;
/// Maximum uncompressed size in bytes of a log that expands more than [`MAX_EXPANSION_RATIO`]-fold. A larger log is treated as a
/// decompression bomb and cut off.
pub const MAX_BOMB_BYTES: u64 = 1 << 30;
/// Expansion ratio above which [`MAX_BOMB_BYTES`] applies. Logs expand 5- to 50-fold; gzip can expand 1,032-fold.
pub const MAX_EXPANSION_RATIO: u64 = 400;
