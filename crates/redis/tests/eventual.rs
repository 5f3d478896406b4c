//! `consistency: eventual` on real servers: several nodes decide from local views, and merge their charges exactly
//! once.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use std::time::Duration;

use support::{
    ChargeOutcome, OwnedCharge, bucket, config_for, on_redis_and_valkey, run_groups, store, wait_until_down,
    wait_until_up,
};
use tokio::time::Instant;
use tollgate_core::{Ask, Cost, FixedWindow, Limit, Nanos, Outcome, Retry, SlidingSlices, SlidingWindow, TokenBucket};
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::store::{Answers, Consistency, StoreError, StoreVerb, SyncEvery};
use tollgate_engine::{Attribute, Decisions, Engine, Exactness, Item, Request, Store};
use tollgate_redis::{Config, RedisStore};
use tollgate_testkit::servers::{Cluster, Kind, Proxy, Server};

const EVENTUAL_CONSISTENCY: Consistency = Consistency::Eventual(SyncEvery::DEFAULT);

fn charge(key: &str, limit: impl Into<Limit>, cost: u64) -> OwnedCharge {
    OwnedCharge { consistency: EVENTUAL_CONSISTENCY, ..OwnedCharge::new(key, limit.into(), cost) }
}

async fn ask(store: &impl Store, verb: StoreVerb, charges: Vec<OwnedCharge>) -> Result<Vec<ChargeOutcome>, StoreError> {
    run_groups(store, &[(verb, charges)]).await.remove(0)
}

async fn check(store: &impl Store, key: &str, limit: impl Into<Limit>) -> bool {
    ask(store, StoreVerb::Check, vec![charge(key, limit, 1)]).await.unwrap()[0].outcome.is_admitted()
}

/// Returns the remaining amount in the store, without using a local view.
async fn left_in_store(store: &RedisStore, key: &str, limit: impl Into<Limit>) -> u64 {
    support::remaining(store, key, limit).await
}

/// Waits until the remaining amount in the store is `left`.
async fn wait_for_left(store: &RedisStore, key: &str, limit: Limit, left: u64) {
    let start = Instant::now();
    loop {
        let found = left_in_store(store, key, limit).await;
        if found == left {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{found} tokens are left in the store, expected {left}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Three hosts share four tokens per second. Each host gets four requests before any sync. All twelve requests pass.
/// The balance is then -8, and every request is refused for the next two seconds. The test uses one thread, so that no
/// sync can happen between the requests.
#[test]
fn twelve_requests_on_three_hosts_against_four_tokens_pass_and_are_paid_back() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for kind in Kind::ALL {
        runtime.block_on(async {
            let server = Server::start(kind);
            let text = b"{domain: d, rules: [{id: four, limit: 4/s, consistency: eventual}]}";
            let mut nodes = Vec::new();
            for _ in 0..4 {
                let engine = Engine::new(store(&server).await).unwrap();
                engine.put(&Rules::read(&[Source { name: "rules", text }]).unwrap()).unwrap();
                nodes.push(engine);
            }
            let items = [Item::new(&[])];
            let (request, mut decisions) = (Request::new("d", &items), Decisions::default());
            for node in &nodes {
                assert!(node.peek(&request, &mut decisions).await.unwrap().is_admitted());
            }
            let observer = nodes.pop().unwrap();
            let (start, calls) = (Instant::now(), nodes.iter().map(|node| node.store().counts().calls).sum::<u64>());
            for node in &nodes {
                for _ in 0..4 {
                    let decision = node.check(&request, &mut decisions).await.unwrap();
                    assert!(decision.is_admitted());
                    assert_eq!(decision.exactness(), Exactness::Eventual);
                }
                assert!(!node.check(&request, &mut decisions).await.unwrap().is_admitted());
            }
            let taken = Instant::now();
            assert_eq!(nodes.iter().map(|node| node.store().counts().calls).sum::<u64>(), calls, "no call was made");
            for node in &nodes {
                node.store().flush().await;
            }
            observer.store().flush().await;
            // Eight tokens are owed, so the next token is available after nine quarters of a second.
            let decision = observer.peek(&request, &mut decisions).await.unwrap();
            let Outcome::Deny(Retry::After(wait)) = decision.outcome() else { panic!("{decision:?}") };
            let (wait, passed) = (Duration::from(wait), start.elapsed());
            let owed = Duration::from_millis(2_250);
            assert!(wait <= owed && wait + passed >= owed, "the wait is {wait:?} after {passed:?}");
            let over = |node: &Engine<RedisStore>| {
                node.store().sharing_stats().overshoot.iter().map(|it| it.tokens).sum::<u64>()
            };
            assert_eq!(nodes.iter().map(over).sum::<u64>(), 8);
            loop {
                for node in &nodes {
                    if node.check(&request, &mut decisions).await.unwrap().is_admitted() {
                        let passed = taken.elapsed();
                        assert!(passed >= Duration::from_secs(2), "admitted after {passed:?}");
                        return;
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
}

#[test]
fn nodes_see_the_charges_of_others_within_a_sync() {
    let limits: [Limit; 4] = [
        bucket(10),
        FixedWindow::new(10, Nanos::from_secs(1_000_000)).unwrap().into(),
        SlidingWindow::new(10, Nanos::from_secs(1_000_000)).unwrap().into(),
        SlidingSlices::new(10, Nanos::from_secs(100_000), Nanos::from_secs(10_000)).unwrap().into(),
    ];
    on_redis_and_valkey(async |server| {
        let (one, other) = (store(&server).await, store(&server).await);
        for (index, limit) in limits.into_iter().enumerate() {
            let key = format!("k{index}");
            assert!(check(&other, &key, limit).await);
            for _ in 0..6 {
                assert!(check(&one, &key, limit).await);
            }
            wait_for_left(&one, &key, limit, 3).await;
            // Each sync also reads the keys in use, so `other` learns of the charges.
            let start = Instant::now();
            loop {
                let said = ask(&other, StoreVerb::Peek, vec![charge(&key, limit, 1)]).await.unwrap();
                if said[0].reports[0].remaining == 3 {
                    break;
                }
                assert!(start.elapsed() < Duration::from_secs(20), "{said:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
}

/// On a slow link, every answer arrives after the deadline, although the store executes the calls. The node sends the
/// payload again until it is answered, even over new connections, and the payload counts once.
#[test]
fn payload_whose_answers_are_lost_counts_once() {
    on_redis_and_valkey(async |server| {
        let proxy = Proxy::to(server.port());
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let node = RedisStore::connect(Config::from_url(&url).unwrap().deadline(Duration::from_secs(1))).await;
        let observer = store(&server).await;
        assert!(check(&node, "k", bucket(100)).await);
        wait_for_left(&observer, "k", bucket(100), 99).await;
        proxy.delay_by(Duration::from_millis(1_300));
        for _ in 0..7 {
            assert!(check(&node, "k", bucket(100)).await);
        }
        // The store has counted the payload, but the node has not received an answer.
        wait_for_left(&observer, "k", bucket(100), 92).await;
        let start = Instant::now();
        while node.counts().failures == 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "no answer was late");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        proxy.close_connections();
        proxy.clear_faults();
        wait_until_up(&node).await;
        assert!(check(&node, "k", bucket(100)).await);
        wait_for_left(&observer, "k", bucket(100), 91).await;
        node.flush().await;
        assert_eq!(left_in_store(&observer, "k", bucket(100)).await, 91, "every charge was counted once");
    });
}

/// Charges continue during an outage and after it. Earlier charges are sent soon after the outage, and the store
/// catches up while new charges arrive.
#[test]
fn store_catches_up_while_charges_continue() {
    on_redis_and_valkey(async |server| {
        let proxy = Proxy::to(server.port());
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let node = RedisStore::connect(Config::from_url(&url).unwrap()).await;
        wait_until_up(&node).await;
        let (observer, limit) = (store(&server).await, bucket(5_000));
        let mut taken = 0;
        let mut take = async |times: u64| {
            for _ in 0..times {
                assert!(check(&node, "k", limit).await);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            taken += times;
            taken
        };
        take(10).await;
        proxy.stall();
        take(400).await;
        proxy.clear_faults();
        let start = Instant::now();
        loop {
            let taken = take(1).await;
            let behind = taken - (5_000 - left_in_store(&observer, "k", limit).await);
            if behind < 50 {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "the store is {behind} takes behind");
        }
    });
}

#[test]
fn views_decide_during_an_outage_and_charges_are_merged_afterwards() {
    on_redis_and_valkey(async |mut server| {
        let node = store(&server).await;
        for _ in 0..3 {
            assert!(check(&node, "k", bucket(10)).await);
        }
        wait_for_left(&node, "k", bucket(10), 7).await;
        server.kill();
        for _ in 0..7 {
            assert!(check(&node, "k", bucket(10)).await);
        }
        assert!(!check(&node, "k", bucket(10)).await, "the view includes the charges of the store");
        wait_until_down(&node).await;
        let unknown = ask(&node, StoreVerb::Check, vec![charge("new", bucket(10), 1)]).await;
        assert!(matches!(unknown, Err(StoreError::Unavailable { .. })), "{unknown:?}");
        assert!(!check(&node, "k", bucket(10)).await, "the view decides while the store is down");
        server.restart();
        wait_until_up(&node).await;
        // The store restarted empty, so it gets only the charges that the node had not sent: at least seven tokens.
        let start = Instant::now();
        while left_in_store(&node, "k", bucket(10)).await > 3 {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing was merged");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn groups_with_strict_charges_are_all_or_none() {
    on_redis_and_valkey(async |server| {
        let node = store(&server).await;
        let strict = |limit: Limit, cost| OwnedCharge::new("strict", limit, cost);
        let both = |cost| vec![strict(bucket(3), cost), charge("k", bucket(10), cost)];
        let said = ask(&node, StoreVerb::Check, both(2)).await.unwrap();
        assert_eq!(said.iter().map(|said| said.taken).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(said.iter().map(|said| said.reports[0].remaining).collect::<Vec<_>>(), [1, 8]);
        let said = ask(&node, StoreVerb::Check, both(2)).await.unwrap();
        assert_eq!(said.iter().map(|said| said.outcome.is_admitted()).collect::<Vec<_>>(), [false, true]);
        assert_eq!(said.iter().map(|said| said.taken).collect::<Vec<_>>(), [0, 0]);
        let up_to = |owned: OwnedCharge, most| OwnedCharge { ask: Ask::UpTo(Cost::new(most)), ..owned };
        let group = vec![up_to(strict(bucket(3), 0), 5), up_to(charge("k", bucket(10), 0), 5)];
        let said = ask(&node, StoreVerb::Check, group).await.unwrap();
        assert_eq!(said.iter().map(|said| said.taken).collect::<Vec<_>>(), [1, 1]);
        node.flush().await;
        assert_eq!(left_in_store(&node, "k", bucket(10)).await, 7, "the charges of the refused group were returned");
        let group = vec![charge("k", bucket(10), 7), charge("other", bucket(1), 2)];
        let said = ask(&node, StoreVerb::Check, group).await.unwrap();
        assert_eq!(said.iter().map(|said| said.outcome.is_admitted()).collect::<Vec<_>>(), [true, false]);
        node.flush().await;
        assert_eq!(left_in_store(&node, "k", bucket(10)).await, 7);
    });
}

#[test]
fn refunds_resets_and_debts_reach_the_store() {
    on_redis_and_valkey(async |server| {
        let node = store(&server).await;
        let limit = TokenBucket::new("1/day".parse().unwrap(), 10).unwrap().max_debt(2).unwrap();
        let said = ask(&node, StoreVerb::Check, vec![charge("k", limit, 4)]).await.unwrap();
        let refund = |cost| OwnedCharge { stamps: Some(said[0].stamps), ..charge("k", limit, cost) };
        assert_eq!(
            ask(&node, StoreVerb::Refund, vec![refund(1)]).await.unwrap()[0].taken,
            1,
            "a refund before the charge was sent"
        );
        node.flush().await;
        assert_eq!(left_in_store(&node, "k", limit).await, 7);
        assert_eq!(
            ask(&node, StoreVerb::Refund, vec![refund(2)]).await.unwrap()[0].taken,
            2,
            "a refund after the charge was sent"
        );
        let regardless = |cost| OwnedCharge { ask: Ask::Regardless(Cost::new(cost)), ..charge("k", limit, cost) };
        let said = ask(&node, StoreVerb::Check, vec![regardless(11)]).await.unwrap();
        assert!(said[0].outcome.is_admitted(), "the limit admits one token of debt: {said:?}");
        assert!(!ask(&node, StoreVerb::Check, vec![regardless(2)]).await.unwrap()[0].outcome.is_admitted());
        node.flush().await;
        assert!(ask(&node, StoreVerb::Reset, vec![charge("k", limit, 1)]).await.is_ok());
        let said = ask(&node, StoreVerb::Check, vec![charge("k", limit, 10)]).await.unwrap();
        assert!(said[0].outcome.is_admitted(), "{said:?}");
    });
}

/// The state of a key is kept when its rule changes the consistency or the limits.
#[test]
fn usage_is_kept_when_the_rule_changes() {
    on_redis_and_valkey(async |server| {
        let node = store(&server).await;
        let strict = ask(&node, StoreVerb::Check, vec![OwnedCharge::new("k", bucket(10), 4)]).await.unwrap();
        assert_eq!(strict[0].reports[0].remaining, 6);
        let said = ask(&node, StoreVerb::Check, vec![charge("k", bucket(10), 1)]).await.unwrap();
        assert_eq!(said[0].reports[0].remaining, 5);
        let larger = OwnedCharge { limits_id: 7, ..charge("k", bucket(20), 1) };
        let said = ask(&node, StoreVerb::Check, vec![larger]).await.unwrap();
        assert_eq!(said[0].reports[0].remaining, 14);
        node.flush().await;
        let strict = ask(&node, StoreVerb::Check, vec![OwnedCharge::new("k", bucket(20), 1)]).await.unwrap();
        assert_eq!(strict[0].reports[0].remaining, 13);
    });
}

#[test]
fn each_lane_of_a_cluster_is_synced_with_its_primary() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cluster = Cluster::start(Kind::Redis);
        let config = Config::from_url(&cluster.url()).unwrap().deadline(support::LONG_DEADLINE);
        let node = RedisStore::connect(config.clone()).await;
        wait_until_up(&node).await;
        for key in 0..100 {
            let said = ask(&node, StoreVerb::Check, vec![charge(&format!("k{key}"), bucket(10), 3)]).await;
            assert!(said.unwrap()[0].outcome.is_admitted());
        }
        node.flush().await;
        let other = RedisStore::connect(config).await;
        wait_until_up(&other).await;
        for key in 0..100 {
            assert_eq!(left_in_store(&other, &format!("k{key}"), bucket(10)).await, 7, "k{key}");
        }
    });
}

/// Between two syncs, requests for a known key cost no calls. The next sync merges all of these requests in one call.
#[test]
fn requests_between_syncs_need_no_calls() {
    on_redis_and_valkey(async |server| {
        let node = RedisStore::connect(config_for(&server)).await;
        let attributes = [Attribute::new("user", "x")];
        let engine = Engine::new(node).unwrap();
        let text =
            b"{domain: d, rules: [{id: r, per: [user], limit: 100000/day, consistency: eventual, sync_every: 10s}]}";
        engine.put(&Rules::read(&[Source { name: "rules", text }]).unwrap()).unwrap();
        let (items, mut decisions) = ([Item::new(&attributes)], Decisions::default());
        let request = Request::new("d", &items);
        assert!(engine.check(&request, &mut decisions).await.unwrap().is_admitted());
        let before = engine.store().counts().calls;
        for _ in 0..5_000 {
            assert!(engine.check(&request, &mut decisions).await.unwrap().is_admitted());
        }
        assert_eq!(engine.store().counts().calls, before);
        engine.store().flush().await;
        assert_eq!(engine.store().counts().calls, before + 1, "all requests are merged in one call");
    });
}

/// The fast path gives the same answers as the slow path for groups. Two nodes get the same requests for different
/// keys, one on each path.
#[test]
fn fast_path_agrees_with_the_slow_path() {
    on_redis_and_valkey(async |server| {
        let (node, other) = (store(&server).await, store(&server).await);
        let limits: [Limit; 3] = [
            TokenBucket::new("30/day".parse().unwrap(), 30).unwrap().into(),
            SlidingWindow::new(30, Nanos::from_secs(1_000_000)).unwrap().into(),
            FixedWindow::new(30, Nanos::from_secs(1_000_000)).unwrap().into(),
        ];
        let mut decided_at_once = 0;
        for step in 0..120_u64 {
            let (limit, cost) = (limits[step as usize % 3], step * 7 % 4);
            let in_group = charge(&format!("group {}", step % 3), limit, cost);
            let expected = ask(&other, StoreVerb::Check, vec![in_group]).await.unwrap().remove(0);
            let alone = charge(&format!("alone {}", step % 3), limit, cost);
            let mut answers = Answers::default();
            let said = match node.try_decide_shared(&alone.borrow(), &mut answers) {
                None => ask(&node, StoreVerb::Check, vec![alone]).await.unwrap().remove(0),
                Some(admitted) => {
                    decided_at_once += 1;
                    let said = answers.group(0).unwrap();
                    assert_eq!(said.outcome().is_admitted(), admitted);
                    let answer = &said.charges()[0];
                    assert_eq!(answer.exactness, Exactness::Eventual);
                    let reports = said.reports(answer).to_vec();
                    ChargeOutcome {
                        outcome: answer.outcome,
                        taken: answer.taken.get(),
                        stamps: said.stamps(answer),
                        reports,
                    }
                }
            };
            // Waits are not compared, because they depend on the current time.
            let summary = |said: &ChargeOutcome| (said.outcome.is_admitted(), said.taken, said.reports[0].remaining);
            assert_eq!(summary(&said), summary(&expected), "step {step}");
        }
        assert!(decided_at_once > 60, "{decided_at_once} of 120");
        tokio::join!(node.flush(), other.flush());
        for (place, limit) in limits.into_iter().enumerate() {
            let left = [left_in_store(&node, &format!("alone {place}"), limit).await];
            assert_eq!(left, [left_in_store(&other, &format!("group {place}"), limit).await]);
        }
    });
}
