//! The HTTP/2 of the rate-limit service over sockets: nghttp and h2load, and a client that sends frames one by one.

use crate::common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use common::{PATIENCE, Rules, Server, run};
use tollgate_server::rls::bounds::{CREDIT, MAX_CONTINUATIONS, RESET_COST};
use tollgate_server::rls::http2::frame::{END_HEADERS, END_STREAM, Frame, Kind, PREFACE, put};
use tollgate_server::rls::http2::hpack::{Decoder, put_literal};
use tollgate_testkit::servers::{Certificates, Kind as StoreKind, Server as StoreServer};

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

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

/// The body of a call: the domain `basic` and a descriptor with the one entry `key`.
fn call_body(value: &str) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let entry = field(1, &[field(1, b"key"), field(2, value.as_bytes())].concat());
    let message = [field(1, b"basic"), field(2, &entry)].concat();
    [&[0, 0, 0, 0, message.len() as u8][..], &message].concat()
}

/// The response on a stream: its body, and its headers and trailers as one list.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(it, _)| it == name).map_or("", |(_, value)| value)
    }

    /// The first field of the message is the code: 1 is OK, 2 is OVER_LIMIT.
    fn code(&self) -> Option<u8> {
        self.body.get(6).copied()
    }
}

/// A client that sends frames.
struct FrameClient {
    stream: TcpStream,
    received: Vec<u8>,
    decoder: Decoder,
}

impl FrameClient {
    fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.rls.expect("the service is on")).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut client = Self { stream, received: Vec::new(), decoder: Decoder::default() };
        client.send(PREFACE);
        client.send_frame(Kind::Settings, 0, 0, &[]);
        client
    }

    /// Sends bytes; a server that has closed the connection does not matter here.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    fn send_frame(&mut self, kind: Kind, flags: u8, stream: u32, payload: &[u8]) {
        let mut bytes = Vec::new();
        put(&mut bytes, kind, flags, stream, payload);
        self.send(&bytes);
    }

    fn call(&mut self, stream: u32, path: &str, body: &[u8]) {
        let mut block = vec![0x83, 0x86];
        put_literal(&mut block, ":path", path.as_bytes());
        put_literal(&mut block, "content-type", b"application/grpc");
        self.send_frame(Kind::Headers, END_HEADERS, stream, &block);
        self.send_frame(Kind::Data, END_STREAM, stream, body);
    }

    /// Returns the next frame as its type, flags, stream and payload; `None` at the end of the connection.
    fn next(&mut self) -> Option<(Kind, u8, u32, Vec<u8>)> {
        loop {
            let mut input = &self.received[..];
            if let Some(frame) = Frame::take(&mut input).expect("a frame") {
                let found = (frame.kind, frame.flags, frame.stream, frame.payload.to_vec());
                self.received = input.to_vec();
                return Some(found);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) => panic!("the server sends nothing: {error}"),
            }
        }
    }

    /// Returns the next complete answer and its stream.
    fn answer(&mut self) -> (u32, Answer) {
        let mut answer = Answer::default();
        loop {
            let (kind, flags, stream, payload) = self.next().expect("an answer before the end");
            match kind {
                Kind::Headers => {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    let fields = &mut answer.fields;
                    let decoded =
                        self.decoder.decode(&payload, |field| fields.push((text(field.name), text(field.value))));
                    decoded.expect("a header block");
                }
                Kind::Data => answer.body.extend_from_slice(&payload),
                // The whole response has arrived; the client is asked to stop sending.
                Kind::RstStream if payload == [0; 4] => continue,
                Kind::RstStream => panic!("stream {stream} was reset: {payload:?}"),
                _ => continue,
            }
            if flags & END_STREAM != 0 {
                return (stream, answer);
            }
        }
    }

    /// Reads to the end and returns the text of the last GOAWAY.
    fn farewell(&mut self) -> String {
        let mut farewell = String::new();
        while let Some((kind, _, _, payload)) = self.next() {
            if kind == Kind::GoAway {
                farewell = String::from_utf8_lossy(&payload[8..]).into_owned();
            }
        }
        farewell
    }
}

#[test]
fn nghttp_and_h2load_are_served() {
    let (server, _rules) = start(&[]);
    let folder = common::Folder::new();
    let file = folder.join("body");
    std::fs::write(&file, call_body("a")).expect("a file");
    let url = format!("http://{}{PATH}", server.rls.expect("the service is on"));
    let headers = ["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", &file];
    let shown = run(Command::new("nghttp").args(["-nv"]).args(headers).arg(&url));
    assert!(shown.contains(":status: 200") && shown.contains("grpc-status: 0"), "{shown}");
    let load = run(Command::new("h2load").args(["-t1", "-c5", "-m50", "-n2000"]).args(headers).arg(&url));
    assert!(load.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{load}");
    let page = run(Command::new("curl").arg("-s").arg(server.url("/metrics")));
    assert!(page.contains(r#"tollgate_decisions_total{front="rls",outcome="allow"} 2001"#), "{page}");
    let reply = run(Command::new("curl").args(["-s", "--http1.1"]).arg(&url));
    assert_eq!(reply, "this port speaks gRPC: HTTP/2 without an upgrade, h2c\n");
}

#[test]
fn tls_is_negotiated_for_http2() {
    let folder = common::Folder::new();
    let made = Certificates::make(folder.path());
    let text = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    let (server, _rules) = start(&["--tls-cert", &text(made.certificate()), "--tls-key", &text(made.key())]);
    let url = format!("https://{}{PATH}", server.rls.expect("the service is on"));
    let body = folder.write_file("body", call_body("none"));
    let shown = run(Command::new("nghttp").args(["-nv", "-H", "content-type: application/grpc", "-d", &body]).arg(url));
    assert!(shown.contains("negotiated protocol: h2") && shown.contains("grpc-status: 0"), "{shown}");
}

#[test]
fn malformed_calls_have_a_status_that_says_what_is_wrong() {
    let (server, _rules) = start(&[]);
    let mut client = FrameClient::connect(&server);
    let long = [&[0, 0, 4, 0, 1][..], &[0; 262_145]].concat();
    for (number, (path, body, expected)) in [
        (PATH, &b""[..], "3: the call has no message"),
        (PATH, b"\0\0\0", "3: the call has no message"),
        (PATH, b"\0\0\0\0\x09ab", "3: the message is shorter than its prefix says"),
        (PATH, b"\0\0\0\0\x01ab", "3: the call has more than one message"),
        (PATH, b"\x01\0\0\0\x01a", "12: compressed messages are not supported"),
        (PATH, b"\0\0\0\0\x01\x0a", "3: the message ends within a field"),
        ("/other", b"", "12: no such method: /other; available: "),
        (&format!("/{}", "x".repeat(15_000)), b"", "12: no such method: /xxx"),
        (&format!("/{}", "x".repeat(17_000)), b"", "8: the headers have more than 16384 bytes"),
    ]
    .into_iter()
    .enumerate()
    {
        if path.len() > 16_000 {
            // Longer than a frame.
            let mut block = vec![0x83, 0x86];
            put_literal(&mut block, ":path", path.as_bytes());
            let (first, rest) = block.split_at(16_384);
            client.send_frame(Kind::Headers, 0, 2 * number as u32 + 1, first);
            client.send_frame(Kind::Continuation, END_HEADERS, 2 * number as u32 + 1, rest);
        } else {
            client.call(2 * number as u32 + 1, path, body);
        }
        let (stream, answer) = client.answer();
        let status = format!("{}: {}", answer.field("grpc-status"), answer.field("grpc-message"));
        assert!(stream == 2 * number as u32 + 1 && status.starts_with(expected), "{status}");
    }
    let mut client = FrameClient::connect(&server);
    let mut block = vec![0x83, 0x86];
    put_literal(&mut block, ":path", PATH.as_bytes());
    put_literal(&mut block, "content-type", b"application/grpc");
    client.send_frame(Kind::Headers, END_HEADERS, 1, &block);
    long.chunks(16_384).for_each(|part| client.send_frame(Kind::Data, 0, 1, part));
    let (_, answer) = client.answer();
    assert_eq!(answer.field("grpc-message"), "the message has more than 262144 bytes");
    client.send_frame(Kind::Headers, END_HEADERS | END_STREAM, 3, &[0x82, 0x86, 0x84]);
    let (_, answer) = client.answer();
    assert_eq!(answer.field("grpc-message"), "this port speaks gRPC: POST with application/grpc");
    client.call(5, PATH, &call_body("none"));
    assert_eq!(client.answer().1.code(), Some(2), "the connection is as good as before");
}

#[test]
fn floods_end_with_a_reason_and_others_are_served() {
    let (server, _rules) = start(&[]);
    let mut block = vec![0x83, 0x86];
    put_literal(&mut block, ":path", PATH.as_bytes());
    type Flood = fn(&mut FrameClient, &[u8]);
    let floods: [(&str, Flood); 4] = [
        ("too many frames or resets", |client, block| {
            let mut bytes = Vec::new();
            for stream in (1..2 * (CREDIT / RESET_COST) + 9).step_by(2) {
                put(&mut bytes, Kind::Headers, END_HEADERS, stream, block);
                put(&mut bytes, Kind::RstStream, 0, stream, &[0; 4]);
            }
            client.send(&bytes);
        }),
        ("too many frames or resets", |client, _| {
            let mut ping = Vec::new();
            put(&mut ping, Kind::Ping, 0, 0, &[0; 8]);
            client.send(&ping.repeat(4 * CREDIT as usize));
        }),
        ("a header block of more than 16 CONTINUATION frames", |client, block| {
            client.send_frame(Kind::Headers, 0, 1, block);
            (0..=MAX_CONTINUATIONS).for_each(|_| client.send_frame(Kind::Continuation, 0, 1, &[]));
        }),
        ("an index beyond the tables", |client, _| client.send_frame(Kind::Headers, END_HEADERS, 1, &[0xff, 0x00])),
    ];
    for (expected, flood) in floods {
        let mut client = FrameClient::connect(&server);
        flood(&mut client, &block);
        let farewell = client.farewell();
        assert!(farewell.starts_with(expected), "{farewell:?} instead of {expected:?}");
    }
    let mut client = FrameClient::connect(&server);
    client.call(1, PATH, &call_body("a"));
    assert_eq!(client.answer().1.code(), Some(1));
}

#[test]
fn delayed_call_holds_up_neither_others_nor_the_end() {
    let (server, _rules) = start(&[]);
    let mut client = FrameClient::connect(&server);
    client.call(1, PATH, &call_body("slow"));
    assert_eq!(client.answer().0, 1);
    client.call(3, PATH, &call_body("slow"));
    client.call(5, PATH, &call_body("a"));
    assert_eq!(client.answer().0, 5, "the call before it is delayed");
    server.signal("TERM");
    let (stream, answer) = client.answer();
    assert_eq!((stream, answer.code()), (3, Some(1)), "it is answered although the server stops");
    client.send_frame(Kind::Ping, 1, 0, b"draining");
    assert_eq!(client.farewell(), "");
}

#[test]
fn connection_ends_at_its_age() {
    let (server, _rules) = start(&["--rls-connection-age", "1"]);
    let mut client = FrameClient::connect(&server);
    client.call(1, PATH, &call_body("a"));
    assert_eq!(client.answer().0, 1);
    while !matches!(client.next(), Some((Kind::GoAway, ..))) {}
    client.call(3, PATH, &call_body("a"));
    assert_eq!(client.answer().0, 3, "a call that was on its way");
    client.send_frame(Kind::Ping, 1, 0, b"draining");
    assert_eq!(client.farewell(), "");
}

#[test]
fn calls_on_a_shared_store_are_answered_as_they_are_decided() {
    let redis = StoreServer::start(StoreKind::Redis);
    let (server, _rules) = start(&["--store", &redis.url(), "--store-deadline", "20000"]);
    let mut client = FrameClient::connect(&server);
    for stream in (1..101).step_by(2) {
        client.call(stream, PATH, &call_body("a"));
    }
    let mut streams: Vec<u32> = (0..50)
        .map(|_| client.answer())
        .map(|(stream, answer)| {
            assert_eq!(answer.code(), Some(1), "{answer:?}");
            stream
        })
        .collect();
    streams.sort_unstable();
    assert!(streams.into_iter().eq((1..101).step_by(2)));
}
