//! One slow, obvious and exact model per algorithm, and the laws that the fast implementations must
//! satisfy.
//!
//! A model follows the definition of its algorithm, not the implementation. Fractions are rational numbers of any size. Histories
//! are lists that are counted again for every request. A wait that does not follow from the rate is found by searching
//! for the first instant that satisfies the definition. Values are rounded only where the definition requires it: waits
//! up, remaining amounts down.

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
pub use group::{GroupLimitParams, GroupModel};
pub use interval_bucket::{IntervalBucketModel, IntervalParams};
pub use leaky_bucket::{LeakyBucketModel, LeakyParams};
pub use pacer::PacerModel;
pub use sliding_log::{LogParams, SlidingLogModel};
pub use sliding_slices::SlidingSlicesModel;
pub use sliding_window::SlidingWindowModel;
pub use token_bucket::{TokenBucketModel, TokenParams};

/// An exact, unbounded number.
pub type Exact = BigRational;

/// A model's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelAnswer {
    /// Outcome of the request.
    pub outcome: Outcome,
    /// Amount taken.
    pub taken: u64,
    /// Identifies this charge in a later refund.
    pub receipt: usize,
}

/// The laws that do not apply to every algorithm and option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// A refusal changes nothing. Exempt: logs that count refusals.
    RefusalChangesNothing,
    /// The remaining amount passes now. Exempt: limits with a minimum gap between requests.
    RemainingPasses,
    /// A cost that passes as one request also passes in single units. Exempt: limits where a later
    /// unit has to wait longer than an earlier unit.
    SinglyPasses,
    /// One request and the same cost in single units leave the same state words. Exempt: algorithms
    /// that store each charge separately.
    SameWords,
}

/// Definition of an algorithm, to compare with its implementation. The time of calls never moves backwards.
pub trait Model {
    /// Decides a request and applies the result.
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> ModelAnswer;
    /// Refunds up to `cost` of the charge with this receipt, or of any charge if there is no receipt.
    /// Returns the accepted amount.
    fn refund(&mut self, now: &Now<'_>, cost: u64, receipt: Option<usize>) -> u64;
    /// Returns the report, with `retry` for another request of `cost`.
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

/// Returns the rate in units per nanosecond.
pub fn per_nano(rate: Rate) -> Exact {
    Exact::new(rate.count().into(), rate.per().as_nanos().into())
}

/// Returns the largest integer not above `x`, but at least 0.
pub fn floor(x: &Exact) -> u64 {
    if x.is_negative() { 0 } else { x.floor().to_integer().to_u64().unwrap_or(u64::MAX) }
}

/// Returns the smallest integer not below `x`, but at least 0.
pub fn ceil(x: &Exact) -> u64 {
    if x.is_negative() { 0 } else { x.ceil().to_integer().to_u64().unwrap_or(u64::MAX) }
}

/// Rounds `x` up to whole nanoseconds.
pub fn ceil_nanos(x: &Exact) -> Nanos {
    Nanos::from_nanos(ceil(x))
}

/// Returns the time from `now` until the condition `holds` first becomes true. The condition must stay
/// true from then on.
pub fn time_until(now: u64, holds: impl Fn(u64) -> bool) -> Nanos {
    let (mut low, mut high) = (0, u64::MAX - now);
    while low < high {
        let middle = low.midpoint(high);
        (low, high) = if holds(now + middle) { (low, middle) } else { (middle + 1, high) };
    }
    Nanos::from_nanos(low)
}
