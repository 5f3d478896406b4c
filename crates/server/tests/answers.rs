//! Decisions are reported in the same way over HTTP, over the Redis protocol and in the log.

use crate::common;

use std::process::Command;

use common::{Rules, Server, run_program};
use serde_json::{Value, json};
use tollgate_testkit::servers::{Kind, Server as StoreServer};

/// The limits have long periods, so that the duration of a test does not matter.
const RULES: &str = "\
domain: api
rules:
- {id: silent, when: {kind: silent}, limit: 1/day, on_exceed: drop}
- {id: paid, when: {kind: paid}, per: [user], limit: 1/day, status: 402, message: 'buy \"more\"'}
- {id: shadow, when: {kind: shadow}, limit: 1/day, on_exceed: shadow}
- {id: slow, when: {kind: slow}, limit: 1/h, burst: 1, on_exceed: {delay: {max_wait: 9h}}}
- {id: banned, when: {kind: banned}, limit: 1/day, ban: {after: 1, within: 1h, for: 2 days}}
- {id: held, when: {kind: held}, limit: 1, algorithm: concurrency}
- {id: closed, when: {kind: closed}, limit: 1/day, on_fault: closed, status: 402, message: exceeded}
- {id: local, when: {kind: local}, limit: 1/day}
";

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = server.connect_http().post(path, &body.to_string());
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}")))
}

fn request_of_kind(kind: &str) -> Value {
    json!({"domain": "api", "attributes": {"kind": kind, "user": "alice"}})
}

/// Peeks at a request of this kind over both protocols. Returns the HTTP status and reply. Panics if the two replies
/// differ.
fn peek_over_both(server: &Server, kind: &str) -> (u16, Value) {
    let (status, http) = post(server, "/v1/peek", &request_of_kind(kind));
    let args = ["-p", &server.resp_port(), "-3", "--json", "TG.PEEK", "api", "1", "kind", kind, "user", "alice"];
    let resp = run_program(Command::new("redis-cli").args(args));
    let resp: Value = serde_json::from_str(&resp).unwrap_or_else(|error| panic!("{error} in {resp}"));
    let (http_words, resp_words) = (as_resp_reply("", &http), as_resp_reply("", &resp));
    assert_eq!(http_words, resp_words, "{kind}:\n{http}\n{resp}");
    (status, http)
}

/// Converts an HTTP reply to the form of the Redis protocol, in which `true` is 1 and an unknown wait is -1. Rounds
/// waits to ten minutes, because the two replies are computed at different times.
fn as_resp_reply(name: &str, value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), as_resp_reply(name, value))).collect(),
        Value::Array(list) => list.iter().map(|value| as_resp_reply("", value)).collect(),
        Value::Bool(value) => json!(i64::from(*value)),
        Value::Null if name.ends_with("_ms") => json!(-1),
        Value::Number(number) if name.ends_with("_ms") => match number.as_i64() {
            Some(-1) => json!(-1),
            wait => json!(wait.map(|wait| (wait + 300_000) / 600_000)),
        },
        other => other.clone(),
    }
}

#[test]
fn both_protocols_report_every_outcome_in_the_same_way() {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    for kind in ["silent", "paid", "shadow", "slow", "banned", "held"] {
        let (status, first) = peek_over_both(&server, kind);
        assert_eq!((status, &first["outcome"], &first["standing"]), (200, &json!("allow"), &json!("exact")), "{first}");
        (0..3).for_each(|_| drop(post(&server, "/v1/check", &request_of_kind(kind))));
    }
    let (status, silent) = peek_over_both(&server, "silent");
    assert_eq!((status, &silent["drop"]), (429, &json!(true)), "{silent}");
    let (status, paid) = peek_over_both(&server, "paid");
    assert_eq!((status, &paid["status"], &paid["message"]), (402, &json!(402), &json!("buy \"more\"")), "{paid}");
    let (status, shadow) = peek_over_both(&server, "shadow");
    assert_eq!((status, &shadow["shadow_refused"], &shadow["limits"][0]["shadow"]), (200, &json!(true), &json!(true)));
    let (status, slow) = peek_over_both(&server, "slow");
    assert_eq!((status, &slow["outcome"], &slow["retry_after_ms"]), (200, &json!("delay"), &json!(0)), "{slow}");
    assert!(slow["delay_ms"].as_u64().is_some_and(|wait| (10_500_000..=10_800_000).contains(&wait)), "{slow}");
    let explained = post(&server, "/v1/explain", &request_of_kind("slow")).1;
    assert!(explained["delay_ms"].as_u64().is_some_and(|wait| wait > 10_500_000), "{explained}");
    let (status, banned) = peek_over_both(&server, "banned");
    assert_eq!((status, &banned["banned"]), (429, &json!(true)), "{banned}");
    let (status, held) = peek_over_both(&server, "held");
    assert_eq!((status, &held["retry_after_ms"]), (429, &Value::Null), "{held}");
    assert_eq!(post(&server, "/v1/enforcement", &json!({"mode": "observe"})).0, 200);
    let (status, observed) = peek_over_both(&server, "paid");
    assert_eq!(
        (status, &observed["observed"], &observed["allowed"]),
        (200, &json!("deny"), &json!(true)),
        "{observed}"
    );
}

#[test]
fn closed_refusal_differs_from_an_exceeded_limit() {
    let mut store = StoreServer::start(Kind::Redis);
    let rules = Rules::new(RULES);
    store.kill();
    let server = Server::start(&["--rules", rules.path(), "--store", &store.url(), "--log-refusals", "1/h"]);
    // The request is refused with 429, not with the status and message that the rule sets for clients above the limit.
    let (status, closed) = peek_over_both(&server, "closed");
    assert_eq!((status, &closed["closed"], &closed["standing"]), (429, &json!(true), &json!("fallback")), "{closed}");
    assert_eq!((closed.get("message"), &closed["retry_after_ms"]), (None, &json!(1_000)), "{closed}");
    // For the rule `local`, this server's share of the limit decides. Above the share, the request is refused as usual,
    // with standing `fallback`.
    assert_eq!(post(&server, "/v1/check", &request_of_kind("local")).0, 200);
    let (status, local) = peek_over_both(&server, "local");
    assert_eq!((status, local.get("closed"), &local["standing"]), (429, None, &json!("fallback")), "{local}");
    assert_eq!(post(&server, "/v1/check", &request_of_kind("closed")).0, 429);
    let line = server.wait_for_line("INFO refused ");
    assert!(line.contains("closed=true") && line.contains("standing=\"fallback\""), "{line}");
}

/// Sends nine requests that the rule `paid` refuses and then one request that `silent` refuses. Returns the log lines
/// about refusals.
fn logged_refusals(args: &[&str]) -> Vec<String> {
    let rules = Rules::new(RULES);
    let server = Server::start(&[&["--rules", rules.path()], args].concat());
    for _ in 0..10 {
        post(&server, "/v1/check", &request_of_kind("paid"));
    }
    run_program(Command::new("redis-cli").args(["-p", &server.resp_port(), "TG.CHECK", "api", "2", "kind", "silent"]));
    server.stop_and_read_log().into_iter().filter(|line| line.contains("INFO refused ")).collect()
}

#[test]
fn refusals_are_logged_at_the_configured_rate() {
    assert_eq!(logged_refusals(&[]), [""; 0], "refusals are not logged by default");
    let lines = logged_refusals(&["--log-refusals", "1/h"]);
    assert_eq!(lines.len(), 2, "{lines:#?}");
    for expected in [
        "front=\"http\" domain=\"api\" rule=\"paid\" key=\"user=alice\" retry_after_ms=86",
        "standing=\"exact\" observed=false banned=false closed=false suppressed=0 why=\"+ paid (",
        "matches, counted by user = \\\"alice\\\", costs 1: refuses, 1/day: 0 of 1 left, full again in ",
        "; - silent (",
        "kind must be \\\"silent\\\", but is \\\"paid\\\"",
        "; and 4 more that do not match",
    ] {
        assert!(lines[0].contains(expected), "no {expected} in\n{}", lines[0]);
    }
    assert!(lines[1].contains("front=\"resp\"") && lines[1].contains("suppressed=8"), "{}", lines[1]);
}

#[test]
fn hidden_values_are_not_logged() {
    for (how, key) in [("hashed", " key=\"#"), ("off", "rule=\"paid\" retry_after_ms")] {
        let lines = logged_refusals(&["--log-refusals", "1/h", "--top-keys", how]);
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[0].contains(key) && lines[0].contains(" why="), "{}", lines[0]);
        assert!(!lines.iter().any(|line| line.contains("alice")), "{lines:#?}");
    }
}

#[test]
fn keys_without_an_entry_are_counted_by_the_engine_and_by_throttle() {
    let server = Server::start(&["--capacity", "64"]);
    let overflowed = || {
        let metrics = run_program(Command::new("curl").args(["-s", &server.url("/metrics")]));
        let line = metrics.lines().find_map(|line| line.strip_prefix("tollgate_overflowed_total "));
        line.and_then(|count| count.parse::<u64>().ok()).unwrap_or_else(|| panic!("no count in {metrics}"))
    };
    assert_eq!(overflowed(), 0);
    // A lightly used key does not displace heavily used keys.
    for (cost, name) in [(5, "heavy"), (1, "light")] {
        let asked = |key: u32| json!({"key": format!("{name} {key}"), "limit": "5/day", "cost": cost});
        assert_eq!(post(&server, "/v1/check", &(0..500).map(asked).collect()).0, 200);
    }
    let by_engine = overflowed();
    assert!(by_engine > 0);
    let mut client = server.connect_resp();
    for cost in [5, 1] {
        let calls = (0..500).map(|key| format!("CL.THROTTLE {cost}-{key} 4 1 86400 {cost}\r\n"));
        client.send(calls.collect::<String>());
    }
    client.send("PING\r\n");
    while client.line() != "+PONG" {}
    assert!(overflowed() > by_engine);
}
