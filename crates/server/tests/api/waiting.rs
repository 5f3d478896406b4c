//! Long polls of nodes.

use tollgate_server::control::auth::TokenPolicy;

use crate::eventually::eventually_async;
use crate::test_server::{TestServer, send};

#[tokio::test]
async fn long_poll_returns_immediately_after_a_change() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let first = server.call("GET", "/v1/snapshot?wait=30", "").await.expect_status(200);
    let snapshot = first.json();
    let (revision, checksum) = (&snapshot["revision"], snapshot["checksum"].as_str().unwrap());
    assert_eq!(first.tag, format!("\"{revision}-{}\"", &checksum[..16]));
    let waiting = tokio::spawn(send(
        server
            .request("GET", "/v1/snapshot?wait=30")
            .header("if-none-match", &first.tag)
            .header("tollgate-node", "node-1")
            .header("tollgate-running", revision.to_string()),
    ));
    let waits = async || server.call("GET", "/v1/nodes", "").await.json()["items"][0]["node"] == "node-1";
    eventually_async("the node waits", waits).await;
    assert!(!waiting.is_finished());
    server.call("PUT", "/v1/domains/api/rules/a", r#"{"limit":"1/s"}"#).await.expect_status(201);
    let told_ = waiting.await.unwrap().expect_status(200);
    assert!(told_.json()["rules"].as_str().is_some_and(|rules| rules.contains("1/s")), "{}", told_.text);
}

#[tokio::test]
async fn long_poll_without_a_change_ends_with_its_timeout_or_the_server() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let tag = server.call("GET", "/v1/snapshot", "").await.expect_status(200).tag;
    let wait = |seconds: u32| {
        let path = format!("/v1/snapshot?wait={seconds}");
        send(server.request("GET", &path).header("if-none-match", &tag).header("tollgate-node", format!("n{seconds}")))
    };
    wait(0).await.expect_status(304);
    wait(1).await.expect_status(304);
    let waiting = tokio::spawn(wait(60));
    let waits = async || server.call("GET", "/v1/nodes", "").await.text.contains("n60");
    eventually_async("the node waits", waits).await;
    server.app.connections.stop();
    waiting.await.unwrap().expect_status(304);
}

#[tokio::test]
async fn long_polls_delay_no_decision() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let tag = server.call("GET", "/v1/snapshot", "").await.expect_status(200).tag;
    let waiting: Vec<_> = (0..50)
        .map(|_| tokio::spawn(send(server.request("GET", "/v1/snapshot?wait=2").header("if-none-match", &tag))))
        .collect();
    for _ in 0..100 {
        server.call("POST", "/v1/check", r#"{"key":"k","limit":"1000000/s"}"#).await.expect_status(200);
    }
    assert!(waiting.iter().any(|waiting| !waiting.is_finished()), "decisions waited for long polls");
    for one in waiting {
        one.await.unwrap().expect_status(304);
    }
}

#[tokio::test]
async fn nodes_are_listed_with_their_revision_and_refusals() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let ask = server.request("GET", "/v1/snapshot").header("tollgate-node", "edge%2F1");
    send(ask.header("tollgate-running", "3").header("tollgate-refused", "4 rules%3A1%3A2%3A wrong"))
        .await
        .expect_status(200);
    let nodes = server.call("GET", "/v1/nodes", "").await.expect_status(200).json();
    let node = &nodes["items"][0];
    assert_eq!((node["node"].as_str(), node["running"].as_i64()), (Some("edge/1"), Some(3)), "{nodes}");
    assert_eq!(node["refused"], serde_json::json!({"revision": 4, "why": "rules:1:2: wrong"}));
    let wrong = server.request("GET", "/v1/snapshot").header("tollgate-node", "n").header("tollgate-running", "x");
    send(wrong).await.expect_status(400);
}
