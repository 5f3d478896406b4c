//! Leaky bucket: requests go out at a steady rate; an early request waits, and one that would wait too long is refused.
//!
//! **The naive method** is a queue with a timer that lets one request out per tick. It needs memory for every waiting request
//! and a thread for every key, and the tick rounds the rate: 300 per second from a timer of 3 ms are 333.
//!
//! **The idea** is that a request need not stand in a queue to know when its turn comes. It is enough to store when the
//! bucket will be empty. A unit that finds an amount in the bucket has its turn when that amount has flowed out, and a
//! request of several units has its turn when the last of them has, as if they had come one after the other. The
//! request is given this wait at once, and pouring its own cost in reserves the turn. The arithmetic is that of the
//! [token bucket](super::token_bucket), exact for any rate; the two differ in which requests wait.
//!
//! Two bounds keep the queue short: `burst`, the most that can be in the bucket (nginx counts one less), and `max_wait`,
//! beyond which a request is refused instead of delayed. A part of the burst can be `free`: a unit that finds no more than this
//! in the bucket does not wait (the `delay` of nginx; `free` as large as the burst is its `nodelay`).
//!
//! **Example**: 10 per second, burst 6, free 2, six requests of cost 1 at time 0 and a seventh. They find 0, 1, 2, 3, 4 and 5
//! in the bucket, of which 2 are free: the first three pass at once, the others wait 100, 200 and 300 ms. The
//! seventh does not fit and is refused for 100 ms; it would then find 5 and wait 300 ms. One request of cost 6 on the empty
//! bucket waits 300 ms, like the last of the six.
//!
//! ```text
//!             now        now + free                  empty_at    now + burst
//!  ────────────┼──────────────┼─────────────────────────┼─────────────┼──▶ ticks
//!              │◀──────────────── in the bucket ───────▶│◀─── room ──▶│
//!                             │◀── wait of the next ───▶│
//! ```
//!
//! **Guarantee**: over any interval of length `T`, what is let in is at most `burst + rate × T`, and what has its turn is at
//! most `free + cost + rate × (T + 1 ns)`, where `cost` is that of the first of them, which goes out as a whole, and the nanosecond
//! is the rounding of waits; from an instant on at which the bucket is empty, it is at most `free + 1 + rate × (T + 1 ns)`. No
//! request waits longer than `max_wait`, nor than `(burst − 1 − free) / rate` takes. Turns come in the order of arrival. Charges
//! and refunds are outside of this, as follows.
//!
//! **Verbs**: a request goes out as a whole, when its last unit has its turn; a cost whose last unit would wait longer than
//! `max_wait` even on an empty bucket never passes. Taking up to an amount takes what fits both bounds, with one wait for all
//! of it. A charge records what has already happened, so it never waits: it goes into the bucket regardless of the bounds,
//! up to `max_debt` above the burst, and later requests wait for it. A refund takes out what it put in, as far as that is still
//! in the bucket; waits that were given stay as they are, and the next request may have its turn together with one of
//! those. A cost of zero does not wait.
//!
//! **State**: the instant at which the bucket will be empty, in ticks, as one word or two like that of the token bucket.
//! **Cost**: a few multiplications, and one division if the answer is a wait.
//!
//! **Poor choice** where callers cannot or will not wait, such as a gateway that must answer now: use a token bucket.

use core::time::Duration;

use super::token_bucket::TokenBucket;
use super::{Algorithm, Cells, CellsMut};
use crate::change::changed_parameters;
use crate::error::LimitError;
use crate::params::{DecodedState, Params};
use crate::quantity::{Cost, Mono, Nanos, Now, Time};
use crate::rate::Rate;
use crate::ticks::Ticks;
use crate::tokens::Tokens;
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};

/// A steady outflow and a bounded queue.
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
    /// The arithmetic of a token bucket: what that bucket owes is the content of this one, and its refill is the
    /// outflow.
    bucket: TokenBucket,
    free: u64,
    max_wait: Nanos,
    /// The most that a unit may find in the bucket to wait no longer than `max_wait`: `free` and what flows out in that time.
    wait_bound: Ticks,
}

impl LeakyBucket {
    /// Makes a bucket that lets `rate` out and holds at most `burst`. Nothing is free, waits are bounded by the burst alone, a new
    /// bucket is empty, and debt is bounded by another burst.
    ///
    /// # Errors
    /// When `burst` is zero or takes longer than [`Rate::MAX_FILL`] to flow out.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, LimitError> {
        let bucket = TokenBucket::new(rate, burst)?;
        Ok(Self { bucket, free: 0, max_wait: Nanos::MAX, wait_bound: 0 }.with_wait_bound())
    }

    /// Sets the free part: a unit that finds no more than `free` in the bucket does not wait, so `free + 1` units pass
    /// at once.
    ///
    /// # Errors
    /// When it is more than the burst.
    pub fn free(self, free: u64) -> Result<Self, LimitError> {
        LimitError::check_range("the free amount", free, 0, self.burst())?;
        Ok(Self { free, ..self }.with_wait_bound())
    }

    /// Sets the longest wait: a request that would wait longer than `max_wait` is refused; zero refuses every request
    /// that would wait.
    #[must_use]
    pub fn max_wait(self, max_wait: impl Into<Duration>) -> Self {
        let max_wait = Nanos::from(max_wait.into());
        Self { max_wait, ..self }.with_wait_bound()
    }

    /// Sets the maximum `max_debt` put in beyond the burst by [`Ask::Regardless`].
    ///
    /// # Errors
    /// When it takes longer than [`Rate::MAX_FILL`] to flow out.
    pub fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        Ok(Self { bucket: self.bucket.max_debt(max_debt)?, ..self })
    }

    /// Sets the capacity of a new key to `initial`, as if the rest of the burst had just been poured in.
    ///
    /// A bucket that ran empty may be forgotten, and then starts with `initial` again.
    ///
    /// # Errors
    /// When it is more than the burst.
    pub fn initial(self, initial: u64) -> Result<Self, LimitError> {
        Ok(Self { bucket: self.bucket.initial(initial)?, ..self })
    }

    fn with_wait_bound(self) -> Self {
        let flow = self.bucket.flow();
        Self {
            wait_bound: flow.ticks_of(self.free) + flow.instant_in_ticks(Time::from_nanos(self.max_wait.as_nanos())),
            ..self
        }
    }

    /// Returns the rate, in lowest terms.
    pub fn rate(&self) -> Rate {
        self.bucket.rate()
    }

    /// Returns the most that can be in the bucket.
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

    pub(crate) fn until_used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        self.bucket.until_used(state, now, at_most)
    }

    pub(crate) fn start_with<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, used: Tokens) {
        self.bucket.start_with(state, now, used);
    }

    /// Returns the most that may be used up for `ask` to be let in; `None` if it never is.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        let room = match ask {
            Ask::Exactly(cost) => self.max_level_for(cost),
            Ask::UpTo(cost) => self.max_level_for(cost.min(Cost::ONE)),
            Ask::Regardless(cost) => self.bucket.room_with_debt(cost),
        };
        room.map(|room| self.bucket.ticks_to_tokens(room))
    }

    /// Returns what is admitted on top of `used`.
    pub(crate) fn remaining_beside(&self, used: Tokens) -> u64 {
        self.available(used.units_ceil(self.bucket.ticks_per_token()))
    }

    /// Returns all of a cost but its last unit, in ticks.
    #[inline]
    fn before_last(&self, cost: Cost) -> Ticks {
        self.bucket.flow().ticks_of(cost.get().saturating_sub(1))
    }

    /// Returns the most that may be in the bucket when `cost` comes, for both bounds to hold; `None` if they never do. A cost of zero
    /// does not wait, so only the burst bounds it.
    #[inline]
    fn max_level_for(&self, cost: Cost) -> Option<Ticks> {
        if cost == Cost::ZERO {
            return self.bucket.max_owed_for(cost);
        }
        Some(self.bucket.max_owed_for(cost)?.min(self.wait_bound.checked_sub(self.before_last(cost))?))
    }

    /// Returns the whole units admitted on top of `owed`: those that fit, and of which the last waits no longer than
    /// allowed.
    fn available(&self, owed: Ticks) -> u64 {
        let patient = self.wait_bound.checked_sub(owed);
        patient
            .map_or(0, |left| self.bucket.available(owed).min(self.bucket.flow().whole_units(left).saturating_add(1)))
    }

    /// Returns the outcome on top of `owed` in the bucket: admitted now, or when everything before its last unit,
    /// except the free part, has flowed out.
    #[inline]
    fn admit(&self, owed: Ticks, taken: Cost) -> Verdict {
        let flow = self.bucket.flow();
        let early = (owed + self.before_last(taken)).saturating_sub(flow.ticks_of(self.free));
        if early == 0 || taken == Cost::ZERO {
            return Verdict::allow(taken);
        }
        Verdict::with_outcome(Outcome::Delay(flow.wait(early)), taken, Stamp::NONE)
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
                room => Verdict::deny(self.bucket.retry_for(owed, room)),
            },
            Ask::UpTo(cost) => match cost.min(Cost::new(self.available(owed))) {
                Cost::ZERO if cost > Cost::ZERO => {
                    Verdict::deny(self.bucket.retry_for(owed, self.max_level_for(Cost::ONE)))
                }
                taken => self.admit(owed, taken),
            },
            Ask::Regardless(cost) => match self.bucket.room_with_debt(cost) {
                Some(room) if owed <= room => Verdict::allow(cost),
                room => Verdict::deny(self.bucket.retry_for(owed, room)),
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

    /// `remaining` and `retry` are about being admitted, perhaps with a delay; peeking returns the delay.
    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        let owed = self.bucket.owed_now(state, now);
        self.bucket.report_owed(owed, self.available(owed), self.max_level_for(cost))
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        self.bucket.spent(state, now)
    }

    fn is_new<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.bucket.is_new(state, now)
    }

    /// Returns the time until it would pass without delay. A cost above the free part plus one never does; then it is the time
    /// until the bucket is empty.
    fn wait_behind<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        let undelayed = self.bucket.flow().ticks_of(self.free).saturating_sub(self.before_last(cost));
        self.bucket.retry_after(state, now, ahead, self.max_level_for(cost).map(|room| room.min(undelayed)))
    }

    /// The amount owed is kept, rounded up to a tick of the new rate.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        self.start_with(state, now, own.used(state, now));
    }

    changed_parameters!();
}

#[cfg(test)]
mod tests;
