//! Tests the content of exports, and that an export can be applied.
#![allow(clippy::unwrap_used)]

use crate::common;

use common::Folder;
use common::cli::start_with_database;
use proptest::prelude::*;
use serde_json::Value;

#[test]
fn export_lists_the_data_that_it_omits() {
    let folder = Folder::new();
    let (_server, cli) = start_with_database(&folder, &[]);
    let nothing = cli.run(&["rules", "export"]).expect_success();
    assert_eq!(nothing, "# There are no rules.\ndomains: []\n");
    let empty = folder.write_file("empty.yaml", &nothing);
    assert_eq!(
        cli.run(&["rules", "apply", "--prune", &empty]).expect_success(),
        "nothing to change: 0 rules unchanged\n"
    );
    assert_eq!(cli.run(&["check", &empty]).expect_success(), format!("{empty}: 0 rules in 0 domains, no mistakes\n"));

    let text = "domain: api\nrules:\n- id: a\n  per: [user]\n  limit: 5/s\n- id: b\n  limit: 9/m\n";
    cli.run(&["rules", "apply", &folder.write_file("api.yaml", text)]).expect_success();
    assert_eq!(cli.run(&["rules", "export"]).expect_success(), text, "nothing is left out");
    cli.run(&["rules", "disable", "api", "b"]).expect_success();
    for user in ["ann", "bob"] {
        cli.run(&["rules", "overrides", "set", "api", "a", user, "--limit", "50/s"]).expect_success();
    }
    cli.run(&["rules", "overrides", "set", "api", "b", "x", "--attribute", "user", "--deny"]).expect_success();
    let exported = cli.run(&["rules", "export"]).expect_success();
    let said = "# These settings are not part of the file. Applying the file here keeps them; on another server, set them again\n\
                # (tollgate rules overrides list, tollgate rules disable):\n\
                # - api/a has 2 overrides\n\
                # - api/b is disabled\n\
                # - api/b has 1 override\n";
    assert_eq!(exported, format!("{said}{text}"));
    // Applying an export to the rules it was made from changes nothing.
    let file = folder.write_file("export.yaml", &exported);
    let out = cli.run(&["rules", "apply", "--prune", &file]).expect_success();
    assert_eq!(out, "nothing to change: 2 rules unchanged\n");
    assert_eq!(cli.run(&["rules", "export"]).expect_success(), exported);
    assert_eq!(cli.run(&["fmt", "--check", &file]).code, Some(0), "the export is in its canonical form");
}

/// Generates JSON rules that use various features of the language.
fn any_rule() -> impl Strategy<Value = Value> {
    let when = prop_oneof![
        Just(Value::Null),
        "[a-z0-9/ '\"#:ü]{1,8}".prop_map(|text| serde_json::json!({"path": {"equals": text}})),
        Just(serde_json::json!({"ip": {"cidr": ["10.0.0.0/8"]}, "k": ["a", "b"]})),
    ];
    let effect = prop_oneof![
        (1..1_000_u32, prop_oneof!["s", "m", "h", "day"])
            .prop_map(|(n, per)| serde_json::json!({"limit": format!("{n}/{per}")})),
        (1..9_u32)
            .prop_map(|n| serde_json::json!({"limits": [format!("{n}/s"), {"limit": n, "algorithm": "concurrency"}]})),
        Just(serde_json::json!({"unlimited": true})),
        Just(serde_json::json!({"deny": true})),
    ];
    let message = proptest::option::of("[ -~äß→]{1,20}".prop_map(Value::from));
    (when, effect, message, any::<bool>()).prop_map(|(when, mut rule, message, per)| {
        let limited = rule.get("limit").is_some() || rule.get("limits").is_some();
        if !when.is_null() {
            rule["when"] = when;
        }
        if let Some(message) = message.filter(|_| limited) {
            rule["message"] = message;
        }
        if per && limited {
            rule["per"] = serde_json::json!(["user"]);
        }
        rule
    })
}

#[test]
fn export_and_apply_are_inverse() {
    let folder = Folder::new();
    let (_server, cli) = start_with_database(&folder, &[]);
    let domains = proptest::collection::vec(proptest::collection::vec(any_rule(), 0..6), 1..4);
    let cases = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(cases, |(domains in domains)| {
        let of = |(place, rules): (usize, &Vec<Value>)| {
            let with_id = |(n, rule): (usize, &Value)| {
                let mut rule = rule.clone();
                rule["id"] = Value::from(format!("{}r{n}", ["", "a:", "b/"][n % 3]));
                rule
            };
            serde_json::json!({"domain": format!("d{place}"), "rules": rules.iter().enumerate().map(with_id).collect::<Vec<_>>()})
        };
        let text = serde_json::json!({"domains": domains.iter().enumerate().map(of).collect::<Vec<_>>()});
        let file = folder.write_file("all.json", text.to_string());
        // Deletes the rules of domains that only the previous case used, so that the export contains only this case.
        for place in domains.len()..4 {
            let empty = folder.write_file("empty.yaml", format!("domain: d{place}\nrules: []\n"));
            cli.run(&["rules", "apply", "--prune", &empty]).expect_success();
        }
        cli.run(&["rules", "apply", "--prune", &file]).expect_success();
        prop_assert!(cli.run(&["rules", "apply", "--plan", "--prune", &file]).expect_success().starts_with("nothing to change"));
        let exported = cli.run(&["rules", "export"]).expect_success();
        let again = folder.write_file("again.yaml", &exported);
        let out = cli.run(&["rules", "apply", "--plan", "--prune", &again]).expect_success();
        prop_assert!(out.starts_with("nothing to change"), "{}\n{}", out, exported);
        // Applying the export to an empty database recreates the same rules.
        let other = Folder::new();
        let (_server, elsewhere) = start_with_database(&other, &[]);
        elsewhere.run(&["rules", "apply", &again]).expect_success();
        prop_assert_eq!(elsewhere.run(&["rules", "export"]).expect_success(), exported);
    });
}
