//! Definition of an interval bucket: every step adds tokens, up to the burst.

use tollgate_core::{Ask, IntervalBucket, LimitError, Nanos, Now, Outcome, Report, Retry, Steps};

use super::{Model, ModelAnswer, time_until};

/// Parameters of an interval bucket: `refill` tokens are added every `period`, up to `burst`.
#[derive(Clone, Copy, Debug)]
pub struct IntervalParams {
    /// Tokens added per step.
    pub refill: u64,
    /// Time between two steps in nanoseconds.
    pub period: u64,
    /// Maximum number of tokens.
    pub burst: u64,
    /// Alignment of the steps.
    pub steps: Steps,
    /// Longest wait for a later step, in nanoseconds.
    pub max_wait: u64,
    /// Maximum debt.
    pub max_debt: u64,
    /// Initial tokens of a new key.
    pub initial: u64,
}

impl IntervalParams {
    /// Returns the limit with these parameters.
    ///
    /// # Errors
    /// Returns the errors of the limit's constructor.
    pub fn limit(&self) -> Result<IntervalBucket, LimitError> {
        let limit = IntervalBucket::new(self.refill, Nanos::from_nanos(self.period))?.burst(self.burst)?;
        let limit = limit.steps(self.steps).max_wait(Nanos::from_nanos(self.max_wait))?;
        limit.max_debt(self.max_debt)?.initial(self.initial)
    }
}

/// The number of tokens at an instant. The number is negative if tokens are promised to waiting requests or charged as
/// debt.
#[derive(Clone, Debug)]
pub struct IntervalBucketModel {
    params: IntervalParams,
    /// Instant of one step.
    origin: i128,
    tokens: i128,
    /// Instant to which `tokens` applies.
    at: i128,
}

impl IntervalBucketModel {
    /// Returns a model of a new key.
    pub fn new(params: IntervalParams, now: &Now<'_>) -> Self {
        let mut new = Self { params, origin: 0, tokens: 0, at: 0 };
        new.restart(now);
        new
    }

    /// Changes the parameters. The amount missing from a full bucket is kept, up to the new maximum. The times of
    /// the steps are kept if their alignment is unchanged.
    pub fn change_params(&mut self, params: IntervalParams, now: &Now<'_>) {
        self.advance(now);
        let missing = i128::from(self.params.burst) - self.tokens;
        let same = (self.params.steps, self.params.period) == (params.steps, params.period);
        let origin = self.origin;
        self.params = params;
        self.restart(now);
        if same && missing > 0 {
            self.origin = origin;
        }
        let sold = if params.max_wait == 0 { 0 } else { (params.max_wait / params.period + 1) * params.refill };
        let most = i128::from(params.burst) + i128::from(params.max_debt.max(sold));
        self.tokens = i128::from(params.burst) - missing.min(most);
    }

    fn step_clock_time(&self, now: &Now<'_>) -> i128 {
        match self.params.steps {
            Steps::Aligned(_) => now.wall().as_nanos().into(),
            Steps::FirstRequest => now.mono().as_nanos().into(),
        }
    }

    /// Returns the number of steps in `(from, to]`.
    fn steps_between(&self, from: i128, to: i128) -> i128 {
        let number = |at: i128| (at - self.origin).div_euclid(self.params.period.into());
        number(to) - number(from)
    }

    /// Returns the tokens at a later instant, if nothing is taken before then.
    fn tokens_at(&self, later: i128) -> i128 {
        let brought = self.steps_between(self.at, later) * i128::from(self.params.refill);
        (self.tokens + brought).min(self.params.burst.into())
    }

    fn advance(&mut self, now: &Now<'_>) {
        let instant = self.step_clock_time(now);
        self.tokens = self.tokens_at(instant);
        self.at = instant;
        if self.params.steps == Steps::FirstRequest && self.tokens == i128::from(self.params.burst) {
            self.origin = instant;
        }
    }

    /// Returns the wait of a cost that is taken at `asked`.
    fn wait_of(&self, asked: i128, cost: i128) -> u64 {
        let left = self.tokens_at(asked) - cost;
        let covered =
            |later: u64| left + self.steps_between(asked, i128::from(later)) * i128::from(self.params.refill) >= 0;
        time_until(asked as u64, covered).as_nanos()
    }

    /// Returns whether a cost is admitted at an instant, with or without a wait.
    fn passes(&self, asked: i128, cost: i128) -> bool {
        cost <= i128::from(self.params.burst) && self.wait_of(asked, cost) <= self.params.max_wait
    }

    fn retry(&self, now: i128, cost: i128) -> Retry {
        if cost > i128::from(self.params.burst) {
            return Retry::Never;
        }
        Retry::After(time_until(now as u64, |later| self.passes(later.into(), cost)))
    }

    fn remaining(&self, now: i128) -> u64 {
        // Admission is monotonic in the cost, so a binary search finds the largest cost that
        // passes.
        let (mut low, mut high) = (0, i128::from(self.params.burst));
        while low < high {
            let middle = (low + high + 1) / 2;
            (low, high) = if self.passes(now, middle) { (middle, high) } else { (low, middle - 1) };
        }
        if self.passes(now, low) { low as u64 } else { 0 }
    }
}

impl Model for IntervalBucketModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> ModelAnswer {
        self.advance(now);
        let (at, cost) = (self.at, i128::from(ask.cost().get()));
        let denied = |retry| ModelAnswer { outcome: Outcome::Deny(retry), taken: 0, receipt: 0 };
        if let Ask::Regardless(_) = ask {
            let floor = -i128::from(self.params.max_debt);
            if self.tokens - cost >= floor {
                self.tokens -= cost;
                return ModelAnswer { outcome: Outcome::Allow, taken: cost as u64, receipt: 0 };
            }
            if cost > i128::from(self.params.burst) - floor {
                return denied(Retry::Never);
            }
            return denied(Retry::After(time_until(at as u64, |later| self.tokens_at(later.into()) - cost >= floor)));
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
        let wait = if taken == 0 { 0 } else { self.wait_of(at, taken) };
        self.tokens -= taken;
        let outcome = if wait == 0 { Outcome::Allow } else { Outcome::Delay(Nanos::from_nanos(wait)) };
        ModelAnswer { outcome, taken: taken as u64, receipt: 0 }
    }

    fn refund(&mut self, now: &Now<'_>, cost: u64, _: Option<usize>) -> u64 {
        self.advance(now);
        let accepted = (i128::from(self.params.burst) - self.tokens).min(cost.into());
        self.tokens += accepted;
        accepted as u64
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let mut here = self.clone();
        here.advance(now);
        let full = i128::from(self.params.burst);
        Report {
            limit: self.params.burst,
            remaining: here.remaining(here.at),
            retry: here.retry(here.at, cost.into()),
            reset: time_until(here.at as u64, |later| here.tokens_at(later.into()) == full),
        }
    }

    fn restart(&mut self, now: &Now<'_>) {
        self.at = self.step_clock_time(now);
        self.origin = match self.params.steps {
            Steps::Aligned(offset) => offset.as_nanos().into(),
            Steps::FirstRequest => self.at,
        };
        self.tokens = self.params.initial.into();
    }
}
