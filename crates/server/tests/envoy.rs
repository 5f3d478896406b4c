//! A real Envoy whose rate-limit filter calls Tollgate, with the configuration of `tollgate snippets envoy-rls`.

use crate::common;

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use common::eventually::{measure_duration, wall_seconds};
use common::proxy::{Proxy, Response, start_app, start_app_named, start_echo, start_holding_app, with_long_timeouts};
use common::{Rules, Server, eventually, run_program};
use tollgate_testkit::servers::free_port;

/// A rule file in the format of the reference service. The rules cover the descriptors that the snippet's Envoy sends.
const RULES: &str = "
domain: api
descriptors:
- {key: api_key, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: remote_address, rate_limit: {unit: day, requests_per_unit: 1000}}
";

/// Starts a server, and an Envoy in front of an application. `edit` changes the snippet. The snippet's 50 ms timeout is
/// extended, because the machine may be busy.
fn start(rules: &str, edit: impl Fn(String) -> String) -> (Server, Proxy, Rules) {
    start_in_front_of(rules, &[], start_app(), edit)
}

/// Starts a server with additional arguments, and an Envoy in front of the application at `app`.
fn start_in_front_of(
    rules: &str,
    args: &[&str],
    app: SocketAddr,
    edit: impl Fn(String) -> String,
) -> (Server, Proxy, Rules) {
    let rules = Rules::new(rules);
    let server = Server::start(&[&["--rules", rules.path(), "--rls", "127.0.0.1:0"], args].concat());
    let edit = |snippet| with_long_timeouts(&edit(snippet));
    let proxy = Proxy::start("envoy-rls", server.rls.expect("the rate-limit service is on"), app, edit);
    (server, proxy, rules)
}

#[test]
fn envoy_refuses_by_the_rule_file_of_the_reference_service_and_fails_open() {
    let (server, proxy, _rules) = start(RULES, |snippet| snippet);
    let ask = |key: &str| proxy.send("GET", "/", &[("x-api-key", key)]);
    for left in [1, 0] {
        let response = ask("one");
        assert_eq!((response.status, &*response.body), (200, "app"), "{response:?}");
        let limit = response.header("ratelimit").unwrap_or_default();
        assert!(limit.contains(&format!("\"api_key\";r={left};")), "{response:?}");
        assert!(response.header("ratelimit-policy").is_some_and(|policy| policy.contains("\"remote_address\";q=1000")));
    }
    let refused = ask("one");
    assert_eq!(refused.status, 429, "{refused:?}");
    let retry: u64 = refused.header("retry-after").and_then(|retry| retry.parse().ok()).expect("seconds");
    assert!((1..=365 * 86_400).contains(&retry), "{refused:?}");
    assert_eq!(ask("two").status, 200);

    drop(server);
    assert_eq!(ask("one").status, 200, "the server is down");
}

#[test]
fn printed_configuration_passes_requests_while_the_server_is_stalled() {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path(), "--rls", "127.0.0.1:0"]);
    let service = server.rls.expect("the rate-limit service is on");
    let proxy = Proxy::start("envoy-rls", service, start_app(), |snippet| snippet);
    let ask = || proxy.send("GET", "/", &[("x-api-key", "one")]);
    eventually("the limit is reached", || ask().status == 429);
    server.pause();
    let (stalled, time) = measure_duration(ask);
    server.signal("CONT");
    assert_eq!((stalled.status, &*stalled.body), (200, "app"), "{stalled:?}");
    assert!((Duration::from_millis(40)..Duration::from_secs(2)).contains(&time), "{time:?}");
    eventually("limits hold again", || ask().status == 429);
}

#[test]
fn message_of_the_rule_is_the_body_of_the_refusal() {
    let (_server, proxy, _rules) = start(
        "{domain: api, rules: [{id: none, when: {api_key: blocked}, deny: true, message: ask for a key}]}",
        |it| it,
    );
    let refused = proxy.send("GET", "/", &[("x-api-key", "blocked")]);
    assert_eq!((refused.status, &*refused.body), (429, "ask for a key"), "{refused:?}");
    assert_eq!(refused.header("content-type"), Some("text/plain; charset=utf-8"), "{refused:?}");
}

/// Replaces the snippet's rate limits with other limits on its only route, and extends the timeout. With the short
/// timeout, a request on a busy machine could pass without an answer and take its slot only after it has ended.
fn with_rate_limits(snippet: &str, rate_limits: &str) -> String {
    let snippet = snippet.replace("timeout: 0.05s", "timeout: 10s");
    let route = "routes: [{match: {prefix: /}, route: {cluster: app}}]";
    assert!(snippet.contains(route), "{snippet}");
    let (before, rest) = snippet.split_once("              # One descriptor").expect("limits of the virtual host");
    let (_, after) = rest.split_once("routes:").expect("a route");
    let filter = "typed_per_filter_config: {envoy.filters.http.ratelimit: {\"@type\": \
                  type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute, rate_limits: [";
    let routes = format!("routes: [{{match: {{prefix: /}}, route: {{cluster: app}}, {filter}{rate_limits}]}}}}}}]");
    format!("{before}              {routes}{}", after.split_once("}}]").expect("the end of the route").1)
}

#[test]
fn token_budget_is_charged_when_streams_end() {
    let limits = "{actions: [{generic_key: {descriptor_value: budget}}], hits_addend: {number: 0}}, \
                  {actions: [{generic_key: {descriptor_value: budget}}], hits_addend: {number: 500}, apply_on_stream_done: true}";
    let rules = "{domain: api, rules: [{id: budget, when: {generic_key: budget}, limit: 1000/day, algorithm: fixed_window, \
                 postpaid: true}]}";
    let (_server, proxy, _rules) = start(rules, |snippet| with_rate_limits(&snippet, limits));
    let mut passed = 0;
    eventually("the budget is in debt", || {
        let status = proxy.send("GET", "/", &[]).status;
        passed += u32::from(status == 200);
        status == 429
    });
    // More than one request may pass, because a stream's charge may arrive after the next stream's check.
    assert!(passed >= 1, "the first requests pass");
    assert_eq!(proxy.send("GET", "/", &[]).status, 429);
}

/// The quotas of the reference service's example, per year instead of per minute.
const QUOTAS: &str = "
domain: rl
descriptors:
- key: service
  value: service_1
  quota_mode: true
  rate_limit: {unit: year, requests_per_unit: 1}
  metadata: {service_with_quota: {name: service_1}}
- key: service
  value: service_2
  quota_mode: true
  rate_limit: {unit: year, requests_per_unit: 2}
  metadata: {service_with_quota: {name: service_2}}
";

#[test]
fn quotas_of_the_reference_service_are_charged_to_the_service_that_served() {
    let rules = Rules::new(QUOTAS);
    let server = Server::start(&["--rules", rules.path(), "--rls", "127.0.0.1:0"]);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let mut config = include_str!("common/envoy_reference.yaml").to_owned();
    for (name, at) in [
        ("RLS", server.rls.expect("the rate-limit service is on")),
        ("ONE", start_app_named("one")),
        ("TWO", start_app_named("two")),
        ("LISTEN", address),
    ] {
        config = config.replace(&format!("port_value: {name}"), &format!("port_value: {}", at.port()));
    }
    let proxy = Proxy::start_with("envoy", address, &config, "");
    let page = || run_program(std::process::Command::new("curl").arg("-s").arg(server.url("/metrics")));
    let mut calls = 0;
    let mut served = || {
        let response = proxy.send("GET", "/multiservice-tokenquota", &[]);
        calls += 3;
        if response.status == 200 {
            // Waits for the charge, which arrives after the response. The metric counts the two descriptors of the
            // check and the descriptor of the charge.
            let counted = format!("tollgate_rls_descriptors_total{{matched=\"true\"}} {calls}");
            eventually("the charge has arrived", || page().contains(&counted));
        }
        (response.status, response.body)
    };
    for expected in ["one", "one", "two", "two", "two"] {
        assert_eq!(served(), (200, expected.to_owned()));
    }
    assert_eq!(served().0, 429);
}

#[test]
fn concurrency_slot_is_held_while_its_stream_is_open() {
    let limits = "{actions: [{generic_key: {descriptor_value: streams}}], hits_addend: {number: 1}}, \
                  {actions: [{generic_key: {descriptor_value: streams}}], hits_addend: {number: 1, is_negative_hits: true}, \
                  apply_on_stream_done: true}";
    let rules = "{domain: api, rules: [{id: streams, when: {generic_key: streams}, limit: 1, algorithm: concurrency, lease: 1h}]}";
    let (app, release) = start_holding_app();
    let (_server, proxy, _rules) = start_in_front_of(rules, &[], app, |snippet| with_rate_limits(&snippet, limits));
    for _ in 0..3 {
        let mut held = None;
        eventually("the previous stream's slot is released", || {
            held = Some(proxy.begin_request("/held")).filter(|(_, begun)| begun.starts_with("HTTP/1.1 200"));
            held.is_some()
        });
        let (mut first, _) = held.expect("an open stream");
        // Envoy also sends negative hits for refused streams. Such hits must not release the slot of another stream.
        for _ in 0..5 {
            assert_eq!(proxy.send("GET", "/", &[]).status, 429, "the first stream is open");
        }
        release.send(()).expect("the application waits");
        let mut rest = String::new();
        first.read_to_string(&mut rest).expect("the response ends");
        eventually("the slot is free again", || proxy.send("GET", "/", &[]).status == 200);
    }
}

#[test]
fn request_headers_reach_the_application() {
    let args = ["--rls-request-headers", "ietf"];
    let (_server, proxy, _rules) = start_in_front_of(RULES, &args, start_echo(), |snippet| snippet);
    let echoed = proxy.send("GET", "/", &[("x-api-key", "one"), ("ratelimit", "forged")]);
    let lines: Vec<&str> = echoed.body.lines().filter(|line| line.starts_with("ratelimit:")).collect();
    assert!(lines.iter().any(|line| line.contains("\"api_key\";r=1;")), "{echoed:?}");
}

/// Makes Envoy add its own `X-RateLimit-*` and `Retry-After`.
fn with_headers_of_envoy(snippet: &str) -> String {
    let own = "enable_x_ratelimit_headers: DRAFT_VERSION_03\n              enable_retry_after_header: true";
    let edited = snippet.replace("failure_mode_deny: false", own);
    assert_ne!(edited, snippet);
    edited
}

#[test]
fn headers_of_envoy_are_added_beside_ours_except_retry_after() {
    let rules = "{domain: api, rules: [{id: quarter, only: [api_key], per: [api_key], limit: 1/15m}]}";
    let headers = |args: &[&str]| {
        let edit = |snippet: String| with_headers_of_envoy(&snippet);
        let (_server, proxy, _rules) = start_in_front_of(rules, args, start_app(), edit);
        let ask = || proxy.send("GET", "/", &[("x-api-key", "one")]);
        let lines = |response: &Response, name: &str| -> Vec<String> {
            let lines = response.head.lines().filter_map(|line| line.split_once(": "));
            lines.filter(|(found, _)| *found == name).map(|(_, value)| value.to_owned()).collect()
        };
        let (admitted, refused) = (ask(), ask());
        assert_eq!((admitted.status, refused.status), (200, 429), "{admitted:?} {refused:?}");
        assert_eq!(lines(&refused, "retry-after").len(), 1, "only one header is sent: {refused:?}");
        let own = ["x-ratelimit-limit", "x-ratelimit-remaining", "ratelimit-policy"];
        own.map(|name| lines(&admitted, name).join(" "))
    };
    // Envoy omits periods that are not a unit of the protocol.
    assert_eq!(headers(&[]), ["1", "0", "\"quarter\";q=1;w=900"]);
    assert_eq!(
        headers(&["--rls-headers", "x-ratelimit"]),
        ["1 1", "0 0", ""],
        "Envoy and Tollgate send the same values"
    );
}

#[test]
fn retry_after_is_the_time_until_the_end_of_the_window() {
    let rules = "{domain: api, descriptors: [{key: api_key, rate_limit: {unit: hour, requests_per_unit: 1}}]}";
    let (_server, proxy, _rules) = start(rules, |snippet| snippet);
    // Retries if an hour ends between the two clock readings.
    eventually("a refusal within one hour", || {
        let ask = || proxy.send("GET", "/", &[("x-api-key", "one")]);
        ask();
        let before = wall_seconds();
        let refused = ask();
        let after = wall_seconds();
        if refused.status != 429 || before / 3_600 != after / 3_600 {
            return false;
        }
        let retry: u64 = refused.header("retry-after").and_then(|retry| retry.parse().ok()).expect("seconds");
        let end = (before / 3_600 + 1) * 3_600;
        // Clock readings are rounded down to whole seconds, and waits are rounded up.
        assert!((end - after..=end - before).contains(&retry), "{retry} s, {before} to {after}, end {end}");
        true
    });
}
