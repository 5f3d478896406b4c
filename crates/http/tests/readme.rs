//! Compiles and runs the Rust code of the workspace's `README.md`, and checks that the page contains the same text.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use axum::routing::get;

async fn hello() -> &'static str {
    "hello"
}

#[tokio::test]
#[rustfmt::skip]
async fn readme_code_runs() -> Result<(), Box<dyn std::error::Error>> {
    // README:
    use std::{sync::Arc, time::Duration};
    use tollgate::{Keyed, TokenBucket};      // in Cargo.toml: tollgate = { path = "crates/tollgate" }

    let per_user = Arc::new(Keyed::new(TokenBucket::new("100/s".parse()?, 20)?, 1_000_000)?);
    if !per_user.check("alice", 1).is_allowed() { /* 429 Too Many Requests */ }
    per_user.acquire("alice", 1).within(Duration::from_secs(5)).await?;      // or wait in line

    let limit = tollgate_http::LimitLayer::by_key(per_user, tollgate_http::ByHeader::named("x-api-key"));
    let app = axum::Router::new().route("/", get(hello)).layer(limit);
    // :README
    let _: axum::Router = app;
    Ok(())
}

#[test]
fn readme_code_equals_this_file() {
    let (readme, here) = (include_str!("../../../README.md"), include_str!("readme.rs"));
    let shown: Vec<&str> = readme.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let between = here.split("    // README:\n").skip(1).filter_map(|rest| rest.split("    // :README\n").next());
    let flush =
        |text: &str| text.lines().map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line))).collect();
    let run: Vec<String> = between.map(flush).collect();
    assert_eq!(shown, run, "change the README and this file together");
    assert!(!shown.is_empty(), "the README contains no Rust code");
}
