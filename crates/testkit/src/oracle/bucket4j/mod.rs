//! bucket4j 8.19.0: token buckets, one or several per limiter, in whole nanoseconds.
//!
//! | theirs | ours |
//! |---|---|
//! | greedy bandwidth | [`TokenBucket`](tollgate_core::TokenBucket) of the same rate and capacity |
//! | `intervally`, aligned or not, adaptive or not | [`IntervalBucket`](tollgate_core::IntervalBucket) with steps at that offset |
//! | several bandwidths | all are weighed; then either all or none are charged |
//! | `try_consume…`, `estimate…` | check, peek; `nanos_to_refill` is `retry`, `nanos_to_reset` is `reset` |
//! | `try_consume_as_much_as_possible` | take up to |
//! | `consume_ignoring_rate_limits` | charge; the penalty is the time until the debt is paid |
//! | `blocking_try_consume` | charge, if the wait is within bounds |
//! | `add_tokens`, `force_add_tokens`, `reset` | refund, refund, reset |
//! | `replace_configuration` | convert to the other parameters where the ids match; otherwise start unused |
//!
//! A recorded state is a pair `[tokens, rounding error]` per bandwidth. The rounding error is the part of the next
//! token that is already refilled, in parts of the period. The rounding error is converted to our ticks. Waits are
//! rounded down by bucket4j and up by Tollgate: a difference of one nanosecond counts as equal.

mod group;

use group::{Bandwidth, BandwidthGroup};
use serde_json::Value;
use tollgate_core::Cost;

use super::trace::to_nanos;
use super::{Case, Comparison, Fields, KnownDifference, Player, ReadResult, Skip, StepResult, TraceStep};

const REFILL_TAKES_CENTURIES: KnownDifference = KnownDifference {
    name: "refill longer than a century",
    reason: "bucket4j computes such a refill in doubles; Tollgate's constructor returns an error",
};
const FORCED_ADD_EXCEEDS_CAPACITY: KnownDifference = KnownDifference {
    name: "force_add fills beyond capacity",
    reason: "the bucket then admits more than its capacity at one instant; Tollgate never exceeds the capacity",
};
const BLOCKING_IGNORES_CAPACITY: KnownDifference = KnownDifference {
    name: "blocking ignores the capacity",
    reason: "a blocking call admits a cost above the capacity after a wait; Tollgate always refuses such a cost",
};
const WAIT_ROUNDED_DOWN: KnownDifference = KnownDifference {
    name: "wait rounded down to the bound",
    reason: "bucket4j admits a wait that exceeds the bound by a fraction of a nanosecond; Tollgate refuses it",
};

const KEEPS_TOKENS_NOT_SPENT_AMOUNT: KnownDifference = KnownDifference {
    name: "tokens kept instead of the amount spent",
    reason: "a change of parameters keeps the remaining amount or its proportion; Tollgate keeps the amount spent",
};

/// bucket4j's value for never.
const NEVER: i128 = i64::MAX as i128;

/// Returns a player that replays a case.
pub(super) fn new_player(case: &Case) -> ReadResult<Box<dyn Player>> {
    let start = to_nanos(case.start().ok_or(Skip::Field("start_ns"))?, 1)?;
    let bandwidths = read_bandwidths(&case.config, start)?;
    Ok(Box::new(Bucket4jPlayer { bandwidths, seen: BucketState::read(case.config.field("create"))?, at: start }))
}

/// Returns the bandwidths of a configuration, or `None` if a bandwidth would take too long to refill.
fn read_bandwidths(config: &Value, start: u64) -> ReadResult<Option<Vec<Bandwidth>>> {
    config.read_list("bandwidths")?.iter().map(|config| Bandwidth::new(config, start)).collect()
}

struct Bucket4jPlayer {
    /// `None` if our limit cannot be constructed.
    bandwidths: Option<Vec<Bandwidth>>,
    /// State after the last step, and its time.
    seen: BucketState,
    at: u64,
}

struct BucketState(Vec<[i128; 2]>);

impl BucketState {
    fn read(result: &Value) -> ReadResult<Self> {
        let pair = |pair: &Value| {
            let part =
                |index: usize| pair.get(index).and_then(Value::as_i64).map(i128::from).ok_or(Skip::Field("state"));
            Ok([part(0)?, part(1)?])
        };
        result.read_list("state")?.iter().map(pair).collect::<ReadResult<_>>().map(Self)
    }

    fn remaining(&self) -> Vec<i128> {
        self.0.iter().map(|&[tokens, _]| tokens.max(0)).collect()
    }
}

impl Player for Bucket4jPlayer {
    fn compare(&self, step: &TraceStep) -> ReadResult<StepResult> {
        let Some(bandwidths) = &self.bandwidths else { return Ok(StepResult::ByRule(&REFILL_TAKES_CENTURIES)) };
        let now = step.at_nanos(1)?;
        if bandwidths.is_empty() || bandwidths.len() != self.seen.0.len() {
            return Err(Skip::Field("state"));
        }
        let loaded: Option<Vec<_>> = bandwidths
            .iter()
            .zip(&self.seen.0)
            .map(|(bandwidth, &state)| bandwidth.load(state, self.at, now))
            .collect();
        let mut group = loaded.map(BandwidthGroup).ok_or(Skip::ImpossibleState)?;
        let before = group.clone();
        let after = BucketState::read(&step.result)?;
        if step.op == "replace_configuration" {
            return self.compare_replacing(step, &before, &after);
        }
        let seen = group.run(step)?.expect_equal("tokens", after.remaining(), group.tokens()).result();
        let are_cut =
            || after.0.iter().zip(&group.0).all(|(&[tokens, _], limit)| limit.equals_when_cut_to_capacity(tokens));
        // Compares again, as if our limits had admitted the call.
        let is_forced = || {
            let mut group = before.clone();
            let forced = group.run_forced(step);
            forced.is_ok_and(|it| {
                it.expect_equal("tokens", after.remaining(), group.tokens()).result() == StepResult::Equal
            })
        };
        Ok(match step.op.as_str() {
            "force_add_tokens" => seen.or_known_difference(&FORCED_ADD_EXCEEDS_CAPACITY, are_cut),
            "blocking_try_consume" => {
                let (result, args) = (&step.result, &step.args);
                let never_fits = before.wait(Cost::new(args.read_count("tokens")?)) == NEVER;
                let ok = result.read_bool("ok")?;
                seen.or_known_difference(&BLOCKING_IGNORES_CAPACITY, || never_fits && ok && is_forced())
                    .or_known_difference(&WAIT_ROUNDED_DOWN, || {
                        result.field("parked_ns") == args.field("max_wait_ns") && is_forced()
                    })
            }
            _ => seen,
        })
    }

    fn follow(&mut self, step: &TraceStep) -> ReadResult<()> {
        if step.op == "replace_configuration" && !step.failed() {
            self.bandwidths = self.replaced_bandwidths(step)?;
        }
        self.seen = BucketState::read(&step.result)?;
        self.at = step.at_nanos(1)?;
        Ok(())
    }
}

impl Bucket4jPlayer {
    /// Returns the bandwidths after a change of parameters.
    fn replaced_bandwidths(&self, step: &TraceStep) -> ReadResult<Option<Vec<Bandwidth>>> {
        let now = step.at_nanos(1)?;
        let (Some(new), Some(old)) = (read_bandwidths(&step.args, now)?, &self.bandwidths) else { return Ok(None) };
        let place = |bandwidth: &Bandwidth| match bandwidth.index_of_replaced(old, &new) {
            Some(place) if !is_reset(step) => bandwidth.clone().into_replacement_of(&old[place], now),
            _ => Ok(Some(bandwidth.clone())),
        };
        new.iter().map(place).collect()
    }

    fn compare_replacing(
        &self,
        step: &TraceStep,
        before: &BandwidthGroup<'_>,
        after: &BucketState,
    ) -> ReadResult<StepResult> {
        let (Some(new), Some(old)) = (self.replaced_bandwidths(step)?, &self.bandwidths) else {
            return Ok(StepResult::ByRule(&REFILL_TAKES_CENTURIES));
        };
        let (now, strategy) = (step.at_nanos(1)?, step.args.read_text("strategy")?);
        let place = |bandwidth: &Bandwidth| bandwidth.index_of_replaced(old, &new).filter(|_| !is_reset(step));
        let ours = |bandwidth: &Bandwidth| match place(bandwidth) {
            Some(place) => bandwidth.converted_from(&before.0[place]).remaining(),
            None => bandwidth.init(now).remaining(),
        };
        let ours: Vec<_> = new.iter().map(ours).collect();
        let seen = Comparison::new().expect_equal("tokens", after.remaining(), ours).result();
        // bucket4j's tokens after a change lie between the conversion of the whole tokens and the conversion of one
        // token more. A greedy bandwidth adds its refill since the last interval of its predecessor.
        let is_kept = |(bandwidth, &[recorded, _]): (&Bandwidth, &[i128; 2])| {
            let Some(place) = place(bandwidth) else { return true };
            let (capacity, was) = (i128::from(bandwidth.capacity), i128::from(old[place].capacity));
            let kept = |tokens: i128| match strategy {
                "PROPORTIONALLY" => tokens * capacity / was,
                "ADDITIVE" => tokens.min(capacity) + (capacity - was).max(0),
                _ => tokens.min(capacity),
            };
            let tokens = before.tokens_of(place);
            let most = (kept(tokens + 1) + bandwidth.refilled_after(&old[place], now)).min(capacity);
            (kept(tokens)..=most).contains(&recorded.max(0))
        };
        Ok(seen.or_known_difference(&KEEPS_TOKENS_NOT_SPENT_AMOUNT, || new.iter().zip(&after.0).all(is_kept)))
    }
}

fn is_reset(step: &TraceStep) -> bool {
    step.args.read_text("strategy") == Ok("RESET")
}
