//! Laws for every algorithm, state and set of parameters. The laws need no model. [`Law`] lists the exceptions.

use tollgate_core::{Algorithm, Ask, Cells, Cost, Nanos, Now, Outcome, Retry, Time, Window};

use super::Law;

/// Builds a [`Now`] from an instant, with clock readings, spread and windows.
pub trait InstantClock {
    /// Returns the [`Now`] at `instant` nanoseconds.
    fn now_at(&self, instant: u64) -> Now<'_>;
}

/// A clock whose monotonic and wall readings are equal, without spread and without windows.
#[derive(Clone, Copy, Debug)]
pub struct EqualClocks;

impl InstantClock for EqualClocks {
    fn now_at(&self, instant: u64) -> Now<'_> {
        Now::at(instant)
    }
}

/// A clock whose wall reading is ahead of its monotonic reading, with a key's spread value and calendar windows.
#[derive(Clone, Debug)]
pub struct CalendarClock {
    /// Offset of the wall clock in nanoseconds.
    pub ahead: u64,
    /// Spread value of the key.
    pub spread: u64,
    /// Consecutive windows from time zero. A [`Now`] contains the window that contains its wall reading, and all later
    /// windows.
    pub windows: Vec<Window>,
}

impl InstantClock for CalendarClock {
    fn now_at(&self, instant: u64) -> Now<'_> {
        let wall = Time::from_nanos(instant.saturating_add(self.ahead));
        let from = self.windows.partition_point(|window| window.end() <= wall);
        Now::new(Time::from_nanos(instant), wall).with_spread(self.spread).with_windows(&self.windows[from..])
    }
}

/// A limit and its state at an instant, with a clock that also gives later instants.
#[derive(Debug)]
pub struct LawCase<'a, A, C> {
    /// Limit under test.
    pub limit: &'a A,
    /// State words of the limit.
    pub state: &'a [u64],
    /// Clock for later instants.
    pub clock: &'a C,
    /// Current instant in nanoseconds.
    pub instant: u64,
}

impl<A: Algorithm, C: InstantClock> LawCase<'_, A, C> {
    /// Returns the outcome of a request made `later` nanoseconds from now.
    fn outcome_later(&self, later: u64, ask: Ask) -> Outcome {
        self.limit.weigh(self.state, &self.clock.now_at(self.instant + later), ask).outcome()
    }
}

/// Checks that a request passes after the advertised wait, and not one nanosecond earlier. Also checks that no
/// refusal advertises a wait of zero, and that a request refused with `Never` is still refused later.
pub fn advertised_wait_is_true<A: Algorithm, C: InstantClock>(case: &LawCase<'_, A, C>, ask: Ask) {
    // The wait advertised by a limit that counts refusals assumes that the caller sends nothing in the meantime.
    let mut state = case.state.to_vec();
    let verdict = case.limit.decide(state.as_mut_slice(), &case.clock.now_at(case.instant), ask);
    let Outcome::Deny(retry) = verdict.outcome() else { return };
    let case = LawCase { state: &state, ..*case };
    match retry {
        Retry::After(wait) => {
            let wait = wait.as_nanos();
            assert!(wait > 0, "a refusal of {ask:?} advertises a wait of zero");
            assert!(
                case.outcome_later(wait, ask).is_admitted(),
                "{ask:?} is refused after the advertised wait of {wait} ns"
            );
            assert!(!case.outcome_later(wait - 1, ask).is_admitted(), "{ask:?} passes one nanosecond before {wait} ns");
        }
        // At the reset, all leases have ended.
        Retry::OnRelease => {
            let reset = case.limit.report(case.state, &case.clock.now_at(case.instant), Cost::ONE).reset;
            assert!(
                case.outcome_later(reset.as_nanos(), ask).is_admitted(),
                "{ask:?} is refused after all leases are released"
            );
        }
        Retry::Never => {
            for later in [1, 1 << 40, 1 << 58, 1 << 61] {
                assert!(
                    !case.outcome_later(later, ask).is_admitted(),
                    "{ask:?} was refused with `Never`, yet passes later"
                );
            }
        }
    }
}

/// Checks that the remaining amount is the largest cost that passes.
pub fn remaining_is_the_largest_that_passes<A: Algorithm, C: InstantClock>(case: &LawCase<'_, A, C>) {
    let report = case.limit.report(case.state, &case.clock.now_at(case.instant), Cost::ONE);
    let exactly = |n: u64| case.outcome_later(0, Ask::Exactly(Cost::new(n)));
    assert!(report.remaining <= report.limit, "remaining exceeds the limit: {report:?}");
    if report.remaining > 0 {
        assert!(exactly(report.remaining).is_admitted(), "the remaining amount does not pass: {report:?}");
    }
    assert!(
        !exactly(report.remaining.saturating_add(1)).is_admitted(),
        "more than the remaining amount passes: {report:?}"
    );
}

/// Checks that the key is unused at the reported reset, and not a nanosecond earlier.
pub fn reset_is_when_unused<A: Algorithm, C: InstantClock>(case: &LawCase<'_, A, C>) {
    let reset = case.limit.report(case.state, &case.clock.now_at(case.instant), Cost::ONE).reset.as_nanos();
    let is_unused = |later: u64| case.limit.is_unused(case.state, &case.clock.now_at(case.instant + later));
    if reset == Nanos::MAX.as_nanos() {
        return;
    }
    assert!(is_unused(reset), "not unused after the reset of {reset} ns");
    assert!(reset == 0 || !is_unused(reset - 1), "unused one nanosecond before the reset of {reset} ns");
}

/// Checks that if one request of cost `n` (at most 16) passes, `n` requests of cost 1 pass as well. Both states must
/// give the same reports later. The states must also be equal, unless the algorithm stores each charge separately.
pub fn one_request_equals_single_units<A: Algorithm, C: InstantClock>(
    case: &LawCase<'_, A, C>,
    n: Cost,
    lifts: impl Fn(Law) -> bool,
) {
    let (limit, now) = (case.limit, &case.clock.now_at(case.instant));
    if n.get() > 16 || !limit.weigh(case.state, now, Ask::Exactly(n)).is_admitted() {
        return;
    }
    let (mut at_once, mut singly) = (case.state.to_vec(), case.state.to_vec());
    let _ = limit.decide(at_once.as_mut_slice(), now, Ask::Exactly(n));
    for nth in 1..=n.get() {
        let verdict = limit.decide(singly.as_mut_slice(), now, Ask::Exactly(Cost::ONE));
        if !verdict.is_admitted() && lifts(Law::SinglyPasses) {
            return;
        }
        assert!(verdict.is_admitted(), "{n:?} passes as one request, but unit {nth} does not");
    }
    if !lifts(Law::SameWords) {
        assert_eq!(
            at_once, singly,
            "{n:?} as one request and in single units differ, from {:?} at {now:?}",
            case.state
        );
    }
    let report = limit.report(at_once.as_slice(), now, n);
    for later in [0, report.reset.as_nanos() / 2, report.reset.as_nanos()] {
        let now = &case.clock.now_at(case.instant + later);
        let (at_once, singly) = (limit.report(at_once.as_slice(), now, n), limit.report(singly.as_slice(), now, n));
        assert_eq!(at_once, singly, "{n:?} as one request and in single units differ at {now:?}");
    }
}

/// Checks that any words, time, cost and stamp give consistent results without a panic.
pub fn arbitrary_state_causes_no_panic<A: Algorithm>(
    limit: &A,
    old: &A,
    words: &[u64],
    now: &Now<'_>,
    ask: Ask,
    stamp: A::Stamp,
) {
    let limit_of = |state: &[u64]| limit.report(state, now, ask.cost());
    let mut state = words.to_vec();
    let state = state.as_mut_slice();
    let verdict = limit.decide(state, now, ask);
    assert!(verdict.taken() <= ask.cost(), "{:?} taken for {ask:?}", verdict.taken());
    let report = limit_of(state);
    assert!(report.remaining <= report.limit, "{report:?}");
    assert!(limit.refund(state, now, ask.cost(), Some(stamp)) <= ask.cost());
    assert!(limit.refund(state, now, ask.cost(), None) <= ask.cost());
    limit.convert(old, state, now);
    limit.spent(state, now);
    limit.is_unused(state, now);
    limit_of(state);
    limit.init(state, now);
    limit_of(state);
    assert_eq!(Cells::get(state, words.len()), 0);
}
