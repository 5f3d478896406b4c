//! Errors and warnings shown to callers and operators, collected in golden files for review.
//!
//! `BLESS=1` rewrites the files; see `tollgate_testkit::golden`.
#![allow(clippy::unwrap_used)]

use crate::common;

use std::process::Command;

use common::api::{repeat_request_until, send_request};
use common::{CommandResult, Folder, Rules, Server, encode_command};
use tollgate_testkit::golden;
use tollgate_testkit::golden::Page;

const RULES: &str = "domain: api\nrules:\n- {id: login, per: [user], limit: 5/m}\n";

/// Runs the program in a folder, without the `TOLLGATE_` variables of the test run.
fn run_tollgate(folder: &Folder, line: &str) -> CommandResult {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TOLLGATE_")) {
        command.env_remove(name);
    }
    CommandResult::run(command.current_dir(folder.path()).args(line.split_whitespace()), b"")
}

/// Hides words that differ between runs: every word that begins with `start` becomes `with`.
fn hide_words(text: &str, start: &str, with: &str) -> String {
    let mut parts = text.split(start);
    let mut hidden = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        hidden.push_str(with);
        hidden.push_str(part.trim_start_matches(|char: char| char.is_ascii_alphanumeric() || char == '_'));
    }
    hidden
}

#[test]
fn http_problems_match_the_golden_file() {
    let folder = Folder::new();
    let server = Server::start_in(folder.path(), &["--data", "data"]);
    let rule = "/v1/domains/api/rules/login";
    let mut page = Page::default();
    let created = send_request(&server, "PUT", rule, &[], r#"{"per":["user"],"limit":"5/m"}"#);
    assert_eq!(created.status, 201, "{}", created.body);
    repeat_request_until(&server, "/v1/peek", r#"{"domain":"api"}"#, |answer| {
        answer.status == 200 && answer.body.contains("login")
    });
    for (method, path, headers, body) in [
        ("GET", "/nothing", &[][..], ""),
        ("DELETE", "/v1/check", &[], ""),
        ("POST", "/v1/check", &[], ""),
        ("POST", "/v1/check", &[], "{"),
        ("POST", "/v1/check", &[], "7"),
        ("POST", "/v1/check", &[], "{}"),
        ("POST", "/v1/check", &["origin: http://example.org"], "{}"),
        ("POST", "/v1/check", &[], r#"{"domian":"api"}"#),
        ("POST", "/v1/check", &[], r#"{"domain":"none"}"#),
        ("POST", "/v1/check", &[], r#"{"domain":"api","key":"k"}"#),
        ("POST", "/v1/check", &[], r#"{"domain":"api","burst":2}"#),
        ("POST", "/v1/check", &[], r#"{"domain":"api","cost":-1}"#),
        ("POST", "/v1/check", &[], r#"{"domain":"api","wait_ms":5}"#),
        ("POST", "/v1/check", &[], r#"{"domain":"api","attributes":{"user":null}}"#),
        ("POST", "/v1/check", &[], r#"{"domain":"api","attributes":{"user":[["a"]]}}"#),
        ("POST", "/v1/check", &[], r#"{"domain":"api","receipt":"abc"}"#),
        ("POST", "/v1/check", &[], r#"{"key":"k"}"#),
        ("POST", "/v1/check", &[], r#"{"key":"k","limit":"often"}"#),
        ("POST", "/v1/check", &[], r#"{"key":"k","limit":"5/m","burst":0}"#),
        ("POST", "/v1/check", &[], r#"{"key":"k","limit":"5/m","algorithm":"bucket"}"#),
        ("POST", "/v1/check", &[], r#"{"key":"k","limit":"5/m","attributes":{}}"#),
        ("POST", "/v1/check", &[&*format!("idempotency-key: {}", "k".repeat(256))], r#"{"domain":"api"}"#),
        ("POST", "/v1/check", &["idempotency-key: once"], r#"{"domain":"api","attributes":{"user":"a"}}"#),
        ("POST", "/v1/check", &["idempotency-key: once"], r#"{"domain":"api","attributes":{"user":"b"}}"#),
        ("POST", "/v1/acquire", &[], r#"{"domain":"api"}"#),
        ("POST", "/v1/acquire", &[], r#"{"domain":"api","wait_ms":600000}"#),
        ("POST", "/v1/acquire", &[], "[]"),
        ("POST", "/v1/refund", &[], "{}"),
        ("POST", "/v1/refund", &[], r#"{"receipt":"abc"}"#),
        ("POST", "/v1/enforcement", &[], r#"{"mode":"off"}"#),
        ("PUT", "/v1/fleet/enforcement", &[], r#"{"mode":"off"}"#),
        ("POST", "/v1/audit", &[], r#"[{"at_ms":1,"author":"a","action":"delete","subject":"s"}]"#),
        ("POST", "/v1/check", &[], r#"{"key":"k","limit":true}"#),
        ("POST", "/v1/check", &[], r#"{"key":"k","limit":5}"#),
        ("GET", "/v1/domains/api", &[], ""),
        ("POST", rule, &[], ""),
        ("GET", "/v1/domains/api/rules/none", &[], ""),
        ("PUT", rule, &[], "limt: 5/m"),
        ("PUT", rule, &["content-type: text/html"], "limit: 5/m"),
        ("PUT", rule, &["if-match: 3"], "limit: 5/m"),
        ("PUT", rule, &["if-match: \"7\""], "limit: 5/m"),
        ("PUT", rule, &["if-none-match: *"], "limit: 5/m"),
        ("PUT", rule, &["if-none-match: \"1\""], "limit: 5/m"),
        ("PUT", rule, &["if-match: *", "if-none-match: *"], "limit: 5/m"),
        ("PUT", rule, &["tollgate-comment: %FF"], "limit: 5/m"),
        ("PATCH", rule, &[], "limit"),
        ("GET", "/v1/domains/api/rules?limit=0", &[], ""),
        ("GET", "/v1/domains/api/rules?after=x", &[], ""),
        ("GET", "/v1/domains/api/rules?colour=red", &[], ""),
        ("GET", &format!("{rule}/versions/9"), &[], ""),
        ("POST", &format!("{rule}/rollback"), &[], r#"{"version":9}"#),
        ("PUT", &format!("{rule}/overrides/acme"), &[], r#"{"limit":"often"}"#),
        ("DELETE", &format!("{rule}/overrides/acme"), &[], ""),
        ("POST", "/v1/apply", &[], "domain: ["),
        ("GET", "/v1/export?domain=none", &[], ""),
        ("GET", "/v1/snapshot?wait=600", &[], ""),
        ("POST", "/v1/tokens", &[], r#"{"name":"a"}"#),
        ("POST", "/v1/tokens", &[], r#"{"name":"","role":"reader"}"#),
        ("POST", "/v1/tokens", &[], r#"{"name":"a","role":"reader","expires_ms":1}"#),
        ("POST", "/v1/tokens", &[], r#"{"name":"a","role":"reader","domain":"api"}"#),
        ("DELETE", "/v1/tokens/none", &[], ""),
    ] {
        let answer = send_request(&server, method, path, headers, body);
        if answer.status == 200 {
            continue;
        }
        let problem = answer.json();
        let status = problem["status"].as_u64().unwrap_or(u64::from(answer.status));
        let title = problem["title"].as_str().unwrap_or_default();
        let mut output = format!("{status} {title}: {}", problem["detail"].as_str().unwrap_or(&answer.body));
        for name in ["pointer", "line", "column", "current"] {
            if !problem[name].is_null() {
                output.push_str(&format!("\n  {name}: {}", problem[name]));
            }
        }
        let headers: String = headers.iter().map(|header| format!("\n{}", &header[..header.len().min(40)])).collect();
        page.add_case(&format!("{method} {path} {body}{headers}"), &output);
    }
    golden!("http_problems", page);
}

#[test]
fn answers_to_refused_callers_match_the_golden_file() {
    let folder = Folder::new();
    let create = |role: &str| {
        let line = format!("tokens create --role {role} --name {role} --domain api --data data");
        run_tollgate(&folder, &line).expect_success().trim().to_owned()
    };
    let (admin, reader) = (create("admin"), create("reader"));
    let server = Server::start_in(folder.path(), &["--data", "data", "--tokens", "required"]);
    let mut page = Page::default();
    for (name, token) in [("none", ""), ("unknown", "tg_0_0"), ("reader", &*reader), ("admin", &*admin)] {
        let header = format!("authorization: Bearer {token}");
        let headers: &[&str] = if token.is_empty() { &[] } else { &[&header] };
        for (method, path, body) in [
            ("POST", "/v1/check", r#"{"key":"k","limit":"5/m"}"#),
            ("POST", "/v1/reset", r#"{"key":"k","limit":"5/m"}"#),
            ("PUT", "/v1/domains/api/rules/login", r#"{"limit":"5/m"}"#),
            ("PUT", "/v1/domains/web/rules/login", r#"{"limit":"5/m"}"#),
            ("GET", "/v1/tokens", ""),
        ] {
            let answer = send_request(&server, method, path, headers, body);
            if answer.status >= 400 {
                let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
                let output = format!("{} {}", answer.status, hide_words(&detail, "the token `", "the token `ID"));
                page.add_case(&format!("{method} {path} (token: {name})"), &output);
            }
        }
    }
    let mut client = server.connect_resp();
    for words in [&["PING"][..], &["AUTH", "x"], &["AUTH", &reader], &["TG.RESET", "api", "1", "user", "a"]] {
        client.send_command(words);
        let output = client.line();
        let shown = if words.contains(&&*reader) { "AUTH (token: reader)".to_owned() } else { words.join(" ") };
        page.add_case(&shown, &hide_words(&output, "the token `", "the token `ID"));
    }
    golden!("refused_callers", page);
}

#[test]
fn redis_protocol_errors_match_the_golden_file() {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let mut page = Page::default();
    for line in [
        "GET key",
        "CL.THROTTLE",
        "CL.THROTTLE k 1 1",
        "CL.THROTTLE k x 1 1",
        "CL.THROTTLE k 1 0 1",
        "CL.THROTTLE k 9223372036854775807 1 1",
        "TG.CHECK",
        "TG.CHECK api",
        "TG.CHECK api x user a",
        "TG.CHECK api 1 user",
        "TG.CHECK none 1 user a",
        "TG.ACQUIRE api 1 soon user a",
        "TG.COMMIT abc x",
        "TG.REFUND abc",
        "TG.RENEW",
        "AUTH",
        "AUTH token",
        "HELLO 9",
        "HELLO x",
        "HELLO 3 COLOUR red",
        "CLIENT",
        "CLIENT NONE",
        "CLIENT ID 1",
        "CONFIG SET save x",
        "COMMAND NONE",
        "SELECT 1",
        "ECHO",
        "PING a b",
    ] {
        let mut client = server.connect_resp();
        client.send(encode_command(&line.split(' ').collect::<Vec<_>>()));
        page.add_case(line, &client.line());
    }
    for bytes in [
        "*x\r\n",
        "*9999\r\n",
        "*1\r\n$x\r\n",
        "*1\r\n+PING\r\n",
        "*1\r\n$4\r\nPING!!",
        "PING \"a\"\r\n",
        "GET / HTTP/1.1\r\n",
    ] {
        let mut client = server.connect_resp();
        client.send(bytes);
        page.add_case(&bytes.escape_default().to_string(), &client.line());
    }
    golden!("redis_protocol_errors", page);
}

#[test]
fn command_line_errors_match_the_golden_file() {
    let folder = Folder::new();
    folder.write_file("rules.yaml", RULES);
    folder.write_file("wrong.yaml", "domain: api\nrules:\n- {id: login, limt: 5/m}\n");
    folder.write_file(
        "requests.jsonl",
        "{\"key\":\"a\",\"limit\":\"5/m\",\"time\":1}\n{\n{\"at\":\"soon\",\"key\":\"a\"}\n",
    );
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    folder.write_file("folder/a.yaml", RULES);
    folder.write_file("folder/b.yaml", "domain: api\nrules:\n- {id: login, limt: 5/m}\n");
    let mut page = Page::default();
    for line in [
        "serve --http 8080",
        "serve --http off --resp off",
        "serve --connections 0",
        "serve --threads 0",
        "serve --store redsi://:secret@host",
        "serve --store memroy",
        "serve --store-deadline 0",
        "serve --capacity 0",
        "serve --top-keys loud",
        "serve --log-refusals often",
        "serve --rules rules.yaml --database postgres://h/d",
        "serve --database mysql://u:secret@h/d",
        "serve --rules rules.yaml --node n",
        "serve --rules ftp://h",
        "serve --rules http://u:p@h:1",
        "serve --rules none.yaml --http 127.0.0.1:0 --resp off",
        "serve --rules wrong.yaml --http 127.0.0.1:0 --resp off",
        "serve --http 0.0.0.0:0 --tokens none",
        "serve --http 0.0.0.0:0 --rules rules.yaml",
        "serve --tokens required --data off",
        "serve --tokens required --insecure",
        "serve --http 0.0.0.0:0 --resp off --data empty",
        "serve --store redis://:secret@127.0.0.1:1 --http 192.0.2.1:1 --resp off --insecure --data off",
        "serve --store rediss://127.0.0.1:1?ca=none.pem",
        "serve --store-file none",
        "serve --log-level loud",
        "serve --http 127.0.0.1:0 --resp off --data off --tls-cert cert.pem --tls-key key.pem",
        "serve --rules empty --connections 100",
        "serve --rules folder --http 192.0.2.1:1 --resp off --insecure --data off",
        "check none.yaml",
        "check empty",
        "check wrong.yaml",
        "fmt none.yaml",
        "fmt --check wrong.yaml",
        "import rules.yaml",
        "explain --rules rules.yaml none user=a",
        "explain --rules rules.yaml api user",
        "decide --capacity none",
        "decide --rules wrong.yaml",
        "decide requests.jsonl",
        "decide --rules empty",
        "explain --rules folder none user=a",
        "rules enforcement off",
        "rules enforcement --server http://127.0.0.1:1",
        "rules list --server http://127.0.0.1:1",
        "rules list --server 127.0.0.1",
        "rules get api .. --server http://127.0.0.1:1",
        "rules overrides set api login acme --effect x --server http://127.0.0.1:1",
        "tokens create --role admin --expires soon --data data",
        "tokens create --role admin --database mysql://u:secret@h/d",
        "tokens revoke none --data data",
    ] {
        let result = run_tollgate(&folder, line);
        // Log lines start with the time.
        let lines: Vec<String> = [&*result.out, &*result.err].concat().lines().map(without_time).collect();
        let code = result.code.map_or("a signal".to_owned(), |code| code.to_string());
        page.add_case(&format!("tollgate {line}"), &format!("{}\nstatus {code}", lines.join("\n")));
    }
    golden!("command_line_errors", page);
}

/// Removes the time of a log line.
fn without_time(line: &str) -> String {
    match line.split_once("Z ") {
        Some((time, rest)) if time.starts_with("20") => rest.trim_start().to_owned(),
        _ => line.to_owned(),
    }
}

#[test]
fn server_log_matches_the_golden_file() {
    let rules = Rules::new(RULES);
    // With 100 connections, the server logs no warning about the open-file limit on any machine.
    let server = Server::start(&["--rules", rules.path(), "--connections", "100"]);
    rules.write("domain: api\nrules:\n- {id: login, limt: 5/m}\n");
    let mut lines = server.start_log.clone();
    lines.push(server.wait_for_line("rules not loaded"));
    lines.extend(server.stop_and_read_log());
    let known = |line: &String| {
        let version = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");
        let line = without_time(line).replace(rules.path(), "rules.yaml").replace(version, "version=\"VERSION\"");
        hide_words(&line, "127.0.0.1:", "127.0.0.1:PORT")
    };
    let lines: Vec<String> = lines.iter().map(known).collect();
    golden!("log", lines.join("\n") + "\n");
}
