//! What is valid and yet probably not meant.

mod support;

use support::{bench, read};

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
