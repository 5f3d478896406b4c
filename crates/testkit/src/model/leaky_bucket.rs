//! Definition of a leaky bucket: costs are added and drain at the rate. A request waits until only
//! `free` units are ahead of its last unit.

use num_traits::Zero;
use tollgate_core::{Ask, LeakyBucket, LimitError, Nanos, Now, Outcome, Rate, Report, Retry};

use super::{Exact, Model, ModelAnswer, ceil, ceil_nanos, floor, per_nano, to_exact};

/// Parameters of a leaky bucket: it holds at most `burst` units and drains at `rate`.
#[derive(Clone, Copy, Debug)]
pub struct LeakyParams {
    /// Drain rate.
    pub rate: Rate,
    /// Capacity of the bucket.
    pub burst: u64,
    /// Level up to which requests pass without a wait.
    pub free: u64,
    /// Longest wait.
    pub max_wait: Nanos,
    /// Maximum debt, in addition to `burst`.
    pub max_debt: u64,
    /// Initial free capacity of a new key.
    pub initial: u64,
}

impl LeakyParams {
    /// Returns the limit with these parameters.
    ///
    /// # Errors
    /// Returns the errors of the limit's constructor.
    pub fn limit(&self) -> Result<LeakyBucket, LimitError> {
        let limit = LeakyBucket::new(self.rate, self.burst)?.free(self.free)?.max_wait(self.max_wait);
        limit.max_debt(self.max_debt)?.initial(self.initial)
    }
}

/// Level of the bucket, possibly a fraction.
#[derive(Clone, Debug)]
pub struct LeakyBucketModel {
    params: LeakyParams,
    level: Exact,
    /// Instant to which `level` applies.
    at: u64,
}

impl LeakyBucketModel {
    /// Returns a bucket with a free capacity of `initial` at `now`.
    pub fn new(params: LeakyParams, now: &Now<'_>) -> Self {
        Self { params, level: to_exact(params.burst - params.initial), at: now.mono().as_nanos() }
    }

    /// Changes the parameters. The level is kept up to burst plus debt. The kept level is rounded up to the resolution
    /// of the new bucket. For a rate of n per p nanoseconds in lowest terms, the resolution is 1/p of a unit.
    pub fn change_params(&mut self, params: LeakyParams, now: &Now<'_>) {
        let part = to_exact(params.rate.per().as_nanos());
        let level = (self.level_at(now) * &part).ceil() / part;
        self.set_level(now, level.min(to_exact(params.burst) + to_exact(params.max_debt)));
        self.params = params;
    }

    /// Returns the level at `now`: the previous level minus the amount drained since then.
    fn level_at(&self, now: &Now<'_>) -> Exact {
        let elapsed = to_exact(now.mono().as_nanos()) - to_exact(self.at);
        (&self.level - elapsed * per_nano(self.params.rate)).max(Exact::zero())
    }

    fn set_level(&mut self, now: &Now<'_>, level: Exact) {
        (self.level, self.at) = (level, now.mono().as_nanos());
    }

    /// Returns the level at which the wait is exactly `max_wait`.
    fn level_at_max_wait(&self) -> Exact {
        to_exact(self.params.free) + to_exact(self.params.max_wait.as_nanos()) * per_nano(self.params.rate)
    }

    /// Returns the time until the level is at most `wanted`.
    fn time_until_level(&self, now: &Now<'_>, wanted: &Exact) -> Nanos {
        ceil_nanos(&((self.level_at(now) - wanted) / per_nano(self.params.rate)))
    }

    /// Returns the highest level at which `cost` is admitted, given the burst and the longest wait. The level is
    /// negative if `cost` is never admitted.
    fn max_level_for(&self, cost: u64) -> Exact {
        // A cost of zero does not wait, so only the burst bounds it.
        if cost == 0 {
            return to_exact(self.params.burst);
        }
        (to_exact(self.params.burst) - to_exact(cost)).min(self.level_at_max_wait() - to_exact(cost - 1))
    }

    /// Adds `cost` if the level is at most `ceiling`. If the level is higher, returns the wait until it has
    /// fallen to `ceiling`.
    fn add_if_below(&mut self, now: &Now<'_>, cost: u64, ceiling: &Exact, outcome: Outcome) -> ModelAnswer {
        let level = self.level_at(now);
        if *ceiling < Exact::zero() {
            return ModelAnswer { outcome: Outcome::Deny(Retry::Never), taken: 0, receipt: 0 };
        }
        if level > *ceiling {
            let retry = Retry::After(self.time_until_level(now, ceiling));
            return ModelAnswer { outcome: Outcome::Deny(retry), taken: 0, receipt: 0 };
        }
        self.set_level(now, level + to_exact(cost));
        ModelAnswer { outcome, taken: cost, receipt: 0 }
    }

    /// Returns the wait of a request made now: the time until the level before its last unit has fallen
    /// to `free`.
    fn wait_of(&self, now: &Now<'_>, cost: u64) -> Outcome {
        match self.time_until_level(now, &(to_exact(self.params.free) - to_exact(cost.saturating_sub(1)))) {
            wait if wait == Nanos::ZERO || cost == 0 => Outcome::Allow,
            wait => Outcome::Delay(wait),
        }
    }

    /// Returns the number of whole units that are admitted now.
    fn whole_units_available(&self, now: &Now<'_>) -> u64 {
        let level = self.level_at(now);
        if level > self.level_at_max_wait() {
            return 0;
        }
        floor(&(to_exact(self.params.burst) - &level)).min(floor(&(self.level_at_max_wait() - level)).saturating_add(1))
    }
}

impl Model for LeakyBucketModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> ModelAnswer {
        let cost = match ask {
            Ask::Exactly(cost) => cost.get(),
            Ask::Regardless(cost) => {
                let deepest = to_exact(self.params.burst) + to_exact(self.params.max_debt);
                return self.add_if_below(now, cost.get(), &(deepest - to_exact(cost.get())), Outcome::Allow);
            }
            // An `UpTo` ask of cost 0 is never refused, at any level.
            Ask::UpTo(cost) if cost.get() == 0 => return ModelAnswer { outcome: Outcome::Allow, taken: 0, receipt: 0 },
            Ask::UpTo(cost) => self.whole_units_available(now).min(cost.get()).max(1),
        };
        let turn = self.wait_of(now, cost);
        self.add_if_below(now, cost, &self.max_level_for(cost), turn)
    }

    fn refund(&mut self, now: &Now<'_>, cost: u64, _: Option<usize>) -> u64 {
        let level = self.level_at(now);
        let accepted = cost.min(ceil(&level));
        self.set_level(now, (level - to_exact(cost)).max(Exact::zero()));
        accepted
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let limit = self.params.burst;
        let ceiling = self.max_level_for(cost);
        let retry =
            if ceiling < Exact::zero() { Retry::Never } else { Retry::After(self.time_until_level(now, &ceiling)) };
        Report {
            limit,
            remaining: self.whole_units_available(now),
            retry,
            reset: self.time_until_level(now, &Exact::zero()),
        }
    }

    fn restart(&mut self, now: &Now<'_>) {
        *self = Self::new(self.params, now);
    }
}
