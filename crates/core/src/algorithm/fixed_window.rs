//! Fixed window: at most N per hour; the count restarts with each hour.
//!
//! **The naive method** keeps a counter and a timer that clears it. The timer needs a thread or a sweep over all keys.
//! All counters are cleared at the same instant, and then all refused clients retry at once.
//!
//! **The idea** is to store the end of the window with the count. A later request sees that the window has ended and
//! starts the next window, so no timer is needed. The [`Phase`] determines when windows begin: at multiples of the
//! length on the wall clock, at these multiples plus an offset per key, at the key's first request, or at calendar
//! boundaries that the caller provides.
//!
//! **Example**: 5 per minute, phase epoch. At 0:50 a cost of 3 passes and leaves 2; another cost of 3 is refused with a
//! retry of 10 s. At 1:00 the window has ended, so another 5 pass immediately: 8 passed between 0:50 and 1:00.
//!
//! ```text
//!      0:00          0:50 │1:00                     2:00
//!  ─────┼──────────────●──┼●────────────────────────┼──▶
//!       │         3 of 5  │  5 of 5                 │
//! ```
//!
//! Debt is carried over: a charge beyond the limit counts in the following windows, up to `limit` in each. With a
//! `max_debt` of 7, a charge of 12 to the limit of 5 passes. The next window begins with 7 used and refuses; the window
//! after that begins with 2 used. A refund is accepted only in the same window as the charge.
//!
//! **Guarantee**: in any one window, the admitted cost is at most `limit`, and a request is refused only if it would
//! exceed this bound. Over any interval of length `T` the admitted cost is at most `limit × (⌈T / length⌉ + 1)`. So
//! twice the limit can pass in a very short time around a window boundary.
//!
//! **The clock** is the monotonic clock for windows that start with the first request, and the wall clock otherwise.
//! The wall clock may be adjusted. If the clock is set forward, a new window begins. If the clock is set back by up to
//! one window (or a second, for shorter windows), the later window and its count are used until that window ends. So no
//! window is used twice. If the clock is set back by more, the count moves to the current window. So setting the clock
//! back grants nothing, and delays a key by at most one window (or second).
//!
//! **State**: the end of the window and its count, two words. **Cost**: two comparisons, plus one division for the
//! first request of a window.
//!
//! **Poor choice** if twice the limit at a boundary is too much, or if many clients would retry at the same instant.
//! Use a sliding window or a token bucket, or spread the windows.

use core::time::Duration;

use super::{Algorithm, Cells, CellsMut, decide_by_current};
use crate::change::changed_parameter_methods;
use crate::error::LimitError;
use crate::params::{DecodedState, Params};
use crate::quantity::{Cost, Mono, Nanos, Now, Time, Window};
use crate::quota::{Demand, Quota, quota_methods, quota_start_methods, window_instant};
use crate::tokens::Tokens;
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};

/// Admits at most N per window.
///
/// ```
/// use tollgate_core::{Algorithm, Ask, Cost, FixedWindow, Nanos, Now, Phase};
///
/// let limit = FixedWindow::new(5, Nanos::from_secs(60))?.phase(Phase::FirstRequest);
/// let mut state = [0; 2];
/// limit.init(&mut state, &Now::at(0));
/// assert!(limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::new(3))).is_admitted());
/// assert_eq!(limit.report(&state, &Now::at(0), Cost::ONE).remaining, 2);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    quota: Quota,
    phase: Phase,
}

/// Alignment of the windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Windows begin at multiples of the length since 1970-01-01 UTC, at the same instants for all keys.
    #[default]
    Epoch,
    /// Each window begins with the first request that is counted in it, on the monotonic clock.
    FirstRequest,
    /// Windows begin at multiples of the length, plus an offset derived from [`Now::spread`]. The windows of different
    /// keys end at different instants, so that refused clients do not all retry at once.
    Spread,
    /// The caller provides the window, at this position in [`Now::with_windows`].
    ///
    /// The length of the limit is then the average window length, such as a day or an average month. The average length
    /// replaces the lengths of windows that were not given: in a wait beyond the next window, and when debt is repaid
    /// over windows without requests. If no window is given, the last given window continues to its end. Windows of the
    /// average length follow, each starting with its first request; the limit still holds in every window.
    Given(usize),
}

/// Boundaries of the windows around an instant.
#[derive(Clone, Copy)]
enum WindowGrid {
    /// Each window begins with its first request.
    FromFirstRequest,
    /// Windows begin at multiples of the length, plus this number modulo the length.
    Regular(u64),
    /// The window given by the caller.
    Given(Window),
}

/// The window in which a request is counted.
struct CurrentWindow {
    /// First instant after the window.
    end: u64,
    /// Time until `end`, at least 1 ns.
    time_left: u64,
    used: u64,
}

impl FixedWindow {
    /// Creates a limit of `limit` per window of `length`, with windows at multiples of the length. The maximum debt
    /// defaults to `limit`.
    ///
    /// # Errors
    /// Returns an error if `limit` or `length` is zero, or if `length` is above
    /// [`Rate::MAX_PERIOD`](crate::Rate::MAX_PERIOD).
    pub fn new(limit: u64, length: impl Into<Duration>) -> Result<Self, LimitError> {
        let length = Nanos::from(length.into());
        Ok(Self { quota: Quota::new(limit, length)?, phase: Phase::Epoch })
    }

    /// Sets the alignment of the windows.
    #[must_use]
    pub const fn phase(self, phase: Phase) -> Self {
        Self { phase, ..self }
    }

    /// Sets the maximum amount beyond the limit that [`Ask::Regardless`] may take.
    ///
    /// # Errors
    /// Returns an error if repaying the debt takes longer than [`Rate::MAX_FILL_TIME`](crate::Rate::MAX_FILL_TIME).
    pub fn max_debt(self, max_debt: u64) -> Result<Self, LimitError> {
        Ok(Self { quota: self.quota.max_debt(max_debt)?, ..self })
    }

    quota_methods!();

    pub(crate) const fn params(&self) -> Params {
        Params::FixedWindow { window: self.quota.params(), phase: self.phase }
    }

    pub(crate) fn decode<S: Cells + ?Sized>(&self, state: &S) -> DecodedState {
        DecodedState::Window { end: state.get(0), used: state.get(1) }
    }

    pub(crate) fn encode<S: CellsMut + ?Sized>(&self, state: &mut S, end: u64, used: u64) {
        self.write(state, end, used);
    }

    /// Translates the end of the window. Only windows that start with the first request use the monotonic clock.
    pub(crate) fn rebase<S: CellsMut + ?Sized>(&self, state: &mut S, from: Time<Mono>, to: Time<Mono>) {
        if self.phase == Phase::FirstRequest {
            state.set(0, Time::from_nanos(state.get(0)).rebased(from, to).as_nanos());
        }
    }

    /// Returns whether a state that was charged under `own` has the same windows as these parameters at `now`. The end
    /// of a window identifies its calendar: if the state's window ends inside the given window or after it, the state
    /// belongs to another calendar.
    pub(crate) fn has_same_windows<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>) -> bool {
        let given = match self.phase {
            Phase::Given(position) => now.window(position),
            Phase::Epoch | Phase::Spread | Phase::FirstRequest => None,
        };
        let (end, used) = (state.get(0), state.get(1));
        (self.phase, self.length()) == (own.phase, own.length())
            && given
                .is_none_or(|window| used == 0 || end <= window.start().as_nanos() || end == window.end().as_nanos())
    }

    /// Returns an upper bound on the count if `now` contains no calendar windows, whatever the lengths of the windows
    /// since the last write. Debt is paid off window by window. A calendar window is at most 1.5 times the average: the
    /// extreme is an hour in which the local clock is set back by half an hour.
    pub(crate) fn max_used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> u64 {
        let Phase::Given(_) = self.phase else { return self.current_at(state, now).used };
        let (end, used) = (state.get(0), state.get(1).min(self.quota.max_count()));
        let Some(since) = window_instant(now.wall()).checked_sub(end) else { return used };
        let longest = self.quota.length().saturating_add(self.quota.length() / 2);
        used.saturating_sub((since / longest + 1).saturating_mul(self.quota.limit()))
    }

    /// Returns [`spent`](Algorithm::spent) computed from [`max_used`](Self::max_used).
    pub(crate) fn max_spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        Spent::of(self.max_used(state, now).into(), self.quota.limit().into())
    }

    pub(crate) fn used<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Tokens {
        Tokens::whole(self.current_at(state, now).used)
    }

    pub(crate) fn until_used_at_most<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, at_most: Tokens) -> Retry {
        Retry::After(self.wait_until_at_most(&self.current_at(state, now), at_most.floor()))
    }

    /// Returns the largest count at which `ask` still passes; `None` if `ask` never passes.
    pub(crate) fn max_used_for(&self, ask: Ask) -> Option<Tokens> {
        self.quota.max_used_for(ask)
    }

    /// Writes a state with `used` in the current window, rounded up to a whole number.
    pub(crate) fn init_with_used<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, used: Tokens) {
        let used = used.ceil().min(self.quota.max_count());
        // With a count of zero, the window does not matter.
        let end = if used == 0 { 0 } else { self.current_window_end(now) };
        self.write(state, end, used);
    }

    /// Returns the instant on the windows' clock, and the window grid.
    #[inline]
    fn instant_and_grid(&self, now: &Now<'_>) -> (u64, WindowGrid) {
        let wall = window_instant(now.wall());
        match self.phase {
            Phase::Epoch => (wall, WindowGrid::Regular(0)),
            Phase::Spread => (wall, WindowGrid::Regular(now.spread())),
            Phase::FirstRequest => (window_instant(now.mono()), WindowGrid::FromFirstRequest),
            Phase::Given(position) => match now.window(position) {
                // If the given window does not contain `now`, the stored window applies.
                Some(window) => {
                    (wall.clamp(window.start().as_nanos(), window.end().as_nanos() - 1), WindowGrid::Given(window))
                }
                None => (wall, WindowGrid::FromFirstRequest),
            },
        }
    }

    #[inline]
    fn current_at<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> CurrentWindow {
        let (at, grid) = self.instant_and_grid(now);
        let (end, used) = (state.get(0), state.get(1).min(self.quota.max_count()));
        let length = self.quota.length();
        // Latest plausible end of the stored window, which is the current window or, if the clock was set back, a later
        // window. A window of the limit's previous calendar may end before the given window.
        let most = match grid {
            WindowGrid::FromFirstRequest | WindowGrid::Regular(_) => {
                at.saturating_add(length + self.quota.max_ahead(length))
            }
            WindowGrid::Given(window) => {
                let handed = window.end().since(window.start()).as_nanos();
                window.end().as_nanos().saturating_add(self.quota.max_ahead(handed.max(length)))
            }
        };
        if used > 0 && at < end && end <= most {
            return CurrentWindow { end, time_left: end - at, used };
        }
        self.advance_to(at, grid, end, used)
    }

    /// Returns the window that contains `at`, given the count `used` of another window that ends at `end`.
    fn advance_to(&self, at: u64, grid: WindowGrid, end: u64, used: u64) -> CurrentWindow {
        let (limit, length) = (self.quota.limit(), self.quota.length());
        let time_left = match grid {
            WindowGrid::FromFirstRequest => length,
            WindowGrid::Regular(offset) => self.quota.until_next_boundary(at, offset % length),
            WindowGrid::Given(window) => window.end().as_nanos() - at,
        };
        let next = at.saturating_add(time_left);
        // If nothing is counted, or the clock was set back, the count moves to the current window.
        if used == 0 || end > next {
            return CurrentWindow { end: next, time_left: next - at, used };
        }
        let passed = match grid {
            WindowGrid::FromFirstRequest | WindowGrid::Regular(_) => (at - end) / length + 1,
            // The lengths of the windows since `end` are unknown, so their number is estimated from the average length
            // and rounded to the nearest whole number.
            WindowGrid::Given(_) => ((next - end).saturating_add(length / 2) / length).max(1),
        };
        let used = used.saturating_sub(passed.saturating_mul(limit));
        let end = match grid {
            // Debt is paid off in consecutive windows. Without debt, the next window begins with the next request.
            WindowGrid::FromFirstRequest if used > 0 => end.saturating_add(passed.saturating_mul(length)),
            WindowGrid::FromFirstRequest | WindowGrid::Regular(_) | WindowGrid::Given(_) => next,
        };
        CurrentWindow { end, time_left: end - at, used }
    }

    /// Returns the end of the window that contains `now`.
    fn current_window_end(&self, now: &Now<'_>) -> u64 {
        let (at, grid) = self.instant_and_grid(now);
        self.advance_to(at, grid, 0, 0).end
    }

    #[inline]
    fn write<S: CellsMut + ?Sized>(&self, state: &mut S, end: u64, used: u64) {
        state.set(0, end);
        state.set(1, used);
    }

    /// Returns the number of units that can be admitted in addition to `used`.
    const fn available(&self, used: u64) -> u64 {
        self.quota.limit().saturating_sub(used)
    }

    /// Returns the time until at most `room` is used. At each window boundary the count decreases by `limit`.
    fn wait_until_at_most(&self, current: &CurrentWindow, room: u64) -> Nanos {
        let over = current.used.saturating_sub(room);
        if over == 0 {
            return Nanos::ZERO;
        }
        let further = (over - 1) / self.quota.limit();
        Nanos::from_nanos(current.time_left.saturating_add(further.saturating_mul(self.quota.length())))
    }

    /// Returns the time until the count plus `cost` is at most `ceiling`.
    fn retry_for(&self, current: &CurrentWindow, cost: Cost, ceiling: u64) -> Retry {
        ceiling
            .checked_sub(cost.get())
            .map_or(Retry::Never, |room| Retry::After(self.wait_until_at_most(current, room)))
    }

    /// Decides from the count of the current window.
    #[inline]
    fn weigh_current<S: Cells + ?Sized>(&self, _: &S, current: &CurrentWindow, ask: Ask) -> Verdict {
        let pass = |taken| Verdict::with_outcome(Outcome::Allow, taken, Stamp::from_bits(current.end));
        let (cost, ceiling) = match self.quota.resolve(ask, || self.available(current.used)) {
            Demand::Take(taken) => return pass(taken),
            Demand::Fit { cost, ceiling } => (cost, ceiling),
        };
        match ceiling.checked_sub(cost.get()) {
            Some(room) if current.used <= room => pass(cost),
            _ => Verdict::deny(self.retry_for(current, cost, ceiling)),
        }
    }

    /// Applies a verdict of `weigh_current`.
    #[inline]
    fn commit_current<S: CellsMut + ?Sized>(&self, state: &mut S, current: &CurrentWindow, verdict: &Verdict) {
        // The end moves back only if the clock was set back. Even a refusal writes the earlier end, so that its wait is
        // correct.
        if verdict.taken() > Cost::ZERO || state.get(0) > current.end {
            self.write(state, current.end, current.used.saturating_add(verdict.taken().get()));
        }
    }
}

impl Algorithm for FixedWindow {
    type Stamp = Stamp;

    fn words(&self) -> usize {
        2
    }

    fn uses_wall_clock(&self) -> bool {
        self.phase != Phase::FirstRequest
    }

    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, stamp: Option<Stamp>) -> Cost {
        let current = self.current_at(state, now);
        if stamp.is_some_and(|stamp| stamp != Stamp::from_bits(current.end)) {
            return Cost::ZERO;
        }
        let accepted = cost.min(Cost::new(current.used));
        if accepted > Cost::ZERO {
            self.write(state, current.end, current.used - accepted.get());
        }
        accepted
    }

    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        let current = self.current_at(state, now);
        Report {
            limit: self.quota.limit(),
            remaining: self.available(current.used),
            retry: self.retry_for(&current, cost, self.quota.limit()),
            reset: self.wait_until_at_most(&current, 0),
        }
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        Spent::of(self.current_at(state, now).used.into(), self.quota.limit().into())
    }

    fn is_unused<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.current_at(state, now).used == 0
    }

    /// Assumes that the requests ahead in the queue fill every window exactly.
    fn wait_in_queue<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        let mut current = self.current_at(state, now);
        current.used = current.used.saturating_add(ahead.get());
        self.retry_for(&current, cost, self.quota.limit())
    }

    /// Keeps the count if both limits have the same windows; otherwise counts it in the current window of the new
    /// parameters.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        if !self.has_same_windows(own, state, now) {
            return self.init_with_used(state, now, own.used(state, &now.without_windows()));
        }
        let current = own.current_at(state, now);
        self.write(state, current.end, current.used.min(self.quota.max_count()));
    }

    quota_start_methods!();
    decide_by_current!();
    changed_parameter_methods!();
}

#[cfg(test)]
mod tests;
