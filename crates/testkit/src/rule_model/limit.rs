//! One limit: its parameters, and the decision about one request under them.
//!
//! A state may have other parameters than the request. [`State`] stores the parameters of the state. The request's
//! parameters determine the admitted amount and the longest wait. The state's parameters determine the spent amount
//! and when it decreases.

use tollgate_core::{Nanos, Outcome, Report, Retry};

use super::calendar::Calendar;
use super::states::{State, When};
use super::{Tokens, ceil, floor, whole_tokens};

/// Parameters of a limit as written in a rule. `None` means that the rule omits the option. Two limits are equal if
/// their [`parameters`](Limit::parameters) are equal.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Amount per period, or number of slots for concurrency.
    pub count: u64,
    /// Period in nanoseconds. Unused by concurrency and calendars.
    pub period: u64,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The capacity of a bucket.
    pub burst: Option<u64>,
    /// Initial tokens of a new key.
    pub initial: Option<u64>,
    /// Maximum debt of a charge.
    pub max_debt: Option<u64>,
}

/// An algorithm. Durations are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Refills continuously. `delay` is set in a rule with `on_exceed: delay`: the longest wait of a request for its
    /// tokens.
    TokenBucket {
        /// The longest wait.
        delay: Option<u64>,
    },
    /// Drains at a constant rate.
    LeakyBucket {
        /// The level up to which a request does not wait.
        free: u64,
        /// The longest wait.
        max_wait: Option<u64>,
    },
    /// Refills in steps.
    IntervalBucket {
        /// The alignment of the steps.
        grid: StepAlignment,
        /// The longest wait for a later step.
        max_wait: u64,
    },
    /// Counts per window.
    FixedWindow(Windows),
    /// Counts the current window, and part of the previous window's count.
    SlidingWindow,
    /// Counts the last period in slices.
    SlidingSlices {
        /// Length of a slice. Default: a tenth of the period.
        precision: Option<u64>,
    },
    /// Counts the last period exactly.
    SlidingLog {
        /// The minimum time between two requests.
        gap: u64,
        /// Whether refused requests are recorded.
        count_refused: bool,
    },
    /// Counts slots in use.
    Concurrency {
        /// Lease length of a slot.
        lease: u64,
    },
}

/// The alignment of the steps of an interval bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepAlignment {
    /// At multiples of the period, shifted by this offset.
    Aligned(u64),
    /// From the charge that found the bucket full.
    FirstRequest,
}

/// The alignment of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// At multiples of the period.
    Epoch,
    /// From the charge that found the window unused.
    FirstRequest,
    /// At multiples of the period, shifted by an offset per key. The model does not know the offset, so a test has to
    /// set the program's clock forward by the offset.
    Spread,
    /// Calendar windows.
    Calendar(Calendar),
}

/// Kind of request to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The whole cost, within the capacity.
    Exactly(u64),
    /// The whole cost, up to `max_debt` above the capacity.
    Regardless(u64),
}

impl Ask {
    /// Returns the amount.
    pub const fn cost(self) -> u64 {
        match self {
            Self::Exactly(cost) | Self::Regardless(cost) => cost,
        }
    }
}

impl PartialEq for Limit {
    fn eq(&self, other: &Self) -> bool {
        self.parameters() == other.parameters()
    }
}

impl Eq for Limit {}

/// Parameters of a limit with defaults filled in: count and period, algorithm, burst, initially spent amount, maximum
/// debt.
pub type Parameters = ((u64, u64), Algorithm, u64, u64, u64);

impl Limit {
    /// Returns the parameters in the program's normal form.
    pub fn parameters(&self) -> Parameters {
        let (count, period) = (self.count, self.period);
        let rate = match &self.algorithm {
            // The rate in lowest terms. The count also determines the default burst, which is a separate parameter.
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
                let divisor = greatest_common_divisor(count, period);
                (count / divisor, period / divisor)
            }
            Algorithm::Concurrency { .. } | Algorithm::FixedWindow(Windows::Calendar(_)) => (count, 0),
            _ => (count, period),
        };
        let algorithm = match &self.algorithm {
            Algorithm::SlidingSlices { .. } => Algorithm::SlidingSlices { precision: Some(self.slices().0) },
            algorithm => algorithm.clone(),
        };
        (rate, algorithm, self.burst(), self.spent_at_first(), self.max_debt())
    }

    /// Returns the burst of a bucket, without the amount added by a longest wait.
    fn burst(&self) -> u64 {
        self.burst.unwrap_or(self.count)
    }

    /// Returns the tokens per nanosecond.
    pub fn rate(&self) -> Tokens {
        Tokens::new(self.count.into(), self.period.into())
    }

    /// Returns the largest spent amount after an admitted request, without debt.
    fn max_spent(&self) -> Tokens {
        match self.algorithm {
            Algorithm::TokenBucket { delay: Some(wait) } => {
                whole_tokens(self.burst()) + whole_tokens(wait) * self.rate()
            }
            Algorithm::TokenBucket { delay: None }
            | Algorithm::LeakyBucket { .. }
            | Algorithm::IntervalBucket { .. } => whole_tokens(self.burst()),
            _ => whole_tokens(self.count),
        }
    }

    /// Returns the reported limit: the largest cost that can pass. Rounded up if waiting adds a fraction of a token.
    pub fn capacity(&self) -> u64 {
        ceil(self.max_spent())
    }

    fn max_debt(&self) -> u64 {
        self.max_debt.unwrap_or(match self.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } | Algorithm::IntervalBucket { .. } => {
                self.burst()
            }
            _ => self.count,
        })
    }

    /// Returns the largest possible spent amount, including debt.
    pub fn max_spent_with_debt(&self) -> Tokens {
        whole_tokens(self.capacity() + self.max_debt())
    }

    /// Returns the amount that counts as spent for a new key.
    pub fn spent_at_first(&self) -> u64 {
        let whole = match self.algorithm {
            Algorithm::TokenBucket { .. } => self.burst(),
            _ => self.capacity(),
        };
        self.initial.map_or(0, |initial| whole - initial)
    }

    /// Returns the length and number of slices. The number is the smallest one, up to 64, that divides the period and
    /// gives slices no longer than the precision. If no such number exists, the number is
    /// the smallest that the precision requires, and the slice length is rounded up.
    pub fn slices(&self) -> (u64, u64) {
        let precision = match self.algorithm {
            Algorithm::SlidingSlices { precision: Some(precision) } => precision,
            _ => self.period.div_ceil(10),
        };
        let fewest = self.period.div_ceil(precision);
        let slices = (fewest..=64).find(|slices| self.period.is_multiple_of(*slices)).unwrap_or(fewest);
        (self.period.div_ceil(slices), slices)
    }

    /// Returns the largest spent amount at which `ask` passes. Ignores minimum gaps and the refill of later steps.
    fn max_spent_for(&self, ask: Ask) -> Tokens {
        let cost = whole_tokens(ask.cost());
        match (ask, &self.algorithm) {
            (Ask::Regardless(_), _) => self.max_spent_with_debt() - cost,
            // A cost of 0 does not wait. Such a cost is refused only in debt.
            (Ask::Exactly(0), _) => whole_tokens(self.capacity()),
            (Ask::Exactly(_), Algorithm::LeakyBucket { free, max_wait: Some(wait) }) => {
                // The last unit waits for all earlier units.
                let before = whole_tokens(ask.cost() - 1);
                (self.max_spent() - cost).min(whole_tokens(*free) + whole_tokens(*wait) * self.rate() - before)
            }
            (Ask::Exactly(_), _) => self.max_spent() - cost,
        }
    }

    /// Returns the number of steps of an interval bucket in `(from, to]`.
    fn steps_between(&self, state: &State, from: u64, to: u64) -> u64 {
        let origin = state.step_origin_under(self, from);
        let number = |at: u64| (i128::from(at) - i128::from(origin)).div_euclid(self.period.into());
        u64::try_from(number(to) - number(from)).expect("time goes forward")
    }

    /// Returns whether `ask` passes at `at`.
    pub fn passes(&self, state: &State, at: u64, ask: Ask) -> bool {
        if let (Ask::Exactly(cost), Algorithm::IntervalBucket { max_wait, .. }) = (ask, &self.algorithm) {
            let brought = self.steps_between(state, at, at + max_wait) * self.count;
            return cost <= self.burst() && state.spent(at) <= self.max_spent_for(ask) + whole_tokens(brought);
        }
        state.spent(at) <= self.max_spent_for(ask) && self.gap_ends(state, ask) <= at
    }

    /// Returns the instant from which the minimum gap allows `ask` to pass.
    fn gap_ends(&self, state: &State, ask: Ask) -> u64 {
        match (ask, &self.algorithm) {
            (Ask::Exactly(1..), Algorithm::SlidingLog { gap, .. }) => {
                // A log keeps its last request only for its own period or its own gap, whichever is
                // longer.
                let remembered = match state.limit.algorithm {
                    Algorithm::SlidingLog { gap: own, .. } => own.max(state.limit.period),
                    _ => 0,
                };
                state.last_request_time().map_or(0, |last| last + remembered.min(*gap))
            }
            _ => 0,
        }
    }

    /// Returns the time until `ask` passes if there is no other request.
    pub fn retry(&self, state: &State, at: u64, ask: Ask) -> Retry {
        let room = self.max_spent_for(ask);
        if room < whole_tokens(0) {
            return Retry::Never;
        }
        if self.passes(state, at, ask) {
            return Retry::NOW;
        }
        if let (Ask::Exactly(_), Algorithm::IntervalBucket { max_wait: max_wait @ 1.., .. }) = (ask, &self.algorithm) {
            return self.retry_of_steps(state, at, ask, *max_wait);
        }
        match state.when_spent_at_most(at, room) {
            When::At(instant) => After(instant.max(self.gap_ends(state, ask)) - at),
            When::OnRelease => Retry::OnRelease,
        }
    }

    /// Like [`retry`](Self::retry), for an interval bucket with a `max_wait`. The number of steps within `max_wait` is
    /// `max_wait / period` rounded down, or one more shortly before a step. So the request passes when the refill of
    /// the smaller number of steps is enough. Shortly before a step, it passes earlier: when the refill of the larger
    /// number is enough.
    fn retry_of_steps(&self, state: &State, at: u64, ask: Ask, max_wait: u64) -> Retry {
        let fewer = max_wait / self.period;
        let when =
            |steps: u64| state.when_spent_at_most(at, self.max_spent_for(ask) + whole_tokens(steps * self.count));
        let (When::At(surely), When::At(perhaps)) = (when(fewer), when(fewer + 1)) else { return Retry::OnRelease };
        let origin = state.step_origin_under(self, perhaps);
        let into_step = (i128::from(perhaps + max_wait) - i128::from(origin)).rem_euclid(self.period.into());
        let next_step = perhaps + self.period - u64::try_from(into_step).expect("less than a period");
        let passing = [surely, perhaps, next_step].into_iter().filter(|instant| self.passes(state, *instant, ask));
        After(passing.min().expect("the request passes when the smaller number of steps is enough") - at)
    }

    /// Returns the wait of a request that is admitted at `at`.
    fn wait(&self, state: &State, at: u64, ask: Ask) -> u64 {
        let Ask::Exactly(cost @ 1..) = ask else { return 0 };
        let level = match self.algorithm {
            Algorithm::TokenBucket { delay: Some(_) } => {
                state.spent(at) + whole_tokens(cost) - whole_tokens(self.burst())
            }
            Algorithm::LeakyBucket { free, .. } => state.spent(at) + whole_tokens(cost - 1) - whole_tokens(free),
            Algorithm::IntervalBucket { .. } => {
                let short = state.spent(at) + whole_tokens(cost) - whole_tokens(self.burst());
                let covered = |later| short <= whole_tokens(self.steps_between(state, at, later) * self.count);
                return first_instant(at, covered) - at;
            }
            _ => return 0,
        };
        ceil(level / self.rate())
    }

    /// Decides `ask` without changing anything.
    pub fn decide(&self, state: &State, at: u64, ask: Ask) -> Outcome {
        if !self.passes(state, at, ask) {
            return Outcome::Deny(self.retry(state, at, ask));
        }
        match self.wait(state, at, ask) {
            0 => Outcome::Allow,
            wait => Outcome::Delay(Nanos::from_nanos(wait)),
        }
    }

    /// Returns the largest cost that passes now, ignoring gaps.
    pub fn remaining(&self, state: &State, at: u64) -> u64 {
        let spent = state.spent(at);
        match self.algorithm {
            Algorithm::LeakyBucket { free, max_wait: Some(wait) } => {
                floor(self.max_spent().min(whole_tokens(free + 1) + whole_tokens(wait) * self.rate()) - spent)
            }
            Algorithm::IntervalBucket { max_wait, .. } => {
                let brought = self.steps_between(state, at, at + max_wait) * self.count;
                floor(self.max_spent() + whole_tokens(brought) - spent).min(self.burst())
            }
            _ => floor(self.max_spent() - spent),
        }
    }

    /// Returns the report, with `retry` for another request of `cost`.
    pub fn report(&self, state: &State, at: u64, cost: u64) -> Report {
        Report {
            limit: self.capacity(),
            remaining: self.remaining(state, at),
            retry: self.retry(state, at, Ask::Exactly(cost)),
            reset: Nanos::from_nanos(state.unused_from(at) - at),
        }
    }
}

#[expect(non_snake_case, reason = "the function has the name of the variant that it creates")]
const fn After(wait: u64) -> Retry {
    Retry::After(Nanos::from_nanos(wait))
}

/// Returns the first instant, from `at` on, at which `holds` is true. The condition must stay true from then on.
pub fn first_instant(at: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut step) = (at, 1);
    if holds(low) {
        return low;
    }
    while !holds(low + step) {
        (low, step) = (low + step, step * 2);
    }
    let mut high = low + step;
    while low + 1 < high {
        let middle = low.midpoint(high);
        (low, high) = if holds(middle) { (low, middle) } else { (middle, high) };
    }
    high
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}
