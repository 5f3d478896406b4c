//! `HELLO` and `AUTH`, which select the protocol version and authenticate the client.

use super::client::checked_name;
use super::{AfterCommand, CommandContext, quote_argument, wrong_arity};
use crate::resp::wire::{RespVersion, parse_integer};

/// Redis's error for a client that sends a password when no password is configured.
const NO_PASSWORD_CONFIGURED: &str = "ERR AUTH <password> called without any password configured for the default user. \
                           Are you sure your configuration is correct?";

/// Redis's error for a wrong password.
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// Redis's error for a `HELLO` before authentication.
const HELLO_WITHOUT_AUTH: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                           <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
                           the same time";

/// Runs `HELLO [version [AUTH user password] [SETNAME name]]`.
pub(super) fn hello(context: &mut CommandContext<'_>, args: &[&[u8]]) -> AfterCommand {
    if let Err(error) = try_hello(context, args) {
        context.replies.write_error_reply(&error);
    }
    AfterCommand::Continue
}

fn try_hello(context: &mut CommandContext<'_>, args: &[&[u8]]) -> Result<(), String> {
    let version = match args.first().map(|text| parse_integer(text)) {
        None => context.session.version,
        Some(Some(2)) => RespVersion::Two,
        Some(Some(3)) => RespVersion::Three,
        Some(Some(_)) => return Err("NOPROTO unsupported protocol version".into()),
        Some(None) => return Err("ERR Protocol version is not an integer or out of range".into()),
    };
    let mut name = None;
    let mut rest = args.get(1..).unwrap_or_default();
    while let Some((option, values)) = rest.split_first() {
        rest = match (option.to_ascii_uppercase().as_slice(), values) {
            (b"AUTH", [_, token, others @ ..]) => {
                use_token(context, token)?;
                others
            }
            (b"SETNAME", [value, others @ ..]) => {
                name = Some(checked_name(value)?);
                others
            }
            _ => return Err(format!("ERR Syntax error in HELLO option {}", quote_argument(option))),
        };
    }
    let CommandContext { session, replies, auth, wall_ms, .. } = context;
    if !session.authenticate(auth, || *wall_ms) {
        return Err(HELLO_WITHOUT_AUTH.into());
    }
    if let Some(name) = name {
        session.name = name;
    }
    session.version = version;
    replies.version = version;
    let proto = match version {
        RespVersion::Two => 2,
        RespVersion::Three => 3,
    };
    replies.begin_map(7);
    replies.write_bulk("server");
    replies.write_bulk("tollgate");
    replies.write_bulk("version");
    replies.write_bulk(env!("CARGO_PKG_VERSION"));
    replies.write_bulk("proto");
    replies.write_integer(proto);
    replies.write_bulk("id");
    replies.write_integer(i64::try_from(session.id).unwrap_or(i64::MAX));
    replies.write_bulk("mode");
    replies.write_bulk("standalone");
    replies.write_bulk("role");
    replies.write_bulk("master");
    replies.write_bulk("modules");
    replies.begin_array(0);
    Ok(())
}

/// Runs `AUTH [user] token`. The token identifies the caller. The user is ignored.
pub(super) fn auth(context: &mut CommandContext<'_>, args: &[&[u8]]) -> AfterCommand {
    match args {
        [token] | [_, token] => match use_token(context, token) {
            Ok(()) => context.replies.write_simple("OK"),
            Err(error) => context.replies.write_error_reply(&error),
        },
        _ => wrong_arity("auth", context.replies),
    }
    AfterCommand::Continue
}

fn use_token(context: &mut CommandContext<'_>, token: &[u8]) -> Result<(), String> {
    let CommandContext { session, auth, wall_ms, .. } = context;
    match (auth.requires_tokens(), session.use_token(auth, token, || *wall_ms)) {
        (false, _) => Err(NO_PASSWORD_CONFIGURED.into()),
        (true, false) => Err(WRONG_PASSWORD.into()),
        (true, true) => Ok(()),
    }
}
