//! Helpers shared by the tests of this crate.

use std::sync::Arc;

use crate::clock::ManualClock;
use crate::{
    Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Limit, Limits, SlidingLog, SlidingSlices, SlidingWindow,
    TokenBucket,
};
use tollgate_core::{Algorithm, Nanos};

pub(crate) const SECOND: Nanos = Nanos::SECOND;
pub(crate) const HOUR: Nanos = Nanos::from_secs(3_600);
pub(crate) const DAY: Nanos = Nanos::from_secs(86_400);

/// Fixed points for reproducible secrets.
pub(crate) const POINTS: [u64; 2] = [0x0123_4567_89AB_CDEF, 0x0FED_CBA9_8765_4321];

/// Returns a clock at the beginning of a day, long after the clock's zero, so that there are whole windows before and
/// after its time.
pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(DAY.as_nanos() * 20_000))
}

/// Returns a bucket whose state is one word.
pub(crate) fn bucket(burst: u64) -> TokenBucket {
    let bucket = TokenBucket::new("10/s".parse().unwrap(), burst).unwrap();
    assert!(bucket.fits_a_word());
    bucket
}

/// Returns a bucket whose state is two words.
pub(crate) fn two_word_bucket(burst: u64) -> TokenBucket {
    let bucket = TokenBucket::new("7777/s".parse().unwrap(), burst).unwrap();
    assert!(!bucket.fits_a_word());
    bucket
}

pub(crate) fn daily_window(limit: u64) -> FixedWindow {
    FixedWindow::new(limit, DAY).unwrap()
}

/// Returns limits of all algorithms, with a capacity of 10 and a maximum debt of 5. Token and leaky buckets are included
/// with states of one and of two words. Each limit is full again after `length`; the sliding window and the slices are
/// full again after at most twice that time.
pub(crate) fn limits_of_ten(length: Nanos) -> Vec<Limit> {
    let per = length.as_nanos();
    let coarse = crate::Rate::new(10, length).unwrap();
    // In lowest terms the count stays 10, so the state takes two words.
    let fine = crate::Rate::new(10, Nanos::from_nanos(per - 1)).unwrap();
    let limits = vec![
        TokenBucket::new(coarse, 10).unwrap().max_debt(5).unwrap().into(),
        TokenBucket::new(fine, 10).unwrap().max_debt(5).unwrap().into(),
        FixedWindow::new(10, length).unwrap().max_debt(5).unwrap().into(),
        SlidingWindow::new(10, length).unwrap().max_debt(5).unwrap().into(),
        SlidingSlices::new(10, length, Nanos::from_nanos(per / 4)).unwrap().max_debt(5).unwrap().into(),
        SlidingLog::new(10, length).unwrap().max_debt(5).unwrap().into(),
        IntervalBucket::new(10, length).unwrap().max_debt(5).unwrap().into(),
        Concurrency::new(10, length).unwrap().max_debt(5).unwrap().into(),
        LeakyBucket::new(coarse, 10).unwrap().free(10).unwrap().max_debt(5).unwrap().into(),
        LeakyBucket::new(fine, 10).unwrap().free(10).unwrap().max_debt(5).unwrap().into(),
    ];
    let words: Vec<usize> = limits.iter().map(Limit::words).collect();
    assert_eq!(words, [1, 2, 2, 2, 3, 16, 1, 47, 1, 2]);
    limits
}

/// Returns each limit of [`limits_of_ten`] alone, and a combination of the maximum number of limits.
pub(crate) fn limits_of_ten_and_combined(length: Nanos) -> Vec<Limits> {
    let each = limits_of_ten(length);
    let combined = Limits::new(each.iter().copied().take(Limits::MAX)).unwrap();
    each.into_iter().map(Limits::from).chain([combined]).collect()
}

/// Reproducible pseudo-random numbers.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Runs `work` concurrently on `threads` threads, with the thread number as argument, and returns the results.
pub(crate) fn on_threads<R: Send>(threads: u64, work: impl Fn(u64) -> R + Sync) -> Vec<R> {
    let start = std::sync::Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        let run = |thread| {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(thread)
            })
        };
        let handles: Vec<_> = (0..threads).map(run).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}
