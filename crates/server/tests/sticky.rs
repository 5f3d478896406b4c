//! Sticky routing as described in docs/sharing.md. A real proxy (nginx or HAProxy) sends each key to one server by
//! consistent hashing. Every server counts in its own memory, and one server leaves.

use crate::common;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use common::proxy::Proxy;
use common::{Client, Rules, Server, eventually};
use serde_json::json;
use tollgate_testkit::servers::free_port;

const RULES: &str = "domain: api\nrules:\n- {id: per-key, per: [key], limit: 2/h}\n";

/// Returns the configuration of a proxy from docs/sharing.md, with the addresses of these servers.
pub(crate) fn proxy_config(name: &str, listen: SocketAddr, servers: &[SocketAddr]) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sharing.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let start = format!("```{name}\n");
    let recipe = page.split(&start).nth(1).and_then(|rest| rest.split("```").next()).expect("the recipe");
    let hosts = ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080"];
    let recipe = hosts.iter().zip(servers).fold(recipe.to_owned(), |recipe, (host, server)| {
        assert!(recipe.contains(host), "{host} is not in {recipe}");
        recipe.replace(host, &server.to_string())
    });
    recipe.replace("10.0.0.9:8080", &listen.to_string())
}

/// Sends a check through the proxy, with the key in the header that the proxy hashes.
fn check_through_proxy(proxy: SocketAddr, key: &str) -> bool {
    let body = json!({"domain": "api", "attributes": {"key": key}}).to_string();
    let mut client = Client::connect(proxy);
    client.send(format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntollgate-key: {key}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    let answer = client.read_to_end();
    assert!(answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.1 429"), "{answer}");
    answer.starts_with("HTTP/1.1 200")
}

/// Returns whether a key is used up on a server.
fn is_used_up(server: &Server, key: &str) -> bool {
    let body = json!({"domain": "api", "attributes": {"key": key}}).to_string();
    let (_, answer) = server.connect_http().post("/v1/peek", &body);
    answer.contains("\"remaining\":0")
}

fn check_sticky_routing(name: &str) {
    let rules = Rules::new(RULES);
    let mut servers: Vec<Server> = (0..3).map(|_| Server::start(&["--rules", rules.path()])).collect();
    let addresses: Vec<SocketAddr> = servers.iter().map(|server| server.http.expect("HTTP is on")).collect();
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let proxy = Proxy::start_with(name, listen, &proxy_config(name, listen, &addresses), "");
    let keys: Vec<String> = (0..60).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        let passed = (0..3).filter(|_| check_through_proxy(proxy.address, key)).count();
        assert_eq!(passed, 2, "{name}: {key} is counted on one server");
    }
    let lost: Vec<&String> = keys.iter().filter(|key| is_used_up(&servers[2], key)).collect();
    assert!((5..=40).contains(&lost.len()), "{name}: about a third of the keys: {}", lost.len());
    drop(servers.pop());
    // The keys of the server that left start again with a full limit. All other keys keep their counts.
    eventually("the proxy has noticed that the server left", || {
        check_through_proxy(proxy.address, "another") || check_through_proxy(proxy.address, "yet-another")
    });
    for key in &keys {
        let passed = (0..3).filter(|_| check_through_proxy(proxy.address, key)).count();
        assert_eq!(passed, if lost.contains(&key) { 2 } else { 0 }, "{name}: {key}");
    }
}

#[test]
fn nginx_moves_only_the_keys_of_a_server_that_leaves() {
    check_sticky_routing("nginx");
}

#[test]
fn haproxy_moves_only_the_keys_of_a_server_that_leaves() {
    check_sticky_routing("haproxy");
}
