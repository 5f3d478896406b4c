//! Unusual ids and values, invalid calls, wrong methods and content types, oversized bodies, and servers without a
//! database.

use tollgate_server::control::auth::TokenPolicy;
use tollgate_server::rules_source::status::RulesSource;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::test_server::{TestServer, http_client, send, serve_http};

#[tokio::test]
async fn ids_and_values_may_have_any_character_the_language_allows() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let rule = r#"{"per":["tenant"],"limit":"1/s"}"#;
    for id in ["a%2Fb", "a:b", "a.b", "-_.:%2F", "versions", "%61lpha", "0"] {
        let path = format!("/v1/domains/d%2Fe/rules/{id}");
        server.call("PUT", &path, rule).await.expect_status(201);
        server.call("GET", &path, "").await.expect_status(200);
        for value in
            ["acme", "a%2Fb%3Fc%23d", "%F0%9F%9A%A6", "a%20b", "%27%3B%20DROP%20TABLE%20rules%3B--", "100%25", "%22"]
        {
            let reply =
                server.call("PUT", &format!("{path}/overrides/{value}"), r#"{"limit":"2/s"}"#).await.expect_status(201);
            assert!(!reply.text.contains("%2F"), "{}", reply.text);
            server.call("GET", &format!("{path}/overrides/{value}"), "").await.expect_status(200);
        }
    }
    assert_eq!(server.call("GET", "/v1/domains/d%2Fe/rules/alpha", "").await.expect_status(200).json()["id"], "alpha");
    for (path, status) in [
        ("/v1/domains/api/rules/a%20b".to_owned(), 422),
        ("/v1/domains/api/rules/%FF".into(), 400),
        ("/v1/domains/api/rules/a%00b".into(), 422),
        (format!("/v1/domains/api/rules/{}", "x".repeat(129)), 422),
        ("/v1/domains/%F0%9F%9A%A6/rules/a".into(), 422),
        ("/v1/domains//rules/a".into(), 422),
        ("/v1/domains/api/rules/".into(), 404),
        ("/v1/domainsx".into(), 404),
    ] {
        let reply = server.call("PUT", &path, rule).await;
        assert!(
            reply.status == status || (status == 422 && reply.status == 400),
            "{path}: {} {}",
            reply.status,
            reply.text
        );
        let reply = server.call("GET", &path, "").await;
        assert!(matches!(reply.status, 400 | 404), "{path}: {} {}", reply.status, reply.text);
    }
    server
        .call("PUT", &format!("/v1/domains/d%2Fe/rules/0/overrides/{}", "v".repeat(1_025)), r#"{"limit":"2/s"}"#)
        .await;
    server.call("GET", "/v1/domains/api/rules?q=%27%20OR%201%3D1--", "").await.expect_status(200);
    server.call("GET", "/v1/audit?subject=%27%3B--&author=%25", "").await.expect_status(200);
}

#[tokio::test]
async fn invalid_calls_are_reported_with_a_correction() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let rule = "/v1/domains/api/rules/a";
    server.call("PUT", rule, r#"{"limit":"1/s"}"#).await.expect_status(201);
    for (method, path, body, status, expected) in [
        ("GET", "/v1/domains/api/rules?limit=0", "", 400, "1 to 1000"),
        ("GET", "/v1/domains/api/rules?limit=1001", "", 400, "1 to 1000"),
        ("GET", "/v1/domains/api/rules?limit=x", "", 400, "limit"),
        ("GET", "/v1/domains/api/rules?after=nonsense", "", 400, "after"),
        ("GET", "/v1/domains/api/rules?enabled=maybe", "", 400, "enabled"),
        ("GET", "/v1/domains/api/rules?lmit=3", "", 400, "unknown field `lmit`"),
        ("GET", "/v1/export?domains=a", "", 400, "expected `domain`"),
        ("GET", "/v1/snapshot?wait=61", "", 400, "maximum 60"),
        ("GET", "/v1/snapshot?wait=-1", "", 400, "wait"),
        ("GET", "/v1/domains/api/rules/a/versions/x", "", 400, "version"),
        ("GET", "/v1/domains/api/rules/a/versions/99", "", 404, "99"),
        ("GET", "/v1/domains/api/rules/a/diff?from=98&to=99", "", 404, "98"),
        ("PUT", rule, "{", 422, ""),
        ("PUT", rule, "", 422, ""),
        ("PUT", rule, r#"{"limt":"1/s"}"#, 422, "did you mean `limit`"),
        ("PUT", rule, r#"{"id":"b","limit":"1/s"}"#, 422, ""),
        ("PATCH", rule, "[]", 422, ""),
        ("PATCH", rule, r#"{"limit":null}"#, 422, ""),
        ("POST", "/v1/domains/api/rules/a/rollback", r#"{"version":"x"}"#, 400, "expected i64"),
        ("POST", "/v1/domains/api/rules/a/rollback", r#"{"version":99}"#, 404, "99"),
        ("POST", "/v1/tokens", r#"{"name":"x","role":"king"}"#, 400, "expected one of `reader`"),
        ("POST", "/v1/tokens", r#"{"name":"","role":"reader"}"#, 400, "name"),
        ("POST", "/v1/tokens", r#"{"name":"x","role":"reader","more":1}"#, 400, "unknown field `more`"),
        ("DELETE", "/v1/tokens/none", "", 404, "none"),
        ("GET", "/v1/domains/api", "", 404, "/openapi.json"),
    ] {
        let reply = server.call(method, path, body).await;
        assert_eq!(reply.status, status, "{method} {path} {body}: {}", reply.text);
        assert!(reply.text.contains(expected), "{method} {path} {body}: {}", reply.text);
    }
}

#[tokio::test]
async fn methods_are_listed_and_content_types_checked() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    for (path, methods) in [
        ("/v1/domains", "GET,HEAD"),
        ("/v1/domains/api/rules/a", "GET,HEAD,PUT,PATCH,DELETE"),
        ("/v1/apply", "POST"),
        ("/v1/tokens", "GET,HEAD,POST"),
        ("/v1/check", "POST"),
    ] {
        let mut expected: Vec<&str> = methods.split(',').collect();
        expected.sort_unstable();
        for (method, status) in [("OPTIONS", 204), ("TRACE", 405), ("FOO", 405)] {
            let reply = server.call(method, path, "").await.expect_status(status);
            let mut allowed: Vec<&str> = reply.header("allow").split(',').map(str::trim).collect();
            allowed.sort_unstable();
            assert_eq!(allowed, expected, "{method} {path}");
        }
    }
    let rule = "/v1/domains/api/rules/a";
    let send_body = |method: &str, kind: &'static str, body: &'static str| {
        send(server.request(method, rule).header("content-type", kind).body(body))
    };
    let refused = send_body("PUT", "text/html", "{}").await.expect_status(415);
    assert!(refused.text.contains("application/yaml"), "{}", refused.text);
    send_body("PUT", "application/yaml; charset=utf-8", "limit: 1/s").await.expect_status(201);
    send_body("PUT", "application/x-www-form-urlencoded", "limit: 1/s").await.expect_status(200);
    send_body("PATCH", "application/yaml", "limit: 1/s").await.expect_status(415);
    send_body("PATCH", "application/merge-patch+json", r#"{"limit":"2/s"}"#).await.expect_status(200);
    let page = send(server.request("GET", rule).header("origin", "https://evil.example")).await;
    page.expect_status(403);
}

#[tokio::test]
async fn oversized_bodies_are_refused_before_they_are_read() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let address = server.url.strip_prefix("http://").unwrap();
    for (path, bytes, status) in [
        ("/v1/domains/api/rules/a", 64 * 1024 + 1, "413"),
        ("/v1/tokens", 64 * 1024 + 1, "413"),
        ("/v1/check", 1024 * 1024 + 1, "413"),
        ("/v1/apply", 16 * 1024 * 1024 + 1, "413"),
        ("/v1/validate", usize::MAX / 2, "413"),
        ("/v1/replay", 32 * 1024 * 1024 + 1, "413"),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {bytes}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"), "{path}");
    }
    let large = format!("domain: api\nrules:\n- {{id: a, limit: 1/s}}\n{}", "# a comment\n".repeat(200_000));
    let found = send(server.request("POST", "/v1/validate").body(large)).await.expect_status(200).json();
    assert_eq!(found["rules"], 1, "{found}");
    let nested = "[".repeat(60_000);
    let reply = server.call("PUT", "/v1/domains/api/rules/a", &nested).await;
    assert!(matches!(reply.status, 400 | 422), "{} {}", reply.status, reply.text);
}

#[tokio::test]
async fn server_without_a_database_names_the_source_of_its_rules() {
    use std::sync::Arc;
    use tokio::runtime::Handle;
    use tollgate_engine::{Engine, MemoryStore};
    use tollgate_server::app::App;
    use tollgate_server::client::Client;
    use tollgate_server::control::api::{AuditQueues, AuditSink};
    use tollgate_server::rules_source::status::FollowedService;

    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let client = Client::new("https://rules:8080", None, None).expect("a client");
    let audit = AuditQueues::start(AuditSink::Service { client, node: "n".into() }, &Handle::current());
    let followed = FollowedService { url: "https://rules:8080".into(), audit };
    for (source, expected) in [
        (RulesSource::Inline, "has no rules"),
        (RulesSource::File("/etc/rules.yaml".into()), "/etc/rules.yaml"),
        (RulesSource::Service(followed), "https://rules:8080"),
    ] {
        let engine = Engine::new(MemoryStore::new(10).expect("a table")).expect("an engine");
        let app = App::new(engine, None).with_rules_source(source);
        let address = serve_http(Arc::new(app)).await;
        let get = async |path: &str| {
            let request = http_client().get(format!("http://{address}{path}"));
            send(request).await
        };
        for path in ["/v1/domains", "/v1/snapshot", "/v1/domains/a/rules/b", "/v1/tokens"] {
            let reply = get(path).await.expect_status(404);
            assert!(reply.text.contains(expected), "{path}: {}", reply.text);
        }
        assert!(get("/v1/rules-status").await.expect_status(200).json()["source"].is_string());
        assert!(get("/openapi.json").await.expect_status(200).json()["paths"].is_object());
    }
    let status = server.call("GET", "/v1/rules-status", "").await.expect_status(200).json();
    assert_eq!(status["source"], "database");
    assert!(status["revision"].is_i64() && status["checksum"].is_string(), "{status}");
}
