//! Tests of conditions, and of the attributes in `per`.

use crate::support;

use support::{parse_rules, test_bench};
use tollgate_engine::rules::{Rules, Source};

#[test]
fn prefixes_networks_and_negations_match() {
    let mut bench = test_bench(
        "- {id: a, limit: 1/s, when: {agent: {prefix: [curl/, Wget/]}}}\n\
         - {id: b, limit: 2/s, when: {agent: {not: {prefix: curl/}}}}\n\
         - {id: c, limit: 3/s, when: {ip: {cidr: 10.0.0.0/8}}}\n\
         - {id: d, limit: 4/s, when: {ip: {not: {cidr: [10.0.0.0/8, 127.0.0.1]}}}}\n\
         - {id: e, limit: 5/s, when: {method: {not: [GET, HEAD]}, ip: {present: true}}}\n\
         - {id: f, limit: 6/s, when: {path: {not: /public/**}}}\n",
    );
    assert_eq!(bench.remaining(&[("agent", "curl/8"), ("ip", "10.1.1.1"), ("path", "/public/x")]), [1, 3, 5]);
    assert_eq!(bench.remaining(&[("agent", "Wget/1"), ("ip", "::ffff:127.0.0.1"), ("method", "GET")]), [1, 2, 6]);
    assert_eq!(bench.remaining(&[("agent", "curl"), ("ip", "x"), ("method", "PUT"), ("path", "/")]), [2, 4, 5, 6]);
    assert_eq!(bench.remaining(&[("path", "/public")]), [2, 4]);
}

#[test]
fn requests_are_counted_by_the_captured_segment() {
    let mut bench =
        test_bench("- {id: r, limit: 1/h, when: {path: ['/shops/{shop}/**', '/**/of/{shop}']}, per: [shop]}\n");
    assert_eq!(bench.check(&[("path", "/shops/a/carts/7")]), "allow");
    assert_eq!(bench.check(&[("path", "/shops/a")]), "deny 3600s");
    assert_eq!(bench.check(&[("path", "/x/y/of/a")]), "deny 3600s");
    assert_eq!(bench.check(&[("path", "/shops/b")]), "allow");
    // If the attribute has several values, the value that matches the pattern is used.
    assert_eq!(bench.check(&[("path", "/other"), ("path", "/shops/c")]), "allow");
    assert_eq!(bench.check(&[("path", "/shops/c/d")]), "deny 3600s");
}

#[test]
fn requests_are_counted_by_the_first_present_alternative() {
    let mut bench = test_bench("- {id: r, limit: 1/h, per: [user or client_ip]}\n");
    assert_eq!(bench.check(&[("user", "1.2.3.4"), ("client_ip", "5.6.7.8")]), "allow");
    assert_eq!(bench.check(&[("client_ip", "1.2.3.4")]), "allow", "an address is not a user with the same value");
    assert_eq!(bench.check(&[("client_ip", "9.9.9.9"), ("user", "1.2.3.4")]), "deny 3600s");
    assert_eq!(bench.check(&[]), "allow");
    assert_eq!(bench.check(&[]), "deny 3600s");
}

#[test]
fn client_address_is_counted_in_one_form() {
    for per in ["client_ip", "user or client_ip"] {
        let mut bench = test_bench(&format!("- {{id: each, limit: 1/h, per: [{per}]}}\n"));
        for (first, same) in [
            ("192.0.2.1", &["::ffff:192.0.2.1", "192.0.2.1:80", "[::FFFF:c000:201]:443"][..]),
            (
                "2001:db8::5",
                &["2001:DB8:0:0::5", "2001:db8::ffff", "[2001:db8::5]:80", "2001:db8::5%eth0", "2001:db8::/64"],
            ),
            ("not:an:address", &["not:an:address"]),
        ] {
            assert_eq!(bench.check(&[("client_ip", first)]), "allow", "{first}");
            for address in same {
                assert_eq!(bench.check(&[("client_ip", *address)]), "deny 3600s", "{address} is {first}");
            }
        }
        assert_eq!(bench.check(&[("client_ip", "2001:db8:0:1::5")]), "allow", "another network");
    }
    // The values of other attributes are compared as strings.
    let mut bench = test_bench("- {id: each, limit: 1/h, per: [peer]}\n");
    assert_eq!(bench.check(&[("peer", "192.0.2.1")]), "allow");
    assert_eq!(bench.check(&[("peer", "::ffff:192.0.2.1")]), "allow");
}

#[test]
fn client_address_is_compared_by_its_value() {
    let mut bench = test_bench(
        "- {id: named, limit: 7/h, when: {client_ip: ['2001:DB8::1', 192.0.2.9]}}\n\
         - {id: others, limit: 9/h, when: {client_ip: {not: ['2001:db8::1', 192.0.2.9]}}}\n",
    );
    for named in ["2001:db8::1", "2001:db8:0::1", "[2001:DB8::1]:80", "::ffff:192.0.2.9"] {
        assert_eq!(bench.remaining(&[("client_ip", named)]), [7], "{named}");
    }
    for other in ["2001:db8::2", "192.0.2.10", "alice"] {
        assert_eq!(bench.remaining(&[("client_ip", other)]), [9], "{other}");
    }
}

#[test]
fn value_that_is_not_an_address_is_refused_or_ignored_as_invalid_specifies() {
    for (invalid, anchor, expected) in [
        ("", "", "allow"),
        (", invalid: ignore", "", "allow"),
        (", invalid: deny", "", "deny for ever"),
        // The result is the same if the rule is indexed by another condition.
        (", invalid: deny", ", tenant: acme", "deny for ever"),
    ] {
        let mut bench = test_bench(&format!(
            "- {{id: blocked, when: {{client_ip: {{cidr: [10.0.0.0/8, '8000::/1']}}{anchor}}}, deny: true{invalid}}}\n\
             - {{id: all, limit: 1M/s}}\n"
        ));
        let tenant = ("tenant", "acme");
        assert_eq!(bench.check(&[("client_ip", "10.1.1.1"), tenant]), "deny for ever");
        assert_eq!(bench.check(&[("client_ip", "192.0.2.1"), tenant]), "allow");
        for address in ["", "alice", "10.1.1", "10.1.1.1.1"] {
            assert_eq!(bench.check(&[("client_ip", address), tenant]), expected, "{address:?}{invalid}");
        }
        assert_eq!(bench.check(&[tenant]), "allow", "not an address");
    }
}

#[test]
fn cost_differs_by_kind_of_request_over_one_quota() {
    let mut bench = test_bench(
        "- id: quota\n  per: [key]\n  limit: 100/h\n  algorithm: fixed_window\n  cost:\n  \
         - {when: {path: /export}, cost: 50}\n  - {when: {path: '/search/**', method: [GET, HEAD]}, cost: 5}\n  \
         - {when: {method: {not: GET}}, cost: 2}\n  overrides: [{when: {plan: pro}, limit: 1000/h}]\n",
    );
    let mut left = |more: &[(&str, &str)]| {
        let ask = [&[("key", "k")], more].concat();
        bench.decide(&ask, None, |_| ());
        bench.remaining(&ask)[0]
    };
    assert_eq!(left(&[("path", "/"), ("method", "GET")]), 99, "no case matches");
    assert_eq!(left(&[("path", "/search/x"), ("method", "GET")]), 94);
    assert_eq!(left(&[("path", "/export"), ("method", "GET")]), 44);
    assert_eq!(left(&[("path", "/export"), ("method", "POST")]), 44, "a cost of 50 does not fit");
    assert_eq!(left(&[("path", "/"), ("method", "POST")]), 42);
    assert_eq!(left(&[("path", "/export"), ("plan", "pro")]), 892, "costs and overrides are independent");
    let export = [("key", "k"), ("path", "/export"), ("plan", "pro")];
    assert_eq!(bench.check_cost(&export, 1), "allow");
    assert_eq!(bench.remaining(&export)[0], 891, "the request states its cost");
}

#[test]
fn lists_of_values_are_read_from_files() {
    let text =
        "domain: d\nrules:\n- {id: r, when: {ip: {file: blocked.txt}, user: {not: {file: staff.txt}}}, deny: true}\n";
    let sources = [Source { name: "etc/rules.yaml", text: text.as_bytes() }];
    let file = |rules: &str, name: &str| match (rules, name) {
        ("etc/rules.yaml", "blocked.txt") => Ok(b"# bad ones\n10.0.0.0/8\n192.0.2.7 # this one\n\nunknown\n".to_vec()),
        ("etc/rules.yaml", "staff.txt") => Ok((0..1_000).map(|n| format!("s{n}\n")).collect::<String>().into_bytes()),
        _ => Err("no such file".into()),
    };
    let rules = Rules::read_with(&sources, &file).unwrap();
    let mut bench = test_bench("");
    bench.engine.put(&rules).unwrap();
    assert_eq!(bench.check(&[("ip", "10.2.3.4")]), "deny for ever");
    assert_eq!(bench.check(&[("ip", "192.0.2.7"), ("user", "s1000")]), "deny for ever");
    assert_eq!(bench.check(&[("ip", "unknown"), ("user", "s999")]), "allow");
    assert_eq!(bench.check(&[("ip", "192.0.2.8")]), "allow");
    let mistakes = Rules::read(&sources).unwrap_err().to_string();
    assert!(
        mistakes.starts_with("etc/rules.yaml:3:29: cannot read `blocked.txt`: reading files is not supported here"),
        "{mistakes}"
    );
}

#[test]
fn long_lists_match_their_values() {
    let list: Vec<String> = (0..20_000).map(|n| format!("10.{}.{}.0/24", n / 256, n % 256)).collect();
    let rules = parse_rules(&format!(
        "- {{id: r, limit: 1/s, when: {{ip: {{cidr: [{}]}}, m: {{not: [{}]}}}}}}\n",
        list.join(", "),
        list.join(", ")
    ));
    let mut bench = test_bench("");
    bench.engine.put(&rules).unwrap();
    assert_eq!(bench.remaining(&[("ip", "10.77.3.9")]), [1]);
    assert!(bench.remaining(&[("ip", "10.79.3.9")]).is_empty());
    assert!(bench.remaining(&[("ip", "10.77.3.9"), ("m", "10.3.3.0/24")]).is_empty());
}

#[test]
fn expression_decides_which_requests_match() {
    let mut bench = test_bench(
        "- {id: a, limit: 1/s, when: {plan: [pro, own]}, if: \"int(bytes) > 4096 || size(path) > 5\"}\n\
         - {id: b, limit: 2/s, if: \"method in ['PUT', 'POST'] && path.startsWith('/v1/')\"}\n\
         - {id: c, if: \"attributes['x-trial'] == '1'\", deny: true}\n",
    );
    assert_eq!(bench.remaining(&[("plan", "pro"), ("bytes", "5000")]), [1]);
    assert_eq!(bench.remaining(&[("plan", "pro"), ("bytes", "x"), ("path", "/longer")]), [1]);
    assert!(bench.remaining(&[("plan", "pro"), ("bytes", "x"), ("path", "/v1/")]).is_empty());
    assert_eq!(bench.remaining(&[("method", "PUT"), ("path", "/v1/x")]), [2]);
    assert_eq!(bench.check(&[("x-trial", "1")]), "deny for ever");
    assert_eq!(bench.check(&[("x-trial", "2")]), "allow");
}

#[test]
fn only_matches_exactly_these_attributes_in_order() {
    let mut bench = test_bench("- {id: pair, only: [service, user], per: [user], limit: 1/h}\n");
    assert_eq!(bench.check(&[("service", "a"), ("user", "u")]), "allow");
    assert!(bench.check(&[("service", "b"), ("user", "u")]).starts_with("deny"));
    for others in [
        &[("user", "u"), ("service", "a")][..],
        &[("service", "a")],
        &[("service", "a"), ("user", "u"), ("more", "x")],
        &[("service", "a"), ("user", "u"), ("user", "u")],
    ] {
        assert_eq!(bench.check(others), "allow", "{others:?}");
    }
}
