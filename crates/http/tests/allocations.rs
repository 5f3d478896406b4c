//! Checks the allocation counts that the crate documentation lists for the layer.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

mod support;

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

// A counting allocator needs unsafe code, so it comes from another crate. The allocator counts only the allocations of
// the current thread.
use allocation_counter::measure;
use http::{Request, Response};
use http_body_util::Full;
use support::{Body, HelloService};
use tollgate::core::Nanos;
use tollgate::{Concurrency, Keyed, LeakyBucket, TokenBucket};
use tollgate_http::{ByCookie, ByHeader, ClientIp, ForwardedBy, LimitLayer, SendHeaders, Styles, TrustedProxies};
use tower_layer::Layer;
use tower_service::Service;

/// Builds a request with the headers and the extension that a server would provide.
fn sample_request() -> Request<Body> {
    let request = Request::builder()
        .header("x-api-key", "0123456789abcdef")
        .header("cookie", "a=b; session=0123456789abcdef")
        .header("x-forwarded-for", "9.9.9.9, 203.0.113.7, 10.0.0.2")
        .extension(SocketAddr::from(([10, 0, 0, 1], 4711)));
    request.body(Full::default()).unwrap()
}

/// Returns the number of allocations made by one call of the service, up to and including the response.
#[track_caller]
fn count_allocations<S, R>(mut service: S, status: u16) -> u64
where
    S: Service<Request<Body>, Response = Response<R>>,
    S::Error: std::fmt::Debug,
{
    let mut context = Context::from_waker(Waker::noop());
    // The first call is a warm-up.
    for count in [false, true] {
        let request = sample_request();
        let (mut answer, mut counted) = (None, 0);
        let measured = measure(|| {
            let future = pin!(service.call(request));
            if let Poll::Ready(response) = future.poll(&mut context) {
                answer = Some(response.unwrap());
            }
        });
        counted += measured.count_total;
        assert_eq!(answer.unwrap().status().as_u16(), status);
        if count {
            return counted;
        }
    }
    unreachable!("the second iteration returns")
}

fn hourly_limiter(burst: u64) -> Keyed {
    Keyed::new(TokenBucket::new("1/h".parse().unwrap(), burst).unwrap(), 1_000).unwrap()
}

/// Turns off headers on allowed responses; `headers_allocate_one_value_each_and_space_in_the_map` counts their
/// allocations.
fn without_headers<G>(layer: LimitLayer<G>) -> LimitLayer<G> {
    layer.send_headers(SendHeaders::OnRefusal)
}

const BY_API_KEY: ByHeader = ByHeader::named("x-api-key");

#[test]
fn admission_allocates_nothing_for_any_identification() {
    assert_eq!(count_allocations(HelloService::default(), 200), 0, "the bare service");
    assert_eq!(
        count_allocations(
            without_headers(LimitLayer::by_key(hourly_limiter(9), BY_API_KEY)).layer(HelloService::default()),
            200
        ),
        0
    );
    let cookie = ByCookie::new("session");
    assert_eq!(
        count_allocations(
            without_headers(LimitLayer::by_key(hourly_limiter(9), cookie)).layer(HelloService::default()),
            200
        ),
        0
    );
    let proxies = TrustedProxies::parse(["10.0.0.0/8"]).unwrap();
    let client = ClientIp::behind(proxies, ForwardedBy::XForwardedFor);
    assert_eq!(client.address(sample_request().headers(), IpAddr::from([10, 0, 0, 1])).to_string(), "203.0.113.7");
    assert_eq!(
        count_allocations(
            without_headers(LimitLayer::by_key(hourly_limiter(9), client)).layer(HelloService::default()),
            200
        ),
        0
    );
}

#[test]
fn headers_allocate_one_value_each_and_space_in_the_map() {
    let layer = LimitLayer::by_key(hourly_limiter(99), BY_API_KEY);
    assert_eq!(count_allocations(layer.clone().layer(HelloService::default()), 200), 3);
    let both = layer.styles(Styles::IETF.and(Styles::X_RATE_LIMIT));
    assert_eq!(count_allocations(both.layer(HelloService::default()), 200), 6);
}

#[test]
fn slot_in_flight_allocates_its_guard() {
    let keyed = Keyed::new(Concurrency::new(9, Nanos::from_secs(60)).unwrap(), 1_000).unwrap();
    assert_eq!(
        count_allocations(
            without_headers(LimitLayer::in_flight(keyed, BY_API_KEY)).layer(HelloService::default()),
            200
        ),
        2
    );
}

#[test]
fn refusal_allocates_its_response() {
    let layer = LimitLayer::by_key(Arc::new(hourly_limiter(1)), BY_API_KEY);
    let mut service = layer.layer(HelloService::default());
    drop(service.call(sample_request()));
    assert_eq!(count_allocations(service, 429), 7);
}

#[test]
fn waiting_allocates_the_timer_and_the_guard() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let keyed = Keyed::new(LeakyBucket::new("1/h".parse().unwrap(), 9).unwrap(), 1_000).unwrap();
    let mut service = LimitLayer::by_key(keyed, BY_API_KEY).layer(HelloService::default());
    drop(service.call(sample_request()));
    let request = sample_request();
    let mut future = None;
    let measured = measure(|| future = Some(service.call(request)));
    assert_eq!(measured.count_total, 3);
    assert_eq!(format!("{:?}", future.unwrap()), "ResponseFuture(\"waiting\")");
}

#[cfg(feature = "engine")]
#[test]
fn deciding_by_rules_allocates_the_list_of_attributes_and_the_future() {
    use tollgate_engine::rules::{Rules, Source};
    use tollgate_engine::{Engine, MemoryStore};
    use tollgate_http::Attributes;

    let engine = Engine::new(MemoryStore::new(1_000).unwrap()).unwrap();
    let text = b"{domain: d, rules: [{id: r, per: [key], limit: 9/h}]}";
    engine.put(&Rules::read(&[Source { name: "rules.yaml", text }]).unwrap()).unwrap();
    let attributes = Attributes::new().path().method().with("key", BY_API_KEY);
    let layer = without_headers(LimitLayer::by_rules(Arc::new(engine), "d", attributes));
    assert_eq!(count_allocations(layer.layer(HelloService::default()), 200), 3);
}
