//! The interval bucket by its definition: a number of tokens, which every step of the grid adds to, up to the burst.

use tollgate_core::{Ask, IntervalBucket, LimitError, Nanos, Now, Outcome, Report, Retry, Steps};

use super::{Answer, Model, first_wait};

/// `refill` every `period`, at most `burst`.
#[derive(Clone, Copy, Debug)]
pub struct IntervalNumbers {
    /// What each step brings.
    pub refill: u64,
    /// The time from one to the next.
    pub period: u64,
    /// The most at once.
    pub burst: u64,
    /// Where the steps lie.
    pub steps: Steps,
    /// The longest wait for a later step.
    pub max_wait: u64,
    /// How far charges may go below nothing.
    pub max_debt: u64,
    /// What a new key has.
    pub initial: u64,
}

impl IntervalNumbers {
    /// The same numbers for the implementation.
    ///
    /// # Errors
    /// As the implementation says.
    pub fn limit(&self) -> Result<IntervalBucket, LimitError> {
        let limit = IntervalBucket::new(self.refill, Nanos::from_nanos(self.period))?.burst(self.burst)?;
        let limit = limit.steps(self.steps).max_wait(Nanos::from_nanos(self.max_wait))?;
        limit.max_debt(self.max_debt)?.initial(self.initial)
    }
}

/// Tokens, less what was sold or charged beyond them, as of an instant.
#[derive(Clone, Debug)]
pub struct IntervalBucketModel {
    numbers: IntervalNumbers,
    /// One of the instants at which a step lies.
    origin: i128,
    tokens: i128,
    /// Which instant the tokens are as of.
    at: i128,
}

impl IntervalBucketModel {
    /// As new.
    pub fn new(numbers: IntervalNumbers, now: &Now<'_>) -> Self {
        let mut new = Self { numbers, origin: 0, tokens: 0, at: 0 };
        new.restart(now);
        new
    }

    /// Other numbers from now on: what is missing stays missing, as far as it may, and so do the steps if they lie as they did.
    pub fn change(&mut self, numbers: IntervalNumbers, now: &Now<'_>) {
        self.advance(now);
        let missing = i128::from(self.numbers.burst) - self.tokens;
        let same = (self.numbers.steps, self.numbers.period) == (numbers.steps, numbers.period);
        let origin = self.origin;
        self.numbers = numbers;
        self.restart(now);
        if same && missing > 0 {
            self.origin = origin;
        }
        let sold = if numbers.max_wait == 0 { 0 } else { (numbers.max_wait / numbers.period + 1) * numbers.refill };
        let most = i128::from(numbers.burst) + i128::from(numbers.max_debt.max(sold));
        self.tokens = i128::from(numbers.burst) - missing.min(most);
    }

    fn instant(&self, now: &Now<'_>) -> i128 {
        match self.numbers.steps {
            Steps::Aligned(_) => now.wall().as_nanos().into(),
            Steps::FirstRequest => now.mono().as_nanos().into(),
        }
    }

    /// How many steps lie after `from` up to `to`.
    fn steps_between(&self, from: i128, to: i128) -> i128 {
        let number = |at: i128| (at - self.origin).div_euclid(self.numbers.period.into());
        number(to) - number(from)
    }

    /// The tokens at a later instant, if nobody takes any.
    fn tokens(&self, later: i128) -> i128 {
        let brought = self.steps_between(self.at, later) * i128::from(self.numbers.refill);
        (self.tokens + brought).min(self.numbers.burst.into())
    }

    fn advance(&mut self, now: &Now<'_>) {
        let instant = self.instant(now);
        self.tokens = self.tokens(instant);
        self.at = instant;
        if self.numbers.steps == Steps::FirstRequest && self.tokens == i128::from(self.numbers.burst) {
            self.origin = instant;
        }
    }

    /// How long after `asked` a cost has its turn that is taken then.
    fn turn(&self, asked: i128, cost: i128) -> u64 {
        let left = self.tokens(asked) - cost;
        let covered =
            |later: u64| left + self.steps_between(asked, i128::from(later)) * i128::from(self.numbers.refill) >= 0;
        first_wait(asked as u64, covered).as_nanos()
    }

    /// Whether a cost is let in at an instant, with a wait or without.
    fn passes(&self, asked: i128, cost: i128) -> bool {
        cost <= i128::from(self.numbers.burst) && self.turn(asked, cost) <= self.numbers.max_wait
    }

    fn retry(&self, now: i128, cost: i128) -> Retry {
        if cost > i128::from(self.numbers.burst) {
            return Retry::Never;
        }
        Retry::After(first_wait(now as u64, |later| self.passes(later.into(), cost)))
    }

    fn remaining(&self, now: i128) -> u64 {
        // What can be taken falls with what is asked for: the largest that passes.
        let (mut low, mut high) = (0, i128::from(self.numbers.burst));
        while low < high {
            let middle = (low + high + 1) / 2;
            (low, high) = if self.passes(now, middle) { (middle, high) } else { (low, middle - 1) };
        }
        if self.passes(now, low) { low as u64 } else { 0 }
    }
}

impl Model for IntervalBucketModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> Answer {
        self.advance(now);
        let (at, cost) = (self.at, i128::from(ask.cost().get()));
        let denied = |retry| Answer { outcome: Outcome::Deny(retry), taken: 0, receipt: 0 };
        if let Ask::Regardless(_) = ask {
            let floor = -i128::from(self.numbers.max_debt);
            if self.tokens - cost >= floor {
                self.tokens -= cost;
                return Answer { outcome: Outcome::Allow, taken: cost as u64, receipt: 0 };
            }
            if cost > i128::from(self.numbers.burst) - floor {
                return denied(Retry::Never);
            }
            return denied(Retry::After(first_wait(at as u64, |later| self.tokens(later.into()) - cost >= floor)));
        }
        let taken = match ask {
            Ask::UpTo(_) => cost.min(self.remaining(at).into()),
            Ask::Exactly(_) | Ask::Regardless(_) => cost,
        };
        if taken == 0 && cost > 0 {
            return denied(self.retry(at, 1));
        }
        let asks_for_nothing = matches!(ask, Ask::UpTo(_)) && cost == 0;
        if !asks_for_nothing && !self.passes(at, taken) {
            return denied(self.retry(at, taken));
        }
        let wait = if taken == 0 { 0 } else { self.turn(at, taken) };
        self.tokens -= taken;
        let outcome = if wait == 0 { Outcome::Allow } else { Outcome::Delay(Nanos::from_nanos(wait)) };
        Answer { outcome, taken: taken as u64, receipt: 0 }
    }

    fn refund(&mut self, now: &Now<'_>, cost: u64, _: Option<usize>) -> u64 {
        self.advance(now);
        let accepted = (i128::from(self.numbers.burst) - self.tokens).min(cost.into());
        self.tokens += accepted;
        accepted as u64
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let mut here = self.clone();
        here.advance(now);
        let full = i128::from(self.numbers.burst);
        Report {
            limit: self.numbers.burst,
            remaining: here.remaining(here.at),
            retry: here.retry(here.at, cost.into()),
            reset: first_wait(here.at as u64, |later| here.tokens(later.into()) == full),
        }
    }

    fn restart(&mut self, now: &Now<'_>) {
        self.at = self.instant(now);
        self.origin = match self.numbers.steps {
            Steps::Aligned(offset) => offset.as_nanos().into(),
            Steps::FirstRequest => self.at,
        };
        self.tokens = self.numbers.initial.into();
    }
}
