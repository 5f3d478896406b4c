use super::*;
use crate::control::auth::TokenPolicy;
use crate::control::model::{Role, TokenGrant, Verifier};
use crate::http::FastPath;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tollgate_engine::{Engine, MemoryStore};

const CHECK_BODY: &str = r#"{"key":"a","limit":"5/day"}"#;

fn check_request(headers: &str) -> String {
    format!("POST /v1/check HTTP/1.1\r\n{headers}content-length: {}\r\n\r\n{CHECK_BODY}", CHECK_BODY.len())
}

fn new_app(tokens: TokenPolicy) -> Arc<App<MemoryStore>> {
    let engine = MemoryStore::new(100).and_then(Engine::new).expect("an engine");
    Arc::new(App::new(engine, None).with_token_policy(tokens))
}

/// Returns the next step of the fast path after a request, and the response.
async fn answer_request(app: &Arc<App<MemoryStore>>, request: &str) -> (FastPathStep, String) {
    let guard = app.connections.register_connection(Protocol::Http, 1).expect("a slot");
    let mut out = ResponseWriter::default();
    let next = answer_first_request(app, &HttpConnectionState::default(), &guard, request.as_bytes(), &mut out).await;
    (next, String::from_utf8(out.output).expect("UTF-8"))
}

#[tokio::test]
async fn ordinary_request_is_answered_and_an_incomplete_one_is_not() {
    let app = new_app(TokenPolicy::NotRequired);
    let sent = check_request("host: localhost\r\n");
    for end in 0..sent.len() {
        assert!(matches!(answer_request(&app, &sent[..end]).await.0, FastPathStep::ReadMore), "{}", &sent[..end]);
    }
    let (next, response) = answer_request(&app, &format!("{sent}{sent}")).await;
    assert!(matches!(next, FastPathStep::NextRequest(length) if length == sent.len()), "{response}");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"), "{response}");
    assert!(response.contains(r#""remaining":4"#), "an incomplete request takes nothing: {response}");
}

#[tokio::test]
async fn fast_path_answers_only_requests_with_a_valid_token() {
    let app = new_app(TokenPolicy::Required);
    let grant = TokenGrant { name: "n".to_owned(), role: Role::Reader, domains: Vec::new(), expires_ms: None };
    app.auth.replace_tokens(&[Verifier { digest: hex::encode(Sha256::digest("secret")), id: "id".to_owned(), grant }]);
    for (headers, is_served) in [
        ("", false),
        ("authorization: Bearer other\r\n", false),
        ("authorization: secret\r\n", false),
        ("cookie: token=secret\r\n", false),
        ("authorization: Bearer secret\r\nauthorization: Bearer secret\r\n", false),
        ("Authorization: bearer secret\r\n", true),
    ] {
        let (next, response) = answer_request(&app, &check_request(headers)).await;
        assert_eq!(matches!(next, FastPathStep::NextRequest(_)), is_served, "{headers}: {response}");
        assert_eq!(response.is_empty(), !is_served, "{headers}: {response}");
    }
}

#[tokio::test]
async fn last_response_of_a_stopping_server_announces_the_close() {
    let app = new_app(TokenPolicy::NotRequired);
    app.connections.stop();
    let (next, response) = answer_request(&app, &check_request("")).await;
    assert!(
        matches!(next, FastPathStep::Close) && response.contains("\r\nconnection: close\r\ncontent-length: "),
        "{response}"
    );
}

#[tokio::test(start_paused = true)]
async fn idle_connection_closes_when_the_server_stops() {
    let app = new_app(TokenPolicy::NotRequired);
    let (mut client, server) = tokio::io::duplex(1 << 16);
    let guard = app.connections.register_connection(Protocol::Http, 1).expect("a slot");
    tokio::spawn(crate::http::serve(server, None, app.clone(), guard, FastPath::Enabled));
    client.write_all(check_request("").as_bytes()).await.expect("it reads");
    let mut first = [0; 15];
    client.read_exact(&mut first).await.expect("a response");
    let start = Instant::now();
    app.connections.stop();
    client.read_to_end(&mut Vec::new()).await.expect("an orderly end");
    assert_eq!((first.as_slice(), start.elapsed()), (&b"HTTP/1.1 200 OK"[..], Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn slow_body_is_refused_although_bytes_keep_arriving() {
    use crate::http::bounds::BODY_TIMEOUT;
    let app = new_app(TokenPolicy::NotRequired);
    let (client, server) = tokio::io::duplex(1 << 16);
    let guard = app.connections.register_connection(Protocol::Http, 1).expect("a slot");
    tokio::spawn(crate::http::serve(server, None, app, guard, FastPath::Enabled));
    let (mut responses, mut requests) = tokio::io::split(client);
    requests.write_all(b"POST /v1/check HTTP/1.1\r\ncontent-length: 1000\r\n\r\n").await.expect("it reads");
    let start = Instant::now();
    let dribble = async {
        while requests.write_all(b" ").await.is_ok() {
            tokio::time::sleep(PARTIAL_CHECK_TIMEOUT / 2).await;
        }
    };
    let mut status = [0; 12];
    tokio::select! {
        () = dribble => panic!("closed without a response"),
        read = responses.read_exact(&mut status) => drop(read.expect("a response")),
    }
    assert_eq!(&status, b"HTTP/1.1 408");
    assert!((BODY_TIMEOUT..=BODY_TIMEOUT + PARTIAL_CHECK_TIMEOUT).contains(&start.elapsed()), "{:?}", start.elapsed());
}
