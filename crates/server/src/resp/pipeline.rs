//! Processes the commands in a read buffer in order, and returns the next step: write, run a batch, read, or close.
//!
//! Connection commands and local `CL.THROTTLE` calls are answered here. Operations are collected into a [`Batch`],
//! because they may need a round trip to a shared store.

use tollgate_engine::Store;

use super::batch::{Batch, BatchCommand};
use super::bounds::WRITE_THRESHOLD;
use super::command;
use super::session::{AUTHENTICATION_REQUIRED, Session};
use super::throttle::{LocalCalls, ThrottleLimitCache, is_throttle};
use super::wire::{Replies, RespFrame, parse_command};
use crate::app::App;
use crate::net::protocol::Protocol;

/// Maximum number of connection commands and invalid commands that are answered before the replies are written and the
/// connection can yield to others. An unknown command takes about a microsecond.
const MAX_SLOW_COMMANDS: usize = 64;

/// The next step of a connection.
#[derive(Debug)]
pub(super) enum NextStep<'a> {
    /// Write the replies and read more input.
    Read,
    /// Write the replies, then process the rest of the buffer.
    Write,
    /// Run the batch and write the replies.
    Run(Batch<'a>),
    /// Write the replies and close the connection.
    Close,
}

/// Answers the commands at the start of `input`. Returns the number of bytes used (including the bytes of a returned
/// batch) and the next step.
pub(super) fn answer_commands<'a, S: Store>(
    app: &'a App<S>,
    session: &mut Session,
    cache: &mut ThrottleLimitCache,
    input: &'a [u8],
    replies: &mut Replies,
) -> (usize, NextStep<'a>) {
    let mut args = Vec::with_capacity(8);
    let mut local = LocalCalls::new(app);
    let (mut at, mut slow_commands) = (0, 0);
    // The token is checked once for all commands in the buffer, and again after each connection command, because such a
    // command may change the session.
    let mut authenticated = session.authenticate(&app.auth, || app.wall_ms());
    let next = loop {
        let command = &input[at..];
        if authenticated
            && !session.in_transaction
            && let Some(len) = local.try_add_from_template(command, cache, replies)
        {
            at += len;
            if replies.bytes.len() > WRITE_THRESHOLD {
                break NextStep::Write;
            }
            continue;
        }
        match parse_command(command, &mut args) {
            Ok(RespFrame::Command(len)) => {
                at += len;
                let Some(name) = args.first() else { continue };
                if !authenticated && !command::is_allowed_before_auth(name) {
                    app.metrics.protocol_counters(Protocol::Resp).count_malformed();
                    replies.write_error_reply(AUTHENTICATION_REQUIRED);
                } else if session.in_transaction && !command::ends_transaction(name) {
                    local.decide_pending(cache, replies);
                    replies.write_error_reply(command::NO_TRANSACTIONS);
                } else if app.throttles.is_some() && is_throttle(name) {
                    local.add(&command[..len], &args, cache, replies);
                } else if let Some(first) = BatchCommand::find(app, name) {
                    local.decide_pending(cache, replies);
                    let (batch, len) = Batch::collect(app, &session.access, first, &mut args, &input[at..], replies);
                    at += len;
                    if let Some(batch) = batch {
                        break NextStep::Run(batch);
                    }
                    slow_commands += 1;
                } else {
                    slow_commands += 1;
                    local.decide_pending(cache, replies);
                    match command::run(app, session, &args, replies) {
                        command::AfterCommand::Continue => {
                            authenticated = session.authenticate(&app.auth, || app.wall_ms());
                        }
                        command::AfterCommand::Close => break NextStep::Close,
                    }
                }
            }
            Ok(RespFrame::Incomplete(_)) => break NextStep::Read,
            Err(error) => {
                local.decide_pending(cache, replies);
                replies.write_error_reply(&format!("ERR Protocol error: {error}"));
                break NextStep::Close;
            }
        }
        if replies.bytes.len() > WRITE_THRESHOLD || slow_commands == MAX_SLOW_COMMANDS {
            break NextStep::Write;
        }
    };
    local.decide_pending(cache, replies);
    (at, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::redis_cell::RedisCellTable;
    use tollgate_engine::{Engine, MemoryStore};

    /// Returns the replies to inputs that arrive one after the other, each with only complete commands. Of a reply to
    /// `CL.THROTTLE`, only the first three numbers, because the others are times.
    fn answer_all(inputs: &[Vec<u8>]) -> String {
        let engine = MemoryStore::new(1).and_then(Engine::new).expect("an engine");
        let app = App::new(engine, RedisCellTable::new(1_000).ok());
        let (mut session, mut cache, mut replies) = (Session::new(1), ThrottleLimitCache::new(), Replies::default());
        for input in inputs {
            let (used, next) = answer_commands(&app, &mut session, &mut cache, input, &mut replies);
            assert!(used == input.len() && matches!(next, NextStep::Read), "{next:?} after {used} bytes");
        }
        let text = String::from_utf8(replies.bytes).expect("text");
        let (head, throttled) = text.split_once("*5\r\n").expect("a reply to CL.THROTTLE");
        let without_times = throttled.split("*5\r\n").map(|reply| {
            let lines: Vec<&str> = reply.split_inclusive("\r\n").collect();
            format!("*5\r\n{}{}", lines[..3].concat(), lines[5..].concat())
        });
        head.to_owned() + &without_times.collect::<String>()
    }

    /// A call is compared with the last call only within one input.
    #[test]
    fn replies_do_not_depend_on_how_many_commands_arrive_together() {
        let similar = |key: usize| format!("CL.THROTTLE key{} 3 1 86400", key % 7);
        let mut commands: Vec<String> = (0..40).map(similar).collect();
        commands.push("CL.THROTTLE key1 3 1 86400 4".into());
        commands.extend((0..5).map(similar));
        for other in ["PING", "CL.THROTTLE key1 x 1 86400", "cl.throttle key1 3 1 86400", "CL.THROTTLE key1", "MULTI"] {
            commands.push(other.into());
            commands.extend((0..5).map(similar));
        }
        commands.push("DISCARD".into());
        commands.extend((0..20).map(similar));
        let encode = |command: &String| {
            let words: Vec<&str> = command.split(' ').collect();
            let args: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
            format!("*{}\r\n{args}", words.len()).into_bytes()
        };
        let inputs: Vec<Vec<u8>> = commands.iter().map(encode).collect();
        let replies = answer_all(&inputs);
        assert_eq!(answer_all(&[inputs.concat()]), replies);
        assert_eq!(replies.matches("*5\r\n").count(), 87, "{replies}");
    }
}
