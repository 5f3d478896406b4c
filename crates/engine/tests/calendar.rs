//! Tests of calendar windows: a comparison with an independent calculation, and their use in rules.

use crate::support;

use std::sync::Arc;

use support::{FlakyStore, TestBench, memory_store, stale_error, test_bench};
use tollgate::clock::ManualClock;
use tollgate::core::{Nanos, Time};
use tollgate_engine::calendar::{Calendar, Unit, Zone};
use tollgate_engine::store::StoreError;

const SECOND: u64 = 1_000_000_000;

/// Returns the number of days from 1970-01-01 to a date.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (y, m) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    365 * y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (153 * m + 2) / 5 + day - 719_469
}

fn date_of_day(day: i64) -> (i64, i64, i64) {
    let year = (2026..2030).rfind(|year| days_since_1970(*year, 1, 1) <= day).expect("a date in these years");
    let month = (1..=12).rfind(|month| days_since_1970(year, *month, 1) <= day).expect("a date in these years");
    (year, month, day - days_since_1970(year, month, 1) + 1)
}

/// Returns the `n`th Sunday of a month, in days since 1970. Returns the last Sunday if `n` is `None`. The first day of
/// 1970 was a Thursday.
fn nth_sunday(year: i64, month: i64, n: Option<i64>) -> i64 {
    let weekday = |days: i64| (days + 4).rem_euclid(7);
    match n {
        Some(n) => {
            let first = days_since_1970(year, month, 1);
            first + (7 - weekday(first)) % 7 + 7 * (n - 1)
        }
        None => {
            let next = if month == 12 { days_since_1970(year + 1, 1, 1) } else { days_since_1970(year, month + 1, 1) };
            next - 1 - weekday(next - 1)
        }
    }
}

/// Returns a zone's offset from UTC in seconds at an instant.
fn utc_offset(zone: &str, at: i64) -> i64 {
    let (year, ..) = date_of_day(at.div_euclid(86_400));
    let between = |from: i64, to: i64| from <= at && at < to;
    match zone {
        // Summer time lasts from the last Sunday in March to the last Sunday in October. The clock changes at 1:00 UTC.
        "Europe/Paris" => {
            let summer =
                between(nth_sunday(year, 3, None) * 86_400 + 3_600, nth_sunday(year, 10, None) * 86_400 + 3_600);
            if summer { 7_200 } else { 3_600 }
        }
        // Summer time lasts from the second Sunday in March to the first Sunday in November. The clock changes at 2:00
        // local time.
        "America/New_York" => {
            let summer = between(
                nth_sunday(year, 3, Some(2)) * 86_400 + 7 * 3_600,
                nth_sunday(year, 11, Some(1)) * 86_400 + 6 * 3_600,
            );
            if summer { -4 * 3_600 } else { -5 * 3_600 }
        }
        // Summer time adds half an hour, and lasts from the first Sunday in October to the first Sunday in April.
        // The clock changes at 2:00 local time.
        "Australia/Lord_Howe" => {
            let winter = between(
                nth_sunday(year, 4, Some(1)) * 86_400 - 11 * 3_600 + 2 * 3_600,
                nth_sunday(year, 10, Some(1)) * 86_400 - 10 * 3_600 - 1_800 + 2 * 3_600,
            );
            if winter { 10 * 3_600 + 1_800 } else { 11 * 3_600 }
        }
        "Asia/Kathmandu" => 5 * 3_600 + 45 * 60,
        other => panic!("no clock changes are defined for {other}"),
    }
}

/// Returns two numbers that identify the window around an instant: the window's local number and, for hours and
/// minutes, the offset from UTC.
fn window_number(unit: Unit, zone: &str, at: i64) -> (i64, i64) {
    let offset = utc_offset(zone, at);
    let local = at + offset;
    let day = local.div_euclid(86_400);
    let (year, month, of_month) = date_of_day(day);
    let length = |month: i64| days_since_1970(year + month.div_euclid(12), month.rem_euclid(12) + 1, 1);
    match unit {
        Unit::Minute => (local.div_euclid(60), offset),
        Unit::Hour => (local.div_euclid(3_600), offset),
        Unit::Day => (day, 0),
        // The first Monday of 1970 was 5 January.
        Unit::Week(first) => ((day - 4 - i64::from(first)).div_euclid(7), 0),
        Unit::Month(anchor) => {
            let last = length(month) - length(month - 1);
            (year * 12 + month - i64::from(of_month < i64::from(anchor).min(last)), 0)
        }
        Unit::Year(first, anchor) => (year - i64::from((month, of_month) < (i64::from(first), i64::from(anchor))), 0),
    }
}

#[test]
fn year_of_windows_in_four_zones_agrees_with_an_independent_calculation() {
    let units = [
        Unit::Hour,
        Unit::Day,
        Unit::Week(0),
        Unit::Week(6),
        Unit::Month(1),
        Unit::Month(15),
        Unit::Month(31),
        Unit::Year(4, 1),
    ];
    for zone in ["Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"] {
        for unit in units {
            let calendar = Calendar { unit, zone: Zone::new(zone).unwrap() };
            let (first, last) = (days_since_1970(2027, 1, 1) * 86_400, days_since_1970(2028, 1, 10) * 86_400);
            // Tests every quarter of an hour, because all clock changes in these zones are at multiples of 15 minutes.
            let mut window = calendar.window(Time::from_nanos((first - 900) as u64 * SECOND));
            for at in (first..last).step_by(900) {
                let time = Time::from_nanos(at as u64 * SECOND);
                let same = window_number(unit, zone, at) == window_number(unit, zone, at - 900);
                if !same {
                    assert_eq!(window.end(), time, "{unit:?} in {zone} ends at {at}");
                }
                window = calendar.window(time);
                assert!(window.start() <= time && time < window.end());
                assert_eq!(window.start() == time, !same, "{unit:?} in {zone} begins at {at}");
                assert_eq!(
                    calendar.window(Time::from_nanos(window.end().as_nanos() - 1)),
                    window,
                    "{unit:?} in {zone}"
                );
            }
        }
    }
}

#[test]
fn minutes_follow_the_local_clock() {
    let calendar = Calendar { unit: Unit::Minute, zone: Zone::new("Asia/Kathmandu").unwrap() };
    let window = calendar.window(Time::from_nanos(1_700_000_030 * SECOND));
    assert_eq!((window.start().as_nanos() / SECOND, window.end().as_nanos() / SECOND), (1_699_999_980, 1_700_000_040));
}

fn parse_time(text: &str) -> u64 {
    let at: jiff::Timestamp = text.parse().expect("a time");
    u64::try_from(at.as_nanosecond()).expect("after 1970")
}

#[test]
fn day_in_paris_ends_at_local_midnight() {
    let clock = Arc::new(ManualClock::at(parse_time("2025-03-29T22:30:00Z")));
    let mut bench = TestBench::on_store(
        memory_store(&clock),
        clock,
        "- {id: r, limit: 2/day, algorithm: fixed_window, zone: Europe/Paris}\n",
    );
    assert_eq!(
        (bench.check(&[]), bench.check(&[]), bench.check(&[])),
        ("allow".into(), "allow".into(), "deny 1800s".into())
    );
    bench.advance(Nanos::from_secs(1_800));
    assert_eq!((bench.check(&[]), bench.check(&[])), ("allow".into(), "allow".into()));
    // The 30th of March has 23 hours.
    assert_eq!(bench.check(&[]), "deny 82800s");
}

#[test]
fn billing_month_begins_on_its_anchor_day() {
    let clock = Arc::new(ManualClock::at(parse_time("2025-02-27T12:00:00Z")));
    let mut bench = TestBench::on_store(
        memory_store(&clock),
        clock,
        "- {id: r, limit: 10/month, algorithm: fixed_window, anchor: 31}\n",
    );
    assert_eq!(bench.check_cost(&[], 10), "allow");
    assert_eq!(bench.check(&[]), "deny 43200s");
    bench.advance(Nanos::from_secs(43_200));
    assert_eq!(bench.check_cost(&[], 10), "allow");
    assert_eq!(bench.check(&[]), format!("deny {}s", 31 * 86_400));
}

#[test]
fn calendars_of_several_limits_in_one_rule_are_independent() {
    let clock = Arc::new(ManualClock::at(parse_time("2025-06-30T23:59:59Z")));
    let mut bench = TestBench::on_store(
        memory_store(&clock),
        clock,
        "- {id: r, limits: [{limit: 5/day, algorithm: fixed_window, zone: UTC}, 100/s, {limit: 9/month, algorithm: fixed_window, zone: America/New_York}]}\n",
    );
    assert_eq!(bench.check_cost(&[], 5), "allow");
    assert_eq!(bench.remaining(&[]), [0, 95, 4]);
    bench.advance(Nanos::from_secs(1));
    assert_eq!(bench.remaining(&[]), [5, 100, 4]);
    bench.advance(Nanos::from_secs(4 * 3_600));
    assert_eq!(bench.remaining(&[]), [5, 100, 9]);
}

#[test]
fn stale_windows_are_recomputed_for_the_store_time() {
    let start = parse_time("2025-06-30T23:59:59Z");
    let clock = Arc::new(ManualClock::at(start));
    let store_clock = Arc::new(ManualClock::at(start + 5 * SECOND));
    let mut bench = TestBench::on_store(
        memory_store(&store_clock),
        clock,
        "- {id: r, limit: 5/day, algorithm: fixed_window, zone: UTC}\n",
    );
    assert_eq!(bench.check_cost(&[], 5), "allow");
    assert_eq!(bench.check(&[]), format!("deny {}s", 86_400 - 4));
    assert_eq!(bench.engine.counts().stale, 2);
    assert_eq!(bench.engine.counts().fallback, 0);
}

#[test]
fn fallback_decides_if_the_clock_of_the_store_is_unreliable() {
    let clock = Arc::new(ManualClock::at(parse_time("2025-06-30T12:00:00Z")));
    let mut bench =
        TestBench::on_store(FlakyStore::new(&clock), clock, "- {id: r, limit: 5/month, algorithm: fixed_window}\n");
    bench.engine.store().fail_times(stale_error(), 2);
    assert_eq!(bench.check(&[]), "allow");
    assert_eq!(bench.engine.counts().fallback, 1);
    assert!(matches!(stale_error(), StoreError::Stale { .. }));
}

#[test]
fn inline_limit_has_no_calendar() {
    let text = tollgate_engine::rules::LimitText { limit: "10/month", burst: None, algorithm: Some("fixed_window") };
    assert_eq!(text.read().unwrap_err().to_string(), "limit: calendar windows are supported only in rules");
    let mut bench = test_bench("- {id: r, limit: 5/day, algorithm: fixed_window, zone: Asia/Tokyo}\n");
    assert_eq!(bench.remaining(&[]), [5]);
}
