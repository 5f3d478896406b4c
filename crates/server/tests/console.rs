//! The web console: its TypeScript types, its pages in a real browser, sessions, and the live data stream.
//!
//! `scripts/test` installs Chromium. It also installs playwright-core, axe-core and typescript into the folder
//! `TOLLGATE_TEST_NODE_MODULES`. With `TOLLGATE_CONSOLE_PICTURES=DIR`, the browser test saves a screenshot of every
//! page in that folder.

use crate::common;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Client, Folder, Rules, Server, eventually, required_variable, run_program, tollgate};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const RULES: &str = "\
domain: api
rules:
  - { id: per-client, when: { path: \"/v1/**\" }, per: [api_key], limit: 90/s, burst: 200 }
  - { id: login, when: { path: /login }, per: [client_ip], limits: [ { limit: 5/m, algorithm: sliding_log }, 100/day ] }
  - { id: search, when: { path: /v1/search }, per: [api_key], limit: 10/s, on_exceed: shadow }
  - { id: old, limit: 1000/s }
";

/// A server that requires tokens, with rules and one token per role.
struct Console {
    server: Server,
    folder: Folder,
    tokens: Value,
}

impl Console {
    fn start() -> Self {
        let folder = Folder::new();
        let data = folder.join("data");
        let mut tokens = json!({});
        for role in ["reader", "node", "operator", "editor", "admin"] {
            let made =
                tollgate(&["tokens", "create", "--role", role, "--name", role, "--data", &data], b"").expect_success();
            let token = made.split_whitespace().find(|word| word.starts_with("tg_")).expect("a token");
            tokens[role] = json!(token);
        }
        // Creates a token for an editor of one domain.
        let args = ["tokens", "create", "--role", "editor", "--name", "web", "--domain", "web", "--data", &data];
        let made = tollgate(&args, b"").expect_success();
        tokens["web"] = json!(made.split_whitespace().find(|word| word.starts_with("tg_")).expect("a token"));
        let server = Server::start(&["--data", &data, "--tokens", "required"]);
        let console = Self { server, folder, tokens };
        let rule = "/v1/domains/api/rules/per-client";
        let markup = "<img src=x onerror=alert(1)>";
        console.call("POST", "/v1/apply", "", RULES).expect("applied");
        let comment = format!("tollgate-comment: {markup}\r\n");
        console.call("PATCH", rule, &comment, "{\"limit\":\"100/s\"}").expect("patched");
        let value = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E";
        console.call("PUT", &format!("{rule}/overrides/{value}"), "", "{\"limit\":\"1/s\"}").expect("an override");
        console.call("POST", "/v1/domains/api/rules/old/disable", "", "").expect("disabled");
        console
    }

    fn token_of_role(&self, role: &str) -> &str {
        self.tokens[role].as_str().expect("a token")
    }

    /// Calls the API as an admin. Returns the body if the call succeeds, and the whole reply otherwise.
    fn call(&self, method: &str, path: &str, headers: &str, body: &str) -> Result<String, String> {
        let token = self.token_of_role("admin");
        let reply = self.send(&format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        ));
        let (head, body) = reply.split_once("\r\n\r\n").expect("a body");
        if head.starts_with("HTTP/1.1 2") { Ok(body.to_owned()) } else { Err(format!("{method} {path}: {reply}")) }
    }

    fn send(&self, request: &str) -> String {
        let mut client = self.server.connect_http();
        client.send(request);
        client.read_to_end()
    }

    /// Opens a session and returns its cookie.
    fn log_in(&self, role: &str) -> String {
        let body = json!({"token": self.token_of_role(role)}).to_string();
        let reply = self.send(&format!(
            "POST /v1/session HTTP/1.1\r\nhost: limits.example\r\norigin: https://limits.example\r\nsec-fetch-site: same-origin\r\n\
             tollgate-console: 1\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        ));
        let cookie = reply.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect(&reply);
        assert!(cookie.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure"), "{cookie}");
        cookie.split(';').next().expect("a value").to_owned()
    }

    /// Sends a GET request with the console's headers.
    fn get(&self, path: &str, cookie: &str) -> String {
        self.send(&format!(
            "GET {path} HTTP/1.1\r\nhost: limits.example\r\nsec-fetch-site: same-origin\r\ntollgate-console: 1\r\ncookie: {cookie}\r\nconnection: close\r\n\r\n"
        ))
    }

    /// Starts a live data stream. Returns the connection and the first event.
    fn watch_live_data(&self, authorization: &str) -> (Client, Value) {
        let mut client = self.server.connect_http();
        client.send(format!(
            "GET /v1/live HTTP/1.1\r\nhost: localhost\r\ntollgate-console: 1\r\n{authorization}\r\n\r\n"
        ));
        loop {
            let line = client.line();
            assert!(!line.starts_with("HTTP/1.1") || line == "HTTP/1.1 200 OK", "{line}");
            if let Some(event) = line.strip_prefix("data: ") {
                // A chunk ends after the event's empty line.
                let event = event.split("\n\n").next().expect("an event");
                return (client, serde_json::from_str(event).expect("JSON"));
            }
        }
    }
}

#[test]
fn console_passes_the_type_checker() {
    let modules = required_variable("TOLLGATE_TEST_NODE_MODULES", "a node_modules folder with typescript in it");
    let compiler = std::path::Path::new(&modules).join("typescript/bin/tsc");
    let project = concat!(env!("CARGO_MANIFEST_DIR"), "/console");
    run_program(Command::new("node").arg(compiler).args(["-p", project]));
}

#[test]
fn every_page_works_in_a_browser() {
    let console = Console::start();
    let modules = required_variable(
        "TOLLGATE_TEST_NODE_MODULES",
        "a node_modules folder with playwright-core and axe-core in it",
    );
    let is_done = Arc::new(AtomicBool::new(false));
    let traffic = {
        let (mut client, token, is_done) =
            (console.server.connect_http(), console.token_of_role("reader").to_owned(), is_done.clone());
        std::thread::spawn(move || {
            for number in 0.. {
                let client_ip = format!("192.0.2.{}", number % 3);
                let items = json!([
                    {"domain": "api", "attributes": {"path": "/v1/search", "api_key": "<img src=x onerror=alert(1)>"}},
                    {"domain": "api", "attributes": {"path": "/v1/items", "api_key": "acme"}},
                    {"domain": "api", "attributes": {"path": "/login", "client_ip": client_ip}},
                ])
                .to_string();
                client.send(format!(
                    "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\n\r\n{items}",
                    items.len()
                ));
                client.skip_reply();
                if is_done.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::park_timeout(std::time::Duration::from_millis(20));
            }
        })
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/console/console.mjs");
    // Starts two more servers: a node that follows the first server, and a server with rules from a file and an
    // unreachable store.
    let (service, data) = (console.server.url(""), console.folder.join("node"));
    let _node = Server::start(&[
        "--rules",
        &service,
        "--rules-token",
        console.token_of_role("node"),
        "--node",
        "edge-1",
        "--data",
        &data,
    ]);
    let rules = Rules::new("domain: api\nrules:\n- {id: all, limit: 1000/s}\n");
    let store = format!("redis://127.0.0.1:{}", tollgate_testkit::servers::free_port());
    let alone = Server::start(&["--rules", rules.path(), "--store", &store]);
    let mut browser = Command::new("node");
    browser
        .env("TOLLGATE_TEST_NODE_MODULES", modules)
        .arg(script)
        .arg(console.server.url(""))
        .arg(console.tokens.to_string())
        .arg(alone.url(""));
    let printed = run_program(&mut browser);
    is_done.store(true, Ordering::Relaxed);
    traffic.join().expect("no panic");
    assert_eq!(printed, "fine\n");
    if let Ok(folder) = std::env::var("TOLLGATE_CONSOLE_PICTURES") {
        std::fs::write(format!("{folder}/console.digest"), digest_of_console_files()).expect("written");
    }
}

/// Returns a digest of the console's files without comment lines. The pictures in `docs/` depend on these files.
fn digest_of_console_files() -> String {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/console")).expect("the folder");
    let mut paths: Vec<_> = folder.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let mut digest = Sha256::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a text");
        let is_comment = |line: &&str| ["//", "/*", "*"].iter().any(|mark| line.trim_start().starts_with(mark));
        text.lines().filter(|line| !is_comment(line)).for_each(|line| digest.update(format!("{line}\n")));
    }
    format!("{}\n", hex::encode(digest.finalize()))
}

#[test]
fn console_screenshots_in_the_documentation_are_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pictures/console.digest");
    let taken = std::fs::read_to_string(path).expect("the digest of the pictures");
    assert_eq!(
        taken,
        digest_of_console_files(),
        "the console has changed since its screenshots were taken: run scripts/pictures"
    );
}

#[test]
fn session_has_the_rights_of_its_token_and_ends_with_it() {
    let console = Console::start();
    let cookie = console.log_in("operator");
    let reply = console.get("/v1/session", &cookie);
    assert!(
        reply.starts_with("HTTP/1.1 200") && reply.contains("\"name\":\"operator\",\"role\":\"operator\""),
        "{reply}"
    );
    assert!(console.get("/v1/tokens", &cookie).starts_with("HTTP/1.1 403"), "an operator must not list tokens");
    // The cookie has no effect without the console's header, and an invented cookie has no effect with it.
    let plain =
        format!("GET /v1/session HTTP/1.1\r\nhost: limits.example\r\ncookie: {cookie}\r\nconnection: close\r\n\r\n");
    assert!(console.send(&plain).starts_with("HTTP/1.1 401"));
    assert!(console.get("/v1/session", &format!("tollgate-session={}", "0".repeat(64))).starts_with("HTTP/1.1 401"));
    let tokens: Value =
        serde_json::from_str(&console.call("GET", "/v1/tokens", "", "").expect("tokens")).expect("JSON");
    let operator = tokens["items"].as_array().expect("tokens").iter().find(|token| token["name"] == "operator");
    let id = operator.expect("a token")["id"].as_str().expect("an id");
    let (mut stream, _) = console.watch_live_data(&format!("cookie: {cookie}"));
    console.call("DELETE", &format!("/v1/tokens/{id}"), "", "").expect("revoked");
    eventually("the session ends with its token", || console.get("/v1/session", &cookie).starts_with("HTTP/1.1 401"));
    // The live data stream also ends.
    stream.read_to_end();
    let cookie = console.log_in("reader");
    let close = format!(
        "DELETE /v1/session HTTP/1.1\r\nhost: limits.example\r\ntollgate-console: 1\r\ncookie: {cookie}\r\nconnection: close\r\n\r\n"
    );
    assert!(console.send(&close).starts_with("HTTP/1.1 204"));
    assert!(console.get("/v1/session", &cookie).starts_with("HTTP/1.1 401"));
    drop(console.folder);
}

#[test]
fn pages_of_other_origins_cannot_use_the_console() {
    let console = Console::start();
    let cookie = console.log_in("admin");
    for marks in [
        "origin: https://evil.example\r\nsec-fetch-site: cross-site\r\ntollgate-console: 1\r\n",
        "origin: https://limits.example:8443\r\nsec-fetch-site: same-site\r\ntollgate-console: 1\r\n",
        "origin: https://limits.example\r\nsec-fetch-site: same-origin\r\n",
    ] {
        let token = console.token_of_role("admin");
        let reply = console.send(&format!(
            "POST /v1/enforcement HTTP/1.1\r\nhost: limits.example\r\n{marks}cookie: {cookie}\r\nauthorization: Bearer {token}\r\n\
             content-length: 18\r\nconnection: close\r\n\r\n{{\"mode\":\"observe\"}}"
        ));
        assert!(reply.starts_with("HTTP/1.1 403"), "{marks}{reply}");
    }
    // On loopback without tokens, the console needs no login and accepts only loopback host names.
    let open = Server::start(&[]);
    let get = |host: &str, path: &str, marks: &str| {
        let mut client = open.connect_http();
        client.send(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{marks}connection: close\r\n\r\n"));
        client.read_to_end()
    };
    let own = "sec-fetch-site: same-origin\r\ntollgate-console: 1\r\n";
    assert!(get("localhost:8080", "/v1/session", own).contains("\"name\":\"local\",\"role\":\"admin\""));
    assert!(get("evil.example:8080", "/v1/session", own).starts_with("HTTP/1.1 421"));
    assert!(get("evil.example:8080", "/console", "").starts_with("HTTP/1.1 421"));
    let page = get(
        "localhost:8080",
        "/console",
        "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n",
    );
    assert!(page.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{page}");
    assert!(
        get("localhost:8080", "/console", "sec-fetch-site: cross-site\r\nsec-fetch-dest: iframe\r\n")
            .starts_with("HTTP/1.1 403")
    );
}

#[test]
fn live_data_contains_rates_and_viewers_are_bounded() {
    let server = Server::start(&[]);
    let console = Console { server, folder: Folder::new(), tokens: json!({"admin": "none"}) };
    let mut client = console.server.connect_http();
    let (mut stream, first) = console.watch_live_data("accept: text/event-stream");
    assert_eq!((first["mode"].as_str(), first["store_up"].as_bool()), (Some("enforce"), Some(true)), "{first}");
    for _ in 0..50 {
        assert!(client.post("/v1/check", "{\"key\":\"a\",\"limit\":\"10/h\"}").0 > 0);
    }
    let mut counted = (0, 0);
    eventually("the events contain the decisions", || {
        if let Some(event) = stream.line().strip_prefix("data: ") {
            let event: Value = serde_json::from_str(event).expect("JSON");
            counted.0 += event["admitted"].as_u64().expect("a rate");
            counted.1 += event["refused"].as_u64().expect("a rate");
        }
        // Each event contains rates per second. There is one event per second, so the sum of the rates is near the
        // number of decisions.
        counted.0 >= 8 && counted.1 >= 32
    });
    let mut viewers = vec![stream];
    viewers.extend((1..64).map(|_| {
        let mut client = console.server.connect_http();
        client.send("GET /v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert_eq!(client.line(), "HTTP/1.1 200 OK");
        client
    }));
    let one_more = || console.send("GET /v1/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let reply = one_more();
    assert!(
        reply.starts_with("HTTP/1.1 503") && reply.contains("too many viewers of live data (maximum 64)"),
        "{reply}"
    );
    drop(viewers.pop());
    eventually("a viewer is accepted after another viewer left", || {
        let mut client = console.server.connect_http();
        client.send("GET /v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n");
        client.line() == "HTTP/1.1 200 OK"
    });
    let history = console.send("GET /v1/history HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let history: Value = serde_json::from_str(history.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    assert!(history["seconds"]["admitted"].as_array().is_some_and(|list| !list.is_empty()), "{history}");
    // Viewers do not delay the shutdown.
    console.server.signal("TERM");
    for viewer in &mut viewers {
        viewer.read_to_end();
    }
}
