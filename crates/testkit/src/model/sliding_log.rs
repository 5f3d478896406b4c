//! The sliding log by its definition: everything that passed is written down, and counted anew on every question.

use tollgate_core::{Ask, LimitError, Nanos, Now, Outcome, Report, Retry, SlidingLog};

use super::{Answer, Law, Model, first_wait};

/// A list of units, each with the instant at which it passed and the taking it belongs to, oldest first.
#[derive(Clone, Debug)]
pub struct SlidingLogModel {
    numbers: LogNumbers,
    units: Vec<u64>,
    /// How many of them, the oldest, stand for no request.
    opening: usize,
    /// When each taking was made.
    takings: Vec<u64>,
}

/// At most `limit` inside any window of `length`.
#[derive(Clone, Copy, Debug)]
pub struct LogNumbers {
    /// The most inside a window.
    pub limit: u64,
    /// The length of the window.
    pub length: u64,
    /// How much more may be inside by charges.
    pub max_debt: u64,
    /// What a new key has left.
    pub initial: u64,
    /// How long after the previous unit the next may pass.
    pub gap: u64,
    /// Whether refused attempts are written down as if they had passed.
    pub count_refused: bool,
}

impl LogNumbers {
    /// The same numbers for the implementation.
    ///
    /// # Errors
    /// As the implementation says.
    pub fn limit(&self) -> Result<SlidingLog, LimitError> {
        let limit = SlidingLog::new(self.limit, Nanos::from_nanos(self.length))?.max_debt(self.max_debt)?;
        let limit = limit.initial(self.initial)?.minimum_gap(Nanos::from_nanos(self.gap))?;
        Ok(if self.count_refused { limit.count_refused() } else { limit })
    }
}

impl SlidingLogModel {
    /// A log of which all but `initial` was taken at `now`.
    pub fn new(numbers: LogNumbers, now: &Now<'_>) -> Self {
        let mut new = Self { numbers, units: Vec::new(), opening: 0, takings: Vec::new() };
        new.restart(now);
        new
    }

    /// Other numbers from now on: what was inside, or held back the next by the gap, is kept as far as it fits.
    pub fn change(&mut self, numbers: LogNumbers, now: &Now<'_>) {
        let now = now.mono().as_nanos();
        let inside = self.inside(now);
        let kept = inside.max(usize::from(self.until_gap(now) > 0));
        self.drop_oldest(self.units.len() - kept);
        // At this instant as much is used as before, though the new window may be shorter.
        let oldest = (now + 1).saturating_sub(numbers.length);
        let from = self.units.len() - inside;
        self.units[from..].iter_mut().for_each(|unit| *unit = oldest.max(*unit));
        self.numbers = numbers;
        self.forget();
    }

    /// How many units passed in `(at − length, at]`.
    fn inside(&self, at: u64) -> usize {
        self.units.iter().filter(|&&unit| unit + self.numbers.length > at).count()
    }

    fn write(&mut self, at: u64, cost: u64) {
        self.units.extend((0..cost).map(|_| at));
        self.forget();
    }

    /// Only as many units are remembered as can matter: limit and debt.
    fn forget(&mut self) {
        let most = (self.numbers.limit + self.numbers.max_debt) as usize;
        self.drop_oldest(self.units.len().saturating_sub(most));
    }

    fn drop_oldest(&mut self, count: usize) {
        self.units.drain(..count);
        self.opening = self.opening.saturating_sub(count);
    }

    /// The last request, if there was any.
    fn last_request(&self) -> Option<&u64> {
        self.units.last().filter(|_| self.units.len() > self.opening)
    }

    fn until_gap(&self, now: u64) -> u64 {
        self.last_request().map_or(0, |last| (last + self.numbers.gap).saturating_sub(now))
    }

    /// Whether `cost` passes at `at`: it fits below `ceiling`, and comes `gap` after the previous.
    fn passes(&self, at: u64, cost: u64, ceiling: u64, gap: u64) -> bool {
        let apart = cost == 0 || self.last_request().is_none_or(|last| last + gap <= at);
        apart && cost <= ceiling && self.inside(at) as u64 <= ceiling - cost
    }

    fn until_new(&self, now: u64) -> u64 {
        let inside = self.units.last().map_or(0, |last| (last + self.numbers.length).saturating_sub(now));
        inside.max(self.until_gap(now))
    }

    fn take(&mut self, now: u64, cost: u64, ceiling: u64, gap: u64) -> Answer {
        let passes = self.passes(now, cost, ceiling, gap);
        let outcome = if cost > ceiling {
            Outcome::Deny(Retry::Never)
        } else if passes {
            self.takings.push(now);
            Outcome::Allow
        } else {
            Outcome::Deny(Retry::NOW)
        };
        if outcome == Outcome::Allow || self.numbers.count_refused && cost <= ceiling {
            self.write(now, cost);
        }
        let taken = if outcome == Outcome::Allow { cost } else { 0 };
        Answer { outcome, taken, receipt: self.takings.len().saturating_sub(1) }
    }
}

impl Model for SlidingLogModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> Answer {
        let (now, LogNumbers { limit, max_debt, gap, .. }) = (now.mono().as_nanos(), self.numbers);
        let cost = ask.cost().get();
        let mut answer = match ask {
            Ask::Exactly(_) => self.take(now, cost, limit, gap),
            Ask::Regardless(_) => self.take(now, cost, limit + max_debt, 0),
            Ask::UpTo(_) if cost == 0 => Answer { outcome: Outcome::Allow, taken: 0, receipt: 0 },
            Ask::UpTo(_) => {
                let most = limit.saturating_sub(self.inside(now) as u64).min(cost);
                self.take(now, most.max(1), limit, gap)
            }
        };
        // The wait is that of a caller who waits quietly from here on, with the attempt itself written down or not.
        if answer.outcome == Outcome::Deny(Retry::NOW) {
            let wait = first_wait(now, |later| match ask {
                Ask::Exactly(_) => self.passes(later, cost, limit, gap),
                Ask::Regardless(_) => self.passes(later, cost, limit + max_debt, 0),
                Ask::UpTo(_) => self.passes(later, 1, limit, gap),
            });
            answer.outcome = Outcome::Deny(Retry::After(wait));
        }
        answer
    }

    /// With a receipt, units of that instant; without one, the oldest; only what is still inside.
    fn refund(&mut self, now: &Now<'_>, cost: u64, receipt: Option<usize>) -> u64 {
        let now = now.mono().as_nanos();
        let taken = receipt.map(|receipt| self.takings[receipt]);
        let length = self.numbers.length;
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
            self.opening -= usize::from(*place < self.opening);
        }
        given.len() as u64
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let (now, LogNumbers { limit, gap, .. }) = (now.mono().as_nanos(), self.numbers);
        let retry = if cost > limit {
            Retry::Never
        } else {
            Retry::After(first_wait(now, |later| self.passes(later, cost, limit, gap)))
        };
        Report {
            limit,
            remaining: limit.saturating_sub(self.inside(now) as u64),
            retry,
            reset: Nanos::from_nanos(self.until_new(now)),
        }
    }

    fn lifts(&self, law: Law) -> bool {
        match law {
            Law::RefusalChangesNothing => self.numbers.count_refused,
            Law::RemainingPasses | Law::SinglyPasses => self.numbers.gap > 0,
            Law::SameWords => false,
        }
    }

    fn restart(&mut self, now: &Now<'_>) {
        self.units.clear();
        self.takings.clear();
        self.write(now.mono().as_nanos(), self.numbers.limit - self.numbers.initial);
        self.opening = self.units.len();
    }
}
