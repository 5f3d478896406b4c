//! Bans by the clock of the store, which ticks in microseconds.

#![allow(clippy::unwrap_used, reason = "what fails here ends the test")]

mod support;

use std::time::Duration;

use support::{on_both, store};
use tollgate_core::{Nanos, Outcome, Retry};
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Decisions, Engine, Request, Store};

/// What a check comes to, and whether a ban says so.
async fn check<S: Store>(engine: &Engine<S>) -> (Outcome, bool) {
    let items = [tollgate_engine::Item::default()];
    let mut decisions = Decisions::default();
    let decision = engine.check(&Request::new("d", &items), &mut decisions).await.unwrap();
    (decision.outcome(), decision.is_banned())
}

fn rules(rule: &str) -> Rules {
    let text = format!("domain: d\nrules:\n- {rule}\n");
    Rules::read(&[Source { name: "rules", text: text.as_bytes() }]).unwrap()
}

#[test]
fn the_refusal_that_starts_a_ban_tells_its_length_and_who_waits_as_told_passes() {
    on_both(async |server| {
        let engine = Engine::new(store(&server).await).unwrap();
        engine.put(&rules("{id: r, limit: 3/300ms, ban: {after: 1, within: 1s, for: 400ms}}")).unwrap();
        // However many passed before, it is as long as is written, in the ticks of the store's clock.
        let (outcome, banned) = loop {
            let said = check(&engine).await;
            if !said.0.is_allowed() {
                break said;
            }
        };
        assert_eq!((outcome, banned), (Outcome::Deny(Retry::After(Nanos::from_millis(400))), true));
        // Nobody who asks in between makes it longer.
        let (Outcome::Deny(Retry::After(left)), true) = check(&engine).await else { panic!("it is banned") };
        assert!(left < Nanos::from_millis(400) && left.as_nanos().is_multiple_of(1_000), "{left}");
        tokio::time::sleep(Duration::from(left)).await;
        assert_eq!(check(&engine).await, (Outcome::Allow, false));
    });
}

#[test]
fn years_are_no_longer_than_the_store_can_count() {
    on_both(async |server| {
        let engine = Engine::new(store(&server).await).unwrap();
        engine.put(&rules("{id: r, limit: 1/h, ban: {after: 1, within: 1s, for: 3650 days}}")).unwrap();
        assert_eq!(check(&engine).await, (Outcome::Allow, false));
        let years = Nanos::from_secs(3_650 * 86_400);
        assert_eq!(check(&engine).await, (Outcome::Deny(Retry::After(years)), true));
    });
}
