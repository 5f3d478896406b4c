//! The command `CLIENT`, which sets the name of a connection and returns its name and id.

use super::{AfterCommand, CommandContext, quote_argument, wrong_arity};
use crate::resp::bounds::MAX_CLIENT_NAME_BYTES;

/// Runs `CLIENT SETNAME`, `GETNAME`, `ID` and `INFO`. `SETINFO`, `NO-EVICT` and `NO-TOUCH` are accepted as no-ops.
pub(super) fn client(context: &mut CommandContext<'_>, args: &[&[u8]]) -> AfterCommand {
    let CommandContext { session, replies, .. } = context;
    let Some((verb, args)) = args.split_first() else {
        wrong_arity("client", replies);
        return AfterCommand::Continue;
    };
    match (verb.to_ascii_uppercase().as_slice(), args) {
        (b"SETNAME", [name]) => match checked_name(name) {
            Ok(name) => {
                session.name = name;
                replies.write_simple("OK");
            }
            Err(error) => replies.write_error_reply(&error),
        },
        (b"GETNAME", []) => match &session.name {
            Some(name) => replies.write_bulk(name),
            None => replies.write_null(),
        },
        (b"ID", []) => replies.write_integer(i64::try_from(session.id).unwrap_or(i64::MAX)),
        (b"INFO", []) => {
            let name = session.name.as_deref().unwrap_or_default();
            replies.write_bulk(format!("id={} name={}\n", session.id, String::from_utf8_lossy(name)));
        }
        (b"SETINFO", [_, _]) | (b"NO-EVICT" | b"NO-TOUCH", [_]) => replies.write_simple("OK"),
        (b"SETNAME" | b"GETNAME" | b"ID" | b"INFO" | b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH", _) => {
            wrong_arity(&format!("client|{}", String::from_utf8_lossy(verb).to_lowercase()), replies);
        }
        _ => replies.write_error_reply(&format!("ERR unknown subcommand {}. Try CLIENT ID.", quote_argument(verb))),
    }
    AfterCommand::Continue
}

/// Checks a client name. Returns `None` for an empty name, which removes the current name.
///
/// # Errors
/// Returns an error if the name is too long, or contains spaces or non-printable characters.
pub(super) fn checked_name(name: &[u8]) -> Result<Option<Box<[u8]>>, String> {
    if name.len() > MAX_CLIENT_NAME_BYTES {
        return Err(format!("ERR client name too long (maximum {MAX_CLIENT_NAME_BYTES} bytes)"));
    }
    if name.iter().any(|byte| !byte.is_ascii_graphic()) {
        return Err("ERR Client names cannot contain spaces, newlines or special characters.".into());
    }
    Ok((!name.is_empty()).then(|| Box::from(name)))
}
