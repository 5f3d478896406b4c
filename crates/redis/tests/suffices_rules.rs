//! Rules with `suffices` on a real server. Several engines decide concurrently, and their decisions are as exact as in
//! memory.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use std::sync::Arc;

use support::{on_redis_and_valkey, store};
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Attribute, Decisions, Engine, Item, Request};
use tollgate_redis::RedisStore;
use tollgate_testkit::servers::Server;

type RedisEngine = Engine<RedisStore>;

/// Limits that do not refill during a test.
const RULES: &str = "domain: d\nrules:\n\
    - {id: own, when: {own: {present: true}}, limit: 10/day, suffices: true}\n\
    - {id: team, when: {team: {present: true}}, limit: 20/day, suffices: true}\n\
    - {id: plan, when: {plan: {present: true}}, limit: 30/day, suffices: true}\n\
    - {id: all, limit: 100/day}\n";

async fn engine(server: &Server) -> RedisEngine {
    let engine = Engine::new(store(server).await).unwrap();
    engine.put(&Rules::read(&[Source { name: "rules", text: RULES.as_bytes() }]).unwrap()).unwrap();
    engine
}

async fn check(engine: &RedisEngine, names: &[&str], cost: u64) -> bool {
    let attributes: Vec<Attribute<'_>> = names.iter().map(|name| Attribute::new(*name, "x")).collect();
    let items = [Item::new(&attributes).cost(cost)];
    engine.check(&Request::new("d", &items), &mut Decisions::default()).await.unwrap().is_admitted()
}

async fn remaining(engine: &RedisEngine, name: &str) -> u64 {
    let attributes = [Attribute::new(name, "x")];
    let items = [Item::new(&attributes)];
    let mut decisions = Decisions::default();
    let decision = engine.peek(&Request::new("d", &items), &mut decisions).await.unwrap();
    decision.reports().next().unwrap().report.remaining
}

#[test]
fn one_rule_with_capacity_is_enough_and_only_rules_with_capacity_are_charged() {
    on_redis_and_valkey(async |server| {
        let engine = engine(&server).await;
        let calls = || engine.store().counts().calls;
        let before = calls();
        assert!(check(&engine, &["own", "team", "plan"], 10).await);
        assert_eq!(calls() - before, 1, "if all rules have capacity, one call is enough");
        assert!(check(&engine, &["own", "team", "plan"], 5).await, "without `own`");
        assert_eq!(calls() - before, 3, "a second call omits the rules without capacity");
        assert!(!check(&engine, &["own"], 1).await, "`own` is used up, and no other rule applies");
        assert!(!check(&engine, &["own", "team", "plan"], 16).await, "no rule has a capacity of 16");
        assert!(check(&engine, &["own", "team", "plan"], 6).await, "without `team`, which has 5 left");
        let mut left = Vec::new();
        for name in ["own", "team", "plan", ""] {
            left.push(remaining(&engine, name).await);
        }
        assert_eq!(left, [0, 5, 9, 79], "a refused request spends nothing");
    });
}

#[test]
fn concurrent_requests_pass_up_to_the_largest_limit() {
    on_redis_and_valkey(async |server| {
        let engines = [Arc::new(engine(&server).await), Arc::new(engine(&server).await)];
        let asking: Vec<_> = (0..60)
            .map(|place| {
                let engine = engines[place % engines.len()].clone();
                tokio::spawn(async move { check(&engine, &["own", "team", "plan"], 1).await })
            })
            .collect();
        let mut passed = 0;
        for asked in asking {
            passed += u64::from(asked.await.unwrap());
        }
        assert_eq!(passed, 30);
        for name in ["own", "team", "plan"] {
            assert_eq!(remaining(&engines[0], name).await, 0, "{name}");
        }
    });
}
