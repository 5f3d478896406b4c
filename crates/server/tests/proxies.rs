//! Forward-auth with real proxies: the configurations of `tollgate snippets`, run by nginx, HAProxy, Caddy, Traefik and
//! Envoy.
//!
//! The stalled-server tests use the printed snippets unchanged. The refusal tests extend the 50 ms timeouts. With the
//! short timeouts, a check on a busy machine may take too long, and requests that should be refused would pass.

use crate::common;

use std::time::Duration;

use common::eventually::{measure_duration, sleep_for};
use common::proxy::{Proxy, start_app, start_echo, with_long_timeouts};
use common::{Rules, Server, eventually};

const RULES: &str = "
domain: api
rules:
- {id: per-key, when: {path: /limited/**}, per: [header.x-api-key], limit: 2/h}
- {id: per-client, when: {host: api.example.org, method: [GET, POST], scheme: http}, per: [client_ip], limit: 1000/h}
- {id: forged, when: {client_ip: 203.0.113.9}, deny: true}
- {id: forbidden, when: {path: /forbidden}, deny: true, status: 403}
- {id: paused, when: {path: /paused}, deny: true, status: 503}
- {id: described, when: {path: /described, host: api.example.org, method: GET, scheme: http}, deny: true}
";

/// Alternative spellings of a limited path.
const DISGUISED_PATHS: &[&str] = &[
    "/x/..//%6Cimited/a",
    "/limited/./a",
    "/limited//a",
    "//limited/a",
    "/%6c%69mited/%61?x=/../y",
    "/limited/../limited/a",
    "/limited/a%00",
    "/limited/%2e%2e/limited/a",
    "/limited/a%2Fb",
    "/limited/a;b=c",
];

/// Headers with which a client could try to make Tollgate check a different request from the one that the
/// client sends.
const FORGED_HEADERS: &[(&str, &str)] = &[
    ("x-forwarded-uri", "/other"),
    ("x-original-uri", "/other"),
    ("x-forwarded-method", "POST"),
    ("x-original-method", "POST"),
    ("x-forwarded-host", "other.example.org"),
    ("x-forwarded-proto", "https"),
    ("forwarded", "for=192.0.2.1;host=other;proto=https"),
];

/// Properties in which the proxies differ.
struct ProxyFeatures {
    /// Whether admitted responses have rate-limit headers.
    headers: bool,
    /// Status of a request that cannot be checked because Tollgate is down.
    unchecked: u16,
}

fn check_proxy(name: &str, features: &ProxyFeatures) {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let proxy =
        Proxy::start(name, server.http.expect("HTTP is on"), start_echo(), |snippet| with_long_timeouts(&snippet));
    let limited = |key: &str| proxy.send("GET", "/limited/a?b=c", &[("x-api-key", key)]);

    for left in [1, 0] {
        let response = limited("one");
        assert_eq!(response.status, 200, "{name}: {response:?}");
        assert!(response.body.starts_with("GET /limited/a?b=c HTTP/1.1\r\n"), "{name}: {response:?}");
        if features.headers {
            let limit = response.header("ratelimit").unwrap_or_default();
            assert!(limit.contains(&format!("\"per-key\";r={left};")), "{name}: {response:?}");
            assert!(
                response.header("ratelimit-policy").is_some_and(|policy| policy.contains("\"per-key\";q=2;w=3600"))
            );
        }
    }
    let refused = limited("one");
    assert_eq!(refused.status, 429, "{name}: {refused:?}");
    let retry: u64 = refused.header("retry-after").and_then(|retry| retry.parse().ok()).expect("a number of seconds");
    assert!((1700..=1800).contains(&retry), "{name}: a token is refilled every 1800 s: {refused:?}");
    assert_eq!(refused.header("content-type"), Some("application/problem+json"), "{name}: {refused:?}");

    // A client can neither disguise the path nor forge the headers that describe its request.
    for path in DISGUISED_PATHS {
        // The status 400 is accepted too, because a proxy may refuse such a path itself.
        let status = proxy.send("GET", path, &[("x-api-key", "one")]).status;
        assert!(status == 429 || status == 400, "{name}: {path}: {status}");
    }
    for forged in FORGED_HEADERS {
        assert_eq!(proxy.send("GET", "/described", &[*forged]).status, 429, "{name}: {forged:?}");
    }
    assert_eq!(proxy.send("GET", "/described", FORGED_HEADERS).status, 429, "{name}: all forged headers together");
    let forged = [("x-forwarded-for", "203.0.113.9"), ("x-api-key", "forged"), ("tollgate-token", "x")];
    assert_eq!(proxy.send("GET", "/limited/a", &forged).status, 200, "{name}");
    // A request with more headers than Tollgate reads is refused. If the proxy treated such a request as a failed check
    // and let it pass, the client would evade the limits.
    let names: Vec<String> = (0..70).map(|n| format!("x-many-{n}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "1")).chain([("x-api-key", "one")]).collect();
    let status = proxy.send("GET", "/limited/a", &many).status;
    assert!((400..500).contains(&status), "{name}: {status}");
    // A proxy that fails open must not mistake the status of a rule for a failed check.
    for path in ["/forbidden", "/paused"] {
        let refused = proxy.send("GET", path, &[]);
        assert!([403, 429, 503].contains(&refused.status), "{name}: {path}: {refused:?}");
        assert!(!refused.body.starts_with("GET"), "{name}: {path} reached the application: {refused:?}");
    }
    // Headers of browsers and authenticated clients are passed on unchanged.
    let own = [("origin", "https://example.org"), ("authorization", "Bearer x"), ("content-length", "0")];
    let echoed = proxy.send("POST", "/other", &own);
    assert_eq!(echoed.status, 200, "{name}: {echoed:?}");
    let echoed = echoed.body.to_lowercase();
    assert!(echoed.contains("\r\norigin: https://example.org\r\n"), "{name}: {echoed}");
    assert!(echoed.contains("\r\nauthorization: bearer x\r\n"), "{name}: {echoed}");

    drop(server);
    assert_eq!(limited("one").status, features.unchecked, "{name}: the server is down");
}

#[test]
fn nginx_refuses_with_429_and_fails_open() {
    check_proxy("nginx", &ProxyFeatures { headers: true, unchecked: 200 });
}

#[test]
fn haproxy_refuses_with_429_and_fails_open() {
    check_proxy("haproxy", &ProxyFeatures { headers: true, unchecked: 200 });
}

#[test]
fn caddy_refuses_with_429_and_fails_open() {
    check_proxy("caddy", &ProxyFeatures { headers: true, unchecked: 200 });
}

#[test]
fn traefik_refuses_with_429_and_fails_closed() {
    check_proxy("traefik", &ProxyFeatures { headers: false, unchecked: 500 });
}

#[test]
fn envoy_ext_authz_refuses_with_429_and_fails_open() {
    check_proxy("envoy", &ProxyFeatures { headers: true, unchecked: 200 });
}

#[test]
fn nginx_with_a_token_asks_a_server_that_requires_tokens() {
    let data = common::Folder::new();
    let path = data.join("data");
    let create = |role: &str| {
        common::tollgate(&["tokens", "create", "--role", role, "--name", role, "--data", &path], b"").expect_success()
    };
    let (admin, reader) = (create("admin").trim().to_owned(), create("reader").trim().to_owned());
    let server = Server::start(&["--tokens", "required", "--data", &path]);
    let rules = "domain: api\nrules:\n- {id: all, when: {path: /limited}, limit: 1/h}\n";
    let apply = ["rules", "apply", "-", "--yes", "--server", &server.url(""), "--token", &admin];
    common::tollgate(&apply, rules.as_bytes()).expect_success();
    let written = |snippet: String| {
        let token = format!("proxy_set_header Tollgate-Token \"{reader}\";");
        let with_token = snippet.replace("proxy_set_header Tollgate-Token \"\";", &token);
        assert_ne!(with_token, snippet);
        with_long_timeouts(&with_token)
    };
    let proxy = Proxy::start("nginx", server.http.expect("HTTP is on"), start_echo(), written);
    let limited = |headers: &[(&str, &str)]| proxy.send("GET", "/limited", headers);
    eventually("the rule is in force", || limited(&[]).status == 429);
    // Tokens that the client sends are not forwarded to Tollgate.
    let own = [("tollgate-token", "wrong"), ("authorization", "Bearer x"), ("origin", "https://example.org")];
    assert_eq!(limited(&own).status, 429);
    let passed = proxy.send("GET", "/other", &own);
    assert!(passed.status == 200 && passed.body.contains("Bearer x"), "{passed:?}");
}

/// Runs the printed snippet unchanged. While the server is stalled, a request must pass soon after the snippet's
/// timeout of 50 ms, or after several timeouts for HAProxy, which retries.
fn check_stall(name: &str) {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let proxy = Proxy::start(name, server.http.expect("HTTP is on"), start_app(), |snippet| snippet);
    let limited = || proxy.send("GET", "/limited/a", &[("x-api-key", "one")]);
    eventually("the limit is reached", || limited().status == 429);
    server.pause();
    let (stalled, time) = measure_duration(limited);
    server.signal("CONT");
    assert_eq!((stalled.status, &*stalled.body), (200, "app"), "{name}: {stalled:?}");
    assert!((Duration::from_millis(40)..Duration::from_secs(2)).contains(&time), "{name}: {time:?}");
    eventually("limits hold again", || limited().status == 429);
}

#[test]
fn nginx_passes_requests_while_the_server_is_stalled() {
    check_stall("nginx");
}

#[test]
fn haproxy_passes_requests_while_the_server_is_stalled() {
    check_stall("haproxy");
}

#[test]
fn caddy_passes_requests_while_the_server_is_stalled() {
    check_stall("caddy");
}

#[test]
fn envoy_ext_authz_passes_requests_while_the_server_is_stalled() {
    check_stall("envoy");
}

#[test]
fn traefik_waits_while_the_server_is_stalled() {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let proxy = Proxy::start("traefik", server.http.expect("HTTP is on"), start_app(), |snippet| snippet);
    let limited = || proxy.send("GET", "/limited/a", &[("x-api-key", "one")]).status;
    assert_eq!([limited(), limited(), limited()], [200, 200, 429]);
    server.pause();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(limited);
        sleep_for(Duration::from_millis(300));
        assert!(!waiting.is_finished(), "there is no answer during the stall");
        server.signal("CONT");
        assert_eq!(waiting.join().expect("no panic"), 429, "the request is decided after the stall");
    });
}
