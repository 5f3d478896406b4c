//! Stops or kills the store under load. Every request is still decided, with standing `fallback`.

use crate::common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{Client, Server};
use serde_json::{Value, json};
use tollgate_testkit::servers::{Kind, Server as StoreServer};

/// Number of checks for one key while the store does not answer.
const REQUESTS_DURING_FAULT: usize = 50;

/// After the store recovers, it must decide one of this many requests.
const MAX_REQUESTS_TO_RECOVER: usize = 100_000;

/// Sends a check. Returns whether the check was admitted, and its standing. If the reply comes far too late, the
/// client's own timeout fails the test.
fn send_check(client: &mut Client, key: &str, limit: &str) -> (bool, String) {
    let (status, body) = client.post("/v1/check", &json!({"key": key, "limit": limit}).to_string());
    assert!(status == 200 || status == 429, "{status} {body}");
    let decision: Value = serde_json::from_str(&body).expect("JSON");
    (status == 200, decision["standing"].as_str().expect("a standing").to_owned())
}

fn get_page(server: &Server, path: &str) -> String {
    let mut client = server.connect_http();
    client.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"));
    client.read_to_end()
}

/// Sends checks for new keys until the store decides a check.
fn wait_for_the_store(client: &mut Client, name: &str) {
    let back = (0..MAX_REQUESTS_TO_RECOVER)
        .any(|number| send_check(client, &format!("{name} {number}"), "1/day").1 == "exact");
    assert!(back, "the store was not used again");
}

/// Checks the server during and after a store fault. `stop` causes the fault, and `recover` ends it.
fn check_store_fault(stop: impl FnOnce(&mut StoreServer), recover: impl FnOnce(&mut StoreServer)) {
    let mut store = StoreServer::start(Kind::Redis);
    let server = Server::start(&["--store", &store.url()]);
    let mut client = server.connect_http();
    wait_for_the_store(&mut client, "before");
    assert!(get_page(&server, "/readyz").ends_with("\r\n\r\nready\n"));

    // These clients send requests before, during and after the fault.
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..4 {
            let (mut client, over) = (server.connect_http(), &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    send_check(&mut client, &format!("load {number}"), "1000/s");
                }
            });
        }
        stop(&mut store);
        let mut granted = 0;
        for _ in 0..REQUESTS_DURING_FAULT {
            let (passed, standing) = send_check(&mut client, "meanwhile", "1/day");
            assert_eq!(standing, "fallback");
            granted += usize::from(passed);
        }
        assert_eq!(granted, 1, "this server's share of 1/day");
        server.wait_for_line("store unreachable");
        let ready = get_page(&server, "/readyz");
        assert!(ready.starts_with("HTTP/1.1 200 ") && ready.ends_with("ready (store unreachable)\n"), "{ready}");
        assert!(get_page(&server, "/metrics").contains("\ntollgate_store_up 0\n"));

        recover(&mut store);
        server.wait_for_line("store reachable again");
        wait_for_the_store(&mut client, "after");
        over.store(true, Ordering::Relaxed);
    });
    let line = server.wait_for_line("store stall ended; on_fault decided during the stall");
    let decisions = line.split_once("decisions=").and_then(|(_, rest)| rest.split(' ').next()?.parse::<usize>().ok());
    assert!(decisions.is_some_and(|decisions| decisions >= REQUESTS_DURING_FAULT), "{line}");
    // After the fault, this server and another server share the limits again without intervention.
    let (mut one, mut other) = (server.connect_http(), Server::start(&["--store", &store.url()]));
    wait_for_the_store(&mut other.connect_http(), "other");
    let spend = |client: &mut Client| loop {
        let (passed, standing) = send_check(client, "shared again", "3/day");
        // On a busy machine, an answer of the store may still be late. The request is then repeated, and the token of
        // the first attempt counts as spent.
        if standing == "exact" {
            return passed;
        }
    };
    let granted = (0..4).filter(|_| spend(&mut one) || spend(&mut other.connect_http())).count();
    assert!(granted <= 3, "{granted} passed under 3/day");
    assert!(!spend(&mut one) && !spend(&mut other.connect_http()));
    other.signal("TERM");
    assert!(other.wait().success());
}

#[test]
fn stopped_store_delays_no_decision_and_is_used_again_when_it_continues() {
    check_store_fault(|store| store.pause(), |store| store.resume());
}

#[test]
fn killed_store_delays_no_decision_and_is_used_again_after_its_restart() {
    check_store_fault(StoreServer::kill, StoreServer::restart);
}

#[test]
fn server_starts_without_its_store_and_uses_it_once_it_answers() {
    let mut store = StoreServer::start(Kind::Redis);
    store.kill();
    let server = Server::start(&["--store", &store.url()]);
    let mut client = server.connect_http();
    assert_eq!(send_check(&mut client, "early", "1/day"), (true, "fallback".to_owned()));
    store.restart();
    wait_for_the_store(&mut client, "late");
    let metrics = get_page(&server, "/metrics");
    assert!(metrics.contains("\ntollgate_store_up 1\n"), "{metrics}");
}
