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
    .is(201);
    assert_eq!(made.tag, "\"1\"");
    let rule = made.json();
    assert_eq!((&rule["author"], &rule["comment"]), (&json!("local"), &json!("for the launch")));
    assert_eq!((&rule["rule"]["id"], &rule["enabled"]), (&json!("login"), &json!(true)));
    let same = server.ask("PUT", RULE, r#"{"per":["tenant"],"limit":"10/s"}"#).await.is(200);
    assert_eq!(same.tag, "\"1\"", "writing the stored rule again changes nothing");
    assert_eq!(server.ask("PATCH", RULE, r#"{"limit":"20/s"}"#).await.is(200).tag, "\"2\"");
    assert_eq!(server.ask("POST", &format!("{RULE}/disable"), "").await.is(200).json()["enabled"], false);
    assert_eq!(server.ask("POST", &format!("{RULE}/enable"), "").await.is(200).tag, "\"4\"");
    let versions = server.ask("GET", &format!("{RULE}/versions?limit=3"), "").await.is(200).json();
    let numbers: Vec<_> =
        versions["items"].as_array().unwrap().iter().map(|version| version["version"].clone()).collect();
    assert_eq!(numbers, [4, 3, 2]);
    let next = versions["next"].as_str().expect("there is more");
    let rest = server.ask("GET", &format!("{RULE}/versions?after={next}"), "").await.is(200).json();
    assert_eq!((rest["items"].as_array().map(Vec::len), &rest["next"]), (Some(1), &Value::Null));
    let first = server.ask("GET", &format!("{RULE}/versions/1"), "").await.is(200).json();
    assert_eq!(first["rule"]["limit"], "10/s");
    let diff = server.ask("GET", &format!("{RULE}/diff?from=1&to=2"), "").await.is(200);
    assert!(diff.text.contains("-") && diff.text.contains("20/s"), "{}", diff.text);
    assert_eq!(diff.header("content-type"), "text/plain; charset=utf-8");
    server.ask("GET", &format!("{RULE}/diff"), "").await.is(200);
    let back = server.ask("POST", &format!("{RULE}/rollback"), r#"{"version":1}"#).await.is(200);
    assert_eq!((back.json()["rule"]["limit"].clone(), back.tag), (json!("10/s"), "\"5\"".into()));
    server.ask("DELETE", RULE, "").await.is(204);
    server.ask("GET", RULE, "").await.is(404);
    server.ask("DELETE", RULE, "").await.is(404);
    server.ask("GET", &format!("{RULE}/versions"), "").await.is(200);
    server.ask("POST", &format!("{RULE}/rollback"), r#"{"version":1}"#).await.is(201);
}

#[tokio::test]
async fn conflicting_change_gets_412_with_the_difference() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    server.ask("PUT", RULE, r#"{"per":["tenant"],"limit":"10/s"}"#).await.is(201);
    let put = |tag: &str, limit: &str| {
        let body = json!({"per": ["tenant"], "limit": limit}).to_string();
        send(server.request("PUT", RULE).header("if-match", tag.to_owned()).body(body))
    };
    put("\"1\"", "20/s").await.is(200);
    let lost = put("\"1\"", "30/s").await.is(412).json();
    assert_eq!((&lost["current"], &lost["author"]), (&json!(2), &json!("local")), "{lost}");
    assert!(lost["at_ms"].is_i64() && lost["diff"].as_str().is_some_and(|diff| diff.contains("20/s")), "{lost}");
    put("\"abc\"", "30/s").await.is(412);
    put("*", "30/s").await.is(200);
    put("1", "40/s").await.is(400);
    let create =
        |path: &'static str| send(server.request("PUT", path).header("if-none-match", "*").body(r#"{"limit":"1/s"}"#));
    create(RULE).await.is(412);
    create("/v1/domains/api/rules/other").await.is(201);
    send(server.request("PUT", "/v1/domains/api/rules/third").header("if-match", "*").body(r#"{"limit":"1/s"}"#))
        .await
        .is(412);
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
    server.ask("PUT", RULE, r#"{"limit":"1/s"}"#).await.is(201);
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
async fn unchanged_resource_is_304() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    server.ask("PUT", RULE, r#"{"per":["tenant"],"limit":"10/s"}"#).await.is(201);
    server.ask("PUT", &format!("{RULE}/overrides/acme"), r#"{"limit":"20/s"}"#).await.is(201);
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
        let tag = server.ask("GET", path, "").await.is(200).tag;
        assert!(tag.starts_with('"') && tag.len() > 2, "{path}: {tag}");
        let known = send(server.request("GET", path).header("if-none-match", &tag)).await.is(304);
        assert_eq!((known.text.as_str(), &known.tag), ("", &tag), "{path}");
        send(server.request("GET", path).header("if-none-match", format!("\"0\", W/{tag}"))).await.is(304);
        send(server.request("GET", path).header("if-none-match", "\"0\"")).await.is(200);
        let head = server.ask("HEAD", path, "").await.is(200);
        assert_eq!((head.text.as_str(), &head.tag), ("", &tag), "{path}");
    }
}

#[tokio::test]
async fn one_call_sets_the_limit_of_a_customer() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let path = format!("{RULE}/overrides/acme");
    server.ask("PUT", &path, r#"{"limit":"20/s"}"#).await.is(404);
    server.ask("PUT", RULE, r#"{"per":["tenant"],"limit":"1/h"}"#).await.is(201);
    let made = server.ask("PUT", &path, r#"{"limit":"3/h","until":"2100-01-01T00:00:00Z"}"#).await.is(201);
    assert_eq!(made.json()["attribute"], "tenant");
    let again = server.ask("PUT", &path, r#"{"limit":"3/h","until":"2100-01-01T00:00:00Z"}"#).await.is(200);
    assert_eq!(again.tag, made.tag);
    send(server.request("PUT", &path).header("if-match", "\"999\"").body(r#"{"limit":"4/h"}"#)).await.is(412);
    server.ask("PUT", &path, r#"{"limit":"4/h","attribute":"plan"}"#).await.is(409);
    assert_eq!(server.ask("GET", &path, "").await.is(200).tag, made.tag);
    server.settle().await;
    let check = async |tenant: &str| {
        let body = json!({"domain": "api", "attributes": {"tenant": tenant}}).to_string();
        server.ask("POST", "/v1/check", &body).await.status
    };
    assert_eq!(
        [check("acme").await, check("acme").await, check("acme").await, check("acme").await],
        [200, 200, 200, 429]
    );
    assert_eq!([check("else").await, check("else").await], [200, 429]);
    assert_eq!(server.ask("GET", &format!("{RULE}/overrides"), "").await.json()["items"][0]["value"], "acme");
    server.ask("DELETE", &path, "").await.is(204);
    server.ask("DELETE", &path, "").await.is(404);
    server.ask("GET", &path, "").await.is(404);
}

#[tokio::test]
async fn file_is_planned_applied_and_exported() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let file = "domain: api\nrules:\n- {id: a, limit: 1/s}\n- {id: b, limit: 2/s}\n";
    let post = |path: &str, body: &'static str| {
        send(server.request("POST", path).header("content-type", "text/yaml").body(body))
    };
    let found = post("/v1/validate", "domain: api\nrules:\n- {id: a, limt: 1/s}\n").await.is(200).json();
    assert_eq!((&found["rules"], &found["mistakes"][0]["line"]), (&json!(0), &json!(3)), "{found}");
    assert_eq!(post("/v1/validate", file).await.is(200).json()["rules"], 2);
    let plan = post("/v1/apply?plan=true", file).await.is(200);
    assert_eq!(
        (plan.json()["applied"].clone(), plan.json()["changes"].as_array().map(Vec::len)),
        (json!(false), Some(2))
    );
    let apply =
        |tag: String| send(server.request("POST", "/v1/apply?others=delete").header("if-match", tag).body(file));
    server.ask("PUT", "/v1/domains/api/rules/c", r#"{"limit":"1/s"}"#).await.is(201);
    apply(plan.tag).await.is(412);
    let plan = post("/v1/apply?plan=true&others=delete", file).await.is(200);
    assert_eq!(plan.json()["changes"].as_array().map(Vec::len), Some(3), "{}", plan.text);
    let applied = apply(plan.tag).await.is(200).json();
    assert_eq!((&applied["applied"], &applied["changes"][2]["action"]), (&json!(true), &json!("delete")), "{applied}");
    let exported = server.ask("GET", "/v1/export?domain=api", "").await.is(200);
    assert_eq!(exported.header("content-type"), "application/yaml");
    let again = send(server.request("POST", "/v1/apply").body(exported.text)).await.is(200).json();
    assert_eq!((&again["changes"], &again["unchanged"]), (&json!([]), &json!(2)));
    let wrong = post("/v1/apply", "domain: api\nrules:\n- {id: a, limt: 1/s}\n").await.is(422).json();
    let found = wrong["mistakes"].as_array().unwrap().iter().map(|mistake| {
        let help = mistake["help"].as_str().unwrap_or_default();
        (mistake["line"].as_i64(), mistake["column"].as_i64(), help.contains("did you mean `limit`"))
    });
    assert!(found.into_iter().any(|found| found == (Some(3), Some(11), true)), "{wrong}");
    post("/v1/apply?others=some", file).await.is(400);
    post("/v1/apply?pln=true", file).await.is(400);
}
