//! Runs an algorithm and its model through the same script and compares all results.

use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, Outcome, Report};

use super::laws::{self, InstantClock};
use super::script::{ScriptAct, ScriptAmount, ScriptPause, ScriptStep};
use super::{Law, Model};

/// Latest instant that a script may reach: 73 years after time zero. Every state is exact until then.
pub const LATEST_INSTANT: u64 = 1 << 61;

/// An admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmittedRequest {
    /// Time of the request in nanoseconds.
    pub asked: u64,
    /// Time at which the request passes. Later than `asked` if the request is delayed.
    pub passes: u64,
    /// Admitted amount.
    pub cost: u64,
}

impl AdmittedRequest {
    fn new(asked: u64, outcome: Outcome, cost: u64) -> Self {
        let wait = match outcome {
            Outcome::Delay(wait) => wait,
            Outcome::Allow | Outcome::Deny(_) => Nanos::ZERO,
        };
        Self { asked, passes: asked.saturating_add(wait.as_nanos()), cost }
    }
}

/// Runs the checks, takes and drains of a script on the algorithm alone, without a model, from `start`. Skips all other
/// operations. Returns the admitted requests.
pub fn run_without_model<A: Algorithm, C: InstantClock>(
    limit: &A,
    clock: &C,
    start: u64,
    script: &[ScriptStep],
) -> Vec<AdmittedRequest> {
    let mut state = vec![0; limit.words()];
    let state = state.as_mut_slice();
    let (mut instant, mut cost, mut admitted) = (start, Cost::ONE, Vec::new());
    limit.init(state, &clock.now_at(start));
    for step in script {
        let last = limit.report(state, &clock.now_at(instant), cost);
        instant = instant.saturating_add(step.pause.to_nanos(&last));
        let now = clock.now_at(instant);
        let units = |amount: ScriptAmount| Cost::new(amount.to_units(&limit.report(state, &now, Cost::ONE)));
        let ask = match step.act {
            ScriptAct::Check(amount) => Ask::Exactly(units(amount)),
            ScriptAct::TakeUpTo(amount) => Ask::UpTo(units(amount)),
            ScriptAct::Drain => Ask::UpTo(Cost::MAX),
            ScriptAct::Peek(_) | ScriptAct::Charge(_) | ScriptAct::Refund(..) | ScriptAct::Reset => continue,
        };
        cost = ask.cost();
        let verdict = limit.decide(state, &now, ask);
        if verdict.taken() > Cost::ZERO {
            admitted.push(AdmittedRequest::new(instant, verdict.outcome(), verdict.taken().get()));
        }
    }
    admitted
}

/// An algorithm with its state, its model and a shared clock.
#[expect(missing_debug_implementations, reason = "a stamp need not implement Debug")]
pub struct Lockstep<'a, A: Algorithm, M, C> {
    limit: &'a A,
    model: M,
    clock: &'a C,
    instant: u64,
    state: Vec<u64>,
    /// Charges that can be refunded: the algorithm's stamp and the model's receipt.
    refundable_charges: Vec<(A::Stamp, usize)>,
    /// The last report, which determines the length of `ScriptPause::Retry` and `ScriptPause::Reset`.
    last: Report,
}

impl<'a, A: Algorithm, M: Model, C: InstantClock> Lockstep<'a, A, M, C> {
    /// Creates the algorithm's state and pairs it with `model`, both new at `instant`.
    pub fn new(limit: &'a A, model: M, clock: &'a C, instant: u64) -> Self {
        let mut state = vec![0; limit.words()];
        limit.init(state.as_mut_slice(), &clock.now_at(instant));
        let last = model.report(&clock.now_at(instant), 1);
        Self { limit, model, clock, instant, state, refundable_charges: Vec::new(), last }
    }

    /// Runs `script`.
    pub fn run(&mut self, script: &[ScriptStep]) {
        for step in script {
            self.run_step(step);
        }
    }

    /// Returns the state, the model and the current time, for checks of a single algorithm.
    pub fn state_and_model(&self) -> (&[u64], &M, Now<'a>) {
        (&self.state, &self.model, self.clock.now_at(self.instant))
    }

    /// Converts the state to `limit`, as an admitted request would, and changes the model with `change`. Keeps the old
    /// parameters if the used amount exceeds the new maximum, because then no request is admitted under the new
    /// parameters.
    pub fn change_limit(&mut self, limit: &'a A, change: impl FnOnce(&mut M, &Now<'_>)) {
        let now = self.clock.now_at(self.instant);
        self.state.resize(limit.words().max(self.limit.words()), 0);
        let nothing = Ask::Regardless(Cost::ZERO);
        if !limit.weigh_from(self.limit, self.state.as_slice(), &now, nothing).is_admitted() {
            return self.state.truncate(self.limit.words());
        }
        limit.convert(self.limit, self.state.as_mut_slice(), &now);
        self.state.truncate(limit.words());
        change(&mut self.model, &now);
        self.limit = limit;
        self.last = self.model.report(&now, 1);
    }

    /// Waits, runs the operation and compares the results.
    pub fn run_step(&mut self, step: &ScriptStep) {
        self.wait(step.pause);
        let clock = self.clock;
        let now = clock.now_at(self.instant);
        let seen = self.model.report(&now, 1);
        let resolve = |amount: ScriptAmount| amount.to_units(&seen);
        let cost = match step.act {
            ScriptAct::Check(amount) => self.decide(&now, Ask::Exactly(Cost::new(resolve(amount)))),
            ScriptAct::TakeUpTo(amount) => self.decide(&now, Ask::UpTo(Cost::new(resolve(amount)))),
            ScriptAct::Charge(amount) => self.decide(&now, Ask::Regardless(Cost::new(resolve(amount)))),
            ScriptAct::Drain => self.decide(&now, Ask::UpTo(Cost::MAX)),
            ScriptAct::Peek(amount) => resolve(amount),
            ScriptAct::Refund(amount, ago) => self.refund(&now, resolve(amount), ago),
            ScriptAct::Reset => {
                self.limit.init(self.state.as_mut_slice(), &now);
                self.model.restart(&now);
                self.refundable_charges.clear();
                1
            }
        };
        self.compare_reports(&now, cost);
        let case = laws::LawCase { limit: self.limit, state: &self.state, clock, instant: self.instant };
        for ask in [Ask::Exactly(Cost::new(cost)), Ask::UpTo(Cost::new(cost)), Ask::Regardless(Cost::new(cost))] {
            laws::advertised_wait_is_true(&case, ask);
        }
        if !self.model.is_exempt_from(Law::RemainingPasses) {
            laws::remaining_is_the_largest_that_passes(&case);
        }
        laws::reset_is_when_unused(&case);
    }

    /// Waits, unless the wait would end after [`LATEST_INSTANT`].
    fn wait(&mut self, pause: ScriptPause) {
        let next = self.instant.saturating_add(pause.to_nanos(&self.last));
        if next <= LATEST_INSTANT {
            self.instant = next;
        }
    }

    /// Decides with the algorithm and with the model, compares the results, and returns the cost asked for.
    fn decide(&mut self, now: &Now<'_>, ask: Ask) -> u64 {
        let case = laws::LawCase { limit: self.limit, state: &self.state, clock: self.clock, instant: self.instant };
        laws::one_request_equals_single_units(&case, ask.cost(), |law| self.model.is_exempt_from(law));
        let before = self.state.clone();
        // `decide` may use a fast path that `weigh` and `commit` do not have. The result must be
        // the same.
        let mut slow_state = before.clone();
        let peeked = self.limit.weigh(before.as_slice(), now, ask);
        self.limit.commit(slow_state.as_mut_slice(), now, &peeked);
        let verdict = self.limit.decide(self.state.as_mut_slice(), now, ask);
        assert_eq!((peeked.outcome(), peeked.taken()), (verdict.outcome(), verdict.taken()), "peek of {ask:?} differs");
        assert_eq!(slow_state, self.state, "{ask:?} at {now:?} differs from weighing and committing");
        let answer = self.model.ask(now, ask);
        let expected = (answer.outcome, Cost::new(answer.taken));
        assert_eq!((verdict.outcome(), verdict.taken()), expected, "{ask:?} at {now:?}, state was {before:?}");
        if verdict.is_admitted() {
            if answer.taken > 0 {
                self.refundable_charges.push((verdict.stamp(), answer.receipt));
            }
        } else if !self.model.is_exempt_from(Law::RefusalChangesNothing) {
            assert_eq!(self.state, before, "a refusal changed the state: {ask:?} at {now:?}");
        }
        ask.cost().get()
    }

    fn refund(&mut self, now: &Now<'_>, cost: u64, ago: Option<usize>) -> u64 {
        let found = ago.and_then(|ago| self.refundable_charges.iter().rev().nth(ago)).copied();
        let before = self.state.clone();
        let accepted =
            self.limit.refund(self.state.as_mut_slice(), now, Cost::new(cost), found.map(|(stamp, _)| stamp));
        let receipt = found.map(|(_, receipt)| receipt);
        let expected = self.model.refund(now, cost, receipt);
        assert_eq!(
            accepted.get(),
            expected,
            "refund of {cost} for receipt {receipt:?} at {now:?}, state was {before:?}"
        );
        cost
    }

    fn compare_reports(&mut self, now: &Now<'_>, cost: u64) {
        let expected = self.model.report(now, cost);
        let report = self.limit.report(self.state.as_slice(), now, Cost::new(cost));
        assert_eq!(report, expected, "report for cost {cost} at {now:?}, state is {:?}", self.state);
        let is_unused = self.limit.is_unused(self.state.as_slice(), now);
        assert_eq!(is_unused, expected.reset == Nanos::ZERO, "is_unused at {now:?}, state is {:?}", self.state);
        let spent = self.limit.spent(self.state.as_slice(), now);
        assert_eq!(spent.is_nothing(), is_unused, "{spent:?} at {now:?}, state is {:?}", self.state);
        self.last = expected;
    }
}
