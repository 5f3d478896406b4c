//! Lines of nginx as rules.
#![allow(clippy::unwrap_used)]

use tollgate_engine::rules::{Dialect, Imported, Source};

fn import(config: &str) -> Result<Imported, String> {
    let source = Source { name: "n", text: config.as_bytes() };
    Imported::read(&source, Some(Dialect::Nginx), "web").map_err(|mistakes| mistakes.to_string())
}

/// The rules, without the domain, and what was left out.
fn check(config: &str, rules: &str, left_out: &str) {
    let imported = import(config).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(imported.yaml, format!("domain: web\nrules:\n{rules}"), "for\n{config}");
    let told = imported.left_out.map(|left_out| left_out.to_string()).unwrap_or_default();
    assert!(if left_out.is_empty() { told.is_empty() } else { told.contains(left_out) }, "{told}\nfor\n{config}");
}

const ZONE: &str = "limit_req_zone $binary_remote_addr zone=a:1m rate=5r/s;\n";

#[test]
fn a_burst_is_one_more_than_nginx_says() {
    for (line, numbers) in [
        ("limit_req zone=a;", "  limit: 5/s\n  burst: 1\n"),
        ("limit_req zone=a burst=9 nodelay;", "  limit: 5/s\n  burst: 10\n"),
        ("limit_req zone=a burst=9 delay=9;", "  limit: 5/s\n  burst: 10\n"),
        ("limit_req zone=a burst=9;", "  limit: 5/s\n  algorithm: leaky_bucket\n  burst: 10\n"),
        ("limit_req zone=a burst=9 delay=4;", "  limit: 5/s\n  algorithm: leaky_bucket\n  burst: 10\n  free: 4\n"),
    ] {
        check(&format!("{ZONE}{line}"), &format!("- id: a\n  per: [client_ip]\n{numbers}  status: 503\n"), "");
    }
}

#[test]
fn keys_are_attributes_and_empty_ones_are_not_counted() {
    for (key, rule, left_out) in [
        ("$server_name", "- id: a\n  per: [host]\n", ""),
        ("$http_x_api_key", "- id: a\n  when: {header.x-api-key: {present: true}}\n  per: [header.x-api-key]\n", ""),
        ("$cookie_sid", "- id: a\n  when: {cookie.sid: {present: true}}\n  per: [cookie.sid]\n", ""),
        ("\"$binary_remote_addr:${arg_q}\"", "- id: a\n  per: [client_ip, query.q]\n", ""),
        ("fixed", "- id: a\n", ""),
        (
            "$plan",
            "- id: a\n  when: {plan: {present: true}}\n  per: [plan]\n",
            "n:1:16: what `$plan` is, only nginx knows",
        ),
    ] {
        let config = format!("limit_req_zone {key} zone=a:1m rate=60r/m;\nlimit_req zone=a;");
        check(&config, &format!("{rule}  limit: 60/m\n  burst: 1\n  status: 503\n"), left_out);
    }
}

#[test]
fn connections_are_held_at_a_time() {
    check(
        "limit_conn_zone $binary_remote_addr zone=c:1m;\nlimit_conn_status 429;\nlimit_conn c 3;",
        "- id: c\n  per: [client_ip]\n  limit: 3\n  algorithm: concurrency\n  status: 429\n",
        "a slot that is neither released nor renewed comes back after its `lease`",
    );
}

#[test]
fn locations_and_servers_are_conditions_and_limits_are_inherited_as_nginx_does() {
    check(
        &format!(
            "http {{ {ZONE} limit_req zone=a;\nserver {{ server_name a.example b.example;\n\
             location / {{ }} location /api/ {{ limit_req zone=a burst=1 nodelay; }}\n\
             location /api/slow {{ limit_req_dry_run on; limit_req zone=a; }} location = /ping {{ limit_req zone=a; }} }} }}"
        ),
        "- id: a\n  per: [client_ip]\n  limit: 5/s\n  burst: 1\n  overrides:\n  - {when: {host: [a.example, b.example], path: {equals: /ping}}, unlimited: true}\n  \
         - {when: {host: [a.example, b.example], path: {prefix: [/api/, /api/slow]}}, unlimited: true}\n  status: 503\n\
         - id: a/api/\n  when: {host: [a.example, b.example], path: {prefix: /api/}}\n  per: [client_ip]\n  limit: 5/s\n  burst: 2\n  \
         overrides: [{when: {path: {prefix: /api/slow}}, unlimited: true}]\n  status: 503\n\
         - id: a/api/slow\n  when: {host: [a.example, b.example], path: {prefix: /api/slow}}\n  per: [client_ip]\n  limit: 5/s\n  burst: 1\n  on_exceed: shadow\n\
         - id: a/ping\n  when: {host: [a.example, b.example], path: {equals: /ping}}\n  per: [client_ip]\n  limit: 5/s\n  burst: 1\n  status: 503\n",
        "",
    );
}

#[test]
fn what_is_not_carried_over_is_told() {
    for (config, left_out) in [
        (
            "location ~ \\.php$ { limit_req zone=a; }",
            "n:2:21: limits in a location with a regular expression are not carried over",
        ),
        ("", "n:1:1: the zone `a` is used by no `limit_req`"),
        ("limit_req zone=a; limit_req_log_level warn;", "`limit_req_log_level` is not carried over"),
        ("server { server_name ~^a; limit_req zone=a; }", "names of servers that are regular expressions"),
    ] {
        let imported = import(&format!("{ZONE}{config}")).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let told = imported.left_out.unwrap().to_string();
        assert!(told.contains(left_out), "{told}");
    }
    let told =
        import("limit_req_zone $host zone=a:1m rate=7r/m; limit_req zone=a;").unwrap().left_out.unwrap().to_string();
    assert!(told.contains("nginx rounds `7r/m` down"), "{told}");
}

#[test]
fn mistakes_are_told_with_their_line() {
    for (config, expected) in [
        ("limit_req zone=b;", "n:2:1: there is no zone `b` in this file; valid are `a`"),
        ("limit_conn a 3;", "put the line that makes it"),
        ("limit_req zone=a burst=x;", "n:2:18: `burst` is a whole number, this is `x`"),
        ("limit_req_zone $host zone=c:1m;", "this zone has no rate"),
        ("limit_req_zone $host zone=c:1m rate=0r/s;", "`0r/s` is not a rate of nginx"),
        ("limit_req_zone zone=c:1m rate=1r/s;", "does not say what it counts"),
        ("limit_req_zone $host rate=1r/s;", "this zone has no name"),
        ("limit_req_status 200;", "is a status from 400 to 599"),
        ("server { limit_req zone=a;", "this brace is not closed"),
    ] {
        let told = import(&format!("{ZONE}{config}")).err().unwrap_or_else(|| panic!("{config} is refused"));
        assert!(told.contains(expected), "{config}\n{told}");
    }
}

#[test]
fn hostile_files_are_refused_in_time() {
    let blocks = "location /a { limit_req zone=a; }\n".repeat(4200);
    let limits = "limit_req zone=a;\n".repeat(4200);
    for (config, expected) in [
        (&blocks, "at most 4096 blocks"),
        (&limits, "more than 4096 limits"),
        (&"a {".repeat(1_000_000), "16 in each other"),
        (&"}".repeat(1_000_000), "closes nothing"),
        (&"'".repeat(1_000_001), "not closed"),
    ] {
        let told = import(&format!("{ZONE}{config}")).err().unwrap_or_else(|| panic!("{expected}"));
        assert!(told.contains(expected), "{}", &told[..200.min(told.len())]);
    }
    let most = "location /a { limit_req zone=a; }\n".repeat(500);
    assert!(import(&format!("{ZONE}{most}")).is_ok());
}
