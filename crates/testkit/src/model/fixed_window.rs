//! Definition of a fixed window: a count per window, and debt that later windows pay off.

use std::collections::BTreeMap;

use tollgate_core::{Ask, FixedWindow, LimitError, Nanos, Now, Outcome, Phase, Report, Retry, SlidingWindow};

use super::{Model, ModelAnswer, time_until};

/// Parameters of a fixed or sliding window: at most `limit` per `length`.
#[derive(Clone, Copy, Debug)]
pub struct WindowParams {
    /// Maximum count per window.
    pub limit: u64,
    /// Length of a window in nanoseconds.
    pub length: u64,
    /// Maximum debt, in addition to `limit`.
    pub max_debt: u64,
    /// Remaining amount of a new key.
    pub initial: u64,
    /// Alignment of the windows. Sliding windows always start at multiples of the length.
    pub phase: Phase,
}

impl WindowParams {
    /// Returns the fixed window with these parameters.
    ///
    /// # Errors
    /// Returns the errors of the limit's constructor.
    pub fn fixed_window(&self) -> Result<FixedWindow, LimitError> {
        let limit = FixedWindow::new(self.limit, Nanos::from_nanos(self.length))?.phase(self.phase);
        limit.max_debt(self.max_debt)?.initial(self.initial)
    }

    /// Returns the sliding window with these parameters.
    ///
    /// # Errors
    /// Returns the errors of the limit's constructor.
    pub fn sliding_window(&self) -> Result<SlidingWindow, LimitError> {
        SlidingWindow::new(self.limit, Nanos::from_nanos(self.length))?.max_debt(self.max_debt)?.initial(self.initial)
    }
}

/// Counts per window. Calendar windows have irregular lengths, and in this model they carry no debt.
#[derive(Clone, Debug)]
pub struct FixedWindowModel {
    params: WindowParams,
    /// Start of one window: the first request, or an aligned instant.
    origin: u64,
    /// Net charges of each window, by window start.
    counts: BTreeMap<i128, i128>,
    /// Window end of each charge, by receipt.
    charge_window_ends: Vec<u64>,
}

impl FixedWindowModel {
    /// Returns a model of a new key, with all but `initial` used.
    pub fn new(params: WindowParams, now: &Now<'_>) -> Self {
        let mut new = Self { params, origin: 0, counts: BTreeMap::new(), charge_window_ends: Vec::new() };
        new.restart(now);
        new
    }

    /// Changes the parameters. The used amount is kept, in the same window if the alignment is unchanged. An excess
    /// over the new limit counts as debt.
    pub fn change_params(&mut self, params: WindowParams, now: &Now<'_>) {
        let used = self.used_at(now, self.window_clock_time(now));
        let same = (self.params.phase, self.params.length) == (params.phase, params.length);
        let origin = self.origin;
        self.params = params;
        self.restart_windows(now);
        if same && used > 0 {
            self.origin = origin;
        }
        self.add_to_window(now, used);
    }

    /// Returns the reading of the clock to which the windows are aligned.
    fn window_clock_time(&self, now: &Now<'_>) -> u64 {
        if self.params.phase == Phase::FirstRequest { now.mono().as_nanos() } else { now.wall().as_nanos() }
    }

    /// Clears all counts and aligns the windows at `now`.
    fn restart_windows(&mut self, now: &Now<'_>) {
        self.counts.clear();
        self.origin = match self.params.phase {
            Phase::Epoch | Phase::Given(_) => 0,
            Phase::Spread => now.spread() % self.params.length,
            Phase::FirstRequest => self.window_clock_time(now),
        };
    }

    /// Returns the start and end of the window that contains `at`.
    fn window_around(&self, now: &Now<'_>, at: u64) -> (i128, i128) {
        if let Phase::Given(position) = self.params.phase {
            let window = now.window(position).expect("`now` contains the calendar window");
            return (window.start().as_nanos().into(), window.end().as_nanos().into());
        }
        let (length, origin) = (i128::from(self.params.length), i128::from(self.origin));
        let start = origin + (i128::from(at) - origin).div_euclid(length) * length;
        (start, start + length)
    }

    /// Returns the amount used at `at`: the charges in that window plus the remaining debt of earlier windows. Each
    /// window pays off `limit` of the debt.
    fn used_at(&self, now: &Now<'_>, at: u64) -> i128 {
        if let Phase::Given(_) = self.params.phase {
            let (start, end) = self.window_around(now, self.window_clock_time(now));
            let counted = self.counts.range(start..).map(|(_, count)| count).sum();
            return if i128::from(at) < end { counted } else { 0 };
        }
        let (limit, length) = (i128::from(self.params.limit), i128::from(self.params.length));
        let (mut used, mut last) = (0, 0);
        let present = self.window_around(now, at).0;
        for (&start, count) in &self.counts {
            let windows = (start - last) / length;
            (used, last) = ((used - windows * limit).max(0) + count, start);
        }
        (used - (present - last) / length * limit).max(0)
    }

    fn add_to_window(&mut self, now: &Now<'_>, count: i128) {
        let (start, _) = self.window_around(now, self.window_clock_time(now));
        *self.counts.entry(start).or_default() += count;
    }

    fn window_end(&self, now: &Now<'_>) -> u64 {
        self.window_around(now, self.window_clock_time(now)).1 as u64
    }
}

impl Model for FixedWindowModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> ModelAnswer {
        let at = self.window_clock_time(now);
        if self.params.phase == Phase::FirstRequest && self.used_at(now, at) == 0 {
            self.restart_windows(now);
        }
        let (limit, used) = (i128::from(self.params.limit), self.used_at(now, at));
        let deepest = limit + i128::from(self.params.max_debt);
        let cost = i128::from(ask.cost().get());
        let (cost, ceiling) = match ask {
            Ask::Exactly(_) => (cost, limit),
            Ask::Regardless(_) => (cost, deepest),
            // An `UpTo` ask of cost 0 is never refused, even in debt.
            Ask::UpTo(_) if cost == 0 => (0, i128::MAX),
            Ask::UpTo(_) => (cost.min((limit - used).max(1)), limit),
        };
        let receipt = self.charge_window_ends.len();
        if used + cost <= ceiling {
            self.charge_window_ends.push(self.window_end(now));
            self.add_to_window(now, cost);
            return ModelAnswer { outcome: Outcome::Allow, taken: cost as u64, receipt };
        }
        let retry = if cost > ceiling {
            Retry::Never
        } else {
            Retry::After(time_until(at, |later| self.used_at(now, later) + cost <= ceiling))
        };
        ModelAnswer { outcome: Outcome::Deny(retry), taken: 0, receipt }
    }

    /// Refunds only charges of the current window, and at most the amount used in it.
    fn refund(&mut self, now: &Now<'_>, cost: u64, receipt: Option<usize>) -> u64 {
        let used = self.used_at(now, self.window_clock_time(now));
        if used == 0 || receipt.is_some_and(|receipt| self.charge_window_ends[receipt] != self.window_end(now)) {
            return 0;
        }
        let accepted = used.min(cost.into());
        self.add_to_window(now, -accepted);
        accepted as u64
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let (at, limit) = (self.window_clock_time(now), i128::from(self.params.limit));
        let cost = i128::from(cost);
        let retry = if cost > limit {
            Retry::Never
        } else {
            Retry::After(time_until(at, |later| self.used_at(now, later) + cost <= limit))
        };
        Report {
            limit: self.params.limit,
            remaining: (limit - self.used_at(now, at)).max(0) as u64,
            retry,
            reset: time_until(at, |later| self.used_at(now, later) == 0),
        }
    }

    fn restart(&mut self, now: &Now<'_>) {
        self.charge_window_ends.clear();
        self.restart_windows(now);
        self.add_to_window(now, (self.params.limit - self.params.initial).into());
    }
}
