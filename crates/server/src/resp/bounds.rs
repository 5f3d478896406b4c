//! Bounds on connections and commands of the Redis protocol. Sizes are checked before memory is allocated for them.

use std::time::Duration;

/// Maximum number of arguments of one command. A command with the maximum number of attributes has fewer arguments
/// than this. A linear scan of this many arguments is still fast.
pub const MAX_ARGS: usize = 1_024;

/// Maximum size of one argument, in bytes.
pub const MAX_BULK_BYTES: usize = 64 * 1024;

/// Maximum size of one command in bytes, including length prefixes and line ends. This maximum also bounds the read
/// buffer.
pub const MAX_COMMAND_BYTES: usize = 128 * 1024;

/// Maximum number of digits in a length prefix.
pub const MAX_LENGTH_DIGITS: usize = 20;

/// Initial size of the read buffer, in bytes. A buffer of this size holds a pipeline of about 200 `CL.THROTTLE` calls
/// of 80 bytes each.
pub const INITIAL_READ_BUFFER: usize = 16 * 1024;

/// Number of buffered reply bytes above which the replies are sent before the next command is processed.
pub const WRITE_THRESHOLD: usize = 64 * 1024;

/// Timeout for the first command, so that a connection without commands does not occupy its slot forever. HTTP uses the
/// same timeout for the first request.
pub const FIRST_COMMAND_TIMEOUT: Duration = Duration::from_secs(75);

/// Timeout for the rest of a partial command, and for the client to read a reply. As in Redis, there is no timeout
/// between commands.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a client name in bytes. The name is stored until the connection closes.
pub const MAX_CLIENT_NAME_BYTES: usize = 128;
