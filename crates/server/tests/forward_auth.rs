//! The forward-auth endpoint, as called by a proxy.

use crate::common;

use std::process::Command;
use std::time::Duration;

use common::eventually::measure_duration;
use common::{Rules, Server, run_program};

const RULES: &str = "
domain: api
rules:
- {id: each, when: {path: /limited}, per: [client_ip], limit: 1/h, message: one each}
- {id: own-status, when: {path: /forbidden}, deny: true, status: 403}
- {id: slow, when: {path: /slow}, limit: 20/s, burst: 1, on_exceed: {delay: {max_wait: 2s}}}
";

fn curl(server: &Server, target: &str, headers: &[&str]) -> String {
    let mut command = Command::new("curl");
    for header in headers {
        command.args(["-H", header]);
    }
    run_program(command.args(["-s", "-i"]).arg(server.url(target))).to_lowercase()
}

const LIMITED_REQUEST_HEADERS: [&str; 2] = ["X-Forwarded-Uri: /limited", "X-Forwarded-For: 192.0.2.7"];

#[test]
fn refusal_has_its_reason_and_the_status_that_the_proxy_asks_for() {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let admitted = curl(&server, "/v1/forward-auth/api", &LIMITED_REQUEST_HEADERS);
    assert!(admitted.starts_with("http/1.1 200"), "{admitted}");
    assert!(admitted.contains("ratelimit: \"each\";r=0;t=3600"), "{admitted}");
    assert!(admitted.contains("content-length: 0"), "{admitted}");
    let refused = curl(&server, "/v1/forward-auth/api", &LIMITED_REQUEST_HEADERS);
    assert!(refused.starts_with("http/1.1 429"), "{refused}");
    assert!(refused.contains(r#""status":429,"detail":"one each","violated-policies":["each"]}"#), "{refused}");
    let refused = curl(&server, "/v1/forward-auth/api?refuse=403", &LIMITED_REQUEST_HEADERS);
    assert!(refused.starts_with("http/1.1 403") && refused.contains("tollgate-status: 429"), "{refused}");
    let denied = curl(&server, "/v1/forward-auth/api/forbidden", &[]);
    assert!(denied.starts_with("http/1.1 403") && denied.contains("tollgate-status: 403"), "{denied}");
    let page = curl(&server, "/metrics", &[]);
    assert!(page.contains(r#"tollgate_decisions_total{front="forward",outcome="deny"} 3"#), "{page}");
}

#[test]
fn forwarded_addresses_are_accepted_only_from_trusted_proxies() {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path(), "--trusted-proxies", "none"]);
    assert!(curl(&server, "/v1/forward-auth/api", &LIMITED_REQUEST_HEADERS).starts_with("http/1.1 200"));
    let other = ["X-Forwarded-Uri: /limited", "X-Forwarded-For: 192.0.2.8"];
    assert!(curl(&server, "/v1/forward-auth/api", &other).starts_with("http/1.1 429"), "both are 127.0.0.1");
}

#[test]
fn delayed_request_is_held_and_then_admitted() {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let ((), time) = measure_duration(|| {
        for _ in 0..3 {
            assert!(curl(&server, "/v1/forward-auth/api/slow", &[]).starts_with("http/1.1 200"));
        }
    });
    assert!(time >= Duration::from_millis(90), "the second and third each wait 50 ms after the previous one: {time:?}");
}

#[test]
fn malformed_calls_are_reported_and_counted() {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    for (target, headers, expected) in [
        ("/v1/forward-auth/api", &[][..], "the header `x-forwarded-uri` is missing"),
        ("/v1/forward-auth/api", &["X-Forwarded-Uri: nowhere"][..], "is not the target of a request"),
        ("/v1/forward-auth/other", &LIMITED_REQUEST_HEADERS[..], "`other`"),
        (
            "/v1/forward-auth/api?refuse=200",
            &LIMITED_REQUEST_HEADERS[..],
            "`refuse=200` is not a status from 400 to 599",
        ),
    ] {
        let answer = curl(&server, target, headers);
        assert!(answer.starts_with("http/1.1 400") && answer.contains(expected), "{target} {headers:?}: {answer}");
    }
    assert!(curl(&server, "/metrics", &[]).contains(r#"tollgate_mistaken_requests_total{front="forward"} 4"#));
}

#[test]
fn proxy_token_is_separate_from_the_client_token() {
    let data = common::Folder::new();
    let path = data.join("data");
    let args = ["tokens", "create", "--role", "admin", "--name", "proxy", "--data", &path];
    let token = common::tollgate(&args, b"").expect_success().trim().to_owned();
    let server = Server::start(&["--tokens", "required", "--data", &path]);
    let authorization = format!("Authorization: Bearer {token}");
    let put = ["-s", "-X", "PUT", "-H", &authorization, "-d", r#"{"limit": "1000/h"}"#];
    run_program(Command::new("curl").args(put).arg(server.url("/v1/domains/api/rules/all")));
    let status = |target: &str, headers: &[&str]| curl(&server, target, headers)[9..12].to_owned();
    common::eventually("the rule is in force", || {
        status("/v1/forward-auth/api", &[&format!("Tollgate-Token: {token}")]) == "200"
    });
    assert_eq!(status(&format!("/v1/forward-auth/api?token={token}"), &[]), "200");
    assert_eq!(status("/v1/forward-auth/api", &[&authorization]), "401");
    let with_slash = format!("/v1/forward-auth/api/?token={token}");
    assert_eq!(status(&with_slash, &[]), "401", "after the slash, the query belongs to the client");
}
