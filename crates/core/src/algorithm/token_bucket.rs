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
use crate::error::LimitError;
use crate::quantity::{Cost, Now};
use crate::rate::Rate;
use crate::ticks::{Flow, Ticks};
use crate::verdict::{Ask, Report, Retry, Spent, Stamp, Verdict};

/// A burst at once, then a steady rate.
///
/// ```
/// use tollgate_core::{Algorithm, Ask, Cost, Now, TokenBucket};
///
/// let limit = TokenBucket::new("10/s".parse()?, 10)?;
/// let mut state = [0; 2];
/// limit.fresh(&mut state, &Now::at(0));
/// assert!(limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::new(6))).is_allowed());
/// assert_eq!(limit.report(&state, &Now::at(0), Cost::ONE).remaining, 4);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    flow: Flow,
    burst: u64,
    max_debt: u64,
    initial: u64,
    /// `burst` in ticks.
    capacity: Ticks,
    /// `burst + max_debt` in ticks: no state says more, so a clock that stepped back locks nobody out for longer.
    deepest: Ticks,
    one_word: bool,
}

impl TokenBucket {
    /// `rate` with at most `burst` at one instant. Starts full; debt is bounded by another burst.
    ///
    /// # Errors
    /// When `burst` is zero or takes longer than [`Rate::MAX_FILL`] to refill.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, LimitError> {
        if burst == 0 {
            return Err(LimitError::Zero { what: "the burst" });
        }
        let flow = Flow::new(rate);
        let longest = flow.most_within(Rate::MAX_FILL);
        if burst > longest {
            return Err(LimitError::FillTooLong { amount: burst, max: longest });
        }
        Ok(Self { flow, burst, max_debt: 0, initial: burst, capacity: flow.ticks(burst), deepest: 0, one_word: false }
            .with_max_debt(burst.min(longest - burst)))
    }

    /// With at most `max_debt` taken beyond empty by [`Ask::Regardless`].
    ///
    /// # Errors
    /// When paying it back takes longer than [`Rate::MAX_FILL`].
    pub fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        let longest = self.flow.most_within(Rate::MAX_FILL) - self.burst;
        if max_debt > longest {
            return Err(LimitError::FillTooLong { amount: max_debt, max: longest });
        }
        Ok(self.with_max_debt(max_debt))
    }

    fn with_max_debt(self, max_debt: u64) -> Self {
        let deepest = self.flow.ticks(self.burst + max_debt);
        Self { max_debt, deepest, one_word: self.flow.fits_a_word(deepest), ..self }
    }

    /// With `initial` tokens for a new key instead of a full burst.
    ///
    /// An entry that has refilled is forgotten as any other is, and then starts with `initial` again.
    ///
    /// # Errors
    /// When it is more than the burst.
    pub fn initial(self, initial: u64) -> Result<Self, LimitError> {
        if initial > self.burst {
            return Err(LimitError::OutOfRange { what: "the initial amount", given: initial, min: 0, max: self.burst });
        }
        Ok(Self { initial, ..self })
    }

    /// The rate, in lowest terms.
    pub fn rate(&self) -> Rate {
        self.flow.rate()
    }

    /// The most that can pass at one instant.
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// Whether the state is a single word, which can be updated without a lock.
    pub const fn fits_a_word(&self) -> bool {
        self.one_word
    }

    /// What is spent now, in ticks.
    #[inline]
    fn owed<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Ticks {
        let full_at = self.flow.load(state, self.one_word);
        full_at.saturating_sub(self.flow.instant(now.mono())).min(self.deepest)
    }

    #[inline]
    fn set_owed<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, owed: Ticks) {
        self.flow.store(state, self.one_word, self.flow.instant(now.mono()) + owed);
    }

    /// Whole tokens that fit on top of `owed`.
    fn available(&self, owed: Ticks) -> u64 {
        self.flow.tokens(self.capacity.saturating_sub(owed))
    }

    /// How long until `cost` fits under `ceiling`, which holds `most`.
    #[inline]
    fn retry(&self, owed: Ticks, cost: u64, ceiling: Ticks, most: u64) -> Retry {
        if cost > most {
            return Retry::Never;
        }
        Retry::After(self.flow.wait((owed + self.flow.ticks(cost)).saturating_sub(ceiling)))
    }
}

impl Algorithm for TokenBucket {
    type Stamp = Stamp;

    fn words(&self) -> usize {
        if self.one_word { 1 } else { 2 }
    }

    fn capacity(&self) -> u64 {
        self.burst
    }

    #[inline]
    fn fresh<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
        self.set_owed(state, now, self.flow.ticks(self.burst - self.initial));
    }

    #[inline]
    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict {
        let owed = self.owed(state, now);
        let (cost, ceiling, most) = match ask {
            Ask::Exactly(cost) => (cost.get(), self.capacity, self.burst),
            Ask::Regardless(cost) => (cost.get(), self.deepest, self.burst + self.max_debt),
            Ask::UpTo(cost) => {
                let available = self.available(owed);
                if available == 0 && cost > Cost::ZERO {
                    return Verdict::deny(self.retry(owed, 1, self.capacity, self.burst));
                }
                return Verdict::allow(cost.min(Cost::new(available)));
            }
        };
        // `cost` is looked at first: above `most` its ticks might not fit a number.
        if cost <= most && owed + self.flow.ticks(cost) <= ceiling {
            return Verdict::allow(Cost::new(cost));
        }
        Verdict::deny(self.retry(owed, cost, ceiling, most))
    }

    #[inline]
    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict) {
        if verdict.taken() > Cost::ZERO {
            let owed = self.owed(state, now) + self.flow.ticks(verdict.taken().get());
            self.set_owed(state, now, owed);
        }
    }

    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, _: Option<Stamp>) -> Cost {
        let owed = self.owed(state, now);
        let spent = self.flow.tokens(owed.saturating_add(self.flow.ticks(1) - 1));
        let accepted = cost.min(Cost::new(spent));
        self.set_owed(state, now, owed.saturating_sub(self.flow.ticks(accepted.get())));
        accepted
    }

    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        let owed = self.owed(state, now);
        Report {
            limit: self.burst,
            remaining: self.available(owed),
            retry: self.retry(owed, cost.get(), self.capacity, self.burst),
            reset: self.flow.wait(owed),
        }
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        Spent::of(self.owed(state, now), self.capacity)
    }

    fn is_new<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.owed(state, now) == 0
    }

    fn convert<S: CellsMut + ?Sized>(&self, old: &Self, state: &mut S, now: &Now<'_>) {
        let owed = self.flow.rescale(&old.flow, old.owed(state, now));
        self.set_owed(state, now, owed.min(self.deepest));
    }
}
