//! Parses windows that are aligned with the calendar.

use tollgate::core::Nanos;

use super::{ALGORITHMS, LimitParser, ZERO_LIMIT_HELP, parse_count, parse_length, suggest_rate};
use crate::calendar::{Calendar, Unit, Zone};
use crate::rules::raw::shorten;
use crate::rules::suggest::{nearest_word, suggest_valid};

/// The days of the week.
pub(crate) const WEEKDAYS: &[&str] = &["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

const UNIT_NAMES: &[(Unit, &[&str])] = &[
    (Unit::Minute, &["minute", "m", "min"]),
    (Unit::Hour, &["hour", "h"]),
    (Unit::Day, &["day", "d"]),
    (Unit::Week(0), &["week", "w"]),
    (Unit::Month(1), &["month"]),
    (Unit::Year(1, 1), &["year"]),
];

const MINUTE: Nanos = Nanos::from_secs(60);

/// Parses the name of a time zone.
///
/// # Errors
/// Returns the problem and a suggestion if the zone does not exist.
pub(crate) fn read_zone(name: &str) -> Result<Zone, (String, String)> {
    Zone::new(name).ok_or_else(|| {
        let names = Zone::names();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let help = match nearest_word(name, &names) {
            Some(name) => format!("did you mean `{name}`?"),
            None => "write a zone like `Europe/Paris` or `UTC`".into(),
        };
        (format!("`{}` is not a time zone", shorten(name)), help)
    })
}

impl LimitParser<'_> {
    /// Returns the calendar for the windows. Returns `None` if the limit does not use the calendar, or if its period or
    /// `anchor` has a mistake.
    pub(super) fn parse_calendar(&mut self) -> Option<Calendar> {
        let (zone, anchor) = ((self.words.option)("zone"), (self.words.option)("anchor"));
        let unit = self.words.limit.and_then(|limit| unit_of(period_of(limit)?));
        let calendar_word = unit.filter(|unit| has_variable_length(*unit));
        let in_zone = self.zone_option();
        if self.words.algorithm != Some("fixed_window") {
            let known = ALGORITHMS.iter().any(|(name, ..)| Some(*name) == self.words.algorithm);
            if calendar_word.is_some() && (known || self.words.algorithm.is_none()) {
                let help = "add `algorithm: fixed_window`, or write a number of days";
                self.add_mistake_with_help("limit", "`month` and `year` are calendar windows", help);
            }
            return None;
        }
        if zone.is_none() && anchor.is_none() && calendar_word.is_none() {
            return None;
        }
        let Some(unit) = unit else {
            self.report_not_a_calendar_window();
            return None;
        };
        let unit = match anchor {
            Some(anchor) => self.with_anchor(unit, anchor),
            None => Some(unit),
        };
        Some(Calendar { unit: unit?, zone: in_zone })
    }

    /// Returns the zone. An unknown zone is reported and replaced by UTC, so that other mistakes are found as well. If
    /// the algorithm has no `zone` option, returns UTC; the option itself is reported elsewhere.
    fn zone_option(&mut self) -> Zone {
        let Some(name) = (self.words.option)("zone") else { return Zone::utc() };
        let algorithm = self.words.algorithm.unwrap_or("token_bucket");
        let takes_one = |(name, takes, _): &(&str, &[&str], &str)| *name != algorithm || takes.contains(&"zone");
        if !ALGORITHMS.iter().all(takes_one) {
            return Zone::utc();
        }
        read_zone(name).unwrap_or_else(|(problem, help)| {
            self.add_mistake_with_help("zone", problem, help);
            Zone::utc()
        })
    }

    /// Reports that a limit with `zone` or `anchor` is not a calendar window.
    fn report_not_a_calendar_window(&mut self) {
        let Some(limit) = self.words.limit else { return };
        let period = period_of(limit).unwrap_or_default();
        let numbered = period.starts_with(|first: char| first.is_ascii_digit());
        let is_short = !numbered && parse_length(&format!("1{period}")).is_some_and(|length| length < MINUTE);
        let problem = format!(
            "`{}` is not a calendar window: such windows are minutes, hours, days, weeks, months and years{}",
            shorten(limit),
            if is_short { ", not seconds" } else { "" }
        );
        let help = match suggest_rate(limit) {
            Some(written) => format!("write it as {written}"),
            None if self.words.inherits && !numbered => {
                "the rule follows the calendar; write it like 100/day, or add another `algorithm`, \
                like `algorithm: token_bucket`"
                    .into()
            }
            None if numbered => "write it like 100/day, without a number before `day`".into(),
            None => "write it like 100/day, or remove `zone` and `anchor`".into(),
        };
        self.add_mistake_with_help("limit", problem, help);
    }

    /// Returns the count per window.
    pub(super) fn count_per_window(&mut self) -> Option<u64> {
        let text = self.given_limit()?;
        let parts = text.split_once('/').or_else(|| text.split_once(" per "));
        if parts.is_none() && self.has_calendar_mistake {
            // The missing period has already been reported.
            return None;
        }
        let count = parts.map_or(text, |(count, _)| count).trim();
        let number = parse_count(count).filter(|count| *count > 0);
        if number.is_none() {
            let problem = format!("`{}` is not a whole number above 0", shorten(count));
            let help = match suggest_rate(text) {
                Some(written) => format!("write it as {written}"),
                None if count == "0" => ZERO_LIMIT_HELP.into(),
                None => "write it like 100/day or 10k/month".into(),
            };
            self.add_mistake_with_help("limit", problem, help);
        }
        number
    }

    fn with_anchor(&mut self, unit: Unit, anchor: &str) -> Option<Unit> {
        let (anchored, help) = match unit {
            Unit::Minute | Unit::Hour | Unit::Day => {
                self.add_mistake_with_help("anchor", "only weeks, months and years have an `anchor`", "remove it");
                return None;
            }
            Unit::Week(_) => {
                let day = WEEKDAYS.iter().position(|day| *day == anchor);
                (day.map(|day| Unit::Week(day as i8)), suggest_valid(anchor, WEEKDAYS))
            }
            Unit::Month(_) => {
                let day = anchor.parse::<i8>().ok().filter(|day| (1..=31).contains(day));
                (day.map(Unit::Month), "write the day of the month, 1 to 31".into())
            }
            Unit::Year(..) => (parse_day_of_year(anchor), "write month and day, like `04-01`".into()),
        };
        if anchored.is_none() {
            let problem = format!("`{}` is not a day on which such a window can begin", shorten(anchor));
            self.add_mistake_with_help("anchor", problem, help);
        }
        anchored
    }
}

fn parse_day_of_year(text: &str) -> Option<Unit> {
    let (month, day) = text.split_once('-')?;
    Unit::year_from(month.parse().ok()?, day.parse().ok()?)
}

fn period_of(limit: &str) -> Option<&str> {
    let (_, period) = limit.split_once('/').or_else(|| limit.split_once(" per "))?;
    Some(period.trim())
}

pub(super) fn unit_of(period: &str) -> Option<Unit> {
    UNIT_NAMES.iter().find(|(_, words)| words.contains(&period)).map(|(unit, _)| *unit)
}

/// Returns whether a unit has no fixed length.
pub(super) fn has_variable_length(unit: Unit) -> bool {
    matches!(unit, Unit::Month(_) | Unit::Year(..))
}
