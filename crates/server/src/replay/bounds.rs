//! Bounds of a replay.

/// Maximum number of logs.
pub const MAX_LOGS: usize = 1_000;
/// Maximum length of a line; longer lines are counted and left out.
pub const MAX_LINE: usize = 32 * 1024;
/// Maximum number of fields of a format.
pub const MAX_FIELDS: usize = 64;
/// Number of bytes from which the format of a log is detected.
pub const HEAD: usize = 256 * 1024;
/// Maximum number of lines from which the format is detected.
pub const SAMPLE_LINES: usize = 200;
/// Size of a chunk if few logs are read together. A chunk is parsed at once. Lines that are out of order are sorted
/// within two chunks.
pub const CHUNK: usize = 1024 * 1024;
/// Minimum size of a chunk, if many logs are read together.
pub const MIN_CHUNK: usize = 2 * MAX_LINE;
/// Total size of the chunks of all logs that are read together.
pub const CHUNKS_TOTAL: usize = 32 * 1024 * 1024;
/// Maximum number of requests of one second that are spread together. If a second has more, each group of this size is
/// spread over half of the rest of the second.
pub const MAX_SPREAD: usize = 128 * 1024;
/// Number of lines that are decided in one batch. A batch is larger if one second has more lines.
pub const BATCH: usize = 4_096;
/// How much earlier than the previous line a line may be, in nanoseconds. It is then decided at the time of the
/// previous line. Even earlier lines are left out.
pub const MAX_LATE: u64 = 60_000_000_000;
/// How far in the future the time of a line may be, in nanoseconds. Later lines are left out.
pub const MAX_FUTURE: u64 = 86_400_000_000_000;
/// Maximum number of columns of a timeline.
pub const MAX_COLUMNS: usize = 240;
/// Maximum number of refused keys that are tracked, for all rules together.
pub const MAX_REFUSED_KEYS: usize = 500_000;
/// Maximum number of clients whose peaks are tracked for suggestions.
pub const MAX_CLIENTS: usize = 1_000_000;
/// Maximum number of rules that are reported one by one.
pub const MAX_RULES: usize = 1_000;
/// Maximum number of rules whose keys are listed: the rules with the most refusals.
pub const MAX_LISTED: usize = 20;
/// Maximum number of uncompressed bytes of a log that expands more than [`MAX_RATIO`]-fold. Larger logs are cut off as
/// decompression bombs.
pub const MAX_BOMB: u64 = 1 << 30;
/// Expansion ratio above which [`MAX_BOMB`] applies. Logs expand 5- to 50-fold; gzip can expand 1,032-fold.
pub const MAX_RATIO: u64 = 400;
