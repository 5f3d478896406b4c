//! Leaky bucket: whatever comes in, it goes out at a steady rate; who comes early waits, who would wait too long is refused.
//!
//! **The naive method** is a queue with a timer that lets one request out per tick. It needs memory for everybody who waits
//! and a thread for every key, and the tick rounds the rate: 300 per second from a timer of 3 ms are 333.
//!
//! **The idea** is that nobody has to stand in the queue to know when its turn comes. It is enough to store when the
//! bucket will have run dry: a request that finds an amount in the bucket has its turn when that has flowed out. It is
//! told this wait at once, and pouring its own cost in reserves the place. The arithmetic is that of the
//! [token bucket](super::token_bucket), exact for any rate; the two differ in who is told to wait.
//!
//! Two bounds keep the queue short: `burst`, the most that can be in the bucket (nginx counts one less), and `max_wait`,
//! beyond which a request is refused instead of delayed. A part of the burst can be `free`: so much may be in the bucket
//! before anybody has to wait (the `delay` of nginx; `free` as large as the burst is its `nodelay`).
//!
//! **Example**: 10 per second, burst 6, free 2, six requests of cost 1 at time 0 and a seventh. They find 0, 1, 2, 3, 4 and 5
//! in the bucket, of which 2 are free: the first three pass at once, the others wait 100, 200 and 300 ms. The
//! seventh does not fit, and is told to try again in 100 ms; it would then find 5 and wait 300 ms.
//!
//! ```text
//!             now        now + free                  empty_at    now + burst
//!  ────────────┼──────────────┼─────────────────────────┼─────────────┼──▶ ticks
//!              │◀──────────────── in the bucket ───────▶│◀─── room ──▶│
//!                             │◀── wait of the next ───▶│
//! ```
//!
//! **Guarantee**: over any interval of length `T`, what is let in is at most `burst + rate × T`, and what has its turn is at
//! most `free + cost + rate × (T + 1 ns)`, where `cost` is that of the last one of them and the nanosecond is the rounding of
//! waits. Nobody waits longer than `max_wait`, nor than `(burst − free) / rate` takes. Turns come in the order of
//! arrival. What is charged regardless or refunded is outside of this, as follows.
//!
//! **Verbs**: a cost waits for what was in the bucket before it, not for itself, and goes out as a whole. Taking up to an
//! amount takes what fits, with one wait for all of it. A charge records what has already happened, so it never waits:
//! it goes into the bucket regardless of the bounds, up to `max_debt` above the burst, and those who come after wait
//! for it. A refund takes out what it put in, as far as that is still in the bucket; who was given a wait keeps it, and the
//! next to come may have its turn together with one of those. What takes nothing waits for nothing.
//!
//! **State**: the instant at which the bucket will be empty, in ticks, as one word or two like that of the token bucket.
//! **Cost**: a few multiplications, and one division if the answer is a wait.
//!
//! **Poor choice** where callers cannot or will not wait, such as a gateway that must answer now: use a token bucket.

use super::{Algorithm, Cells, CellsMut};
use crate::bucket::Bucket;
use crate::error::LimitError;
use crate::quantity::{Cost, Mono, Nanos, Now, Time};
use crate::rate::Rate;
use crate::terms::{Kept, Terms};
use crate::ticks::Ticks;
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};

/// A steady rate out, a bounded queue in.
///
/// ```
/// use tollgate_core::{Algorithm, Ask, Cost, LeakyBucket, Nanos, Now, Outcome};
///
/// let limit = LeakyBucket::new("10/s".parse()?, 6)?;
/// let mut state = [0; 2];
/// limit.fresh(&mut state, &Now::at(0));
/// let mut check = || limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::ONE)).outcome();
/// assert_eq!(check(), Outcome::Allow);
/// assert_eq!(check(), Outcome::Delay(Nanos::from_millis(100)));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    /// What it owes has been poured in and has not yet flowed out.
    bucket: Bucket,
    free: u64,
    max_wait: Nanos,
    /// The most that may be in the bucket for somebody to have to wait no longer than `max_wait`: `free` and what flows
    /// out in that time.
    patience: Ticks,
}

impl LeakyBucket {
    /// `rate` going out, with at most `burst` in the bucket. Nothing is free, waits are bounded by the burst alone,
    /// a new bucket is empty, and debt is bounded by another burst.
    ///
    /// # Errors
    /// When `burst` is zero or takes longer than [`Rate::MAX_FILL`] to flow out.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, LimitError> {
        let bucket = Bucket::new(rate, burst)?;
        Ok(Self { bucket, free: 0, max_wait: Nanos::MAX, patience: 0 }.with_patience())
    }

    /// With nobody waiting until more than `free` is in the bucket.
    ///
    /// # Errors
    /// When it is more than the burst.
    pub fn free(self, free: u64) -> Result<Self, LimitError> {
        if free > self.burst() {
            return Err(LimitError::OutOfRange { what: "the free amount", given: free, min: 0, max: self.burst() });
        }
        Ok(Self { free, ..self }.with_patience())
    }

    /// With a refusal for whoever would wait longer than `max_wait`; zero refuses everybody who would wait at all.
    #[must_use]
    pub fn max_wait(self, max_wait: Nanos) -> Self {
        Self { max_wait, ..self }.with_patience()
    }

    /// With at most `max_debt` put in beyond the burst by [`Ask::Regardless`].
    ///
    /// # Errors
    /// When it takes longer than [`Rate::MAX_FILL`] to flow out.
    pub fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        Ok(Self { bucket: self.bucket.max_debt(max_debt)?, ..self })
    }

    /// With room for only `initial` in the bucket of a new key, as if the rest of the burst had just been poured in.
    ///
    /// A bucket that ran empty is forgotten as any other is, and then starts with `initial` again.
    ///
    /// # Errors
    /// When it is more than the burst.
    pub fn initial(self, initial: u64) -> Result<Self, LimitError> {
        Ok(Self { bucket: self.bucket.initial(initial)?, ..self })
    }

    fn with_patience(self) -> Self {
        let flow = self.bucket.flow();
        Self { patience: flow.ticks(self.free) + flow.instant(Time::from_nanos(self.max_wait.as_nanos())), ..self }
    }

    /// The rate, in lowest terms.
    pub fn rate(&self) -> Rate {
        self.bucket.flow().rate()
    }

    /// The most that can be in the bucket.
    pub const fn burst(&self) -> u64 {
        self.bucket.burst()
    }

    /// Whether the state is a single word, which can be updated without a lock.
    pub const fn fits_a_word(&self) -> bool {
        self.bucket.fits_a_word()
    }

    pub(crate) const fn terms(&self) -> Terms {
        Terms::LeakyBucket { bucket: self.bucket.terms(), free: self.free, max_wait: self.max_wait }
    }

    pub(crate) fn kept<S: Cells + ?Sized>(&self, state: &S) -> Kept {
        self.bucket.kept(state)
    }

    pub(crate) fn keep<S: CellsMut + ?Sized>(&self, state: &mut S, ticks: Ticks) {
        self.bucket.keep(state, ticks);
    }

    pub(crate) fn rebase<S: CellsMut + ?Sized>(&self, state: &mut S, from: Time<Mono>, to: Time<Mono>) {
        self.bucket.rebase(state, from, to);
    }

    /// The most that may be in the bucket when `cost` comes, for both bounds to hold.
    #[inline]
    fn room(&self, cost: Cost) -> Option<Ticks> {
        self.bucket.room(cost).map(|room| room.min(self.patience))
    }

    /// Whole units that fit, with the wait that `owed` in the bucket means for them.
    fn available(&self, owed: Ticks) -> u64 {
        if owed <= self.patience { self.bucket.available(owed) } else { 0 }
    }

    /// What passes behind `owed` in the bucket, now or when all but the free part of that has flowed out.
    #[inline]
    fn pass(&self, owed: Ticks, taken: Cost) -> Verdict {
        let flow = self.bucket.flow();
        let early = owed.saturating_sub(flow.ticks(self.free));
        if early == 0 || taken == Cost::ZERO {
            return Verdict::allow(taken);
        }
        Verdict::pass(Outcome::Delay(flow.wait(early)), taken, Stamp::NONE)
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
    fn fresh<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
        self.bucket.fresh(state, now);
    }

    #[inline]
    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict {
        let owed = self.bucket.owed(state, now);
        match ask {
            Ask::Exactly(cost) => match self.room(cost) {
                Some(room) if owed <= room => self.pass(owed, cost),
                room => Verdict::deny(self.bucket.retry(owed, room)),
            },
            Ask::UpTo(cost) => match cost.min(Cost::new(self.available(owed))) {
                Cost::ZERO if cost > Cost::ZERO => Verdict::deny(self.bucket.retry(owed, self.room(Cost::ONE))),
                taken => self.pass(owed, taken),
            },
            Ask::Regardless(cost) => match self.bucket.room_with_debt(cost) {
                Some(room) if owed <= room => Verdict::allow(cost),
                room => Verdict::deny(self.bucket.retry(owed, room)),
            },
        }
    }

    #[inline]
    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict) {
        self.bucket.take(state, now, verdict.taken());
    }

    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, _: Option<Stamp>) -> Cost {
        self.bucket.refund(state, now, cost)
    }

    /// `remaining` and `retry` are about being let in, perhaps with a wait; peeking tells the wait.
    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        let owed = self.bucket.owed(state, now);
        self.bucket.report(owed, self.available(owed), self.room(cost))
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        self.bucket.spent(self.bucket.owed(state, now))
    }

    fn is_new<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.bucket.owed(state, now) == 0
    }

    /// Until it would pass undelayed.
    fn wait_behind<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        let undelayed = self.bucket.flow().ticks(self.free);
        self.bucket.retry_behind(state, now, ahead, self.bucket.room(cost).map(|room| room.min(undelayed)))
    }

    fn convert<S: CellsMut + ?Sized>(&self, old: &Self, state: &mut S, now: &Now<'_>) {
        self.bucket.convert(&old.bucket, state, now);
    }
}

#[cfg(test)]
mod tests;
