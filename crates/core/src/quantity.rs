//! Durations, points in time and amounts.
//!
//! Durations and points in time have different types, and so do points on different clocks. Adding two instants, or
//! comparing instants of different clocks, does not compile.

use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;

/// A duration in whole nanoseconds, up to 584 years. All arithmetic saturates.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(u64);

impl Nanos {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// The longest duration.
    pub const MAX: Self = Self(u64::MAX);
    /// One second.
    pub const SECOND: Self = Self(1_000_000_000);

    /// `n` nanoseconds.
    pub const fn from_nanos(n: u64) -> Self {
        Self(n)
    }

    /// `n` microseconds.
    pub const fn from_micros(n: u64) -> Self {
        Self(n.saturating_mul(1_000))
    }

    /// `n` milliseconds.
    pub const fn from_millis(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// `n` seconds.
    pub const fn from_secs(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }

    /// Returns the number of nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns whole milliseconds, rounded up so that a wait reported in milliseconds is never too short.
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Returns whole seconds, rounded up.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }

    /// Returns the sum, at most [`Nanos::MAX`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference, at least zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl From<Duration> for Nanos {
    /// Durations beyond 584 years become [`Nanos::MAX`].
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(nanos: Nanos) -> Self {
        Self::from_nanos(nanos.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Duration::from_nanos(self.0).format_with_unit(f)
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Duration::from_nanos(self.0).format_with_unit(f)
    }
}

/// Formats durations with their unit. Only the `Debug` format of `Duration` prints units.
trait FormatWithUnit {
    fn format_with_unit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

impl FormatWithUnit for Duration {
    fn format_with_unit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The monotonic clock. The process or the test chooses the zero of this clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mono {}

/// The wall clock, in nanoseconds since 1970-01-01 UTC. The wall clock may step forward or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wall {}

/// A point in time on the clock `C`, in nanoseconds since that clock's zero.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time<C> {
    nanos: u64,
    clock: PhantomData<C>,
}

impl<C> Time<C> {
    /// The clock's zero.
    pub const ZERO: Self = Self::from_nanos(0);

    /// Returns the point `nanos` after the clock's zero.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos, clock: PhantomData }
    }

    /// Returns the nanoseconds since the clock's zero.
    pub const fn as_nanos(self) -> u64 {
        self.nanos
    }

    /// Returns the point `length` later, saturating at the last representable instant.
    #[must_use]
    pub const fn saturating_add(self, length: Nanos) -> Self {
        Self::from_nanos(self.nanos.saturating_add(length.0))
    }

    /// Translates this point to another clock. `from` on this clock and `to` on the other clock must be the same
    /// instant. A point before the other clock's zero becomes zero.
    #[must_use]
    pub const fn rebased(self, from: Self, to: Self) -> Self {
        Self::from_nanos(if to.nanos >= from.nanos {
            self.nanos.saturating_add(to.nanos - from.nanos)
        } else {
            self.nanos.saturating_sub(from.nanos - to.nanos)
        })
    }

    /// Returns the time from `earlier` to this point; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

// Implemented by hand, because a derive would require `C: Clone` and `C: Copy`.
impl<C> Clone for Time<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Time<C> {}

impl<C> fmt::Debug for Time<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t+{:?}", Duration::from_nanos(self.nanos))
    }
}

/// An interval on the wall clock, such as a calendar day or a billing month. The interval includes `start` but not
/// `end`.
///
/// This crate does not handle time zones or calendars; the caller computes the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    start: Time<Wall>,
    end: Time<Wall>,
}

impl Window {
    /// Returns the interval from `start` to `end`; `None` if it is empty.
    pub fn new(start: Time<Wall>, end: Time<Wall>) -> Option<Self> {
        (start < end).then_some(Self { start, end })
    }

    /// Returns the first instant of the window.
    pub const fn start(self) -> Time<Wall> {
        self.start
    }

    /// Returns the first instant after the window.
    pub const fn end(self) -> Time<Wall> {
        self.end
    }
}

/// The instant of a decision on the monotonic and the wall clock, read once for all limits, plus the key's spread
/// number and the calendar windows.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    mono: Time<Mono>,
    wall: Time<Wall>,
    spread: u64,
    windows: &'a [Window],
}

impl<'a> Now<'a> {
    /// Creates an instant from the readings of both clocks.
    pub const fn new(mono: Time<Mono>, wall: Time<Wall>) -> Self {
        Self { mono, wall, spread: 0, windows: &[] }
    }

    /// Creates an instant with the same reading on both clocks. Used by stores with one clock, and by tests.
    pub const fn at(nanos: u64) -> Self {
        Self::new(Time::from_nanos(nanos), Time::from_nanos(nanos))
    }

    /// Sets the key's spread number, from which limits with phase `Spread` derive the start of the key's windows. The
    /// number must be stable per key and evenly distributed over keys.
    #[must_use]
    pub const fn with_spread(mut self, spread: u64) -> Self {
        self.spread = spread;
        self
    }

    /// Sets the calendar windows that limits with phase `Given` refer to by position.
    #[must_use]
    pub const fn with_windows(mut self, windows: &'a [Window]) -> Self {
        self.windows = windows;
        self
    }

    /// Returns this instant without calendar windows, for a limit that has other windows.
    #[must_use]
    pub(crate) const fn without_windows(&self) -> Now<'static> {
        Now { mono: self.mono, wall: self.wall, spread: self.spread, windows: &[] }
    }

    /// Returns the monotonic reading.
    pub const fn mono(&self) -> Time<Mono> {
        self.mono
    }

    /// Returns the wall-clock reading.
    pub const fn wall(&self) -> Time<Wall> {
        self.wall
    }

    /// Returns the key's spread number.
    pub const fn spread(&self) -> u64 {
        self.spread
    }

    /// Returns the calendar window at `position`.
    pub fn window(&self, position: usize) -> Option<Window> {
        self.windows.get(position).copied()
    }
}

/// The cost of a request: usually 1, more for expensive requests, 0 to ask without taking.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

impl Cost {
    /// The cost of a request that takes nothing.
    pub const ZERO: Self = Self(0);
    /// The usual cost of a request.
    pub const ONE: Self = Self(1);
    /// The largest cost. With `Ask::UpTo`, a request for this cost drains a limit.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a cost of `units`.
    pub const fn new(units: u64) -> Self {
        Self(units)
    }

    /// Returns the number of units.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cost {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_convert_and_saturate() {
        assert_eq!(Nanos::from_micros(2), Nanos::from_nanos(2_000));
        assert_eq!(Nanos::from_millis(2), Nanos::from_micros(2_000));
        assert_eq!(Nanos::from_secs(2), Nanos::from_millis(2_000));
        assert_eq!(Nanos::from_secs(u64::MAX), Nanos::MAX);
        assert_eq!((Nanos::from_nanos(1).as_millis_ceil(), Nanos::from_nanos(1).as_secs_ceil()), (1, 1));
        assert_eq!((Nanos::from_millis(1_000).as_millis_ceil(), Nanos::SECOND.as_secs_ceil()), (1_000, 1));
        assert_eq!(Nanos::MAX.saturating_add(Nanos::SECOND), Nanos::MAX);
        assert_eq!(Nanos::SECOND.saturating_add(Nanos::SECOND), Nanos::from_secs(2));
        assert_eq!(Nanos::SECOND.saturating_sub(Nanos::from_millis(1)), Nanos::from_millis(999));
        assert_eq!(Nanos::ZERO.saturating_sub(Nanos::SECOND), Nanos::ZERO);
        assert_eq!(Nanos::from(Duration::from_millis(5)), Nanos::from_millis(5));
        assert_eq!(Nanos::from(Duration::MAX), Nanos::MAX);
        assert_eq!(Duration::from(Nanos::from_millis(5)), Duration::from_millis(5));
    }

    #[test]
    fn values_are_formatted_with_their_unit() {
        assert_eq!(format!("{} {:?}", Nanos::from_millis(1_500), Nanos::from_nanos(7)), "1.5s 7ns");
        assert_eq!(format!("{:?} {:?}", Time::<Mono>::from_nanos(2_000), Cost::new(3)), "t+2µs cost 3");
    }

    #[test]
    fn difference_of_two_times_is_a_duration() {
        let (early, late) = (Time::<Mono>::from_nanos(5), Time::from_nanos(8));
        assert_eq!((late.since(early), early.since(late)), (Nanos::from_nanos(3), Nanos::ZERO));
        assert_eq!(early.saturating_add(Nanos::from_nanos(3)), late);
        assert_eq!(early.saturating_add(Nanos::MAX).as_nanos(), u64::MAX);
        assert!(early < late && Time::<Mono>::ZERO < early);
    }

    #[test]
    fn rebased_time_keeps_its_distance_on_the_other_clock() {
        let rebased = |nanos, from, to| {
            Time::<Mono>::from_nanos(nanos).rebased(Time::from_nanos(from), Time::from_nanos(to)).as_nanos()
        };
        assert_eq!((rebased(7, 5, 105), rebased(107, 105, 5), rebased(3, 5, 105)), (107, 7, 103));
        assert_eq!((rebased(3, 5, 1), rebased(7, 5, u64::MAX)), (0, u64::MAX));
    }

    #[test]
    fn now_returns_its_clock_readings() {
        let window = Window::new(Time::from_nanos(1), Time::from_nanos(2)).unwrap();
        let windows = [window];
        let now = Now::new(Time::from_nanos(3), Time::from_nanos(4)).with_spread(5).with_windows(&windows);
        assert_eq!((now.mono().as_nanos(), now.wall().as_nanos(), now.spread()), (3, 4, 5));
        assert_eq!((now.window(0), now.window(1)), (Some(window), None));
        assert_eq!((window.start().as_nanos(), window.end().as_nanos()), (1, 2));
        assert_eq!(Window::new(Time::from_nanos(2), Time::from_nanos(2)), None);
        assert_eq!(Now::at(9).wall().as_nanos(), 9);
    }
}
