//! Serves the example apps on real ports and calls them over HTTP.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

#[path = "../examples/axum_limits.rs"]
#[allow(dead_code, unreachable_pub, reason = "the example is a separate program")]
mod axum_limits;
#[path = "support/http.rs"]
mod http;
#[path = "../examples/shared_redis.rs"]
#[allow(dead_code, unreachable_pub, reason = "the example is a separate program")]
mod shared_redis;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tollgate_http::TrustedProxies;
use tollgate_redis::Config;
use tollgate_testkit::servers::{Kind, Server};

use crate::http::send_request;

async fn serve_on_free_port(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

#[tokio::test]
async fn axum_app_limits_by_user_and_by_address() {
    let server = serve_on_free_port(axum_limits::app(TrustedProxies::private()).unwrap()).await;
    let hello = async |user: &str, address: &str| {
        send_request(server, "GET /hello", &[("x-api-key", user), ("x-forwarded-for", address)]).await
    };
    for remaining in [2, 1, 0] {
        let passed = hello("alice", "203.0.113.7").await;
        assert_eq!((passed.status, passed.body.as_str()), (200, "hello"));
        assert_eq!(passed.header("ratelimit-policy"), r#""per-user";q=3;w=60"#);
        assert!(passed.header("ratelimit").starts_with(&format!(r#""per-user";r={remaining};t="#)));
    }
    let refused = hello("alice", "203.0.113.8").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, "20"));
    assert_eq!(refused.header("content-type"), "application/problem+json");
    assert!(refused.body.contains(r#""violated-policies":["per-user"]"#));
    // The address 203.0.113.7 has three of its six requests left. Other API keys and forged header elements do not
    // change that.
    assert_eq!(hello("bob", "203.0.113.7").await.status, 200);
    assert_eq!(hello("carol", "9.9.9.9, 203.0.113.7").await.status, 200);
    assert_eq!(send_request(server, "GET /hello", &[("x-forwarded-for", "203.0.113.7")]).await.status, 200);
    let refused = hello("dave", "203.0.113.7").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, "10"));
    assert!(refused.header("ratelimit").starts_with(r#""per-address";r=0;t="#));
    assert_eq!(hello("dave", "203.0.113.9").await.status, 200);
}

#[tokio::test]
async fn logins_have_a_stricter_limit() {
    let server = serve_on_free_port(axum_limits::app(TrustedProxies::none()).unwrap()).await;
    // No proxy is trusted, so a forged address has no effect.
    let login = async |claimed: &str| send_request(server, "POST /login", &[("x-forwarded-for", claimed)]).await.status;
    assert_eq!([login("1.1.1.1").await, login("1.1.1.2").await, login("1.1.1.3").await], [200, 200, 429]);
    assert_eq!(send_request(server, "GET /hello", &[]).await.status, 200);
}

#[tokio::test]
async fn instances_of_an_app_share_their_limits_through_redis() {
    let mut redis = Server::start(Kind::Redis);
    // A long deadline, so that a slow machine does not cause a local decision.
    let config = || Config::from_url(&redis.url()).unwrap().deadline(Duration::from_secs(5));
    let first = serve_on_free_port(shared_redis::app(config()).await.unwrap()).await;
    let second = serve_on_free_port(shared_redis::app(config()).await.unwrap()).await;
    let hello = async |server, user: &str| send_request(server, "GET /hello", &[("x-api-key", user)]).await;
    for (server, remaining) in [(first, "3"), (second, "2"), (first, "1"), (second, "0")] {
        let passed = hello(server, "alice").await;
        assert_eq!((passed.status, passed.header("x-ratelimit-remaining")), (200, remaining));
    }
    for server in [first, second] {
        let refused = hello(server, "alice").await;
        assert_eq!((refused.status, refused.header("ratelimit-policy")), (429, r#""per-user";q=4;w=60"#));
        let wait: u64 = refused.header("retry-after").parse().unwrap();
        assert!((1..=15).contains(&wait), "{wait}");
        assert_eq!(hello(server, "bob").await.status, 200);
    }
    // While Redis is unreachable, the app decides locally and still serves clients.
    redis.kill();
    assert_eq!(hello(first, "carol").await.status, 200);
}
