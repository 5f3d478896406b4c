//! Arithmetic shared by the bucket algorithms: an amount that is owed and flows off at a steady rate.
//!
//! The state is the instant at which nothing will be owed any more, in ticks. Nothing has to happen while time passes: what
//! is owed now is that instant minus now.

use core::num::NonZeroU64;

use crate::algorithm::{Cells, CellsMut, STALE};
use crate::error::LimitError;
use crate::params::{BucketParams, DecodedState};
use crate::quantity::{Cost, Mono, Nanos, Now, Time};
use crate::rate::Rate;
use crate::ticks::{Flow, HORIZON, Ticks};
use crate::tokens::Tokens;
use crate::verdict::{Ask, Report, Retry, Spent};

/// The parameters of a bucket, and its state read with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bucket {
    flow: Flow,
    burst: NonZeroU64,
    max_debt: u64,
    initial: u64,
    /// `burst` in ticks.
    capacity: Ticks,
    /// `burst + max_debt` in ticks: no taking leaves more owed.
    deepest: Ticks,
    /// A state that says more than this was written before the clock stepped back.
    max_plausible: Ticks,
    one_word: bool,
    /// Until when a state of one word can tell the time; zero if the state is longer.
    word_until: u64,
}

impl Bucket {
    pub(crate) fn new(rate: Rate, burst: u64) -> Result<Self, LimitError> {
        let Some(at_least_one) = NonZeroU64::new(burst) else {
            return Err(LimitError::Zero { what: "the burst" });
        };
        let flow = Flow::new(rate);
        let longest = flow.most_within(Rate::MAX_FILL);
        if burst > longest {
            return Err(LimitError::FillTooLong { amount: burst, max: longest });
        }
        let capacity = flow.ticks(burst);
        Ok(Self {
            flow,
            burst: at_least_one,
            max_debt: 0,
            initial: burst,
            capacity,
            deepest: 0,
            max_plausible: 0,
            one_word: false,
            word_until: 0,
        }
        .with_max_debt(burst.min(longest - burst)))
    }

    pub(crate) fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        let longest = self.flow.most_within(Rate::MAX_FILL) - self.burst.get();
        if max_debt > longest {
            return Err(LimitError::FillTooLong { amount: max_debt, max: longest });
        }
        Ok(self.with_max_debt(max_debt))
    }

    fn with_max_debt(self, max_debt: u64) -> Self {
        let deepest = self.flow.ticks(self.burst.get() + max_debt);
        let max_plausible = deepest + self.flow.instant(Time::from_nanos(STALE.as_nanos()));
        let one_word = self.flow.fits_a_word(deepest);
        let word_until = if one_word { HORIZON } else { 0 };
        Self { max_debt, deepest, max_plausible, one_word, word_until, ..self }
    }

    pub(crate) fn initial(self, initial: u64) -> Result<Self, LimitError> {
        if initial > self.burst.get() {
            return Err(LimitError::OutOfRange {
                what: "the initial amount",
                given: initial,
                min: 0,
                max: self.burst.get(),
            });
        }
        Ok(Self { initial, ..self })
    }

    pub(crate) const fn flow(&self) -> Flow {
        self.flow
    }

    pub(crate) const fn burst(&self) -> u64 {
        self.burst.get()
    }

    pub(crate) const fn fits_a_word(&self) -> bool {
        self.one_word
    }

    pub(crate) const fn params(&self) -> BucketParams {
        BucketParams { rate: self.flow.rate(), burst: self.burst(), max_debt: self.max_debt, initial: self.initial }
    }

    pub(crate) fn decode<S: Cells + ?Sized>(&self, state: &S) -> DecodedState {
        DecodedState::Bucket { ticks: self.flow.load(state, self.one_word) }
    }

    pub(crate) fn encode<S: CellsMut + ?Sized>(&self, state: &mut S, ticks: Ticks) {
        self.flow.store(state, self.one_word, ticks);
    }

    pub(crate) fn rebase<S: CellsMut + ?Sized>(&self, state: &mut S, from: Time<Mono>, to: Time<Mono>) {
        let (ticks, from, to) = (self.flow.load(state, self.one_word), self.flow.instant(from), self.flow.instant(to));
        // What was owed until before the other clock's zero is not owed any more, so that zero says it as well.
        self.encode(state, if to >= from { ticks.saturating_add(to - from) } else { ticks.saturating_sub(from - to) });
    }

    pub(crate) const fn words(&self) -> usize {
        if self.one_word { 1 } else { 2 }
    }

    #[inline]
    pub(crate) fn init<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
        self.set_owed(state, now, self.flow.ticks(self.burst.get() - self.initial));
    }

    /// What the state says is owed now; after the clock stepped back that may be any number.
    #[inline]
    fn ahead<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Ticks {
        self.flow.load(state, self.one_word).saturating_sub(self.flow.instant(now.mono()))
    }

    /// What is owed now. If the clock stepped back, as much as can be: that grants nothing, and locks nobody out for longer
    /// than all of it takes to flow off.
    #[inline]
    pub(crate) fn owed<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Ticks {
        let ahead = self.ahead(state, now);
        if ahead <= self.max_plausible { ahead } else { self.deepest }
    }

    /// Writes a state in which `used` is used up, rounded up to a tick.
    pub(crate) fn start_with<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, used: Tokens) {
        self.set_owed(state, now, used.units_ceil(self.flow.rate().per().as_nanos()).min(self.deepest));
    }

    pub(crate) fn used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Tokens {
        Tokens::of(self.owed(state, now), self.flow.rate().per().as_nanos())
    }

    /// How long until no more than `at_most` is used up.
    pub(crate) fn until_used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        let room = at_most.units_floor(self.flow.rate().per().as_nanos());
        self.retry(self.owed(state, now), Some(room))
    }

    /// The most that may be used up for `ask` to fit; `None` if it never does. Taking up to an amount needs one.
    pub(crate) fn room_for(&self, ask: Ask) -> Option<Ticks> {
        match ask {
            Ask::Exactly(cost) => self.room(cost),
            Ask::UpTo(cost) => self.room(cost.min(Cost::ONE)),
            Ask::Regardless(cost) => self.room_with_debt(cost),
        }
    }

    #[inline]
    fn set_owed<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, owed: Ticks) {
        self.flow.store(state, self.one_word, self.flow.instant(now.mono()) + owed);
    }

    /// The most that may be owed when `cost` comes, for it to fit the burst; `None` when it never does.
    #[inline]
    pub(crate) fn room(&self, cost: Cost) -> Option<Ticks> {
        // The cost is compared first: the ticks of one above the burst might not fit a number.
        (cost.get() <= self.burst.get()).then(|| self.capacity - self.flow.ticks(cost.get()))
    }

    /// The same for a cost that may go into debt.
    #[inline]
    pub(crate) fn room_with_debt(&self, cost: Cost) -> Option<Ticks> {
        (cost.get() <= self.burst.get() + self.max_debt).then(|| self.deepest - self.flow.ticks(cost.get()))
    }

    /// The state of one word after taking `cost`, if it fits at once: the same sums as everywhere, in 64 bits.
    #[inline]
    pub(crate) fn take_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<u64> {
        // A cost above the burst does not fit; for a cost of one the compiler sees that this is not so. Until its time is up,
        // every sum below fits a word.
        if cost.get() > self.burst.get() || now.mono().as_nanos() >= self.word_until {
            return None;
        }
        let taken = cost.get() * self.flow.rate().per().as_nanos();
        let instant = now.mono().as_nanos() * u64::from(self.flow.rate().count());
        let owed = word.saturating_sub(instant);
        // No cost at all is nothing to write down: it would only move the state along with the clock.
        (owed <= self.capacity as u64 - taken).then(|| if cost == Cost::ZERO { word } else { instant + owed + taken })
    }

    /// [`take_from_word`](Self::take_from_word), and what [`report_of_word`](Self::report_of_word) then says for as much again,
    /// without asking twice what was just found out.
    #[inline]
    pub(crate) fn take_and_report(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<(u64, Report)> {
        let taken = self.take_from_word(word, now, cost)?;
        let owed = taken.saturating_sub(now.mono().as_nanos() * u64::from(self.flow.rate().count()));
        Some((taken, self.report_of_owed(owed, cost)))
    }

    /// Whole units that fit on top of `owed`.
    pub(crate) fn available(&self, owed: Ticks) -> u64 {
        self.flow.tokens(self.capacity.saturating_sub(owed))
    }

    /// How long until no more than `room` is owed.
    #[inline]
    pub(crate) fn retry(&self, owed: Ticks, room: Option<Ticks>) -> Retry {
        room.map_or(Retry::Never, |room| Retry::After(self.flow.wait(owed.saturating_sub(room))))
    }

    /// The same, with `ahead` taken first.
    pub(crate) fn retry_behind<S: Cells + ?Sized>(
        &self,
        state: &S,
        now: &Now<'_>,
        ahead: Cost,
        room: Option<Ticks>,
    ) -> Retry {
        self.retry(self.owed(state, now).saturating_add(self.flow.ticks(ahead.get())), room)
    }

    #[inline]
    pub(crate) fn take<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, amount: Cost) {
        if amount > Cost::ZERO {
            self.set_owed(state, now, self.owed(state, now) + self.flow.ticks(amount.get()));
        } else if self.ahead(state, now) > self.max_plausible {
            // Even a refusal writes down that the clock stepped back: it flows off from here on, not from back then.
            self.set_owed(state, now, self.deepest);
        }
    }

    pub(crate) fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Cost {
        let owed = self.owed(state, now);
        // A part of a unit is owed until all of it has flowed off, so it can be given back.
        let spent = self.flow.tokens(owed + (self.flow.ticks(1) - 1));
        let accepted = cost.min(Cost::new(spent));
        // Giving nothing back writes nothing: it would only move the state along with the clock.
        if accepted > Cost::ZERO {
            self.set_owed(state, now, owed.saturating_sub(self.flow.ticks(accepted.get())));
        }
        accepted
    }

    /// What may be told of a state of one word: the same sums as everywhere, in 64 bits. `None` says only that the long way has
    /// to be gone.
    #[inline]
    pub(crate) fn report_of_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<Report> {
        // As when it is taken from. The last word is an instant that never comes.
        if cost.get() > self.burst.get() || now.mono().as_nanos() >= self.word_until || word == u64::MAX {
            return None;
        }
        let owed = word.saturating_sub(now.mono().as_nanos() * u64::from(self.flow.rate().count()));
        (owed <= self.max_plausible as u64).then(|| self.report_of_owed(owed, cost))
    }

    /// What may be told where so much is owed and the cost fits the burst, all of it in 64 bits.
    #[inline]
    fn report_of_owed(&self, owed: u64, cost: Cost) -> Report {
        let (per, count) = (self.flow.rate().per().as_nanos(), u64::from(self.flow.rate().count()));
        let capacity = self.capacity as u64;
        let wait = |ticks: u64| Nanos::from_nanos(if count == 1 { ticks } else { ticks.div_ceil(count) });
        Report {
            limit: self.burst.get(),
            remaining: capacity.saturating_sub(owed) / per,
            retry: Retry::After(wait(owed.saturating_sub(capacity - cost.get() * per))),
            reset: wait(owed),
        }
    }

    pub(crate) fn report(&self, owed: Ticks, remaining: u64, room: Option<Ticks>) -> Report {
        Report { limit: self.burst.get(), remaining, retry: self.retry(owed, room), reset: self.flow.wait(owed) }
    }

    pub(crate) fn spent(&self, owed: Ticks) -> Spent {
        Spent::of(owed, self.capacity)
    }
}
