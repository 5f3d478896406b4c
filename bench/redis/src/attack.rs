//! Floods one refused key with requests, and counts the store calls.

use std::time::Instant;

use anyhow::{Result, ensure};
use tollgate_core::{Limit, TokenBucket};
use tollgate_engine::store::Consistency;
use tollgate_testkit::servers::{Kind, Server};

use crate::check_goal;
use crate::contenders::TollgateStore;

const REQUESTS: u32 = 100_000;
const CALLERS: u32 = 64;
const MAX_CALLS_PER_SECOND: f64 = 20.0;

/// Floods a refused key. Returns whether a goal was missed.
pub(crate) async fn flood_refused_key(kind: Kind) -> Result<bool> {
    let server = Server::start(kind);
    println!("\n{kind:?}, {REQUESTS} requests for one refused key by {CALLERS} callers");
    let mut missed = false;
    for (name, consistency) in [("strict", Consistency::Strict), ("leased", Consistency::Leased)] {
        let limit = Limit::from(TokenBucket::new("1/day".parse()?, 1)?);
        let ours = TollgateStore::with_namespace(&server.url(), name, limit.into(), consistency).await?;
        while ours.ask(0).await? {}
        let (before, start) = (ours.store.counts().calls, Instant::now());
        let attackers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let ours = ours.clone();
                tokio::spawn(async move {
                    for _ in (caller..REQUESTS).step_by(CALLERS as usize) {
                        ensure!(!ours.ask(0).await?, "a request was admitted");
                    }
                    Ok(())
                })
            })
            .collect();
        for attacker in attackers {
            attacker.await??;
        }
        let (seconds, calls) = (start.elapsed().as_secs_f64(), ours.store.counts().calls - before);
        // An attack that is shorter than a second is counted as one second.
        let rate = calls as f64 / seconds.max(1.0);
        let what = format!("{name}: store calls per second ({calls} calls in {seconds:.2} s)");
        missed |= check_goal(&what, rate, rate <= MAX_CALLS_PER_SECOND, "at most 20");
    }
    Ok(missed)
}
