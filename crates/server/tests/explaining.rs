//! Tests the tools with which operators understand a decision: explanations, the log, and peeks.
#![allow(clippy::unwrap_used)]

use crate::common;

use std::process::Command;

use common::eventually;
use common::{Folder, Rules, Server, run_program};
use serde_json::{Value, json};
use tollgate_testkit::servers::{Kind, Server as StoreServer};

const RULES: &str = "\
domain: api
rules:
- {id: login, when: {path: /login}, per: [ip], limit: 1/day, ban: {after: 1, within: 1h, for: 2 days}}
- {id: tries, when: {path: /tries}, per: [ip], limit: 1/h, ban: {after: 3, within: 1h, for: 2h}}
- {id: quota, when: {path: /v1}, per: [key], limit: 10k/month, algorithm: fixed_window, zone: Europe/Berlin,
   overrides: [{when: {plan: pro}, limit: 100k/month}, {when: {plan: enterprise}, unlimited: true}]}
";

/// A store deadline that is long enough even on a busy machine.
const LONG_STORE_DEADLINE: [&str; 2] = ["--store-deadline", "20000"];

/// Runs `test` with an in-memory server and with a server on a real Redis. Both servers log refusals.
fn on_every_store(test: impl Fn(&Server)) {
    let rules = Rules::new(RULES);
    let args = ["--rules", rules.path(), "--log-refusals", "1/s"];
    test(&Server::start(&args));
    let store = StoreServer::start(Kind::Redis);
    test(&Server::start(&[&args[..], &["--store", &store.url()], &LONG_STORE_DEADLINE[..]].concat()));
}

fn login_request(path: &str, ip: &str) -> Value {
    json!({"domain": "api", "attributes": {"path": path, "ip": ip}})
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = server.connect_http().post(path, &body.to_string());
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}")))
}

/// Runs the program as an operator of this server and returns its output.
fn run_tollgate(server: &Server, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output =
        command.args(args).env("TOLLGATE_SERVER", server.url("")).env_remove("TOLLGATE_TOKEN").output().unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn peek_reports_the_rule_and_length_of_a_ban() {
    let rules = Rules::new(
        "domain: api\nrules:\n\
         - {id: login, per: [ip], limit: 1/day, ban: {after: 1, within: 1h, for: 2h}}\n\
         - {id: pages, per: [ip], limit: 2/week}\n",
    );
    let server = Server::start(&["--rules", rules.path()]);
    let ask = json!({"domain": "api", "attributes": {"ip": "a"}});
    (0..2).for_each(|_| drop(post(&server, "/v1/check", &ask)));
    // When the peek is made, up to a second of the ban may have passed.
    let peeked = run_tollgate(&server, &["keys", "peek", "api", "ip=a"]).replace("1h 59m 59s", "2h");
    let lines: Vec<&str> = peeked.lines().collect();
    assert_eq!(
        lines[0], "the request is banned by login for another 2h; `tollgate keys reset` lifts the ban",
        "{peeked}"
    );
    assert!(lines[1].starts_with("the request would also be refused by login; it would pass in "), "{peeked}");
    // The limit of the banning rule is shown, because its wait is longer than the ban. The other rule's limit is always
    // shown.
    assert!(lines[3].starts_with("login  1 ") && lines[4].starts_with("pages  2 "), "{peeked}");
}

const BAN_MS: u64 = 2 * 86_400_000;

#[test]
fn refusal_that_starts_a_ban_reports_it_everywhere() {
    on_every_store(|server| {
        let wait_of_banned = |decision: &Value| {
            assert_eq!((&decision["rule"], &decision["standing"]), (&json!("login"), &json!("exact")), "{decision}");
            assert!(decision["banned"] == true || decision["banned"] == 1, "{decision}");
            decision["retry_after_ms"].as_u64().expect("a wait")
        };
        // The wait is the whole ban, minus the time that may pass between two clock readings.
        let assert_banned = |decision: &Value| {
            let wait = wait_of_banned(decision);
            assert!((BAN_MS - 60_000..=BAN_MS).contains(&wait), "{decision}");
        };
        let mine = login_request("/login", "a");
        assert_eq!(post(server, "/v1/check", &mine).0, 200);
        let (status, first) = post(server, "/v1/check", &mine);
        assert_eq!(status, 429);
        assert_banned(&first);
        let line = server.wait_for_line("INFO refused ");
        for expected in [
            "rule=\"login\" key=\"ip=a\" retry_after_ms=",
            "banned=true",
            "costs 1: banned, banned for ",
            "a refusal leads to a ban of 2d",
        ] {
            assert!(line.contains(expected), "no {expected} in\n{line}");
        }
        assert!(!line.contains(" left"), "{line}");

        let batch = json!([
            login_request("/login", "b"),
            login_request("/login", "b"),
            login_request("/login", "b"),
            login_request("/login", "c")
        ]);
        let (_, batch) = post(server, "/v1/check", &batch);
        assert_eq!((&batch[0]["allowed"], &batch[3]["allowed"]), (&json!(true), &json!(true)), "{batch}");
        assert_banned(&batch[1]);
        assert_banned(&batch[2]);

        let resp = |ip: &str| -> Value {
            let args = ["-p", &server.resp_port(), "-3", "--json", "TG.CHECK", "api", "1", "path", "/login", "ip", ip];
            serde_json::from_str(&run_program(Command::new("redis-cli").args(args))).unwrap()
        };
        assert_eq!(resp("d")["allowed"], 1);
        assert_banned(&resp("d"));
    });
}

#[test]
fn explanation_of_a_banned_key_says_until_when() {
    on_every_store(|server| {
        let ask = login_request("/tries", "a");
        (0..3).for_each(|_| drop(post(server, "/v1/check", &ask)));
        let explain = || run_tollgate(server, &["explain", "api", "path=/tries", "ip=a"]);
        let output = explain();
        assert!(
            output.contains("not banned: 2 of 3 refusals within 1h that lead to a ban of 2h\n    1/h: 0 of 1"),
            "{output}"
        );
        let (_, met) = post(server, "/v1/explain", &ask);
        assert_eq!(
            met["rules"][0]["ban"],
            json!({"after": 3, "within_ms": 3_600_000, "for_ms": 7_200_000, "refusals": 2}),
            "{met}"
        );
        post(server, "/v1/check", &ask);
        let output = explain();
        // Shortly after the ban begins, the remaining time may be shown as a second less than two hours.
        let two_hours = |text: &str| text.replace("1h 59m 59s", "2h");
        let output = two_hours(&output);
        assert!(output.starts_with("refused for 2h, by `tries`, banned until 20"), "{output}");
        assert!(output.contains("banned for 2h more, until 20") && !output.contains(" left"), "{output}");
        let (_, met) = post(server, "/v1/explain", &ask);
        let ban = &met["rules"][0]["ban"];
        assert!(ban["left_ms"].as_u64().is_some_and(|left| left <= 7_200_000 && left > 7_100_000), "{met}");
        assert_eq!(met["rules"][0]["banned"], true);
        let peeked = run_tollgate(server, &["keys", "peek", "api", "path=/tries", "ip=a"]);
        assert_eq!(
            two_hours(&peeked),
            "the request is banned by tries for another 2h; `tollgate keys reset` lifts the ban\n"
        );
        run_tollgate(server, &["keys", "reset", "api", "path=/tries", "ip=a"]);
        let peeked = run_tollgate(server, &["keys", "peek", "api", "path=/tries", "ip=a"]);
        assert!(peeked.starts_with("the request would pass\n"), "{peeked}");
    });
}

#[test]
fn refusal_log_hides_values_as_configured() {
    let rules = Rules::new(
        "domain: api\nrules:\n\
         - {id: r, per: [client], limit: 9/h, overrides: [{when: {client: secret}, limit: 1/day}]}\n",
    );
    for names in ["hashed", "off"] {
        let server = Server::start(&["--rules", rules.path(), "--log-refusals", "1/s", "--top-keys", names]);
        let ask = json!({"domain": "api", "attributes": {"client": "secret"}});
        (0..2).for_each(|_| drop(post(&server, "/v1/check", &ask)));
        let line = server.wait_for_line("INFO refused ");
        assert!(line.contains("by override ") && !line.contains("secret"), "{line}");
    }
}

#[test]
fn explanation_names_calendars_and_overrides() {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let ask = |plan: &str| {
        let body = json!({"domain": "api", "attributes": {"path": "/v1", "key": "k", "plan": plan}});
        post(&server, "/v1/explain", &body).1["rules"][0].clone()
    };
    let free = ask("free");
    let limit = &free["limits"][0];
    assert_eq!(
        (&limit["written"], &limit["zone"]),
        (&json!("10k/month, fixed_window"), &json!("Europe/Berlin")),
        "{free}"
    );
    let (began, resets) = (limit["began"].as_str().unwrap(), limit["resets"].as_str().unwrap());
    assert!(began.contains("-01T00:00+0") && resets.contains("-01T00:00+0") && began < resets, "{free}");
    assert_eq!(
        (&free["overrides"]["applies"], &free["overrides"]["skipped"][1]["found"]),
        (&Value::Null, &json!(["free"]))
    );
    let pro = ask("pro");
    assert_eq!((&pro["why"], &pro["limits"][0]["limit"]), (&json!("overrides"), &json!(100_000)), "{pro}");
    let applies = &pro["overrides"]["applies"];
    assert_eq!((&applies["when"], &applies["until"]), (&json!(["plan is \"pro\""]), &Value::Null), "{pro}");
    assert!(applies["position"].as_str().unwrap().ends_with(":6:16"), "{pro}");
    assert_eq!(ask("enterprise")["why"], "unlimited");
    let (_, own) = post(&server, "/v1/explain", &json!({"key": "alice", "limit": "3/m"}));
    assert_eq!((&own["rule"], &own["rules"][0]["counted_by"]), (&Value::Null, &json!({"key": "alice"})), "{own}");
    // With `--rules`, the decision of a rule file is explained without a server.
    let output = run_tollgate(&server, &["explain", "--rules", rules.path(), "api", "path=/v1", "plan=enterprise"]);
    assert!(
        output.contains("\n    unlimited by override ") && output.contains(", because plan is \"enterprise\"\n"),
        "{output}"
    );
}

#[test]
fn explanation_names_revision_and_override_value() {
    let (folder, rules) = (Folder::new(), Rules::new(RULES));
    let server = Server::start(&["--data", &folder.join("data"), "--tokens", "none"]);
    run_tollgate(&server, &["rules", "apply", "--yes", rules.path()]);
    let set =
        ["rules", "overrides", "set", "api", "quota", "acme", "--limit", "7/month", "--until", "2040-01-01T00:00:00Z"];
    run_tollgate(&server, &set);
    let ask = || run_tollgate(&server, &["explain", "api", "path=/v1", "key=acme", "plan=pro"]);
    eventually("the override is in force", || ask().contains("by override \"acme\""));
    let output = ask();
    let expected = "\n    by override \"acme\", set through the API, because key is \"acme\", until 2040-01-01T00:00Z\n    \
                    2 more after it, not evaluated\n    7/month, fixed_window: 7 of 7 left, calendar of Europe/Berlin";
    assert!(output.contains("+ quota (revision ") && output.contains(expected), "{output}");
    let output = run_tollgate(&server, &["explain", "api", "path=/v1", "key=other", "plan=pro"]);
    let expected = "\n    by override 1 of the rule, because plan is \"pro\"\n    \
                    overrides set through the API for other values of key: 1\n    1 more after it, not evaluated\n";
    assert!(output.contains(expected), "{output}");
}
