//! `HELLO` and `AUTH`: which version of the protocol, and who is there.

use super::client::checked_name;
use super::{Session, quoted};
use crate::front::resp::wire::{Replies, Version, integer};

/// What Redis says to a password where none is set.
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. \
                           Are you sure your configuration is correct?";

/// `HELLO [version [AUTH user password] [SETNAME name]]`.
pub(super) fn hello(session: &mut Session, args: &[&[u8]], replies: &mut Replies) {
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
            (b"AUTH", [_, _, ..]) => return replies.error(NO_PASSWORD),
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

/// `AUTH [user] password`: there is nobody to be.
pub(super) fn auth(args: &[&[u8]], replies: &mut Replies) {
    match args {
        [_] | [_, _] => replies.error(NO_PASSWORD),
        _ => super::wrong_count("auth", replies),
    }
}
