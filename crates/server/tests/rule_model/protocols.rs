//! The verbs of the model over HTTP and over the Redis protocol.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tollgate_testkit::rule_model::{Request, Verb};

use crate::common::{Client, encode_command};

/// The cost with which traces ask for all remaining tokens. A `take-up-to` with this cost is equivalent to a drain.
pub(crate) const EVERYTHING: u64 = u64::MAX >> 1;

/// A connection of one protocol. Replies are converted to JSON. Over the Redis protocol, booleans are 0 and 1.
pub(crate) trait Connection {
    fn open(address: SocketAddr) -> Self;
    /// Decides requests in one message (an HTTP list or a pipeline). `variant` selects one of several equivalent
    /// operations.
    fn decide(&mut self, verb: Verb, requests: &[Request], variant: usize) -> Vec<Value>;
    /// Calls `refund`, `cancel` or `release`, which are equivalent; `variant` selects one. Returns the refunded amount.
    fn refund(&mut self, receipt: &str, variant: usize) -> u64;
    /// Settles a reservation.
    fn commit(&mut self, receipt: &str, cost: u64) -> Value;
    /// Renews the leases of a receipt. Returns whether all leases were still held.
    fn renew(&mut self, receipt: &str) -> bool;
    /// Resets the counters of a request. Returns their number.
    fn reset(&mut self, request: &Request) -> u64;
}

const REFUNDS: [&str; 3] = ["refund", "cancel", "release"];

pub(crate) struct Http(Client);

impl Http {
    fn post(&mut self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.0.post(path, &body.to_string());
        (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}")))
    }

    fn post_ok(&mut self, path: &str, body: &Value) -> Value {
        let (status, reply) = self.post(path, body);
        assert_eq!(status, 200, "{reply}");
        reply
    }
}

fn item_json(request: &Request) -> Value {
    let attributes: serde_json::Map<String, Value> =
        request.attributes.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let mut item = json!({"domain": "d", "attributes": attributes});
    if let Some(cost) = request.cost {
        item["cost"] = json!(cost);
    }
    item
}

impl Connection for Http {
    fn open(address: SocketAddr) -> Self {
        Self(Client::connect(address))
    }

    fn decide(&mut self, verb: Verb, requests: &[Request], variant: usize) -> Vec<Value> {
        let drains = requests.iter().all(|request| request.cost == Some(EVERYTHING)) && variant.is_multiple_of(2);
        let path = match verb {
            Verb::Check if variant.is_multiple_of(3) => "/v1/reserve",
            Verb::Check => "/v1/check",
            Verb::Peek => "/v1/peek",
            Verb::TakeUpTo if drains => "/v1/drain",
            Verb::TakeUpTo => "/v1/take-up-to",
            Verb::Charge => "/v1/charge",
        };
        let mut items: Vec<Value> = requests.iter().map(item_json).collect();
        if verb != Verb::Peek {
            items.iter_mut().for_each(|item| item["receipt"] = json!(true));
        }
        let [alone] = &items[..] else { return as_array(self.post_ok(path, &json!(items))) };
        if variant % 4 == 1 {
            return as_array(self.post_ok(path, &json!(items)));
        }
        let (status, reply) = self.post(path, alone);
        assert_eq!(status, if reply["allowed"] == json!(true) { 200 } else { 429 }, "{reply}");
        vec![reply]
    }

    fn refund(&mut self, receipt: &str, variant: usize) -> u64 {
        let path = format!("/v1/{}", REFUNDS[variant % 3]);
        as_number(&self.post_ok(&path, &json!({"receipt": receipt}))["refunded"])
    }

    fn commit(&mut self, receipt: &str, cost: u64) -> Value {
        self.post_ok("/v1/commit", &json!({"receipt": receipt, "cost": cost}))
    }

    fn renew(&mut self, receipt: &str) -> bool {
        self.post_ok("/v1/renew", &json!({"receipt": receipt}))["renewed"] == json!(true)
    }

    fn reset(&mut self, request: &Request) -> u64 {
        as_number(&self.post_ok("/v1/reset", &item_json(request))["reset"])
    }
}

fn as_array(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        other => panic!("{other} is not a list"),
    }
}

fn as_number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

pub(crate) struct Resp(Client);

impl Resp {
    fn run_command(&mut self, args: &[&str]) -> Value {
        self.0.send_command(args);
        self.read_reply()
    }

    /// Reads one RESP3 reply.
    fn read_reply(&mut self) -> Value {
        let line = self.0.line();
        let (kind, rest) = line.split_at(1);
        let count = || rest.parse::<usize>().unwrap_or_else(|_| panic!("{line:?} has no length"));
        match kind {
            "+" => json!(rest),
            ":" => json!(rest.parse::<i64>().expect("an integer")),
            "_" => Value::Null,
            "$" => json!(self.0.read_text(count())),
            "*" => (0..count()).map(|_| self.read_reply()).collect(),
            "%" => {
                let mut pair = || (self.read_reply().as_str().expect("a name").to_owned(), self.read_reply());
                Value::Object((0..count()).map(|_| pair()).collect())
            }
            _ => panic!("{line}"),
        }
    }
}

/// Returns the arguments of a request that follow the command name.
fn command_words<'a>(request: &'a Request, cost: Option<&'a str>) -> Vec<&'a str> {
    let attributes = request.attributes.iter().flat_map(|(name, value)| [*name, value.as_str()]);
    ["d"].into_iter().chain(cost).chain(attributes).collect()
}

impl Connection for Resp {
    fn open(address: SocketAddr) -> Self {
        let mut connection = Self(Client::connect(address));
        connection.run_command(&["HELLO", "3"]);
        connection
    }

    fn decide(&mut self, verb: Verb, requests: &[Request], variant: usize) -> Vec<Value> {
        let mut pipeline = Vec::new();
        for request in requests {
            let drains = request.cost == Some(EVERYTHING) && variant.is_multiple_of(2);
            let name = match verb {
                Verb::Check if variant.is_multiple_of(2) => "TG.RESERVE",
                Verb::Check => "TG.CHECK",
                Verb::Peek => "TG.PEEK",
                Verb::TakeUpTo if drains => "TG.DRAIN",
                Verb::TakeUpTo => "TG.TAKEUPTO",
                Verb::Charge => "TG.CHARGE",
            };
            let cost = request.cost.map_or("-".to_owned(), |cost| cost.to_string());
            let words = command_words(request, Some(cost.as_str()).filter(|_| name != "TG.DRAIN"));
            pipeline.extend(encode_command(&[&[name], &words[..]].concat()));
        }
        self.0.send(pipeline);
        requests.iter().map(|_| self.read_reply()).collect()
    }

    fn refund(&mut self, receipt: &str, variant: usize) -> u64 {
        as_number(&self.run_command(&[&format!("TG.{}", REFUNDS[variant % 3].to_uppercase()), receipt]))
    }

    fn commit(&mut self, receipt: &str, cost: u64) -> Value {
        self.run_command(&["TG.COMMIT", receipt, &cost.to_string()])
    }

    fn renew(&mut self, receipt: &str) -> bool {
        self.run_command(&["TG.RENEW", receipt]) == json!(1)
    }

    fn reset(&mut self, request: &Request) -> u64 {
        as_number(&self.run_command(&[&["TG.RESET"], &command_words(request, Some("-"))[..]].concat()))
    }
}
