//! Checks a history after the fact: was more admitted in any interval than the bound allows?
//!
//! The bound is `burst + rate × T` for every interval of length `T`, its ends included. Looking at all pairs of events
//! takes n² comparisons; replaying the history through an envelope finds the same violations in n: the envelope is what
//! the fullest interval ending now has used of its burst. It sinks at the rate, is never below zero (an interval
//! need not begin before it pays), rises with each event, and the bound is broken exactly when it rises above the burst.
//! Only instants and amounts go in, so any store, front end or simulation can be judged by what it let pass.

use num_bigint::BigInt;
use num_traits::{Signed, Zero};
use tollgate_core::Rate;

use crate::model::Exact;

/// At most `burst + count × T / per` in any interval of length `T`. All amounts are kept times `per`, as whole numbers.
#[derive(Clone, Debug)]
pub struct Bound {
    burst: BigInt,
    count: BigInt,
    per: BigInt,
}

impl Bound {
    /// `burst` at once and `count` per `per` nanoseconds.
    pub fn new(burst: u64, count: u64, per: u64) -> Self {
        Self { burst: BigInt::from(burst) * per, count: count.into(), per: per.into() }
    }

    /// `burst` at once and `rate`.
    pub fn of(rate: Rate, burst: u64) -> Self {
        Self::new(burst, rate.count().into(), rate.per().as_nanos())
    }

    fn excess(&self, from: u64, to: u64, used: &BigInt) -> Excess {
        Excess { from, to, by: Exact::new(used - &self.burst, self.per.clone()) }
    }
}

/// An interval in which too much was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess {
    /// The first instant of the interval, in nanoseconds.
    pub from: u64,
    /// Its last instant, that of the event which broke the bound.
    pub to: u64,
    /// By how much the bound was exceeded.
    pub by: Exact,
}

/// Takes admitted events in order of time and finds the first that breaks the bound.
#[derive(Clone, Debug)]
pub struct Checker<'a> {
    bound: &'a Bound,
    /// The most that any interval ending at `at` admitted beyond the rate.
    envelope: BigInt,
    /// Where such an interval begins.
    since: u64,
    at: u64,
}

impl<'a> Checker<'a> {
    /// Nothing admitted yet.
    pub fn new(bound: &'a Bound) -> Self {
        Self { bound, envelope: BigInt::zero(), since: 0, at: 0 }
    }

    /// Takes one more event.
    ///
    /// # Errors
    /// With the interval that ends here and admitted too much. The event is counted all the same.
    ///
    /// # Panics
    /// When the event is earlier than the one before: sort the history first.
    pub fn admit(&mut self, instant: u64, cost: u64) -> Result<(), Excess> {
        assert!(instant >= self.at, "events go in by time: {instant} after {}", self.at);
        self.envelope -= &self.bound.count * (instant - self.at);
        if !self.envelope.is_positive() {
            (self.envelope, self.since) = (BigInt::zero(), instant);
        }
        self.at = instant;
        self.envelope += &self.bound.per * cost;
        if self.envelope <= self.bound.burst {
            return Ok(());
        }
        Err(self.bound.excess(self.since, instant, &self.envelope))
    }

    /// Takes a whole history in order of time and stops at the first excess.
    ///
    /// # Errors
    /// As [`Checker::admit`].
    pub fn admit_all(&mut self, events: &[(u64, u64)]) -> Result<(), Excess> {
        events.iter().try_for_each(|&(instant, cost)| self.admit(instant, cost))
    }
}

/// The same by looking at every pair of events: slow, and obviously right.
pub fn fullest_excess(bound: &Bound, events: &[(u64, u64)]) -> Option<Excess> {
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
        (fullest.1 > bound.burst).then(|| bound.excess(fullest.0, to, &fullest.1))
    })
}

/// Something admitted, as seen from outside: when it was decided is only known to lie between asking and the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Just before it was asked, in nanoseconds.
    pub asked: u64,
    /// Just after it was answered, by the same clock.
    pub answered: u64,
    /// How much was admitted.
    pub cost: u64,
}

/// An interval in which more was asked, decided and answered than the bound allows. Whatever lies in it as a whole was also decided in
/// it, so no clock but the observer's is needed, and an answer that came late is nobody's excess.
pub fn excess_seen(bound: &Bound, seen: &[Seen]) -> Option<Excess> {
    let mut seen = seen.to_vec();
    seen.sort_by_key(|event| event.answered);
    seen.iter().find_map(|first| {
        let mut sum = BigInt::zero();
        seen.iter().filter(|event| event.asked >= first.asked).find_map(|event| {
            sum += &bound.per * event.cost;
            let used = &sum - &bound.count * (event.answered - first.asked);
            (used > bound.burst).then(|| bound.excess(first.asked, event.answered, &used))
        })
    })
}
