//! Calendar windows in a time zone, from minutes to years. A day may have 23 hours, and a month may
//! begin on a billing day.
//!
//! Each window ends where the next one begins. A day begins at its first instant in the zone: if the clock skips from
//! midnight to one o'clock, the day begins at one o'clock. Days, weeks, months and years are contiguous across clock
//! changes. Minutes and hours follow the local clock and end at a clock change: if the clock shows 2:00 twice, these
//! are two separate hours.
//!
//! All time zone data is compiled in, so that every node uses the same data regardless of its operating system.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use jiff::ToSpan;
use jiff::civil::{Date, DateTime};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use tollgate::core::{Nanos, Time, Wall, Window};

/// A time zone.
#[derive(Clone)]
pub struct Zone {
    name: Box<str>,
    zone: TimeZone,
}

impl Zone {
    /// Returns the zone with a name like `Europe/Paris`.
    pub fn new(name: &str) -> Option<Self> {
        if name == "UTC" {
            return Some(Self::utc());
        }
        let zone = TimeZoneDatabase::bundled().get(name).ok()?;
        Some(Self { name: zone.iana_name().unwrap_or(name).into(), zone })
    }

    /// Returns the zone of Coordinated Universal Time (UTC).
    pub fn utc() -> Self {
        Self { name: "UTC".into(), zone: TimeZone::UTC }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns all known zone names.
    pub(crate) fn names() -> Vec<String> {
        TimeZoneDatabase::bundled().available().map(|name| name.as_str().to_owned()).collect()
    }

    fn earliest_timestamp(&self, civil: DateTime) -> Option<Timestamp> {
        civil.to_zoned(self.zone.clone()).ok().map(|zoned| zoned.timestamp())
    }

    /// Parses a local time like `2030-01-31T18:00`.
    pub(crate) fn parse_local_time(&self, civil: &str) -> Option<ParsedInstant> {
        self.earliest_timestamp(civil.parse().ok()?).map(ParsedInstant::from_timestamp)
    }

    /// Formats a time in the zone, without seconds if they are zero. The maximum time is formatted as "never".
    pub(crate) fn format_time(&self, at: Time<Wall>) -> String {
        let at = to_timestamp(at).filter(|_| at.as_nanos() < u64::MAX);
        let Some(zoned) = at.map(|at| at.to_zoned(self.zone.clone())) else { return "never".into() };
        let offset = if self.zone == TimeZone::UTC { "Z".into() } else { zoned.strftime("%:z").to_string() };
        let format = if zoned.second() == 0 { "%Y-%m-%dT%H:%M" } else { "%Y-%m-%dT%H:%M:%S" };
        format!("{}{offset}", zoned.strftime(format))
    }

    pub(crate) fn date_at(&self, at: Time<Wall>) -> Option<Date> {
        Some(to_timestamp(at)?.to_zoned(self.zone.clone()).date())
    }

    /// Returns the instant that is `minutes` after midnight of `date` on the local clock.
    pub(crate) fn instant_on_day(&self, date: Date, minutes: u16) -> Option<Time<Wall>> {
        let date = date.checked_add(i32::from(minutes / MINUTES_PER_DAY).days()).ok()?;
        let minutes = minutes % MINUTES_PER_DAY;
        self.earliest_timestamp(date.at((minutes / 60) as i8, (minutes % 60) as i8, 0, 0)).map(to_wall_time)
    }
}

const MINUTES_PER_DAY: u16 = 24 * 60;

/// A parsed instant, possibly out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParsedInstant {
    /// Before 1970.
    Early,
    At(Time<Wall>),
    /// After 21 July 2554, when a `u64` of nanoseconds since 1970 overflows.
    Late,
}

impl ParsedInstant {
    /// Parses a time like `2030-01-31T18:00:00Z` or `2030-01-31T18:00:00+01:00`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self::from_timestamp)
    }

    fn from_timestamp(at: Timestamp) -> Self {
        match u64::try_from(at.as_nanosecond()) {
            Ok(nanos) => Self::At(Time::from_nanos(nanos)),
            Err(_) if at < Timestamp::UNIX_EPOCH => Self::Early,
            Err(_) => Self::Late,
        }
    }

    /// Returns the nearest representable time.
    pub(crate) fn nearest(self) -> Time<Wall> {
        match self {
            Self::Early => Time::from_nanos(0),
            Self::At(at) => at,
            Self::Late => Time::from_nanos(u64::MAX),
        }
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

impl Hash for Zone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The unit of calendar windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A minute of the local clock.
    Minute,
    /// An hour of the local clock.
    Hour,
    /// From midnight to midnight.
    Day,
    /// Seven days, starting on this weekday (0 = Monday).
    Week(i8),
    /// A month, starting on this day or, in a shorter month, on its last day.
    Month(i8),
    /// A year, starting on this month and day.
    Year(i8, i8),
}

impl Unit {
    /// Returns the unit for years that begin on this month and day; `None` if the date does not exist even in a
    /// leap year. In other years, 29 February becomes 28 February.
    pub(crate) fn year_from(month: i8, day: i8) -> Option<Self> {
        Date::new(2024, month, day).ok().map(|_| Self::Year(month, day))
    }
}

/// Calendar windows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Calendar {
    /// The window length.
    pub unit: Unit,
    /// The time zone.
    pub zone: Zone,
}

impl Calendar {
    /// Returns the average length of a window.
    pub fn average_length(&self) -> Nanos {
        Nanos::from_secs(match self.unit {
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => 86_400,
            Unit::Week(_) => 7 * 86_400,
            // The mean over 400 years.
            Unit::Month(_) => 2_629_746,
            Unit::Year(..) => 31_556_952,
        })
    }

    /// Returns the window that contains `at`.
    pub fn window(&self, at: Time<Wall>) -> Window {
        let window = match self.unit {
            Unit::Minute | Unit::Hour => self.clock_window(at),
            Unit::Day | Unit::Week(_) | Unit::Month(_) | Unit::Year(..) => self.date_window(at),
        };
        // If the calendar window cannot be represented, the window starts at `at` and has the average length.
        let before = Time::from_nanos(at.as_nanos().min(u64::MAX - 1));
        let after = Time::from_nanos(before.as_nanos().saturating_add(self.average_length().as_nanos()));
        window.or_else(|| Window::new(before, after)).expect("the end is at least one nanosecond after the start")
    }

    fn date_window(&self, at: Time<Wall>) -> Option<Window> {
        let date = self.zone.date_at(at)?;
        let (mut from, mut to) = self.window_dates(date)?;
        let (mut start, mut end) = (self.zone.instant_on_day(from, 0)?, self.zone.instant_on_day(to, 0)?);
        // If midnight occurs twice, the window begins at the first midnight, although the clock then shows the previous
        // date again.
        if end <= at {
            (from, to) = (to, self.window_dates(to)?.1);
            (start, end) = (self.zone.instant_on_day(from, 0)?, self.zone.instant_on_day(to, 0)?);
        }
        Window::new(start, end)
    }

    /// Returns the first dates of the window that contains `date` and of the next window.
    fn window_dates(&self, date: Date) -> Option<(Date, Date)> {
        match self.unit {
            Unit::Week(first) => {
                let into = (date.weekday().to_monday_zero_offset() - first).rem_euclid(7);
                let from = date.checked_sub(into.days()).ok()?;
                Some((from, from.checked_add(7.days()).ok()?))
            }
            Unit::Month(day) => {
                let begin = |months: i32| window_start_in_month(date.year(), i32::from(date.month()) + months, day);
                let this = begin(0)?;
                if date < this { Some((begin(-1)?, this)) } else { Some((this, begin(1)?)) }
            }
            Unit::Year(month, day) => {
                let begin = |years: i16| window_start_in_month(date.year().checked_add(years)?, month.into(), day);
                let this = begin(0)?;
                if date < this { Some((begin(-1)?, this)) } else { Some((this, begin(1)?)) }
            }
            Unit::Minute | Unit::Hour | Unit::Day => Some((date, date.tomorrow().ok()?)),
        }
    }

    /// Returns the minute or hour of the local clock that contains `at`, truncated at clock changes.
    fn clock_window(&self, at: Time<Wall>) -> Option<Window> {
        let length = self.average_length().as_nanos();
        let now = to_timestamp(at)?;
        let offset = i128::from(self.zone.zone.to_offset(now).seconds()) * i128::from(NANOS_PER_SECOND);
        let shown = i128::from(at.as_nanos()) + offset;
        let into = shown.rem_euclid(length.into());
        let start = i128::from(at.as_nanos()) - into;
        let clip = |nanos: i128| u64::try_from(nanos.max(0)).unwrap_or(u64::MAX);
        let (mut start, mut end) = (clip(start), clip(start + i128::from(length)));
        // A clock change also starts a new window.
        let set_before = self.zone.zone.preceding(now.checked_add(1.nanosecond()).ok()?).next();
        if let Some(set) = set_before {
            start = start.max(to_wall_time(set.timestamp()).as_nanos());
        }
        if let Some(set) = self.zone.zone.following(now).next() {
            end = end.min(to_wall_time(set.timestamp()).as_nanos());
        }
        Window::new(Time::from_nanos(start), Time::from_nanos(end))
    }
}

const NANOS_PER_SECOND: u64 = Nanos::SECOND.as_nanos();

fn window_start_in_month(year: i16, month: i32, day: i8) -> Option<Date> {
    let months = i32::from(year) * 12 + month - 1;
    let first = Date::new(i16::try_from(months.div_euclid(12)).ok()?, (months.rem_euclid(12) + 1) as i8, 1).ok()?;
    first.checked_add((day.min(first.days_in_month()) - 1).days()).ok()
}

fn to_timestamp(at: Time<Wall>) -> Option<Timestamp> {
    Timestamp::from_nanosecond(at.as_nanos().into()).ok()
}

/// Returns the nearest representable time.
pub(crate) fn to_wall_time(at: Timestamp) -> Time<Wall> {
    ParsedInstant::from_timestamp(at).nearest()
}

/// A calendar that caches its last window.
pub(crate) struct CachedCalendar {
    calendar: Calendar,
    last_window: ArcSwapOption<Window>,
}

impl CachedCalendar {
    pub(crate) fn new(calendar: Calendar) -> Self {
        Self { calendar, last_window: ArcSwapOption::empty() }
    }

    pub(crate) fn calendar(&self) -> &Calendar {
        &self.calendar
    }

    pub(crate) fn window(&self, at: Time<Wall>) -> Window {
        if let Some(last) = &*self.last_window.load()
            && last.start() <= at
            && at < last.end()
        {
            return **last;
        }
        let window = self.calendar.window(at);
        self.last_window.store(Some(Arc::new(window)));
        window
    }
}

impl fmt::Debug for CachedCalendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.calendar.fmt(f)
    }
}
