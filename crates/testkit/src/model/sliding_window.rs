//! Definition of a sliding window: the count of the current window, plus the previous window's
//! count in proportion to its overlap.

use std::collections::BTreeMap;

use tollgate_core::{Ask, Nanos, Now, Outcome, Report, Retry};

use super::{Model, ModelAnswer, WindowParams, time_until};

/// Counts per window. Windows start at multiples of the length.
#[derive(Clone, Debug)]
pub struct SlidingWindowModel {
    params: WindowParams,
    counts: BTreeMap<u64, u64>,
    /// Window end of each charge, by receipt.
    charge_window_ends: Vec<u64>,
}

impl SlidingWindowModel {
    /// Returns a model of a new key, with all but `initial` used.
    pub fn new(params: WindowParams, now: &Now<'_>) -> Self {
        let mut new = Self { params, counts: BTreeMap::new(), charge_window_ends: Vec::new() };
        new.restart(now);
        new
    }

    /// Changes the parameters. Windows of the same length keep their counts, unless the previous count exceeds the new
    /// limit plus debt. In all other cases, the estimate is rounded up, capped at limit plus debt, and counted in the
    /// current window.
    pub fn change_params(&mut self, params: WindowParams, now: &Now<'_>) {
        let at = now.wall().as_nanos();
        let most = params.limit + params.max_debt;
        let before = self.window_index(at).checked_sub(1).and_then(|before| self.counts.get(&before));
        if self.params.length == params.length && before.is_none_or(|before| *before <= most) {
            self.params = params;
            return;
        }
        let spent = self.estimate(at).div_ceil(self.params.length.into());
        self.params = params;
        let kept = spent.min(most.into()) as u64;
        self.counts = BTreeMap::from([(self.window_index(at), kept)]);
    }

    /// Returns the index of the window that contains `at`.
    fn window_index(&self, at: u64) -> u64 {
        at / self.params.length
    }

    fn window_end(&self, window: u64) -> u64 {
        (window + 1) * self.params.length
    }

    fn window_count(&self, window: u64) -> u64 {
        self.counts.get(&window).copied().unwrap_or(0)
    }

    fn previous_count(&self, at: u64) -> u64 {
        self.window_index(at).checked_sub(1).map_or(0, |window| self.window_count(window))
    }

    /// Returns the estimate for the last `length` nanoseconds, multiplied by `length` to make it an
    /// integer.
    fn estimate(&self, at: u64) -> u128 {
        let overlap = self.window_end(self.window_index(at)) - at;
        u128::from(self.previous_count(at)) * u128::from(overlap)
            + self.times_length(self.window_count(self.window_index(at)))
    }

    fn times_length(&self, amount: u64) -> u128 {
        u128::from(amount) * u128::from(self.params.length)
    }

    fn passes(&self, at: u64, cost: u64, ceiling: u64) -> bool {
        cost <= ceiling && self.estimate(at) <= self.times_length(ceiling - cost)
    }

    fn remaining(&self, at: u64) -> u64 {
        let room = self.times_length(self.params.limit).saturating_sub(self.estimate(at));
        (room / u128::from(self.params.length)) as u64
    }

    fn retry(&self, at: u64, cost: u64, ceiling: u64) -> Retry {
        if cost > ceiling {
            return Retry::Never;
        }
        Retry::After(time_until(at, |later| self.passes(later, cost, ceiling)))
    }
}

impl Model for SlidingWindowModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> ModelAnswer {
        let (at, limit) = (now.wall().as_nanos(), self.params.limit);
        let receipt = self.charge_window_ends.len();
        let (cost, ceiling) = match ask {
            Ask::Exactly(cost) => (cost.get(), limit),
            Ask::Regardless(cost) => (cost.get(), limit + self.params.max_debt),
            // An `UpTo` ask of cost 0 is never refused, even in debt.
            Ask::UpTo(cost) if cost.get() == 0 => return ModelAnswer { outcome: Outcome::Allow, taken: 0, receipt },
            Ask::UpTo(cost) => (cost.get().min(self.remaining(at).max(1)), limit),
        };
        if !self.passes(at, cost, ceiling) {
            return ModelAnswer { outcome: Outcome::Deny(self.retry(at, cost, ceiling)), taken: 0, receipt };
        }
        let window = self.window_index(at);
        self.charge_window_ends.push(self.window_end(window));
        *self.counts.entry(window).or_default() += cost;
        ModelAnswer { outcome: Outcome::Allow, taken: cost, receipt }
    }

    /// Refunds at most the amount counted in the window of the charge, if that window still counts. Without a
    /// receipt, refunds in the current window.
    fn refund(&mut self, now: &Now<'_>, cost: u64, receipt: Option<usize>) -> u64 {
        let present = self.window_index(now.wall().as_nanos());
        let end = receipt.map_or(self.window_end(present), |receipt| self.charge_window_ends[receipt]);
        let found = [Some(present), present.checked_sub(1)]
            .into_iter()
            .flatten()
            .find(|&window| self.window_end(window) == end);
        let Some(count) = found.and_then(|window| self.counts.get_mut(&window)) else { return 0 };
        let accepted = cost.min(*count);
        *count -= accepted;
        accepted
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let at = now.wall().as_nanos();
        let present = self.window_index(at);
        let reset = if self.window_count(present) > 0 {
            self.window_end(present + 1) - at
        } else if self.previous_count(at) > 0 {
            self.window_end(present) - at
        } else {
            0
        };
        let limit = self.params.limit;
        Report {
            limit,
            remaining: self.remaining(at),
            retry: self.retry(at, cost, limit),
            reset: Nanos::from_nanos(reset),
        }
    }

    fn restart(&mut self, now: &Now<'_>) {
        self.charge_window_ends.clear();
        let used = self.params.limit - self.params.initial;
        self.counts = BTreeMap::from([(self.window_index(now.wall().as_nanos()), used)]);
    }
}
