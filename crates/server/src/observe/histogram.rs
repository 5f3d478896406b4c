//! A histogram of durations in the text format of Prometheus.

use std::fmt::Write;

use tollgate::core::Nanos;
use tollgate_engine::striped::{Stripe, Striped};

/// The upper bounds of the buckets, each four times the one before, in nanoseconds; the last bucket has none.
const BOUNDS: [u64; 12] = {
    let mut bounds = [1_000; 12];
    let mut index = 1;
    while index < bounds.len() {
        bounds[index] = bounds[index - 1] * 4;
        index += 1;
    }
    bounds
};
/// The counter of the sum, after those of the buckets.
const SUM: usize = BOUNDS.len() + 1;

/// Durations by bucket. Threads count without contention.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: Striped<{ SUM + 1 }, 8>,
}

impl Histogram {
    /// Counts a duration.
    #[inline]
    pub fn record(&self, time: Nanos) {
        let (stripe, nanos) = (Stripe::of_thread(), time.as_nanos());
        self.counts.add(stripe, BOUNDS.partition_point(|bound| *bound < nanos), 1);
        self.counts.add(stripe, SUM, nanos);
    }

    /// Writes it with its description.
    pub fn write(&self, text: &mut String, name: &str, help: &str) {
        let seconds = |nanos: u64| format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
        // Writing to a string does not fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} histogram\n");
        let mut count = 0;
        for (index, bound) in BOUNDS.iter().enumerate() {
            count += self.counts.sum(index);
            let _ = writeln!(text, "{name}_bucket{{le=\"{}\"}} {count}", seconds(*bound).trim_end_matches('0'));
        }
        count += self.counts.sum(BOUNDS.len());
        let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "{name}_sum {}\n{name}_count {count}", seconds(self.counts.sum(SUM)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_include_their_bound() {
        let histogram = Histogram::default();
        for nanos in [0, 1_000, 1_001, 4_000, 5_000_000_000] {
            histogram.record(Nanos::from_nanos(nanos));
        }
        let mut text = String::new();
        histogram.write(&mut text, "t", "Help.");
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
