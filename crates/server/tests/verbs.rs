//! Every verb gives the same answers over HTTP and over the Redis protocol, in memory and on a real Redis.

use crate::common;

use std::process::Command;

use common::{Rules, Server, eventually, run_program};
use serde_json::{Value, json};
use tollgate_testkit::servers::{Kind, Server as StoreServer};

/// The limits have long periods, so that the duration of a test does not matter.
const RULES: &str = "\
domain: api
rules:
- {id: mine, when: {user: '*'}, per: [user], limit: 4/day}
- {id: all, when: {user: '*'}, limit: 10/week, algorithm: sliding_log}
- {id: bytes, when: {kind: bytes}, limit: 100/day, algorithm: fixed_window, max_debt: 50}
- {id: slots, when: {kind: slots}, limit: 1, algorithm: concurrency, lease: 60s}
- {id: free, when: {kind: free}, unlimited: true}
";

/// A store deadline that is long enough even on a busy machine.
const LONG_STORE_DEADLINE: [&str; 2] = ["--store-deadline", "20000"];

/// Runs `test` with an in-memory server and with a server on a real Redis.
fn on_every_store(test: impl Fn(&Server)) {
    let rules = Rules::new(RULES);
    test(&Server::start(&["--rules", rules.path()]));
    let store = StoreServer::start(Kind::Redis);
    test(&Server::start(&[&["--rules", rules.path(), "--store", &store.url()], &LONG_STORE_DEADLINE[..]].concat()));
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = server.connect_http().post(path, &body.to_string());
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}")))
}

/// Sends a command with redis-cli, a third-party client.
fn run_redis_cli(server: &Server, args: &[&str]) -> Value {
    ask_resp(&server.resp_port(), args)
}

fn ask_resp(port: &str, args: &[&str]) -> Value {
    let text = run_program(Command::new("redis-cli").args(["-p", port, "-3", "--json"]).args(args));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn remaining_of(answer: &Value) -> Vec<u64> {
    let limits = answer["limits"].as_array().unwrap_or_else(|| panic!("limits in {answer}"));
    limits.iter().filter_map(|limit| limit["remaining"].as_u64()).collect()
}

#[test]
fn take_up_to_takes_what_is_available() {
    on_every_store(|server| {
        let ask = |user: &str, cost: u64| json!({"domain": "api", "attributes": {"user": user}, "cost": cost});
        let (status, answer) = post(server, "/v1/take-up-to", &ask("a", 7));
        assert_eq!((status, &answer["taken"], remaining_of(&answer)), (200, &json!(4), vec![0, 6]), "{answer}");
        let (status, answer) = post(server, "/v1/take-up-to", &ask("a", 7));
        assert_eq!((status, &answer["taken"]), (429, &json!(0)), "{answer}");
        let answer = run_redis_cli(server, &["TG.TAKEUPTO", "api", "9", "user", "b"]);
        assert_eq!((&answer["taken"], remaining_of(&answer)), (&json!(4), vec![0, 2]), "{answer}");
        let answer = run_redis_cli(server, &["TG.DRAIN", "api", "user", "c"]);
        assert_eq!((&answer["taken"], remaining_of(&answer)), (&json!(2), vec![2, 0]), "{answer}");
        let (status, answer) = post(server, "/v1/drain", &json!({"domain": "api", "attributes": {"user": "c"}}));
        assert_eq!((status, &answer["taken"]), (429, &json!(0)), "{answer}");
        let (status, answer) = post(server, "/v1/take-up-to", &json!({"domain": "api"}));
        assert_eq!((status, &answer["pointer"]), (400, &json!("/cost")), "{answer}");
    });
}

#[test]
fn drain_of_uncounted_request_takes_zero_and_reports_it() {
    on_every_store(|server| {
        for kind in ["free", "unknown"] {
            let (status, answer) = post(server, "/v1/drain", &json!({"domain": "api", "attributes": {"kind": kind}}));
            assert_eq!(
                (status, &answer["allowed"], &answer["taken"], &answer["counted"]),
                (200, &json!(true), &json!(0), &json!(false)),
                "{answer}"
            );
            let answer = run_redis_cli(server, &["TG.DRAIN", "api", "kind", kind]);
            assert_eq!(
                (&answer["allowed"], &answer["taken"], &answer["counted"]),
                (&json!(1), &json!(0), &json!(0)),
                "{answer}"
            );
        }
        let answer = run_redis_cli(server, &["TG.DRAIN", "api", "kind", "slots"]);
        assert_eq!((&answer["taken"], &answer["counted"]), (&json!(1), &Value::Null), "{answer}");
    });
}

/// Rules with their own cost.
const RULES_WITH_COSTS: &str = "\
domain: api
rules:
- {id: fixed, when: {kind: fixed}, per: [user], limit: 10/day, max_debt: 10, algorithm: fixed_window, cost: 3}
- {id: sent, when: {kind: sent}, per: [user], limit: 10/day, max_debt: 10, algorithm: fixed_window, cost: {from: weight, max: 4}}
";

#[test]
fn dash_leaves_the_cost_to_the_rules_over_the_redis_protocol() {
    let rules = Rules::new(RULES_WITH_COSTS);
    let server = &Server::start(&["--rules", rules.path()]);
    for command in ["TG.CHECK", "TG.RESERVE", "TG.ACQUIRE", "TG.PEEK"] {
        let wait = if command == "TG.ACQUIRE" { &["0"][..] } else { &[] };
        let user = ["user", command];
        let after = if command == "TG.PEEK" { (10, 10) } else { (7, 6) };
        let fixed = run_redis_cli(server, &[&[command, "api", "-"], wait, &["kind", "fixed"], &user].concat());
        let sent =
            run_redis_cli(server, &[&[command, "api", "-"], wait, &["kind", "sent", "weight", "9"], &user].concat());
        assert_eq!((remaining_of(&fixed), remaining_of(&sent)), (vec![after.0], vec![after.1]), "{command}");
    }
    // A dash instead of a cost is equivalent to an HTTP request without a cost. A number is the cost, as over HTTP.
    let ask = json!({"domain": "api", "attributes": {"kind": "fixed", "user": "TG.CHECK"}});
    assert_eq!(remaining_of(&post(server, "/v1/check", &ask).1), [4]);
    assert_eq!(
        remaining_of(&run_redis_cli(server, &["TG.CHECK", "api", "1", "kind", "fixed", "user", "TG.CHECK"])),
        [3]
    );
    let output = run_redis_cli(server, &["TG.EXPLAIN", "api", "-", "kind", "fixed", "user", "TG.CHECK"]);
    assert!(output.as_str().is_some_and(|output| output.contains("costs 3")), "{output}");
    assert_eq!(run_redis_cli(server, &["TG.RESET", "api", "-", "kind", "fixed", "user", "TG.CHECK"]), json!(1));
    let once = ["TG.CHECK", "api", "-", "ONCE", "k", "kind", "fixed", "user", "TG.CHECK"];
    assert_eq!(
        (remaining_of(&run_redis_cli(server, &once)), remaining_of(&run_redis_cli(server, &once))),
        (vec![7], vec![7])
    );
    assert_eq!(
        remaining_of(&run_redis_cli(server, &["TG.CHARGE", "api", "-", "kind", "fixed", "user", "charged"])),
        [7]
    );
    // `TG.TAKEUPTO` needs a cost. A cost that is neither a number nor a dash is an error.
    let mut client = server.connect_resp();
    client.send("TG.TAKEUPTO api - kind fixed user x\r\nTG.CHECK api --\r\nTG.COMMIT x 1\r\nPING\r\n");
    client.expect("-ERR missing cost: the maximum amount to take\r\n");
    client.expect("-ERR the cost '--' is not a non-negative integer, such as 1, or - to use the cost of the rules\r\n");
    client.expect("-ERR not a receipt; send the `receipt` of a decision unchanged\r\n+PONG\r\n");
}

#[test]
fn charge_is_taken_up_to_the_maximum_debt() {
    on_every_store(|server| {
        let ask = |cost: u64| json!({"domain": "api", "attributes": {"kind": "bytes"}, "cost": cost});
        let (status, answer) = post(server, "/v1/charge", &ask(120));
        assert_eq!((status, &answer["taken"]), (200, &json!(120)), "{answer}");
        assert_eq!(post(server, "/v1/check", &ask(1)).0, 429);
        let answer = run_redis_cli(server, &["TG.CHARGE", "api", "30", "kind", "bytes"]);
        assert_eq!((&answer["allowed"], &answer["taken"]), (&json!(1), &json!(30)), "{answer}");
        let answer = run_redis_cli(server, &["TG.CHARGE", "api", "1", "kind", "bytes"]);
        assert_eq!((&answer["allowed"], &answer["taken"]), (&json!(0), &json!(0)), "a debt of 51: {answer}");
    });
}

#[test]
fn explain_takes_nothing() {
    on_every_store(|server| {
        let ask = json!({"domain": "api", "attributes": {"user": "a", "kind": "other"}});
        assert_eq!(post(server, "/v1/check", &ask).0, 200);
        for _ in 0..9 {
            let (status, output) = post(server, "/v1/explain", &ask);
            assert_eq!((status, &output["allowed"], &output["rule"]), (200, &json!(true), &json!("mine")), "{output}");
            let (mine, bytes) = (&output["rules"][0], &output["rules"][2]);
            assert_eq!((&mine["counted_by"]["user"], &mine["limits"][0]["remaining"]), (&json!("a"), &json!(3)));
            assert_eq!(
                (&bytes["rule"], &bytes["matches"], &bytes["found"]),
                (&json!("bytes"), &json!(false), &json!(["other"]))
            );
        }
        let text = run_redis_cli(server, &["TG.EXPLAIN", "api", "5", "user", "a"]);
        let text = text.as_str().expect("a text");
        assert!(text.starts_with("always refused, by `mine`\n+ mine (") && text.contains("\n- slots ("), "{text}");
        let program = env!("CARGO_BIN_EXE_tollgate");
        let args = ["explain", "--server", &server.url("/"), "api", "user=a"];
        let output = run_program(Command::new(program).args(args));
        assert!(output.contains("matches, counted by user = \"a\", costs 1\n    4/day: 3 of 4 left"), "{output}");
    });
}

#[test]
fn rule_file_is_explained_without_a_server() {
    let rules = Rules::new(RULES);
    let explain = |args: &[&str]| {
        let program = env!("CARGO_BIN_EXE_tollgate");
        Command::new(program).arg("explain").args(args).output().expect("the program runs")
    };
    let output = explain(&["--rules", rules.path(), "api", "user=a"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("4/day: 4 of 4 left\n"), "{text}");
    for (args, error) in [
        (&["--rules", rules.path(), "none"][..], "unknown domain `none`"),
        (
            &["--rules", rules.path(), "user=a"],
            "unknown domain `user=a`; the domain comes first, then the attributes: DOMAIN user=a",
        ),
        (&["--rules", rules.path(), "api", "user"], "`user` is not an attribute"),
        (&["--server", "http://127.0.0.1:1", "api"], "cannot reach http://127.0.0.1:1"),
    ] {
        let output = explain(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(error), "{args:?}: {text}");
    }
}

#[test]
fn reservation_is_committed_or_cancelled() {
    on_every_store(|server| {
        let ask = |cost: u64| json!({"domain": "api", "attributes": {"kind": "bytes"}, "cost": cost});
        let left = || remaining_of(&post(server, "/v1/peek", &ask(1)).1)[0];
        let (status, reserved) = post(server, "/v1/reserve", &ask(40));
        assert_eq!((status, left()), (200, 60), "{reserved}");
        let (status, settled) = post(server, "/v1/commit", &json!({"receipt": reserved["receipt"], "cost": 25}));
        assert_eq!((status, settled), (200, json!({"refunded": 15, "charged": 0, "unpaid": 0})));
        assert_eq!(left(), 75);
        let reserved = run_redis_cli(server, &["TG.RESERVE", "api", "5", "kind", "bytes"]);
        let receipt = reserved["receipt"].as_str().expect("a receipt");
        assert_eq!(
            run_redis_cli(server, &["TG.COMMIT", receipt, "15"]),
            json!({"refunded": 0, "charged": 10, "unpaid": 0})
        );
        assert_eq!(left(), 60);
        let receipt = post(server, "/v1/reserve", &ask(10)).1["receipt"].clone();
        assert_eq!(post(server, "/v1/cancel", &json!({"receipt": receipt})).1, json!({"refunded": 10}));
        let reserved = run_redis_cli(server, &["TG.RESERVE", "api", "5", "kind", "bytes"]);
        assert_eq!(run_redis_cli(server, &["TG.CANCEL", reserved["receipt"].as_str().expect("a receipt")]), json!(5));
        assert_eq!(left(), 60);
        let (status, problem) = post(server, "/v1/commit", &json!({"receipt": receipt}));
        assert_eq!((status, &problem["pointer"]), (400, &json!("/cost")), "{problem}");
        // Fields that would be ignored are refused.
        let (status, problem) = post(server, "/v1/refund", &json!({"receipt": receipt, "cost": 1}));
        assert_eq!((status, &problem["pointer"]), (400, &json!("/cost")), "{problem}");
        let (status, problem) = post(server, "/v1/commit", &json!({"receipt": receipt, "cost": 1, "domain": "api"}));
        assert_eq!((status, &problem["pointer"]), (400, &json!("/domain")), "{problem}");
        let mut client = server.connect_resp();
        client.send("TG.COMMIT x 1\r\nTG.CANCEL\r\nPING\r\n");
        client.expect("-ERR not a receipt; send the `receipt` of a decision unchanged\r\n");
        client.expect("-ERR usage: tg.cancel <receipt> [ONCE <key>]\r\n+PONG\r\n");
    });
}

#[test]
fn slot_is_renewed_and_released_by_its_receipt() {
    on_every_store(|server| {
        let ask = json!({"domain": "api", "attributes": {"kind": "slots"}});
        let (status, taken) = post(server, "/v1/reserve", &ask);
        assert_eq!((status, post(server, "/v1/check", &ask).0), (200, 429));
        assert_eq!(post(server, "/v1/renew", &json!({"receipt": taken["receipt"]})).1, json!({"renewed": true}));
        assert_eq!(post(server, "/v1/release", &json!({"receipt": taken["receipt"]})).1, json!({"refunded": 1}));
        let taken = run_redis_cli(server, &["TG.RESERVE", "api", "1", "kind", "slots"]);
        assert_eq!(taken["allowed"], 1, "{taken}");
        let receipt = taken["receipt"].as_str().expect("a receipt");
        assert_eq!(run_redis_cli(server, &["TG.RENEW", receipt]), json!(1));
        assert_eq!(run_redis_cli(server, &["TG.RELEASE", receipt]), json!(1));
        assert_eq!(run_redis_cli(server, &["TG.RENEW", receipt]), json!(0), "the slot is free");
        assert_eq!(run_redis_cli(server, &["TG.RELEASE", receipt]), json!(0), "the slot is released only once");
    });
}

#[test]
fn acquire_waits_until_a_slot_is_released() {
    on_every_store(|server| {
        let ask = json!({"domain": "api", "attributes": {"kind": "slots"}, "wait_ms": 20_000});
        let (status, first) = post(server, "/v1/acquire", &ask);
        assert_eq!(status, 200, "{first}");
        let (mut client, body) = (server.connect_http(), ask.to_string());
        let waiter = std::thread::spawn(move || client.post("/v1/acquire", &body));
        wait_until_waiting(server, 1);
        assert_eq!(post(server, "/v1/release", &json!({"receipt": first["receipt"]})).0, 200);
        let (status, second) = waiter.join().expect("an answer");
        assert_eq!(status, 200, "{second}");
        let second: Value = serde_json::from_str(&second).expect("JSON");
        let port = server.resp_port();
        let waiter = std::thread::spawn(move || ask_resp(&port, &["TG.ACQUIRE", "api", "1", "20000", "kind", "slots"]));
        wait_until_waiting(server, 1);
        assert_eq!(post(server, "/v1/release", &json!({"receipt": second["receipt"]})).0, 200);
        let third = waiter.join().expect("an answer");
        assert_eq!(third["allowed"], 1, "{third}");
        let refused = run_redis_cli(server, &["TG.ACQUIRE", "api", "1", "50", "kind", "slots"]);
        assert_eq!(refused["allowed"], 0, "{refused}");
        // A client that disconnects does not take a slot that is released afterwards.
        let (mut http, mut other) = (server.connect_http(), server.connect_resp());
        let body = ask.to_string();
        http.send(format!(
            "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
        other.send("TG.ACQUIRE api 1 20000 kind slots\r\n");
        wait_until_waiting(server, 2);
        drop((http, other));
        wait_until_waiting(server, 0);
        assert_eq!(run_redis_cli(server, &["TG.RELEASE", third["receipt"].as_str().expect("a receipt")]), json!(1));
        assert_eq!(post(server, "/v1/acquire", &ask).0, 200);
    });
    let server = Server::start(&[]);
    for (body, pointer) in [
        (json!({"key": "k", "limit": "1/s"}), "/wait_ms"),
        (json!({"key": "k", "limit": "1/s", "wait_ms": 60_001}), "/wait_ms"),
    ] {
        let (status, problem) = post(&server, "/v1/acquire", &body);
        assert_eq!((status, &problem["pointer"]), (400, &json!(pointer)), "{problem}");
    }
    assert_eq!(post(&server, "/v1/check", &json!({"key": "k", "limit": "1/s", "wait_ms": 1})).0, 400);
}

/// Waits until `count` requests are waiting.
fn wait_until_waiting(server: &Server, count: usize) {
    let line = format!("tollgate_waiting {count}");
    eventually(&line, || {
        run_program(Command::new("curl").args(["-s", &server.url("/metrics")])).lines().any(|found| found == line)
    });
}

#[test]
fn repeated_request_with_an_idempotency_key_is_charged_once() {
    on_every_store(|server| {
        let ask = |key: &str, path: &str, cost: u64| {
            let body = json!({"domain": "api", "attributes": {"user": "k"}, "cost": cost}).to_string();
            let key = format!("idempotency-key: {key}");
            run_program(Command::new("curl").args(["-s", "-i", "-H", &key, "-d", &body, &server.url(path)]))
        };
        let (first, again) = (ask("one", "/v1/check", 3), ask("one", "/v1/check", 3));
        let body = |text: &str| text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        assert!(first.starts_with("HTTP/1.1 200") && !first.contains("idempotency-replayed"), "{first}");
        assert!(again.starts_with("HTTP/1.1 200") && again.contains("idempotency-replayed: true"), "{again}");
        assert_eq!(body(&first), body(&again));
        assert!(ask("one", "/v1/check", 2).starts_with("HTTP/1.1 422"), "another request under the same key");
        assert!(ask("one", "/v1/charge", 3).starts_with("HTTP/1.1 422"), "another verb under the same key");
        assert!(ask("two", "/v1/check", 1).starts_with("HTTP/1.1 200"));
        // A refusal takes nothing, so it is not stored under the idempotency key.
        assert!(ask("three", "/v1/check", 1).starts_with("HTTP/1.1 429"));
        assert_eq!(post(server, "/v1/reset", &json!({"domain": "api", "attributes": {"user": "k"}})).0, 200);
        assert!(ask("three", "/v1/check", 1).starts_with("HTTP/1.1 200"));
        assert!(ask(&"x".repeat(256), "/v1/check", 1).starts_with("HTTP/1.1 400"));
    });
}

#[test]
fn repeated_command_with_an_idempotency_key_runs_once() {
    on_every_store(|server| {
        let ask = |args: &str| run_redis_cli(server, &args.split(' ').collect::<Vec<_>>());
        let twice = |args: &str| {
            let (first, mut again) = (ask(args), ask(args));
            assert_eq!(first.get("replayed"), None, "{first}");
            let mark = again.as_object_mut().and_then(|map| map.remove("replayed"));
            assert_eq!((mark, &again), (Some(json!(1)), &first), "{args}");
            first
        };
        twice("TG.CHECK api 1 ONCE check user k");
        twice("TG.TAKEUPTO api 1 ONCE take user k");
        assert_eq!(remaining_of(&ask("TG.PEEK api 1 user k")), [2, 8]);
        twice("TG.DRAIN api ONCE drain user k");
        twice("TG.CHARGE api 20 ONCE charge kind bytes");
        let reserved = twice("TG.RESERVE api 30 ONCE reserve kind bytes");
        let receipt = reserved["receipt"].as_str().expect("a receipt");
        twice(&format!("TG.COMMIT {receipt} 10 ONCE commit"));
        assert_eq!(
            remaining_of(&ask("TG.PEEK api 1 ONCE charge kind bytes")),
            [70],
            "a peek takes nothing, so it ignores the idempotency key"
        );
        let taken = twice("TG.ACQUIRE api 1 0 ONCE acquire kind slots");
        let give_back = format!("TG.RELEASE {} ONCE release", taken["receipt"].as_str().expect("a receipt"));
        assert_eq!(
            (ask(&give_back), ask(&give_back)),
            (json!(1), json!(1)),
            "numbers cannot contain a `replayed` mark"
        );

        // A refusal takes nothing, so it is not stored under the idempotency key.
        assert_eq!(ask("TG.CHECK api 1 ONCE later user k")["allowed"], json!(0));
        assert_eq!(ask("TG.RESET api 1 user k"), json!(2));
        assert_eq!(ask("TG.CHECK api 1 ONCE later user k")["allowed"], json!(1));
        let mut client = server.connect_resp();
        let long = "x".repeat(256);
        client.send(format!(
            "TG.CHECK api 2 ONCE check user k\r\nTG.CHECK api 1 ONCE {long} user k\r\nTG.CHECK api 1 ONCE\r\n"
        ));
        client.expect("-ERR this idempotency key was used with another request; use a new key for each request\r\n");
        client.expect("-ERR an idempotency key must have 1 to 255 bytes\r\n-ERR usage: tg.check ");
        // Both protocols share one table of idempotency keys.
        let header = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "idempotency-key: check"];
        let output = run_program(Command::new("curl").args(header).args(["-d", "{}", &server.url("/v1/check")]));
        assert_eq!(output, "422");
        let metrics = run_program(Command::new("curl").args(["-s", &server.url("/metrics")]));
        assert!(metrics.contains("\ntollgate_idempotency_keys 9\n"), "{metrics}");
        assert!(metrics.contains("\ntollgate_idempotency_replays_total 8\n"), "{metrics}");
    });
}

#[test]
fn idempotency_key_used_twice_in_a_pipeline_is_charged_once() {
    on_every_store(|server| {
        let mut client = server.connect_resp();
        client.send("HELLO 3\r\n");
        while client.line() != "*0" {}
        client.send(
            "TG.CHECK api 1 ONCE a user p\r\nTG.CHECK api 1 ONCE a user p\r\nTG.CHECK api 1 ONCE b user p\r\nPING\r\n",
        );
        let mut sizes = Vec::new();
        loop {
            match client.line() {
                line if line == "+PONG" => break,
                line if line.starts_with('%') => sizes.push(line),
                _ => {}
            }
        }
        assert_eq!(sizes, ["%6", "%5", "%5", "%7", "%5", "%5", "%6", "%5", "%5"]);
        assert_eq!(remaining_of(&run_redis_cli(server, &["TG.PEEK", "api", "1", "user", "p"])), [2, 8]);
    });
}

#[test]
fn heaviest_keys_are_listed_by_rule() {
    on_every_store(|server| {
        for (user, times) in [("heavy", 6), ("light", 1)] {
            for _ in 0..times {
                post(server, "/v1/check", &json!({"domain": "api", "attributes": {"user": user}}));
            }
        }
        let long = "x".repeat(5_000);
        post(server, "/v1/check", &json!({"domain": "api", "attributes": {"user": long}}));
        let output = run_program(Command::new("curl").args(["-s", &server.url("/v1/top")]));
        let output: Value = serde_json::from_str(&output).expect("JSON");
        let mine = output["rules"].as_array().and_then(|rules| rules.iter().find(|rule| rule["rule"] == "mine"));
        let mine = mine.unwrap_or_else(|| panic!("no rule in {output}"));
        assert_eq!(mine["charged"][0], json!({"key": "user=heavy", "count": 4, "error": 0}), "{mine}");
        assert_eq!(mine["refused"], json!([{"key": "user=heavy", "count": 2, "error": 0}]), "{mine}");
        let longest = mine["charged"]
            .as_array()
            .and_then(|keys| keys.iter().map(|key| key["key"].as_str()?.chars().count().into()).max().flatten());
        assert_eq!(longest, Some(128));
    });
    let server = Server::start(&["--top-keys", "hashed"]);
    post(&server, "/v1/check", &json!({"key": "secret", "limit": "1/s"}));
    let output = run_program(Command::new("curl").args(["-s", &server.url("/v1/top")]));
    assert!(output.contains("\"#") && !output.contains("secret"), "{output}");
}
