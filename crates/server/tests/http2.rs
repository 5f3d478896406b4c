//! HTTP/2 of the rate-limit service over sockets: nghttp, h2load, and a client that sends frames one by one.

use crate::common;

use std::process::Command;

use common::frame_client::{FrameClient, METHOD_PATH};
use common::{Rules, Server, eventually, run_program};
use tollgate_server::rls::bounds::{MAX_CONTINUATIONS, MAX_CREDIT, MAX_TOTAL_BODY_BYTES, RESET_COST};
use tollgate_server::rls::http2::frame::{END_HEADERS, END_STREAM, FrameKind, put_frame};
use tollgate_server::rls::http2::hpack::put_literal;
use tollgate_testkit::servers::{Certificates, Kind as StoreKind, Server as StoreServer};

const RULES: &str = "
domain: basic
rules:
- {id: first, when: {key: a}, limit: 1M/day, algorithm: fixed_window}
- {id: slow, when: {key: slow}, limit: 1/s, burst: 1, on_exceed: {delay: {max_wait: 10s}}}
- {id: none, when: {key: none}, deny: true}
";

fn start(more: &[&str]) -> (Server, Rules) {
    let rules = Rules::new(RULES);
    let server = Server::start(&[&["--rules", rules.path(), "--rls", "127.0.0.1:0"], more].concat());
    (server, rules)
}

fn connect(server: &Server) -> FrameClient {
    FrameClient::connect(server.rls.expect("the rate-limit service is on"))
}

/// Returns the body of a call: the domain `basic` and a descriptor with the single entry `key`.
fn call_body(value: &str) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let entry = field(1, &[field(1, b"key"), field(2, value.as_bytes())].concat());
    let message = [field(1, b"basic"), field(2, &entry)].concat();
    [&[0, 0, 0, 0, message.len() as u8][..], &message].concat()
}

#[test]
fn nghttp_and_h2load_are_served() {
    let (server, _rules) = start(&[]);
    let folder = common::Folder::new();
    let file = folder.join("body");
    std::fs::write(&file, call_body("a")).expect("a file");
    let url = format!("http://{}{METHOD_PATH}", server.rls.expect("the rate-limit service is on"));
    let headers = ["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", &file];
    let shown = run_program(Command::new("nghttp").args(["-nv"]).args(headers).arg(&url));
    assert!(shown.contains(":status: 200") && shown.contains("grpc-status: 0"), "{shown}");
    let load = run_program(Command::new("h2load").args(["-t1", "-c5", "-m50", "-n2000"]).args(headers).arg(&url));
    assert!(load.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{load}");
    let page = run_program(Command::new("curl").arg("-s").arg(server.url("/metrics")));
    assert!(page.contains(r#"tollgate_decisions_total{front="rls",outcome="allow"} 2001"#), "{page}");
    let reply = run_program(Command::new("curl").args(["-s", "--http1.1"]).arg(&url));
    assert_eq!(reply, "this port speaks gRPC: HTTP/2 without an upgrade, h2c\n");
}

#[test]
fn tls_is_negotiated_for_http2() {
    let folder = common::Folder::new();
    let made = Certificates::create(folder.path());
    let text = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    let (server, _rules) = start(&["--tls-cert", &text(made.certificate()), "--tls-key", &text(made.key())]);
    let url = format!("https://{}{METHOD_PATH}", server.rls.expect("the rate-limit service is on"));
    let body = folder.write_file("body", call_body("none"));
    let shown =
        run_program(Command::new("nghttp").args(["-nv", "-H", "content-type: application/grpc", "-d", &body]).arg(url));
    assert!(shown.contains("negotiated protocol: h2") && shown.contains("grpc-status: 0"), "{shown}");
}

#[test]
fn malformed_calls_have_a_status_that_says_what_is_wrong() {
    let (server, _rules) = start(&[]);
    let mut client = connect(&server);
    let long = [&[0, 0, 4, 0, 1][..], &[0; 262_145]].concat();
    for (number, (path, body, expected)) in [
        (METHOD_PATH, &b""[..], "3: the call has no message"),
        (METHOD_PATH, b"\0\0\0", "3: the call has no message"),
        (METHOD_PATH, b"\0\0\0\0\x09ab", "3: the message is shorter than its prefix says"),
        (METHOD_PATH, b"\0\0\0\0\x01ab", "3: the call has more than one message"),
        (METHOD_PATH, b"\x01\0\0\0\x01a", "12: compressed messages are not supported"),
        (METHOD_PATH, b"\0\0\0\0\x01\x0a", "3: the message ends within a field"),
        ("/other", b"", "12: no such method: /other; available: "),
        (&format!("/{}", "x".repeat(15_000)), b"", "12: no such method: /xxx"),
        (&format!("/{}", "x".repeat(17_000)), b"", "8: the headers have more than 16384 bytes"),
    ]
    .into_iter()
    .enumerate()
    {
        if path.len() > 16_000 {
            // The header block is longer than a frame.
            let mut block = vec![0x83, 0x86];
            put_literal(&mut block, ":path", path.as_bytes());
            let (first, rest) = block.split_at(16_384);
            client.send_frame(FrameKind::Headers, 0, 2 * number as u32 + 1, first);
            client.send_frame(FrameKind::Continuation, END_HEADERS, 2 * number as u32 + 1, rest);
        } else {
            client.call(2 * number as u32 + 1, path, body);
        }
        let (stream, answer) = client.next_answer();
        let status = format!("{}: {}", answer.field("grpc-status"), answer.field("grpc-message"));
        assert!(stream == 2 * number as u32 + 1 && status.starts_with(expected), "{status}");
    }
    let mut client = connect(&server);
    let mut block = vec![0x83, 0x86];
    put_literal(&mut block, ":path", METHOD_PATH.as_bytes());
    put_literal(&mut block, "content-type", b"application/grpc");
    client.send_frame(FrameKind::Headers, END_HEADERS, 1, &block);
    long.chunks(16_384).for_each(|part| client.send_frame(FrameKind::Data, 0, 1, part));
    let (_, answer) = client.next_answer();
    assert_eq!(answer.field("grpc-message"), "the message has more than 262144 bytes");
    client.send_frame(FrameKind::Headers, END_HEADERS | END_STREAM, 3, &[0x82, 0x86, 0x84]);
    let (_, answer) = client.next_answer();
    assert_eq!(answer.field("grpc-message"), "this port speaks gRPC: POST with application/grpc");
    client.call(5, METHOD_PATH, &call_body("none"));
    assert_eq!(client.next_answer().1.code(), Some(2), "the connection still works");
}

#[test]
fn floods_end_with_a_reason_and_others_are_served() {
    let (server, _rules) = start(&[]);
    let mut block = vec![0x83, 0x86];
    put_literal(&mut block, ":path", METHOD_PATH.as_bytes());
    type Flood = fn(&mut FrameClient, &[u8]);
    let floods: [(&str, Flood); 4] = [
        ("too many control frames or resets", |client, block| {
            let mut bytes = Vec::new();
            for stream in (1..2 * (MAX_CREDIT / RESET_COST) + 9).step_by(2) {
                put_frame(&mut bytes, FrameKind::Headers, END_HEADERS, stream, block);
                put_frame(&mut bytes, FrameKind::RstStream, 0, stream, &[0; 4]);
            }
            client.send(&bytes);
        }),
        ("too many control frames or resets", |client, _| {
            let mut ping = Vec::new();
            put_frame(&mut ping, FrameKind::Ping, 0, 0, &[0; 8]);
            client.send(&ping.repeat(4 * MAX_CREDIT as usize));
        }),
        ("a header block of more than 16 CONTINUATION frames", |client, block| {
            client.send_frame(FrameKind::Headers, 0, 1, block);
            (0..=MAX_CONTINUATIONS).for_each(|_| client.send_frame(FrameKind::Continuation, 0, 1, &[]));
        }),
        ("an index beyond the tables", |client, _| {
            client.send_frame(FrameKind::Headers, END_HEADERS, 1, &[0xff, 0x00]);
        }),
    ];
    for (expected, flood) in floods {
        let mut client = connect(&server);
        flood(&mut client, &block);
        let farewell = client.last_goaway();
        assert!(farewell.starts_with(expected), "{farewell:?} instead of {expected:?}");
    }
    let mut client = connect(&server);
    client.call(1, METHOD_PATH, &call_body("a"));
    assert_eq!(client.next_answer().1.code(), Some(1));
}

#[test]
fn bodies_of_all_connections_are_bounded_together() {
    const CONNECTIONS: usize = 100;
    const BODY_BYTES: usize = 250_000;
    let (server, _rules) = start(&[]);
    let before = server.resident_memory();
    let mut block = vec![0x83, 0x86];
    put_literal(&mut block, ":path", METHOD_PATH.as_bytes());
    put_literal(&mut block, "content-type", b"application/grpc");
    // Each connection sends as much as its window allows and never finishes a call.
    let mut clients: Vec<FrameClient> = (0..CONNECTIONS).map(|_| connect(&server)).collect();
    for client in &mut clients {
        for stream in [1, 3, 5, 7] {
            client.send_frame(FrameKind::Headers, END_HEADERS, stream, &block);
            [0; BODY_BYTES].chunks(16_384).for_each(|part| client.send_frame(FrameKind::Data, 0, stream, part));
        }
    }
    let page = || run_program(Command::new("curl").arg("-s").arg(server.url("/metrics")));
    let open = || {
        let page = page();
        let line = page.lines().find_map(|line| line.strip_prefix("tollgate_connections "));
        line.and_then(|count| count.parse::<usize>().ok()).expect("a number")
    };
    // Two more connections may be open: a connection that has sent only part of its bodies, and the HTTP connection for
    // the metrics.
    let most = MAX_TOTAL_BODY_BYTES / (4 * BODY_BYTES) + 2;
    eventually("connections beyond the budget are closed", || open() <= most);
    let grown = server.resident_memory().saturating_sub(before);
    // Beyond the budget, each connection may hold part of a frame.
    assert!(grown < MAX_TOTAL_BODY_BYTES + CONNECTIONS * 64 * 1024 + 24 * 1024 * 1024, "{} KiB", grown / 1024);
    let expected = "all connections together hold too many bytes";
    let is_expected =
        |client: &mut FrameClient| client.next_goaway().is_some_and(|reason| reason.starts_with(expected));
    assert!(clients.iter_mut().rev().any(is_expected));
    let mut client = connect(&server);
    client.call(1, METHOD_PATH, &call_body("a"));
    assert_eq!(client.next_answer().1.code(), Some(1), "a small call is still answered");
}

#[test]
fn delayed_call_delays_no_other_call_and_is_answered_during_shutdown() {
    let (server, _rules) = start(&[]);
    let mut client = connect(&server);
    client.call(1, METHOD_PATH, &call_body("slow"));
    assert_eq!(client.next_answer().0, 1);
    client.call(3, METHOD_PATH, &call_body("slow"));
    client.call(5, METHOD_PATH, &call_body("a"));
    assert_eq!(client.next_answer().0, 5, "the earlier call is still delayed");
    server.signal("TERM");
    let (stream, answer) = client.next_answer();
    assert_eq!((stream, answer.code()), (3, Some(1)), "the call is answered although the server is stopping");
    client.send_frame(FrameKind::Ping, 1, 0, b"draining");
    assert_eq!(client.last_goaway(), "");
}

#[test]
fn connection_ends_at_its_maximum_age() {
    let (server, _rules) = start(&["--rls-connection-age", "1"]);
    let mut client = connect(&server);
    client.call(1, METHOD_PATH, &call_body("a"));
    assert_eq!(client.next_answer().0, 1);
    while !matches!(client.next(), Some((FrameKind::GoAway, ..))) {}
    client.call(3, METHOD_PATH, &call_body("a"));
    assert_eq!(client.next_answer().0, 3, "a call in flight is still answered");
    client.send_frame(FrameKind::Ping, 1, 0, b"draining");
    assert_eq!(client.last_goaway(), "");
}

#[test]
fn all_pipelined_calls_on_a_shared_store_are_answered() {
    let redis = StoreServer::start(StoreKind::Redis);
    let (server, _rules) = start(&["--store", &redis.url(), "--store-deadline", "20000"]);
    let mut client = connect(&server);
    for stream in (1..101).step_by(2) {
        client.call(stream, METHOD_PATH, &call_body("a"));
    }
    let mut streams: Vec<u32> = (0..50)
        .map(|_| client.next_answer())
        .map(|(stream, answer)| {
            assert_eq!(answer.code(), Some(1), "{answer:?}");
            stream
        })
        .collect();
    streams.sort_unstable();
    assert!(streams.into_iter().eq((1..101).step_by(2)));
}
