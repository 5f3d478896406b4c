//! A clock that tests move by hand: both readings at once, as a decision takes them.

use tollgate_core::{Mono, Nanos, Now, Time, Wall};

/// Two readings that stand still until moved. Moving on moves both; only the wall clock can be stepped alone, as people do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandClock {
    mono: Time<Mono>,
    wall: Time<Wall>,
}

impl HandClock {
    /// Reads `mono` and `wall` nanoseconds.
    pub const fn new(mono: u64, wall: u64) -> Self {
        Self { mono: Time::from_nanos(mono), wall: Time::from_nanos(wall) }
    }

    /// The present.
    pub const fn now(&self) -> Now<'static> {
        Now::new(self.mono, self.wall)
    }

    /// Time passes on both clocks.
    pub const fn advance(&mut self, by: Nanos) {
        self.mono = self.mono.saturating_add(by);
        self.wall = self.wall.saturating_add(by);
    }

    /// Somebody sets the wall clock forward, or back if `by` is negative. The monotonic clock does not notice.
    pub const fn step_wall(&mut self, by: i64) {
        self.wall = Time::from_nanos(self.wall.as_nanos().saturating_add_signed(by));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_wall_clock_can_be_stepped() {
        let mut clock = HandClock::new(5, 100);
        clock.advance(Nanos::from_nanos(3));
        clock.step_wall(-50);
        assert_eq!((clock.now().mono().as_nanos(), clock.now().wall().as_nanos()), (8, 53));
    }
}
