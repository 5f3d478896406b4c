//! Checks that the engine on Redis and on Valkey decides like the rule model, with a manual clock.
//!
//! `TOLLGATE_MODEL_DECISIONS` sets the number of compared decisions per server, and `TOLLGATE_MODEL_SEED` sets the
//! first seed.

#![allow(clippy::print_stdout, reason = "a long run prints how much it compared")]
#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use std::sync::Arc;

use support::{StoreClock, with_manual_clock};
use tokio::runtime::Runtime;
use tollgate::clock::ManualClock;
use tollgate_core::{Cost, Nanos};
use tollgate_engine::{Engine, MemoryStore};
use tollgate_redis::RedisStore;
use tollgate_testkit::rule_model::lockstep::{self, RuleSubject};
use tollgate_testkit::rule_model::settle::Settlement;
use tollgate_testkit::rule_model::{Answer, Request, RuleSet, Verb, findings, general_laws, memory};
use tollgate_testkit::servers::{Kind, Server};

/// The engine on a store with a manual clock.
struct EngineOnRedis {
    runtime: Runtime,
    server: Server,
    store: Arc<RedisStore>,
    store_clock: StoreClock,
    clock: Arc<ManualClock>,
    at: u64,
    engine: Engine<Arc<RedisStore>, MemoryStore<ManualClock>>,
}

impl EngineOnRedis {
    fn start(kind: Kind) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (server, store, store_clock) = runtime.block_on(with_manual_clock(kind));
        let store = Arc::new(store);
        let (clock, engine) = engine_with_clock_at(&store, 0);
        Self { runtime, server, store, store_clock, clock, at: 0, engine }
    }
}

fn engine_with_clock_at(
    store: &Arc<RedisStore>,
    at: u64,
) -> (Arc<ManualClock>, Engine<Arc<RedisStore>, MemoryStore<ManualClock>>) {
    let clock = Arc::new(ManualClock::at(at));
    let fallback = MemoryStore::with_clock(200, clock.clone()).unwrap();
    let engine = Engine::with_fallback(store.clone(), fallback).with_clock(clock.clone());
    (clock, engine)
}

impl RuleSubject for EngineOnRedis {
    fn tick(&self) -> u64 {
        1_000
    }

    fn begin(&mut self, at: u64) {
        self.server.command(&["FLUSHALL"]);
        self.store_clock.set(at / 1_000);
        (self.clock, self.engine) = engine_with_clock_at(&self.store, at);
        self.at = at;
    }

    fn advance_to(&mut self, at: u64) {
        self.store_clock.set(at / 1_000);
        self.clock.advance(Nanos::from_nanos(at - self.at));
        self.at = at;
    }

    fn put(&mut self, rules: &RuleSet) {
        memory::put(&self.engine, rules);
    }

    fn ask(&mut self, verb: Verb, request: &Request) -> (Answer, String) {
        self.runtime.block_on(memory::decide_request(&self.engine, verb, request))
    }

    fn refund(&mut self, receipt: &str) -> u64 {
        self.runtime.block_on(self.engine.refund(&memory::parse_receipt(receipt))).unwrap().get()
    }

    fn commit(&mut self, receipt: &str, cost: u64) -> Settlement {
        memory::to_settlement(
            self.runtime.block_on(self.engine.commit(&memory::parse_receipt(receipt), Cost::new(cost))).unwrap(),
        )
    }

    fn renew(&mut self, receipt: &str) -> bool {
        self.runtime.block_on(self.engine.renew(&memory::parse_receipt(receipt))).unwrap()
    }

    fn reset(&mut self, request: &Request) -> usize {
        self.runtime.block_on(memory::reset(&self.engine, request))
    }
}

fn number_from_env(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn compare(kind: Kind) {
    let (seed, decisions) =
        (number_from_env("TOLLGATE_MODEL_SEED", 1), number_from_env("TOLLGATE_MODEL_DECISIONS", 1_500));
    let (compared, traces) = lockstep::compare_random_traces(&mut EngineOnRedis::start(kind), seed, decisions, &[]);
    println!("{kind:?}: {compared} decisions of {traces} traces from seed {seed} show no difference");
}

#[test]
fn redis_decides_as_the_model_does() {
    compare(Kind::Redis);
}

#[test]
fn valkey_decides_as_the_model_does() {
    compare(Kind::Valkey);
}

#[test]
fn past_differences_do_not_reappear() {
    for kind in Kind::ALL {
        let found = findings::run_known_traces(&mut EngineOnRedis::start(kind), &[]);
        assert!(found.is_empty(), "{kind:?}: {}", found.join("\n"));
    }
}

#[test]
fn general_laws_of_rules_hold() {
    for kind in Kind::ALL {
        general_laws::assert_all_laws(&mut EngineOnRedis::start(kind), 4);
    }
}
