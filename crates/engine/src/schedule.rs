//! Weekly schedules: the times at which a rule applies.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::ToSpan;
use tollgate::core::{Time, Wall};

use crate::calendar::Zone;
use crate::rules::WEEKDAYS;

/// A daily time span on some days of the week.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hours {
    /// Bit mask of the weekdays on which the span begins. The lowest bit is Monday.
    pub(crate) days: u8,
    /// The start, in minutes after midnight.
    pub(crate) from: u16,
    /// The end, in minutes after midnight of the start day. The end may exceed 24 hours.
    pub(crate) to: u16,
    pub(crate) zone: Zone,
}

impl fmt::Display for Hours {
    /// Formats the span like `mon, tue from 22:00 to 06:00 in Europe/Paris`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const EVERY_DAY: u8 = 0x7f;
        let days: Vec<&str> =
            (0..WEEKDAYS.len()).filter(|day| self.days >> day & 1 == 1).map(|day| WEEKDAYS[day]).collect();
        if self.days & EVERY_DAY == EVERY_DAY {
            f.write_str("every day")?;
        } else {
            f.write_str(&days.join(", "))?;
        }
        if (self.from, self.to) != (0, 24 * 60) {
            let clock = |minutes: u16| format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60);
            write!(f, " from {} to {}", clock(self.from), clock(self.to))?;
        }
        write!(f, " in {}", self.zone.name())
    }
}

/// A period during which a schedule either always applies or never applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScheduleSpan {
    from: Time<Wall>,
    to: Time<Wall>,
    applies: bool,
}

/// Number of days to search for the next change. Schedules repeat weekly.
const MAX_DAYS_SEARCHED: i32 = 9;

/// A schedule that caches its last computed span.
pub(crate) struct Schedule {
    hours: Box<[Hours]>,
    last_span: ArcSwapOption<ScheduleSpan>,
}

impl Schedule {
    pub(crate) fn new(hours: &[Hours]) -> Self {
        Self { hours: hours.into(), last_span: ArcSwapOption::empty() }
    }

    /// Returns whether the schedule applies at `at`.
    pub(crate) fn applies(&self, at: Time<Wall>) -> bool {
        if let Some(last) = &*self.last_span.load()
            && last.from <= at
            && at < last.to
        {
            return last.applies;
        }
        let span = self.span_from(at);
        self.last_span.store(Some(Arc::new(span)));
        span.applies
    }

    /// Returns the span from `at` to the next change.
    fn span_from(&self, at: Time<Wall>) -> ScheduleSpan {
        let mut span = ScheduleSpan { from: at, to: Time::from_nanos(u64::MAX), applies: false };
        for hours in &self.hours {
            let Some(today) = hours.zone.date_at(at) else { continue };
            for day in -2..MAX_DAYS_SEARCHED {
                let Ok(date) = today.checked_add(day.days()) else { continue };
                if hours.days >> date.weekday().to_monday_zero_offset() & 1 == 0 {
                    continue;
                }
                let ends = (hours.zone.instant_on_day(date, hours.from), hours.zone.instant_on_day(date, hours.to));
                let (Some(start), Some(end)) = ends else { continue };
                span.applies |= start <= at && at < end;
                for edge in [start, end] {
                    if at < edge && edge < span.to {
                        span.to = edge;
                    }
                }
            }
        }
        span
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hours.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_applies(hours: &Hours, expected: &[(&str, bool)]) {
        let schedule = Schedule::new(std::slice::from_ref(hours));
        for (at, applies) in expected {
            let at = crate::calendar::to_wall_time(at.parse().unwrap());
            assert_eq!((schedule.span_from(at).applies, schedule.applies(at)), (*applies, *applies), "at {at:?}");
        }
    }

    #[test]
    fn office_hours_follow_the_local_clock() {
        let zone = Zone::new("Europe/Paris").unwrap();
        // The clock is set forward on Sunday 30 March 2025.
        assert_applies(
            &Hours { days: 0b001_1111, from: 9 * 60, to: 17 * 60, zone },
            &[
                ("2025-03-28T07:59:59Z", false),
                ("2025-03-28T08:00:00Z", true),
                ("2025-03-28T15:59:59Z", true),
                ("2025-03-28T16:00:00Z", false),
                ("2025-03-29T09:00:00Z", false),
                ("2025-03-31T06:59:59Z", false),
                ("2025-03-31T07:00:00Z", true),
            ],
        );
    }

    #[test]
    fn repeated_local_time_means_its_first_occurrence_and_skipped_time_moves_later() {
        let zone = Zone::new("Europe/Paris").unwrap();
        // The clock is set back from 03:00 to 02:00 at 01:00 UTC.
        assert_applies(
            &Hours { days: 0x7f, from: 11 * 60, to: 26 * 60 + 15, zone: zone.clone() },
            &[("2027-10-31T00:14:59Z", true), ("2027-10-31T00:15:00Z", false), ("2027-10-31T01:03:00Z", false)],
        );
        // The clock is set forward from 02:00 to 03:00 at 01:00 UTC.
        assert_applies(
            &Hours { days: 0x7f, from: 2 * 60 + 30, to: 5 * 60, zone },
            &[("2027-03-28T01:00:00Z", false), ("2027-03-28T01:29:59Z", false), ("2027-03-28T01:30:00Z", true)],
        );
    }

    #[test]
    fn span_past_midnight_begins_on_its_day_and_ends_on_the_next_day() {
        let zone = Zone::utc();
        assert_applies(
            &Hours { days: 0b001_0000, from: 22 * 60, to: 30 * 60, zone },
            &[
                ("2025-03-28T21:59:59Z", false),
                ("2025-03-28T22:00:00Z", true),
                ("2025-03-29T05:59:59Z", true),
                ("2025-03-29T06:00:00Z", false),
                ("2025-03-29T23:00:00Z", false),
            ],
        );
    }

    #[test]
    fn schedule_of_the_whole_week_always_applies() {
        let zone = Zone::utc();
        assert_applies(
            &Hours { days: 0x7f, from: 0, to: 24 * 60, zone },
            &[("2025-03-28T00:00:00Z", true), ("2025-03-28T23:59:59Z", true)],
        );
    }
}
