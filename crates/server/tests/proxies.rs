//! Forward-auth with real proxies: the configurations of `tollgate snippets`, run by nginx, HAProxy, Caddy, Traefik and Envoy.

use crate::common;

use common::proxy::{Proxy, start_app};
use common::{Rules, Server};

const RULES: &str = "
domain: api
rules:
- {id: per-key, when: {path: /limited/**}, per: [header.x-api-key], limit: 2/h}
- {id: per-client, when: {host: api.example.org, method: [GET, POST], scheme: http}, per: [client_ip], limit: 1000/h}
- {id: forged, when: {client_ip: 203.0.113.9}, deny: true}
- {id: described, when: {path: /described, host: api.example.org, method: GET, scheme: http}, deny: true}
";

/// Spellings of a limited path.
const ODD_PATHS: &[&str] = &[
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

/// Headers by which a client would describe another request than its own.
const FORGED: &[(&str, &str)] = &[
    ("x-forwarded-uri", "/other"),
    ("x-original-uri", "/other"),
    ("x-forwarded-method", "POST"),
    ("x-original-method", "POST"),
    ("x-forwarded-host", "other.example.org"),
    ("x-forwarded-proto", "https"),
    ("forwarded", "for=192.0.2.1;host=other;proto=https"),
];

/// The abilities of a proxy beyond passing and refusing.
struct Able {
    /// The client gets rate-limit headers with admitted requests.
    headers: bool,
    /// The status of a request that cannot be checked because Tollgate is down.
    unchecked: u16,
    /// Requests pass while Tollgate is stalled.
    passes_stalls: bool,
}

fn check(name: &str, able: &Able) {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let proxy = Proxy::start(name, server.http.expect("HTTP is on"), start_app(), |snippet| snippet);
    let limited = |key: &str| proxy.send("GET", "/limited/a?b=c", &[("x-api-key", key)]);

    for left in [1, 0] {
        let response = limited("one");
        assert_eq!((response.status, &*response.body), (200, "app"), "{name}: {response:?}");
        if able.headers {
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
    assert!((1700..=1800).contains(&retry), "{name}: a token comes back every 1800 s: {refused:?}");
    assert_eq!(refused.header("content-type"), Some("application/problem+json"), "{name}: {refused:?}");

    // The path cannot be disguised, and what the proxy says about the request cannot be forged.
    for path in ODD_PATHS {
        // A proxy may refuse a path itself.
        let status = proxy.send("GET", path, &[("x-api-key", "one")]).status;
        assert!(status == 429 || status == 400, "{name}: {path}: {status}");
    }
    for forged in FORGED {
        assert_eq!(proxy.send("GET", "/described", &[*forged]).status, 429, "{name}: {forged:?}");
    }
    assert_eq!(proxy.send("GET", "/described", FORGED).status, 429, "{name}: all of them");
    let forged = [("x-forwarded-for", "203.0.113.9"), ("x-api-key", "forged"), ("tollgate-token", "x")];
    assert_eq!(proxy.send("GET", "/limited/a", &forged).status, 200, "{name}");
    // A request with more headers than Tollgate reads is refused: as a call that failed, it would evade the limits.
    let names: Vec<String> = (0..70).map(|n| format!("x-many-{n}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "1")).chain([("x-api-key", "one")]).collect();
    let status = proxy.send("GET", "/limited/a", &many).status;
    assert!((400..500).contains(&status), "{name}: {status}");
    // Headers of browsers and of authenticated clients are passed on unchanged.
    let own = [("origin", "https://example.org"), ("authorization", "Bearer x"), ("content-length", "0")];
    assert_eq!(proxy.send("POST", "/other", &own).status, 200, "{name}");

    if able.passes_stalls {
        server.pause();
        let stalled = limited("one");
        server.signal("CONT");
        assert_eq!((stalled.status, &*stalled.body), (200, "app"), "{name}: {stalled:?}");
        assert_eq!(limited("one").status, 429, "{name}: limits hold again");
    } else {
        server.pause();
        let waited = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| limited("one").status);
            server.signal("CONT");
            waiting.join().expect("no panic")
        });
        assert_eq!(waited, 429, "{name}: a request during a stall is decided after it");
    }
    drop(server);
    assert_eq!(limited("one").status, able.unchecked, "{name}: the server is down");
}

#[test]
fn nginx_refuses_with_429_and_fails_open() {
    check("nginx", &Able { headers: true, unchecked: 200, passes_stalls: true });
}

#[test]
fn haproxy_refuses_with_429_and_fails_open() {
    check("haproxy", &Able { headers: true, unchecked: 200, passes_stalls: true });
}

#[test]
fn caddy_refuses_with_429_and_fails_open() {
    check("caddy", &Able { headers: true, unchecked: 200, passes_stalls: true });
}

#[test]
fn traefik_refuses_with_429_and_fails_closed() {
    check("traefik", &Able { headers: false, unchecked: 500, passes_stalls: false });
}

#[test]
fn envoy_ext_authz_refuses_with_429_and_fails_open() {
    check("envoy", &Able { headers: true, unchecked: 200, passes_stalls: true });
}
