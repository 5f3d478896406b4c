//! The limits of the Redis protocol. Everything is bounded before memory is allocated for it.

use std::time::Duration;

/// Maximum number of arguments of one command: enough for a few hundred attributes, and few enough to scan.
pub const MAX_ARGS: usize = 1_024;

/// Maximum number of bytes of one argument.
pub const MAX_BULK: usize = 64 * 1024;

/// Maximum number of bytes of one command with all lengths and line ends; also the maximum of unanswered bytes of a connection.
pub const MAX_COMMAND: usize = 128 * 1024;

/// Maximum number of digits of a length, with its sign.
pub const MAX_LENGTH_DIGITS: usize = 20;

/// The initial read buffer: a pipeline of about 150 calls of `CL.THROTTLE`.
pub const READ_BUFFER: usize = 16 * 1024;

/// The bytes of replies after which they are written before more is read.
pub const WRITE_BUFFER: usize = 64 * 1024;

/// The time limit for the first command, as for the first request over HTTP: a connection that never sends one must not keep its
/// slot.
pub const FIRST_COMMAND: Duration = Duration::from_secs(75);

/// The time limit for the rest of a command to arrive, and for the client to read a reply. Between commands a connection may be
/// idle without a limit, as in Redis.
pub const STALLED: Duration = Duration::from_secs(30);

/// Maximum number of bytes of a client name, which is kept as long as the connection.
pub const MAX_CLIENT_NAME: usize = 128;
