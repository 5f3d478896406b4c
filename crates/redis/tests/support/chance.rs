//! Seeded random numbers, and random limits.

use tollgate_core::{
    Algorithm, Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Limit, Limits, Nanos, Phase, Rate, SlidingLog,
    SlidingSlices, SlidingWindow, Steps, TokenBucket,
};

/// SplitMix64: short, and good enough for choosing test cases.
pub(crate) struct Chance(u64);

impl Chance {
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

fn any_rate(chance: &mut Chance) -> Rate {
    loop {
        let count = match chance.below(3) {
            0 => chance.pick(&[1, 2, 3, 7, 10, 60, 100, 1_000, 7_777, 999_983, 1_000_000]),
            1 => chance.any_amount(1_000),
            _ => chance.any_amount(5_000_000),
        };
        let per = match chance.below(3) {
            0 => chance.pick(&[MICRO, 1_000 * MICRO, SECOND, 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND]),
            1 => chance.any_amount(100 * SECOND),
            _ => chance.any_amount(3_000_000) * MICRO,
        };
        if let Ok(rate) = Rate::new(count, Nanos::from_nanos(per)) {
            return rate;
        }
    }
}

fn any_length(chance: &mut Chance) -> Nanos {
    match chance.below(3) {
        0 => Nanos::from_secs(chance.pick(&[1, 60, 3_600, 86_400])),
        1 => Nanos::from_micros(chance.any_amount(10_000_000)),
        _ => Nanos::from_millis(chance.any_amount(100_000)),
    }
}

fn limit_amount(chance: &mut Chance) -> u64 {
    match chance.below(4) {
        0 => chance.any_amount(3),
        1 | 2 => chance.any_amount(30),
        _ => chance.any_amount(50_000_000_000),
    }
}

/// Applies a random setting with a probability of one third. An invalid setting leaves the limit unchanged.
fn with_setting<L: Copy, E>(chance: &mut Chance, limit: L, most: u64, with: impl Fn(L, u64) -> Result<L, E>) -> L {
    if chance.one_in(3) { with(limit, chance.below(most + 1)).unwrap_or(limit) } else { limit }
}

pub(crate) fn token_bucket(chance: &mut Chance) -> Limit {
    let bucket = loop {
        let burst = limit_amount(chance);
        if let Ok(bucket) = TokenBucket::new(any_rate(chance), burst) {
            break bucket;
        }
    };
    let burst = bucket.burst();
    let bucket = with_setting(chance, bucket, 2 * burst, TokenBucket::max_debt);
    with_setting(chance, bucket, burst, TokenBucket::initial).into()
}

pub(crate) fn leaky_bucket(chance: &mut Chance) -> Limit {
    let bucket = loop {
        let burst = limit_amount(chance);
        if let Ok(bucket) = LeakyBucket::new(any_rate(chance), burst) {
            break bucket;
        }
    };
    let burst = bucket.burst();
    let bucket = with_setting(chance, bucket, 2 * burst, LeakyBucket::max_debt);
    let bucket = with_setting(chance, bucket, burst, LeakyBucket::initial);
    let bucket = with_setting(chance, bucket, burst, LeakyBucket::free);
    if chance.one_in(3) {
        // The wait is in whole microseconds, because the script divides a microsecond only into ticks of the rate.
        return bucket.max_wait(Nanos::from_micros(chance.any_amount(10_000_000))).into();
    }
    bucket.into()
}

pub(crate) fn interval_bucket(chance: &mut Chance) -> Limit {
    let bucket = loop {
        let (refill, burst) = (limit_amount(chance), limit_amount(chance));
        if let Ok(bucket) = IntervalBucket::new(refill, any_length(chance)).and_then(|bucket| bucket.burst(burst)) {
            break bucket;
        }
    };
    let burst = Limit::from(bucket).capacity();
    let bucket = with_setting(chance, bucket, 2 * burst, IntervalBucket::max_debt);
    let bucket = with_setting(chance, bucket, burst, IntervalBucket::initial);
    // The longest wait is in whole microseconds, like the clock. Otherwise a wait could end between two clock ticks,
    // just after a step.
    let most = bucket.period().as_nanos() * 3 / MICRO;
    let bucket = with_setting(chance, bucket, most, |bucket, wait| bucket.max_wait(Nanos::from_micros(wait)));
    let offset = Nanos::from_micros(chance.below(bucket.period().as_nanos() / MICRO));
    bucket.steps(chance.pick(&[Steps::Aligned(Nanos::ZERO), Steps::Aligned(offset), Steps::FirstRequest])).into()
}

pub(crate) fn sliding_slices(chance: &mut Chance) -> Limit {
    let limit = limit_amount(chance);
    let slices = loop {
        let length = any_length(chance);
        let precision = Nanos::from_micros((length.as_nanos() / MICRO).div_ceil(chance.any_amount(64)).max(1));
        if let Ok(slices) = SlidingSlices::new(limit, length, precision) {
            break slices;
        }
    };
    let slices = with_setting(chance, slices, 3 * limit, SlidingSlices::max_debt);
    with_setting(chance, slices, limit, SlidingSlices::initial).into()
}

pub(crate) fn fixed_window(chance: &mut Chance) -> Limit {
    let limit = limit_amount(chance);
    let window = FixedWindow::new(limit, any_length(chance)).unwrap();
    let window = with_setting(chance, window, 3 * limit, FixedWindow::max_debt);
    let window = with_setting(chance, window, limit, FixedWindow::initial);
    window
        .phase(chance.pick(&[Phase::Epoch, Phase::FirstRequest, Phase::Spread, Phase::Given(0), Phase::Given(1)]))
        .into()
}

pub(crate) fn sliding_window(chance: &mut Chance) -> Limit {
    let limit = limit_amount(chance);
    let window = SlidingWindow::new(limit, any_length(chance)).unwrap();
    let window = with_setting(chance, window, 3 * limit, SlidingWindow::max_debt);
    with_setting(chance, window, limit, SlidingWindow::initial).into()
}

pub(crate) fn sliding_log(chance: &mut Chance) -> Limit {
    let limit = chance.any_amount(40);
    let log = SlidingLog::new(limit, any_length(chance)).unwrap();
    let log = with_setting(chance, log, limit, SlidingLog::max_debt);
    let log = with_setting(chance, log, limit, SlidingLog::initial);
    let log = with_setting(chance, log, log.length().as_nanos() * 2 / limit, |log, gap| {
        log.minimum_gap(Nanos::from_nanos(gap))
    });
    if chance.one_in(3) { log.count_refused().into() } else { log.into() }
}

pub(crate) fn any_concurrency(chance: &mut Chance) -> Limit {
    let limit = chance.any_amount(20);
    let leases = Concurrency::new(limit, any_length(chance)).unwrap();
    with_setting(chance, leases, limit, Concurrency::max_debt).into()
}

/// Returns a limit of any algorithm, or one of the two limits without parameters.
pub(crate) fn any_limit(chance: &mut Chance) -> Limit {
    match chance.below(20) {
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
            any[n as usize % any.len()](chance)
        }
    }
}

/// Returns a group of one to four limits.
pub(crate) fn any_group(chance: &mut Chance) -> Limits {
    let count = chance.any_amount(4);
    Limits::new((0..count).map(|_| any_limit(chance))).unwrap()
}
