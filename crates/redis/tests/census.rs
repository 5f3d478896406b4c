//! The node count, from which each node computes its share of the limits while the store is unreachable.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use std::time::Duration;

use support::{on_redis_and_valkey, store};
use tollgate_redis::RedisStore;
use tollgate_testkit::servers::{Kind, Reply, Server};

async fn wait_for_count(store: &RedisStore, expected: u32) {
    let mut nodes = store.watch_nodes();
    let counted = tokio::time::timeout(Duration::from_secs(60), nodes.wait_for(|nodes| *nodes == expected)).await;
    counted.expect("the node count never reached the expected number").unwrap();
}

#[test]
fn nodes_count_each_other_but_not_expired_nodes() {
    on_redis_and_valkey(async |server| {
        let first = store(&server).await;
        wait_for_count(&first, 1).await;
        // Adds an entry for a node that was last seen long ago.
        server.command(&["ZADD", "tollgate:nodes", "1000000000", "ghost"]);
        let second = store(&server).await;
        wait_for_count(&first, 2).await;
        wait_for_count(&second, 2).await;
    });
}

#[test]
fn last_count_stays_while_the_store_is_unreachable() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for kind in Kind::ALL {
        runtime.block_on(async {
            let mut server = Server::start(kind);
            let (first, _second) = (store(&server).await, store(&server).await);
            wait_for_count(&first, 2).await;
            server.kill();
            // Time is paused, so this minute passes immediately. Each node retries many times during the minute.
            tokio::time::pause();
            tokio::time::sleep(Duration::from_secs(60)).await;
            tokio::time::resume();
            assert_eq!(*first.watch_nodes().borrow(), 2);
        });
    }
}

#[test]
fn stopped_node_is_not_counted() {
    on_redis_and_valkey(async |server| {
        let (first, second, third) = (store(&server).await, store(&server).await, store(&server).await);
        wait_for_count(&first, 3).await;
        // One node leaves explicitly, and the other node is dropped.
        second.membership().leave().await;
        let Reply::Number(listed) = server.command(&["ZCARD", "tollgate:nodes"]) else { panic!("not a set") };
        assert_eq!(listed, 2);
        drop(third);
        wait_for_count(&first, 1).await;
    });
}

#[test]
fn crashed_node_expires_within_seconds() {
    on_redis_and_valkey(async |server| {
        let first = store(&server).await;
        wait_for_count(&first, 1).await;
        // Adds an entry for a node that is counted now but never renews its entry.
        let Reply::List(time) = server.command(&["TIME"]) else { panic!("no time") };
        let Reply::Bytes(seconds) = &time[0] else { panic!("no seconds") };
        server.command(&[b"ZADD", &b"tollgate:nodes"[..], seconds, b"crashed"]);
        let start = tokio::time::Instant::now();
        wait_for_count(&first, 2).await;
        wait_for_count(&first, 1).await;
        let elapsed = start.elapsed();
        let expected = Duration::from_secs(2)..Duration::from_secs(15);
        assert!(expected.contains(&elapsed), "the crashed node was removed after {elapsed:?}");
    });
}

#[test]
fn store_stall_does_not_lower_the_count() {
    on_redis_and_valkey(async |server| {
        let nodes = [store(&server).await, store(&server).await, store(&server).await];
        for node in &nodes {
            wait_for_count(node, 3).await;
        }
        let watched = nodes.each_ref().map(|node| {
            let mut nodes = node.watch_nodes();
            nodes.mark_unchanged();
            nodes
        });
        server.pause();
        tokio::time::sleep(Duration::from_secs(6)).await;
        server.resume();
        tokio::time::sleep(Duration::from_secs(4)).await;
        for watched in &watched {
            assert_eq!((watched.has_changed().unwrap(), *watched.borrow()), (false, 3));
        }
    });
}
