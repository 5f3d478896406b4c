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

#[test]
fn a_decision_is_explained_and_nothing_taken() {
    everywhere(|server| {
        let ask = json!({"domain": "api", "attributes": {"user": "a", "kind": "other"}});
        assert_eq!(post(server, "/v1/check", &ask).0, 200);
        for _ in 0..9 {
            let (status, told) = post(server, "/v1/explain", &ask);
            assert_eq!((status, &told["allowed"], &told["rule"]), (200, &json!(true), &json!("mine")), "{told}");
            let (mine, bytes) = (&told["rules"][0], &told["rules"][2]);
            assert_eq!((&mine["counted_by"]["user"], &mine["limits"][0]["remaining"]), (&json!("a"), &json!(3)));
            assert_eq!(
                (&bytes["rule"], &bytes["met"], &bytes["found"]),
                (&json!("bytes"), &json!(false), &json!(["other"]))
            );
        }
        let text = resp(server, &["TG.EXPLAIN", "api", "5", "user", "a"]);
        let text = text.as_str().expect("a text");
        assert!(
            text.starts_with("refused, whenever it comes, by `mine`\n+ mine (") && text.contains("\n- slots ("),
            "{text}"
        );
        let program = env!("CARGO_BIN_EXE_tollgate");
        let args = ["explain", "--server", &server.url("/"), "api", "user=a"];
        let told = run(Command::new(program).args(args));
        assert!(told.contains("met, counted by user = \"a\", weighs 1\n    3 of 4 left"), "{told}");
    });
}

#[test]
fn a_rule_file_is_explained_without_a_server() {
    let rules = Rules::new(RULES);
    let explain = |args: &[&str]| {
        let program = env!("CARGO_BIN_EXE_tollgate");
        Command::new(program).arg("explain").args(args).output().expect("the program runs")
    };
    let told = explain(&["--rules", rules.path(), "api", "user=a"]);
    let text = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success() && text.contains("4 of 4 left for 86400s"), "{text}");
    for (args, error) in [
        (&["--rules", rules.path(), "none"][..], "there are no rules for the domain `none`"),
        (&["--rules", rules.path(), "api", "user"], "`user` is no attribute"),
        (&["api", "user=a"], "give the rules with --rules FILE"),
        (&["--server", "http://127.0.0.1:1", "api"], "cannot ask http://127.0.0.1:1"),
    ] {
        let told = explain(args);
        let text = String::from_utf8_lossy(&told.stderr);
        assert!(!told.status.success() && text.contains(error), "{args:?}: {text}");
    }
}

#[test]
fn a_reservation_is_committed_or_cancelled() {
    everywhere(|server| {
        let ask = |cost: u64| json!({"domain": "api", "attributes": {"kind": "bytes"}, "cost": cost});
        let left = || remaining(&post(server, "/v1/peek", &ask(1)).1)[0];
        let (status, reserved) = post(server, "/v1/reserve", &ask(40));
        assert_eq!((status, left()), (200, 60), "{reserved}");
        let (status, settled) = post(server, "/v1/commit", &json!({"receipt": reserved["receipt"], "cost": 25}));
        assert_eq!((status, settled), (200, json!({"refunded": 15, "charged": 0, "unpaid": 0})));
        assert_eq!(left(), 75);
        let reserved = resp(server, &["TG.RESERVE", "api", "5", "kind", "bytes"]);
        let receipt = reserved["receipt"].as_str().expect("a receipt");
        assert_eq!(resp(server, &["TG.COMMIT", receipt, "15"]), json!({"refunded": 0, "charged": 10, "unpaid": 0}));
        assert_eq!(left(), 60);
        let receipt = post(server, "/v1/reserve", &ask(10)).1["receipt"].clone();
        assert_eq!(post(server, "/v1/cancel", &json!({"receipt": receipt})).1, json!({"refunded": 10}));
        let reserved = resp(server, &["TG.RESERVE", "api", "5", "kind", "bytes"]);
        assert_eq!(resp(server, &["TG.CANCEL", reserved["receipt"].as_str().expect("a receipt")]), json!(5));
        assert_eq!(left(), 60);
        let (status, problem) = post(server, "/v1/commit", &json!({"receipt": receipt}));
        assert_eq!((status, &problem["pointer"]), (400, &json!("/cost")), "{problem}");
        let mut client = server.connect_resp();
        client.send("TG.COMMIT x 1\r\nTG.CANCEL\r\nPING\r\n");
        client.expect("-ERR this is not a receipt; send what tg.reserve gave under `receipt`\r\n");
        client.expect("-ERR usage: tg.cancel <receipt>\r\n+PONG\r\n");
    });
}

#[test]
fn a_slot_is_released_by_its_receipt() {
    everywhere(|server| {
        let ask = json!({"domain": "api", "attributes": {"kind": "slots"}});
        let (status, taken) = post(server, "/v1/reserve", &ask);
        assert_eq!((status, post(server, "/v1/check", &ask).0), (200, 429));
        assert_eq!(post(server, "/v1/release", &json!({"receipt": taken["receipt"]})).1, json!({"refunded": 1}));
        let taken = resp(server, &["TG.RESERVE", "api", "1", "kind", "slots"]);
        assert_eq!(taken["allowed"], 1, "{taken}");
        let receipt = taken["receipt"].as_str().expect("a receipt");
        assert_eq!(resp(server, &["TG.RELEASE", receipt]), json!(1));
        assert_eq!(resp(server, &["TG.RELEASE", receipt]), json!(0), "it is given back once");
    });
}
