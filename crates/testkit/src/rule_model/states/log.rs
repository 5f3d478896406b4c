//! Sliding logs: the time of every counted unit.

use super::super::limit::{Algorithm, Limit};
use super::super::{Tokens, ceil, floor, whole_tokens};
use super::{Stamp, When};

#[derive(Clone, Debug)]
pub(super) struct Log {
    length: u64,
    gap: u64,
    /// Maximum number of stored units: the limit plus the maximum debt.
    max_units: usize,
    /// Oldest first.
    units: Vec<LogUnit>,
}

#[derive(Clone, Copy, Debug)]
struct LogUnit {
    at: u64,
    /// Whether the unit belongs to a request. The minimum gap applies only after requests. Other units are
    /// the used part of a new key, or were spent under another algorithm.
    of_request: bool,
}

impl Log {
    pub(super) fn new(limit: &Limit, gap: u64, spent: u64, at: u64) -> Self {
        let max_units = ceil(limit.max_spent_with_debt()) as usize;
        let units = (0..spent).map(|_| LogUnit { at, of_request: false }).collect();
        Self { length: limit.period, gap, max_units, units }
    }

    fn units_inside(&self, at: u64) -> impl Iterator<Item = &LogUnit> {
        self.units.iter().filter(move |unit| at < unit.at + self.length)
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.units.iter().rfind(|unit| unit.of_request).map(|unit| unit.at)
    }

    pub(super) fn gap_ends(&self) -> u64 {
        self.last().map_or(0, |last| last + self.gap)
    }

    pub(super) fn spent(&self, at: u64) -> Tokens {
        whole_tokens(self.units_inside(at).count() as u64)
    }

    pub(super) fn when_spent_at_most(&self, at: u64, room: Tokens) -> When {
        let over = floor(self.spent(at)) - floor(room);
        let last_to_leave = self.units_inside(at).nth(over as usize - 1).expect("more are inside");
        When::At(last_to_leave.at + self.length)
    }

    pub(super) fn charge(&mut self, at: u64, amount: u64) -> Stamp {
        self.units.extend((0..amount).map(|_| LogUnit { at, of_request: true }));
        self.units.drain(..self.units.len().saturating_sub(self.max_units));
        Stamp::Time(at)
    }

    /// Keeps the units in the window. Units older than the new window are moved to its start. If no unit is in the
    /// window but the minimum gap has not ended, keeps the last request.
    pub(super) fn adopt(&mut self, limit: &Limit, at: u64, tick: u64) {
        let Algorithm::SlidingLog { gap, .. } = limit.algorithm else { return };
        let oldest = (at + tick).saturating_sub(limit.period);
        let mut kept: Vec<LogUnit> =
            self.units_inside(at).map(|unit| LogUnit { at: unit.at.max(oldest), ..*unit }).collect();
        if kept.is_empty() && at < self.gap_ends() {
            kept.extend(self.units.iter().rfind(|unit| unit.of_request));
        }
        *self = Self { length: limit.period, gap, max_units: ceil(limit.max_spent_with_debt()) as usize, units: kept };
    }

    /// Removes units with the stamp's time, units of requests first. Without a stamp, removes the oldest
    /// units.
    pub(super) fn refund(&mut self, at: u64, amount: u64, stamp: Option<Stamp>) -> u64 {
        let is_meant =
            |unit: &LogUnit| at < unit.at + self.length && stamp.is_none_or(|stamp| stamp == Stamp::Time(unit.at));
        let mut meant: Vec<usize> = (0..self.units.len()).filter(|index| is_meant(&self.units[*index])).collect();
        if stamp.is_some() {
            meant.sort_by_key(|index| !self.units[*index].of_request);
        }
        meant.truncate(usize::try_from(amount).unwrap_or(usize::MAX));
        let mut index = 0..;
        self.units.retain(|_| index.next().is_some_and(|index| !meant.contains(&index)));
        meant.len() as u64
    }
}
