//! Nodes that follow the real rules service over TLS, while networks, machines and disks fail.

use crate::common;

use std::time::{Duration, Instant};

use common::service::{Service, SmallDisk, get_body, limit_of, read_metric, start_follower};
use common::{Folder, Server, eventually};
use serde_json::{Value, json};
use tollgate_testkit::servers::Proxy;

fn wait_for_revision(node: &Server, revision: i64) {
    node.wait_for_line(&format!("rules loaded revision={revision} "));
}

#[expect(clippy::disallowed_methods, reason = "measures how long a change takes")]
fn now() -> Instant {
    Instant::now()
}

fn rules_status(node: &Server) -> Value {
    serde_json::from_str(&get_body(node, "/v1/rules-status")).expect("JSON")
}

#[test]
fn three_nodes_run_the_rules_of_the_service_and_report_their_revisions() {
    let (service, folder) = (Service::start(), Folder::new());
    let first = service.set_limit("5/day");
    let nodes = ["a", "b", "c"].map(|name| start_follower(&service, &service.url(), name, &folder.join(name)));
    for node in &nodes {
        assert_eq!(limit_of(node), 5, "the rules are in force before the node listens");
        assert_eq!(rules_status(node)["revision"], first);
    }
    // The nodes' long polls are waiting for the change.
    let begun = now();
    let second = service.set_limit("7/day");
    let written = begun.elapsed();
    for node in &nodes {
        wait_for_revision(node, second);
        assert_eq!(limit_of(node), 7);
    }
    println!("the change was written after {written:?} and in force on three nodes after {:?}", begun.elapsed());
    eventually("the service knows that every node runs the change", || {
        let (_, output) = service.call("GET", "/v1/nodes", None);
        let running = output["items"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|node| (node["node"].as_str(), node["running"].as_i64()));
        running.eq(["a", "b", "c"].map(|name| (Some(name), Some(second))))
    });
    let node = &nodes[0];
    let output = rules_status(node);
    assert!(output["source"].as_str().is_some_and(|source| source.starts_with(&service.url())), "{output}");
    assert_eq!(output["checksum"].as_str().map(str::len), Some(64), "{output}");
    assert_eq!(read_metric(node, "tollgate_rules_revision"), u64::try_from(second).ok());
    assert!(read_metric(node, "tollgate_rules_age_seconds").is_some_and(|age| age < 60));
    assert!(read_metric(node, "tollgate_rules_polls_total{outcome=\"changed\"}").is_some_and(|count| count >= 2));
}

#[test]
fn killed_service_stops_no_decision_and_is_followed_again_after_its_restart() {
    let (mut service, folder) = (Service::start(), Folder::new());
    service.set_limit("5/day");
    let mut node = start_follower(&service, &service.url(), "a", &folder.join("a"));
    service.kill();
    node.wait_for_line("rules service unavailable; the rules in force stay");
    assert_eq!(limit_of(&node), 5);
    eventually("readiness reports it", || get_body(&node, "/readyz") == "ready (stale rules)\n");
    assert!(read_metric(&node, "tollgate_rules_polls_total{outcome=\"failed\"}").is_some_and(|count| count >= 1));
    // Without the service, a node starts with the rules on its disk.
    node.signal("TERM");
    assert!(node.wait().success());
    let node = start_follower(&service, &service.url(), "a", &folder.join("a"));
    assert_eq!(limit_of(&node), 5);
    assert_eq!(get_body(&node, "/readyz"), "ready (stale rules)\n");
    // A node without rules on disk would admit everything, so it does not start.
    let authority = service.authority();
    let args = |data| ["--rules", &*service.url(), "--rules-ca", &authority, "--data", data].map(str::to_owned);
    for data in [&*folder.join("b"), "off"] {
        let args = args(data);
        let output = Server::stderr_of_failed_start(&args.each_ref().map(|arg| &**arg));
        assert!(output.contains("there are no earlier rules on disk to start with"), "{output}");
    }
    service.restart();
    let revision = service.set_limit("9/day");
    wait_for_revision(&node, revision);
    assert_eq!(limit_of(&node), 9);
    eventually("it is ready", || get_body(&node, "/readyz") == "ready\n");
}

#[test]
fn damaged_or_foreign_rules_on_disk_are_not_used() {
    let (mut service, folder) = (Service::start(), Folder::new());
    service.set_limit("5/day");
    let (data, authority) = (folder.join("a"), service.authority());
    drop(start_follower(&service, &service.url(), "a", &data));
    let file = folder.path().join("a/last-good.json");
    let whole = std::fs::read_to_string(&file).expect("the file exists");
    std::fs::write(&file, whole.replace("5/day", "6/day")).expect("a file");
    // While the service answers, a damaged file is replaced.
    drop(start_follower(&service, &service.url(), "a", &data));
    assert_eq!(std::fs::read_to_string(&file).expect("the file exists"), whole);
    service.kill();
    let url = service.url();
    let refuses =
        |url: &str| Server::stderr_of_failed_start(&["--rules", url, "--rules-ca", &authority, "--data", &data]);
    for damaged in [whole.replace("5/day", "6/day"), whole[..whole.len() - 1].to_owned(), String::new()] {
        std::fs::write(&file, damaged).expect("a file");
        let output = refuses(&url);
        assert!(output.contains("last-good.json cannot be used") && output.contains("damaged"), "{output}");
    }
    std::fs::write(&file, whole).expect("a file");
    let output = refuses(&url.replace("localhost", "127.0.0.1"));
    assert!(output.contains("rules of"), "{output}");
    drop(start_follower(&service, &url, "a", &data));
}

#[test]
fn full_disk_of_a_node_keeps_the_last_copy_and_new_rules_take_effect() {
    let (service, folder) = (Service::start(), Folder::new());
    let Some(disk) = SmallDisk::mount(&folder, 64) else {
        println!("skipped: this user may not mount a small file system");
        return;
    };
    let data = disk.path().to_str().expect("text");
    service.set_limit("5/day");
    let node = start_follower(&service, &service.url(), "a", data);
    let kept = std::fs::read(disk.path().join("last-good.json")).expect("the file exists");
    // Fill the disk.
    let _ = std::fs::write(disk.path().join("ballast"), vec![0; 64 * 1024]);
    let revision = service.set_limit("7/day");
    node.wait_for_line("cannot write the rules to disk");
    assert_eq!((limit_of(&node), rules_status(&node)["revision"].as_i64()), (7, Some(revision)));
    let now = std::fs::read(disk.path().join("last-good.json")).expect("the previous copy is kept");
    assert_eq!(now, kept);
    // When there is free space again, the next rule set is written.
    std::fs::remove_file(disk.path().join("ballast")).expect("it is there");
    wait_for_revision(&node, service.set_limit("8/day"));
    eventually("the new rules are on disk", || {
        std::fs::read_to_string(disk.path().join("last-good.json")).is_ok_and(|kept| kept.contains("8/day"))
    });
}

#[test]
fn slow_or_broken_network_only_delays_changes() {
    let (service, folder) = (Service::start(), Folder::new());
    service.set_limit("5/day");
    let network = Proxy::to(service.port);
    let url = format!("https://localhost:{}", network.port());
    network.delay_by(Duration::from_millis(100));
    let node = start_follower(&service, &url, "a", &folder.join("a"));
    assert_eq!(limit_of(&node), 5);
    let begun = now();
    wait_for_revision(&node, service.set_limit("6/day"));
    println!("with 100 ms for every kilobyte the change took {:?}", begun.elapsed());
    // The node reconnects after its connection breaks.
    network.close_connections();
    wait_for_revision(&node, service.set_limit("7/day"));
    assert_eq!(limit_of(&node), 7);
    eventually("the new rules are on disk", || {
        std::fs::read_to_string(folder.path().join("a/last-good.json")).is_ok_and(|kept| kept.contains("7/day"))
    });
    // The connection stalls without an error. The node continues to decide.
    network.stall();
    let revision = service.set_limit("8/day");
    assert_eq!(limit_of(&node), 7);
    // A node starts with the rules on its disk, although the service does not answer.
    let begun = now();
    let another = start_follower(&service, &url, "b", &{
        let data = folder.path().join("b");
        std::fs::create_dir_all(&data).expect("a directory");
        std::fs::copy(folder.path().join("a/last-good.json"), data.join("last-good.json")).expect("a copy");
        folder.join("b")
    });
    println!("a start without an answer took {:?}", begun.elapsed());
    assert_eq!(limit_of(&another), 7);
    network.clear_faults();
    wait_for_revision(&node, revision);
    wait_for_revision(&another, revision);
    assert_eq!((limit_of(&node), limit_of(&another)), (8, 8));
}

#[test]
fn token_of_the_service_is_valid_on_nodes_until_it_is_revoked() {
    let (service, folder) = (Service::start(), Folder::new());
    service.set_limit("5/day");
    let (status, made) = service.call("POST", "/v1/tokens", Some(&json!({"name": "shop", "role": "reader"})));
    assert_eq!(status, 201, "{made}");
    let (token, id) = (made["token"].as_str().expect("a token"), made["id"].as_str().expect("an id"));
    let (authority, data) = (service.authority(), folder.join("a"));
    let args = ["--rules", &service.url(), "--rules-ca", &authority, "--data", &data, "--tokens", "required"];
    let node = Server::start(&args);
    let check = |token: &str| {
        let mut client = node.connect_http();
        let body = r#"{"domain":"api","attributes":{}}"#;
        let head =
            format!("POST /v1/peek HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: close");
        client.send(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        client.read_to_end().split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()).expect("a status")
    };
    assert_eq!((check(token), check("tg_another"), check("")), (200, 401, 401));
    assert!(get_body(&node, "/healthz").contains("ok"), "health needs no token");
    let begun = now();
    assert_eq!(service.call("DELETE", &format!("/v1/tokens/{id}"), None).0, 200);
    eventually("the token is revoked on the node too", || check(token) == 401);
    println!("a revocation was in force on the node after {:?}", begun.elapsed());
    assert_eq!(read_metric(&node, "tollgate_rules"), None, "metrics need a token");
}

#[test]
fn rules_in_the_database_take_effect_and_survive_a_restart() {
    let mut service = Service::start();
    let (authority, url) = (service.authority(), service.url());
    let limit = |service: &Service| {
        let asked = json!({"domain": "api", "attributes": {}});
        service.call("POST", "/v1/peek", Some(&asked)).1["limits"][0]["limit"].as_u64()
    };
    let begun = now();
    service.set_limit("5/day");
    eventually("the limit is in force", || limit(&service) == Some(5));
    println!("a first rule was in force after {:?}", begun.elapsed());
    service.set_limit("6/day");
    eventually("the limit is in force", || limit(&service) == Some(6));
    service.kill();
    service.restart();
    assert_eq!(limit(&service), Some(6), "the rules are in force before the service listens");
    // A node's error names the service at which its rules can be changed.
    let node = Server::start(&["--rules", &url, "--rules-ca", &authority]);
    assert!(get_body(&node, "/v1/domains").contains(&url), "the error names the service");
}

#[test]
fn missing_admin_token_or_unusable_database_is_an_error_at_start() {
    let folder = Folder::new();
    let data = folder.join("data");
    let output = Server::stderr_of_failed_start(&["--data", &data, "--tokens", "required"]);
    assert!(output.contains(&format!("tollgate tokens create --role admin --data {data}")), "{output}");
    let output = Server::stderr_of_failed_start(&["--data", "/proc/nothing"]);
    assert!(
        output.contains("cannot create the data directory /proc/nothing; choose another with --data DIR"),
        "{output}"
    );
    // Uses another directory, because a write-ahead log next to the first database could restore
    // that database.
    let data = folder.join("damaged");
    std::fs::create_dir(&data).expect("a directory");
    let text = "this text is not a database, and it is long enough to be noticed".repeat(100);
    std::fs::write(folder.path().join("damaged/rules.db"), text).expect("a file");
    let output = Server::stderr_of_failed_start(&["--data", &data]);
    assert!(output.contains(&format!("cannot open the database in the data directory {data}")), "{output}");
    let output = Server::stderr_of_failed_start(&["--database", "postgres://nobody:secret@127.0.0.1:1/none"]);
    assert!(output.contains("cannot open the database of --database") && !output.contains("secret"), "{output}");
}

/// Returns whether a node refuses a request whose cost exceeds every limit in these tests.
fn is_refusing(node: &Server) -> bool {
    node.connect_http().post("/v1/check", r#"{"domain":"api","attributes":{},"cost":1000}"#).0 == 429
}

#[test]
fn fleet_kill_switch_reaches_every_node_and_survives_restarts() {
    let (mut service, folder) = (Service::start(), Folder::new());
    service.set_limit("5/day");
    let node = start_follower(&service, &service.url(), "a", &folder.join("a"));
    assert!(is_refusing(&node));
    let set =
        |service: &Service, mode: &str| service.call("PUT", "/v1/fleet/enforcement", Some(&json!({"mode": mode})));
    assert_eq!(set(&service, "observe"), (200, json!({"mode": "observe"})));
    node.wait_for_line("enforcement mode of the fleet changed");
    assert!(!is_refusing(&node));
    assert_eq!(read_metric(&node, "tollgate_enforcing"), Some(0));
    let mode: Value = serde_json::from_str(&get_body(&node, "/v1/enforcement")).expect("JSON");
    assert_eq!(mode, json!({"mode": "observe", "fleet": "observe"}));
    eventually("the mode is on the node's disk", || {
        std::fs::read_to_string(folder.path().join("a/last-good.json")).is_ok_and(|kept| kept.contains("\"observe\""))
    });
    // A node that starts while the service is unreachable reads the mode from its disk.
    service.kill();
    drop(node);
    let node = start_follower(&service, &service.url(), "a", &folder.join("a"));
    assert!(!is_refusing(&node));
    // The service reads the mode from its database.
    service.restart();
    assert_eq!(service.call("GET", "/v1/fleet/enforcement", None).1, json!({"mode": "observe"}));
    let over = json!({"domain": "api", "attributes": {}, "cost": 1000});
    assert_eq!(service.call("POST", "/v1/check", Some(&over)).0, 200);
    assert_eq!(set(&service, "enforce").0, 200);
    node.wait_for_line("enforcement mode of the fleet changed");
    assert!(is_refusing(&node));
    eventually("the service enforces", || service.call("POST", "/v1/check", Some(&over)).0 == 429);
    let (_, log) = service.call("GET", "/v1/audit?subject=fleet", None);
    let actions: Vec<&str> =
        log["items"].as_array().expect("a list").iter().filter_map(|entry| entry["action"].as_str()).collect();
    assert_eq!(actions, ["enforce", "observe"], "{log}");
}

#[test]
fn node_reports_its_actions_to_the_service_even_after_an_outage() {
    let (mut service, folder) = (Service::start(), Folder::new());
    service.set_limit("5/day");
    let node = start_follower(&service, &service.url(), "edge-1", &folder.join("a"));
    let post = |path: &str, body: &str| assert_eq!(node.connect_http().post(path, body).0, 200, "{path} {body}");
    post("/v1/reset", r#"{"domain":"api","attributes":{}}"#);
    let entries = |service: &Service| {
        let (_, log) = service.call("GET", "/v1/audit?author=local", None);
        let entries = log["items"].as_array().expect("a list").iter();
        let of_node = entries.filter(|entry| entry["comment"] == "on edge-1");
        of_node.map(|entry| entry["action"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    eventually("the reset is in the audit log of the service", || entries(&service) == ["reset"]);
    service.kill();
    post("/v1/enforcement", r#"{"mode":"observe"}"#);
    post("/v1/enforcement", r#"{"mode":"enforce"}"#);
    node.wait_for_line("cannot write to the audit log; trying again");
    service.restart();
    eventually("both changes of mode are in the audit log", || entries(&service) == ["enforce", "observe", "reset"]);
}
