//! Imports nginx configurations. The messages are in `golden/import/`.
#![allow(clippy::unwrap_used)]

use crate::support;

use support::poll_once;
use tollgate_engine::rules::{Dialect, ImportedRules, Rules, Source};
use tollgate_engine::{Attribute, Decisions, Engine, Item, MemoryStore, Request};
use tollgate_testkit::golden;
use tollgate_testkit::golden::Page;

fn import_config(config: &str) -> Result<ImportedRules, String> {
    let source = Source { name: "n", text: config.as_bytes() };
    ImportedRules::read(&source, Some(Dialect::Nginx), "web").map_err(|mistakes| mistakes.to_string())
}

/// Imports a configuration and compares the rules (without the domain) and the omitted directives with the expected
/// ones.
fn assert_imported(config: &str, rules: &str, left_out: &str) {
    let imported = import_config(config).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(imported.yaml, format!("domain: web\nrules:\n{rules}"), "for\n{config}");
    let message = imported.left_out.map(|left_out| left_out.to_string()).unwrap_or_default();
    assert!(
        if left_out.is_empty() { message.is_empty() } else { message.contains(left_out) },
        "{message}\nfor\n{config}"
    );
}

const ZONE_DIRECTIVE: &str = "limit_req_zone $binary_remote_addr zone=a:1m rate=5r/s;\n";

#[test]
fn burst_is_one_more_than_in_nginx() {
    for (line, numbers) in [
        ("limit_req zone=a;", "  limit: 5/s\n  burst: 1\n"),
        ("limit_req zone=a burst=9 nodelay;", "  limit: 5/s\n  burst: 10\n"),
        ("limit_req zone=a burst=9 delay=9;", "  limit: 5/s\n  burst: 10\n"),
        ("limit_req zone=a burst=9;", "  limit: 5/s\n  algorithm: leaky_bucket\n  burst: 10\n"),
        ("limit_req zone=a burst=9 delay=4;", "  limit: 5/s\n  algorithm: leaky_bucket\n  burst: 10\n  free: 4\n"),
    ] {
        assert_imported(
            &format!("{ZONE_DIRECTIVE}{line}"),
            &format!("- id: a\n  per: [client_ip]\n{numbers}  status: 503\n"),
            "",
        );
    }
}

#[test]
fn zone_keys_become_attributes_and_empty_keys_are_not_counted() {
    for (key, rule, left_out) in [
        ("$server_name", "- id: a\n  per: [host]\n", ""),
        ("$http_x_api_key", "- id: a\n  when: {header.x-api-key: {present: true}}\n  per: [header.x-api-key]\n", ""),
        ("$cookie_sid", "- id: a\n  when: {cookie.sid: {present: true}}\n  per: [cookie.sid]\n", ""),
        ("\"$binary_remote_addr:${arg_q}\"", "- id: a\n  per: [client_ip, query.q]\n", ""),
        ("api:$cookie_sid", "- id: a\n  per: [cookie.sid]\n", ""),
        ("${cookie_sid}", "- id: a\n  when: {cookie.sid: {present: true}}\n  per: [cookie.sid]\n", ""),
        ("fixed", "- id: a\n", ""),
        (
            "$plan",
            "- id: a\n  when: {plan: {present: true}}\n  per: [plan]\n",
            "n:1:16: the variable `$plan` is known only to nginx",
        ),
    ] {
        let config = format!("limit_req_zone {key} zone=a:1m rate=60r/m;\nlimit_req zone=a;");
        assert_imported(&config, &format!("{rule}  limit: 60/m\n  burst: 1\n  status: 503\n"), left_out);
    }
}

#[test]
fn limit_conn_becomes_a_concurrency_limit() {
    assert_imported(
        "limit_conn_zone $binary_remote_addr zone=c:1m;\nlimit_conn_status 429;\nlimit_conn c 3;",
        "- id: c\n  per: [client_ip]\n  limit: 3\n  algorithm: concurrency\n  status: 429\n",
        "a slot that is neither released nor renewed is freed after `lease`",
    );
}

#[test]
fn locations_and_servers_become_conditions_with_nginx_inheritance() {
    assert_imported(
        &format!(
            "http {{ {ZONE_DIRECTIVE} limit_req zone=a;\nserver {{ server_name a.example b.example;\n\
             location / {{ }} location /api/ {{ limit_req zone=a burst=1 nodelay; }}\n\
             location /api/slow {{ limit_req_dry_run on; limit_req zone=a; }} location = /ping {{ limit_req zone=a; }} }} }}"
        ),
        "- id: a\n  per: [client_ip]\n  limit: 5/s\n  burst: 1\n  overrides:\n  - {when: {host: [a.example, b.example], path: {prefix: /api/slow}}, unlimited: true}\n  \
         - {when: {host: [a.example, b.example], path: {prefix: /api/}}, limit: 5/s, burst: 2}\n  status: 503\n\
         - id: a/api/slow\n  when: {host: [a.example, b.example], path: {prefix: /api/slow}}\n  per: [client_ip]\n  limit: 5/s\n  burst: 1\n  on_exceed: shadow\n",
        "the zone `a` has several kinds of refusals; here each kind has its own counter",
    );
}

/// Asserts which limits apply to some requests; each limit is identified by its burst.
fn assert_limits(config: &str, requests: &[(&str, &str, &[u64])]) {
    let imported = import_config(config).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let rules = Rules::read(&[Source { name: "y", text: imported.yaml.as_bytes() }]).unwrap();
    let engine = Engine::new(MemoryStore::new(100).unwrap()).unwrap();
    engine.put(&rules).unwrap();
    for (host, path, expected) in requests {
        let attributes = [Attribute::new("host", *host), Attribute::new("path", *path)];
        let (items, mut decisions) = ([Item::new(&attributes)], Decisions::default());
        let decision = poll_once(engine.peek(&Request::new("web", &items), &mut decisions)).unwrap();
        let mut found: Vec<u64> = decision.reports().map(|report| report.report.limit).collect();
        found.sort_unstable();
        assert_eq!(found, *expected, "{host}{path} with\n{}", imported.yaml);
    }
}

#[test]
fn limits_are_inherited_only_by_blocks_without_own_limits() {
    let config = "limit_req_zone a zone=a:1m rate=1r/s; limit_req_zone b zone=b:1m rate=1r/s;\n\
        http {\n limit_req zone=a burst=1 nodelay;\n\
        server { server_name one.example;\n\
        \x20 location /own/ { limit_req zone=a burst=2 nodelay; location /own/inner/ { } location /own/other/ { limit_req zone=b burst=4 nodelay; } }\n\
        \x20 location /own/beside/ { }\n\
        \x20 location = /own/exact { limit_req zone=a burst=5 nodelay; limit_req zone=b burst=6 nodelay; }\n\
        \x20 location ^~ /plain/ { }\n }\n\
        server { server_name two.example *.two.example .three.example; limit_req zone=b burst=7 nodelay;\n\
        \x20 location /x/ { limit_req_status 429; }\n }\n\
        server { location /own/ { limit_req zone=b burst=8 nodelay; } }\n }";
    assert_limits(
        config,
        &[
            ("one.example", "/", &[2]),
            ("one.example", "/plain/x", &[2]),
            ("one.example", "/own/", &[3]),
            ("one.example", "/own/inner/x", &[3]),
            ("one.example", "/own/other/x", &[5]),
            ("one.example", "/own/beside/x", &[2]),
            ("one.example", "/own/exact", &[6, 7]),
            ("one.example", "/own/exact/not", &[3]),
            ("two.example", "/own/", &[8]),
            ("www.two.example", "/", &[8]),
            ("two.example", "/x/1", &[8]),
            ("three.example", "/", &[8]),
            ("a.three.example", "/", &[8]),
            ("unknown.example", "/", &[2]),
            ("unknown.example", "/own/", &[9]),
        ],
    );
    let message = import_config(config).unwrap().left_out.unwrap().to_string();
    assert!(message.contains("n:1:39: the zone `b` has several kinds of refusals"), "{message}");
}

#[test]
fn limits_of_one_zone_share_their_counters() {
    let config = "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/m;\n\
        location /a { limit_req zone=a burst=1 nodelay; } location /b { limit_req zone=a burst=3 nodelay; }";
    let rules = Rules::read(&[Source { name: "y", text: import_config(config).unwrap().yaml.as_bytes() }]).unwrap();
    let engine = Engine::new(MemoryStore::new(100).unwrap()).unwrap();
    engine.put(&rules).unwrap();
    let passes = |path: &str| {
        let attributes = [Attribute::new("client_ip", "192.0.2.1"), Attribute::new("path", path)];
        let (items, mut decisions) = ([Item::new(&attributes)], Decisions::default());
        poll_once(engine.check(&Request::new("web", &items), &mut decisions)).unwrap().is_admitted()
    };
    assert!(passes("/a") && passes("/a") && !passes("/a"));
    assert!(passes("/b") && passes("/b") && !passes("/b"), "two of four were spent in the other location");
    assert!(passes("/c") && passes("/c") && passes("/c"));
}

/// Imports a configuration of several files. The first file is the main file.
fn import_files(files: &[(&str, &str)]) -> Result<ImportedRules, String> {
    let include = |pattern: &str| {
        let fits = |name: &str| match pattern.split_once('*') {
            Some((start, end)) => name.starts_with(start) && name.ends_with(end),
            None => name == pattern,
        };
        let found = files
            .iter()
            .filter(|(name, _)| fits(name))
            .map(|(name, text)| (name.to_string(), text.as_bytes().to_vec()));
        let found: Vec<_> = found.collect();
        if found.is_empty() && !pattern.contains('*') { Err("no such file".into()) } else { Ok(found) }
    };
    let (name, text) = files[0];
    ImportedRules::read_with(&Source { name, text: text.as_bytes() }, None, "web", &include)
        .map_err(|message| message.to_string())
}

#[test]
fn included_files_replace_their_directive() {
    let imported = import_files(&[
        (
            "nginx.conf",
            "http {\n include mime.types; include zones.conf;\n include sites/*.conf;\n include empty/*;\n}",
        ),
        ("zones.conf", "limit_req_zone $binary_remote_addr zone=a:1m rate=5r/s;"),
        ("sites/a.conf", "server {\n server_name a.example;\n include shared.inc;\n}"),
        ("sites/b.conf", "server { server_name b.example; }"),
        ("shared.inc", "limit_req zone=a;\nlimit_req_log_level warn;"),
    ])
    .unwrap();
    assert_eq!(
        imported.yaml,
        "domain: web\nrules:\n- id: a\n  when: {host: a.example}\n  per: [client_ip]\n  limit: 5/s\n  burst: 1\n  status: 503\n"
    );
    let left_out = imported.left_out.unwrap();
    assert_eq!(
        left_out.to_string(),
        "nginx.conf:2:10: cannot include `mime.types`: no such file; its limits are missing\n\
         shared.inc:2:1: `limit_req_log_level` is not imported: refusals are counted, not logged"
    );
    assert!(
        left_out.as_slice()[1].to_detailed_text().contains("  | limit_req_log_level warn;\n"),
        "the mistake has its source line"
    );
}

#[test]
fn mistakes_name_the_included_file_and_includes_are_bounded() {
    let zone = "limit_req_zone $host zone=a:1m rate=5r/s;";
    for (files, expected) in [
        (vec![("n", "events { } include b;"), ("b", "limit_req zone=z;")], "b:1:1: unknown zone `z`"),
        (vec![("n", "events { } include b;"), ("b", "server {")], "b:1:8: unclosed `{`"),
        (vec![("n", "events { } include b;"), ("b", zone), ("c", "")], ""),
        (vec![("n", "events { } include n;")], "n:1:20: includes are nested too deep (maximum 8)"),
    ] {
        let message = import_files(&files).err().unwrap_or_default();
        assert!(
            if expected.is_empty() { message.is_empty() } else { message.contains(expected) },
            "{files:?}\n{message}"
        );
    }
    let many: Vec<(String, String)> = (0..300).map(|number| (format!("part{number}"), String::new())).collect();
    let files: Vec<(&str, &str)> = std::iter::once(("n", "events { } include part*;"))
        .chain(many.iter().map(|(name, text)| (&**name, &**text)))
        .collect();
    assert!(import_files(&files).unwrap_err().contains("too many included files (maximum 256 files"));
}

#[test]
fn directives_that_are_not_imported_are_reported() {
    let mut page = Page::default();
    for config in [
        format!("{ZONE_DIRECTIVE}location ~ \\.php$ {{ limit_req zone=a; }}"),
        ZONE_DIRECTIVE.into(),
        format!("{ZONE_DIRECTIVE}limit_req zone=a; limit_req_log_level warn;"),
        format!("{ZONE_DIRECTIVE}server {{ server_name ~^a; limit_req zone=a; }}"),
        "limit_req_zone $host zone=a:1m rate=7r/m; limit_req zone=a;".into(),
        "limit_conn_zone $plan zone=c:1m; limit_conn c 3;".into(),
    ] {
        let imported = import_config(&config).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        page.add_case(&config, &imported.left_out.unwrap().to_string());
    }
    golden!("import/nginx_not_imported", page);
}

#[test]
fn files_with_mistakes_are_refused() {
    let mut page = Page::default();
    for config in [
        "limit_req zone=b;",
        "limit_conn a 3;",
        "limit_req zone=a burst=x;",
        "limit_req_zone $host zone=c:1m;",
        "limit_req_zone $host zone=c:1m rate=0r/s;",
        "limit_req_zone zone=c:1m rate=1r/s;",
        "limit_req_zone $host rate=1r/s;",
        "limit_req_status 200;",
        "server { limit_req zone=a;",
    ] {
        page.add_case(
            config,
            &import_config(&format!("{ZONE_DIRECTIVE}{config}")).err().unwrap_or_else(|| panic!("{config} is refused")),
        );
    }
    golden!("import/nginx_mistakes", page);
}

#[test]
fn hostile_files_are_refused_quickly() {
    let blocks = "location /a { limit_req zone=a; }\n".repeat(4200);
    let limits = "limit_req zone=a;\n".repeat(4200);
    for (config, expected) in [
        (&blocks, "too many blocks (maximum 4096,"),
        (&limits, "too many limits (maximum 4096)"),
        (&"a {".repeat(1_000_000), "nested 16 levels"),
        (&"}".repeat(1_000_000), "unmatched `}`"),
        (&"'".repeat(1_000_001), "unclosed quote"),
    ] {
        let message = import_config(&format!("{ZONE_DIRECTIVE}{config}")).err().unwrap_or_else(|| panic!("{expected}"));
        assert!(message.contains(expected), "{}", &message[..200.min(message.len())]);
    }
    let most = "location /a { limit_req zone=a; }\n".repeat(500);
    assert!(import_config(&format!("{ZONE_DIRECTIVE}{most}")).is_ok());
}
