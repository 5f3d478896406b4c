//! An axum app with limits for the whole service, per address and per user.
//!
//! `cargo run -p tollgate-http --features axum --example axum_limits`, then `curl -i -H 'x-api-key: alice' http://127.0.0.1:3000/hello` four times.

use std::error::Error;
use std::net::SocketAddr;

use axum::routing::{get, post};
use axum::{Router, serve};
use tokio::net::TcpListener;
use tollgate::core::Nanos;
use tollgate::{Keyed, Limiter, SlidingLog, TokenBucket};
use tollgate_http::{ByHeader, ClientIp, ForwardedBy, LimitLayer, OnUnidentified, SendHeaders, TrustedProxies};

/// Builds an app that limits the whole service, each address, and each API key.
///
/// The layer added last is the outermost; requests that it refuses are not charged to the inner layers. The per-user
/// layer does not count requests without an API key; the other layers limit them.
pub fn app(proxies: TrustedProxies) -> Result<Router, Box<dyn Error>> {
    let client = ClientIp::behind(proxies, ForwardedBy::XForwardedFor);

    let per_user = Keyed::new(TokenBucket::new("3/m".parse()?, 3)?, 100_000)?;
    let per_user = LimitLayer::by_key(per_user, ByHeader::named("x-api-key"))
        .name("per-user")
        .on_unidentified(OnUnidentified::Allow);

    let per_address = Keyed::new(TokenBucket::new("6/m".parse()?, 6)?, 100_000)?;
    let per_address =
        LimitLayer::by_key(per_address, client.clone()).name("per-address").send_headers(SendHeaders::OnRefusal);

    let service = LimitLayer::global(Limiter::new(TokenBucket::new("1000/s".parse()?, 1000)?))
        .name("service")
        .send_headers(SendHeaders::OnRefusal);

    // At most two logins in any minute from one address.
    let logins = Keyed::new(SlidingLog::new(2, Nanos::from_secs(60))?, 100_000)?;
    let logins = LimitLayer::by_key(logins, client).name("logins");

    Ok(Router::new()
        .route("/hello", get(|| async { "hello" }))
        .layer(per_user)
        .route("/login", post(|| async { "welcome" }).layer(logins))
        .layer(per_address)
        .layer(service))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = app(TrustedProxies::none())?.into_make_service_with_connect_info::<SocketAddr>();
    serve(TcpListener::bind("127.0.0.1:3000").await?, app).await?;
    Ok(())
}
