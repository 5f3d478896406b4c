//! Connection commands: the Redis commands that clients send in addition to the operations.

mod about;
mod client;
mod hello;

use tollgate_engine::Store;

use super::session::Session;
use super::wire::{Replies, RespVersion};
use crate::app::App;
use crate::control::auth::Authenticator;
use crate::net::shutdown::Connections;

/// A connection command.
struct ConnectionCommand {
    /// The name, in lower case.
    name: &'static str,
    /// Number of words, including the name. A negative number `-n` means at least `n` words.
    arity: i64,
    /// Whether the command is allowed before authentication.
    allowed_before_auth: bool,
    summary: &'static str,
    run: CommandHandler,
}

/// The context in which a command runs.
struct CommandContext<'a> {
    session: &'a mut Session,
    replies: &'a mut Replies,
    auth: &'a Authenticator,
    connections: &'a Connections,
    wall_ms: i64,
}

/// Whether the connection continues after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterCommand {
    Continue,
    Close,
}

const COMMANDS: &[ConnectionCommand] = &[
    unauthenticated_command("auth", -2, "Authenticates with a token: [user] token", hello::auth),
    connection_command("client", -2, "Names the connection and returns its id", client::client),
    connection_command("command", -1, "Describes the commands", about::command),
    connection_command("config", -2, "CONFIG GET, for redis-benchmark", about::config),
    connection_command("discard", 1, "Ends a refused transaction", discard),
    connection_command("echo", 2, "Returns its argument", echo),
    connection_command("exec", 1, "Ends a refused transaction", exec),
    unauthenticated_command("hello", -1, "Selects version 2 or 3 of the protocol", hello::hello),
    connection_command("info", -1, "Returns information about the server", about::info),
    connection_command("multi", 1, "Refused: transactions are not supported", multi),
    connection_command("ping", -1, "Returns PONG", ping),
    unauthenticated_command("quit", -1, "Closes the connection", quit),
    unauthenticated_command("reset", 1, "Resets the state of the connection", reset),
    connection_command("select", 2, "Accepts database 0", select),
];

type CommandHandler = fn(&mut CommandContext<'_>, &[&[u8]]) -> AfterCommand;

const fn connection_command(
    name: &'static str,
    arity: i64,
    summary: &'static str,
    run: CommandHandler,
) -> ConnectionCommand {
    ConnectionCommand { name, arity, allowed_before_auth: false, summary, run }
}

const fn unauthenticated_command(
    name: &'static str,
    arity: i64,
    summary: &'static str,
    run: CommandHandler,
) -> ConnectionCommand {
    ConnectionCommand { allowed_before_auth: true, ..connection_command(name, arity, summary, run) }
}

fn find_command(name: &[u8]) -> Option<&'static ConnectionCommand> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Returns whether a command is allowed before authentication. HTTP words are allowed, because they close the
/// connection.
pub(super) fn is_allowed_before_auth(name: &[u8]) -> bool {
    find_command(name).is_some_and(|command| command.allowed_before_auth) || is_http_word(name)
}

/// Returns whether the command is part of an HTTP request. A web page can make a browser send requests to any port, and
/// the lines of such a request must not be run as commands.
fn is_http_word(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"HOST:")
}

/// Runs a command. `args` starts with the name of the command.
pub(super) fn run<S: Store>(
    app: &App<S>,
    session: &mut Session,
    args: &[&[u8]],
    replies: &mut Replies,
) -> AfterCommand {
    let Some((name, args)) = args.split_first() else { return AfterCommand::Continue };
    if let Some(command) = find_command(name) {
        let (auth, connections, wall_ms) = (&app.auth, &*app.connections, app.wall_ms());
        return (command.run)(&mut CommandContext { session, replies, auth, connections, wall_ms }, args);
    }
    let is_get = name.eq_ignore_ascii_case(b"GET") && args.last().is_some_and(|last| last.starts_with(b"HTTP/"));
    if is_get || is_http_word(name) {
        replies.write_error_reply("ERR this port speaks the Redis protocol, not HTTP");
        return AfterCommand::Close;
    }
    // Clients compare the error with Redis's exact wording.
    let beginning: String = args.iter().take(4).map(|arg| format!("{} ", quote_argument(arg))).collect();
    replies.write_error_reply(&format!(
        "ERR unknown command {}, with args beginning with: {beginning}",
        quote_argument(name)
    ));
    AfterCommand::Continue
}

fn echo(context: &mut CommandContext<'_>, args: &[&[u8]]) -> AfterCommand {
    match args {
        [text] => context.replies.write_bulk(text),
        _ => wrong_arity("echo", context.replies),
    }
    AfterCommand::Continue
}

/// The reply to a command inside a refused transaction. The command is not run.
pub(super) const NO_TRANSACTIONS: &str = "ERR not run: MULTI is not supported; send a pipeline without a transaction \
                                  (redis-py: pipeline(transaction=False))";

/// Returns whether a command ends a refused transaction.
pub(super) fn ends_transaction(name: &[u8]) -> bool {
    [&b"exec"[..], b"discard", b"reset", b"quit"].iter().any(|end| end.eq_ignore_ascii_case(name))
}

/// Refuses a transaction and all its commands. Clients send these commands without waiting for this reply.
fn multi(context: &mut CommandContext<'_>, _: &[&[u8]]) -> AfterCommand {
    context.session.in_transaction = true;
    context.replies.write_error_reply(NO_TRANSACTIONS);
    AfterCommand::Continue
}

fn exec(context: &mut CommandContext<'_>, _: &[&[u8]]) -> AfterCommand {
    context.replies.write_error_reply(match std::mem::take(&mut context.session.in_transaction) {
        true => {
            "EXECABORT Transaction discarded because MULTI is not supported; send a pipeline without a transaction \
                 (redis-py: pipeline(transaction=False))"
        }
        false => "ERR EXEC without MULTI",
    });
    AfterCommand::Continue
}

fn discard(context: &mut CommandContext<'_>, _: &[&[u8]]) -> AfterCommand {
    match std::mem::take(&mut context.session.in_transaction) {
        true => context.replies.write_simple("OK"),
        false => context.replies.write_error_reply("ERR DISCARD without MULTI"),
    }
    AfterCommand::Continue
}

fn ping(context: &mut CommandContext<'_>, args: &[&[u8]]) -> AfterCommand {
    match args {
        [] => context.replies.write_simple("PONG"),
        [text] => context.replies.write_bulk(text),
        _ => wrong_arity("ping", context.replies),
    }
    AfterCommand::Continue
}

fn quit(context: &mut CommandContext<'_>, _: &[&[u8]]) -> AfterCommand {
    context.replies.write_simple("OK");
    AfterCommand::Close
}

fn reset(context: &mut CommandContext<'_>, _: &[&[u8]]) -> AfterCommand {
    context.session.reset();
    context.replies.version = RespVersion::Two;
    context.replies.write_simple("RESET");
    AfterCommand::Continue
}

fn select(context: &mut CommandContext<'_>, args: &[&[u8]]) -> AfterCommand {
    match args {
        [b"0"] => context.replies.write_simple("OK"),
        [_] => context.replies.write_error_reply("ERR DB index is out of range (only 0 exists)"),
        _ => wrong_arity("select", context.replies),
    }
    AfterCommand::Continue
}

fn wrong_arity(command: &str, replies: &mut Replies) {
    replies.write_error_reply(&format!("ERR wrong number of arguments for '{command}' command"));
}

/// Quotes an argument for an error message, truncated to 128 bytes.
fn quote_argument(text: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(&text[..text.len().min(128)]))
}
