//! Parsing of timestamps in logs.
//!
//! | form | where |
//! |---|---|
//! | `16/Nov/2026:09:00:00 +0000`, also with `.123` and without a zone | nginx, Apache; HAProxy |
//! | `2026-11-16T09:00:00.123Z`, also with a space, an offset, or without a zone | Envoy, JSON |
//! | `1794819600.123`, or whole seconds, milliseconds, microseconds or nanoseconds since 1970 | `$msec`, Caddy |

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// A timestamp of a log line, and its precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTimestamp {
    /// Nanoseconds since 1970.
    pub nanos: u64,
    /// Whether the timestamp has no fractional part.
    pub is_whole_second: bool,
}

/// Parses timestamps. Caches the last result, because consecutive lines often have the same timestamp.
#[derive(Clone, Debug)]
pub struct TimeParser {
    /// The time zone for timestamps without a zone.
    zone: TimeZone,
    last_text: [u8; MAX_CACHED_BYTES],
    last_len: usize,
    last_stamp: Option<LogTimestamp>,
}

/// Maximum length in bytes of a cached timestamp.
const MAX_CACHED_BYTES: usize = 32;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

impl TimeParser {
    /// Creates a parser that uses `zone` for timestamps without a time zone.
    pub fn new(zone: TimeZone) -> Self {
        Self { zone, last_text: [0; MAX_CACHED_BYTES], last_len: 0, last_stamp: None }
    }

    /// Parses a timestamp. Returns `None` if `text` is not a valid timestamp between 1970 and 2554.
    #[inline]
    pub fn parse(&mut self, text: &[u8]) -> Option<LogTimestamp> {
        if text == &self.last_text[..self.last_len] {
            return self.last_stamp;
        }
        let stamp = self.parse_uncached(text);
        if text.len() <= MAX_CACHED_BYTES {
            self.last_text[..text.len()].copy_from_slice(text);
            (self.last_len, self.last_stamp) = (text.len(), stamp);
        }
        stamp
    }

    fn parse_uncached(&self, text: &[u8]) -> Option<LogTimestamp> {
        let text = text.trim_ascii();
        match (text.get(2), text.get(4)) {
            (Some(b'/'), _) => self.parse_common_log_time(text),
            (_, Some(b'-' | b'/')) => self.parse_iso_time(text),
            _ => parse_epoch(text),
        }
    }

    /// `16/Nov/2026:09:00:00[.123] [+0000]`
    fn parse_common_log_time(&self, text: &[u8]) -> Option<LogTimestamp> {
        const MONTHS: &[u8; 36] = b"janfebmaraprmayjunjulaugsepoctnovdec";
        let (date, rest) = text.split_at_checked(20)?;
        let month = date[3..6].to_ascii_lowercase();
        let month = MONTHS.chunks_exact(3).position(|name| name == month)? as u64 + 1;
        let separators = [date[2], date[6], date[11], date[14], date[17]];
        if separators != *b"//:::" {
            return None;
        }
        let seconds = parse_number(&date[18..20])?;
        let days = days_since_1970(parse_number(&date[7..11])?, month, parse_number(&date[..2])?)?;
        let seconds_of_day = seconds_of_day(parse_number(&date[12..14])?, parse_number(&date[15..17])?, seconds)?;
        self.to_log_timestamp(days, seconds_of_day, rest)
    }

    /// `2026-11-16T09:00:00[.123][Z|+01:00]`
    fn parse_iso_time(&self, text: &[u8]) -> Option<LogTimestamp> {
        let (date, rest) = text.split_at_checked(19)?;
        if !matches!([date[4], date[7]], [b'-', b'-'] | [b'/', b'/'])
            || !matches!(date[10], b'T' | b't' | b' ')
            || [date[13], date[16]] != *b"::"
        {
            return None;
        }
        let days = days_since_1970(parse_number(&date[..4])?, parse_number(&date[5..7])?, parse_number(&date[8..10])?)?;
        let seconds_of_day =
            seconds_of_day(parse_number(&date[11..13])?, parse_number(&date[14..16])?, parse_number(&date[17..19])?)?;
        self.to_log_timestamp(days, seconds_of_day, rest)
    }

    /// Parses the fraction and the zone offset in `rest`, and converts the local time to nanoseconds since 1970.
    fn to_log_timestamp(&self, days: u64, seconds_of_day: u64, rest: &[u8]) -> Option<LogTimestamp> {
        let (fraction, rest) = match rest.split_first() {
            Some((b'.' | b',', rest)) => {
                let len = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                (Some(parse_fraction(&rest[..len])?), &rest[len..])
            }
            Some(_) | None => (None, rest),
        };
        let local = i64::try_from(days * 86_400 + seconds_of_day).ok()?;
        let offset = match rest.trim_ascii() {
            b"Z" | b"z" => 0,
            b"" => self.local_offset(local)?,
            zone => parse_offset(zone)?,
        };
        let seconds = u64::try_from(local - offset).ok()?;
        let nanos = seconds.checked_mul(NANOS_PER_SECOND)?.checked_add(fraction.unwrap_or(0))?;
        Some(LogTimestamp { nanos, is_whole_second: fraction.is_none() })
    }

    /// Returns the zone's UTC offset in seconds at a local time.
    #[cold]
    fn local_offset(&self, local: i64) -> Option<i64> {
        if self.zone == TimeZone::UTC {
            return Some(0);
        }
        let civil: DateTime = jiff::Timestamp::from_second(local).ok()?.to_zoned(TimeZone::UTC).datetime();
        let zoned = self.zone.to_zoned(civil).ok()?;
        Some(i64::from(zoned.offset().seconds()))
    }
}

/// Parses a Unix timestamp: seconds with a fraction, or a whole number. The number of digits determines the unit of a
/// whole number.
fn parse_epoch(text: &[u8]) -> Option<LogTimestamp> {
    let len = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (whole, rest) = text.split_at(len);
    if whole.is_empty() || whole.len() > 19 {
        return None;
    }
    let whole_number = whole.iter().fold(0_u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    match rest {
        [] => {
            let unit = match whole.len() {
                0..=11 => NANOS_PER_SECOND,
                12..=14 => 1_000_000,
                15..=17 => 1_000,
                _ => 1,
            };
            let nanos = whole_number.checked_mul(unit)?;
            Some(LogTimestamp { nanos, is_whole_second: unit == NANOS_PER_SECOND })
        }
        [b'.', digits @ ..] if digits.iter().all(u8::is_ascii_digit) => {
            let nanos = whole_number.checked_mul(NANOS_PER_SECOND)?.checked_add(parse_fraction(digits)?)?;
            Some(LogTimestamp { nanos, is_whole_second: false })
        }
        _ => None,
    }
}

/// Converts the digits after a decimal point to nanoseconds.
fn parse_fraction(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let nine = digits.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    Some(nine.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// Parses a UTC offset such as `+0100` or `+01:00` and returns it in seconds.
fn parse_offset(zone: &[u8]) -> Option<i64> {
    let (sign, digits) = match zone.split_first()? {
        (b'+', digits) => (1, digits),
        (b'-', digits) => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match digits {
        [a, b, b':', c, d] | [a, b, c, d] => (parse_number(&[*a, *b])?, parse_number(&[*c, *d])?),
        [a, b] => (parse_number(&[*a, *b])?, 0),
        _ => return None,
    };
    let seconds = i64::try_from(hours * 3_600 + minutes * 60).ok()?;
    (hours <= 23 && minutes <= 59).then_some(sign * seconds)
}

fn parse_number(digits: &[u8]) -> Option<u64> {
    let digit = |sum: Option<u64>, byte: &u8| {
        byte.is_ascii_digit().then(|| sum.map(|sum| sum * 10 + u64::from(byte - b'0')))?
    };
    digits.iter().fold(Some(0), digit)
}

/// Returns the seconds since midnight. A leap second (60) counts as second 59.
fn seconds_of_day(hour: u64, minute: u64, second: u64) -> Option<u64> {
    (hour < 24 && minute < 60 && second <= 60).then(|| hour * 3_600 + minute * 60 + second.min(59))
}

/// Returns the number of days from 1970-01-01 to a date, or `None` if the date is earlier or invalid.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    const DAYS_BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    const DAYS_IN_MONTH: [u64; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let index = usize::try_from(month.checked_sub(1)?).ok()?;
    if year < 1970 || day == 0 || day > *DAYS_IN_MONTH.get(index)? {
        return None;
    }
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if month == 2 && day == 29 && !is_leap {
        return None;
    }
    let leaps = |year: u64| (year / 4) - (year / 100) + (year / 400);
    let before_year = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    Some(before_year + DAYS_BEFORE_MONTH[index] + u64::from(is_leap && month > 2) + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_in_zone(text: &str, zone: &str) -> Option<(u64, bool)> {
        let zone = TimeZone::get(zone).expect("a zone");
        let stamp = TimeParser::new(zone).parse(text.as_bytes())?;
        Some((stamp.nanos, stamp.is_whole_second))
    }

    #[test]
    fn all_timestamp_forms_are_parsed_to_the_same_instant() {
        const EXPECTED_NANOS: u64 = 1_794_819_600 * NANOS_PER_SECOND;
        for text in [
            "16/Nov/2026:09:00:00 +0000",
            "16/Nov/2026:10:30:00 +0130",
            "15/nov/2026:23:00:00 -1000",
            "16/Nov/2026:09:00:00",
            "2026-11-16T09:00:00Z",
            "2026-11-16 09:00:00",
            "2026/11/16 09:00:00",
            "2026-11-16T10:00:00+01:00",
            "1794819600",
        ] {
            assert_eq!(parse_in_zone(text, "UTC"), Some((EXPECTED_NANOS, true)), "{text}");
        }
        for (text, nanos) in [
            ("16/Nov/2026:09:00:00.123", 123_000_000),
            ("2026-11-16T09:00:00.000001Z", 1_000),
            ("2026-11-16T09:00:00,5+00:00", 500_000_000),
            ("1794819600.123", 123_000_000),
            ("1794819600.1234567890", 123_456_789),
            ("1794819600123", 123_000_000),
            ("1794819600123456", 123_456_000),
            ("1794819600123456789", 123_456_789),
        ] {
            assert_eq!(parse_in_zone(text, "UTC"), Some((EXPECTED_NANOS + nanos, false)), "{text}");
        }
        assert_eq!(parse_in_zone("2026-11-16T10:00:00", "Europe/Paris"), Some((EXPECTED_NANOS, true)));
        assert_eq!(parse_in_zone("2026-11-16T09:00:00Z", "Europe/Paris"), Some((EXPECTED_NANOS, true)));
    }

    #[test]
    fn days_agree_with_the_calendar() {
        let mut civil = jiff::civil::date(1970, 1, 1);
        for expected in 0..150_000 {
            let found = days_since_1970(civil.year() as u64, civil.month() as u64, civil.day() as u64);
            assert_eq!(found, Some(expected), "{civil}");
            civil = civil.tomorrow().expect("a date");
        }
    }

    #[test]
    fn invalid_timestamps_are_rejected() {
        for text in [
            "",
            "-",
            "x",
            "16/Nov/2026",
            "31/Foo/2026:09:00:00 +0000",
            "16/Nov/2026:25:00:00 +0000",
            "29/Feb/2025:00:00:00 +0000",
            "2026-11-16",
            "2026-13-16T09:00:00Z",
            "2026-11-16T09:00:00.Z",
            "2026-11-16T09:00:00+1",
            "2026-11-16T09:00:00 CET",
            "1969-12-31T00:00:00Z",
            "1970-01-01T00:00:00+01:00",
            "9999-01-01T00:00:00Z",
            "1.",
            ".5",
            "1.5x",
            "99999999999999999999",
            "-5",
            "1e9",
        ] {
            assert_eq!(parse_in_zone(text, "UTC"), None, "{text}");
        }
    }

    #[test]
    fn cached_time_is_returned_only_for_the_same_text() {
        let mut parser = TimeParser::new(TimeZone::UTC);
        assert_eq!(parser.parse(b""), None);
        let first = parser.parse(b"1794819600");
        assert_eq!(parser.parse(b"1794819600"), first);
        assert_eq!(
            parser.parse(b"1794819601").map(|stamp| stamp.nanos),
            first.map(|stamp| stamp.nanos + NANOS_PER_SECOND)
        );
        assert_eq!(parser.parse(b"x"), None);
        assert_eq!(parser.parse(b"x"), None);
    }
}
