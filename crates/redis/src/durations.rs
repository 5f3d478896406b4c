//! How long requests wait for the store, as counts by duration.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the counts, in microseconds; the last count has none. A store on the same network answers within a
/// millisecond, and the default deadline is 10.
pub const BOUNDS_US: [u64; 10] = [125, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 64_000, 256_000];

/// Counts by duration, of all threads. The counts order no other memory access, so every access is relaxed.
#[derive(Debug, Default)]
pub(crate) struct DurationCounters {
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    micros: AtomicU64,
}

/// Counts of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// The number of requests for each bound of [`BOUNDS_US`]: at most that long, and longer than the bound before; the
    /// last count is for longer ones.
    pub counts: [u64; BOUNDS_US.len() + 1],
    /// Their sum in microseconds.
    pub micros: u64,
}

impl DurationCounters {
    pub(crate) fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.counts[BOUNDS_US.partition_point(|bound| *bound < micros)].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Durations {
        let micros = self.micros.load(Ordering::Relaxed);
        Durations { counts: std::array::from_fn(|index| self.counts[index].load(Ordering::Relaxed)), micros }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_belongs_to_its_count() {
        let counters = DurationCounters::default();
        for micros in [0, 125, 126, 256_000, 256_001] {
            counters.record(Duration::from_micros(micros));
        }
        let read = counters.read();
        assert_eq!((read.counts[0], read.counts[1], read.counts[9], read.counts[10]), (2, 1, 1, 1));
        assert_eq!(read.micros, 512_252);
    }
}
