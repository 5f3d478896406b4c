// Properties that hold for any bytes sent to the Redis protocol's port. Shared by the fuzz target and the corpus test.

use tollgate_server::resp::bounds::{MAX_ARGS, MAX_BULK_BYTES, MAX_COMMAND_BYTES};
use tollgate_server::resp::wire::{ProtocolError, RespFrame, parse_command};

type Commands = (Vec<Vec<Vec<u8>>>, Result<usize, ProtocolError>);

/// Parses commands from bytes that arrive in parts of `step` bytes, in the same way as the server.
fn parse_in_parts(input: &[u8], step: usize) -> Commands {
    let (mut commands, mut args) = (Vec::new(), Vec::new());
    let (mut at, mut end, mut needed) = (0, 0, 1);
    while end < input.len() {
        end = input.len().min(end + step);
        while end - at >= needed {
            match parse_command(&input[at..end], &mut args) {
                Ok(RespFrame::Command(len)) => {
                    assert!(len > 0 && at + len <= end, "a command lies within the received bytes");
                    assert!(
                        args.len() <= MAX_ARGS
                            && args.iter().all(|arg| arg.len() <= MAX_BULK_BYTES.max(MAX_COMMAND_BYTES))
                    );
                    commands.push(args.iter().map(|arg| arg.to_vec()).collect());
                    at += len;
                    needed = 1;
                }
                Ok(RespFrame::Incomplete(more)) => {
                    assert!(more > end - at, "no more bytes are requested while enough are available");
                    assert!(more <= MAX_COMMAND_BYTES + 1, "no more bytes are requested than the buffer may hold");
                    needed = more;
                }
                Err(error) => return (commands, Err(error)),
            }
        }
    }
    (commands, Ok(input.len() - at))
}

/// Checks that the parsed commands and the error do not depend on how the bytes are split.
pub fn check(input: &[u8]) {
    let whole = parse_in_parts(input, usize::MAX >> 1);
    for step in [1, 7, 64] {
        assert_eq!(parse_in_parts(input, step), whole, "in parts of {step} bytes");
    }
}
