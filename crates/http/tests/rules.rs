//! Limits by rules, with the state in memory and a manual clock.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Request, Response};
use http_body_util::Full;
use support::{Body, HelloService, call};
use tollgate::clock::ManualClock;
use tollgate::core::Nanos;
use tollgate::{Outcome, Retry};
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Attribute, Decisions, Enforcement, Engine, Item, MemoryStore};
use tollgate_http::{Attributes, ByRules, ClientIp, LimitLayer, LimitedBody, ObservedOutcome, OnUnidentified, Styles};
use tower_layer::Layer;

type ManualClockStore = MemoryStore<ManualClock>;
type LayerAndEngine =
    (LimitLayer<ByRules<ManualClockStore, ManualClockStore>>, Arc<Engine<ManualClockStore, ManualClockStore>>);

/// Returns a layer with all attributes and these rules.
fn layer_with_rules(rules: &str) -> LayerAndEngine {
    let clock = Arc::new(ManualClock::at(1_700_000_000_000_000_000));
    let memory = || MemoryStore::with_clock(1_000, clock.clone()).unwrap();
    let engine = Arc::new(Engine::with_fallback(memory(), memory()));
    let text = format!("{{domain: d, rules: [{rules}]}}");
    engine.put(&Rules::read(&[Source { name: "rules.yaml", text: text.as_bytes() }]).unwrap()).unwrap();
    let attributes = Attributes::new()
        .method()
        .path()
        .host()
        .client_ip(ClientIp::direct())
        .header(HeaderName::from_static("x-user"))
        .cookie("session")
        .query("plan");
    (LimitLayer::by_rules(engine.clone(), "d", attributes), engine)
}

fn get_request(uri: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().uri(uri).extension(SocketAddr::from(([203, 0, 113, 7], 4711)));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).unwrap()
}

fn header_value<'a>(response: &'a Response<LimitedBody<Body>>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn rules_match_the_attributes_of_a_request() {
    for (rule, uri, headers, matches) in [
        ("when: {path: \"/v1/**\"}", "/v1/items", &[][..], true),
        ("when: {path: \"/v1/**\"}", "/v2/items", &[], false),
        ("when: {method: GET}", "/", &[], true),
        ("when: {method: POST}", "/", &[], false),
        ("when: {host: example.org}", "http://Example.ORG:80/", &[], true),
        ("when: {host: example.org}", "/", &[("host", "EXAMPLE.org:8080")], true),
        ("when: {client_ip: 203.0.113.7}", "/", &[], true),
        ("when: {client_ip: 203.0.113.8}", "/", &[], false),
        ("when: {header.x-user: alice}", "/", &[("x-user", "alice")], true),
        ("when: {header.x-user: alice}", "/", &[], false),
        ("when: {cookie.session: s1}", "/", &[("cookie", "a=b; session=s1")], true),
        ("when: {query.plan: free}", "/?a=b&plan=free", &[], true),
        ("when: {query.plan: free}", "/?plan=freedom", &[], false),
    ] {
        let (layer, _) = layer_with_rules(&format!("{{id: r, {rule}, limit: 1/m}}"));
        let mut service = layer.layer(HelloService::default());
        call(&mut service, get_request(uri, headers)).await;
        let second = call(&mut service, get_request(uri, headers)).await.status().as_u16();
        assert_eq!(second, if matches { 429 } else { 200 }, "{rule}: {uri} {headers:?}");
    }
}

#[tokio::test]
async fn refusal_names_the_rule_and_allowed_responses_have_headers() {
    let (layer, _) = layer_with_rules(
        "{id: slow, limit: 2/m}, {id: fast, limit: 10/s}, {id: shadow, limit: 1/h, on_exceed: shadow}",
    );
    let layer = layer.styles(Styles::IETF.and(Styles::X_RATE_LIMIT));
    let mut service = layer.layer(HelloService::default());
    let passed = call(&mut service, get_request("/", &[])).await;
    assert_eq!(header_value(&passed, "ratelimit"), r#""slow";r=1;t=30, "fast";r=9;t=1"#);
    assert_eq!(header_value(&passed, "x-ratelimit-remaining"), "1");
    call(&mut service, get_request("/", &[])).await;
    let refused = call(&mut service, get_request("/", &[])).await;
    assert_eq!((refused.status().as_u16(), header_value(&refused, "retry-after")), (429, "30"));
    assert_eq!(header_value(&refused, "ratelimit"), r#""slow";r=0;t=30"#);
    let refused = call(&mut service, get_request("/", &[("content-type", "application/grpc")])).await;
    assert_eq!(
        (header_value(&refused, "grpc-status"), header_value(&refused, "grpc-retry-pushback-ms")),
        ("8", "30000")
    );
    assert_eq!(
        (header_value(&refused, "retry-after"), header_value(&refused, "ratelimit")),
        ("", r#""slow";r=0;t=30"#)
    );
}

#[tokio::test]
async fn engine_or_layer_can_observe_without_enforcing() {
    let (layer, engine) = layer_with_rules("{id: r, limit: 1/m}");
    let would_refuse = Some(ObservedOutcome(Outcome::Deny(Retry::After(Nanos::from_secs(60)))));
    let mut observing = layer.clone().observe().layer(HelloService::default());
    call(&mut observing, get_request("/", &[])).await;
    let passed = call(&mut observing, get_request("/", &[])).await;
    assert_eq!((passed.status().as_u16(), passed.extensions().get().copied()), (200, would_refuse));
    engine.set_enforcement(Enforcement::Observe);
    let mut enforcing = layer.layer(HelloService::default());
    let passed = call(&mut enforcing, get_request("/", &[])).await;
    assert_eq!((passed.status().as_u16(), passed.extensions().get().copied()), (200, would_refuse));
    engine.set_enforcement(Enforcement::Enforce);
    assert_eq!(call(&mut enforcing, get_request("/", &[])).await.status().as_u16(), 429);
}

#[tokio::test(start_paused = true)]
async fn cancelled_wait_of_a_rule_refunds_its_tokens() {
    let (layer, engine) = layer_with_rules("{id: r, limit: 10/s, burst: 3, algorithm: leaky_bucket}");
    let inner = HelloService::default();
    let mut service = layer.layer(inner.clone());
    let start = tokio::time::Instant::now();
    call(&mut service, get_request("/", &[])).await;
    let second = call(&mut service, get_request("/", &[])).await;
    assert_eq!(second.status().as_u16(), 200);
    assert!((100..=101).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    let given_up = tokio::time::timeout(Duration::from_millis(50), call(&mut service, get_request("/", &[]))).await;
    assert!(given_up.is_err());
    let attributes = [Attribute::new("path", "/")];
    let items = [Item::new(&attributes)];
    let mut decisions = Decisions::default();
    // Lets the refund task run.
    let mut left = 0;
    for _ in 0..100 {
        tokio::task::yield_now().await;
        let peeked = engine.peek(&tollgate_engine::Request::new("d", &items), &mut decisions).await.unwrap();
        left = peeked.reports().next().unwrap().report.remaining;
        if left > 0 {
            break;
        }
    }
    assert_eq!(left, 1);
    assert_eq!(inner.calls(), 2);
}

#[tokio::test]
async fn domain_without_rules_allows_and_counts_requests() {
    let (known, engine) = layer_with_rules("{id: r, limit: 1/m}");
    let layer = LimitLayer::by_rules(engine, "other", Attributes::new());
    let mut service = layer.clone().layer(HelloService::default());
    for _ in 0..3 {
        assert_eq!(call(&mut service, get_request("/", &[])).await.status().as_u16(), 200);
    }
    call(&mut known.layer(HelloService::default()), get_request("/", &[])).await;
    assert_eq!((layer.passed_without_rules(), known.passed_without_rules()), (3, 0));
}

#[tokio::test]
async fn request_that_matches_too_many_rules_is_refused() {
    let rules: Vec<String> =
        (0..=Item::MAX_RULES).map(|n| format!("{{id: r{n}, when: {{path: [/r{n}, /all]}}, limit: 9/m}}")).collect();
    let (layer, _) = layer_with_rules(&rules.join(", "));
    let mut service = layer.clone().layer(HelloService::default());
    assert_eq!(call(&mut service, get_request("/r7", &[])).await.status().as_u16(), 200);
    assert_eq!(call(&mut service, get_request("/all", &[])).await.status().as_u16(), 500);
    assert_eq!(layer.passed_without_rules(), 0);
}

#[tokio::test]
async fn values_above_the_maximum_length_are_truncated() {
    let (layer, _) = layer_with_rules("{id: r, per: [path], limit: 1/m}");
    let mut service = layer.layer(HelloService::default());
    let long = format!("/{}", "a".repeat(Item::MAX_BYTES));
    assert_eq!(call(&mut service, get_request(&long, &[])).await.status().as_u16(), 200);
    assert_eq!(call(&mut service, get_request(&format!("{long}b"), &[])).await.status().as_u16(), 429);
    assert_eq!(call(&mut service, get_request("/short", &[])).await.status().as_u16(), 200);
}

#[tokio::test]
async fn unknown_peer_address_is_answered_with_status_500() {
    let (layer, _) = layer_with_rules("{id: r, per: [client_ip], limit: 1/m}");
    let request = || Request::builder().uri("/").body(Full::default()).unwrap();
    let refused = call(&mut layer.clone().layer(HelloService::default()), request()).await;
    assert_eq!(refused.status().as_u16(), 500);
    let refuse = layer.clone().on_unidentified(OnUnidentified::Refuse);
    assert_eq!(call(&mut refuse.layer(HelloService::default()), request()).await.status().as_u16(), 400);
    let allow = layer.on_unidentified(OnUnidentified::Allow);
    assert_eq!(call(&mut allow.layer(HelloService::default()), request()).await.status().as_u16(), 200);
}
