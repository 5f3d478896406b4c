//! Rates: a count per period. Count and period are kept as integers, in lowest terms, so 7777 per second is exact.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::error::LimitError;
use crate::quantity::Nanos;

/// A rate of `count` per `per`, in lowest terms.
///
/// ```
/// use tollgate_core::Rate;
///
/// let rate: Rate = "10k/15m".parse()?;
/// assert_eq!(rate.to_string(), "40000/h");
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u32,
    per: u64,
}

impl Rate {
    /// The longest period: 100 years of 365 days.
    pub const MAX_PERIOD: Nanos = Nanos::from_secs(100 * 365 * 86_400);
    /// The longest time that an empty limit may take to refill: 146 years. The maximum prevents overflow.
    pub const MAX_FILL_TIME: Nanos = Nanos::from_nanos(1 << 62);

    /// Creates a rate of `count` per `per`.
    ///
    /// # Errors
    /// Returns an error if `count` or `per` is zero, if `per` is longer than [`Rate::MAX_PERIOD`], or if the count in
    /// lowest terms is above 2³²−1.
    pub fn new(count: u64, per: impl Into<Duration>) -> Result<Self, LimitError> {
        let per = Nanos::from(per.into());
        if count == 0 {
            return Err(LimitError::Zero { what: "the count of the rate" });
        }
        if per.as_nanos() == 0 {
            return Err(LimitError::Zero { what: "the period of the rate" });
        }
        if per.as_nanos() > Self::MAX_PERIOD.as_nanos() {
            return Err(LimitError::PeriodTooLong { given: per, max: Self::MAX_PERIOD });
        }
        let divisor = greatest_common_divisor(count, per.as_nanos());
        let (count, per) = (count / divisor, per.as_nanos() / divisor);
        if count > u32::MAX as u64 {
            return Err(LimitError::RateTooFine { count, per: Nanos::from_nanos(per) });
        }
        Ok(Self { count: count as u32, per })
    }

    /// Creates a rate of `count` per second.
    ///
    /// # Errors
    /// Returns the same errors as [`Rate::new`].
    pub fn per_second(count: u64) -> Result<Self, LimitError> {
        Self::new(count, Nanos::SECOND)
    }

    /// Returns the count in lowest terms.
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Returns the period in lowest terms; never zero.
    pub const fn per(self) -> Nanos {
        Nanos::from_nanos(self.per)
    }
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl fmt::Display for Rate {
    /// Prints the rate in the shortest unit, from seconds up, in which the count is a whole number below 2⁶⁴. If there
    /// is no such unit, prints the lowest terms, such as `7/1003ms`. Every output can be parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = TIME_UNITS.iter().filter(|unit| unit.nanos >= Nanos::SECOND.as_nanos()).find_map(|unit| {
            let times = unit.nanos.is_multiple_of(self.per).then(|| unit.nanos / self.per)?;
            Some((u64::from(self.count).checked_mul(times)?, unit))
        });
        if let Some((count, unit)) = whole {
            return write!(f, "{count}/{}", unit.names[0]);
        }
        let unit = TIME_UNITS.iter().rev().find(|unit| self.per.is_multiple_of(unit.nanos)).unwrap_or(&TIME_UNITS[0]);
        write!(f, "{}/{}{}", self.count, self.per / unit.nanos, unit.names[0])
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct TimeUnit {
    nanos: u64,
    /// The first name is used for printing.
    names: &'static [&'static str],
}

const fn unit_with_names(nanos: u64, names: &'static [&'static str]) -> TimeUnit {
    TimeUnit { nanos, names }
}

/// Units of fixed length, ascending. Months and years vary in length, so rules treat them as calendar windows.
const TIME_UNITS: &[TimeUnit] = &[
    unit_with_names(1, &["ns", "nanosecond", "nanoseconds"]),
    unit_with_names(1_000, &["us", "µs", "microsecond", "microseconds"]),
    unit_with_names(1_000_000, &["ms", "millisecond", "milliseconds"]),
    unit_with_names(1_000_000_000, &["s", "sec", "second", "seconds"]),
    unit_with_names(60_000_000_000, &["m", "min", "minute", "minutes"]),
    unit_with_names(3_600_000_000_000, &["h", "hour", "hours"]),
    unit_with_names(86_400_000_000_000, &["day", "d", "days"]),
    unit_with_names(604_800_000_000_000, &["week", "w", "weeks"]),
];

/// Suffixes that multiply the count.
const COUNT_SUFFIXES: &[(char, u64)] = &[('k', 1_000), ('M', 1_000_000), ('G', 1_000_000_000)];

/// Maximum length of a rate string, in bytes.
const MAX_RATE_BYTES: usize = 64;

impl FromStr for Rate {
    type Err = LimitError;

    /// Parses `100/s`, `5/15m`, `10k/day` and `5 per 15 minutes`.
    fn from_str(text: &str) -> Result<Self, LimitError> {
        let wrong = |problem| LimitError::NotARate { given: text.chars().take(MAX_RATE_BYTES).collect(), problem };
        if text.len() > MAX_RATE_BYTES {
            return Err(wrong("it is longer than 64 bytes"));
        }
        let (count, period) = text
            .split_once('/')
            .or_else(|| text.split_once(" per "))
            .ok_or_else(|| wrong("there is no `/` between the count and the period"))?;
        let count = parse_count(count.trim()).map_err(wrong)?;
        let per = parse_period(period.trim()).map_err(wrong)?;
        Self::new(count, per)
    }
}

fn parse_count(text: &str) -> Result<u64, &'static str> {
    let (digits, scale) = COUNT_SUFFIXES
        .iter()
        .find_map(|&(letter, scale)| text.strip_suffix(letter).map(|digits| (digits, scale)))
        .unwrap_or((text, 1));
    parse_digits(digits, "the count is not a whole number")?.checked_mul(scale).ok_or("the count is too large")
}

fn parse_period(text: &str) -> Result<Nanos, &'static str> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, name) = text.split_at(split);
    let name = name.trim();
    let units = if digits.is_empty() { 1 } else { parse_digits(digits, "the period is not a whole number")? };
    let unit = TIME_UNITS
        .iter()
        .find(|unit| unit.names.contains(&name))
        .ok_or("the unit of the period is not ns, us, ms, s, m, h, day or week")?;
    units.checked_mul(unit.nanos).map(Nanos::from_nanos).ok_or("the period is too long")
}

/// Parses digits only; the standard parser would also accept a plus sign.
fn parse_digits(digits: &str, problem: &'static str) -> Result<u64, &'static str> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(problem);
    }
    digits.parse().map_err(|_| "a number is above 18446744073709551615")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_parsed(text: &str, expected: &str) {
        let printed = match text.parse::<Rate>() {
            Ok(rate) => rate.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(printed, expected, "for {text:?}");
    }

    #[test]
    fn rates_are_parsed_and_reduced_to_lowest_terms() {
        assert_parsed("100/s", "100/s");
        assert_parsed("7777/s", "7777/s");
        assert_parsed("5/15m", "20/h");
        assert_parsed("10k/day", "10000/day");
        assert_parsed("5 per 15 minutes", "20/h");
        assert_parsed("2M/ 1 s", "2000000/s");
        assert_parsed("3G/s", "3000000000/s");
        assert_parsed("7/1003ms", "7/1003ms");
        assert_parsed("1/week", "1/week");
        // The rate is not printed per hour, because the count per hour exceeds 64 bits.
        assert_parsed("98900000000000000/9s", "98900000/9ns");
    }

    #[test]
    fn error_messages_name_the_valid_form() {
        let hint = "; write it like 100/s, 5/15m or 10k/day";
        assert_parsed("100", &format!("`100` is not a rate: there is no `/` between the count and the period{hint}"));
        assert_parsed(
            "1/x",
            &format!("`1/x` is not a rate: the unit of the period is not ns, us, ms, s, m, h, day or week{hint}"),
        );
        assert_parsed("-1/s", &format!("`-1/s` is not a rate: the count is not a whole number{hint}"));
        assert_parsed("1.5/s", &format!("`1.5/s` is not a rate: the count is not a whole number{hint}"));
        assert_parsed("10kk/s", &format!("`10kk/s` is not a rate: the count is not a whole number{hint}"));
        assert_parsed("kk/s", &format!("`kk/s` is not a rate: the count is not a whole number{hint}"));
        assert_parsed("0/s", "the count of the rate is 0; it must be at least 1");
        assert_parsed("1/0s", "the period of the rate is 0; it must be at least 1");
        assert_parsed(
            "18446744073709551616/s",
            &format!("`18446744073709551616/s` is not a rate: a number is above 18446744073709551615{hint}"),
        );
        assert_parsed(
            "18446744073709551615k/s",
            &format!("`18446744073709551615k/s` is not a rate: the count is too large{hint}"),
        );
        assert_parsed("1/1000000000week", &format!("`1/1000000000week` is not a rate: the period is too long{hint}"));
        assert_parsed("1/6000week", "the period of 3628800000s is too long; at most 3153600000s is valid");
        assert_parsed(
            &"9".repeat(99),
            &format!("`{}` is not a rate: it is longer than 64 bytes{hint}", "9".repeat(64)),
        );
    }

    #[test]
    fn longest_rate_string_is_parsed() {
        assert_parsed(&format!("{:0>62}/s", 7), "7/s");
        assert!(format!("{:0>63}/s", 7).parse::<Rate>().is_err());
    }

    #[test]
    fn debug_and_display_of_a_rate_are_equal() {
        assert_eq!(format!("{:?}", Rate::per_second(100)), "Ok(100/s)");
    }

    #[test]
    fn count_above_32_bits_is_an_error() {
        assert_eq!(
            Rate::new(99_999_999_977, Nanos::from_secs(86_400)),
            Err(LimitError::RateTooFine { count: 99_999_999_977, per: Nanos::from_secs(86_400) })
        );
        assert!(Rate::new(u64::from(u32::MAX), Nanos::from_nanos(2)).is_ok());
        assert!(Rate::new(1, Rate::MAX_PERIOD).is_ok());
    }
}
