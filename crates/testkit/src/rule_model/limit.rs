//! One limit: its parameters, and the decision about one request under them.
//!
//! The state that a request finds may belong to other parameters ([`State`] knows which). The
//! parameters of the request determine how much fits and how long a request may wait; the state
//! determines the amount spent, and when it decreases.

use tollgate_core::{Nanos, Outcome, Report, Retry};

use super::calendar::Calendar;
use super::states::{State, When};
use super::{Tokens, ceil, floor, whole_tokens};

/// The parameters of a limit, as a rule writes them. `None`: omitted. Two limits are equal if their
/// [`parameters`](Limit::parameters) are.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The amount per period; the number of slots, for concurrency.
    pub count: u64,
    /// The period, in nanoseconds. Not used by concurrency and calendars.
    pub period: u64,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The capacity of a bucket.
    pub burst: Option<u64>,
    /// The tokens of a new key.
    pub initial: Option<u64>,
    /// The largest debt of a charge.
    pub max_debt: Option<u64>,
}

/// An algorithm. Lengths of time are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Refills continuously. With `delay` (of the rule's `on_exceed`), a request may wait that long
    /// for its tokens.
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
        grid: Grid,
        /// The longest wait for a later step.
        max_wait: u64,
    },
    /// Counts by window.
    FixedWindow(Windows),
    /// Counts the current window and a part of the previous one.
    SlidingWindow,
    /// Counts the last period by slices.
    SlidingSlices {
        /// The length of a slice; a tenth of the period if omitted.
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
        /// The lease of a slot.
        lease: u64,
    },
}

/// The alignment of the steps of an interval bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// At multiples of the period, shifted by this offset.
    Aligned(u64),
    /// From the charge that finds the bucket full.
    FirstRequest,
}

/// The alignment of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// At multiples of the period.
    Epoch,
    /// From the charge that finds nothing counted.
    FirstRequest,
    /// At multiples of the period, shifted by the program by an offset for each key. The model does
    /// not know the offset: a test has to set the clock of the program forward by it.
    Spread,
    /// By the calendar.
    Calendar(Calendar),
}

/// The kind of a request to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// All of it, within the capacity.
    Exactly(u64),
    /// All of it, up to `max_debt` above the capacity.
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

/// The parameters of a limit with those that are omitted: count and period, algorithm, burst, amount
/// spent at first, largest debt.
pub type Parameters = ((u64, u64), Algorithm, u64, u64, u64);

impl Limit {
    /// Returns the parameters as the program has them.
    pub fn parameters(&self) -> Parameters {
        let (count, period) = (self.count, self.period);
        let rate = match &self.algorithm {
            // A rate in lowest terms; the burst says what else the count does.
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

    /// Returns the burst of a bucket, without what a delay adds.
    fn burst(&self) -> u64 {
        self.burst.unwrap_or(self.count)
    }

    /// Returns the tokens per nanosecond.
    pub fn rate(&self) -> Tokens {
        Tokens::new(self.count.into(), self.period.into())
    }

    /// Returns the largest amount spent after a request has passed, without debt.
    fn most(&self) -> Tokens {
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

    /// Returns the reported limit: the largest cost that can pass, rounded up where a wait brings a
    /// part of a token.
    pub fn capacity(&self) -> u64 {
        ceil(self.most())
    }

    fn max_debt(&self) -> u64 {
        self.max_debt.unwrap_or(match self.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } | Algorithm::IntervalBucket { .. } => {
                self.burst()
            }
            _ => self.count,
        })
    }

    /// Returns the largest amount that is ever spent.
    pub fn deepest(&self) -> Tokens {
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

    /// Returns the length and the number of slices: at least as many as the precision requires, and
    /// a number that divides the period, if one up to 64 does.
    pub fn slices(&self) -> (u64, u64) {
        let precision = match self.algorithm {
            Algorithm::SlidingSlices { precision: Some(precision) } => precision,
            _ => self.period.div_ceil(10),
        };
        let fewest = self.period.div_ceil(precision);
        let slices = (fewest..=64).find(|slices| self.period.is_multiple_of(*slices)).unwrap_or(fewest);
        (self.period.div_ceil(slices), slices)
    }

    /// Returns the largest amount spent at which `ask` passes, ignoring minimum gaps and the refills of later steps.
    fn max_spent_for(&self, ask: Ask) -> Tokens {
        let cost = whole_tokens(ask.cost());
        match (ask, &self.algorithm) {
            (Ask::Regardless(_), _) => self.deepest() - cost,
            // A cost of 0 does not wait: it is refused only in debt.
            (Ask::Exactly(0), _) => whole_tokens(self.capacity()),
            (Ask::Exactly(_), Algorithm::LeakyBucket { free, max_wait: Some(wait) }) => {
                // The last unit waits for all before it.
                let before = whole_tokens(ask.cost() - 1);
                (self.most() - cost).min(whole_tokens(*free) + whole_tokens(*wait) * self.rate() - before)
            }
            (Ask::Exactly(_), _) => self.most() - cost,
        }
    }

    /// Returns the number of steps of an interval bucket in `(from, to]`.
    fn steps_between(&self, state: &State, from: u64, to: u64) -> u64 {
        let origin = state.origin_under(self, from);
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

    /// Returns when the minimum gap lets `ask` pass.
    fn gap_ends(&self, state: &State, ask: Ask) -> u64 {
        match (ask, &self.algorithm) {
            (Ask::Exactly(1..), Algorithm::SlidingLog { gap, .. }) => {
                // A log of other parameters remembers the request for its own period or gap.
                let remembered = match state.limit.algorithm {
                    Algorithm::SlidingLog { gap: own, .. } => own.max(state.limit.period),
                    _ => 0,
                };
                state.last_unit().map_or(0, |last| last + remembered.min(*gap))
            }
            _ => 0,
        }
    }

    /// Returns the time until `ask` passes if no other request comes.
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
        match state.time_until_spent(at, room) {
            When::At(instant) => After(instant.max(self.gap_ends(state, ask)) - at),
            When::OnRelease => Retry::OnRelease,
        }
    }

    /// Returns the same for a bucket that grants later steps. The steps within the longest wait are a fixed
    /// number, or one more while the current step is nearly over. So a request passes when the
    /// smaller number is enough, or at the first such time from when the larger is.
    fn retry_of_steps(&self, state: &State, at: u64, ask: Ask, max_wait: u64) -> Retry {
        let fewer = max_wait / self.period;
        let when = |steps: u64| state.time_until_spent(at, self.max_spent_for(ask) + whole_tokens(steps * self.count));
        let (When::At(surely), When::At(perhaps)) = (when(fewer), when(fewer + 1)) else { return Retry::OnRelease };
        let origin = state.origin_under(self, perhaps);
        let into_step = (i128::from(perhaps + max_wait) - i128::from(origin)).rem_euclid(self.period.into());
        let next_step = perhaps + self.period - u64::try_from(into_step).expect("a part of a period");
        let passing = [surely, perhaps, next_step].into_iter().filter(|instant| self.passes(state, *instant, ask));
        After(passing.min().expect("the fewer steps are enough") - at)
    }

    /// Returns the wait of a request that passes at `at`.
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

    /// Returns the largest cost that passes now, without gaps.
    pub fn remaining(&self, state: &State, at: u64) -> u64 {
        let spent = state.spent(at);
        match self.algorithm {
            Algorithm::LeakyBucket { free, max_wait: Some(wait) } => {
                floor(self.most().min(whole_tokens(free + 1) + whole_tokens(wait) * self.rate()) - spent)
            }
            Algorithm::IntervalBucket { max_wait, .. } => {
                let brought = self.steps_between(state, at, at + max_wait) * self.count;
                floor(self.most() + whole_tokens(brought) - spent).min(self.burst())
            }
            _ => floor(self.most() - spent),
        }
    }

    /// Returns the report of the limit, with the retry for another request of `cost`.
    pub fn report(&self, state: &State, at: u64, cost: u64) -> Report {
        Report {
            limit: self.capacity(),
            remaining: self.remaining(state, at),
            retry: self.retry(state, at, Ask::Exactly(cost)),
            reset: Nanos::from_nanos(state.is_unused_at(at) - at),
        }
    }
}

#[expect(non_snake_case, reason = "reads like the variant it makes")]
const fn After(wait: u64) -> Retry {
    Retry::After(Nanos::from_nanos(wait))
}

/// Returns the first instant from `at` on at which `holds`; once true it stays true.
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
