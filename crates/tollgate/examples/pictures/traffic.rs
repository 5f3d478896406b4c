//! The traffic of the pictures, sent through a real limiter.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::{Limit, Limiter, Nanos, Outcome, Report};

/// How long the pictures are, in milliseconds.
pub(crate) const LENGTH: u64 = 16_000;
/// How often the state is looked at.
const STEP: u64 = 10;
/// How long whoever holds a lease works.
const WORK: u64 = 1_000;
/// Aligned windows begin here, so that one begins with the picture.
const START: u64 = 1_600_000_000_000;

/// Which line is drawn, and what it is called.
#[derive(Clone, Copy)]
pub(crate) enum Shown {
    /// What is left.
    Left(&'static str),
    /// What is used up.
    Used(&'static str),
}

/// What happened, all in milliseconds since the beginning.
pub(crate) struct Story {
    /// Who passed at once.
    pub(crate) passed: Vec<u64>,
    /// Who was told to wait: when they came, and when they went.
    pub(crate) delayed: Vec<(u64, u64)>,
    pub(crate) refused: Vec<u64>,
    /// The state, in hundredths of a unit, after each step.
    pub(crate) line: Vec<(u64, u64)>,
    /// What the line is called, and the most it can be, in units.
    pub(crate) shown: &'static str,
    pub(crate) limit: u64,
}

/// When requests come. First quietly; then much at once, before and after the fourth second; then steadily more than the
/// limits let pass; nothing for a while; and much at once again.
pub(crate) fn arrivals() -> Vec<u64> {
    let every = |from: u64, until: u64, gap: u64| (from..until).step_by(gap as usize);
    let parts = [
        every(250, 3_000, 500),
        every(3_350, 3_990, 60),
        every(4_050, 4_700, 60),
        every(5_000, 9_000, 220),
        every(12_000, 12_600, 60),
        every(13_000, 16_000, 500),
    ];
    parts.into_iter().flatten().collect()
}

/// The same traffic through any limit.
pub(crate) fn run(limit: Limit, shown: Shown) -> Story {
    let clock = Arc::new(ManualClock::at(Nanos::from_millis(START).as_nanos()));
    let limiter = Limiter::with_clock(limit, clock.clone());
    let (name, is_left) = match shown {
        Shown::Left(name) => (name, true),
        Shown::Used(name) => (name, false),
    };
    let mut story = Story {
        passed: Vec::new(),
        delayed: Vec::new(),
        refused: Vec::new(),
        line: Vec::new(),
        shown: name,
        limit: limiter.report(0).limit,
    };
    let (mut arrivals, mut held) = (arrivals().into_iter().peekable(), Vec::new());
    for at in (0..LENGTH).step_by(STEP as usize) {
        clock.set(Nanos::from_millis(START + at).as_nanos());
        if let Limit::Concurrency(_) = limit {
            // Only leases are given back when the work is done.
            let done = held.iter().take_while(|(until, _)| *until <= at).count();
            for (_, lease) in held.drain(..done) {
                limiter.refund(&lease);
            }
        }
        story.line.push((at, level(&limit, &limiter.report(0), is_left)));
        while arrivals.next_if(|arrival| *arrival <= at).is_some() {
            let verdict = limiter.check(1);
            match verdict.outcome() {
                Outcome::Allow => story.passed.push(at),
                Outcome::Delay(wait) => story.delayed.push((at, at + wait.as_millis_ceil())),
                Outcome::Deny(_) => story.refused.push(at),
            }
            held.push((at + WORK, verdict));
        }
        // Again where it jumped, so that the line does too.
        let after = level(&limit, &limiter.report(0), is_left);
        if story.line.last().is_some_and(|(_, before)| *before != after) {
            story.line.push((at, after));
        }
    }
    story
}

/// The state as a report tells it, in hundredths. Of a bucket the time until it is as good as new says more than what is left
/// of it in whole units.
fn level(limit: &Limit, report: &Report, is_left: bool) -> u64 {
    let rate = match limit {
        Limit::TokenBucket(bucket) => Some(bucket.rate()),
        Limit::LeakyBucket(bucket) => Some(bucket.rate()),
        _ => None,
    };
    let used = match rate {
        Some(rate) => report.reset.as_nanos() * 100 * u64::from(rate.count()) / rate.per().as_nanos(),
        None => 100 * (report.limit - report.remaining),
    };
    if is_left { (100 * report.limit).saturating_sub(used) } else { used }
}
