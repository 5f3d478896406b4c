//! Bounds on logs and on what is kept about them.

/// Maximum number of logs.
pub const MAX_LOGS: usize = 1_000;
/// Maximum length of a line; longer ones are counted and left out.
pub const MAX_LINE: usize = 32 * 1024;
/// Maximum number of fields of a format.
pub const MAX_FIELDS: usize = 64;
/// The bytes of a log that its format is detected from.
pub const HEAD: usize = 256 * 1024;
/// Maximum number of lines that the format is detected from.
pub const SAMPLE_LINES: usize = 200;
/// The bytes of a log that are parsed at a time, if few logs are read together. Lines out of order
/// are sorted within two such parts.
pub const CHUNK: usize = 1024 * 1024;
/// The minimum number of bytes parsed at a time, if many logs are read together.
pub const MIN_CHUNK: usize = 2 * MAX_LINE;
/// The bytes of all parts of logs that are read together.
pub const CHUNKS_TOTAL: usize = 32 * 1024 * 1024;
/// Maximum number of lines with the same second that are spread evenly over it. Further requests of
/// that second are spread over half of what is left of it each time.
pub const MAX_SPREAD: usize = 128 * 1024;
/// Maximum number of lines that are decided in one batch, unless one second has more.
pub const BATCH: usize = 4_096;
/// How much earlier than the lines before a line may be, in nanoseconds; it is then decided at
/// their time. Others are left out.
pub const MAX_LATE: u64 = 60_000_000_000;
/// How much later than the present a line may be, in nanoseconds; later ones are left out.
pub const MAX_FUTURE: u64 = 86_400_000_000_000;
/// Maximum number of columns of a timeline.
pub const MAX_COLUMNS: usize = 240;
/// Maximum number of refused keys that are counted separately, by all rules together.
pub const MAX_REFUSED_KEYS: usize = 500_000;
/// Maximum number of clients whose peaks are kept for suggestions.
pub const MAX_CLIENTS: usize = 1_000_000;
/// Maximum number of rules that are reported one by one.
pub const MAX_RULES: usize = 1_000;
/// Maximum number of rules whose keys are listed: those with the most refusals.
pub const MAX_LISTED: usize = 20;
/// Maximum uncompressed bytes of a compressed log whose data expands more than [`MAX_RATIO`]-fold.
pub const MAX_BOMB: u64 = 1 << 30;
/// See [`MAX_BOMB`]. Logs expand 5- to 50-fold; the format allows 1,032-fold.
pub const MAX_RATIO: u64 = 400;
