//! When to stop asking a store that does not answer.

/// The last calls, and whether too many of them failed.
///
/// A single late answer is no reason to stop: the next call may find the store well. When half of the last calls failed, those
/// that follow would most likely wait for nothing, so they are spared it until the store has been tried out.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// A bit for each of the last calls, the newest lowest; one that failed is set.
    failed: u16,
    calls: u32,
}

impl Breaker {
    /// How many calls are looked at.
    const WINDOW: u32 = 10;
    /// Fewer calls than this say nothing.
    const FEWEST: u32 = 4;

    /// Notes how a call went; whether the store is to be left alone from now on. What was noted is then forgotten.
    pub(crate) fn note(&mut self, failed: bool) -> bool {
        self.failed = (self.failed << 1 | u16::from(failed)) & ((1 << Self::WINDOW) - 1);
        self.calls = Self::WINDOW.min(self.calls + 1);
        let trips = self.calls >= Self::FEWEST && self.failed.count_ones() * 2 >= self.calls;
        if trips {
            *self = Self::default();
        }
        trips
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the calls, `x` for one that failed, trips the breaker.
    #[track_caller]
    fn check(calls: &str, expected: Option<usize>) {
        let mut breaker = Breaker::default();
        assert_eq!(calls.chars().position(|call| breaker.note(call == 'x')), expected, "{calls}");
    }

    #[test]
    fn it_trips_when_half_of_the_last_calls_failed() {
        check("xxxx", Some(3));
        check("xxx.", Some(3));
        check("x.x.", Some(3));
        check(".x..x..x..x..", None);
        check("..........xxxxx", Some(14));
        check("..........xxxx.xxx", Some(15));
    }

    #[test]
    fn a_late_answer_now_and_then_does_not_trip_it() {
        check(&".........x".repeat(100), None);
        check(&"..x".repeat(100), None);
        check("x", None);
    }

    #[test]
    fn it_starts_anew_after_it_tripped() {
        let mut breaker = Breaker::default();
        assert!([true; 4].map(|failed| breaker.note(failed))[3]);
        assert!(![true, false, true].map(|failed| breaker.note(failed)).contains(&true));
    }
}
