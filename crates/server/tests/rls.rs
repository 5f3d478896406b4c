//! Envoy's rate-limit service, called by grpcio. The first tests are the cases of the reference service's own
//! integration tests, with rule files in its format.

use crate::common;

use common::rls_client::{Response, RlsClient, descriptor, with_hits};
use common::{Rules, Server, eventually, run_program};
use serde_json::json;

/// Starts a server with a rule file for the reference service, and a client.
fn start(rules: &str) -> (Server, RlsClient, Rules) {
    let rules = Rules::new(rules);
    let server = Server::start(&["--rules", rules.path(), "--rls", "127.0.0.1:0"]);
    let client = RlsClient::connect(&server.rls.expect("the rate-limit service is on").to_string());
    (server, client, rules)
}

const BASIC: &str = "
domain: basic
descriptors:
- {key: second, rate_limit: {unit: second, requests_per_unit: 50}}
- {key: first, rate_limit: {unit: day, requests_per_unit: 20}}
- {key: other, rate_limit: {unit: year, requests_per_unit: 10}}
- {key: free, rate_limit: {unlimited: true}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
";

#[test]
fn unknown_domain_and_unmatched_descriptor_pass_with_a_bare_status() {
    let (_server, mut client, _rules) = start(BASIC);
    for (domain, entries) in [("unknown", [("first", "a")]), ("basic", [("unmatched", "a")])] {
        let response = client.check_descriptors(domain, &[&entries]);
        assert_eq!(response.0, json!({"overall_code": "OK", "statuses": [{"code": "OK"}]}), "{domain}");
    }
    let nested = client.check_descriptors("basic", &[&[("first", "a"), ("more", "b")]]);
    assert_eq!(nested.statuses(), [("OK", 0)], "a descriptor matches only a rule of the same depth");
}

#[test]
fn status_contains_the_limit_and_the_remaining_amount() {
    let (_server, mut client, _rules) = start(BASIC);
    let response = client.check_descriptors("basic", &[&[("second", "a")]]);
    assert_eq!(response.statuses(), [("OK", 49)]);
    let limit = &response.0["statuses"][0]["current_limit"];
    assert_eq!(*limit, json!({"requests_per_unit": 50, "unit": 1, "name": "second"}));
}

#[test]
fn requests_beyond_the_limit_are_over_limit() {
    let (_server, mut client, _rules) = start(BASIC);
    for call in 0..25_u64 {
        let response = client.check_descriptors("basic", &[&[("first", "a")]]);
        let expected = if call < 20 { ("OK", 19 - call) } else { ("OVER_LIMIT", 0) };
        assert_eq!((response.code(), response.statuses()), (expected.0, vec![expected]), "call {call}");
    }
    assert_eq!(
        client.check_descriptors("basic", &[&[("first", "b")]]).remaining(),
        19,
        "each value has its own counter"
    );
}

#[test]
fn refused_request_spends_nothing_of_its_other_descriptors() {
    let (_server, mut client, _rules) = start(BASIC);
    for call in 0..15_u64 {
        let response = client.check_descriptors("basic", &[&[("first", "a")], &[("other", "a")]]);
        if call < 10 {
            assert_eq!(response.statuses(), [("OK", 19 - call), ("OK", 9 - call)]);
        } else {
            assert_eq!(response.code(), "OVER_LIMIT");
            assert_eq!(response.statuses(), [("OK", 10), ("OVER_LIMIT", 0)], "call {call}");
        }
    }
}

#[test]
fn reset_shrinks_as_time_passes() {
    let (_server, mut client, _rules) = start(BASIC);
    let first = client.check_descriptors("basic", &[&[("first", "a")]]).reset();
    assert!((1..=86_400).contains(&first), "{first}");
    eventually("the reset has shrunk by two seconds", || {
        let next = client
            .should_rate_limit(&json!({"domain": "basic", "descriptors": [with_hits(&[("first", "a")], 0, false)]}));
        next.reset() + 2 <= first || next.reset() > first
    });
}

#[test]
fn reload_puts_other_rules_in_force() {
    let (_server, mut client, rules) = start(BASIC);
    assert_eq!(client.check_descriptors("basic", &[&[("first", "a")]]).remaining(), 19);
    rules.write("{domain: another, descriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 5}}]}");
    eventually("the new domain has its limit", || {
        client.check_descriptors("another", &[&[("k", "v")]]).remaining() > 0
    });
    assert_eq!(client.check_descriptors("basic", &[&[("first", "a")]]).statuses(), [("OK", 0)]);
    rules.write(BASIC);
    eventually("the old domain has its limit again", || {
        client.check_descriptors("basic", &[&[("first", "b")]]).remaining() > 0
    });
    assert_eq!(client.check_descriptors("another", &[&[("k", "v")]]).statuses(), [("OK", 0)]);
}

#[test]
fn values_with_a_wildcard_share_a_counter_only_with_share_threshold() {
    let (_server, mut client, _rules) = start(
        "
domain: files
descriptors:
- {key: shared, value: 'docs/*', share_threshold: true, rate_limit: {unit: year, requests_per_unit: 10}}
- {key: each, value: 'docs/*', rate_limit: {unit: year, requests_per_unit: 10}}
",
    );
    for left in (0..10).rev() {
        assert_eq!(client.check_descriptors("files", &[&[("shared", "docs/a.pdf")]]).remaining(), left);
    }
    assert_eq!(client.check_descriptors("files", &[&[("shared", "docs/b.csv")]]).code(), "OVER_LIMIT");
    for file in ["docs/a.pdf", "docs/b.csv"] {
        assert_eq!(client.check_descriptors("files", &[&[("each", file)]]).statuses(), [("OK", 9)], "{file}");
    }
}

#[test]
fn request_above_a_shadow_limit_passes_with_nothing_remaining() {
    let (_server, mut client, _rules) = start(BASIC);
    for left in [1, 0, 0, 0] {
        assert_eq!(client.check_descriptors("basic", &[&[("shadow", "a")]]).statuses(), [("OK", left)]);
    }
    for _ in 0..10 {
        client.check_descriptors("basic", &[&[("other", "a")]]);
    }
    let both = client.check_descriptors("basic", &[&[("shadow", "b")], &[("other", "a")]]);
    assert_eq!(both.code(), "OVER_LIMIT", "an enforced rule refuses even beside a shadow rule");
}

#[test]
fn unlimited_rule_has_no_limit_and_the_largest_remaining() {
    let (_server, mut client, _rules) = start(BASIC);
    let response = client.check_descriptors("basic", &[&[("free", "a")]]);
    assert_eq!(response.0["statuses"], json!([{"code": "OK", "limit_remaining": u32::MAX}]));
}

#[test]
fn limit_that_replaces_others_applies_in_their_place() {
    let (_server, mut client, _rules) = start(
        "
domain: replacing
descriptors:
- {key: blocked, rate_limit: {unit: minute, requests_per_unit: 0, name: none}}
- {key: raised, rate_limit: {unit: year, requests_per_unit: 2, replaces: [{name: none}]}}
- {key: one, rate_limit: {unit: year, requests_per_unit: 5, name: one}}
- {key: two, rate_limit: {unit: year, requests_per_unit: 5, name: two}}
- {key: both, rate_limit: {unit: year, requests_per_unit: 9, replaces: [{name: one}, {name: two}]}}
",
    );
    let blocked = client.check_descriptors("replacing", &[&[("blocked", "a")]]);
    assert_eq!((blocked.code(), blocked.statuses()), ("OVER_LIMIT", vec![("OVER_LIMIT", 0)]));
    for expected in ["OK", "OK", "OVER_LIMIT"] {
        assert_eq!(client.check_descriptors("replacing", &[&[("blocked", "a")], &[("raised", "a")]]).code(), expected);
    }
    let all: [&[(&str, &str)]; 3] = [&[("one", "a")], &[("two", "a")], &[("both", "a")]];
    assert_eq!(client.check_descriptors("replacing", &all).statuses(), [("OK", 0), ("OK", 0), ("OK", 8)]);
    assert_eq!(
        client.check_descriptors("replacing", &[&[("one", "a")]]).remaining(),
        4,
        "the original counter is untouched"
    );
}

#[test]
fn request_passes_while_one_quota_is_left() {
    let (_server, mut client, _rules) = start(
        "
domain: quotas
descriptors:
- {key: small, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: large, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: ordinary, rate_limit: {unit: year, requests_per_unit: 1}}
",
    );
    let both: [&[(&str, &str)]; 2] = [&[("small", "a")], &[("large", "a")]];
    let codes: Vec<String> = (0..3).map(|_| client.check_descriptors("quotas", &both).code().to_owned()).collect();
    assert_eq!(codes, ["OK", "OK", "OVER_LIMIT"]);
    client.check_descriptors("quotas", &[&[("ordinary", "a")]]);
    let mixed = client.check_descriptors("quotas", &[&[("ordinary", "a")], &[("large", "b")]]);
    assert_eq!(mixed.code(), "OVER_LIMIT", "an ordinary limit refuses even if a quota admits");
}

#[test]
fn headers_describe_the_limits() {
    let (_server, mut client, _rules) = start(
        "
domain: headers
rules:
- {id: tight, when: {key: a}, limit: 1/h, message: one an hour}
- {id: wide, when: {key: a}, limit: 100/day, algorithm: fixed_window}
",
    );
    let admitted = client.check_descriptors("headers", &[&[("key", "a")]]);
    let status = &admitted.0["statuses"][0];
    assert_eq!((status["current_limit"]["name"].as_str(), admitted.remaining()), (Some("tight"), 0), "{admitted:?}");
    assert!(admitted.header("ratelimit").is_some_and(|value| value.contains("\"wide\";r=99")), "{admitted:?}");
    assert_eq!(admitted.header("ratelimit-policy"), Some("\"tight\";q=1;w=3600, \"wide\";q=100;w=86400"));
    let refused = client.check_descriptors("headers", &[&[("key", "a")]]);
    assert_eq!(refused.code(), "OVER_LIMIT");
    let retry: u64 = refused.header("retry-after").and_then(|value| value.parse().ok()).expect("seconds");
    assert!((3500..=3600).contains(&retry) && refused.reset() == retry, "{refused:?}");
    assert_eq!(refused.header("content-type"), Some("text/plain; charset=utf-8"));
    // Base64 of "one an hour".
    assert_eq!(refused.0["raw_body"], "b25lIGFuIGhvdXI=");
}

#[test]
fn cost_comes_from_the_descriptor_or_the_request() {
    let (_server, mut client, _rules) = start(BASIC);
    let ask = |client: &mut RlsClient, descriptors: serde_json::Value| -> Response {
        client.should_rate_limit(&json!({"domain": "basic", "hits_addend": 3, "descriptors": descriptors}))
    };
    assert_eq!(ask(&mut client, json!([descriptor(&[("first", "a")])])).remaining(), 17);
    assert_eq!(ask(&mut client, json!([with_hits(&[("first", "a")], 5, false)])).remaining(), 12);
    assert_eq!(ask(&mut client, json!([with_hits(&[("first", "a")], 13, false)])).code(), "OVER_LIMIT");
    assert_eq!(ask(&mut client, json!([with_hits(&[("first", "a")], 11, false)])).statuses(), [("OK", 1)]);
    assert_eq!(
        ask(&mut client, json!([with_hits(&[("first", "a")], 0, false)])).remaining(),
        1,
        "a cost of 0 takes nothing"
    );
}

#[test]
fn negative_hits_are_refunded_even_if_other_descriptors_are_refused() {
    let (_server, mut client, _rules) = start(BASIC);
    let ask = |client: &mut RlsClient, descriptors: serde_json::Value| -> Response {
        client.should_rate_limit(&json!({"domain": "basic", "descriptors": descriptors}))
    };
    ask(&mut client, json!([with_hits(&[("first", "a")], 20, false), with_hits(&[("other", "a")], 10, false)]));
    let mixed =
        ask(&mut client, json!([with_hits(&[("first", "a")], 4, true), with_hits(&[("other", "a")], 1, false)]));
    assert_eq!((mixed.code(), mixed.statuses()), ("OVER_LIMIT", vec![("OK", 0), ("OVER_LIMIT", 0)]));
    assert_eq!(ask(&mut client, json!([with_hits(&[("first", "a")], 0, false)])).remaining(), 4);
    assert_eq!(ask(&mut client, json!([with_hits(&[("first", "a")], 99, true)])).code(), "OK");
    assert_eq!(
        ask(&mut client, json!([with_hits(&[("first", "a")], 0, false)])).remaining(),
        20,
        "a refund never exceeds the capacity"
    );
    assert_eq!(ask(&mut client, json!([with_hits(&[("first", "new")], 1, true)])).code(), "OK");
}

#[test]
fn limit_of_a_descriptor_is_used_instead_of_the_rules() {
    let (_server, mut client, _rules) = start(BASIC);
    let limited = |unit: u64| {
        let mut descriptor = descriptor(&[("anything", "a")]);
        descriptor["limit"] = json!({"requests_per_unit": 2, "unit": unit});
        json!({"domain": "basic", "descriptors": [descriptor]})
    };
    for expected in [("OK", 1), ("OK", 0), ("OVER_LIMIT", 0)] {
        assert_eq!(client.should_rate_limit(&limited(6)).statuses(), [expected]);
    }
    assert_eq!(client.should_rate_limit(&limited(4)).statuses(), [("OK", 1)], "another unit has another counter");
    for unit in [0, 7, 99] {
        let unknown = client.should_rate_limit(&limited(unit)).0;
        assert_eq!(unknown["error"], "INVALID_ARGUMENT");
        assert_eq!(unknown["detail"], format!("the limit has the unit {unit}; available: 1 (second) to 6 (year)"));
    }
    let mut elsewhere = limited(6);
    elsewhere["domain"] = json!("unknown");
    assert_eq!(
        client.should_rate_limit(&elsewhere).statuses(),
        [("OK", 0)],
        "the limit applies only in a known domain"
    );
}

#[test]
fn malformed_calls_have_a_status_that_says_what_is_wrong() {
    let (server, mut client, _rules) = start(BASIC);
    let error = |response: serde_json::Value| format!("{}: {}", response["error"], response["detail"]).replace('"', "");
    for (call, expected) in [
        (json!({"request": {}}), "INVALID_ARGUMENT: the domain is empty"),
        (json!({"request": {"domain": "basic"}}), "INVALID_ARGUMENT: the request has no descriptors"),
        (json!({"raw": [0x0a]}), "INVALID_ARGUMENT: the message ends within a field"),
        (json!({"raw": [0x08, 0x01]}), "INVALID_ARGUMENT: the field `domain` has the wrong wire type"),
        (json!({"raw": ([0x12, 0].repeat(1000))}), "INVALID_ARGUMENT: too many descriptors (maximum 64)"),
        (json!({"raw": (vec![0; 300_000])}), "RESOURCE_EXHAUSTED: the message has more than 262144 bytes"),
        (json!({"health": "other"}), "NOT_FOUND: no such service"),
    ] {
        let text = call.to_string();
        assert_eq!(error(client.call(&call)), expected, "{}", &text[..text.len().min(100)]);
    }
    assert_eq!(client.call(&json!({"health": ""})), json!({"status": "SERVING"}));
    let page = run_program(std::process::Command::new("curl").arg("-s").arg(server.url("/metrics")));
    assert!(page.contains(r#"tollgate_mistaken_requests_total{front="rls"} 7"#), "{page}");
}

#[test]
fn json_endpoint_decides_like_grpc() {
    let (server, mut client, _rules) = start(BASIC);
    let ask = |body: &str| {
        let mut curl = std::process::Command::new("curl");
        run_program(curl.args(["-s", "-w", " %{http_code}", "-d", body]).arg(server.url("/json")))
    };
    let body = r#"{"domain":"basic","descriptors":[{"entries":[{"key":"other","value":"j"}],"hitsAddend":"9"}]}"#;
    let admitted = ask(body);
    assert!(admitted.contains(r#""limitRemaining":1,"#) && admitted.ends_with(" 200"), "{admitted}");
    assert!(ask(body).contains(r#"{"overallCode":"OVER_LIMIT""#));
    assert!(ask(body).ends_with(" 429"));
    assert!(ask("{}").contains("the domain is empty"));
    assert!(ask("[").ends_with(" 400"));
    assert_eq!(
        client.check_descriptors("basic", &[&[("other", "j")]]).remaining(),
        0,
        "HTTP and gRPC use the same counter"
    );
    let health = run_program(std::process::Command::new("curl").args(["-s"]).arg(server.url("/healthcheck")));
    assert_eq!(health, "OK");
}

#[test]
fn concurrency_slot_is_released_by_negative_hits() {
    let (_server, mut client, _rules) =
        start("{domain: slots, rules: [{id: streams, per: [user], limit: 2, algorithm: concurrency, lease: 1h}]}");
    let mut hits = |user: &str, is_negative: bool| {
        let descriptors = [with_hits(&[("user", user)], 1, is_negative)];
        client.should_rate_limit(&json!({"domain": "slots", "descriptors": descriptors})).code().to_owned()
    };
    let codes = ["OK", "OK", "OVER_LIMIT"].map(|_| hits("a", false));
    assert_eq!(codes, ["OK", "OK", "OVER_LIMIT"]);
    assert_eq!(hits("a", true), "OK", "Envoy reports the end of a refused stream as well");
    assert_eq!(hits("a", false), "OVER_LIMIT", "the end of a refused stream releases no slot");
    assert_eq!([hits("a", true), hits("a", true)], ["OK", "OK"], "the refused stream and an admitted stream end");
    assert_eq!(hits("a", false), "OK", "one slot was released");
    assert_eq!(hits("a", false), "OVER_LIMIT");
    assert_eq!(hits("b", true), "OK", "releasing a slot that is not held has no effect");
    assert_eq!(hits("b", false), "OK");
}

#[test]
fn token_budget_is_charged_afterwards_and_refuses_while_in_debt() {
    let (_server, mut client, _rules) = start(
        "{domain: tokens, rules: [{id: budget, per: [user], limit: 2/day, algorithm: fixed_window, postpaid: true}]}",
    );
    let mut hits = |hits: u64| {
        let descriptors = [with_hits(&[("user", "a")], hits, false)];
        client.should_rate_limit(&json!({"domain": "tokens", "descriptors": descriptors})).code().to_owned()
    };
    let passed = (0..5).take_while(|_| hits(0) == "OK" && hits(1) == "OK").count();
    assert_eq!(passed, 3, "the third request leaves a debt of 1");
}

#[test]
fn service_listens_on_a_unix_socket() {
    let (folder, rules) = (common::Folder::new(), Rules::new(BASIC));
    let address = format!("unix:{}", folder.join("rls.socket"));
    let server = Server::start(&["--rules", rules.path(), "--rls", &address]);
    let mut client = RlsClient::connect(&address);
    assert_eq!(client.check_descriptors("basic", &[&[("first", "a")]]).remaining(), 19);
    drop(client);
    server.stop_and_read_log();
    assert!(!folder.path().join("rls.socket").exists(), "the file is removed when the server stops");
}
