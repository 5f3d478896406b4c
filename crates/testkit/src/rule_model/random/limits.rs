//! Limits of every algorithm.

use super::super::calendar::{Calendar, Unit, Zone};
use super::super::limit::{Algorithm, Limit, StepAlignment, Windows};
use super::Rng;

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// Returns a period that a store's clock can represent: a multiple of `tick` nanoseconds.
fn any_period(rng: &mut Rng, tick: u64) -> u64 {
    let period = match rng.below(4) {
        0 | 1 => rng.pick(&[1, 10, 60, 3_600, 86_400, 604_800]) * SECOND,
        2 => rng.pick(&[7 * MILLI, 1_500 * MICRO, 15 * 60 * SECOND, 999 * MILLI]),
        _ => rng.between(1, 20_000_000) * MICRO + rng.below(1_000),
    };
    period.next_multiple_of(tick)
}

fn any_count(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => rng.between(1, 3),
        1 | 2 => rng.between(1, 12),
        _ => rng.between(1, 300),
    }
}

/// Returns part of a duration, in whole ticks.
fn any_part(rng: &mut Rng, whole: u64, tick: u64) -> u64 {
    (rng.between(1, whole) / rng.pick(&[1, 3, 10])).max(1).next_multiple_of(tick)
}

/// Returns a token bucket for a delaying rule.
pub(super) fn delaying_bucket(rng: &mut Rng, tick: u64, delay: u64) -> Limit {
    let limit = any_bucket(rng, tick, Algorithm::TokenBucket { delay: Some(delay) });
    Limit { initial: None, ..limit }
}

/// Returns the longest wait of a delaying rule.
pub(super) fn any_delay(rng: &mut Rng, tick: u64) -> u64 {
    rng.between(1, 30_000_000_000).next_multiple_of(tick)
}

fn any_bucket(rng: &mut Rng, tick: u64, algorithm: Algorithm) -> Limit {
    let (count, period) = (any_count(rng), any_period(rng, tick));
    let burst = if rng.one_in(2) { Some(rng.between(1, 2 * count + 3)) } else { None };
    let capacity = burst.unwrap_or(count);
    let (initial, max_debt) = any_initial_and_debt(rng, capacity);
    Limit { count, period, algorithm, burst, initial, max_debt }
}

pub(super) fn any_initial_and_debt(rng: &mut Rng, capacity: u64) -> (Option<u64>, Option<u64>) {
    let initial = if rng.one_in(6) { Some(rng.below(capacity + 1)) } else { None };
    let max_debt = if rng.one_in(3) { Some(rng.below(2 * capacity + 1)) } else { None };
    (initial, max_debt)
}

/// Returns any limit. If `alone`, the keys of this limit are never used under another limit, so this limit may be
/// an interval bucket with a `max_wait`.
pub(super) fn any_limit(rng: &mut Rng, tick: u64, alone: bool) -> Limit {
    match rng.below(10) {
        0 | 1 => any_bucket(rng, tick, Algorithm::TokenBucket { delay: None }),
        2 => any_leaky_bucket(rng, tick),
        3 => any_interval_bucket(rng, tick, alone),
        4 => any_fixed_window(rng, tick),
        5 => any_calendar_window(rng),
        6 => any_window(rng, tick, Algorithm::SlidingWindow),
        7 => any_slices(rng, tick),
        8 => any_sliding_log(rng, tick),
        _ => any_concurrency(rng, tick),
    }
}

fn any_leaky_bucket(rng: &mut Rng, tick: u64) -> Limit {
    let mut limit = any_bucket(rng, tick, Algorithm::LeakyBucket { free: 0, max_wait: None });
    let free = rng.below(limit.capacity() + 1);
    let max_wait = if rng.one_in(2) { Some(any_part(rng, 2 * limit.period, tick)) } else { None };
    limit.algorithm = Algorithm::LeakyBucket { free, max_wait };
    limit
}

fn any_interval_bucket(rng: &mut Rng, tick: u64, alone: bool) -> Limit {
    let mut limit = any_bucket(rng, tick, Algorithm::IntervalBucket { grid: StepAlignment::FirstRequest, max_wait: 0 });
    let offset = if rng.one_in(2) { 0 } else { any_part(rng, limit.period, tick) % limit.period };
    let grid = if rng.one_in(2) { StepAlignment::FirstRequest } else { StepAlignment::Aligned(offset) };
    let max_wait = if alone && rng.one_in(2) { any_part(rng, 3 * limit.period, tick) } else { 0 };
    limit.algorithm = Algorithm::IntervalBucket { grid, max_wait };
    limit
}

fn any_window(rng: &mut Rng, tick: u64, algorithm: Algorithm) -> Limit {
    let (count, period) = (any_count(rng), any_period(rng, tick));
    let (initial, max_debt) = any_initial_and_debt(rng, count);
    Limit { count, period, algorithm, burst: None, initial, max_debt }
}

fn any_fixed_window(rng: &mut Rng, tick: u64) -> Limit {
    let windows = rng.pick(&[Windows::Epoch, Windows::FirstRequest]);
    any_window(rng, tick, Algorithm::FixedWindow(windows))
}

/// Returns a calendar window without debt. [`Trace::with_extensions`](super::Trace::with_extensions) adds debt.
fn any_calendar_window(rng: &mut Rng) -> Limit {
    let unit = match rng.below(5) {
        0 => Unit::Hour,
        1 => Unit::Day,
        2 => Unit::Week(rng.below(7) as u8),
        3 => Unit::Month(rng.pick(&[1, 15, 28, 29, 30, 31])),
        _ => Unit::Year(rng.between(1, 12) as u8, rng.between(1, 28) as u8),
    };
    let zone = rng.pick(&Zone::ALL);
    let algorithm = Algorithm::FixedWindow(Windows::Calendar(Calendar { unit, zone }));
    Limit { count: any_count(rng), period: 0, algorithm, burst: None, initial: None, max_debt: Some(0) }
}

fn any_slices(rng: &mut Rng, tick: u64) -> Limit {
    let mut limit = any_window(rng, tick, Algorithm::SlidingSlices { precision: None });
    if rng.one_in(2) {
        let precision = (limit.period / rng.between(1, 12)).max(1).next_multiple_of(tick).min(limit.period);
        limit.algorithm = Algorithm::SlidingSlices { precision: Some(precision) };
    }
    // The clock must be able to distinguish the slices.
    if !limit.slices().0.is_multiple_of(tick) {
        limit.algorithm = Algorithm::SlidingSlices { precision: None };
        limit.period = limit.period.next_multiple_of(10 * tick);
    }
    limit
}

fn any_sliding_log(rng: &mut Rng, tick: u64) -> Limit {
    let mut limit = any_window(rng, tick, Algorithm::SlidingLog { gap: 0, count_refused: false });
    limit.count = limit.count.min(50);
    limit.initial = limit.initial.map(|initial| initial.min(limit.count));
    let gap = if rng.one_in(3) { any_part(rng, limit.period, tick) } else { 0 };
    limit.algorithm = Algorithm::SlidingLog { gap, count_refused: rng.one_in(4) };
    limit
}

fn any_concurrency(rng: &mut Rng, tick: u64) -> Limit {
    let count = rng.between(1, 20);
    let max_debt = if rng.one_in(2) { Some(rng.below(count + 1)) } else { None };
    let algorithm = Algorithm::Concurrency { lease: any_part(rng, 60_000_000_000, tick) };
    Limit { count, period: 0, algorithm, burst: None, initial: None, max_debt }
}

/// Returns a limit of the same kind with some parameters changed.
pub(super) fn with_changed_parameters(rng: &mut Rng, tick: u64, limit: &Limit) -> Limit {
    let mut changed = limit.clone();
    changed.count = any_count(rng);
    match limit.algorithm {
        Algorithm::SlidingLog { .. } | Algorithm::Concurrency { .. } => changed.count = changed.count.min(50),
        Algorithm::TokenBucket { .. } if rng.one_in(3) => changed.period = any_period(rng, tick),
        Algorithm::LeakyBucket { max_wait, .. } => changed.algorithm = Algorithm::LeakyBucket { free: 0, max_wait },
        _ => {}
    }
    changed.burst = None;
    (changed.initial, changed.max_debt) = any_initial_and_debt(rng, changed.count);
    match changed.algorithm {
        Algorithm::FixedWindow(Windows::Calendar(_)) => (changed.initial, changed.max_debt) = (None, Some(0)),
        Algorithm::Concurrency { .. } | Algorithm::TokenBucket { delay: Some(_) } => changed.initial = None,
        _ => {}
    }
    changed
}
