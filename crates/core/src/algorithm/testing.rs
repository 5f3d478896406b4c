//! Sends a random sequence of requests to any algorithm, and checks the laws of all algorithms at every step.

use super::Algorithm;
use crate::quantity::{Cost, Nanos, Now};
use crate::verdict::{Ask, Outcome, Retry, Verdict};

/// A request of the random sequence. `cost` is the amount taken, which is zero if the request was refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepResult {
    pub(super) asked: u64,
    /// Instant at which the request may go ahead; later than `asked` if the verdict was a delay.
    pub(super) turn: u64,
    pub(super) cost: u64,
}

/// Bounds of the steps of the random sequence.
pub(super) struct StepBounds {
    /// The longest pause between two steps.
    pub(super) pause: u64,
    /// The largest cost.
    pub(super) cost: u64,
    /// Whether some steps charge into debt or refund.
    pub(super) all_verbs: bool,
}

/// Takes `steps` random steps with a new key of `limit`, starting at `start`. Checks the laws at each step, and returns
/// the requests.
pub(super) fn random_steps<'a, A: Algorithm<Stamp = crate::Stamp>>(
    limit: &A,
    clock: impl Fn(u64) -> Now<'a>,
    start: u64,
    steps: usize,
    bounds: &StepBounds,
) -> Vec<StepResult> {
    let mut random = Random::new(start ^ bounds.cost);
    let mut words = [0; 16];
    let state = &mut words[..limit.words()];
    let mut at = start;
    let mut passed = Vec::new();
    let mut last = None;
    limit.init(state, &clock(at));
    for _ in 0..steps {
        // Half of the steps are at the same instant as the previous step. Some steps are exactly at the end of a
        // returned wait.
        at += match (random.below(4), limit.report(state, &clock(at), Cost::ONE).retry) {
            (0, Retry::After(wait)) => wait.as_nanos(),
            (1, _) => random.below(bounds.pause + 1),
            _ => 0,
        };
        let now = clock(at);
        let cost = Cost::new(random.below(bounds.cost + 1));
        let ask = match random.below(if bounds.all_verbs { 6 } else { 4 }) {
            0..=2 => Ask::Exactly(cost),
            3 => Ask::UpTo(cost),
            4 => Ask::Regardless(cost),
            _ => {
                limit.refund(state, &now, cost, last.filter(|_| random.below(2) == 0));
                continue;
            }
        };
        assert_waits_exact(limit, state, &clock, at, ask);
        if let Ask::Exactly(cost) = ask {
            assert_fast_paths_match_the_slow_path(limit, state, &now, cost);
        }
        let before = state.to_vec();
        let verdict = limit.decide(state, &now, ask);
        assert!(verdict.is_admitted() || before == *state, "a refusal of {ask:?} changed {before:?} to {state:?}");
        last = Some(verdict.stamp());
        let wait = match verdict.outcome() {
            Outcome::Delay(wait) => wait.as_nanos(),
            Outcome::Allow | Outcome::Deny(_) => 0,
        };
        passed.push(StepResult { asked: at, turn: at + wait, cost: verdict.taken().get() });
    }
    passed
}

/// Runs steps written as `cost@second`, with a `+` before charges, and compares the results. A result is the remaining
/// amount, `w` with the seconds of a delay, or `no` with the seconds until the request passes.
pub(super) fn assert_steps<A: Algorithm>(limit: &A, steps: &str, expected: &str) {
    assert_steps_with_clock(limit, Now::at, steps, expected);
}

/// Runs [`assert_steps`] with a custom clock.
pub(super) fn assert_steps_with_clock<'a, A: Algorithm>(
    limit: &A,
    clock: impl Fn(u64) -> Now<'a>,
    steps: &str,
    expected: &str,
) {
    let mut words = vec![0; limit.words()];
    let state = &mut *words;
    let mut answers = Vec::new();
    for step in steps.split(' ') {
        let (cost, second) = step.split_once('@').unwrap();
        let now = clock(second.parse::<u64>().unwrap() * Nanos::SECOND.as_nanos());
        if answers.is_empty() {
            limit.init(state, &now);
        }
        let amount = Cost::new(cost.trim_start_matches('+').parse().unwrap());
        let ask = if cost.starts_with('+') { Ask::Regardless(amount) } else { Ask::Exactly(amount) };
        answers.push(match limit.decide(state, &now, ask).outcome() {
            Outcome::Allow => limit.report(state, &now, Cost::ONE).remaining.to_string(),
            Outcome::Delay(wait) => format!("w{}", wait.as_secs_ceil()),
            Outcome::Deny(Retry::After(wait)) => format!("no{}", wait.as_secs_ceil()),
            Outcome::Deny(retry) => format!("{retry:?}"),
        });
    }
    assert_eq!(answers.join(" "), expected, "{steps}");
}

/// Checks the fast paths. A fast path that applies must return the same verdict and write the same state as the slow
/// path. A fast path that does not apply must write nothing.
fn assert_fast_paths_match_the_slow_path<A: Algorithm<Stamp = crate::Stamp>>(
    limit: &A,
    state: &[u64],
    now: &Now<'_>,
    cost: Cost,
) {
    let mut slow = state.to_vec();
    let expected = limit.decide_slow(&mut *slow, now, Ask::Exactly(cost));
    let check = |fast: &dyn Fn(&mut [u64]) -> Option<Verdict>| {
        let mut words = state.to_vec();
        match fast(&mut words) {
            Some(verdict) => assert_eq!((verdict, &words), (expected, &slow), "{cost:?} at {now:?} from {state:?}"),
            None => assert_eq!(words, state),
        }
    };
    check(&|words| limit.decide_fast(words, now, cost));
    check(&|words| match words {
        [word] => match limit.try_take_from_word(*word, now, cost) {
            Some(after) => {
                *word = after;
                Some(Verdict::new_allowed(cost))
            }
            None => limit.try_refuse_from_word(*word, now, cost).map(Verdict::new_refused),
        },
        words => {
            let stamp = limit.try_take_from_words(words, now, cost)?;
            assert!(limit.has_words_fast_path(), "the fast path applies, but callers do not try it");
            Some(Verdict::new_allowed_with_stamp(cost, stamp))
        }
    });
}

/// Checks the reported times and amounts: `retry` and `reset` are exact to the nanosecond, and exactly the amount
/// `remaining` passes.
pub(super) fn assert_waits_exact<'a, A: Algorithm>(
    limit: &A,
    state: &[u64],
    clock: impl Fn(u64) -> Now<'a>,
    at: u64,
    ask: Ask,
) {
    let passes = |wait: u64, ask| limit.weigh(state, &clock(at + wait), ask).is_admitted();
    let verdict = limit.weigh(state, &clock(at), ask);
    if let Outcome::Deny(Retry::After(wait)) = verdict.outcome() {
        assert!(wait > Nanos::ZERO, "{ask:?} is refused with a wait of zero by {state:?} at {at}");
        assert!(passes(wait.as_nanos(), ask), "{ask:?} is refused after {wait} by {state:?} at {at}");
        assert!(!passes(wait.as_nanos() - 1, ask), "{ask:?} passes before {wait} by {state:?} at {at}");
    }
    let report = limit.report(state, &clock(at), ask.cost());
    if let Ask::Exactly(_) = ask {
        let expected = match verdict.outcome() {
            Outcome::Deny(retry) => retry,
            Outcome::Allow | Outcome::Delay(_) => Retry::NOW,
        };
        assert_eq!(report.retry, expected, "{ask:?} by {state:?} at {at}");
    }
    let exactly = |amount| passes(0, Ask::Exactly(Cost::new(amount)));
    assert!(report.remaining == 0 || exactly(report.remaining), "{report:?} by {state:?} at {at}");
    assert!(!exactly(report.remaining.saturating_add(1)), "{report:?} by {state:?} at {at}");
    let reset = report.reset.as_nanos();
    assert!(limit.is_unused(state, &clock(at + reset)), "still in use after {reset} by {state:?} at {at}");
    assert!(
        reset == 0 || !limit.is_unused(state, &clock(at + reset - 1)),
        "unused before {reset} by {state:?} at {at}"
    );
}

/// Checks that every verb returns for extreme words, times and costs, and that a refusal never has a wait of zero.
pub(super) fn assert_never_panics<A: Algorithm<Stamp = crate::Stamp> + core::fmt::Debug>(limits: &[A]) {
    let words = [0, 1, 2, 1 << 32, u64::MAX / 2, u64::MAX - 1, u64::MAX];
    for limit in limits {
        for (a, b, c) in words.iter().flat_map(|a| words.iter().flat_map(move |b| words.map(|c| (*a, *b, c)))) {
            for (mono, wall) in words.iter().flat_map(|mono| words.map(|wall| (*mono, wall))) {
                let now = Now::new(crate::Time::from_nanos(mono), crate::Time::from_nanos(wall)).with_spread(a);
                for cost in [0, 1, limit.capacity(), u64::MAX].map(Cost::new) {
                    for ask in [Ask::Exactly(cost), Ask::UpTo(cost), Ask::Regardless(cost)] {
                        let mut state = [a, b, c];
                        let verdict = limit.decide(&mut state, &now, ask);
                        assert_ne!(verdict.outcome(), Outcome::Deny(Retry::NOW), "{ask:?}");
                        assert!(verdict.taken() <= cost);
                        let report = limit.report(&state, &now, cost);
                        assert!(report.remaining <= report.limit);
                        assert_eq!(limit.spent(&state, &now).is_nothing(), limit.is_unused(&state, &now));
                        assert!(limit.refund(&mut state, &now, cost, Some(verdict.stamp())) <= cost);
                        assert!(limit.refund(&mut state, &now, cost, None) <= cost);
                    }
                }
                for old in limits {
                    let mut state = [a, b, c];
                    limit.report_from(old, &state, &now, Cost::ONE);
                    let (verdict, _) = limit.decide_from(old, &mut state, &now, Ask::Exactly(Cost::ONE));
                    assert_ne!(verdict.outcome(), Outcome::Deny(Retry::NOW), "from {old:?}");
                    let mut state = [a, b, c];
                    limit.convert(old, &mut state, &now);
                    limit.report(&state, &now, Cost::ONE);
                }
            }
        }
    }
}

/// Pseudo-random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `bound`; `bound` must not be zero.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % bound
    }
}
