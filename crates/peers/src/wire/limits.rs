//! Encoding of limits: the algorithm and parameters of each limit.

use smallvec::SmallVec;
use tollgate_core::{BucketParams, Limit, Limits, Nanos, Params, Phase, Rate, WindowParams};

use super::WireError;
use super::codec::{Reader, put_varint};

/// Maximum length of encoded limits. This length is enough for eight limits with five numbers of ten bytes each.
pub const MAX_LIMITS_BYTES: usize = 512;

/// Encoded limits. Equal limits have equal bytes.
pub type EncodedLimits = SmallVec<[u8; 24]>;

const CODE_TOKEN_BUCKET: u8 = 1;
const CODE_FIXED_WINDOW: u8 = 2;
const CODE_SLIDING_WINDOW: u8 = 3;
const CODE_SLIDING_SLICES: u8 = 4;

/// Encodes limits. Skips limits that nodes cannot share; [`check_limits`](crate::table::check_limits) refuses them
/// earlier.
pub fn encode_limits(limits: &Limits) -> EncodedLimits {
    let mut out = Vec::with_capacity(32);
    for limit in limits.as_slice() {
        match limit.params() {
            Params::TokenBucket(bucket) => {
                out.push(CODE_TOKEN_BUCKET);
                put_varint(bucket.rate.count().into(), &mut out);
                put_varint(bucket.rate.per().as_nanos(), &mut out);
                for number in [bucket.burst, bucket.max_debt, bucket.initial] {
                    put_varint(number, &mut out);
                }
            }
            Params::FixedWindow { window, phase } => {
                out.push(CODE_FIXED_WINDOW);
                put_window(window, &mut out);
                out.push(match phase {
                    Phase::Epoch | Phase::Given(_) => 0,
                    Phase::FirstRequest => 1,
                    Phase::Spread => 2,
                });
            }
            Params::SlidingWindow(window) => {
                out.push(CODE_SLIDING_WINDOW);
                put_window(window, &mut out);
            }
            Params::SlidingSlices { window, precision } => {
                out.push(CODE_SLIDING_SLICES);
                put_window(window, &mut out);
                put_varint(precision.as_nanos(), &mut out);
            }
            Params::Unlimited
            | Params::DenyAll
            | Params::LeakyBucket { .. }
            | Params::IntervalBucket { .. }
            | Params::SlidingLog { .. }
            | Params::Concurrency { .. } => {}
        }
    }
    EncodedLimits::from_slice(&out)
}

/// Decodes limits.
///
/// # Errors
/// Fails if the bytes are truncated or the parameters are invalid.
pub fn decode_limits(encoded: &[u8]) -> Result<Limits, WireError> {
    if encoded.len() > MAX_LIMITS_BYTES {
        return Err(WireError::Invalid("limits that are too long"));
    }
    let (mut reader, mut limits) = (Reader::new(encoded), Vec::new());
    while reader.expect_end().is_err() {
        if limits.len() == Limits::MAX {
            return Err(WireError::Invalid("more than 8 limits"));
        }
        let params = match reader.byte()? {
            CODE_TOKEN_BUCKET => {
                let (count, per) = (reader.varint()?, Nanos::from_nanos(reader.varint()?));
                let rate = Rate::new(count, per).map_err(|_| WireError::Invalid("a rate"))?;
                let (burst, max_debt, initial) = (reader.varint()?, reader.varint()?, reader.varint()?);
                Params::TokenBucket(BucketParams { rate, burst, max_debt, initial })
            }
            CODE_FIXED_WINDOW => {
                let window = read_window(&mut reader)?;
                let phase = match reader.byte()? {
                    0 => Phase::Epoch,
                    1 => Phase::FirstRequest,
                    2 => Phase::Spread,
                    _ => return Err(WireError::Invalid("a phase")),
                };
                Params::FixedWindow { window, phase }
            }
            CODE_SLIDING_WINDOW => Params::SlidingWindow(read_window(&mut reader)?),
            CODE_SLIDING_SLICES => Params::SlidingSlices {
                window: read_window(&mut reader)?,
                precision: Nanos::from_nanos(reader.varint()?),
            },
            _ => return Err(WireError::Invalid("an algorithm")),
        };
        limits.push(Limit::from_params(params).map_err(|_| WireError::Invalid("the parameters of a limit"))?);
    }
    Limits::new(limits).map_err(|_| WireError::Invalid("no limit"))
}

fn put_window(window: WindowParams, out: &mut Vec<u8>) {
    for number in [window.limit, window.length.as_nanos(), window.max_debt, window.initial] {
        put_varint(number, out);
    }
}

fn read_window(reader: &mut Reader<'_>) -> Result<WindowParams, WireError> {
    let (limit, length) = (reader.varint()?, Nanos::from_nanos(reader.varint()?));
    Ok(WindowParams { limit, length, max_debt: reader.varint()?, initial: reader.varint()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::{FixedWindow, SlidingSlices, SlidingWindow, TokenBucket};

    #[test]
    fn encoded_limits_decode_to_the_same_value() {
        let all = Limits::new([
            TokenBucket::new("7777/s".parse().unwrap(), 9).unwrap().initial(3).unwrap().into(),
            FixedWindow::new(10, Nanos::from_secs(60)).unwrap().phase(Phase::Spread).into(),
            FixedWindow::new(10, Nanos::from_secs(60)).unwrap().phase(Phase::FirstRequest).into(),
            SlidingWindow::new(10, Nanos::from_secs(60)).unwrap().into(),
            SlidingSlices::new(10, Nanos::SECOND, Nanos::from_millis(100)).unwrap().into(),
        ]);
        let all = all.unwrap();
        assert_eq!(decode_limits(&encode_limits(&all)), Ok(all));
        let one: Limits = Limit::from(TokenBucket::new("10/s".parse().unwrap(), 10).unwrap()).into();
        assert!(encode_limits(&one).len() <= 12, "{}", encode_limits(&one).len());
    }

    #[test]
    fn invalid_limits_are_refused() {
        for code in
            [&[][..], &[9], &[CODE_TOKEN_BUCKET, 1], &[CODE_TOKEN_BUCKET, 0, 1, 1, 0, 1], &[0; MAX_LIMITS_BYTES + 1]]
        {
            assert!(decode_limits(code).is_err(), "{code:?}");
        }
    }
}
