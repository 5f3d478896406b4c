//! What a client of the Redis protocol may send. Everything is bounded before memory is taken for it.

use std::time::Duration;

/// Arguments in one command: `TG.CHECK` with a few hundred attributes, and no list that takes long to look through.
pub const MAX_ARGS: usize = 1_024;

/// Bytes in one argument. Keys are names, not documents.
pub const MAX_BULK: usize = 64 * 1024;

/// Bytes in one command, with all its lengths and line ends. Also the most a connection ever holds unanswered.
pub const MAX_COMMAND: usize = 128 * 1024;

/// Digits in a length, with its sign. Longer ones are numbers nobody means.
pub const MAX_LENGTH_DIGITS: usize = 20;

/// What a connection reads at once to begin with: a pipeline of some 150 throttling calls.
pub const READ_BUFFER: usize = 16 * 1024;

/// Bytes of answers after which they are written before more is read.
pub const WRITE_BUFFER: usize = 64 * 1024;

/// How long the rest of a command may take to arrive, and an answer to be taken. Idle connections may stay for ever,
/// as they may with Redis.
pub const STALLED: Duration = Duration::from_secs(30);

/// Bytes of the name a client gives itself, which is kept for as long as it stays.
pub const MAX_CLIENT_NAME: usize = 128;
