//! Pacing: each caller waits for the cost of the previous caller.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[cfg(feature = "stream")]
use futures_core::Stream;
use tollgate_core::{Cost, LimitError, Nanos, Now, PacerParams, PacerState, Rate, Retry, Time, Verdict};

use crate::clock::{Clock, PreciseClock};
#[cfg(feature = "stream")]
use crate::stream::LimitedStream;
use crate::wait::{Acquire, Shards, Waitable};

/// Spaces callers out at a rate, like Guava's `RateLimiter`. After an idle time any cost passes immediately, and the
/// next caller waits for that cost. With a warm-up the pacer starts slowly, and slows down again when idle.
///
/// With a [`Limiter`](crate::Limiter) a caller waits for its own cost. With a pacer the caller passes first and the
/// next caller waits, so no cost is too large. Use a pacer to spread your own work evenly, not to limit clients. A late
/// wake-up does not delay the next caller.
///
/// A [`constant`](Self::constant) pacer stores no permits while idle. With [`max_waiters`](Self::max_waiters) and
/// [`Acquire::within`], such a pacer is a leaky bucket as a queue: the number of waiters and the wait are bounded.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::Pacer;
///
/// let pacer = Arc::new(Pacer::new("10/s".parse()?));
/// pacer.acquire(3).wait()?; // Immediately.
/// assert!(pacer.acquire(1).at_once().wait().is_err()); // The three take 300 ms.
/// pacer.acquire(1).within(Duration::from_secs(1)).wait()?; // So this one waits 300 ms.
///
/// // At most ten callers wait, for at most a second.
/// let leaky = Arc::new(Pacer::constant("1000/s".parse()?).max_waiters(10));
/// leaky.acquire(1).within(Duration::from_secs(1)).wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pacer<C = PreciseClock> {
    clock: C,
    /// A mutex, because parameters and state change together. The mutex is held for one computation.
    paced: Mutex<PacerInner>,
    shards: Shards<(), u64>,
}

struct PacerInner {
    pacing: PacerParams,
    pace: PacerState,
    /// The serial number of the last grant, and the state before and after it. Only the last grant can be undone.
    last_grant: (u64, PacerState, PacerState),
}

/// A wake-up that is late by at most this much counts as on time. A longer delay counts as idle time.
const LATE_TOLERANCE: Nanos = Nanos::SECOND;

impl Pacer {
    /// Creates a pacer that stores up to a second of unused permits, like Guava's `RateLimiter`.
    pub fn new(rate: Rate) -> Self {
        Self::with_clock(storing_one_second(rate), PreciseClock::new())
    }

    /// Creates a pacer that stores no permits: callers never pass faster than `rate`.
    pub fn constant(rate: Rate) -> Self {
        Self::with_clock(constant(rate), PreciseClock::new())
    }

    /// Creates a pacer that starts at a third of `rate` and reaches the full rate within `warm_up`, like Guava's
    /// `RateLimiter`.
    ///
    /// # Errors
    /// Returns an error if `warm_up` is zero or longer than [`PacerParams::MAX_STORED_TIME`].
    pub fn warming_up(rate: Rate, warm_up: impl Into<Duration>) -> Result<Self, LimitError> {
        Ok(Self::with_clock(PacerParams::warm_up(rate, warm_up, 3_000)?, PreciseClock::new()))
    }
}

/// Returns the parameters of a pacer that stores up to a second of unused permits.
fn storing_one_second(rate: Rate) -> PacerParams {
    PacerParams::bursty(rate, Nanos::SECOND).expect("one second is below `MAX_STORED_TIME`")
}

/// Returns the parameters of a pacer that stores no permits.
pub(crate) fn constant(rate: Rate) -> PacerParams {
    PacerParams::bursty(rate, Nanos::ZERO).expect("zero is not above `MAX_STORED_TIME`")
}

impl<C: Clock> Pacer<C> {
    /// Creates a pacer with these parameters. The pacer reads the time from `clock`.
    pub fn with_clock(pacing: PacerParams, clock: C) -> Self {
        let pace = pacing.initial_state(clock.mono());
        Self {
            clock,
            paced: Mutex::new(PacerInner { pacing, pace, last_grant: (0, pace, pace) }),
            shards: Shards::new(1),
        }
    }

    /// Sets the maximum number of waiters (default 65,536). Further callers are refused immediately.
    #[must_use]
    pub fn max_waiters(mut self, max: usize) -> Self {
        self.shards.max = max;
        self
    }

    /// Returns the rate.
    pub fn rate(&self) -> Rate {
        self.lock().pacing.rate()
    }

    /// Sets the rate. The wait for earlier costs still uses the old rate.
    pub fn set_rate(&self, rate: Rate) {
        let now = self.clock.mono();
        let mut paced = self.lock();
        let (old, new) = (paced.pacing, paced.pacing.with_rate(rate));
        new.convert(&old, &mut paced.pace, now);
        paced.pacing = new;
        // A grant under the old rate cannot be undone under the new rate.
        paced.last_grant = (paced.last_grant.0 + 1, paced.pace, paced.pace);
        drop(paced);
        self.shards.notify(0, ());
    }

    /// Returns the number of waiters.
    pub fn waiters(&self) -> usize {
        self.shards.waiter_count()
    }

    /// Returns the wait of a new caller, ignoring other waiters.
    pub fn next_wait(&self) -> Duration {
        let now = self.clock.mono();
        let paced = self.lock();
        paced.pacing.next_wait(&paced.pace, now).into()
    }

    fn lock(&self) -> MutexGuard<'_, PacerInner> {
        self.paced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock + Send + Sync + 'static> Pacer<C> {
    /// Takes `permits` after all earlier callers; see [`Acquire`]. With [`within`](Acquire::within) or
    /// [`at_once`](Acquire::at_once), this is the equivalent of Guava's `tryAcquire`.
    #[inline]
    pub fn acquire(self: &Arc<Self>, permits: u64) -> Acquire<'_, Self> {
        Acquire::new(self, (), permits)
    }

    /// Like [`acquire`](Self::acquire), but the future owns the pacer, so it can be moved to a spawned task.
    pub fn acquire_owned(self: Arc<Self>, permits: u64) -> Acquire<'static, Self> {
        Acquire::owned(self, (), permits)
    }

    /// Takes a cost of 1 before each item of `stream` is yielded. If the stream is not `Unpin`, pin it first.
    #[cfg(feature = "stream")]
    pub fn limit_stream<S: Stream + Unpin>(self: &Arc<Self>, stream: S) -> LimitedStream<S, Self> {
        LimitedStream::new(stream, self, ())
    }
}

impl PacerInner {
    fn take(&mut self, cost: Cost, now: Time<tollgate_core::Mono>) -> Verdict<u64> {
        match self.pacing.next_wait(&self.pace, now) {
            // A cost of zero never waits.
            _ if cost == Cost::ZERO => Verdict::new_allowed(cost),
            Nanos::ZERO => {
                let before = self.pace;
                self.pacing.reserve(&mut self.pace, now, cost);
                self.last_grant = (self.last_grant.0 + 1, before, self.pace);
                Verdict::new_allowed_with_stamp(cost, self.last_grant.0)
            }
            wait => Verdict::new_refused(Retry::After(wait)),
        }
    }
}

impl<C: Clock + Send + Sync + 'static> Waitable for Pacer<C> {
    type Key = ();
    type Stamp = u64;
    type Clock = C;

    fn shards(&self) -> &Shards<(), u64> {
        &self.shards
    }

    fn shard_of((): ()) -> usize {
        0
    }

    fn clock(&self) -> &C {
        &self.clock
    }

    fn now(&self) -> Now<'static> {
        Now::new(self.clock.mono(), Time::ZERO)
    }

    fn decision_time<'a>(&self, due: Option<u64>, now: &Now<'a>) -> Now<'a> {
        match due.map(Time::from_nanos) {
            Some(due) if due < now.mono() && now.mono().since(due) <= LATE_TOLERANCE => Now::new(due, now.wall()),
            _ => *now,
        }
    }

    fn uses_wall_clock(&self) -> bool {
        false
    }

    fn take(&self, (): (), cost: Cost, now: &Now<'_>, _: bool) -> Verdict<u64> {
        self.lock().take(cost, now.mono())
    }

    fn wait_in_queue(&self, (): (), ahead: Cost, _: Cost, now: &Now<'_>) -> Retry {
        let paced = self.lock();
        let mut pace = paced.pace;
        paced.pacing.reserve(&mut pace, now.mono(), ahead);
        Retry::After(paced.pacing.next_wait(&pace, now.mono()))
    }

    fn recheck_after(&self, (): (), _: &Now<'_>) -> Option<Nanos> {
        None
    }

    /// Undoes a grant if it is the last grant.
    fn give_back(&self, (): (), verdict: &Verdict<u64>, cost: Cost) -> u64 {
        let mut paced = self.lock();
        let (number, before, after) = paced.last_grant;
        if number != verdict.stamp() || paced.pace != after || cost < verdict.taken() {
            return 0;
        }
        paced.pace = before;
        paced.last_grant = (number + 1, before, before);
        drop(paced);
        self.shards.notify(0, ());
        cost.get()
    }

    fn charge(&self, (): (), cost: Cost) -> Verdict<u64> {
        let now = self.clock.mono();
        let mut paced = self.lock();
        let PacerInner { pacing, pace, .. } = &mut *paced;
        pacing.reserve(pace, now, cost);
        Verdict::new_allowed(cost)
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
