//! Tests keys in the server (values of other programs, damaged values, flushes, expiry), and calls that several callers
//! share.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use std::sync::Arc;

use crate::support;

use support::random::{self, Rng};
use support::{
    LONG_DEADLINE, NoLimitTable, OwnedCharge, bucket, check, config_for, name_of, on_redis_and_valkey, remaining,
    run_groups, store, wait_until_up, with_manual_clock,
};
use tollgate_core::{
    Ask, Concurrency, Cost, FixedWindow, LeakyBucket, Limit, Nanos, Phase, SlidingLog, SlidingWindow, TokenBucket,
};
use tollgate_engine::Store;
use tollgate_engine::store::{Answers, Batch, Group, StoreError, StoreVerb};
use tollgate_redis::{Config, RedisStore, Scripts};
use tollgate_testkit::servers::{Kind, Reply, Server};

#[test]
fn flushed_script_cache_is_refilled_and_nothing_is_lost() {
    on_redis_and_valkey(async |server| {
        let store = store(&server).await;
        for left in [4, 3, 2] {
            assert_eq!(check(&store, "k", bucket(5)).await, Ok(true));
            assert_eq!(server.command(&["SCRIPT", "FLUSH"]), Reply::Status("OK".into()));
            assert_eq!(remaining(&store, "k", bucket(5)).await, left);
        }
        assert_eq!(store.counts().failures, 0);
    });
}

#[test]
fn after_flushall_limits_start_unused_and_hold() {
    on_redis_and_valkey(async |server| {
        let store = store(&server).await;
        let pair = || vec![OwnedCharge::new("k", bucket(2), 2)];
        for _ in 0..2 {
            assert_eq!(check(&store, "k", bucket(2)).await, Ok(true));
            assert_eq!(check(&store, "k", bucket(2)).await, Ok(true));
            server.command(&["FLUSHALL"]);
        }
        assert_eq!(check(&store, "k", bucket(2)).await, Ok(true));
        let refused = run_groups(&store, &[(StoreVerb::Check, pair())]).await.remove(0).unwrap();
        assert!(!refused[0].outcome.is_admitted());
        assert_eq!(store.counts().failures, 0);
    });
}

/// Keys in the engine's format, for a rule called `test`. A rejection names this rule.
const GOOD_KEY: &str = "\u{1}r\u{1}d\u{4}test good";
const BAD_KEY: &str = "\u{1}r\u{1}d\u{4}test bad";

/// Charges a healthy key before and after a key with a foreign value, and together with that key in one group.
async fn assert_only_its_group_is_rejected(store: &impl Store, says: &str) {
    let (good, bad) = (OwnedCharge::new(GOOD_KEY, bucket(9), 1), OwnedCharge::new(BAD_KEY, bucket(9), 1));
    let before = remaining(store, GOOD_KEY, bucket(9)).await;
    let check =
        |charges: &[&OwnedCharge]| (StoreVerb::Check, charges.iter().map(|&charge| charge.clone()).collect::<Vec<_>>());
    let said = run_groups(store, &[check(&[&good]), check(&[&bad]), check(&[&good, &bad]), check(&[&good])]).await;
    for place in [1, 2] {
        let rejected = said[place].as_ref().unwrap_err();
        assert!(
            matches!(rejected, StoreError::Rejected { why } if why.contains(says) && why.contains("test")),
            "{rejected}"
        );
    }
    for place in [0, 3] {
        assert!(said[place].as_ref().unwrap()[0].outcome.is_admitted());
    }
    assert_eq!(remaining(store, GOOD_KEY, bucket(9)).await, before - 2, "the rejected group took nothing");
}

#[test]
fn key_of_another_type_rejects_only_its_group() {
    on_redis_and_valkey(async |server| {
        let (store, name) = (store(&server).await, name_of(BAD_KEY));
        server.command(&["RPUSH", &name, "theirs"]);
        assert_only_its_group_is_rejected(&store, "another type").await;
        assert_eq!(server.command(&["LLEN", &name]).number(), 1, "the foreign value is kept");
        server.command(&["DEL", &name]);
        assert_eq!(
            check(&store, BAD_KEY, bucket(9)).await,
            Ok(true),
            "the key works after the foreign value is deleted"
        );
    });
}

#[test]
fn foreign_value_rejects_only_its_group() {
    on_redis_and_valkey(async |server| {
        let (store, name) = (store(&server).await, name_of(BAD_KEY));
        for value in [
            "",
            "1",
            "some text of another program",
            "thirteen byte",
            "\u{2}\u{0}\u{0}",
            "\u{2}\u{1}\u{0}\u{1}",
            "\u{3}\u{0}\u{0}",
        ] {
            server.command(&["SET", &name, value]);
            assert_only_its_group_is_rejected(&store, "value of another program").await;
            assert_eq!(server.command(&["GET", &name]).bytes(), value.as_bytes(), "the foreign value is kept");
            server.command(&["DEL", &name_of(GOOD_KEY)]);
        }
    });
}

/// Changes, truncates and extends real values. Some damaged values still decode as a state, and every call is answered.
#[test]
fn damaged_values_affect_no_other_group() {
    on_redis_and_valkey(async |server| {
        let store = store(&server).await;
        let mut link = server.connect();
        let mut rng = Rng::new(5);
        let name = name_of(BAD_KEY);
        for turn in 0..1_500 {
            let bad = OwnedCharge { limits_id: 2 * turn, ..OwnedCharge::new(BAD_KEY, random::any_limits(&mut rng), 1) };
            link.command(&["DEL", &name]);
            run_groups(&store, &[(StoreVerb::Check, vec![bad.clone()])]).await;
            let Reply::Bytes(mut value) = link.command(&["GET", &name]) else { continue };
            for _ in 0..rng.any_amount(4) {
                let place = rng.below(value.len() as u64) as usize;
                match rng.below(6) {
                    0 => value.truncate(place.max(1)),
                    1 => value.insert(place, rng.below(256) as u8),
                    _ => value[place] = rng.below(256) as u8,
                }
            }
            link.command(&[b"SET", name.as_bytes(), &value]);
            let other =
                OwnedCharge { limits_id: 2 * turn + 1, ..OwnedCharge::new(BAD_KEY, random::any_limits(&mut rng), 1) };
            let good = OwnedCharge { limits_id: u32::MAX, ..OwnedCharge::new(GOOD_KEY, bucket(50_000), 1) };
            let groups = [bad.clone(), good, other, bad].map(|charge| (StoreVerb::Check, vec![charge]));
            let said = run_groups(&store, &groups).await;
            assert!(said[1].as_ref().is_ok_and(|said| said[0].outcome.is_admitted()), "{turn}: {said:?} for {value:?}");
            let answered = |said: &Result<_, _>| matches!(said, Ok(_) | Err(StoreError::Rejected { .. }));
            assert!(said.iter().all(answered), "{turn}: {said:?} for {value:?}");
        }
    });
}

/// Returns limits of six algorithms. Each limit is unused again one minute after one unit was taken.
fn one_limit_of_each_kind() -> Vec<Limit> {
    let (rate, minute) = ("1/min".parse().unwrap(), Nanos::from_secs(60));
    vec![
        TokenBucket::new(rate, 2).unwrap().into(),
        LeakyBucket::new(rate, 2).unwrap().into(),
        FixedWindow::new(2, minute).unwrap().into(),
        SlidingWindow::new(2, Nanos::from_secs(30)).unwrap().into(),
        SlidingLog::new(2, minute).unwrap().into(),
        Concurrency::new(2, minute).unwrap().into(),
    ]
}

#[test]
fn every_key_expires_soon_after_it_is_unused() {
    on_redis_and_valkey(async |server| {
        let store = store(&server).await;
        let together = tollgate_core::Limits::new(one_limit_of_each_kind()).unwrap();
        run_groups(
            &store,
            &[(StoreVerb::Check, vec![OwnedCharge { limits_id: 99, ..OwnedCharge::new("all", together, 1) }])],
        )
        .await;
        for (place, limit) in one_limit_of_each_kind().into_iter().enumerate() {
            let charge = OwnedCharge { limits_id: place as u32, ..OwnedCharge::new(&place.to_string(), limit, 1) };
            // The key is charged twice, so that an existing value is written too.
            run_groups(&store, &[(StoreVerb::Check, vec![charge.clone()])]).await;
            run_groups(&store, &[(StoreVerb::Check, vec![charge])]).await;
        }
        let names = server.command(&["KEYS", "tollgate:{*"]).list();
        assert_eq!(names.len(), 7);
        for name in names {
            let name = String::from_utf8(name.bytes()).unwrap();
            let left = server.command(&["PTTL", &name]).number();
            // Two units refill in two minutes. A token bucket that is used again is kept up to 21 seconds longer.
            assert!((1..=141_250).contains(&left), "{name} expires in {left} ms");
        }
    });
}

/// The debt lasts three windows of one minute on average. The two windows after the current window may be 1.5 times as
/// long.
#[test]
fn debt_is_kept_if_calendar_windows_are_longer_than_average() {
    on_redis_and_valkey(async |server| {
        let store = store(&server).await;
        let limit = FixedWindow::new(2, Nanos::from_secs(60)).unwrap().phase(Phase::Given(0)).max_debt(4).unwrap();
        let charge = OwnedCharge { ask: Ask::Regardless(Cost::new(6)), ..OwnedCharge::new("k", limit, 1) };
        run_groups(&store, &[(StoreVerb::Check, vec![charge])]).await;
        let left = server.command(&["PTTL", &name_of("k")]).number();
        assert!((200_000..=241_250).contains(&left), "the key expires in {left} ms");
    });
}

#[test]
fn key_without_expiry_gets_one_with_its_next_write() {
    on_redis_and_valkey(async |server| {
        let store = store(&server).await;
        for (place, limit) in one_limit_of_each_kind().into_iter().enumerate() {
            let key = place.to_string();
            let charge = OwnedCharge { limits_id: place as u32, ..OwnedCharge::new(&key, limit, 1) };
            run_groups(&store, &[(StoreVerb::Check, vec![charge.clone()])]).await;
            assert_eq!(server.command(&["PERSIST", &name_of(&key)]).number(), 1);
            run_groups(&store, &[(StoreVerb::Check, vec![charge])]).await;
            assert!(server.command(&["PTTL", &name_of(&key)]).number() > 0, "key {key}");
        }
    });
}

#[test]
fn key_without_expiry_becomes_unused_in_time() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (server, store, mut store_clock) = with_manual_clock(Kind::Redis).await;
        for (place, limit) in one_limit_of_each_kind().into_iter().enumerate() {
            let key = place.to_string();
            let charge = OwnedCharge { limits_id: place as u32, ..OwnedCharge::new(&key, limit, 2) };
            store_clock.set(1_800_000_000_000_000);
            let said = run_groups(&store, &[(StoreVerb::Check, vec![charge.clone()])]).await.remove(0).unwrap();
            assert!(said[0].outcome.is_admitted());
            server.command(&["PERSIST", &name_of(&key)]);
            store_clock.set(1_800_000_000_000_000 + 121_000_000);
            let said = run_groups(&store, &[(StoreVerb::Check, vec![charge])]).await.remove(0).unwrap();
            assert!(said[0].outcome.is_admitted(), "key {key}: {said:?}");
        }
    });
}

#[test]
fn clock_of_the_store_decides() {
    on_redis_and_valkey(async |server| {
        let store = store(&server).await;
        let time = || {
            let time =
                server.command(&["TIME"]).list().into_iter().map(|part| String::from_utf8(part.bytes()).unwrap());
            let parts: Vec<u64> = time.map(|part| part.parse().unwrap()).collect();
            parts[0] * 1_000_000 + parts[1]
        };
        let before = time();
        let charge = OwnedCharge::new("k", bucket(5), 1);
        let charges = [charge.borrow()];
        let mut answers = Answers::default();
        let groups = [Group { verb: StoreVerb::Check, charges: &charges }];
        store.run(Batch { limit_table: &NoLimitTable, groups: &groups }, &mut answers).await;
        let at = answers.group(0).unwrap().decided_at().as_nanos() / 1_000;
        assert!((before..=time()).contains(&at));
    });
}

/// One call charges a key under two sets of parameters, several times each. The special script must decide like the
/// general script.
#[test]
fn both_scripts_decide_alike_under_changing_parameters() {
    on_redis_and_valkey(async |server| {
        let special = store(&server).await;
        let general = RedisStore::with_scripts(config_for(&server), Scripts::new().without_special()).await;
        let mut left = Vec::new();
        for (node, key) in [(&special, "special"), (&general, "general")] {
            // The second charge marks the value (see `special.lua`).
            assert_eq!((check(node, key, bucket(7)).await, check(node, key, bucket(7)).await), (Ok(true), Ok(true)));
            let charges = [7, 7, 9, 9, 7, 7, 9, 9, 9].map(|burst| {
                let charge = OwnedCharge { limits_id: burst as u32, ..OwnedCharge::new(key, bucket(burst), 1) };
                (StoreVerb::Check, vec![charge])
            });
            let said = run_groups(node, &charges).await;
            let said = said.into_iter().map(|said| said.unwrap()[0].clone());
            left.push(said.map(|said| (said.outcome.is_admitted(), said.reports[0].remaining)).collect::<Vec<_>>());
        }
        assert_eq!(left[0], left[1]);
        assert_eq!(left[0].iter().filter(|(is_admitted, _)| *is_admitted).count(), 7, "all 9 tokens are used");
    });
}

/// Older nodes have only the general script. Both scripts read and write the same values.
#[test]
fn nodes_with_and_without_the_special_script_share_limits() {
    on_redis_and_valkey(async |server| {
        let new = store(&server).await;
        let old = RedisStore::with_scripts(config_for(&server), Scripts::new().without_special()).await;
        for takes in [[true, false, true, false], [true, true, false, true], [true, true, true, false]] {
            let key = format!("{takes:?}");
            for by_new in takes {
                let node = if by_new { &new } else { &old };
                assert_eq!(check(node, &key, bucket(4)).await, Ok(true));
            }
            assert_eq!((remaining(&new, &key, bucket(4)).await, remaining(&old, &key, bucket(4)).await), (0, 0));
            assert_eq!(
                (check(&old, &key, bucket(4)).await, check(&new, &key, bucket(4)).await),
                (Ok(false), Ok(false))
            );
            let left = server.command(&["PTTL", &name_of(&key)]).number();
            assert!(left > 4 * 86_000_000, "{key} expires in {left} ms, while it is in use");
        }
    });
}

/// Callers that were just answered ask again before the next batch is sent. So a call contains one request of every
/// caller, not of only half of the callers.
#[test]
fn answered_callers_share_the_next_call() {
    const CALLERS: u64 = 16;
    const ROUNDS: u64 = 50;
    let server = Server::start(Kind::Redis);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let config = Config::from_url(&server.url()).unwrap().deadline(LONG_DEADLINE);
        let store = Arc::new(RedisStore::connect(config).await);
        wait_until_up(&store).await;
        let before = store.counts().calls;
        let ask = |caller: u64| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    assert_eq!(check(&store, &format!("k{caller}"), bucket(1_000)).await, Ok(true));
                }
            })
        };
        for caller in (0..CALLERS).map(ask).collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        let calls = store.counts().calls - before;
        assert!(calls <= ROUNDS * 4 / 3, "{calls} calls for {ROUNDS} rounds of {CALLERS} callers");
    });
}
