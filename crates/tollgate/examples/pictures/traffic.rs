//! The traffic of the pictures, sent through a real limiter.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::core::{Cost, Mono, Nanos, PacerParams, PacerState, Time};
use tollgate::{Limit, Limiter, Outcome, Retry, Verdict};

/// Time span of a picture, in milliseconds.
pub(crate) const PICTURE_DURATION: u64 = 16_000;
/// Sampling interval of the state, in milliseconds.
const SAMPLING_INTERVAL: u64 = 10;
/// Duration of the work under a lease, in milliseconds.
const WORK_DURATION: u64 = 1_000;
/// Start of the picture in milliseconds. Aligned windows begin at this time.
const START_TIME: u64 = 1_600_000_000_000;

/// Maximum wait of a pacer's callers. A caller that would wait longer is refused.
const MAX_PACER_WAIT: Nanos = Nanos::from_secs(2);

/// The quantity that the line shows, and its label.
#[derive(Clone, Copy)]
pub(crate) enum ChartedAmount {
    /// The remaining amount.
    Left(&'static str),
    /// The amount used.
    Used(&'static str),
}

/// A limiter or a pacer.
trait TrafficTarget {
    /// Sets the time.
    fn advance(&mut self, at: u64);
    /// Handles a request.
    fn arrive(&mut self) -> Outcome;
    /// Returns the state, in hundredths of a unit.
    fn level(&self) -> u64;
}

/// The recorded decisions. Times are in milliseconds since the start.
pub(crate) struct TrafficRecord {
    /// Requests that passed immediately.
    pub(crate) passed: Vec<u64>,
    /// Requests that waited: arrival and departure.
    pub(crate) delayed: Vec<(u64, u64)>,
    pub(crate) refused: Vec<u64>,
    /// The state after each step, in hundredths of a unit.
    pub(crate) line: Vec<(u64, u64)>,
    /// The label of the line, and its maximum in units.
    pub(crate) shown: &'static str,
    pub(crate) limit: u64,
}

/// Returns the arrival times: a few requests at first, bursts before and after the fourth second, a steady overload, a
/// pause, and another burst.
pub(crate) fn arrival_times() -> Vec<u64> {
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

/// Runs the traffic through a limit.
pub(crate) fn run_limited(limit: Limit, shown: ChartedAmount) -> TrafficRecord {
    let clock = Arc::new(ManualClock::default());
    let limiter = Limiter::with_clock(limit, clock.clone());
    let (name, shows_remaining) = match shown {
        ChartedAmount::Left(name) => (name, true),
        ChartedAmount::Used(name) => (name, false),
    };
    let most = limiter.report(0).limit;
    run_traffic(&mut LimiterTarget { limit, limiter, clock, at: 0, held: Vec::new(), shows_remaining }, name, most)
}

/// Runs the traffic through a pacer that stores up to `stored_most` permits.
pub(crate) fn run_paced(pacing: PacerParams, stored_most: u64) -> TrafficRecord {
    let pace = pacing.initial_state(Time::from_nanos(Nanos::from_millis(START_TIME).as_nanos()));
    run_traffic(&mut PacerTarget { pacing, pace, now: Time::ZERO }, "stored", stored_most)
}

fn run_traffic(gate: &mut dyn TrafficTarget, shown: &'static str, limit: u64) -> TrafficRecord {
    let (passed, delayed, refused, line) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut story = TrafficRecord { passed, delayed, refused, line, shown, limit };
    let mut arrivals = arrival_times().into_iter().peekable();
    for at in (0..PICTURE_DURATION).step_by(SAMPLING_INTERVAL as usize) {
        gate.advance(at);
        story.line.push((at, gate.level()));
        while arrivals.next_if(|arrival| *arrival <= at).is_some() {
            match gate.arrive() {
                Outcome::Allow => story.passed.push(at),
                Outcome::Delay(wait) => story.delayed.push((at, at + wait.as_millis_ceil())),
                Outcome::Deny(_) => story.refused.push(at),
            }
        }
        // Samples again if the requests changed the level, so that the line shows a vertical jump.
        let after = gate.level();
        if story.line.last().is_some_and(|(_, before)| *before != after) {
            story.line.push((at, after));
        }
    }
    story
}

struct LimiterTarget {
    limit: Limit,
    limiter: Limiter<Limit, Arc<ManualClock>>,
    clock: Arc<ManualClock>,
    at: u64,
    /// The end of the work and the verdict of each request in flight.
    held: Vec<(u64, Verdict)>,
    shows_remaining: bool,
}

impl TrafficTarget for LimiterTarget {
    fn advance(&mut self, at: u64) {
        self.at = at;
        self.clock.set(Nanos::from_millis(START_TIME + at).as_nanos());
        if let Limit::Concurrency(_) = self.limit {
            // Releases the leases whose work is done.
            let done = self.held.iter().take_while(|(until, _)| *until <= at).count();
            for (_, lease) in self.held.drain(..done) {
                self.limiter.refund(&lease);
            }
        }
    }

    fn arrive(&mut self) -> Outcome {
        let verdict = self.limiter.check(1);
        self.held.push((self.at + WORK_DURATION, verdict));
        verdict.outcome()
    }

    /// For a bucket, computes the level from the time until the bucket is full, which is more precise than whole units.
    fn level(&self) -> u64 {
        let report = self.limiter.report(0);
        let rate = match &self.limit {
            Limit::TokenBucket(bucket) => Some(bucket.rate()),
            Limit::LeakyBucket(bucket) => Some(bucket.rate()),
            _ => None,
        };
        let used = match rate {
            Some(rate) => report.reset.as_nanos() * 100 * u64::from(rate.count()) / rate.per().as_nanos(),
            None => 100 * (report.limit - report.remaining),
        };
        if self.shows_remaining { (100 * report.limit).saturating_sub(used) } else { used }
    }
}

struct PacerTarget {
    pacing: PacerParams,
    pace: PacerState,
    now: Time<Mono>,
}

impl TrafficTarget for PacerTarget {
    fn advance(&mut self, at: u64) {
        self.now = Time::from_nanos(Nanos::from_millis(START_TIME + at).as_nanos());
    }

    fn arrive(&mut self) -> Outcome {
        match self.pacing.try_reserve(&mut self.pace, self.now, Cost::ONE, MAX_PACER_WAIT) {
            Some(Nanos::ZERO) => Outcome::Allow,
            Some(wait) => Outcome::Delay(wait),
            None => Outcome::Deny(Retry::OnRelease),
        }
    }

    fn level(&self) -> u64 {
        let stored = self.pacing.stored(&self.pace, self.now).as_nanos();
        let rate = self.pacing.rate();
        stored * 100 * u64::from(rate.count()) / rate.per().as_nanos()
    }
}
