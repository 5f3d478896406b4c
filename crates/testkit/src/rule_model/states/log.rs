//! Sliding logs: the instant of every unit that passed.

use super::super::limit::{Algorithm, Limit};
use super::super::{Tokens, ceil, floor, tokens};
use super::{Stamp, When};

#[derive(Clone, Debug)]
pub(super) struct Log {
    length: u64,
    gap: u64,
    /// How many units are remembered: the limit and all debt.
    most: usize,
    /// Oldest first.
    units: Vec<Unit>,
}

#[derive(Clone, Copy, Debug)]
struct Unit {
    at: u64,
    /// Whether it only stands for what a new key does not have: it holds back no request by the gap.
    initial: bool,
}

impl Log {
    pub(super) fn new(limit: &Limit, gap: u64, spent: u64, at: u64, initial: bool) -> Self {
        let most = ceil(limit.deepest()) as usize;
        let units = (0..spent).map(|_| Unit { at, initial }).collect();
        Self { length: limit.period, gap, most, units }
    }

    fn inside(&self, at: u64) -> impl Iterator<Item = &Unit> {
        self.units.iter().filter(move |unit| at < unit.at + self.length)
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.units.iter().rfind(|unit| !unit.initial).map(|unit| unit.at)
    }

    pub(super) fn gap_ends(&self) -> u64 {
        self.last().map_or(0, |last| last + self.gap)
    }

    pub(super) fn spent(&self, at: u64) -> Tokens {
        tokens(self.inside(at).count() as u64)
    }

    pub(super) fn until(&self, at: u64, room: Tokens) -> When {
        let over = floor(self.spent(at)) - floor(room);
        let last_to_leave = self.inside(at).nth(over as usize - 1).expect("more are inside");
        When::At(last_to_leave.at + self.length)
    }

    pub(super) fn charge(&mut self, at: u64, amount: u64) -> Stamp {
        self.units.extend((0..amount).map(|_| Unit { at, initial: false }));
        self.units.drain(..self.units.len().saturating_sub(self.most));
        Stamp::Time(at)
    }

    pub(super) fn adopt(&mut self, limit: &Limit, at: u64) {
        let Algorithm::SlidingLog { gap, .. } = limit.algorithm else { return };
        let (length, kept) = (self.length, self.last());
        self.units.retain(|unit| at < unit.at + length || Some(unit.at) == kept);
        (self.gap, self.most) = (gap, ceil(limit.deepest()) as usize);
    }

    /// Units of that instant; without a stamp the oldest.
    pub(super) fn refund(&mut self, at: u64, amount: u64, stamp: Option<Stamp>) -> u64 {
        let (mut accepted, length) = (0, self.length);
        self.units.retain(|unit| {
            let is_meant = at < unit.at + length && stamp.is_none_or(|stamp| stamp == Stamp::Time(unit.at));
            let given_back = is_meant && accepted < amount;
            accepted += u64::from(given_back);
            !given_back
        });
        accepted
    }
}
