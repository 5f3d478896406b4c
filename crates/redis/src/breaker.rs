//! A circuit breaker: stops sending requests to a store that does not answer.

/// The results of the most recent calls.
///
/// A single late answer does not open the breaker, because the next call may succeed. When half of the recent calls
/// have failed, further requests would most likely time out. The breaker then opens until a probe succeeds.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// One bit per call, set if the call failed. The lowest bit is the newest call.
    failed: u16,
    calls: u32,
}

impl Breaker {
    /// Number of recent calls considered.
    const RECENT_CALLS: u32 = 10;
    /// Minimum number of calls before the breaker can open.
    const MIN_CALLS: u32 = 4;

    /// Records the result of a call and returns whether the breaker opens. When the breaker opens, the recorded results
    /// are cleared.
    pub(crate) fn record_result(&mut self, failed: bool) -> bool {
        self.failed = (self.failed << 1 | u16::from(failed)) & ((1 << Self::RECENT_CALLS) - 1);
        self.calls = Self::RECENT_CALLS.min(self.calls + 1);
        let trips = self.calls >= Self::MIN_CALLS && self.failed.count_ones() * 2 >= self.calls;
        if trips {
            *self = Self::default();
        }
        trips
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which call opens the breaker. In `calls`, `x` is a failed call.
    #[track_caller]
    fn assert_opens_at(calls: &str, expected: Option<usize>) {
        let mut breaker = Breaker::default();
        assert_eq!(calls.chars().position(|call| breaker.record_result(call == 'x')), expected, "{calls}");
    }

    #[test]
    fn breaker_opens_when_half_of_the_last_calls_failed() {
        assert_opens_at("xxxx", Some(3));
        assert_opens_at("xxx.", Some(3));
        assert_opens_at("x.x.", Some(3));
        assert_opens_at(".x..x..x..x..", None);
        assert_opens_at("..........xxxxx", Some(14));
        assert_opens_at("..........xxxx.xxx", Some(15));
    }

    #[test]
    fn occasional_late_answers_do_not_open_the_breaker() {
        assert_opens_at(&".........x".repeat(100), None);
        assert_opens_at(&"..x".repeat(100), None);
        assert_opens_at("x", None);
    }

    #[test]
    fn breaker_starts_again_after_it_opened() {
        let mut breaker = Breaker::default();
        assert!([true; 4].map(|failed| breaker.record_result(failed))[3]);
        assert!(![true, false, true].map(|failed| breaker.record_result(failed)).contains(&true));
    }
}
