//! HTTP on a real socket: decisions, batches, headers, errors, limits.

use crate::common;

use std::process::Command;

use common::{Rules, Server, run_program};
use serde_json::{Value, json};

struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Sends a request with curl, a third-party client.
fn curl(server: &Server, path: &str, args: &[&str]) -> Reply {
    let text = run_program(Command::new("curl").args(["-s", "-i"]).args(args).arg(server.url(path)));
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Reply { status, head: head.to_owned(), body: body.to_owned() }
}

fn post(server: &Server, path: &str, body: &Value) -> Reply {
    curl(server, path, &["-d", &body.to_string()])
}

#[test]
fn inline_limit_admits_until_it_is_used_up_and_reports_the_wait() {
    let server = Server::start(&[]);
    let ask = json!({"key": "alice", "limit": "3/m"});
    for remaining in [2, 1, 0] {
        let reply = post(&server, "/v1/check", &ask);
        assert_eq!((reply.status, reply.header("retry-after")), (200, None), "{}", reply.body);
        assert_eq!(reply.json()["limits"][0]["remaining"], remaining);
    }
    let reply = post(&server, "/v1/check", &ask);
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("20")));
    assert_eq!(reply.header("ratelimit-policy"), Some("\"default\";q=3;w=60"));
    assert_eq!(reply.header("ratelimit"), Some("\"default\";r=0;t=20"));
    let body = reply.json();
    assert_eq!(
        (&body["allowed"], &body["outcome"], &body["rule"], &body["standing"]),
        (&json!(false), &json!("deny"), &json!(null), &json!("exact"))
    );
    let wait = body["retry_after_ms"].as_u64().expect("a wait");
    assert!((10_000..=20_000).contains(&wait), "{wait} ms");
    assert_eq!(post(&server, "/v1/check", &json!({"key": "bob", "limit": "3/m"})).status, 200);
}

#[test]
fn every_algorithm_can_be_an_inline_limit() {
    let server = Server::start(&[]);
    for algorithm in
        ["token_bucket", "interval_bucket", "fixed_window", "sliding_window", "sliding_slices", "sliding_log"]
    {
        let ask = json!({"key": algorithm, "limit": "1/h", "algorithm": algorithm});
        assert_eq!(post(&server, "/v1/check", &ask).status, 200, "{algorithm}");
        assert_eq!(post(&server, "/v1/check", &ask).status, 429, "{algorithm}");
    }
    let ask = json!({"key": "leaky", "limit": "1/m", "burst": 2, "algorithm": "leaky_bucket"});
    assert_eq!(post(&server, "/v1/check", &ask).json()["outcome"], "allow");
    let reply = post(&server, "/v1/check", &ask).json();
    assert_eq!((&reply["allowed"], &reply["outcome"]), (&json!(true), &json!("delay")), "{reply}");
    assert!(reply["delay_ms"].as_u64().is_some_and(|wait| wait > 50_000), "{reply}");
    // For `concurrency`, `limit` is an integer, as documented, or a string.
    for limit in [json!(1), json!("1")] {
        let ask = json!({"key": format!("slots {limit}"), "limit": limit, "algorithm": "concurrency", "receipt": true});
        let taken = post(&server, "/v1/check", &ask).json();
        assert_eq!(post(&server, "/v1/check", &ask).status, 429);
        assert_eq!(post(&server, "/v1/refund", &json!({"receipt": taken["receipt"]})).json(), json!({"refunded": 1}));
        assert_eq!(post(&server, "/v1/check", &ask).status, 200);
    }
}

#[test]
fn rules_decide_and_shadow_rules_only_report() {
    let rules = Rules::new(
        "domain: api\nrules:\n- {id: per-client, when: {path: '/v1/**'}, per: [client], limit: 2/h}\n\
         - {id: quiet, limit: 1/h, on_exceed: shadow}\n",
    );
    let server = Server::start(&["--rules", rules.path()]);
    let ask = |path: &str, client: &str| {
        post(&server, "/v1/check", &json!({"domain": "api", "attributes": {"path": path, "client": client}}))
    };
    let first = ask("/v1/a", "x");
    assert_eq!((first.status, &first.json()["rule"]), (200, &json!("per-client")));
    let second = ask("/v1/b", "x").json();
    assert_eq!((&second["allowed"], &second["shadow_refused"]), (&json!(true), &json!(true)));
    let third = ask("/v1/c", "x");
    assert_eq!((third.status, third.header("ratelimit-policy")), (429, Some("\"per-client\";q=2;w=3600")));
    assert_eq!(ask("/v1/c", "y").status, 200);
    assert_eq!(ask("/other", "x").status, 200);
    let metrics = curl(&server, "/metrics", &[]).body;
    let denied = "tollgate_rule_decisions_total{domain=\"api\",rule=\"per-client\",outcome=\"deny\"} 1";
    assert!(metrics.contains(denied) && !metrics.contains("\"x\""), "{metrics}");
}

#[test]
fn peek_takes_nothing_refund_returns_and_reset_clears() {
    let server = Server::start(&[]);
    let ask = json!({"key": "k", "limit": "2/h", "cost": 2, "receipt": true});
    assert_eq!(post(&server, "/v1/peek", &ask).status, 200);
    let receipt = post(&server, "/v1/check", &ask).json()["receipt"].clone();
    assert_eq!(post(&server, "/v1/peek", &ask).status, 429);
    assert_eq!(post(&server, "/v1/refund", &json!({"receipt": receipt})).json(), json!({"refunded": 2}));
    assert_eq!(post(&server, "/v1/check", &ask).status, 200);
    assert_eq!(post(&server, "/v1/reset", &ask).json(), json!({"reset": 1}));
    assert_eq!(post(&server, "/v1/check", &ask).status, 200);
    let reply = post(&server, "/v1/refund", &json!({"key": "k", "limit": "2/h"}));
    assert_eq!((reply.status, &reply.json()["pointer"]), (400, &json!("/receipt")));
}

#[test]
fn batch_is_answered_in_order_with_errors_in_their_position() {
    let server = Server::start(&[]);
    let one = json!({"key": "k", "limit": "1/h"});
    let reply = post(&server, "/v1/check", &json!([one, one, {"key": "k", "limit": "1/x"}, {}, {"domain": "none"}]));
    assert_eq!(reply.status, 200);
    let list = reply.json();
    assert_eq!((&list[0]["allowed"], &list[1]["allowed"]), (&json!(true), &json!(false)));
    for (place, pointer) in [(2, "/2/limit"), (3, "/3"), (4, "/4/domain")] {
        assert_eq!((&list[place]["status"], &list[place]["pointer"]), (&json!(400), &json!(pointer)), "{list}");
    }
    assert_eq!(post(&server, "/v1/check", &json!([])).json(), json!([]));
    let batch: Vec<Value> = (0..1_000).map(|n| json!({"key": n.to_string(), "limit": "1/h"})).collect();
    assert_eq!(post(&server, "/v1/check", &json!(batch)).json().as_array().map(Vec::len), Some(1_000));
    let reply = post(&server, "/v1/check", &json!([&batch[..], &batch[..]].concat()));
    assert!(
        reply.status == 400 && reply.body.contains("too many requests in a batch (maximum 1000)"),
        "{}",
        reply.body
    );
}

#[test]
fn kill_switch_turns_refusals_into_observations_and_back() {
    let server = Server::start(&[]);
    let ask = json!({"key": "k", "limit": "1/h"});
    assert_eq!(post(&server, "/v1/check", &ask).status, 200);
    assert_eq!(post(&server, "/v1/check", &ask).status, 429);
    assert_eq!(post(&server, "/v1/enforcement", &json!({"mode": "observe"})).json(), json!({"mode": "observe"}));
    let reply = post(&server, "/v1/check", &ask);
    assert_eq!((reply.status, &reply.json()["observed"]), (200, &json!("deny")));
    let mut resp = server.connect_resp();
    resp.send("CL.THROTTLE k 0 1 60\r\nCL.THROTTLE k 0 1 60\r\n");
    resp.expect("*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n*5\r\n:0\r\n");
    assert_eq!(post(&server, "/v1/enforcement", &json!({"mode": "enforce"})).status, 200);
    assert_eq!(post(&server, "/v1/check", &ask).status, 429);
    let reply = post(&server, "/v1/enforcement", &json!({"mode": "off"}));
    assert!(reply.status == 400 && reply.body.contains("expected `enforce` or `observe`"), "{}", reply.body);
    assert_eq!(curl(&server, "/v1/enforcement", &[]).json(), json!({"mode": "enforce"}));
}

#[test]
fn web_page_cannot_use_the_kill_switch() {
    let server = Server::start(&[]);
    let args = ["-H", "Origin: https://evil.example", "-d", r#"{"mode":"observe"}"#];
    let refused = curl(&server, "/v1/enforcement", &args);
    assert_eq!((refused.status, refused.header("content-type")), (403, Some("application/problem+json")));
    assert_eq!(curl(&server, "/v1/enforcement", &[]).json(), json!({"mode": "enforce"}));
}

#[test]
fn invalid_requests_get_problem_details_with_field_and_position() {
    let server = Server::start(&[]);
    for (path, body, status, expected) in [
        ("/v1/check", "", 400, "EOF while parsing a value"),
        ("/v1/check", "{\n\"domian\":1}", 400, "\"line\":2"),
        ("/v1/check", r#"{"key":"a","limit":"10/s","algorithm":"tokenbucket"}"#, 400, "did you mean `token_bucket`"),
        ("/v1/check", r#"{"key":"a","limit":"10/s","burst":0}"#, 400, "/burst"),
        ("/v1/check", r#"{"domain":"none"}"#, 400, "unknown domain `none`"),
        ("/v1/chek", "{}", 404, "/v1/check"),
    ] {
        let reply = curl(&server, path, &["-d", body]);
        assert_eq!(reply.status, status, "{body}: {}", reply.body);
        assert_eq!(reply.header("content-type"), Some("application/problem+json"));
        assert!(reply.body.contains(expected), "{body}: {}", reply.body);
        assert_eq!(reply.json()["status"], status);
    }
    let reply = curl(&server, "/v1/check", &[]);
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
}

#[test]
fn oversized_body_is_refused_before_it_is_read() {
    let server = Server::start(&[]);
    let before = server.resident_memory();
    let mut client = server.connect_http();
    client.send("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1048577\r\n\r\n");
    assert_eq!(client.line(), "HTTP/1.1 413 Payload Too Large");
    let mut client = server.connect_http();
    client.send("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunk = [&b"10000\r\n"[..], &[b' '; 65_536], b"\r\n"].concat();
    let mut sent = 0;
    while sent < 64 && client.try_send(&chunk) {
        sent += 1;
    }
    assert!(client.read_to_end().starts_with("HTTP/1.1 413 ") || sent < 64, "the server read {sent} chunks");
    let mut client = server.connect_http();
    client.send(format!("GET /healthz HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(20_000)));
    assert!(client.line().starts_with("HTTP/1.1 431 "));
    let grown = server.resident_memory().saturating_sub(before);
    assert!(grown < 8 * 1024 * 1024, "memory grew by {grown} bytes");
}

/// Repeats the request, because the end of the stream may arrive together with the request or while the server answers.
#[test]
fn client_that_closes_its_sending_side_gets_its_answer() {
    let server = Server::start(&[]);
    for round in 0..100 {
        let mut client = server.connect_http();
        client.send("GET /v1/enforcement HTTP/1.1\r\nhost: localhost\r\n\r\n");
        client.close_sending_side();
        let answer = client.read_to_end();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "round {round}: {answer:?}");
    }
}

#[test]
fn bytes_that_are_not_http_close_only_their_connection() {
    let server = Server::start(&[]);
    for bytes in [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[..], b"*1\r\n$4\r\nPING\r\n", b"GET\r\n\r\n", &[0; 100]] {
        let mut client = server.connect_http();
        client.send(bytes);
        let rest = client.read_to_end();
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 400 "), "{rest}");
    }
    assert_eq!(curl(&server, "/healthz", &[]).body, "ok\n");
    assert_eq!(curl(&server, "/readyz", &[]).body, "ready\n");
}

#[test]
fn changed_rules_take_effect_and_keep_the_amount_spent() {
    let text = |limit: &str| format!("domain: api\nrules:\n- {{id: all, per: [k], limit: {limit}}}\n");
    let rules = Rules::new(text("10/h"));
    let server = Server::start(&["--rules", rules.path()]);
    let ask = || post(&server, "/v1/check", &json!({"domain": "api", "attributes": {"k": "a"}})).json();
    (0..4).for_each(|_| drop(ask()));
    rules.write(text("5/h"));
    server.wait_for_line("version=2");
    let limit = &ask()["limits"][0];
    assert_eq!((&limit["limit"], &limit["remaining"]), (&json!(5), &json!(0)), "four tokens were already spent");
    rules.write("domain: api\nrules:\n- {id: all, limt: 5/h}\n");
    assert!(server.wait_for_line("limt").contains(":3:"), "the line number is reported");
    server.wait_for_line("the rules in force stay");
    assert_eq!(ask()["allowed"], false);
    assert!(curl(&server, "/metrics", &[]).body.contains("tollgate_rule_reloads_total{result=\"refused\"} 1"));
}

#[test]
fn rule_sets_status_and_message_of_its_refusal() {
    let rules = Rules::new(
        "domain: api\nrules:\n\
         - {id: output, when: {path: /output}, limit: 1/h, status: 503, message: \"come \\\"back\\\" later\"}\n\
         - {id: quiet, when: {path: /quiet}, limit: 1/h, on_exceed: drop}\n\
         - {id: banning, when: {path: /banning}, limit: 1/h, ban: {after: 1, within: 1m, for: 2h}}\n",
    );
    let server = Server::start(&["--rules", rules.path()]);
    let ask = |path: &str| post(&server, "/v1/check", &json!({"domain": "api", "attributes": {"path": path}}));
    for path in ["/output", "/quiet", "/banning"] {
        assert_eq!(ask(path).status, 200);
    }
    let output = ask("/output");
    assert_eq!((output.status, &output.json()["message"]), (503, &json!("come \"back\" later")));
    assert_eq!((ask("/quiet").status, &ask("/quiet").json()["drop"]), (429, &json!(true)));
    let banned = ask("/banning");
    let retry_ms = banned.json()["retry_after_ms"].as_u64().unwrap();
    assert!(banned.json()["banned"] == true && (7_140_000..=7_200_000).contains(&retry_ms), "{retry_ms}");
    assert!(ask("/banning").json()["banned"] == true);
}
