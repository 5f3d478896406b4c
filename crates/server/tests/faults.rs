//! Runs real nodes on one store. Under load, nodes join, leave, are killed or are stopped. The nodes admit no more
//! than `docs/faults.md` states.

use crate::common;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use common::load::{Clients, StopOnDrop};
use common::{Rules, Server, eventually};
use serde_json::json;
use tokio::time::Instant;
use tollgate_testkit::history::{Bound, excess_observed};
use tollgate_testkit::servers::{Kind, Server as StoreServer};

/// A rule with its parameters, the permitted excess, and how long one node is stopped.
struct NodeFaultCase {
    rule: &'static str,
    burst: u64,
    rate: u64,
    excess: u64,
    stopped_for: Duration,
}

#[test]
fn killed_stopped_joining_and_leaving_nodes_stay_within_the_limit() {
    let rule = "{id: all, limit: 50/s, burst: 100, on_fault: closed}";
    run_with_node_faults(&NodeFaultCase { rule, burst: 100, rate: 50, excess: 0, stopped_for: Duration::ZERO });
}

/// Covers a node that is stopped for longer than a lease lasts.
#[test]
fn killed_stopped_joining_and_leaving_nodes_with_leases_stay_within_the_limit() {
    let rule = "{id: all, limit: 200/s, burst: 400, on_fault: closed, consistency: leased}";
    run_with_node_faults(&NodeFaultCase {
        rule,
        burst: 400,
        rate: 200,
        excess: 0,
        stopped_for: Duration::from_secs(7),
    });
}

/// N = 3 nodes decide from their views, so the permitted excess is (N − 1)·(B + r·δ). Here B is the burst, r the rate
/// and δ the age of a view. The killed node adds at most B + r·`sync_every`.
#[test]
fn killed_stopped_joining_and_leaving_nodes_with_views_lose_at_most_unsent_charges() {
    let rule = "{id: all, limit: 50/s, burst: 100, on_fault: closed, consistency: eventual}";
    // δ is at most two seconds, even on a busy machine. `sync_every` is 100 ms.
    let excess = 2 * (100 + 2 * 50) + 100 + 5;
    run_with_node_faults(&NodeFaultCase { rule, burst: 100, rate: 50, excess, stopped_for: Duration::from_secs(3) });
}

fn run_with_node_faults(faults: &NodeFaultCase) {
    let store = StoreServer::start(Kind::Redis);
    // A request is refused if the store answers late, so that a busy machine does not admit more.
    let rules = Rules::new(format!("domain: d\nrules:\n- {}\n", faults.rule));
    let start = || Server::start(&["--rules", rules.path(), "--store", &store.url(), "--store-deadline", "2000"]);
    let (killed, stopped, mut leaving) = (start(), start(), start());
    let body = json!({"domain": "d", "attributes": {}});
    // Each node has several clients, so that together they reach the limit. While demand exceeds the limit, the pool
    // grants nothing in advance. In the test of leases, the clients of the first two nodes therefore send few requests,
    // so that both nodes get leases.
    let is_leased = faults.rule.contains("leased");
    let pauses = if is_leased { [50, 50, 1, 1] } else { [1; 4] };
    let clients = pauses.map(|pause| Clients::new(&body, Duration::from_millis(pause)));
    let (epoch, over) = (Instant::now(), AtomicBool::new(false));
    let mut history = Vec::new();
    std::thread::scope(|scope| {
        let stop = StopOnDrop(&over);
        let load = |clients, node: &Server| {
            let (address, over): (_, &AtomicBool) = (node.http.expect("HTTP is on"), &over);
            let clients: &Clients = clients;
            [(); CONNECTIONS_PER_NODE].map(|()| scope.spawn(move || clients.run_client(address, epoch, over)))
        };
        let mut threads = vec![load(&clients[0], &killed), load(&clients[1], &stopped)];
        clients[..2].iter().for_each(|clients| clients.wait_until_admitted(5));
        if is_leased {
            for node in [&killed, &stopped] {
                eventually("the node holds leases", || read_gauge(node, "tollgate_leased_tokens") > 0);
            }
        }
        threads.push(load(&clients[2], &leaving));
        clients[2].wait_until_admitted(5);
        killed.signal("KILL");
        clients[0].wait_until_closed();
        stopped.pause();
        let paused = Instant::now();
        clients[2].wait_until_admitted(20);
        std::thread::park_timeout(faults.stopped_for.saturating_sub(paused.elapsed()));
        stopped.signal("CONT");
        clients[1].wait_until_admitted(5);
        let joined = start();
        threads.push(load(&clients[3], &joined));
        clients[3].wait_until_admitted(5);
        leaving.signal("TERM");
        assert!(leaving.wait().success());
        clients[3].wait_until_admitted(20);
        drop(stop);
        threads.into_iter().flatten().for_each(|thread| history.extend(thread.join().expect("a history")));
    });
    let bound = |burst| Bound::new(burst, faults.rate, 1_000_000_000);
    assert_eq!(excess_observed(&bound(faults.burst + faults.excess), &history), None, "{} admitted", history.len());
    // Checks that the load was high enough. If an excess is permitted, the nodes must have exceeded the limit,
    // because they did not know of each other's charges.
    let reached = if faults.excess > 0 { faults.burst } else { faults.burst / 2 };
    assert!(excess_observed(&bound(reached), &history).is_some(), "the load reaches the limit");
}

/// Number of connections to each node.
const CONNECTIONS_PER_NODE: usize = 3;

/// Returns the value of a metric without labels, or zero if it is missing.
fn read_gauge(node: &Server, name: &str) -> u64 {
    let page = common::run_program(std::process::Command::new("curl").args(["-s", &node.url("/metrics")]));
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    value.map_or(0, |value| value as u64)
}

/// Sends a request for a key. Returns the status and the remaining amount.
fn send_request(node: &Server, verb: &str, key: &str, cost: u64) -> (u16, u64) {
    let body = json!({"domain": "d", "attributes": {"client": key}, "cost": cost}).to_string();
    let (status, answer) = node.connect_http().post(&format!("/v1/{verb}"), &body);
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("JSON: {answer}"));
    (status, answer["limits"][0]["remaining"].as_u64().unwrap_or_else(|| panic!("what remains: {answer}")))
}

/// A joining node reads the store before it decides, and a terminated node sends all its charges
/// before it exits.
#[test]
fn joining_node_knows_earlier_charges_and_terminated_node_has_sent_its_own() {
    let store = StoreServer::start(Kind::Valkey);
    for consistency in ["strict", "leased", "eventual"] {
        let limit = format!("limit: 1000/day, on_fault: closed, consistency: {consistency}");
        let rules = Rules::new(format!("domain: d\nrules:\n- {{id: {consistency}, per: [client], {limit}}}\n"));
        let start = || Server::start(&["--rules", rules.path(), "--store", &store.url(), "--store-deadline", "2000"]);
        let mut leaving = start();
        assert_eq!(send_request(&leaving, "check", "used-up", 1_000), (200, 0), "{consistency}");
        (0..30).for_each(|_| assert_eq!(send_request(&leaving, "check", "used", 1).0, 200, "{consistency}"));
        leaving.signal("TERM");
        assert!(leaving.wait().success());
        let joined = start();
        assert_eq!(send_request(&joined, "check", "used-up", 1), (429, 0), "{consistency}: the first request");
        assert_eq!(send_request(&joined, "check", "used", 1), (200, 969), "{consistency}: 30 were taken before");
    }
}

/// A killed node's tokens stay outstanding until their lease expires. Then the tokens count as spent, and the limit
/// refills.
#[test]
fn tokens_leased_to_a_killed_node_are_usable_soon_after_the_lease_expires() {
    let store = StoreServer::start(Kind::Redis);
    let rule = "{id: all, per: [client], limit: 1000/s, burst: 2000, on_fault: closed, consistency: leased}";
    let rules = Rules::new(format!("domain: d\nrules:\n- {rule}\n"));
    let start = || Server::start(&["--rules", rules.path(), "--store", &store.url(), "--store-deadline", "2000"]);
    let (killed, other) = (start(), start());
    eventually("the node holds leases", || {
        (0..20).for_each(|_| assert_eq!(send_request(&killed, "check", "k", 1).0, 200));
        read_gauge(&killed, "tollgate_leased_tokens") > 0
    });
    killed.signal("KILL");
    let lost = Instant::now();
    assert!(send_request(&other, "peek", "k", 1).1 < 2_000, "the killed node's lease still holds tokens");
    eventually("the whole limit is usable", || send_request(&other, "peek", "k", 1).1 == 2_000);
    // A lease lasts 5 s, its expiry is rounded up to a whole second, and a refill takes up to 2 s. The remaining time
    // is a margin for a busy machine.
    assert!(lost.elapsed() < Duration::from_secs(12), "{:?}", lost.elapsed());
}
