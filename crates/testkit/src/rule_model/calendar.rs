//! Calendars and schedules, computed by counting days. The daylight-saving rules of three zones are built in; no time
//! zone library is used.

const SECOND: u64 = 1_000_000_000;
const HOUR: i64 = 3_600;
const DAY: i64 = 86_400;

/// A time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// No daylight saving.
    Utc,
    /// Summer time from the last Sunday in March to the last Sunday in October, changed at 1:00 UTC.
    Paris,
    /// Summer time from the second Sunday in March to the first Sunday in November, changed at 2:00 local time.
    NewYork,
}

/// A calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// Length of a window.
    pub unit: Unit,
    /// Time zone of the window.
    pub zone: Zone,
}

/// Units that rules can express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// One clock hour.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From midnight on this weekday, where Monday is 0.
    Week(u8),
    /// From midnight on this day of the month, or on the last day of a shorter month.
    Month(u8),
    /// From midnight on this day of this month.
    Year(u8, u8),
}

/// Returns the days from 1970 to a Gregorian date.
pub fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let leap_days = |year: i64| year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let lengths = [31, 28 + i64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let in_year: i64 = lengths[..(month - 1) as usize].iter().sum();
    365 * (year - 1970) + leap_days(year - 1) - leap_days(1969) + in_year + day - 1
}

const fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Returns the year, month and day of a number of days since 1970.
fn date_of_day(day: i64) -> (i64, i64, i64) {
    let mut year = 1970 + day / 366;
    while days_since_1970(year + 1, 1, 1) <= day {
        year += 1;
    }
    let month = (1..=12).rfind(|month| days_since_1970(year, *month, 1) <= day).expect("every day is in a month");
    (year, month, day - days_since_1970(year, month, 1) + 1)
}

/// Formats seconds since 1970 as a UTC date and time.
pub fn format_timestamp(seconds: u64) -> String {
    let (day, second) = ((seconds / 86_400) as i64, seconds % 86_400);
    let (year, month, day) = date_of_day(day);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns the weekday, where Monday is 0. January 1st, 1970 was a Thursday.
fn weekday(day: i64) -> i64 {
    (day + 3).rem_euclid(7)
}

/// Returns the given day if it is a Sunday, otherwise the last Sunday before it.
fn last_sunday_until(day: i64) -> i64 {
    day - (weekday(day) + 1) % 7
}

impl Zone {
    /// All zones.
    pub const ALL: [Self; 3] = [Self::Utc, Self::Paris, Self::NewYork];

    /// Returns the zone's name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Utc => "UTC",
            Self::Paris => "Europe/Paris",
            Self::NewYork => "America/New_York",
        }
    }

    /// Returns the offset from UTC in seconds at an instant in seconds since 1970.
    fn utc_offset(self, at: i64) -> i64 {
        let (year, ..) = date_of_day(at.div_euclid(DAY));
        let (standard, summer) = match self {
            Self::Utc => return 0,
            Self::Paris => {
                let change = |month| last_sunday_until(days_since_1970(year, month, 31)) * DAY + HOUR;
                (HOUR, change(3)..change(10))
            }
            Self::NewYork => {
                let begins = last_sunday_until(days_since_1970(year, 3, 14)) * DAY + 7 * HOUR;
                let ends = last_sunday_until(days_since_1970(year, 11, 7)) * DAY + 6 * HOUR;
                (-5 * HOUR, begins..ends)
            }
        };
        standard + if summer.contains(&at) { HOUR } else { 0 }
    }

    /// Returns the local time in seconds since the local start of 1970.
    fn local_time(self, at: i64) -> i64 {
        at + self.utc_offset(at)
    }

    /// Returns the instant of a local time. If the local time occurs twice, returns the earlier instant. If the clock
    /// change skips the local time, returns the instant at which a clock without the change would show it.
    fn instant_of_local(self, local: i64) -> i64 {
        let unchanged = local - self.utc_offset(local - DAY);
        let changed = local - self.utc_offset(local + DAY);
        if self.local_time(unchanged) != local && self.local_time(changed) == local { changed } else { unchanged }
    }
}

impl Calendar {
    /// Returns the unit's name in a rate.
    pub const fn unit(&self) -> &'static str {
        match self.unit {
            Unit::Hour => "h",
            Unit::Day => "day",
            Unit::Week(_) => "week",
            Unit::Month(_) => "month",
            Unit::Year(..) => "year",
        }
    }

    /// Returns the rule's `anchor`, if the unit has an anchor.
    pub fn anchor(&self) -> Option<String> {
        match self.unit {
            Unit::Hour | Unit::Day => None,
            Unit::Week(day) => Some(["mon", "tue", "wed", "thu", "fri", "sat", "sun"][usize::from(day)].into()),
            Unit::Month(day) => Some(day.to_string()),
            Unit::Year(month, day) => Some(format!("'{month:02}-{day:02}'")),
        }
    }

    /// Returns the mean window length over 400 years, in nanoseconds.
    pub const fn mean_length(&self) -> u64 {
        let days = 400 * 365 + 97;
        SECOND
            * match self.unit {
                Unit::Hour => 3_600,
                Unit::Day => 86_400,
                Unit::Week(_) => 7 * 86_400,
                Unit::Month(_) => days * 86_400 / (400 * 12),
                Unit::Year(..) => days * 86_400 / 400,
            }
    }

    /// Returns the start and end of the window that contains `at`, in nanoseconds.
    pub fn window(&self, at: u64) -> (u64, u64) {
        let seconds = (at / SECOND) as i64;
        let nanos = |seconds: i64| u64::try_from(seconds).expect("after 1970") * SECOND;
        if self.unit == Unit::Hour {
            // All offsets of these zones are whole hours.
            let start = seconds.div_euclid(HOUR) * HOUR;
            return (nanos(start), nanos(start + HOUR));
        }
        let today = self.zone.local_time(seconds).div_euclid(DAY);
        // A window started on one of the last 400 days, and another window starts on one of the next 400 days.
        let start =
            (today - 400..=today).rfind(|day| self.is_window_start(*day)).expect("windows are at most a year long");
        let end =
            (today + 1..=today + 400).find(|day| self.is_window_start(*day)).expect("windows are at most a year long");
        (nanos(self.zone.instant_of_local(start * DAY)), nanos(self.zone.instant_of_local(end * DAY)))
    }

    /// Returns whether a window starts on this day.
    fn is_window_start(&self, day: i64) -> bool {
        let (year, month, of_month) = date_of_day(day);
        match self.unit {
            Unit::Hour | Unit::Day => true,
            Unit::Week(first) => weekday(day) == i64::from(first),
            Unit::Month(anchor) => {
                let next =
                    if month == 12 { days_since_1970(year + 1, 1, 1) } else { days_since_1970(year, month + 1, 1) };
                let last = next - days_since_1970(year, month, 1);
                of_month == i64::from(anchor).min(last)
            }
            Unit::Year(first, anchor) => (month, of_month) == (first.into(), anchor.into()),
        }
    }
}

/// Times at which a rule applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Weekdays, where Monday is 0. Empty: all days.
    pub days: Vec<u8>,
    /// Start in minutes of the day.
    pub from: u16,
    /// End in minutes of the day. An end that is not later than `from` is on the next day.
    pub to: u16,
    /// Time zone of the schedule.
    pub zone: Zone,
}

impl Schedule {
    /// Returns whether the rule applies at `at` nanoseconds.
    pub fn applies_at(&self, at: u64) -> bool {
        let at = (at / SECOND) as i64;
        let today = self.zone.local_time(at).div_euclid(DAY);
        let (from, to) = (i64::from(self.from) * 60, i64::from(self.to) * 60);
        let to = if to > from { to } else { to + DAY };
        let holds_since = |day: i64| {
            let begins = self.days.is_empty() || self.days.contains(&(weekday(day) as u8));
            begins
                && self.zone.instant_of_local(day * DAY + from) <= at
                && at < self.zone.instant_of_local(day * DAY + to)
        };
        (today - 2..=today + 1).any(holds_since)
    }

    /// Returns the schedule as a map in the rule language.
    pub fn text(&self) -> String {
        let names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
        let time = |minutes: u16| format!("'{:02}:{:02}'", minutes / 60, minutes % 60);
        let mut text = format!("{{from: {}, to: {}, zone: {}", time(self.from), time(self.to), self.zone.name());
        if !self.days.is_empty() {
            let days: Vec<&str> = self.days.iter().map(|day| names[usize::from(*day)]).collect();
            text += &format!(", days: [{}]", days.join(", "));
        }
        text + "}"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_with_a_clock_change_are_an_hour_shorter_or_longer() {
        let hours = |zone, year, month, day| {
            let noon = (days_since_1970(year, month, day) * DAY + 12 * HOUR) as u64 * SECOND;
            let (start, end) = Calendar { unit: Unit::Day, zone }.window(noon);
            (end - start) / SECOND / HOUR as u64
        };
        assert_eq!(hours(Zone::Paris, 2027, 3, 28), 23);
        assert_eq!(hours(Zone::Paris, 2027, 10, 31), 25);
        assert_eq!(hours(Zone::NewYork, 2027, 3, 14), 23);
        assert_eq!(hours(Zone::NewYork, 2027, 11, 7), 25);
        assert_eq!(hours(Zone::Utc, 2027, 3, 28), 24);
    }

    #[test]
    fn schedule_uses_the_first_of_two_equal_times_and_starts_late_if_skipped() {
        let holds = |from: u16, to: u16, (year, month, day), minutes: i64| {
            let at = (days_since_1970(year, month, day) * DAY + minutes * 60) as u64 * SECOND;
            Schedule { days: Vec::new(), from: from * 15, to: to * 15, zone: Zone::Paris }.applies_at(at)
        };
        // At 1:00 UTC, the clock in Paris goes back from 3:00 to 2:00.
        let (set_back, set_forward) = ((2027, 10, 31), (2027, 3, 28));
        assert_eq!([14, 15, 63].map(|minutes| holds(44, 9, set_back, minutes)), [true, false, false]);
        assert_eq!([-1, 0, 119, 120].map(|minutes| holds(8, 12, set_back, minutes)), [false, true, true, false]);
        // At 1:00 UTC, the clock goes forward from 2:00 to 3:00, so 2:30 is skipped.
        assert_eq!([60, 89, 90].map(|minutes| holds(10, 20, set_forward, minutes)), [false, false, true]);
    }

    #[test]
    fn billing_month_starts_on_the_last_day_of_a_shorter_month() {
        let calendar = Calendar { unit: Unit::Month(31), zone: Zone::Utc };
        let noon = (days_since_1970(2028, 3, 10) * DAY + 12 * HOUR) as u64 * SECOND;
        let midnight = |month, day| days_since_1970(2028, month, day) as u64 * DAY as u64 * SECOND;
        assert_eq!(calendar.window(noon), (midnight(2, 29), midnight(3, 31)));
    }
}
