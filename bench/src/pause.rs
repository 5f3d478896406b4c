//! Clean-up pauses: a million entries expire while decisions continue. No decision should be delayed by the clean-up.
//!
//! Tollgate makes ten million decisions, half on the expiring keys and half on new keys, with one clock reading after
//! each. The longest gap between two readings is the longest decision. Slices of decisions alternate with equally long
//! slices of an empty loop that only reads the clock. The longest gap of that loop is the noise of the machine.
//! Disturbances are random, but a clean-up would occur in every round. So the best of [`ROUNDS`] rounds must not be
//! longer than the longest gap of the empty loop in any round.
//!
//! The peers clean up in one step: governor on request, throttlecrab inside a decision. The benchmark sets their clocks
//! forward, so that it need not wait for the entries to expire.

use std::num::NonZeroU32;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use throttlecrab::PeriodicStore;

use crate::keys::{Random, numbered_key};
use crate::ours;
use crate::report::{Goal, Report, Row};

const CASE_NAME: &str = "pause";
const ENTRIES: u32 = 1_000_000;
const DECISIONS: usize = 10_000_000;
const DECISIONS_PER_SLICE: usize = 100_000;
const ROUNDS: usize = 3;

/// Runs the case if the report includes it.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    if !report.includes(CASE_NAME) {
        return Ok(());
    }
    report.print_section("pause, a million entries expire: longest single decision, µs");
    let rounds = (0..ROUNDS).map(|_| run_round()).collect::<Result<Vec<_>>>()?;
    let ours = as_micros(rounds.iter().map(|round| round.decision).min().unwrap_or_default());
    let empty = as_micros(rounds.iter().map(|round| round.empty).max().unwrap_or_default());
    let mut row = |peer: &str, theirs: f64, goal| {
        report.add_row(Row { case: CASE_NAME.to_owned(), ours, peer: peer.to_owned(), theirs, goal });
    };
    row("empty-loop", empty, Some(Goal::RatioAtLeast(1.0)));
    row("governor-retain-recent", as_micros(governor_clean_up()?), None);
    row("throttlecrab-periodic", as_micros(throttlecrab_clean_up()?), None);
    Ok(())
}

/// The longest gaps of one round.
struct LongestGaps {
    decision: Duration,
    empty: Duration,
}

fn run_round() -> Result<LongestGaps> {
    let mut ours = ours::Expiring::new(2 * ENTRIES as usize)?;
    let mut random = Random::new(1);
    let keys: Vec<String> =
        (0..DECISIONS_PER_SLICE * 10).map(|_| numbered_key(random.below(2 * u64::from(ENTRIES)))).collect();
    // The entries expire one by one between one and three seconds from now, during the decisions.
    for number in 0..ENTRIES {
        let lifetime = Duration::from_secs(1) + Duration::from_micros(2) * number;
        ours.spend(&numbered_key(u64::from(number)), lifetime);
    }
    let mut longest = LongestGaps { decision: Duration::ZERO, empty: Duration::ZERO };
    let mut slices = keys.chunks(DECISIONS_PER_SLICE).cycle();
    for _ in 0..DECISIONS / DECISIONS_PER_SLICE {
        let slice = slices.next().context("there are no keys")?;
        let start = Instant::now();
        let mut last = start;
        for key in slice {
            ours.decide(key);
            let now = Instant::now();
            longest.decision = longest.decision.max(now - last);
            last = now;
        }
        let turn = last - start;
        let start = Instant::now();
        let mut last = start;
        while last - start < turn {
            let now = Instant::now();
            longest.empty = longest.empty.max(now - last);
            last = now;
        }
    }
    Ok(longest)
}

/// Measures one clean-up call after all entries have expired.
fn governor_clean_up() -> Result<Duration> {
    let clock = FakeRelativeClock::default();
    let quota = Quota::per_second(NonZeroU32::MIN);
    let limiter = RateLimiter::dashmap_with_clock(quota, clock.clone());
    for number in 0..ENTRIES {
        let _allowed = limiter.check_key(&numbered_key(u64::from(number)));
    }
    clock.advance(Duration::from_secs(3600));
    let start = Instant::now();
    limiter.retain_recent();
    Ok(start.elapsed())
}

/// Measures one decision after all entries have expired and the clean-up is due.
fn throttlecrab_clean_up() -> Result<Duration> {
    let store = PeriodicStore::builder().capacity(ENTRIES as usize).cleanup_interval(Duration::from_secs(60)).build();
    let mut limiter = throttlecrab::RateLimiter::new(store);
    let now = SystemTime::now();
    for number in 0..ENTRIES {
        let _allowed = limiter.rate_limit(&numbered_key(u64::from(number)), 10, 10, 1, 1, now);
    }
    let later = now + Duration::from_secs(3600);
    let start = Instant::now();
    let _allowed = limiter.rate_limit(&numbered_key(0), 10, 10, 1, 1, later);
    Ok(start.elapsed())
}

fn as_micros(length: Duration) -> f64 {
    length.as_nanos() as f64 / 1_000.0
}
