//! Runs the model and a program under test through a trace and compares every answer. A trace with
//! a difference is shortened before it is reported.

use std::fmt::Write as _;

use tollgate_core::{Outcome, Retry};

use super::random::{Act, Amount, Pause, Rng, Step, Topic, Trace};
use super::settle::{Receipt, Settlement};
use super::{Answer, Request, RuleModel, RuleSet, Verb};

/// The program under test.
pub trait RuleSubject {
    /// Returns the program's clock resolution in nanoseconds.
    fn tick(&self) -> u64;
    /// Clears all state and sets the clock.
    fn begin(&mut self, at: u64);
    /// Sets the clock forward.
    fn advance_to(&mut self, at: u64);
    /// Puts rules in force.
    fn put(&mut self, rules: &RuleSet);
    /// Decides a request. Returns the answer and its receipt. The receipt is empty if the protocol
    /// returns no receipt.
    fn ask(&mut self, verb: Verb, request: &Request) -> (Answer, String);
    /// Refunds the charges of a receipt. Returns the accepted amount.
    fn refund(&mut self, receipt: &str) -> u64;
    /// Settles a reservation.
    fn commit(&mut self, receipt: &str, cost: u64) -> Settlement;
    /// Renews the leases of a receipt. Returns whether all leases were still held.
    fn renew(&mut self, receipt: &str) -> bool;
    /// Resets the counters of a request. Returns their number.
    fn reset(&mut self, request: &Request) -> usize;
    /// Reduces an exact answer to the fields that the program's protocol transmits.
    fn as_transmitted(&self, exact: Answer) -> Answer {
        exact
    }
}

/// A difference between the two answers at a step of a trace.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Index of the step with the difference.
    pub step: usize,
    /// Operation and both answers.
    pub what: String,
}

/// A model and a program, side by side.
struct ModelAndSubject<'a, S> {
    subject: &'a mut S,
    model: RuleModel,
    refundable_charges: Vec<(String, Receipt)>,
    last: Option<(Verb, Request)>,
    answer: Option<(u64, Answer)>,
    decisions: u64,
}

/// Runs a trace from the beginning. Returns the number of compared decisions.
///
/// # Errors
/// Returns the first difference.
pub fn run_trace<S: RuleSubject>(subject: &mut S, trace: &Trace) -> Result<u64, Difference> {
    subject.begin(trace.start);
    let mut model = RuleModel::new(subject.tick(), trace.start);
    let Some(first) = trace.versions.first() else { return Ok(0) };
    subject.put(first);
    model.put(first);
    let mut pair =
        ModelAndSubject { subject, model, refundable_charges: Vec::new(), last: None, answer: None, decisions: 0 };
    for (number, step) in trace.steps.iter().enumerate() {
        pair.run_step(step, &trace.versions).map_err(|what| Difference { step: number, what })?;
    }
    Ok(pair.decisions)
}

impl<S: RuleSubject> ModelAndSubject<'_, S> {
    fn run_step(&mut self, step: &Step, versions: &[RuleSet]) -> Result<(), String> {
        self.wait(step.pause);
        match &step.act {
            Act::Ask(verb, request, amount) => {
                let request = Request { cost: self.amount_of(*amount, request), ..request.clone() };
                self.ask(*verb, request)
            }
            Act::Again => self.last.clone().map_or(Ok(()), |(verb, request)| self.ask(verb, request)),
            Act::PeekAgain => self.last.clone().map_or(Ok(()), |(_, request)| self.ask(Verb::Peek, request)),
            Act::Refund(ago) => self.settle(*ago, "refund", |subject, text| subject.refund(text), RuleModel::refund),
            Act::Renew(ago) => self.settle(*ago, "renew", |subject, text| subject.renew(text), RuleModel::renew),
            Act::Commit(ago, amount) => {
                let cost = match amount {
                    Amount::Exactly(cost) => *cost,
                    Amount::Unsaid | Amount::Remaining(_) | Amount::All => 3,
                };
                let commit = |subject: &mut S, text: &str| subject.commit(text, cost);
                self.settle(*ago, "commit", commit, |model, receipt| model.commit(receipt, cost))
            }
            Act::Reset(request) => {
                let (said, expected) = (self.subject.reset(request), self.model.reset(request));
                expect_equal(&said, &expected, || format!("reset {request:?}"))
            }
            Act::Put(version) => {
                let Some(rules) = versions.get(*version) else { return Ok(()) };
                self.subject.put(rules);
                self.model.put(rules);
                Ok(())
            }
        }
    }

    fn wait(&mut self, pause: Pause) {
        let (now, tick) = (self.model.now(), self.subject.tick());
        let last = self.answer.as_ref();
        let retry = last.and_then(|(at, answer)| match answer.outcome {
            Outcome::Deny(Retry::After(wait)) => Some(at + wait.as_nanos()),
            _ => None,
        });
        let reset = |limit: usize| {
            let (at, answer) = last?;
            Some(at + answer.limits.get(limit)?.report.reset.as_nanos())
        };
        let target = match pause {
            Pause::None => None,
            Pause::Ticks(ticks) => Some(now + ticks * tick),
            Pause::Nanos(nanos) => Some((now + nanos).next_multiple_of(tick)),
            Pause::BeforeRetry => retry.map(|at| at - tick),
            Pause::Retry => retry,
            Pause::BeforeReset(limit) => reset(limit).map(|at| at - tick),
            Pause::Reset(limit) => reset(limit),
        };
        // Two years are enough for a calendar year and its debt.
        let horizon = now + 63_072_000_000_000_000;
        if let Some(target) = target.filter(|target| *target > now && *target < horizon) {
            self.subject.advance_to(target);
            self.model.advance_to(target);
        }
    }

    fn amount_of(&self, amount: Amount, request: &Request) -> Option<u64> {
        match amount {
            Amount::Unsaid => None,
            Amount::Exactly(cost) => Some(cost),
            Amount::All => Some(u64::MAX >> 1),
            Amount::Remaining(more) => {
                let (seen, _) = self.model.clone().ask(Verb::Peek, request);
                let left = seen.limits.iter().map(|limit| limit.report.remaining).min().unwrap_or(1);
                Some(left.saturating_add_signed(more))
            }
        }
    }

    fn ask(&mut self, verb: Verb, request: Request) -> Result<(), String> {
        // `take-up-to` needs an amount.
        let request =
            if verb == Verb::TakeUpTo { Request { cost: request.cost.or(Some(1)), ..request } } else { request };
        let (said, text) = self.subject.ask(verb, &request);
        let (exact, receipt) = self.model.ask(verb, &request);
        let mut expected = self.subject.as_transmitted(exact.clone());
        if said.taken.is_none() || request.cost.is_none() {
            expected.taken = said.taken;
        }
        self.decisions += 1;
        if verb != Verb::Peek && !receipt.taken.is_empty() && !text.is_empty() {
            self.refundable_charges.push((text, receipt));
        }
        let at = self.model.now();
        expect_equal(&said, &expected, || format!("{verb:?} {request:?} at {at}"))?;
        self.answer = Some((at, exact));
        self.last = Some((verb, request));
        Ok(())
    }

    fn settle<T: PartialEq + std::fmt::Debug>(
        &mut self,
        ago: usize,
        name: &str,
        subject: impl FnOnce(&mut S, &str) -> T,
        model: impl FnOnce(&mut RuleModel, &Receipt) -> T,
    ) -> Result<(), String> {
        let Some((text, receipt)) = self.refundable_charges.iter().rev().nth(ago).cloned() else { return Ok(()) };
        // The result is undefined; see `renew` in docs/rules.md.
        if self.model.is_ambiguous(&receipt) {
            return Ok(());
        }
        let (said, expected) = (subject(self.subject, &text), model(&mut self.model, &receipt));
        self.decisions += 1;
        expect_equal(&said, &expected, || format!("{name} of {receipt:?} at {}", self.model.now()))
    }
}

fn expect_equal<T: PartialEq + std::fmt::Debug>(
    said: &T,
    expected: &T,
    what: impl Fn() -> String,
) -> Result<(), String> {
    if said == expected {
        return Ok(());
    }
    Err(format!("{}\n  the model says {expected:#?}\n  and the program {said:#?}", what()))
}

/// Drops steps and rules from a trace as long as the trace still shows a difference. Returns the shortened
/// trace and its difference. If no run repeats the difference, returns the trace and `found`.
pub fn shorten_trace<S: RuleSubject>(subject: &mut S, mut trace: Trace, mut found: Difference) -> (Trace, Difference) {
    trace.steps.truncate(found.step + 1);
    let mut size = trace.steps.len() / 2;
    while size > 0 {
        let mut from = 0;
        while from < trace.steps.len() {
            let mut shorter = trace.clone();
            shorter.steps.drain(from..(from + size).min(trace.steps.len()));
            match run_trace(subject, &shorter) {
                Err(difference) => (trace, found) = (shorter, difference),
                Ok(_) => from += size,
            }
        }
        size /= 2;
    }
    for id in ["r0", "r1", "r2"] {
        let mut smaller = trace.clone();
        smaller.versions.iter_mut().for_each(|version| version.rules.retain(|rule| rule.id != id));
        if let Err(difference) = run_trace(subject, &smaller) {
            (trace, found) = (smaller, difference);
        }
    }
    (trace, found)
}

/// Compares traces of consecutive seeds, each without and with [extensions](Trace::with_extensions), until
/// `decisions` decisions are compared. Skips traces with a topic in `left_out`. Returns the number
/// of decisions and traces.
///
/// # Panics
/// Panics if there is a difference. The message contains the shortened trace.
pub fn compare_random_traces<S: RuleSubject>(
    subject: &mut S,
    first_seed: u64,
    decisions: u64,
    left_out: &[Topic],
) -> (u64, u64) {
    let (mut compared, mut traces, mut seed) = (0, 0, first_seed);
    while compared < decisions {
        let plain = Trace::random(&mut Rng::new(seed), subject.tick(), 60);
        let extended = plain.clone().with_extensions(&mut Rng::new(seed));
        for trace in [plain, extended].into_iter().filter_map(|trace| trace.without_topics(left_out)) {
            let count = run_trace(subject, &trace).unwrap_or_else(|found| {
                let (trace, difference) = shorten_trace(subject, trace, found);
                panic!("{}", describe_difference(seed, &trace, &difference))
            });
            (compared, traces) = (compared + count, traces + 1);
            if compared >= decisions {
                break;
            }
        }
        seed += 1;
    }
    (compared, traces)
}

/// Formats a difference so that it can be verified by hand.
pub fn describe_difference(seed: u64, trace: &Trace, difference: &Difference) -> String {
    let mut text = format!("seed {seed}: the model and the program differ\n");
    let mut line = |line: String| writeln!(text, "{line}").expect("writing to a string cannot fail");
    trace.versions.iter().enumerate().for_each(|(n, version)| line(format!("# version {n}\n{}", version.text())));
    line(format!("start {}", trace.start));
    trace.steps.iter().for_each(|step| line(format!("  {:?}, {:?}", step.pause, step.act)));
    line(difference.what.clone());
    text
}
