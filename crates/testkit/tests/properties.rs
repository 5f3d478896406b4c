//! Tests the eight algorithms against their exact models, and tests laws that need no model. All algorithms share the
//! properties. Each algorithm has a file with its parameters, its bound and its special cases.

use std::fmt::Debug;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tollgate_core::{
    Algorithm, Ask, Concurrency, Cost, FixedWindow, IntervalBucket, LeakyBucket, LimitError, Nanos, Now, Outcome,
    Phase, Rate, SlidingLog, SlidingSlices, SlidingWindow, Stamp, Steps, Time, TokenBucket, Verdict, Window,
};
use tollgate_testkit::history::{Bound, Checker, first_excess_by_pairs};
use tollgate_testkit::model::laws::{CalendarClock, EqualClocks, InstantClock, arbitrary_state_causes_no_panic};
use tollgate_testkit::model::lockstep::{AdmittedRequest, LATEST_INSTANT, Lockstep, run_without_model};
use tollgate_testkit::model::script::{
    any_amount, any_number_up_to, any_rate, any_script, any_start, any_taking_script, any_word, config_with_cases,
};
use tollgate_testkit::model::*;

/// An algorithm with its model and its guarantee.
trait Subject: Copy + Debug {
    type Limit: Algorithm<Stamp = Stamp>;
    type Model: Model;

    /// Generates valid parameters of every kind.
    fn any_params() -> BoxedStrategy<Self>;
    fn limit(&self) -> Result<Self::Limit, LimitError>;
    fn new_model(&self, now: &Now<'_>) -> Self::Model;
    /// Changes the model to these parameters.
    fn change_model(&self, model: &mut Self::Model, now: &Now<'_>);

    /// Returns the same parameters with the alignment of `old`, if the algorithm has an alignment. A change of
    /// parameters that keeps the alignment rounds less.
    fn with_alignment_of(self, old: &Self) -> Self {
        let _ = old;
        self
    }

    /// Returns a clock around `start`, with calendar windows.
    fn clock_with_calendar(&self, start: u64, ahead: u64, spread: u64, halves: &[u64]) -> CalendarClock {
        let _ = (start, spread, halves);
        CalendarClock { ahead, spread: 0, windows: Vec::new() }
    }

    /// Generates the start of histories for [`check_admitted`](Self::check_admitted).
    fn any_start() -> BoxedStrategy<u64> {
        any_word().boxed()
    }

    /// Checks the guarantee for all admitted requests of a history.
    fn check_admitted(&self, events: &[AdmittedRequest]) -> Result<(), TestCaseError>;

    /// Returns these parameters without the options that would make the bounds inexact when the clock steps.
    fn for_clock_steps(self) -> Self {
        self
    }

    /// Returns the amount that may pass initially.
    fn initial_allowance(&self) -> Exact;
    /// Returns the additional amount that may pass after a clock step, in either direction.
    fn extra_after_clock_step(&self, from: u64, to: u64) -> Exact;
    /// Returns the longest time in nanoseconds until the limit is full, after any clock steps.
    fn longest_reset(&self) -> u64;
    /// Checks additional laws for a verdict under clock steps.
    fn check_verdict(&self, verdict: &Verdict) -> Result<(), TestCaseError> {
        let _ = verdict;
        Ok(())
    }
}

/// Associates a subject with its limit and model, and with the model's change of parameters.
macro_rules! subject_types {
    ($limit:ty, $model:ty, |$own:ident, $changed:ident, $now:ident| $make:expr, $new:expr, $change:expr) => {
        type Limit = $limit;
        type Model = $model;

        fn limit(&self) -> Result<$limit, LimitError> {
            let $own = self;
            $make
        }

        fn new_model(&self, $now: &Now<'_>) -> $model {
            let ($own, _) = (self, $now);
            $new
        }

        fn change_model(&self, $changed: &mut $model, $now: &Now<'_>) {
            let $own = self;
            $change;
        }
    };
}

/// Laws that every algorithm satisfies.
macro_rules! properties {
    ($subject:ty) => {
        proptest! {
            #![proptest_config(config_with_cases(1500))]

            #[test]
            fn every_decision_equals_the_model(
                subject in <$subject>::any_params(), start in any_start(), (ahead, spread, halves) in any_calendar(), script in any_script(40),
            ) {
                let (limit, clock) = (Subject::limit(&subject).expect("valid"), subject.clock_with_calendar(start, ahead, spread, &halves));
                Lockstep::new(&limit, subject.new_model(&clock.now_at(start)), &clock, start).run(&script);
            }

            #[test]
            fn no_interval_admits_more_than_the_guarantee(
                subject in <$subject>::any_params(), start in <$subject>::any_start(), script in any_taking_script(60),
            ) {
                let limit = Subject::limit(&subject).expect("valid");
                subject.check_admitted(&run_without_model(&limit, &EqualClocks, start, &script))?;
            }

            #[test]
            fn arbitrary_state_neither_panics_nor_gives_inconsistent_results(
                (new, old) in (<$subject>::any_params(), <$subject>::any_params()),
                words in any_words(),
                (mono, wall, spread) in (any_word(), any_word(), any_word()),
                (cost, stamp) in (any_word(), any_word()),
                ends in prop::collection::vec((any_word(), any_word()), 0..2),
            ) {
                let (limit, old) = (Subject::limit(&new).expect("valid"), Subject::limit(&old).expect("valid"));
                let window = |&(from, to): &(u64, u64)| Window::new(Time::from_nanos(from), Time::from_nanos(to));
                let windows: Vec<Window> = ends.iter().filter_map(window).collect();
                let now = Now::new(Time::from_nanos(mono), Time::from_nanos(wall));
                let (now, stamp) = (now.with_spread(spread).with_windows(&windows), Stamp::from_bits(stamp));
                for ask in [Ask::Exactly, Ask::UpTo, Ask::Regardless] {
                    arbitrary_state_causes_no_panic(&limit, &old, &words, &now, ask(Cost::new(cost)), stamp);
                }
            }

            /// Each clock step adds at most a bounded amount, and no key is ever locked out for longer than the
            /// longest reset.
            #[test]
            fn clock_steps_neither_grant_nor_lock_out(subject in <$subject>::any_params(), steps in clock_steps()) {
                check_clock_steps(&subject.for_clock_steps(), &steps)?;
            }

            /// Changes the parameters of limit and model in the middle of a history. Every later decision must match
            /// a limit with the same spent amount.
            #[test]
            fn changed_parameters_keep_the_amount_spent(
                (old, new, same_grid) in (<$subject>::any_params(), <$subject>::any_params(), any::<bool>()),
                (start, (ahead, spread, halves)) in (any_start(), any_calendar()),
                (before, after) in (any_script(10), any_script(10)),
            ) {
                let new = if same_grid { new.with_alignment_of(&old) } else { new };
                let (old_limit, Ok(new_limit)) = (Subject::limit(&old).expect("valid"), Subject::limit(&new)) else {
                    return Ok(());
                };
                let clock = old.clock_with_calendar(start, ahead, spread, &halves);
                let mut lockstep = Lockstep::new(&old_limit, old.new_model(&clock.now_at(start)), &clock, start);
                lockstep.run(&before);
                lockstep.change_limit(&new_limit, |model, now| new.change_model(model, now));
                lockstep.run(&after);
            }
        }
    };
}

#[path = "properties"]
mod subjects {
    mod concurrency;
    mod fixed_window;
    mod interval_bucket;
    mod leaky_bucket;
    mod sliding_log;
    mod sliding_slices;
    mod sliding_window;
    mod token_bucket;
}

/// Generates the wall clock's offset, the key's spread value, and the lengths of calendar windows in half periods.
fn any_calendar() -> impl Strategy<Value = (u64, u64, Vec<u64>)> {
    (any_number_up_to(1 << 60), any_word(), prop::collection::vec(1_u64..6, 20))
}

/// Generates arbitrary words that no algorithm wrote. There may be fewer or more words than a state has.
fn any_words() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![prop::collection::vec(any_word(), 0..5), prop::collection::vec(any_word(), 0..70)]
}

/// Generates instants in any order, with a cost for each.
fn clock_steps() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec(
        (any_number_up_to(LATEST_INSTANT), prop_oneof![Just(u64::MAX), any_number_up_to(u64::MAX)]),
        1..30,
    )
}

fn check_clock_steps<S: Subject>(subject: &S, steps: &[(u64, u64)]) -> Result<(), TestCaseError> {
    let limit = subject.limit().expect("valid");
    let mut state = vec![0; limit.words()];
    let (state, mut at) = (state.as_mut_slice(), steps[0].0);
    limit.init(state, &Now::at(at));
    let (mut admitted, mut granted) = (to_exact(0), subject.initial_allowance());
    for &(instant, cost) in steps {
        granted += subject.extra_after_clock_step(at, instant);
        at = instant;
        let verdict = limit.decide(state, &Now::at(at), Ask::UpTo(Cost::new(cost)));
        admitted += to_exact(verdict.taken().get());
        prop_assert!(admitted <= granted, "{admitted} of {granted}");
        subject.check_verdict(&verdict)?;
        let (reset, longest) = (limit.report(state, &Now::at(at), Cost::ONE).reset, subject.longest_reset());
        prop_assert!(reset.as_nanos() <= longest, "{reset} instead of at most {longest} ns");
        prop_assert!(limit.is_unused(state, &Now::at(at + reset.as_nanos())), "not full after {reset}");
    }
    Ok(())
}

/// Reduces an amount to the largest valid amount. The error of `make` contains that amount.
fn largest_valid<T>(amount: u64, make: impl Fn(u64) -> Result<T, LimitError>) -> u64 {
    match make(amount) {
        Ok(_) => amount,
        Err(LimitError::FillTooLong { max, .. }) => {
            assert!(make(max).is_ok() && make(max + 1).is_err(), "{max} is not the largest valid amount");
            max
        }
        Err(error) => panic!("{error}"),
    }
}

/// Generates lengths of windows, periods and leases in nanoseconds. Half of the lengths are short.
fn any_length() -> impl Strategy<Value = u64> {
    prop_oneof![1_u64..100, any_number_up_to(Rate::MAX_PERIOD.as_nanos()).prop_map(|n| n.max(1))]
}

fn any_debt() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), any_number_up_to(u64::MAX)]
}

/// Generates initial amounts. An amount above the limit is later reduced to the limit.
fn any_initial() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(u64::MAX), 1 => any_number_up_to(u64::MAX)]
}

/// Returns the maximum number of windows of this length that start during a clock step.
fn max_windows_begun(from: u64, to: u64, length: u64) -> u64 {
    if to > from { (to - from) / length + 1 } else { 0 }
}
