//! Stores that die, hang, restart empty, or refuse access. No request waits beyond the deadline, no token is granted
//! twice, and decisions resume when the store recovers.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use support::{
    OwnedCharge, bucket, check, config_for, on_redis_and_valkey, remaining, store, wait_until, wait_until_down,
    wait_until_up,
};
use tokio::time::Instant;
use tollgate_engine::store::{Consistency, StoreError, StoreVerb, SyncEvery};
use tollgate_redis::{Config, Health, RedisStore};
use tollgate_testkit::servers::{Cluster, Kind, PRIMARY_NAME, Reply, Sentinels, Server};

/// Maximum delay that a busy machine adds to a wait.
const MAX_MACHINE_DELAY: Duration = Duration::from_secs(1);

#[test]
fn killed_store_is_unavailable_immediately_and_used_again_after_restart() {
    on_redis_and_valkey(async |mut server| {
        let store = store(&server).await;
        assert_eq!(check(&store, "k", bucket(2)).await, Ok(true));
        server.kill();
        // If the client has not yet detected the kill, this request detects it.
        assert!(check(&store, "k", bucket(2)).await.is_err());
        wait_until_down(&store).await;
        let start = Instant::now();
        let refused = check(&store, "k", bucket(2)).await.unwrap_err();
        assert!(matches!(&refused, StoreError::Unavailable { why } if why.contains("127.0.0.1")), "{refused}");
        assert!(start.elapsed() < MAX_MACHINE_DELAY, "a store that is known to be down delays no request");

        server.restart();
        wait_until_up(&store).await;
        for passes in [true, true, false] {
            assert_eq!(
                check(&store, "k", bucket(2)).await,
                Ok(passes),
                "the restarted store is empty and enforces the limit"
            );
        }
    });
}

#[test]
fn outcome_of_a_call_in_progress_when_the_store_dies_is_unknown() {
    on_redis_and_valkey(async |mut server| {
        let store = Arc::new(store(&server).await);
        server.pause();
        let asked = tokio::spawn({
            let store = store.clone();
            async move { check(&*store, "k", bucket(2)).await }
        });
        // The call is counted just before it is sent. The server no longer reads.
        while store.counts().charges == 0 {
            tokio::task::yield_now().await;
        }
        server.kill();
        let answer = asked.await.unwrap();
        assert!(matches!(answer, Err(StoreError::Unknown { .. })), "{answer:?}");
    });
}

#[test]
fn store_that_is_started_later_is_used() {
    on_redis_and_valkey(async |mut server| {
        server.kill();
        let store = store(&server).await;
        let Health::Down { why } = store.health() else { panic!("the store is up without a server") };
        assert!(why.contains("refused"), "{why}");
        assert!(matches!(check(&store, "k", bucket(1)).await, Err(StoreError::Unavailable { .. })));
        server.restart();
        wait_until_up(&store).await;
        assert_eq!(check(&store, "k", bucket(1)).await, Ok(true));
    });
}

#[test]
fn request_with_a_late_answer_counts_as_spent() {
    on_redis_and_valkey(async |server| {
        let hurried = RedisStore::connect(config_for(&server).deadline(Duration::from_millis(100))).await;
        let patient = store(&server).await;
        server.pause();
        let late = check(&hurried, "k", bucket(5)).await;
        assert!(
            matches!(&late, Err(StoreError::Unknown { why }) if why.contains("no answer") && why.contains("100ms")),
            "{late:?}"
        );
        server.resume();
        // The server executes the call some time after it resumes, although no caller waits for it.
        while remaining(&patient, "k", bucket(5)).await == 5 {
            tokio::task::yield_now().await;
        }
        assert_eq!(remaining(&patient, "k", bucket(5)).await, 4);
        assert_eq!(hurried.health(), Health::Up, "one late answer does not open the breaker");
    });
}

/// Counts the answers to many callers.
#[derive(Debug, Default)]
struct AnswerCounts {
    passed: AtomicU64,
    unknown: AtomicU64,
    unavailable: AtomicU64,
    longest_micros: AtomicU64,
}

impl AnswerCounts {
    fn record(&self, answer: &Result<bool, StoreError>, wait: Duration) {
        let count = match answer {
            Ok(true) => &self.passed,
            Ok(false) => panic!("a request was refused although the limit has enough tokens"),
            Err(StoreError::Unknown { .. }) => &self.unknown,
            Err(StoreError::Unavailable { .. }) => &self.unavailable,
            Err(other) => panic!("{other}"),
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.longest_micros.fetch_max(wait.as_micros() as u64, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64, u64) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.passed), read(&self.unknown), read(&self.unavailable))
    }
}

#[test]
fn stopped_store_delays_no_request_beyond_the_deadline_and_limits_hold_afterwards() {
    const BURST: u64 = 50_000;
    const DEADLINE: Duration = Duration::from_millis(10);
    on_redis_and_valkey(async |server| {
        let store = Arc::new(RedisStore::connect(config_for(&server).deadline(DEADLINE)).await);
        let (tally, ended) = (Arc::new(AnswerCounts::default()), Arc::new(AtomicBool::new(false)));
        let callers = (0..16).map(|_| {
            let (store, tally, ended) = (store.clone(), tally.clone(), ended.clone());
            tokio::spawn(async move {
                while !ended.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    let answer = check(&*store, "k", bucket(BURST)).await;
                    tally.record(&answer, start.elapsed());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        });
        let callers: Vec<_> = callers.collect();
        let sent_before = store.counts().charges;
        while store.counts().charges < sent_before + 100 {
            tokio::task::yield_now().await;
        }

        server.pause();
        wait_until_down(&store).await;
        // From here on, requests fail without being sent, until the server resumes.
        let (_, _, unavailable) = tally.read();
        let sent = store.counts().charges;
        while tally.read().2 < unavailable + 100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(store.counts().charges, sent);

        server.resume();
        wait_until_up(&store).await;
        let (passed, ..) = tally.read();
        while tally.read().0 < passed + 100 {
            tokio::task::yield_now().await;
        }
        ended.store(true, Ordering::Relaxed);
        for caller in callers {
            caller.await.unwrap();
        }

        let longest = Duration::from_micros(tally.longest_micros.load(Ordering::Relaxed));
        assert!(longest < DEADLINE + MAX_MACHINE_DELAY, "a request waited for {longest:?}");
        let (passed, unknown, _) = tally.read();
        assert!(unknown > 0, "no request was in flight when the server stopped");
        let spent = BURST - remaining(&*store, "k", bucket(BURST)).await;
        assert!(
            (passed..=passed + unknown).contains(&spent),
            "{spent} tokens spent, {passed} requests passed, {unknown} unknown"
        );
    });
}

#[test]
fn wrong_password_is_reported_only_to_the_operator() {
    for kind in Kind::ALL {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::start_with(kind, &["--requirepass", "right"]);
            let with = |password: &str| {
                let url = format!("redis://:{password}@127.0.0.1:{}", server.port());
                RedisStore::connect(Config::from_url(&url).unwrap().deadline(support::LONG_DEADLINE))
            };
            let store = with("wr0ng").await;
            let Health::Down { why } = store.health() else { panic!("the server accepted a wrong password") };
            assert!(why.contains("Password authentication failed"), "{why}");
            let refused = check(&store, "k", bucket(1)).await.unwrap_err().to_string();
            assert!(refused.contains("Password") && !refused.contains("wr0ng"), "{refused}");
            assert!(!format!("{store:?}").contains("wr0ng"));

            let open = RedisStore::connect(config_for(&server)).await;
            let Health::Down { why } = open.health() else { panic!("the server accepted a missing password") };
            assert!(why.contains("NOAUTH"), "{why}");

            assert_eq!(check(&with("right").await, "k", bucket(1)).await, Ok(true));
            let mut operator = server.connect();
            operator.command(&["AUTH", "right"]);
            operator.command(&["CONFIG", "SET", "requirepass", "wr0ng"]);
            wait_until_up(&store).await;
        });
    }
}

#[test]
fn store_that_cannot_write_is_down_with_a_reason() {
    on_redis_and_valkey(async |server| {
        let store = store(&server).await;
        let forbid_and_allow: [(&[&str], &[&str], &str); 2] = [
            (&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"], "READONLY"),
            (&["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"], "OOM"),
        ];
        for (forbid, allow, code) in forbid_and_allow {
            assert!(check(&store, "k", bucket(1_000)).await.unwrap());
            let left = remaining(&store, "k", bucket(1_000)).await;
            server.command(forbid);
            // Requests are sent until the store is down. Each answer says that nothing was spent.
            while store.health() == Health::Up {
                let answer = check(&store, "k", bucket(1_000)).await;
                assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
            }
            let why = wait_until_down(&store).await;
            assert!(why.contains(code), "{why}");
            server.command(allow);
            wait_until_up(&store).await;
            assert_eq!(remaining(&store, "k", bucket(1_000)).await, left, "nothing was spent meanwhile");
        }
    });
}

/// The permissions from docs/operating.md that strict decisions need.
const NEEDED_PERMISSIONS: [&str; 10] =
    ["+ping", "+script|load", "+evalsha", "+eval", "+time", "+mget", "+exists", "+set", "+setrange", "+del"];

/// Returns the permissions of the user in docs/operating.md.
fn documented_permissions() -> Vec<&'static str> {
    let page = include_str!("../../../docs/operating.md");
    let line = page.lines().find(|line| line.contains("ACL SETUSER tollgate")).unwrap();
    line.split_whitespace().skip_while(|word| *word != "~tollgate:*").collect()
}

fn set_user(server: &Server, rights: &[&str]) {
    server.command(&[&["ACL", "SETUSER", "tollgate", "reset", "on", ">password"], rights].concat());
}

/// Charges with every consistency, and checks that the store has counted all charges.
async fn use_with_every_consistency(url: &str) {
    let store = RedisStore::connect(Config::from_url(url).unwrap().deadline(support::LONG_DEADLINE)).await;
    wait_until_up(&store).await;
    let all = [Consistency::Strict, Consistency::Leased, Consistency::Eventual(SyncEvery::DEFAULT)];
    for consistency in all {
        for _ in 0..3 {
            let charge = OwnedCharge { consistency, ..OwnedCharge::new(&format!("{consistency:?}"), bucket(1_000), 1) };
            let said = support::run_groups(&store, &[(StoreVerb::Check, vec![charge])]).await.remove(0);
            assert!(said.as_ref().is_ok_and(|said| said[0].outcome.is_admitted()), "{url}, {consistency:?}: {said:?}");
        }
    }
    store.flush().await;
    for consistency in all {
        let left = remaining(&store, &format!("{consistency:?}"), bucket(1_000)).await;
        assert_eq!(left, 997, "{url}, {consistency:?}");
    }
}

#[test]
fn documented_permissions_are_enough_on_one_server_with_sentinel_and_in_a_cluster() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let rights = documented_permissions();
    runtime.block_on(async {
        let server = Server::start(Kind::Redis);
        set_user(&server, &rights);
        use_with_every_consistency(&format!("redis://tollgate:password@127.0.0.1:{}", server.port())).await;
        let sentinels = Sentinels::start(Kind::Valkey, "");
        sentinels.servers.iter().for_each(|server| set_user(server, &rights));
        let url = format!("redis+sentinel://tollgate:password@{}/{PRIMARY_NAME}", sentinels.addresses());
        use_with_every_consistency(&url).await;
        use_with_every_consistency(&format!("{url}?wait=1&namespace=tollgate:waits")).await;
        let cluster = Cluster::start(Kind::Redis);
        cluster.servers.iter().for_each(|server| set_user(server, &rights));
        let url = format!("redis+cluster://tollgate:password@127.0.0.1:{}", cluster.servers[0].port());
        use_with_every_consistency(&url).await;
        use_with_every_consistency(&format!("{url}?wait=1&namespace=tollgate:waits")).await;
    });
}

#[test]
fn store_is_up_with_the_documented_permissions_and_down_without_any_one_of_them() {
    let rights = documented_permissions();
    on_redis_and_valkey(async |server| {
        let store = async |rights: &[&str]| {
            set_user(&server, rights);
            let url = format!("redis://tollgate:password@127.0.0.1:{}", server.port());
            RedisStore::connect(Config::from_url(&url).unwrap().deadline(support::LONG_DEADLINE)).await
        };
        let full = store(&rights).await;
        assert_eq!(check(&full, "k", bucket(1)).await, Ok(true), "{:?}", full.health());
        let mut nodes = full.watch_nodes();
        assert!(nodes.wait_for(|nodes| *nodes == 1).await.is_ok());
        assert_eq!(server.command(&["ZCARD", "tollgate:nodes"]).number(), 1, "the user may count the nodes");
        drop(full);
        // `eval` is needed only after the script cache was flushed.
        for missing in NEEDED_PERMISSIONS.into_iter().filter(|missing| *missing != "+eval") {
            assert!(rights.contains(&missing), "{missing} is documented");
            let fewer: Vec<&str> = rights.iter().copied().filter(|right| *right != missing).collect();
            let why = wait_until_down(&store(&fewer).await).await;
            assert!(
                ["NOPERM", "no permissions", "can't run this command"].iter().any(|text| why.contains(text)),
                "without {missing}: {why}"
            );
        }
    });
}

#[test]
fn cluster_node_that_did_not_answer_at_the_start_is_down_with_a_reason() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for kind in Kind::ALL {
        runtime.block_on(async {
            let mut server = Server::start_with(kind, &["--cluster-enabled", "yes"]);
            server.kill();
            let store = store(&server).await;
            server.restart();
            let why = wait_until(
                &store,
                "down as part of a cluster",
                |health| matches!(health, Health::Down { why } if why.contains("Cluster")),
            );
            let Health::Down { why } = why.await else { panic!("the store is not down") };
            assert!(why.contains("belongs to a Redis Cluster") && why.contains("write redis+cluster://"), "{why}");
            // With all slots assigned, this single node would answer.
            server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
            while server.command(&["SET", "k", "v"]) != Reply::Status("OK".to_owned()) {
                tokio::task::yield_now().await;
            }
            let mut health = store.watch_health();
            for _ in 0..5 {
                health.changed().await.unwrap();
                assert_eq!(*health.borrow_and_update(), Health::Down { why: why.clone() });
            }
            let refused = check(&store, "k", bucket(1)).await.unwrap_err();
            assert!(matches!(&refused, StoreError::Unavailable { why } if why.contains("Cluster")), "{refused}");
        });
    }
}

#[test]
fn user_without_permission_is_reported() {
    on_redis_and_valkey(async |server| {
        server.command(&["ACL", "SETUSER", "reader", "on", ">pass", "~*", "+@all", "-set"]);
        let url = format!("redis://reader:pass@127.0.0.1:{}", server.port());
        let store = RedisStore::connect(Config::from_url(&url).unwrap().deadline(support::LONG_DEADLINE)).await;
        let Health::Down { why } = store.health() else { panic!("the store is up although the user may not write") };
        assert!(why.to_lowercase().contains("user"), "{why}");
        server.command(&["ACL", "SETUSER", "reader", "resetkeys", "~tollgate:*", "+set"]);
        wait_until_up(&store).await;
        assert_eq!(check(&store, "k", bucket(1)).await, Ok(true));
    });
}
