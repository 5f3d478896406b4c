//! One slow, obvious, exact model per algorithm, and the laws that the fast ones are held to.
//!
//! A model is written from the definition of its algorithm, not from our code: amounts are rational numbers of any size,
//! histories are lists that are counted anew on every question, and a wait is found by asking when the definition would
//! first be satisfied. Nothing is ever rounded except where the definition says so: waits up, remaining down.

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

pub use concurrency::{ConcurrencyModel, LeaseNumbers};
pub use fixed_window::{FixedWindowModel, WindowNumbers};
pub use group::{GroupModel, Member};
pub use interval_bucket::{IntervalBucketModel, IntervalNumbers};
pub use leaky_bucket::{LeakyBucketModel, LeakyNumbers};
pub use pacer::PacerModel;
pub use sliding_log::{LogNumbers, SlidingLogModel};
pub use sliding_slices::SlidingSlicesModel;
pub use sliding_window::SlidingWindowModel;
pub use token_bucket::{TokenBucketModel, TokenNumbers};

/// A number without rounding and without bounds.
pub type Exact = BigRational;

/// What a model answers to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether it passes.
    pub outcome: Outcome,
    /// How much it took.
    pub taken: u64,
    /// By which name the model will recognise this taking when it is refunded.
    pub receipt: usize,
}

/// Laws that an algorithm or one of its options does not keep, because its definition says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// A refusal changes nothing. Not where refused attempts are counted.
    RefusalChangesNothing,
    /// All that remains passes now. Not where a minimum gap keeps requests apart.
    RemainingPasses,
    /// What passes at once passes singly. Not where the second of two has to wait longer than the first.
    SinglyPasses,
    /// Passing at once and singly leave the same words. Not where each taking is remembered by itself.
    SameWords,
}

/// The definition of an algorithm, to be compared with its implementation. Time only goes forward here.
pub trait Model {
    /// Decides and applies.
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> Answer;
    /// Gives back up to `cost`, to the taking with this receipt if there is one, and returns how much was accepted.
    fn refund(&mut self, now: &Now<'_>, cost: u64, receipt: Option<usize>) -> u64;
    /// What to tell, with the retry for a further request of `cost`.
    fn report(&self, now: &Now<'_>, cost: u64) -> Report;
    /// Whether the algorithm is exempt from `law`.
    fn lifts(&self, _law: Law) -> bool {
        false
    }
    /// Forgets everything.
    fn restart(&mut self, now: &Now<'_>);
}

/// `n`, exactly.
pub fn exact(n: impl Into<BigInt>) -> Exact {
    Exact::from_integer(n.into())
}

/// Units per nanosecond.
pub fn per_nano(rate: Rate) -> Exact {
    Exact::new(rate.count().into(), rate.per().as_nanos().into())
}

/// The largest whole number not above `x`, at least 0.
pub fn floor(x: &Exact) -> u64 {
    if x.is_negative() { 0 } else { x.floor().to_integer().to_u64().unwrap_or(u64::MAX) }
}

/// The smallest whole number not below `x`, at least 0.
pub fn ceil(x: &Exact) -> u64 {
    if x.is_negative() { 0 } else { x.ceil().to_integer().to_u64().unwrap_or(u64::MAX) }
}

/// The first whole nanosecond not before `x`.
pub fn ceil_nanos(x: &Exact) -> Nanos {
    Nanos::from_nanos(ceil(x))
}

/// How long from `now` until `holds`, which once true stays true.
pub fn first_wait(now: u64, holds: impl Fn(u64) -> bool) -> Nanos {
    let (mut low, mut high) = (0, u64::MAX - now);
    while low < high {
        let middle = low.midpoint(high);
        (low, high) = if holds(now + middle) { (low, middle) } else { (middle + 1, high) };
    }
    Nanos::from_nanos(low)
}
