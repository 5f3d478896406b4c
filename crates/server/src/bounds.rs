//! Generates the table of resource limits in `docs/security.md` from the constants in the code.

use std::fmt::Write;
use std::time::Duration;

use tollgate_engine::rules::Mistakes;
use tollgate_engine::{Item, Request};
use tollgate_peers::bounds as peers;

use crate::console::session;
use crate::control::api::bounds as api;
use crate::http::bounds as http;
use crate::live;
use crate::net::{linger, protocol, shutdown, tls};
use crate::ops::{acquire, idempotency};
use crate::replay::bounds as replay;
use crate::resp::bounds as resp;
use crate::rls::bounds as rls;
use crate::rules_source::xds;

/// Returns the table of bounds as Markdown.
fn markdown_table() -> String {
    let seconds = |time: Duration| format!("{} s", time.as_secs());
    let bytes = |count: usize| match count {
        count if count % (1024 * 1024) == 0 => format!("{} MiB", count / (1024 * 1024)),
        count if count % 1024 == 0 => format!("{} KiB", count / 1024),
        count => format!("{count} bytes"),
    };
    let rows = [
        ("attributes of a request", Item::MAX_ATTRIBUTES.to_string()),
        ("a name or value of an attribute, a key of an inline limit", bytes(Item::MAX_BYTES)),
        ("items of a request (descriptors)", Request::MAX_ITEMS.to_string()),
        ("rules that one item of a request matches", Item::MAX_RULES.to_string()),
        ("rules that all items of a request match together", Request::MAX_MATCHES.to_string()),
        ("mistakes that are listed for a rule file; further mistakes are only counted", Mistakes::MAX.to_string()),
        ("requests that wait for a limit (`/v1/acquire`)", acquire::MAX_WAITERS.to_string()),
        ("wait of a request for a limit", seconds(acquire::MAX_WAIT)),
        ("an idempotency key", bytes(idempotency::MAX_KEY_BYTES)),
        (
            "stored idempotency keys, and the size of their results; beyond that, the oldest key is dropped",
            format!("{}, {}", idempotency::MAX_KEYS, bytes(idempotency::MAX_STORED_BYTES)),
        ),
        ("lifetime of an idempotency key", format!("{} s", idempotency::KEY_LIFETIME.as_nanos() / 1_000_000_000)),
        ("HTTP: request line and headers", format!("{}, {} headers", bytes(http::MAX_HEAD_BYTES), http::MAX_HEADERS)),
        ("HTTP: request body of a decision", bytes(http::MAX_BODY_BYTES)),
        ("HTTP: requests in a list", http::MAX_BATCH.to_string()),
        ("HTTP: requests to explain in a list", http::MAX_EXPLAINED_REQUESTS.to_string()),
        (
            "HTTP: size of the response to a list; above this size, the rest of the list is not decided",
            bytes(http::FULL_RESPONSE_BYTES),
        ),
        ("HTTP: time for the headers, and between requests", seconds(http::HEAD_TIMEOUT)),
        ("HTTP: time for a body", seconds(http::BODY_TIMEOUT)),
        (
            "HTTP: time that the fast path waits for the rest of a check; after that, the two timeouts above begin",
            format!("{} ms", http::PARTIAL_CHECK_TIMEOUT.as_millis()),
        ),
        ("HTTP: time for a client to read when its socket buffer is full", seconds(http::WRITE_TIMEOUT)),
        (
            "HTTP: time for the answer when the client has closed its sending side, except for `/v1/acquire`",
            seconds(http::HALF_CLOSE_TIMEOUT),
        ),
        ("HTTP: connections reserved for health checks", shutdown::RESERVED_CONNECTIONS.to_string()),
        ("HTTP: lifetime of a reserved connection", seconds(http::RESERVED_CONNECTION_LIFETIME)),
        ("console: sessions; beyond that, the least recently used session ends", session::MAX_SESSIONS.to_string()),
        (
            "console: idle timeout of a session, and its maximum age",
            format!(
                "{} min, {} h",
                session::IDLE_TIMEOUT.as_nanos() / 60_000_000_000,
                session::MAX_AGE.as_nanos() / 3_600_000_000_000
            ),
        ),
        ("live data: viewers", live::MAX_VIEWERS.to_string()),
        ("live data: concurrent requests for the history or the rules", live::MAX_LIVE_REQUESTS.to_string()),
        ("live data: rules with a history", live::MAX_TRACKED_RULES.to_string()),
        ("Redis protocol: arguments of a command", resp::MAX_ARGS.to_string()),
        ("Redis protocol: an argument", bytes(resp::MAX_BULK_BYTES)),
        ("Redis protocol: a command", bytes(resp::MAX_COMMAND_BYTES)),
        ("Redis protocol: time for the first command", seconds(resp::FIRST_COMMAND_TIMEOUT)),
        ("Redis protocol: time to complete a command, or to read a reply", seconds(resp::STALL_TIMEOUT)),
        ("rate-limit service: concurrent calls on a connection", rls::MAX_STREAMS.to_string()),
        ("rate-limit service: headers of a call", bytes(rls::MAX_HEADERS_BYTES as usize)),
        (
            "rate-limit service: a compressed header block",
            format!("{}, {} CONTINUATION frames", bytes(rls::MAX_HEADER_BLOCK_BYTES), rls::MAX_CONTINUATIONS),
        ),
        ("rate-limit service: a message", bytes(rls::MAX_MESSAGE_BYTES)),
        ("rate-limit service: unanswered messages of a connection", bytes(rls::CONNECTION_RECEIVE_WINDOW as usize)),
        (
            "rate-limit service: unanswered messages of all connections; beyond that, connections with more than 16 KiB of such messages are closed",
            bytes(rls::MAX_TOTAL_BODY_BYTES),
        ),
        (
            "rate-limit service: control frames on a connection",
            format!("{} at once, then {} per second", rls::MAX_CREDIT, rls::CREDIT_PER_SECOND),
        ),
        (
            "rate-limit service: resets of streams on a connection",
            format!(
                "{} at once, then {} per second",
                rls::MAX_CREDIT / (rls::RESET_COST + 1),
                rls::CREDIT_PER_SECOND / (rls::RESET_COST + 1)
            ),
        ),
        ("rate-limit service: time for the preface, for headers and for a message", seconds(rls::MESSAGE_TIMEOUT)),
        (
            "rate-limit service: time for a client to read, or to enlarge its flow-control window",
            seconds(rls::STALL_TIMEOUT),
        ),
        ("time to send a valid token, where tokens are required", seconds(protocol::AUTH_TIMEOUT)),
        ("time for a TLS handshake", seconds(tls::HANDSHAKE_TIMEOUT)),
        (
            "closing a connection: time for the client to read the last replies, the shorter time for a client that sends nothing, and the maximum input that is discarded",
            format!(
                "{}, {} ms, {}",
                seconds(linger::LINGER_TIMEOUT),
                linger::LINGER_IDLE_TIMEOUT.as_millis(),
                bytes(linger::MAX_LINGER_BYTES)
            ),
        ),
        (
            "TCP keepalive: idle time, interval, probes",
            format!(
                "{}, {}, {}",
                seconds(protocol::KEEPALIVE_IDLE),
                seconds(protocol::KEEPALIVE_INTERVAL),
                protocol::KEEPALIVE_PROBES
            ),
        ),
        (
            "xDS: size of a response, its resources, and its descriptor levels",
            format!(
                "{}, {}, {}",
                bytes(xds::stream::MAX_MESSAGE_BYTES),
                xds::wire::MAX_RESOURCES,
                xds::wire::MAX_DEPTH
            ),
        ),
        (
            "xDS: time without a message after which the connection is closed",
            seconds(xds::PROBE_INTERVAL + xds::ANSWER_TIMEOUT),
        ),
        ("rules service: one rule or override", bytes(api::MAX_RULE_BYTES)),
        ("rules service: a rule file", bytes(api::MAX_FILE_BYTES)),
        ("rules service: rule files processed at a time", api::MAX_PROCESSED_FILES.to_string()),
        ("rules service: total bytes of the rule files that are being received", bytes(api::MAX_RECEIVED_KB * 1024)),
        ("rules service: time to send a rule file", seconds(api::FILE_TIMEOUT)),
        ("rules service: logs received or replayed at a time", api::MAX_REPLAYS.to_string()),
        ("rules service: body of a replay request (the log, as sent, and the rules)", bytes(api::MAX_UPLOAD_BYTES)),
        (
            "rules service: a log to replay, decompressed; the rest of the log is left out",
            bytes(api::MAX_LOG_BYTES as usize),
        ),
        ("rules service: keys that a replay counts exactly", api::MAX_LOG_KEYS.to_string()),
        (
            "rules service: time for a replay; after that, the replay reports on the part of the log that it has read",
            seconds(api::REPLAY_TIMEOUT),
        ),
        ("rules service: nodes that wait for a change", api::MAX_WAITING_NODES.to_string()),
        ("audit log: resets that wait for the database", api::MAX_QUEUED_RESETS.to_string()),
        ("audit log: switches that wait for the database", api::MAX_QUEUED_SWITCHES.to_string()),
        ("peers: a frame", bytes(peers::MAX_FRAME_BYTES)),
        ("peers: servers that share limits", peers::MAX_NODES.to_string()),
        ("peers: addresses of other servers in the URL", peers::MAX_SEEDS.to_string()),
        (
            "peers: time for the handshake, in which both sides prove that they have the secret",
            seconds(peers::HANDSHAKE_TIMEOUT),
        ),
        ("peers: connections that have not completed the handshake", peers::MAX_UNGREETED.to_string()),
        ("peers: limits of a request that is decided by another server", peers::Ask::MAX_CHARGES.to_string()),
        ("peers: queued frames for another server", bytes(peers::MAX_QUEUED_BYTES)),
        (
            "peers: a connection is closed after this time without a frame, or if the other server does not read for this time",
            format!("{}, {}", seconds(peers::SILENCE_TIMEOUT), seconds(peers::WRITE_TIMEOUT)),
        ),
        ("replay: logs", replay::MAX_LOGS.to_string()),
        ("replay: a line; longer lines are counted and skipped", bytes(replay::MAX_LINE_BYTES)),
        (
            "replay: memory for up to 64 logs that cover the same time, and for each further log",
            format!(
                "{}, {}",
                bytes(replay::MAX_TOTAL_CHUNK_BYTES),
                bytes(replay::CHUNKS_PER_LOG * replay::MIN_CHUNK_BYTES)
            ),
        ),
        ("replay: refused keys that are counted separately", replay::MAX_REFUSED_KEYS.to_string()),
        ("replay: clients whose peaks are kept for suggestions", replay::MAX_CLIENTS.to_string()),
        (
            "replay: expansion of a compressed log",
            format!("at most {}-fold above {}", replay::MAX_EXPANSION_RATIO, bytes(replay::MAX_BOMB_BYTES as usize)),
        ),
    ];
    let mut table = String::from("| what | bound |\n|---|---|\n");
    for (what, bound) in rows {
        // Writing to a `String` cannot fail.
        let _ = writeln!(table, "| {what} | {bound} |");
    }
    table
}

#[test]
fn security_page_contains_the_current_table_of_bounds() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let (start, end) = ("<!-- bounds: generated -->\n", "<!-- end of bounds -->");
    let (before, rest) = page.split_once(start).expect("the start of the table");
    let (_, after) = rest.split_once(end).expect("the end of the table");
    tollgate_testkit::golden::check(path, &format!("{before}{start}\n{}\n{end}{after}", markdown_table()));
}
