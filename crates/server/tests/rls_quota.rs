//! Envoy's rate-limit service, called by grpcio: token quotas, metadata, headers, and features that the reference
//! service lacks (algorithms, bans, delays and leases).

use crate::common;

use common::rls_client::{RlsClient, descriptor, with_hits};
use common::{Rules, Server, eventually};
use serde_json::{Value, json};

fn start(rules: &str, args: &[&str]) -> (Server, RlsClient, Rules) {
    let rules = Rules::new(rules);
    let server = Server::start(&[&["--rules", rules.path(), "--rls", "127.0.0.1:0"], args].concat());
    let client = RlsClient::connect(&server.rls.expect("the rate-limit service is on").to_string());
    (server, client, rules)
}

/// The quotas of the reference service's example, per year instead of per minute.
const QUOTAS: &str = "
domain: rl
descriptors:
- key: service
  value: service_1
  quota_mode: true
  rate_limit: {unit: year, requests_per_unit: 1}
  metadata: {service_with_quota: {name: service_1}, weight: 1.5, only_first: true}
- key: service
  value: service_2
  quota_mode: true
  rate_limit: {unit: year, requests_per_unit: 2}
  metadata: {service_with_quota: {name: service_2}}
- {key: plain, rate_limit: {unit: year, requests_per_unit: 5}}
";

fn service_request(number: u8, hits: u64) -> Value {
    with_hits(&[("service", &format!("service_{number}"))], hits, false)
}

#[test]
fn token_quota_of_a_reference_file_drains_by_charges_that_come_afterwards() {
    let (_server, mut client, _rules) = start(QUOTAS, &[]);
    let mut hits = |hits: u64| {
        client.should_rate_limit(&json!({"domain": "rl", "descriptors": [service_request(2, hits)]})).code().to_owned()
    };
    let passed = (0..9)
        .take_while(|_| {
            let passes = hits(0) == "OK";
            hits(1);
            passes
        })
        .count();
    assert_eq!(passed, 3, "the charge above the quota is taken into debt");
    assert_eq!(hits(0), "OVER_LIMIT");
}

#[test]
fn refused_charge_without_an_earlier_check_spends_nothing() {
    let (_server, mut client, _rules) = start(QUOTAS, &[]);
    let mut hits = |hits: u64| {
        let descriptors = [with_hits(&[("plain", "a")], hits, false)];
        client.should_rate_limit(&json!({"domain": "rl", "descriptors": descriptors})).statuses()[0].1
    };
    assert_eq!(hits(3), 2);
    hits(4);
    assert_eq!(hits(0), 2, "the charge of 4 spent nothing");
}

#[test]
fn metadata_names_the_service_that_has_quota() {
    let (_server, mut client, _rules) = start(QUOTAS, &[]);
    let mut serve = || {
        let response = client.should_rate_limit(
            &json!({"domain": "rl", "hits_addend": 7, "descriptors": [service_request(1, 0), service_request(2, 0)]}),
        );
        if response.code() != "OK" {
            return Err(response.0["dynamic_metadata"].clone());
        }
        let metadata = response.0["dynamic_metadata"].clone();
        let name = metadata["metadata"]["service_with_quota"]["name"].as_str().expect("a name").to_owned();
        let number = if name == "service_1" { 1 } else { 2 };
        client.should_rate_limit(&json!({"domain": "rl", "descriptors": [service_request(number, 1)]}));
        Ok((name, metadata))
    };
    let (first, metadata) = serve().expect("all have quota");
    assert_eq!(first, "service_1", "the first of two values with the same name wins");
    assert_eq!(
        metadata,
        json!({
            "domain": "rl",
            "hitsAddend": 7.0,
            "descriptors": [
                {"entries": ["service=service_1"], "hitsAddend": 0.0, "code": "OK", "rule": "service_service_1"},
                {"entries": ["service=service_2"], "hitsAddend": 0.0, "code": "OK", "rule": "service_service_2"},
            ],
            "metadata": {"service_with_quota": {"name": "service_1"}, "weight": 1.5, "only_first": true},
        })
    );
    let names: Vec<String> = (0..4).map(|_| serve().expect("one has quota").0).collect();
    assert_eq!(names, ["service_1", "service_2", "service_2", "service_2"]);
    let refused = serve().expect_err("none has quota");
    assert_eq!(refused["metadata"], Value::Null, "only rules that admit the request add metadata");
    assert_eq!(refused["descriptors"][1]["code"], "OVER_LIMIT");
}

#[test]
fn exhausted_quota_is_over_limit_in_a_request_that_another_quota_admits() {
    let (_server, mut client, _rules) = start(QUOTAS, &[]);
    let both: [&[(&str, &str)]; 2] = [&[("service", "service_1")], &[("service", "service_2")]];
    let mut ask = || {
        let response = client.check_descriptors("rl", &both);
        let codes = response.statuses().iter().map(|status| status.0).collect::<Vec<_>>().join(" ");
        (response.code().to_owned(), codes, response.0["dynamic_metadata"]["descriptors"][0]["code"].clone())
    };
    assert_eq!(ask(), ("OK".into(), "OK OK".into(), json!("OK")));
    assert_eq!(ask(), ("OK".into(), "OVER_LIMIT OK".into(), json!("OVER_LIMIT")));
    assert_eq!(ask().0, "OVER_LIMIT");
}

#[test]
fn body_of_a_refusal_is_base64_in_json() {
    let (server, _client, _rules) = start("{domain: d, rules: [{id: no, deny: true, message: ask for a key}]}", &[]);
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    let answer =
        common::run_program(std::process::Command::new("curl").args(["-s", "-d", body]).arg(server.url("/json")));
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((&answer["overallCode"], &answer["rawBody"]), (&json!("OVER_LIMIT"), &json!("YXNrIGZvciBhIGtleQ==")));
}

#[test]
fn response_without_metadata_of_a_rule_has_none() {
    let (_server, mut client, _rules) = start(QUOTAS, &[]);
    let response = client.check_descriptors("rl", &[&[("plain", "a")]]);
    assert_eq!(response.0.get("dynamic_metadata"), None);
}

#[test]
fn headers_of_the_tightest_limit_have_the_configured_names() {
    let rules = "
domain: d
descriptors:
- {key: wide, rate_limit: {unit: year, requests_per_unit: 100}}
- {key: tight, rate_limit: {unit: year, requests_per_unit: 5}}
";
    let ask = |style: &str| {
        let (_server, mut client, _rules) = start(rules, &["--rls-headers", style]);
        let response = client.check_descriptors("d", &[&[("wide", "a")], &[("tight", "a")]]);
        let headers = response.0["response_headers_to_add"].as_array().cloned().unwrap_or_default();
        let name = |header: &Value| header["key"].as_str().unwrap_or_default().to_owned();
        let mut names: Vec<String> = headers.iter().map(name).collect();
        names.sort();
        (
            names.join(" "),
            response.header("my-remaining").or(response.header("x-ratelimit-remaining")).map(str::to_owned),
        )
    };
    assert_eq!(ask("My-Limit,My-Remaining,My-Reset"), ("my-limit my-remaining my-reset".into(), Some("4".into())));
    assert_eq!(
        ask("x-ratelimit"),
        ("x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset".into(), Some("4".into()))
    );
    assert_eq!(ask("off"), (String::new(), None));
}

#[test]
fn slot_whose_release_is_lost_becomes_free_when_its_lease_ends() {
    let (_server, mut client, _rules) =
        start("{domain: d, rules: [{id: streams, limit: 1, algorithm: concurrency, lease: 1s}]}", &[]);
    assert_eq!(client.check_descriptors("d", &[&[("k", "a")]]).code(), "OK");
    let refused = client.check_descriptors("d", &[&[("k", "a")]]);
    assert_eq!((refused.code(), refused.reset()), ("OVER_LIMIT", 1), "the lease ends within a second");
    eventually("the lease has ended", || client.check_descriptors("d", &[&[("k", "a")]]).code() == "OK");
}

#[test]
fn bans_delays_overrides_and_calendars_decide_calls() {
    let (_server, mut client, _rules) = start(
        "
domain: d
rules:
- {id: banned, when: {k: ban}, limit: 1/h, ban: {after: 1, within: 1h, for: 2h}}
- {id: delayed, when: {k: delay}, limit: 5/s, burst: 1, on_exceed: {delay: {max_wait: 10s}}}
- {id: plans, when: {k: plan}, per: [plan], limit: 1/h, overrides: [{when: {plan: pro}, limit: 3/h}]}
- {id: month, when: {k: month}, limit: 10/month, algorithm: fixed_window, zone: Europe/Paris}
",
        &[],
    );
    client.check_descriptors("d", &[&[("k", "ban")]]);
    client.check_descriptors("d", &[&[("k", "ban")]]);
    let banned = client.check_descriptors("d", &[&[("k", "ban")]]);
    assert!(banned.code() == "OVER_LIMIT" && banned.reset() > 3_600, "the ban is longer than the wait: {banned:?}");
    for _ in 0..3 {
        assert_eq!(
            client.check_descriptors("d", &[&[("k", "delay")]]).code(),
            "OK",
            "the answer is sent after the delay"
        );
    }
    for (plan, passes) in [("free", 1), ("pro", 3)] {
        let passed = (0..9)
            .take_while(|_| client.check_descriptors("d", &[&[("k", "plan"), ("plan", plan)]]).code() == "OK")
            .count();
        assert_eq!(passed, passes, "{plan}");
    }
    let month = client.check_descriptors("d", &[&[("k", "month")]]);
    assert!(month.remaining() == 9 && (1..=31 * 86_400 + 3_600).contains(&month.reset()), "{month:?}");
}

#[test]
fn unusual_descriptor_values_have_their_own_counters() {
    let (_server, mut client, _rules) = start("{domain: d, rules: [{id: each, per: [path], limit: 1/h}]}", &[]);
    for path in ["/a/../b", "/%2e%2e/b", "/b?x=1", "//b", "/\u{1f600}", "", " "] {
        assert_eq!(client.check_descriptors("d", &[&[("path", path)]]).code(), "OK", "{path:?} has its own counter");
        assert_eq!(client.check_descriptors("d", &[&[("path", path)]]).code(), "OVER_LIMIT", "{path:?}");
    }
    let mut many = descriptor(&[("path", "/")]);
    many["entries"] = (0..129).map(|n| json!({"key": format!("k{n}"), "value": "v"})).collect();
    let error = client.should_rate_limit(&json!({"domain": "d", "descriptors": [many]})).0;
    assert_eq!(error["detail"], "too many entries of a descriptor (maximum 128)");
}
