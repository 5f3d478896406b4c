use super::*;
use std::future::poll_fn;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tollgate_engine::{Engine, MemoryStore};

use crate::app::App;
use crate::http::{FastPath, serve};
use crate::net::protocol::Protocol;

/// Sends `request`, closes the sending side before the server reads it, and returns the response.
async fn response_after_half_close(request: &str, fast_path: FastPath) -> String {
    let app = Arc::new(App::new(MemoryStore::new(100).and_then(Engine::new).expect("an engine"), None));
    let guard = app.connections.register_connection(Protocol::Http, 1).expect("a slot");
    let (mut client, server) = duplex(1 << 20);
    client.write_all(request.as_bytes()).await.expect("room");
    client.shutdown().await.expect("it is open");
    let serving = tokio::spawn(serve(server, None, app, guard, fast_path));
    let mut received = String::new();
    client.read_to_string(&mut received).await.expect("an orderly end");
    serving.await.expect("no panic");
    received
}

#[tokio::test(start_paused = true)]
async fn client_that_closes_its_sending_side_gets_every_answer() {
    let post = |path: &str, headers: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
    };
    let item = r#"{"key":"k","limit":"1M/s"}"#;
    let list = format!("[{}]", [item; 1_000].join(","));
    let requests = [
        post("/v1/check", "", item),
        post("/v1/check", "x: y\r\n", item),
        post("/v1/check", "", &list),
        post("/v1/acquire", "", r#"{"key":"k","limit":"1M/s","wait_ms":1000}"#),
        // A blocking thread produces the explanation, so this response is not ready at the first poll.
        post("/v1/explain", "", item),
        "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n".repeat(3),
    ];
    for request in requests {
        for fast_path in [FastPath::Enabled, FastPath::Disabled] {
            let response = response_after_half_close(&request, fast_path).await;
            let expected = request.matches(" HTTP/1.1\r\n").count();
            assert_eq!(response.matches("HTTP/1.1 200 OK\r\n").count(), expected, "{request:.100}: {response:.500}");
            let length = response.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
            let body = response.split_once("\r\n\r\n").expect("a head").1;
            assert!(expected > 1 || length == Some(&body.len().to_string()), "{length:?} of {}", body.len());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn incomplete_request_of_a_closed_client_ends_at_once() {
    let start = tokio::time::Instant::now();
    for request in ["GET /hea", "POST /v1/peek HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"] {
        let response = response_after_half_close(request, FastPath::Enabled).await;
        assert!(!response.contains(" 200 "), "{response}");
    }
    assert!(start.elapsed() < Duration::from_millis(1));
}

/// The body arrives while hyper waits for it, and is partly read by the stream's check for a closed client.
#[tokio::test]
async fn body_that_arrives_in_parts_is_received() {
    let app = Arc::new(App::new(MemoryStore::new(100).and_then(Engine::new).expect("an engine"), None));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    for _ in 0..20 {
        let mut client =
            tokio::net::TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
        let (server, _) = listener.accept().await.expect("a connection");
        let guard = app.connections.register_connection(Protocol::Http, 1).expect("a slot");
        let serving = tokio::spawn(serve(server, None, app.clone(), guard, FastPath::Enabled));
        let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
        let mut received = String::new();
        for part in [head, "1a\r\n", "{\"key\":", "\"k\",\"lim", "it\":\"1M/s", "\"}", "\r\n0\r\n", "\r\n"] {
            client.write_all(part.as_bytes()).await.expect("the server reads");
            tokio::task::yield_now().await;
        }
        client.read_to_string(&mut received).await.expect("an orderly end");
        drop(client);
        serving.await.expect("no panic");
        assert!(received.starts_with("HTTP/1.1 200 OK\r\n"), "{received}");
    }
}

/// Returns a client, and a stream whose request is being answered.
fn answering_stream() -> (DuplexStream, HalfCloseStream<DuplexStream>, Arc<HttpConnectionState>) {
    let (client, server) = duplex(16);
    let state = Arc::new(HttpConnectionState::default());
    state.set_answering(true);
    (client, HalfCloseStream::new(server, state.clone(), Bytes::new()), state)
}

async fn is_abandoned(stream: &mut HalfCloseStream<DuplexStream>) -> bool {
    poll_fn(|cx| Pin::new(&mut *stream).poll_flush(cx)).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn request_of_a_closed_client_ends_after_the_timeout_and_a_waiting_request_at_once() {
    let (client, mut stream, state) = answering_stream();
    assert!(!is_abandoned(&mut stream).await);
    drop(client);
    assert!(!is_abandoned(&mut stream).await);
    tokio::time::advance(HALF_CLOSE_TIMEOUT - Duration::from_millis(1)).await;
    assert!(!is_abandoned(&mut stream).await);
    tokio::time::advance(Duration::from_millis(2)).await;
    assert!(is_abandoned(&mut stream).await);
    state.set_answering(false);
    assert!(!is_abandoned(&mut stream).await, "no request is in progress");

    let (client, mut stream, state) = answering_stream();
    state.set_waiting(true);
    assert!(!is_abandoned(&mut stream).await);
    drop(client);
    assert!(is_abandoned(&mut stream).await);
}

#[tokio::test(start_paused = true)]
async fn input_after_a_request_is_kept() {
    let (mut client, mut stream, _state) = answering_stream();
    client.write_all(b"next").await.expect("room");
    drop(client);
    assert!(!is_abandoned(&mut stream).await);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.expect("an orderly end");
    assert_eq!(rest, b"next");
}
