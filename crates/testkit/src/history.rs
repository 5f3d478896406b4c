//! Checks whether any interval of a recorded history admitted more than its bound.
//!
//! The bound is `burst + rate × T` for every closed interval of length `T`. Comparing all pairs of
//! events takes n² steps. Replaying the history through an envelope finds the same violations in n
//! steps. The envelope is the maximum, over all intervals that end now, of the amount that the interval
//! admitted beyond the rate. The envelope decreases at the rate, is never below zero (the interval that
//! starts now has admitted nothing), and increases with each event. The bound is violated exactly when the
//! envelope exceeds the burst. The input consists of instants and amounts only, so the checker applies to
//! any store, front end or simulation.

use num_bigint::BigInt;
use num_traits::{Signed, Zero};
use tollgate_core::Rate;

use crate::model::Exact;

/// Bound of `burst + count × T / per` in any interval of length `T`. All amounts are multiplied by
/// `per`, so that they are integers.
#[derive(Clone, Debug)]
pub struct Bound {
    burst: BigInt,
    count: BigInt,
    per: BigInt,
}

impl Bound {
    /// Returns the bound for `burst` at one instant and `count` per `per` nanoseconds.
    pub fn new(burst: u64, count: u64, per: u64) -> Self {
        Self { burst: BigInt::from(burst) * per, count: count.into(), per: per.into() }
    }

    /// Returns the bound for `burst` at one instant and `rate`.
    pub fn from_rate(rate: Rate, burst: u64) -> Self {
        Self::new(burst, rate.count().into(), rate.per().as_nanos())
    }

    fn excess_between(&self, from: u64, to: u64, used: &BigInt) -> Excess {
        Excess { from, to, by: Exact::new(used - &self.burst, self.per.clone()) }
    }
}

/// An interval that admitted too much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess {
    /// Start of the interval, in nanoseconds.
    pub from: u64,
    /// End of the interval: the time of the violating event.
    pub to: u64,
    /// The excess over the bound.
    pub by: Exact,
}

/// Reads admitted events in time order and reports each event that violates the bound.
#[derive(Clone, Debug)]
pub struct Checker<'a> {
    bound: &'a Bound,
    /// Maximum, over all intervals ending at `at`, of the amount admitted beyond the rate.
    envelope: BigInt,
    /// Start of the interval with that maximum.
    since: u64,
    at: u64,
}

impl<'a> Checker<'a> {
    /// Returns a checker without events.
    pub fn new(bound: &'a Bound) -> Self {
        Self { bound, envelope: BigInt::zero(), since: 0, at: 0 }
    }

    /// Adds an event.
    ///
    /// # Errors
    /// Returns an interval that ends with this event and violates the bound. The event is counted anyway.
    ///
    /// # Panics
    /// Panics if the event is earlier than the previous event, because the history must be sorted.
    pub fn admit(&mut self, instant: u64, cost: u64) -> Result<(), Excess> {
        assert!(instant >= self.at, "events must be in time order: {instant} after {}", self.at);
        self.envelope -= &self.bound.count * (instant - self.at);
        if !self.envelope.is_positive() {
            (self.envelope, self.since) = (BigInt::zero(), instant);
        }
        self.at = instant;
        self.envelope += &self.bound.per * cost;
        if self.envelope <= self.bound.burst {
            return Ok(());
        }
        Err(self.bound.excess_between(self.since, instant, &self.envelope))
    }

    /// Adds a whole history in time order and stops at the first violation.
    ///
    /// # Errors
    /// Returns the same error as [`Checker::admit`].
    pub fn admit_all(&mut self, events: &[(u64, u64)]) -> Result<(), Excess> {
        events.iter().try_for_each(|&(instant, cost)| self.admit(instant, cost))
    }
}

/// Finds the first violation by comparing all pairs of events. This is slow, but obviously correct.
pub fn first_excess_by_pairs(bound: &Bound, events: &[(u64, u64)]) -> Option<Excess> {
    (0..events.len()).find_map(|last| {
        let to = events[last].0;
        let mut sum = BigInt::zero();
        let mut fullest = (to, BigInt::zero());
        for &(from, cost) in events[..=last].iter().rev() {
            sum += &bound.per * cost;
            let used = &sum - &bound.count * (to - from);
            if used > fullest.1 {
                fullest = (from, used);
            }
        }
        (fullest.1 > bound.burst).then(|| bound.excess_between(fullest.0, to, &fullest.1))
    })
}

/// An admitted request as seen by its client. The decision happened between sending and receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedRequest {
    /// Time just before the request was sent, in nanoseconds.
    pub asked: u64,
    /// Time just after the reply arrived, by the same clock.
    pub answered: u64,
    /// Admitted amount.
    pub cost: u64,
}

/// Finds an interval that violates the bound. Counts only requests that were both sent and answered within the
/// interval, because these were certainly decided within it. So only the client's clock is needed, and a late reply
/// cannot cause a false violation.
pub fn excess_observed(bound: &Bound, seen: &[ObservedRequest]) -> Option<Excess> {
    let mut seen = seen.to_vec();
    seen.sort_by_key(|event| event.answered);
    seen.iter().find_map(|first| {
        let mut sum = BigInt::zero();
        seen.iter().filter(|event| event.asked >= first.asked).find_map(|event| {
            sum += &bound.per * event.cost;
            let used = &sum - &bound.count * (event.answered - first.asked);
            (used > bound.burst).then(|| bound.excess_between(first.asked, event.answered, &used))
        })
    })
}
