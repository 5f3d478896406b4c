//! A rules service that sends invalid answers. An invalid rule set must never replace a valid one.

use crate::common;

use common::service::{
    FakeService, answer_with_checksum, get_body, limit_of, read_metric, rule_set_answer, rule_set_answer_with_token,
    sha256,
};
use common::{Folder, Server};
use serde_json::Value;

const GOOD_RULES: &str = r#"{"domain":"api","rules":[{"id":"all","limit":"5/day"}]}"#;
const BETTER_RULES: &str = r#"{"domain":"api","rules":[{"id":"all","limit":"6/day"}]}"#;

fn plain_response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn rules_in_force_stay_whatever_the_service_answers() {
    let (service, folder) = (FakeService::start(rule_set_answer(1, GOOD_RULES)), Folder::new());
    let data = folder.join("data");
    let node = Server::start(&["--rules", &service.url(), "--node", "n", "--data", &data]);
    let kept = std::fs::read(folder.path().join("data/last-good.json")).expect("the file exists");
    let endless = "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n{";
    let mistakes = r#"{"domain":"api","rules":[{"id":"all","limt":"9/day"}]}"#;
    for (bad, output) in [
        (plain_response("200 OK", "<html>").into_bytes(), "the answer is not a rule set"),
        (plain_response("200 OK", "{}").into_bytes(), "the answer is not a rule set"),
        (b"\x16\x03\x01 nonsense\r\n\r\n".to_vec(), "rules service unavailable"),
        (endless.into(), "answer too large"),
        (plain_response("500 Internal Server Error", "").into_bytes(), "the answer is 500"),
        (
            plain_response("401 Unauthorized", r#"{"detail":"who is it"}"#).into_bytes(),
            "who is it; set a valid token with --rules-token",
        ),
        (plain_response("302 Found", "").into_bytes(), "the answer is 302"),
        (answer_with_checksum(2, BETTER_RULES, &sha256(GOOD_RULES)), "the rules were damaged"),
        (rule_set_answer(3, mistakes), "`limt` is not a key of a rule"),
        (rule_set_answer(4, "{"), "rules refused; the rules in force stay revision=4"),
    ] {
        service.set_answer(bad);
        node.wait_for_line(output);
        assert_eq!(limit_of(&node), 5, "{output}");
        if !output.contains("refused") && !output.contains("limt") {
            // A valid answer ends the back-off, so that the test need not wait. Refused rules cause no back-off.
            service.set_answer(rule_set_answer(1, GOOD_RULES));
            node.wait_for_line("rules service available again");
        }
    }
    // The node shows the last refused revision and reports it to the service.
    let status: Value = serde_json::from_str(&get_body(&node, "/v1/rules-status")).expect("JSON");
    assert_eq!((&status["revision"], &status["refused"]["revision"]), (&1.into(), &4.into()), "{status}");
    assert!(read_metric(&node, "tollgate_rules_refused_total").is_some_and(|count| count >= 3));
    while !service.last_request().to_lowercase().contains("tollgate-refused: 4 revision%204:1:") {
        std::thread::yield_now();
    }
    assert!(service.last_request().to_lowercase().contains("tollgate-running: 1\r\n"), "{}", service.last_request());
    let now = std::fs::read(folder.path().join("data/last-good.json")).expect("the file exists");
    assert_eq!(now, kept, "only the rules in force are on disk");
    service.set_answer(rule_set_answer(5, BETTER_RULES));
    node.wait_for_line("rules loaded revision=5 ");
    assert_eq!(limit_of(&node), 6);
    let status: Value = serde_json::from_str(&get_body(&node, "/v1/rules-status")).expect("JSON");
    assert_eq!((&status["revision"], &status["refused"]), (&5.into(), &Value::Null));
}

#[test]
fn node_that_starts_with_bad_rules_uses_the_rules_on_disk_or_fails() {
    let (service, folder) = (FakeService::start(rule_set_answer(2, "{}")), Folder::new());
    let data = folder.join("data");
    let args = ["--rules", &service.url(), "--node", "n", "--data", &data];
    let output = Server::stderr_of_failed_start(&args);
    assert!(output.contains("its rules were refused; there are no earlier rules on disk"), "{output}");
    service.set_answer(rule_set_answer(1, GOOD_RULES));
    drop(Server::start(&args));
    for bad in [
        rule_set_answer(2, "{}"),
        answer_with_checksum(2, BETTER_RULES, &sha256(GOOD_RULES)),
        plain_response("200 OK", "?").into_bytes(),
        Vec::new(),
    ] {
        service.set_answer(bad);
        let node = Server::start(&args);
        assert_eq!(limit_of(&node), 5);
    }
}

/// Returns whether a server accepts a token.
fn accepts_token(node: &Server, token: &str) -> bool {
    let mut client = node.connect_http();
    client.send(format!(
        "GET /v1/rules-status HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
    ));
    match client.read_to_end().split(' ').nth(1) {
        Some("200") => true,
        Some("401") => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tokens_of_a_refused_rule_set_stay_valid_after_a_restart_without_the_service() {
    let (service, folder) = (FakeService::start(rule_set_answer_with_token(1, GOOD_RULES, "old")), Folder::new());
    let data = folder.join("data");
    let args = ["--rules", &service.url(), "--data", &data, "--tokens", "required"];
    let node = Server::start(&args);
    assert!(accepts_token(&node, "old") && !accepts_token(&node, "new"));
    service.set_answer(rule_set_answer_with_token(2, "{", "new"));
    node.wait_for_line("rules refused; the rules in force stay revision=2");
    // Waits for the file, because tokens take effect before they are written to disk.
    let file = folder.path().join("data/last-good.json");
    while !std::fs::read_to_string(&file).is_ok_and(|kept| kept.contains("\"new\"")) {
        std::thread::yield_now();
    }
    assert!(!accepts_token(&node, "old") && accepts_token(&node, "new"));
    drop(node);
    // Starts the node with the service, whose rules are still refused, and then without the service.
    for answer in [rule_set_answer_with_token(3, "{", "newest"), Vec::new()] {
        service.set_answer(answer);
        let node = Server::start(&args);
        assert!(!accepts_token(&node, "old") && !accepts_token(&node, "new") && accepts_token(&node, "newest"));
    }
}
