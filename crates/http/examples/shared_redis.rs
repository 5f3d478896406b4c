//! Limits shared by all instances of an app, without a Tollgate server. Rules define the limits, and Redis or Valkey
//! stores the counters.
//!
//! `cargo run -p tollgate-http --features engine --example shared_redis -- redis://127.0.0.1:6379
//! 3000`, again with port 3001, and then `curl -i -H 'x-api-key: alice'
//! http://127.0.0.1:3000/hello`, alternating with port 3001.

use std::error::Error;
use std::sync::Arc;

use axum::routing::get;
use axum::{Router, serve};
use tokio::net::TcpListener;
use tollgate_engine::Engine;
use tollgate_engine::rules::{Rules, Source};
use tollgate_http::{Attributes, ByHeader, LimitLayer, Styles};
use tollgate_redis::{Config, RedisStore};

/// The rules of the app. `Engine::put` can replace the rules while the app runs.
const RULES: &str = "
domain: app
rules:
  - id: per-user
    when: { path: /hello }
    per: [api_key]
    limit: 4/m
    on_fault: local    # while Redis does not answer, each instance allows its share
";

/// Builds the app. All instances with the same store share their counters.
pub async fn app(config: Config) -> Result<Router, Box<dyn Error>> {
    let engine = Engine::new(RedisStore::connect(config).await)?;
    engine.put(&Rules::read(&[Source { name: "rules.yaml", text: RULES.as_bytes() }])?)?;
    let attributes = Attributes::new().path().with("api_key", ByHeader::named("x-api-key"));
    let limits =
        LimitLayer::by_rules(Arc::new(engine), "app", attributes).styles(Styles::IETF.and(Styles::X_RATE_LIMIT));
    Ok(Router::new().route("/hello", get(|| async { "hello" })).layer(limits))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or("redis://127.0.0.1:6379".into());
    let port: u16 = arguments.next().unwrap_or("3000".into()).parse()?;
    let app = app(Config::from_url(&url)?).await?;
    serve(TcpListener::bind(("127.0.0.1", port)).await?, app).await?;
    Ok(())
}
