//! Encodes limit parameters for the scripts, and rejects parameters for which a script cannot compute exactly.
//!
//! The store's clock has a resolution of one microsecond. Lua numbers are doubles, which are exact for integers up to
//! 2⁵³. A rate is therefore sent as the time per unit: whole microseconds and a remainder in *ticks*. The number of
//! ticks per microsecond is chosen so that the remainder is an integer. For example, 7777/s has 7777 ticks per
//! microsecond, and a unit takes 128 µs and 4544 ticks. Instants have the same form, so the largest numbers are some
//! years in microseconds, or a burst times a remainder.

use tollgate_core::{BucketParams, Limit, Limits, Nanos, Params, Phase, Steps, WindowParams};

/// Integers below this bound are exact in a double. The rounded-down quotient of two such integers is exact too.
pub(crate) const EXACT_BOUND: u64 = 1 << 52;

/// Limits with their encoding for the scripts.
#[derive(Debug)]
pub(crate) struct EncodedLimits {
    limits: Limits,
    bytes: Vec<u8>,
    uses_spread: bool,
    uses_windows: bool,
    is_fixed_length: bool,
    state_len: usize,
    special: Option<Vec<u8>>,
}

impl EncodedLimits {
    /// Encodes limits.
    ///
    /// # Errors
    /// Fails if the script cannot compute exactly with a parameter. The message names the parameter and the allowed
    /// range.
    pub(crate) fn new(limits: &Limits) -> Result<Self, String> {
        let mut encoded = Self {
            limits: limits.clone(),
            bytes: Vec::new(),
            uses_spread: false,
            uses_windows: false,
            is_fixed_length: true,
            state_len: 0,
            special: None,
        };
        write_array(&mut encoded.bytes, limits.as_slice().len());
        for limit in limits.as_slice() {
            let fields = encode_limit(limit)?;
            write_array(&mut encoded.bytes, fields.len());
            fields.iter().for_each(|field| write_number(&mut encoded.bytes, *field));
            encoded.state_len += state_len(limit);
            encoded.is_fixed_length &= is_fixed_length(limit);
            if let Params::FixedWindow { phase, .. } = limit.params() {
                encoded.uses_spread |= phase == Phase::Spread;
                encoded.uses_windows |= matches!(phase, Phase::Given(_));
            }
        }
        encoded.special = encode_special(limits, &encoded.bytes);
        Ok(encoded)
    }

    /// Returns the parameters for the special script if that script supports these limits.
    pub(crate) fn special(&self) -> Option<&[u8]> {
        self.special.as_deref()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the encoded parameters: a MessagePack array with an array for each limit.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether a limit has spread windows, so that the spread of the key must be sent.
    pub(crate) fn uses_spread(&self) -> bool {
        self.uses_spread
    }

    /// Returns whether calendar windows must be sent.
    pub(crate) fn uses_windows(&self) -> bool {
        self.uses_windows
    }

    /// Returns the length of a state with these parameters in a reply. A state of fixed length is sent as the whole
    /// value: version, length of the parameters, parameters, state.
    pub(crate) fn state_len_in_reply(&self) -> usize {
        self.state_len + if self.is_fixed_length { VALUE_HEAD_BYTES + self.bytes.len() } else { 0 }
    }
}

/// Returns whether refusals under these limits leave the state in the store unchanged.
pub(crate) fn refusals_change_nothing(limits: &Limits) -> bool {
    let counts = |limit: &Limit| matches!(limit.params(), Params::SlidingLog { count_refused: true, .. });
    !limits.as_slice().iter().any(counts)
}

/// Length of a value's header: the version and the length of the parameters.
pub(crate) const VALUE_HEAD_BYTES: usize = 3;

/// Version of the value format, as in `main.lua`.
const VERSION: u8 = 2;

/// Returns the parameters for the special script. Returns `None` unless the limits are one token bucket that starts
/// full and all numbers are exact in a double.
fn encode_special(limits: &Limits, bytes: &[u8]) -> Option<Vec<u8>> {
    let [limit] = limits.as_slice() else { return None };
    let Params::TokenBucket(bucket) = limit.params() else { return None };
    if bucket.initial != bucket.burst {
        return None;
    }
    let unit = UnitTime::new(&bucket);
    let time = |units: u64| {
        let (units, ticks) = (u128::from(units), u128::from(unit.ticks));
        let part = units * u128::from(unit.part);
        (units * u128::from(unit.whole) + part / ticks, part % ticks)
    };
    let ((top_whole, top_part), (deepest, _)) = (time(bucket.burst), time(bucket.burst + bucket.max_debt));
    let max_plausible = deepest + 1_000_000;
    if max_plausible >= u128::from(EXACT_BOUND) {
        return None;
    }
    let mut special = Vec::with_capacity(49 + VALUE_HEAD_BYTES + bytes.len());
    for number in [unit.ticks, unit.whole, unit.part, bucket.burst] {
        special.extend(&number.to_le_bytes()[..7]);
    }
    for number in [top_whole, top_part, max_plausible] {
        special.extend(&number.to_le_bytes()[..7]);
    }
    special.push(VERSION);
    special.extend((bytes.len() as u16).to_le_bytes());
    special.extend(bytes);
    Some(special)
}

/// Returns whether states of the limit always have the same length.
pub(crate) fn is_fixed_length(limit: &Limit) -> bool {
    match limit.params() {
        Params::SlidingLog { .. } | Params::Concurrency { .. } => false,
        Params::Unlimited
        | Params::DenyAll
        | Params::TokenBucket(_)
        | Params::LeakyBucket { .. }
        | Params::IntervalBucket { .. }
        | Params::FixedWindow { .. }
        | Params::SlidingWindow(_)
        | Params::SlidingSlices { .. } => true,
    }
}

/// Returns the length of one limit's state in a reply.
pub(crate) fn state_len(limit: &Limit) -> usize {
    match limit.params() {
        Params::Unlimited | Params::DenyAll => 0,
        Params::TokenBucket(_) | Params::LeakyBucket { .. } => 13,
        Params::IntervalBucket { .. } | Params::FixedWindow { .. } => 14,
        Params::SlidingWindow(_) => 21,
        Params::SlidingSlices { window, precision } => 21 + slice_count(&window, precision) * count_width(&window),
        Params::SlidingLog { .. } => 30,
        Params::Concurrency { .. } => 16,
    }
}

/// Returns the number of slices per window.
pub(crate) fn slice_count(window: &WindowParams, precision: Nanos) -> usize {
    window.length.as_nanos().div_ceil(precision.as_nanos().max(1)) as usize
}

/// Returns the width of a slice count, in bytes.
pub(crate) const fn count_width(window: &WindowParams) -> usize {
    let bits = u64::BITS - (window.limit + window.max_debt).leading_zeros();
    bits.div_ceil(8) as usize
}

/// Returns a duration in microseconds, rounded up. If the duration is only compared with whole microseconds, the
/// rounding changes no result.
pub(crate) const fn micros_ceil(length: Nanos) -> u64 {
    length.as_nanos().div_ceil(1_000)
}

/// The time per unit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitTime {
    /// Ticks per microsecond.
    pub(crate) ticks: u64,
    /// Whole microseconds.
    pub(crate) whole: u64,
    /// Remaining ticks, less than a microsecond.
    pub(crate) part: u64,
    /// Number of ticks of `tollgate-core` in one tick of the script. In `tollgate-core`, a nanosecond has
    /// `rate.count()` ticks.
    pub(crate) core_ticks_per_tick: u64,
}

impl UnitTime {
    pub(crate) fn new(bucket: &BucketParams) -> Self {
        let (count, per) = (u64::from(bucket.rate.count()) * 1_000, bucket.rate.per().as_nanos());
        let core_ticks_per_tick = greatest_common_divisor(count, per);
        let (ticks, unit) = (count / core_ticks_per_tick, per / core_ticks_per_tick);
        Self { ticks, whole: unit / ticks, part: unit % ticks, core_ticks_per_tick }
    }
}

/// Returns the parameter fields of one limit, in the order that the script expects.
pub(crate) fn encode_limit(limit: &Limit) -> Result<Vec<u64>, String> {
    Ok(match limit.params() {
        Params::TokenBucket(bucket) => bucket_fields(1, &bucket)?,
        Params::LeakyBucket { bucket, free, max_wait } => {
            let mut fields = bucket_fields(2, &bucket)?;
            fields.extend(max_admitted_level(&bucket, free, max_wait));
            // The script only compares this field, to detect changed parameters; Rust computes the waits.
            fields.push(free);
            fields
        }
        Params::IntervalBucket { .. } => interval_fields(limit)?,
        Params::FixedWindow { window, phase } => {
            let phase = match phase {
                Phase::Epoch => 0,
                Phase::FirstRequest => 1,
                Phase::Spread => 2,
                Phase::Given(position) if position < Limits::MAX => 3 + position as u64,
                Phase::Given(position) => {
                    return Err(format!("calendar window position {position} is above the maximum of 7"));
                }
            };
            window_fields(3, &window, &[phase])?
        }
        Params::SlidingWindow(window) => window_fields(4, &window, &[])?,
        Params::SlidingSlices { window, precision } => {
            // Only the slice length must be in whole microseconds.
            let mut fields = window_fields(10, &WindowParams { length: precision, ..window }, &[])?;
            fields.push(slice_count(&window, precision) as u64);
            fields
        }
        Params::SlidingLog { window, minimum_gap, count_refused } => {
            // Log entries are in whole microseconds, so rounding up changes nothing.
            let window = WindowParams { length: Nanos::from_micros(micros_ceil(window.length)), ..window };
            window_fields(5, &window, &[micros_ceil(minimum_gap), count_refused.into()])?
        }
        Params::Concurrency { limit, lease, max_debt } => vec![6, limit, micros_ceil(lease), max_debt],
        Params::Unlimited => vec![7],
        Params::DenyAll => vec![8],
    })
}

fn bucket_fields(kind: u64, bucket: &BucketParams) -> Result<Vec<u64>, String> {
    let unit = UnitTime::new(bucket);
    let most = bucket.burst + bucket.max_debt;
    let rate = bucket.rate;
    if u128::from(unit.ticks) * u128::from(unit.whole) + u128::from(unit.part) >= u128::from(EXACT_BOUND) {
        return Err(format!(
            "the rate of {rate} has a period of {}, which the store cannot represent exactly in microseconds; choose \
             a period that is a whole number of microseconds",
            rate.per()
        ));
    }
    if u128::from(most) * u128::from(unit.part) >= u128::from(EXACT_BOUND) || most >= EXACT_BOUND {
        let largest = (EXACT_BOUND - 1) / unit.part.max(1);
        return Err(format!(
            "burst plus debt is {most}, which is too large for exact arithmetic in the store at {rate}; it must be at \
             most {largest}, or the rate must have fewer significant digits"
        ));
    }
    Ok(vec![kind, unit.ticks, unit.whole, unit.part, bucket.burst, bucket.max_debt, bucket.initial])
}

fn interval_fields(limit: &Limit) -> Result<Vec<u64>, String> {
    let Params::IntervalBucket { refill, period, burst, steps, max_wait, max_debt, initial } = limit.params() else {
        return Err("not an interval bucket".to_owned());
    };
    let (first, offset) = match steps {
        Steps::FirstRequest => (1, Nanos::ZERO),
        Steps::Aligned(offset) => (0, offset),
    };
    for (what, length) in [("period", period), ("offset", offset)] {
        if length.as_nanos() % 1_000 != 0 {
            return Err(format!(
                "the {what} of {length} is not a whole number of microseconds, the resolution of the store's clock"
            ));
        }
    }
    let micros = period.as_nanos() / 1_000;
    if refill > micros {
        return Err(format!(
            "a refill of {refill} every {period} is more than one token per microsecond, which the store cannot count \
             exactly; with this period, the refill must be at most {micros}"
        ));
    }
    // Steps are in whole microseconds, so a fraction of a microsecond in the longest wait makes no difference.
    let max_wait = max_wait.as_nanos() / 1_000;
    let sold = if max_wait == 0 { 0 } else { (u128::from(max_wait / micros) + 1) * u128::from(refill) };
    let believed = u128::from(burst) + sold.max(max_debt.into()) + u128::from((1_000_000 / micros + 1) * refill);
    if believed >= u128::from(EXACT_BOUND) {
        return Err(format!(
            "a burst of {burst}, a debt of {max_debt} and the refills during the longest wait are too large for exact \
             arithmetic in the store; their sum must be below {EXACT_BOUND}"
        ));
    }
    Ok(vec![9, refill, micros, burst, max_debt, initial, first, offset.as_nanos() / 1_000, max_wait])
}

/// Returns the highest level of a leaky bucket at which a unit is still admitted, as whole microseconds and ticks.
/// This level is `free`, at which a unit does not wait yet, plus the amount that leaks during the longest wait.
fn max_admitted_level(bucket: &BucketParams, free: u64, max_wait: Nanos) -> [u64; 2] {
    let unit = UnitTime::new(bucket);
    let ticks = u128::from(unit.ticks);
    let free = u128::from(free) * (u128::from(unit.whole) * ticks + u128::from(unit.part));
    // The level is a whole number of ticks, so rounding down changes nothing.
    let patience = free + u128::from(max_wait.as_nanos()) * ticks / 1_000;
    match u64::try_from(patience / ticks) {
        Ok(whole) if whole < EXACT_BOUND => [whole, (patience % ticks) as u64],
        // Saturates: no bucket reaches this level.
        _ => [EXACT_BOUND, 0],
    }
}

fn window_fields(kind: u64, window: &WindowParams, more: &[u64]) -> Result<Vec<u64>, String> {
    let WindowParams { limit, length, max_debt, initial } = *window;
    if limit.checked_add(max_debt).is_none_or(|most| most >= EXACT_BOUND) {
        return Err(format!(
            "a limit of {limit} and a debt of {max_debt} are too large for exact arithmetic in the store; their sum \
             must be below {EXACT_BOUND}"
        ));
    }
    if length.as_nanos() % 1_000 != 0 {
        return Err(format!(
            "a window of {length} is not a whole number of microseconds, the resolution of the store's clock"
        ));
    }
    Ok([&[kind, limit, length.as_nanos() / 1_000, max_debt, initial][..], more].concat())
}

pub(crate) const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Writes a MessagePack array header. The arrays have at most 15 elements.
fn write_array(bytes: &mut Vec<u8>, len: usize) {
    bytes.push(0x90 | len as u8);
}

/// Writes a MessagePack integer in its shortest form, so that equal parameters have equal bytes.
fn write_number(bytes: &mut Vec<u8>, number: u64) {
    let wide = number.to_be_bytes();
    let (mark, width) = match number {
        0..=0x7f => return bytes.push(number as u8),
        0x80..=0xff => (0xcc, 1),
        0x100..=0xffff => (0xcd, 2),
        0x1_0000..=0xffff_ffff => (0xce, 4),
        _ => (0xcf, 8),
    };
    bytes.push(mark);
    bytes.extend(&wide[8 - width..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::{
        Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Rate, SlidingLog, SlidingSlices, SlidingWindow,
        TokenBucket,
    };

    fn bucket(rate: &str, burst: u64) -> TokenBucket {
        TokenBucket::new(rate.parse().unwrap(), burst).unwrap()
    }

    #[track_caller]
    fn check(limit: impl Into<Limit>, expected: Result<&[u64], &str>) {
        assert_eq!(encode_limit(&limit.into()), expected.map(<[u64]>::to_vec).map_err(str::to_owned));
    }

    #[test]
    fn rates_are_sent_as_the_time_per_unit() {
        check(bucket("100/s", 200), Ok(&[1, 1, 10_000, 0, 200, 200, 200]));
        check(bucket("7777/s", 10), Ok(&[1, 7_777, 128, 4_544, 10, 10, 10]));
        check(bucket("3G/s", 10), Ok(&[1, 3_000, 0, 1, 10, 10, 10]));
        check(bucket("1/day", 1), Ok(&[1, 1, 86_400_000_000, 0, 1, 1, 1]));
        check(bucket("999983/day", 999_983), Ok(&[1, 999_983, 86_401, 468_817, 999_983, 999_983, 999_983]));
    }

    #[test]
    fn max_level_is_the_free_part_plus_the_longest_wait() {
        let leaky = LeakyBucket::new("3/s".parse().unwrap(), 6).unwrap().free(2).unwrap();
        let whole_unit = [333_333, 1];
        check(leaky, Ok(&[2, 3, whole_unit[0], whole_unit[1], 6, 6, 6, EXACT_BOUND, 0, 2]));
        check(leaky.max_wait(Nanos::from_millis(1)), Ok(&[2, 3, whole_unit[0], whole_unit[1], 6, 6, 6, 667_666, 2, 2]));
        // A microsecond has 3 ticks, so half a microsecond is 1.5 ticks, rounded down to 1.
        check(
            leaky.max_wait(Nanos::from_nanos(500)),
            Ok(&[2, 3, whole_unit[0], whole_unit[1], 6, 6, 6, 666_667, 0, 2]),
        );
    }

    #[test]
    fn steps_and_slices_are_sent_in_microseconds() {
        let interval = IntervalBucket::new(5, Nanos::SECOND).unwrap().burst(9).unwrap();
        check(interval, Ok(&[9, 5, 1_000_000, 9, 9, 9, 0, 0, 0]));
        let first = interval.steps(Steps::FirstRequest).max_wait(Nanos::from_nanos(1_999)).unwrap();
        check(first, Ok(&[9, 5, 1_000_000, 9, 9, 9, 1, 0, 1]));
        check(
            interval.steps(Steps::Aligned(Nanos::from_nanos(1))),
            Err("the offset of 1ns is not a whole number of microseconds, the resolution of the store's clock"),
        );
        check(
            IntervalBucket::new(2_000, Nanos::from_micros(3)).unwrap(),
            Err("a refill of 2000 every 3µs is more than one token per microsecond, which the store cannot count \
                 exactly; with this period, the refill must be at most 3"),
        );
        let slices = SlidingSlices::new(100, Nanos::SECOND, Nanos::from_millis(300)).unwrap();
        check(slices, Ok(&[10, 100, 250_000, 100, 100, 4]));
        assert_eq!(state_len(&slices.into()), 21 + 4);
        assert_eq!(state_len(&slices.max_debt(156).unwrap().into()), 21 + 8);
    }

    #[test]
    fn inexact_parameters_are_rejected_with_the_allowed_range() {
        check(
            FixedWindow::new(5, Nanos::from_nanos(1_500)).unwrap(),
            Err("a window of 1.5µs is not a whole number of microseconds, the resolution of the store's clock"),
        );
        check(
            SlidingWindow::new(EXACT_BOUND, Nanos::SECOND).unwrap().max_debt(0).unwrap(),
            Err("a limit of 4503599627370496 and a debt of 0 are too large for exact arithmetic in the store; their \
                 sum must be below 4503599627370496"),
        );
        check(
            bucket("77777777/day", 77_777_777),
            Err("burst plus debt is 155555554, which is too large for exact arithmetic in the store at 77777777/day; \
                 it must be at most 67553119, or the rate must have fewer significant digits"),
        );
        let odd = Rate::new(7, Nanos::from_nanos(3_153_599_999_999_999_999)).unwrap();
        let refused = encode_limit(&TokenBucket::new(odd, 1).unwrap().into()).unwrap_err();
        assert!(refused.contains("choose a period that is a whole number of microseconds"), "{refused}");
    }

    #[test]
    fn lengths_compared_with_whole_microseconds_are_rounded_up() {
        check(SlidingLog::new(5, Nanos::from_nanos(1_500)).unwrap(), Ok(&[5, 5, 2, 5, 5, 0, 0]));
        check(Concurrency::new(5, Nanos::from_nanos(1)).unwrap(), Ok(&[6, 5, 1, 5]));
    }

    #[test]
    fn limits_are_encoded_as_arrays_of_arrays() {
        let limits = Limits::new([bucket("100/s", 200).into(), Limit::DenyAll]).unwrap();
        let encoded = EncodedLimits::new(&limits).unwrap();
        let bucket = [0x97, 1, 1, 0xcd, 0x27, 0x10, 0, 0xcc, 200, 0xcc, 200, 0xcc, 200];
        assert_eq!(encoded.bytes(), [&[0x92][..], &bucket, &[0x91, 8]].concat());
        assert_eq!(encoded.state_len_in_reply(), VALUE_HEAD_BYTES + encoded.bytes().len() + 13);
    }

    #[test]
    fn spread_and_windows_are_sent_only_where_used() {
        let window = FixedWindow::new(5, Nanos::SECOND).unwrap();
        let check = |phase: Phase, expected| {
            let encoded = EncodedLimits::new(&Limit::from(window.phase(phase)).into()).unwrap();
            assert_eq!((encoded.uses_spread(), encoded.uses_windows()), expected);
        };
        check(Phase::Epoch, (false, false));
        check(Phase::Spread, (true, false));
        check(Phase::Given(2), (false, true));
    }
}
