//! Protection against attacks and mistakes: requests from web pages, exhausted connections, slow clients, large lists.

use crate::common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::api::send_request;
use common::service::SmallDisk;
use common::{Client, Folder, Rules, Server, eventually, tollgate};
use tollgate_testkit::servers::{Kind, Server as RedisServer};

/// Sends a request and returns the whole response.
fn get_response(server: &Server, path: &str, headers: &str) -> String {
    let mut client = server.connect_http();
    client.send(format!("GET {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n"));
    client.read_to_end()
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
        let response = get_response(&server, "/metrics", headers);
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {response}");
    }
}

#[test]
fn silent_clients_of_one_protocol_block_neither_other_protocols_nor_health_checks() {
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
    // HTTP has its own connection limit.
    assert!(get_response(&server, "/metrics", "host: localhost\r\n").starts_with("HTTP/1.1 200"));
    let silent: Vec<Client> = (0..2).map(|_| server.connect_http()).collect();
    eventually("all HTTP connections are in use", || {
        get_response(&server, "/metrics", "host: localhost\r\n").starts_with("HTTP/1.1 503")
    });
    for path in ["/healthz", "/readyz"] {
        let response = get_response(&server, path, "host: localhost\r\n");
        assert!(response.starts_with("HTTP/1.1 200"), "{path}: {response}");
    }
    drop(silent);
    eventually("HTTP connections are accepted again", || {
        get_response(&server, "/metrics", "host: localhost\r\n").starts_with("HTTP/1.1 200")
    });
}

#[test]
fn client_beyond_the_limit_of_open_files_gets_an_answer_and_is_logged() {
    let server = Server::start(&["--rls", "127.0.0.1:0"]);
    let mut kept = server.connect_resp();
    kept.send_command(&["PING"]);
    kept.expect("+PONG\r\n");
    // Sets the limit to the lowest unused descriptor, so that no more descriptors are available. The limit is changed
    // at run time, because a starting server would lower --connections.
    let used = std::fs::read_dir(format!("/proc/{}/fd", server.id())).expect("its descriptors");
    let used: Vec<u64> =
        used.map_while(Result::ok).filter_map(|file| file.file_name().to_str()?.parse().ok()).collect();
    let files = (0..).find(|file| !used.contains(file));
    let id = rustix::process::Pid::from_raw(server.id() as i32);
    let limit = rustix::process::Rlimit { current: files, maximum: files };
    rustix::process::prlimit(id, rustix::process::Resource::Nofile, limit).expect("a limit of open files");
    assert_eq!(server.connect_resp().read_to_end(), "-ERR max number of clients reached\r\n");
    let line = server.wait_for_line("out of file descriptors; refusing connections");
    assert!(line.contains("resp") && !line.contains("max="), "{line}");
    kept.send_command(&["PING"]);
    kept.expect("+PONG\r\n");
    drop(kept);
    eventually("a file descriptor is free again", || {
        get_response(&server, "/healthz", "host: localhost\r\n").starts_with("HTTP/1.1 200")
    });
}

#[test]
fn slow_uploads_do_not_block_other_rule_changes() {
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
    // A list that is decided in parts has an answer for every item.
    let items: Vec<String> =
        (0..100).map(|n| format!("{{\"key\":\"k\",\"limit\":\"1000/h\",\"cost\":{}}}", n % 3)).collect();
    let (status, body) = client.post("/v1/check", &format!("[{}]", items.join(",")));
    let results: Vec<serde_json::Value> = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, results.len()), (200, 100));
}

#[test]
fn request_that_matches_too_many_rules_is_refused() {
    // Every rule has a second, different value, so the check at load time cannot detect that all rules may match one
    // request.
    let rules: String = (0..257).map(|n| format!("- {{id: r{n}, when: {{a: [\"1\", x{n}]}}, limit: 1/s}}\n")).collect();
    let rules = Rules::new(format!("domain: api\nrules:\n{rules}"));
    let server = Server::start(&["--rules", rules.path()]);
    let (status, body) = server.connect_http().post("/v1/check", "{\"domain\":\"api\",\"attributes\":{\"a\":\"1\"}}");
    assert!(status == 400 && body.contains("257") && body.contains("256"), "{status} {body}");
}

#[test]
fn response_to_a_list_is_bounded_and_reports_undecided_items() {
    let matching: String = (0..256)
        .map(|n| {
            format!("- {{id: some-rule-with-a-long-name-{n}, when: {{a: \"1\"}}, limit: 1000/day, burst: 100000}}\n")
        })
        .collect();
    let rules = Rules::new(format!("domain: api\nrules:\n{matching}"));
    let server = Server::start(&["--rules", rules.path()]);
    let mut client = server.connect_http();
    let one = "{\"domain\":\"api\",\"attributes\":{\"a\":\"1\"}}";
    for (path, count) in [("/v1/check", 1_000), ("/v1/explain", 100)] {
        let (status, body) = client.post(path, &format!("[{}]", vec![one; count].join(",")));
        let results: Vec<serde_json::Value> = serde_json::from_str(&body).expect("JSON");
        let done = results.iter().filter(|result| result["outcome"] == "allow").count();
        let rest =
            results.iter().filter(|result| result["detail"].as_str().is_some_and(|text| text.contains("is full")));
        assert_eq!((status, results.len(), done + rest.count()), (200, count, count), "{path}");
        assert!(0 < done && done < count, "{path}: {done}");
        // Each item that is not decided has a short error instead of a decision.
        let item = body.len() / done;
        assert!(body.len() <= 8 * 1024 * 1024 + item + 512 * count, "{path}: {} bytes", body.len());
        let left = 100_000 - if path == "/v1/check" { done } else { 0 };
        let (_, body) = server.connect_http().post("/v1/peek", one);
        let peeked: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        if path == "/v1/check" {
            assert_eq!(peeked["limits"][0]["remaining"], left, "undecided items are not charged");
        }
    }
}

/// Returns rules that all match the same requests.
fn rules_that_match_together(count: usize) -> String {
    let rules: String = (0..count).map(|n| format!("- {{id: r{n}, when: {{a: b}}, limit: 7/h}}\n")).collect();
    format!("domain: api\nrules:\n{rules}")
}

#[test]
fn file_with_too_many_rules_that_match_together_is_refused_and_the_old_rules_stay() {
    let rules = Rules::new(rules_that_match_together(256));
    let server = Server::start(&["--rules", rules.path()]);
    rules.write(rules_that_match_together(257));
    let line = server.wait_for_line("too many rules that match the same requests: 257 (maximum 256)");
    assert!(line.contains("rules"), "{line}");
    let (status, body) = server.connect_http().post("/v1/check", "{\"domain\":\"api\",\"attributes\":{\"a\":\"b\"}}");
    assert!(status == 200 && body.contains("\"remaining\":6"), "{status} {body}");
}

#[test]
fn rules_service_refuses_the_rule_that_makes_too_many_match_together() {
    let folder = Folder::new();
    let server = Server::start(&["--data", &folder.join("data")]);
    let mut client = server.connect_http();
    let (status, body) = client.post("/v1/apply", &rules_that_match_together(256));
    assert_eq!(status, 200, "{body}");
    let put = |id: &str, rule: &str| send_request(&server, "PUT", &format!("/v1/domains/api/rules/{id}"), &[], rule);
    for rule in [
        "{\"when\":{\"a\":\"b\"},\"limit\":\"1/s\"}",
        "{\"when\":{\"a\":[\"b\"]},\"limit\":\"1/s\"}",
        "{\"limit\":\"1/s\"}",
    ] {
        let answer = put("more", rule);
        assert!(answer.status >= 400 && answer.body.contains("257 (maximum 256)"), "{} {}", answer.status, answer.body);
    }
    let answer = put("other", "{\"when\":{\"a\":\"c\"},\"limit\":\"1/s\"}");
    assert_eq!(answer.status, 201, "{}", answer.body);
}

#[test]
fn thousands_of_mistakes_are_counted_and_a_hundred_shown() {
    let keys: String = (0..50_000).map(|n| format!("  limt{n}: 1/s\n")).collect();
    let rules = Rules::new(format!("domain: api\nrules:\n- id: a\n{keys}"));
    let output = tollgate(&["check", rules.path()], b"");
    assert_eq!(output.code, Some(1));
    assert!(output.err.matches("is not a key of a rule").count() <= 100, "too many mistakes are shown");
    assert!(format!("{}{}", output.out, output.err).contains("more"), "{}", &output.err[..1_000.min(output.err.len())]);
}

#[test]
fn validation_of_300_000_misspelt_keys_is_bounded() {
    let folder = Folder::new();
    let server = Server::start(&["--data", &folder.join("data")]);
    let mut client = server.connect_http();
    let validate = |client: &mut Client, keys: usize| {
        let keys: String = (0..keys).map(|n| format!("  limt{n}: 1/s\n")).collect();
        client.post("/v1/validate", &format!("domain: api\nrules:\n- id: a\n{keys}"))
    };
    validate(&mut client, 1);
    let before = server.resident_memory();
    // The read timeout is long, because the server is not optimised and the machine may be busy.
    client.set_read_timeout(std::time::Duration::from_secs(120));
    let (status, body) = validate(&mut client, 300_000);
    let answer: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, answer["mistakes"].as_array().map(Vec::len)), (200, Some(100)), "{body}");
    assert!(
        answer["more_mistakes"].as_u64().is_some_and(|more| more > 0),
        "the answer says that there are more: {body}"
    );
    let peak = server.peak_memory().saturating_sub(before) >> 20;
    assert!(peak < 256, "{peak} MiB more");
}

#[test]
fn invented_keys_neither_free_an_exhausted_key_nor_use_memory() {
    let server = Server::start(&["--capacity", "1000"]);
    let mut client = server.connect_http();
    let alice = "{\"key\":\"alice\",\"limit\":\"10/h\",\"cost\":10}";
    assert_eq!((client.post("/v1/check", alice).0, client.post("/v1/check", alice).0), (200, 429));
    let mut flood = |from: usize, lists: usize| {
        for list in 0..lists {
            let key = |n: usize| format!("{{\"key\":\"made up {}\",\"limit\":\"10/h\"}}", from + list * 1_000 + n);
            let items: Vec<String> = (0..1_000).map(key).collect();
            assert_eq!(client.post("/v1/check", &format!("[{}]", items.join(","))).0, 200);
        }
        assert_eq!(client.post("/v1/check", alice).0, 429, "after {lists} lists");
    };
    flood(0, 20);
    let before = server.resident_memory();
    flood(20_000, 180);
    let grown = server.resident_memory().saturating_sub(before) >> 20;
    assert!(grown < 16, "{grown} MiB more");
}

#[test]
fn connections_have_keepalive_and_the_start_line_names_the_store() {
    let server = Server::start(&[]);
    for address in [server.http, server.resp].into_iter().flatten() {
        let client = std::net::TcpStream::connect(address).expect("the server listens");
        let ports =
            [address, client.local_addr().expect("an address")].map(|address| format!(":{:04X}", address.port()));
        // In the kernel's table, the server's connection has timer 2, which stands for keepalive probes.
        eventually("keepalive is set", || {
            let table = std::fs::read_to_string("/proc/self/net/tcp").expect("the table of connections");
            table.lines().any(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                matches!(fields[..], [_, local, remote, _, _, timer, ..]
                    if local.ends_with(&ports[0]) && remote.ends_with(&ports[1]) && timer.starts_with("02:"))
            })
        });
    }
    let store = RedisServer::start(Kind::Redis);
    let server = Server::start(&["--store", &format!("redis://127.0.0.1:{}", store.port())]);
    let line = server.start_log.last().expect("the line");
    assert!(line.contains(&format!("redis://127.0.0.1:{}", store.port())), "{line}");
}

/// Returns the value of a metric, or zero if it is missing.
fn read_metric_or_zero(server: &Server, name: &str) -> u64 {
    let page = get_response(server, "/metrics", "host: localhost\r\n");
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().expect("a number"))
}

#[test]
fn keys_bans_and_latencies_are_counted_without_a_data_directory() {
    let rules =
        Rules::new("domain: api\nrules:\n- {id: all, per: [user], limit: 1/h, ban: {after: 2, within: 1m, for: 1h}}\n");
    let redis = RedisServer::start(Kind::Redis);
    let url = format!("redis://127.0.0.1:{}", redis.port());
    for store in [&["--data", "off"][..], &["--store", &url]] {
        // In a small table, `tollgate_keys` counts every key.
        let server = Server::start(&[&["--rules", rules.path(), "--capacity", "1000"], store].concat());
        for _ in 0..4 {
            let ask = "{\"domain\":\"api\",\"attributes\":{\"user\":\"ann\"}}";
            server.connect_http().post("/v1/check", ask);
        }
        assert_eq!(read_metric_or_zero(&server, "tollgate_bans_total"), 1, "{store:?}");
        assert_eq!(read_metric_or_zero(&server, "tollgate_decision_duration_seconds_count"), 4, "{store:?}");
        if store[0] == "--data" {
            eventually("the keys are counted", || read_metric_or_zero(&server, "tollgate_keys") >= 1);
        } else {
            eventually("calls of the store are counted", || {
                read_metric_or_zero(&server, "tollgate_store_duration_seconds_count") > 0
            });
        }
    }
}

/// Starts the server from a shell and returns the first lines of its log.
fn first_log_lines(shell: &str, lines: usize) -> Vec<String> {
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
    let lines = first_log_lines("ulimit -n 200;", 2).join("\n");
    assert!(lines.contains("--connections 100000 lowered to fit the limit of open files"), "{lines}");
    assert!(lines.contains("connections=72"), "{lines}");
}

#[test]
fn log_is_json_if_asked_for() {
    let line = first_log_lines("", 1).join("");
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
    // Sends all commands before it reads a reply, like redis-py's default pipeline.
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
fn log_level_comes_from_the_flag_or_the_environment() {
    let rules = Rules::new("domain: api\nrules:\n- {id: all, limit: 1/h}\n");
    let logged = |level: &[&str], variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        // The server cannot listen on this address, so it ends with an error.
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
    assert!(logged(&[], "") && logged(&[], "info"), "info is the default level");
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
        (format!("rediss://:secret@127.0.0.1:{port}"), "does the port speak TLS?", "TLS with the store fails"),
    ] {
        let folder = Folder::new();
        let server = Server::start(&["--store-file", &folder.write_file("store", &url)]);
        let line = server.wait_for_line("store unreachable");
        assert!(line.contains(why) && !line.contains("secret"), "{line}");
        let answer = send_request(&server, "GET", "/readyz", &[], "");
        assert_eq!((answer.status, answer.body), (200, format!("ready ({ready})\n")), "{why}");
    }
}

#[test]
fn full_disk_at_start_is_reported_in_one_line() {
    let folder = Folder::new();
    let Some(disk) = SmallDisk::mount(&folder, 16) else {
        println!("skipped: this user may not mount a small file system");
        return;
    };
    let _ = std::fs::write(disk.path().join("ballast"), vec![0; 16 * 1024]);
    let message = Server::stderr_of_failed_start(&["--data", disk.path().to_str().expect("text")]);
    assert_eq!(message.matches("disk is full").count(), 1, "{message}");
}
