//! nginx 1.22.1 `limit_req`, in whole milliseconds.
//!
//! | theirs | ours |
//! |---|---|
//! | `rate`, which nginx stores in thousandths of a request per second | the rate of a [`LeakyBucket`] |
//! | `burst=n` | burst `n + 1`: nginx does not count the request that is being served |
//! | `nodelay` | `free` as large as the burst |
//! | `delay=n` | `free` of `n` |
//! | neither `nodelay` nor `delay` | `free` of 0 |
//! | several `limit_req` | all are weighed; then either all or none are charged; the longest wait applies |
//!
//! nginx logs its state, the excess, only for requests that it delays or refuses. The state before a step is therefore
//! computed from the recorded outcomes, with nginx's integer formula for accepted requests. If nginx logged an excess,
//! the logged excess is used instead. Our bucket is loaded with the excess at the last accepted request and drains from
//! there. Waits are compared in milliseconds, because nginx rounds them down.

use std::collections::HashMap;

use serde_json::Value;
use tollgate_core::{Algorithm, Ask, Cost, LeakyBucket, Nanos, Now, Outcome, Rate};

use super::{Case, Comparison, Fields, KnownDifference, Player, ReadResult, Skip, StepResult, TraceStep};

const DRAINS_IN_THOUSANDTHS: KnownDifference = KnownDifference {
    name: "drained in whole thousandths",
    reason: "each accepted request rounds the drained amount down to thousandths of a request; Tollgate drains exactly",
};

/// Nanoseconds in a unit of nginx's clock.
const MILLI: u64 = 1_000_000;

/// Largest excess that our limit can represent, in thousandths of a request.
const MAX_EXCESS_MILLI: i128 = u64::MAX as i128;

/// Returns a player that replays a case.
pub(super) fn new_player(case: &Case) -> ReadResult<Box<dyn Player>> {
    let limits = case.config.read_list("limits")?.iter().map(NginxLimit::new).collect::<ReadResult<_>>()?;
    Ok(Box::new(NginxPlayer { limits, keys: HashMap::new() }))
}

struct NginxPlayer {
    limits: Vec<NginxLimit>,
    /// State of each limit, by key.
    keys: HashMap<String, Vec<NginxExcess>>,
}

/// State of an nginx limit for a key: thousandths of a request, and their time in milliseconds.
#[derive(Clone, Copy)]
struct NginxExcess {
    milli: i128,
    at: i128,
}

impl Player for NginxPlayer {
    fn compare(&self, step: &TraceStep) -> ReadResult<StepResult> {
        let known = self.keys.get(step.args.read_text("key")?);
        let exact = self.compare_from(step, |limit, index| {
            limit.load(known.map(|known| &known[index]), |excess| (excess.milli + 1_000, excess.at))
        });
        Ok(exact?.or_known_difference(&DRAINS_IN_THOUSANDTHS, || {
            let cut = self.compare_from(step, |limit, index| {
                limit.load(known.map(|known| &known[index]), |excess| {
                    (limit.excess_after(excess, step).0, step.at.into())
                })
            });
            let lossy = |(limit, excess): (&NginxLimit, &NginxExcess)| limit.excess_after(excess, step).1;
            cut == Ok(StepResult::Equal) && known.is_some_and(|known| self.limits.iter().zip(known).any(lossy))
        }))
    }

    fn follow(&mut self, step: &TraceStep) -> ReadResult<()> {
        if step.result.read_text("outcome")? == "rejected" {
            return Ok(());
        }
        step.at_nanos(MILLI)?;
        let at = step.at.into();
        let limits = &self.limits;
        let excesses = self.keys.entry(step.args.read_text("key")?.to_owned()).or_insert_with(|| {
            // An excess of minus one request, so that the first request leaves an excess of 0.
            vec![NginxExcess { milli: -1_000, at }; limits.len()]
        });
        for (limit, excess) in limits.iter().zip(excesses.iter_mut()) {
            *excess = NginxExcess { milli: limit.excess_after(excess, step).0, at };
        }
        if let Some(recorded) = step.result.optional_int("excess_milli") {
            excesses.get_mut(logged_zone_index(&step.result)).ok_or(Skip::Field("by_limit"))?.milli =
                recorded.clamp(0, MAX_EXCESS_MILLI);
        }
        Ok(())
    }
}

impl NginxPlayer {
    /// Runs the request on our limits, in the states returned by `load`, and compares the results.
    fn compare_from(&self, step: &TraceStep, load: impl Fn(&NginxLimit, usize) -> [u64; 2]) -> ReadResult<StepResult> {
        let now = Now::at(step.at_nanos(MILLI)?);
        let mut states: Vec<_> = self.limits.iter().enumerate().map(|(index, limit)| load(limit, index)).collect();
        let limits = || self.limits.iter().map(|limit| &limit.ours);
        let verdicts: Vec<_> =
            limits().zip(&states).map(|(limit, state)| limit.weigh(state, &now, Ask::Exactly(Cost::ONE))).collect();
        let outcome = verdicts.iter().map(|verdict| verdict.outcome()).fold(Outcome::Allow, Outcome::stricter);
        if outcome.is_admitted() {
            for ((limit, state), verdict) in limits().zip(&mut states).zip(&verdicts) {
                limit.commit(state, &now, verdict);
            }
        }
        let delay_ms = if let Outcome::Delay(wait) = outcome { wait.as_nanos() / MILLI } else { 0 };
        let comparison = Comparison::new()
            .expect_equal("passes", step.result.read_text("outcome")? != "rejected", outcome.is_admitted())
            .expect_equal("delay_ms", step.result.read_count("delay_ms")?, delay_ms);
        let Some(excess) = step.result.optional_int("excess_milli") else {
            return Ok(comparison.result());
        };
        let index = logged_zone_index(&step.result);
        let limit = self.limits.get(index).ok_or(Skip::Field("by_limit"))?;
        let remaining = limit.ours.report(&states[index], &now, Cost::ONE).remaining;
        Ok(comparison.expect_equal("remaining", limit.remaining_after(excess), remaining.into()).result())
    }
}

/// Returns the index of the zone whose excess was logged.
fn logged_zone_index(result: &Value) -> usize {
    result.optional_int("by_limit").map_or(0, |index| usize::try_from(index).unwrap_or(usize::MAX))
}

struct NginxLimit {
    ours: LeakyBucket,
    rate_milli: i128,
    burst: i128,
}

impl NginxLimit {
    fn new(config: &Value) -> ReadResult<Self> {
        let (rate_milli, burst) = (config.read_count("rate_milli_per_s")?, config.read_count("burst")?);
        let capacity = burst.checked_add(1).ok_or(Skip::RefusedLimit)?;
        let free = match config.read_text("mode")? {
            "nodelay" => capacity,
            "two_stage" => config.read_count("delay")?.min(capacity),
            _ => 0,
        };
        let rate = Rate::new(rate_milli, Nanos::from_secs(1_000)).map_err(|_| Skip::RefusedLimit)?;
        let bucket = LeakyBucket::new(rate, capacity).and_then(|bucket| bucket.free(free));
        let ours = bucket.map_err(|_| Skip::RefusedLimit)?;
        Ok(Self { ours, rate_milli: rate_milli.into(), burst: burst.into() })
    }

    /// Returns the excess after nginx accepts a request, and whether a fraction of a thousandth was lost.
    fn excess_after(&self, excess: &NginxExcess, step: &TraceStep) -> (i128, bool) {
        let drained = self.rate_milli * (i128::from(step.at) - excess.at);
        ((excess.milli - drained / 1_000 + 1_000).max(0), drained % 1_000 != 0)
    }

    /// Returns our state words for an excess in thousandths of a request at a time in milliseconds. Without an excess,
    /// returns the words of a new key.
    fn load(&self, excess: Option<&NginxExcess>, level: impl Fn(&NginxExcess) -> (i128, i128)) -> [u64; 2] {
        let Some((milli, at_ms)) = excess.map(level) else { return [0; 2] };
        let (count, per) = (u128::from(self.ours.rate().count()), u128::from(self.ours.rate().per().as_nanos()));
        let (at_ms, milli) = (at_ms.max(0) as u128, milli.max(0) as u128);
        let empty_at = at_ms * u128::from(MILLI) * count + (milli * per).div_ceil(1_000);
        [empty_at as u64, (empty_at >> 64) as u64]
    }

    /// Returns the number of requests that can still be admitted at this excess; zero after a refused request.
    fn remaining_after(&self, excess: i128) -> i128 {
        ((self.burst * 1_000 - excess).max(0)) / 1_000
    }
}
