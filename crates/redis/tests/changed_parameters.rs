//! Changed parameters on Redis and on Valkey: a state has the parameters of its last charge, and only an admitted
//! charge changes them.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use support::{ChargeOutcome, OwnedCharge, name_of, run_groups, store, with_manual_clock};
use tollgate_core::{
    Algorithm, Concurrency, Cost, FixedWindow, IntervalBucket, LeakyBucket, Limit, Nanos, Outcome, Retry, SlidingLog,
    SlidingSlices, SlidingWindow, Stamps, Steps, TokenBucket,
};
use tollgate_engine::store::StoreVerb;
use tollgate_redis::RedisStore;
use tollgate_testkit::servers::Kind;

/// The start of an hour in 2026, in microseconds.
const START: u64 = 1_790_002_800_000_000;
const HOUR: Nanos = Nanos::from_secs(3_600);

/// Returns one limit per algorithm, each with this capacity per hour.
fn per_hour(capacity: u64) -> Vec<Limit> {
    let rate = tollgate_core::Rate::new(capacity, HOUR).unwrap();
    let interval = IntervalBucket::new(capacity, HOUR).unwrap();
    vec![
        TokenBucket::new(rate, capacity).unwrap().into(),
        LeakyBucket::new(rate, capacity).unwrap().into(),
        interval.into(),
        interval.steps(Steps::FirstRequest).into(),
        FixedWindow::new(capacity, HOUR).unwrap().into(),
        SlidingWindow::new(capacity, HOUR).unwrap().into(),
        SlidingSlices::new(capacity, HOUR, Nanos::from_secs(600)).unwrap().into(),
        SlidingLog::new(capacity, HOUR).unwrap().into(),
        Concurrency::new(capacity, HOUR).unwrap().into(),
    ]
}

/// Returns a charge. Limits with different capacities have different ids, as in the engine.
fn charge(key: &str, limit: Limit, cost: u64) -> OwnedCharge {
    OwnedCharge { limits_id: limit.capacity() as u32, ..OwnedCharge::new(key, limit, cost) }
}

async fn ask(store: &RedisStore, verb: StoreVerb, charge: OwnedCharge) -> ChargeOutcome {
    run_groups(store, &[(verb, vec![charge])]).await.remove(0).unwrap().remove(0)
}

/// Runs a test on each server, with a manual clock.
#[allow(clippy::needless_pass_by_value, reason = "a closure, written where it is passed")]
fn on_redis_and_valkey(test: impl AsyncFn(&RedisStore, &mut support::StoreClock)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for kind in Kind::ALL {
        runtime.block_on(async {
            let (_server, store, mut store_clock) = with_manual_clock(kind).await;
            store_clock.set(START);
            test(&store, &mut store_clock).await;
        });
    }
}

#[test]
fn peeks_and_refusals_under_smaller_limits_do_not_reduce_usage() {
    on_redis_and_valkey(async |store, _| {
        for (index, (large, small)) in per_hour(100).into_iter().zip(per_hour(2)).enumerate() {
            for (verb, cost) in
                [(StoreVerb::Peek, 1), (StoreVerb::Check, 1), (StoreVerb::Check, 2), (StoreVerb::Check, 3)]
            {
                let key = format!("{index} {verb:?} {cost}");
                let taken = ask(store, StoreVerb::Check, charge(&key, large, 100)).await;
                assert!(taken.outcome.is_admitted(), "{large:?}");
                assert_eq!(taken.reports[0].remaining, 0);
                let other = ask(store, verb, charge(&key, small, cost)).await;
                assert!(!other.outcome.is_admitted(), "{small:?}");
                assert_eq!((other.reports[0].limit, other.reports[0].remaining), (2, 0));
                let again = ask(store, StoreVerb::Check, charge(&key, large, 90)).await;
                assert!(!again.outcome.is_admitted(), "{large:?} after {verb:?} {cost}: {again:?}");
            }
        }
    });
}

#[test]
fn refused_request_under_another_limit_changes_no_refill() {
    let bucket = |burst, rate: &str| Limit::from(TokenBucket::new(rate.parse().unwrap(), burst).unwrap());
    let (ten, five) = (bucket(10, "10/10s"), bucket(5, "5/10s"));
    on_redis_and_valkey(async |store, store_clock| {
        store_clock.set(START);
        assert!(ask(store, StoreVerb::Check, charge("k", ten, 10)).await.outcome.is_admitted());
        let refused = ask(store, StoreVerb::Check, charge("k", five, 1)).await;
        // Six tokens must refill, at one per second.
        assert_eq!(refused.outcome, Outcome::Deny(Retry::After(Nanos::from_secs(6))));
        store_clock.set(START + 5_999_999);
        assert!(!ask(store, StoreVerb::Peek, charge("k", five, 1)).await.outcome.is_admitted());
        store_clock.set(START + 6_000_000);
        assert!(ask(store, StoreVerb::Peek, charge("k", five, 1)).await.outcome.is_admitted());
        store_clock.set(START + 10_000_000);
        let full = ask(store, StoreVerb::Peek, charge("k", ten, 1)).await;
        assert_eq!(full.reports[0].remaining, 10);
    });
}

/// One node has a limit of 1000 per hour and the other a limit of 10 per hour, as during a deployment.
#[test]
fn two_nodes_with_two_rule_versions_never_admit_more_than_the_larger_limit() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for kind in Kind::ALL {
            let (server, old, mut store_clock) = with_manual_clock(kind).await;
            let new = RedisStore::with_scripts(support::config_for(&server), support::manual_clock_scripts()).await;
            store_clock.set(START);
            two_versions_share_counters(&old, &new).await;
        }
    });
}

async fn two_versions_share_counters(old: &RedisStore, new: &RedisStore) {
    for (index, (large, small)) in per_hour(1_000).into_iter().zip(per_hour(10)).enumerate() {
        let key = index.to_string();
        let mut admitted = 0;
        for turn in 0..5 {
            for (node, limit, cost) in [(old, large, 900), (new, small, 1)] {
                let said = ask(node, StoreVerb::Check, charge(&key, limit, cost)).await;
                assert_eq!(said.outcome.is_admitted(), turn == 0 && cost == 900, "{limit:?}: {said:?}");
                admitted += said.taken;
            }
        }
        assert_eq!(admitted, 900, "{large:?}");
    }
}

#[test]
fn switching_without_charging_is_exact() {
    on_redis_and_valkey(async |store, store_clock| {
        for (index, (large, small)) in per_hour(997).into_iter().zip(per_hour(7)).enumerate() {
            store_clock.set(START);
            let key = index.to_string();
            ask(store, StoreVerb::Check, charge(&key, large, 990)).await;
            store_clock.set(START + 1_234_567);
            let before = ask(store, StoreVerb::Peek, charge(&key, large, 500)).await;
            for cost in [0, 1, 7, 8] {
                let refused = ask(store, StoreVerb::Check, charge(&key, small, cost)).await;
                assert!(!refused.outcome.is_admitted(), "{small:?}: {refused:?}");
            }
            assert_eq!(ask(store, StoreVerb::Peek, charge(&key, large, 500)).await, before, "{large:?}");
        }
    });
}

/// Each charge under other parameters rounds the spent amount up by less than a tick of the new rate. A tick refills in
/// about a nanosecond.
#[test]
fn each_charge_under_other_parameters_costs_about_a_nanosecond() {
    let bucket =
        |count, burst| Limit::from(TokenBucket::new(tollgate_core::Rate::new(count, HOUR).unwrap(), burst).unwrap());
    let (one, other) = (bucket(997, 500), bucket(991, 400));
    on_redis_and_valkey(async |store, store_clock| {
        store_clock.set(START);
        let mut reset = Nanos::ZERO;
        for turn in 0..100 {
            reset = ask(store, StoreVerb::Check, charge("k", if turn % 2 == 0 { one } else { other }, 1)).await.reports
                [0]
            .reset;
        }
        // The last charge has the limit of 991 per hour. The reset is also rounded up to a microsecond.
        let exact = 100 * HOUR.as_nanos() / 991;
        assert!((exact..exact + 100 + 1_000).contains(&reset.as_nanos()), "{reset}");
    });
}

#[test]
fn refunds_and_renewals_apply_under_the_parameters_of_the_state() {
    on_redis_and_valkey(async |store, store_clock| {
        store_clock.set(START);
        for (index, (large, small)) in per_hour(100).into_iter().zip(per_hour(2)).enumerate() {
            let key = index.to_string();
            let taken = ask(store, StoreVerb::Check, charge(&key, large, 60)).await;
            let with_stamps =
                |limit: Limit, cost, stamps: Stamps| OwnedCharge { stamps: Some(stamps), ..charge(&key, limit, cost) };
            let renewed = ask(store, StoreVerb::Renew, with_stamps(small, 60, taken.stamps)).await;
            assert_eq!(renewed.taken, if matches!(large, Limit::Concurrency(_)) { 60 } else { 0 });
            let refund = ask(store, StoreVerb::Refund, with_stamps(small, 59, taken.stamps)).await;
            assert_eq!(refund.taken, 59, "{large:?}");
            assert_eq!((refund.reports[0].limit, refund.reports[0].remaining), (2, 1), "{large:?}");
            assert_eq!(ask(store, StoreVerb::Peek, charge(&key, large, 1)).await.reports[0].remaining, 99, "{large:?}");
        }
    });
}

#[test]
fn admitted_take_moves_the_state_to_the_new_parameters() {
    on_redis_and_valkey(async |store, store_clock| {
        store_clock.set(START);
        let (olds, news) = (per_hour(100), per_hour(50));
        for (from, old) in olds.iter().enumerate() {
            for (to, new) in news.iter().enumerate() {
                let key = format!("{from} to {to}");
                assert!(ask(store, StoreVerb::Check, charge(&key, *old, 30)).await.outcome.is_admitted());
                let taken = ask(store, StoreVerb::Check, charge(&key, *new, 15)).await;
                assert!(taken.outcome.is_admitted(), "{old:?} {new:?}: {taken:?}");
                assert_eq!(taken.reports[0].remaining, 5, "{old:?} {new:?}");
                assert!(!ask(store, StoreVerb::Check, charge(&key, *new, 6)).await.outcome.is_admitted());
                // After converting back, 45 of 100 tokens are spent.
                let peek = ask(store, StoreVerb::Peek, charge(&key, *old, 1)).await;
                assert_eq!(peek.reports[0].remaining, 55, "{old:?} {new:?}");
            }
        }
    });
}

#[test]
fn value_of_the_previous_version_is_replaced() {
    support::on_redis_and_valkey(async |server| {
        let store = store(&server).await;
        let limit = TokenBucket::new("1/day".parse().unwrap(), 5).unwrap();
        let name = name_of("k");
        for value in ["\u{1}", "\u{1}\u{0}\u{0}", "\u{1}\u{8}\u{0}anything"] {
            server.command(&["SET", &name, value]);
            let peek = ask(&store, StoreVerb::Peek, charge("k", limit.into(), 1)).await;
            assert_eq!(peek.reports[0].remaining, 5);
            assert_eq!(server.command(&["GET", &name]).bytes(), value.as_bytes(), "a peek writes nothing");
            let taken = ask(&store, StoreVerb::Check, charge("k", limit.into(), 2)).await;
            assert_eq!((taken.taken, taken.reports[0].remaining), (Cost::new(2).get(), 3));
            assert!(server.command(&["PTTL", &name]).number() > 0);
        }
    });
}
