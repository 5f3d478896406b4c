//! Refusals that are repeated without asking the store.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use support::{OwnedCharge, bucket, check, on_redis_and_valkey, run_groups, store};
use tokio::time::Instant;
use tollgate_core::{Limit, Outcome, Retry, TokenBucket};
use tollgate_engine::store::StoreVerb;

#[test]
fn refused_key_under_attack_costs_at_most_twenty_calls_per_second() {
    on_redis_and_valkey(async |server| {
        let store = Arc::new(store(&server).await);
        while check(&*store, "k", bucket(5)).await.unwrap() {}
        let (calls, start) = (store.counts().calls, Instant::now());
        let attackers = (0..50).map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..2_000 {
                    assert_eq!(check(&*store, "k", bucket(5)).await, Ok(false));
                }
            })
        });
        for attacker in attackers.collect::<Vec<_>>() {
            attacker.await.unwrap();
        }
        let (calls, seconds) = (store.counts().calls - calls, start.elapsed().as_secs_f64());
        assert!(calls as f64 <= 20.0 * (seconds + 1.0), "{calls} calls for 100,000 requests in {seconds} s");
    });
}

#[test]
fn request_is_admitted_after_the_wait_of_a_repeated_refusal() {
    on_redis_and_valkey(async |server| {
        let store = store(&server).await;
        let limit = Limit::from(TokenBucket::new("10/s".parse().unwrap(), 1).unwrap());
        let ask = async || {
            let groups = [(StoreVerb::Check, vec![OwnedCharge::new("k", limit, 1)])];
            run_groups(&store, &groups).await.remove(0).unwrap()[0].outcome
        };
        assert!(ask().await.is_admitted());
        while let Outcome::Deny(Retry::After(_)) = ask().await {
            let (calls, again) = (store.counts().calls, ask().await);
            let Outcome::Deny(Retry::After(wait)) = again else { break };
            if store.counts().calls == calls {
                tokio::time::sleep(Duration::from(wait)).await;
                assert!(ask().await.is_admitted(), "after a wait of {wait}");
                return;
            }
        }
        // This line is reached only if the machine stalled for longer than a wait, so that no refusal
        // was repeated.
    });
}

#[test]
fn refunds_resets_and_smaller_costs_pass_immediately() {
    on_redis_and_valkey(async |server| {
        let store = store(&server).await;
        let one = |cost| vec![OwnedCharge::new("k", bucket(5), cost)];
        let passes =
            async |cost| run_groups(&store, &[(StoreVerb::Check, one(cost))]).await.remove(0).unwrap()[0].outcome;
        assert!(passes(3).await.is_admitted());
        assert!(!passes(3).await.is_admitted());
        assert!(!passes(3).await.is_admitted());
        assert!(passes(2).await.is_admitted(), "a refusal of cost 3 does not refuse cost 2");
        assert!(!passes(1).await.is_admitted());
        run_groups(&store, &[(StoreVerb::Refund, one(1))]).await.remove(0).unwrap();
        assert!(passes(1).await.is_admitted(), "after a refund");
        assert!(!passes(1).await.is_admitted());
        let groups = [(StoreVerb::Reset, one(1)), (StoreVerb::Check, one(5))];
        let answers = run_groups(&store, &groups).await;
        assert!(answers[1].as_ref().unwrap()[0].outcome.is_admitted(), "after a reset in the same batch");
    });
}
