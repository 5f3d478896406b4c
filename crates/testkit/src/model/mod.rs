//! One slow, obvious and exact model per algorithm, and the laws that the fast implementations must
//! satisfy.
//!
//! A model is written from the definition of its algorithm, not from our code: amounts are rational
//! numbers of any size, histories are lists that are counted again for every request, and a wait is
//! found by searching for the first instant at which the definition is satisfied. Values are
//! rounded only where the definition says so: waits up, remaining down.

mod concurrency;
mod fixed_window;
mod group;
mod interval_bucket;
pub mod laws;
mod leaky_bucket;
pub mod lockstep;
mod pacer;
pub mod script;
mod sliding_log;
mod sliding_slices;
mod sliding_window;
mod token_bucket;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, ToPrimitive};
use tollgate_core::{Ask, Nanos, Now, Outcome, Rate, Report};

pub use concurrency::{ConcurrencyModel, LeaseParams};
pub use fixed_window::{FixedWindowModel, WindowParams};
pub use group::{GroupModel, Member};
pub use interval_bucket::{IntervalBucketModel, IntervalParams};
pub use leaky_bucket::{LeakyBucketModel, LeakyParams};
pub use pacer::PacerModel;
pub use sliding_log::{LogParams, SlidingLogModel};
pub use sliding_slices::SlidingSlicesModel;
pub use sliding_window::SlidingWindowModel;
pub use token_bucket::{TokenBucketModel, TokenParams};

/// A number without rounding and without bounds.
pub type Exact = BigRational;

/// The answer of a model to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelAnswer {
    /// The outcome.
    pub outcome: Outcome,
    /// The amount taken.
    pub taken: u64,
    /// The receipt by which the model recognises this taking in a refund.
    pub receipt: usize,
}

/// Laws that an algorithm, or one of its options, does not satisfy by definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// A refusal changes nothing. Not for logs that count refusals.
    RefusalChangesNothing,
    /// The remaining amount passes now. Not with a minimum gap between requests.
    RemainingPasses,
    /// What passes as one request passes in single units. Not if the second of two units has to
    /// wait longer than the first.
    SinglyPasses,
    /// One request and single units leave the same words. Not if each taking is stored separately.
    SameWords,
}

/// The definition of an algorithm, to compare with its implementation. Time only moves forward
/// here.
pub trait Model {
    /// Decides and applies.
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> ModelAnswer;
    /// Refunds up to `cost`, to the taking with this receipt if there is one, and returns the
    /// amount accepted.
    fn refund(&mut self, now: &Now<'_>, cost: u64, receipt: Option<usize>) -> u64;
    /// Returns the report, with the retry for a further request of `cost`.
    fn report(&self, now: &Now<'_>, cost: u64) -> Report;
    /// Returns whether the algorithm is exempt from `law`.
    fn is_exempt_from(&self, _law: Law) -> bool {
        false
    }
    /// Resets the key.
    fn restart(&mut self, now: &Now<'_>);
}

/// Returns `n` as an exact number.
pub fn to_exact(n: impl Into<BigInt>) -> Exact {
    Exact::from_integer(n.into())
}

/// Returns the units per nanosecond.
pub fn per_nano(rate: Rate) -> Exact {
    Exact::new(rate.count().into(), rate.per().as_nanos().into())
}

/// Returns the largest integer not above `x`, at least 0.
pub fn floor(x: &Exact) -> u64 {
    if x.is_negative() { 0 } else { x.floor().to_integer().to_u64().unwrap_or(u64::MAX) }
}

/// Returns the smallest integer not below `x`, at least 0.
pub fn ceil(x: &Exact) -> u64 {
    if x.is_negative() { 0 } else { x.ceil().to_integer().to_u64().unwrap_or(u64::MAX) }
}

/// Returns the first whole nanosecond not before `x`.
pub fn ceil_nanos(x: &Exact) -> Nanos {
    Nanos::from_nanos(ceil(x))
}

/// Returns how long after `now` the condition `holds` first becomes true; once true it stays true.
pub fn first_wait(now: u64, holds: impl Fn(u64) -> bool) -> Nanos {
    let (mut low, mut high) = (0, u64::MAX - now);
    while low < high {
        let middle = low.midpoint(high);
        (low, high) = if holds(now + middle) { (low, middle) } else { (middle + 1, high) };
    }
    Nanos::from_nanos(low)
}
