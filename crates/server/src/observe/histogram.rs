//! A histogram of durations in the text format of Prometheus.

use tollgate::core::Nanos;
use tollgate_engine::striped::{Stripe, Striped};

use super::metrics::MetricsText;

/// Upper bounds of the buckets in nanoseconds, each four times the previous one. One more bucket has no upper bound.
const BUCKET_BOUNDS_NS: [u64; 12] = {
    let mut bounds = [1_000; 12];
    let mut index = 1;
    while index < bounds.len() {
        bounds[index] = bounds[index - 1] * 4;
        index += 1;
    }
    bounds
};
/// Index of the sum, which follows the bucket counters.
const SUM_INDEX: usize = BUCKET_BOUNDS_NS.len() + 1;

/// Counts durations by bucket, with little contention between threads.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: Striped<{ SUM_INDEX + 1 }, 8>,
}

/// The counts of a histogram at one instant.
#[derive(Clone, Copy, Debug, Default)]
pub struct HistogramCounts {
    /// The number of durations in each bucket.
    pub buckets: [u64; BUCKET_BOUNDS_NS.len() + 1],
    /// The sum of all durations, in nanoseconds.
    pub sum: u64,
}

impl HistogramCounts {
    /// Returns the mean and an upper bound of the 99th percentile of the durations since `before`, in nanoseconds.
    /// Returns zeros if there are no durations.
    pub fn mean_and_p99_since(&self, before: &Self) -> (u64, u64) {
        let counts = || self.buckets.iter().zip(before.buckets).map(|(now, before)| now.saturating_sub(before));
        let count: u64 = counts().sum();
        if count == 0 {
            return (0, 0);
        }
        let most = count - count / 100;
        let mut seen = 0;
        let bucket = counts().position(|count| {
            seen += count;
            seen >= most
        });
        let bound = bucket.and_then(|bucket| BUCKET_BOUNDS_NS.get(bucket)).copied().unwrap_or(u64::MAX);
        (self.sum.saturating_sub(before.sum) / count, bound)
    }
}

impl Histogram {
    /// Returns the current counts.
    pub fn current_counts(&self) -> HistogramCounts {
        let mut buckets = [0; BUCKET_BOUNDS_NS.len() + 1];
        buckets.iter_mut().enumerate().for_each(|(index, count)| *count = self.counts.sum(index));
        HistogramCounts { buckets, sum: self.counts.sum(SUM_INDEX) }
    }

    /// Counts a duration.
    #[inline]
    pub fn record(&self, time: Nanos) {
        let (stripe, nanos) = (Stripe::of_thread(), time.as_nanos());
        self.counts.add(stripe, BUCKET_BOUNDS_NS.partition_point(|bound| *bound < nanos), 1);
        self.counts.add(stripe, SUM_INDEX, nanos);
    }

    /// Writes the lines of the histogram. The caller must have written the head of the metric.
    pub(super) fn write(&self, page: &mut MetricsText) {
        let counts: [u64; SUM_INDEX] = std::array::from_fn(|index| self.counts.sum(index));
        write_counts(page, &BUCKET_BOUNDS_NS, &counts, self.counts.sum(SUM_INDEX));
    }
}

/// Writes the lines of a histogram: the cumulative counts, the sum and the total count. `bounds` and `sum` are in
/// nanoseconds.
pub(super) fn write_counts(page: &mut MetricsText, bounds: &[u64], counts: &[u64], sum: u64) {
    let mut count = 0;
    for (bound, of_bound) in bounds.iter().zip(counts) {
        count += of_bound;
        page.write_line(&format!("_bucket{{le=\"{}\"}}", format_seconds(*bound)), count);
    }
    count += counts.get(bounds.len()).copied().unwrap_or(0);
    page.write_line("_bucket{le=\"+Inf\"}", count);
    page.write_line("_sum", format_seconds(sum));
    page.write_line("_count", count);
}

fn format_seconds(nanos: u64) -> String {
    let text = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_p99_cover_only_durations_since_before() {
        let histogram = Histogram::default();
        (0..100).for_each(|_| histogram.record(Nanos::from_nanos(5_000_000)));
        let before = histogram.current_counts();
        assert_eq!(before.mean_and_p99_since(&before), (0, 0));
        (0..99).for_each(|_| histogram.record(Nanos::from_nanos(2_000)));
        histogram.record(Nanos::from_nanos(102_000));
        assert_eq!(histogram.current_counts().mean_and_p99_since(&before), (3_000, 4_000));
        histogram.record(Nanos::from_secs(60));
        assert_eq!(histogram.current_counts().mean_and_p99_since(&before).1, 256_000);
        (0..10).for_each(|_| histogram.record(Nanos::from_secs(60)));
        assert_eq!(histogram.current_counts().mean_and_p99_since(&before).1, u64::MAX);
    }

    #[test]
    fn buckets_are_cumulative_and_include_their_bound() {
        let histogram = Histogram::default();
        for nanos in [0, 1_000, 1_001, 4_000, 5_000_000_000] {
            histogram.record(Nanos::from_nanos(nanos));
        }
        let mut page = MetricsText::default();
        page.write_head("t", "histogram", "Help.");
        histogram.write(&mut page);
        let text = page.text;
        for line in [
            "t_bucket{le=\"0.000001\"} 2",
            "t_bucket{le=\"0.000004\"} 4",
            "t_bucket{le=\"+Inf\"} 5",
            "t_count 5",
            "t_sum 5.000006001",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }
}
