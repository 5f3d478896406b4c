//! Seeded random numbers, and random limits.

use tollgate_core::{
    Algorithm, Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Limit, Limits, Nanos, Phase, Rate, SlidingLog,
    SlidingSlices, SlidingWindow, Steps, TokenBucket,
};

/// SplitMix64: short, and good enough for choosing test cases.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }

    /// Returns a number from one to `most`; small and large magnitudes are equally likely.
    pub(crate) fn any_amount(&mut self, most: u64) -> u64 {
        let bits = self.below(u64::from(64 - most.leading_zeros()) + 1);
        (self.number() & ((1 << bits) - 1)).clamp(1, most)
    }
}

const MICRO: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;

fn any_rate(rng: &mut Rng) -> Rate {
    loop {
        let count = match rng.below(3) {
            0 => rng.pick(&[1, 2, 3, 7, 10, 60, 100, 1_000, 7_777, 999_983, 1_000_000]),
            1 => rng.any_amount(1_000),
            _ => rng.any_amount(5_000_000),
        };
        let per = match rng.below(3) {
            0 => rng.pick(&[MICRO, 1_000 * MICRO, SECOND, 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND]),
            1 => rng.any_amount(100 * SECOND),
            _ => rng.any_amount(3_000_000) * MICRO,
        };
        if let Ok(rate) = Rate::new(count, Nanos::from_nanos(per)) {
            return rate;
        }
    }
}

fn any_length(rng: &mut Rng) -> Nanos {
    match rng.below(3) {
        0 => Nanos::from_secs(rng.pick(&[1, 60, 3_600, 86_400])),
        1 => Nanos::from_micros(rng.any_amount(10_000_000)),
        _ => Nanos::from_millis(rng.any_amount(100_000)),
    }
}

fn limit_amount(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => rng.any_amount(3),
        1 | 2 => rng.any_amount(30),
        _ => rng.any_amount(50_000_000_000),
    }
}

/// Applies a random setting with a probability of one third. An invalid setting leaves the limit unchanged.
fn with_setting<L: Copy, E>(rng: &mut Rng, limit: L, most: u64, with: impl Fn(L, u64) -> Result<L, E>) -> L {
    if rng.one_in(3) { with(limit, rng.below(most + 1)).unwrap_or(limit) } else { limit }
}

pub(crate) fn token_bucket(rng: &mut Rng) -> Limit {
    let bucket = loop {
        let burst = limit_amount(rng);
        if let Ok(bucket) = TokenBucket::new(any_rate(rng), burst) {
            break bucket;
        }
    };
    let burst = bucket.burst();
    let bucket = with_setting(rng, bucket, 2 * burst, TokenBucket::max_debt);
    with_setting(rng, bucket, burst, TokenBucket::initial).into()
}

pub(crate) fn leaky_bucket(rng: &mut Rng) -> Limit {
    let bucket = loop {
        let burst = limit_amount(rng);
        if let Ok(bucket) = LeakyBucket::new(any_rate(rng), burst) {
            break bucket;
        }
    };
    let burst = bucket.burst();
    let bucket = with_setting(rng, bucket, 2 * burst, LeakyBucket::max_debt);
    let bucket = with_setting(rng, bucket, burst, LeakyBucket::initial);
    let bucket = with_setting(rng, bucket, burst, LeakyBucket::free);
    if rng.one_in(3) {
        // The longest wait is in whole microseconds. The script cannot represent every fraction of a microsecond,
        // because it counts in ticks of the rate.
        return bucket.max_wait(Nanos::from_micros(rng.any_amount(10_000_000))).into();
    }
    bucket.into()
}

pub(crate) fn interval_bucket(rng: &mut Rng) -> Limit {
    let bucket = loop {
        let (refill, burst) = (limit_amount(rng), limit_amount(rng));
        if let Ok(bucket) = IntervalBucket::new(refill, any_length(rng)).and_then(|bucket| bucket.burst(burst)) {
            break bucket;
        }
    };
    let burst = Limit::from(bucket).capacity();
    let bucket = with_setting(rng, bucket, 2 * burst, IntervalBucket::max_debt);
    let bucket = with_setting(rng, bucket, burst, IntervalBucket::initial);
    // The longest wait is in whole microseconds, like the clock. Otherwise a wait could end between two clock ticks,
    // just after a step.
    let most = bucket.period().as_nanos() * 3 / MICRO;
    let bucket = with_setting(rng, bucket, most, |bucket, wait| bucket.max_wait(Nanos::from_micros(wait)));
    let offset = Nanos::from_micros(rng.below(bucket.period().as_nanos() / MICRO));
    bucket.steps(rng.pick(&[Steps::Aligned(Nanos::ZERO), Steps::Aligned(offset), Steps::FirstRequest])).into()
}

pub(crate) fn sliding_slices(rng: &mut Rng) -> Limit {
    let limit = limit_amount(rng);
    let slices = loop {
        let length = any_length(rng);
        let precision = Nanos::from_micros((length.as_nanos() / MICRO).div_ceil(rng.any_amount(64)).max(1));
        if let Ok(slices) = SlidingSlices::new(limit, length, precision) {
            break slices;
        }
    };
    let slices = with_setting(rng, slices, 3 * limit, SlidingSlices::max_debt);
    with_setting(rng, slices, limit, SlidingSlices::initial).into()
}

pub(crate) fn fixed_window(rng: &mut Rng) -> Limit {
    let limit = limit_amount(rng);
    let window = FixedWindow::new(limit, any_length(rng)).unwrap();
    let window = with_setting(rng, window, 3 * limit, FixedWindow::max_debt);
    let window = with_setting(rng, window, limit, FixedWindow::initial);
    window.phase(rng.pick(&[Phase::Epoch, Phase::FirstRequest, Phase::Spread, Phase::Given(0), Phase::Given(1)])).into()
}

pub(crate) fn sliding_window(rng: &mut Rng) -> Limit {
    let limit = limit_amount(rng);
    let window = SlidingWindow::new(limit, any_length(rng)).unwrap();
    let window = with_setting(rng, window, 3 * limit, SlidingWindow::max_debt);
    with_setting(rng, window, limit, SlidingWindow::initial).into()
}

pub(crate) fn sliding_log(rng: &mut Rng) -> Limit {
    let limit = rng.any_amount(40);
    let log = SlidingLog::new(limit, any_length(rng)).unwrap();
    let log = with_setting(rng, log, limit, SlidingLog::max_debt);
    let log = with_setting(rng, log, limit, SlidingLog::initial);
    let log =
        with_setting(rng, log, log.length().as_nanos() * 2 / limit, |log, gap| log.minimum_gap(Nanos::from_nanos(gap)));
    if rng.one_in(3) { log.count_refused().into() } else { log.into() }
}

pub(crate) fn any_concurrency(rng: &mut Rng) -> Limit {
    let limit = rng.any_amount(20);
    let leases = Concurrency::new(limit, any_length(rng)).unwrap();
    with_setting(rng, leases, limit, Concurrency::max_debt).into()
}

/// Returns a limit of any algorithm, or one of the two limits without parameters.
pub(crate) fn any_limit(rng: &mut Rng) -> Limit {
    match rng.below(20) {
        0 => Limit::Unlimited,
        1 => Limit::DenyAll,
        n => {
            let any = [
                token_bucket,
                leaky_bucket,
                interval_bucket,
                fixed_window,
                sliding_window,
                sliding_slices,
                sliding_log,
                any_concurrency,
            ];
            any[n as usize % any.len()](rng)
        }
    }
}

/// Returns a group of one to four limits.
pub(crate) fn any_limits(rng: &mut Rng) -> Limits {
    let count = rng.any_amount(4);
    Limits::new((0..count).map(|_| any_limit(rng))).unwrap()
}
