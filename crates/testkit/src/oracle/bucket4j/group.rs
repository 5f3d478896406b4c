//! The bandwidths of a bucket4j limiter as our buckets, which are charged together or not at all.

use serde_json::Value;
use tollgate_core::{
    Algorithm, Ask, Cost, IntervalBucket, Limit as Ours, LimitError, Nanos, Now, Outcome, Rate, Retry, Steps,
    TokenBucket,
};

use super::NEVER;
use crate::oracle::{Comparison, Fields, ReadResult, Skip, TraceStep};

/// One bandwidth: our limit and its refill alignment.
#[derive(Clone)]
pub(super) struct Bandwidth {
    limit: Ours,
    id: Option<String>,
    refill: u64,
    period: u64,
    pub(super) capacity: u64,
    initial: u64,
    /// For interval bandwidths, the instant from which periods are counted: one period before the first refill.
    phase: Option<u64>,
}

impl Bandwidth {
    /// Returns the bandwidth of a configuration, or `None` if the refill takes longer than our limits allow.
    pub(super) fn new(config: &Value, start: u64) -> ReadResult<Option<Self>> {
        let (refill, period, capacity) =
            (config.read_count("refill_tokens")?, config.read_count("period_ns")?, config.read_count("capacity")?);
        if period == 0 {
            return Err(Skip::RefusedLimit);
        }
        let phase = match config.read_text("refill")? {
            "greedy" => None,
            "intervally" => Some(start),
            _ => {
                let first = config.read_count("first_refill_ms")?.checked_mul(1_000_000).ok_or(Skip::BeyondTime)?;
                Some(first.checked_sub(period).ok_or(Skip::BeforeTime)?)
            }
        };
        let id = config.field("id").as_str().map(str::to_owned);
        let initial =
            if config.get("initial_tokens").is_some() { config.read_count("initial_tokens")? } else { capacity };
        let (limit, initial) = (Ours::Unlimited, initial.min(capacity));
        Self { limit, id, refill, period, capacity, initial, phase }.with_limit()
    }

    fn with_limit(mut self) -> ReadResult<Option<Self>> {
        let deepest = u128::from(Rate::MAX_FILL_TIME.as_nanos()) * u128::from(self.refill) / u128::from(self.period);
        let steps = (Rate::MAX_FILL_TIME.as_nanos() / self.period).saturating_mul(self.refill);
        let deepest = self.phase.map_or(u64::try_from(deepest).unwrap_or(u64::MAX), |_| steps);
        // bucket4j's debt is unbounded, so our limit gets the largest possible debt.
        let Some(max_debt) = deepest.checked_sub(self.capacity) else { return Ok(None) };
        let period = Nanos::from_nanos(self.period);
        let limit = match self.phase {
            None => {
                let rate = Rate::new(self.refill, period).map_err(|_| Skip::RefusedLimit)?;
                TokenBucket::new(rate, self.capacity).and_then(|limit| Ok(limit.max_debt(max_debt)?.into()))
            }
            Some(phase) => {
                let limit = IntervalBucket::new(self.refill, period);
                let limit = limit.and_then(|limit| limit.burst(self.capacity)?.max_debt(max_debt));
                limit.map(|limit| limit.steps(Steps::Aligned(Nanos::from_nanos(phase))).into())
            }
        };
        match limit {
            Ok(limit) => {
                self.limit = limit;
                Ok(Some(self))
            }
            Err(LimitError::FillTooLong { .. }) => Ok(None),
            Err(_) => Err(Skip::RefusedLimit),
        }
    }

    /// Returns this bandwidth as the replacement of `old`, which has the same id. The new bandwidth refills from the
    /// last refill of `old`.
    pub(super) fn into_replacement_of(mut self, old: &Self, now: u64) -> ReadResult<Option<Self>> {
        if self.phase.is_some() {
            let refilled = |phase: u64| phase + now.saturating_sub(phase) / old.period * old.period;
            self.phase = Some(old.phase.map_or(now, refilled));
        }
        self.with_limit()
    }

    /// Returns the refill of a greedy bandwidth from the last interval of the replaced bandwidth until `now`, rounded
    /// up.
    pub(super) fn refilled_after(&self, old: &Self, now: u64) -> i128 {
        let since = |phase: u64| u128::from(now.saturating_sub(phase) % old.period);
        let since = old.phase.filter(|_| self.phase.is_none()).map_or(0, since);
        (since * u128::from(self.refill)).div_ceil(self.period.into()) as i128
    }

    /// Returns the index of the bandwidth in `old` that this bandwidth replaces: the bandwidth with the same id. A
    /// bandwidth without an id is replaced only if neither configuration has another bandwidth without an id.
    pub(super) fn index_of_replaced(&self, old: &[Self], new: &[Self]) -> Option<usize> {
        let alike = |all: &[Self]| all.iter().filter(|other| other.id == self.id).count();
        let is_clear = self.id.is_some() || (alike(old) <= 1 && alike(new) <= 1);
        old.iter().position(|other| other.id == self.id).filter(|_| is_clear)
    }

    /// Returns the time on this bandwidth's clock, which stands still before `phase`.
    fn clock_of_bandwidth(&self, now: u64) -> u64 {
        now.max(self.phase.unwrap_or(0))
    }

    /// Returns our limit in the state that was recorded at `at`, or `None` if our limit cannot represent that state,
    /// for example more tokens than the capacity.
    pub(super) fn load(&self, [tokens, part]: [i128; 2], at: u64, now: u64) -> Option<BandwidthStep<'_>> {
        let missing = u128::try_from(i128::from(self.capacity) - tokens).ok()?;
        let mut state = [0; 2];
        if let Ours::TokenBucket(limit) = self.limit {
            let rate = limit.rate();
            // The rounding error is counted in parts of `period`, and a tick in parts of the reduced period.
            let part = u128::try_from(part).ok()? / u128::from(self.period / rate.per().as_nanos());
            let owed = (missing * u128::from(rate.per().as_nanos())).checked_sub(part)?;
            let full_at = u128::from(at) * u128::from(rate.count()) + owed;
            state = [full_at as u64, (full_at >> 64) as u64];
        } else {
            let ask = Ask::Regardless(Cost::new(u64::try_from(missing).ok()?));
            if !self.limit.decide(&mut state, &Now::at(self.clock_of_bandwidth(at)), ask).is_admitted() {
                return None;
            }
        }
        Some(BandwidthStep { bandwidth: self, state, now: self.clock_of_bandwidth(now), asked: now })
    }

    /// Returns our limit with its initial tokens.
    pub(super) fn init(&self, now: u64) -> BandwidthStep<'_> {
        let mut limit = BandwidthStep { bandwidth: self, state: [0; 2], now: self.clock_of_bandwidth(now), asked: now };
        limit.fill(self.initial);
        limit
    }

    /// Returns our limit in the state of the replaced limit.
    pub(super) fn converted_from(&self, old: &BandwidthStep<'_>) -> BandwidthStep<'_> {
        let mut state = old.state;
        self.limit.convert(&old.bandwidth.limit, &mut state, &old.now());
        BandwidthStep { bandwidth: self, state, now: self.clock_of_bandwidth(old.asked), asked: old.asked }
    }
}

/// One bandwidth during a step.
#[derive(Clone, Copy)]
pub(super) struct BandwidthStep<'a> {
    pub(super) bandwidth: &'a Bandwidth,
    state: [u64; 2],
    now: u64,
    asked: u64,
}

impl BandwidthStep<'_> {
    fn now(&self) -> Now<'static> {
        Now::at(self.now)
    }

    fn fill(&mut self, tokens: u64) {
        let (limit, now) = (self.bandwidth.limit, self.now());
        limit.init(&mut self.state, &now);
        let _ = limit.decide(&mut self.state, &now, Ask::Exactly(Cost::new(self.bandwidth.capacity - tokens)));
    }

    pub(super) fn remaining(&self) -> i128 {
        i128::from(self.bandwidth.limit.report(&self.state, &self.now(), Cost::ONE).remaining)
    }

    /// Returns whether bucket4j's `tokens`, capped at our capacity, equal our remaining amount.
    pub(super) fn equals_when_cut_to_capacity(&self, tokens: i128) -> bool {
        tokens.clamp(0, i128::from(self.bandwidth.capacity)) == self.remaining()
    }

    /// Converts our wait to a wait from the time of the call.
    fn wait_from_call(&self, wait: Nanos) -> i128 {
        let wait = i128::from(wait.as_nanos());
        if wait == 0 { 0 } else { i128::from(self.now) + wait - i128::from(self.asked) }
    }

    fn wait(&self, cost: Cost) -> i128 {
        match self.bandwidth.limit.report(&self.state, &self.now(), cost).retry {
            Retry::After(wait) => self.wait_from_call(wait),
            Retry::OnRelease | Retry::Never => NEVER,
        }
    }

    fn reset(&self) -> i128 {
        self.wait_from_call(self.bandwidth.limit.report(&self.state, &self.now(), Cost::ONE).reset)
    }
}

/// All bandwidths of a limiter during a step.
#[derive(Clone)]
pub(super) struct BandwidthGroup<'a>(pub(super) Vec<BandwidthStep<'a>>);

impl BandwidthGroup<'_> {
    /// Runs the operation and compares its result.
    pub(super) fn run(&mut self, step: &TraceStep) -> ReadResult<Comparison> {
        let result = &step.result;
        let tokens = || step.args.read_count("tokens").map(Cost::new);
        let comparison = Comparison::new();
        Ok(match step.op.as_str() {
            "get_available_tokens" => {
                comparison.expect_equal("available", result.read_int("tokens")?.max(0), self.remaining())
            }
            "try_consume" => comparison.expect_equal("ok", result.read_bool("ok")?, self.take(Ask::Exactly(tokens()?))),
            "try_consume_and_return_remaining" => {
                let wait = self.wait(tokens()?);
                let ok = self.take(Ask::Exactly(tokens()?));
                self.compare_probe(result, ok, wait)?.expect_at_most_one_more(
                    "reset",
                    result.read_int("nanos_to_reset")?,
                    self.reset(),
                )
            }
            "estimate_ability_to_consume" => {
                let wait = self.wait(tokens()?);
                self.compare_probe(result, self.passes(Ask::Exactly(tokens()?)), wait)?
            }
            "try_consume_as_much_as_possible" => {
                let taken = self.take_up_to(Cost::new(step.args.read_count("limit")?));
                comparison.expect_equal("consumed", result.read_count("consumed")?, taken.get())
            }
            "consume_ignoring_rate_limits" => {
                let taken = self.take(Ask::Regardless(tokens()?));
                let penalty = result.read_int("penalty_ns")?;
                comparison.expect_equal("ok", true, taken).expect_at_most_one_more(
                    "penalty",
                    penalty,
                    self.wait(Cost::ZERO),
                )
            }
            "blocking_try_consume" => {
                let wait = self.wait(tokens()?);
                let ok = wait <= step.args.read_int("max_wait_ns")? && self.take(Ask::Regardless(tokens()?));
                let parked = result.read_int("parked_ns")?;
                comparison.expect_equal("ok", result.read_bool("ok")?, ok).expect_at_most_one_more(
                    "parked",
                    parked,
                    if ok { wait } else { 0 },
                )
            }
            "add_tokens" | "force_add_tokens" => {
                let tokens = tokens()?;
                for limit in &mut self.0 {
                    limit.bandwidth.limit.refund(&mut limit.state, &Now::at(limit.now), tokens, None);
                }
                comparison.expect_equal("ok", result.read_bool("ok")?, true)
            }
            "reset" => {
                for limit in &mut self.0 {
                    limit.fill(limit.bandwidth.capacity);
                }
                comparison.expect_equal("ok", result.read_bool("ok")?, true)
            }
            _ => return Err(Skip::UnknownOperation),
        })
    }

    /// Runs a blocking call, which charges its cost regardless of the limit.
    pub(super) fn run_forced(&mut self, step: &TraceStep) -> ReadResult<Comparison> {
        self.take(Ask::Regardless(Cost::new(step.args.read_count("tokens")?)));
        Ok(Comparison::new().expect_at_most_one_more(
            "parked",
            step.result.read_int("parked_ns")?,
            self.wait(Cost::ZERO),
        ))
    }

    fn compare_probe(&self, result: &Value, ok: bool, wait: i128) -> ReadResult<Comparison> {
        Ok(Comparison::new()
            .expect_equal("ok", result.read_bool("ok")?, ok)
            .expect_equal("remaining", result.read_int("remaining")?, self.remaining())
            .expect_at_most_one_more("wait", result.read_int("nanos_to_refill")?, wait))
    }

    fn passes(&self, ask: Ask) -> bool {
        let weigh = |limit: &BandwidthStep<'_>| limit.bandwidth.limit.weigh(&limit.state, &limit.now(), ask).outcome();
        self.0.iter().map(weigh).fold(Outcome::Allow, Outcome::stricter).is_admitted()
    }

    fn take(&mut self, ask: Ask) -> bool {
        let passes = self.passes(ask);
        if passes {
            for limit in &mut self.0 {
                let _ = limit.bandwidth.limit.decide(&mut limit.state, &Now::at(limit.now), ask);
            }
        }
        passes
    }

    fn take_up_to(&mut self, cost: Cost) -> Cost {
        let weigh = |limit: &BandwidthStep<'_>| {
            limit.bandwidth.limit.weigh(&limit.state, &limit.now(), Ask::UpTo(cost)).taken()
        };
        let taken = self.0.iter().map(weigh).min().unwrap_or_default();
        self.take(Ask::Exactly(taken));
        taken
    }

    pub(super) fn tokens_of(&self, place: usize) -> i128 {
        self.0[place].remaining()
    }

    pub(super) fn tokens(&self) -> Vec<i128> {
        self.0.iter().map(BandwidthStep::remaining).collect()
    }

    fn remaining(&self) -> i128 {
        self.tokens().into_iter().min().unwrap_or(0)
    }

    pub(super) fn wait(&self, cost: Cost) -> i128 {
        self.0.iter().map(|limit| limit.wait(cost)).max().unwrap_or(0)
    }

    fn reset(&self) -> i128 {
        self.0.iter().map(BandwidthStep::reset).max().unwrap_or(0)
    }
}
