//! A stalled server under load: real Redis and Valkey, stopped for a while, with several nodes that decide by `on_fault: local`.
//!
//! Each node is an engine with its own store. Clients of all nodes use the same keys. The history then shows what was
//! admitted in every interval, and no client may have been refused while more than a node's share of its limit was
//! left.
//!
//! Until the store answers again, `E ≤ B(N−1)/N + N + min(B, r·P)` for a stall of length `P`. What was admitted
//! meanwhile is not charged to the store afterwards, so in intervals that extend beyond the stall it is `E ≤ B + N +
//! min(B, r·P)`.

#![allow(clippy::unwrap_used, reason = "what fails here ends the test")]

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Decisions, Engine, Entry, Item, Request, Standing};
use tollgate_redis::{Config, RedisStore};
use tollgate_testkit::history::{Bound, ObservedRequest, excess_observed};
use tollgate_testkit::servers::{Kind, Server};

type Node = Engine<RedisStore>;

/// How much of the limit of a key is used before the stall, and whether requests may be refused.
#[derive(Clone, Copy)]
struct Client {
    key: &'static str,
    rule: &'static str,
    limit: u64,
    per: Duration,
    used: u64,
    /// The time between two requests of one node.
    every: Duration,
}

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const MONTH: Duration = Duration::from_secs(28 * 86_400);

/// Clients that ask for less than a node's share during a stall must always pass; others are bounded.
const CLIENTS: [Client; 6] = [
    Client { key: "a", rule: "month", limit: 10_000, per: MONTH, used: 1, every: Duration::from_millis(25) },
    Client { key: "b", rule: "day", limit: 10_000, per: DAY, used: 3, every: Duration::from_millis(25) },
    Client { key: "c", rule: "hour", limit: 10_000, per: HOUR, used: 5_000, every: Duration::from_millis(25) },
    Client { key: "d", rule: "minute", limit: 6_000, per: HOUR, used: 0, every: Duration::from_millis(25) },
    Client { key: "e", rule: "greedy", limit: 300, per: HOUR, used: 100, every: Duration::from_millis(4) },
    Client { key: "f", rule: "spent", limit: 300, per: DAY, used: 300, every: Duration::from_millis(10) },
];

const RULES: &str = "domain: d\nrules:\n\
    - {id: month, when: {rule: month}, per: [k], limit: 10k/month, algorithm: fixed_window}\n\
    - {id: day, when: {rule: day}, per: [k], limit: 10k/day}\n\
    - {id: hour, when: {rule: hour}, per: [k], limit: 10k/h, algorithm: sliding_window}\n\
    - {id: minute, when: {rule: minute}, per: [k], limit: 6k/h, algorithm: sliding_slices}\n\
    - {id: greedy, when: {rule: greedy}, per: [k], limit: 300/h}\n\
    - {id: spent, when: {rule: spent}, per: [k], limit: 300/day, algorithm: fixed_window, phase: first_request}\n";

/// The answers to the clients of one key.
#[derive(Default)]
struct KeyResult {
    admitted: Vec<ObservedRequest>,
    by_fallback: u64,
    refused_by_fallback: u64,
    refused: u64,
}

async fn start_node(server: &Server, deadline: Duration) -> Node {
    let config = Config::from_url(&server.url()).unwrap().deadline(deadline);
    let engine = Engine::new(RedisStore::connect(config).await).unwrap();
    engine.put(&Rules::read(&[Source { name: "rules", text: RULES.as_bytes() }]).unwrap()).unwrap();
    engine
}

/// Sends one request; returns whether it passed, and whether the store decided.
async fn ask(node: &Node, client: &Client, cost: u64, decisions: &mut Decisions) -> (bool, Standing) {
    let entries = [Entry::new("rule", client.rule), Entry::new("k", client.key)];
    let items = [Item::new(&entries).cost(cost)];
    let decision = node.check(&Request::new("d", &items), decisions).await.unwrap();
    (decision.is_allowed(), decision.standing())
}

/// Sends requests to one node until it is stopped.
async fn load(node: Arc<Node>, client: Client, epoch: Instant, over: Arc<AtomicBool>) -> KeyResult {
    let (mut result, mut decisions) = (KeyResult::default(), Decisions::default());
    while !over.load(Ordering::Relaxed) {
        let asked = epoch.elapsed().as_nanos() as u64;
        let (passed, standing) = ask(&node, &client, 1, &mut decisions).await;
        let answered = epoch.elapsed().as_nanos() as u64;
        let fell_back = u64::from(standing == Standing::Fallback);
        result.by_fallback += fell_back;
        if passed {
            result.admitted.push(ObservedRequest { asked, answered, cost: 1 });
        } else {
            result.refused += 1;
            result.refused_by_fallback += fell_back;
        }
        tokio::time::sleep(client.every).await;
    }
    result
}

/// The result of one stall.
struct Came {
    by_fallback: u64,
    refused_by_fallback: u64,
    greedy: u64,
    bound: u64,
}

async fn run_stall(server: Server, name: String, nodes: u64, length: Duration) -> Came {
    // The usage before the stall goes through a node with a long deadline, which then leaves.
    let mut decisions = Decisions::default();
    let first = start_node(&server, support::UNHURRIED).await;
    let epoch = Instant::now();
    for client in CLIENTS.iter().filter(|client| client.used > 0) {
        assert_eq!(ask(&first, client, client.used, &mut decisions).await, (true, Standing::Exact), "{name}");
    }
    drop(first);
    let before = epoch.elapsed().as_nanos() as u64;
    let mut engines = Vec::new();
    for _ in 0..nodes {
        engines.push(Arc::new(start_node(&server, Duration::from_millis(25)).await));
    }
    for engine in &engines {
        // As the server does.
        let mut count = engine.store().watch_nodes();
        let counted = tokio::time::timeout(Duration::from_secs(30), count.wait_for(|count| u64::from(*count) == nodes));
        engine.set_nodes(*counted.await.expect("the nodes count each other").unwrap());
    }
    // Every node has an answer for every key.
    for engine in &engines {
        for client in &CLIENTS {
            while ask(engine, client, 0, &mut decisions).await.1 != Standing::Exact {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for (place, client) in CLIENTS.iter().enumerate() {
        for engine in &engines {
            tasks.push((place, tokio::spawn(load(engine.clone(), *client, epoch, over.clone()))));
        }
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.pause();
    let stopped = epoch.elapsed();
    tokio::time::sleep(length).await;
    let resumed = epoch.elapsed();
    server.resume();
    let stalled = epoch.elapsed() - stopped;
    // The store recovers without help.
    for engine in &engines {
        support::wait_until_up(engine.store()).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    over.store(true, Ordering::Relaxed);
    let mut result: Vec<KeyResult> = CLIENTS.iter().map(|_| KeyResult::default()).collect();
    for (place, task) in tasks {
        let one = task.await.unwrap();
        let all = &mut result[place];
        all.admitted.extend(one.admitted);
        all.by_fallback += one.by_fallback;
        all.refused_by_fallback += one.refused_by_fallback;
        all.refused += one.refused;
    }
    let mut came = Came { by_fallback: 0, refused_by_fallback: 0, greedy: 0, bound: 0 };
    for (client, result) in CLIENTS.iter().zip(&result) {
        came.by_fallback += result.by_fallback;
        let rate =
            |length: Duration| (u128::from(client.limit) * length.as_nanos()).div_ceil(client.per.as_nanos()) as u64;
        // Clients whose share exceeds their demand are never refused.
        let asked = result.admitted.len() as u64 + result.refused;
        if (client.limit - client.used) / nodes > asked {
            assert_eq!(result.refused, 0, "{name}: {} of {asked} were refused for {}", result.refused, client.rule);
            came.refused_by_fallback += result.refused_by_fallback;
        }
        // All costs are 1, so no share goes into debt.
        let refill = client.limit.min(rate(stalled));
        let (during, after) = (client.limit * (nodes - 1) / nodes + nodes + refill, client.limit + nodes + refill);
        let mut seen = vec![ObservedRequest { asked: 0, answered: before, cost: client.used }];
        seen.extend(&result.admitted);
        let check = |excess: u64, seen: &[ObservedRequest]| {
            let bound = Bound::new(client.limit + excess, client.limit, client.per.as_nanos() as u64);
            assert_eq!(excess_observed(&bound, seen), None, "{name}: {}", client.rule);
        };
        check(after, &seen);
        seen.retain(|seen| u128::from(seen.answered) <= resumed.as_nanos());
        check(during, &seen);
        if client.rule == "greedy" {
            assert!(result.refused > 0 || length < Duration::from_secs(1), "{name}: the share is a limit, too");
            let admitted: u64 = seen.iter().map(|seen| seen.cost).sum();
            (came.greedy, came.bound) = (admitted, client.limit + during + rate(resumed));
        }
        if client.rule == "spent" {
            assert_eq!(result.admitted.len(), 0, "{name}: nothing was left");
        }
    }
    assert!(came.by_fallback > 0, "{name}: no request was decided by fallback");
    came
}

#[test]
fn no_client_with_a_share_left_is_refused_in_a_stall_and_what_is_admitted_is_bounded() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for length in [50, 300, 5_000].map(Duration::from_millis) {
            let mut cases = Vec::new();
            for kind in Kind::ALL {
                for nodes in [1, 2, 5] {
                    // Starting a server blocks, so it is done before anything is measured.
                    cases.push((Server::start(kind), format!("{kind:?}, {nodes} nodes, {length:?}"), nodes));
                }
            }
            let cases: Vec<_> = cases
                .into_iter()
                .map(|(server, name, nodes)| {
                    tokio::spawn(async move {
                        let came = run_stall(server, name.clone(), nodes, length).await;
                        println!(
                            "{name}: {} decided by fallback, {} refused with a share left, \
                             {} admitted of at most {} until the store answers, of a key that is asked for more",
                            came.by_fallback, came.refused_by_fallback, came.greedy, came.bound
                        );
                    })
                })
                .collect();
            for case in cases {
                case.await.unwrap();
            }
        }
    });
}
