//! Leaky bucket: requests go out at a steady rate. An early request waits; a request that would wait too long is
//! refused.
//!
//! **The naive method** is a queue with a timer that releases one request whenever it fires. The queue needs memory for
//! every waiting request, and the timer needs a thread for every key. The timer also rounds the rate: a timer of 3 ms
//! turns 300 per second into 333.
//!
//! **The idea** is that no queue is needed: a request can compute when it goes out. It is enough to store the instant
//! at which the bucket will be empty. A unit goes out when the content that was in the bucket on its arrival has flowed
//! out. A request of several units goes out with its last unit, as if the units had arrived one after the other. The
//! verdict contains this wait, and adding the cost to the bucket reserves the time. The arithmetic is the same as in
//! the [token bucket](super::token_bucket), and exact for any rate. The two algorithms differ only in which requests
//! wait.
//!
//! Two bounds keep the queue short. `burst` is the maximum content of the bucket (nginx counts one less). A request
//! that would wait longer than `max_wait` is refused instead of delayed. Part of the burst can be `free`: a unit that
//! finds at most this amount in the bucket does not wait. `free` is nginx's `delay`; `free` equal to the burst is
//! nginx's `nodelay`.
//!
//! **Example**: 10 per second, burst 6, free 2, and seven requests of cost 1 at time 0. The first six requests find 0,
//! 1, 2, 3, 4 and 5 units in the bucket, and 2 units are free. So the first three pass immediately, and the next three
//! wait 100, 200 and 300 ms. The seventh exceeds the burst and is refused with a retry of 100 ms; it would then find 5
//! units and wait 300 ms. A single request of cost 6 on an empty bucket waits 300 ms, like the sixth request.
//!
//! ```text
//!             now        now + free                  empty_at    now + burst
//!  ────────────┼──────────────┼─────────────────────────┼─────────────┼──▶ ticks
//!              │◀──────────────── in the bucket ───────▶│◀─── room ──▶│
//!                             │◀── wait of the next ───▶│
//! ```
//!
//! **Guarantee**: over any interval of length `T`, the admitted cost is at most `burst + rate × T`. The cost that goes
//! out is at most `free + cost + rate × (T + 1 ns)`. In this bound, `cost` is the cost of the first request in the
//! interval, which goes out as a whole, and the nanosecond covers the rounding of waits. If the bucket is empty when
//! the interval starts, the bound is `free + 1 + rate × (T + 1 ns)`. A request waits at most `max_wait`, and at most
//! `(burst − 1 − free) / rate`. Requests go out in order of arrival. Charges and refunds are exceptions, described
//! next.
//!
//! **Verbs**: a request goes out as a whole, together with its last unit. A cost whose last unit would wait longer than
//! `max_wait` even on an empty bucket never passes. [`Ask::UpTo`] takes the largest number of units that satisfies both
//! bounds, with one wait for all of them. A charge records something that already happened, so it never waits: it is
//! added regardless of the bounds, up to `max_debt` above the burst, and later requests wait for it. A refund removes
//! units that are still in the bucket. Waits already returned do not change, so the next request may go out at the same
//! time as an earlier request. A cost of zero does not wait.
//!
//! **State**: the instant at which the bucket will be empty, in ticks; one or two words, as for the token bucket.
//! **Cost**: a few multiplications, and one division if the request has to wait.
//!
//! **Poor choice** where callers cannot wait, such as a gateway that must answer now: use a token bucket.

use core::time::Duration;

use super::token_bucket::TokenBucket;
use super::{Algorithm, Cells, CellsMut};
use crate::change::changed_parameter_methods;
use crate::error::LimitError;
use crate::params::{DecodedState, Params};
use crate::quantity::{Cost, Mono, Nanos, Now, Time};
use crate::rate::Rate;
use crate::ticks::Ticks;
use crate::tokens::Tokens;
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};

/// Delays requests to a steady rate, and refuses a request that would wait too long.
///
/// ```
/// use tollgate_core::{Algorithm, Ask, Cost, LeakyBucket, Nanos, Now, Outcome};
///
/// let limit = LeakyBucket::new("10/s".parse()?, 6)?;
/// let mut state = [0; 2];
/// limit.init(&mut state, &Now::at(0));
/// let mut check = || limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::ONE)).outcome();
/// assert_eq!(check(), Outcome::Allow);
/// assert_eq!(check(), Outcome::Delay(Nanos::from_millis(100)));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    /// Token bucket that does the arithmetic. The token bucket's debt is the content of this bucket, and its refill is
    /// the outflow.
    bucket: TokenBucket,
    free: u64,
    max_wait: Nanos,
    /// Largest content at which the wait of a unit is at most `max_wait`: `free` plus the outflow in that time.
    max_wait_level: Ticks,
}

impl LeakyBucket {
    /// Creates a bucket that drains at `rate` and holds at most `burst`. By default nothing is free, only the burst
    /// bounds the waits, a new bucket is empty, and the maximum debt equals `burst`.
    ///
    /// # Errors
    /// Returns an error if `burst` is zero, or if a full burst takes longer than [`Rate::MAX_FILL_TIME`] to flow out.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, LimitError> {
        let bucket = TokenBucket::new(rate, burst)?;
        Ok(Self { bucket, free: 0, max_wait: Nanos::MAX, max_wait_level: 0 }.with_max_level())
    }

    /// Sets the free part. A unit that finds at most `free` units in the bucket does not wait. So `free + 1` units pass
    /// an empty bucket immediately, but never more than the burst.
    ///
    /// # Errors
    /// Returns an error if `free` is above the burst.
    pub fn free(self, free: u64) -> Result<Self, LimitError> {
        LimitError::check_range("the free amount", free, 0, self.burst())?;
        Ok(Self { free, ..self }.with_max_level())
    }

    /// Sets the longest wait. A request that would wait longer is refused; zero refuses every request that would wait.
    #[must_use]
    pub fn max_wait(self, max_wait: impl Into<Duration>) -> Self {
        let max_wait = Nanos::from(max_wait.into());
        Self { max_wait, ..self }.with_max_level()
    }

    /// Sets the maximum amount beyond the burst that [`Ask::Regardless`] may add.
    ///
    /// # Errors
    /// Returns an error if the burst plus the debt takes longer than [`Rate::MAX_FILL_TIME`] to flow out.
    pub fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        Ok(Self { bucket: self.bucket.max_debt(max_debt)?, ..self })
    }

    /// Sets the remaining capacity of a new key, as if the missing part of the burst had just been added.
    ///
    /// A bucket that has run empty may be forgotten, and then starts with `initial` again.
    ///
    /// # Errors
    /// Returns an error if `initial` is above the burst.
    pub fn initial(self, initial: u64) -> Result<Self, LimitError> {
        Ok(Self { bucket: self.bucket.initial(initial)?, ..self })
    }

    fn with_max_level(self) -> Self {
        let tick_rate = self.bucket.tick_rate();
        Self {
            max_wait_level: tick_rate.ticks_of(self.free)
                + tick_rate.instant_in_ticks(Time::from_nanos(self.max_wait.as_nanos())),
            ..self
        }
    }

    /// Returns the rate, in lowest terms.
    pub fn rate(&self) -> Rate {
        self.bucket.rate()
    }

    /// Returns the maximum content of the bucket.
    pub const fn burst(&self) -> u64 {
        self.bucket.burst()
    }

    /// Returns whether the state is a single word, which can be updated without a lock.
    pub const fn fits_a_word(&self) -> bool {
        self.bucket.fits_a_word()
    }

    pub(crate) const fn params(&self) -> Params {
        Params::LeakyBucket { bucket: self.bucket.bucket_params(), free: self.free, max_wait: self.max_wait }
    }

    pub(crate) fn decode<S: Cells + ?Sized>(&self, state: &S) -> DecodedState {
        self.bucket.decode(state)
    }

    pub(crate) fn encode<S: CellsMut + ?Sized>(&self, state: &mut S, ticks: Ticks) {
        self.bucket.encode(state, ticks);
    }

    pub(crate) fn rebase<S: CellsMut + ?Sized>(&self, state: &mut S, from: Time<Mono>, to: Time<Mono>) {
        self.bucket.rebase(state, from, to);
    }

    pub(crate) fn used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Tokens {
        self.bucket.used(state, now)
    }

    pub(crate) fn until_used_at_most<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        self.bucket.until_used_at_most(state, now, at_most)
    }

    pub(crate) fn init_with_used<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, used: Tokens) {
        self.bucket.init_with_used(state, now, used);
    }

    /// Returns the largest used amount at which `ask` is admitted; `None` if `ask` is never admitted.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        let room = match ask {
            Ask::Exactly(cost) => self.max_level_for(cost),
            Ask::UpTo(cost) => self.max_level_for(cost.min(Cost::ONE)),
            Ask::Regardless(cost) => self.bucket.max_owed_with_debt(cost),
        };
        room.map(|room| self.bucket.ticks_to_tokens(room))
    }

    /// Returns the amount that can be admitted in addition to `used`.
    pub(crate) fn remaining_after(&self, used: Tokens) -> u64 {
        self.available(used.units_ceil(self.bucket.ticks_per_token()))
    }

    /// Returns `cost` without its last unit, in ticks.
    #[inline]
    fn ticks_without_last_unit(&self, cost: Cost) -> Ticks {
        self.bucket.tick_rate().ticks_of(cost.get().saturating_sub(1))
    }

    /// Returns the largest content at which `cost` satisfies both bounds; `None` if `cost` never satisfies them. A cost
    /// of zero does not wait, so only the burst bounds it.
    #[inline]
    fn max_level_for(&self, cost: Cost) -> Option<Ticks> {
        if cost == Cost::ZERO {
            return self.bucket.max_owed_for(cost);
        }
        Some(self.bucket.max_owed_for(cost)?.min(self.max_wait_level.checked_sub(self.ticks_without_last_unit(cost))?))
    }

    /// Returns the number of whole units that can be admitted in addition to `owed`. The content must stay within the
    /// burst, and the last unit must not wait longer than `max_wait`.
    fn available(&self, owed: Ticks) -> u64 {
        let patient = self.max_wait_level.checked_sub(owed);
        patient.map_or(0, |left| {
            self.bucket.available(owed).min(self.bucket.tick_rate().whole_units(left).saturating_add(1))
        })
    }

    /// Returns the outcome of a request that finds `owed` in the bucket. The request is admitted now, or after the wait
    /// until the content before its last unit, minus the free part, has flowed out.
    #[inline]
    fn admit(&self, owed: Ticks, taken: Cost) -> Verdict {
        let tick_rate = self.bucket.tick_rate();
        let early = (owed + self.ticks_without_last_unit(taken)).saturating_sub(tick_rate.ticks_of(self.free));
        if early == 0 || taken == Cost::ZERO {
            return Verdict::allow(taken);
        }
        Verdict::with_outcome(Outcome::Delay(tick_rate.time_for_ticks(early)), taken, Stamp::NONE)
    }
}

impl Algorithm for LeakyBucket {
    type Stamp = Stamp;

    fn words(&self) -> usize {
        self.bucket.words()
    }

    fn capacity(&self) -> u64 {
        self.bucket.burst()
    }

    #[inline]
    fn init<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
        self.bucket.init(state, now);
    }

    #[inline]
    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict {
        let owed = self.bucket.owed_now(state, now);
        match ask {
            Ask::Exactly(cost) => match self.max_level_for(cost) {
                Some(room) if owed <= room => self.admit(owed, cost),
                room => Verdict::deny(self.bucket.wait_until_owed_at_most(owed, room)),
            },
            Ask::UpTo(cost) => match cost.min(Cost::new(self.available(owed))) {
                Cost::ZERO if cost > Cost::ZERO => {
                    Verdict::deny(self.bucket.wait_until_owed_at_most(owed, self.max_level_for(Cost::ONE)))
                }
                taken => self.admit(owed, taken),
            },
            Ask::Regardless(cost) => match self.bucket.max_owed_with_debt(cost) {
                Some(room) if owed <= room => Verdict::allow(cost),
                room => Verdict::deny(self.bucket.wait_until_owed_at_most(owed, room)),
            },
        }
    }

    #[inline]
    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict) {
        self.bucket.take(state, now, self.bucket.owed_now(state, now), verdict.taken());
    }

    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, stamp: Option<Stamp>) -> Cost {
        self.bucket.refund(state, now, cost, stamp)
    }

    /// `remaining` and `retry` count delayed requests as admitted. A peek returns the delay.
    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        let owed = self.bucket.owed_now(state, now);
        self.bucket.report_owed(owed, self.available(owed), self.max_level_for(cost))
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        self.bucket.spent(state, now)
    }

    fn is_unused<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.bucket.is_unused(state, now)
    }

    /// Returns the time until the request would pass without delay. A cost above `free + 1` always has a delay; for
    /// such a cost, returns the time until the bucket is empty.
    fn wait_in_queue<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        let undelayed = self.bucket.tick_rate().ticks_of(self.free).saturating_sub(self.ticks_without_last_unit(cost));
        self.bucket.wait_after_queued(state, now, ahead, self.max_level_for(cost).map(|room| room.min(undelayed)))
    }

    /// Keeps the content, rounded up to a tick of the new rate.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        self.init_with_used(state, now, own.used(state, now));
    }

    changed_parameter_methods!();
}

#[cfg(test)]
mod tests;
