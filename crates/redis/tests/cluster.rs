//! A store on a cluster with three primaries and one replica for each.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use std::time::Duration;

use support::{
    LONG_DEADLINE, OwnedCharge, RealTimeSubject, bucket, check, remaining, run_groups, wait_until_down, wait_until_up,
};
use tollgate_engine::store::{StoreError, StoreVerb};
use tollgate_redis::{Config, RedisStore};
use tollgate_testkit::servers::{Cluster, Kind, Reply, Server, free_port};

async fn connect(url: &str, deadline: Duration) -> RedisStore {
    RedisStore::connect(Config::from_url(url).unwrap().deadline(deadline)).await
}

fn run_case(cluster: &Cluster, case: &str, test: impl AsyncFnOnce(&mut RealTimeSubject)) {
    support::run_case(&format!("{}?namespace={case}", cluster.url()), test);
}

#[test]
fn store_conforms_on_a_cluster_of_redis() {
    let cluster = Cluster::start(Kind::Redis);
    tollgate_testkit::store_conformance!(in_threads cluster, run_case);
}

#[test]
fn store_conforms_on_a_cluster_of_valkey() {
    let cluster = Cluster::start(Kind::Valkey);
    tollgate_testkit::store_conformance!(in_threads cluster, run_case);
}

/// Checks keys in many lanes. Returns the number of admitted keys and the number of keys without an answer.
async fn check_keys_in_many_lanes(store: &RedisStore) -> (usize, usize) {
    let (mut admitted, mut failed) = (0, 0);
    for number in 0..40 {
        match check(store, &format!("k{number}"), bucket(1_000)).await {
            Ok(true) => admitted += 1,
            Ok(false) => panic!("nothing is used up"),
            Err(StoreError::Unavailable { .. } | StoreError::Unknown { .. }) => failed += 1,
            Err(error) => panic!("{error}"),
        }
    }
    (admitted, failed)
}

/// Waits until all lanes are served.
async fn wait_until_all_pass(store: &RedisStore) {
    let attempts = async {
        while check_keys_in_many_lanes(store).await.1 > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), attempts).await.is_ok(), "{:?}", store.health());
}

/// The primary of lane 0 hangs, and no replica takes over.
async fn store_that_connects_without_lane_0_serves_the_other_lanes(cluster: &Cluster) {
    let [hangs, other, third] = [0, 8_000, 16_000].map(|slot| cluster.primary_of(slot));
    let stopped = || cluster.servers.iter().enumerate().filter(|(at, _)| ![other, third].contains(at));
    assert!(stopped().any(|(at, _)| at == hangs));
    stopped().for_each(|(_, server)| server.pause());
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.servers[other].port());
    let without_count = connect(&url, LONG_DEADLINE).await;
    let store = connect(&format!("{url}?lanes=6"), LONG_DEADLINE).await;
    let attempts = async {
        loop {
            let (admitted, failed) = check_keys_in_many_lanes(&store).await;
            assert!(failed > 0, "the primary of lane 0 hangs");
            if admitted > 10 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let served = tokio::time::timeout(Duration::from_secs(10), attempts).await;
    assert_eq!(check_keys_in_many_lanes(&without_count).await.0, 0, "only lane 0 has the lane count");
    stopped().for_each(|(_, server)| server.resume());
    assert!(served.is_ok(), "{:?}", store.health());
}

/// Returns new keys on two primaries. One token of each key is taken.
async fn keys_at_two_primaries(cluster: &Cluster, store: &RedisStore, name: &str, count: u32) -> [Vec<String>; 2] {
    let keys: Vec<String> = (0..count).map(|number| format!("{name}{number}")).collect();
    for key in &keys {
        assert_eq!(check(store, key, bucket(2)).await, Ok(true));
    }
    [0, 1].map(|primary| {
        let names = cluster.servers[primary].command(&["KEYS", &format!("*}}{name}*")]).list();
        let names = names.into_iter().map(|name| String::from_utf8(name.bytes()).unwrap());
        names.map(|name| name.rsplit('}').next().unwrap().to_owned()).collect()
    })
}

/// A key is refused only because another group briefly holds its last token. After that group is refused and refunded,
/// the key's refusal must not be repeated. Later groups with the empty key hold no tokens.
async fn refund_of_a_refused_group_drops_remembered_refusals(cluster: &Cluster, store: &RedisStore) {
    let [held, empty] = keys_at_two_primaries(cluster, store, "r", 120).await;
    let other = connect(&cluster.url(), LONG_DEADLINE).await;
    wait_until_up(&other).await;
    for key in &empty {
        assert_eq!(check(&other, key, bucket(2)).await, Ok(true));
    }
    let held = &held[0];
    let one = |key: &str| OwnedCharge::new(key, bucket(2), 1);
    let ask_both = async |empty: &str| {
        let groups = [(StoreVerb::Check, vec![one(held), one(empty)])];
        let (refused, admitted) = tokio::join!(run_groups(store, &groups), check(store, held, bucket(2)));
        assert!(!refused[0].as_ref().unwrap()[1].outcome.is_admitted());
        if admitted == Ok(true) {
            run_groups(store, &[(StoreVerb::Refund, vec![one(held)])]).await.remove(0).unwrap();
        }
        admitted
    };
    let mut held_by = None;
    for empty in &empty {
        // Until the node knows that the other key is empty, it takes from both keys at the same time.
        if ask_both(empty).await == Ok(false) {
            assert_eq!(remaining(store, held, bucket(2)).await, 1, "the token was refunded");
            assert_eq!(check(store, held, bucket(2)).await, Ok(true), "the refusal is not repeated");
            run_groups(store, &[(StoreVerb::Refund, vec![one(held)])]).await.remove(0).unwrap();
            held_by = Some(empty);
            break;
        }
    }
    let empty = held_by.expect("one group takes the token and then returns it");
    for _ in 0..20 {
        assert_eq!(ask_both(empty).await, Ok(true), "the refused key is asked first, and no token is held");
    }
}

/// A stopped server makes a group fail at the deadline. The group's tokens on the other server are refunded.
async fn parts_are_refunded_if_another_part_times_out(cluster: &Cluster, store: &RedisStore) {
    let [healthy, stopped] = keys_at_two_primaries(cluster, store, "t", 40).await.map(|mut keys| keys.remove(0));
    let group = [&healthy, &stopped].map(|key| OwnedCharge::new(key, bucket(2), 1)).to_vec();
    let hurried = connect(&cluster.url(), Duration::from_secs(1)).await;
    wait_until_up(&hurried).await;
    cluster.servers[1].pause();
    let answer = run_groups(&hurried, &[(StoreVerb::Check, group)]).await.remove(0);
    let refunded = async {
        while remaining(store, &healthy, bucket(2)).await < 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let refunded = tokio::time::timeout(LONG_DEADLINE, refunded).await;
    cluster.servers[1].resume();
    assert!(matches!(answer, Err(StoreError::Unknown { .. })), "{answer:?}");
    assert!(refunded.is_ok(), "the token at the other server was not refunded");
}

/// A server stops after a group took tokens there, and resumes more than two deadlines after the take.
async fn late_refund_to_a_bucket_is_ignored(cluster: &Cluster, store: &RedisStore) {
    let [took, stopped] = keys_at_two_primaries(cluster, store, "l", 40).await.map(|mut keys| keys.remove(0));
    let group = [&took, &stopped].map(|key| OwnedCharge::new(key, bucket(2), 1)).to_vec();
    let hurried = connect(&cluster.url(), Duration::from_millis(400)).await;
    wait_until_up(&hurried).await;
    cluster.servers[1].pause();
    let groups = [(StoreVerb::Check, group)];
    let stop_after_the_take = async {
        while remaining(store, &took, bucket(2)).await == 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cluster.servers[0].pause();
    };
    let (answers, ()) = tokio::join!(run_groups(&hurried, &groups), stop_after_the_take);
    assert!(matches!(answers[0], Err(StoreError::Unknown { .. })), "{answers:?}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    [0, 1].into_iter().for_each(|server| cluster.servers[server].resume());
    wait_until_all_pass(&hurried).await;
    assert_eq!(remaining(store, &took, bucket(2)).await, 0, "the refund came too late");
}

#[test]
fn stopped_and_killed_primaries_affect_only_their_lanes_until_failover() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut cluster = Cluster::start(Kind::Redis);
        let port = cluster.servers[1].port();
        // Nothing listens at the first address, so the store must skip it.
        let url = format!("redis+cluster://127.0.0.1:{},127.0.0.1:{port}", free_port());
        let store = connect(&url, Duration::from_millis(300)).await;
        wait_until_up(&store).await;
        wait_until_all_pass(&store).await;
        let diagnosis = tollgate_redis::diagnose(&Config::from_url(&url).unwrap(), &|| 0).await.unwrap();
        assert!(diagnosis.server.starts_with("Redis 7"), "{diagnosis:?}");
        let patient = connect(&url, LONG_DEADLINE).await;
        wait_until_up(&patient).await;
        refund_of_a_refused_group_drops_remembered_refusals(&cluster, &patient).await;
        parts_are_refunded_if_another_part_times_out(&cluster, &patient).await;
        wait_until_all_pass(&store).await;
        late_refund_to_a_bucket_is_ignored(&cluster, &patient).await;
        wait_until_all_pass(&store).await;
        store_that_connects_without_lane_0_serves_the_other_lanes(&cluster).await;
        wait_until_all_pass(&store).await;

        cluster.servers[0].pause();
        let (mut admitted, mut failed) = check_keys_in_many_lanes(&store).await;
        assert!(admitted > 10 && failed > 0, "{admitted} admitted, {failed} failed");
        cluster.servers[0].resume();
        wait_until_all_pass(&store).await;

        let dead = cluster.primary_of(0);
        cluster.servers[dead].kill();
        (admitted, failed) = check_keys_in_many_lanes(&store).await;
        assert!(admitted > 10 && failed > 0, "{admitted} admitted, {failed} failed");
        wait_until_all_pass(&store).await;
        assert_ne!(cluster.primary_of(0), dead);
        assert_eq!(check(&store, "k0", bucket(1_000)).await, Ok(true));
    });
}

#[test]
fn wrong_addresses_and_another_lane_count_are_reported() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let single = Server::start(Kind::Redis);
        let url = format!("redis+cluster://127.0.0.1:{}", single.port());
        let why = wait_until_down(&connect(&url, LONG_DEADLINE).await).await;
        assert!(why.contains("cluster support disabled; write redis:// for a single server"), "{why}");
        let config = Config::from_url(&url).unwrap().deadline(LONG_DEADLINE);
        let why = tollgate_redis::diagnose(&config, &|| 0).await.unwrap_err();
        assert!(why.contains("cluster support disabled; write redis:// for a single server"), "{why}");

        let cluster = Cluster::start(Kind::Valkey);
        let store = connect(&format!("{}?namespace=a", cluster.url()), LONG_DEADLINE).await;
        wait_until_up(&store).await;
        let first = &cluster.servers[cluster.primary_of(0)];
        assert_eq!(first.command(&["GET", "a:{1bz}meta"]), Reply::Bytes(b"lanes=6".to_vec()), "two per primary");
        // The store detects the cluster from the address of a single server.
        let found = connect(&format!("{}?namespace=a", cluster.servers[4].url()), LONG_DEADLINE).await;
        for number in 0..20 {
            let key = format!("found{number}");
            assert_eq!(check(&store, &key, bucket(1)).await, Ok(true));
            assert_eq!(check(&found, &key, bucket(1)).await, Ok(false), "both stores share their counters");
        }
        first.command(&["SET", "b:{1bz}meta", "lanes=32"]);
        let connect_to = async |query: &str| connect(&format!("{}?{query}", cluster.url()), LONG_DEADLINE).await;
        let why = wait_until_down(&connect_to("namespace=b&lanes=64").await).await;
        assert!(why.contains("the store has `lanes=32`") && why.contains("needs `lanes=64`"), "{why}");
        // A node without a lane count in its URL uses the count in the store, not the count for the cluster's size.
        let (one, other) = (connect_to("namespace=b").await, connect_to("namespace=b&lanes=32").await);
        wait_until_up(&other).await;
        for number in 0..20 {
            let key = format!("b{number}");
            assert_eq!(check(&one, &key, bucket(1)).await, Ok(true));
            assert_eq!(check(&other, &key, bucket(1)).await, Ok(false), "both stores share their counters");
        }
        first.command(&["SET", "c:{1bz}meta", "lanes=65"]);
        let why = wait_until_down(&connect_to("namespace=c").await).await;
        assert!(why.contains("the store has `lanes=65` in c:{1bz}meta, expected `lanes=` and a number"), "{why}");
        let many = connect_to("namespace=d&lanes=64").await;
        wait_until_up(&many).await;
        slot_is_moved_while_its_keys_are_charged(&cluster, &many).await;
    });
}

/// Moves a slot with two keys to another primary, step by step. At each step, the keys are charged separately and
/// together.
async fn slot_is_moved_while_its_keys_are_charged(cluster: &Cluster, store: &RedisStore) {
    // Finds two keys in the same slot.
    let keys: Vec<String> = (0..200).map(|number| format!("m{number}")).collect();
    for key in &keys {
        assert_eq!(check(store, key, bucket(100)).await, Ok(true));
    }
    let slot = 256 * 5;
    let source = cluster.primary_of(slot);
    let names = cluster.servers[source].command(&["CLUSTER", "GETKEYSINSLOT", "1280", "50"]).list();
    let names: Vec<String> = names.into_iter().map(|name| String::from_utf8(name.bytes()).unwrap()).collect();
    let moved: Vec<&str> = names.iter().map(|name| name.rsplit('}').next().unwrap()).collect();
    let (one, two) = (moved[0], moved[1]);
    let target = cluster.primary_of(256 * 63);
    assert_ne!(source, target);
    let (from, to) = (&cluster.servers[source], &cluster.servers[target]);
    let ok = Reply::Status("OK".to_owned());

    let mut taken = 1;
    let charge = async |taken: &mut u64, note: &str| {
        let alone = |key: &str| vec![OwnedCharge::new(key, bucket(100), 1)];
        let both = vec![OwnedCharge::new(one, bucket(100), 1), OwnedCharge::new(two, bucket(100), 1)];
        let new = vec![OwnedCharge::new(&format!("{one}{note}"), bucket(100), 1)];
        let groups = [alone(one), alone(two), both, new].map(|charges| (StoreVerb::Check, charges));
        for answer in run_groups(store, &groups).await {
            let answer = answer.unwrap_or_else(|error| panic!("{note}: {error}"));
            assert!(answer.iter().all(|answer| answer.outcome.is_admitted()), "{note}");
        }
        *taken += 2;
    };
    charge(&mut taken, "before").await;
    assert_eq!(to.command(&["CLUSTER", "SETSLOT", "1280", "IMPORTING", &cluster.server_id(source)]), ok);
    assert_eq!(from.command(&["CLUSTER", "SETSLOT", "1280", "MIGRATING", &cluster.server_id(target)]), ok);
    charge(&mut taken, "all keys at the source").await;
    let port = to.port().to_string();
    assert_eq!(from.command(&["MIGRATE", "127.0.0.1", &port, &names[0], "0", "5000"]), ok);
    charge(&mut taken, "one key at the target").await;
    assert_eq!(from.command(&["MIGRATE", "127.0.0.1", &port, &names[1], "0", "5000"]), ok);
    charge(&mut taken, "both keys at the target").await;
    let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    let rest = from.command(&["CLUSTER", "GETKEYSINSLOT", "1280", "50"]).list();
    let rest: Vec<String> = rest.into_iter().map(|name| String::from_utf8(name.bytes()).unwrap()).collect();
    migrate.extend(rest.iter().map(String::as_str));
    if !rest.is_empty() {
        assert_eq!(from.command(&migrate), ok);
    }
    for server in [to, from] {
        assert_eq!(server.command(&["CLUSTER", "SETSLOT", "1280", "NODE", &cluster.server_id(target)]), ok);
    }
    charge(&mut taken, "moved").await;
    assert_eq!(remaining(store, one, bucket(100)).await, 100 - taken);
    assert_eq!(remaining(store, two, bucket(100)).await, 100 - taken);
}
