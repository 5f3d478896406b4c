//! Runs the conformance suite and the rule model on peers in this process, with one node and with three nodes. With
//! three nodes, the cases and traces use the nodes in turn, so most keys have their home on another node. The tests
//! control the decision clock.
//!
//! `TOLLGATE_MODEL_DECISIONS` sets the number of compared decisions, and `TOLLGATE_MODEL_SEED` sets the first seed.

#![allow(clippy::print_stdout, reason = "a long run prints how much it compared")]
#![allow(clippy::unwrap_used, reason = "a failure here ends the test")]

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate::clock::ManualClock;
use tollgate_core::{Cost, Limits, Nanos};
use tollgate_engine::store::{Answers, Batch, Charge, Consistency, Group};
use tollgate_engine::{Engine, MemoryStore, Store};
use tollgate_peers::{Config, PeerStore, Stage};
use tollgate_testkit::conformance;
use tollgate_testkit::rule_model::random::Topic;
use tollgate_testkit::rule_model::settle::Settlement;
use tollgate_testkit::rule_model::{Answer, Request, RuleSet, Verb, findings, lockstep, memory};

/// Timeout of a test case, far longer than any operation in these tests.
const CASE_TIMEOUT: Duration = Duration::from_secs(30);
const START_TIME: u64 = 1_700_000_000_000_000_000;
/// Number of limit ids reserved per run, which is more than any case or trace uses.
const LIMITS_PER_RUN: u32 = 1 << 16;

/// Nodes that share limits.
struct Cluster {
    nodes: Vec<PeerStore>,
    clock: Arc<ManualClock>,
    /// Id of the current case or trace. Every case or trace starts without keys and numbers its limits from zero.
    run: AtomicU32,
}

impl Cluster {
    fn start(count: usize) -> Self {
        let clock = Arc::new(ManualClock::at(START_TIME));
        let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let all: Vec<SocketAddr> = listeners.into_iter().map(|listener| listener.local_addr().unwrap()).collect();
        let seeds: Vec<String> = all.iter().map(SocketAddr::to_string).collect();
        let start = |own: &SocketAddr| {
            let config = Config::from_url(&format!("peers://{}", seeds.join(","))).unwrap().listen(*own).unwrap();
            PeerStore::start(config.deadline(CASE_TIMEOUT).with_manual_clock(clock.clone())).unwrap()
        };
        let nodes: Vec<PeerStore> = all.iter().map(start).collect();
        let is_linked = |node: &PeerStore| {
            let status = node.status();
            let ready = status.peers.iter().filter(|peer| peer.linked && peer.info.state == "ready").count();
            matches!(status.stage, Stage::Ready { .. }) && ready + 1 == count && status.nodes as usize == count
        };
        runtime().block_on(async {
            let linked = async {
                while !nodes.iter().all(is_linked) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(CASE_TIMEOUT, linked).await.expect("all nodes see each other");
        });
        Self { nodes, clock, run: AtomicU32::new(0) }
    }

    fn begin_run(&self) {
        self.run.fetch_add(1, Ordering::Relaxed);
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

impl Store for Cluster {
    async fn run(&self, batch: Batch<'_>, answers: &mut Answers) {
        let run = self.run.load(Ordering::Relaxed);
        let key_of = |charge: &Charge<'_>| [&run.to_le_bytes(), charge.key].concat();
        let keys: Vec<Vec<Vec<u8>>> =
            batch.groups.iter().map(|group| group.charges.iter().map(key_of).collect()).collect();
        let charges: Vec<Vec<Charge<'_>>> = batch
            .groups
            .iter()
            .zip(&keys)
            .map(|(group, keys)| {
                let id = |charge: &Charge<'_>| charge.limits_id.wrapping_add(run.wrapping_mul(LIMITS_PER_RUN));
                let charges = group.charges.iter().zip(keys);
                charges.map(|(charge, key)| Charge { key, limits_id: id(charge), ..*charge }).collect()
            })
            .collect();
        let groups: Vec<Group<'_>> =
            batch.groups.iter().zip(&charges).map(|(group, charges)| Group { charges, ..*group }).collect();
        // Each run uses one node, because only later requests on the same node are certain to see a refused group's
        // refunds.
        let node = &self.nodes[run as usize % self.nodes.len()];
        node.run(Batch { groups: &groups, ..batch }, answers).await;
    }

    fn check_limits(&self, limits: &Limits) -> Result<(), String> {
        self.nodes[0].check_limits(limits)
    }

    fn check_consistency(&self, consistency: Consistency) -> Result<(), String> {
        self.nodes[0].check_consistency(consistency)
    }
}

/// A cluster for one case.
struct Case<'a>(&'a Cluster);

impl conformance::Subject for Case<'_> {
    type Store = Cluster;

    fn store(&self) -> &Cluster {
        self.0
    }

    fn unit(&self) -> Nanos {
        Nanos::SECOND
    }

    fn is_time_frozen(&self) -> bool {
        true
    }

    fn tick(&self) -> Nanos {
        Nanos::from_nanos(1)
    }

    fn refused_algorithms(&self) -> &'static [&'static str] {
        &["sliding log", "concurrency", "leaky bucket", "interval bucket", "calendar window"]
    }

    async fn wait(&mut self, length: Nanos) {
        self.0.clock.advance(length);
    }
}

static ONE_NODE: LazyLock<Mutex<Cluster>> = LazyLock::new(|| Mutex::new(Cluster::start(1)));
static THREE_NODES: LazyLock<Mutex<Cluster>> = LazyLock::new(|| Mutex::new(Cluster::start(3)));

fn run(case: impl AsyncFnOnce(&mut Case<'_>), cluster: &Mutex<Cluster>) {
    // Ignore poisoning: another case may have failed.
    let cluster = cluster.lock().unwrap_or_else(PoisonError::into_inner);
    cluster.begin_run();
    runtime().block_on(async { tokio::time::timeout(CASE_TIMEOUT, case(&mut Case(&cluster))).await.unwrap() });
}

mod one_node {
    fn run(case: impl AsyncFnOnce(&mut super::Case<'_>)) {
        super::run(case, &super::ONE_NODE);
    }

    tollgate_testkit::store_conformance!(run);
}

mod three_nodes {
    fn run(case: impl AsyncFnOnce(&mut super::Case<'_>)) {
        super::run(case, &super::THREE_NODES);
    }

    tollgate_testkit::store_conformance!(run);
}

/// An engine on a cluster.
struct EngineOnPeers {
    runtime: Runtime,
    cluster: Arc<Cluster>,
    engine: Engine<Arc<Cluster>, MemoryStore<Arc<ManualClock>>>,
}

impl EngineOnPeers {
    fn start(count: usize) -> Self {
        let cluster = Arc::new(Cluster::start(count));
        Self { runtime: runtime(), engine: engine_of(&cluster), cluster }
    }
}

fn engine_of(cluster: &Arc<Cluster>) -> Engine<Arc<Cluster>, MemoryStore<Arc<ManualClock>>> {
    let fallback = MemoryStore::with_clock(200, Arc::new(cluster.clock.clone())).unwrap();
    Engine::with_fallback(cluster.clone(), fallback).with_clock(cluster.clock.clone())
}

impl lockstep::RuleSubject for EngineOnPeers {
    fn tick(&self) -> u64 {
        1
    }

    fn begin(&mut self, at: u64) {
        self.cluster.begin_run();
        self.cluster.clock.set(at);
        self.engine = engine_of(&self.cluster);
    }

    fn advance_to(&mut self, at: u64) {
        self.cluster.clock.set(at);
    }

    fn put(&mut self, rules: &RuleSet) {
        memory::put(&self.engine, rules);
    }

    fn ask(&mut self, verb: Verb, request: &Request) -> (Answer, String) {
        self.runtime.block_on(memory::decide_request(&self.engine, verb, request))
    }

    fn refund(&mut self, receipt: &str) -> u64 {
        self.runtime.block_on(self.engine.refund(&memory::parse_receipt(receipt))).unwrap().get()
    }

    fn commit(&mut self, receipt: &str, cost: u64) -> Settlement {
        memory::to_settlement(
            self.runtime.block_on(self.engine.commit(&memory::parse_receipt(receipt), Cost::new(cost))).unwrap(),
        )
    }

    fn renew(&mut self, receipt: &str) -> bool {
        self.runtime.block_on(self.engine.renew(&memory::parse_receipt(receipt))).unwrap()
    }

    fn reset(&mut self, request: &Request) -> usize {
        self.runtime.block_on(memory::reset(&self.engine, request))
    }
}

/// Topics of rules that peers cannot share. Rules that delay requests use leaky or interval buckets.
const TOPICS_THAT_PEERS_CANNOT_SHARE: [Topic; 3] = [Topic::Ban, Topic::Delay, Topic::NotShared];

fn compare_with_model(nodes: usize) {
    let number =
        |name: &str, otherwise| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (seed, decisions) = (number("TOLLGATE_MODEL_SEED", 1), number("TOLLGATE_MODEL_DECISIONS", 5_000));
    let (compared, traces) = lockstep::compare_random_traces(
        &mut EngineOnPeers::start(nodes),
        seed,
        decisions,
        &TOPICS_THAT_PEERS_CANNOT_SHARE,
    );
    println!("{nodes} nodes: {compared} decisions of {traces} traces from seed {seed} agree with the model");
}

#[test]
fn single_node_decides_as_the_model_does() {
    compare_with_model(1);
}

#[test]
fn three_nodes_decide_as_the_model_does() {
    compare_with_model(3);
}

#[test]
fn peers_show_none_of_the_past_differences() {
    for nodes in [1, 3] {
        let found = findings::run_known_traces(&mut EngineOnPeers::start(nodes), &TOPICS_THAT_PEERS_CANNOT_SHARE);
        assert!(found.is_empty(), "{nodes} nodes: {}", found.join("\n"));
    }
}
