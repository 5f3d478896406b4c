//! `CLIENT`: what clients say about themselves.

use super::{Session, quoted, wrong_count};
use crate::front::resp::limits::MAX_CLIENT_NAME;
use crate::front::resp::wire::Replies;

/// `CLIENT SETNAME`, `GETNAME`, `SETINFO`, `ID`, `INFO` and the switches that change nothing here.
pub(super) fn client(session: &mut Session, args: &[&[u8]], replies: &mut Replies) {
    let Some((verb, args)) = args.split_first() else { return wrong_count("client", replies) };
    match (verb.to_ascii_uppercase().as_slice(), args) {
        (b"SETNAME", [name]) => set_name(session, name, replies),
        (b"GETNAME", []) => match &session.name {
            Some(name) => replies.bulk(name),
            None => replies.null(),
        },
        (b"ID", []) => replies.integer(i64::try_from(session.id).unwrap_or(i64::MAX)),
        (b"INFO", []) => {
            let name = session.name.as_deref().unwrap_or_default();
            replies.bulk(format!("id={} name={}\n", session.id, String::from_utf8_lossy(name)));
        }
        (b"SETINFO", [_, _]) | (b"NO-EVICT" | b"NO-TOUCH", [_]) => replies.simple("OK"),
        (b"SETNAME" | b"GETNAME" | b"ID" | b"INFO" | b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH", _) => {
            wrong_count(&format!("client|{}", String::from_utf8_lossy(verb).to_lowercase()), replies);
        }
        _ => replies.error(&format!("ERR unknown subcommand {}. Try CLIENT ID.", quoted(verb))),
    }
}

fn set_name(session: &mut Session, name: &[u8], replies: &mut Replies) {
    if name.len() > MAX_CLIENT_NAME {
        replies.error(&format!("ERR Client names have at most {MAX_CLIENT_NAME} bytes"));
    } else if name.iter().any(|byte| !byte.is_ascii_graphic()) {
        replies.error("ERR Client names cannot contain spaces, newlines or special characters.");
    } else {
        session.name = (!name.is_empty()).then(|| Box::from(name));
        replies.simple("OK");
    }
}
