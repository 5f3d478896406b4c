//! A stalled server under load: real Redis and Valkey servers are stopped for a while, and several nodes decide under
//! `on_fault: local`.
//!
//! Each node is an engine with its own store. Clients of all nodes use the same keys. The history records all
//! admissions, so that every interval can be checked. A client that asks for less than one node's share of its
//! key's remaining amount must not be refused.
//!
//! For `N` nodes, a stall of length `P` and costs of at most `c`, `E ≤ B(N−1)/N + N·c + min(B, r·P)` in every interval.
//! This includes intervals that extend beyond the stall, because admissions during the stall are charged to the store
//! when it recovers.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Attribute, Decisions, Engine, Exactness, Item, Request};
use tollgate_redis::{Config, RedisStore};
use tollgate_testkit::history::{Bound, ObservedRequest, excess_observed};
use tollgate_testkit::servers::{Cluster, Kind, Server};

type Node = Engine<RedisStore>;

/// A client: its key and limit, the amount used before the stall, and its load.
#[derive(Clone, Copy)]
struct Client {
    key: &'static str,
    rule: &'static str,
    limit: u64,
    per: Duration,
    used: u64,
    cost: u64,
    /// Interval between two requests to one node.
    every: Duration,
}

impl Client {
    const fn new(key: &'static str, rule: &'static str, (limit, per): (u64, Duration), used: u64, every: u64) -> Self {
        Self { key, rule, limit, per, used, cost: 1, every: Duration::from_millis(every) }
    }
}

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const MONTH: Duration = Duration::from_secs(28 * 86_400);

/// Clients that ask for less than a node's share during a stall must always pass. For other clients, only the bound is
/// checked.
const CLIENTS: [Client; 10] = [
    Client::new("a", "month", (10_000, MONTH), 1, 25),
    Client::new("b", "day", (10_000, DAY), 3, 25),
    Client::new("c", "hour", (10_000, HOUR), 5_000, 25),
    Client::new("d", "minute", (6_000, HOUR), 0, 25),
    Client::new("e", "greedy", (300, HOUR), 100, 4),
    Client::new("f", "spent", (300, DAY), 300, 10),
    Client { cost: 7, ..Client::new("g", "greedy", (300, HOUR), 100, 25) },
    // One node takes nearly the whole limit just before the stall. The other nodes know only the earlier remaining
    // amount.
    Client::new("h", STALE_RULE, (300, HOUR), 0, 10),
    Client::new("i", LEASED_RULE, (1_000, HOUR), 500, 10),
    Client::new("j", LEASED_RULE, (1_000, HOUR), 1_000, 25),
];

/// The rule for keys that one node uses up just before the stall.
const STALE_RULE: &str = "stale";
const LEASED_RULE: &str = "leased";

const RULES: &str = "domain: d\nrules:\n\
    - {id: month, when: {rule: month}, per: [k], limit: 10k/month, algorithm: fixed_window}\n\
    - {id: day, when: {rule: day}, per: [k], limit: 10k/day}\n\
    - {id: hour, when: {rule: hour}, per: [k], limit: 10k/h, algorithm: sliding_window}\n\
    - {id: minute, when: {rule: minute}, per: [k], limit: 6k/h, algorithm: sliding_slices}\n\
    - {id: greedy, when: {rule: greedy}, per: [k], limit: 300/h}\n\
    - {id: spent, when: {rule: spent}, per: [k], limit: 300/day, algorithm: fixed_window, phase: first_request}\n\
    - {id: stale, when: {rule: stale}, per: [k], limit: 300/h}\n\
    - {id: leased, when: {rule: leased}, per: [k], limit: 1000/h, consistency: leased}\n";

/// The results of all requests for one key.
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

/// Sends one request. Returns whether the request passed, and its exactness.
async fn ask(node: &Node, client: &Client, cost: u64, decisions: &mut Decisions) -> (bool, Exactness) {
    let attributes = [Attribute::new("rule", client.rule), Attribute::new("k", client.key)];
    let items = [Item::new(&attributes).cost(cost)];
    let decision = node.check(&Request::new("d", &items), decisions).await.unwrap();
    (decision.is_admitted(), decision.exactness())
}

/// Sends requests to one node until `over` is set.
async fn run_client(node: Arc<Node>, client: Client, epoch: Instant, over: Arc<AtomicBool>) -> KeyResult {
    let (mut result, mut decisions) = (KeyResult::default(), Decisions::default());
    while !over.load(Ordering::Relaxed) {
        let asked = epoch.elapsed().as_nanos() as u64;
        let (passed, exactness) = ask(&node, &client, client.cost, &mut decisions).await;
        let answered = epoch.elapsed().as_nanos() as u64;
        let fell_back = u64::from(exactness == Exactness::Fallback);
        result.by_fallback += fell_back;
        if passed {
            result.admitted.push(ObservedRequest { asked, answered, cost: client.cost });
        } else {
            result.refused += 1;
            result.refused_by_fallback += fell_back;
        }
        tokio::time::sleep(client.every).await;
    }
    result
}

/// The result of one stall.
struct StallResult {
    by_fallback: u64,
    refused_by_fallback: u64,
    greedy: u64,
    bound: u64,
}

async fn run_stall(server: Server, name: String, nodes: u64, length: Duration) -> StallResult {
    // Before the stall, a node with a long deadline charges each client's `used` amount and then leaves.
    let mut decisions = Decisions::default();
    let first = start_node(&server, support::LONG_DEADLINE).await;
    let epoch = Instant::now();
    for client in CLIENTS.iter().filter(|client| client.used > 0) {
        let (passed, exactness) = ask(&first, client, client.used, &mut decisions).await;
        assert!(passed && exactness != Exactness::Fallback, "{name}: {}", client.rule);
    }
    // Gives the node's leases back to the store.
    first.store().flush().await;
    drop(first);
    let before = epoch.elapsed().as_nanos() as u64;
    let mut engines = Vec::new();
    for _ in 0..nodes {
        engines.push(Arc::new(start_node(&server, Duration::from_millis(25)).await));
    }
    for engine in &engines {
        // Passes the node count to the engine, as the Tollgate server does.
        let mut count = engine.store().watch_nodes();
        let counted = tokio::time::timeout(Duration::from_secs(30), count.wait_for(|count| u64::from(*count) == nodes));
        engine.set_node_count(*counted.await.expect("the nodes did not count each other").unwrap());
    }
    // Waits until every node has an answer from the store for every key.
    for engine in &engines {
        for client in &CLIENTS {
            while ask(engine, client, 0, &mut decisions).await.1 == Exactness::Fallback {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
    let mut stale = Vec::new();
    for client in CLIENTS.iter().filter(|client| client.rule == STALE_RULE) {
        let cost = client.limit * 9 / 10;
        // Repeats the request until the store answers in time. If an earlier attempt was charged although its answer
        // was late, the store refuses the next attempt.
        loop {
            let asked = epoch.elapsed().as_nanos() as u64;
            let (passed, exactness) = ask(&engines[0], client, cost, &mut decisions).await;
            if passed {
                stale.push(ObservedRequest { asked, answered: epoch.elapsed().as_nanos() as u64, cost });
            }
            if exactness == Exactness::Exact {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for (place, client) in CLIENTS.iter().enumerate() {
        for engine in &engines {
            // The clients of the stale rule start when the stall begins.
            if client.rule == STALE_RULE {
                continue;
            }
            tasks.push((place, tokio::spawn(run_client(engine.clone(), *client, epoch, over.clone()))));
        }
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.pause();
    let stopped = epoch.elapsed();
    for (place, client) in CLIENTS.iter().enumerate().filter(|(_, client)| client.rule == STALE_RULE) {
        for engine in &engines {
            tasks.push((place, tokio::spawn(run_client(engine.clone(), *client, epoch, over.clone()))));
        }
    }
    tokio::time::sleep(length).await;
    let resumed = epoch.elapsed();
    server.resume();
    let stalled = epoch.elapsed() - stopped;
    // The store recovers on its own.
    for engine in &engines {
        support::wait_until_up(engine.store()).await;
        // Repays arrears when the store is up again, as the Tollgate server does.
        engine.repay().await;
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
    let mut stall = StallResult { by_fallback: 0, refused_by_fallback: 0, greedy: 0, bound: 0 };
    for (client, result) in CLIENTS.iter().zip(&result) {
        stall.by_fallback += result.by_fallback;
        let rate =
            |length: Duration| (u128::from(client.limit) * length.as_nanos()).div_ceil(client.per.as_nanos()) as u64;
        // Clients whose share exceeds their demand are never refused.
        let asked = (result.admitted.len() as u64 + result.refused) * client.cost;
        // Leased keys are excluded: tokens granted in lost answers cannot be used until they expire.
        if (client.limit - client.used) / nodes > asked && ![STALE_RULE, LEASED_RULE].contains(&client.rule) {
            assert_eq!(result.refused, 0, "{name}: {} of {asked} were refused for {}", result.refused, client.rule);
            stall.refused_by_fallback += result.refused_by_fallback;
        }
        let refill = client.limit.min(rate(stalled));
        let excess = client.limit - client.limit / nodes + nodes * client.cost + refill;
        let mut seen = vec![ObservedRequest { asked: 0, answered: before, cost: client.used }];
        seen.extend(&result.admitted);
        if client.rule == STALE_RULE {
            seen.extend(&stale);
        }
        let found = |excess: u64| {
            let bound = Bound::new(client.limit + excess, client.limit, client.per.as_nanos() as u64);
            excess_observed(&bound, &seen)
        };
        assert_eq!(found(excess), None, "{name}: {} exceeds the bound with a cost of {}", client.rule, client.cost);
        if nodes == 1 {
            // A single node knows the remaining amount, and charges its admissions during the stall to the store
            // afterwards. So the node exceeds the limit by at most the refill plus the admissions that are not yet
            // charged at the store's first answer. For leased keys, the node knows the remaining amount only to 1/32 of
            // the limit.
            let unknown = if client.rule == LEASED_RULE { client.limit / 32 } else { 0 };
            let excess = refill + 4 * client.cost + unknown;
            assert_eq!(found(excess), None, "{name}: {} exceeds the bound of a single node", client.rule);
        }
        if client.rule == STALE_RULE && nodes > 1 && length >= Duration::from_secs(1) {
            assert!(found(0).is_some(), "{name}: the stall had no effect, {} admitted", result.admitted.len());
        }
        if client.rule == "greedy" && client.cost == 1 {
            let left = client.limit - client.used + rate(epoch.elapsed());
            assert!(result.refused > 0 || asked <= left, "{name}: the share must also limit requests");
            let admitted: u64 = seen.iter().map(|seen| seen.cost).sum();
            (stall.greedy, stall.bound) = (admitted, client.limit + excess + rate(resumed));
        }
        if client.used == client.limit {
            let refilled = if client.rule == LEASED_RULE { rate(epoch.elapsed()) } else { 0 };
            assert!(
                result.admitted.len() as u64 <= refilled,
                "{name}: requests passed although {} had no capacity left",
                client.rule
            );
        }
    }
    assert!(stall.by_fallback > 0, "{name}: no request was decided by fallback");
    stall
}

#[test]
fn stall_refuses_no_client_with_a_share_left_and_bounds_admissions() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        for length in [50, 300, 5_000].map(Duration::from_millis) {
            let mut cases = Vec::new();
            for kind in Kind::ALL {
                for nodes in [1, 2, 5] {
                    // Starting a server blocks, so all servers are started before the measurements.
                    cases.push((Server::start(kind), format!("{kind:?}, {nodes} nodes, {length:?}"), nodes));
                }
            }
            let cases: Vec<_> = cases
                .into_iter()
                .map(|(server, name, nodes)| {
                    tokio::spawn(async move {
                        let stall = run_stall(server, name.clone(), nodes, length).await;
                        println!(
                            "{name}: {} decided by fallback, {} refused with a share left, \
                             {} admitted of at most {}, of a key that is asked for more",
                            stall.by_fallback, stall.refused_by_fallback, stall.greedy, stall.bound
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

/// A request spans two primaries, and one of them is stopped. The whole request is decided locally, and the other
/// primary is charged later.
#[test]
fn live_primary_is_charged_for_requests_with_an_unanswered_part() {
    const RULES: &str = "domain: d\nrules:\n\
        - {id: one, per: [one], limit: 1000/day}\n\
        - {id: two, per: [two], limit: 1000/day}\n";
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cluster = Cluster::start(Kind::Redis);
        let node = async || {
            let config = Config::from_url(&cluster.url()).unwrap().deadline(Duration::from_millis(200));
            let engine = Engine::new(RedisStore::connect(config).await).unwrap();
            support::wait_until_up(engine.store()).await;
            engine.put(&Rules::read(&[Source { name: "rules", text: RULES.as_bytes() }]).unwrap()).unwrap();
            engine
        };
        let (engine, other) = (node().await, node().await);
        let mut decisions = Decisions::default();
        let mut ask_node = async |node: &Node, one: &str, two: &str| {
            let attributes = [Attribute::new("one", one), Attribute::new("two", two)];
            let items = [Item::new(&attributes)];
            let decision = node.check(&Request::new("d", &items), &mut decisions).await.unwrap();
            let left = decision.reports().map(|report| report.report.remaining).last().unwrap();
            (decision.is_admitted(), decision.exactness(), left)
        };
        let mut ask = async |one: &str, two: &str| ask_node(&engine, one, two).await;
        let holder = |value: &str| {
            let holds = |server: &Server| !server.command(&["KEYS", &format!("*{value}*")]).list().is_empty();
            (0..3).find(|at| holds(&cluster.servers[*at])).expect("no primary has the key")
        };
        // Finds two values whose keys are on different primaries. The key of the second rule is on the live primary.
        let (mut at_stopped, mut at_live) = (None, None);
        assert_eq!(ask("first", "second").await, (true, Exactness::Exact, 999));
        let live = holder("second");
        for number in 0.. {
            let value = format!("value{number:03}");
            assert_eq!(ask(&value, &value).await.1, Exactness::Exact);
            // Both rules count by the same value, so their keys are in the same lane.
            let is_live = holder(&value) == live;
            *if is_live { &mut at_live } else { &mut at_stopped } = Some(value);
            if at_live.is_some() && at_stopped.is_some() {
                break;
            }
        }
        let (at_live, at_stopped) = (at_live.unwrap(), at_stopped.unwrap());
        let stopped = &cluster.servers[holder(&at_stopped)];
        stopped.pause();
        // Until the primary is known to be down, a request may have been executed there and is not charged again. Later
        // requests are charged.
        let (mut count, mut at_once) = (0, 0);
        while at_once < 3 {
            let start = Instant::now();
            let (passed, exactness, _) = ask(&at_stopped, "second").await;
            assert_eq!((passed, exactness), (true, Exactness::Fallback));
            (count, at_once) = (count + 1, at_once + u64::from(start.elapsed() < Duration::from_millis(100)));
        }
        // `repay` charges the arrears without another request of this node, even though the other primary does not
        // answer.
        engine.repay().await;
        let (passed, exactness, left) = ask_node(&other, &at_live, "second").await;
        assert_eq!((passed, exactness), (true, Exactness::Exact));
        assert_eq!(ask_node(&engine, &at_live, "second").await, (true, Exactness::Exact, left - 1), "charged once");
        stopped.resume();
        let charged = 998 - left;
        assert!(
            (at_once..=count).contains(&charged),
            "{charged} of {count} were charged, {at_once} were decided at once"
        );
    });
}

/// If a caller gives up, the arrears of its key are charged exactly once. Unsent arrears are charged later, and arrears
/// that were sent are not charged again.
#[test]
fn arrears_of_a_caller_that_gives_up_are_charged_once() {
    const RULES: &str = "{domain: d, rules: [{id: r, per: [k], limit: 1000/day}]}";
    support::on_redis_and_valkey(async |mut server| {
        for is_sent in [false, true] {
            let engine = Arc::new(Engine::new(support::store(&server).await).unwrap());
            engine.put(&Rules::read(&[Source { name: "rules", text: RULES.as_bytes() }]).unwrap()).unwrap();
            let ask = async |engine: Arc<Node>, key: &'static str, cost: u64| {
                let (attributes, mut decisions) = ([Attribute::new("k", key)], Decisions::default());
                let items = [Item::new(&attributes).cost(cost)];
                let decision = engine.check(&Request::new("d", &items), &mut decisions).await.unwrap();
                let left = decision.reports().map(|report| report.report.remaining).last();
                (decision.exactness(), left)
            };
            server.kill();
            // A request detects the lost connection. The outcome of this request may be unknown.
            assert_eq!(ask(engine.clone(), "lost", 1).await.0, Exactness::Fallback);
            support::wait_until_down(engine.store()).await;
            assert_eq!(ask(engine.clone(), "k", 40).await.0, Exactness::Fallback);
            server.restart();
            support::wait_until_up(engine.store()).await;
            server.pause();
            let busy = engine.clone();
            // While a call is in flight, further requests wait.
            let first = async { if is_sent { None } else { Some(ask(busy, "other", 1).await) } };
            let second = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let given_up = tokio::time::timeout(Duration::from_millis(200), ask(engine.clone(), "k", 1)).await;
                assert!(given_up.is_err(), "the server is paused");
                server.resume();
            };
            tokio::join!(first, second);
            let (exactness, left) = ask(engine.clone(), "k", 1).await;
            // The arrears of 40 and this request are charged once. The request that was given up is charged if the store
            // received it together with the arrears.
            let expected = if is_sent { 958..=959 } else { 959..=959 };
            assert!(
                exactness == Exactness::Exact && left.is_some_and(|left| expected.contains(&left)),
                "{is_sent}: {left:?}"
            );
        }
    });
}
