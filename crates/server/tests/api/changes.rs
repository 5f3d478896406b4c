//! Rules, versions and overrides through the API: statuses, ETags and conflicts.

use serde_json::{Value, json};
use tollgate_server::control::auth::TokenPolicy;

use crate::test_server::{TestServer, send};

const RULE: &str = "/v1/domains/api/rules/login";

#[tokio::test]
async fn rule_is_created_changed_and_deleted_with_history() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let made = send(
        server
            .request("PUT", RULE)
            .header("tollgate-comment", "for%20the%20launch")
            .header("content-type", "application/yaml")
            .body("per: [tenant]\nlimit: 10/s\n"),
    )
    .await
    .expect_status(201);
    assert_eq!(made.tag, "\"1\"");
    let rule = made.json();
    assert_eq!((&rule["author"], &rule["comment"]), (&json!("local"), &json!("for the launch")));
    assert_eq!((&rule["rule"]["id"], &rule["enabled"]), (&json!("login"), &json!(true)));
    let same = server.call("PUT", RULE, r#"{"per":["tenant"],"limit":"10/s"}"#).await.expect_status(200);
    assert_eq!(same.tag, "\"1\"", "writing the stored rule again changes nothing");
    assert_eq!(server.call("PATCH", RULE, r#"{"limit":"20/s"}"#).await.expect_status(200).tag, "\"2\"");
    assert_eq!(server.call("POST", &format!("{RULE}/disable"), "").await.expect_status(200).json()["enabled"], false);
    assert_eq!(server.call("POST", &format!("{RULE}/enable"), "").await.expect_status(200).tag, "\"4\"");
    let versions = server.call("GET", &format!("{RULE}/versions?limit=3"), "").await.expect_status(200).json();
    let numbers: Vec<_> =
        versions["items"].as_array().unwrap().iter().map(|version| version["version"].clone()).collect();
    assert_eq!(numbers, [4, 3, 2]);
    let next = versions["next"].as_str().expect("there is more");
    let rest = server.call("GET", &format!("{RULE}/versions?after={next}"), "").await.expect_status(200).json();
    assert_eq!((rest["items"].as_array().map(Vec::len), &rest["next"]), (Some(1), &Value::Null));
    let first = server.call("GET", &format!("{RULE}/versions/1"), "").await.expect_status(200).json();
    assert_eq!(first["rule"]["limit"], "10/s");
    let diff = server.call("GET", &format!("{RULE}/diff?from=1&to=2"), "").await.expect_status(200);
    assert!(diff.text.contains("-") && diff.text.contains("20/s"), "{}", diff.text);
    assert_eq!(diff.header("content-type"), "text/plain; charset=utf-8");
    server.call("GET", &format!("{RULE}/diff"), "").await.expect_status(200);
    let back = server.call("POST", &format!("{RULE}/rollback"), r#"{"version":1}"#).await.expect_status(200);
    assert_eq!((back.json()["rule"]["limit"].clone(), back.tag), (json!("10/s"), "\"5\"".into()));
    server.call("DELETE", RULE, "").await.expect_status(204);
    server.call("GET", RULE, "").await.expect_status(404);
    server.call("DELETE", RULE, "").await.expect_status(404);
    server.call("GET", &format!("{RULE}/versions"), "").await.expect_status(200);
    server.call("POST", &format!("{RULE}/rollback"), r#"{"version":1}"#).await.expect_status(201);
}

#[tokio::test]
async fn conflicting_change_gets_412_with_the_difference() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    server.call("PUT", RULE, r#"{"per":["tenant"],"limit":"10/s"}"#).await.expect_status(201);
    let put = |tag: &str, limit: &str| {
        let body = json!({"per": ["tenant"], "limit": limit}).to_string();
        send(server.request("PUT", RULE).header("if-match", tag.to_owned()).body(body))
    };
    put("\"1\"", "20/s").await.expect_status(200);
    let lost = put("\"1\"", "30/s").await.expect_status(412).json();
    assert_eq!((&lost["current"], &lost["author"]), (&json!(2), &json!("local")), "{lost}");
    assert!(lost["at_ms"].is_i64() && lost["diff"].as_str().is_some_and(|diff| diff.contains("20/s")), "{lost}");
    put("\"abc\"", "30/s").await.expect_status(412);
    put("*", "30/s").await.expect_status(200);
    put("1", "40/s").await.expect_status(400);
    let create =
        |path: &'static str| send(server.request("PUT", path).header("if-none-match", "*").body(r#"{"limit":"1/s"}"#));
    create(RULE).await.expect_status(412);
    create("/v1/domains/api/rules/other").await.expect_status(201);
    send(server.request("PUT", "/v1/domains/api/rules/third").header("if-match", "*").body(r#"{"limit":"1/s"}"#))
        .await
        .expect_status(412);
    for (method, path, body) in [
        ("PATCH", RULE.to_owned(), r#"{"limit":"1/s"}"#),
        ("DELETE", RULE.to_owned(), ""),
        ("POST", format!("{RULE}/disable"), ""),
        ("POST", format!("{RULE}/rollback"), r#"{"version":1}"#),
    ] {
        let request = server.request(method, &path).header("if-match", "\"1\"").body(body);
        assert_eq!(send(request).await.status, 412, "{method} {path}");
    }
}

#[tokio::test]
async fn exactly_one_of_many_concurrent_writers_wins() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    server.call("PUT", RULE, r#"{"limit":"1/s"}"#).await.expect_status(201);
    let tries = (2..12).map(|limit| {
        let body = json!({"limit": format!("{limit}/s")}).to_string();
        tokio::spawn(send(server.request("PUT", RULE).header("if-match", "\"1\"").body(body)))
    });
    let tries: Vec<_> = tries.collect();
    let mut statuses = Vec::new();
    for one in tries {
        statuses.push(one.await.unwrap().status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412, 412, 412, 412, 412, 412, 412, 412, 412]);
}

#[tokio::test]
async fn unchanged_resource_gets_status_304() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    server.call("PUT", RULE, r#"{"per":["tenant"],"limit":"10/s"}"#).await.expect_status(201);
    server.call("PUT", &format!("{RULE}/overrides/acme"), r#"{"limit":"20/s"}"#).await.expect_status(201);
    let paths = [
        "/v1/domains".to_owned(),
        "/v1/domains/api/rules".to_owned(),
        RULE.to_owned(),
        format!("{RULE}/versions"),
        format!("{RULE}/versions/1"),
        format!("{RULE}/diff?from=1&to=1"),
        format!("{RULE}/overrides"),
        format!("{RULE}/overrides/acme"),
        "/v1/tokens".to_owned(),
        "/v1/audit".to_owned(),
        "/v1/export".to_owned(),
        "/v1/snapshot".to_owned(),
    ];
    for path in &paths {
        let tag = server.call("GET", path, "").await.expect_status(200).tag;
        assert!(tag.starts_with('"') && tag.len() > 2, "{path}: {tag}");
        let known = send(server.request("GET", path).header("if-none-match", &tag)).await.expect_status(304);
        assert_eq!((known.text.as_str(), &known.tag), ("", &tag), "{path}");
        send(server.request("GET", path).header("if-none-match", format!("\"0\", W/{tag}"))).await.expect_status(304);
        send(server.request("GET", path).header("if-none-match", "\"0\"")).await.expect_status(200);
        let head = server.call("HEAD", path, "").await.expect_status(200);
        assert_eq!((head.text.as_str(), &head.tag), ("", &tag), "{path}");
    }
}

#[tokio::test]
async fn one_call_sets_the_limit_of_a_customer() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let path = format!("{RULE}/overrides/acme");
    server.call("PUT", &path, r#"{"limit":"20/s"}"#).await.expect_status(404);
    server.call("PUT", RULE, r#"{"per":["tenant"],"limit":"1/h"}"#).await.expect_status(201);
    let made = server.call("PUT", &path, r#"{"limit":"3/h","until":"2100-01-01T00:00:00Z"}"#).await.expect_status(201);
    assert_eq!(made.json()["attribute"], "tenant");
    let again = server.call("PUT", &path, r#"{"limit":"3/h","until":"2100-01-01T00:00:00Z"}"#).await.expect_status(200);
    assert_eq!(again.tag, made.tag);
    send(server.request("PUT", &path).header("if-match", "\"999\"").body(r#"{"limit":"4/h"}"#))
        .await
        .expect_status(412);
    server.call("PUT", &path, r#"{"limit":"4/h","attribute":"plan"}"#).await.expect_status(409);
    assert_eq!(server.call("GET", &path, "").await.expect_status(200).tag, made.tag);
    server.wait_for_latest_revision().await;
    let check = async |tenant: &str| {
        let body = json!({"domain": "api", "attributes": {"tenant": tenant}}).to_string();
        server.call("POST", "/v1/check", &body).await.status
    };
    assert_eq!(
        [check("acme").await, check("acme").await, check("acme").await, check("acme").await],
        [200, 200, 200, 429]
    );
    assert_eq!([check("else").await, check("else").await], [200, 429]);
    assert_eq!(server.call("GET", &format!("{RULE}/overrides"), "").await.json()["items"][0]["value"], "acme");
    server.call("DELETE", &path, "").await.expect_status(204);
    server.call("DELETE", &path, "").await.expect_status(404);
    server.call("GET", &path, "").await.expect_status(404);
}

#[tokio::test]
async fn file_is_planned_applied_and_exported() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let file = "domain: api\nrules:\n- {id: a, limit: 1/s}\n- {id: b, limit: 2/s}\n";
    let post = |path: &str, body: &'static str| {
        send(server.request("POST", path).header("content-type", "text/yaml").body(body))
    };
    let found = post("/v1/validate", "domain: api\nrules:\n- {id: a, limt: 1/s}\n").await.expect_status(200).json();
    assert_eq!((&found["rules"], &found["mistakes"][0]["line"]), (&json!(0), &json!(3)), "{found}");
    assert_eq!(post("/v1/validate", file).await.expect_status(200).json()["rules"], 2);
    let plan = post("/v1/apply?plan=true", file).await.expect_status(200);
    assert_eq!(
        (plan.json()["applied"].clone(), plan.json()["changes"].as_array().map(Vec::len)),
        (json!(false), Some(2))
    );
    let apply =
        |tag: String| send(server.request("POST", "/v1/apply?others=delete").header("if-match", tag).body(file));
    server.call("PUT", "/v1/domains/api/rules/c", r#"{"limit":"1/s"}"#).await.expect_status(201);
    apply(plan.tag).await.expect_status(412);
    let plan = post("/v1/apply?plan=true&others=delete", file).await.expect_status(200);
    assert_eq!(plan.json()["changes"].as_array().map(Vec::len), Some(3), "{}", plan.text);
    let applied = apply(plan.tag).await.expect_status(200).json();
    assert_eq!((&applied["applied"], &applied["changes"][2]["action"]), (&json!(true), &json!("delete")), "{applied}");
    let exported = server.call("GET", "/v1/export?domain=api", "").await.expect_status(200);
    assert_eq!(exported.header("content-type"), "application/yaml");
    let again = send(server.request("POST", "/v1/apply").body(exported.text)).await.expect_status(200).json();
    assert_eq!((&again["changes"], &again["unchanged"]), (&json!([]), &json!(2)));
    let wrong = post("/v1/apply", "domain: api\nrules:\n- {id: a, limt: 1/s}\n").await.expect_status(422).json();
    let found = wrong["mistakes"].as_array().unwrap().iter().map(|mistake| {
        let help = mistake["help"].as_str().unwrap_or_default();
        (mistake["line"].as_i64(), mistake["column"].as_i64(), help.contains("did you mean `limit`"))
    });
    assert!(found.into_iter().any(|found| found == (Some(3), Some(11), true)), "{wrong}");
    post("/v1/apply?others=some", file).await.expect_status(400);
    post("/v1/apply?pln=true", file).await.expect_status(400);
}
