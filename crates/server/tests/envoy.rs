//! A real Envoy whose rate-limit filter asks Tollgate, with the configuration of `tollgate snippets envoy-rls`.

use crate::common;

use std::net::{Ipv4Addr, SocketAddr};

use common::proxy::{Proxy, start_app, start_app_named};
use common::{Rules, Server, eventually, run};
use tollgate_testkit::servers::free_port;

/// A rule file of the reference service, for the descriptors that the snippet sends.
const RULES: &str = "
domain: api
descriptors:
- {key: api_key, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: remote_address, rate_limit: {unit: day, requests_per_unit: 1000}}
";

fn start(rules: &str, edit: impl Fn(String) -> String) -> (Server, Proxy, Rules) {
    let rules = Rules::new(rules);
    let server = Server::start(&["--rules", rules.path(), "--rls", "127.0.0.1:0"]);
    let proxy = Proxy::start("envoy-rls", server.rls.expect("the service is on"), start_app(), edit);
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

    server.pause();
    let stalled = ask("one");
    server.signal("CONT");
    assert_eq!((stalled.status, &*stalled.body), (200, "app"), "{stalled:?}");
    assert_eq!(ask("one").status, 429, "limits hold again");
    drop(server);
    assert_eq!(ask("one").status, 200, "the server is down");
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

/// Replaces the limits of the snippet by those of its one route. The timeout is longer: on a busy machine a request could pass
/// without an answer, and its slot be taken after its end.
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
    // The charge of a stream may arrive after the check of the next one.
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
        ("RLS", server.rls.expect("the service is on")),
        ("ONE", start_app_named("one")),
        ("TWO", start_app_named("two")),
        ("LISTEN", address),
    ] {
        config = config.replace(&format!("port_value: {name}"), &format!("port_value: {}", at.port()));
    }
    let proxy = Proxy::start_with("envoy", address, &config, "");
    let page = || run(std::process::Command::new("curl").arg("-s").arg(server.url("/metrics")));
    let mut calls = 0;
    let mut served = || {
        let response = proxy.send("GET", "/multiservice-tokenquota", &[]);
        calls += 3;
        if response.status == 200 {
            // The charge arrives after the response: two descriptors of the check, and one of the charge.
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
fn concurrency_slot_is_released_when_its_stream_ends() {
    let limits = "{actions: [{generic_key: {descriptor_value: streams}}], hits_addend: {number: 1}}, \
                  {actions: [{generic_key: {descriptor_value: streams}}], hits_addend: {number: 1, is_negative_hits: true}, \
                  apply_on_stream_done: true}";
    let rules = "{domain: api, rules: [{id: streams, when: {generic_key: streams}, limit: 1, algorithm: concurrency, lease: 1h}]}";
    let (_server, proxy, _rules) = start(rules, |snippet| with_rate_limits(&snippet, limits));
    for _ in 0..5 {
        eventually("the slot of the stream before is released", || proxy.send("GET", "/", &[]).status == 200);
    }
}
