//! Parses points in time.

use tollgate::core::{Time, Wall};

use super::limit::read_zone;
use super::raw::shorten;
use crate::calendar::ParsedInstant;

/// Reason why a string is not a valid time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeError {
    /// The syntax is wrong.
    Unreadable(TimeErrorText),
    /// The time zone does not exist.
    NoZone(TimeErrorText),
    /// The time is before 1970 or after 21 July 2554, so it cannot be represented in nanoseconds since 1970.
    Beyond(TimeErrorText),
}

/// A problem and a suggestion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeErrorText {
    /// What is wrong.
    pub problem: String,
    /// A suggestion.
    pub help: String,
}

impl TimeError {
    /// Returns the problem and the suggestion.
    pub fn text(&self) -> &TimeErrorText {
        match self {
            Self::Unreadable(text) | Self::NoZone(text) | Self::Beyond(text) => text,
        }
    }
}

/// Parses a time like `2030-01-31T18:00:00Z`, `2030-01-31T18:00:00+01:00`, or
/// `2030-01-31T18:00[Europe/Paris]` with a built-in time zone.
///
/// ```
/// use tollgate_engine::rules::parse_time;
///
/// assert_eq!(parse_time("2030-01-31T18:00[Europe/Paris]"), parse_time("2030-01-31T17:00:00Z"));
/// assert_eq!(parse_time("1969-12-31T19:00:00-05:00").unwrap().as_nanos(), 0);
/// assert_eq!(parse_time("2030-01-31T18:00[Europe/Pari]").unwrap_err().text().help, "did you mean `Europe/Paris`?");
/// assert_eq!(parse_time("1970-01-01T00:00:00+01:00").unwrap_err().text().problem, "`1970-01-01T00:00:00+01:00` is before 1970");
/// ```
///
/// # Errors
/// Returns an error if the string is not a time from 1970 to July 2554.
pub fn parse_time(text: &str) -> Result<Time<Wall>, TimeError> {
    let beyond = |how: &str| {
        let (problem, help) = (format!("`{}` is {how}", shorten(text)), "times are from 1970 up to 2554".into());
        Err(TimeError::Beyond(TimeErrorText { problem, help }))
    };
    match parse_instant(text)? {
        ParsedInstant::Early => beyond("before 1970"),
        ParsedInstant::At(at) => Ok(at),
        ParsedInstant::Late => beyond("too late"),
    }
}

/// Parses an expiry time. A time after 21 July 2554 means never; a time before 1970 means already expired.
pub(crate) fn parse_expiry(text: &str) -> Result<Time<Wall>, TimeError> {
    parse_instant(text).map(ParsedInstant::nearest)
}

fn parse_instant(text: &str) -> Result<ParsedInstant, TimeError> {
    if let Some(at) = ParsedInstant::parse(text) {
        return Ok(at);
    }
    let zoned = || {
        let (civil, zone) = text.strip_suffix(']')?.split_once('[')?;
        match read_zone(zone) {
            Ok(zone) => zone.parse_local_time(civil).map(Ok),
            Err((problem, help)) => Some(Err(TimeError::NoZone(TimeErrorText { problem, help }))),
        }
    };
    zoned().unwrap_or_else(|| {
        let help = "write it like 2030-01-31T18:00:00Z, 2030-01-31T18:00:00+01:00 or 2030-01-31T18:00[Europe/Paris]";
        let problem = format!("`{}` is not a time", shorten(text));
        Err(TimeError::Unreadable(TimeErrorText { problem, help: help.into() }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_time_and_expiry(text: &str, nanos: Option<u64>, ends: u64) {
        assert_eq!(parse_time(text).ok(), nanos.map(Time::from_nanos), "{text}");
        assert_eq!(parse_expiry(text).ok(), Some(Time::from_nanos(ends)), "{text}");
    }

    #[test]
    fn times_outside_1970_to_2554_are_refused_and_expiries_are_clamped() {
        assert_time_and_expiry("1970-01-01T00:00:00Z", Some(0), 0);
        assert_time_and_expiry("1969-12-31T19:00:00-05:00", Some(0), 0);
        assert_time_and_expiry("1970-01-01T01:00[Europe/Paris]", Some(0), 0);
        assert_time_and_expiry("1970-01-01T00:00:00+01:00", None, 0);
        assert_time_and_expiry("1970-01-01T00:00[Europe/Paris]", None, 0);
        assert_time_and_expiry("1969-12-31T23:59:59.999999999Z", None, 0);
        assert_time_and_expiry("1900-01-01T00:00:00Z", None, 0);
        assert_time_and_expiry("2554-07-21T23:34:33.709551615Z", Some(u64::MAX), u64::MAX);
        assert_time_and_expiry("2554-07-21T23:34:33.709551616Z", None, u64::MAX);
        assert_time_and_expiry("9999-01-01T00:00:00Z", None, u64::MAX);
        assert_time_and_expiry("9999-01-01T00:00[Europe/Paris]", None, u64::MAX);
        assert_eq!(crate::calendar::Zone::utc().format_time(Time::from_nanos(u64::MAX)), "never");
    }
}
