//! Token bucket: a burst at once, then a steady rate.
//!
//! **The naive method** keeps a number of tokens and the time of the last refill, and on each request adds
//! `elapsed × rate`. Whatever that product does not divide evenly is rounded away on every request: callers 1.9 s apart
//! on one token per second lose the 0.9 each time. With floating point the loss is smaller and has no stated size.
//!
//! **The idea** is to store when the bucket will be full again instead of how full it was. Nothing is refilled, so
//! nothing is rounded: taking `n` tokens moves that instant `n` token-times further away, and the bucket has room
//! while the instant is no more than a whole burst ahead. This is also the generic cell rate algorithm (the instant is its
//! theoretical arrival time) and the leaky bucket as a meter (the instant minus now is its level).
//!
//! For the instant to be exact for any rate, it is counted in *ticks*. A rate of `count` per `per` nanoseconds, in lowest
//! terms, has `count` ticks to the nanosecond and so exactly `per` ticks to the token: both are whole numbers, and
//! a decision is one addition and one comparison, with no division.
//!
//! **Example**: capacity 10 at 10 per second. In lowest terms that is 1 per 10⁸ ns: one tick is 1 ns, a token is 10⁸
//! ticks, the whole burst 10⁹. At time 0 a cost of 6 makes the bucket full at 6·10⁸ ticks: 4 remain. At 200 ms a cost of
//! 5 makes it full at 11·10⁸, which is 9·10⁸ ahead of now, within the burst: it passes, and 1 remains. Full again at
//! 1.1 s, that is 900 ms later.
//!
//! ```text
//!             now                full_at           now + burst
//!  ────────────┼────────────────────┼───────────────────┼──────────▶ ticks
//!              │◀──── spent ───────▶│◀──── remaining ──▶│
//! ```
//!
//! **Guarantee**: over any interval of length `T`, what passes is at most `burst + rate × T`; and a request is refused
//! only if letting it pass would break that. Time is kept to the tick, so this does not drift, ever.
//!
//! **State**: the instant, in ticks, as one word if 73 years of ticks fit (the count of the rate in lowest terms is at
//! most 7), otherwise two. **Cost**: three multiplications, no division unless refused or asked for a report.
//!
//! **Poor choice** when what passes in any one window must never exceed the count (up to `burst` more can), or when quotas
//! must begin anew at midnight: use a log or a window.

use super::{Algorithm, Cells, CellsMut};
use crate::bucket::Bucket;
use crate::change::changed_parameters;
use crate::error::LimitError;
use crate::params::{DecodedState, Params};
use crate::quantity::{Cost, Mono, Now, Time};
use crate::rate::Rate;
use crate::ticks::Ticks;
use crate::tokens::Tokens;
use crate::verdict::{Ask, Report, Retry, Spent, Stamp, Verdict};

/// A burst at once, then a steady rate.
///
/// ```
/// use tollgate_core::{Algorithm, Ask, Cost, Now, TokenBucket};
///
/// let limit = TokenBucket::new("10/s".parse()?, 10)?;
/// let mut state = [0; 2];
/// limit.init(&mut state, &Now::at(0));
/// assert!(limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::new(6))).is_admitted());
/// assert_eq!(limit.report(&state, &Now::at(0), Cost::ONE).remaining, 4);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    /// What it owes are the tokens spent and not yet refilled.
    bucket: Bucket,
}

impl TokenBucket {
    /// `rate` with at most `burst` at one instant. Starts full; debt is bounded by another burst.
    ///
    /// # Errors
    /// When `burst` is zero or takes longer than [`Rate::MAX_FILL`] to refill.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, LimitError> {
        Ok(Self { bucket: Bucket::new(rate, burst)? })
    }

    /// With at most `max_debt` taken beyond empty by [`Ask::Regardless`].
    ///
    /// # Errors
    /// When paying it back takes longer than [`Rate::MAX_FILL`].
    pub fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        Ok(Self { bucket: self.bucket.max_debt(max_debt)? })
    }

    /// With `initial` tokens for a new key instead of a full burst.
    ///
    /// An entry that has refilled is forgotten as any other is, and then starts with `initial` again.
    ///
    /// # Errors
    /// When it is more than the burst.
    pub fn initial(self, initial: u64) -> Result<Self, LimitError> {
        Ok(Self { bucket: self.bucket.initial(initial)? })
    }

    /// The rate, in lowest terms.
    pub fn rate(&self) -> Rate {
        self.bucket.flow().rate()
    }

    /// The most that can pass at one instant.
    pub const fn burst(&self) -> u64 {
        self.bucket.burst()
    }

    /// Whether the state is a single word, which can be updated without a lock.
    pub const fn fits_a_word(&self) -> bool {
        self.bucket.fits_a_word()
    }

    pub(crate) const fn params(&self) -> Params {
        Params::TokenBucket(self.bucket.params())
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

    fn tokens(&self, ticks: Ticks) -> Tokens {
        Tokens::of(ticks, self.rate().per().as_nanos())
    }

    /// The most that may be used up for `ask` to fit; `None` if it never does.
    pub(crate) fn room_for(&self, ask: Ask) -> Option<Tokens> {
        self.bucket.room_for(ask).map(|room| self.tokens(room))
    }
}

impl TokenBucket {
    /// See [`Limits::take_and_report`](crate::Limits::take_and_report).
    #[inline]
    pub(crate) fn take_and_report(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<(u64, Report)> {
        self.bucket.take_and_report(word, now, cost)
    }
}

impl Algorithm for TokenBucket {
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
        let owed = self.bucket.owed(state, now);
        let room = match ask {
            Ask::Exactly(cost) => self.bucket.room(cost),
            Ask::Regardless(cost) => self.bucket.room_with_debt(cost),
            Ask::UpTo(cost) => {
                let taken = cost.min(Cost::new(self.bucket.available(owed)));
                if taken > Cost::ZERO || cost == Cost::ZERO {
                    return Verdict::allow(taken);
                }
                self.bucket.room(Cost::ONE)
            }
        };
        match room {
            Some(room) if owed <= room => Verdict::allow(ask.cost()),
            _ => Verdict::deny(self.bucket.retry(owed, room)),
        }
    }

    #[inline]
    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict) {
        self.bucket.take(state, now, verdict.taken());
    }

    #[inline]
    fn take_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<u64> {
        self.bucket.take_from_word(word, now, cost)
    }

    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, _: Option<Stamp>) -> Cost {
        self.bucket.refund(state, now, cost)
    }

    #[inline]
    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        if let Some(report) = self.bucket.report_of_word(state.get(0), now, cost) {
            return report;
        }
        let owed = self.bucket.owed(state, now);
        self.bucket.report(owed, self.bucket.available(owed), self.bucket.room(cost))
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        self.bucket.spent(self.bucket.owed(state, now))
    }

    fn is_new<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.bucket.owed(state, now) == 0
    }

    fn wait_behind<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        self.bucket.retry_behind(state, now, ahead, self.bucket.room(cost))
    }

    /// What is owed stays owed, rounded up to a tick of the new rate.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        self.start_with(state, now, own.used(state, now));
    }

    changed_parameters!();
}

#[cfg(test)]
mod tests;
