//! Sliding log: at most the limit in any interval of the window's length.
//!
//! **The naive method** keeps a list of the times of admitted requests. Every request removes the entries older than
//! the window and counts the remaining entries. The count is exact, but each request iterates over the whole list. If
//! refused attempts count as well, the list grows as fast as an attacker sends requests. A counter per window is cheap,
//! but does not record when in the window requests passed: the full limit can pass just before a boundary and again
//! just after it.
//!
//! **The idea** is that the list need not be counted. The entries are ordered by time, so they leave in order. A
//! request of `cost` passes exactly when the entry `limit − cost` positions before the newest entry has left the
//! window. Then at most `limit − cost` entries are still inside. In a ring of `limit` instants, this check is one read.
//! Entries need not be removed either: an entry that has left the window is overwritten later.
//!
//! **Example**: 3 per 10 s, with entries at 0, 4 and 5 s. At 8 s a cost of 1 checks the entry 2 positions before the
//! newest entry. That entry, from 0 s, stays inside for another 2 s, so the request is refused with a retry of 2 s. A
//! cost of 2 checks the entry 1 position before the newest entry: the entry from 4 s stays inside for another 6 s. At
//! exactly 10 s the entry from 0 s has left, because the window is `(now − 10 s, now]`.
//!
//! ```text
//!          now − length                                  now
//!  ─────×───────┼─────────────────×─────×─────────────────┼──────▶ time
//!     index 2:  │             index 1  index 0:           │
//!     has left  │                      the newest         │
//! ```
//!
//! **Guarantee**: in any interval `(t − length, t]` the admitted cost is at most `limit` (`limit + max_debt` with
//! charges). A request is refused only if admitting it would break this bound, or the minimum gap.
//!
//! **Options**: with a *minimum gap*, a request that follows the previous request too soon is also refused. With
//! *refused attempts counted*, a refused request is recorded at its cost as if it had passed. If the log is full, the
//! oldest entries are dropped. A client that retries faster than the rate is never admitted, and the returned wait is
//! exact for a client that sends nothing else. A request above the limit is not recorded, because it could never pass.
//!
//! **State**: one word with the end and the length of the ring, and one monotonic instant per unit of limit and debt.
//! An all-zero state is a new log. **Cost**: a decision reads three words, whatever the limit, and writes one word per
//! unit of cost. A report takes a binary search. A refund of an old entry moves the newer entries.
//!
//! **Poor choice** for large limits, because each unit takes a word, and at most 1024 units are possible: use slices or
//! a window. A log is also a poor choice for smoothing, because the whole limit may pass at one instant: use a bucket.

use core::time::Duration;

use super::{Algorithm, Cells, CellsMut, MAX_READING_AGE};
use crate::change::changed_parameter_methods;
use crate::error::LimitError;
use crate::params::{Params, WindowParams};
use crate::quantity::{Cost, Mono, Nanos, Now, Time};
use crate::quota::{check_length, max_used_for};
use crate::rate::Rate;
use crate::tokens::Tokens;
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};

/// Admits at most the limit in any window.
///
/// ```
/// use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, SlidingLog};
///
/// let limit = SlidingLog::new(3, Nanos::from_secs(10))?;
/// let mut state = [0; 4];
/// limit.init(&mut state, &Now::at(0));
/// assert!(limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::new(2))).is_admitted());
/// assert!(!limit.decide(&mut state, &Now::at(9_999_999_999), Ask::Exactly(Cost::new(2))).is_admitted());
/// assert!(limit.decide(&mut state, &Now::at(10_000_000_000), Ask::Exactly(Cost::new(2))).is_admitted());
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    limit: u64,
    length: Nanos,
    max_debt: u64,
    initial: u64,
    /// Zero if there is no minimum gap.
    minimum_gap: Nanos,
    refused_attempts_count: bool,
}

/// A cost with its bounds: at most `ceiling` inside the window, and at least `gap` after the previous request.
#[derive(Clone, Copy)]
struct CostAndBounds {
    cost: u64,
    ceiling: u64,
    gap: Nanos,
}

impl SlidingLog {
    /// Maximum number of entries: limit plus debt.
    pub const MAX_ENTRIES: u64 = 1024;

    /// Creates a log that admits at most `limit` in any window of `length`. Starts empty, without a minimum gap, and
    /// does not count refused attempts. The maximum debt defaults to `limit`, or less if limit plus debt would exceed
    /// [`SlidingLog::MAX_ENTRIES`].
    ///
    /// # Errors
    /// Returns an error if `limit` or `length` is zero, if `limit` is above [`SlidingLog::MAX_ENTRIES`], or if `length`
    /// is above [`Rate::MAX_PERIOD`].
    pub fn new(limit: u64, length: impl Into<Duration>) -> Result<Self, LimitError> {
        let what = "the limit of a sliding log (for more, use slices or a window)";
        LimitError::check_range(what, limit, 1, Self::MAX_ENTRIES)?;
        let length = check_length(length.into().into(), "the length of the window")?;
        let max_debt = limit.min(Self::MAX_ENTRIES - limit);
        Ok(Self { limit, length, max_debt, initial: limit, minimum_gap: Nanos::ZERO, refused_attempts_count: false })
    }

    /// Sets the maximum amount beyond the limit that [`Ask::Regardless`] may take. Each unit adds a word of state.
    ///
    /// # Errors
    /// Returns an error if the limit plus `max_debt` is above [`SlidingLog::MAX_ENTRIES`].
    pub const fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        let max = Self::MAX_ENTRIES - self.limit;
        if max_debt > max {
            let what = "the maximum debt of a sliding log";
            return Err(LimitError::OutOfRange { what, given: max_debt, min: 0, max });
        }
        Ok(Self { max_debt, ..self })
    }

    /// Sets the initial amount of a new key. The missing amount counts as used from the first request on. The entries
    /// of the missing amount belong to no request, so the minimum gap does not apply after them.
    ///
    /// # Errors
    /// Returns an error if `initial` is above the limit.
    pub const fn initial(self, initial: u64) -> Result<Self, LimitError> {
        if initial > self.limit {
            return Err(LimitError::OutOfRange { what: "the initial amount", given: initial, min: 0, max: self.limit });
        }
        Ok(Self { initial, ..self })
    }

    /// Sets the minimum gap: a request less than `gap` after the previous request is refused. Charges and costs of zero
    /// are exempt. `remaining` ignores the gap; `retry` includes it.
    ///
    /// # Errors
    /// Returns an error if `gap` is above [`Rate::MAX_PERIOD`]. A gap may be longer than the window.
    pub fn minimum_gap(self, gap: impl Into<Duration>) -> Result<Self, LimitError> {
        let gap = Nanos::from(gap.into());
        if gap.as_nanos() > Rate::MAX_PERIOD.as_nanos() {
            return Err(LimitError::PeriodTooLong { given: gap, max: Rate::MAX_PERIOD });
        }
        Ok(Self { minimum_gap: gap, ..self })
    }

    /// Counts refused attempts as if they had passed.
    #[must_use]
    pub const fn count_refused(self) -> Self {
        Self { refused_attempts_count: true, ..self }
    }

    /// Returns the maximum amount in any window.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the length of the window.
    pub const fn length(&self) -> Nanos {
        self.length
    }

    pub(crate) const fn params(&self) -> Params {
        let window =
            WindowParams { limit: self.limit, length: self.length, max_debt: self.max_debt, initial: self.initial };
        Params::SlidingLog { window, minimum_gap: self.minimum_gap, count_refused: self.refused_attempts_count }
    }

    pub(crate) fn rebase<S: CellsMut + ?Sized>(&self, state: &mut S, from: Time<Mono>, to: Time<Mono>) {
        let ring = LogRing::load(state, self.max_entries());
        for word in (0..ring.len).map(|index| ring.word_index(index)) {
            state.set(word, Time::from_nanos(state.get(word)).rebased(from, to).as_nanos());
        }
    }

    /// Writes a state with these entries, oldest first, in nanoseconds. The first `ownerless` entries belong to no
    /// request. Used by stores that keep the entries in another form, such as a Redis script.
    pub fn restore<S: CellsMut + ?Sized>(&self, state: &mut S, ownerless: u64, entries: impl Iterator<Item = u64>) {
        let ring = entries
            .fold(LogRing { ownerless, ..LogRing::with_no_entries(self.max_entries()) }, |ring, entry| {
                ring.push(state, Time::from_nanos(entry))
            });
        LogRing { ownerless: ring.ownerless.min(ring.len), ..ring }.store(state);
    }

    pub(crate) const fn gap(&self) -> Nanos {
        self.minimum_gap
    }

    pub(crate) const fn counts_refused(&self) -> bool {
        self.refused_attempts_count
    }

    pub(crate) fn used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Tokens {
        let now = now.mono();
        Tokens::whole(self.used_entry_count(self.load_ring(state, now), state, now))
    }

    pub(crate) fn until_used_at_most<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        let now = now.mono();
        let entry = self.load_ring(state, now).read_entry(state, at_most.floor());
        Retry::After(entry.map_or(Nanos::ZERO, |entry| time_left(entry, now, self.length)))
    }

    /// Returns the time until `gap`, the minimum gap of another log, has passed since the last request. The gap ends at
    /// the latest when this log forgets the request, because a key with nothing used may be forgotten at any time.
    pub(crate) fn until_gap_ends<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, gap: Nanos) -> Retry {
        let now = now.mono();
        let gap = gap.min(self.length.max(self.minimum_gap));
        let last = self.load_ring(state, now).last_request(state);
        // Without a gap, ignores the last request, because another thread may have recorded it slightly later than
        // `now`.
        Retry::After(last.filter(|_| gap > Nanos::ZERO).map_or(Nanos::ZERO, |last| time_left(last, now, gap)))
    }

    /// Returns the largest number of entries inside the window at which `ask` still passes; `None` if `ask` never
    /// passes.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        max_used_for(ask, self.limit, self.max_entries())
    }

    /// Writes a state in which `used`, rounded up to a whole number, counts as used now. The entries of this state
    /// belong to no request.
    pub(crate) fn init_with_used<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, used: Tokens) {
        let used = used.ceil().min(self.max_entries());
        let ring = (0..used).fold(LogRing::with_no_entries(self.max_entries()), |ring, _| ring.push(state, now.mono()));
        LogRing { ownerless: used, ..ring }.store(state);
    }

    const fn max_entries(&self) -> u64 {
        self.limit + self.max_debt
    }

    /// Loads the ring. Entries slightly ahead of the clock come from threads with a later reading, and count unchanged.
    /// If the newest entry is further ahead, the clock stepped back. Entries ahead of the clock then count as if they
    /// were made now. So a step back grants nothing, and refuses requests for at most one window.
    fn load_ring<S: Cells + ?Sized>(&self, state: &S, now: Time<Mono>) -> LogRing {
        let ring = LogRing::load(state, self.max_entries());
        match ring.read_entry(state, 0) {
            Some(newest) if newest.since(now) > MAX_READING_AGE => LogRing { latest: now, ..ring },
            Some(_) | None => ring,
        }
    }

    /// Returns the number of entries inside the window.
    fn used_entry_count<S: Cells + ?Sized>(&self, ring: LogRing, state: &S, now: Time<Mono>) -> u64 {
        partition_point(0..ring.len, |index| {
            ring.read_entry(state, index).is_some_and(|entry| time_left(entry, now, self.length) > Nanos::ZERO)
        })
    }

    /// Returns the number of entries to keep: all entries inside the window, and at least the last request until its
    /// minimum gap has passed.
    fn entries_to_keep<S: Cells + ?Sized>(&self, ring: LogRing, state: &S, now: Time<Mono>) -> u64 {
        let newest = ring.last_request(state).is_some_and(|last| time_left(last, now, self.minimum_gap) > Nanos::ZERO);
        self.used_entry_count(ring, state, now).max(u64::from(newest))
    }

    /// Returns the wait of the request, assuming that `written` more entries are recorded now. The cost must be at most
    /// the ceiling.
    fn wait<S: Cells + ?Sized>(
        &self,
        ring: LogRing,
        state: &S,
        now: Time<Mono>,
        wanted: CostAndBounds,
        written: u64,
    ) -> Nanos {
        let entry = |index: u64| match index.checked_sub(written) {
            Some(index) => ring.read_entry(state, index),
            None => Some(ring.instant_to_store(state, now)),
        };
        let previous = if written > 0 { entry(0) } else { ring.last_request(state) };
        let room = entry(wanted.ceiling - wanted.cost).map_or(Nanos::ZERO, |entry| time_left(entry, now, self.length));
        if wanted.gap == Nanos::ZERO || wanted.cost == 0 {
            return room;
        }
        room.max(previous.map_or(Nanos::ZERO, |previous| time_left(previous, now, wanted.gap)))
    }
}

impl Algorithm for SlidingLog {
    type Stamp = Stamp;

    fn words(&self) -> usize {
        1 + self.max_entries() as usize
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn init<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
        self.init_with_used(state, now, Tokens::whole(self.limit - self.initial));
    }

    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict {
        let now = now.mono();
        let ring = self.load_ring(state, now);
        let checked = |cost| CostAndBounds { cost, ceiling: self.limit, gap: self.minimum_gap };
        let wanted = match ask {
            Ask::Exactly(cost) => checked(cost.get()),
            Ask::Regardless(cost) => CostAndBounds { cost: cost.get(), ceiling: self.max_entries(), gap: Nanos::ZERO },
            Ask::UpTo(Cost::ZERO) => return Verdict::allow(Cost::ZERO),
            Ask::UpTo(cost) => {
                let available = self.limit.saturating_sub(self.used_entry_count(ring, state, now));
                // If nothing is available, asks for one unit, so that the refusal has the wait for one unit.
                checked(cost.get().min(available.max(1)))
            }
        };
        if wanted.cost > wanted.ceiling {
            return Verdict::deny(Retry::Never);
        }
        let wait = self.wait(ring, state, now, wanted, 0);
        if wait == Nanos::ZERO {
            let stamp = if wanted.cost == 0 { Stamp::NONE } else { stamp_of(ring.instant_to_store(state, now)) };
            return Verdict::with_outcome(Outcome::Allow, Cost::new(wanted.cost), stamp);
        }
        if !self.refused_attempts_count {
            return Verdict::deny(Retry::After(wait));
        }
        // This refused attempt will be in the log when the caller retries. The stamp of the refusal contains the number
        // of entries to record. An `UpTo` request retries with one unit.
        let again = if let Ask::UpTo(_) = ask { checked(1) } else { wanted };
        let wait = wait.max(self.wait(ring, state, now, again, wanted.cost));
        Verdict::with_outcome(Outcome::Deny(Retry::After(wait)), Cost::ZERO, Stamp::from_bits(wanted.cost))
    }

    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict) {
        let units = match verdict.outcome() {
            Outcome::Allow | Outcome::Delay(_) => verdict.taken().get(),
            Outcome::Deny(_) => verdict.stamp().to_bits(),
        };
        let ring = self.load_ring(state, now.mono());
        // Even a refusal repairs the state after a clock step, so that entries age from this instant on.
        if units > 0 || ring.latest != END_OF_TIME {
            ring.record(state, now.mono(), units);
        }
    }

    /// With a stamp, removes exactly the entries of that request that are still inside the window. Requests at the same
    /// nanosecond have the same stamp and are interchangeable. Without a stamp, removes the oldest entries, because
    /// these would expire first anyway.
    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, stamp: Option<Stamp>) -> Cost {
        let ring = self.load_ring(state, now.mono());
        let used = self.used_entry_count(ring, state, now.mono());
        let indexes = match stamp {
            None => used - cost.get().min(used)..used,
            Some(stamp) => {
                let Some(taken_at) = instant_from_stamp(stamp) else { return Cost::ZERO };
                let from = partition_point(0..used, |index| ring.read_entry(state, index) > Some(taken_at));
                from..partition_point(from..used, |index| ring.read_entry(state, index) == Some(taken_at))
            }
        };
        let accepted = cost.get().min(indexes.end - indexes.start);
        ring.remove_entries(state, indexes.start, accepted);
        Cost::new(accepted)
    }

    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        let now = now.mono();
        let ring = self.load_ring(state, now);
        let wanted = CostAndBounds { cost: cost.get(), ceiling: self.limit, gap: self.minimum_gap };
        Report {
            limit: self.limit,
            remaining: self.limit.saturating_sub(self.used_entry_count(ring, state, now)),
            retry: if wanted.cost > wanted.ceiling {
                Retry::Never
            } else {
                Retry::After(self.wait(ring, state, now, wanted, 0))
            },
            reset: {
                let until = |entry: Option<_>, span| entry.map_or(Nanos::ZERO, |entry| time_left(entry, now, span));
                until(ring.read_entry(state, 0), self.length).max(until(ring.last_request(state), self.minimum_gap))
            },
        }
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        let ring = self.load_ring(state, now.mono());
        Spent::of(self.entries_to_keep(ring, state, now.mono()).into(), self.limit.into())
    }

    /// Keeps the entries inside the window of `own`, and the last request until its minimum gap has passed. Entries
    /// that have left the old window do not return even if the new window is longer, because they may have been
    /// forgotten. If the new window is shorter, older entries are moved to its start, so that the used amount stays the
    /// same.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        let now = now.mono();
        let ring = own.load_ring(state, now);
        let used = own.used_entry_count(ring, state, now);
        let kept = own.entries_to_keep(ring, state, now).min(self.max_entries());
        let oldest = Time::from_nanos(now.as_nanos().saturating_sub(self.length.as_nanos() - 1));
        // The rings overlap, so the entries are first copied to the stack (8 KiB). Entries are copied only when
        // parameters change.
        let mut aside = [Time::ZERO; Self::MAX_ENTRIES as usize];
        for (index, entry) in (0..kept).zip(&mut aside) {
            let instant = ring.read_entry(state, index).unwrap_or(Time::ZERO);
            *entry = if index < used { instant.max(oldest) } else { instant };
        }
        let ownerless = kept.saturating_sub(ring.len - ring.ownerless);
        let mut ring = LogRing::with_no_entries(self.max_entries());
        for entry in aside.iter().take(kept as usize).rev() {
            ring = ring.push(state, *entry);
        }
        LogRing { ownerless, ..ring }.store(state);
    }

    changed_parameter_methods!();
}

/// Location of the entries in the state. The index of an entry is the number of newer entries: the newest has index 0.
#[derive(Clone, Copy)]
struct LogRing {
    max_entries: u64,
    /// Position of the next entry, below `max_entries`.
    next_slot: u64,
    /// Number of entries, inside the window or not; at most `max_entries`.
    len: u64,
    /// Number of oldest entries that belong to no request: the amount missing from `initial`, or the amount used under
    /// another algorithm. The minimum gap does not apply after them.
    ownerless: u64,
    /// Entries later than this instant count as if they were made at this instant.
    latest: Time<Mono>,
}

const END_OF_TIME: Time<Mono> = Time::from_nanos(u64::MAX);

impl LogRing {
    const fn with_no_entries(max_entries: u64) -> Self {
        Self { max_entries, next_slot: 0, len: 0, ownerless: 0, latest: END_OF_TIME }
    }

    fn load<S: Cells + ?Sized>(state: &S, max_entries: u64) -> Self {
        let (next_slot, ownerless, len) =
            (state.get(0) >> 32, state.get(0) >> 16 & u64::from(u16::MAX), state.get(0) & u64::from(u16::MAX));
        // Keeps the position inside the ring even if the words are corrupt.
        let next_slot = if next_slot < max_entries { next_slot } else { next_slot % max_entries };
        let len = len.min(max_entries);
        Self { next_slot, len, ownerless: ownerless.min(len), ..Self::with_no_entries(max_entries) }
    }

    fn store<S: CellsMut + ?Sized>(self, state: &mut S) {
        state.set(0, self.next_slot << 32 | self.ownerless << 16 | self.len);
    }

    /// Returns the word index of the entry at `index`; `index` is below `max_entries`.
    const fn word_index(self, index: u64) -> usize {
        1 + self.position_before_next(index + 1) as usize
    }

    /// Returns the ring position `back` entries before `next_slot`. `back` is at most `max_entries`.
    const fn position_before_next(self, back: u64) -> u64 {
        if back <= self.next_slot { self.next_slot - back } else { self.next_slot + self.max_entries - back }
    }

    fn read_entry<S: Cells + ?Sized>(self, state: &S, index: u64) -> Option<Time<Mono>> {
        (index < self.len).then(|| self.latest.min(Time::from_nanos(state.get(self.word_index(index)))))
    }

    /// Returns the newest entry, if it belongs to a request.
    fn last_request<S: Cells + ?Sized>(self, state: &S) -> Option<Time<Mono>> {
        if self.len > self.ownerless { self.read_entry(state, 0) } else { None }
    }

    /// Returns the instant to store for an entry made now: never before the newest entry, so that entries stay in
    /// order.
    fn instant_to_store<S: Cells + ?Sized>(self, state: &S, now: Time<Mono>) -> Time<Mono> {
        self.read_entry(state, 0).map_or(now, |newest| newest.max(now))
    }

    /// Adds an entry, which overwrites the oldest entry if the ring is full. The caller stores the ring.
    fn push<S: CellsMut + ?Sized>(self, state: &mut S, entry: Time<Mono>) -> Self {
        state.set(1 + self.next_slot as usize, entry.as_nanos());
        let next_slot = if self.next_slot + 1 == self.max_entries { 0 } else { self.next_slot + 1 };
        let ownerless = if self.len == self.max_entries { self.ownerless.saturating_sub(1) } else { self.ownerless };
        Self { next_slot, len: self.max_entries.min(self.len + 1), ownerless, ..self }
    }

    /// Adds `units` entries now, after capping the existing entries at `latest`.
    fn record<S: CellsMut + ?Sized>(mut self, state: &mut S, now: Time<Mono>, units: u64) {
        for index in 0..self.len {
            if state.get(self.word_index(index)) <= self.latest.as_nanos() {
                break;
            }
            state.set(self.word_index(index), self.latest.as_nanos());
        }
        let instant = self.instant_to_store(state, now);
        for _ in 0..units.min(self.max_entries) {
            self = self.push(state, instant);
        }
        self.store(state);
    }

    /// Removes `units` consecutive entries, the newest at index `from`, and moves the newer entries to close the gap.
    fn remove_entries<S: CellsMut + ?Sized>(self, state: &mut S, from: u64, units: u64) {
        for index in (0..from).rev() {
            state.set(self.word_index(index + units), state.get(self.word_index(index)));
        }
        let len = self.len - units;
        // Entries without a request are the oldest ones.
        let requests = (self.len - self.ownerless).saturating_sub(from);
        let ownerless = self.ownerless - units.saturating_sub(requests).min(self.ownerless);
        Self { next_slot: self.position_before_next(units), len, ownerless, ..self }.store(state);
    }
}

/// Returns the part of `span`, counted from `entry`, that remains at `now`.
fn time_left(entry: Time<Mono>, now: Time<Mono>, span: Nanos) -> Nanos {
    span.saturating_add(entry.since(now)).saturating_sub(now.since(entry))
}

/// The stamp for the clock's first instant, because 0 is [`Stamp::NONE`]. No instant is this late.
const STAMP_OF_TIME_ZERO: u64 = u64::MAX;

/// Returns the instant as a stamp. Adding one would also avoid the stamp 0. But the limit may have used another
/// algorithm when the receipt was written, and the sum could equal the stamp of a window (the end of the window).
fn stamp_of(entry: Time<Mono>) -> Stamp {
    Stamp::from_bits(if entry == Time::ZERO { STAMP_OF_TIME_ZERO } else { entry.as_nanos() })
}

/// Returns the instant of a stamp; `None` for [`Stamp::NONE`].
fn instant_from_stamp(stamp: Stamp) -> Option<Time<Mono>> {
    match stamp.to_bits() {
        0 => None,
        STAMP_OF_TIME_ZERO => Some(Time::ZERO),
        nanos => Some(Time::from_nanos(nanos)),
    }
}

/// Returns the first of `indexes` for which `holds` is false. `holds` must also be false for all later indexes.
fn partition_point(indexes: core::ops::Range<u64>, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (indexes.start, indexes.end);
    while low < high {
        let middle = low.midpoint(high);
        if holds(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests;
