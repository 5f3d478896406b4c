//! Encoding of a limit's parameters as words. A change of their meaning requires a new format version.

use tollgate_core::{BucketParams, Limit, Nanos, Params, Phase, Rate, Steps, WindowParams};

/// The algorithm and its parameters in the order of [`Params`], padded with zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitRecord(pub(crate) [u64; 8]);

const UNLIMITED: u64 = 0;
const DENY_ALL: u64 = 1;
const TOKEN_BUCKET: u64 = 2;
const LEAKY_BUCKET: u64 = 3;
const FIXED_WINDOW: u64 = 4;
const SLIDING_WINDOW: u64 = 5;
const SLIDING_LOG: u64 = 6;
const CONCURRENCY: u64 = 7;
const INTERVAL_BUCKET: u64 = 8;
const SLIDING_SLICES: u64 = 9;

/// Marks steps that begin with the first request. No offset has this value, because offsets are shorter than a period.
const FIRST_REQUEST_STEPS: u64 = u64::MAX;

/// Returns the name of the algorithm.
pub(super) fn name(params: &Params) -> &'static str {
    match params {
        Params::Unlimited => "limit that admits everything",
        Params::DenyAll => "limit that refuses everything",
        Params::TokenBucket(_) => "token bucket",
        Params::LeakyBucket { .. } => "leaky bucket",
        Params::IntervalBucket { .. } => "interval bucket",
        Params::FixedWindow { .. } => "fixed window",
        Params::SlidingWindow(_) => "sliding window",
        Params::SlidingSlices { .. } => "sliding-slices limit",
        Params::SlidingLog { .. } => "sliding log",
        Params::Concurrency { .. } => "concurrency limit",
    }
}

impl LimitRecord {
    pub(crate) fn from_params(params: Params) -> Self {
        match params {
            Params::Unlimited => Self::from_numbers(UNLIMITED, []),
            Params::DenyAll => Self::from_numbers(DENY_ALL, []),
            Params::TokenBucket(bucket) => Self::from_numbers(TOKEN_BUCKET, bucket_numbers(bucket)),
            Params::LeakyBucket { bucket, free, max_wait } => {
                Self::from_numbers(LEAKY_BUCKET, bucket_numbers(bucket).into_iter().chain([free, max_wait.as_nanos()]))
            }
            Params::IntervalBucket { refill, period, burst, steps, max_wait, max_debt, initial } => {
                let steps = match steps {
                    Steps::Aligned(offset) => offset.as_nanos(),
                    Steps::FirstRequest => FIRST_REQUEST_STEPS,
                };
                let numbers = [refill, period.as_nanos(), burst, steps, max_wait.as_nanos(), max_debt, initial];
                Self::from_numbers(INTERVAL_BUCKET, numbers)
            }
            Params::FixedWindow { window, phase } => {
                let phase = match phase {
                    Phase::Epoch => [0, 0],
                    Phase::FirstRequest => [1, 0],
                    Phase::Spread => [2, 0],
                    Phase::Given(position) => [3, position as u64],
                };
                Self::from_numbers(FIXED_WINDOW, window_numbers(window).into_iter().chain(phase))
            }
            Params::SlidingWindow(window) => Self::from_numbers(SLIDING_WINDOW, window_numbers(window)),
            Params::SlidingSlices { window, precision } => {
                Self::from_numbers(SLIDING_SLICES, window_numbers(window).into_iter().chain([precision.as_nanos()]))
            }
            Params::SlidingLog { window, minimum_gap, count_refused } => {
                let more = [minimum_gap.as_nanos(), count_refused.into()];
                Self::from_numbers(SLIDING_LOG, window_numbers(window).into_iter().chain(more))
            }
            Params::Concurrency { limit, lease, max_debt } => {
                Self::from_numbers(CONCURRENCY, [limit, lease.as_nanos(), max_debt])
            }
        }
    }

    /// Returns the limit, if the words are valid.
    pub(crate) fn limit(&self) -> Option<Limit> {
        let [algorithm, a, b, c, d, e, f, g] = self.0;
        let nanos = Nanos::from_nanos;
        let bucket = || {
            let rate = Rate::new(a, nanos(b)).ok()?;
            Some(BucketParams { rate, burst: c, max_debt: d, initial: e })
        };
        let window = WindowParams { limit: a, length: nanos(b), max_debt: c, initial: d };
        let params = match algorithm {
            UNLIMITED => Params::Unlimited,
            DENY_ALL => Params::DenyAll,
            TOKEN_BUCKET => Params::TokenBucket(bucket()?),
            LEAKY_BUCKET => Params::LeakyBucket { bucket: bucket()?, free: f, max_wait: nanos(g) },
            FIXED_WINDOW => {
                let phase = match e {
                    0 => Phase::Epoch,
                    1 => Phase::FirstRequest,
                    2 => Phase::Spread,
                    3 => Phase::Given(f.try_into().ok()?),
                    _ => return None,
                };
                Params::FixedWindow { window, phase }
            }
            SLIDING_WINDOW => Params::SlidingWindow(window),
            SLIDING_LOG => Params::SlidingLog { window, minimum_gap: nanos(e), count_refused: f != 0 },
            INTERVAL_BUCKET => {
                let steps = if d == FIRST_REQUEST_STEPS { Steps::FirstRequest } else { Steps::Aligned(nanos(d)) };
                let (period, max_wait) = (nanos(b), nanos(e));
                Params::IntervalBucket { refill: a, period, burst: c, steps, max_wait, max_debt: f, initial: g }
            }
            SLIDING_SLICES => Params::SlidingSlices { window, precision: nanos(e) },
            CONCURRENCY => Params::Concurrency { limit: a, lease: nanos(b), max_debt: c },
            _ => return None,
        };
        Limit::from_params(params).ok()
    }

    fn from_numbers(algorithm: u64, numbers: impl IntoIterator<Item = u64>) -> Self {
        let mut record = Self([algorithm, 0, 0, 0, 0, 0, 0, 0]);
        record.0[1..].iter_mut().zip(numbers).for_each(|(place, number)| *place = number);
        record
    }
}

fn bucket_numbers(BucketParams { rate, burst, max_debt, initial }: BucketParams) -> [u64; 5] {
    [rate.count().into(), rate.per().as_nanos(), burst, max_debt, initial]
}

fn window_numbers(WindowParams { limit, length, max_debt, initial }: WindowParams) -> [u64; 4] {
    [limit, length.as_nanos(), max_debt, initial]
}
