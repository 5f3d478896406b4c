//! Pacing: whoever comes waits for the one before, and the next one pays for it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate_core::{Cost, LimitError, Nanos, Now, Pace, Pacing, Rate, Retry, Time, Verdict};

use crate::clock::{Clock, PreciseClock};
use crate::wait::{Acquire, Gate, Rooms};

/// Spaces callers out at a rate, as Guava's `RateLimiter` does: any amount passes at once after idling, and the next caller
/// waits for it. With a warm-up it starts slowly and slows down again when idle.
///
/// It differs from a [`Limiter`](crate::Limiter) in who pays: here a caller passes first and the one behind it waits, so
/// no cost is too large. Use it for work of your own that should flow evenly, not against others. A caller that is woken
/// late does not make the next one later.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::Pacer;
///
/// let pacer = Arc::new(Pacer::new("10/s".parse()?));
/// pacer.acquire(3).wait()?; // At once.
/// assert!(pacer.acquire(1).at_once().wait().is_err()); // The three take 300 ms.
/// pacer.acquire(1).within(Duration::from_secs(1)).wait()?; // So this one waits 300 ms.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pacer<C = PreciseClock> {
    clock: C,
    /// A mutex, for the numbers and the state change together; it is held for one computation.
    paced: Mutex<Paced>,
    rooms: Rooms<(), u64>,
}

struct Paced {
    pacing: Pacing,
    pace: Pace,
    /// The last taking by number, with the state before and after it, to undo it as long as it is the last.
    last: (u64, Pace, Pace),
}

/// A turn that is noticed this late is still taken as if it had been noticed in time; what is later than this is idleness.
const LATE: Nanos = Nanos::SECOND;

impl Pacer {
    /// A pacer that stores what goes unused for a second, as Guava's does.
    pub fn new(rate: Rate) -> Self {
        Self::with_clock(one_second(rate), PreciseClock::new())
    }

    /// A pacer that starts at a third of `rate` and gets to all of it within `warm_up`, as Guava's does.
    ///
    /// # Errors
    /// When `warm_up` is zero or longer than [`Pacing::MAX_STORE`].
    pub fn warming_up(rate: Rate, warm_up: Nanos) -> Result<Self, LimitError> {
        Ok(Self::with_clock(Pacing::warm_up(rate, warm_up, 3_000)?, PreciseClock::new()))
    }
}

/// Storing a second's worth is within all bounds.
fn one_second(rate: Rate) -> Pacing {
    Pacing::bursty(rate, Nanos::SECOND).expect("a second is shorter than the longest time to store")
}

impl<C: Clock> Pacer<C> {
    /// A pacer with numbers and a clock of choice.
    pub fn with_clock(pacing: Pacing, clock: C) -> Self {
        let pace = pacing.start(clock.mono());
        Self { clock, paced: Mutex::new(Paced { pacing, pace, last: (0, pace, pace) }), rooms: Rooms::new(1) }
    }

    /// With another bound on how many may wait at the same time, instead of 65,536.
    #[must_use]
    pub fn max_waiters(mut self, max: usize) -> Self {
        self.rooms.max = max;
        self
    }

    /// The rate in force.
    pub fn rate(&self) -> Rate {
        self.lock().pacing.rate()
    }

    /// Puts another rate in force. Who waits already, and whoever comes next, still pays for what passed at the old one.
    pub fn set_rate(&self, rate: Rate) {
        let now = self.clock.mono();
        let mut paced = self.lock();
        let (old, new) = (paced.pacing, paced.pacing.with_rate(rate));
        new.convert(&old, &mut paced.pace, now);
        paced.pacing = new;
        // A state under the old rate means nothing under the new one.
        paced.last = (paced.last.0 + 1, paced.pace, paced.pace);
        drop(paced);
        self.rooms.look_at(0, ());
    }

    /// How many wait.
    pub fn waiters(&self) -> usize {
        self.rooms.waiting()
    }

    /// How long somebody who comes now would wait, if nobody waits already.
    pub fn earliest(&self) -> Nanos {
        let now = self.clock.mono();
        let paced = self.lock();
        paced.pacing.earliest(&paced.pace, now)
    }

    fn lock(&self) -> MutexGuard<'_, Paced> {
        self.paced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock + Send + Sync + 'static> Pacer<C> {
    /// Waits for those who came before and takes `permits`; see [`Acquire`]. [`within`](Acquire::within) and
    /// [`at_once`](Acquire::at_once) make it Guava's `tryAcquire`.
    #[inline]
    pub fn acquire(self: &Arc<Self>, permits: u64) -> Acquire<'_, Self> {
        Acquire::new(self, (), permits)
    }
}

impl Paced {
    fn take(&mut self, cost: Cost, now: Time<tollgate_core::Mono>) -> Verdict<u64> {
        match self.pacing.earliest(&self.pace, now) {
            // Nobody waits for nothing.
            _ if cost == Cost::ZERO => Verdict::granted(cost),
            Nanos::ZERO => {
                let before = self.pace;
                self.pacing.reserve(&mut self.pace, now, cost);
                self.last = (self.last.0 + 1, before, self.pace);
                Verdict::stamped(cost, self.last.0)
            }
            wait => Verdict::refused(Retry::After(wait)),
        }
    }
}

impl<C: Clock + Send + Sync + 'static> Gate for Pacer<C> {
    type Key = ();
    type Stamp = u64;
    type Clock = C;

    fn rooms(&self) -> &Rooms<(), u64> {
        &self.rooms
    }

    fn room_of((): ()) -> usize {
        0
    }

    fn clock(&self) -> &C {
        &self.clock
    }

    fn now(&self) -> Now<'static> {
        Now::new(self.clock.mono(), Time::ZERO)
    }

    fn as_of<'a>(&self, due: Option<u64>, now: &Now<'a>) -> Now<'a> {
        match due.map(Time::from_nanos) {
            Some(due) if due < now.mono() && now.mono().since(due) <= LATE => Now::new(due, now.wall()),
            _ => *now,
        }
    }

    fn uses_wall_clock(&self) -> bool {
        false
    }

    fn take_now(&self, (): (), cost: Cost) -> Verdict<u64> {
        let now = self.clock.mono();
        self.lock().take(cost, now)
    }

    fn take(&self, (): (), cost: Cost, now: &Now<'_>, _: bool) -> Verdict<u64> {
        self.lock().take(cost, now.mono())
    }

    fn wait_behind(&self, (): (), ahead: Cost, _: Cost, now: &Now<'_>) -> Retry {
        let paced = self.lock();
        let mut pace = paced.pace;
        paced.pacing.reserve(&mut pace, now.mono(), ahead);
        Retry::After(paced.pacing.earliest(&pace, now.mono()))
    }

    fn look_again(&self, (): (), _: &Now<'_>) -> Option<Nanos> {
        None
    }

    /// As long as nobody passed since.
    fn give_back(&self, (): (), verdict: &Verdict<u64>, cost: Cost) -> u64 {
        let mut paced = self.lock();
        let (number, before, after) = paced.last;
        if number != verdict.stamp() || paced.pace != after || cost < verdict.taken() {
            return 0;
        }
        paced.pace = before;
        paced.last = (number + 1, before, before);
        drop(paced);
        self.rooms.look_at(0, ());
        cost.get()
    }

    fn charge(&self, (): (), cost: Cost) -> Verdict<u64> {
        let now = self.clock.mono();
        let mut paced = self.lock();
        let Paced { pacing, pace, .. } = &mut *paced;
        pacing.reserve(pace, now, cost);
        Verdict::granted(cost)
    }
}

impl<C> fmt::Debug for Pacer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paced = self.paced.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Pacer").field("pacing", &paced.pacing).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
