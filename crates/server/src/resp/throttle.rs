//! `CL.THROTTLE`, the redis-cell command, and its fast path. If the keys are in this process, consecutive calls in a
//! pipeline are decided in batches of up to [`MAX_LOCAL_BATCH`], without rules, engine or allocation. With a shared
//! store, the engine decides each call as an inline limit.

use tollgate::Limit;
use tollgate::core::{Cost, Nanos, Now};
use tollgate::redis_cell::Throttle;
use tollgate_engine::{Enforcement, Store};

use super::wire::{Replies, parse_integer, split_short_length};
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

/// Number of bytes before the length of the key: `*6\r\n$11\r\nCL.THROTTLE\r\n$`.
const HEAD_BYTES: usize = 23;

/// Maximum number of bytes after the key. Longer calls are always parsed, so a comparison with the template takes a
/// bounded time, whatever the last call was.
const MAX_TAIL_BYTES: usize = 128;

/// The bytes of a call before and after its key. In a pipeline, most calls differ only in their keys. Recognising such
/// a call takes about 110 instructions instead of 590: the command and its four integers are not parsed, and the limit
/// is not looked up.
#[derive(Clone, Copy, Debug)]
struct CallTemplate<'a> {
    head: &'a [u8; HEAD_BYTES],
    tail: &'a [u8],
}

impl<'a> CallTemplate<'a> {
    /// Returns the template of a call that was parsed. `None` if the key has 100 bytes or more, the tail exceeds
    /// [`MAX_TAIL_BYTES`], or a length in the head has leading zeros.
    fn of_call(call: &'a [u8], key: &[u8]) -> Option<Self> {
        let (head, same, tail) = split_at_key(call)?;
        // If the key starts right after these bytes and its length, they can only be `*N`, `$11`, the name and `$`. So
        // a call that begins with the same bytes has the same name and the same number of arguments.
        (std::ptr::eq(key, same) && tail.len() <= MAX_TAIL_BYTES).then_some(Self { head, tail })
    }

    /// Returns the key and the size of the call at the start of `input`, if the call differs only in its key.
    #[inline]
    fn match_call<'b>(&self, input: &'b [u8]) -> Option<(&'b [u8], usize)> {
        let (head, key, rest) = split_at_key(input)?;
        (head == self.head && rest.starts_with(self.tail)).then_some((key, input.len() - rest.len() + self.tail.len()))
    }
}

/// Returns the bytes before the length of a key of less than 100 bytes, the key, and the bytes after it. Only the
/// length is checked.
#[inline]
fn split_at_key(input: &[u8]) -> Option<(&[u8; HEAD_BYTES], &[u8], &[u8])> {
    let (head, rest) = input.split_first_chunk()?;
    let (len, rest) = split_short_length(rest)?;
    let (key, rest) = rest.split_at_checked(len)?;
    Some((head, key, rest))
}

/// Pending calls that are decided in this process.
pub(super) struct LocalCalls<'a, S> {
    app: &'a App<S>,
    calls: [(&'a [u8], CacheIndex); MAX_LOCAL_BATCH],
    pending: usize,
    /// The template of the last call that [`add`](Self::add) has parsed, and the index of its limit. The index stays
    /// valid, because only `add` replaces limits, and `add` also replaces the template.
    last_template: Option<(CallTemplate<'a>, CacheIndex)>,
}

impl<'a, S: Store> LocalCalls<'a, S> {
    pub(super) fn new(app: &'a App<S>) -> Self {
        Self { app, calls: [(&[], 0); MAX_LOCAL_BATCH], pending: 0, last_template: None }
    }

    /// Fast path of [`add`](Self::add): adds the call at the start of `input` if it differs from the last call only in
    /// its key. Returns the size of the call.
    #[inline]
    pub(super) fn try_add_from_template(
        &mut self,
        input: &'a [u8],
        cache: &ThrottleLimitCache,
        replies: &mut Replies,
    ) -> Option<usize> {
        let (template, slot) = &self.last_template?;
        let (key, size) = template.match_call(input)?;
        self.push_call(key, *slot, cache, replies);
        Some(size)
    }

    /// Adds the call in `command`, whose arguments are `args`.
    pub(super) fn add(
        &mut self,
        command: &'a [u8],
        args: &[&'a [u8]],
        cache: &mut ThrottleLimitCache,
        replies: &mut Replies,
    ) {
        match self.find_or_insert(args, cache, replies) {
            Ok(slot) => {
                self.last_template = CallTemplate::of_call(command, args[1]).map(|template| (template, slot));
                self.push_call(args[1], slot, cache, replies);
            }
            Err(error) => {
                self.decide_pending(cache, replies);
                self.app.metrics.protocol_counters(Protocol::Resp).count_malformed();
                replies.write_error_reply(&error);
            }
        }
    }

    /// Adds a call, and decides all pending calls when the batch is full.
    #[inline]
    fn push_call(&mut self, key: &'a [u8], slot: CacheIndex, cache: &ThrottleLimitCache, replies: &mut Replies) {
        self.calls[self.pending] = (key, slot);
        self.pending += 1;
        if self.pending == MAX_LOCAL_BATCH {
            self.decide_pending(cache, replies);
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
    use crate::resp::wire::{RespFrame, parse_command};
    use proptest::prelude::*;

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

    fn encode(args: &[&[u8]]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            bytes.extend_from_slice(&[format!("${}\r\n", arg.len()).as_bytes(), arg, b"\r\n"].concat());
        }
        bytes
    }

    /// Returns a call, sometimes damaged, often with the same parameters as other calls.
    fn call_like_bytes() -> impl Strategy<Value = Vec<u8>> {
        let name = prop_oneof![4 => Just("CL.THROTTLE"), 1 => Just("cl.throttle"), 1 => Just("CL.THROTTLF")];
        let key = prop_oneof![4 => "[a-z0-9\r\n$*]{0,30}", 1 => "[a-z]{98,102}"];
        let params = prop_oneof![4 => Just("15 30 60"), 1 => Just("15 30 60 1"), 1 => Just("15 30 6"), 1 => Just("x")];
        let long_param = prop_oneof![8 => Just(0), 1 => 100..140_usize];
        let damage = prop_oneof![3 => Just(None), 1 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(Some)];
        (name, key, params, long_param, damage).prop_map(|(name, key, params, zeros, damage)| {
            let mut args = vec![name.to_owned(), key];
            args.extend(params.split(' ').map(str::to_owned));
            args[2].insert_str(0, &"0".repeat(zeros));
            let mut bytes = encode(&args.iter().map(String::as_bytes).collect::<Vec<_>>());
            if let Some((at, byte)) = damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        })
    }

    proptest! {
        #[test]
        fn call_that_matches_a_template_differs_only_in_its_key(first in call_like_bytes(), mut second in call_like_bytes(), rest in 0..3_usize) {
            let mut args = Vec::new();
            let Ok(RespFrame::Command(len)) = parse_command(&first, &mut args) else { return Ok(()) };
            let Some(template) = args.get(1).and_then(|key| CallTemplate::of_call(&first[..len], key)) else { return Ok(()) };
            prop_assume!(is_throttle(args[0]) && parse_params(&args).is_ok());
            second.extend_from_slice(&first[..rest]);
            let Some((key, size)) = template.match_call(&second) else { return Ok(()) };
            let mut other_args = Vec::new();
            prop_assert_eq!(parse_command(&second, &mut other_args), Ok(RespFrame::Command(size)));
            args[1] = key;
            prop_assert_eq!(args, other_args);
        }
    }

    #[test]
    fn call_with_another_key_matches_the_template() {
        let call = |name: &str, key: &str, period: &str| encode(&[name, key, "15", "30", period].map(str::as_bytes));
        let of_call = |call: &[u8]| {
            let mut args = Vec::new();
            parse_command(call, &mut args).expect("a command");
            CallTemplate::of_call(call, args[1]).map(|template| template.tail.len())
        };
        let first = call("CL.THROTTLE", "alice", "60");
        let template = CallTemplate::of_call(&first, &first[26..31]).expect("a template");
        for (key, expected) in
            [("bob", Some(3)), ("", Some(0)), (&*"k".repeat(99), Some(99)), (&*"k".repeat(100), None)]
        {
            let matched = template.match_call(&call("CL.THROTTLE", key, "60")).map(|(key, _)| key.len());
            assert_eq!(matched, expected, "{key}");
        }
        assert!(template.match_call(&call("CL.THROTTLE", "bob", "61")).is_none());
        assert!(template.match_call(&call("cl.throttle", "bob", "60")).is_none());
        let same = call("CL.THROTTLE", "bob", "60");
        assert!((0..same.len()).all(|len| template.match_call(&same[..len]).is_none()), "a partial call matches");
        assert_eq!(of_call(&first), Some(first.len() - 31));
        assert_eq!(of_call(b"CL.THROTTLE alice 15 30 60\r\n"), None);
        assert_eq!(of_call(&call("CL.THROTTLE", "alice", &"0".repeat(MAX_TAIL_BYTES))), None);
    }
}
