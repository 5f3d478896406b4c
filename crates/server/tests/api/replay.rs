//! Replays of a log against a rule file that is not applied yet.

use std::fmt::Write;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tollgate_server::control::auth::TokenPolicy;
use tollgate_server::control::model::Role;

use crate::eventually::eventually_async;
use crate::test_server::{ApiReply, TestServer, send};

/// The content type of [`multipart_form`].
pub const FORM_CONTENT_TYPE: &str = "multipart/form-data; boundary=edge";

/// Returns a form as browsers and `curl -F` send it.
pub fn multipart_form(parts: &[(&str, &str)]) -> String {
    let mut body = String::new();
    for (name, content) in parts {
        let _ = write!(
            body,
            "--edge\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{name}.txt\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n{content}\r\n"
        );
    }
    body + "--edge--\r\n"
}

/// Returns a log of one minute. In every second, one client requests `/a` and another requests `/b`.
fn one_minute_log() -> String {
    let line = |second: usize| {
        let time = format!("16/Nov/2025:09:00:{second:02} +0000");
        format!(
            "10.0.0.1 - - [{time}] \"GET /a HTTP/1.1\" 200 5 \"-\" \"curl/8\"\n\
             10.0.0.2 - - [{time}] \"GET /b HTTP/1.1\" 200 5 \"-\" \"curl/8\"\n"
        )
    };
    (0..60).map(line).collect()
}

const RULES_IN_FORCE: &str = "
domain: web
rules:
- {id: a, when: {path: /a}, per: [client_ip], limit: 10/h, algorithm: fixed_window}
- {id: off, limit: 1/h}
";

const DRAFT_RULES: &str = "
domain: web
rules:
- {id: b, when: {path: /b}, per: [client_ip], limit: 20/h, algorithm: fixed_window}
- {id: c, per: [client_ip], limit: 30/h, algorithm: fixed_window, on_exceed: shadow}
";

async fn send_replay(server: &TestServer, query: &str, parts: &[(&str, &str)]) -> ApiReply {
    let path = format!("/v1/replay{query}");
    send(server.request("POST", &path).header("content-type", FORM_CONTENT_TYPE).body(multipart_form(parts))).await
}

/// Returns the matched, refused and shadow-refused counts of a rule.
fn counts_of_rule(report: &Value, rule: &str) -> [u64; 3] {
    let rules = report["result"]["rules"].as_array().expect("rules");
    let rule = rules.iter().find(|found| found["rule"] == rule).expect("the rule");
    ["matched", "refused", "shadow_refused"].map(|name| rule[name].as_u64().expect("a count"))
}

#[tokio::test]
async fn draft_is_replayed_and_compared_with_the_rules_in_force() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let empty =
        send_replay(&server, "", &[("rules", DRAFT_RULES), ("log", &one_minute_log())]).await.expect_status(200).json();
    assert_eq!(
        (counts_of_rule(&empty, "b"), &empty["against"]),
        ([60, 40, 0], &Value::Null),
        "no rules to compare with"
    );

    server.call("POST", "/v1/apply", RULES_IN_FORCE).await.expect_status(200);
    server.call("POST", "/v1/domains/web/rules/off/disable", "").await.expect_status(200);
    server
        .call("PUT", "/v1/domains/web/rules/a/overrides/10.0.0.1", r#"{"limit":"15/h"}"#)
        .await
        .expect_status(200 + 1);
    let before = server.call("GET", "/v1/export", "").await.expect_status(200);
    let audit = server.call("GET", "/v1/audit", "").await.expect_status(200).text;

    // Rules that are not in the draft are kept with their overrides; disabled rules stay disabled.
    let report = send_replay(&server, "?domain=web", &[("rules", DRAFT_RULES), ("log", &one_minute_log())])
        .await
        .expect_status(200)
        .json();
    assert_eq!(
        (&report["lines"], &report["left_out"], &report["result"]["requests"]),
        (&120.into(), &0.into(), &120.into())
    );
    assert_eq!(counts_of_rule(&report, "a"), [60, 45, 0], "the override of the rule in force");
    assert_eq!(counts_of_rule(&report, "b"), [60, 40, 0]);
    // A shadow rule counts only requests that the other rules admit. In this log, these requests are below the limit of
    // the shadow rule.
    assert_eq!(counts_of_rule(&report, "c")[1..], [0, 0]);
    assert_eq!(report["result"]["rules"].as_array().map(Vec::len), Some(3), "{report}");
    let against = &report["against"];
    assert_eq!(
        (&against["refused_before"], &against["newly_refused"], &against["relieved"]),
        (&45.into(), &40.into(), &0.into())
    );
    assert_eq!(against["newly_refused_top"][0], json!({"key": "client_ip=10.0.0.2 (b)", "count": 40, "error": 0}));
    assert_eq!(report["logs"][0]["name"], "log.txt");

    // If rules that are not in the draft are deleted, requests that only these rules refused are admitted.
    let report = send_replay(&server, "?others=delete", &[("log", &one_minute_log()), ("rules", DRAFT_RULES)])
        .await
        .expect_status(200)
        .json();
    assert_eq!((&report["against"]["newly_refused"], &report["against"]["relieved"]), (&40.into(), &45.into()));
    assert_eq!(counts_of_rule(&report, "c")[1..], [0, 30], "the shadow rule would refuse 30 requests");

    // Limits for each client are suggested only if requested.
    assert_eq!(report["suggestion"], Value::Null);
    let suggested = send_replay(&server, "?suggest=client_ip", &[("log", &one_minute_log()), ("rules", DRAFT_RULES)])
        .await
        .expect_status(200)
        .json();
    assert_eq!(suggested["suggestion"]["clients"], 2, "{suggested}");

    // Several logs are merged, and keys are hashed if requested.
    let (first, second) = (one_minute_log(), one_minute_log());
    let parts = [("log", &*first), ("log", &*second), ("rules", DRAFT_RULES)];
    let merged = send_replay(&server, "?hash_keys=true", &parts).await.expect_status(200).json();
    assert_eq!((&merged["lines"], merged["logs"].as_array().map(Vec::len)), (&240.into(), Some(2)));
    assert!(!merged.to_string().contains("10.0.0.2"), "{merged}");

    // The replays changed no rule.
    let after = server.call("GET", "/v1/export", "").await.expect_status(200);
    assert_eq!((after.tag, after.text), (before.tag, before.text));
    assert_eq!(server.call("GET", "/v1/audit", "").await.expect_status(200).text, audit);
    server.call("POST", "/v1/apply", DRAFT_RULES).await.expect_status(200);
}

#[tokio::test]
async fn unusable_logs_rules_and_forms_are_reported_with_a_correction() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let log = one_minute_log();
    let (rules, log) = (("rules", DRAFT_RULES), ("log", &*log));
    let two = "domains:\n- {domain: x, rules: [{id: x, limit: 1/s}]}\n- {domain: y, rules: [{id: y, limit: 1/s}]}\n";
    for (query, parts, status, expected) in [
        ("", vec![rules], 400, "the form has no part `log`"),
        ("", vec![log], 400, "the form has no part `rules`"),
        ("", vec![rules, log, rules], 400, "more than one part `rules`; send one"),
        ("", vec![rules, log, ("more", "")], 400, "unknown part `more`"),
        ("", vec![("rules", "domain: web\nrules:\n- {id: a, limt: 1/s}"), log], 422, "did you mean `limit`"),
        ("", vec![("rules", two), log], 400, "choose a domain of the file with `domain`: x, y"),
        ("?domain=z", vec![rules, log], 400, "the file has no domain `z`; its domains are: web"),
        ("", vec![rules, ("log", "what is this\n")], 400, "unknown format; describe it with `format`"),
        ("?format=nginx", vec![rules, log], 400, "`format`: unknown format `nginx`"),
        ("?format=csv", vec![rules, log], 400, "does not begin with lines of the format `csv`"),
        ("?zone=Nowhere", vec![rules, log], 400, "zone Nowhere: write it like Europe/Paris"),
        ("?map=client_ip", vec![rules, log], 400, "map client_ip: write it like attribute=value"),
        ("?map=client_ip=nothing", vec![rules, log], 400, "no such field"),
        ("?set=plna=free", vec![rules, log], 400, "`plna` is not used"),
        ("?hash_keys=1", vec![rules, log], 400, "expected `true` or `false`"),
        ("?others=some", vec![rules, log], 400, "expected `keep` or `delete`"),
        ("?domian=web", vec![rules, log], 400, "unknown field `domian`"),
    ] {
        let reply = send_replay(&server, query, &parts).await;
        assert_eq!(reply.status, status, "{query}: {}", reply.text);
        assert!(reply.text.contains(expected), "{query}: {}", reply.text);
    }
    let post = |kind: &'static str, body: String| {
        send(server.request("POST", "/v1/replay").header("content-type", kind).body(body))
    };
    assert!(post("application/json", "{}".into()).await.expect_status(415).text.contains("multipart/form-data"));
    assert!(
        post(FORM_CONTENT_TYPE, "{}".into()).await.expect_status(400).text.contains("does not begin with its boundary")
    );
    let cut = multipart_form(&[rules, log]).replace("--edge--", "");
    assert!(post(FORM_CONTENT_TYPE, cut).await.expect_status(400).text.contains("its last boundary is missing"));
    server.call("GET", "/v1/replay", "").await.expect_status(405);

    // Unusual content of a log is reported, not refused.
    let report = send_replay(&server, "", &[rules, ("log", "")]).await.expect_status(200).json();
    assert_eq!((&report["lines"], &report["result"]["requests"]), (&0.into(), &0.into()));
    let odd = format!("{}\u{0}\u{1}\nbroken <b>\n{}\n", log.1, "x".repeat(40_000));
    let report = send_replay(&server, "", &[rules, ("log", &odd)]).await.expect_status(200).json();
    assert_eq!((&report["left_out"], &report["result"]["requests"]), (&3.into(), &120.into()), "{report}");
    // A replay in which no rule would be in force is refused.
    server.call("POST", "/v1/apply", "{domain: web, rules: [{id: only, limit: 1/s}]}").await.expect_status(200);
    server.call("POST", "/v1/domains/web/rules/only/disable", "").await.expect_status(200);
    let disabled = send_replay(&server, "", &[("rules", "{domain: web, rules: [{id: only, limit: 2/s}]}"), log])
        .await
        .expect_status(400);
    assert!(disabled.text.contains("no rule of the domain `web` would be in force"), "{}", disabled.text);
}

#[tokio::test]
async fn logs_are_replayed_one_at_a_time() {
    let server = TestServer::start(TokenPolicy::NotRequired).await;
    let address = server.url.strip_prefix("http://").expect("an address");
    let head = |bytes: usize| {
        format!(
            "POST /v1/replay HTTP/1.1\r\nhost: localhost\r\ncontent-type: {FORM_CONTENT_TYPE}\r\ncontent-length: {bytes}\r\n\r\n"
        )
    };
    // While a client sends its log slowly, other clients get an error that names the reason.
    let mut slow = TcpStream::connect(address).await.expect("a connection");
    slow.write_all(head(1_000).as_bytes()).await.expect("sent");
    slow.write_all(b"--edge\r\n").await.expect("sent");
    let log = one_minute_log();
    let again = async || send_replay(&server, "", &[("rules", DRAFT_RULES), ("log", &log)]).await;
    eventually_async("the slow upload has begun", async || again().await.status == 503).await;
    let busy = again().await.expect_status(503);
    assert!(busy.text.contains("another log is being replayed"), "{}", busy.text);
    assert_eq!(busy.header("retry-after"), "10");
    // Rules can be applied during the upload.
    server.call("POST", "/v1/apply", DRAFT_RULES).await.expect_status(200);
    drop(slow);
    eventually_async("a log is accepted after the slow client left", async || again().await.status == 200).await;
}

#[tokio::test]
async fn editor_replays_in_its_own_domains_only() {
    let server = TestServer::start(TokenPolicy::Required).await;
    let log = one_minute_log();
    let ask = async |role: Role, domains: &[&str], query: &str, rules: &str| {
        let (token, _) = server.create_token("one", role, domains, None).await;
        let request = server.request("POST", &format!("/v1/replay{query}")).bearer_auth(token);
        send(request.header("content-type", FORM_CONTENT_TYPE).body(multipart_form(&[("rules", rules), ("log", &log)])))
            .await
    };
    let two =
        "domains:\n- {domain: web, rules: [{id: x, limit: 1/s}]}\n- {domain: api, rules: [{id: y, limit: 1/s}]}\n";
    ask(Role::Editor, &["web"], "?domain=web", two).await.expect_status(200);
    let refused = ask(Role::Editor, &["web"], "?domain=api", two).await.expect_status(403);
    assert!(refused.text.contains("this call needs the role editor for the domain `api`"), "{}", refused.text);
    // The caller is refused before the invalid body is read.
    let refused = ask(Role::Operator, &[], "?domain=web", "nonsense").await.expect_status(403);
    assert!(refused.text.contains("this call needs the role editor"), "{}", refused.text);
}
