//! A fixed number of permits per period, with a timeout for waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::{IntervalBucket, LimitError, Nanos, Steps};

use crate::adjustable::Adjustable;
use crate::clock::{Clock, PreciseClock};
use crate::limiter::Limiter;
use crate::wait::Acquire;

/// Grants N permits per period, with a timeout for waiting, like resilience4j's `RateLimiter`.
///
/// The first period begins on creation. The limit and the timeout can change while the limiter is in use. Differences
/// from resilience4j:
///
/// - A caller that cannot get its permits within the timeout is refused immediately, not after the timeout.
/// - Waiters are served in FIFO order and take their permits only at the end of their wait, so a cancelled wait
///   consumes nothing.
/// - A request for more permits than a period grants is always refused.
/// - After a change of the limit, the permits used in the current period still count.
/// - Draining takes the currently available permits and does not cancel a debt.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::Periodic;
/// # use tollgate::clock::ManualClock;
///
/// # let clock = Arc::new(ManualClock::default());
/// # let backend = Periodic::with_clock(10, Duration::from_millis(500), clock.clone())?.timeout(Duration::from_secs(5));
/// # let _shown = || { Ok::<_, tollgate::LimitError>({
/// let backend = Periodic::new(10, Duration::from_millis(500))?.timeout(Duration::from_secs(5));
/// # }) };
/// backend.acquire(1).wait()?;
/// assert_eq!(backend.available(), 9);
/// backend.set_limit(20)?;
/// assert_eq!((backend.available(), backend.drain()), (19, 19));
/// # clock.advance(Duration::from_millis(500));
/// backend.acquire(20).wait()?; // In the next period.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Periodic<C = PreciseClock> {
    limiter: Arc<Limiter<Adjustable<IntervalBucket>, C>>,
    period: Duration,
    /// Alignment of the periods on the wall clock.
    steps: Steps,
    /// In nanoseconds. Relaxed, because the timeout orders no other memory access.
    timeout: AtomicU64,
}

impl Periodic {
    /// Creates a limiter of `limit` permits per `period`, with a timeout of five seconds.
    ///
    /// # Errors
    /// Returns the same errors as [`IntervalBucket::new`].
    pub fn new(limit: u64, period: impl Into<Duration>) -> Result<Self, LimitError> {
        Self::with_clock(limit, period, PreciseClock::new())
    }
}

impl<C: Clock + Send + Sync + 'static> Periodic<C> {
    /// Like [`new`](Periodic::new), but reads the time from `clock`.
    ///
    /// # Errors
    /// Returns the same errors as [`IntervalBucket::new`].
    pub fn with_clock(limit: u64, period: impl Into<Duration>, clock: C) -> Result<Self, LimitError> {
        let period = period.into();
        let steps = Steps::Aligned(Nanos::from_nanos(clock.now().wall().as_nanos()));
        let limit = IntervalBucket::new(limit, period)?.steps(steps);
        let limiter = Arc::new(Limiter::with_clock(Adjustable::new(limit), clock));
        Ok(Self { limiter, period, steps, timeout: AtomicU64::new(Nanos::from_secs(5).as_nanos()) })
    }

    /// Sets the timeout.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set_timeout(timeout);
        self
    }

    /// Changes the timeout for later callers.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout.store(Nanos::from(timeout).as_nanos(), Ordering::Relaxed);
    }

    /// Changes the limit, also for current waiters.
    ///
    /// # Errors
    /// Returns the same errors as [`IntervalBucket::new`]. The old limit then still applies.
    pub fn set_limit(&self, limit: u64) -> Result<(), LimitError> {
        self.limiter.change(IntervalBucket::new(limit, self.period)?.steps(self.steps));
        Ok(())
    }

    /// Takes `permits` as soon as they are available, within the timeout; see [`Acquire`].
    pub fn acquire(&self, permits: u64) -> Acquire<'_, Limiter<Adjustable<IntervalBucket>, C>> {
        self.limiter.acquire(permits).within(Duration::from_nanos(self.timeout.load(Ordering::Relaxed)))
    }

    /// Takes the remaining permits of this period, and returns their number.
    pub fn drain(&self) -> u64 {
        self.limiter.drain()
    }

    /// Returns the number of permits remaining in this period.
    pub fn available(&self) -> u64 {
        self.limiter.report(1).remaining
    }

    /// Returns the number of waiters.
    pub fn waiters(&self) -> usize {
        self.limiter.waiters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::{AcquireError, Retry};
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    fn five_per_tenth_of_a_second() -> (Arc<ManualClock>, Periodic<Arc<ManualClock>>) {
        let clock = Arc::new(ManualClock::at(1_234_567_890));
        let periodic = Periodic::with_clock(5, Nanos::from_millis(100), Arc::clone(&clock)).unwrap();
        (clock, periodic.timeout(Duration::from_millis(150)))
    }

    #[test]
    fn permits_are_available_in_the_next_period() {
        let (clock, periodic) = five_per_tenth_of_a_second();
        assert!(periodic.acquire(5).wait().is_ok());
        clock.advance(Nanos::from_millis(30));
        let mut waiting = [periodic.acquire(3), periodic.acquire(2), periodic.acquire(1)];
        let mut poll = |place: usize| {
            Pin::new(&mut waiting[place]).poll(&mut Context::from_waker(Waker::noop())).map(|answer| answer.map(|_| ()))
        };
        assert!(poll(0).is_pending() && poll(1).is_pending());
        let too_late = AcquireError::TooLate { retry: Retry::After(Nanos::from_millis(170)) };
        assert_eq!(poll(2), std::task::Poll::Ready(Err(too_late)), "the period after the next is too late");
        clock.advance_through_alarms(Nanos::from_millis(69));
        assert!(poll(0).is_pending());
        clock.advance_through_alarms(Nanos::from_millis(1));
        assert!(poll(0).is_ready() && poll(1).is_ready());
        assert_eq!((periodic.available(), periodic.waiters()), (0, 0));
    }

    #[test]
    fn limit_and_timeout_change_while_in_use() {
        let (clock, periodic) = five_per_tenth_of_a_second();
        assert_eq!((periodic.drain(), periodic.available()), (5, 0));
        let mut waiting = periodic.acquire(2);
        let mut poll = || Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(!poll());
        periodic.set_limit(6).unwrap();
        assert!(!poll());
        periodic.set_limit(7).unwrap();
        assert!(poll());
        assert!(periodic.set_limit(0).is_err() && periodic.available() == 0);
        periodic.set_timeout(Duration::from_millis(99));
        assert!(periodic.acquire(1).wait().is_err());
        clock.advance(Nanos::from_millis(100));
        assert_eq!(periodic.available(), 7);
    }
}
