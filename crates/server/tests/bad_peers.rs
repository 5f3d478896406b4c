//! Servers of other clusters, and clients that send arbitrary bytes, connect to servers that share limits. Such servers
//! and clients are refused, each reason is logged once, and the servers that share limits are unaffected.

use crate::common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use common::service::read_metric;
use common::{Folder, Server, TEST_TIMEOUT, eventually};

use crate::peers::{ThreeServers, assert_admits_fifty, wait_until_linked};

const GREETING_FRAME: u8 = 0xF0;
const REFUSED_FRAME: u8 = 0xF2;
const ACCEPTED_FRAME: u8 = 0xF3;

/// Offsets of the version, the cluster and the node record in a greeting.
const VERSION_OFFSET: usize = 13;
const CLUSTER_OFFSET: usize = 15;
const RECORD_OFFSET: usize = 23;

/// Number of connections per case.
const CONNECTIONS_PER_CASE: usize = 3;

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
    stream
}

/// Reads a frame, including its length prefix.
fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut frame = vec![0; 4];
    stream.read_exact(&mut frame).expect("a length");
    let length = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
    frame.resize(4 + length, 0);
    stream.read_exact(&mut frame[4..]).expect("a body");
    frame
}

fn encode_frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (1 + body.len() as u32).to_le_bytes();
    [&length[..], &[kind], body].concat()
}

/// Returns the greeting of a fake server: the greeting `theirs` with another version, cluster and name.
fn greeting_like(theirs: &[u8], version: u8, cluster_change: u8, name: &str) -> Vec<u8> {
    let mut body = theirs[5..RECORD_OFFSET].to_vec();
    body[VERSION_OFFSET - 5] = version;
    body[CLUSTER_OFFSET - 5] ^= cluster_change;
    // The node id and the heartbeat, then the state `joining`.
    body.extend_from_slice(&[9; 16]);
    body.push(0);
    for text in ["127.0.0.1:9", name] {
        body.push(text.len() as u8);
        body.extend_from_slice(text.as_bytes());
    }
    // The statistics of the node, all zero.
    body.extend_from_slice(&[0; 32]);
    encode_frame(GREETING_FRAME, &body)
}

/// Sends a greeting and returns the answer.
fn greet(address: SocketAddr, version: u8, cluster_change: u8, name: &str) -> (TcpStream, Vec<u8>) {
    let mut stream = connect(address);
    let theirs = read_frame(&mut stream);
    assert_eq!(theirs[4], GREETING_FRAME);
    stream.write_all(&greeting_like(&theirs, version, cluster_change, name)).expect("the bytes are sent");
    let answer = read_frame(&mut stream);
    (stream, answer)
}

/// Sends bytes and waits until the server closes the connection.
fn send_until_closed(address: SocketAddr, bytes: &[u8]) {
    let mut stream = connect(address);
    read_frame(&mut stream);
    stream.write_all(bytes).expect("the bytes are sent");
    stream.shutdown(Shutdown::Write).expect("it is open");
    // Errors are ignored, because the server may close the connection with or without a reset.
    let _ = stream.read_to_end(&mut Vec::new());
}

fn refused_links(server: &Server) -> usize {
    read_metric(server, "tollgate_peers_refused_links_total").unwrap_or_default() as usize
}

/// Stops a server and asserts that its log contains each of these texts in exactly one line.
fn assert_logged_once(server: Server, texts: &[&str]) {
    let lines = server.stop_and_read_log();
    for text in texts {
        let count = lines.iter().filter(|line| line.contains("no link with peer") && line.contains(text)).count();
        assert_eq!(count, 1, "{text} in {lines:#?}");
    }
}

#[test]
fn other_versions_other_clusters_and_other_bytes_are_refused_and_logged_once() {
    let three = ThreeServers::new();
    let mut servers = three.start_all();
    let address = three.address(0);
    let taken = three.address(1).to_string();
    let refusals = [
        (2, 0, "x", "protocol version 2 instead of 1".to_owned()),
        (1, 1, "x", "another cluster".to_owned()),
        (1, 0, &*taken, format!("the name {taken} is taken")),
    ];
    for (version, cluster_change, name, expected) in &refusals {
        for _ in 0..CONNECTIONS_PER_CASE {
            let (mut stream, answer) = greet(address, *version, *cluster_change, name);
            let text = String::from_utf8_lossy(&answer[5..]);
            assert!(answer[4] == REFUSED_FRAME && text.contains(expected), "{text}");
            assert_eq!(stream.read(&mut [0]).expect("it is closed"), 0);
        }
    }
    let others: [(&[u8], &str); 4] = [
        (b"GET / HTTP/1.1\r\n\r\n", "frame of 542393671 bytes (1 to 1048576)"),
        (&[0xFF; 64], "frame of 4294967295 bytes (1 to 1048576)"),
        (&[40, 0, 0, 0, GREETING_FRAME, b't', b'o'], "closed by the peer"),
        (&[6, 0, 0, 0, GREETING_FRAME, 1, 2, 3, 4, 5], "too short"),
    ];
    for (bytes, _) in others {
        (0..CONNECTIONS_PER_CASE).for_each(|_| send_until_closed(address, bytes));
    }
    // This peer is accepted but then violates the protocol, so the link ends.
    let (mut stream, answer) = greet(address, 1, 0, "late");
    assert_eq!(answer[4], ACCEPTED_FRAME);
    stream
        .write_all(&[encode_frame(ACCEPTED_FRAME, b""), encode_frame(ACCEPTED_FRAME, b"")].concat())
        .expect("the bytes are sent");
    let _ = stream.read_to_end(&mut Vec::new());
    let all = CONNECTIONS_PER_CASE * (refusals.len() + others.len());
    eventually("all are counted", || refused_links(&servers[0]) == all);
    wait_until_linked(&servers);
    assert_admits_fifty(&servers, "k");
    let reasons = refusals.iter().map(|(.., expected)| &**expected).chain(others.map(|(_, expected)| expected));
    assert_logged_once(servers.remove(0), &reasons.collect::<Vec<_>>());
}

/// A server that the others refuse must not accept requests. If such a server started alone, it would be its own
/// majority and admit the full amount of every limit again.
#[test]
fn servers_with_another_secret_cluster_or_a_taken_name_do_not_start_and_are_logged_once() {
    let folder = Folder::new();
    let (right, wrong) = (folder.write_file("right", "a".repeat(32)), folder.write_file("wrong", "b".repeat(32)));
    let three = ThreeServers::with_options(&format!("?secret_file={right}"));
    let mut servers = three.start_all();
    let taken = three.address(1).to_string();
    let others = [
        (format!("?secret_file={wrong}"), "wrong-secret", "all nodes need the same secret"),
        (format!("?secret_file={right}&cluster=other"), "other-cluster", "another cluster: its name or secret differs"),
        (format!("?secret_file={right}"), &*taken, "is taken by the node at"),
    ];
    let log = |expected: &str| folder.path().join(format!("{}.log", expected.replace(' ', "-")));
    let mut started =
        others.each_ref().map(|(options, name, expected)| three.start_other(options, name, &log(expected)));
    // Each server redials repeatedly.
    eventually("the servers were refused several times", || refused_links(&servers[0]) >= 4 * started.len());
    for (_, _, expected) in &others {
        let lines = || std::fs::read_to_string(log(expected)).expect("a log");
        eventually("the log says why the server does not start", || lines().contains("none has accepted this server"));
        let says = |line: &&str| line.contains("no link with peer") && line.contains(expected);
        let count = lines().lines().filter(says).count();
        assert!((1..=3).contains(&count), "the reason is logged once per address: {}", lines());
        assert!(!lines().contains("listening"), "{}", lines());
    }
    wait_until_linked(&servers);
    assert_admits_fifty(&servers, "k");
    for server in &mut started {
        server.kill().expect("the server still runs");
        server.wait().expect("the server ended");
    }
    let name = format!("the name {taken} is taken");
    assert_logged_once(servers.remove(0), &["all nodes need the same secret", "another cluster", &name]);
}
