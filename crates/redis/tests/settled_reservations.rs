//! Settling reservations on a real server.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use support::{on_redis_and_valkey, store};
use tollgate_core::Cost;
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Decisions, Engine, Item, Receipt, Request};
use tollgate_redis::RedisStore;

/// Limits that do not refill during a test.
const RULES: &str = "domain: d\nrules:\n\
    - {id: mine, limit: 100/week, algorithm: fixed_window, phase: first_request, max_debt: 50}\n\
    - {id: all, limit: 1000/week, algorithm: fixed_window, phase: first_request, max_debt: 50}\n";

async fn reserve(engine: &Engine<RedisStore>, cost: u64) -> Receipt {
    let items = [Item::default().cost(cost)];
    let mut decisions = Decisions::default();
    engine.check(&Request::new("d", &items), &mut decisions).await.unwrap().receipt()
}

async fn remaining(engine: &Engine<RedisStore>) -> Vec<u64> {
    let items = [Item::default()];
    let mut decisions = Decisions::default();
    let decision = engine.peek(&Request::new("d", &items), &mut decisions).await.unwrap();
    decision.reports().map(|limit| limit.report.remaining).collect()
}

#[test]
fn commit_above_the_reservation_charges_all_limits_or_none() {
    on_redis_and_valkey(async |server| {
        let engine = Engine::new(store(&server).await).unwrap();
        engine.put(&Rules::read(&[Source { name: "rules", text: RULES.as_bytes() }]).unwrap()).unwrap();
        let receipt = reserve(&engine, 30).await;
        let settled = engine.commit(&receipt, Cost::new(151)).await.unwrap();
        assert_eq!((settled.charged, settled.unpaid), (Cost::ZERO, Cost::new(121)));
        assert_eq!(remaining(&engine).await, [70, 970], "no part of the additional cost is charged");
        let settled = engine.commit(&receipt, Cost::new(150)).await.unwrap();
        assert_eq!((settled.charged, settled.unpaid), (Cost::new(120), Cost::ZERO));
        assert_eq!(remaining(&engine).await, [0, 850]);
    });
}
