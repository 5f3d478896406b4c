//! The rules service as seen by its users, and its behaviour when it is killed or its disk is full.
#![allow(clippy::disallowed_methods, reason = "real time passes between two real programs")]

use crate::common;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use common::api::{Answer, repeat_request_until, send_request, try_send_request};
use common::service::SmallDisk;
use common::{Folder, Server};
use serde_json::json;

const CHECK_BODY: &str = r#"{"domain":"api","attributes":{"path":"/v1/things","client":"alice"}}"#;
const RULE_PATH: &str = "/v1/domains/api/rules/each";

fn rule_with_limit(limit: &str) -> String {
    json!({"when": {"path": "/v1/**"}, "per": ["client"], "limit": limit}).to_string()
}

fn put_rule(server: &Server, path: &str, body: &str) -> Answer {
    let answer = send_request(server, "PUT", path, &["content-type: application/json"], body);
    assert!(answer.status == 200 || answer.status == 201, "{answer:?}");
    answer
}

fn start_server(data: &Path) -> Server {
    Server::start(&["--data", data.to_str().expect("text")])
}

#[test]
fn rule_is_created_enforced_changed_and_rolled_back() {
    let data = Folder::new();
    let server = start_server(data.path());
    let status =
        |expected: u16| repeat_request_until(&server, "/v1/check", CHECK_BODY, |answer| answer.status == expected);
    assert_eq!(put_rule(&server, RULE_PATH, &rule_with_limit("3/h")).status, 201);
    // Requests pass until the rule is in force. After that, three more requests pass.
    status(429);
    put_rule(&server, RULE_PATH, &rule_with_limit("5/h"));
    // The three charges are kept, so two more requests pass.
    let peek = repeat_request_until(&server, "/v1/peek", CHECK_BODY, |answer| answer.status == 200);
    assert_eq!(peek.json()["limits"][0]["remaining"], 2, "{peek:?}");
    let back = send_request(
        &server,
        "POST",
        &format!("{RULE_PATH}/rollback"),
        &["content-type: application/json"],
        r#"{"version":1}"#,
    );
    assert_eq!((back.status, &back.json()["version"]), (200, &json!(3)), "{back:?}");
    repeat_request_until(&server, "/v1/peek", CHECK_BODY, |answer| answer.status == 429);
}

#[test]
fn acknowledged_changes_survive_a_kill_at_any_moment() {
    const WRITES: usize = 1_000;
    const RULES_PER_WRITE: usize = 20;
    let data = Folder::new();
    let (mut next, mut seed) = (0, 1_u64);
    let mut acknowledged: BTreeMap<String, usize> = BTreeMap::new();
    let mut kills = 0;
    while next < WRITES {
        let server = start_server(data.path());
        check_stored_rules(&server, &acknowledged, RULES_PER_WRITE);
        // Any random sequence is suitable, because the kill times only have to differ.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let moment = Duration::from_millis(20 + (seed >> 33) % 300);
        std::thread::scope(|scope| {
            let process = server.id();
            let killer = scope.spawn(move || {
                std::thread::sleep(moment);
                common::signal(process, "KILL");
            });
            while next < WRITES + 1 {
                let number = next;
                next += 1;
                let sent = if number % 10 == 0 {
                    let rules: String = (0..RULES_PER_WRITE)
                        .map(|part| format!("- {{id: set-{part}, limit: {}/s}}\n", number + 1))
                        .collect();
                    let body = format!("domain: sets\nrules:\n{rules}");
                    try_send_request(&server, "POST", "/v1/apply", &["content-type: application/yaml"], &body)
                        .map(|answer| ("sets".to_owned(), answer))
                } else {
                    let id = format!("rule-{}", number % 7);
                    let body = format!("{{\"limit\":\"{}/s\"}}", number + 1);
                    let path = format!("/v1/domains/single/rules/{id}");
                    try_send_request(&server, "PUT", &path, &["content-type: application/json"], &body)
                        .map(|answer| (id, answer))
                };
                let Some((what, answer)) = sent else { break };
                assert!(answer.status < 300, "{answer:?}");
                acknowledged.insert(what, number + 1);
            }
            killer.join().expect("it is killed");
        });
        kills += 1;
    }
    check_stored_rules(&start_server(data.path()), &acknowledged, RULES_PER_WRITE);
    assert!(kills > 10, "the server was killed only {kills} times");
}

/// Checks that each stored rule comes from its last acknowledged write or from a later write, and that no write of
/// several rules is partial.
fn check_stored_rules(server: &Server, acknowledged: &BTreeMap<String, usize>, together: usize) {
    let number = |rule: &serde_json::Value| -> usize {
        let limit = rule["rule"]["limit"].as_str().expect("a limit");
        limit.trim_end_matches("/s").parse().expect("a number")
    };
    let list = |domain: &str| {
        let answer = send_request(server, "GET", &format!("/v1/domains/{domain}/rules?limit=1000"), &[], "");
        if answer.status == 404 { Vec::new() } else { answer.json()["items"].as_array().expect("a list").clone() }
    };
    let sets: Vec<usize> = list("sets").iter().map(number).collect();
    assert!(sets.is_empty() || sets.len() == together, "{} of {together} rules", sets.len());
    assert!(sets.windows(2).all(|pair| pair[0] == pair[1]), "the rules come from several writes: {sets:?}");
    let mut found: BTreeMap<String, usize> =
        list("single").iter().map(|rule| (rule["id"].as_str().expect("an id").to_owned(), number(rule))).collect();
    found.extend(sets.first().map(|number| ("sets".to_owned(), *number)));
    for (what, number) in acknowledged {
        let there = found.get(what).unwrap_or_else(|| panic!("{what} is lost"));
        assert!(there >= number, "{what}: write {number} was acknowledged, write {there} is stored");
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "reports a skipped test")]
fn full_disk_loses_nothing_and_decisions_continue() {
    let folder = Folder::new();
    let Some(disk) = SmallDisk::mount(&folder, 1_536) else {
        eprintln!("not tested: mounting a small file system needs root");
        return;
    };
    let server = start_server(disk.path());
    put_rule(&server, RULE_PATH, &rule_with_limit("3/h"));
    repeat_request_until(&server, "/v1/check", CHECK_BODY, |answer| answer.status == 429);
    let values: Vec<String> = (0..500).map(|number| format!("{number:0>80}")).collect();
    let body = json!({"when": {"client": values}, "limit": "1/s"}).to_string();
    let mut written = 0;
    let full = loop {
        let path = format!("/v1/domains/filling/rules/r{written}");
        let answer = send_request(&server, "PUT", &path, &["content-type: application/json"], &body);
        if answer.status != 201 {
            break answer;
        }
        written += 1;
        assert!(written < 1_000, "the disk does not fill up");
    };
    assert!(matches!(full.status, 503 | 507), "{full:?}");
    assert!(full.json()["detail"].as_str().is_some_and(|detail| detail.contains("full")), "{full:?}");
    // Decisions continue, and the rules can be read.
    assert_eq!(send_request(&server, "POST", "/v1/check", &[], CHECK_BODY).status, 429);
    assert_eq!(send_request(&server, "GET", RULE_PATH, &[], "").json()["version"], 1);
    // When there is free space again, the service recovers without a restart.
    disk.resize(16_384);
    put_rule(&server, RULE_PATH, &rule_with_limit("4/h"));
    let listed = send_request(&server, "GET", "/v1/domains/filling/rules?limit=1000", &[], "");
    assert_eq!(listed.json()["items"].as_array().map(Vec::len), Some(written));
}
