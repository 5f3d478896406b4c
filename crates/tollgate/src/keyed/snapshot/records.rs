//! The numbers of a limit as words. What they mean must not change without another version of the format.

use tollgate_core::{BucketTerms, Limit, Nanos, Phase, Rate, Steps, Terms, WindowTerms};

/// Which algorithm, and its numbers in the order of its terms; zeros fill it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record(pub(super) [u64; 8]);

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

/// In place of an offset, which is less than a period: the steps begin with the first request.
const FIRST_REQUEST: u64 = u64::MAX;

/// What people call it.
pub(super) fn name(terms: &Terms) -> &'static str {
    match terms {
        Terms::Unlimited => "limit that lets everything pass",
        Terms::DenyAll => "limit that lets nothing pass",
        Terms::TokenBucket(_) => "token bucket",
        Terms::LeakyBucket { .. } => "leaky bucket",
        Terms::IntervalBucket { .. } => "interval bucket",
        Terms::FixedWindow { .. } => "fixed window",
        Terms::SlidingWindow(_) => "sliding window",
        Terms::SlidingSlices { .. } => "limit by sliding slices",
        Terms::SlidingLog { .. } => "sliding log",
        Terms::Concurrency { .. } => "limit of concurrency",
    }
}

impl Record {
    pub(super) fn of(terms: Terms) -> Self {
        match terms {
            Terms::Unlimited => Self::made_of(UNLIMITED, []),
            Terms::DenyAll => Self::made_of(DENY_ALL, []),
            Terms::TokenBucket(bucket) => Self::made_of(TOKEN_BUCKET, of_bucket(bucket)),
            Terms::LeakyBucket { bucket, free, max_wait } => {
                Self::made_of(LEAKY_BUCKET, of_bucket(bucket).into_iter().chain([free, max_wait.as_nanos()]))
            }
            Terms::IntervalBucket { refill, period, burst, steps, max_wait, max_debt, initial } => {
                let steps = match steps {
                    Steps::Aligned(offset) => offset.as_nanos(),
                    Steps::FirstRequest => FIRST_REQUEST,
                };
                let numbers = [refill, period.as_nanos(), burst, steps, max_wait.as_nanos(), max_debt, initial];
                Self::made_of(INTERVAL_BUCKET, numbers)
            }
            Terms::FixedWindow { window, phase } => {
                let phase = match phase {
                    Phase::Epoch => [0, 0],
                    Phase::FirstRequest => [1, 0],
                    Phase::Spread => [2, 0],
                    Phase::Given(position) => [3, position as u64],
                };
                Self::made_of(FIXED_WINDOW, of_window(window).into_iter().chain(phase))
            }
            Terms::SlidingWindow(window) => Self::made_of(SLIDING_WINDOW, of_window(window)),
            Terms::SlidingSlices { window, precision } => {
                Self::made_of(SLIDING_SLICES, of_window(window).into_iter().chain([precision.as_nanos()]))
            }
            Terms::SlidingLog { window, minimum_gap, count_refused } => {
                let more = [minimum_gap.as_nanos(), count_refused.into()];
                Self::made_of(SLIDING_LOG, of_window(window).into_iter().chain(more))
            }
            Terms::Concurrency { limit, lease, max_debt } => {
                Self::made_of(CONCURRENCY, [limit, lease.as_nanos(), max_debt])
            }
        }
    }

    /// The limit it tells, if it tells one.
    pub(super) fn limit(&self) -> Option<Limit> {
        let [algorithm, a, b, c, d, e, f, g] = self.0;
        let nanos = Nanos::from_nanos;
        let bucket = || {
            let rate = Rate::new(a, nanos(b)).ok()?;
            Some(BucketTerms { rate, burst: c, max_debt: d, initial: e })
        };
        let window = WindowTerms { limit: a, length: nanos(b), max_debt: c, initial: d };
        let terms = match algorithm {
            UNLIMITED => Terms::Unlimited,
            DENY_ALL => Terms::DenyAll,
            TOKEN_BUCKET => Terms::TokenBucket(bucket()?),
            LEAKY_BUCKET => Terms::LeakyBucket { bucket: bucket()?, free: f, max_wait: nanos(g) },
            FIXED_WINDOW => {
                let phase = match e {
                    0 => Phase::Epoch,
                    1 => Phase::FirstRequest,
                    2 => Phase::Spread,
                    3 => Phase::Given(f.try_into().ok()?),
                    _ => return None,
                };
                Terms::FixedWindow { window, phase }
            }
            SLIDING_WINDOW => Terms::SlidingWindow(window),
            SLIDING_LOG => Terms::SlidingLog { window, minimum_gap: nanos(e), count_refused: f != 0 },
            INTERVAL_BUCKET => {
                let steps = if d == FIRST_REQUEST { Steps::FirstRequest } else { Steps::Aligned(nanos(d)) };
                let (period, max_wait) = (nanos(b), nanos(e));
                Terms::IntervalBucket { refill: a, period, burst: c, steps, max_wait, max_debt: f, initial: g }
            }
            SLIDING_SLICES => Terms::SlidingSlices { window, precision: nanos(e) },
            CONCURRENCY => Terms::Concurrency { limit: a, lease: nanos(b), max_debt: c },
            _ => return None,
        };
        Limit::from_terms(terms).ok()
    }

    fn made_of(algorithm: u64, numbers: impl IntoIterator<Item = u64>) -> Self {
        let mut record = Self([algorithm, 0, 0, 0, 0, 0, 0, 0]);
        record.0[1..].iter_mut().zip(numbers).for_each(|(place, number)| *place = number);
        record
    }
}

fn of_bucket(BucketTerms { rate, burst, max_debt, initial }: BucketTerms) -> [u64; 5] {
    [rate.count().into(), rate.per().as_nanos(), burst, max_debt, initial]
}

fn of_window(WindowTerms { limit, length, max_debt, initial }: WindowTerms) -> [u64; 4] {
    [limit, length.as_nanos(), max_debt, initial]
}
