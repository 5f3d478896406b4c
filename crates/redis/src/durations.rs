//! A histogram of the time that requests wait for the store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bucket bounds in microseconds; the last bucket is unbounded. A store on the same network usually answers
/// within 1 ms, and the default deadline is 10 ms.
pub const BUCKET_BOUNDS_US: [u64; 10] = [125, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 64_000, 256_000];

/// The histogram, shared by all threads. No other memory access depends on the counters, so relaxed ordering is enough.
#[derive(Debug, Default)]
pub(crate) struct DurationCounters {
    counts: [AtomicU64; BUCKET_BOUNDS_US.len() + 1],
    micros: AtomicU64,
}

/// A snapshot of the histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationHistogram {
    /// Number of requests per bucket. Bucket `i` counts durations above `BUCKET_BOUNDS_US[i - 1]` and up to
    /// `BUCKET_BOUNDS_US[i]`; see [`BUCKET_BOUNDS_US`]. The last bucket has no upper bound.
    pub counts: [u64; BUCKET_BOUNDS_US.len() + 1],
    /// Sum of all durations, in microseconds.
    pub micros: u64,
}

impl DurationCounters {
    pub(crate) fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.counts[BUCKET_BOUNDS_US.partition_point(|bound| *bound < micros)].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> DurationHistogram {
        let micros = self.micros.load(Ordering::Relaxed);
        DurationHistogram { counts: std::array::from_fn(|index| self.counts[index].load(Ordering::Relaxed)), micros }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_equal_to_a_bound_counts_in_the_lower_bucket() {
        let counters = DurationCounters::default();
        for micros in [0, 125, 126, 256_000, 256_001] {
            counters.record(Duration::from_micros(micros));
        }
        let read = counters.read();
        assert_eq!((read.counts[0], read.counts[1], read.counts[9], read.counts[10]), (2, 1, 1, 1));
        assert_eq!(read.micros, 512_252);
    }
}
