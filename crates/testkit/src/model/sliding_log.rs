//! Definition of a sliding log: every admitted unit (and every refused unit, if configured) is stored, and all units
//! are counted again for every request.

use tollgate_core::{Ask, LimitError, Nanos, Now, Outcome, Report, Retry, SlidingLog};

use super::{Law, Model, ModelAnswer, time_until};

/// The instants of all units, oldest first.
#[derive(Clone, Debug)]
pub struct SlidingLogModel {
    params: LogParams,
    units: Vec<u64>,
    /// Number of units at the start of the list that belong to no request, because a new key starts partly used.
    initial_units: usize,
    /// Instant of each charge, by receipt.
    charge_times: Vec<u64>,
}

/// Parameters of a sliding log: at most `limit` units in any window of `length`.
#[derive(Clone, Copy, Debug)]
pub struct LogParams {
    /// Maximum per window.
    pub limit: u64,
    /// Length of the window in nanoseconds.
    pub length: u64,
    /// Maximum debt, in addition to `limit`.
    pub max_debt: u64,
    /// Remaining amount of a new key.
    pub initial: u64,
    /// Minimum time between two requests, in nanoseconds.
    pub gap: u64,
    /// Whether refused requests are recorded as if they had passed.
    pub count_refused: bool,
}

impl LogParams {
    /// Returns the limit with these parameters.
    ///
    /// # Errors
    /// Returns the errors of the limit's constructor.
    pub fn limit(&self) -> Result<SlidingLog, LimitError> {
        let limit = SlidingLog::new(self.limit, Nanos::from_nanos(self.length))?.max_debt(self.max_debt)?;
        let limit = limit.initial(self.initial)?.minimum_gap(Nanos::from_nanos(self.gap))?;
        Ok(if self.count_refused { limit.count_refused() } else { limit })
    }
}

impl SlidingLogModel {
    /// Returns a log in which all units of the limit except `initial` were taken at `now`.
    pub fn new(params: LogParams, now: &Now<'_>) -> Self {
        let mut new = Self { params, units: Vec::new(), initial_units: 0, charge_times: Vec::new() };
        new.restart(now);
        new
    }

    /// Changes the parameters. Keeps the units in the window, and the request after which the minimum gap is
    /// measured. Keeps at most the new maximum number of units.
    pub fn change_params(&mut self, params: LogParams, now: &Now<'_>) {
        let now = now.mono().as_nanos();
        let inside = self.units_inside(now);
        let kept = inside.max(usize::from(self.time_until_gap_ends(now) > 0));
        self.drop_oldest(self.units.len() - kept);
        // The amount used now stays the same, even if the new window is shorter.
        let oldest = (now + 1).saturating_sub(params.length);
        let from = self.units.len() - inside;
        self.units[from..].iter_mut().for_each(|unit| *unit = oldest.max(*unit));
        self.params = params;
        self.drop_excess_units();
    }

    /// Returns the number of units in `(at − length, at]`.
    fn units_inside(&self, at: u64) -> usize {
        self.units.iter().filter(|&&unit| unit + self.params.length > at).count()
    }

    fn record_units(&mut self, at: u64, cost: u64) {
        self.units.extend((0..cost).map(|_| at));
        self.drop_excess_units();
    }

    /// Drops the oldest units beyond limit plus debt, because they can no longer matter.
    fn drop_excess_units(&mut self) {
        let most = (self.params.limit + self.params.max_debt) as usize;
        self.drop_oldest(self.units.len().saturating_sub(most));
    }

    fn drop_oldest(&mut self, count: usize) {
        self.units.drain(..count);
        self.initial_units = self.initial_units.saturating_sub(count);
    }

    /// Returns the time of the last request, if any.
    fn last_request(&self) -> Option<&u64> {
        self.units.last().filter(|_| self.units.len() > self.initial_units)
    }

    fn time_until_gap_ends(&self, now: u64) -> u64 {
        self.last_request().map_or(0, |last| (last + self.params.gap).saturating_sub(now))
    }

    /// Returns whether `cost` passes at `at`: the units in the window plus `cost` are at most `ceiling`,
    /// and the minimum gap has passed.
    fn passes(&self, at: u64, cost: u64, ceiling: u64, gap: u64) -> bool {
        let apart = cost == 0 || self.last_request().is_none_or(|last| last + gap <= at);
        apart && cost <= ceiling && self.units_inside(at) as u64 <= ceiling - cost
    }

    fn time_until_unused(&self, now: u64) -> u64 {
        let inside = self.units.last().map_or(0, |last| (last + self.params.length).saturating_sub(now));
        inside.max(self.time_until_gap_ends(now))
    }

    fn take(&mut self, now: u64, cost: u64, ceiling: u64, gap: u64) -> ModelAnswer {
        let passes = self.passes(now, cost, ceiling, gap);
        let outcome = if cost > ceiling {
            Outcome::Deny(Retry::Never)
        } else if passes {
            self.charge_times.push(now);
            Outcome::Allow
        } else {
            Outcome::Deny(Retry::NOW)
        };
        if outcome == Outcome::Allow || self.params.count_refused && cost <= ceiling {
            self.record_units(now, cost);
        }
        let taken = if outcome == Outcome::Allow { cost } else { 0 };
        ModelAnswer { outcome, taken, receipt: self.charge_times.len().saturating_sub(1) }
    }
}

impl Model for SlidingLogModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> ModelAnswer {
        let (now, LogParams { limit, max_debt, gap, .. }) = (now.mono().as_nanos(), self.params);
        let cost = ask.cost().get();
        let mut answer = match ask {
            Ask::Exactly(_) => self.take(now, cost, limit, gap),
            Ask::Regardless(_) => self.take(now, cost, limit + max_debt, 0),
            Ask::UpTo(_) if cost == 0 => ModelAnswer { outcome: Outcome::Allow, taken: 0, receipt: 0 },
            Ask::UpTo(_) => {
                let most = limit.saturating_sub(self.units_inside(now) as u64).min(cost);
                self.take(now, most.max(1), limit, gap)
            }
        };
        // The wait assumes that the caller sends nothing in the meantime, and that the refused
        // request itself may have been recorded.
        if answer.outcome == Outcome::Deny(Retry::NOW) {
            let wait = time_until(now, |later| match ask {
                Ask::Exactly(_) => self.passes(later, cost, limit, gap),
                Ask::Regardless(_) => self.passes(later, cost, limit + max_debt, 0),
                Ask::UpTo(_) => self.passes(later, 1, limit, gap),
            });
            answer.outcome = Outcome::Deny(Retry::After(wait));
        }
        answer
    }

    /// Refunds units that are still in the window. With a receipt, refunds the units of its instant;
    /// otherwise, refunds the oldest units.
    fn refund(&mut self, now: &Now<'_>, cost: u64, receipt: Option<usize>) -> u64 {
        let now = now.mono().as_nanos();
        let taken = receipt.map(|receipt| self.charge_times[receipt]);
        let length = self.params.length;
        let given = (0..self.units.len()).filter(|place| {
            let unit = self.units[*place];
            unit + length > now && taken.is_none_or(|at| at == unit)
        });
        let mut given: Vec<usize> = given.collect();
        if taken.is_some() {
            given.reverse();
        }
        given.truncate(cost.min(1 << 20) as usize);
        given.sort_unstable();
        for place in given.iter().rev() {
            self.units.remove(*place);
            self.initial_units -= usize::from(*place < self.initial_units);
        }
        given.len() as u64
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let (now, LogParams { limit, gap, .. }) = (now.mono().as_nanos(), self.params);
        let retry = if cost > limit {
            Retry::Never
        } else {
            Retry::After(time_until(now, |later| self.passes(later, cost, limit, gap)))
        };
        Report {
            limit,
            remaining: limit.saturating_sub(self.units_inside(now) as u64),
            retry,
            reset: Nanos::from_nanos(self.time_until_unused(now)),
        }
    }

    fn is_exempt_from(&self, law: Law) -> bool {
        match law {
            Law::RefusalChangesNothing => self.params.count_refused,
            Law::RemainingPasses | Law::SinglyPasses => self.params.gap > 0,
            Law::SameWords => false,
        }
    }

    fn restart(&mut self, now: &Now<'_>) {
        self.units.clear();
        self.charge_times.clear();
        self.record_units(now.mono().as_nanos(), self.params.limit - self.params.initial);
        self.initial_units = self.units.len();
    }
}
