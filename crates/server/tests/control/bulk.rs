//! Applies whole files.

use std::sync::Arc;

use proptest::prelude::*;
use tollgate_server::control::model::{
    Action, AuditSearch, Change, ExpectedVersion, OtherRulesPolicy, PageRequest, Plan, RuleSearch,
};
use tollgate_server::control::{Control, ControlError};

use crate::test_database::{TestDatabase, change_by, put_rule};

on_both_databases!(
    file_is_planned_and_applied_atomically,
    file_with_one_mistake_changes_nothing,
    order_of_rules_in_files_is_kept,
    exported_file_can_be_applied,
    files_of_envoy_are_accepted,
    mistakes_and_warnings_are_reported_with_their_lines,
    random_rules_survive_a_round_trip,
    a_hundred_thousand_rules_are_stored_and_one_more_is_refused,
);

async fn apply_file(control: &Control, text: &str, others: OtherRulesPolicy) -> Plan {
    control.rule_files().apply(&change_by("git"), text.as_bytes(), others, &|_| true).await.unwrap()
}

fn summarise_plan(plan: &Plan) -> String {
    let changes =
        plan.changes.iter().map(|change| format!("{}/{}:{}", change.domain, change.id, change.action.as_str()));
    changes.collect::<Vec<_>>().join(" ")
}

async fn rule_ids(control: &Control, domain: &str) -> String {
    let page = control.rules().list(domain, &RuleSearch::default(), &PageRequest::default()).await.unwrap();
    page.items.into_iter().map(|rule| rule.id).collect::<Vec<_>>().join(" ")
}

const FILE: &str = "domain: api\nrules:\n- {id: b, limit: 1/s}\n- {id: a, limit: 2/s}\n";

async fn file_is_planned_and_applied_atomically(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "old", "{limit: 9/s}").await;
    put_rule(&control, "web", "old", "{limit: 9/s}").await;
    let plan = control.rule_files().plan(FILE.as_bytes(), OtherRulesPolicy::Delete).await.unwrap();
    assert_eq!(summarise_plan(&plan), "api/b:create api/a:create api/old:delete");
    assert_eq!((plan.applied, plan.revision, plan.unchanged), (false, 2, 0));
    assert_eq!(plan.changes[0].diff, "+id: b\n+limit: 1/s\n");
    assert_eq!(plan.changes[2].diff, "-id: old\n-limit: 9/s\n");
    assert_eq!(rule_ids(&control, "api").await, "old");
    let stale = control
        .rule_files()
        .apply(
            &change_by("git").with_expected(ExpectedVersion::Version(1)),
            FILE.as_bytes(),
            OtherRulesPolicy::Keep,
            &|_| true,
        )
        .await;
    assert!(matches!(stale, Err(ControlError::Conflict(conflict)) if conflict.current == Some(2)));
    let foreign = control
        .rule_files()
        .apply(&change_by("git"), FILE.as_bytes(), OtherRulesPolicy::Keep, &|name| name == "web")
        .await;
    assert!(matches!(foreign, Err(ControlError::Invalid(why)) if why.contains("`api`")));
    let why = Change { comment: Some("commit 1234".into()), ..change_by("git") };
    let expected = ExpectedVersion::Version(2);
    let done = control
        .rule_files()
        .apply(&why.clone().with_expected(expected), FILE.as_bytes(), OtherRulesPolicy::Delete, &|name| name == "api")
        .await
        .unwrap();
    assert_eq!((done.applied, done.revision, summarise_plan(&done)), (true, 3, summarise_plan(&plan)));
    assert_eq!(rule_ids(&control, "api").await, "b a");
    assert_eq!(rule_ids(&control, "web").await, "old");
    assert_eq!(control.rules().get("api", "a").await.unwrap().comment.as_deref(), Some("commit 1234"));
    assert_eq!(control.history().get("api", "old", 2).await.unwrap().action, Action::Delete);
    let log = control
        .audit()
        .list(&AuditSearch { author: Some("git".into()), ..AuditSearch::default() }, &PageRequest::default())
        .await
        .unwrap();
    assert_eq!(log.items.iter().map(|line| line.revision).collect::<Vec<_>>(), [3, 3, 3]);
    // Applying again changes nothing.
    let again = apply_file(&control, FILE, OtherRulesPolicy::Delete).await;
    assert_eq!((again.revision, again.unchanged, again.changes.len()), (3, 2, 0));
    assert_eq!(*control.watch_revision().borrow(), 3);
    // A rule that is created again continues its version numbers.
    apply_file(&control, "domain: api\nrules: [{id: old, limit: 1/s}]", OtherRulesPolicy::Keep).await;
    assert_eq!(control.rules().get("api", "old").await.unwrap().version, 3);
}

async fn file_with_one_mistake_changes_nothing(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let text = format!("{FILE}- {{id: c, limit: fast}}\n");
    let error = control
        .rule_files()
        .apply(&change_by("git"), text.as_bytes(), OtherRulesPolicy::Keep, &|_| true)
        .await
        .unwrap_err();
    let ControlError::Mistakes(mistakes) = error else { panic!("{error}") };
    assert_eq!(mistakes.as_slice()[0].position.line, 5);
    assert!(matches!(
        control.rule_files().plan(text.as_bytes(), OtherRulesPolicy::Keep).await,
        Err(ControlError::Mistakes(_))
    ));
    let huge = format!("{FILE}- {{id: c, limit: 1/s, when: {{a: [{}]}}}}\n", vec!["v".repeat(1000); 66].join(", "));
    let error = control
        .rule_files()
        .apply(&change_by("git"), huge.as_bytes(), OtherRulesPolicy::Keep, &|_| true)
        .await
        .unwrap_err();
    assert!(matches!(error, ControlError::Full(_)), "{error}");
    assert!(control.rules().domains().await.unwrap().is_empty());
    assert_eq!(*control.watch_revision().borrow(), 0);
}

async fn order_of_rules_in_files_is_kept(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let file = |ids: &str| {
        let rules: Vec<String> = ids.chars().map(|id| format!("{{id: {id}, limit: 1/s}}")).collect();
        format!("{{domain: api, rules: [{}]}}", rules.join(", "))
    };
    apply_file(&control, &file("abcd"), OtherRulesPolicy::Keep).await;
    let plan = apply_file(&control, &file("dbxa"), OtherRulesPolicy::Keep).await;
    assert_eq!(rule_ids(&control, "api").await, "d b c x a");
    assert!(summarise_plan(&plan).contains("api/x:create"));
    assert_eq!(control.rules().get("api", "a").await.unwrap().version, 1);
    assert_eq!(apply_file(&control, &file("dbxa"), OtherRulesPolicy::Keep).await.changes.len(), 0);
    apply_file(&control, &file("axd"), OtherRulesPolicy::Delete).await;
    assert_eq!(rule_ids(&control, "api").await, "a x d");
    put_rule(&control, "api", "b", "{limit: 1/s}").await;
    assert_eq!(rule_ids(&control, "api").await, "a x d b");
    let snapshot = control.snapshot().await.unwrap();
    let places: Vec<_> =
        ["a", "x", "d", "b"].map(|id| snapshot.rules.find(&format!("\"id\":\"{id}\"")).unwrap()).into();
    assert!(places.is_sorted());
}

async fn exported_file_can_be_applied(database: Arc<TestDatabase>) {
    let control = database.open().await;
    apply_file(&control, FILE, OtherRulesPolicy::Keep).await;
    put_rule(&control, "web", "w", "{limit: 5/s, when: {path: '/a b', method: [GET, POST]}, message: 'no: really'}")
        .await;
    assert_eq!(
        control.rule_files().export(&["api".into(), "api".into()], None).await.unwrap(),
        FILE.replace("{id: b, limit: 1/s}", "id: b\n  limit: 1/s")
            .replace("{id: a, limit: 2/s}", "id: a\n  limit: 2/s")
    );
    let all = control.rule_files().export(&[], None).await.unwrap();
    assert!(all.starts_with("domains:\n- domain: api\n"), "{all}");
    let plan = control.rule_files().plan(all.as_bytes(), OtherRulesPolicy::Delete).await.unwrap();
    assert_eq!((plan.changes.len(), plan.unchanged), (0, 3), "{plan:?}");
    for odd in ["none", "\0", "'"] {
        assert!(matches!(control.rule_files().export(&[odd.into()], None).await, Err(ControlError::Missing(_))));
    }
}

async fn files_of_envoy_are_accepted(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let text =
        "domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {unit: second, requests_per_unit: 10}}\n";
    assert_eq!(summarise_plan(&apply_file(&control, text, OtherRulesPolicy::Keep).await), "edge/remote_address:create");
    assert_eq!(control.rules().get("edge", "remote_address").await.unwrap().rule["limit"], "10/s");
}

async fn mistakes_and_warnings_are_reported_with_their_lines(database: Arc<TestDatabase>) {
    let control = database.open().await;
    apply_file(&control, FILE, OtherRulesPolicy::Keep).await;
    let found = control.rule_files().validate(b"domain: api\nrules:\n- {id: b, limt: 1/s}\n").await.unwrap();
    assert_eq!((found.rules, found.mistakes[0].line), (0, 3));
    let found = control.rule_files().validate(b"domain: api\nrules:\n- {id: b, limit: 1000/s}\n").await.unwrap();
    assert_eq!((found.rules, found.mistakes.len(), found.warnings.len()), (1, 0, 1));
    assert_eq!(found.warnings[0].line, 3);
    let plan = control
        .rule_files()
        .plan(b"domain: api\nrules:\n- {id: b, limit: 1000/s}\n", OtherRulesPolicy::Keep)
        .await
        .unwrap();
    assert_eq!(plan.warnings.len(), 1);
    for text in [&b""[..], b"\xff", b"[", b"3", b"domain: api", b"{}"] {
        assert!(!control.rule_files().validate(text).await.unwrap().mistakes.is_empty());
    }
}

/// Generates typical and unusual rules.
fn any_rule() -> impl Strategy<Value = serde_json::Value> {
    let value = prop_oneof![
        "[a-z/]{1,8}",
        "\\PC{0,12}",
        "[0-9]{1,5}",
        Just("true".to_owned()),
        Just(" x: y # z".to_owned()),
        any::<String>()
    ];
    let values = proptest::collection::vec(value.clone(), 1..4);
    let when = proptest::collection::btree_map("[a-z\"': {}#-]{1,10}", values, 0..4);
    let text = value.prop_filter("messages have no control characters", |text| {
        !text.is_empty() && !text.chars().any(char::is_control)
    });
    (when, 1..100_000_u32, proptest::option::of(1..1000_u32), proptest::option::of(text), any::<bool>()).prop_map(
        |(when, limit, burst, message, shadow)| {
            let when: serde_json::Map<_, _> =
                when.into_iter().map(|(name, values)| (name, serde_json::json!({ "equals": values }))).collect();
            let mut rule = serde_json::json!({ "when": when, "limit": format!("{limit}/m") });
            let map = rule.as_object_mut().unwrap();
            if let Some(burst) = burst {
                map.insert("burst".into(), burst.into());
            }
            if let Some(message) = message {
                map.insert("message".into(), message.into());
            }
            if shadow {
                map.insert("on_exceed".into(), "shadow".into());
            }
            rule
        },
    )
}

async fn random_rules_survive_a_round_trip(database: Arc<TestDatabase>) {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let control = database.open().await;
    let mut runner = TestRunner::deterministic();
    let mut kept = Vec::new();
    for number in 0..200 {
        let rule = any_rule().new_tree(&mut runner).unwrap().current();
        let (domain, id) = (format!("d{}", number % 3), format!("r{number}"));
        match control.rules().put(&change_by("ann"), &domain, &id, rule.to_string().as_bytes()).await {
            Ok(written) => kept.push(written.value),
            // Some generated rules are invalid and are refused.
            Err(ControlError::Mistakes(_)) => {}
            Err(error) => panic!("{error} for {rule}"),
        }
    }
    assert!(kept.len() > 100, "only {} of 200 rules are valid", kept.len());
    for one in &kept {
        // Writing back a rule that was read changes nothing.
        let text = one.rule.to_string();
        let again = control.rules().put(&change_by("bob"), &one.domain, &one.id, text.as_bytes()).await.unwrap();
        assert!(!again.changed, "{text}");
    }
    let exported = control.rule_files().export(&[], None).await.unwrap();
    let plan = control.rule_files().plan(exported.as_bytes(), OtherRulesPolicy::Delete).await.unwrap();
    assert_eq!((summarise_plan(&plan), plan.unchanged), (String::new(), kept.len()));
    let snapshot = control.snapshot().await.unwrap();
    let plan = control.rule_files().plan(snapshot.rules.as_bytes(), OtherRulesPolicy::Delete).await.unwrap();
    assert_eq!((summarise_plan(&plan), plan.unchanged), (String::new(), kept.len()));
}

async fn a_hundred_thousand_rules_are_stored_and_one_more_is_refused(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let mut text = String::from("{\"domain\":\"api\",\"rules\":[");
    for number in 0..100_000 {
        text += if number > 0 { "," } else { "" };
        text += &format!(r#"{{"id":"r{number}","when":{{"path":"/{number}"}},"limit":"1/s"}}"#);
    }
    text += "]}";
    let plan = apply_file(&control, &text, OtherRulesPolicy::Keep).await;
    assert_eq!(plan.changes.len(), 100_000);
    let full = control.rules().put(&change_by("ann"), "api", "more", b"{limit: 1/s}").await;
    assert!(matches!(full, Err(ControlError::Full(_))));
    let mut cut = PageRequest { after: None, limit: Some(1000) };
    for _ in 0..3 {
        cut.after = control.rules().list("api", &RuleSearch::default(), &cut).await.unwrap().next;
    }
    let page = control.rules().list("api", &RuleSearch::default(), &cut).await.unwrap();
    assert_eq!(page.items[0].id, "r3000");
    let snapshot = control.snapshot().await.unwrap();
    let read = tollgate_engine::rules::Rules::read(&[tollgate_engine::rules::Source {
        name: "s",
        text: snapshot.rules.as_bytes(),
    }]);
    assert_eq!(read.unwrap().len(), 100_000);
}
