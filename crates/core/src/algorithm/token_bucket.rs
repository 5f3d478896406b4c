//! Token bucket: a burst, then a steady rate.
//!
//! **The naive method** keeps a token count and the time of the last refill, and adds `elapsed × rate` on each request.
//! The fraction of a token is rounded away on every request: callers 1.9 s apart, at one token per second, lose 0.9
//! tokens each time. Floating point reduces the loss but does not bound it.
//!
//! **The idea** is to store the instant at which the bucket will be full again, instead of its fill level. Nothing is
//! refilled, so nothing is rounded. Taking `n` tokens moves the instant into the future by the refill time of `n`
//! tokens. A request passes if the instant is then at most one burst ahead of now. This is the generic cell rate
//! algorithm, in which the instant is called the theoretical arrival time. It is also the leaky bucket as a meter,
//! whose level is the instant minus now.
//!
//! To be exact for any rate, the instant is counted in *ticks*. For a rate of `count` per `per` nanoseconds, in lowest
//! terms, a nanosecond has `count` ticks and a token has exactly `per` ticks. These tick counts are whole numbers, so a
//! decision is one addition and one comparison, without division.
//!
//! **Example**: capacity 10 at 10 per second. In lowest terms this is 1 per 10⁸ ns: one tick is 1 ns, a token is 10⁸
//! ticks, and the whole burst is 10⁹ ticks. At time 0, a cost of 6 makes the bucket full at 6·10⁸ ticks; 4 tokens
//! remain. At 200 ms, a cost of 5 makes the bucket full at 11·10⁸ ticks. That instant is 9·10⁸ ticks ahead of now and
//! within the burst, so the request passes, and 1 token remains. The bucket is full again at 1.1 s, 900 ms later.
//!
//! ```text
//!             now                full_at           now + burst
//!  ────────────┼────────────────────┼───────────────────┼──────────▶ ticks
//!              │◀──── spent ───────▶│◀──── remaining ──▶│
//! ```
//!
//! **Guarantee**: over any interval of length `T`, the admitted cost is at most `burst + rate × T`, and a request is
//! refused only if admitting it would break this bound. Time is exact to the tick, so the bound never drifts.
//!
//! **State**: the instant in ticks. The state takes one word if 73 years of ticks plus the largest debt fit in a word,
//! otherwise two words. For one word, the rate's count in lowest terms must be at most 7. **Cost** of a check: three
//! multiplications; divisions only for refusals and reports.
//!
//! **Poor choice** if the admitted cost in a window must never exceed the rate's count (up to `burst` more can pass),
//! or if quotas must restart at midnight: use a log or a window.

mod two_words;
mod word;

use core::num::NonZeroU64;

use super::{Algorithm, Cells, CellsMut, MAX_READING_AGE};
use crate::change::changed_parameter_methods;
use crate::error::LimitError;
use crate::params::{BucketParams, DecodedState, Params};
use crate::quantity::{Cost, Mono, Now, Time};
use crate::rate::Rate;
use crate::ticks::{HORIZON, TickRate, Ticks};
use crate::tokens::Tokens;
use crate::verdict::{Ask, Report, Retry, Spent, Stamp, Verdict};

/// Admits a burst, then a steady rate.
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
    tick_rate: TickRate,
    burst: NonZeroU64,
    max_debt: u64,
    initial: u64,
    /// `burst` in ticks.
    capacity: Ticks,
    /// `burst + max_debt` in ticks: the largest possible debt.
    largest_debt: Ticks,
    /// Largest debt of a valid state. A state with more debt was written before the clock stepped back.
    max_plausible: Ticks,
    one_word: bool,
    /// End of the time range in which 64-bit sums do not overflow, in nanoseconds; zero if the state has two words.
    word_until: u64,
}

impl TokenBucket {
    /// Creates a bucket of `burst` tokens that refills at `rate`. It starts full. The maximum debt defaults to `burst`.
    ///
    /// # Errors
    /// Returns an error if `burst` is zero, or if a full burst takes longer than [`Rate::MAX_FILL_TIME`] to refill.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, LimitError> {
        let Some(at_least_one) = NonZeroU64::new(burst) else {
            return Err(LimitError::Zero { what: "the burst" });
        };
        let tick_rate = TickRate::new(rate);
        let longest = tick_rate.units_within(Rate::MAX_FILL_TIME);
        if burst > longest {
            return Err(LimitError::FillTooLong { amount: burst, max: longest });
        }
        let bucket = Self {
            tick_rate,
            burst: at_least_one,
            max_debt: 0,
            initial: burst,
            capacity: tick_rate.ticks_of(burst),
            largest_debt: 0,
            max_plausible: 0,
            one_word: false,
            word_until: 0,
        };
        Ok(bucket.with_max_debt(burst.min(longest - burst)))
    }

    /// Sets the maximum debt that [`Ask::Regardless`] may take.
    ///
    /// # Errors
    /// Returns an error if refilling the burst and the debt takes longer than [`Rate::MAX_FILL_TIME`].
    pub fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        let longest = self.tick_rate.units_within(Rate::MAX_FILL_TIME) - self.burst.get();
        if max_debt > longest {
            return Err(LimitError::FillTooLong { amount: max_debt, max: longest });
        }
        Ok(self.with_max_debt(max_debt))
    }

    fn with_max_debt(self, max_debt: u64) -> Self {
        let largest_debt = self.tick_rate.ticks_of(self.burst.get() + max_debt);
        let max_plausible =
            largest_debt + self.tick_rate.instant_in_ticks(Time::from_nanos(MAX_READING_AGE.as_nanos()));
        let one_word = self.tick_rate.fits_a_word(largest_debt);
        let word_until = if one_word { HORIZON } else { 0 };
        Self { max_debt, largest_debt, max_plausible, one_word, word_until, ..self }
    }

    /// Sets the initial tokens of a new key. The default is a full burst.
    ///
    /// An entry that has refilled may be forgotten, and then starts with `initial` again.
    ///
    /// # Errors
    /// Returns an error if `initial` is above the burst.
    pub fn initial(self, initial: u64) -> Result<Self, LimitError> {
        LimitError::check_range("the initial amount", initial, 0, self.burst.get())?;
        Ok(Self { initial, ..self })
    }

    /// Returns the rate, in lowest terms.
    pub const fn rate(&self) -> Rate {
        self.tick_rate.rate()
    }

    /// Returns the maximum amount that can pass at one instant.
    pub const fn burst(&self) -> u64 {
        self.burst.get()
    }

    /// Returns whether the state is a single word, which can be updated without a lock.
    pub const fn fits_a_word(&self) -> bool {
        self.one_word
    }

    pub(crate) const fn params(&self) -> Params {
        Params::TokenBucket(self.bucket_params())
    }

    pub(crate) const fn bucket_params(&self) -> BucketParams {
        BucketParams { rate: self.rate(), burst: self.burst(), max_debt: self.max_debt, initial: self.initial }
    }

    pub(crate) const fn tick_rate(&self) -> TickRate {
        self.tick_rate
    }

    pub(crate) fn decode<S: Cells + ?Sized>(&self, state: &S) -> DecodedState {
        DecodedState::Bucket { ticks: self.tick_rate.load(state, self.one_word) }
    }

    pub(crate) fn encode<S: CellsMut + ?Sized>(&self, state: &mut S, ticks: Ticks) {
        self.tick_rate.store(state, self.one_word, ticks);
    }

    pub(crate) fn rebase<S: CellsMut + ?Sized>(&self, state: &mut S, from: Time<Mono>, to: Time<Mono>) {
        let (ticks, from, to) = (
            self.tick_rate.load(state, self.one_word),
            self.tick_rate.instant_in_ticks(from),
            self.tick_rate.instant_in_ticks(to),
        );
        // An instant before the new clock's zero becomes zero, which also means that nothing is owed.
        self.encode(state, if to >= from { ticks.saturating_add(to - from) } else { ticks.saturating_sub(from - to) });
    }

    /// Writes a state with the used amount `used`, rounded up to a tick.
    pub(crate) fn init_with_used<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, used: Tokens) {
        self.write_debt(state, now, used.units_ceil(self.ticks_per_token()).min(self.largest_debt));
    }

    pub(crate) fn used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Tokens {
        self.ticks_to_tokens(self.owed_now(state, now))
    }

    /// Returns the time until at most `at_most` is used.
    pub(crate) fn until_used_at_most<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        self.wait_until_owed_at_most(self.owed_now(state, now), Some(at_most.units_floor(self.ticks_per_token())))
    }

    /// Returns the largest used amount at which `ask` still passes; `None` if `ask` never passes.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        let room = match ask {
            Ask::Exactly(cost) => self.max_owed_for(cost),
            Ask::UpTo(cost) => self.max_owed_for(cost.min(Cost::ONE)),
            Ask::Regardless(cost) => self.max_owed_with_debt(cost),
        };
        room.map(|room| self.ticks_to_tokens(room))
    }

    pub(crate) fn ticks_to_tokens(&self, ticks: Ticks) -> Tokens {
        Tokens::of(ticks, self.ticks_per_token())
    }

    pub(crate) const fn ticks_per_token(&self) -> u64 {
        self.rate().per().as_nanos()
    }

    /// Returns the debt recorded in the state. The amount can be arbitrarily large if the clock stepped back.
    #[inline]
    fn debt_in_state<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Ticks {
        self.tick_rate.load(state, self.one_word).saturating_sub(self.tick_rate.instant_in_ticks(now.mono()))
    }

    /// Returns the debt: tokens spent and not yet refilled. If the clock stepped back, returns the largest possible
    /// debt. So a step back grants nothing, and refuses requests for at most the time in which that debt is repaid.
    #[inline]
    pub(crate) fn owed_now<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Ticks {
        let ahead = self.debt_in_state(state, now);
        if ahead <= self.max_plausible { ahead } else { self.largest_debt }
    }

    /// Returns a report in 128-bit arithmetic. Not inlined, so that the callers of `report` stay short.
    #[inline(never)]
    fn report_slow<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        let owed = self.owed_now(state, now);
        self.report_owed(owed, self.available(owed), self.max_owed_for(cost))
    }

    #[inline]
    fn write_debt<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, owed: Ticks) {
        self.tick_rate.store(state, self.one_word, self.tick_rate.instant_in_ticks(now.mono()) + owed);
    }

    /// Returns the largest debt at which `cost` is still admitted; `None` if `cost` is above the burst.
    #[inline]
    pub(crate) fn max_owed_for(&self, cost: Cost) -> Option<Ticks> {
        // Compares first, because the ticks of a larger cost could overflow.
        (cost.get() <= self.burst.get()).then(|| self.capacity - self.tick_rate.ticks_of(cost.get()))
    }

    /// Returns the largest debt at which a charge of `cost` is still admitted; `None` if `cost` is above the burst plus
    /// the maximum debt.
    #[inline]
    pub(crate) fn max_owed_with_debt(&self, cost: Cost) -> Option<Ticks> {
        (cost.get() <= self.burst.get() + self.max_debt)
            .then(|| self.largest_debt - self.tick_rate.ticks_of(cost.get()))
    }

    /// Returns the number of whole tokens that can be taken in addition to `owed`.
    pub(crate) fn available(&self, owed: Ticks) -> u64 {
        self.tick_rate.whole_units(self.capacity.saturating_sub(owed))
    }

    /// Returns the time until at most `room` is owed.
    #[inline]
    pub(crate) fn wait_until_owed_at_most(&self, owed: Ticks, room: Option<Ticks>) -> Retry {
        room.map_or(Retry::Never, |room| Retry::After(self.tick_rate.time_for_ticks(owed.saturating_sub(room))))
    }

    /// Returns the time until at most `room` is owed, if queued requests first take `ahead`.
    pub(crate) fn wait_after_queued<S: Cells + ?Sized>(
        &self,
        state: &S,
        now: &Now<'_>,
        ahead: Cost,
        room: Option<Ticks>,
    ) -> Retry {
        self.wait_until_owed_at_most(
            self.owed_now(state, now).saturating_add(self.tick_rate.ticks_of(ahead.get())),
            room,
        )
    }

    pub(crate) fn report_owed(&self, owed: Ticks, remaining: u64, room: Option<Ticks>) -> Report {
        Report {
            limit: self.burst.get(),
            remaining,
            retry: self.wait_until_owed_at_most(owed, room),
            reset: self.tick_rate.time_for_ticks(owed),
        }
    }

    /// Takes `amount` from a state with the debt `owed`.
    #[inline]
    pub(crate) fn take<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, owed: Ticks, amount: Cost) {
        if amount > Cost::ZERO {
            self.write_debt(state, now, owed + self.tick_rate.ticks_of(amount.get()));
        } else if self.debt_in_state(state, now) > self.max_plausible {
            // Even a refusal repairs the state after a clock step, so that the debt is paid off from this instant on.
            self.write_debt(state, now, self.largest_debt);
        }
    }

    /// Decides from the debt.
    #[inline]
    fn weigh_debt(&self, owed: Ticks, ask: Ask) -> Verdict {
        let room = match ask {
            Ask::Exactly(cost) => self.max_owed_for(cost),
            Ask::Regardless(cost) => self.max_owed_with_debt(cost),
            Ask::UpTo(cost) => {
                let taken = cost.min(Cost::new(self.available(owed)));
                if taken > Cost::ZERO || cost == Cost::ZERO {
                    return Verdict::allow(taken);
                }
                self.max_owed_for(Cost::ONE)
            }
        };
        match room {
            Some(room) if owed <= room => Verdict::allow(ask.cost()),
            _ => Verdict::deny(self.wait_until_owed_at_most(owed, room)),
        }
    }
}

impl Algorithm for TokenBucket {
    type Stamp = Stamp;

    fn words(&self) -> usize {
        if self.one_word { 1 } else { 2 }
    }

    fn capacity(&self) -> u64 {
        self.burst.get()
    }

    #[inline]
    fn init<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
        self.write_debt(state, now, self.tick_rate.ticks_of(self.burst.get() - self.initial));
    }

    #[inline]
    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict {
        self.weigh_debt(self.owed_now(state, now), ask)
    }

    #[inline]
    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict) {
        self.take(state, now, self.owed_now(state, now), verdict.taken());
    }

    #[inline(never)]
    fn decide_slow<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, ask: Ask) -> Verdict {
        let owed = self.owed_now(state, now);
        let verdict = self.weigh_debt(owed, ask);
        self.take(state, now, owed, verdict.taken());
        verdict
    }

    #[inline]
    fn try_take_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<u64> {
        self.word_after_take(word, now, cost)
    }

    #[inline]
    fn try_refuse_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<Retry> {
        self.wait_if_refused(word, now, cost)
    }

    #[inline]
    fn has_words_fast_path(&self) -> bool {
        !self.one_word
    }

    #[inline]
    fn try_take_from_words<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Stamp> {
        self.take_from_two_words(state, now, cost).then_some(Stamp::NONE)
    }

    #[inline]
    fn decide_fast<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Verdict> {
        if self.fits_word_sums(now, cost) {
            return self.decide_word(state, now, cost);
        }
        if self.one_word { None } else { self.decide_two_words(state, now, cost) }
    }

    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, _: Option<Stamp>) -> Cost {
        let owed = self.owed_now(state, now);
        // A partly refilled token can still be refunded.
        let spent = self.tick_rate.whole_units(owed + (self.tick_rate.ticks_of(1) - 1));
        let accepted = cost.min(Cost::new(spent));
        // A refund of zero writes nothing, because a write would only advance the stored instant.
        if accepted > Cost::ZERO {
            self.write_debt(state, now, owed.saturating_sub(self.tick_rate.ticks_of(accepted.get())));
        }
        accepted
    }

    #[inline]
    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        match self.report_word(state.get(0), now, cost) {
            Some(report) => report,
            None => self.report_slow(state, now, cost),
        }
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        Spent::of(self.owed_now(state, now), self.capacity)
    }

    fn is_unused<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.owed_now(state, now) == 0
    }

    fn wait_in_queue<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        self.wait_after_queued(state, now, ahead, self.max_owed_for(cost))
    }

    /// Keeps the debt, rounded up to a tick of the new rate.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        self.init_with_used(state, now, own.used(state, now));
    }

    changed_parameter_methods!();
}

#[cfg(test)]
mod tests;
