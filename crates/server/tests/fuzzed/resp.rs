// Properties that hold for any bytes sent to the port of the Redis protocol. Included by the fuzz target, which invents
// bytes, and by the test that replays those it found worth keeping.

use tollgate_server::resp::bounds::{MAX_ARGS, MAX_BULK, MAX_COMMAND};
use tollgate_server::resp::wire::{ProtocolError, RespFrame, parse};

type Commands = (Vec<Vec<Vec<u8>>>, Result<usize, ProtocolError>);

/// Takes commands from bytes that arrive in parts of `step`, as the server does.
fn take(input: &[u8], step: usize) -> Commands {
    let (mut commands, mut args) = (Vec::new(), Vec::new());
    let (mut at, mut end, mut needed) = (0, 0, 1);
    while end < input.len() {
        end = input.len().min(end + step);
        while end - at >= needed {
            match parse(&input[at..end], &mut args) {
                Ok(RespFrame::Command(len)) => {
                    assert!(len > 0 && at + len <= end, "a command lies within what has arrived");
                    assert!(args.len() <= MAX_ARGS && args.iter().all(|arg| arg.len() <= MAX_BULK.max(MAX_COMMAND)));
                    commands.push(args.iter().map(|arg| arg.to_vec()).collect());
                    at += len;
                    needed = 1;
                }
                Ok(RespFrame::Incomplete(more)) => {
                    assert!(more > end - at, "what is there is not asked for again");
                    assert!(more <= MAX_COMMAND + 1, "no more is asked for than may be held");
                    needed = more;
                }
                Err(error) => return (commands, Err(error)),
            }
        }
    }
    (commands, Ok(input.len() - at))
}

/// However the bytes are split, the same commands are parsed, up to the same error.
pub fn check(input: &[u8]) {
    let whole = take(input, usize::MAX >> 1);
    for step in [1, 7, 64] {
        assert_eq!(take(input, step), whole, "in parts of {step}");
    }
}
