//! Limits and durations in the syntax of the rule language.

use std::fmt::Write as _;

use super::limit::{Algorithm, Limit, StepAlignment, Windows};

impl Limit {
    /// Returns the limit as a map in the rule language.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut put = |key: &str, value: String| {
            let comma = if text.is_empty() { "" } else { ", " };
            write!(text, "{comma}{key}: {value}").expect("writing to a string cannot fail");
        };
        match &self.algorithm {
            Algorithm::Concurrency { .. } => put("limit", self.count.to_string()),
            Algorithm::FixedWindow(Windows::Calendar(calendar)) => {
                put("limit", format!("{}/{}", self.count, calendar.unit()));
            }
            _ => put("limit", format!("{}/{}", self.count, format_duration(self.period))),
        }
        let name = match &self.algorithm {
            Algorithm::TokenBucket { .. } => "token_bucket",
            Algorithm::LeakyBucket { .. } => "leaky_bucket",
            Algorithm::IntervalBucket { .. } => "interval_bucket",
            Algorithm::FixedWindow(_) => "fixed_window",
            Algorithm::SlidingWindow => "sliding_window",
            Algorithm::SlidingSlices { .. } => "sliding_slices",
            Algorithm::SlidingLog { .. } => "sliding_log",
            Algorithm::Concurrency { .. } => "concurrency",
        };
        put("algorithm", name.into());
        match &self.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::SlidingWindow | Algorithm::FixedWindow(Windows::Epoch) => {}
            Algorithm::LeakyBucket { free, max_wait } => {
                put("free", free.to_string());
                max_wait.iter().for_each(|wait| put("max_wait", format_duration(*wait)));
            }
            Algorithm::IntervalBucket { grid, max_wait } => {
                match grid {
                    StepAlignment::Aligned(0) => {}
                    StepAlignment::Aligned(offset) => put("offset", format_duration(*offset)),
                    StepAlignment::FirstRequest => put("phase", "first_request".into()),
                }
                if *max_wait > 0 {
                    put("max_wait", format_duration(*max_wait));
                }
            }
            Algorithm::FixedWindow(Windows::Spread) => put("phase", "spread".into()),
            Algorithm::FixedWindow(Windows::FirstRequest) => put("phase", "first_request".into()),
            Algorithm::FixedWindow(Windows::Calendar(calendar)) => {
                put("zone", calendar.zone.name().into());
                calendar.anchor().into_iter().for_each(|anchor| put("anchor", anchor));
            }
            Algorithm::SlidingSlices { precision } => {
                precision.iter().for_each(|slice| put("precision", format_duration(*slice)));
            }
            Algorithm::SlidingLog { gap, count_refused } => {
                if *gap > 0 {
                    put("minimum_gap", format_duration(*gap));
                }
                if *count_refused {
                    put("count_refused", "true".into());
                }
            }
            Algorithm::Concurrency { lease } => put("lease", format_duration(*lease)),
        }
        for (key, value) in [("burst", self.burst), ("initial", self.initial), ("max_debt", self.max_debt)] {
            value.iter().for_each(|value| put(key, value.to_string()));
        }
        text
    }
}

/// Formats a duration in the largest unit that divides it.
pub(super) fn format_duration(nanos: u64) -> String {
    let units = [
        (86_400_000_000_000, "day"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ];
    let (unit, name) = units.into_iter().find(|(unit, _)| nanos.is_multiple_of(*unit)).expect("one divides all");
    format!("{}{name}", nanos / unit)
}
