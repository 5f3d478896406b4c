//! Commands that run and exit, as users call them.
#![allow(clippy::unwrap_used)]

use crate::common;

use std::path::Path;

use common::{Folder, Rules, Server, tollgate};

const ENVOY_RULES: &str = "\
domain: edge
descriptors:
- key: remote_address
  detailed_metric: true
  rate_limit: {unit: day, requests_per_unit: 2}
";

#[test]
fn import_prints_rules_and_reports_settings_that_it_ignores() {
    let folder = Folder::new();
    let envoy = folder.write_file("envoy.yaml", ENVOY_RULES);
    let ran = tollgate(&["import", &envoy], b"");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let expected = "domain: edge\nrules:\n- id: remote_address\n  when: {remote_address: {present: true}}\n  \
                    only: [remote_address]\n  per: [remote_address]\n  limit: 2/day\n  algorithm: fixed_window\n";
    assert_eq!(ran.out, expected);
    assert!(ran.err.contains(&format!("{envoy}:4:20: `detailed_metric` is not imported")), "{}", ran.err);
    let rules = folder.write_file("rules.yaml", &ran.out);
    assert_eq!(tollgate(&["check", &rules], b"").code, Some(0));
    assert_eq!(tollgate(&["fmt", "--check", &rules], b"").code, Some(0), "the file is in its canonical form");

    let nginx = folder.write_file(
        "nginx.conf",
        "limit_req_zone $binary_remote_addr zone=one:10m rate=5r/s;\nserver { location /login { limit_req zone=one burst=9; } }\n",
    );
    let ran = tollgate(&["import", "--domain", "web", &nginx], b"");
    let expected = "domain: web\nrules:\n- id: one/login\n  when: {path: {prefix: /login}}\n  per: [client_ip]\n  limit: 5/s\n  \
                    algorithm: leaky_bucket\n  burst: 10\n  status: 503\n";
    assert_eq!((ran.code, &*ran.out, &*ran.err), (Some(0), expected, ""));
    assert_eq!(tollgate(&["import", "--from", "envoy", &nginx], b"").code, Some(1));
    let ran = tollgate(&["import", "--from", "nginx", &envoy], b"");
    assert!(ran.code == Some(1) && ran.err.contains("the file contains no limits of nginx"), "{}", ran.err);
}

#[test]
fn server_loads_files_of_the_reference_service() {
    let rules = Rules::new(ENVOY_RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let mut client = server.connect_http();
    let mut ask = || client.post("/v1/check", r#"{"domain":"edge","attributes":{"remote_address":"192.0.2.1"}}"#).0;
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    let ran = tollgate(&["check", rules.path()], b"");
    assert!(ran.code == Some(0) && ran.out.contains("1 rule in 1 domain"), "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("`detailed_metric` is not imported"), "{}", ran.err);
}

#[test]
fn warnings_are_printed_beside_mistakes() {
    let folder = Folder::new();
    let rules = folder.write_file(
        "rules.yaml",
        "domain: d\nrules:\n- {id: a, limit: 1/x}\n- {id: b, per: [api_key|client_ip], limit: 1/s}\n",
    );
    let ran = tollgate(&["check", &rules], b"");
    assert_eq!((ran.code, &*ran.out), (Some(1), ""));
    assert!(ran.err.starts_with(&format!("{rules}:3:18: ")), "{}", ran.err);
    let warning =
        format!("\nwarning: {rules}:4:3: `b` counts by a single attribute called `api_key|client_ip`\n  | - {{id: b");
    assert!(ran.err.contains(&warning), "{}", ran.err);
}

#[test]
fn explain_refuses_a_file_together_with_a_server() {
    let folder = Folder::new();
    let rules = folder.write_file("rules.yaml", "domain: d\nrules:\n- {id: a, limit: 1/s}\n");
    let ran = tollgate(&["explain", "--rules", &rules, "--server", "http://127.0.0.1:1", "d"], b"");
    assert!(ran.code == Some(2) && ran.err.contains("cannot be used with '--server <URL>'"), "{}", ran.err);
    assert_eq!(tollgate(&["explain", "--rules", &rules, "d"], b"").code, Some(0));
}

#[test]
fn decide_uses_the_time_of_each_line() {
    let folder = Folder::new();
    let rules = folder.write_file("rules.yaml", "domain: d\nrules:\n- {id: a, per: [k], limit: 1/m}\n");
    let lines = br#"{"at":1700000000000,"domain":"d","attributes":{"k":"x"}}
{"at":1700000059999,"domain":"d","attributes":{"k":"x"}}
{"domain":"d","attributes":{"k":"y"}}

{"domain":"d","attributes":{"k":"x"},"at":"2023-11-14T22:14:20Z"}
"#;
    let ran = tollgate(&["decide", "--rules", &rules], lines);
    let answers: Vec<&str> = ran.out.lines().collect();
    assert_eq!((ran.code, answers.len(), &*ran.err), (Some(0), 4, ""), "{}", ran.out);
    let start = r#"{"allowed":true,"outcome":"allow","rule":"a","standing":"exact","retry_after_ms":0,"limits":["#;
    assert!(answers[0].starts_with(start), "{}", answers[0]);
    assert!(
        answers[1].contains(r#""allowed":false"#) && answers[1].contains(r#""retry_after_ms":1,"#),
        "{}",
        answers[1]
    );
    assert!(answers[2].contains(r#""allowed":true"#) && answers[3].contains(r#""allowed":true"#), "{}", ran.out);
    let file = folder.write_file("requests.jsonl", lines);
    assert_eq!(tollgate(&["decide", "--rules", &rules, &file], b"").out, ran.out, "a file gives the same output");
}

#[test]
fn decide_reports_bad_lines_in_order_and_fails() {
    let lines = b"{\"key\":\"a\",\"limit\":\"1/h\"}\n{\"key\":\n[{\"key\":\"a\",\"limit\":\"1/h\"}]\n{\"domain\":\"d\"}\n\xff\n{\"at\":5,\"key\":\"a\",\"limit\":\"1/h\"}\n";
    let ran = tollgate(&["decide"], lines);
    let answers: Vec<&str> = ran.out.lines().collect();
    assert_eq!((ran.code, answers.len()), (Some(1), 6), "{}", ran.out);
    assert!(answers[0].contains(r#""allowed":true"#) && answers[2].starts_with(r#"[{"allowed":false"#), "{}", ran.out);
    for (place, expected) in [
        (1, r#""detail":"at line 2: this is not JSON: EOF while parsing a value","line":2"#),
        (3, r#"unknown domain `d`"#),
        (4, r#""line":5"#),
        (5, r#"at line 6: the first line has no `at`, so no later line may have one","pointer":"/at","line":6"#),
    ] {
        assert!(answers[place].contains(expected), "{}", answers[place]);
    }
    let ran = tollgate(
        &["decide"],
        b"{\"at\":\"2026-11-16T10:00:00+01:00\",\"key\":\"a\",\"limit\":\"1/h\"}\n{\"at\":\"2026-11-16T10:59:59.999[Europe/Paris]\",\
          \"key\":\"a\",\"limit\":\"1/h\"}\n{\"key\":\"a\",\"limmit\":\"1/h\"}\n{\"time\":5,\"key\":\"a\",\"limit\":\"1/h\"}\n\
          {\"at\":\"2026-11-16T11:00[Europe/Pari]\"}\n",
    );
    let answers: Vec<&str> = ran.out.lines().collect();
    assert!(answers[1].contains(r#""allowed":false"#) && answers[1].contains(r#""retry_after_ms":1,"#), "{}", ran.out);
    for (place, expected) in [
        (2, r#""detail":"at line 3: unknown field `limmit`, did you mean `limit`?","line":3"#),
        (3, r#""detail":"at line 4: unknown field `time`; the time of a request is `at`","line":4"#),
        (4, "at line 5: `Europe/Pari` is not a time zone; did you mean `Europe/Paris`?"),
    ] {
        assert!(answers[place].contains(expected), "{}", answers[place]);
    }
    let ran = tollgate(
        &["decide"],
        b"{\"at\":9,\"key\":\"a\",\"limit\":\"1/h\"}\n{\"at\":8,\"key\":\"a\",\"limit\":\"1/h\"}\n",
    );
    assert!(ran.code == Some(1) && ran.out.contains("`at` is earlier than in a previous line"), "{}", ran.out);
}

#[test]
fn line_of_100_mib_is_refused_and_the_next_line_is_decided() {
    let mut lines = vec![b'x'; 100 << 20];
    lines.extend_from_slice(b"\n{\"key\":\"a\",\"limit\":\"1/h\"}");
    let ran = tollgate(&["decide"], &lines);
    let answers: Vec<&str> = ran.out.lines().collect();
    assert!(ran.code == Some(1) && answers[0].contains("line too long (maximum 1048576 bytes)"), "{}", ran.out);
    assert!(answers[1].contains(r#""allowed":true"#), "{}", ran.out);
}

#[test]
fn fmt_rewrites_files_or_reports_why_not() {
    let folder = Folder::new();
    let path = folder.write_file("rules.yaml", "rules: [{limit: 1/s, id: a}] # all\ndomain: d\n");
    let ran = tollgate(&["fmt", "--check", &path], b"");
    assert!(ran.code == Some(1) && ran.err.contains("not in its canonical form"), "{}", ran.err);
    let ran = tollgate(&["fmt", &path], b"");
    assert_eq!((ran.code, &*ran.out, &*ran.err), (Some(0), "", ""));
    let formatted = std::fs::read_to_string(&path).unwrap();
    assert_eq!(formatted, "domain: d\nrules:  # all\n- id: a\n  limit: 1/s\n");
    assert_eq!(tollgate(&["fmt", "--check", &path], b"").code, Some(0));
    let shared = "domain: d\nrules:\n- {id: a, limit: &x 1/s}\n- {id: b, limit: *x}\n";
    let path = folder.write_file("shared.yaml", shared);
    let ran = tollgate(&["fmt", &path], b"");
    assert!(
        ran.code == Some(1) && ran.err.contains(":3: the sharing of anchors and aliases would be lost"),
        "{}",
        ran.err
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), shared);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left behind");
}

#[test]
fn folder_of_rules_is_served_decided_and_explained_like_a_file() {
    let folder = Folder::new();
    folder.write_file("rules/api.yaml", "domain: api\nrules:\n- {id: a, limit: 1/h}\n");
    folder.write_file("rules/web.json", r#"{"domain":"web","rules":[{"id":"b","limit":"1/h"}]}"#);
    let rules = folder.join("rules");
    let request = |domain: &str| format!("{{\"domain\":\"{domain}\",\"attributes\":{{}}}}\n");
    let lines = ["api", "web", "web"].map(request).concat();
    let decided = tollgate(&["decide", "--rules", &rules], lines.as_bytes()).expect_success();
    let outcomes: Vec<bool> = decided.lines().map(|line| line.contains("\"outcome\":\"allow\"")).collect();
    assert_eq!(outcomes, [true, true, false], "{decided}");
    assert!(tollgate(&["explain", "--rules", &rules, "web"], b"").expect_success().contains("web.json"));
    let server = Server::start(&["--rules", &rules]);
    let mut client = server.connect_http();
    assert_eq!(["api", "web", "web"].map(|domain| client.post("/v1/check", &request(domain)).0), [200, 200, 429]);
    folder.write_file("rules/more.yml", "domain: more\nrules:\n- {id: c, limit: 1/h}\n");
    server.wait_for_line("rules loaded");
    assert_eq!(client.post("/v1/check", &request("more")).0, 200);
    assert_eq!(client.post("/v1/check", &request("web")).0, 429, "the spent amount is kept");
}

#[test]
fn bad_files_are_reported() {
    let folder = Folder::new();
    let missing = folder.join("missing");
    let binary = folder.write_file("binary", (0..=255_u8).cycle().take(5000).collect::<Vec<_>>());
    let large = folder.write_file("large", "");
    std::fs::File::options().write(true).open(&large).unwrap().set_len(100 << 20).unwrap();
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        bomb += &format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 10].join(", "));
    }
    bomb += "descriptors: *a11\n";
    let bomb = folder.write_file("bomb", bomb);
    let empty = folder.write_file("empty", "");
    let directory = folder.path().display().to_string();
    for command in [&["import"][..], &["import", "--from", "nginx"], &["check"], &["fmt"], &["decide", "--rules"]] {
        let refused = |path: &str, expected: &str| {
            let ran = tollgate(&[command, &[path]].concat(), b"");
            assert!(
                ran.code == Some(1) && ran.err.contains(expected),
                "{command:?} {path}: {:?} {}",
                ran.code,
                ran.err
            );
            assert!(ran.err.len() < 100_000 && !ran.err.contains("panicked"), "{}", ran.err);
        };
        refused(&missing, "cannot read");
        // These commands accept a folder and look for rule files in it.
        let of_folder = matches!(command, ["check"] | ["decide", ..]);
        refused(&directory, if of_folder { "has no *.yaml, *.yml or *.json" } else { "cannot read" });
        refused(&large, "maximum 16777216");
        refused("/dev/zero", "maximum 16777216");
        refused(&binary, "not UTF-8");
        if command != ["import", "--from", "nginx"] {
            refused(&bomb, "invalid YAML");
        }
        if command != ["fmt"] {
            refused(&empty, "");
        }
    }
    assert!(Path::new(&binary).exists());
}

#[test]
fn help_of_commands_shows_examples() {
    for (command, example) in [
        ("import", "tollgate import envoy.yaml > rules.yaml"),
        ("decide", "tollgate decide --rules rules.yaml requests.jsonl"),
        ("fmt", "tollgate fmt --check"),
        ("rules", "tollgate rules apply login.yaml"),
        ("tokens", "tollgate tokens create --role admin --data tollgate-data"),
        ("keys", "tollgate keys peek api"),
        ("nodes", "tollgate nodes --server"),
        ("audit", "tollgate audit --domain api"),
    ] {
        let ran = tollgate(&[command, "--help"], b"");
        assert!(ran.code == Some(0) && ran.out.contains(example), "{}", ran.out);
    }
}

#[test]
fn completions_and_manual_pages_cover_every_command() {
    let folder = Folder::new();
    let script = folder.write_file("tollgate.bash", tollgate(&["completions", "bash"], b"").expect_success());
    common::run_program(std::process::Command::new("bash").args(["-n", &script]));
    let pages = folder.join("man");
    std::fs::create_dir(&pages).unwrap();
    tollgate(&["man", "--output", &pages], b"").expect_success();
    let help = tollgate(&["--help"], b"").expect_success();
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> = commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    assert!(names.contains(&"serve") && names.contains(&"doctor"), "{names:?}");
    for name in names.into_iter().filter(|name| !name.is_empty() && *name != "help") {
        let page = std::fs::read_to_string(Path::new(&pages).join(format!("tollgate-{name}.1"))).unwrap_or_default();
        assert!(page.contains(&format!(".TH tollgate-{name} 1")), "{name}: {page}");
        assert!(std::fs::read_to_string(&script).unwrap().contains(&format!("tollgate,{name})")), "{name}");
    }
    tollgate(&["man", "--output", &folder.join("nowhere")], b"").assert_failed(1, "cannot write manual pages into");
    tollgate(&["completions", "sh"], b"").assert_failed(2, "invalid value 'sh'");
}
