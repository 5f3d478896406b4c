//! Sources of time. No other module of this crate reads the clocks of the system.
//!
//! A clock returns monotonic time and, derived from the same reading, wall-clock time. Token buckets, leaky buckets,
//! logs and leases use monotonic time. Windows and interval buckets that are aligned to the clock, such as to the
//! minute or the day, use wall-clock time.
//!
//! | clock | cost of a reading | error |
//! |---|---|---|
//! | [`PreciseClock`] | one read of the processor's time stamp counter, about 10 ns | calibrated once, tens of parts per million |
//! | [`CachedClock`] | one load, under 1 ns | late by up to its period, plus scheduling delays |
//! | [`ManualClock`] | one load | none: tests set it |

mod alarms;

use std::io;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate_core::{Algorithm, Mono, Nanos, Now, Time, Wall};

pub use alarms::Alarm;
use alarms::{Schedule, Timer, fire_alarm};

/// A source of time.
pub trait Clock {
    /// Returns monotonic time, which never goes back.
    fn mono(&self) -> Time<Mono>;

    /// Returns the wall-clock time at `mono`, which must be a recent reading.
    fn wall(&self, mono: Time<Mono>) -> Time<Wall>;

    /// Returns the time on both clocks, from one reading.
    fn now(&self) -> Now<'static> {
        let mono = self.mono();
        Now::new(mono, self.wall(mono))
    }

    /// Returns one reading, with wall-clock time only if `limit` needs it.
    #[inline]
    fn now_for<A: Algorithm>(&self, limit: &A) -> Now<'static> {
        let mono = self.mono();
        let wall = if limit.uses_wall_clock() { self.wall(mono) } else { Time::ZERO };
        Now::new(mono, wall)
    }

    /// Sets `alarm` to fire when this clock reaches `at`, and replaces the alarm's previous time. Alarms wake the
    /// waiters, so a clock that does not follow real time must fire its alarms by its own time.
    ///
    /// # Errors
    /// Returns an error if the timer thread cannot be started.
    fn wake_at(&self, at: Time<Mono>, alarm: &Arc<dyn Alarm>) -> io::Result<()> {
        Timer::shared()?.set(at.since(self.mono()).into(), alarm);
        Ok(())
    }

    /// Cancels `alarm`.
    fn cancel_wake(&self, alarm: &Arc<dyn Alarm>) {
        if let Ok(timer) = Timer::shared() {
            timer.remove(alarm);
        }
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn wake_at(&self, at: Time<Mono>, alarm: &Arc<dyn Alarm>) -> io::Result<()> {
        (**self).wake_at(at, alarm)
    }

    fn cancel_wake(&self, alarm: &Arc<dyn Alarm>) {
        (**self).cancel_wake(alarm);
    }

    #[inline]
    fn mono(&self) -> Time<Mono> {
        (**self).mono()
    }

    #[inline]
    fn wall(&self, mono: Time<Mono>) -> Time<Wall> {
        (**self).wall(mono)
    }
}

/// Interval between readings of the system's wall clock. A step of the wall clock is detected within this time.
const WALL_CHECK_INTERVAL: Nanos = Nanos::SECOND;

/// Time between the zero of a clock and its start: nine years. A single-word state can represent 73 years, so 64 years
/// remain after the start.
const ZERO_BEFORE_START: Nanos = Nanos::from_nanos(1 << 58);

/// Reads the processor's time stamp counter, or the system's monotonic clock if the counter is unreliable.
#[derive(Debug)]
pub struct PreciseClock {
    source: quanta::Clock,
    start: u64,
    /// Nanoseconds per 2⁴⁰ units of the source, so that conversion takes a multiplication and a shift.
    nanos_per_unit: u64,
    /// Wall time at the clock's zero, in nanoseconds. Updated by the first thread that reads the clock after the check
    /// interval. Relaxed, because late or repeated writes are harmless.
    wall_at_zero: AtomicU64,
    wall_check_due: AtomicU64,
}

impl PreciseClock {
    /// Starts a clock nine years after its zero. The first clock in a process takes up to 200 ms to calibrate the
    /// counter.
    pub fn new() -> Self {
        let source = quanta::Clock::new();
        let nanos_per_unit = source.delta_as_nanos(0, 1 << 40).max(1);
        // The zero is long before the start, because a snapshot may contain instants from before the start of this
        // process. Also, the counter of another core may be slightly behind.
        let units = (u128::from(ZERO_BEFORE_START.as_nanos()) << 40) / u128::from(nanos_per_unit);
        let start = source.raw().wrapping_sub(units as u64);
        let wall_check_due = AtomicU64::new(0);
        Self { source, start, nanos_per_unit, wall_at_zero: AtomicU64::new(0), wall_check_due }
    }

    #[cold]
    fn update_wall_at_zero(&self, mono: Time<Mono>) {
        self.wall_check_due.store(mono.saturating_add(WALL_CHECK_INTERVAL).as_nanos(), Ordering::Relaxed);
        self.wall_at_zero.store(system_wall_nanos().saturating_sub(mono.as_nanos()), Ordering::Relaxed);
    }
}

impl Default for PreciseClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for PreciseClock {
    #[inline]
    fn mono(&self) -> Time<Mono> {
        let units = self.source.raw().wrapping_sub(self.start);
        Time::from_nanos(((u128::from(units) * u128::from(self.nanos_per_unit)) >> 40) as u64)
    }

    #[inline]
    fn wall(&self, mono: Time<Mono>) -> Time<Wall> {
        if mono.as_nanos() >= self.wall_check_due.load(Ordering::Relaxed) {
            self.update_wall_at_zero(mono);
        }
        Time::from_nanos(self.wall_at_zero.load(Ordering::Relaxed).saturating_add(mono.as_nanos()))
    }
}

#[allow(clippy::disallowed_methods, reason = "this module is where clocks are read")]
fn system_wall_nanos() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Nanos::from(since_epoch).as_nanos()
}

/// A stored clock reading that a thread updates every period.
///
/// Intended for programs in which clock readings dominate the cost of decisions. The time may be late by up to a
/// period plus scheduling delays, but is never early. So a decision may refuse a request that a precise clock would
/// admit.
#[derive(Debug, Clone)]
pub struct CachedClock {
    shared: Arc<CachedReading>,
}

#[derive(Debug)]
struct CachedReading {
    source: PreciseClock,
    mono: AtomicU64,
}

impl CachedClock {
    /// Starts a clock that reads the time every `period`. The thread of the clock ends within a period after the last
    /// clone is dropped.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(period: Duration) -> io::Result<Self> {
        let source = PreciseClock::new();
        let mono = AtomicU64::new(source.mono().as_nanos());
        let shared = Arc::new(CachedReading { source, mono });
        let weak = Arc::downgrade(&shared);
        std::thread::Builder::new().name("tollgate-clock".into()).spawn(move || update_cached_time(&weak, period))?;
        Ok(Self { shared })
    }
}

fn update_cached_time(clock: &Weak<CachedReading>, period: Duration) {
    while let Some(clock) = clock.upgrade() {
        // Relaxed, because the word orders no other memory access.
        clock.mono.store(clock.source.mono().as_nanos(), Ordering::Relaxed);
        drop(clock);
        std::thread::park_timeout(period);
    }
}

impl Clock for CachedClock {
    #[inline]
    fn mono(&self) -> Time<Mono> {
        Time::from_nanos(self.shared.mono.load(Ordering::Relaxed))
    }

    #[inline]
    fn wall(&self, mono: Time<Mono>) -> Time<Wall> {
        self.shared.source.wall(mono)
    }
}

/// A clock that moves only on request, for tests and simulations.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::clock::ManualClock;
/// use tollgate::{Limiter, TokenBucket};
/// use tollgate::core::Nanos;
///
/// let clock = Arc::new(ManualClock::default());
/// let limiter = Limiter::with_clock(TokenBucket::new("1/s".parse()?, 1)?, clock.clone());
/// assert!(limiter.check(1).is_allowed());
/// assert!(!limiter.check(1).is_allowed());
/// clock.advance(Nanos::from_secs(1));
/// assert!(limiter.check(1).is_allowed());
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug, Default)]
pub struct ManualClock {
    mono: AtomicU64,
    /// Wall time minus monotonic time. Only [`step_wall`](Self::step_wall) changes this difference.
    wall_offset: AtomicI64,
    /// Locked only to change the schedule, never while an alarm fires.
    schedule: Mutex<Schedule<u64>>,
}

impl ManualClock {
    /// Creates a clock whose monotonic and wall-clock readings are both `nanos`.
    pub fn at(nanos: u64) -> Self {
        Self { mono: AtomicU64::new(nanos), ..Self::default() }
    }

    /// Moves both readings forward in one step, and fires the alarms whose time has passed.
    pub fn advance(&self, length: impl Into<Duration>) {
        self.mono.fetch_add(Nanos::from(length.into()).as_nanos(), Ordering::Relaxed);
        self.fire_due();
    }

    /// Moves both readings forward from one alarm to the next, so that each alarm fires exactly at its time.
    pub fn advance_through_alarms(&self, length: impl Into<Duration>) {
        let end = self.mono().saturating_add(length.into().into()).as_nanos();
        loop {
            let next = self.schedule().first().filter(|at| *at <= end);
            self.mono.store(next.unwrap_or(end).max(self.mono.load(Ordering::Relaxed)), Ordering::Relaxed);
            if next.is_none() {
                return;
            }
            self.fire_due();
        }
    }

    /// Sets the monotonic reading to `nanos`, which may be in the past. The wall-clock reading moves by the same amount.
    /// Fires all alarms.
    pub fn set(&self, nanos: u64) {
        self.mono.store(nanos, Ordering::Relaxed);
        self.fire_all();
    }

    /// Steps only the wall clock, as an operator or a time server might, and fires all alarms.
    pub fn step_wall(&self, nanos: i64) {
        self.wall_offset.fetch_add(nanos, Ordering::Relaxed);
        self.fire_all();
    }

    fn fire_due(&self) {
        let due = self.schedule().take_due(self.mono.load(Ordering::Relaxed));
        due.iter().for_each(fire_alarm);
    }

    /// Fires all alarms, because the time of any alarm may have passed after a step.
    fn fire_all(&self) {
        let all = self.schedule().remove_all();
        all.iter().for_each(fire_alarm);
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule<u64>> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    #[inline]
    fn mono(&self) -> Time<Mono> {
        Time::from_nanos(self.mono.load(Ordering::Relaxed))
    }

    #[inline]
    fn wall(&self, mono: Time<Mono>) -> Time<Wall> {
        Time::from_nanos(mono.as_nanos().saturating_add_signed(self.wall_offset.load(Ordering::Relaxed)))
    }

    fn wake_at(&self, at: Time<Mono>, alarm: &Arc<dyn Alarm>) -> io::Result<()> {
        self.schedule().set(at.as_nanos(), alarm);
        Ok(())
    }

    fn cancel_wake(&self, alarm: &Arc<dyn Alarm>) {
        self.schedule().remove(alarm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precise_clock_advances_and_agrees_with_the_wall_clock() {
        let clock = PreciseClock::new();
        assert!(
            clock.mono().since(Time::from_nanos(ZERO_BEFORE_START.as_nanos())) < Nanos::from_secs(60),
            "{:?}",
            clock.mono()
        );
        let (first, second) = (clock.mono(), clock.mono());
        assert!(first <= second);
        let wall = clock.wall(second).as_nanos();
        assert!(wall.abs_diff(system_wall_nanos()) < Nanos::from_secs(1).as_nanos());
    }

    #[test]
    fn wall_clock_is_read_again_when_due() {
        let clock = PreciseClock::new();
        // The wall clock is decades past its zero, and the monotonic clock is nine years past its zero.
        let far = 2 * ZERO_BEFORE_START.as_nanos();
        assert!(clock.wall(clock.mono()).as_nanos() > far);
        clock.wall_at_zero.store(0, Ordering::Relaxed);
        assert!(clock.wall(clock.mono()).as_nanos() < far);
        clock.wall_check_due.store(0, Ordering::Relaxed);
        assert!(clock.wall(clock.mono()).as_nanos() > far);
    }

    #[test]
    fn cached_clock_is_set_from_the_start_and_shared_by_clones() {
        // With this period, the thread reads the time only once.
        let clock = CachedClock::start(Duration::from_secs(3_600)).unwrap();
        // Regression: the clock was zero until the thread had started, and then jumped, which refilled every bucket.
        let (first, source) = (clock.mono(), clock.shared.source.mono());
        assert!(first > Time::ZERO && source.since(first) < Nanos::from_secs(1), "{first:?} instead of {source:?}");
        assert!(clock.clone().mono() >= first);
        assert!(clock.wall(first).as_nanos().abs_diff(system_wall_nanos()) < Nanos::from_secs(2).as_nanos());
    }

    #[test]
    fn stepping_the_wall_clock_does_not_change_monotonic_time() {
        let clock = ManualClock::at(1_000);
        clock.step_wall(-400);
        assert_eq!((clock.mono().as_nanos(), clock.wall(clock.mono()).as_nanos()), (1_000, 600));
    }
}
