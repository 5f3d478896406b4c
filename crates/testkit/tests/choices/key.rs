//! A key with its limit and a manual clock.

use tollgate_core::{
    Algorithm, Ask, Concurrency, Cost, FixedWindow, IntervalBucket, LeakyBucket, Nanos, Outcome, Report, SlidingLog,
    SlidingSlices, SlidingWindow, TokenBucket, Verdict,
};
use tollgate_testkit::clock::TestClock;

pub(crate) const SECOND: Nanos = Nanos::SECOND;
/// Start time of every test, in nanoseconds: a whole second, but not a whole minute.
pub(crate) const START: u64 = 1_000_000_000_000;

pub(crate) const fn from_millis(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

/// A key's state, its limit, and a clock.
pub(crate) struct Key<A> {
    pub(crate) limit: A,
    /// Limits that the state belongs to, if they differ from `limit`.
    own: Option<A>,
    pub(crate) state: Vec<u64>,
    pub(crate) clock: TestClock,
}

impl<A: Algorithm> Key<A> {
    pub(crate) fn new(limit: A) -> Self {
        let clock = TestClock::new(START, START);
        // The state must be large enough for all limits that the test uses later.
        let mut state = vec![0; limit.words() + 64];
        limit.init(state.as_mut_slice(), &clock.now());
        Self { limit, own: None, state, clock }
    }

    pub(crate) fn ask(&mut self, ask: Ask) -> Verdict<A::Stamp> {
        let (state, now) = (self.state.as_mut_slice(), self.clock.now());
        let Some(own) = &self.own else { return self.limit.decide(state, &now, ask) };
        let (verdict, adopted) = self.limit.decide_from(own, state, &now, ask);
        if adopted {
            self.own = None;
        }
        verdict
    }

    pub(crate) fn check(&mut self, cost: u64) -> Outcome {
        self.ask(Ask::Exactly(Cost::new(cost))).outcome()
    }

    pub(crate) fn passes(&mut self, cost: u64) -> bool {
        self.check(cost).is_admitted()
    }

    pub(crate) fn charge(&mut self, cost: u64) -> Outcome {
        self.ask(Ask::Regardless(Cost::new(cost))).outcome()
    }

    pub(crate) fn drain(&mut self) -> u64 {
        self.ask(Ask::UpTo(Cost::MAX)).taken().get()
    }

    pub(crate) fn report(&self, cost: u64) -> Report {
        let own = self.own.as_ref().unwrap_or(&self.limit);
        self.limit.report_from(own, self.state.as_slice(), &self.clock.now(), Cost::new(cost))
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.report(1).remaining
    }

    pub(crate) fn wait(&mut self, time: Nanos) -> &mut Self {
        self.clock.advance(time);
        self
    }

    /// Changes the limit and keeps the state.
    pub(crate) fn change_limit(&mut self, limit: A) {
        let before = std::mem::replace(&mut self.limit, limit);
        self.own.get_or_insert(before);
    }

    pub(crate) fn reset(&mut self) {
        self.limit.init(self.state.as_mut_slice(), &self.clock.now());
        self.own = None;
    }
}

pub(crate) fn token_bucket(rate: &str, burst: u64) -> TokenBucket {
    TokenBucket::new(rate.parse().expect("a rate"), burst).expect("a limit")
}

pub(crate) fn leaky_bucket(rate: &str, burst: u64) -> LeakyBucket {
    LeakyBucket::new(rate.parse().expect("a rate"), burst).expect("a limit")
}

pub(crate) fn fixed_window(limit: u64, length: Nanos) -> FixedWindow {
    FixedWindow::new(limit, length).expect("a limit")
}

pub(crate) fn sliding_window(limit: u64, length: Nanos) -> SlidingWindow {
    SlidingWindow::new(limit, length).expect("a limit")
}

pub(crate) fn interval_bucket(refill: u64, period: Nanos) -> IntervalBucket {
    IntervalBucket::new(refill, period).expect("a limit")
}

/// Returns a limit with slices of a tenth of the length.
pub(crate) fn sliding_slices(limit: u64, length: Nanos) -> SlidingSlices {
    SlidingSlices::new(limit, length, Nanos::from_nanos(length.as_nanos() / 10)).expect("a limit")
}

pub(crate) fn sliding_log(limit: u64, length: Nanos) -> SlidingLog {
    SlidingLog::new(limit, length).expect("a limit")
}

pub(crate) fn concurrency(limit: u64) -> Concurrency {
    Concurrency::new(limit, Nanos::from_secs(30)).expect("a limit")
}

/// Runs `$test` on a new key of each algorithm with a capacity of 10: a rate of 10 per second, or 10 slots.
macro_rules! for_each_algorithm {
    ($test:ident) => {
        $test(Key::new(token_bucket("10/s", 10)));
        $test(Key::new(leaky_bucket("10/s", 10)));
        $test(Key::new(interval_bucket(10, SECOND)));
        $test(Key::new(interval_bucket(10, SECOND).steps(Steps::FirstRequest)));
        $test(Key::new(fixed_window(10, SECOND)));
        $test(Key::new(fixed_window(10, SECOND).phase(Phase::FirstRequest)));
        $test(Key::new(sliding_window(10, SECOND)));
        $test(Key::new(sliding_slices(10, SECOND)));
        $test(Key::new(sliding_log(10, SECOND)));
        $test(Key::new(concurrency(10)));
    };
}

pub(crate) use for_each_algorithm;
