//! The commands `COMMAND`, `CONFIG` and `INFO`, which return information about the server.

use super::{AfterCommand, COMMANDS, CommandContext, quote_argument, wrong_arity};
use crate::ops::OPERATIONS;
use crate::resp::wire::Replies;

/// The description of a command in `COMMAND` replies.
struct CommandDescription {
    name: String,
    arity: i64,
    flags: &'static [&'static str],
    /// The argument index of the key, or 0 if the command has no key.
    key: i64,
    summary: String,
}

/// Returns the descriptions of all commands: `CL.THROTTLE`, the operations, and the connection commands.
fn describe_commands() -> Vec<CommandDescription> {
    const WRITE_FLAGS: &[&str] = &["write", "denyoom", "fast"];
    const READ_FLAGS: &[&str] = &["readonly", "fast"];
    const CONNECTION_FLAGS: &[&str] = &["loading", "stale", "fast"];
    let throttle = CommandDescription {
        name: "cl.throttle".into(),
        arity: -5,
        flags: WRITE_FLAGS,
        key: 1,
        summary: "Takes from the limit of a key, or returns when to try again: <key> <max_burst> <count> <period> [<quantity>]"
            .into(),
    };
    let operations = OPERATIONS.iter().filter_map(|spec| {
        let command = spec.command.as_ref()?;
        Some(CommandDescription {
            name: command.name.to_lowercase(),
            arity: -(command.arity as i64),
            flags: if spec.keyed { WRITE_FLAGS } else { READ_FLAGS },
            key: 0,
            summary: format!("{}: {}", spec.summary, command.args),
        })
    });
    let connection = COMMANDS.iter().map(|command| CommandDescription {
        name: command.name.into(),
        arity: command.arity,
        flags: CONNECTION_FLAGS,
        key: 0,
        summary: command.summary.into(),
    });
    std::iter::once(throttle).chain(operations).chain(connection).collect()
}

/// Runs `COMMAND [COUNT | LIST | INFO name … | DOCS [name …]]`.
pub(super) fn command(context: &mut CommandContext<'_>, args: &[&[u8]]) -> AfterCommand {
    let (replies, commands) = (&mut *context.replies, describe_commands());
    let find = |name: &[u8]| commands.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name));
    let Some((verb, names)) = args.split_first() else {
        replies.begin_array(commands.len());
        commands.iter().for_each(|command| write_description(command, replies));
        return AfterCommand::Continue;
    };
    match verb.to_ascii_uppercase().as_slice() {
        b"COUNT" => replies.write_integer(commands.len() as i64),
        b"LIST" => {
            replies.begin_array(commands.len());
            commands.iter().for_each(|command| replies.write_bulk(&command.name));
        }
        b"INFO" => {
            replies.begin_array(names.len());
            for name in names {
                match find(name) {
                    Some(command) => write_description(command, replies),
                    None => replies.write_null(),
                }
            }
        }
        b"DOCS" => {
            let known: Vec<&CommandDescription> = match names {
                [] => commands.iter().collect(),
                names => names.iter().filter_map(|name| find(name)).collect(),
            };
            replies.begin_map(known.len());
            known.into_iter().for_each(|command| write_docs(command, replies));
        }
        _ => replies.write_error_reply(&format!("ERR unknown subcommand {}. Try COMMAND DOCS.", quote_argument(verb))),
    }
    AfterCommand::Continue
}

fn write_description(command: &CommandDescription, replies: &mut Replies) {
    replies.begin_array(6);
    replies.write_bulk(&command.name);
    replies.write_integer(command.arity);
    replies.begin_array(command.flags.len());
    command.flags.iter().for_each(|flag| replies.write_bulk(flag));
    // The first key, the last key, and the step between keys.
    (0..3).for_each(|_| replies.write_integer(command.key));
}

fn write_docs(command: &CommandDescription, replies: &mut Replies) {
    let group = if command.name.contains('.') { "module" } else { "connection" };
    replies.write_bulk(&command.name);
    replies.begin_map(3);
    for (name, value) in [("summary", &*command.summary), ("since", "0.1.0"), ("group", group)] {
        replies.write_bulk(name);
        replies.write_bulk(value);
    }
}

/// Runs `CONFIG GET name …`. Returns only the two settings that redis-benchmark reads.
pub(super) fn config(context: &mut CommandContext<'_>, args: &[&[u8]]) -> AfterCommand {
    let replies = &mut *context.replies;
    match args.split_first() {
        None => wrong_arity("config", replies),
        Some((verb, names)) if verb.eq_ignore_ascii_case(b"GET") => {
            let is_requested = |name: &str| names.iter().any(|asked| asked.eq_ignore_ascii_case(name.as_bytes()));
            let settings = [("save", ""), ("appendonly", "no")].into_iter().filter(|(name, _)| is_requested(name));
            replies.begin_map(settings.clone().count());
            for (name, value) in settings {
                replies.write_bulk(name);
                replies.write_bulk(value);
            }
        }
        Some(_) => {
            replies.write_error_reply("ERR only CONFIG GET is supported; the server is configured by its command line");
        }
    }
    AfterCommand::Continue
}

/// Runs `INFO`, with a reply in Redis's format. Clients read `loading` and the Redis version.
pub(super) fn info(context: &mut CommandContext<'_>, _: &[&[u8]]) -> AfterCommand {
    context.replies.write_bulk(format!(
        "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\ntollgate_version:{}\r\n\
         # Clients\r\nconnected_clients:{}\r\n# Persistence\r\nloading:0\r\n# Replication\r\nrole:master\r\n",
        env!("CARGO_PKG_VERSION"),
        context.connections.count(),
    ));
    AfterCommand::Continue
}
