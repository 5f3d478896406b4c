//! Limits per address in an axum app on a real port, with clients at different loopback addresses.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

#[path = "support/http.rs"]
mod http;

use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::{Keyed, TokenBucket};
use tollgate_http::{ClientIp, LimitLayer};

use crate::http::{send_request, send_request_from};

fn limited_app() -> Router {
    let keyed = Keyed::new(TokenBucket::new("1/h".parse().unwrap(), 2).unwrap(), 1_000).unwrap();
    let layer = LimitLayer::by_key(keyed, ClientIp::direct()).name("per-address");
    Router::new().route("/", get(|| async { "hello" })).layer(layer)
}

#[tokio::test]
async fn each_address_has_its_own_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let service = limited_app().into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    for client in [[127, 0, 0, 2], [127, 0, 0, 3]] {
        for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
            let answer = send_request_from(client.into(), server, "GET /", &[]).await;
            assert_eq!(answer.status, status, "{client:?}");
            assert!(
                answer.header("ratelimit").starts_with(&format!(r#""per-address";r={remaining};t="#)),
                "{answer:?}"
            );
        }
    }
}

#[tokio::test]
async fn app_without_connect_info_returns_a_configuration_hint() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, limited_app()).await.unwrap() });
    let answer = send_request(server, "GET /", &[]).await;
    assert_eq!(answer.status, 500);
    assert!(answer.body.contains("into_make_service_with_connect_info"), "{answer:?}");
}
