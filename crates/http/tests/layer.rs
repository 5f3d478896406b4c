//! The layer around a service in this process, with manual clocks.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

mod support;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use support::{HelloService, call, request_of};
use tollgate::clock::ManualClock;
use tollgate::core::{Algorithm, Nanos};
use tollgate::{Concurrency, FixedWindow, Keyed, LeakyBucket, Limiter, Limits, Outcome, Retry, TokenBucket};
use tollgate_http::{ByHeader, ClientIp, LimitLayer, ObservedOutcome, OnUnidentified, Reason, SendHeaders, Styles};
use tower_layer::Layer;

fn keyed_with_manual_clock<A: Algorithm>(limit: A) -> (Arc<Keyed<A, Arc<ManualClock>>>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(Nanos::from_secs(3_600).as_nanos()));
    (Arc::new(Keyed::with_clock(limit, 1_000, clock.clone()).unwrap()), clock)
}

fn token_bucket(rate: &str, burst: u64) -> TokenBucket {
    TokenBucket::new(rate.parse().unwrap(), burst).unwrap()
}

const BY_USER: ByHeader = ByHeader::named("x-user");

fn header_value<'a, B>(response: &'a Response<B>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn each_key_has_its_own_limit_and_refusals_contain_the_wait() {
    let (keyed, clock) = keyed_with_manual_clock(token_bucket("1/s", 2));
    let inner = HelloService::default();
    let mut service = LimitLayer::by_key(keyed, BY_USER).name("per-user").layer(inner.clone());
    for _ in 0..2 {
        let passed = call(&mut service, request_of("alice")).await;
        assert_eq!(
            (passed.status(), header_value(&passed, "ratelimit-policy")),
            (StatusCode::OK, r#""per-user";q=2;w=2"#)
        );
    }
    let refused = call(&mut service, request_of("alice")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header_value(&refused, "retry-after"), "1");
    assert_eq!(header_value(&refused, "ratelimit-policy"), r#""per-user";q=2;w=2"#);
    assert_eq!(header_value(&refused, "ratelimit"), r#""per-user";r=0;t=1"#);
    assert_eq!(header_value(&refused, "content-type"), "application/problem+json");
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(body.ends_with(br#""status":429,"violated-policies":["per-user"]}"#), "{body:?}");
    assert_eq!(call(&mut service, request_of("bob")).await.status(), StatusCode::OK);
    clock.advance(Nanos::SECOND);
    assert_eq!(call(&mut service, request_of("alice")).await.status(), StatusCode::OK);
    assert_eq!(inner.calls(), 4, "a refusal never reaches the service");
}

#[tokio::test]
async fn allowed_responses_have_headers_in_the_configured_styles() {
    let (keyed, _) = keyed_with_manual_clock(token_bucket("1/s", 10));
    let layer = LimitLayer::by_key(keyed, BY_USER);
    let passed = call(&mut layer.clone().layer(HelloService::default()), request_of("alice")).await;
    assert_eq!(header_value(&passed, "ratelimit"), r#""default";r=9;t=1"#);
    assert_eq!(header_value(&passed, "x-ratelimit-limit"), "");
    let layer = layer.styles(Styles::X_RATE_LIMIT);
    let passed = call(&mut layer.clone().layer(HelloService::default()), request_of("alice")).await;
    assert_eq!(header_value(&passed, "x-ratelimit-limit"), "10");
    assert_eq!(header_value(&passed, "x-ratelimit-remaining"), "8");
    assert_eq!(header_value(&passed, "x-ratelimit-reset"), "2");
    assert_eq!(header_value(&passed, "ratelimit"), "");
    let layer = layer.send_headers(SendHeaders::OnRefusal);
    let passed = call(&mut layer.layer(HelloService::default()), request_of("alice")).await;
    assert_eq!((passed.status(), passed.headers().len()), (StatusCode::OK, 0));
}

#[tokio::test]
async fn tightest_of_several_limits_is_in_the_header() {
    let limits =
        Limits::new([token_bucket("10/s", 10).into(), FixedWindow::new(3, Nanos::from_secs(86_400)).unwrap().into()]);
    let (keyed, _) = keyed_with_manual_clock(limits.unwrap());
    let mut service = LimitLayer::by_key(keyed, BY_USER).name("api").layer(HelloService::default());
    let passed = call(&mut service, request_of("alice")).await;
    assert_eq!(header_value(&passed, "ratelimit-policy"), r#""api";q=10;w=1, "api:2";q=3;w=86400"#);
    assert!(
        header_value(&passed, "ratelimit").starts_with(r#""api:2";r=2;t="#),
        "{}",
        header_value(&passed, "ratelimit")
    );
}

#[tokio::test]
async fn headers_of_two_layers_are_both_present() {
    let ((outer, _), (inner, _)) =
        (keyed_with_manual_clock(token_bucket("1/s", 10)), keyed_with_manual_clock(token_bucket("1/s", 5)));
    let inner = LimitLayer::by_key(inner, BY_USER).name("inner").layer(HelloService::default());
    let mut both = LimitLayer::by_key(outer, BY_USER).name("outer").layer(inner);
    let passed = call(&mut both, request_of("alice")).await;
    let fields: Vec<&str> = passed.headers().get_all("ratelimit").iter().map(|value| value.to_str().unwrap()).collect();
    assert_eq!(fields, [r#""inner";r=4;t=1"#, r#""outer";r=9;t=1"#]);
}

#[tokio::test]
async fn unidentified_requests_are_counted_together_allowed_or_refused() {
    let anonymous = || Request::new(Full::default());
    let layer = |missing| {
        LimitLayer::by_key(keyed_with_manual_clock(token_bucket("1/s", 1)).0, BY_USER).on_unidentified(missing)
    };
    let mut together =
        LimitLayer::by_key(keyed_with_manual_clock(token_bucket("1/s", 1)).0, BY_USER).layer(HelloService::default());
    assert_eq!(call(&mut together, anonymous()).await.status(), StatusCode::OK);
    assert_eq!(call(&mut together, anonymous()).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(call(&mut together, request_of("alice")).await.status(), StatusCode::OK);
    let mut pass = layer(OnUnidentified::Allow).layer(HelloService::default());
    for _ in 0..3 {
        assert_eq!(call(&mut pass, anonymous()).await.status(), StatusCode::OK);
    }
    let refused = call(&mut layer(OnUnidentified::Refuse).layer(HelloService::default()), anonymous()).await;
    assert_eq!((refused.status(), header_value(&refused, "retry-after")), (StatusCode::BAD_REQUEST, ""));
}

#[tokio::test]
async fn custom_response_gets_the_headers() {
    let (keyed, _) = keyed_with_manual_clock(token_bucket("1/m", 1));
    let layer = LimitLayer::by_key(keyed, BY_USER).name("mine").refusal_response(|refusal| {
        assert!(matches!(refusal.reason(), Reason::Exceeded(Retry::After(_))));
        Response::builder().status(503).body(format!("{} is busy", refusal.policy()).into()).unwrap()
    });
    let mut service = layer.layer(HelloService::default());
    call(&mut service, request_of("alice")).await;
    let refused = call(&mut service, request_of("alice")).await;
    assert_eq!((refused.status().as_u16(), header_value(&refused, "retry-after")), (503, "60"));
    assert_eq!(header_value(&refused, "ratelimit"), r#""mine";r=0;t=60"#);
    assert_eq!(refused.into_body().collect().await.unwrap().to_bytes(), "mine is busy");
}

#[tokio::test]
async fn observing_lets_requests_pass_and_reports_the_refusal() {
    let (keyed, _) = keyed_with_manual_clock(token_bucket("1/m", 1));
    let mut service = LimitLayer::by_key(keyed, BY_USER).observe().layer(HelloService::default());
    let passed = call(&mut service, request_of("alice")).await;
    assert_eq!(passed.extensions().get::<ObservedOutcome>(), None);
    let observed = call(&mut service, request_of("alice")).await;
    assert_eq!(observed.status(), StatusCode::OK);
    let would_have = observed.extensions().get::<ObservedOutcome>().unwrap().0;
    assert_eq!(would_have, Outcome::Deny(Retry::After(Nanos::from_secs(60))));
}

#[tokio::test(start_paused = true)]
async fn leaky_bucket_makes_requests_wait() {
    let (keyed, _) = keyed_with_manual_clock(LeakyBucket::new("10/s".parse().unwrap(), 3).unwrap());
    let mut service = LimitLayer::by_key(keyed, BY_USER).layer(HelloService::default());
    let start = tokio::time::Instant::now();
    assert_eq!(call(&mut service, request_of("alice")).await.status(), StatusCode::OK);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(call(&mut service, request_of("alice")).await.status(), StatusCode::OK);
    // The runtime's timers have a resolution of 1 ms and never fire early.
    assert!((100..=101).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    // The limiter's clock does not advance, so two requests are ahead of the third request, and the bucket is full for
    // the fourth.
    assert_eq!(call(&mut service, request_of("alice")).await.status(), StatusCode::OK);
    assert!((300..=302).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert_eq!(call(&mut service, request_of("alice")).await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn cancelled_wait_refunds_its_charge() {
    let (keyed, _) = keyed_with_manual_clock(LeakyBucket::new("10/s".parse().unwrap(), 3).unwrap());
    let inner = HelloService::default();
    let mut service = LimitLayer::by_key(keyed.clone(), BY_USER).layer(inner.clone());
    call(&mut service, request_of("alice")).await;
    let given_up = tokio::time::timeout(Duration::from_millis(50), call(&mut service, request_of("alice"))).await;
    assert!(given_up.is_err());
    assert_eq!(keyed.report("alice", 1).remaining, 2, "only the first request is still in the bucket");
    assert_eq!(inner.calls(), 1, "the second request never reached the service");
}

#[tokio::test(start_paused = true)]
async fn observing_does_not_wait() {
    let (keyed, _) = keyed_with_manual_clock(LeakyBucket::new("10/s".parse().unwrap(), 3).unwrap());
    let mut service = LimitLayer::by_key(keyed, BY_USER).observe().layer(HelloService::default());
    let start = tokio::time::Instant::now();
    call(&mut service, request_of("alice")).await;
    let second = call(&mut service, request_of("alice")).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(second.extensions().get::<ObservedOutcome>().unwrap().0, Outcome::Delay(Nanos::from_millis(100)));
}

#[tokio::test]
async fn slot_in_flight_is_freed_at_the_end_of_the_body() {
    let (keyed, _) = keyed_with_manual_clock(Concurrency::new(1, Nanos::from_secs(60)).unwrap());
    let layer = LimitLayer::in_flight(keyed.clone(), BY_USER).name("in-flight");
    let mut service = layer.layer(HelloService::default());
    let first = call(&mut service, request_of("alice")).await;
    assert_eq!(first.status(), StatusCode::OK);
    let refused = call(&mut service, request_of("alice")).await;
    assert_eq!((refused.status(), header_value(&refused, "retry-after")), (StatusCode::TOO_MANY_REQUESTS, "1"));
    assert_eq!(header_value(&refused, "ratelimit-policy"), r#""in-flight";q=1;qu="concurrent-requests""#);
    assert_eq!(header_value(&refused, "ratelimit"), r#""in-flight";r=0"#);
    drop(refused);
    assert_eq!(keyed.report("alice", 1).remaining, 0, "a refusal frees nothing");
    // Reading the body to its end frees the slot, even if the body is not dropped.
    let mut body = first.into_body();
    assert!(body.frame().await.unwrap().is_ok());
    assert_eq!(keyed.report("alice", 1).remaining, 1);
    // Dropping an unread body also frees the slot.
    let second = call(&mut service, request_of("alice")).await;
    assert_eq!((second.status(), keyed.report("alice", 1).remaining), (StatusCode::OK, 0));
    drop(second);
    assert_eq!(keyed.report("alice", 1).remaining, 1);
}

#[tokio::test]
async fn stream_is_in_flight_until_its_last_frame() {
    for (frames, free_after_each) in [("dd.", &[0, 0, 1][..]), ("dt", &[0, 1]), ("de", &[0, 1])] {
        let (keyed, _) = keyed_with_manual_clock(Concurrency::new(1, Nanos::from_secs(60)).unwrap());
        let mut service = LimitLayer::in_flight(keyed.clone(), BY_USER).layer(support::StreamingService(frames));
        let mut body = call(&mut service, request_of("alice")).await.into_body();
        for free in free_after_each {
            // Depending on `frames`, the body ends normally, with trailers, or with an error.
            let _ = body.frame().await;
            assert_eq!(keyed.report("alice", 1).remaining, *free, "{frames}");
        }
    }
}

#[tokio::test]
async fn slot_in_flight_is_freed_when_the_service_fails_or_the_request_is_cancelled() {
    let (keyed, _) = keyed_with_manual_clock(Concurrency::new(1, Nanos::from_secs(60)).unwrap());
    let mut service = LimitLayer::in_flight(keyed.clone(), BY_USER).layer(support::FailingService);
    let error = support::try_call(&mut service, request_of("alice")).await.unwrap_err();
    assert_eq!((error, keyed.report("alice", 1).remaining), ("failed", 1));
    let mut service = LimitLayer::in_flight(keyed.clone(), BY_USER).layer(HelloService::default());
    let abandoned = tower_service::Service::call(&mut service, request_of("alice"));
    assert_eq!(keyed.report("alice", 1).remaining, 0);
    drop(abandoned);
    assert_eq!(keyed.report("alice", 1).remaining, 1);
}

#[tokio::test]
async fn slot_in_flight_is_freed_for_clients_without_a_table_entry() {
    let clock = Arc::new(ManualClock::at(Nanos::from_secs(3_600).as_nanos()));
    let limit = Concurrency::new(2, Nanos::from_secs(60)).unwrap();
    let keyed = Arc::new(Keyed::with_clock(limit, 1, clock).unwrap());
    // Fills the table with keys that use both of their slots. A key is not evicted for a key that uses fewer slots.
    (0..100_u64).for_each(|n| assert!(keyed.check(&n.to_le_bytes(), 2).is_allowed()));
    let mut service = LimitLayer::in_flight(keyed.clone(), BY_USER).layer(HelloService::default());
    for round in 0..10 {
        let both = [call(&mut service, request_of("alice")).await, call(&mut service, request_of("bob")).await];
        assert_eq!(both.each_ref().map(Response::status), [StatusCode::OK; 2], "round {round}");
        assert_eq!(call(&mut service, request_of("carol")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(keyed.overflowed(), 30);
}

#[tokio::test]
async fn global_limit_counts_all_clients_together() {
    let clock = Arc::new(ManualClock::at(Nanos::from_secs(3_600).as_nanos()));
    let limiter = Arc::new(Limiter::with_clock(token_bucket("1/s", 2), clock.clone()));
    let mut service = LimitLayer::global(limiter).name("all").layer(HelloService::default());
    let passed = call(&mut service, request_of("alice")).await;
    assert_eq!((passed.status().as_u16(), header_value(&passed, "ratelimit")), (200, r#""all";r=1;t=1"#));
    assert_eq!(call(&mut service, request_of("bob")).await.status().as_u16(), 200);
    let refused = call(&mut service, request_of("carol")).await;
    assert_eq!((refused.status().as_u16(), header_value(&refused, "retry-after")), (429, "1"));
    assert_eq!(header_value(&refused, "ratelimit-policy"), r#""all";q=2;w=2"#);
    clock.advance(Nanos::SECOND);
    assert_eq!(call(&mut service, request_of("carol")).await.status().as_u16(), 200);
}

#[tokio::test]
async fn global_concurrency_limit_frees_slots_at_the_end_of_the_body() {
    let limiter = Arc::new(Limiter::new(Concurrency::new(1, Nanos::from_secs(60)).unwrap()));
    let mut service = LimitLayer::global_in_flight(limiter.clone()).layer(HelloService::default());
    let first = call(&mut service, request_of("alice")).await;
    assert_eq!(call(&mut service, request_of("bob")).await.status().as_u16(), 429);
    drop(first);
    assert_eq!(call(&mut service, request_of("bob")).await.status().as_u16(), 200);
}

#[tokio::test(start_paused = true)]
async fn global_leaky_bucket_makes_requests_wait() {
    let limiter = Arc::new(Limiter::new(LeakyBucket::new("10/s".parse().unwrap(), 3).unwrap()));
    let mut service = LimitLayer::global(limiter).layer(HelloService::default());
    let start = tokio::time::Instant::now();
    call(&mut service, request_of("alice")).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    call(&mut service, request_of("bob")).await;
    assert!(start.elapsed() >= Duration::from_millis(50), "{:?}", start.elapsed());
}

#[tokio::test]
async fn unknown_peer_address_is_answered_with_status_500() {
    let layer = || LimitLayer::by_key(keyed_with_manual_clock(token_bucket("1/s", 9)).0, ClientIp::direct());
    let refused = call(&mut layer().layer(HelloService::default()), request_of("alice")).await;
    assert_eq!((refused.status().as_u16(), header_value(&refused, "retry-after")), (500, ""));
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("ClientIp::peer"), "{body:?}");
    let mut grpc = request_of("alice");
    grpc.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    assert_eq!(header_value(&call(&mut layer().layer(HelloService::default()), grpc).await, "grpc-status"), "13");
    // An observing layer never refuses, and reports the outcome that it would have applied.
    let observed = call(&mut layer().observe().layer(HelloService::default()), request_of("alice")).await;
    assert_eq!(observed.extensions().get::<ObservedOutcome>().unwrap().0, Outcome::Deny(Retry::Never));
    // An explicit `on_unidentified` replaces the error. A server on a Unix socket needs this option, because it has no
    // peer addresses.
    let mut together = layer().on_unidentified(OnUnidentified::CountTogether).layer(HelloService::default());
    assert_eq!(header_value(&call(&mut together, request_of("alice")).await, "ratelimit"), r#""default";r=8;t=1"#);
}

#[tokio::test]
async fn clients_are_counted_by_the_address_that_the_proxy_forwards() {
    let (keyed, _) = keyed_with_manual_clock(token_bucket("1/m", 1));
    let proxies = tollgate_http::TrustedProxies::private();
    let client = ClientIp::behind(proxies, Default::default()).peer(|_| Some(IpAddr::from([10, 0, 0, 1])));
    let mut service = LimitLayer::by_key(keyed, client).layer(HelloService::default());
    let from = |address: &str| Request::builder().header("x-forwarded-for", address).body(Full::default()).unwrap();
    for (address, expected) in [
        ("203.0.113.7", 200),
        ("203.0.113.7", 429),
        ("9.9.9.9, 203.0.113.7", 429),
        ("203.0.113.8", 200),
        ("2001:db8::1", 200),
        ("2001:db8::2", 429),
        ("2001:db8:0:1::2", 200),
    ] {
        assert_eq!(call(&mut service, from(address)).await.status().as_u16(), expected, "{address}");
    }
}

#[tokio::test]
async fn grpc_refusal_is_a_grpc_status() {
    let grpc = |content_type: &str| {
        let request = Request::builder().header("x-user", "alice").header("content-type", content_type);
        request.body(Full::default()).unwrap()
    };
    for (content_type, is_grpc) in [
        ("application/grpc", true),
        ("application/grpc+proto", true),
        ("application/grpc;charset=x", true),
        ("application/grpc-web+proto", true),
        ("application/grpcx", false),
        ("application/json", false),
    ] {
        let (keyed, _) = keyed_with_manual_clock(token_bucket("1/m", 1));
        let mut service = LimitLayer::by_key(keyed, BY_USER).layer(HelloService::default());
        call(&mut service, grpc(content_type)).await;
        let refused = call(&mut service, grpc(content_type)).await;
        if is_grpc {
            assert_eq!(
                (refused.status(), header_value(&refused, "grpc-status")),
                (StatusCode::OK, "8"),
                "{content_type}"
            );
            assert_eq!(header_value(&refused, "content-type"), content_type);
            assert_eq!(header_value(&refused, "grpc-retry-pushback-ms"), "60000");
            assert_eq!(header_value(&refused, "retry-after"), "");
            assert!(http_body::Body::is_end_stream(refused.body()), "only trailers");
        } else {
            assert_eq!((refused.status().as_u16(), header_value(&refused, "grpc-status")), (429, ""), "{content_type}");
        }
    }
}

#[test]
fn error_type_of_the_service_is_unchanged() {
    fn assert_infallible<S: tower_service::Service<Request<Full<bytes::Bytes>>, Error = Infallible>>(_: &S) {}
    assert_infallible(
        &LimitLayer::by_key(keyed_with_manual_clock(token_bucket("1/s", 1)).0, BY_USER).layer(HelloService::default()),
    );
}
