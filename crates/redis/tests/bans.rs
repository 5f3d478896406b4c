//! Bans by the store's clock, which has a resolution of one microsecond.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use std::time::Duration;

use support::{on_redis_and_valkey, store, with_manual_clock};
use tollgate_core::{Nanos, Outcome, Retry};
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Decisions, Engine, Request, Store};
use tollgate_testkit::servers::Kind;

/// Returns the outcome of a check, and whether a ban caused the outcome.
async fn check<S: Store>(engine: &Engine<S>) -> (Outcome, bool) {
    let items = [tollgate_engine::Item::default()];
    let mut decisions = Decisions::default();
    let decision = engine.check(&Request::new("d", &items), &mut decisions).await.unwrap();
    (decision.outcome(), decision.is_refused_by_ban())
}

fn parse_rule(rule: &str) -> Rules {
    let text = format!("domain: d\nrules:\n- {rule}\n");
    Rules::read(&[Source { name: "rules", text: text.as_bytes() }]).unwrap()
}

#[test]
fn refusal_that_starts_a_ban_reports_its_length_exactly() {
    on_redis_and_valkey(async |server| {
        let engine = Engine::new(store(&server).await).unwrap();
        engine.put(&parse_rule("{id: r, limit: 3/300ms, ban: {after: 1, within: 1s, for: 400ms}}")).unwrap();
        // Earlier requests do not change the length of the ban, which is exact to one tick of the store's clock.
        let (outcome, banned) = loop {
            let said = check(&engine).await;
            if !said.0.is_admitted() {
                break said;
            }
        };
        assert_eq!((outcome, banned), (Outcome::Deny(Retry::After(Nanos::from_millis(400))), true));
        // Requests during the ban do not prolong it.
        let (Outcome::Deny(Retry::After(left)), true) = check(&engine).await else { panic!("it is banned") };
        assert!(left < Nanos::from_millis(400) && left.as_nanos().is_multiple_of(1_000), "{left}");
        tokio::time::sleep(Duration::from(left)).await;
        assert_eq!(check(&engine).await, (Outcome::Allow, false));
    });
}

#[test]
fn bans_of_years_are_within_the_range_of_the_store() {
    on_redis_and_valkey(async |server| {
        let engine = Engine::new(store(&server).await).unwrap();
        engine.put(&parse_rule("{id: r, limit: 1/h, ban: {after: 1, within: 1s, for: 3650 days}}")).unwrap();
        assert_eq!(check(&engine).await, (Outcome::Allow, false));
        let years = Nanos::from_secs(3_650 * 86_400);
        assert_eq!(check(&engine).await, (Outcome::Deny(Retry::After(years)), true));
    });
}

/// Makes a check at each instant, in microseconds of the store's clock. Returns the instants at which a ban refused the
/// check.
async fn banned_at(kind: Kind, rule: &str, instants: &[u64]) -> Vec<u64> {
    let (_server, store, mut store_clock) = with_manual_clock(kind).await;
    let engine = Engine::new(store).unwrap();
    engine.put(&parse_rule(rule)).unwrap();
    let mut banned = Vec::new();
    for instant in instants {
        store_clock.set(1_790_000_000_000_000 + instant);
        if check(&engine).await.1 {
            banned.push(*instant);
        }
    }
    banned
}

/// Runs a future on a new runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn ban_counts_refusals_in_a_sliding_window() {
    let rule = "{id: r, limit: 1/day, ban: {after: 3, within: 10s, for: 60s}}";
    let tenths = |tenths: u64| tenths * 100_000;
    for kind in Kind::ALL {
        // The first request is admitted. The refusals at 7.0 s and 17.0 s are exactly 10 s apart, which does not count
        // as within 10 s.
        let instants = [0, 70, 169, 170, 171].map(tenths);
        assert_eq!(block_on(banned_at(kind, rule, &instants)), [tenths(171)]);
        // One tick earlier, the last refusal is within 10 s.
        let instants = [0, tenths(70), tenths(169), tenths(170) - 1];
        assert_eq!(block_on(banned_at(kind, rule, &instants)), [tenths(170) - 1]);
        let instants = [0, 50, 100, 150, 200, 250, 300].map(tenths);
        assert!(block_on(banned_at(kind, rule, &instants)).is_empty());
    }
}

#[test]
fn refusals_at_the_instant_a_ban_ends_count_towards_the_next_ban() {
    let rule = "{id: r, limit: 1/day, ban: {after: 1, within: 1h, for: 1s}}";
    let second = 1_000_000;
    for kind in Kind::ALL {
        let bans = [1, 1 + second, 1 + 2 * second, 2 + 3 * second];
        // Each ban starts when the previous ban ends, or one tick later.
        let instants = [0, bans[0], bans[1] - 1, bans[1], bans[2] - 1, bans[2], bans[3] - 2, bans[3]];
        assert_eq!(block_on(banned_at(kind, rule, &instants)), instants[1..]);
    }
}
