//! Sends the checks of the model over the rate-limit service. Operations that the service lacks are sent over HTTP.

use tollgate::{Outcome, Retry};
use tollgate_testkit::rule_model::lockstep::RuleSubject;
use tollgate_testkit::rule_model::settle::Settlement;
use tollgate_testkit::rule_model::{Answer, LimitAnswer, Request, RuleSet, Verb};

use crate::common::frame_client::{FrameClient, METHOD_PATH};
use crate::protocols::Http;
use crate::subject::OverNetwork;

/// The server, with checks over the rate-limit service. A response of the service contains only the tightest limit, so
/// the other limits are read with an HTTP peek after each check.
pub(crate) struct OverRls {
    http: OverNetwork<Http>,
    calls: FrameClient,
    stream: u32,
}

impl OverRls {
    pub(crate) fn start() -> Self {
        let http = OverNetwork::<Http>::start(|server| server.http);
        let calls = FrameClient::connect(http.server.rls);
        Self { http, calls, stream: 1 }
    }

    /// Makes a call with one descriptor.
    fn call(&mut self, request: &Request) -> CallResult {
        self.calls.call(self.stream, METHOD_PATH, &call_body(request));
        let (stream, response) = self.calls.next_answer();
        assert_eq!((stream, response.field("grpc-status")), (self.stream, "0"), "{response:?}");
        self.stream += 2;
        CallResult::decode(&response.body[5..])
    }
}

impl RuleSubject for OverRls {
    fn tick(&self) -> u64 {
        self.http.tick()
    }

    fn begin(&mut self, at: u64) {
        self.http.begin(at);
        (self.calls, self.stream) = (FrameClient::connect(self.http.server.rls), 1);
    }

    fn advance_to(&mut self, at: u64) {
        self.http.advance_to(at);
    }

    fn put(&mut self, rules: &RuleSet) {
        self.http.put(rules);
    }

    fn ask(&mut self, verb: Verb, request: &Request) -> (Answer, String) {
        let (before, _) = self.http.ask(Verb::Peek, request);
        // Sends delayed checks and checks of cost 0 over HTTP instead. Over the service, a delay would take real time,
        // and a charge after a check of cost 0 could go into debt.
        let is_delayed = matches!(before.outcome, Outcome::Delay(_));
        if verb != Verb::Check || request.cost == Some(0) || is_delayed {
            let (answer, receipt) = self.http.ask(verb, request);
            return (without_retries(answer), receipt);
        }
        let result = self.call(request);
        assert_eq!(result.is_over, !before.outcome.is_admitted(), "{result:?} after {before:?}");
        // A refused peek does not report shadow rules. After an admission, the peek therefore has a cost of 0, so
        // that it passes.
        let cost = if result.is_over { request.cost } else { Some(0) };
        let (after, _) = self.http.ask(Verb::Peek, &Request { cost, ..request.clone() });
        let has_remaining = |limit: &LimitAnswer| limit.report.remaining.min(u32::MAX.into()) == result.remaining;
        let is_reported = after.limits.is_empty() || after.limits.iter().any(has_remaining);
        assert!(is_reported, "{result:?} is none of {:?}", after.limits);
        let answer = Answer {
            outcome: if result.is_over { after.outcome } else { Outcome::Allow },
            taken: None,
            banned: result.is_over && after.banned,
            shadow_refused: before.shadow_refused,
            limits: after.limits,
        };
        (without_retries(answer), String::new())
    }

    fn refund(&mut self, receipt: &str) -> u64 {
        self.http.refund(receipt)
    }

    fn commit(&mut self, receipt: &str, cost: u64) -> Settlement {
        self.http.commit(receipt, cost)
    }

    fn renew(&mut self, receipt: &str) -> bool {
        self.http.renew(receipt)
    }

    fn reset(&mut self, request: &Request) -> usize {
        self.http.reset(request)
    }

    fn as_transmitted(&self, exact: Answer) -> Answer {
        without_retries(self.http.as_transmitted(exact))
    }
}

/// Removes the waits of the limits, because the service does not report them. The wait of the request stays.
fn without_retries(mut answer: Answer) -> Answer {
    answer.limits.iter_mut().for_each(|limit| limit.report.retry = Retry::Never);
    answer
}

/// Encodes a varint.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Encodes a length-delimited field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(bytes.len() as u64), bytes].concat()
}

/// Encodes a call with one descriptor.
fn call_body(request: &Request) -> Vec<u8> {
    let entry =
        |(name, value): &(&str, String)| field(1, &[field(1, name.as_bytes()), field(2, value.as_bytes())].concat());
    let mut descriptor: Vec<u8> = request.attributes.iter().flat_map(entry).collect();
    if let Some(cost) = request.cost {
        descriptor.extend(field(3, &[&[0x08][..], &varint(cost)].concat()));
    }
    let message = [field(1, b"d"), field(2, &descriptor)].concat();
    [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat()
}

/// The compared parts of a response.
#[derive(Debug, Default)]
struct CallResult {
    is_over: bool,
    remaining: u64,
}

impl CallResult {
    fn decode(message: &[u8]) -> Self {
        let mut result = Self::default();
        for (number, value) in decode_fields(message) {
            match (number, value) {
                (1, WireField::Number(code)) => result.is_over = code == 2,
                (2, WireField::Bytes(status)) => {
                    for (number, value) in decode_fields(&status) {
                        if let (3, WireField::Number(remaining)) = (number, value) {
                            result.remaining = remaining;
                        }
                    }
                }
                _ => {}
            }
        }
        result
    }
}

enum WireField {
    Number(u64),
    Bytes(Vec<u8>),
}

/// Decodes the fields of a message. Our responses contain only varints and length-delimited fields.
fn decode_fields(mut message: &[u8]) -> Vec<(u64, WireField)> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let tag = take_varint(&mut message);
        let value = take_varint(&mut message);
        fields.push((
            tag >> 3,
            match tag & 7 {
                0 => WireField::Number(value),
                2 => {
                    let (bytes, rest) = message.split_at(value as usize);
                    message = rest;
                    WireField::Bytes(bytes.to_vec())
                }
                other => panic!("wire type {other}"),
            },
        ));
    }
    fields
}

fn take_varint(message: &mut &[u8]) -> u64 {
    let length = message.iter().position(|byte| byte & 0x80 == 0).expect("a whole varint") + 1;
    let (bytes, rest) = message.split_at(length);
    *message = rest;
    bytes.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
}
