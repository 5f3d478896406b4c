//! Protection against attacks and mistakes: requests from web pages, exhausted connections, slow clients, large lists.

use crate::common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::api::ask;
use common::service::SmallDisk;
use common::{Client, Folder, Rules, Server, eventually, tollgate};
use tollgate_testkit::servers::{Kind, Server as RedisServer};

/// Sends a request and returns the whole response.
fn get(server: &Server, path: &str, headers: &str) -> String {
    let mut client = server.connect_http();
    client.send(format!("GET {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n"));
    client.rest()
}

#[test]
fn requests_of_web_pages_are_refused() {
    let server = Server::start(&["--allowed-hosts", "limits.internal"]);
    let port = server.http.expect("HTTP is on").port();
    for (headers, status) in [
        ("host: localhost\r\n", "200"),
        (&*format!("host: 127.0.0.1:{port}\r\n"), "200"),
        (&format!("host: [::1]:{port}\r\n"), "200"),
        ("host: limits.internal\r\n", "200"),
        (&format!("host: evil.example:{port}\r\n"), "421"),
        ("host: 192.0.2.1\r\n", "421"),
        ("host: localhost\r\nsec-fetch-site: none\r\n", "200"),
        ("host: localhost\r\nsec-fetch-site: cross-site\r\n", "403"),
        ("host: localhost\r\nsec-fetch-site: same-origin\r\n", "403"),
        ("host: localhost\r\norigin: http://localhost\r\n", "403"),
    ] {
        let response = get(&server, "/metrics", headers);
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {response}");
    }
}

#[test]
fn silent_clients_of_one_protocol_do_not_keep_others_or_health_checks_out() {
    let server = Server::start(&["--connections", "2"]);
    let mut resp: Vec<Client> = (0..2).map(|_| server.connect_resp()).collect();
    for client in &mut resp {
        client.send_command(&["PING"]);
        client.expect("+PONG\r\n");
    }
    let mut refused = server.connect_resp();
    refused.expect("-ERR max number of clients reached\r\n");
    let line = server.wait_for_line("connection limit reached");
    assert!(line.contains("resp") && line.contains("max=2"), "{line}");
    // HTTP has its own maximum of connections.
    assert!(get(&server, "/metrics", "host: localhost\r\n").starts_with("HTTP/1.1 200"));
    let silent: Vec<Client> = (0..2).map(|_| server.connect_http()).collect();
    eventually("the budget of HTTP is used up", || {
        get(&server, "/metrics", "host: localhost\r\n").starts_with("HTTP/1.1 503")
    });
    for path in ["/healthz", "/readyz"] {
        let response = get(&server, path, "host: localhost\r\n");
        assert!(response.starts_with("HTTP/1.1 200"), "{path}: {response}");
    }
    drop(silent);
    eventually("the budget is free again", || {
        get(&server, "/metrics", "host: localhost\r\n").starts_with("HTTP/1.1 200")
    });
}

#[test]
fn slow_bodies_do_not_keep_others_from_applying_rules() {
    let folder = Folder::new();
    let server = Server::start(&["--data", &folder.join("data")]);
    let slow: Vec<Client> = (0..12)
        .map(|_| {
            let mut client = server.connect_http();
            client.send("POST /v1/apply HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\ndomain: ");
            client
        })
        .collect();
    let (status, body) = server.connect_http().post("/v1/apply", "domain: api\nrules:\n- {id: all, limit: 10/s}\n");
    assert_eq!(status, 200, "{body}");
    drop(slow);
}

#[test]
fn lists_are_bounded() {
    let rules = Rules::new("domain: api\nrules:\n- {id: all, limit: 1000000/s}\n");
    let server = Server::start(&["--rules", rules.path()]);
    let mut client = server.connect_http();
    let one = "{\"domain\":\"api\",\"attributes\":{}}";
    let (status, body) = client.post("/v1/explain", &format!("[{}]", vec![one; 101].join(",")));
    assert!(status == 400 && body.contains("too many requests to explain: 101 (maximum 100)"), "{status} {body}");
    let (status, body) = client.post("/v1/explain", &format!("[{}]", vec![one; 100].join(",")));
    assert_eq!((status, body.matches("\"outcome\"").count()), (200, 100), "{body}");
    // Decided in parts, answered in order.
    let items: Vec<String> =
        (0..100).map(|n| format!("{{\"key\":\"k\",\"limit\":\"1000/h\",\"cost\":{}}}", n % 3)).collect();
    let (status, body) = client.post("/v1/check", &format!("[{}]", items.join(",")));
    let results: Vec<serde_json::Value> = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, results.len()), (200, 100));
}

#[test]
fn request_that_matches_too_many_rules_is_refused() {
    let rules: String = (0..257).map(|n| format!("- {{id: r{n}, when: {{a: \"1\"}}, limit: 1/s}}\n")).collect();
    let rules = Rules::new(format!("domain: api\nrules:\n{rules}"));
    let server = Server::start(&["--rules", rules.path()]);
    let (status, body) = server.connect_http().post("/v1/check", "{\"domain\":\"api\",\"attributes\":{\"a\":\"1\"}}");
    assert!(status == 400 && body.contains("257") && body.contains("256"), "{status} {body}");
}

#[test]
fn thousands_of_mistakes_are_counted_and_a_hundred_shown() {
    let keys: String = (0..50_000).map(|n| format!("  limt{n}: 1/s\n")).collect();
    let rules = Rules::new(format!("domain: api\nrules:\n- id: a\n{keys}"));
    let output = tollgate(&["check", rules.path()], b"");
    assert_eq!(output.code, Some(1));
    assert!(output.err.matches("is not a key of a rule").count() <= 100, "too many are shown");
    assert!(format!("{}{}", output.out, output.err).contains("more"), "{}", &output.err[..1_000.min(output.err.len())]);
}

/// Starts the server by a shell, and returns the first lines of its log.
fn log_of(shell: &str, lines: usize) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_tollgate");
    let command = format!("{shell} exec {program} serve --http 127.0.0.1:0 --resp off --data off \"$@\"");
    let mut command =
        Command::new("sh").args(["-c", &command, "sh"]).args(extra_args(shell)).stderr(Stdio::piped()).spawn();
    let child = command.as_mut().expect("a shell");
    let read: Vec<String> =
        BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok).take(lines).collect();
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    read
}

fn extra_args(shell: &str) -> &'static [&'static str] {
    if shell.contains("ulimit") { &["--connections", "100000"] } else { &["--log-format", "json"] }
}

#[test]
fn connections_are_lowered_to_the_limit_of_open_files() {
    let lines = log_of("ulimit -n 200;", 2).join("\n");
    assert!(lines.contains("--connections 100000 lowered to fit the limit of open files"), "{lines}");
    assert!(lines.contains("connections=72"), "{lines}");
}

#[test]
fn log_is_json_if_asked_for() {
    let line = log_of("", 1).join("");
    let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(
        (&line["message"], &line["level"], &line["store"]),
        (&"listening".into(), &"info".into(), &"memory".into())
    );
    assert!(line["time"].is_string() && line["version"].is_string() && line["count"] == 0, "{line}");
}

#[test]
fn transactions_are_refused_and_take_nothing() {
    let server = Server::start(&[]);
    let mut client = server.connect_resp();
    // As redis-py's default pipeline sends them: all at once.
    for command in [&["MULTI"][..], &["CL.THROTTLE", "k", "0", "1", "60"], &["TG.PEEK", "api", "1"], &["EXEC"]] {
        client.send_command(command);
    }
    for code in ["-ERR not run", "-ERR not run", "-ERR not run", "-EXECABORT"] {
        let line = client.line();
        assert!(line.starts_with(code) && line.contains("transaction=False"), "{line}");
    }
    client.send_command(&["CL.THROTTLE", "k", "0", "1", "60"]);
    client.expect("*5\r\n:0\r\n");
}

#[test]
fn log_level_is_that_of_the_flag_or_the_environment() {
    let rules = Rules::new("domain: api\nrules:\n- {id: all, limit: 1/h}\n");
    let logged = |level: &[&str], variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        // The address cannot be listened on, so it ends with an error.
        command.args([
            "serve",
            "--rules",
            rules.path(),
            "--http",
            "192.0.2.1:1",
            "--resp",
            "off",
            "--insecure",
            "--data",
            "off",
        ]);
        let output = command.args(level).env("RUST_LOG", variable).output().expect("the program starts");
        String::from_utf8_lossy(&output.stderr).contains("rules loaded")
    };
    assert!(logged(&[], "") && logged(&[], "info"), "informative by default");
    assert!(!logged(&[], "warn") && !logged(&["--log-level", "warn"], "info"), "the flag wins");
    assert!(logged(&["--log-level", "info"], "warn"));
}

#[test]
fn wrong_password_database_or_encryption_of_the_store_is_reported() {
    let store = RedisServer::start_with(Kind::Redis, &["--requirepass", "secret", "--databases", "2"]);
    let port = store.port();
    for (url, why, ready) in [
        (format!("redis://127.0.0.1:{port}"), "NOAUTH", "store refuses the password"),
        (format!("redis://:wrong@127.0.0.1:{port}"), "authentication failed", "store refuses the password"),
        (format!("redis://:secret@127.0.0.1:{port}/7"), "DB index is out of range", "store has no such database"),
        (format!("rediss://:secret@127.0.0.1:{port}"), "does the port expect TLS?", "no TLS with the store"),
    ] {
        let folder = Folder::new();
        let server = Server::start(&["--store-file", &folder.write_file("store", &url)]);
        let line = server.wait_for_line("store unreachable");
        assert!(line.contains(why) && !line.contains("secret"), "{line}");
        let answer = ask(&server, "GET", "/readyz", &[], "");
        assert_eq!((answer.status, answer.body), (200, format!("ready ({ready})\n")), "{why}");
    }
}

#[test]
fn full_disk_at_start_is_one_line() {
    let folder = Folder::new();
    let Some(disk) = SmallDisk::mount(&folder, 16) else {
        println!("skipped: this user may not mount a small file system");
        return;
    };
    let _ = std::fs::write(disk.path().join("ballast"), vec![0; 16 * 1024]);
    let message = Server::output_of_refused_start(&["--data", disk.path().to_str().expect("text")]);
    assert_eq!(message.matches("disk is full").count(), 1, "{message}");
}
