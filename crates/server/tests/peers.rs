//! Three real servers that share limits as peers.

use crate::common;

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Barrier;
use std::time::Duration;

use common::cli::Cli;
use common::load::Load;
use common::service::{get_body, read_metric};
use common::{Client, Folder, Server, eventually, signal, stable_port};
use serde_json::{Value, json};
use tokio::time::Instant;
use tollgate_testkit::history::{Bound, excess_observed};

/// The first two rules have long periods, so that the duration of a test does not matter.
pub(crate) const RULES: &str = "\
domain: api
rules:
- {id: seen, when: {kind: eventual}, per: [key], limit: 4/h, consistency: eventual}
- {id: exact, when: {kind: strict}, per: [key], limit: 50/day, on_fault: closed}
- {id: example, when: {kind: example}, per: [key], limit: 4/s, consistency: eventual}
- {id: seen-rate, when: {kind: seen-rate}, limit: 20/s, burst: 40, consistency: eventual}
- {id: seen-many, when: {kind: seen-many}, per: [key], limit: 1000/day, consistency: eventual}
- {id: exact-rate, when: {kind: exact-rate}, limit: 20/s, burst: 40, on_fault: closed}
";

/// Burst and rate of the rules `seen-rate` and `exact-rate`.
pub(crate) const BURST: u64 = 40;
pub(crate) const RATE: u64 = 20;
/// The excess `B + r·δ` that each additional server may admit. The age δ of a view is up to three seconds on a busy
/// machine.
pub(crate) const FAULT_FREE_EXCESS: u64 = BURST + 3 * RATE;

/// Returns the bound `B + r·T + E` on the admitted requests of the rules `seen-rate` and `exact-rate` in `T` seconds,
/// where `E` is the excess.
pub(crate) fn bound_with_excess(excess: u64) -> Bound {
    Bound::new(BURST + excess, RATE, 1_000_000_000)
}

/// Returns the body of a request that matches the rule for this kind.
pub(crate) fn body_of(kind: &str) -> Value {
    json!({"domain": "api", "attributes": {"kind": kind, "key": "k"}})
}

/// Addresses and files of three servers.
pub(crate) struct ThreeServers {
    folder: Folder,
    ports: [u16; 3],
    options: String,
}

impl ThreeServers {
    pub(crate) fn new() -> Self {
        Self::with_options("")
    }

    /// Prepares three servers with these options in the store URL, without starting them.
    pub(crate) fn with_options(options: &str) -> Self {
        let folder = Folder::new();
        folder.write_file("rules.yaml", RULES);
        Self { folder, ports: [(); 3].map(|()| stable_port()), options: options.to_owned() }
    }

    /// Returns the address at which other servers connect to the server with this index.
    pub(crate) fn address(&self, index: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports[index]))
    }

    pub(crate) fn start(&self, index: usize) -> Server {
        self.start_server_with(&self.options, &["--peers-listen", &self.address(index).to_string()])
    }

    /// Starts a further server with other options in the store URL, without waiting for it. Writes the log of the
    /// server to `log`.
    pub(crate) fn start_other(&self, options: &str, name: &str, log: &Path) -> Child {
        let listen = format!("127.0.0.1:{}", stable_port());
        let (url, rules) = (self.url(options), self.folder.join("rules.yaml"));
        let args = ["--http", "127.0.0.1:0", "--resp", "off", "--data", "off", "--rules", &*rules, "--store", &*url];
        Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("serve")
            .args(args)
            .args(["--peers-listen", &*listen, "--node", name])
            .stderr(File::create(log).expect("a file for the log"))
            .spawn()
            .expect("the program starts")
    }

    fn url(&self, options: &str) -> String {
        let hosts = self.ports.map(|port| format!("127.0.0.1:{port}"));
        format!("peers://{}{options}", hosts.join(","))
    }

    fn start_server_with(&self, options: &str, args: &[&str]) -> Server {
        let (url, rules) = (self.url(options), self.folder.join("rules.yaml"));
        Server::start(&[&["--rules", &*rules, "--store", &*url, "--store-deadline", "20000"], args].concat())
    }

    /// Starts all servers concurrently and waits until each server sees all others.
    pub(crate) fn start_all(&self) -> Vec<Server> {
        let servers = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..3).map(|index| scope.spawn(move || self.start(index))).collect();
            starting.into_iter().map(|starting| starting.join().expect("it starts")).collect::<Vec<_>>()
        });
        wait_until_linked(&servers);
        servers
    }
}

/// Waits until every server sees all others.
pub(crate) fn wait_until_linked(servers: &[Server]) {
    eventually("all servers see each other", || {
        servers.iter().all(|server| linked_server_count(server) == servers.len())
    });
}

/// Returns the number of servers that share limits with `server`, including itself. Returns 0 if `server` lacks a link
/// to one of these servers.
pub(crate) fn linked_server_count(server: &Server) -> usize {
    let page = peer_status(server);
    let linked = page["peers"]
        .as_array()
        .map_or(0, |peers| peers.iter().filter(|peer| peer["linked"] == true && peer["state"] == "ready").count());
    if page["nodes"] == linked + 1 { linked + 1 } else { 0 }
}

/// Returns a server's status page about its peers.
pub(crate) fn peer_status(server: &Server) -> Value {
    serde_json::from_str(&get_body(server, "/v1/peers")).expect("JSON")
}

/// Returns the servers' HTTP addresses.
pub(crate) fn addresses(servers: &[Server]) -> Vec<SocketAddr> {
    servers.iter().map(|server| server.http.expect("HTTP is on")).collect()
}

pub(crate) fn send_verb(server: &Server, verb: &str, kind: &str, key: &str) -> Value {
    send_verb_to(server.http.expect("HTTP is on"), verb, kind, key)
}

fn send_verb_to(address: SocketAddr, verb: &str, kind: &str, key: &str) -> Value {
    let body = json!({"domain": "api", "attributes": {"kind": kind, "key": key}}).to_string();
    let (_, answer) = Client::connect(address).post(&format!("/v1/{verb}"), &body);
    serde_json::from_str(&answer).expect("JSON")
}

pub(crate) fn passes(server: &Server, kind: &str, key: &str) -> bool {
    send_verb(server, "check", kind, key)["allowed"] == true
}

/// Sends four checks to each server at the same time. Returns the number of admitted checks.
fn twelve_at_once(servers: &[Server], kind: &str, key: &str) -> u64 {
    let barrier = Barrier::new(servers.len());
    let body = json!({"domain": "api", "attributes": {"kind": kind, "key": key}});
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
fn twelve_simultaneous_requests_for_four_tokens_pass_and_are_owed() {
    let servers = ThreeServers::new().start_all();
    // Servers send these charges immediately, so all twelve requests are admitted only if they arrive nearly
    // simultaneously. The test repeats until this happens.
    let all_pass = (0..60).any(|turn| {
        let key = format!("key {turn}");
        let passed = twelve_at_once(&servers, "eventual", &key);
        assert!((4..=12).contains(&passed), "{passed}");
        for server in &servers {
            // A token is refilled every 900 seconds. The next request waits for the whole debt plus one token.
            let (longest, slack) = ((passed - 4 + 1) * 900_000, 120_000);
            eventually("the server knows what all servers admitted", || {
                let answer = send_verb(server, "peek", "eventual", &key);
                assert_eq!((&answer["allowed"], &answer["standing"]), (&json!(false), &json!("eventual")));
                let wait = answer["retry_after_ms"].as_u64().expect("a wait");
                assert!(wait <= longest, "{wait} for {passed}");
                wait > longest - slack
            });
        }
        passed == 12
    });
    assert!(all_pass, "no round admitted all twelve requests");
}

/// Sends ninety checks, thirty to each server at the same time, and asserts that fifty are admitted.
pub(crate) fn assert_admits_fifty(servers: &[Server], key: &str) {
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let thirty = |address| {
            scope.spawn(move || (0..30).map(|_| send_verb_to(address, "check", "strict", key)).collect::<Vec<_>>())
        };
        let sent: Vec<_> = addresses(servers).into_iter().map(thirty).collect();
        sent.into_iter().flat_map(|sent| sent.join().expect("no panic")).collect()
    });
    let admitted = answers.iter().filter(|answer| answer["allowed"] == true).count();
    // On a busy machine, a link may break and an answer may be lost although its request was charged.
    let unanswered = answers.iter().filter(|answer| answer["standing"] != "exact").count();
    assert!(admitted <= 50 && admitted + unanswered >= 50, "{admitted} admitted, {unanswered} unanswered");
}

#[test]
fn strict_limits_are_exact_on_all_servers_together() {
    let folder = Folder::new();
    let secret = folder.write_file("secret", "0123456789abcdef".repeat(4));
    let servers = ThreeServers::with_options(&format!("?secret_file={secret}")).start_all();
    assert_admits_fifty(&servers, "k");
    let asked = |server: &Server| read_metric(server, "tollgate_peers_asked_total").unwrap_or_default();
    eventually("two of three servers asked the key's home", || servers.iter().map(asked).sum::<u64>() >= 50);
    let shown = Cli::for_server(&servers[0]).run(&["nodes"]).expect_success();
    assert_eq!(shown.lines().filter(|line| line.contains("ready")).count(), 3, "{shown}");
}

/// Returns the nodes of a status page: the server itself and its peers.
fn nodes_of(page: &Value) -> Vec<&Value> {
    page["peers"].as_array().into_iter().flatten().chain([&page["node"]]).collect()
}

#[test]
fn every_server_lists_rules_links_and_homes_of_all_servers() {
    let mut servers = ThreeServers::new().start_all();
    for number in 0..30 {
        assert!(passes(&servers[0], "strict", &format!("key {number}")));
    }
    for server in &servers {
        eventually("all nodes report their rules, two links each, and thirty homes", || {
            let page = peer_status(server);
            let nodes = nodes_of(&page);
            let is_same = |node: &&Value| node["checksum"] == nodes[0]["checksum"] && node["revision"] == 1;
            let homes: u64 = nodes.iter().filter_map(|node| node["homes"].as_u64()).sum();
            nodes[0]["checksum"].is_string()
                && nodes.iter().all(is_same)
                && nodes.iter().all(|node| node["links"] == 2)
                && homes == 30
        });
        eventually("the metrics agree", || {
            let metrics = get_body(server, "/metrics");
            metrics
                .lines()
                .filter(|line| line.starts_with("tollgate_peers_same_rules{") && line.ends_with(" 1"))
                .count()
                == 2
        });
        let shown = Cli::for_server(server).run(&["nodes"]).expect_success();
        let checksum = peer_status(server)["node"]["checksum"].as_str().expect("a checksum")[..8].to_owned();
        assert_eq!(shown.lines().filter(|line| line.contains(&format!("1 {checksum}"))).count(), 3, "{shown}");
        let doctor = Cli::for_server(server).run(&["doctor", "--data", "off"]).out;
        assert!(doctor.contains("ok       peers         3 servers, all linked"), "{doctor}");
    }
    let last = servers.remove(2);
    drop(servers);
    eventually("doctor warns of a lost majority", || {
        let doctor = Cli::for_server(&last).run(&["doctor", "--data", "off"]).out;
        doctor.contains("warning  peers         the server sees no majority of the")
    });
}

#[test]
fn twelve_simultaneous_requests_at_four_per_second_cause_two_seconds_of_refusals() {
    let servers = ThreeServers::new().start_all();
    // On a busy machine, a server may receive other servers' charges before it has admitted its own four requests. A
    // token may also be refilled before all servers have received the charges. The example is therefore repeated until
    // one round shows the expected result.
    let shows = |turn: u32| {
        let key = format!("key {turn}");
        let start = Instant::now();
        if twelve_at_once(&servers, "example", &key) < 12 {
            return false;
        }
        // The balance is -8 and a token is refilled every 250 ms, so the next request has to wait for nine refills.
        let owes_all = |server: &Server| {
            let answer = send_verb(server, "peek", "example", &key);
            let elapsed = start.elapsed().as_millis() as u64;
            // The ages of deltas are rounded, so a difference of 10 ms is accepted.
            answer["retry_after_ms"].as_u64().is_some_and(|wait| wait <= 2_250 && wait + elapsed + 10 >= 2_250)
        };
        let mut owes = [false; 3];
        while start.elapsed() < Duration::from_millis(250) && owes != [true; 3] {
            owes = [0, 1, 2].map(|index| owes_all(&servers[index]));
        }
        if owes != [true; 3] {
            return false;
        }
        eventually("a token can be taken again", || servers.iter().any(|server| passes(server, "example", &key)));
        let refused_for = start.elapsed();
        assert!(refused_for >= Duration::from_secs(2), "refused for {refused_for:?}");
        true
    };
    assert!((0..100).any(shows), "no round shows the expected result");
}

#[test]
fn rolling_restart_under_load_resets_nothing_and_stays_within_the_bound() {
    let three = ThreeServers::new();
    let mut servers = three.start_all();
    for (kind, standing) in [("strict", "exact"), ("eventual", "eventual")] {
        for server in &servers {
            eventually("the key is used up", || {
                let answer = send_verb(server, "check", kind, "k");
                answer["allowed"] == false && answer["standing"] == standing
            });
        }
    }
    let mut load = Load::new(["exact-rate", "seen-rate", "strict"].map(body_of), Duration::from_millis(10));
    addresses(&servers).into_iter().for_each(|address| load.send_to(address));
    load.wait_until_admitted(0, 10);
    for index in 0..3 {
        let stopping = servers.remove(0);
        assert!(stopping.stop_and_read_log().iter().any(|line| line.contains("stopped")));
        servers.push(three.start(index));
        wait_until_linked(&servers);
        for server in &servers {
            assert!(!passes(server, "strict", "k"), "after the restart of server {index}");
            assert!(!passes(server, "eventual", "k"), "after the restart of server {index}");
        }
        load.send_to(servers[2].http.expect("HTTP is on"));
        load.wait_until_admitted(0, 10);
        load.wait_until_admitted(1, 10);
    }
    let [exact, seen, used_up] = load.finish();
    assert_eq!(used_up.len(), 0, "a used-up key stays used up");
    // With `strict`, up to two servers may be the home of a key at the same time, so one additional server may
    // admit requests. With `eventual`, all three servers decide, so two additional servers may.
    for (history, kind, others) in [(exact, "strict", 1), (seen, "eventual", 2)] {
        let excess = others * FAULT_FREE_EXCESS;
        assert_eq!(excess_observed(&bound_with_excess(excess), &history), None, "{kind}: {} admitted", history.len());
        let half = Bound::new(BURST / 2, RATE, 1_000_000_000);
        assert!(excess_observed(&half, &history).is_some(), "{kind}: the load reaches the limit");
    }
}

/// Waits until the first two servers know of all charges of the third server. Deltas are applied in order, so a
/// server that knows of the last charge knows of all earlier charges.
pub(crate) fn wait_until_others_know_all(servers: &[Server]) {
    assert!(passes(&servers[2], "eventual", "marker"));
    for server in &servers[..2] {
        eventually("the other servers know all charges of the third server", || {
            send_verb(server, "peek", "eventual", "marker")["limits"][0]["remaining"] == 3
        });
    }
}

#[test]
fn killed_server_changes_nothing_for_callers_of_other_servers() {
    let servers = ThreeServers::new().start_all();
    // There are several keys, so that each server is probably the home of some of them. Half of each limit is spent.
    let keys: Vec<String> = (0..6).map(|number| format!("key {number}")).collect();
    for key in &keys {
        for number in 0..25 {
            assert!(passes(&servers[number % 3], "strict", key), "{key}: {number}");
        }
    }
    // A killed server may lose the charges of its last tick. In this test, the other servers already know of all
    // charges of the killed server.
    wait_until_others_know_all(&servers);
    signal(servers[2].id(), "KILL");
    for key in &keys {
        let (mut admitted, mut unanswered) = (0, 0);
        for server in &servers[..2] {
            let mut decided = 0;
            eventually("the other servers decide", || {
                // While the home of a key does not answer, the rule refuses the request. The home may still have
                // charged the request.
                let answer = send_verb(server, "check", "strict", key);
                let is_exact = answer["standing"] == "exact";
                (decided, unanswered) = (decided + u64::from(is_exact), unanswered + u64::from(!is_exact));
                admitted += u64::from(is_exact && answer["allowed"] == true);
                decided == 30
            });
        }
        assert!(admitted <= 25 && admitted + unanswered >= 25, "{key}: {admitted} admitted, {unanswered} unanswered");
    }
}

#[test]
fn paused_server_loses_its_homes_and_catches_up_when_it_resumes() {
    let servers = ThreeServers::new().start_all();
    // There are several keys, so that each server is probably the home of some of them. The limits of these keys are
    // spent.
    let keys: Vec<String> = (0..6).map(|number| format!("key {number}")).collect();
    let is_used_up = |server: &Server, key: &str| {
        let answer = send_verb(server, "check", "strict", key);
        answer["allowed"] == false && answer["standing"] == "exact"
    };
    for key in &keys {
        eventually("the key is used up", || is_used_up(&servers[0], key));
    }
    wait_until_others_know_all(&servers);
    servers[2].pause();
    for key in &keys {
        for server in &servers[..2] {
            eventually("another server is the key's home and refuses", || {
                let answer = send_verb(server, "check", "strict", key);
                assert_eq!(answer["allowed"], false, "{key}");
                answer["standing"] == "exact"
            });
        }
    }
    // Spends the limit of a new key while the third server is paused.
    eventually("the new key is used up", || is_used_up(&servers[0], "new"));
    servers[2].signal("CONT");
    wait_until_linked(&servers);
    for server in &servers {
        eventually("all servers know the charges", || is_used_up(server, "new"));
        for key in &keys {
            assert!(!passes(server, "strict", key), "{key}");
        }
    }
}

#[test]
fn rules_that_peers_cannot_share_are_refused_with_an_alternative() {
    let folder = Folder::new();
    for (rule, expected) in [
        ("limit: 1/s, algorithm: sliding_log", "sliding_log cannot be shared by peers; use sliding_slices"),
        ("limit: 1/s, consistency: leased", "`consistency: leased`"),
        ("limit: 1/s, ban: {after: 1, within: 1m, for: 1h}", "does not support the ban of `one`"),
        ("limit: 2, algorithm: concurrency", "concurrency cannot be shared by peers; use a store on Redis"),
    ] {
        let rules = folder.write_file("rules.yaml", format!("domain: api\nrules:\n- {{id: one, {rule}}}\n"));
        let listen = format!("127.0.0.1:{}", stable_port());
        let store = format!("peers://{listen}");
        let error = Server::stderr_of_failed_start(&["--rules", &rules, "--store", &store, "--peers-listen", &listen]);
        assert!(error.contains(expected), "{rule}: {error}");
    }
}
