//! Guava 31.1 `RateLimiter`, in whole microseconds with permits as doubles.
//!
//! | theirs | ours |
//! |---|---|
//! | bursty, `max_burst_seconds` | [`PacerParams::bursty`], which stores the permits of that time |
//! | warming up, `warmup_us`, `cold_factor` | [`PacerParams::warm_up`] |
//! | `acquire`, `try_acquire` with a timeout | reserve, try to reserve |
//! | `set_rate` | convert to the same pacer at the other rate |
//! | stored permits | the time in which they are refilled at the rate |
//!
//! Guava's rate is a double. Our rate is the simplest fraction that rounds to the same double. Stored permits are
//! loaded with a precision of a nanosecond. The time of the next permit may differ by one microsecond.

use tollgate_core::{Cost, Mono, Nanos, PacerParams, PacerState, Rate, Time};

use super::{Case, Comparison, Fields, KnownDifference, Player, ReadResult, Skip, StepResult, TraceStep};

const TRUNCATED_TO_MICROSECONDS: KnownDifference = KnownDifference {
    name: "truncated to whole microseconds",
    reason: "each of up to three parts of a cost is truncated, so waits are too short; Tollgate is exact",
};
const UNSUPPORTED_RATE: KnownDifference = KnownDifference {
    name: "rate that Tollgate cannot represent",
    reason: "the rate is infinite, or slower than one per century; Tollgate's constructor returns an error",
};
const WARM_UP_OF_ZERO: KnownDifference = KnownDifference {
    name: "warm-up of zero length",
    reason: "Guava's stored permits become NaN and nothing is limited; Tollgate's constructor returns an error",
};
const WAITS_OF_CENTURIES: KnownDifference = KnownDifference {
    name: "waits of centuries",
    reason: "Guava reports waits of up to 292,471 years; Tollgate reports at most 584 years",
};

/// Nanoseconds in a unit of Guava's clock.
const MICRO: u64 = 1_000;

/// Returns a player that replays a case.
pub(super) fn new_player(case: &Case) -> ReadResult<Box<dyn Player>> {
    let config = &case.config;
    let kind = match case.algorithm.as_str() {
        "smooth_bursty" => {
            GuavaKind::Bursty(Nanos::from_nanos((config.read_double("max_burst_seconds")? * 1e9).round() as u64))
        }
        "smooth_warming_up" => GuavaKind::WarmUp(
            Nanos::from_micros(config.read_count("warmup_us")?),
            (config.read_double("cold_factor")? * 1e3).round() as u32,
        ),
        _ => return Err(Skip::UnknownOperation),
    };
    let rate = config.field("permits_per_second").as_f64();
    let state = GuavaState::read(config.field("create"))?;
    Ok(Box::new(GuavaPlayer { kind, rate, state }))
}

struct GuavaPlayer {
    kind: GuavaKind,
    /// `None` if the rate is infinite.
    rate: Option<f64>,
    state: GuavaState,
}

#[derive(Clone, Copy)]
enum GuavaKind {
    Bursty(Nanos),
    WarmUp(Nanos, u32),
}

impl GuavaKind {
    fn pacing_at_rate(self, rate: Option<f64>) -> Result<PacerParams, &'static KnownDifference> {
        let rate = rate.and_then(approximate_rate).ok_or(&UNSUPPORTED_RATE)?;
        match self {
            Self::Bursty(store) => PacerParams::bursty(rate, store).map_err(|_| &UNSUPPORTED_RATE),
            Self::WarmUp(warm_up, cold) => PacerParams::warm_up(rate, warm_up, cold).map_err(|_| &WARM_UP_OF_ZERO),
        }
    }
}

/// State recorded after each call. The numbers of a state may be infinite or NaN.
#[derive(Clone, Copy)]
struct GuavaState {
    stored: Option<f64>,
    next_free_us: u64,
}

impl GuavaState {
    fn read(result: &serde_json::Value) -> ReadResult<Self> {
        let state = result.field("state");
        Ok(Self { stored: state.field("stored").as_f64(), next_free_us: state.read_count("next_free_us")? })
    }

    /// Returns the stored permits as their refill time in nanoseconds.
    fn stored_nanos(&self, rate: f64) -> Option<u64> {
        self.stored.map(|stored| (stored * 1e9 / rate).round() as u64)
    }
}

impl Player for GuavaPlayer {
    fn compare(&self, step: &TraceStep) -> ReadResult<StepResult> {
        let pacing = match self.kind.pacing_at_rate(self.rate) {
            Ok(pacing) => pacing,
            Err(rule) => return Ok(StepResult::ByRule(rule)),
        };
        let rate = self.rate.unwrap_or_default();
        let stored = self.state.stored_nanos(rate).ok_or(Skip::ImpossibleState)?;
        let next_free = Time::from_nanos(self.state.next_free_us.saturating_mul(MICRO));
        let pace = pacing.state_with(next_free, Nanos::from_nanos(stored));
        let (result, args) = (&step.result, &step.args);
        let here = OwnPacer { pacing, pace, rate, now: Time::from_nanos(step.at_nanos(MICRO)?) };
        match step.op.as_str() {
            "get_rate" => {
                let ours = f64::from(pacing.rate().count()) * 1e9 / pacing.rate().per().as_nanos() as f64;
                let theirs = result.read_double("permits_per_second")?;
                Ok(Comparison::new().expect_equal("near", true, (ours / theirs - 1.0).abs() < 1e-12).result())
            }
            "set_rate" => {
                let rate = args.field("permits_per_second").as_f64();
                match self.kind.pacing_at_rate(rate) {
                    Ok(changed) => here.with_rate(changed, rate.unwrap_or_default()).compare(Comparison::new(), step),
                    Err(rule) => Ok(StepResult::ByRule(rule)),
                }
            }
            "acquire" | "try_acquire" => {
                let timeout = args.optional_int("timeout_us").map_or(u64::MAX, |timeout| timeout.max(0) as u64);
                let (here, wait) = here.after_reserve(args.read_count("permits")?, Nanos::from_micros(timeout));
                let ok = args.optional_int("timeout_us").is_none() || result.read_bool("ok")?;
                let slept = wait.map_or(0, |wait| wait.as_nanos().div_ceil(MICRO));
                let verdict = Comparison::new().expect_equal("ok", ok, wait.is_some()).expect_equal(
                    "slept_us",
                    result.read_count("slept_us")?,
                    slept,
                );
                here.compare(verdict, step)
            }
            _ => Err(Skip::UnknownOperation),
        }
    }

    fn follow(&mut self, step: &TraceStep) -> ReadResult<()> {
        if step.result.get("state").is_some() {
            self.state = GuavaState::read(&step.result)?;
        }
        if step.op == "set_rate" && !step.failed() {
            self.rate = step.args.field("permits_per_second").as_f64();
        }
        Ok(())
    }
}

/// Our pacer during a step.
struct OwnPacer {
    pacing: PacerParams,
    pace: PacerState,
    rate: f64,
    now: Time<Mono>,
}

impl OwnPacer {
    fn with_rate(mut self, pacing: PacerParams, rate: f64) -> Self {
        pacing.convert(&self.pacing, &mut self.pace, self.now);
        Self { pacing, rate, ..self }
    }

    fn after_reserve(mut self, permits: u64, timeout: Nanos) -> (Self, Option<Nanos>) {
        let wait = self.pacing.try_reserve(&mut self.pace, self.now, Cost::new(permits), timeout);
        (self, wait)
    }

    /// Compares the recorded state with ours. A refused call does not update the state of Guava.
    fn compare(&self, verdict: Comparison, step: &TraceStep) -> ReadResult<StepResult> {
        let after = GuavaState::read(&step.result)?;
        let recorded = i128::from(after.next_free_us.max(self.now.as_nanos() / MICRO));
        let next = self.now.saturating_add(self.pacing.next_wait(&self.pace, self.now));
        let ours = i128::from(next.as_nanos().div_ceil(MICRO));
        // The refill since the last update, if this call was refused and therefore did not update the state.
        let idle = self.now.as_nanos().saturating_sub(after.next_free_us.saturating_mul(MICRO));
        let seen = verdict.clone().expect_within_one("next_free_us", recorded, ours);
        let seen = match after.stored_nanos(self.rate).filter(|_| idle == 0) {
            Some(stored) => {
                let ours = self.pacing.stored(&self.pace, self.now).as_nanos();
                seen.expect_within_one("stored_us", i128::from(stored / MICRO), i128::from(ours / MICRO))
            }
            None => seen,
        };
        let is_verdict_equal = verdict.result() == StepResult::Equal;
        let longest = i128::from(u64::MAX / MICRO);
        Ok(seen
            .result()
            .or_known_difference(&TRUNCATED_TO_MICROSECONDS, || {
                is_verdict_equal && (0..=3).contains(&(ours - recorded))
            })
            .or_known_difference(&WAITS_OF_CENTURIES, || recorded > longest && ours >= longest))
    }
}

/// Returns the simplest fraction that rounds to this double (a rate per second), or `None` if our types cannot
/// represent the fraction.
fn approximate_rate(rate: f64) -> Option<Rate> {
    let (mut count, mut secs, mut last_count, mut last_secs) = (1.0_f64, 0.0_f64, 0.0_f64, 1.0_f64);
    let mut rest = rate;
    // Continued fraction: each integer part yields a better approximation from the previous two.
    for _ in 0..40 {
        let whole = rest.floor();
        (count, last_count) = (whole * count + last_count, count);
        (secs, last_secs) = (whole * secs + last_secs, secs);
        if (count / secs / rate - 1.0).abs() < 1e-15 || rest == whole {
            break;
        }
        rest = (rest - whole).recip();
    }
    let is_whole = |number: f64| (1.0..1e18).contains(&number);
    if !is_whole(count) || !is_whole(secs) {
        return None;
    }
    let per = (secs as u64).checked_mul(Nanos::SECOND.as_nanos())?;
    Rate::new(count as u64, Nanos::from_nanos(per)).ok()
}
