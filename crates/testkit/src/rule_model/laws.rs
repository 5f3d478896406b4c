//! Laws that need no model: two runs with an irrelevant difference give the same answers.
//!
//! A trace states some times and amounts relative to earlier answers, such as "after the advertised wait". The trace is
//! first run on the model, which records each operation with its absolute time and amount. The recording is then
//! replayed twice, with and without the difference.

use std::collections::BTreeMap;

use super::lockstep::{self, RuleSubject};
use super::random::Trace;
use super::settle::{Receipt, Settlement};
use super::{Answer, Request, RuleModel, RuleSet, Verb};

/// An operation with its absolute time and its number in the recorded trace.
#[derive(Clone, Debug)]
pub struct RecordedOperation {
    /// Number in the recorded trace.
    pub number: usize,
    /// Time in nanoseconds.
    pub at: u64,
    /// The operation.
    pub what: LawOperation,
}

/// An operation with absolute amounts.
#[derive(Clone, Debug)]
pub enum LawOperation {
    /// Decides a request.
    Ask(Verb, Request),
    /// Refunds the charge of the operation with this number.
    Refund(usize),
    /// Renews the leases of the operation with this number.
    Renew(usize),
    /// Settles the reservation of the operation with this number at this cost.
    Commit(usize, u64),
    /// Resets counters.
    Reset(Request),
    /// Puts rules in force.
    Put(RuleSet),
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// A decision.
    Decided(Answer),
    /// A settlement, or the amount or count that an operation returned.
    Settled(Settlement),
    /// Nothing to compare.
    Nothing,
}

/// A model that takes the role of the program under test and records all calls.
#[derive(Debug)]
struct Recorder {
    tick: u64,
    model: RuleModel,
    operations: Vec<RecordedOperation>,
    receipts: Vec<(usize, Receipt)>,
}

impl Recorder {
    fn record_operation(&mut self, what: LawOperation) -> usize {
        let number = self.operations.len();
        self.operations.push(RecordedOperation { number, at: self.model.now(), what });
        number
    }

    fn parse_receipt(&self, text: &str) -> (usize, Receipt) {
        let number: usize = text.parse().expect("an operation number");
        self.receipts.iter().find(|(known, _)| *known == number).cloned().expect("a recorded receipt")
    }
}

impl RuleSubject for Recorder {
    fn tick(&self) -> u64 {
        self.tick
    }

    fn begin(&mut self, at: u64) {
        self.model = RuleModel::new(self.tick, at);
    }

    fn advance_to(&mut self, at: u64) {
        self.model.advance_to(at);
    }

    fn put(&mut self, rules: &RuleSet) {
        self.model.put(rules);
        self.record_operation(LawOperation::Put(rules.clone()));
    }

    fn ask(&mut self, verb: Verb, request: &Request) -> (Answer, String) {
        let number = self.record_operation(LawOperation::Ask(verb, request.clone()));
        let (answer, receipt) = self.model.ask(verb, request);
        self.receipts.push((number, receipt));
        (answer, number.to_string())
    }

    fn refund(&mut self, receipt: &str) -> u64 {
        let (number, receipt) = self.parse_receipt(receipt);
        self.record_operation(LawOperation::Refund(number));
        self.model.refund(&receipt)
    }

    fn commit(&mut self, receipt: &str, cost: u64) -> Settlement {
        let (number, receipt) = self.parse_receipt(receipt);
        self.record_operation(LawOperation::Commit(number, cost));
        self.model.commit(&receipt, cost)
    }

    fn renew(&mut self, receipt: &str) -> bool {
        let (number, receipt) = self.parse_receipt(receipt);
        self.record_operation(LawOperation::Renew(number));
        self.model.renew(&receipt)
    }

    fn reset(&mut self, request: &Request) -> usize {
        self.record_operation(LawOperation::Reset(request.clone()));
        self.model.reset(request)
    }
}

/// Returns the operations of a trace with absolute times and amounts.
///
/// # Panics
/// Never panics, because the model always agrees with itself.
pub fn record(trace: &Trace, tick: u64) -> Vec<RecordedOperation> {
    let model = RuleModel::new(tick, trace.start);
    let mut recorder = Recorder { tick, model, operations: Vec::new(), receipts: Vec::new() };
    lockstep::run_trace(&mut recorder, trace).expect("the model agrees with itself");
    recorder.operations
}

/// Runs all operations from the beginning and returns their results.
pub fn replay<S: RuleSubject>(
    subject: &mut S,
    start: u64,
    operations: &[RecordedOperation],
) -> BTreeMap<usize, OperationResult> {
    subject.begin(start);
    let mut receipts: BTreeMap<usize, String> = BTreeMap::new();
    let (mut came, mut now) = (BTreeMap::new(), start);
    let number = |refunded: u64| OperationResult::Settled(Settlement { refunded, ..Settlement::default() });
    for deed in operations {
        if deed.at > now {
            subject.advance_to(deed.at);
            now = deed.at;
        }
        let result = match &deed.what {
            LawOperation::Ask(verb, request) => {
                let (answer, receipt) = subject.ask(*verb, request);
                receipts.insert(deed.number, receipt);
                OperationResult::Decided(answer)
            }
            LawOperation::Refund(of) => {
                receipts.get(of).map_or(OperationResult::Nothing, |receipt| number(subject.refund(receipt)))
            }
            LawOperation::Renew(of) => {
                receipts.get(of).map_or(OperationResult::Nothing, |receipt| number(subject.renew(receipt).into()))
            }
            LawOperation::Commit(of, cost) => receipts
                .get(of)
                .map_or(OperationResult::Nothing, |receipt| OperationResult::Settled(subject.commit(receipt, *cost))),
            LawOperation::Reset(request) => number(subject.reset(request) as u64),
            LawOperation::Put(rules) => {
                subject.put(rules);
                OperationResult::Nothing
            }
        };
        came.insert(deed.number, result);
    }
    came
}

/// Compares the results of the operations that occur in both runs.
///
/// # Panics
/// Panics if results differ.
pub fn assert_same_results(
    operations: &[RecordedOperation],
    one: &BTreeMap<usize, OperationResult>,
    other: &BTreeMap<usize, OperationResult>,
    law: &str,
) {
    for deed in operations {
        if let (Some(one), Some(other)) = (one.get(&deed.number), other.get(&deed.number)) {
            assert_eq!(one, other, "{law}: {deed:?} in\n{operations:#?}");
        }
    }
}
