//! `COMMAND`, `CONFIG` and `INFO`: what clients want to know about the server before they use it.

use super::{quoted, wrong_count};
use crate::resp::wire::Replies;

/// A command as clients are told about it.
struct Described {
    name: &'static str,
    /// How many words, itself included; negative: at least.
    arity: i64,
    flags: &'static [&'static str],
    /// The place of its key, or zero.
    key: i64,
    summary: &'static str,
}

const fn described(
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    key: i64,
    summary: &'static str,
) -> Described {
    Described { name, arity, flags, key, summary }
}

const WRITES: &[&str] = &["write", "denyoom", "fast"];
const ASKS: &[&str] = &["readonly", "fast"];
const TALKS: &[&str] = &["loading", "stale", "fast"];

const COMMANDS: &[Described] = &[
    described(
        "cl.throttle",
        -5,
        WRITES,
        1,
        "Takes from a key's limit or tells when to come back: key max_burst count period [quantity]",
    ),
    described("tg.check", -3, WRITES, 0, "Decides a request by the rules: domain cost|- [ONCE key] [name value ...]"),
    described(
        "tg.peek",
        -3,
        ASKS,
        0,
        "Tells what tg.check would say and takes nothing: domain cost|- [name value ...]",
    ),
    described(
        "tg.takeupto",
        -3,
        WRITES,
        0,
        "Takes as much of the cost as there is: domain cost|- [ONCE key] [name value ...]",
    ),
    described(
        "tg.charge",
        -3,
        WRITES,
        0,
        "Takes the cost regardless, into debt: domain cost|- [ONCE key] [name value ...]",
    ),
    described("tg.drain", -2, WRITES, 0, "Takes all there is: domain [ONCE key] [name value ...]"),
    described(
        "tg.reserve",
        -3,
        WRITES,
        0,
        "Takes, and gives a receipt to settle by: domain cost|- [ONCE key] [name value ...]",
    ),
    described(
        "tg.acquire",
        -4,
        WRITES,
        0,
        "Takes when there is enough, or refuses: domain cost|- wait_ms [ONCE key] [name value ...]",
    ),
    described("tg.commit", -3, WRITES, 0, "Settles a reservation at what it really weighed: receipt cost [ONCE key]"),
    described("tg.cancel", -2, WRITES, 0, "Gives a reservation back: receipt [ONCE key]"),
    described("tg.release", -2, WRITES, 0, "Gives a slot back: receipt [ONCE key]"),
    described("tg.renew", -2, WRITES, 0, "Holds a slot longer: receipt [ONCE key]"),
    described("tg.refund", -2, WRITES, 0, "Gives back what a decision took: receipt [ONCE key]"),
    described("tg.reset", -3, WRITES, 0, "Forgets what was spent: domain cost|- [ONCE key] [name value ...]"),
    described("tg.explain", -3, ASKS, 0, "Tells why tg.check would say what it would: domain cost|- [name value ...]"),
    described("auth", -2, TALKS, 0, "Shows a token, where tokens are asked for: [user] token"),
    described("client", -2, TALKS, 0, "Names the connection and tells its number"),
    described("command", -1, TALKS, 0, "Describes these commands"),
    described("config", -2, TALKS, 0, "CONFIG GET, for redis-benchmark"),
    described("echo", 2, TALKS, 0, "Says what it is told"),
    described("hello", -1, TALKS, 0, "Chooses version 2 or 3 of the protocol"),
    described("info", -1, TALKS, 0, "Tells about the server"),
    described("ping", -1, TALKS, 0, "Says PONG"),
    described("quit", -1, TALKS, 0, "Ends the connection"),
    described("reset", 1, TALKS, 0, "Makes the connection as new"),
    described("select", 2, TALKS, 0, "Accepts database 0"),
];

/// `COMMAND [COUNT | LIST | INFO name … | DOCS [name …]]`.
pub(super) fn command(args: &[&[u8]], replies: &mut Replies) {
    let Some((verb, names)) = args.split_first() else {
        replies.array(COMMANDS.len());
        return COMMANDS.iter().for_each(|command| entry(command, replies));
    };
    match verb.to_ascii_uppercase().as_slice() {
        b"COUNT" => replies.integer(COMMANDS.len() as i64),
        b"LIST" => {
            replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| replies.bulk(command.name));
        }
        b"INFO" => {
            replies.array(names.len());
            for name in names {
                match find(name) {
                    Some(command) => entry(command, replies),
                    None => replies.null(),
                }
            }
        }
        b"DOCS" => {
            let known: Vec<&Described> = match names {
                [] => COMMANDS.iter().collect(),
                names => names.iter().filter_map(|name| find(name)).collect(),
            };
            replies.map(known.len());
            known.into_iter().for_each(|command| docs(command, replies));
        }
        _ => replies.error(&format!("ERR unknown subcommand {}. Try COMMAND DOCS.", quoted(verb))),
    }
}

fn find(name: &[u8]) -> Option<&'static Described> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

fn entry(command: &Described, replies: &mut Replies) {
    replies.array(6);
    replies.bulk(command.name);
    replies.integer(command.arity);
    replies.array(command.flags.len());
    command.flags.iter().for_each(|flag| replies.bulk(flag));
    // First key, last key and the step between them.
    (0..3).for_each(|_| replies.integer(command.key));
}

fn docs(command: &Described, replies: &mut Replies) {
    replies.bulk(command.name);
    replies.map(3);
    replies.bulk("summary");
    replies.bulk(command.summary);
    replies.bulk("since");
    replies.bulk("0.1.0");
    replies.bulk("group");
    replies.bulk(if command.name.contains('.') { "module" } else { "connection" });
}

/// `CONFIG GET name …`: two settings that redis-benchmark asks for, and nothing else.
pub(super) fn config(args: &[&[u8]], replies: &mut Replies) {
    let Some((verb, names)) = args.split_first() else { return wrong_count("config", replies) };
    if !verb.eq_ignore_ascii_case(b"GET") {
        return replies.error("ERR only CONFIG GET is supported; the server is configured by its command line");
    }
    let settings = [("save", ""), ("appendonly", "no")];
    let asked = |name: &str| names.iter().any(|asked| asked.eq_ignore_ascii_case(name.as_bytes()));
    let known: Vec<_> = settings.into_iter().filter(|(name, _)| asked(name)).collect();
    replies.map(known.len());
    for (name, value) in known {
        replies.bulk(name);
        replies.bulk(value);
    }
}

/// `INFO`, in the form of Redis. Clients look for `loading` and for a version they know.
pub(super) fn info(connections: usize, replies: &mut Replies) {
    replies.bulk(format!(
        "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\ntollgate_version:{}\r\n\
         # Clients\r\nconnected_clients:{}\r\n# Persistence\r\nloading:0\r\n# Replication\r\nrole:master\r\n",
        env!("CARGO_PKG_VERSION"),
        connections,
    ));
}
