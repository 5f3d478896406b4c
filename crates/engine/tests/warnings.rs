//! Tests of warnings about valid rules that are probably mistakes. The texts are in `golden/warnings/`.

use crate::support;

use support::{parse_rules, test_bench};
use tollgate_engine::Attribute;
use tollgate_engine::rules::{Rules, Source};
use tollgate_testkit::golden;
use tollgate_testkit::golden::Page;

/// Returns the warnings about `rules` while the rules in `running` are loaded, one warning per line.
fn warnings_about(running: &str, rules: &str) -> String {
    let warnings = test_bench(running).engine.warnings(&parse_rules(rules));
    warnings.iter().map(|warning| format!("{warning}\n")).collect()
}

/// Compares the warnings about each rule set with a golden file. Every rule set must cause a warning.
fn assert_warnings(name: &str, rule_sets: &[&str]) {
    let mut page = Page::default();
    for rules in rule_sets {
        let warnings = warnings_about("", rules);
        assert!(!warnings.is_empty(), "no warning about\n{rules}");
        page.add_case(rules, &warnings);
    }
    golden!(format!("warnings/{name}"), page);
}

fn assert_no_warnings(rules: &str) {
    assert_eq!(warnings_about("", rules), "", "for\n{rules}");
}

#[test]
fn rule_hidden_by_an_allow_rule_causes_a_warning() {
    assert_warnings(
        "shadowed_rules",
        &["- {id: friends, when: {ip: [a, b]}, allow: true}\n\
           - {id: some, when: {ip: b, plan: free}, limit: 1/s}\n\
           - {id: others, when: {ip: [b, c]}, limit: 1/s}\n\
           - {id: foe, when: {ip: a}, deny: true}\n\
           - {id: all, limit: 1/s}\n"],
    );
    assert_no_warnings("- {id: late, allow: true, schedule: {from: '22:00'}}\n- {id: r, limit: 1/s}\n");
}

#[test]
fn lease_with_little_benefit_causes_a_warning() {
    assert_warnings(
        "small_leases",
        &[
            "- {id: slow, limit: 100/s, burst: 1000, consistency: leased}\n",
            "- {id: small, limit: 1000/s, burst: 10, consistency: leased}\n",
            "- {id: window, limit: 6000/m, algorithm: fixed_window, consistency: leased}\n",
        ],
    );
    assert_no_warnings("- {id: r, limit: 1000/s, consistency: leased}\n- {id: s, limit: 10/s}\n");
}

#[test]
fn override_that_never_applies_causes_a_warning() {
    assert_warnings(
        "shadowed_overrides",
        &["- id: r\n  limit: 1/s\n  overrides:\n  \
           - {when: {plan: pro}, limit: 2/s}\n  \
           - {when: {plan: pro, user: a}, limit: 3/s}\n  \
           - {when: {plan: [pro, own]}, limit: 4/s}\n  \
           - {when: {plan: own}, limit: 5/s}\n  \
           - {when: {user: b}, limit: 6/s, until: '2020-01-01T00:00:00Z'}\n  \
           - {when: {user: b}, limit: 7/s}\n"],
    );
}

#[test]
fn network_compared_as_a_string_causes_a_warning() {
    assert_warnings(
        "networks_as_strings",
        &["- {id: a, per: 'api_key, client_ip', limit: 1/s}\n\
           - {id: b, per: [api_key or], limit: 1/s}\n\
           - {id: c, when: {client_ip: [10.0.0.0/8, x]}, limit: 1/s, overrides: [{when: {user_ip: {not: '2001:db8::/32'}}, limit: 2/s}]}\n\
           - {id: d, when: {client_ip: {cidr: 10.0.0.0/8}, path: /v1/8, masked_remote_address: 10.0.0.0/8}, limit: 1/s}\n"],
    );
}

#[test]
fn name_that_looks_like_several_attributes_causes_a_warning() {
    let rule = |name: &str| format!("- {{id: r, per: ['{name}'], limit: 1/s}}\n");
    let names = ["api_key|client_ip", "api_key||client_ip", "api_key | client_ip", "api_key/client_ip", "a,b"];
    assert_warnings("several_attributes", &names.map(rule).each_ref().map(String::as_str));
    for name in ["example.com/team", "/team", "x-team", "tag#2", "user or team"] {
        assert_no_warnings(&rule(name));
    }
}

#[test]
fn misspelled_capture_name_causes_a_warning() {
    assert_warnings(
        "misspelled_captures",
        &["- {id: c, when: {path: '/shops/{shop}/x'}, per: [shopp], limit: 1/s}\n\
           - {id: d, when: {path: '/shops/{shop_id}/x'}, per: [user or shopId], limit: 1/s}\n"],
    );
    assert_no_warnings(
        "- {id: other, when: {path: '/shops/{shop}/x'}, per: [user], limit: 1/s}\n\
         - {id: both, when: {path: '/shops/{shop}/y'}, per: [shop, shops], limit: 1/s}\n\
         - {id: short, when: {path: '/ids/{id}/y'}, per: [ip], limit: 1/s}\n\
         - {id: known, when: {path: '/users/{user_id}/y', user_ip: {present: true}}, per: [user_ip], limit: 1/s}\n",
    );
}

#[test]
fn override_for_requests_outside_its_rule_causes_a_warning() {
    assert_warnings(
        "overrides_outside_of_their_rule",
        &[
            "- id: r\n  when: {plan: [free, trial], user: {not: root}, token: {present: false}}\n  limit: 1/s\n  overrides:\n  \
           - {when: {plan: pro}, limit: 2/s}\n  \
           - {when: {plan: [own, trial]}, limit: 3/s}\n  \
           - {when: {plan: 'pro*'}, limit: 4/s}\n  \
           - {when: {user: root}, limit: 5/s}\n  \
           - {when: {user: root2}, limit: 6/s}\n  \
           - {when: {token: x}, limit: 7/s}\n  \
           - {when: {plan: {present: false}}, limit: 8/s}\n  \
           - {when: {token: {present: true}}, limit: 9/s}\n",
        ],
    );
    assert_no_warnings(
        "- id: r\n  when: {path: /v1/**, 'tag#1': a, plan: {not: free}}\n  if: \"plan == 'own' || size(path) < 9\"\n  limit: 1/s\n  \
         overrides:\n  \
         - {when: {path: /v1/x}, limit: 2/s}\n  \
         - {when: {'tag#1': b}, limit: 3/s}\n  \
         - {when: {plan: [free, pro]}, limit: 4/s}\n",
    );
}

#[test]
fn pattern_that_no_path_matches_causes_a_warning() {
    let rule = |path: &str| format!("- {{id: r, when: {{path: {path}}}, limit: 1/s}}\n");
    let agent = "- {id: r, when: {agent: '^Mozilla.*'}, limit: 1/s}\n".to_owned();
    let paths = [
        "'v1/**'",
        "'login'",
        "'shops/{shop}/**/{item}'",
        "'^/v1/.*$'",
        "'/v1/.*'",
        "'^/login$'",
        "'/u/[^/]+/x'",
        "'^/(a|b)'",
    ];
    let rules: Vec<String> = paths.into_iter().map(rule).chain([agent]).collect();
    assert_warnings("impossible_paths", &rules.iter().map(String::as_str).collect::<Vec<_>>());
    for path in
        ["/v1/**", "'**/x'", "'*'", "'{a}/b'", "/files/report.*", "/.well-known/*", "/v1/$count", "{prefix: /v1}", "''"]
    {
        assert_no_warnings(&rule(path));
    }
    assert_no_warnings("- {id: r, when: {price: '5$', host: '*.example.com', file: a.*, mark: ^}, limit: 1/s}\n");
}

#[test]
fn cost_above_the_capacity_causes_a_warning() {
    assert_warnings(
        "costs_above_capacity",
        &["- {id: export, limit: 10/h, cost: 50}\n\
           - {id: bucket, limit: 10/h, burst: 50, cost: 50}\n\
           - {id: both, limits: [100/s, {limit: 20/day, algorithm: fixed_window}], cost: 21}\n\
           - {id: slots, limit: 2, algorithm: concurrency, lease: 9s, cost: 3}\n\
           - {id: kinds, limit: 10/s, cost: [{when: {path: /a}, cost: 10}, {when: {path: /b}, cost: 11}, {cost: 12}]}\n\
           - {id: waits, limit: 10/s, cost: 25, on_exceed: {delay: {max_wait: 2s}}}\n\
           - {id: sent, limit: 10/s, cost: {from: bytes, max: 100}}\n\
           - {id: missing, limit: 10/s, cost: {from: bytes, max: 10, missing: 11}}\n\
           - id: plans\n  limit: 100/s\n  cost: 50\n  overrides:\n  \
           - {when: {plan: free}, limit: 5/s}\n  \
           - {when: {plan: pro}, limit: 500/s, burst: 49}\n  \
           - {when: {plan: own}, unlimited: true}\n"],
    );
}

#[test]
fn limit_that_changes_tenfold_causes_a_warning() {
    let running = "- {id: a, limit: 10/s}\n- {id: b, limit: 10/s}\n- {id: c, limit: 10/s}\n";
    let rules = "- {id: a, limit: 101/s}\n- {id: b, limit: 59/m}\n- {id: c, limit: 100/s}\n";
    let mut page = Page::default();
    page.add_case(&format!("in force:\n{running}new:\n{rules}"), &warnings_about(running, rules));
    golden!("warnings/tenfold_changes", page);
}

#[test]
fn misspelled_attribute_causes_a_warning() {
    assert_warnings(
        "misspelled_attributes",
        &[
            "- {id: a, per: [api_key], limit: 1/s}\n- {id: b, per: [api_key], limit: 1/s}\n- {id: c, when: {api_kye: x}, limit: 1/s}\n",
        ],
    );
}

#[test]
fn ten_thousand_disjoint_overrides_cause_no_warning() {
    let overrides: String = (0..10_000).map(|n| format!("  - {{when: {{tenant: t{n}}}, limit: 5/s}}\n")).collect();
    assert_no_warnings(&format!("- id: r\n  limit: 7/s\n  overrides:\n{overrides}"));
}

/// Returns 10,000 copies of a rule. In each copy, `N` is replaced by the number of the copy.
fn repeat_rule(rule: &str) -> String {
    (0..10_000).map(|number| format!("- {}\n", rule.replace('N', &number.to_string()))).collect()
}

#[test]
fn ten_thousand_rules_with_only_an_if_are_indexed_by_its_implied_conditions() {
    for (rule, value, expected) in [
        ("{id: rN, if: \"plan == 'pN' && int(bytes) > 5\", limit: 1/s}", "p77", vec![77]),
        ("{id: rN, if: \"int(bytes) > 5 && plan in ['pN', 'qN']\", limit: 1/s}", "q9999", vec![9999]),
        ("{id: rN, if: \"plan.startsWith('pN/')\", limit: 1/s}", "p123/x", vec![123]),
        ("{id: rN, when: {user: {not: x}}, if: \"plan == 'pN' || plan == 'qN'\", limit: 1/s}", "p5", vec![5]),
        ("{id: rN, if: \"plan == 'pN'\", limit: 1/s}", "other", vec![]),
    ] {
        let bench = test_bench(&repeat_rule(rule));
        let set = bench.engine.rules();
        assert_eq!(set.unindexed_rule_count(b"d"), 0, "{rule}");
        let mut matched = tollgate_engine::CandidateRules::default();
        let attributes = [Attribute::new("plan", value), Attribute::new("bytes", "6")];
        assert_eq!(set.candidates(b"d", &attributes, &mut matched).unwrap(), expected, "{rule}");
    }
}

#[test]
fn many_rules_without_an_indexed_condition_cause_a_warning() {
    let mut page = Page::default();
    for rule in ["{id: rN, when: {plan: {not: pN}}, limit: 1/s}", "{id: rN, if: \"!has(aN)\", limit: 1/s}"] {
        let bench = test_bench(&repeat_rule(rule));
        assert_eq!(bench.engine.rules().unindexed_rule_count(b"d"), 10_000, "{rule}");
        let warnings = bench.engine.warnings(&parse_rules(&repeat_rule(rule)));
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        let about: Vec<&str> =
            warnings.iter().filter(|text| text.starts_with("rules:259:3: ")).map(String::as_str).collect();
        page.add_case(&format!("10,000 times {rule}"), &about.join("\n"));
    }
    golden!("warnings/unindexed_rules", page);
    let few: String = repeat_rule("{id: rN, limit: 1/s}").lines().take(256).map(|line| format!("{line}\n")).collect();
    assert!(test_bench(&few).engine.warnings(&parse_rules(&few)).is_empty());
}

#[test]
fn replaced_rule_that_does_not_exist_causes_a_warning() {
    assert_warnings(
        "unknown_replaced_rules",
        &["- {id: reading, limit: 1/s}\n\
           - {id: searching, limit: 2/s, replaces: [reading, raeding]}\n\
           - {id: nobody, limit: 3/s, replaces: [writing-of-long-texts]}\n"],
    );
}

#[test]
fn valid_rules_beside_mistakes_are_checked_for_warnings() {
    let text = "domain: d\nrules:\n\
                - {id: wrong, limit: 1/x, cost: 50}\n\
                - {id: unknown, limit: 1/s, cost: 50, brust: 5}\n\
                - {id: sound, limit: 1/s, cost: 50, replaces: [wrong]}\n\
                - {id: sound, limit: 1/s, cost: 51}\n";
    let warnings = |text: &str| -> String {
        let source = Source { name: "rules", text: text.as_bytes() };
        assert!(Rules::read(&[source]).is_err());
        let sound = Rules::read_valid(&[source], &|_, _| Err("none".into()));
        test_bench("").engine.warnings(&sound).iter().map(|warning| format!("{warning}\n")).collect()
    };
    let mut page = Page::default();
    page.add_case(text, &warnings(text));
    golden!("warnings/beside_errors", page);
    let twice = "domain: d\nrules:\n- {id: sound, limit: 1/s, cost: 50, cost: 1}\n";
    assert_eq!(warnings(twice), "", "it is ambiguous which of the two costs applies");
    assert_eq!(warnings("domain: d\nrules: ["), "");
}

#[test]
fn slots_that_callers_may_never_release_cause_a_warning() {
    assert_warnings(
        "slots_without_lease",
        &[
            "- {id: slots, limit: 2, algorithm: concurrency}\n",
            "- {id: both, limits: [1/s, {limit: 2, algorithm: concurrency}]}\n",
        ],
    );
    assert_no_warnings("- {id: slots, limit: 2, algorithm: concurrency, lease: 60s}\n");
}

#[test]
fn client_address_that_is_not_an_address_causes_a_warning() {
    assert_warnings(
        "not_an_address",
        &[
            "- {id: r, when: {client_ip: [192.0.2.1, localhost]}, limit: 1/s}\n",
            "- {id: r, when: {client_ip: {not: {equals: 10.0.0}}}, limit: 1/s}\n",
        ],
    );
    assert_no_warnings(
        "- {id: r, when: {client_ip: ['2001:DB8::1', '::ffff:192.0.2.1'], host: localhost}, limit: 1/s}\n",
    );
}
