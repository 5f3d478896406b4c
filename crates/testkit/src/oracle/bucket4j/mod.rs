//! bucket4j 8.19.0: token buckets, one or several to the limiter, in whole nanoseconds.
//!
//! | theirs | ours |
//! |---|---|
//! | greedy bandwidth | [`TokenBucket`](tollgate_core::TokenBucket) of the same rate and capacity |
//! | interval bandwidth beside a greedy one | the same, read with a clock that only moves in whole periods |
//! | several bandwidths | all are weighed, then all are charged or none |
//! | `try_consume…`, `estimate…` | check, peek; `nanos_to_refill` is `retry`, `nanos_to_reset` is `reset` |
//! | `try_consume_as_much_as_possible` | take up to |
//! | `consume_ignoring_rate_limits` | charge; the penalty is the time until the debt is paid |
//! | `blocking_try_consume` | charge, if the wait is within bounds |
//! | `add_tokens`, `force_add_tokens`, `reset` | refund, refund, reset |
//!
//! A recorded state is `[tokens, rounding error]`: the error is the part of a token already refilled, in the ticks of
//! ours, so nothing is lost in the loading. Waits of theirs round down, ours up: one nanosecond more is the same.

mod group;

use group::{Bandwidth, Group};
use serde_json::Value;
use tollgate_core::Cost;

use super::{Case, Fields, Player, Rule, Seen, Skip, Step};

const TOO_LARGE: Rule = Rule {
    name: "limit too large for us",
    reason: "takes more than a century to refill, where bucket4j turns to doubles; ours is an error at construction",
};
const ABOVE_CAPACITY: Rule = Rule {
    name: "force_add fills beyond capacity",
    reason: "such a bucket lets more pass at once than it is allowed to; ours stops at full",
};
const BLOCKING_BEYOND: Rule = Rule {
    name: "blocking ignores the capacity",
    reason: "a cost above capacity never fits and is only let through when waiting; ours refuses it always",
};
const EARLY: Rule = Rule {
    name: "wait rounded down to the bound",
    reason: "a wait that is longer than allowed by a part of a nanosecond is let through; ours is refused",
};

/// What bucket4j says for never.
const NEVER: i128 = i64::MAX as i128;

/// The player of a case; interval bandwidths alone and changes of numbers wait for the interval bucket.
pub(super) fn cast(case: &Case) -> Option<Box<dyn Player>> {
    if !["greedy", "multi"].contains(&case.algorithm.as_str()) {
        return None;
    }
    let start = case.config.count("start_ns");
    let bandwidths = case.config.list("bandwidths").iter().map(|config| Bandwidth::new(config, start)).collect();
    Some(Box::new(Bucket4j { bandwidths, seen: State::read(case.config.field("create")), at: start }))
}

struct Bucket4j {
    /// None where our limit cannot be made.
    bandwidths: Option<Vec<Bandwidth>>,
    /// The state as of the last step, and when that was.
    seen: State,
    at: u64,
}

struct State(Vec<[i128; 2]>);

impl State {
    fn read(result: &Value) -> Self {
        let pair = |pair: &Value| {
            let part = |index: usize| i128::from(pair[index].as_i64().expect("a state is two whole numbers"));
            [part(0), part(1)]
        };
        Self(result.list("state").iter().map(pair).collect())
    }

    fn remaining(&self) -> Vec<i128> {
        self.0.iter().map(|&[tokens, _]| tokens.max(0)).collect()
    }
}

impl Player for Bucket4j {
    fn compare(&self, step: &Step) -> Seen {
        let Some(bandwidths) = &self.bandwidths else { return Seen::ByRule(&TOO_LARGE) };
        let now = step.at_nanos(1);
        let loaded: Option<Vec<_>> = bandwidths
            .iter()
            .zip(&self.seen.0)
            .map(|(bandwidth, &state)| bandwidth.load(state, self.at, now))
            .collect();
        let Some(mut group) = loaded.map(Group) else { return Seen::Skipped(Skip::Unholdable) };
        let before = group.clone();
        let after = State::read(&step.result);
        let seen = group.run(step).same("tokens", after.remaining(), group.tokens()).seen();
        let is_cut = || after.0.iter().zip(&group.0).all(|(&[tokens, _], limit)| limit.is_cut(tokens));
        // As if ours had let pass what theirs did.
        let is_forced = || {
            let mut group = before.clone();
            group.run_forced(step).same("tokens", after.remaining(), group.tokens()).seen() == Seen::Equal
        };
        match step.op.as_str() {
            "force_add_tokens" => seen.unless(&ABOVE_CAPACITY, is_cut),
            "blocking_try_consume" => {
                let (result, args) = (&step.result, &step.args);
                let never_fits = before.wait(Cost::new(args.count("tokens"))) == NEVER;
                seen.unless(&BLOCKING_BEYOND, || never_fits && result.flag("ok") && is_forced())
                    .unless(&EARLY, || result.field("parked_ns") == args.field("max_wait_ns") && is_forced())
            }
            _ => seen,
        }
    }

    fn follow(&mut self, step: &Step) {
        self.seen = State::read(&step.result);
        self.at = step.at_nanos(1);
    }
}
