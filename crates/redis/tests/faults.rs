//! The fault contract of `docs/faults.md`, tested with real servers, real faults, and histories. This file tests strict
//! rules; `faults/shared.rs` tests the other consistencies.
//!
//! Nodes are stores without an engine. So a request without an answer is refused, as with `on_fault: closed`, and no
//! fallback admits requests. Most tests check that the history of a key stays within `B + r·T + E`. If the fault causes
//! an excess, they also check that the fault took effect: the history exceeds `B + r·T`.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

mod shared;

use crate::support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use support::{
    LONG_DEADLINE, OwnedCharge, StoreClock, check, name_of, on_redis_and_valkey, run_groups, store, wait_until_up,
    with_manual_clock,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tollgate_core::{FixedWindow, Limit, Nanos, TokenBucket};
use tollgate_engine::Store;
use tollgate_engine::store::{Consistency, StoreVerb};
use tollgate_redis::{Config, RedisStore};
use tollgate_testkit::history::{Bound, Checker, ObservedRequest, excess_observed};
use tollgate_testkit::servers::{Cluster, Kind, PRIMARY_NAME, Proxy, REPLICA_SIDE_ADDRESS, Reply, Sentinels, Server};

/// Burst `B` of the limit that all keys have. The rate `r` is 10 per second.
const BURST: u64 = 40;

fn limit() -> Limit {
    TokenBucket::new("10/s".parse().unwrap(), BURST).unwrap().into()
}

/// Returns the bound with an excess.
fn bound_with_excess(excess: u64) -> Bound {
    Bound::from_rate("10/s".parse().unwrap(), BURST + excess)
}

/// Asserts that a history stays within the bound with this excess.
#[track_caller]
fn assert_within(history: &[ObservedRequest], excess: u64) {
    assert_eq!(
        excess_observed(&bound_with_excess(excess), history),
        None,
        "admitted more than the excess E = {excess}"
    );
}

/// Asserts that more was admitted than is possible without the fault.
#[track_caller]
fn assert_exceeded(history: &[ObservedRequest]) {
    assert!(
        excess_observed(&bound_with_excess(0), history).is_some(),
        "the fault had no effect: {} admitted",
        history.len()
    );
}

async fn connect(url: &str, deadline: Duration) -> Arc<RedisStore> {
    let store = RedisStore::connect(Config::from_url(url).unwrap().deadline(deadline)).await;
    wait_until_up(&store).await;
    Arc::new(store)
}

/// Callers that request the same keys from several nodes until the load ends.
struct Load {
    counts: Arc<Counts>,
    ended: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<ObservedRequest>>>,
}

#[derive(Debug, Default)]
struct Counts {
    admitted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

impl Load {
    /// Starts two callers per node. Each request charges all keys, as one group.
    fn start(nodes: &[Arc<RedisStore>], keys: &[&str], epoch: Instant) -> Self {
        Self::with_consistency(Consistency::Strict, nodes, keys, epoch)
    }

    fn with_consistency(consistency: Consistency, nodes: &[Arc<RedisStore>], keys: &[&str], epoch: Instant) -> Self {
        let (counts, ended) = (Arc::<Counts>::default(), Arc::<AtomicBool>::default());
        let caller = |node: &Arc<RedisStore>| {
            let charge = |key: &&str| OwnedCharge { consistency, ..OwnedCharge::new(key, limit(), 1) };
            let group: Vec<OwnedCharge> = keys.iter().map(charge).collect();
            tokio::spawn(run_caller(node.clone(), group, epoch, counts.clone(), ended.clone()))
        };
        let callers = nodes.iter().flat_map(|node| [caller(node), caller(node)]).collect();
        Self { counts, ended, callers }
    }

    /// Waits until the counter `of` has grown by `more`.
    async fn wait_for_more(&self, what: &str, of: impl Fn(&Counts) -> &AtomicU64, more: u64) {
        let counted = || of(&self.counts).load(Ordering::Relaxed);
        let end = counted() + more;
        let waiting = async {
            while counted() < end {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(30), waiting).await;
        assert!(waited.is_ok(), "fewer than {more} further requests {what}: {:?}", self.counts);
    }

    /// Waits until the bucket is empty.
    async fn wait_until_refused(&self) {
        self.wait_for_more("refused", |counts| &counts.refused, 20).await;
    }

    /// Waits until the bucket was refilled and is empty again.
    async fn wait_until_taken_again(&self) {
        self.wait_for_more("admitted", |counts| &counts.admitted, BURST / 2).await;
        self.wait_until_refused().await;
    }

    async fn wait_until_failed(&self) {
        self.wait_for_more("failed", |counts| &counts.failed, 1).await;
    }

    /// Stops the callers and returns the admitted requests.
    async fn end(self) -> Vec<ObservedRequest> {
        self.ended.store(true, Ordering::Relaxed);
        let mut history = Vec::new();
        for caller in self.callers {
            history.extend(caller.await.unwrap());
        }
        history
    }
}

async fn run_caller(
    node: Arc<RedisStore>,
    group: Vec<OwnedCharge>,
    epoch: Instant,
    counts: Arc<Counts>,
    ended: Arc<AtomicBool>,
) -> Vec<ObservedRequest> {
    let groups = [(StoreVerb::Check, group)];
    let mut history = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let asked = epoch.elapsed().as_nanos() as u64;
        let answer = run_groups(&*node, &groups).await.remove(0);
        let answered = epoch.elapsed().as_nanos() as u64;
        let count = match answer {
            Ok(charges) if charges.iter().all(|charge| charge.outcome.is_admitted()) => {
                history.push(ObservedRequest { asked, answered, cost: 1 });
                &counts.admitted
            }
            Ok(_) => &counts.refused,
            Err(_) => &counts.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    history
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

async fn two_nodes(server: &Server) -> [Arc<RedisStore>; 2] {
    [Arc::new(store(server).await), Arc::new(store(server).await)]
}

#[test]
fn flushed_store_admits_at_most_one_burst_more() {
    on_redis_and_valkey(async |server| {
        let nodes = two_nodes(&server).await;
        let load = Load::start(&nodes, &["k"], Instant::now());
        load.wait_until_refused().await;
        server.command(&["FLUSHALL"]);
        load.wait_until_taken_again().await;
        let history = load.end().await;
        assert_within(&history, BURST);
        assert_exceeded(&history);
    });
}

#[test]
fn store_that_was_restarted_empty_admits_at_most_one_burst_more() {
    on_redis_and_valkey(async |mut server| {
        let nodes = two_nodes(&server).await;
        let load = Load::start(&nodes, &["k"], Instant::now());
        load.wait_until_refused().await;
        server.kill();
        load.wait_until_failed().await;
        server.restart();
        load.wait_until_taken_again().await;
        let history = load.end().await;
        assert_within(&history, BURST);
        assert_exceeded(&history);
    });
}

/// Fills the memory of a server until it evicts `key`. The filling values have no expiry, so they are not evicted.
fn fill_until_evicted(server: &Server, key: &str) {
    let mut link = server.connect();
    let info = String::from_utf8(link.command(&["INFO", "memory"]).bytes()).unwrap();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let most = used.trim().parse::<u64>().unwrap() + (1 << 20);
    link.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-random"]);
    link.command(&["CONFIG", "SET", "maxmemory", &most.to_string()]);
    let filling = "x".repeat(1_000);
    for number in 0..10_000 {
        link.command(&["SET", &format!("filling{number}"), &filling]);
        if link.command(&["EXISTS", key]) == Reply::Number(0) {
            link.command(&["CONFIG", "SET", "maxmemory", "0"]);
            return;
        }
    }
    panic!("{key} was not evicted");
}

#[test]
fn evicted_key_admits_at_most_one_burst_more() {
    evict_key(Consistency::Strict, 2, BURST);
}

fn evict_key(consistency: Consistency, nodes: usize, excess: u64) {
    on_redis_and_valkey(async |server| {
        let (nodes, epoch) = (&two_nodes(&server).await[..nodes], Instant::now());
        let load = Load::with_consistency(consistency, nodes, &["k"], epoch);
        load.wait_until_refused().await;
        let mut history = load.end().await;
        nodes[0].flush().await;
        // Counters have an expiry, so a volatile-* policy can evict them.
        fill_until_evicted(&server, &name_of("k"));
        let load = Load::with_consistency(consistency, nodes, &["k"], epoch);
        load.wait_until_taken_again().await;
        history.extend(load.end().await);
        assert_within(&history, excess);
        assert_exceeded(&history);
    });
}

/// Cuts off one of two nodes from the store for a while. During that time, this node can admit only from its leases.
async fn cut_off_one_node(consistency: Consistency, server: &Server) {
    let proxy = Proxy::to(server.port());
    let cut_off = connect(&format!("redis://127.0.0.1:{}", proxy.port()), Duration::from_millis(200)).await;
    let (other, epoch) = (connect(&server.url(), LONG_DEADLINE).await, Instant::now());
    let near = Load::with_consistency(consistency, &[other], &["k"], epoch);
    let far = Load::with_consistency(consistency, &[cut_off], &["k"], epoch);
    near.wait_until_refused().await;
    proxy.stall();
    far.wait_until_failed().await;
    near.wait_for_more("admitted", |counts| &counts.admitted, 10).await;
    proxy.clear_faults();
    far.wait_for_more("admitted", |counts| &counts.admitted, 5).await;
    let mut history = near.end().await;
    history.extend(far.end().await);
    assert_within(&history, 0);
}

#[test]
fn node_that_is_cut_off_from_the_store_admits_nothing_more() {
    on_redis_and_valkey(async |server| cut_off_one_node(Consistency::Strict, &server).await);
}

/// Stops the replication from a server: its replicas are disconnected and cannot reconnect.
fn stop_replication(primary: &Server) {
    let mut link = primary.connect();
    link.command(&["CONFIG", "SET", "requirepass", "locked"]);
    assert!(link.command(&["CLIENT", "KILL", "TYPE", "replica"]).number() > 0, "it has replicas");
}

/// Requests two keys of a server while replication is stopped, and then kills the server. The first key is used up.
/// Requests for the second key use `?wait=1`, so they fail. If the new primary has a replica of its own
/// (`keeps_a_replica`), `?wait=1` works again.
async fn fail_over(consistency: Consistency, url: &str, keys: [&str; 2], primary: &mut Server, keeps_a_replica: bool) {
    let (plain, waiting) = (connect(url, LONG_DEADLINE).await, connect(&format!("{url}?wait=1"), LONG_DEADLINE).await);
    let epoch = Instant::now();
    assert_eq!(check(&*plain, keys[0], limit()).await, Ok(true));
    assert_eq!(check(&*waiting, keys[1], limit()).await, Ok(true), "a replica acknowledges the charge");
    stop_replication(primary);
    let load = |node, keys: &[&str]| Load::with_consistency(consistency, &[node], keys, epoch);
    let (load, careful) = (load(plain, &keys[..1]), load(waiting, &keys[1..]));
    load.wait_until_refused().await;
    careful.wait_until_failed().await;
    primary.kill();
    load.wait_until_failed().await;
    load.wait_until_taken_again().await;
    if keeps_a_replica {
        careful.wait_until_refused().await;
    }
    let history = load.end().await;
    assert_within(&history, BURST);
    assert_exceeded(&history);
    // Unacknowledged charges were not admitted, so no admitted charge is lost with the primary.
    assert_within(&careful.end().await, 0);
}

#[test]
fn failover_by_sentinel_forgets_at_most_one_burst_and_nothing_that_replicas_acknowledged() {
    block_on(async {
        let mut sentinels = Sentinels::start(Kind::Redis, "");
        let url = format!("redis+sentinel://{}/{PRIMARY_NAME}", sentinels.addresses());
        fail_over(Consistency::Strict, &url, ["plain", "waiting"], &mut sentinels.servers[0], true).await;
        assert_ne!(sentinels.wait_for_primary(), 0);
    });
}

#[test]
fn failover_in_a_cluster_forgets_at_most_one_burst_and_nothing_that_replicas_acknowledged() {
    block_on(async {
        fail_over_in_cluster(Consistency::Strict, Cluster::start(Kind::Valkey)).await;
    });
}

async fn fail_over_in_cluster(consistency: Consistency, mut cluster: Cluster) {
    let (url, keys) = (cluster.url(), ["plain", "waiting0", "waiting1", "waiting2", "waiting3", "waiting4"]);
    let store = connect(&url, LONG_DEADLINE).await;
    let primary = primary_of_key(&cluster, &store, keys[0]).await;
    let mut second = None;
    for key in &keys[1..] {
        if primary_of_key(&cluster, &store, key).await == primary {
            second = Some(*key);
        }
    }
    let keys = [keys[0], second.expect("no key has the same primary")];
    fail_over(consistency, &url, keys, &mut cluster.servers[primary], false).await;
}

/// Returns the index of the server that holds a key.
async fn primary_of_key(cluster: &Cluster, store: &RedisStore, key: &str) -> usize {
    assert_eq!(check(store, key, limit()).await, Ok(true));
    let holds = |server: &Server| !server.command(&["KEYS", &format!("*}}{key}")]).list().is_empty();
    let at = (0..3).find(|at| holds(&cluster.servers[*at]));
    at.unwrap_or_else(|| panic!("no primary has {key}"))
}

/// Returns whether a server reports that it is a primary. While its role changes, a server closes its connections.
fn is_primary(server: &Server) -> bool {
    let Ok(reply) = server.connect().try_command(&["INFO", "replication"]) else { return false };
    String::from_utf8_lossy(&reply.bytes()).lines().any(|line| line.trim_end() == "role:master")
}

/// Returns whether a node uses this server.
async fn is_used_by(node: &RedisStore, server: &Server, probe: &str) -> bool {
    let exists = || server.connect().try_command(&["EXISTS", &name_of(probe)]);
    check(node, probe, limit()).await.is_ok() && exists().is_ok_and(|reply| reply == Reply::Number(1))
}

/// Only the replicas and sentinels are cut off from the primary. The sentinels elect a new primary, while a node
/// continues to use the old primary.
#[test]
fn replaced_primary_that_keeps_serving_admits_at_most_one_additional_bucket() {
    replace_primary(Consistency::Strict);
}

fn replace_primary(consistency: Consistency) {
    block_on(async {
        let (sentinels, proxy) = Sentinels::start_behind_proxy(Kind::Valkey);
        let url = format!("redis+sentinel://{}/{PRIMARY_NAME}", sentinels.addresses());
        let (near, epoch) = (connect(&url, LONG_DEADLINE).await, Instant::now());
        let near_load = Load::with_consistency(consistency, std::slice::from_ref(&near), &["k"], epoch);
        near_load.wait_until_refused().await;
        proxy.cut_off(REPLICA_SIDE_ADDRESS);
        let cut = epoch.elapsed();

        let replaced = async {
            let new = loop {
                match (1..3).find(|at| is_primary(&sentinels.servers[*at])) {
                    Some(new) => break new,
                    None => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            };
            for number in 0.. {
                let far = connect(&url, LONG_DEADLINE).await;
                if is_used_by(&far, &sentinels.servers[new], &format!("far{number}")).await {
                    return (new, far);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            unreachable!("the loop ends only by `return`")
        };
        let (new, far) = tokio::time::timeout(Duration::from_secs(30), replaced).await.expect("a replica takes over");
        let far_load = Load::with_consistency(consistency, &[far], &["k"], epoch);
        far_load.wait_until_refused().await;
        near_load.wait_until_refused().await;
        assert_eq!(near_load.counts.failed.load(Ordering::Relaxed), 0, "the old primary keeps serving");
        let mut history = near_load.end().await;
        history.extend(far_load.end().await);
        let length = epoch.elapsed() - cut;
        assert_within(&history, BURST + (length.as_nanos() as u64).div_ceil(100_000_000));
        assert_exceeded(&history);

        // With the recommended settings, the old primary refuses writes, and the node finds the new primary.
        let old = &sentinels.servers[0];
        old.command(&["CONFIG", "SET", "min-replicas-max-lag", "1"]);
        old.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        let followed = async {
            for number in 0.. {
                if is_used_by(&near, &sentinels.servers[new], &format!("near{number}")).await {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let followed = tokio::time::timeout(Duration::from_secs(30), followed).await;
        assert!(followed.is_ok(), "{:?}", near.health());
        proxy.clear_faults();
    });
}

/// The other servers of a cluster cannot reach a primary, so they replace it. The primary keeps serving, because its
/// own `cluster-node-timeout` is longer, and a node keeps using it.
#[test]
fn replaced_cluster_primary_that_keeps_serving_admits_at_most_one_additional_bucket() {
    block_on(replace_primary_of_cluster(Consistency::Strict));
}

async fn replace_primary_of_cluster(consistency: Consistency) {
    let (cluster, proxies) = Cluster::start_behind_proxies(Kind::Redis);
    let (near, epoch) = (connect(&cluster.url(), LONG_DEADLINE).await, Instant::now());
    let mut keys = (0..100).map(|number| format!("k{number}"));
    let key = loop {
        let key = keys.next().expect("the first primary has a third of the keys");
        if primary_of_key(&cluster, &near, &key).await == 0 {
            break key;
        }
    };
    let old = &cluster.servers[0];
    assert_eq!(old.command(&["CONFIG", "SET", "cluster-node-timeout", "60000"]), Reply::Status("OK".to_owned()));
    let near_load = Load::with_consistency(consistency, std::slice::from_ref(&near), &[&key], epoch);
    near_load.wait_until_refused().await;
    proxies.isolate_first();
    let cut = epoch.elapsed();
    let replaced = async {
        let new = loop {
            match (3..6).find(|at| is_primary(&cluster.servers[*at])) {
                Some(new) => break new,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        // This node gets the slot map from a server on the other side of the partition.
        let url = format!("redis+cluster://127.0.0.1:{}", cluster.servers[1].port());
        loop {
            let far = connect(&url, LONG_DEADLINE).await;
            let asked = executed_scripts(&cluster.servers[new]);
            if check(&*far, &key, limit()).await.is_ok() && executed_scripts(&cluster.servers[new]) > asked {
                return (new, far);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let (new, far) = tokio::time::timeout(Duration::from_secs(30), replaced).await.expect("the replica takes over");
    let far_load = Load::with_consistency(consistency, &[far], &[&key], epoch);
    far_load.wait_until_refused().await;
    near_load.wait_until_refused().await;
    assert_eq!(near_load.counts.failed.load(Ordering::Relaxed), 0, "the old primary keeps serving");
    // Both primaries refill the key, so the excess grows while both primaries serve.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut history = near_load.end().await;
    history.extend(far_load.end().await);
    let length = epoch.elapsed() - cut;
    assert_within(&history, BURST + (length.as_nanos() as u64).div_ceil(100_000_000));
    assert_exceeded(&history);

    // With the same timeout as the other servers, the old primary refuses requests, and the node finds the new primary.
    old.command(&["CONFIG", "SET", "cluster-node-timeout", "1000"]);
    let followed = async {
        loop {
            let asked = executed_scripts(&cluster.servers[new]);
            if check(&*near, &key, limit()).await.is_ok() && executed_scripts(&cluster.servers[new]) > asked {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let followed = tokio::time::timeout(Duration::from_secs(30), followed).await;
    assert!(followed.is_ok(), "{:?}", near.health());
    proxies.reconnect();
}

/// Returns the number of `EVALSHA` calls that a server has executed, or 0 if the server does not answer.
fn executed_scripts(server: &Server) -> u64 {
    let Ok(reply) = server.connect().try_command(&["INFO", "commandstats"]) else { return 0 };
    let text = reply.bytes();
    let text = String::from_utf8_lossy(&text);
    let calls = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Moves all keys of a slot to another primary.
fn move_slot(cluster: &Cluster, slot: u16, target: usize) {
    let (source, number) = (cluster.primary_of(slot), slot.to_string());
    let (from, to, ok) = (&cluster.servers[source], &cluster.servers[target], Reply::Status("OK".to_owned()));
    assert_eq!(to.command(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &cluster.server_id(source)]), ok);
    assert_eq!(from.command(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &cluster.server_id(target)]), ok);
    let port = to.port().to_string();
    loop {
        let names = from.command(&["CLUSTER", "GETKEYSINSLOT", &number, "1"]).list();
        let Some(name) = names.into_iter().next() else { break };
        let name = String::from_utf8(name.bytes()).unwrap();
        // The reply is `NOKEY` if the key has expired.
        let moved = from.command(&["MIGRATE", "127.0.0.1", &port, &name, "0", "5000"]);
        assert!(matches!(&moved, Reply::Status(text) if text == "OK" || text == "NOKEY"), "{moved:?}");
    }
    for server in [to, from] {
        assert_eq!(server.command(&["CLUSTER", "SETSLOT", &number, "NODE", &cluster.server_id(target)]), ok);
    }
}

#[test]
fn moved_slots_and_a_failover_on_request_admit_nothing_more() {
    const DEADLINE: Duration = Duration::from_millis(500);
    block_on(async {
        let cluster = Cluster::start(Kind::Redis);
        let (one, two) = (connect(&cluster.url(), DEADLINE).await, connect(&cluster.url(), DEADLINE).await);
        // Finds a key on each of the first two primaries.
        let mut at: HashMap<usize, String> = HashMap::new();
        for number in 0..40 {
            let key = format!("m{number}");
            at.entry(primary_of_key(&cluster, &one, &key).await).or_insert(key);
        }
        let (alone, epoch, nodes) = (at[&0].clone(), Instant::now(), [one, two]);
        let load = Load::start(&nodes, &[&alone], epoch);
        let both = [format!("{alone}:both"), at[&1].clone()];
        let group = Load::start(&nodes, &[&both[0], &both[1]], epoch);
        load.wait_until_refused().await;

        let slot_of = |key: &str| {
            let name = cluster.servers[0].command(&["KEYS", &format!("*}}{key}")]).list().remove(0);
            cluster.servers[0].command(&["CLUSTER", "KEYSLOT", &String::from_utf8(name.bytes()).unwrap()]).number()
                as u16
        };
        let slot = slot_of(&alone);
        move_slot(&cluster, slot, 2);
        load.wait_for_more("admitted", |counts| &counts.admitted, 5).await;
        assert_eq!(cluster.primary_of(slot), 2, "the slot did not move under load");

        // A replica takes over in a coordinated failover.
        let replica = (3..6).find(|at| {
            let text = cluster.servers[*at].command(&["INFO", "replication"]).bytes();
            String::from_utf8_lossy(&text).contains(&format!("master_port:{}", cluster.servers[2].port()))
        });
        let replica = replica.expect("the primary has a replica");
        assert_eq!(cluster.servers[replica].command(&["CLUSTER", "FAILOVER"]), Reply::Status("OK".to_owned()));
        let promoted = async {
            while cluster.primary_of(slot) != replica {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), promoted).await.expect("the replica takes over");
        load.wait_for_more("admitted", |counts| &counts.admitted, 5).await;
        group.wait_for_more("admitted", |counts| &counts.admitted, 5).await;
        assert_within(&load.end().await, 0);
        // A group holds tokens for at most two deadlines, during which 10 tokens refill.
        assert_within(&group.end().await, 10);
    });
}

/// Takes until the store refuses. Returns the number of tokens taken.
async fn take_until_refused(store: &impl Store, key: &str, limit: Limit) -> u64 {
    let mut taken = 0;
    while check(store, key, limit).await.unwrap() {
        taken += 1;
    }
    taken
}

/// Uses the manual clock.
#[test]
fn clock_step_of_the_store_admits_at_most_what_it_refills() {
    const START: u64 = 1_790_000_010_000_000;
    const SECOND: u64 = 1_000_000;
    block_on(async {
        for kind in Kind::ALL {
            let (_server, store, mut store_clock): (Server, RedisStore, StoreClock) = with_manual_clock(kind).await;
            // Tokens taken, by true time in nanoseconds.
            let mut history = Vec::new();
            // True time and the store's clock, in seconds. The clock jumps two seconds forward, and later back. Then
            // nothing is admitted until the taken tokens have refilled by that clock.
            for (at, clock) in [(0, 0), (0, 2), (1, 3), (2, 4), (3, 0), (4, 1), (8, 5)] {
                store_clock.set(START + clock * SECOND);
                history.push((at * 1_000_000_000, take_until_refused(&store, "bucket", limit()).await));
            }
            let taken: Vec<u64> = history.iter().map(|(_, taken)| *taken).collect();
            assert_eq!(
                taken,
                [40, 20, 10, 10, 0, 0, 10],
                "{kind:?}: a step forward refills tokens, and a step back admits nothing"
            );
            assert_eq!(Checker::new(&bound_with_excess(20)).admit_all(&history), Ok(()));
            assert!(Checker::new(&bound_with_excess(19)).admit_all(&history).is_err(), "the step admits r·P more");

            let window: Limit = FixedWindow::new(30, Nanos::from_secs(60)).unwrap().into();
            store_clock.set(START + 1_000 * SECOND);
            let before = take_until_refused(&store, "window", window).await;
            store_clock.set(START + 1_061 * SECOND);
            assert_eq!(
                (before, take_until_refused(&store, "window", window).await),
                (30, 30),
                "{kind:?}: a new window admits at most its limit"
            );
        }
    });
}
