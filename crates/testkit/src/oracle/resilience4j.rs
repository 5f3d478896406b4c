//! resilience4j 2.4.0 `AtomicRateLimiter`: N permits per cycle, with waiting for later cycles, in whole nanoseconds.
//!
//! | theirs | ours |
//! |---|---|
//! | limit per period, cycles counted from the construction of the limiter | [`IntervalBucket`] with steps at that offset |
//! | timeout | the longest wait |
//! | `reserve_permission`, `acquire_permission` | check: immediately, with a wait, or refused; a negative amount is a refund |
//! | `drain_permissions` | take up to everything |
//! | `change_limit_for_period` | convert to the other parameters |
//! | `available`, `nanos_to_wait_for_one` | the remaining amount and the retry of one, without waiting |

use serde_json::Value;
use tollgate_core::{Algorithm, Ask, Cost, IntervalBucket, LimitError, Nanos, Now, Outcome, Rate, Retry, Steps};

use super::trace::to_nanos;
use super::{Case, Comparison, Fields, KnownDifference, Player, ReadResult, Skip, StepResult, TraceStep};

const RATE_ABOVE_ONE_PER_NANOSECOND: KnownDifference = KnownDifference {
    name: "more than one permit per nanosecond",
    reason: "resilience4j accepts such a limit; Tollgate's constructor returns an error",
};
const REFILLS_MORE_THAN_A_CYCLE: KnownDifference = KnownDifference {
    name: "cost above the limit of one cycle",
    reason: "resilience4j takes such a cost from several cycles; Tollgate always refuses it",
};
const SLEEPS_WITHOUT_SUCCESS: KnownDifference = KnownDifference {
    name: "sleeps although it cannot succeed",
    reason: "a refused blocking call first sleeps for its whole timeout; Tollgate refuses it immediately",
};
const CHANGED_LIMIT_APPLIES_LATER: KnownDifference = KnownDifference {
    name: "changed limit takes effect later",
    reason: "resilience4j keeps the remaining amount until the next cycle; Tollgate keeps the amount spent",
};
const DRAINS_STALE_AMOUNT: KnownDifference = KnownDifference {
    name: "drains the previous amount",
    reason: "the amount stored by the last call is subtracted, and debt is dropped; Tollgate takes what is available",
};
const REFUNDS_ABOVE_LIMIT: KnownDifference = KnownDifference {
    name: "refunds beyond the limit",
    reason: "a negative amount makes more permits available than the limit; Tollgate never exceeds the limit",
};
const ZERO_COST_WAITS: KnownDifference = KnownDifference {
    name: "cost of zero waits",
    reason: "a cost of 0 waits until the debt is paid; in Tollgate it does not wait",
};

/// Returns a player that replays a case.
pub(super) fn new_player(case: &Case) -> ReadResult<Box<dyn Player>> {
    let config = &case.config;
    let seen = RecordedState::read(config.field("create"))?;
    let period = config.read_count("refresh_period_ns")?;
    if period == 0 {
        return Err(Skip::RefusedLimit);
    }
    Ok(Box::new(Resilience4jPlayer {
        limit: config.read_int("limit_for_period")?,
        period,
        start: case.start().ok_or(Skip::Field("start_ns"))?,
        timeout: config.read_count("timeout_ns")?,
        stored: StoredPermits { permits: seen.available, cycle: 0 },
        at: 0,
        seen,
    }))
}

struct Resilience4jPlayer {
    limit: i128,
    period: u64,
    /// Construction time, on a clock with an arbitrary origin. All other times are relative to this
    /// time.
    start: i64,
    timeout: u64,
    /// Last recorded state, and its time.
    seen: RecordedState,
    at: u64,
    stored: StoredPermits,
}

/// Permits and cycle after the last call that tried to take permits. Only the next call of this kind updates these
/// values.
#[derive(Clone, Copy)]
struct StoredPermits {
    permits: i128,
    cycle: i128,
}

/// State recorded after each call.
#[derive(Clone, Copy)]
struct RecordedState {
    available: i128,
    wait_for_one: i128,
}

impl RecordedState {
    fn read(result: &Value) -> ReadResult<Self> {
        let state = result.field("state");
        Ok(Self { available: state.read_int("available")?, wait_for_one: state.read_int("nanos_to_wait_for_one")? })
    }
}

/// Our limits during a step: one with waits and one without. The two limits report the same state differently.
struct OwnBuckets {
    waiting: IntervalBucket,
    limit: IntervalBucket,
    state: [u64; 1],
    now: u64,
}

impl Resilience4jPlayer {
    /// Returns the start and end of a step. The end is later if the call slept.
    fn start_and_end(&self, step: &TraceStep) -> ReadResult<(u64, u64)> {
        let end =
            step.result.optional_int("now_ns").map_or(Ok(step.at), i64::try_from).map_err(|_| Skip::BeyondTime)?;
        let since_start = |at: i64| to_nanos(at.checked_sub(self.start).ok_or(Skip::BeyondTime)?, 1);
        Ok((since_start(step.at)?, since_start(end)?))
    }

    fn our_limit(&self, limit: i128, max_wait: u64) -> Result<IntervalBucket, LimitError> {
        let limit = u64::try_from(limit).unwrap_or(0);
        let bucket = IntervalBucket::new(limit, Nanos::from_nanos(self.period))?;
        let most = (Rate::MAX_FILL_TIME.as_nanos() / self.period).saturating_mul(limit);
        let bucket = bucket.steps(Steps::Aligned(Nanos::ZERO)).max_debt(most.saturating_sub(limit))?;
        bucket.max_wait(Nanos::from_nanos(max_wait).min(Rate::MAX_PERIOD))
    }

    /// Returns our limits in the last recorded state, at `now`.
    fn load(&self, now: u64) -> Result<OwnBuckets, StepResult> {
        let (waiting, limit) = match (self.our_limit(self.limit, self.timeout), self.our_limit(self.limit, 0)) {
            (Ok(waiting), Ok(limit)) => (waiting, limit),
            _ => return Err(StepResult::ByRule(&RATE_ABOVE_ONE_PER_NANOSECOND)),
        };
        let Ok(owed) = u64::try_from(self.limit - self.seen.available) else {
            return Err(StepResult::Skipped(Skip::ImpossibleState));
        };
        let (mut state, then) = ([0; 1], Now::at(self.at));
        limit.init(&mut state, &then);
        if !limit.decide(&mut state, &then, Ask::Regardless(Cost::new(owed))).is_admitted() {
            return Err(StepResult::Skipped(Skip::ImpossibleState));
        }
        Ok(OwnBuckets { waiting, limit, state, now })
    }

    /// Returns the permits and cycle that the reference computes from its stored permits, at `now` and under `limit`.
    fn stored_at(&self, now: u64, limit: i128) -> StoredPermits {
        let cycle = i128::from(now / self.period);
        let permits = match cycle - self.stored.cycle {
            0 => self.stored.permits,
            cycles => (self.stored.permits + cycles * limit).min(limit),
        };
        StoredPermits { permits, cycle }
    }
}

impl OwnBuckets {
    fn take(&mut self, permits: u64) -> Option<u64> {
        match self.waiting.decide(&mut self.state, &Now::at(self.now), Ask::Exactly(Cost::new(permits))).outcome() {
            Outcome::Allow => Some(0),
            Outcome::Delay(wait) => Some(wait.as_nanos()),
            Outcome::Deny(_) => None,
        }
    }

    /// Returns the wait that our limit would return if it admitted the same call.
    fn forced_wait(&mut self, permits: u64) -> Option<u64> {
        let ask = Ask::Regardless(Cost::new(permits));
        self.limit.decide(&mut self.state, &Now::at(self.now), ask).is_admitted().then(|| self.wait_for(0))
    }

    fn wait_for(&self, permits: u64) -> u64 {
        match self.limit.report(&self.state, &Now::at(self.now), Cost::new(permits)).retry {
            Retry::After(wait) => wait.as_nanos(),
            Retry::OnRelease | Retry::Never => u64::MAX,
        }
    }

    /// Compares the reported state at `now`.
    fn compare(&mut self, comparison: Comparison, after: RecordedState, now: u64) -> Comparison {
        self.now = now;
        let remaining = self.limit.report(&self.state, &Now::at(now), Cost::ONE).remaining;
        comparison.expect_equal("available", after.available.max(0), remaining.into()).expect_equal(
            "wait_for_one",
            after.wait_for_one,
            self.wait_for(1).into(),
        )
    }
}

impl Player for Resilience4jPlayer {
    fn compare(&self, step: &TraceStep) -> ReadResult<StepResult> {
        let (now, then) = self.start_and_end(step)?;
        let after = RecordedState::read(&step.result)?;
        let mut ours = match self.load(now) {
            Ok(ours) => ours,
            Err(seen) => return Ok(seen),
        };
        Ok(match step.op.as_str() {
            "get_metrics" | "change_timeout_duration" => ours.compare(Comparison::new(), after, then).result(),
            "reserve_permission" | "acquire_permission" => self.compare_taking(step, ours, after, then)?,
            "drain_permissions" => {
                let _ = ours.limit.decide(&mut ours.state, &Now::at(now), Ask::UpTo(Cost::MAX));
                let there = self.stored_at(now, self.limit).permits;
                // The stored amount may be stale. If less is available now, the reference may refuse to subtract the
                // stale amount.
                let stale = self.stored.permits;
                let left = if stale > there && after.available == there { there } else { there - stale };
                ours.compare(Comparison::new(), after, then)
                    .result()
                    .or_known_difference(&DRAINS_STALE_AMOUNT, || stale != there.max(0) && after.available == left)
            }
            "change_limit_for_period" => {
                let limit = step.args.read_int("limit_for_period")?;
                let Ok(changed) = self.our_limit(limit, 0) else {
                    return Ok(StepResult::ByRule(&RATE_ABOVE_ONE_PER_NANOSECOND));
                };
                changed.convert(&ours.limit, &mut ours.state, &Now::at(now));
                ours.limit = changed;
                ours.compare(Comparison::new(), after, then)
                    .result()
                    .or_known_difference(&CHANGED_LIMIT_APPLIES_LATER, || {
                        after.available == self.stored_at(now, limit).permits
                    })
            }
            _ => return Err(Skip::UnknownOperation),
        })
    }

    fn follow(&mut self, step: &TraceStep) -> ReadResult<()> {
        self.seen = RecordedState::read(&step.result)?;
        let (now, then) = self.start_and_end(step)?;
        self.at = then;
        if step.failed() {
            return Ok(());
        }
        let there = self.stored_at(now, self.limit);
        match step.op.as_str() {
            "change_limit_for_period" => self.limit = step.args.read_int("limit_for_period")?,
            "change_timeout_duration" => self.timeout = step.args.read_count("timeout_ns")?,
            "drain_permissions" => self.stored = StoredPermits { permits: self.seen.available, ..there },
            "reserve_permission" | "acquire_permission" => {
                let taken = if step.result.read_bool("ok")? { step.args.read_int("permits")? } else { 0 };
                self.stored = StoredPermits { permits: there.permits - taken, ..there };
            }
            _ => {}
        }
        Ok(())
    }
}

impl Resilience4jPlayer {
    fn compare_taking(
        &self,
        step: &TraceStep,
        mut ours: OwnBuckets,
        after: RecordedState,
        then: u64,
    ) -> ReadResult<StepResult> {
        let (permits, ok) = (step.args.read_int("permits")?, step.result.read_bool("ok")?);
        let (now, _) = self.start_and_end(step)?;
        let Ok(cost) = u64::try_from(permits) else {
            let given = Cost::new(permits.unsigned_abs() as u64);
            ours.limit.refund(&mut ours.state, &Now::at(ours.now), given, None);
            let seen = ours.compare(Comparison::new().expect_equal("ok", ok, true), after, then).result();
            return Ok(seen.or_known_difference(&REFUNDS_ABOVE_LIMIT, || {
                after.available > self.limit || self.seen.available - permits > self.limit
            }));
        };
        let recorded = match step.result.optional_int("wait_ns") {
            Some(wait) => wait,
            None if ok => step.result.read_int("parked_ns")?,
            None => -1,
        };
        let wait_of = |wait: Option<u64>| wait.map_or(-1, i128::from);
        let compare = |wait: Option<u64>, mut ours: OwnBuckets| {
            let verdict =
                Comparison::new().expect_equal("ok", ok, wait.is_some()).expect_equal("wait", recorded, wait_of(wait));
            ours.compare(verdict, after, then).result()
        };
        let wait = ours.take(cost);
        let seen = compare(wait, ours);
        let sleeps = step.op == "acquire_permission" && !ok && step.result.read_int("parked_ns")? > 0;
        let seen = if seen == StepResult::Equal && sleeps { StepResult::ByRule(&SLEEPS_WITHOUT_SUCCESS) } else { seen };
        let forced = || {
            let mut ours = self.load(now).ok()?;
            let wait = ours.forced_wait(cost);
            Some(compare(wait, ours) == StepResult::Equal)
        };
        Ok(seen
            .or_known_difference(&REFILLS_MORE_THAN_A_CYCLE, || {
                permits > self.limit && if ok { forced() == Some(true) } else { wait.is_none() }
            })
            .or_known_difference(&ZERO_COST_WAITS, || cost == 0 && self.stored_at(now, self.limit).permits < 0))
    }
}
