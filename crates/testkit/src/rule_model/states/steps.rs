//! Interval buckets: every step reduces the spent amount by the refill.

use super::super::limit::{Algorithm, Limit, StepAlignment};
use super::super::{Tokens, floor, whole_tokens};
use super::{Stamp, When};

#[derive(Clone, Debug)]
pub(super) struct Steps {
    pub(super) grid: StepAlignment,
    period: u64,
    /// Tokens per step.
    refill: u64,
    /// Time of one step.
    origin: u64,
    /// Amount missing from a full bucket at `at`.
    owed: u64,
    at: u64,
}

impl Steps {
    pub(super) fn new(limit: &Limit, grid: StepAlignment, owed: u64, at: u64) -> Self {
        let origin = match grid {
            StepAlignment::Aligned(offset) => offset,
            StepAlignment::FirstRequest => at,
        };
        Self { grid, period: limit.period, refill: limit.count, origin, owed, at }
    }

    fn step_number(&self, at: u64) -> i128 {
        (i128::from(at) - i128::from(self.origin)).div_euclid(self.period.into())
    }

    fn owed_at(&self, at: u64) -> u64 {
        let steps = u64::try_from(self.step_number(at) - self.step_number(self.at)).expect("time goes forward");
        self.owed.saturating_sub(steps.saturating_mul(self.refill))
    }

    pub(super) fn spent(&self, at: u64) -> Tokens {
        whole_tokens(self.owed_at(at))
    }

    pub(super) fn when_spent_at_most(&self, at: u64, room: Tokens) -> When {
        let over = self.owed_at(at) - floor(room);
        let steps = self.step_number(at) + i128::from(over.div_ceil(self.refill));
        When::At(u64::try_from(steps * i128::from(self.period) + i128::from(self.origin)).expect("a positive time"))
    }

    /// Returns the time from which steps are counted after a charge at `at`. With `FirstRequest`, a charge to a full
    /// bucket restarts the steps.
    pub(super) fn step_time_for(&self, at: u64) -> u64 {
        if self.grid == StepAlignment::FirstRequest && self.owed_at(at) == 0 { at } else { self.origin }
    }

    pub(super) fn charge(&mut self, at: u64, amount: u64) -> Stamp {
        let (owed, origin) = (self.owed_at(at), self.step_time_for(at));
        (self.owed, self.origin, self.at) = (owed + amount, origin, at);
        Stamp::Anywhere
    }

    pub(super) fn adopt(&mut self, limit: &Limit, at: u64) {
        let Algorithm::IntervalBucket { grid, .. } = limit.algorithm else { return };
        let (owed, origin) = (self.owed_at(at), self.step_time_for(at));
        *self = Self { origin, ..Self::new(limit, grid, owed, at) };
    }

    pub(super) fn refund(&mut self, at: u64, amount: u64, _: Option<Stamp>) -> u64 {
        let owed = self.owed_at(at);
        (self.owed, self.at) = (owed.saturating_sub(amount), at);
        amount.min(owed)
    }
}
