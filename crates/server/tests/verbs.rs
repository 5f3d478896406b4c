//! Every verb over HTTP and the Redis protocol, in memory and on a real Redis: the same answers.

mod common;

use std::process::Command;

use common::{Rules, Server, run};
use serde_json::{Value, json};
use tollgate_testkit::servers::{Kind, Server as StoreServer};

/// Long periods, so that the time a test takes makes no difference.
const RULES: &str = "\
domain: api
rules:
- {id: mine, when: {user: '*'}, per: [user], limit: 4/day}
- {id: all, when: {user: '*'}, limit: 10/week, algorithm: sliding_log}
- {id: bytes, when: {kind: bytes}, limit: 100/day, algorithm: fixed_window, max_debt: 50}
- {id: slots, when: {kind: slots}, limit: 1, algorithm: concurrency, lease: 60s}
";

/// Far more than a store takes, however busy the machine is.
const PATIENT: [&str; 2] = ["--store-deadline", "20000"];

/// Runs `test` with a server in memory and with one on a real Redis.
fn everywhere(test: impl Fn(&Server)) {
    let rules = Rules::new(RULES);
    test(&Server::start(&["--rules", rules.path()]));
    let store = StoreServer::start(Kind::Redis);
    test(&Server::start(&[&["--rules", rules.path(), "--store", &store.url()], &PATIENT[..]].concat()));
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = server.connect_http().post(path, &body.to_string());
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}")))
}

/// Asks with redis-cli, which nobody here wrote.
fn resp(server: &Server, args: &[&str]) -> Value {
    let port = server.resp_port();
    let text = run(Command::new("redis-cli").args(["-p", &port, "-3", "--json"]).args(args));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn remaining(answer: &Value) -> Vec<u64> {
    let limits = answer["limits"].as_array().unwrap_or_else(|| panic!("limits in {answer}"));
    limits.iter().filter_map(|limit| limit["remaining"].as_u64()).collect()
}

#[test]
fn as_much_as_there_is_can_be_taken() {
    everywhere(|server| {
        let ask = |user: &str, cost: u64| json!({"domain": "api", "attributes": {"user": user}, "cost": cost});
        let (status, answer) = post(server, "/v1/take-up-to", &ask("a", 7));
        assert_eq!((status, &answer["taken"], remaining(&answer)), (200, &json!(4), vec![0, 6]), "{answer}");
        let (status, answer) = post(server, "/v1/take-up-to", &ask("a", 7));
        assert_eq!((status, &answer["taken"]), (429, &json!(0)), "{answer}");
        let answer = resp(server, &["TG.TAKEUPTO", "api", "9", "user", "b"]);
        assert_eq!((&answer["taken"], remaining(&answer)), (&json!(4), vec![0, 2]), "{answer}");
        let answer = resp(server, &["TG.DRAIN", "api", "user", "c"]);
        assert_eq!((&answer["taken"], remaining(&answer)), (&json!(2), vec![2, 0]), "{answer}");
        let (status, answer) = post(server, "/v1/drain", &json!({"domain": "api", "attributes": {"user": "c"}}));
        assert_eq!((status, &answer["taken"]), (429, &json!(0)), "{answer}");
        let (status, answer) = post(server, "/v1/take-up-to", &json!({"domain": "api"}));
        assert_eq!((status, &answer["pointer"]), (400, &json!("/cost")), "{answer}");
    });
}

#[test]
fn a_charge_is_taken_regardless() {
    everywhere(|server| {
        let ask = |cost: u64| json!({"domain": "api", "attributes": {"kind": "bytes"}, "cost": cost});
        let (status, answer) = post(server, "/v1/charge", &ask(120));
        assert_eq!((status, &answer["taken"]), (200, &json!(120)), "{answer}");
        assert_eq!(post(server, "/v1/check", &ask(1)).0, 429);
        let answer = resp(server, &["TG.CHARGE", "api", "30", "kind", "bytes"]);
        assert_eq!((&answer["allowed"], &answer["taken"]), (&json!(1), &json!(30)), "{answer}");
        let answer = resp(server, &["TG.CHARGE", "api", "1", "kind", "bytes"]);
        assert_eq!((&answer["allowed"], &answer["taken"]), (&json!(0), &json!(0)), "a debt of 51: {answer}");
    });
}
