//! Checks that a server on real sockets makes the same decisions as the rule model, over HTTP, the Redis protocol
//! and Envoy's rate-limit service.
//!
//! Waits are compared in milliseconds, the resolution of the protocols. `TOLLGATE_MODEL_DECISIONS` sets the number of
//! decisions that are compared per protocol. `TOLLGATE_MODEL_SEED` sets the first seed.
#![allow(clippy::print_stdout, reason = "a long run prints the number of compared decisions")]

#[path = "../common/mod.rs"]
mod common;
mod protocols;
mod rls;
mod server;
mod subject;

use protocols::{Connection, Http, Resp};
use rls::OverRls;
use subject::OverNetwork;
use tollgate_testkit::rule_model::laws::{LawOperation, RecordedOperation, record};
use tollgate_testkit::rule_model::lockstep::{self, RuleSubject};
use tollgate_testkit::rule_model::random::{Rng, Trace};
use tollgate_testkit::rule_model::{Answer, Request, Verb, findings};

fn number_from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn compare(protocol: &str, mut subject: impl RuleSubject) {
    let (seed, decisions) =
        (number_from_env("TOLLGATE_MODEL_SEED", 1), number_from_env("TOLLGATE_MODEL_DECISIONS", 2_000));
    let (compared, traces) = lockstep::compare_random_traces(&mut subject, seed, decisions, &[]);
    println!("{protocol}: {compared} decisions of {traces} traces from seed {seed} agree with the model");
    let found = findings::run_known_traces(&mut subject, &[]);
    assert!(found.is_empty(), "{protocol}: {}", found.join("\n"));
}

#[test]
fn http_decides_as_the_model_does() {
    compare("HTTP", OverNetwork::<Http>::start(|server| server.http));
}

#[test]
fn resp_decides_as_the_model_does() {
    compare("RESP", OverNetwork::<Resp>::start(|server| server.resp));
}

#[test]
fn rls_decides_as_the_model_does() {
    compare("RLS", OverRls::start());
}

/// Replaces every request of a recorded trace with a batch. A batch contains the request and some of the following
/// requests, all with the same verb.
fn to_batches(operations: &[RecordedOperation], rng: &mut Rng) -> Vec<(RecordedOperation, Vec<Request>)> {
    let batch = |(index, operation): (usize, &RecordedOperation)| {
        let LawOperation::Ask(verb, _) = operation.what else { return (operation.clone(), Vec::new()) };
        let same_verb = operations[index..].iter().filter_map(|operation| match &operation.what {
            LawOperation::Ask(other, request) if *other == verb => Some(request.clone()),
            _ => None,
        });
        (operation.clone(), same_verb.take(rng.between(1, 7) as usize).collect())
    };
    operations.iter().enumerate().map(batch).collect()
}

fn decide_all<C: Connection>(
    subject: &mut OverNetwork<C>,
    start: u64,
    operations: &[(RecordedOperation, Vec<Request>)],
    decide: impl Fn(&mut OverNetwork<C>, Verb, &[Request]) -> Vec<Answer>,
) -> Vec<Vec<Answer>> {
    subject.begin(start);
    let mut now = start;
    let mut answers = Vec::new();
    for (operation, requests) in operations {
        if operation.at > now {
            subject.advance_to(operation.at);
            now = operation.at;
        }
        match &operation.what {
            LawOperation::Ask(verb, _) => answers.push(decide(subject, *verb, requests)),
            LawOperation::Put(rules) => subject.put(rules),
            LawOperation::Reset(request) => drop(subject.reset(request)),
            LawOperation::Refund(_) | LawOperation::Renew(_) | LawOperation::Commit(..) => {}
        }
    }
    answers
}

fn batch_equals_singles<C: Connection>(mut subject: OverNetwork<C>) {
    // This variant number is neither even nor a multiple of 3. So over both protocols it selects plain checks instead
    // of reservations, and `take-up-to` instead of drains.
    const VARIANT: usize = 7;
    let answers = |decided: Vec<(Answer, String)>| decided.into_iter().map(|(answer, _)| answer).collect::<Vec<_>>();
    for seed in 1..=number_from_env("TOLLGATE_LAW_TRACES", 40) {
        let trace = Trace::random(&mut Rng::new(seed), 1, 40);
        let operations = to_batches(&record(&trace, 1), &mut Rng::new(seed));
        let whole = decide_all(&mut subject, trace.start, &operations, |subject, verb, requests| {
            answers(subject.decide(verb, requests, VARIANT))
        });
        let singly = decide_all(&mut subject, trace.start, &operations, |subject, verb, requests| {
            requests.iter().flat_map(|one| answers(subject.decide(verb, std::slice::from_ref(one), VARIANT))).collect()
        });
        let asked = operations.iter().filter(|(operation, _)| matches!(operation.what, LawOperation::Ask(..)));
        for ((operation, requests), (whole, singly)) in asked.zip(whole.iter().zip(&singly)) {
            assert_eq!(whole, singly, "seed {seed}, batch (left) and singles (right) of {operation:?}: {requests:#?}");
        }
    }
}

#[test]
fn http_list_equals_single_requests() {
    batch_equals_singles(OverNetwork::<Http>::start(|server| server.http));
}

#[test]
fn resp_pipeline_equals_single_commands() {
    batch_equals_singles(OverNetwork::<Resp>::start(|server| server.resp));
}
