//! `HELLO` and `AUTH`: which version of the protocol, and who is there.

use tollgate_engine::Store;

use super::client::checked_name;
use super::{Session, quoted};
use crate::app::App;
use crate::resp::wire::{Replies, Version, integer};

/// What Redis says to a password where none is set.
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. \
                           Are you sure your configuration is correct?";

/// What Redis says to a password that is not the right one.
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// What Redis says to a greeting without one.
const HELLO_FIRST: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                           <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
                           the same time";

/// `HELLO [version [AUTH user password] [SETNAME name]]`.
pub(super) fn hello<S: Store>(app: &App<S>, session: &mut Session, args: &[&[u8]], replies: &mut Replies) {
    let version = match args.first().map(|text| integer(text)) {
        None => session.version,
        Some(Some(2)) => Version::Two,
        Some(Some(3)) => Version::Three,
        Some(Some(_)) => return replies.error("NOPROTO unsupported protocol version"),
        Some(None) => return replies.error("ERR Protocol version is not an integer or out of range"),
    };
    let mut name = None;
    let mut rest = args.get(1..).unwrap_or_default();
    while let Some((option, values)) = rest.split_first() {
        rest = match (option.to_ascii_uppercase().as_slice(), values) {
            (b"AUTH", [_, token, others @ ..]) => match (app.guards.ask(), session.show(app, token)) {
                (false, _) => return replies.error(NO_PASSWORD),
                (true, Err(())) => return replies.error(WRONG_PASSWORD),
                (true, Ok(())) => others,
            },
            (b"SETNAME", [value, others @ ..]) => {
                name = match checked_name(value) {
                    Ok(name) => Some(name),
                    Err(error) => return replies.error(&error),
                };
                others
            }
            _ => return replies.error(&format!("ERR Syntax error in HELLO option {}", quoted(option))),
        };
    }
    if !session.is_admitted(app) {
        return replies.error(HELLO_FIRST);
    }
    if let Some(name) = name {
        session.name = name;
    }
    session.version = version;
    replies.version = version;
    let version = match version {
        Version::Two => 2,
        Version::Three => 3,
    };
    replies.map(7);
    replies.bulk("server");
    replies.bulk("tollgate");
    replies.bulk("version");
    replies.bulk(env!("CARGO_PKG_VERSION"));
    replies.bulk("proto");
    replies.integer(version);
    replies.bulk("id");
    replies.integer(i64::try_from(session.id).unwrap_or(i64::MAX));
    replies.bulk("mode");
    replies.bulk("standalone");
    replies.bulk("role");
    replies.bulk("master");
    replies.bulk("modules");
    replies.array(0);
}

/// `AUTH [user] token`. Whoever has the token is whom it was made for, whatever user is named.
pub(super) fn auth<S: Store>(app: &App<S>, session: &mut Session, args: &[&[u8]], replies: &mut Replies) {
    match args {
        [_] | [_, _] if !app.guards.ask() => replies.error(NO_PASSWORD),
        [token] | [_, token] => match session.show(app, token) {
            Ok(()) => replies.simple("OK"),
            Err(()) => replies.error(WRONG_PASSWORD),
        },
        _ => super::wrong_count("auth", replies),
    }
}
