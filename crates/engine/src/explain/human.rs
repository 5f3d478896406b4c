//! Human-readable durations and large numbers.

use std::fmt;

use tollgate::core::Nanos;

/// A duration, rounded up to a readable precision, so that waiting this long is always enough.
///
/// ```
/// use tollgate::core::Nanos;
/// use tollgate_engine::HumanDuration;
///
/// assert_eq!(HumanDuration::new(Nanos::from_millis(89_001)).to_string(), "1m 30s");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanDuration(pub(super) Nanos);

impl HumanDuration {
    /// Wraps a duration.
    pub const fn new(length: Nanos) -> Self {
        Self(length)
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis_ceil();
        if millis == 0 {
            return f.write_str("0s");
        }
        if millis < 10_000 {
            return Nanos::from_millis(millis).fmt(f);
        }
        const SECONDS_PER_DAY: u64 = 86_400;
        let seconds = match millis.div_ceil(1_000) {
            // Above one day, hours are precise enough.
            seconds if seconds > SECONDS_PER_DAY => seconds.div_ceil(3_600) * 3_600,
            seconds => seconds,
        };
        let parts = [
            (seconds / SECONDS_PER_DAY, "d"),
            (seconds % SECONDS_PER_DAY / 3_600, "h"),
            (seconds % 3_600 / 60, "m"),
            (seconds % 60, "s"),
        ];
        let mut begun = false;
        for (count, unit) in parts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{}{count}{unit}", if begun { " " } else { "" })?;
            begun = true;
        }
        Ok(())
    }
}

/// A count with thousands separators.
pub(super) struct HumanCount(pub(super) u64);

impl fmt::Display for HumanCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (position, digit) in digits.chars().enumerate() {
            if position > 0 && (digits.len() - position).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up() {
        let second = |seconds: u64| Nanos::from_secs(seconds);
        for (length, expected) in [
            (Nanos::ZERO, "0s"),
            (Nanos::from_nanos(1), "1ms"),
            (Nanos::from_millis(1_500), "1.5s"),
            (Nanos::from_millis(9_999), "9.999s"),
            (Nanos::from_millis(10_001), "11s"),
            (second(60), "1m"),
            (second(90), "1m 30s"),
            (second(3_600), "1h"),
            (second(3_601), "1h 1s"),
            (second(86_399), "23h 59m 59s"),
            (second(86_400), "1d"),
            (second(86_401), "1d 1h"),
            (second(30 * 86_400), "30d"),
        ] {
            assert_eq!(HumanDuration(length).to_string(), expected);
        }
        // The longest duration.
        assert_eq!(HumanDuration(Nanos::MAX).to_string(), "213504d");
    }

    #[test]
    fn thousands_are_separated() {
        for (count, expected) in [
            (0, "0"),
            (999, "999"),
            (9_999, "9,999"),
            (10_000, "10,000"),
            (1_234_567, "1,234,567"),
            (100_000, "100,000"),
        ] {
            assert_eq!(HumanCount(count).to_string(), expected);
        }
    }
}
