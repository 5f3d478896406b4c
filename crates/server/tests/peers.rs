//! Three real servers that share limits among themselves.

use crate::common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use common::cli::Cli;
use common::service::{get, metric};
use common::{Client, Folder, Server, eventually, signal};
use serde_json::{Value, json};
use tollgate_testkit::servers::free_port;

/// Long periods, so that the duration of a test does not matter.
const RULES: &str = "\
domain: api
rules:
- {id: seen, when: {kind: eventual}, per: [key], limit: 4/h, consistency: eventual}
- {id: exact, when: {kind: strict}, per: [key], limit: 50/day, on_fault: closed}
";

/// The addresses and files of three servers.
struct Three {
    folder: Folder,
    ports: [u16; 3],
    options: String,
}

impl Three {
    fn new() -> Self {
        Self::with("")
    }

    /// Three servers with these options in the address of the store.
    fn with(options: &str) -> Self {
        let folder = Folder::new();
        folder.file("rules.yaml", RULES);
        Self { folder, ports: [(); 3].map(|()| free_port()), options: options.to_owned() }
    }

    fn url(&self) -> String {
        let hosts = self.ports.map(|port| format!("127.0.0.1:{port}"));
        format!("peers://{}{}", hosts.join(","), self.options)
    }

    fn start(&self, index: usize) -> Server {
        let (url, listen) = (self.url(), format!("127.0.0.1:{}", self.ports[index]));
        let rules = self.folder.join("rules.yaml");
        let patient = ["--store-deadline", "20000"];
        Server::start(&[&["--rules", &rules, "--store", &url, "--peers-listen", &listen], &patient[..]].concat())
    }

    /// Starts all of them at once, and waits until each sees the others.
    fn start_all(&self) -> Vec<Server> {
        let servers = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..3).map(|index| scope.spawn(move || self.start(index))).collect();
            starting.into_iter().map(|starting| starting.join().expect("it starts")).collect::<Vec<_>>()
        });
        agree(&servers);
        servers
    }
}

/// Waits until every server sees all others.
fn agree(servers: &[Server]) {
    eventually("all servers see each other", || servers.iter().all(|server| sees(server) == servers.len()));
}

/// Returns how many servers share limits, as one of them sees it, if it is linked with all of them.
fn sees(server: &Server) -> usize {
    let page: Value = serde_json::from_str(&get(server, "/v1/peers")).expect("JSON");
    let linked = page["peers"]
        .as_array()
        .map_or(0, |peers| peers.iter().filter(|peer| peer["linked"] == true && peer["state"] == "ready").count());
    if page["nodes"] == linked + 1 { linked + 1 } else { 0 }
}

/// Returns where servers answer HTTP.
fn addresses(servers: &[Server]) -> Vec<SocketAddr> {
    servers.iter().map(|server| server.http.expect("HTTP is on")).collect()
}

fn ask(server: &Server, verb: &str, kind: &str, key: &str) -> Value {
    ask_at(server.http.expect("HTTP is on"), verb, kind, key)
}

fn ask_at(address: SocketAddr, verb: &str, kind: &str, key: &str) -> Value {
    let body = json!({"domain": "api", "attributes": {"kind": kind, "key": key}}).to_string();
    let (_, answer) = Client::connect(address).post(&format!("/v1/{verb}"), &body);
    serde_json::from_str(&answer).expect("JSON")
}

fn passes(server: &Server, kind: &str, key: &str) -> bool {
    ask(server, "check", kind, key)["allowed"] == true
}

/// Sends four checks to each server at the same time, and returns how many passed.
fn twelve_at_once(servers: &[Server], key: &str) -> u64 {
    let barrier = Barrier::new(servers.len());
    let body = json!({"domain": "api", "attributes": {"kind": "eventual", "key": key}});
    let four = json!([body, body, body, body]).to_string();
    let at_once = &|address: SocketAddr| {
        let mut client = Client::connect(address);
        barrier.wait();
        let (_, answers) = client.post("/v1/check", &four);
        let answers: Vec<Value> = serde_json::from_str(&answers).expect("a list");
        answers.iter().filter(|answer| answer["allowed"] == true).count() as u64
    };
    std::thread::scope(|scope| {
        let sent: Vec<_> =
            addresses(servers).into_iter().map(|address| scope.spawn(move || at_once(address))).collect();
        sent.into_iter().map(|sent| sent.join().expect("no panic")).sum()
    })
}

#[test]
fn twelve_at_once_against_four_tokens_pass_and_are_owed() {
    let servers = Three::new().start_all();
    // Servers report what they took at once, so only requests of nearly the same instant all pass.
    let all_pass = (0..60).any(|turn| {
        let key = format!("key {turn}");
        let passed = twelve_at_once(&servers, &key);
        assert!((4..=12).contains(&passed), "{passed}");
        for server in &servers {
            // A token comes back every 900 seconds: the next request waits for all that is owed and one more.
            let (longest, slack) = ((passed - 4 + 1) * 900_000, 120_000);
            eventually("the server knows what all servers admitted", || {
                let answer = ask(server, "peek", "eventual", &key);
                assert_eq!((&answer["allowed"], &answer["standing"]), (&json!(false), &json!("eventual")));
                let wait = answer["retry_after_ms"].as_u64().expect("a wait");
                assert!(wait <= longest, "{wait} for {passed}");
                wait > longest - slack
            });
        }
        passed == 12
    });
    assert!(all_pass, "in no turn all twelve passed");
}

#[test]
fn strict_limits_are_exact_on_all_servers_together() {
    let folder = Folder::new();
    let secret = folder.file("secret", "0123456789abcdef".repeat(4));
    let servers = Three::with(&format!("?secret_file={secret}")).start_all();
    let admitted: usize = std::thread::scope(|scope| {
        let thirty = |address| {
            let passed = move |_: &i32| ask_at(address, "check", "strict", "k")["allowed"] == true;
            scope.spawn(move || (0..30).filter(passed).count())
        };
        let sent: Vec<_> = addresses(&servers).into_iter().map(thirty).collect();
        sent.into_iter().map(|sent| sent.join().expect("no panic")).sum()
    });
    assert_eq!(admitted, 50);
    let asked = |server: &Server| metric(server, "tollgate_peers_asked_total").unwrap_or_default();
    eventually("two of three servers asked the home of the key", || servers.iter().map(asked).sum::<u64>() >= 60);
    let shown = Cli::of(&servers[0]).run(&["nodes"]).done();
    assert_eq!(shown.lines().filter(|line| line.contains("ready")).count(), 3, "{shown}");
}

#[test]
fn rolling_restart_under_load_resets_nothing() {
    let three = Three::new();
    let servers = three.start_all();
    for number in 0..50 {
        assert!(passes(&servers[number % 3], "strict", "k"));
    }
    let body = r#"{"domain":"api","attributes":{"kind":"strict","key":"k"}}"#;
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let stop = AtomicBool::new(false);
    let first = addresses(&servers);
    let admitted_by_load = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut admitted = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                for address in &first {
                    // A server that restarts has another port and does not answer here.
                    let Ok(mut stream) = TcpStream::connect(address) else { continue };
                    let mut answer = String::new();
                    let sent = stream.write_all(request.as_bytes());
                    let _ = sent.and_then(|()| stream.read_to_string(&mut answer));
                    admitted += u64::from(answer.starts_with("HTTP/1.1 200"));
                }
            }
            admitted
        });
        let mut servers = servers;
        for index in 0..3 {
            let stopping = servers.remove(0);
            assert!(stopping.last_lines().iter().any(|line| line.contains("stopped")));
            servers.push(three.start(index));
            agree(&servers);
            for server in &servers {
                assert!(!passes(server, "strict", "k"), "after the restart of server {index}");
            }
        }
        stop.store(true, Ordering::Relaxed);
        load.join().expect("no panic")
    });
    assert_eq!(admitted_by_load, 0, "a key that is used up stays so");
}

#[test]
fn killed_server_changes_nothing_for_callers_of_the_others() {
    let servers = Three::new().start_all();
    // Keys of all three homes, half used.
    let keys: Vec<String> = (0..12).map(|number| format!("key {number}")).collect();
    for key in &keys {
        for number in 0..25 {
            assert!(passes(&servers[number % 3], "strict", key));
        }
    }
    let ask_all = |server: &Server| keys.iter().map(|key| ask(server, "peek", "strict", key)).collect::<Vec<_>>();
    let remaining = |answer: &Value| answer["limits"][0]["remaining"].as_u64().unwrap_or(u64::MAX);
    for server in &servers {
        eventually("all servers know", || ask_all(server).iter().all(|answer| remaining(answer) == 25));
    }
    // What the killed server took in its last tick may be lost; here the others know all of it.
    signal(servers[2].id(), "KILL");
    let mut admitted = vec![0; keys.len()];
    for server in &servers[..2] {
        for (key, admitted) in keys.iter().zip(&mut admitted) {
            for _ in 0..30 {
                let answer = ask(server, "check", "strict", key);
                *admitted += u64::from(answer["allowed"] == true && answer["standing"] == "exact");
            }
        }
    }
    assert!(admitted.iter().all(|admitted| *admitted == 25), "{admitted:?}");
}

#[test]
fn rules_that_peers_cannot_share_are_refused_with_what_to_use() {
    let folder = Folder::new();
    for (rule, expected) in [
        ("limit: 1/s, algorithm: sliding_log", "sliding_log cannot be shared by peers; use sliding_slices"),
        ("limit: 1/s, consistency: leased", "`consistency: leased`"),
        ("limit: 1/s, ban: {after: 1, within: 1m, for: 1h}", "does not support the ban of `one`"),
        ("limit: 2, algorithm: concurrency", "concurrency cannot be shared by peers; use a store on Redis"),
    ] {
        let rules = folder.file("rules.yaml", format!("domain: api\nrules:\n- {{id: one, {rule}}}\n"));
        let listen = format!("127.0.0.1:{}", free_port());
        let store = format!("peers://{listen}");
        let error = Server::refuses(&["--rules", &rules, "--store", &store, "--peers-listen", &listen]);
        assert!(error.contains(expected), "{rule}: {error}");
    }
}
