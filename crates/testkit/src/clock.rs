//! A manual clock with a monotonic and a wall reading.

use tollgate_core::{Mono, Nanos, Now, Time, Wall};

/// A clock whose readings stay fixed until a test moves them. `advance` moves both readings; `step_wall` moves only
/// the wall reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestClock {
    mono: Time<Mono>,
    wall: Time<Wall>,
}

impl TestClock {
    /// Returns a clock that reads `mono` and `wall` nanoseconds.
    pub const fn new(mono: u64, wall: u64) -> Self {
        Self { mono: Time::from_nanos(mono), wall: Time::from_nanos(wall) }
    }

    /// Returns the current readings.
    pub const fn now(&self) -> Now<'static> {
        Now::new(self.mono, self.wall)
    }

    /// Advances both clocks.
    pub const fn advance(&mut self, by: Nanos) {
        self.mono = self.mono.saturating_add(by);
        self.wall = self.wall.saturating_add(by);
    }

    /// Steps the wall clock forward, or back if `by` is negative. The monotonic clock stays
    /// unchanged.
    pub const fn step_wall(&mut self, by: i64) {
        self.wall = Time::from_nanos(self.wall.as_nanos().saturating_add_signed(by));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_wall_clock_can_be_stepped() {
        let mut clock = TestClock::new(5, 100);
        clock.advance(Nanos::from_nanos(3));
        clock.step_wall(-50);
        assert_eq!((clock.now().mono().as_nanos(), clock.now().wall().as_nanos()), (8, 53));
    }
}
