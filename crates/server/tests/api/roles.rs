//! Makes every call with every role.

use tollgate_server::control::auth::TokenPolicy;
use tollgate_server::control::model::Role;

use crate::eventually::eventually_async;
use crate::replay;
use crate::test_server::{TestServer, send};

/// The callers that may make a call. A role includes the rights of the lower roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// All callers, with or without a token.
    Anyone,
    /// Callers with a token.
    Readers,
    /// Callers with a token for the domain `api`.
    Takers,
    /// Callers with the role node for all domains.
    Nodes,
    /// Operators of the domain `api`.
    Operators,
    /// Operators of all domains.
    OperatorsOfAll,
    /// Editors of the domain `api`.
    Editors,
    /// Admins.
    Admins,
}

const RULE_BODY: &str = r#"{"per":["tenant"],"limit":"10/s"}"#;
const RULE_FILE: &str = r#"{"domain":"api","rules":[{"id":"from-file","per":["tenant"],"limit":"10/s"}]}"#;
const REQUEST_IN_API: &str = r#"{"domain":"api","attributes":{"tenant":"t"},"cost":0}"#;
const INLINE_LIMIT_REQUEST: &str = r#"{"key":"k","limit":"1000000/s","cost":1}"#;

/// Every call: method, path, body, the callers that may make it, and the statuses that these callers may get.
#[rustfmt::skip]
const CALLS: &[(&str, &str, &str, Access, &[u16])] = &[
    ("GET", "/healthz", "", Access::Anyone, &[200]),
    ("GET", "/readyz", "", Access::Anyone, &[200]),
    ("POST", "/v1/check", INLINE_LIMIT_REQUEST, Access::Readers, &[200]),
    ("POST", "/v1/peek", INLINE_LIMIT_REQUEST, Access::Readers, &[200]),
    ("POST", "/v1/take-up-to", INLINE_LIMIT_REQUEST, Access::Readers, &[200]),
    ("POST", "/v1/charge", INLINE_LIMIT_REQUEST, Access::Readers, &[200]),
    ("POST", "/v1/drain", r#"{"key":"d","limit":"1/s"}"#, Access::Readers, &[200, 429]),
    ("POST", "/v1/acquire", r#"{"key":"k","limit":"1000000/s","wait_ms":1}"#, Access::Readers, &[200]),
    ("POST", "/v1/reserve", INLINE_LIMIT_REQUEST, Access::Readers, &[200]),
    ("POST", "/v1/check", REQUEST_IN_API, Access::Takers, &[200]),
    ("POST", "/v1/peek", REQUEST_IN_API, Access::Readers, &[200]),
    ("POST", "/v1/take-up-to", REQUEST_IN_API, Access::Takers, &[200]),
    ("POST", "/v1/charge", REQUEST_IN_API, Access::Takers, &[200]),
    ("POST", "/v1/drain", r#"{"domain":"api","attributes":{"tenant":"d"}}"#, Access::Takers, &[200, 429]),
    ("POST", "/v1/acquire", r#"{"domain":"api","attributes":{"tenant":"t"},"cost":0,"wait_ms":1}"#, Access::Takers, &[200]),
    ("POST", "/v1/reserve", REQUEST_IN_API, Access::Takers, &[200]),
    ("POST", "/v1/commit", "{}", Access::Readers, &[400]),
    ("POST", "/v1/cancel", "{}", Access::Readers, &[400]),
    ("POST", "/v1/release", "{}", Access::Readers, &[400]),
    ("POST", "/v1/renew", "{}", Access::Readers, &[400]),
    ("POST", "/v1/refund", "{}", Access::Readers, &[400]),
    ("POST", "/v1/explain", r#"{"domain":"api","attributes":{"tenant":"a"}}"#, Access::Readers, &[200]),
    ("POST", "/v1/reset", r#"{"domain":"api","attributes":{"tenant":"a"}}"#, Access::Operators, &[200]),
    ("POST", "/v1/reset", INLINE_LIMIT_REQUEST, Access::OperatorsOfAll, &[200]),
    ("GET", "/v1/enforcement", "", Access::Readers, &[200]),
    ("POST", "/v1/enforcement", r#"{"mode":"enforce"}"#, Access::OperatorsOfAll, &[200]),
    ("GET", "/v1/top", "", Access::Readers, &[200]),
    ("GET", "/metrics", "", Access::Readers, &[200]),
    ("GET", "/v1/rules-status", "", Access::Readers, &[200]),
    ("GET", "/v1/peers", "", Access::Readers, &[200]),
    ("GET", "/openapi.json", "", Access::Readers, &[200]),
    ("GET", "/v1/history", "", Access::Readers, &[200]),
    ("GET", "/v1/rules", "", Access::Readers, &[200]),
    // An invalid query, because a valid one would start an endless stream.
    ("GET", "/v1/live?unknown=1", "", Access::Readers, &[400]),
    ("POST", "/v1/session", "{}", Access::Anyone, &[400]),
    ("GET", "/v1/session", "", Access::Readers, &[200]),
    ("DELETE", "/v1/session", "", Access::Readers, &[204]),
    ("GET", "/nothing", "", Access::Readers, &[404]),
    ("GET", "/v1/domains", "", Access::Readers, &[200]),
    ("GET", "/v1/domains/api/rules", "", Access::Readers, &[200]),
    ("GET", "/v1/domains/api/rules/all", "", Access::Readers, &[200]),
    ("PUT", "/v1/domains/api/rules/all", RULE_BODY, Access::Editors, &[200]),
    ("PATCH", "/v1/domains/api/rules/all", r#"{"limit":"10/s"}"#, Access::Editors, &[200]),
    ("POST", "/v1/domains/api/rules/all/disable", "", Access::Editors, &[200]),
    ("POST", "/v1/domains/api/rules/all/enable", "", Access::Editors, &[200]),
    ("GET", "/v1/domains/api/rules/all/versions", "", Access::Readers, &[200]),
    ("GET", "/v1/domains/api/rules/all/versions/1", "", Access::Readers, &[200]),
    ("GET", "/v1/domains/api/rules/all/diff?from=1&to=1", "", Access::Readers, &[200]),
    ("POST", "/v1/domains/api/rules/all/rollback", r#"{"version":1}"#, Access::Editors, &[200]),
    ("GET", "/v1/domains/api/rules/all/overrides", "", Access::Readers, &[200]),
    ("GET", "/v1/domains/api/overrides", "", Access::Readers, &[200]),
    ("PUT", "/v1/domains/api/rules/all/overrides/acme", r#"{"limit":"20/s"}"#, Access::Operators, &[200, 201]),
    ("GET", "/v1/domains/api/rules/all/overrides/acme", "", Access::Readers, &[200, 404]),
    ("DELETE", "/v1/domains/api/rules/all/overrides/acme", "", Access::Operators, &[204]),
    ("DELETE", "/v1/domains/api/rules/never", "", Access::Editors, &[404]),
    ("POST", "/v1/validate", RULE_FILE, Access::Readers, &[200]),
    ("POST", "/v1/apply?plan=true", RULE_FILE, Access::Readers, &[200]),
    ("POST", "/v1/apply", RULE_FILE, Access::Editors, &[200]),
    ("GET", "/v1/export", "", Access::Readers, &[200]),
    ("POST", "/v1/replay", RULE_FILE, Access::Editors, &[200]),
    ("GET", "/v1/snapshot", "", Access::Nodes, &[200]),
    ("GET", "/v1/nodes", "", Access::Readers, &[200]),
    ("GET", "/v1/audit", "", Access::OperatorsOfAll, &[200]),
    ("POST", "/v1/audit", r#"[{"at_ms":1,"author":"ann","action":"reset","subject":"k"}]"#, Access::Nodes, &[204]),
    ("GET", "/v1/fleet/enforcement", "", Access::Readers, &[200]),
    ("PUT", "/v1/fleet/enforcement", r#"{"mode":"enforce"}"#, Access::OperatorsOfAll, &[200]),
    ("GET", "/v1/tokens", "", Access::Admins, &[200]),
    ("POST", "/v1/tokens", r#"{"name":"new","role":"reader"}"#, Access::Admins, &[201]),
    ("DELETE", "/v1/tokens/none", "", Access::Admins, &[404]),
];

/// A caller and its rights.
struct Caller {
    name: &'static str,
    token: Option<String>,
    may: &'static [Access],
}

async fn callers_of_all_roles(server: &TestServer) -> Vec<Caller> {
    const OTHER_DOMAIN_ACCESS: &[Access] = &[Access::Anyone, Access::Readers];
    const READER_ACCESS: &[Access] = &[Access::Anyone, Access::Readers, Access::Takers];
    const NODE_ACCESS: &[Access] = &[Access::Anyone, Access::Readers, Access::Takers, Access::Nodes];
    const OPERATOR_ACCESS: &[Access] =
        &[Access::Anyone, Access::Readers, Access::Takers, Access::Nodes, Access::Operators, Access::OperatorsOfAll];
    const EDITOR_ACCESS: &[Access] = &[
        Access::Anyone,
        Access::Readers,
        Access::Takers,
        Access::Nodes,
        Access::Operators,
        Access::OperatorsOfAll,
        Access::Editors,
    ];
    const OPERATOR_OF_API_ACCESS: &[Access] = &[Access::Anyone, Access::Readers, Access::Takers, Access::Operators];
    const EDITOR_OF_API_ACCESS: &[Access] =
        &[Access::Anyone, Access::Readers, Access::Takers, Access::Operators, Access::Editors];
    const ADMIN_ACCESS: &[Access] = &[
        Access::Anyone,
        Access::Readers,
        Access::Takers,
        Access::Nodes,
        Access::Operators,
        Access::OperatorsOfAll,
        Access::Editors,
        Access::Admins,
    ];
    const ANONYMOUS_ACCESS: &[Access] = &[Access::Anyone];
    let mut callers = Vec::new();
    for (name, role, domains, may) in [
        ("reader", Role::Reader, &[][..], READER_ACCESS),
        ("reader of another domain", Role::Reader, &["other"], OTHER_DOMAIN_ACCESS),
        ("node", Role::Node, &[], NODE_ACCESS),
        ("operator", Role::Operator, &[], OPERATOR_ACCESS),
        ("operator of this domain", Role::Operator, &["api"], OPERATOR_OF_API_ACCESS),
        ("operator of another domain", Role::Operator, &["other"], OTHER_DOMAIN_ACCESS),
        ("editor", Role::Editor, &[], EDITOR_ACCESS),
        ("editor of this domain", Role::Editor, &["other", "api"], EDITOR_OF_API_ACCESS),
        ("editor of another domain", Role::Editor, &["other"], OTHER_DOMAIN_ACCESS),
        ("admin", Role::Admin, &[], ADMIN_ACCESS),
    ] {
        let (token, _) = server.create_token(name, role, domains, None).await;
        callers.push(Caller { name, token: Some(token), may });
    }
    let (revoked, id) = server.create_token("revoked", Role::Admin, &[], None).await;
    let admin = callers.last().and_then(|caller| caller.token.clone()).expect("an admin");
    send(server.request("DELETE", &format!("/v1/tokens/{id}")).bearer_auth(admin)).await.expect_status(200);
    let soon = server.app.wall_ms() + 1_000;
    let (expired, _) = server.create_token("expired", Role::Admin, &[], Some(soon)).await;
    eventually_async("the token has expired", async || server.app.wall_ms() > soon).await;
    server.wait_for_latest_revision().await;
    for (name, token) in [
        ("caller without a token", None),
        ("caller with an unknown token", Some("tg_0000_bad".to_owned())),
        ("caller with a revoked token", Some(revoked)),
        ("caller with an expired token", Some(expired)),
    ] {
        callers.push(Caller { name, token, may: ANONYMOUS_ACCESS });
    }
    callers
}

#[tokio::test]
async fn every_call_is_answered_only_to_roles_that_may_make_it() {
    let server = TestServer::start(TokenPolicy::Required).await;
    let callers = callers_of_all_roles(&server).await;
    let admin = callers.iter().find(|caller| caller.name == "admin").and_then(|caller| caller.token.clone()).unwrap();
    let put = server.request("PUT", "/v1/domains/api/rules/all").bearer_auth(&admin).body(RULE_BODY);
    send(put).await.expect_status(201);
    server.wait_for_latest_revision().await;
    for caller in &callers {
        // Creates an override for the DELETE below.
        let acme = server.request("PUT", "/v1/domains/api/rules/all/overrides/acme").bearer_auth(&admin);
        send(acme.body(r#"{"limit":"20/s"}"#)).await;
        for (method, path, body, may, statuses) in CALLS {
            let mut request = match *path {
                "/v1/replay" => {
                    let form = replay::multipart_form(&[("rules", *body), ("log", "")]);
                    server.request(method, path).header("content-type", replay::FORM_CONTENT_TYPE).body(form)
                }
                _ => server.request(method, path).header("content-type", "application/json").body(*body),
            };
            if let Some(token) = &caller.token {
                request = request.bearer_auth(token);
            }
            let reply = send(request).await;
            let context = format!("{method} {path} by {}: {} {}", caller.name, reply.status, reply.text);
            if caller.may.contains(may) {
                assert!(statuses.contains(&reply.status), "{context}");
            } else if caller.may.contains(&Access::Readers) {
                assert_eq!(reply.status, 403, "{context}");
                assert!(reply.text.contains("this call needs the role"), "{context}");
            } else {
                assert_eq!(reply.status, 401, "{context}");
                assert!(reply.header("www-authenticate").starts_with("Bearer"), "{context}");
            }
        }
    }
}

#[tokio::test]
async fn reader_sees_no_names_ids_or_digests_of_tokens() {
    let server = TestServer::start(TokenPolicy::Required).await;
    let (admin, admin_id) = server.create_token("zebra-admin", Role::Admin, &[], None).await;
    let (operator, operator_id) = server.create_token("zebra-operator", Role::Operator, &["api"], None).await;
    let (reader, reader_id) = server.create_token("quiet", Role::Reader, &[], None).await;
    server.wait_for_latest_revision().await;
    let write = |token: &str, method: &str, path: &str, body: &'static str| {
        send(server.request(method, path).bearer_auth(token).header("content-type", "application/json").body(body))
    };
    write(&admin, "PUT", "/v1/domains/api/rules/all", RULE_BODY).await.expect_status(201);
    write(&admin, "PATCH", "/v1/domains/api/rules/all", r#"{"limit":"20/s"}"#).await.expect_status(200);
    write(&operator, "PUT", "/v1/domains/api/rules/all/overrides/acme", r#"{"limit":"30/s"}"#).await.expect_status(201);
    server.wait_for_latest_revision().await;
    write(&operator, "POST", "/v1/reset", r#"{"domain":"api","attributes":{"tenant":"a"}}"#).await.expect_status(200);
    write(&admin, "POST", "/v1/enforcement", r#"{"mode":"observe"}"#).await.expect_status(200);
    write(&admin, "PUT", "/v1/fleet/enforcement", r#"{"mode":"enforce"}"#).await.expect_status(200);
    server.wait_for_latest_revision().await;
    let asked = CALLS.iter().filter(|(.., may, _)| matches!(may, Access::Anyone | Access::Readers | Access::Takers));
    for (method, path, body, ..) in asked {
        let reply = write(&reader, method, path, body).await;
        for secret in ["zebra", &admin_id, &operator_id, &reader_id, "digest"] {
            // The description of the API mentions the field `digest`, but contains no data.
            let is_secret = reply.text.contains(secret) && *path != "/openapi.json";
            assert!(!is_secret, "{method} {path} shows {secret}: {}", reply.text);
        }
    }
    for path in ["/v1/domains/api/rules/all", "/v1/domains/api/rules/all/versions", "/v1/domains/api/overrides"] {
        let reply = write(&operator, "GET", path, "").await;
        assert!(reply.text.contains("zebra-"), "{path} names the author to operators: {}", reply.text);
    }
}

#[tokio::test]
async fn every_path_of_the_api_description_is_called_with_every_role() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let description = send(server.request("GET", "/openapi.json")).await.expect_status(200).json();
    let paths = description["paths"].as_object().expect("paths");
    let matches = |pattern: &str, path: &str| {
        let path = path.split('?').next().unwrap_or_default();
        let (pattern, path): (Vec<&str>, Vec<&str>) = (pattern.split('/').collect(), path.split('/').collect());
        let same = |(pattern, part): (&&str, &&str)| pattern.starts_with('{') || pattern == part;
        pattern.len() == path.len() && pattern.iter().zip(&path).all(same)
    };
    for (pattern, operations) in paths {
        for method in operations.as_object().expect("operations").keys() {
            let is_called = |called: &str, path: &str| called.eq_ignore_ascii_case(method) && matches(pattern, path);
            let found = CALLS.iter().any(|(called, path, ..)| is_called(called, path));
            // HEAD is not in the table, because it is answered in the same way as GET.
            assert!(found || method == "head", "{method} {pattern} is not in CALLS");
        }
    }
}

#[tokio::test]
async fn missing_token_is_explained_and_a_revoked_one_is_refused_on_open_connections() {
    let server = TestServer::start(TokenPolicy::Required).await;
    server.create_token("admin", Role::Admin, &[], None).await;
    let (token, id) = server.create_token("mine", Role::Admin, &[], None).await;
    let with = |token: &str| send(server.request("GET", "/v1/domains").header("authorization", token));
    assert!(with("").await.expect_status(401).text.contains("a token is required"));
    assert!(with("Basic YTpi").await.expect_status(401).text.contains("a token is required"));
    assert!(with("Bearer nonsense").await.expect_status(401).text.contains("unknown token"));
    with(&format!("bearer  {token} ")).await.expect_status(200);
    let revoked =
        send(server.request("DELETE", &format!("/v1/tokens/{id}")).bearer_auth(&token)).await.expect_status(200);
    assert!(revoked.json()["revoked_ms"].is_i64() && !revoked.text.contains(&token));
    server.wait_for_latest_revision().await;
    assert!(with(&format!("Bearer {token}")).await.expect_status(401).text.contains("revoked"));
}

#[tokio::test]
async fn file_is_applied_only_with_the_role_editor_in_all_its_domains() {
    let server = TestServer::start(TokenPolicy::Required).await;
    let (token, _) = server.create_token("a", Role::Editor, &["a"], None).await;
    let file =
        "domains:\n- domain: a\n  rules:\n  - {id: x, limit: 1/s}\n- domain: b\n  rules:\n  - {id: y, limit: 1/s}\n";
    let post = |path: &str, body: &'static str| send(server.request("POST", path).bearer_auth(&token).body(body));
    post("/v1/apply?plan=true", file).await.expect_status(200);
    let refused = post("/v1/apply", file).await.expect_status(403);
    assert!(refused.text.contains("for the domain `b`"), "{}", refused.text);
    assert_eq!(
        send(server.request("GET", "/v1/domains").bearer_auth(&token)).await.json()["items"],
        serde_json::json!([])
    );
    post("/v1/apply", "domain: a\nrules:\n- {id: x, limit: 1/s}\n").await.expect_status(200);
}

#[tokio::test]
async fn actions_are_in_the_audit_log_with_their_author() {
    let server = TestServer::start(TokenPolicy::Required).await;
    let (token, _) = server.create_token("Ann", Role::Operator, &[], None).await;
    let post = |path: &str, body: &'static str| send(server.request("POST", path).bearer_auth(&token).body(body));
    post("/v1/enforcement", r#"{"mode":"observe"}"#).await.expect_status(200);
    post("/v1/reset", r#"{"key":"k1","limit":"1/s"}"#).await.expect_status(200);
    let log = async || send(server.request("GET", "/v1/audit?author=Ann").bearer_auth(&token)).await.expect_status(200);
    let logged = async || log().await.json()["items"].as_array().is_some_and(|items| items.len() == 2);
    eventually_async("both actions are in the log", logged).await;
    let listed = log().await;
    let items = listed.json()["items"].clone();
    let entry = |index: usize| {
        ["kind", "action", "subject", "author"].map(|key| items[index][key].as_str().unwrap_or("").to_owned())
    };
    assert_eq!(entry(0), ["key", "reset", "k1", "Ann"], "{items}");
    assert_eq!(entry(1), ["enforcement", "observe", "server", "Ann"], "{items}");
    // A new entry changes the ETag, although the revision of the rules does not change.
    let known = listed.tag.clone();
    let again = async || {
        send(server.request("GET", "/v1/audit?author=Ann").bearer_auth(&token).header("if-none-match", &known)).await
    };
    again().await.expect_status(304);
    post("/v1/reset", r#"{"key":"k2","limit":"1/s"}"#).await.expect_status(200);
    eventually_async("the new entry is listed", async || again().await.status == 200).await;
}

#[tokio::test]
async fn token_of_one_domain_settles_nothing_in_another() {
    let server = TestServer::start(TokenPolicy::Required).await;
    let (admin, _) = server.create_token("admin", Role::Admin, &[], None).await;
    for domain in ["a", "b"] {
        let put = server.request("PUT", &format!("/v1/domains/{domain}/rules/all")).bearer_auth(&admin).body(RULE_BODY);
        send(put).await.expect_status(201);
    }
    let (of_a, _) = server.create_token("of a", Role::Reader, &["a"], None).await;
    let (of_b, _) = server.create_token("of b", Role::Reader, &["b"], None).await;
    server.wait_for_latest_revision().await;
    let post = |token: &str, path: &str, body: String| send(server.request("POST", path).bearer_auth(token).body(body));
    let request = r#"{"domain":"a","attributes":{"tenant":"t"},"cost":2}"#;
    let reserved = post(&of_a, "/v1/reserve", request.to_owned()).await.expect_status(200);
    let receipt = reserved.json()["receipt"].as_str().unwrap().to_owned();
    let settle = format!(r#"{{"receipt":"{receipt}"}}"#);
    for path in ["/v1/refund", "/v1/cancel", "/v1/release", "/v1/renew"] {
        let refused = post(&of_b, path, settle.clone()).await.expect_status(403);
        assert!(refused.text.contains("this call needs the role reader for the domain `a`"), "{}", refused.text);
    }
    post(&of_b, "/v1/commit", format!(r#"{{"receipt":"{receipt}","cost":1}}"#)).await.expect_status(403);
    let refused = post(&of_b, "/v1/reset", request.to_owned()).await.expect_status(403);
    assert!(refused.text.contains("this call needs the role operator for the domain `a`"), "{}", refused.text);
    post(&of_a, "/v1/cancel", settle).await.expect_status(200);
    let descriptors = r#"{"domain":"a","descriptors":[{"entries":[{"key":"tenant","value":"t"}]}]}"#;
    let refused = post(&of_b, "/json", descriptors.to_owned()).await.expect_status(403);
    assert!(refused.text.contains("this call needs the role reader for the domain `a`"), "{}", refused.text);
    post(&of_a, "/json", descriptors.to_owned()).await.expect_status(200);
}

#[tokio::test]
async fn list_of_resets_is_one_entry_with_its_count() {
    let server = TestServer::start(TokenPolicy::Required).await;
    let (token, _) = server.create_token("Ann", Role::Operator, &[], None).await;
    let post = |path: &str, body: String| send(server.request("POST", path).bearer_auth(&token).body(body));
    let one = r#"{"key":"k","limit":"1/s"}"#;
    for _ in 0..10 {
        post("/v1/reset", format!("[{}]", vec![one; 1_000].join(","))).await.expect_status(200);
    }
    for mode in ["observe", "enforce"] {
        post("/v1/enforcement", format!(r#"{{"mode":"{mode}"}}"#)).await.expect_status(200);
    }
    let log = async || send(server.request("GET", "/v1/audit?author=Ann").bearer_auth(&token)).await.expect_status(200);
    let logged = async || log().await.json()["items"].as_array().is_some_and(|items| items.len() == 12);
    eventually_async("ten resets and two changes of mode are in the log", logged).await;
    let items = log().await.json()["items"].clone();
    let of_kind = |kind: &str| items.as_array().unwrap().iter().filter(|item| item["kind"] == kind).count();
    assert_eq!((of_kind("key"), of_kind("enforcement")), (10, 2), "{items}");
    let reset = items.as_array().unwrap().iter().find(|item| item["kind"] == "key").unwrap();
    assert_eq!(reset["subject"], "1000 requests, the first: k");
}
