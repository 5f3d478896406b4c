//! An axum app with limits per address and per user.
//!
//! `cargo run -p tollgate-http --example axum_limits`, then `curl -i -H 'x-api-key: alice' http://127.0.0.1:3000/hello` four times.

use std::error::Error;
use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use axum::{Router, serve};
use tokio::net::TcpListener;
use tollgate::{Keyed, Nanos, SlidingLog, TokenBucket};
use tollgate_http::{ByHeader, ClientIp, ForwardedBy, LimitLayer, Missing, Tell, TrustedProxies};

/// Everybody is limited by address, and whoever has an API key by that as well.
///
/// The layer added last is the outermost: what the limit per address refuses is not charged to the user. Whoever sends no key
/// passes the inner one, which is why the outer one has to be there.
pub fn app(proxies: TrustedProxies) -> Result<Router, Box<dyn Error>> {
    let client = ClientIp::behind(proxies, ForwardedBy::XForwardedFor)
        .peer(|asked| Some(asked.extensions().get::<ConnectInfo<SocketAddr>>()?.0.ip()));

    let per_user = Keyed::new(TokenBucket::new("3/m".parse()?, 3)?, 100_000)?;
    let per_user = LimitLayer::by_key(per_user, ByHeader::named("x-api-key"))
        .name("per-user")
        .missing(Missing::Pass)
        .tell(Tell::Everybody);

    let per_address = Keyed::new(TokenBucket::new("6/m".parse()?, 6)?, 100_000)?;
    let per_address = LimitLayer::by_key(per_address, client.clone()).name("per-address");

    // Few and strict: two logins a minute from one address, wherever the minute begins.
    let logins = Keyed::new(SlidingLog::new(2, Nanos::from_secs(60))?, 100_000)?;
    let logins = LimitLayer::by_key(logins, client).name("logins");

    Ok(Router::new()
        .route("/hello", get(|| async { "hello" }))
        .layer(per_user)
        .route("/login", post(|| async { "welcome" }).layer(logins))
        .layer(per_address))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = app(TrustedProxies::none())?.into_make_service_with_connect_info::<SocketAddr>();
    serve(TcpListener::bind("127.0.0.1:3000").await?, app).await?;
    Ok(())
}
