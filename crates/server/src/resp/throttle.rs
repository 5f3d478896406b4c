//! `CL.THROTTLE`, the redis-cell command, and its fast path. If the keys are in this process, consecutive calls in a
//! pipeline are decided in batches of up to [`MAX_LOCAL_BATCH`], without rules, engine or allocation. With a shared
//! store, the engine decides each call as an inline limit.

use tollgate::Limit;
use tollgate::core::{Cost, Nanos, Now};
use tollgate::redis_cell::Throttle;
use tollgate_engine::{Enforcement, Store};

use super::wire::{Replies, parse_integer};
use crate::app::App;
use crate::net::protocol::Protocol;
use crate::observe::metrics::OutcomeTotals;
use crate::ops::input::{Input, LimitsInput, RequestInput};
use crate::ops::view::DecisionView;

/// Batch size: the number of keys that the table prefetches together.
const MAX_LOCAL_BATCH: usize = 16;

/// The prefix of all redis-cell errors.
const CELL_ERROR_PREFIX: &str = "Cell error: Store error:";

/// Returns whether a command is `CL.THROTTLE`.
#[inline]
pub(super) fn is_throttle(name: &[u8]) -> bool {
    name == b"CL.THROTTLE" || name.eq_ignore_ascii_case(b"CL.THROTTLE")
}

/// The parameters of a call: burst, count, period and quantity.
type ThrottleParams = [i64; 4];

/// Parses the arguments after the key.
///
/// # Errors
/// Returns redis-cell's error if the number of arguments is wrong, or if an argument is not an integer.
#[inline]
fn parse_params(args: &[&[u8]]) -> Result<ThrottleParams, String> {
    let (texts, quantity) = match args {
        [_, _, texts @ .., quantity] if texts.len() == 3 => (texts, Some(quantity)),
        [_, _, texts @ ..] if texts.len() == 3 => (texts, None),
        _ => {
            let usage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
            return Err(format!("{CELL_ERROR_PREFIX} {usage}"));
        }
    };
    let mut params = [0, 0, 0, 1];
    for (param, text) in params.iter_mut().zip(texts.iter().chain(quantity)) {
        *param = parse_integer(text).ok_or_else(|| not_an_integer(text))?;
    }
    Ok(params)
}

#[cold]
fn not_an_integer(text: &[u8]) -> String {
    format!("{CELL_ERROR_PREFIX} Couldn't parse as integer: {}", String::from_utf8_lossy(text))
}

/// Builds the limit of a call.
///
/// # Errors
/// Returns an error if the rate is zero (with redis-cell's message) or the limit is out of range.
fn build_throttle([max_burst, count, period, quantity]: ThrottleParams) -> Result<Throttle, String> {
    Throttle::new(max_burst, count, period, quantity).map_err(|error| format!("{CELL_ERROR_PREFIX} {error}"))
}

/// A cache of limits, indexed by their parameters. Callers send the same few limits repeatedly, and validating a limit
/// takes longer than deciding a call.
#[derive(Debug)]
pub(super) struct ThrottleLimitCache {
    slots: Vec<Option<(ThrottleParams, Throttle)>>,
}

/// Number of limits that a cache can hold.
const CACHE_SLOTS: usize = 64;

/// The index of a cached limit. The index is valid until the limit is replaced.
type CacheIndex = usize;

impl ThrottleLimitCache {
    pub(super) fn new() -> Self {
        Self { slots: vec![None; CACHE_SLOTS] }
    }

    #[inline]
    fn find(&self, params: ThrottleParams) -> Option<CacheIndex> {
        let slot = cache_index(params);
        matches!(&self.slots[slot], Some((kept, _)) if *kept == params).then_some(slot)
    }

    /// Builds a limit and stores it, replacing any limit in the same slot.
    fn insert(&mut self, params: ThrottleParams) -> Result<CacheIndex, String> {
        let throttle = build_throttle(params)?;
        let slot = cache_index(params);
        self.slots[slot] = Some((params, throttle));
        Ok(slot)
    }

    #[inline]
    fn get(&self, slot: CacheIndex) -> Option<&Throttle> {
        self.slots[slot].as_ref().map(|(_, throttle)| throttle)
    }
}

#[inline]
fn cache_index(params: ThrottleParams) -> CacheIndex {
    let mixed = params.iter().fold(0_u64, |mixed, param| (mixed ^ *param as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (mixed >> 58) as usize
}

/// Pending calls that are decided in this process.
pub(super) struct LocalCalls<'a, S> {
    app: &'a App<S>,
    calls: [(&'a [u8], CacheIndex); MAX_LOCAL_BATCH],
    pending: usize,
}

impl<'a, S: Store> LocalCalls<'a, S> {
    pub(super) fn new(app: &'a App<S>) -> Self {
        Self { app, calls: [(&[], 0); MAX_LOCAL_BATCH], pending: 0 }
    }

    /// Adds a call, and decides all pending calls when the batch is full.
    #[inline]
    pub(super) fn add(&mut self, args: &[&'a [u8]], cache: &mut ThrottleLimitCache, replies: &mut Replies) {
        match self.find_or_insert(args, cache, replies) {
            Ok(slot) => {
                self.calls[self.pending] = (args[1], slot);
                self.pending += 1;
                if self.pending == MAX_LOCAL_BATCH {
                    self.decide_pending(cache, replies);
                }
            }
            Err(error) => {
                self.decide_pending(cache, replies);
                self.app.metrics.protocol_counters(Protocol::Resp).count_malformed();
                replies.write_error_reply(&error);
            }
        }
    }

    #[inline]
    fn find_or_insert(
        &mut self,
        args: &[&[u8]],
        cache: &mut ThrottleLimitCache,
        replies: &mut Replies,
    ) -> Result<CacheIndex, String> {
        let params = parse_params(args)?;
        match cache.find(params) {
            Some(slot) => Ok(slot),
            None => {
                // Decide the pending calls first, because a pending call may refer to the slot that is replaced.
                self.decide_pending(cache, replies);
                cache.insert(params)
            }
        }
    }

    /// Decides the pending calls in order and writes the replies.
    #[inline]
    pub(super) fn decide_pending(&mut self, cache: &ThrottleLimitCache, replies: &mut Replies) {
        if self.pending == 0 {
            return;
        }
        let calls = self.calls[..std::mem::take(&mut self.pending)].iter();
        let Some(throttles) = &self.app.throttles else { return };
        let observing = self.app.engine.enforcement() == Enforcement::Observe;
        let mut totals = OutcomeTotals::default();
        throttles.decide_many(calls.filter_map(|(key, slot)| Some((*key, cache.get(*slot)?))), |mut reply| {
            if reply[0] == 0 {
                totals.allowed += 1;
            } else if observing {
                totals.observed += 1;
                (reply[0], reply[3]) = (0, -1);
            } else {
                totals.denied += 1;
            }
            replies.write_throttle_reply(reply);
        });
        self.app.metrics.protocol_counters(Protocol::Resp).count_decisions(totals);
    }
}

/// A call that a shared store decides.
pub(super) enum SharedCall<'a> {
    /// The input for the engine, and the limit from which the reply is computed.
    Decide(Input<'a>, Box<Throttle>),
    /// The reply, which is known in advance because the limit never admits a quantity above zero.
    Known([i64; 5]),
}

/// Parses a call that a shared store decides.
///
/// # Errors
/// Returns an error if the arguments are invalid or the quantity is negative. The error starts with redis-cell's
/// prefix.
pub(super) fn parse_shared_call<'a, S: Store>(app: &App<S>, args: &[&'a [u8]]) -> Result<SharedCall<'a>, String> {
    let params = parse_params(args)?;
    let throttle = Box::new(build_throttle(params)?);
    let Ok(cost) = u64::try_from(params[3]) else {
        return Err(format!("{CELL_ERROR_PREFIX} a negative quantity (a refund) is not supported with a shared store"));
    };
    let Some(bucket) = throttle.bucket() else {
        // Replies as for an unused key, without a call to the store. The in-memory table differs: it refuses even a
        // quantity of zero if the key owes tokens under another limit.
        return Ok(SharedCall::Known(throttle.decide(&mut [0; 1], &Now::at(0))));
    };
    let limits = app
        .engine
        .intern_limits(&Limit::from(*bucket).into())
        .map_err(|error| format!("{CELL_ERROR_PREFIX} {error}"))?;
    let limits = LimitsInput::Inline { key: args[1], limits: limits.into() };
    Ok(SharedCall::Decide(Input::Request(RequestInput::new(limits, Some(Cost::new(cost)))), throttle))
}

/// Returns redis-cell's five-number reply for a decision.
pub(super) fn throttle_reply(throttle: &Throttle, decision: &DecisionView<'_>) -> [i64; 5] {
    let reset = decision.limits().next().map_or(Nanos::ZERO, |limit| limit.report.reset);
    throttle.reply(decision.outcome, reset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_params(args: &str, expected: Result<ThrottleParams, &str>) {
        let args: Vec<&[u8]> = args.split('|').map(str::as_bytes).collect();
        assert_eq!(parse_params(&args), expected.map_err(|error| format!("{CELL_ERROR_PREFIX} {error}")));
    }

    #[test]
    fn arguments_are_three_or_four_integers_after_the_key() {
        let usage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
        assert_params("CL.THROTTLE|k|15|30|60", Ok([15, 30, 60, 1]));
        assert_params("CL.THROTTLE|k|15|30|60|-7", Ok([15, 30, 60, -7]));
        assert_params("CL.THROTTLE|k|+1|30|60", Ok([1, 30, 60, 1]));
        for wrong in ["CL.THROTTLE", "CL.THROTTLE|k", "CL.THROTTLE|k|1|1", "CL.THROTTLE|k|1|1|1|1|1"] {
            assert_params(wrong, Err(usage));
        }
        assert_params("CL.THROTTLE|k|x|1|1", Err("Couldn't parse as integer: x"));
        assert_params("CL.THROTTLE|k|1|1|1|", Err("Couldn't parse as integer: "));
        assert_params("CL.THROTTLE|k|1|9223372036854775808|1", Err("Couldn't parse as integer: 9223372036854775808"));
    }

    #[test]
    fn zero_rate_returns_the_error_of_redis_cell() {
        assert_eq!(build_throttle([1, 0, 1, 1]).unwrap_err(), "Cell error: Store error: Zero rates are not supported");
        assert!(build_throttle([i64::MAX, 1, 1, 1]).unwrap_err().starts_with("Cell error: Store error: an amount of"));
    }

    #[test]
    fn cached_limit_is_found_only_by_its_parameters() {
        let mut cache = ThrottleLimitCache::new();
        assert_eq!(cache.find([15, 30, 60, 1]), None);
        let slot = cache.insert([15, 30, 60, 1]).expect("a limit");
        assert_eq!(cache.find([15, 30, 60, 1]), Some(slot));
        assert_eq!(cache.get(slot), Throttle::new(15, 30, 60, 1).ok().as_ref());
        for burst in 0..1_000 {
            let other = [burst, 1, 1, 1];
            assert_eq!(cache.find(other), None);
            let slot = cache.insert(other).expect("a limit");
            assert_eq!(cache.find(other), Some(slot));
        }
        assert!(cache.insert([0, 0, 1, 1]).is_err());
    }
}
