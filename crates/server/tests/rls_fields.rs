//! Envoy's rate-limit service, called by grpcio: request and response fields beyond the cases of
//! the reference service's own tests.

use crate::common;

use common::rls_client::{RlsClient, descriptor, with_hits};
use common::{Folder, Rules, Server, eventually, run_program};
use serde_json::{Value, json};

fn start(rules: &str, args: &[&str]) -> (Server, RlsClient, Rules) {
    let rules = Rules::new(rules);
    let server = Server::start(&[&["--rules", rules.path(), "--rls", "127.0.0.1:0"], args].concat());
    let client = RlsClient::connect(&server.rls.expect("the rate-limit service is on").to_string());
    (server, client, rules)
}

const RULES: &str = "
domain: d
rules:
- {id: weekly, when: {k: week}, limit: 1/week}
- {id: quarter, when: {k: quarter}, limit: 5/15m}
- {id: tried, when: {k: tried}, limit: 1/h, on_exceed: shadow}
- {id: streams, when: {k: streams}, limit: 2, algorithm: concurrency, lease: 1h}
- {id: blocked, when: {j: blocked}, deny: true}
";

/// Returns a descriptor with its own limit.
fn with_limit(entries: &[(&str, &str)], requests: u32, unit: u32) -> Value {
    let mut descriptor = descriptor(entries);
    descriptor["limit"] = json!({"requests_per_unit": requests, "unit": unit});
    descriptor
}

#[test]
fn periods_have_their_unit_or_are_part_of_the_name() {
    let (_server, mut client, _rules) = start(RULES, &[]);
    let mut limit =
        |value: &str| client.check_descriptors("d", &[&[("k", value)]]).0["statuses"][0]["current_limit"].clone();
    assert_eq!(limit("week"), json!({"requests_per_unit": 1, "unit": 7, "name": "weekly"}));
    assert_eq!(limit("quarter"), json!({"requests_per_unit": 5, "name": "quarter;w=900"}), "the unit 0 is omitted");
}

#[test]
fn limit_of_a_descriptor_is_enforced_where_the_rule_is_a_shadow() {
    let (_server, mut client, _rules) = start(RULES, &[]);
    for _ in 0..3 {
        assert_eq!(client.check_descriptors("d", &[&[("k", "tried")]]).code(), "OK", "a shadow rule only reports");
    }
    let limited = json!({"domain": "d", "descriptors": [with_limit(&[("k", "tried")], 1, 6)]});
    assert_eq!(client.should_rate_limit(&limited).code(), "OK");
    assert_eq!(client.should_rate_limit(&limited).code(), "OVER_LIMIT");
}

#[test]
fn request_headers_are_added_if_they_are_asked_for() {
    let headers = |args: &[&str]| {
        let (_server, mut client, _rules) = start(RULES, args);
        let admitted = client.check_descriptors("d", &[&[("k", "week")]]).0["request_headers_to_add"].clone();
        let refused = client.check_descriptors("d", &[&[("k", "week")]]);
        assert_eq!((refused.code(), &refused.0["request_headers_to_add"]), ("OVER_LIMIT", &Value::Null));
        admitted
    };
    assert_eq!(headers(&[]), Value::Null);
    assert_eq!(
        headers(&["--rls-request-headers", "My-Limit,My-Remaining,My-Reset"]),
        json!([
            {"key": "my-limit", "value": "1"},
            {"key": "my-remaining", "value": "0"},
            {"key": "my-reset", "value": "604800"},
        ])
    );
    let refused = Server::stderr_of_failed_start(&["--rls-request-headers", "all"]);
    assert!(refused.contains("--rls-request-headers: all: write ietf, x-ratelimit, both, off"), "{refused}");
}

#[test]
fn metadata_of_all_responses_has_the_shape_of_the_reference_service() {
    let (server, mut client, _rules) = start(RULES, &["--rls-metadata", "always"]);
    let descriptors = [with_limit(&[("k", "own"), ("j", "")], 42, 3), descriptor(&[("k", "none")])];
    let response = client.should_rate_limit(&json!({"domain": "d", "hits_addend": 2, "descriptors": descriptors}));
    let expected = json!({
        "domain": "d",
        "hitsAddend": 2.0,
        "descriptors": [
            {"entries": ["k=own", "j="], "limit": "requests_per_unit:42 unit:HOUR", "code": "OK", "rule": ""},
            {"entries": ["k=none"], "code": "OK"},
        ],
    });
    assert_eq!(response.0["dynamic_metadata"], expected);
    let unknown = client.check_descriptors("unknown", &[&[("k", "v")]]);
    let expected = json!({"domain": "unknown", "descriptors": [{"entries": ["k=v"], "code": "OK"}]});
    assert_eq!(unknown.0["dynamic_metadata"], expected);
    let body = r#"{"domain":"unknown","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    let answer = run_program(std::process::Command::new("curl").args(["-s", "-d", body]).arg(server.url("/json")));
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(answer["dynamicMetadata"], expected);
}

#[test]
fn json_is_read_as_proto3_json() {
    let (server, _client, _rules) = start(RULES, &["--rls-request-headers", "x-ratelimit"]);
    let ask = |body: &str| -> Value {
        let answer = run_program(std::process::Command::new("curl").args(["-s", "-d", body]).arg(server.url("/json")));
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    };
    let limited = |unit: &str| {
        format!(
            r#"{{"domain": "d", "hitsAddend": "2", "descriptors": [{{"entries": [{{"key": "k", "value": "own"}}],
            "limit": {{"requestsPerUnit": 5, "unit": {unit}}}, "hitsAddend": null}}]}}"#
        )
    };
    assert_eq!(ask(&limited("\"YEAR\""))["statuses"][0]["limitRemaining"], 3);
    let second = ask(&limited("6"));
    assert_eq!(second["statuses"][0]["limitRemaining"], 1, "the same unit by its number");
    assert_eq!(second["statuses"][0]["currentLimit"]["unit"], "YEAR");
    assert_eq!(second["requestHeadersToAdd"][0], json!({"key": "x-ratelimit-limit", "value": "5"}));
    assert_eq!(ask(r#"{"domain": "d", "descriptors": null}"#)["detail"], "the request has no descriptors");
    let unknown = ask(&limited("\"FORTNIGHT\""))["detail"].as_str().unwrap_or_default().to_owned();
    assert!(unknown.contains("unknown unit `FORTNIGHT`; available: SECOND, MINUTE"), "{unknown}");
}

#[test]
fn end_of_a_stream_that_was_denied_releases_no_slot() {
    let (_server, mut client, _rules) = start(RULES, &[]);
    let streams = |is_negative| with_hits(&[("k", "streams")], 1, is_negative);
    let denied = json!([streams(false), descriptor(&[("j", "blocked")])]);
    let mut ask = |descriptors: Value| {
        client.should_rate_limit(&json!({"domain": "d", "descriptors": descriptors})).code().to_owned()
    };
    assert_eq!([ask(json!([streams(false)])), ask(json!([streams(false)]))], ["OK", "OK"]);
    assert_eq!(ask(denied), "OVER_LIMIT", "by another descriptor");
    assert_eq!(ask(json!([streams(true)])), "OK", "the end of the stream that was denied");
    assert_eq!(ask(json!([streams(false)])), "OVER_LIMIT", "both slots are held");
}

#[test]
fn health_is_watched_until_the_server_stops() {
    let (server, mut client, _rules) = start(RULES, &[]);
    assert_eq!(client.call(&json!({"watch": "other"})), json!({"status": "SERVICE_UNKNOWN"}));
    assert_eq!(client.call(&json!({"watch": ""})), json!({"status": "SERVING"}));
    assert_eq!(client.check_descriptors("d", &[&[("k", "week")]]).code(), "OK", "other calls are still answered");
    server.signal("TERM");
    assert_eq!(client.call(&json!({"watch": null})), json!({"status": "NOT_SERVING"}));
    assert_eq!(
        client.call(&json!({"watch": null})),
        json!({"error": "UNAVAILABLE", "detail": "the connection closes"})
    );
}

#[test]
fn reload_of_a_folder_adds_the_rules_of_a_file_and_removes_them_with_it() {
    let folder = Folder::new();
    let file = |domain: &str| {
        format!("{{domain: {domain}, descriptors: [{{key: k, rate_limit: {{unit: year, requests_per_unit: 5}}}}]}}")
    };
    folder.write_file("first.yaml", file("first"));
    let server = Server::start(&["--rules", &folder.join(""), "--rls", "127.0.0.1:0"]);
    let mut client = RlsClient::connect(&server.rls.expect("the rate-limit service is on").to_string());
    let mut left = |domain: &str| client.check_descriptors(domain, &[&[("k", "v")]]).remaining();
    assert_eq!((left("first"), left("second")), (4, 0));
    let second = folder.write_file("second.yaml", file("second"));
    eventually("the added file is in force", || left("second") > 0);
    assert_eq!(left("first"), 3, "the counters of the other file stay");
    std::fs::remove_file(second).expect("a file");
    eventually("the removed file is no longer in force", || left("second") == 0);
    assert_eq!(left("first"), 2);
}
