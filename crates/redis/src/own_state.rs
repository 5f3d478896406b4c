//! Decodes a stored value into its own parameters and its state. These parameters may differ from the charge's
//! parameters.

use tollgate_core::{
    Algorithm, BucketParams, Cost, DecodedState, Limit, Limits, Nanos, Now, Params, Phase, Rate, SlidingSlices, Stamp,
    Steps, Verdict, WindowParams,
};

use crate::answer::{ByteCursor, TooShort, instant_nanos};
use crate::params::{UnitTime, VALUE_HEAD_BYTES, count_width, encode_limit, slice_count};

/// Maximum time by which a valid instant may be ahead of the clock. A larger lead means that the clock was set back.
const MAX_CLOCK_LEAD_MICROS: u64 = 1_000_000;

/// A state with its own parameters.
pub(crate) struct OwnState {
    pub(crate) limits: Limits,
    pub(crate) words: Vec<u64>,
    /// For each concurrency limit, the time until its last lease ends.
    pub(crate) leases_left: [Option<Nanos>; Limits::MAX],
}

/// The bytes are not a valid state.
pub(crate) struct InvalidState;

impl From<TooShort> for InvalidState {
    fn from(_: TooShort) -> Self {
        Self
    }
}

impl OwnState {
    /// Decodes the value in the reply to a charge under the limits `asked`. The returned words have space for a state
    /// under either set of limits.
    pub(crate) fn decode(bytes: &[u8], asked: &Limits, now: &Now<'_>) -> Result<Self, InvalidState> {
        let mut bytes = ByteCursor::new(bytes);
        bytes.take(VALUE_HEAD_BYTES - 2)?;
        let length = bytes.take_number(2)? as usize;
        let limits = decode_limits(bytes.take(length)?, asked)?;
        let mut words = vec![0; limits.words()];
        let mut leases_left = [None; Limits::MAX];
        let mut first = 0;
        for (limit, left) in limits.as_slice().iter().zip(&mut leases_left) {
            *left = restore_words(limit, &mut words[first..][..limit.words()], &mut bytes, now)?;
            first += limit.words();
        }
        words.resize(limits.words().max(asked.words()), 0);
        Ok(Self { limits, words, leases_left })
    }
}

/// Decodes parameters. This function is the inverse of the encoder in `params`, except for fields that do not affect a
/// stored state. If the limit at the same position in `asked` has the same encoding, returns that limit.
fn decode_limits(bytes: &[u8], asked: &Limits) -> Result<Limits, InvalidState> {
    let mut bytes = ByteCursor::new(bytes);
    let count = read_array(&mut bytes)?;
    let mut limits = Vec::with_capacity(count);
    for index in 0..count {
        let mut fields = [0; 15];
        let fields = fields.get_mut(..read_array(&mut bytes)?).ok_or(InvalidState)?;
        for field in &mut *fields {
            *field = read_number(&mut bytes)?;
        }
        let same = asked.as_slice().get(index).filter(|limit| encode_limit(limit).is_ok_and(|asked| asked == *fields));
        limits.push(match same {
            Some(limit) => *limit,
            None => Limit::from_params(decode_params(fields).ok_or(InvalidState)?).map_err(|_| InvalidState)?,
        });
    }
    Limits::new(limits).map_err(|_| InvalidState)
}

/// Returns the parameters from the script's fields, or `None` if the fields are invalid.
fn decode_params(fields: &[u64]) -> Option<Params> {
    let window =
        |limit, micros, max_debt, initial| WindowParams { limit, length: micros_to_nanos(micros), max_debt, initial };
    Some(match *fields {
        [1, ticks, whole, part, burst, max_debt, initial] => {
            Params::TokenBucket(BucketParams { rate: rate_of_unit_time(ticks, whole, part)?, burst, max_debt, initial })
        }
        // The longest wait affects only admission, which uses the charge's parameters.
        [2, ticks, whole, part, burst, max_debt, initial, _, _, free] => Params::LeakyBucket {
            bucket: BucketParams { rate: rate_of_unit_time(ticks, whole, part)?, burst, max_debt, initial },
            free,
            max_wait: Nanos::MAX,
        },
        [3, limit, micros, max_debt, initial, phase] => Params::FixedWindow {
            window: window(limit, micros, max_debt, initial),
            phase: match phase {
                0 => Phase::Epoch,
                1 => Phase::FirstRequest,
                2 => Phase::Spread,
                _ => Phase::Given((phase - 3) as usize),
            },
        },
        [4, limit, micros, max_debt, initial] => Params::SlidingWindow(window(limit, micros, max_debt, initial)),
        [5, limit, micros, max_debt, initial, gap, count_refused] => Params::SlidingLog {
            window: window(limit, micros, max_debt, initial),
            minimum_gap: micros_to_nanos(gap),
            count_refused: count_refused == 1,
        },
        [6, limit, lease, max_debt] => Params::Concurrency { limit, lease: micros_to_nanos(lease), max_debt },
        [7] => Params::Unlimited,
        [8] => Params::DenyAll,
        [9, refill, micros, burst, max_debt, initial, first, offset, max_wait] => Params::IntervalBucket {
            refill,
            period: micros_to_nanos(micros),
            burst,
            steps: if first == 1 { Steps::FirstRequest } else { Steps::Aligned(micros_to_nanos(offset)) },
            max_wait: micros_to_nanos(max_wait),
            max_debt,
            initial,
        },
        [10, limit, micros, max_debt, initial, slices] => Params::SlidingSlices {
            window: window(limit, micros.checked_mul(slices)?, max_debt, initial),
            precision: micros_to_nanos(micros),
        },
        _ => return None,
    })
}

/// Returns the rate at which a unit takes `whole` microseconds and `part / ticks` of a microsecond.
fn rate_of_unit_time(ticks: u64, whole: u64, part: u64) -> Option<Rate> {
    let nanos = whole.checked_mul(ticks)?.checked_add(part)?.checked_mul(1_000)?;
    let divisor = crate::params::greatest_common_divisor(ticks, nanos).max(1);
    Rate::new(ticks / divisor, Nanos::from_nanos(nanos / divisor)).ok()
}

const fn micros_to_nanos(micros: u64) -> Nanos {
    Nanos::from_nanos(instant_nanos(micros))
}

/// Writes the state words of one limit. For a concurrency limit, returns the time until its last lease ends.
fn restore_words(
    limit: &Limit,
    words: &mut [u64],
    bytes: &mut ByteCursor<'_>,
    now: &Now<'_>,
) -> Result<Option<Nanos>, TooShort> {
    match limit.params() {
        Params::Unlimited | Params::DenyAll => {}
        Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => {
            limit.encode(words, DecodedState::Bucket { ticks: read_bucket_ticks(&bucket, bytes)? });
        }
        Params::IntervalBucket { .. } => {
            limit.encode(
                words,
                DecodedState::Interval { mark: bytes.take_number(7)?, origin: instant_nanos(bytes.take_number(7)?) },
            );
        }
        Params::FixedWindow { .. } => {
            limit.encode(
                words,
                DecodedState::Window { end: instant_nanos(bytes.take_number(7)?), used: bytes.take_number(7)? },
            );
        }
        Params::SlidingWindow(_) => {
            let (end, previous, used) =
                (instant_nanos(bytes.take_number(7)?), bytes.take_number(7)?, bytes.take_number(7)?);
            limit.encode(words, DecodedState::Windows { end, previous, used });
        }
        Params::SlidingSlices { window, precision } => {
            restore_slices(limit, &window, precision, words, bytes)?;
        }
        Params::SlidingLog { .. } => {
            let (opening, length) = (bytes.take_number(2)?, bytes.take_number(2)?);
            let mut entries = ByteCursor::new(bytes.take(length as usize)?);
            if let Limit::SlidingLog(limit) = limit {
                limit.restore(
                    words,
                    opening,
                    (0..length / 7).map_while(|_| entries.take_number(7).ok().map(instant_nanos)),
                );
            }
        }
        Params::Concurrency { lease, .. } => {
            let (held, last_end, _) = (bytes.take_number(2)?, bytes.take_number(7)?, bytes.take_number(7)?);
            // A single lease with the total cost leads to the same decisions as the individual leases. Only its end may
            // differ.
            limit.init(words, now);
            if held > 0 {
                limit.commit(words, now, &Verdict::new_allowed_with_stamp(Cost::new(held), Stamp::from_bits(1)));
            }
            return Ok(Some(leases_left(last_end, now, lease)));
        }
    }
    Ok(None)
}

/// Returns the time until the last lease ends. `last_end` is the end of the last lease in microseconds, or 0 if there
/// are no leases. If the clock was set back, returns the full length of a lease.
pub(crate) fn leases_left(last_end: u64, now: &Now<'_>, lease: Nanos) -> Nanos {
    let lease = crate::params::micros_ceil(lease);
    let left = last_end.saturating_sub(now.mono().as_nanos() / 1_000);
    Nanos::from_micros(if left > lease + MAX_CLOCK_LEAD_MICROS { lease } else { left })
}

/// Reads the instant at which the bucket will be unused again, in core's ticks.
pub(crate) fn read_bucket_ticks(bucket: &BucketParams, bytes: &mut ByteCursor<'_>) -> Result<u128, TooShort> {
    let unit = UnitTime::new(bucket);
    let (whole, part) = (bytes.take_number(7)?, bytes.take_number(6)?);
    let per_micro = u128::from(unit.ticks) * u128::from(unit.core_ticks_per_tick);
    Ok(u128::from(whole) * per_micro + u128::from(part) * u128::from(unit.core_ticks_per_tick))
}

/// Reads the slice counts and writes the state words. Returns the end of the current slice.
pub(crate) fn restore_slices(
    limit: &Limit,
    window: &WindowParams,
    precision: Nanos,
    words: &mut [u64],
    bytes: &mut ByteCursor<'_>,
) -> Result<u64, TooShort> {
    let end = instant_nanos(bytes.take_number(7)?);
    let (_, present) = (bytes.take_number(7)?, bytes.take_number(7)?);
    let mut counts = [0; SlidingSlices::MAX_SLICES as usize];
    for count in counts.iter_mut().take(slice_count(window, precision)) {
        *count = bytes.take_number(count_width(window))?;
    }
    if let Limit::SlidingSlices(limit) = limit {
        limit.restore(words, end, present, &counts);
    }
    Ok(end)
}

fn read_array(bytes: &mut ByteCursor<'_>) -> Result<usize, InvalidState> {
    match bytes.take(1)?[0] {
        head @ 0x90..=0x9f => Ok(usize::from(head & 0x0f)),
        _ => Err(InvalidState),
    }
}

fn read_number(bytes: &mut ByteCursor<'_>) -> Result<u64, InvalidState> {
    let width = match bytes.take(1)?[0] {
        small @ 0..=0x7f => return Ok(small.into()),
        0xcc => 1,
        0xcd => 2,
        0xce => 4,
        0xcf => 8,
        _ => return Err(InvalidState),
    };
    Ok(bytes.take(width)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::EncodedLimits;
    use tollgate_core::{
        Concurrency, FixedWindow, IntervalBucket, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket,
    };

    /// Lengths in whole microseconds survive the round trip; only a leaky bucket's longest wait is not decoded.
    #[test]
    fn decoded_parameters_are_those_that_were_encoded() {
        let rate: Rate = "7777/s".parse().unwrap();
        let second = Nanos::SECOND;
        let limits: [Limit; 10] = [
            TokenBucket::new(rate, 9).unwrap().max_debt(4).unwrap().initial(2).unwrap().into(),
            LeakyBucket::new("1/min".parse().unwrap(), 9).unwrap().free(3).unwrap().into(),
            IntervalBucket::new(5, second).unwrap().burst(9).unwrap().max_wait(second).unwrap().into(),
            IntervalBucket::new(5, second).unwrap().steps(Steps::FirstRequest).into(),
            FixedWindow::new(9, second).unwrap().phase(Phase::Given(1)).into(),
            FixedWindow::new(9, second).unwrap().phase(Phase::Spread).initial(3).unwrap().into(),
            SlidingWindow::new(9, second).unwrap().max_debt(4).unwrap().into(),
            SlidingSlices::new(9, second, Nanos::from_millis(100)).unwrap().into(),
            SlidingLog::new(9, second).unwrap().minimum_gap(Nanos::from_millis(7)).unwrap().count_refused().into(),
            Concurrency::new(9, second).unwrap().into(),
        ];
        for limit in limits.into_iter().chain([Limit::Unlimited, Limit::DenyAll]) {
            let encoded = EncodedLimits::new(&limit.into()).unwrap();
            let decoded =
                decode_limits(encoded.bytes(), &Limit::Unlimited.into()).unwrap_or_else(|_| panic!("{limit:?}"));
            assert_eq!(decoded, limit.into());
        }
        // If `asked` does not contain the same limit, rates are decoded in lowest terms: 10/s becomes 1/100ms.
        let limits: Limits = Limit::from(TokenBucket::new("10/s".parse().unwrap(), 9).unwrap()).into();
        let encoded = EncodedLimits::new(&limits).unwrap();
        assert!(decode_limits(encoded.bytes(), &limits).is_ok_and(|decoded| decoded == limits));
        assert!(decode_limits(encoded.bytes(), &Limit::DenyAll.into()).is_ok_and(|decoded| {
            decoded == Limit::from(TokenBucket::new("1/100ms".parse().unwrap(), 9).unwrap()).into()
        }));
    }

    #[test]
    fn bytes_that_are_not_parameters_are_rejected() {
        let asked: Limits = Limit::Unlimited.into();
        for bytes in [&[][..], &[0x91], &[0x91, 0x92, 1], &[0x91, 0x91, 9], &[0x90], &[0x91, 0x91, 0xd0]] {
            assert!(decode_limits(bytes, &asked).is_err(), "{bytes:?}");
        }
    }
}
