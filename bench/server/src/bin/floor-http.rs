//! The HTTP floor: an axum server that replies with a fixed body to `POST /v1/check`, and with fixed headers to
//! forward-auth.
//!
//! `floor-http ADDRESS`

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::{any, post};

const FIXED_BODY: &str = r#"{"allowed":true,"outcome":"allow","rule":"per-client","standing":"exact","retry_after_ms":0,"limits":[{"rule":"per-client","limit":100,"remaining":99,"retry_after_ms":0,"reset_after_ms":10}]}"#;

fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8090".into());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let answer = |_: axum::body::Bytes| async { ([(CONTENT_TYPE, "application/json")], FIXED_BODY) };
        let admit =
            || async { [("ratelimit", r#""mine";r=999999;t=1"#), ("ratelimit-policy", r#""mine";q=1000000;w=1"#)] };
        let app = Router::new().route("/v1/check", post(answer)).route("/v1/forward-auth/{domain}", any(admit));
        Ok(axum::serve(tokio::net::TcpListener::bind(address).await?, app).await?)
    })
}
