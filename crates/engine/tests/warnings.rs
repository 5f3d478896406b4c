//! What is valid and yet probably not meant.

mod support;

use support::{bench, read};
use tollgate_engine::Entry;
use tollgate_engine::rules::{Rules, Source};

fn check(running: &str, rules: &str, expected: &[&str]) {
    let bench = bench(running);
    let told: Vec<String> = bench.engine.warnings(&read(rules)).iter().map(ToString::to_string).collect();
    assert_eq!(told, expected, "for\n{rules}");
}

#[test]
fn rules_that_nobody_is_left_for() {
    check(
        "",
        "- {id: friends, when: {ip: [a, b]}, allow: true}\n\
         - {id: some, when: {ip: b, plan: free}, limit: 1/s}\n\
         - {id: others, when: {ip: [b, c]}, limit: 1/s}\n\
         - {id: foe, when: {ip: a}, deny: true}\n\
         - {id: all, limit: 1/s}\n",
        &[
            "rules:4:3: `some` is never asked: `friends` allows every request that it is for",
            "rules:6:3: `foe` is never asked: `friends` allows every request that it is for",
        ],
    );
    check("", "- {id: late, allow: true, schedule: {from: '22:00'}}\n- {id: r, limit: 1/s}\n", &[]);
}

#[test]
fn overrides_that_never_count() {
    check(
        "",
        "- id: r\n  limit: 1/s\n  overrides:\n  \
         - {when: {plan: pro}, limit: 2/s}\n  \
         - {when: {plan: pro, user: a}, limit: 3/s}\n  \
         - {when: {plan: [pro, own]}, limit: 4/s}\n  \
         - {when: {plan: own}, limit: 5/s}\n  \
         - {when: {user: b}, limit: 6/s, until: '2020-01-01T00:00:00Z'}\n  \
         - {when: {user: b}, limit: 7/s}\n",
        &[
            "rules:7:5: this override never counts: an earlier one holds whenever it does; that one is at 6:5",
            "rules:9:5: this override never counts: an earlier one holds whenever it does; that one is at 8:5",
            "rules:10:5: this override has ended",
        ],
    );
}

#[test]
fn texts_that_are_taken_as_they_stand() {
    check(
        "",
        "- {id: a, per: 'api_key, client_ip', limit: 1/s}\n\
         - {id: b, per: [api_key or], limit: 1/s}\n\
         - {id: c, when: {client_ip: [10.0.0.0/8, x]}, limit: 1/s, overrides: [{when: {user_ip: {not: '2001:db8::/32'}}, limit: 2/s}]}\n\
         - {id: d, when: {client_ip: {cidr: 10.0.0.0/8}, path: /v1/8, masked_remote_address: 10.0.0.0/8}, limit: 1/s}\n",
        &[
            "rules:3:3: `a` counts by one attribute, which is called `api_key, client_ip`; several are written `per: [a, b]`, one or \
             another `per: [a or b]`",
            "rules:4:3: `b` counts by one attribute, which is called `api_key or`; several are written `per: [a, b]`, one or another \
             `per: [a or b]`",
            "rules:5:3: `client_ip` is compared with the text `10.0.0.0/8`, which no address is; a network is written `client_ip: \
             {cidr: 10.0.0.0/8}`",
            "rules:5:71: `user_ip` is compared with the text `2001:db8::/32`, which no address is; a network is written `user_ip: \
             {cidr: 2001:db8::/32}`",
        ],
    );
}

#[test]
fn several_attributes_in_one_name() {
    let told = "several are written `per: [a, b]`, one or another `per: [a or b]`";
    for name in ["api_key|client_ip", "api_key||client_ip", "api_key | client_ip", "api_key/client_ip", "a,b"] {
        let expected = format!("rules:3:3: `r` counts by one attribute, which is called `{name}`; {told}");
        check("", &format!("- {{id: r, per: ['{name}'], limit: 1/s}}\n"), &[&expected]);
    }
    for name in ["example.com/team", "/team", "x-team", "tag#2", "user or team"] {
        check("", &format!("- {{id: r, per: ['{name}'], limit: 1/s}}\n"), &[]);
    }
}

#[test]
fn names_in_patterns_that_are_missed_by_a_slip() {
    check(
        "",
        "- {id: c, when: {path: '/shops/{shop}/x'}, per: [shopp], limit: 1/s}\n\
         - {id: d, when: {path: '/shops/{shop_id}/x'}, per: [user or shopId], limit: 1/s}\n",
        &[
            "rules:3:3: `c` counts by an attribute `shopp`, and not by `{shop}`; did you mean `shop`?",
            "rules:4:3: `d` counts by an attribute `shopId`, and not by `{shop_id}`; did you mean `shop_id`?",
        ],
    );
    check(
        "",
        "- {id: other, when: {path: '/shops/{shop}/x'}, per: [user], limit: 1/s}\n\
         - {id: both, when: {path: '/shops/{shop}/y'}, per: [shop, shops], limit: 1/s}\n\
         - {id: short, when: {path: '/ids/{id}/y'}, per: [ip], limit: 1/s}\n\
         - {id: known, when: {path: '/users/{user_id}/y', user_ip: {present: true}}, per: [user_ip], limit: 1/s}\n",
        &[],
    );
}

#[test]
fn overrides_for_what_their_rule_is_not_for() {
    let help = "let the `when` of the rule hold for them, too, or make a rule of it";
    check(
        "",
        "- id: r\n  when: {plan: [free, trial], user: {not: root}, token: {present: false}}\n  limit: 1/s\n  overrides:\n  \
         - {when: {plan: pro}, limit: 2/s}\n  \
         - {when: {plan: [own, trial]}, limit: 3/s}\n  \
         - {when: {plan: 'pro*'}, limit: 4/s}\n  \
         - {when: {user: root}, limit: 5/s}\n  \
         - {when: {user: root2}, limit: 6/s}\n  \
         - {when: {token: x}, limit: 7/s}\n  \
         - {when: {plan: {present: false}}, limit: 8/s}\n  \
         - {when: {token: {present: true}}, limit: 9/s}\n",
        &[
            &format!(
                "rules:7:5: this override never counts for a request with one `plan`: its rule is not for `pro`; {help}"
            ),
            &format!("rules:10:5: this override never counts: by `user`, its rule is not for `root`; {help}"),
            &format!("rules:12:5: this override never counts: by `token`, its rule is not for `x`; {help}"),
            &format!(
                "rules:13:5: this override never counts: by `plan`, its rule is not for requests without one; {help}"
            ),
            &format!(
                "rules:14:5: this override never counts: by `token`, its rule is not for requests with one; {help}"
            ),
        ],
    );
    check(
        "",
        "- id: r\n  when: {path: /v1/**, 'tag#1': a, plan: {not: free}}\n  if: \"plan == 'own' || size(path) < 9\"\n  limit: 1/s\n  \
         overrides:\n  \
         - {when: {path: /v1/x}, limit: 2/s}\n  \
         - {when: {'tag#1': b}, limit: 3/s}\n  \
         - {when: {plan: [free, pro]}, limit: 4/s}\n",
        &[],
    );
}

#[test]
fn paths_that_no_path_is() {
    let no_expression = "as a path, not as a regular expression";
    let known = "there are none; `*` is anything within a segment, `**` any number of segments, and what begins so is written \
                 `{prefix: …}`";
    for (path, expected) in [
        ("v1/**", "`path` is compared with `v1/**`, and a path begins with a slash; did you mean `/v1/**`?".into()),
        ("login", "`path` is compared with `login`, and a path begins with a slash; did you mean `/login`?".into()),
        (
            "shops/{shop}/**/{item}",
            "`path` is compared with `shops/{shop}/**/{item}`, and a path begins with a slash; did you mean \
             `/shops/{shop}/**/{item}`?"
                .into(),
        ),
        ("^/v1/.*$", format!("`path` is compared with `^/v1/.*$` {no_expression}; did you mean `/v1/**`?")),
        ("/v1/.*", format!("`path` is compared with `/v1/.*` {no_expression}; did you mean `/v1/**`?")),
        ("^/login$", format!("`path` is compared with `^/login$` {no_expression}; did you mean `/login`?")),
        ("/u/[^/]+/x", format!("`path` is compared with `/u/[^/]+/x` {no_expression}; did you mean `/u/*/x`?")),
        ("^/(a|b)", format!("`path` is compared with `^/(a|b)` {no_expression}; {known}")),
    ] {
        check(
            "",
            &format!("- {{id: r, when: {{path: '{path}'}}, limit: 1/s}}\n"),
            &[&format!("rules:3:3: {expected}")],
        );
    }
    check(
        "",
        "- {id: r, when: {agent: '^Mozilla.*'}, limit: 1/s}\n",
        &[&format!("rules:3:3: `agent` is compared with `^Mozilla.*` as a text, not as a regular expression; {known}")],
    );
    for path in
        ["/v1/**", "'**/x'", "'*'", "'{a}/b'", "/files/report.*", "/.well-known/*", "/v1/$count", "{prefix: /v1}", "''"]
    {
        check("", &format!("- {{id: r, when: {{path: {path}}}, limit: 1/s}}\n"), &[]);
    }
    check("", "- {id: r, when: {price: '5$', host: '*.example.com', file: a.*, mark: ^}, limit: 1/s}\n", &[]);
}

#[test]
fn costs_that_their_limits_have_no_room_for() {
    check(
        "",
        "- {id: export, limit: 10/h, cost: 50}\n\
         - {id: bucket, limit: 10/h, burst: 50, cost: 50}\n\
         - {id: both, limits: [100/s, {limit: 20/day, algorithm: fixed_window}], cost: 21}\n\
         - {id: slots, limit: 2, algorithm: concurrency, cost: 3}\n\
         - {id: waits, limit: 10/s, cost: 25, on_exceed: {delay: {max_wait: 2s}}}\n\
         - {id: sent, limit: 10/s, cost: {from: bytes, max: 100}}\n\
         - {id: missing, limit: 10/s, cost: {from: bytes, max: 10, missing: 11}}\n\
         - id: plans\n  limit: 100/s\n  cost: 50\n  overrides:\n  \
         - {when: {plan: free}, limit: 5/s}\n  \
         - {when: {plan: pro}, limit: 500/s, burst: 49}\n  \
         - {when: {plan: own}, unlimited: true}\n",
        &[
            "rules:3:3: a request never fits `export`: it weighs 50, and there is room for 10 at once; write a `burst` of at \
             least 50 beside the limit, or a smaller `cost`",
            "rules:5:3: a request never fits `both`: it weighs 21, and there is room for 20 at once; write a limit of at least 21, \
             or a smaller `cost`",
            "rules:6:3: a request never fits `slots`: it weighs 3, and there is room for 2 at once; write a limit of at least 3, or \
             a smaller `cost`",
            "rules:8:3: a request whose `bytes` is no whole number, or too large, never fits `sent`: it weighs 100, and there is \
             room for 10 at once; write a `burst` of at least 100 beside the limit, or a smaller `max`",
            "rules:9:3: a request without `bytes` never fits `missing`: it weighs 11, and there is room for 10 at once; write a \
             `burst` of at least 11 beside the limit, or a smaller `missing`",
            "rules:14:5: a request never fits this override: it weighs 50, and there is room for 5 at once; write a `burst` of at \
             least 50 beside the limit, or a smaller `cost`",
            "rules:15:5: a request never fits this override: it weighs 50, and there is room for 49 at once; write a `burst` of at \
             least 50 beside the limit, or a smaller `cost`",
        ],
    );
}

#[test]
fn limits_that_jumped() {
    check(
        "- {id: a, limit: 10/s}\n- {id: b, limit: 10/s}\n- {id: c, limit: 10/s}\n",
        "- {id: a, limit: 101/s}\n- {id: b, limit: 59/m}\n- {id: c, limit: 100/s}\n",
        &[
            "rules:3:3: a limit of `a` lets pass more than ten times as much as the one in force",
            "rules:4:3: a limit of `b` lets pass less than a tenth of the one in force",
        ],
    );
}

#[test]
fn names_that_look_like_slips() {
    check(
        "",
        "- {id: a, per: [api_key], limit: 1/s}\n- {id: b, per: [api_key], limit: 1/s}\n- {id: c, when: {api_kye: x}, limit: 1/s}\n",
        &["rules:5:3: `c` is the only rule that names the attribute `api_kye`; did you mean `api_key`?"],
    );
}

#[test]
fn ten_thousand_overrides_are_looked_through_at_once() {
    let overrides: String = (0..10_000).map(|n| format!("  - {{when: {{tenant: t{n}}}, limit: 5/s}}\n")).collect();
    check("", &format!("- id: r\n  limit: 7/s\n  overrides:\n{overrides}"), &[]);
}

/// Rules that differ only in a number.
fn many(rule: &str) -> String {
    (0..10_000).map(|number| format!("- {}\n", rule.replace('N', &number.to_string()))).collect()
}

#[test]
fn ten_thousand_rules_that_have_only_an_if_are_found_by_what_it_cannot_hold_without() {
    for (rule, value, expected) in [
        ("{id: rN, if: \"plan == 'pN' && int(bytes) > 5\", limit: 1/s}", "p77", vec![77]),
        ("{id: rN, if: \"int(bytes) > 5 && plan in ['pN', 'qN']\", limit: 1/s}", "q9999", vec![9999]),
        ("{id: rN, if: \"plan.startsWith('pN/')\", limit: 1/s}", "p123/x", vec![123]),
        ("{id: rN, when: {user: {not: x}}, if: \"plan == 'pN' || plan == 'qN'\", limit: 1/s}", "p5", vec![5]),
        ("{id: rN, if: \"plan == 'pN'\", limit: 1/s}", "other", vec![]),
    ] {
        let bench = bench(&many(rule));
        let set = bench.engine.rules();
        assert_eq!(set.tried(b"d"), 0, "{rule}");
        let mut matched = tollgate_engine::Matched::default();
        let entries = [Entry::new("plan", value), Entry::new("bytes", "6")];
        assert_eq!(set.meets(b"d", &entries, &mut matched).unwrap(), expected, "{rule}");
    }
}

#[test]
fn rules_that_have_to_be_tried_are_counted_and_pointed_out_if_they_are_many() {
    let told = "10000 rules of `d` are tried one by one for every request";
    for rule in [
        "{id: rN, when: {plan: {not: pN}}, limit: 1/s}",
        "{id: rN, if: \"!has(aN)\", limit: 1/s}",
        "{id: rN, limit: 1/s}",
    ] {
        let bench = bench(&many(rule));
        assert_eq!(bench.engine.rules().tried(b"d"), 10_000, "{rule}");
        let warnings = bench.engine.warnings(&read(&many(rule)));
        let warning = warnings.iter().find(|warning| warning.to_string().contains(told)).expect(rule).to_string();
        assert!(warning.starts_with("rules:259:3: ") && warning.contains("these name none"), "{warning}");
    }
    let few: String = many("{id: rN, limit: 1/s}").lines().take(256).map(|line| format!("{line}\n")).collect();
    assert!(bench(&few).engine.warnings(&read(&few)).is_empty());
}

#[test]
fn rules_that_are_replaced_and_not_there() {
    check(
        "",
        "- {id: reading, limit: 1/s}\n\
         - {id: searching, limit: 2/s, replaces: [reading, raeding]}\n\
         - {id: nobody, limit: 3/s, replaces: [writing-of-long-texts]}\n",
        &[
            "rules:4:3: `searching` replaces `raeding`, and there is no such rule in this domain; did you mean `reading`?",
            "rules:5:3: `nobody` replaces `writing-of-long-texts`, and there is no such rule in this domain; write the `id` of \
             another rule",
        ],
    );
}

#[test]
fn beside_mistakes_what_is_sound_is_looked_at_by_itself() {
    let text = "domain: d\nrules:\n\
                - {id: wrong, limit: 1/x, cost: 50}\n\
                - {id: unknown, limit: 1/s, cost: 50, brust: 5}\n\
                - {id: sound, limit: 1/s, cost: 50, replaces: [wrong]}\n\
                - {id: sound, limit: 1/s, cost: 51}\n";
    let told = |text: &str| -> Vec<String> {
        let source = Source { name: "rules", text: text.as_bytes() };
        assert!(Rules::read(&[source]).is_err());
        let sound = Rules::sound(&[source], &|_, _| Err("none".into()));
        bench("").engine.warnings(&sound).iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        told(text),
        [
            "rules:5:3: a request never fits `sound`: it weighs 50, and there is room for 1 at once; write a `burst` of at least \
          50 beside the limit, or a smaller `cost`"
        ]
    );
    let twice = "domain: d\nrules:\n- {id: sound, limit: 1/s, cost: 50, cost: 1}\n";
    assert!(told(twice).is_empty(), "which of the costs is meant is not known");
    assert!(told("domain: d\nrules: [").is_empty());
}
