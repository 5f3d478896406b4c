//! The Redis protocol on a real socket: pipelines, split input, protocol errors, bounds.

use crate::common;

use common::{Client, Rules, Server, encode_command};

#[test]
fn pipeline_is_answered_in_order() {
    let server = Server::start(&[]);
    let mut client = server.connect_resp();
    let throttle = encode_command(&["CL.THROTTLE", "k", "1", "1", "100"]);
    client.send(
        [&throttle[..], &throttle, b"PING\r\n", &throttle, &encode_command(&["CL.THROTTLE", "k"]), b"PING\r\n"]
            .concat(),
    );
    client.expect("*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:100\r\n");
    client.expect("*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:200\r\n");
    client.expect("+PONG\r\n");
    client.expect("*5\r\n:1\r\n:2\r\n:0\r\n:100\r\n:200\r\n");
    client.expect(
        "-Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]\r\n",
    );
    client.expect("+PONG\r\n");
}

#[test]
fn command_may_arrive_byte_by_byte() {
    let server = Server::start(&[]);
    let mut client = server.connect_resp();
    for byte in encode_command(&["CL.THROTTLE", "k", "0", "1", "1000"]) {
        client.send([byte]);
    }
    client.expect("*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:1000\r\n");
}

#[test]
fn pipeline_longer_than_every_buffer_is_answered_completely() {
    let server = Server::start(&[]);
    let mut client = server.connect_resp();
    let (count, batch) = (20_000, 500);
    let throttle = encode_command(&["CL.THROTTLE", "long", "1000000", "1", "1"]).repeat(batch);
    // Sends the commands in parts and reads replies in between. Otherwise both sides would block on full buffers.
    for part in 0..count / batch {
        client.send(&throttle);
        for number in 0..batch {
            let spent = part * batch + number + 1;
            assert_eq!(client.line(), "*5");
            assert_eq!(client.line(), ":0");
            assert_eq!(client.line(), ":1000001");
            let remaining: usize = client.line()[1..].parse().expect("a number");
            // One token per second is refilled during the test.
            assert!((1_000_001 - spent..1_000_001 - spent + 100).contains(&remaining), "{remaining} after {spent}");
            assert_eq!(client.line(), ":-1");
            client.line();
        }
    }
}

#[test]
fn keys_are_bytes_and_may_be_long() {
    let server = Server::start(&[]);
    let mut client = server.connect_resp();
    let mut command = b"*5\r\n$11\r\nCL.THROTTLE\r\n$65536\r\n".to_vec();
    command.extend(std::iter::repeat_n(0xff, 65_536));
    command.extend_from_slice(b"\r\n$1\r\n0\r\n$1\r\n1\r\n$2\r\n60\r\n");
    client.send(&command);
    client.expect("*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n");
    client.send(&command);
    assert_eq!((client.line(), client.line()), ("*5".into(), ":1".into()));
}

#[test]
fn protocol_error_is_reported_and_closes_the_connection() {
    let server = Server::start(&[]);
    for (bytes, error) in [
        (&b"*1\r\n:1\r\n"[..], "-ERR Protocol error: expected '$', got ':'\r\n"),
        (b"*1025\r\n", "-ERR Protocol error: invalid multibulk length, expected a number up to 1024\r\n"),
        (b"*1\r\n$65537\r\n", "-ERR Protocol error: invalid bulk length, expected a number up to 65536\r\n"),
        (
            b"*1\r\n$99999999999999999999\r\n",
            "-ERR Protocol error: invalid bulk length, expected a number up to 65536\r\n",
        ),
        (
            b"SET a 'b'\r\n",
            "-ERR Protocol error: quotes are not supported in an inline command; send an array of bulk strings\r\n",
        ),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", "-ERR this port speaks the Redis protocol, not HTTP\r\n"),
    ] {
        let mut client = server.connect_resp();
        client.send([b"PING\r\n", bytes].concat());
        assert_eq!(client.read_to_end(), format!("+PONG\r\n{error}"), "{}", bytes.escape_ascii());
    }
}

#[test]
fn endless_lines_are_refused_within_bounded_memory() {
    const MAX_SENT: usize = 64 << 20;
    const MAX_GROWTH: usize = 16 << 20;
    let server = Server::start(&[]);
    let before = server.resident_memory();
    // After an error, the server discards up to 8 MiB more from each client. So four clients can send more than
    // `MAX_GROWTH`.
    let clients: Vec<_> = (0..4).map(|_| server.connect_resp()).collect();
    let sent = std::thread::scope(|scope| {
        let send = |mut client: Client| {
            (0..MAX_SENT / 65_536).take_while(|_| client.try_send(&[b'a'; 65_536])).count() * 65_536
        };
        let sending: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || send(client))).collect();
        sending.into_iter().map(|client| client.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert!(sent.iter().all(|&sent| sent < MAX_SENT), "the server continued to read: {sent:?} bytes");
    assert!(sent.iter().sum::<usize>() > MAX_GROWTH, "too few bytes were sent: {sent:?}");
    let grown = server.resident_memory().saturating_sub(before);
    assert!(grown < MAX_GROWTH, "memory grew by {grown} bytes");
    let mut other = server.connect_resp();
    other.send("PING\r\n");
    other.expect("+PONG\r\n");
}

#[test]
fn unread_replies_do_not_accumulate() {
    let server = Server::start(&[]);
    let before = server.resident_memory();
    let mut client = server.connect_resp();
    // Each command of 14 bytes gets a reply of about 2,000 bytes, 40 MB in total. When the socket buffers are full, the
    // server stops reading.
    let commands = "COMMAND DOCS\r\n".repeat(20_000);
    client.send(commands);
    let mut other = server.connect_resp();
    other.send("PING\r\n");
    other.expect("+PONG\r\n");
    let grown = server.resident_memory().saturating_sub(before);
    assert!(grown < 16 * 1024 * 1024, "memory grew by {grown} bytes");
}

#[test]
fn resp3_replies_with_maps_until_reset() {
    let server = Server::start(&[]);
    let mut client = server.connect_resp();
    client.send("CONFIG GET save\r\nHELLO 3\r\n");
    client.expect("*2\r\n$4\r\nsave\r\n$0\r\n\r\n%7\r\n$6\r\nserver\r\n$8\r\ntollgate\r\n");
    while client.line() != "*0" {}
    client.send("CONFIG GET save\r\nCLIENT GETNAME\r\nRESET\r\nCLIENT GETNAME\r\n");
    client.expect("%1\r\n$4\r\nsave\r\n$0\r\n\r\n_\r\n+RESET\r\n$-1\r\n");
    client.send("HELLO 4\r\nHELLO x\r\nHELLO 2 AUTH a b\r\nAUTH secret\r\nSELECT 0\r\nSELECT 1\r\nQUIT\r\nPING\r\n");
    let rest = client.read_to_end();
    let kinds: Vec<&str> = rest.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    assert_eq!(kinds, ["-NOPROTO", "-ERR", "-ERR", "-ERR", "+OK", "-ERR", "+OK"], "{rest}");
}

#[test]
fn connections_beyond_the_maximum_are_refused() {
    let server = Server::start(&["--connections", "2"]);
    let (mut first, mut second) = (server.connect_resp(), server.connect_resp());
    for client in [&mut first, &mut second] {
        client.send("PING\r\n");
        client.expect("+PONG\r\n");
    }
    assert_eq!(server.connect_resp().read_to_end(), "-ERR max number of clients reached\r\n");
    // HTTP has its own connection limit, plus reserved connections for health checks.
    let (mut third, mut fourth) = (server.connect_http(), server.connect_http());
    for client in [&mut third, &mut fourth] {
        assert_eq!(client.post("/v1/check", r#"{"key":"k","limit":"5/h"}"#).0, 200);
    }
    let mut reserved = server.connect_http();
    reserved.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(reserved.read_to_end().starts_with("HTTP/1.1 200 "), "answered and closed");
    assert_eq!(server.connect_http().post("/v1/check", r#"{"key":"k","limit":"5/h"}"#).0, 503);
    let beyond: Vec<_> = (0..16).map(|_| server.connect_http()).collect();
    assert!(server.connect_http().read_to_end().starts_with("HTTP/1.1 503 "));
    drop(beyond);
    assert_eq!(third.post("/v1/check", r#"{"key":"k","limit":"5/h"}"#).0, 200);
    first.send("QUIT\r\n");
    assert_eq!(first.read_to_end(), "+OK\r\n");
    second.send("PING\r\n");
    second.expect("+PONG\r\n");
}

#[test]
fn rules_decide_by_names_and_values_in_pipeline_order() {
    let rules = Rules::new("domain: api\nrules:\n- {id: all, per: [k], limit: 1/h}\n");
    let server = Server::start(&["--rules", rules.path()]);
    let mut client = server.connect_resp();
    client.send("TG.PEEK api 1 k a\r\nTG.CHECK api 1 k a\r\nPING\r\nTG.CHECK api 1 k a\r\nCL.THROTTLE k 0 1 60\r\n");
    let allowed = |client: &mut Client| {
        assert_eq!(client.line(), "*12");
        let lines: Vec<String> = (0..3).map(|_| client.line()).collect();
        while client.line() != "$14" {}
        // Skips the remaining lines of `retry_after_ms` and one limit with five fields.
        (0..2 + 2 + 1 + 1 + 4 + 3 * 3 + 3).for_each(|_| drop(client.line()));
        lines[2].clone()
    };
    assert_eq!((allowed(&mut client), allowed(&mut client)), (":1".into(), ":1".into()));
    client.expect("+PONG\r\n");
    assert_eq!(allowed(&mut client), ":0");
    client.expect("*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n");
    // The pipeline's `CL.THROTTLE` has used up this counter.
    client.send("CL.THROTTLE k 0 1 60\r\n");
    client.expect("*5\r\n:1\r\n:1\r\n:0\r\n:");
    client.line();
    client.line();
    client.send(
        "TG.RESET api 1 k a\r\nTG.RESET none 1\r\nTG.CHECK api x\r\nTG.CHECK api 1 k\r\nTG.CHECK none 1\r\nPING\r\n",
    );
    client.expect(":1\r\n-ERR unknown domain `none`\r\n");
    client.expect("-ERR the cost 'x' is not a non-negative integer, such as 1, or - to use the cost of the rules\r\n");
    client.expect("-ERR usage: tg.check <domain> <cost or -> [ONCE <key>] [<name> <value> ...]\r\n");
    client.expect("-ERR unknown domain `none`\r\n+PONG\r\n");
}
