//! The server as the program under test. Converts protocol replies to answers that can be compared with the model's
//! answers.

use serde_json::{Value, json};
use std::net::SocketAddr;
use tollgate::core::{Nanos, Report};
use tollgate::{Outcome, Retry};
use tollgate_testkit::rule_model::lockstep::RuleSubject;
use tollgate_testkit::rule_model::settle::Settlement;
use tollgate_testkit::rule_model::{Answer, LimitAnswer, Request, RuleSet, Verb};

use crate::protocols::Connection;
use crate::server::ModelServer;

/// The server, with one connection per trace.
pub(crate) struct OverNetwork<C> {
    pub(crate) server: ModelServer,
    address: SocketAddr,
    connection: C,
    /// Number of decisions and refunds in this trace. The number selects the variant of the next operation, so that
    /// variants rotate.
    messages: usize,
}

impl<C: Connection> OverNetwork<C> {
    pub(crate) fn start(address: impl Fn(&ModelServer) -> SocketAddr) -> Self {
        let server = ModelServer::start();
        let address = address(&server);
        Self { server, address, connection: C::open(address), messages: 0 }
    }

    fn next_variant(&mut self) -> usize {
        self.messages += 1;
        self.messages
    }

    /// Decides requests in one message. Returns each answer with its receipt, which is empty if there is none.
    pub(crate) fn decide(&mut self, verb: Verb, requests: &[Request], variant: usize) -> Vec<(Answer, String)> {
        let replies = self.connection.decide(verb, requests, variant);
        assert_eq!(replies.len(), requests.len());
        let answers = replies.iter().zip(requests).map(|(reply, request)| {
            let receipt = reply["receipt"].as_str().unwrap_or_default();
            (parse_answer(reply, request), receipt.to_owned())
        });
        answers.collect()
    }
}

impl<C: Connection> RuleSubject for OverNetwork<C> {
    fn tick(&self) -> u64 {
        1
    }

    fn begin(&mut self, at: u64) {
        self.server.begin(at);
        (self.connection, self.messages) = (C::open(self.address), 0);
    }

    fn advance_to(&mut self, at: u64) {
        self.server.advance_to(at);
    }

    fn put(&mut self, rules: &RuleSet) {
        self.server.put(rules);
    }

    fn ask(&mut self, verb: Verb, request: &Request) -> (Answer, String) {
        let variant = self.next_variant();
        self.decide(verb, std::slice::from_ref(request), variant).remove(0)
    }

    fn refund(&mut self, receipt: &str) -> u64 {
        let variant = self.next_variant();
        self.connection.refund(receipt, variant)
    }

    fn commit(&mut self, receipt: &str, cost: u64) -> Settlement {
        let reply = self.connection.commit(receipt, cost);
        let [refunded, charged, unpaid] = ["refunded", "charged", "unpaid"].map(|name| required_number(&reply, name));
        Settlement { refunded, charged, unpaid }
    }

    fn renew(&mut self, receipt: &str) -> bool {
        self.connection.renew(receipt)
    }

    fn reset(&mut self, request: &Request) -> usize {
        self.connection.reset(request) as usize
    }

    /// Converts an exact answer to the answer that the protocols can express. Rounds waits up to milliseconds. If no
    /// wait helps, drops the reason, because the protocols do not report it.
    fn as_transmitted(&self, exact: Answer) -> Answer {
        let outcome = match exact.outcome {
            Outcome::Allow => Outcome::Allow,
            Outcome::Delay(wait) => Outcome::Delay(to_millis(wait)),
            Outcome::Deny(retry) => Outcome::Deny(retry_to_millis(retry)),
        };
        let limits = exact.limits.into_iter().map(|limit| {
            let Report { limit: capacity, remaining, retry, reset } = limit.report;
            let report = Report { limit: capacity, remaining, retry: retry_to_millis(retry), reset: to_millis(reset) };
            LimitAnswer { report, ..limit }
        });
        Answer { outcome, limits: limits.collect(), ..exact }
    }
}

fn to_millis(wait: Nanos) -> Nanos {
    Nanos::from_nanos(wait.as_nanos().next_multiple_of(1_000_000))
}

fn retry_to_millis(retry: Retry) -> Retry {
    match retry {
        Retry::After(wait) => Retry::After(to_millis(wait)),
        Retry::OnRelease | Retry::Never => Retry::Never,
    }
}

fn required_number(reply: &Value, name: &str) -> u64 {
    reply[name].as_u64().unwrap_or_else(|| panic!("no number `{name}` in {reply}"))
}

fn is_true(reply: &Value, name: &str) -> bool {
    reply[name] == json!(true) || reply[name] == json!(1)
}

/// Parses the wait of a reply in milliseconds. If no wait helps, the value is `null` over HTTP and -1 over the Redis
/// protocol.
fn parse_retry(reply: &Value) -> Retry {
    match &reply["retry_after_ms"] {
        Value::Null => Retry::Never,
        wait if wait.as_i64() == Some(-1) => Retry::Never,
        _ => Retry::After(Nanos::from_millis(required_number(reply, "retry_after_ms"))),
    }
}

fn parse_answer(reply: &Value, request: &Request) -> Answer {
    let outcome = match reply["outcome"].as_str() {
        Some("allow") => Outcome::Allow,
        Some("delay") => Outcome::Delay(Nanos::from_millis(required_number(reply, "delay_ms"))),
        Some("deny") => Outcome::Deny(parse_retry(reply)),
        _ => panic!("no outcome in {reply}"),
    };
    assert_eq!(is_true(reply, "allowed"), outcome.is_admitted(), "{reply}");
    // If no limit counts a drain, the server reports that 0 was taken. The model has no drain and takes the whole cost.
    let uncounted = reply.get("counted").is_some() && outcome.is_admitted();
    let taken = if uncounted { request.cost } else { reply["taken"].as_u64() };
    let limits = reply["limits"].as_array().unwrap_or_else(|| panic!("no limits in {reply}"));
    let limits = limits.iter().map(|limit| LimitAnswer {
        rule: limit["rule"].as_str().unwrap_or_default().to_owned(),
        shadow: is_true(limit, "shadow"),
        report: Report {
            limit: required_number(limit, "limit"),
            remaining: required_number(limit, "remaining"),
            retry: parse_retry(limit),
            reset: Nanos::from_millis(required_number(limit, "reset_after_ms")),
        },
    });
    Answer {
        outcome,
        taken,
        banned: is_true(reply, "banned"),
        shadow_refused: is_true(reply, "shadow_refused"),
        limits: limits.collect(),
    }
}
