//! The bandwidths of a limiter as our token buckets, all or none.

use serde_json::Value;
use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, Outcome, Rate, Retry, TokenBucket};

use super::NEVER;
use crate::oracle::{Comparison, Fields, Step};

/// One bandwidth: our limit and how it is refilled.
pub(super) struct Bandwidth {
    limit: TokenBucket,
    period: u64,
    /// For interval bandwidths an instant of refilling, before which nothing is refilled.
    phase: Option<u64>,
}

impl Bandwidth {
    /// None for a limit that takes longer to refill than any of ours may.
    pub(super) fn new(config: &Value, start: u64) -> Option<Self> {
        let (refill, period) = (config.count("refill_tokens"), config.count("period_ns"));
        let capacity = config.count("capacity");
        // Debt is unbounded there: here as deep as it can be.
        let deepest = u128::from(Rate::MAX_FILL.as_nanos()) * u128::from(refill) / u128::from(period);
        let max_debt = u64::try_from(deepest).unwrap_or(u64::MAX).checked_sub(capacity)?;
        let limit = Rate::new(refill, Nanos::from_nanos(period))
            .and_then(|rate| TokenBucket::new(rate, capacity)?.max_debt(max_debt))
            .expect("a limit that refills in time is one of ours");
        let phase = match config.text("refill") {
            "greedy" => None,
            "intervally" => Some(start),
            _ => Some(config.count("first_refill_ms") * 1_000_000 - period),
        };
        Some(Self { limit, period, phase })
    }

    /// The time by which tokens were refilled: now, or the last whole period.
    fn refilled(&self, now: u64) -> u64 {
        self.phase.map_or(now, |phase| now - now.saturating_sub(phase) % self.period).max(self.phase.unwrap_or(0))
    }

    /// Our limit in the state that was seen at `at`; none if it is above capacity.
    pub(super) fn load(&self, [tokens, part]: [i128; 2], at: u64, now: u64) -> Option<Limit<'_>> {
        let rate = self.limit.rate();
        let missing = u128::try_from(i128::from(self.limit.burst()) - tokens).ok()?;
        // The rounding error is in parts of `period`, a tick in parts of the reduced period.
        let part = u128::try_from(part).ok()? / u128::from(self.period / rate.per().as_nanos());
        let owed = (missing * u128::from(rate.per().as_nanos())).checked_sub(part)?;
        let full_at = u128::from(self.refilled(at)) * u128::from(rate.count()) + owed;
        let refilled = self.refilled(now);
        Some(Limit { bandwidth: self, state: [full_at as u64, (full_at >> 64) as u64], now: refilled, asked: now })
    }
}

/// One bandwidth in the middle of a step.
#[derive(Clone, Copy)]
pub(super) struct Limit<'a> {
    bandwidth: &'a Bandwidth,
    state: [u64; 2],
    now: u64,
    asked: u64,
}

impl Limit<'_> {
    fn now(&self) -> Now<'static> {
        Now::at(self.now)
    }

    fn remaining(&self) -> i128 {
        i128::from(self.bandwidth.limit.report(&self.state, &self.now(), Cost::ONE).remaining)
    }

    /// Whether `tokens` are more than fit and ours stopped at full.
    pub(super) fn is_cut(&self, tokens: i128) -> bool {
        tokens.clamp(0, i128::from(self.bandwidth.limit.burst())) == self.remaining()
    }

    /// A wait of ours, from when the caller asked. Interval bandwidths only refill in whole periods.
    fn since_asked(&self, wait: Nanos) -> i128 {
        let mut wait = wait.as_nanos();
        if self.bandwidth.phase.is_some() {
            wait = wait.next_multiple_of(self.bandwidth.period);
        }
        if wait == 0 { 0 } else { i128::from(self.now) + i128::from(wait) - i128::from(self.asked) }
    }

    fn wait(&self, cost: Cost) -> i128 {
        match self.bandwidth.limit.report(&self.state, &self.now(), cost).retry {
            Retry::After(wait) => self.since_asked(wait),
            Retry::OnRelease | Retry::Never => NEVER,
        }
    }

    fn reset(&self) -> i128 {
        self.since_asked(self.bandwidth.limit.report(&self.state, &self.now(), Cost::ONE).reset)
    }
}

/// All bandwidths of a limiter in the middle of a step.
#[derive(Clone)]
pub(super) struct Group<'a>(pub(super) Vec<Limit<'a>>);

impl Group<'_> {
    /// Runs the operation and compares what it returns.
    pub(super) fn run(&mut self, step: &Step) -> Comparison {
        let result = &step.result;
        let tokens = || Cost::new(step.args.count("tokens"));
        match step.op.as_str() {
            "get_available_tokens" => {
                Comparison::new().same("available", result.int("tokens").max(0), self.remaining())
            }
            "try_consume" => Comparison::new().same("ok", result.flag("ok"), self.take(Ask::Exactly(tokens()))),
            "try_consume_and_return_remaining" => {
                let wait = self.wait(tokens());
                let ok = self.take(Ask::Exactly(tokens()));
                self.probe(result, ok, wait).up_to_one_more("reset", result.int("nanos_to_reset"), self.reset())
            }
            "estimate_ability_to_consume" => {
                let wait = self.wait(tokens());
                self.probe(result, self.passes(Ask::Exactly(tokens())), wait)
            }
            "try_consume_as_much_as_possible" => {
                let taken = self.take_up_to(Cost::new(step.args.count("limit")));
                Comparison::new().same("consumed", result.count("consumed"), taken.get())
            }
            "consume_ignoring_rate_limits" => {
                let taken = self.take(Ask::Regardless(tokens()));
                Comparison::new().same("ok", true, taken).up_to_one_more(
                    "penalty",
                    result.int("penalty_ns"),
                    self.wait(Cost::ZERO),
                )
            }
            "blocking_try_consume" => {
                let wait = self.wait(tokens());
                let ok = wait <= step.args.int("max_wait_ns") && self.take(Ask::Regardless(tokens()));
                Comparison::new().same("ok", result.flag("ok"), ok).up_to_one_more(
                    "parked",
                    result.int("parked_ns"),
                    if ok { wait } else { 0 },
                )
            }
            "add_tokens" | "force_add_tokens" => {
                for limit in &mut self.0 {
                    limit.bandwidth.limit.refund(&mut limit.state, &Now::at(limit.now), tokens(), None);
                }
                Comparison::new().same("ok", result.flag("ok"), true)
            }
            "reset" => {
                for limit in &mut self.0 {
                    limit.bandwidth.limit.fresh(&mut limit.state, &Now::at(limit.now));
                }
                Comparison::new().same("ok", result.flag("ok"), true)
            }
            other => panic!("no operation `{other}` is known"),
        }
    }

    /// Runs a blocking call that takes whatever it asks for.
    pub(super) fn run_forced(&mut self, step: &Step) -> Comparison {
        self.take(Ask::Regardless(Cost::new(step.args.count("tokens"))));
        Comparison::new().up_to_one_more("parked", step.result.int("parked_ns"), self.wait(Cost::ZERO))
    }

    fn probe(&self, result: &Value, ok: bool, wait: i128) -> Comparison {
        Comparison::new()
            .same("ok", result.flag("ok"), ok)
            .same("remaining", result.int("remaining"), self.remaining())
            .up_to_one_more("wait", result.int("nanos_to_refill"), wait)
    }

    fn passes(&self, ask: Ask) -> bool {
        let weigh = |limit: &Limit<'_>| limit.bandwidth.limit.weigh(&limit.state, &limit.now(), ask).outcome();
        self.0.iter().map(weigh).fold(Outcome::Allow, Outcome::and).is_allowed()
    }

    fn take(&mut self, ask: Ask) -> bool {
        let passes = self.passes(ask);
        if passes {
            for limit in &mut self.0 {
                limit.bandwidth.limit.decide(&mut limit.state, &Now::at(limit.now), ask);
            }
        }
        passes
    }

    fn take_up_to(&mut self, cost: Cost) -> Cost {
        let weigh =
            |limit: &Limit<'_>| limit.bandwidth.limit.weigh(&limit.state, &limit.now(), Ask::UpTo(cost)).taken();
        let taken = self.0.iter().map(weigh).min().unwrap_or_default();
        self.take(Ask::Exactly(taken));
        taken
    }

    pub(super) fn tokens(&self) -> Vec<i128> {
        self.0.iter().map(Limit::remaining).collect()
    }

    fn remaining(&self) -> i128 {
        self.tokens().into_iter().min().unwrap_or(0)
    }

    pub(super) fn wait(&self, cost: Cost) -> i128 {
        self.0.iter().map(|limit| limit.wait(cost)).max().unwrap_or(0)
    }

    fn reset(&self) -> i128 {
        self.0.iter().map(Limit::reset).max().unwrap_or(0)
    }
}
