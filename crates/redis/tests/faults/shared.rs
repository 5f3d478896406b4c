//! The fault contract for rules with `consistency: leased` and `eventual`.
//!
//! Under `eventual`, the excess without a fault is (N − 1)·(B + r·δ). So most tests of `eventual` have only one node,
//! which exceeds the limit only because of the fault.

use super::*;

use support::bucket;
use tollgate_engine::store::SyncEvery;

const LEASED_CONSISTENCY: Consistency = Consistency::Leased;
const EVENTUAL_CONSISTENCY: Consistency = Consistency::Eventual(SyncEvery::DEFAULT);

/// Excess of a node whose estimate of the store's clock is wrong by half a second.
const CLOCK_ESTIMATE_EXCESS: u64 = 5;

async fn take(node: &RedisStore, consistency: Consistency, key: &str) -> bool {
    let charge = OwnedCharge { consistency, ..OwnedCharge::new(key, limit(), 1) };
    run_groups(node, &[(StoreVerb::Check, vec![charge])]).await.remove(0).unwrap()[0].outcome.is_admitted()
}

#[test]
fn flushed_store_admits_at_most_one_burst_more_from_leases() {
    on_redis_and_valkey(async |server| {
        let nodes = two_nodes(&server).await;
        let load = Load::with_consistency(LEASED_CONSISTENCY, &nodes, &["k"], Instant::now());
        load.wait_until_refused().await;
        server.command(&["FLUSHALL"]);
        load.wait_until_taken_again().await;
        let history = load.end().await;
        assert_within(&history, BURST);
        assert_exceeded(&history);
    });
}

#[test]
fn flushed_store_admits_at_most_one_burst_more_by_views() {
    on_redis_and_valkey(async |server| {
        let nodes = [Arc::new(store(&server).await)];
        let load = Load::with_consistency(EVENTUAL_CONSISTENCY, &nodes, &["k"], Instant::now());
        load.wait_until_refused().await;
        nodes[0].flush().await;
        server.command(&["FLUSHALL"]);
        load.wait_until_taken_again().await;
        let history = load.end().await;
        assert_within(&history, BURST + CLOCK_ESTIMATE_EXCESS);
        assert_exceeded(&history);
    });
}

#[test]
fn evicted_key_admits_at_most_one_burst_more_from_leases() {
    evict_key(LEASED_CONSISTENCY, 2, BURST);
}

#[test]
fn evicted_key_admits_at_most_one_burst_more_by_views() {
    evict_key(EVENTUAL_CONSISTENCY, 1, BURST + CLOCK_ESTIMATE_EXCESS);
}

/// The view decides until the store recovers. Then the view adopts the empty state of the store.
#[test]
fn store_that_was_restarted_empty_admits_at_most_one_burst_more_by_views() {
    on_redis_and_valkey(async |mut server| {
        let nodes = [Arc::new(store(&server).await)];
        let load = Load::with_consistency(EVENTUAL_CONSISTENCY, &nodes, &["k"], Instant::now());
        load.wait_until_refused().await;
        nodes[0].flush().await;
        server.kill();
        support::wait_until_down(&nodes[0]).await;
        server.restart();
        wait_until_up(&nodes[0]).await;
        load.wait_until_taken_again().await;
        let history = load.end().await;
        assert_within(&history, BURST + CLOCK_ESTIMATE_EXCESS);
        assert_exceeded(&history);
    });
}

#[test]
fn node_with_leases_that_is_cut_off_from_the_store_admits_nothing_more() {
    on_redis_and_valkey(async |server| cut_off_one_node(LEASED_CONSISTENCY, &server).await);
}

/// Both nodes decide from their views and admit the full rate, although only one of them has a connection.
#[test]
fn node_with_views_that_is_cut_off_from_the_store_admits_a_burst_and_the_rate() {
    on_redis_and_valkey(async |server| {
        let proxy = Proxy::to(server.port());
        let cut_off = connect(&format!("redis://127.0.0.1:{}", proxy.port()), Duration::from_millis(200)).await;
        let (nodes, epoch) = ([cut_off, connect(&server.url(), LONG_DEADLINE).await], Instant::now());
        let load = Load::with_consistency(EVENTUAL_CONSISTENCY, &nodes, &["k"], epoch);
        load.wait_until_refused().await;
        proxy.stall();
        load.wait_for_more("admitted", |counts| &counts.admitted, 3 * BURST).await;
        proxy.clear_faults();
        // The time is measured from the beginning, because the excess includes the overshoot without a fault.
        let length = epoch.elapsed().as_nanos() as u64;
        wait_until_up(&nodes[0]).await;
        nodes[0].flush().await;
        load.wait_until_refused().await;
        let history = load.end().await;
        assert_within(&history, BURST + length.div_ceil(100_000_000) + 2 * CLOCK_ESTIMATE_EXCESS);
        assert_exceeded(&history);
    });
}

/// Answers arrive after the deadline. The tokens granted in late answers are not used. These tokens count as spent, and
/// refill after the leases have expired.
#[test]
fn lost_answers_admit_nothing_more_and_their_grants_are_restored() {
    on_redis_and_valkey(async |server| {
        let proxy = Proxy::to(server.port());
        let late = connect(&format!("redis://127.0.0.1:{}", proxy.port()), Duration::from_millis(100)).await;
        let observer = connect(&server.url(), LONG_DEADLINE).await;
        let load = Load::with_consistency(LEASED_CONSISTENCY, &[late], &["k"], Instant::now());
        load.wait_for_more("admitted", |counts| &counts.admitted, 5).await;
        proxy.delay_by(Duration::from_millis(150));
        load.wait_for_more("failed", |counts| &counts.failed, 2).await;
        proxy.clear_faults();
        load.wait_for_more("admitted", |counts| &counts.admitted, 5).await;
        load.wait_until_refused().await;
        assert_within(&load.end().await, 0);
        let cleared = Instant::now();
        // The bucket refills in 4 s, except for the leased tokens.
        while support::remaining(&*observer, "k", limit()).await < BURST {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(cleared.elapsed() < Duration::from_secs(20), "the leased tokens were not restored");
        }
    });
}

/// While the store is down, leases are spent, and then requests fail. The store restarts empty.
#[test]
fn killed_store_admits_leased_tokens_and_one_burst_after_its_restart() {
    on_redis_and_valkey(async |mut server| {
        let nodes = two_nodes(&server).await;
        let load = Load::with_consistency(LEASED_CONSISTENCY, &nodes, &["k"], Instant::now());
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

/// A stopped store loses nothing, and the nodes' leases were granted before the stop. So the limit is not exceeded.
#[test]
fn stopped_store_admits_nothing_more_than_was_leased() {
    on_redis_and_valkey(async |server| {
        let nodes = [connect(&server.url(), Duration::from_millis(200)).await];
        let load = Load::with_consistency(LEASED_CONSISTENCY, &nodes, &["k"], Instant::now());
        load.wait_for_more("admitted", |counts| &counts.admitted, 10).await;
        server.pause();
        load.wait_until_failed().await;
        server.resume();
        load.wait_for_more("admitted", |counts| &counts.admitted, 10).await;
        load.wait_until_refused().await;
        assert_within(&load.end().await, 0);
    });
}

/// While the store is stopped for a time P, both nodes decide from their views, and together admit twice the rate.
#[test]
fn stopped_store_admits_a_burst_and_the_rate_for_each_further_node() {
    block_on(async {
        let server = Server::start(Kind::Redis);
        let nodes =
            [connect(&server.url(), Duration::from_millis(200)).await, connect(&server.url(), LONG_DEADLINE).await];
        let epoch = Instant::now();
        let load = Load::with_consistency(EVENTUAL_CONSISTENCY, &nodes, &["k"], epoch);
        load.wait_until_refused().await;
        server.pause();
        load.wait_for_more("admitted", |counts| &counts.admitted, 3 * BURST).await;
        server.resume();
        // The time is measured from the beginning, because the excess includes the overshoot without a fault.
        let length = epoch.elapsed().as_nanos() as u64;
        load.wait_until_refused().await;
        let history = load.end().await;
        assert_within(&history, BURST + length.div_ceil(100_000_000) + 2 * CLOCK_ESTIMATE_EXCESS);
        assert_exceeded(&history);
    });
}

#[test]
fn failover_by_sentinel_forgets_at_most_one_burst_of_leases_and_nothing_that_replicas_acknowledged() {
    block_on(async {
        let mut sentinels = Sentinels::start(Kind::Valkey, "");
        let url = format!("redis+sentinel://{}/{PRIMARY_NAME}", sentinels.addresses());
        fail_over(LEASED_CONSISTENCY, &url, ["plain", "waiting"], &mut sentinels.servers[0], true).await;
        assert_ne!(sentinels.wait_for_primary(), 0);
    });
}

#[test]
fn failover_by_sentinel_forgets_at_most_one_burst_of_views() {
    block_on(async {
        let mut sentinels = Sentinels::start(Kind::Redis, "");
        let url = format!("redis+sentinel://{}/{PRIMARY_NAME}", sentinels.addresses());
        fail_over_views(&connect(&url, LONG_DEADLINE).await, &mut sentinels.servers[0]).await;
        assert_ne!(sentinels.wait_for_primary(), 0);
    });
}

#[test]
fn failover_in_a_cluster_forgets_at_most_one_burst_of_views() {
    block_on(async {
        let mut cluster = Cluster::start(Kind::Redis);
        let node = connect(&cluster.url(), LONG_DEADLINE).await;
        let primary = primary_of_key(&cluster, &node, "k").await;
        fail_over_views(&node, &mut cluster.servers[primary]).await;
    });
}

#[test]
fn failover_in_a_cluster_forgets_at_most_one_burst_of_leases_and_nothing_that_replicas_acknowledged() {
    block_on(async {
        fail_over_in_cluster(LEASED_CONSISTENCY, Cluster::start(Kind::Redis)).await;
    });
}

/// Uses up a key while replication is stopped, then kills the primary.
async fn fail_over_views(node: &Arc<RedisStore>, primary: &mut Server) {
    assert!(take(node, EVENTUAL_CONSISTENCY, "k").await);
    node.flush().await;
    stop_replication(primary);
    let load = Load::with_consistency(EVENTUAL_CONSISTENCY, std::slice::from_ref(node), &["k"], Instant::now());
    load.wait_until_refused().await;
    node.flush().await;
    primary.kill();
    // The view decides until the new primary answers. The new primary does not have the charges.
    load.wait_until_taken_again().await;
    wait_until_up(node).await;
    load.wait_until_taken_again().await;
    assert_eq!(load.counts.failed.load(Ordering::Relaxed), 0, "the view decides all requests");
    let history = load.end().await;
    assert_within(&history, BURST + CLOCK_ESTIMATE_EXCESS);
    assert_exceeded(&history);
}

#[test]
fn replaced_primary_that_keeps_serving_grants_at_most_one_additional_bucket() {
    replace_primary(LEASED_CONSISTENCY);
}

#[test]
fn replaced_primary_that_keeps_serving_merges_at_most_one_additional_bucket() {
    replace_primary(EVENTUAL_CONSISTENCY);
}

#[test]
fn replaced_cluster_primary_that_keeps_serving_grants_at_most_one_additional_bucket() {
    block_on(replace_primary_of_cluster(LEASED_CONSISTENCY));
}

#[test]
fn moved_slots_lose_no_lease_and_no_merge() {
    block_on(async {
        let cluster = Cluster::start(Kind::Valkey);
        let nodes = [connect(&cluster.url(), Duration::from_millis(500)).await];
        for (key, consistency, excess) in
            [("leased", LEASED_CONSISTENCY, 0), ("eventual", EVENTUAL_CONSISTENCY, CLOCK_ESTIMATE_EXCESS)]
        {
            let from = primary_of_key(&cluster, &nodes[0], key).await;
            let name = cluster.servers[from].command(&["KEYS", &format!("*}}{key}")]).list().remove(0).bytes();
            let name = String::from_utf8(name).unwrap();
            let slot = cluster.servers[from].command(&["CLUSTER", "KEYSLOT", &name]).number() as u16;
            let load = Load::with_consistency(consistency, &nodes, &[key], Instant::now());
            load.wait_until_refused().await;
            move_slot(&cluster, slot, (from + 1) % 3);
            load.wait_for_more("admitted", |counts| &counts.admitted, 5).await;
            assert_ne!(cluster.primary_of(slot), from, "the slot did not move under load");
            let history = load.end().await;
            assert_eq!(
                excess_observed(&bound_with_excess(excess), &history),
                None,
                "{consistency:?}: {} admitted",
                history.len()
            );
        }
    });
}

/// Uses the manual clock. Leases are returned before each step, so that only the store decides.
#[test]
fn clock_step_of_the_store_grants_at_most_what_it_refills() {
    const START: u64 = 1_790_000_010_000_000;
    block_on(async {
        for kind in Kind::ALL {
            let (_server, node, mut store_clock): (Server, RedisStore, StoreClock) = with_manual_clock(kind).await;
            let mut taken = Vec::new();
            for clock in [0, 2_000_000, 0] {
                store_clock.set(START + clock);
                let (mut admitted, mut before) = (0, None);
                // A refusal may be repeated without asking the store, and returned tokens can be taken again. So the
                // test takes tokens until a round admits nothing.
                while before != Some(admitted) {
                    before = Some(admitted);
                    while take(&node, LEASED_CONSISTENCY, "k").await {
                        admitted += 1;
                    }
                    node.flush().await;
                }
                taken.push(admitted);
            }
            assert_eq!(taken, [40, 20, 0], "{kind:?}: a step forward refills tokens, and a step back admits nothing");
        }
    });
}

/// Uses the manual clock. The store's clock stands still between the steps while the node's clock continues, so the
/// numbers are exact only up to [`CLOCK_ESTIMATE_EXCESS`].
#[test]
fn clock_step_of_the_store_refills_views_by_at_most_the_step() {
    const START: u64 = 1_790_000_010_000_000;
    block_on(async {
        for kind in Kind::ALL {
            let (_server, node, mut store_clock): (Server, RedisStore, StoreClock) = with_manual_clock(kind).await;
            // The clock steps two seconds forward, then back.
            for (clock, refilled) in [(0, BURST), (2_000_000, 20), (0, 0)] {
                store_clock.set(START + clock);
                let (mut admitted, mut rounds) = (0, 0);
                // A round without charges only updates the estimate of the store's clock.
                while rounds < 2 {
                    rounds += 1;
                    while take(&node, EVENTUAL_CONSISTENCY, "k").await {
                        (admitted, rounds) = (admitted + 1, 0);
                    }
                    // Sends the charges and reads the used keys.
                    node.flush().await;
                }
                assert!(admitted <= refilled + CLOCK_ESTIMATE_EXCESS, "{kind:?}: {admitted} admitted at {clock}");
                assert!(
                    admitted + CLOCK_ESTIMATE_EXCESS >= refilled,
                    "{kind:?}: the step had no effect, {admitted} admitted at {clock}"
                );
            }
        }
    });
}

/// A killed node loses its unsent charges. The unsent charges are less than a sixteenth of the burst, because a node
/// sends a sixteenth immediately.
#[test]
fn killed_node_loses_only_unsent_charges() {
    on_redis_and_valkey(async |server| {
        let (node, observer) = (store(&server).await, store(&server).await);
        let seldom = Consistency::Eventual(SyncEvery::new(Nanos::from_secs(10)).unwrap());
        for _ in 0..50 {
            let charge = OwnedCharge { consistency: seldom, ..OwnedCharge::new("k", bucket(1_000), 1) };
            let said = run_groups(&node, &[(StoreVerb::Check, vec![charge])]).await.remove(0).unwrap();
            assert!(said[0].outcome.is_admitted());
        }
        drop(node);
        let left = support::remaining(&observer, "k", bucket(1_000)).await;
        assert!(left > 950, "nothing was lost: {left} are left");
    });
}
