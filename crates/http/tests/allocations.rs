//! Counts the allocations of the layer. The crate documentation lists the same numbers in a table.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

mod support;

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

// The counting allocator is in a separate crate because it needs unsafe code. It counts the
// allocations of this thread.
use allocation_counter::measure;
use http::{Request, Response};
use http_body_util::Full;
use support::{Body, Inner};
use tollgate::core::Nanos;
use tollgate::{Concurrency, Keyed, LeakyBucket, TokenBucket};
use tollgate_http::{ByCookie, ByHeader, ClientIp, ForwardedBy, LimitLayer, SendHeaders, Styles, TrustedProxies};
use tower_layer::Layer;
use tower_service::Service;

/// Builds a request like a server's; its allocations are not counted.
fn request() -> Request<Body> {
    let request = Request::builder()
        .header("x-api-key", "0123456789abcdef")
        .header("cookie", "a=b; session=0123456789abcdef")
        .header("x-forwarded-for", "9.9.9.9, 203.0.113.7, 10.0.0.2")
        .extension(SocketAddr::from(([10, 0, 0, 1], 4711)));
    request.body(Full::default()).unwrap()
}

/// Returns the number of allocations of a call, from request to response. The response is not dropped.
#[track_caller]
fn count_allocations<S, R>(mut service: S, status: u16) -> u64
where
    S: Service<Request<Body>, Response = Response<R>>,
    S::Error: std::fmt::Debug,
{
    let mut context = Context::from_waker(Waker::noop());
    // The first call is a warm-up.
    for count in [false, true] {
        let request = request();
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
    unreachable!("the second round returns")
}

fn keyed(burst: u64) -> Keyed {
    Keyed::new(TokenBucket::new("1/h".parse().unwrap(), burst).unwrap(), 1_000).unwrap()
}

/// Sends no headers with allowed responses; another test counts their allocations.
fn without_headers<G>(layer: LimitLayer<G>) -> LimitLayer<G> {
    layer.send_headers(SendHeaders::OnRefusal)
}

const KEY: ByHeader = ByHeader::named("x-api-key");

#[test]
fn admission_allocates_nothing_for_any_identification() {
    assert_eq!(count_allocations(Inner::default(), 200), 0, "the bare service");
    assert_eq!(count_allocations(without_headers(LimitLayer::by_key(keyed(9), KEY)).layer(Inner::default()), 200), 0);
    let cookie = ByCookie::new("session");
    assert_eq!(
        count_allocations(without_headers(LimitLayer::by_key(keyed(9), cookie)).layer(Inner::default()), 200),
        0
    );
    let proxies = TrustedProxies::parse(["10.0.0.0/8"]).unwrap();
    let client = ClientIp::behind(proxies, ForwardedBy::XForwardedFor);
    assert_eq!(client.address(request().headers(), IpAddr::from([10, 0, 0, 1])).to_string(), "203.0.113.7");
    assert_eq!(
        count_allocations(without_headers(LimitLayer::by_key(keyed(9), client)).layer(Inner::default()), 200),
        0
    );
}

#[test]
fn headers_allocate_one_value_each_and_space_in_the_map() {
    let layer = LimitLayer::by_key(keyed(99), KEY);
    assert_eq!(count_allocations(layer.clone().layer(Inner::default()), 200), 3);
    let both = layer.styles(Styles::IETF.and(Styles::X_RATE_LIMIT));
    assert_eq!(count_allocations(both.layer(Inner::default()), 200), 6);
}

#[test]
fn slot_in_flight_allocates_its_guard() {
    let keyed = Keyed::new(Concurrency::new(9, Nanos::from_secs(60)).unwrap(), 1_000).unwrap();
    assert_eq!(count_allocations(without_headers(LimitLayer::in_flight(keyed, KEY)).layer(Inner::default()), 200), 2);
}

#[test]
fn refusal_allocates_its_response() {
    let layer = LimitLayer::by_key(Arc::new(keyed(1)), KEY);
    let mut service = layer.layer(Inner::default());
    drop(service.call(request()));
    assert_eq!(count_allocations(service, 429), 7);
}

#[test]
fn waiting_allocates_the_timer_and_the_guard() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let keyed = Keyed::new(LeakyBucket::new("1/h".parse().unwrap(), 9).unwrap(), 1_000).unwrap();
    let mut service = LimitLayer::by_key(keyed, KEY).layer(Inner::default());
    drop(service.call(request()));
    let request = request();
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
    let attributes = Attributes::new().path().method().with("key", KEY);
    let layer = without_headers(LimitLayer::by_rules(Arc::new(engine), "d", attributes));
    assert_eq!(count_allocations(layer.layer(Inner::default()), 200), 3);
}
