//! The fixed window by its definition: what was counted in which window, and what of it is debt for the next ones.

use std::collections::BTreeMap;

use tollgate_core::{Ask, FixedWindow, LimitError, Nanos, Now, Outcome, Phase, Report, Retry, SlidingWindow};

use super::{Answer, Model, first_wait};

/// `limit` per window of `length`, fixed or sliding.
#[derive(Clone, Copy, Debug)]
pub struct WindowNumbers {
    /// The most per window.
    pub limit: u64,
    /// How long a window is.
    pub length: u64,
    /// How much more may be counted by charges.
    pub max_debt: u64,
    /// What a new key has left.
    pub initial: u64,
    /// Where the windows lie; at multiples of the length if they slide.
    pub phase: Phase,
}

impl WindowNumbers {
    /// The same numbers for the implementation.
    ///
    /// # Errors
    /// As the implementation says.
    pub fn fixed(&self) -> Result<FixedWindow, LimitError> {
        let limit = FixedWindow::new(self.limit, Nanos::from_nanos(self.length))?.phase(self.phase);
        limit.max_debt(self.max_debt)?.initial(self.initial)
    }

    /// The same numbers for the implementation that slides.
    ///
    /// # Errors
    /// As the implementation says.
    pub fn sliding(&self) -> Result<SlidingWindow, LimitError> {
        SlidingWindow::new(self.limit, Nanos::from_nanos(self.length))?.max_debt(self.max_debt)?.initial(self.initial)
    }
}

/// Counts by window. Windows of irregular length are handed in, and have no debt here.
#[derive(Clone, Debug)]
pub struct FixedWindowModel {
    numbers: WindowNumbers,
    /// Where windows counted from the first request began, or where those at multiples would have.
    origin: u64,
    /// What was taken in each window, by its first instant, less what was given back in it.
    counts: BTreeMap<i128, i128>,
    /// The window of each taking, by its end.
    takings: Vec<u64>,
}

impl FixedWindowModel {
    /// Nothing counted but what a new key does not have.
    pub fn new(numbers: WindowNumbers, now: &Now<'_>) -> Self {
        let mut new = Self { numbers, origin: 0, counts: BTreeMap::new(), takings: Vec::new() };
        new.restart(now);
        new
    }

    /// Other numbers from now on. What was used stays used, in the same window if windows lie as they did; what is above the
    /// new limit without having been debt is not debt now.
    pub fn change(&mut self, numbers: WindowNumbers, now: &Now<'_>) {
        let used = self.used(now, self.at(now));
        let same = (self.numbers.phase, self.numbers.length) == (numbers.phase, numbers.length);
        let origin = self.origin;
        self.numbers = numbers;
        self.anchor(now);
        if same && used > 0 {
            self.origin = origin;
        }
        self.add(now, used);
    }

    /// The instant on the clock that the windows are told by.
    fn at(&self, now: &Now<'_>) -> u64 {
        if self.numbers.phase == Phase::FirstRequest { now.mono().as_nanos() } else { now.wall().as_nanos() }
    }

    /// Begins anew, with windows that lie as they do around now.
    fn anchor(&mut self, now: &Now<'_>) {
        self.counts.clear();
        self.origin = match self.numbers.phase {
            Phase::Epoch | Phase::Given(_) => 0,
            Phase::Spread => now.spread() % self.numbers.length,
            Phase::FirstRequest => self.at(now),
        };
    }

    /// The first instant of the window around `at`, and the first after it.
    fn window(&self, now: &Now<'_>, at: u64) -> (i128, i128) {
        if let Phase::Given(position) = self.numbers.phase {
            let window = now.window(position).expect("a window handed in");
            return (window.start().as_nanos().into(), window.end().as_nanos().into());
        }
        let (length, origin) = (i128::from(self.numbers.length), i128::from(self.origin));
        let start = origin + (i128::from(at) - origin).div_euclid(length) * length;
        (start, start + length)
    }

    /// What counts as used at `at`: what was taken in that window, and the debt of earlier ones, which each window pays
    /// one limit of.
    fn used(&self, now: &Now<'_>, at: u64) -> i128 {
        if let Phase::Given(_) = self.numbers.phase {
            let (start, end) = self.window(now, self.at(now));
            let counted = self.counts.range(start..).map(|(_, count)| count).sum();
            return if i128::from(at) < end { counted } else { 0 };
        }
        let (limit, length) = (i128::from(self.numbers.limit), i128::from(self.numbers.length));
        let (mut used, mut last) = (0, 0);
        let present = self.window(now, at).0;
        for (&start, count) in &self.counts {
            let windows = (start - last) / length;
            (used, last) = ((used - windows * limit).max(0) + count, start);
        }
        (used - (present - last) / length * limit).max(0)
    }

    fn add(&mut self, now: &Now<'_>, count: i128) {
        let (start, _) = self.window(now, self.at(now));
        *self.counts.entry(start).or_default() += count;
    }

    fn end(&self, now: &Now<'_>) -> u64 {
        self.window(now, self.at(now)).1 as u64
    }
}

impl Model for FixedWindowModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> Answer {
        let at = self.at(now);
        if self.numbers.phase == Phase::FirstRequest && self.used(now, at) == 0 {
            self.anchor(now);
        }
        let (limit, used) = (i128::from(self.numbers.limit), self.used(now, at));
        let deepest = limit + i128::from(self.numbers.max_debt);
        let cost = i128::from(ask.cost().get());
        let (cost, ceiling) = match ask {
            Ask::Exactly(_) => (cost, limit),
            Ask::Regardless(_) => (cost, deepest),
            // Nothing asked for is nothing refused, even in debt.
            Ask::UpTo(_) if cost == 0 => (0, i128::MAX),
            Ask::UpTo(_) => (cost.min((limit - used).max(1)), limit),
        };
        let receipt = self.takings.len();
        if used + cost <= ceiling {
            self.takings.push(self.end(now));
            self.add(now, cost);
            return Answer { outcome: Outcome::Allow, taken: cost as u64, receipt };
        }
        let retry = if cost > ceiling {
            Retry::Never
        } else {
            Retry::After(first_wait(at, |later| self.used(now, later) + cost <= ceiling))
        };
        Answer { outcome: Outcome::Deny(retry), taken: 0, receipt }
    }

    /// Only in the present window, and no more than is used in it.
    fn refund(&mut self, now: &Now<'_>, cost: u64, receipt: Option<usize>) -> u64 {
        let used = self.used(now, self.at(now));
        if used == 0 || receipt.is_some_and(|receipt| self.takings[receipt] != self.end(now)) {
            return 0;
        }
        let accepted = used.min(cost.into());
        self.add(now, -accepted);
        accepted as u64
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let (at, limit) = (self.at(now), i128::from(self.numbers.limit));
        let cost = i128::from(cost);
        let retry = if cost > limit {
            Retry::Never
        } else {
            Retry::After(first_wait(at, |later| self.used(now, later) + cost <= limit))
        };
        Report {
            limit: self.numbers.limit,
            remaining: (limit - self.used(now, at)).max(0) as u64,
            retry,
            reset: first_wait(at, |later| self.used(now, later) == 0),
        }
    }

    fn restart(&mut self, now: &Now<'_>) {
        self.takings.clear();
        self.anchor(now);
        self.add(now, (self.numbers.limit - self.numbers.initial).into());
    }
}
