//! Commands other than `CL.THROTTLE`, which the pipeline takes care of itself.

mod about;
mod client;
mod hello;

use tollgate_engine::Store;

use super::wire::{Replies, Version};
use crate::app::App;
use crate::control::auth::{Access, Shown};

/// What is known of a connection beyond its socket.
#[derive(Debug)]
pub(super) struct Session {
    id: u64,
    pub(super) version: Version,
    /// What the client calls itself, by `CLIENT SETNAME`.
    name: Option<Box<[u8]>>,
    /// The token it has shown.
    shown: Shown,
    /// Who it was when it was last let in.
    pub(super) access: Access,
}

/// What happens to the connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Continue,
    Close,
}

impl Session {
    pub(super) fn new(id: u64) -> Self {
        Self { id, version: Version::Two, name: None, shown: Shown::default(), access: Access::Local }
    }

    /// Whether the client is let in: it is not if tokens are asked for and it has shown no good one.
    pub(super) fn is_admitted<S: Store>(&mut self, app: &App<S>) -> bool {
        if !app.guards.ask() {
            return true;
        }
        let Ok(access) = app.guards.access(&mut self.shown, || app.wall_ms()) else { return false };
        self.access = access.clone();
        true
    }

    /// Takes note of a token. One that is no good changes nothing, as in Redis.
    fn show<S: Store>(&mut self, app: &App<S>, token: &[u8]) -> Result<(), ()> {
        let mut shown = Shown::default();
        app.guards.show(&mut shown, token);
        match app.guards.access(&mut shown, || app.wall_ms()) {
            Ok(_) => {
                self.shown = shown;
                Ok(())
            }
            Err(_) => Err(()),
        }
    }
}

/// The commands of which no token is asked; those of HTTP are among them, since they end the connection.
pub(super) fn is_open(name: &[u8]) -> bool {
    [&b"AUTH"[..], b"HELLO", b"QUIT", b"RESET", b"POST", b"HOST:"].iter().any(|open| name.eq_ignore_ascii_case(open))
}

/// What Redis says to whoever has to say who they are first; clients look for the first word.
pub(super) const NO_AUTH: &str = "NOAUTH Authentication required.";

/// Answers one command, whose name is the first of `args`.
pub(super) fn run<S: Store>(app: &App<S>, session: &mut Session, args: &[&[u8]], replies: &mut Replies) -> Then {
    let Some((name, args)) = args.split_first() else { return Then::Continue };
    let mut upper = [0; 16];
    let name_upper = match upper.get_mut(..name.len()) {
        Some(upper) => {
            upper.copy_from_slice(name);
            upper.make_ascii_uppercase();
            &*upper
        }
        None => &[],
    };
    match name_upper {
        b"PING" => ping(args, replies),
        b"ECHO" => match args {
            [text] => replies.bulk(text),
            _ => wrong_count("echo", replies),
        },
        b"HELLO" => hello::hello(app, session, args, replies),
        b"AUTH" => hello::auth(app, session, args, replies),
        b"RESET" => {
            *session = Session::new(session.id);
            replies.version = Version::Two;
            replies.simple("RESET");
        }
        b"CLIENT" => client::client(session, args, replies),
        b"SELECT" => match args {
            [b"0"] => replies.simple("OK"),
            [_] => replies.error("ERR DB index is out of range, there is only 0"),
            _ => wrong_count("select", replies),
        },
        b"COMMAND" => about::command(args, replies),
        b"CONFIG" => about::config(args, replies),
        b"INFO" => about::info(app.connections(), replies),
        b"QUIT" => {
            replies.simple("OK");
            return Then::Close;
        }
        // A web page can make a browser send these to a port of its choice; what follows them is not meant for us.
        b"POST" | b"HOST:" => return not_http(replies),
        b"GET" if args.last().is_some_and(|last| last.starts_with(b"HTTP/")) => return not_http(replies),
        _ => unknown(name, args, replies),
    }
    Then::Continue
}

fn ping(args: &[&[u8]], replies: &mut Replies) {
    match args {
        [] => replies.simple("PONG"),
        [text] => replies.bulk(text),
        _ => wrong_count("ping", replies),
    }
}

fn not_http(replies: &mut Replies) -> Then {
    replies.error("ERR this port speaks the Redis protocol, not HTTP");
    Then::Close
}

pub(super) fn wrong_count(command: &str, replies: &mut Replies) {
    replies.error(&format!("ERR wrong number of arguments for '{command}' command"));
}

/// What stands in errors of the caller's own words, so that they stay short.
fn quoted(text: &[u8]) -> String {
    let shown: String = String::from_utf8_lossy(&text[..text.len().min(128)]).into();
    format!("'{shown}'")
}

/// As Redis says it; clients look for these words.
fn unknown(name: &[u8], args: &[&[u8]], replies: &mut Replies) {
    let beginning: String = args.iter().take(4).map(|arg| format!("{} ", quoted(arg))).collect();
    replies.error(&format!("ERR unknown command {}, with args beginning with: {beginning}", quoted(name)));
}
