//! A store behind Sentinel. The store follows failovers and reports errors in its address.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use std::time::Duration;

use support::{LONG_DEADLINE, RealTimeSubject, bucket, check, remaining, wait_until, wait_until_down};
use tollgate_redis::{Config, Health, RedisStore};
use tollgate_testkit::servers::{Kind, PRIMARY_NAME, Sentinels, free_port};

async fn connect(url: &str) -> RedisStore {
    RedisStore::connect(Config::from_url(url).unwrap().deadline(LONG_DEADLINE)).await
}

fn run_case(sentinels: &Sentinels, case: &str, test: impl AsyncFnOnce(&mut RealTimeSubject)) {
    support::run_case(&format!("redis+sentinel://{}/{PRIMARY_NAME}?namespace={case}", sentinels.addresses()), test);
}

#[test]
fn store_conforms_behind_sentinel() {
    let sentinels = Sentinels::start(Kind::Redis, "");
    tollgate_testkit::store_conformance!(in_threads sentinels, run_case);
}

/// Waits until the store is up again, and takes one token.
async fn take_when_up(store: &RedisStore) {
    let attempts = async {
        while check(store, "k", bucket(9)).await != Ok(true) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let taken = tokio::time::timeout(Duration::from_secs(60), attempts).await;
    assert!(taken.is_ok(), "{:?}", store.health());
}

fn follow_failovers(kind: Kind, password: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut sentinels = Sentinels::start(kind, password);
        let option = if password.is_empty() { String::new() } else { format!("?sentinel_password={password}") };
        let seeds = sentinels.addresses();
        // Nothing listens at the first address, so the store must skip it.
        let store =
            connect(&format!("redis+sentinel://127.0.0.1:{},{seeds}/{PRIMARY_NAME}{option}", free_port())).await;
        assert_eq!(check(&store, "k", bucket(9)).await, Ok(true), "{:?}", store.health());
        assert_eq!(check(&store, "k", bucket(9)).await, Ok(true));
        assert_eq!(sentinels.servers[0].command(&["WAIT", "2", "30000"]).number(), 2);

        sentinels.servers[0].kill();
        assert!(check(&store, "k", bucket(9)).await.is_err());
        take_when_up(&store).await;
        let second = sentinels.wait_for_primary();
        assert_ne!(second, 0);
        assert_eq!(remaining(&store, "k", bucket(9)).await, 6, "the replica has the charges");

        assert_eq!(sentinels.servers[second].command(&["WAIT", "1", "30000"]).number(), 1);
        let mut health = store.watch_health();
        // Sentinels abort a failover if the replica is not ready in time, so the failover is requested repeatedly.
        let failover = async {
            loop {
                sentinels.start_failover(password);
                for _ in 0..100 {
                    if sentinels.wait_for_primary() != second {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(60), failover).await.is_ok(), "no failover within 60 s");
        // The old primary now refuses writes or closes the connection.
        take_when_up(&store).await;
        assert_eq!(*health.borrow_and_update(), Health::Up);
        assert_eq!(remaining(&store, "k", bucket(9)).await, 5);

        let wrong = connect(&format!("redis+sentinel://{seeds}/other{option}")).await;
        let why = wait_until_down(&wrong).await;
        assert!(why.contains("the sentinel watches no master `other`; known: limits"), "{why}");
        if !password.is_empty() {
            let anonymous = connect(&format!("redis+sentinel://{seeds}/{PRIMARY_NAME}")).await;
            let why = wait_until_down(&anonymous).await;
            assert!(why.contains("NOAUTH"), "{why}");
        }
        wait_until(&store, "up", |health| *health == Health::Up).await;
    });
}

#[test]
fn failovers_of_redis_are_followed() {
    follow_failovers(Kind::Redis, "");
}

#[test]
fn failovers_of_valkey_are_followed_with_sentinels_that_require_a_password() {
    follow_failovers(Kind::Valkey, "secret");
}
