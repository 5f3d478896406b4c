//! `consistency: leased` on real servers: several nodes spend tokens that the store granted them in advance.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use support::{
    ChargeOutcome, OwnedCharge, StoreClock, bucket, config_for, manual_clock_scripts, name_of, on_redis_and_valkey,
    run_groups, store, wait_until_up,
};
use tollgate_core::{Ask, Cost, FixedWindow, Limit, Limits, Nanos, Outcome, Retry, TokenBucket};
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::store::{Answers, Consistency, StoreError, StoreVerb};
use tollgate_engine::{Attribute, Decisions, Engine, Exactness, Item, Request, Store};
use tollgate_redis::{Config, RedisStore};
use tollgate_testkit::eventually::eventually_async;
use tollgate_testkit::servers::{Cluster, Kind, Reply};

fn charge(key: &str, limits: impl Into<Limits>, cost: u64) -> OwnedCharge {
    OwnedCharge { consistency: Consistency::Leased, ..OwnedCharge::new(key, limits, cost) }
}

async fn ask(store: &impl Store, verb: StoreVerb, charges: Vec<OwnedCharge>) -> Result<Vec<ChargeOutcome>, StoreError> {
    run_groups(store, &[(verb, charges)]).await.remove(0)
}

async fn check(store: &impl Store, key: &str, limits: impl Into<Limits>) -> bool {
    ask(store, StoreVerb::Check, vec![charge(key, limits, 1)]).await.unwrap()[0].outcome.is_admitted()
}

/// Returns the remaining amount in the store, excluding leases.
async fn left_in_store(store: &RedisStore, key: &str, limits: impl Into<Limits>) -> u64 {
    let charge = OwnedCharge::new(key, limits, 1);
    run_groups(store, &[(StoreVerb::Peek, vec![charge])]).await.remove(0).unwrap()[0].reports[0].remaining
}

/// Takes tokens until the node holds a lease. Returns the number of tokens taken.
async fn take_until_held(node: &RedisStore, key: &str, limits: impl Into<Limits> + Clone) -> u64 {
    let mut taken = 0;
    while node.sharing_stats().leased_tokens == 0 {
        assert!(check(node, key, limits.clone()).await);
        taken += 1;
    }
    taken
}

/// Tests rules, engine and store together: most decisions need no call, and every token is counted.
#[test]
fn requests_are_decided_from_leases_with_few_calls() {
    on_redis_and_valkey(async |server| {
        let engine = Engine::new(store(&server).await).unwrap();
        let text = b"{domain: d, rules: [{id: r, per: [user], limit: 100000/day, consistency: leased}]}";
        engine.put(&Rules::read(&[Source { name: "rules", text }]).unwrap()).unwrap();
        let (attributes, mut decisions) = ([Attribute::new("user", "x")], Decisions::default());
        let items = [Item::new(&attributes)];
        let request = Request::new("d", &items);
        let (before, mut remaining) = (engine.store().counts().calls, u64::MAX);
        for _ in 0..5_000 {
            let decision = engine.check(&request, &mut decisions).await.unwrap();
            assert!(decision.is_admitted());
            assert_eq!(decision.exactness(), Exactness::Leased);
            let left = decision.reports().next().unwrap().report.remaining;
            assert!(left < 100_000 && left <= remaining, "{left} tokens are left after {remaining}");
            remaining = left;
        }
        let calls = engine.store().counts().calls - before;
        assert!(calls * 4 <= 5_000, "{calls} calls for 5000 requests");
        engine.store().flush().await;
        assert_eq!(engine.store().sharing_stats().leased_tokens, 0);
        let decision = engine.peek(&request, &mut decisions).await.unwrap();
        assert_eq!(decision.reports().next().unwrap().report.remaining, 95_000, "a node that stops returns its leases");
        assert_eq!(decision.exactness(), Exactness::Exact);
    });
}

/// Three nodes ask concurrently until all tokens are used. Together they admit exactly the 300 tokens of the limit.
#[test]
fn nodes_together_admit_exactly_the_limit() {
    let window = FixedWindow::new(300, Nanos::from_secs(1_000_000)).unwrap();
    on_redis_and_valkey(async |server| {
        for limit in [bucket(300), window.into()] {
            server.command(&["FLUSHALL"]);
            let nodes = [store(&server).await, store(&server).await, store(&server).await];
            let mut admitted = 0;
            eventually_async("all 300 are admitted", async || {
                let (one, two, three) = tokio::join!(
                    check(&nodes[0], "k", limit),
                    check(&nodes[1], "k", limit),
                    check(&nodes[2], "k", limit)
                );
                admitted += u64::from(one) + u64::from(two) + u64::from(three);
                admitted >= 300
            })
            .await;
            assert_eq!(admitted, 300);
            for node in &nodes {
                node.flush().await;
            }
            for node in &nodes {
                assert!(!check(node, "k", limit).await, "no request beyond 300 is admitted");
            }
        }
    });
}

#[test]
fn idle_nodes_return_their_leases() {
    on_redis_and_valkey(async |server| {
        let (node, observer) = (store(&server).await, store(&server).await);
        let taken = take_until_held(&node, "k", bucket(1_000)).await;
        let expected = 1_000 - taken;
        eventually_async("the leases are returned", async || {
            left_in_store(&observer, "k", bucket(1_000)).await == expected
        })
        .await;
        assert_eq!((node.sharing_stats().leased_keys, node.sharing_stats().leased_tokens), (0, 0));
    });
}

/// One node holds tokens that it does not use, and another node needs them.
#[test]
fn node_gets_the_tokens_that_another_node_does_not_use() {
    on_redis_and_valkey(async |server| {
        let (one, other) = (store(&server).await, store(&server).await);
        let mut taken = take_until_held(&one, "k", bucket(40)).await;
        eventually_async("all 40 are admitted", async || {
            taken += u64::from(check(&other, "k", bucket(40)).await);
            taken >= 40
        })
        .await;
        assert_eq!(taken, 40);
    });
}

/// The leases of a lost node count as spent: after they expire, the pool is gone and no tokens were restored.
#[test]
fn lease_of_a_lost_node_expires_and_counts_as_spent() {
    on_redis_and_valkey(async |server| {
        let observer = store(&server).await;
        let node = store(&server).await;
        let taken = take_until_held(&node, "k", bucket(50_000)).await;
        // The node's tasks end too, so nothing is returned.
        drop(node);
        let mut left = left_in_store(&observer, "k", bucket(50_000)).await;
        assert!(left < 50_000 - taken, "{left} of 50000 tokens are left after {taken} were taken");
        eventually_async("the lease expires", async || {
            // A charge writes the state: with version 3 if the key has a pool, and otherwise with version 2.
            left -= 1;
            assert!(support::check(&observer, "k", bucket(50_000)).await.unwrap());
            server.command(&["GETRANGE", &name_of("k"), "0", "0"]) == Reply::Bytes(vec![2])
        })
        .await;
        assert_eq!(left_in_store(&observer, "k", bucket(50_000)).await, left);
    });
}

/// The store refills only up to the burst minus the leased tokens, for every caller. The test makes strict charges, and
/// advances a manual clock by less than the duration of a lease.
#[test]
fn strict_charges_find_the_burst_minus_the_leased_tokens() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for kind in Kind::ALL {
        runtime.block_on(async {
            let limit = TokenBucket::new("1000/s".parse().unwrap(), 100).unwrap();
            let (server, node, mut store_clock): (_, RedisStore, StoreClock) = support::with_manual_clock(kind).await;
            let strict = RedisStore::with_scripts(config_for(&server), manual_clock_scripts()).await;
            let start = 1_790_000_000_000_000;
            store_clock.set(start);
            take_until_held(&node, "k", limit).await;
            let held = node.sharing_stats().leased_tokens;
            store_clock.set(start + 2_000_000);
            let all = OwnedCharge { ask: Ask::UpTo(Cost::new(1_000)), ..OwnedCharge::new("k", Limit::from(limit), 0) };
            let mut admitted = ask(&strict, StoreVerb::Check, vec![all]).await.unwrap()[0].taken;
            assert!(
                admitted + held <= 100 || node.sharing_stats().leased_tokens == 0,
                "{admitted} tokens were taken while {held} were leased"
            );
            for _ in 0..held + 5 {
                admitted += u64::from(check(&node, "k", limit).await);
            }
            assert_eq!(admitted, 100);
        });
    }
}

#[test]
fn groups_with_strict_charges_are_all_or_none() {
    on_redis_and_valkey(async |server| {
        let node = store(&server).await;
        let strict = |limit: Limit, cost| OwnedCharge::new("strict", limit, cost);
        let both = |cost| vec![strict(bucket(3), cost), charge("k", bucket(100), cost)];
        let said = ask(&node, StoreVerb::Check, both(2)).await.unwrap();
        assert_eq!(said.iter().map(|said| said.taken).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(said[0].reports[0].remaining, 1);
        let said = ask(&node, StoreVerb::Check, both(2)).await.unwrap();
        assert_eq!(said.iter().map(|said| said.outcome.is_admitted()).collect::<Vec<_>>(), [false, true]);
        let up_to = |owned: OwnedCharge, most| OwnedCharge { ask: Ask::UpTo(Cost::new(most)), ..owned };
        let group = vec![up_to(strict(bucket(3), 0), 5), up_to(charge("k", bucket(100), 0), 5)];
        let said = ask(&node, StoreVerb::Check, group).await.unwrap();
        assert_eq!(said.iter().map(|said| said.taken).collect::<Vec<_>>(), [1, 1]);
        node.flush().await;
        assert_eq!(left_in_store(&node, "k", bucket(100)).await, 97, "the charges of the refused group were returned");
        let group = vec![charge("k", bucket(100), 7), charge("other", bucket(1), 2)];
        let said = ask(&node, StoreVerb::Check, group).await.unwrap();
        assert_eq!(said.iter().map(|said| said.outcome.is_admitted()).collect::<Vec<_>>(), [true, false]);
        assert_eq!(said[1].outcome, Outcome::Deny(Retry::Never), "the cost exceeds the burst");
        node.flush().await;
        assert_eq!(left_in_store(&node, "k", bucket(100)).await, 97);
        let eventual = OwnedCharge {
            consistency: Consistency::Eventual(Default::default()),
            ..OwnedCharge::new("e", bucket(9), 3)
        };
        let said = ask(&node, StoreVerb::Check, vec![charge("k", bucket(100), 3), eventual]).await.unwrap();
        assert_eq!(said.iter().map(|said| said.taken).collect::<Vec<_>>(), [3, 3]);
    });
}

#[test]
fn refunds_resets_and_debts_reach_the_store() {
    on_redis_and_valkey(async |server| {
        let node = store(&server).await;
        let bucket = TokenBucket::new("1/day".parse().unwrap(), 100).unwrap().max_debt(2).unwrap();
        let window = FixedWindow::new(100, Nanos::from_secs(1_000_000)).unwrap().max_debt(2).unwrap();
        for (key, limit) in [("b", Limit::from(bucket)), ("w", window.into())] {
            for _ in 0..30 {
                assert!(check(&node, key, limit).await);
            }
            let said = ask(&node, StoreVerb::Check, vec![charge(key, limit, 1)]).await.unwrap();
            let refund = |cost| OwnedCharge { stamps: Some(said[0].stamps), ..charge(key, limit, cost) };
            assert_eq!(ask(&node, StoreVerb::Refund, vec![refund(1)]).await.unwrap()[0].taken, 1, "{key}");
            assert_eq!(left_in_store(&node, key, limit).await, 70, "{key}: all leases were returned");
            let regardless = |cost| OwnedCharge { ask: Ask::Regardless(Cost::new(cost)), ..charge(key, limit, cost) };
            assert!(check(&node, key, limit).await);
            let said = ask(&node, StoreVerb::Check, vec![regardless(71)]).await.unwrap();
            assert!(said[0].outcome.is_admitted(), "{key}: the limit admits two tokens of debt: {said:?}");
            let said = ask(&node, StoreVerb::Check, vec![charge(key, limit, 0)]).await.unwrap();
            assert!(!said[0].outcome.is_admitted(), "{key}: a cost of 0 is refused by a limit in debt");
            assert!(!check(&node, key, limit).await);
            assert!(ask(&node, StoreVerb::Reset, vec![charge(key, limit, 1)]).await.is_ok());
            let said = ask(&node, StoreVerb::Check, vec![charge(key, limit, 50)]).await.unwrap();
            assert!(said[0].outcome.is_admitted(), "{key}: {said:?}");
        }
    });
}

#[test]
fn usage_is_kept_when_the_rule_changes() {
    on_redis_and_valkey(async |server| {
        let node = store(&server).await;
        let strict = ask(&node, StoreVerb::Check, vec![OwnedCharge::new("k", bucket(100), 4)]).await.unwrap();
        assert_eq!(strict[0].reports[0].remaining, 96);
        for _ in 0..10 {
            assert!(check(&node, "k", bucket(100)).await);
        }
        // Under other limits, the store decides. The store still accounts for the leases under the old limits.
        let larger = || OwnedCharge { limits_id: 7, ..charge("k", bucket(200), 1) };
        let said = ask(&node, StoreVerb::Check, vec![larger()]).await.unwrap();
        assert!(said[0].outcome.is_admitted() && said[0].reports[0].remaining <= 185, "{said:?}");
        node.flush().await;
        assert_eq!(left_in_store(&node, "k", bucket(200)).await, 185);
        eventually_async("the key is leased under the new limits", async || {
            assert!(ask(&node, StoreVerb::Check, vec![larger()]).await.unwrap()[0].outcome.is_admitted());
            node.sharing_stats().leased_tokens > 0
        })
        .await;
    });
}

#[test]
fn leases_are_spent_while_the_store_is_down_and_then_requests_fail() {
    on_redis_and_valkey(async |mut server| {
        let node = store(&server).await;
        take_until_held(&node, "k", bucket(10_000)).await;
        server.kill();
        let mut spent = 0;
        let error = loop {
            match ask(&node, StoreVerb::Check, vec![charge("k", bucket(10_000), 1)]).await {
                Ok(said) => spent += u64::from(said[0].outcome.is_admitted()),
                Err(error) => break error,
            }
        };
        assert!(spent > 0, "{error}");
        server.restart();
        wait_until_up(&node).await;
        // The store lost its state. The node reports its spent and held tokens to the new pool.
        eventually_async("the node has a lease again", async || {
            assert!(check(&node, "k", bucket(10_000)).await);
            node.sharing_stats().leased_tokens > 0
        })
        .await;
        node.flush().await;
        assert!(left_in_store(&node, "k", bucket(10_000)).await < 10_000);
    });
}

#[test]
fn keys_of_other_programs_are_rejected() {
    on_redis_and_valkey(async |server| {
        let node = store(&server).await;
        server.command(&["LPUSH", &name_of("list"), "x"]);
        server.command(&["SET", &name_of("other"), "a value of another program"]);
        server.command(&["SET", &name_of("damaged"), "\u{3}damaged"]);
        for key in ["list", "other", "damaged"] {
            let said = ask(&node, StoreVerb::Check, vec![charge(key, bucket(10), 1)]).await;
            assert!(matches!(said, Err(StoreError::Rejected { .. })), "{key}: {said:?}");
            let said = ask(&node, StoreVerb::Check, vec![OwnedCharge::new(key, bucket(10), 1)]).await;
            assert!(matches!(said, Err(StoreError::Rejected { .. })), "{key}, strict: {said:?}");
        }
        assert!(check(&node, "k", bucket(10)).await);
    });
}

#[test]
fn lanes_of_a_cluster_have_their_own_pools() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for kind in Kind::ALL {
        runtime.block_on(async {
            let cluster = Cluster::start(kind);
            let config = Config::from_url(&cluster.url()).unwrap().deadline(support::LONG_DEADLINE);
            let (node, other) = (RedisStore::connect(config.clone()).await, RedisStore::connect(config).await);
            wait_until_up(&node).await;
            wait_until_up(&other).await;
            for key in 0..50 {
                for _ in 0..5 {
                    assert!(check(&node, &format!("k{key}"), bucket(100)).await);
                }
                assert!(check(&other, &format!("k{key}"), bucket(100)).await);
            }
            node.flush().await;
            other.flush().await;
            for key in 0..50 {
                assert_eq!(left_in_store(&other, &format!("k{key}"), bucket(100)).await, 94, "k{key}");
            }
        });
    }
}

/// The fast path takes from leases, so exactly the limit is admitted.
#[test]
fn fast_path_takes_from_leases() {
    on_redis_and_valkey(async |server| {
        let node = store(&server).await;
        let (mut admitted, mut decided_at_once) = (0, 0);
        eventually_async("all 300 are admitted", async || {
            let mut answers = Answers::default();
            let one = charge("k", bucket(300), 1);
            admitted += match node.try_decide_shared(&one.borrow(), &mut answers) {
                None => u64::from(check(&node, "k", bucket(300)).await),
                Some(is_admitted) => {
                    let said = answers.group(0).unwrap();
                    let answer = &said.charges()[0];
                    assert!(is_admitted && answer.outcome.is_admitted(), "the fast path only takes held tokens");
                    assert_eq!((answer.exactness, answer.taken), (Exactness::Leased, Cost::ONE));
                    decided_at_once += 1;
                    1
                }
            };
            admitted >= 300
        })
        .await;
        assert!(decided_at_once > 100, "{decided_at_once} of 300");
        let refused =
            [charge("k", bucket(300), 0), OwnedCharge { ask: Ask::UpTo(Cost::ONE), ..charge("k", bucket(300), 1) }];
        for charge in refused {
            assert_eq!(node.try_decide_shared(&charge.borrow(), &mut Answers::default()), None);
        }
        assert!(!check(&node, "k", bucket(300)).await);
        node.flush().await;
        assert_eq!(left_in_store(&node, "k", bucket(300)).await, 0);
    });
}
