//! The leaky bucket by its definition: what is poured in flows out at the rate, and a request waits for what is before its last
//! unit.

use num_traits::Zero;
use tollgate_core::{Ask, LeakyBucket, LimitError, Nanos, Now, Outcome, Rate, Report, Retry};

use super::{Answer, Exact, Model, ceil, ceil_nanos, exact, floor, per_nano};

/// At most `burst` in the bucket, going out at `rate`.
#[derive(Clone, Copy, Debug)]
pub struct LeakyNumbers {
    /// What goes out.
    pub rate: Rate,
    /// The most in the bucket.
    pub burst: u64,
    /// How much may be in the bucket before anybody waits.
    pub free: u64,
    /// Who would wait longer is refused.
    pub max_wait: Nanos,
    /// How much more may be in the bucket by charges.
    pub max_debt: u64,
    /// What a new key has room for.
    pub initial: u64,
}

impl LeakyNumbers {
    /// The same numbers for the implementation.
    ///
    /// # Errors
    /// As the implementation says.
    pub fn limit(&self) -> Result<LeakyBucket, LimitError> {
        let limit = LeakyBucket::new(self.rate, self.burst)?.free(self.free)?.max_wait(self.max_wait);
        limit.max_debt(self.max_debt)?.initial(self.initial)
    }
}

/// What is in the bucket, which may be a fraction.
#[derive(Clone, Debug)]
pub struct LeakyBucketModel {
    numbers: LeakyNumbers,
    level: Exact,
    /// When `level` was true.
    at: u64,
}

impl LeakyBucketModel {
    /// A bucket with room for `initial` at `now`.
    pub fn new(numbers: LeakyNumbers, now: &Now<'_>) -> Self {
        Self { numbers, level: exact(numbers.burst - numbers.initial), at: now.mono().as_nanos() }
    }

    /// Other numbers from now on: what is in the bucket stays in, rounded up to what the new one can tell apart (a rate
    /// of n per p nanoseconds in lowest terms counts in p-ths of a unit), as far as burst and debt go.
    pub fn change(&mut self, numbers: LeakyNumbers, now: &Now<'_>) {
        let part = exact(numbers.rate.per().as_nanos());
        let level = (self.level(now) * &part).ceil() / part;
        self.set(now, level.min(exact(numbers.burst) + exact(numbers.max_debt)));
        self.numbers = numbers;
    }

    /// What is in the bucket at `now`: what was in it, less what flowed out since.
    fn level(&self, now: &Now<'_>) -> Exact {
        let elapsed = exact(now.mono().as_nanos()) - exact(self.at);
        (&self.level - elapsed * per_nano(self.numbers.rate)).max(Exact::zero())
    }

    fn set(&mut self, now: &Now<'_>, level: Exact) {
        (self.level, self.at) = (level, now.mono().as_nanos());
    }

    /// The level at which somebody has to wait for exactly `max_wait`.
    fn patience(&self) -> Exact {
        exact(self.numbers.free) + exact(self.numbers.max_wait.as_nanos()) * per_nano(self.numbers.rate)
    }

    /// How long until the level is no more than `wanted`.
    fn until(&self, now: &Now<'_>, wanted: &Exact) -> Nanos {
        ceil_nanos(&((self.level(now) - wanted) / per_nano(self.numbers.rate)))
    }

    /// The highest level at which `cost` is let in, below both bounds; below zero if it never is.
    fn ceiling(&self, cost: u64) -> Exact {
        // A cost of zero does not wait, so only the burst bounds it.
        if cost == 0 {
            return exact(self.numbers.burst);
        }
        (exact(self.numbers.burst) - exact(cost)).min(self.patience() - exact(cost - 1))
    }

    /// Pours `cost` in if no more than `ceiling` is there, and says otherwise when that would be so.
    fn pour(&mut self, now: &Now<'_>, cost: u64, ceiling: &Exact, outcome: Outcome) -> Answer {
        let level = self.level(now);
        if *ceiling < Exact::zero() {
            return Answer { outcome: Outcome::Deny(Retry::Never), taken: 0, receipt: 0 };
        }
        if level > *ceiling {
            let retry = Retry::After(self.until(now, ceiling));
            return Answer { outcome: Outcome::Deny(retry), taken: 0, receipt: 0 };
        }
        self.set(now, level + exact(cost));
        Answer { outcome, taken: cost, receipt: 0 }
    }

    /// The turn of a request that comes now: when the level before its last unit is down to what is free.
    fn turn(&self, now: &Now<'_>, cost: u64) -> Outcome {
        match self.until(now, &(exact(self.numbers.free) - exact(cost.saturating_sub(1)))) {
            wait if wait == Nanos::ZERO || cost == 0 => Outcome::Allow,
            wait => Outcome::Delay(wait),
        }
    }

    /// Whole units that are let in now.
    fn available(&self, now: &Now<'_>) -> u64 {
        let level = self.level(now);
        if level > self.patience() {
            return 0;
        }
        floor(&(exact(self.numbers.burst) - &level)).min(floor(&(self.patience() - level)).saturating_add(1))
    }
}

impl Model for LeakyBucketModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> Answer {
        let cost = match ask {
            Ask::Exactly(cost) => cost.get(),
            Ask::Regardless(cost) => {
                let deepest = exact(self.numbers.burst) + exact(self.numbers.max_debt);
                return self.pour(now, cost.get(), &(deepest - exact(cost.get())), Outcome::Allow);
            }
            // Nothing asked for is nothing refused, whatever is in the bucket.
            Ask::UpTo(cost) if cost.get() == 0 => return Answer { outcome: Outcome::Allow, taken: 0, receipt: 0 },
            Ask::UpTo(cost) => self.available(now).min(cost.get()).max(1),
        };
        let turn = self.turn(now, cost);
        self.pour(now, cost, &self.ceiling(cost), turn)
    }

    fn refund(&mut self, now: &Now<'_>, cost: u64, _: Option<usize>) -> u64 {
        let level = self.level(now);
        let accepted = cost.min(ceil(&level));
        self.set(now, (level - exact(cost)).max(Exact::zero()));
        accepted
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let limit = self.numbers.burst;
        let ceiling = self.ceiling(cost);
        let retry = if ceiling < Exact::zero() { Retry::Never } else { Retry::After(self.until(now, &ceiling)) };
        Report { limit, remaining: self.available(now), retry, reset: self.until(now, &Exact::zero()) }
    }

    fn restart(&mut self, now: &Now<'_>) {
        *self = Self::new(self.numbers, now);
    }
}
