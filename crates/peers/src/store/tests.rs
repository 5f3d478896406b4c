//! Several nodes in one process, with real links on loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::*;
use tollgate_core::{Ask as Amount, Limit, TokenBucket};
use tollgate_engine::store::{GroupAnswer, SyncEvery};
use tollgate_testkit::eventually::{TEST_TIMEOUT, eventually_async};

/// A limit with a burst of 4 that refills too slowly to matter during a test.
fn four_per_hour() -> Limits {
    Limit::from(TokenBucket::new("4/h".parse().unwrap(), 4).unwrap()).into()
}

struct NoLimitTable;

impl tollgate::ledger::LimitTable for NoLimitTable {
    fn get(&self, _: u32) -> Option<&Limits> {
        None
    }
}

/// Returns free addresses. Another process may take these ports before the nodes listen on them.
fn addresses<const N: usize>() -> [SocketAddr; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap())
}

fn config(own: SocketAddr, all: &[SocketAddr], options: &str) -> Config {
    let seeds: Vec<String> = all.iter().map(SocketAddr::to_string).collect();
    let config = Config::from_url(&format!("peers://{}{options}", seeds.join(","))).unwrap();
    config.listen(own).unwrap().deadline(TEST_TIMEOUT)
}

fn start(own: SocketAddr, all: &[SocketAddr]) -> PeerStore {
    PeerStore::start(config(own, all, "")).unwrap()
}

/// Starts three nodes that are linked and ready.
async fn start_three_nodes() -> ([SocketAddr; 3], [PeerStore; 3]) {
    let all = addresses::<3>();
    let nodes = all.map(|own| start(own, &all));
    for node in &nodes {
        node.wait_until_joined().await;
    }
    wait_until_nodes_agree(&nodes).await;
    (all, nodes)
}

/// Waits until all nodes are linked and every node sees that all other nodes are ready.
async fn wait_until_nodes_agree(nodes: &[PeerStore]) {
    eventually_async("all nodes see all others", async || {
        nodes.iter().all(|node| {
            let status = node.status();
            let is_ready = |peer: &crate::PeerStatus| peer.linked && peer.info.state == "ready";
            status.nodes as usize == nodes.len()
                && status.peers.iter().filter(|peer| is_ready(peer)).count() == nodes.len() - 1
        })
    })
    .await;
}

#[derive(Clone, Copy)]
struct Query<'a> {
    keys: &'a [&'a str],
    verb: StoreVerb,
    amount: Amount,
    consistency: Consistency,
}

impl<'a> Query<'a> {
    fn with_consistency(keys: &'a [&'a str], consistency: Consistency) -> Self {
        Self { keys, verb: StoreVerb::Check, amount: Amount::Exactly(Cost::ONE), consistency }
    }

    fn strict(keys: &'a [&'a str]) -> Self {
        Self::with_consistency(keys, Consistency::Strict)
    }

    fn eventual(keys: &'a [&'a str]) -> Self {
        Self::with_consistency(keys, Consistency::Eventual(SyncEvery::default()))
    }

    fn peek(self) -> Self {
        Self { verb: StoreVerb::Peek, ..self }
    }

    async fn ask<T>(self, node: &PeerStore, read: impl FnOnce(GroupAnswer<'_>) -> T) -> Result<T, StoreError> {
        let limits = four_per_hour();
        let charges: Vec<EngineCharge<'_>> = self
            .keys
            .iter()
            .map(|key| EngineCharge {
                key: key.as_bytes(),
                limits_id: 7,
                limits: &limits,
                earlier: &[],
                ask: self.amount,
                stamps: None,
                windows: &[],
                consistency: self.consistency,
            })
            .collect();
        let groups = [Group { verb: self.verb, charges: &charges }];
        let mut answers = Answers::default();
        node.run(Batch { limit_table: &NoLimitTable, groups: &groups }, &mut answers).await;
        answers.group(0).map(read)
    }

    async fn passes(self, node: &PeerStore) -> bool {
        self.ask(node, |answer| answer.outcome().is_admitted()).await.unwrap()
    }

    /// Returns how many tokens must refill before a refused request passes.
    async fn tokens_owed(self, node: &PeerStore) -> u64 {
        let wait = |answer: GroupAnswer<'_>| match answer.charges()[0].outcome {
            tollgate::Outcome::Deny(tollgate::Retry::After(wait)) => wait.as_nanos().div_ceil(900_000_000_000),
            _ => 0,
        };
        self.ask(node, wait).await.unwrap()
    }
}

/// Returns a key whose home is the node at index `home`.
fn key_with_home(nodes: &[PeerStore], home: usize) -> String {
    keys_with_home(nodes, home).next().unwrap()
}

/// Returns keys whose home is the node at index `home`.
fn keys_with_home(nodes: &[PeerStore], home: usize) -> impl Iterator<Item = String> {
    let homes = nodes[0].shared.homes.load();
    let names = (0..).map(|number| format!("key {number}"));
    let is_home = |key: &String| match homes.route(nodes[0].shared.table.fingerprint(key.as_bytes()), Hop::Origin) {
        Route::Here => home == 0,
        Route::To(node) => node == nodes[home].shared.node,
        Route::Unavailable(why) => panic!("{why:?}"),
    };
    names.take(10_000).filter(is_home).collect::<Vec<_>>().into_iter()
}

#[tokio::test]
async fn strict_limit_is_exact_whichever_node_is_asked() {
    let (_, nodes) = start_three_nodes().await;
    for home in 0..3 {
        let key = key_with_home(&nodes, home);
        let keys = [&*key];
        let mut admitted = 0;
        for turn in 0..9 {
            admitted += u64::from(Query::strict(&keys).passes(&nodes[turn % 3]).await);
        }
        assert_eq!(admitted, 4, "home {home}");
    }
    let asked: u64 = nodes.iter().map(|node| node.status().links.asked).sum();
    let answered: u64 = nodes.iter().map(|node| node.status().links.answered).sum();
    assert!(asked == 18 && answered == 18, "two of three requests go to another node: {asked}, {answered}");
}

#[tokio::test]
async fn eventual_limit_is_decided_locally_and_overshoot_becomes_debt() {
    let (_, nodes) = start_three_nodes().await;
    let keys = ["k"];
    // Usually, all requests run before any node has received another node's deltas. In that case, all twelve requests
    // pass.
    let mut passed = 0;
    for node in &nodes {
        for _ in 0..4 {
            passed += u64::from(Query::eventual(&keys).passes(node).await);
        }
    }
    assert!((4..=12).contains(&passed));
    for (index, node) in nodes.iter().enumerate() {
        eventually_async("every node has all charges", async || {
            Query::eventual(&keys).peek().tokens_owed(node).await == passed - 4 + 1
        })
        .await;
        let exactness = Query::eventual(&keys).ask(node, |answer| answer.charges()[0].exactness).await.unwrap();
        assert_eq!(exactness, Exactness::Eventual, "{index}");
    }
}

#[tokio::test]
async fn group_over_several_homes_is_charged_all_or_none() {
    let (_, nodes) = start_three_nodes().await;
    let keys = [0, 1, 2].map(|home| key_with_home(&nodes, home));
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for _ in 0..3 {
        assert!(Query::strict(&keys[2..]).passes(&nodes[0]).await);
    }
    assert!(Query::strict(&keys).passes(&nodes[1]).await);
    assert!(!Query::strict(&keys).passes(&nodes[1]).await, "the last key is used up");
    for key in &keys[..2] {
        let left = |answer: GroupAnswer<'_>| answer.reports(&answer.charges()[0])[0].remaining;
        eventually_async("the charges are refunded", async || {
            Query::strict(&[key]).peek().ask(&nodes[2], left).await.unwrap() == 3
        })
        .await;
    }
    // All `UpTo` charges of a group take the same amount.
    let up_to = Query { amount: Amount::UpTo(Cost::new(9)), ..Query::strict(&keys[..2]) };
    let taken = |answer: GroupAnswer<'_>| answer.charges().iter().map(|charge| charge.taken.get()).collect::<Vec<_>>();
    assert!(Query::strict(&keys[..1]).passes(&nodes[0]).await);
    assert_eq!(up_to.ask(&nodes[2], taken).await.unwrap(), [2, 2]);
    let left = |answer: GroupAnswer<'_>| answer.reports(&answer.charges()[0])[0].remaining;
    eventually_async("the excess is refunded", async || {
        Query::strict(&keys[1..2]).peek().ask(&nodes[0], left).await.unwrap() == 1
    })
    .await;
}

/// Regression: if one of two charges with the same home was refused, the other charge was refunded although it had not
/// been taken.
#[tokio::test]
async fn refused_group_over_several_homes_refunds_only_its_charges() {
    let (_, nodes) = start_three_nodes().await;
    let same: Vec<String> = keys_with_home(&nodes, 1).take(2).collect();
    let other = key_with_home(&nodes, 2);
    for keys in [[&*same[0]], [&*same[1]], [&*other]] {
        let taken = if keys == [&*same[1]] { 4 } else { 2 };
        for _ in 0..taken {
            assert!(Query::strict(&keys).passes(&nodes[0]).await);
        }
    }
    let group = [&*same[0], &*same[1], &*other];
    let left = |answer: GroupAnswer<'_>| -> Vec<u64> {
        answer.charges().iter().map(|charge| answer.reports(charge)[0].remaining).collect()
    };
    for _ in 0..3 {
        assert_eq!(Query::strict(&group).ask(&nodes[0], left).await.unwrap(), [2, 0, 2]);
        assert_eq!(Query::strict(&group).peek().ask(&nodes[0], left).await.unwrap(), [2, 0, 2]);
    }
}

#[tokio::test]
async fn reset_and_refund_reach_all_nodes() {
    let (_, nodes) = start_three_nodes().await;
    let key = key_with_home(&nodes, 1);
    let keys = [&*key];
    for _ in 0..4 {
        assert!(Query::strict(&keys).passes(&nodes[0]).await);
    }
    let refund = Query { verb: StoreVerb::Refund, ..Query::strict(&keys) };
    let taken = |answer: GroupAnswer<'_>| answer.charges()[0].taken.get();
    assert_eq!(refund.ask(&nodes[2], taken).await.unwrap(), 1);
    assert!(Query::strict(&keys).passes(&nodes[0]).await);
    assert!(!Query::strict(&keys).passes(&nodes[0]).await);
    Query { verb: StoreVerb::Reset, ..Query::strict(&keys) }.ask(&nodes[2], |_| ()).await.unwrap();
    assert!(Query::strict(&keys).passes(&nodes[0]).await);
}

#[tokio::test]
async fn rolling_restart_resets_nothing() {
    let (all, nodes) = start_three_nodes().await;
    let keys = [0, 1, 2].map(|home| key_with_home(&nodes, home));
    for key in &keys {
        for _ in 0..4 {
            assert!(Query::strict(&[key]).passes(&nodes[0]).await);
        }
    }
    let mut nodes = Vec::from(nodes);
    for own in all {
        let leaving = nodes.remove(0);
        leaving.leave().await;
        drop(leaving);
        for key in &keys {
            for node in &nodes {
                let is_refused = |answer: GroupAnswer<'_>| !answer.outcome().is_admitted();
                eventually_async("another node is home and refuses", async || {
                    Query::strict(&[key]).ask(node, is_refused).await.is_ok_and(|is_refused| {
                        assert!(is_refused, "{key} while {own} is stopped");
                        true
                    })
                })
                .await;
            }
        }
        nodes.push(start(own, &all));
        assert_eq!(nodes[2].wait_until_joined().await, Stage::Ready { complete: true });
        wait_until_nodes_agree(&nodes).await;
        for key in &keys {
            for node in &nodes {
                assert!(!Query::strict(&[key]).passes(node).await, "{key} after the restart of {own}");
            }
        }
    }
}

#[tokio::test]
async fn secret_is_replaced_by_rolling_restarts_that_reset_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    let (old, new) = ("a".repeat(32), "b".repeat(32));
    let steps = [
        format!("{old}\n"),
        format!("{old}\n{old}\n{new}\n"),
        format!("{old}\n{new}\n{old}\n"),
        format!("{old}\n{new}\n"),
    ];
    let all = addresses::<3>();
    let start =
        |own: SocketAddr| PeerStore::start(config(own, &all, &format!("?secret_file={}", file.display()))).unwrap();
    std::fs::write(&file, &steps[0]).unwrap();
    let mut nodes = Vec::from(all.map(start));
    wait_until_nodes_agree(&nodes).await;
    for _ in 0..4 {
        assert!(Query::strict(&["k"]).passes(&nodes[0]).await);
    }
    for step in &steps[1..] {
        std::fs::write(&file, step).unwrap();
        for own in all {
            nodes.remove(0).leave().await;
            nodes.push(start(own));
            assert_eq!(nodes[2].wait_until_joined().await, Stage::Ready { complete: true });
            wait_until_nodes_agree(&nodes).await;
        }
        for node in &nodes {
            assert!(!Query::strict(&["k"]).passes(node).await, "after {step}");
        }
    }
}

#[tokio::test]
async fn next_node_replaces_a_dead_home_and_keeps_all_usage() {
    let (_, nodes) = start_three_nodes().await;
    let key = key_with_home(&nodes, 2);
    let keys = [&*key];
    for _ in 0..3 {
        assert!(Query::strict(&keys).passes(&nodes[0]).await);
    }
    eventually_async("the others know", async || {
        nodes[..2]
            .iter()
            .all(|node| node.shared.table.used(node.shared.table.fingerprint(key.as_bytes()), &node.shared.now()) == 3)
    })
    .await;
    let [first, second, dead] = nodes;
    drop(dead);
    eventually_async("another node is home", async || Query::strict(&keys).peek().ask(&first, |_| ()).await.is_ok())
        .await;
    assert!(Query::strict(&keys).passes(&first).await);
    assert!(!Query::strict(&keys).passes(&second).await);
}

#[tokio::test]
async fn isolated_node_decides_eventual_rules_but_no_strict_rules() {
    let (_, nodes) = start_three_nodes().await;
    let [first, second, third] = nodes;
    drop((second, third));
    let key = ["k"];
    eventually_async("the node notices that it is isolated", async || !first.has_majority()).await;
    let error = Query::strict(&key).ask(&first, |_| ()).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable { why } if why.contains("majority")), "{error}");
    assert!(Query::eventual(&key).passes(&first).await);
}

#[tokio::test]
async fn wrong_secret_cluster_or_duplicate_name_is_refused_without_harm() {
    let folder = tempfile::tempdir().unwrap();
    let secret = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text.repeat(32)).unwrap();
        format!("?secret_file={}", path.display())
    };
    let (right, wrong) = (secret("right", "a"), secret("wrong", "b"));
    let all = addresses::<5>();
    let nodes = [0, 1].map(|index| PeerStore::start(config(all[index], &all[..2], &right)).unwrap());
    for node in &nodes {
        node.wait_until_joined().await;
    }
    wait_until_nodes_agree(&nodes).await;
    let start_refused = |index: usize, options: &str, name: &str| {
        let config = config(all[index], &all[..2], options).named(name).unwrap();
        PeerStore::start(config).unwrap()
    };
    let refused_nodes = [
        start_refused(2, &wrong, "wrong-secret"),
        start_refused(3, &format!("{right}&cluster=other"), "other-cluster"),
        start_refused(4, &right, &all[0].to_string()),
    ];
    // Each refused node redials for longer than the join timeout.
    eventually_async("all three nodes are refused", async || nodes[0].status().links.refused >= 6 * 3).await;
    for refused in &refused_nodes {
        // If the refused node became ready, it would be a majority of one.
        assert_eq!(refused.status().stage, Stage::Joining, "{:?}", refused.status());
    }
    assert_eq!(nodes.each_ref().map(|node| node.status().nodes), [2, 2]);
    let keys = ["k"];
    let mut admitted = 0;
    for turn in 0..6 {
        admitted += u64::from(Query::strict(&keys).passes(&nodes[turn % 2]).await);
    }
    assert_eq!(admitted, 4);
}

#[tokio::test]
async fn garbage_and_silent_peers_are_dropped_without_harm() {
    let (all, nodes) = start_three_nodes().await;
    let garbage: [&[u8]; 5] =
        [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff\xff", b"\x05\0\0\0\xf0abcd", &[0; 64]];
    for bytes in garbage {
        let mut stream = TcpStream::connect(all[0]).unwrap();
        stream.write_all(bytes).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let closed = tokio::task::spawn_blocking(move || stream.read_to_end(&mut Vec::new()).map(drop));
        // The connection may be closed with or without a reset.
        drop(closed.await.unwrap());
    }
    // A peer that sends nothing after its greeting is silent and gets dropped.
    let mut silent = TcpStream::connect(all[0]).unwrap();
    let mut greeting = Vec::new();
    let record = crate::greeting::NodeRecord {
        node: NodeId(u64::MAX),
        heartbeat: 1,
        state: crate::mesh::MemberState::Ready,
        address: addresses::<1>()[0],
        name: "silent".to_owned(),
        figures: crate::greeting::NodeFigures::default(),
    };
    crate::greeting::push_greeting(&mut greeting, nodes[0].shared.cluster, &record);
    crate::greeting::push_accepted(&mut greeting);
    silent.write_all(&greeting).unwrap();
    let is_linked = || nodes[0].shared.outboxes.load().contains_key(&NodeId(u64::MAX));
    eventually_async("it is linked", async || is_linked()).await;
    eventually_async("it is cut", async || !is_linked()).await;
    let keys = ["k"];
    let mut admitted = 0;
    for turn in 0..9 {
        admitted += u64::from(Query::strict(&keys).passes(&nodes[turn % 3]).await);
    }
    assert_eq!(admitted, 4);
}

/// The peer sends heartbeats, so it is not silent, but it never reads.
#[tokio::test]
async fn peer_that_never_reads_is_dropped_despite_its_heartbeats() {
    let (all, nodes) = start_three_nodes().await;
    let (node, state) = (NodeId(u64::MAX), crate::mesh::MemberState::Joining);
    let (address, name) = (addresses::<1>()[0], "deaf".to_owned());
    let figures = crate::greeting::NodeFigures::default();
    let record = crate::greeting::NodeRecord { node, heartbeat: 1, state, address, name, figures };
    let cluster = nodes[0].shared.cluster;
    let mut bytes = Vec::new();
    crate::greeting::push_greeting(&mut bytes, cluster, &record);
    crate::greeting::push_accepted(&mut bytes);
    let hello = wire::Hello { version: wire::VERSION, cluster, node, state, resume: None };
    wire::encode(&Frame::Hello(hello), &mut bytes);
    let mut deaf = TcpStream::connect(all[0]).unwrap();
    deaf.write_all(&bytes).unwrap();
    let outbox = || nodes[0].shared.outboxes.load().get(&node).cloned();
    eventually_async("it is linked", async || outbox().is_some()).await;
    let beats = std::thread::spawn(move || {
        let mut beat = Vec::new();
        wire::encode(&Frame::Ack { seq: 0, state }, &mut beat);
        while deaf.write_all(&beat).is_ok() {
            std::thread::park_timeout(Duration::from_millis(100));
        }
    });
    let start = Instant::now();
    // Queues far more bytes than the socket buffers hold.
    assert!(outbox().unwrap().push(|to| to.resize(to.len() + (24 << 20), 0)));
    let mut admitted = 0;
    for turn in 0..9 {
        admitted += u64::from(Query::strict(&["k"]).passes(&nodes[turn % 3]).await);
    }
    assert_eq!(admitted, 4);
    eventually_async("it is cut", async || outbox().is_none()).await;
    assert!(start.elapsed() >= Duration::from_secs(4), "the peer was dropped for silence");
    beats.join().unwrap();
}

#[tokio::test]
async fn without_a_secret_only_loopback_is_dialled() {
    let seed = TcpListener::bind("127.0.0.1:0").unwrap();
    seed.set_nonblocking(true).unwrap();
    let [own] = addresses::<1>();
    let mut config = config(own, &[own], "");
    // Linux connects 0.0.0.0 to this machine, so a dial would succeed; but a name may resolve to any such address.
    config.seeds = vec![("0.0.0.0".to_owned(), seed.local_addr().unwrap().port())];
    let node = PeerStore::start(config).unwrap();
    node.wait_until_joined().await;
    assert_eq!(seed.accept().map(drop).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}
