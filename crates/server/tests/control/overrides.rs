//! Overrides for one customer.

use std::sync::Arc;

use serde_json::json;
use tollgate_engine::rules::{Rules, Source};
use tollgate_server::control::model::{AuditSearch, ExpectedVersion, OtherRulesPolicy, PageRequest};
use tollgate_server::control::{ActionNote, Control, ControlError, NotedAction};

use crate::test_database::{TestDatabase, change_by, put_rule};

on_both_databases!(
    override_is_set_with_one_call,
    overrides_of_a_domain_are_listed_over_pages,
    api_overrides_precede_overrides_in_the_rule,
    overrides_with_mistakes_are_refused,
    unusual_values_are_accepted,
    overrides_outlive_their_rule,
    overrides_of_a_deleted_rule_can_be_deleted,
);

async fn set_override(control: &Control, value: &str, text: &str) -> tollgate_server::control::Result<i64> {
    let written = control.overrides().put(&change_by("bill"), "api", "each", value, text.as_bytes()).await?;
    Ok(written.value.version)
}

async fn override_is_set_with_one_call(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let missing = set_override(&control, "acme", "limit: 1000/s").await;
    assert!(matches!(missing, Err(ControlError::Missing(_))));
    put_rule(&control, "api", "each", "{limit: 10/s, per: [tenant, path]}").await;
    let text = br#"{"limit": "1000/s", "burst": 2000, "until": "2030-01-01T00:00:00Z"}"#;
    let made = control
        .overrides()
        .put(&change_by("bill").with_expected(ExpectedVersion::Absent), "api", "each", "acme", text)
        .await
        .unwrap();
    assert!(made.created && made.changed);
    assert_eq!((&*made.value.attribute, made.value.until.as_deref()), ("tenant", Some("2030-01-01T00:00:00Z")));
    assert_eq!(made.value.effect, json!({"limit": "1000/s", "burst": 2000}));
    assert_eq!(control.overrides().get("api", "each", "acme").await.unwrap(), made.value);
    let again = control
        .overrides()
        .put(&change_by("bill").with_expected(ExpectedVersion::Present), "api", "each", "acme", text)
        .await
        .unwrap();
    assert!(!again.changed && again.value == made.value);
    let stale = control
        .overrides()
        .put(&change_by("bill").with_expected(ExpectedVersion::Version(1)), "api", "each", "acme", b"{unlimited: true}")
        .await;
    assert!(matches!(stale, Err(ControlError::Conflict(conflict)) if conflict.current == Some(2)));
    set_override(&control, "zeta", "attribute: path\nunlimited: true").await.unwrap();
    let first = control.overrides().list("api", "each", &PageRequest { limit: Some(1), after: None }).await.unwrap();
    let second =
        control.overrides().list("api", "each", &PageRequest { limit: Some(1), after: first.next }).await.unwrap();
    assert_eq!((&*first.items[0].value, &*second.items[0].value, second.next), ("acme", "zeta", None));
    assert!(matches!(
        control.overrides().list("api", "no", &PageRequest::default()).await,
        Err(ControlError::Missing(_))
    ));
    control
        .overrides()
        .delete(&change_by("bill").with_expected(ExpectedVersion::Version(2)), "api", "each", "acme")
        .await
        .unwrap();
    let gone = control.overrides().delete(&change_by("bill"), "api", "each", "acme").await;
    assert!(matches!(gone, Err(ControlError::Missing(_))));
    assert!(matches!(control.overrides().get("api", "each", "acme").await, Err(ControlError::Missing(_))));
    let log = control.audit().list(&AuditSearch::default(), &PageRequest::default()).await.unwrap().items;
    let of = AuditSearch { subject: Some("each/overrides/acme".into()), ..AuditSearch::default() };
    let of = control.audit().list(&of, &PageRequest::default()).await.unwrap().items;
    assert_eq!((log.len(), of.len()), (4, 2));
    assert_eq!(
        of[0].before,
        Some(json!({"limit": "1000/s", "burst": 2000, "attribute": "tenant", "until": "2030-01-01T00:00:00Z"}))
    );
}

async fn overrides_of_a_domain_are_listed_over_pages(database: Arc<TestDatabase>) {
    let control = database.open().await;
    for (domain, id) in [("api", "b"), ("api", "a"), ("other", "c")] {
        put_rule(&control, domain, id, "{limit: 10/s, per: [tenant]}").await;
    }
    for (domain, id, value) in
        [("api", "b", "x"), ("api", "b", "a b"), ("api", "a", "z"), ("other", "c", "x"), ("api", "a", " ")]
    {
        let text = b"unlimited: true";
        control
            .overrides()
            .put(&change_by("bill").with_expected(ExpectedVersion::Absent), domain, id, value, text)
            .await
            .unwrap();
    }
    for limit in 1..5 {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page =
                control.overrides().list_in_domain("api", &PageRequest { limit: Some(limit), after }).await.unwrap();
            found.extend(page.items.into_iter().map(|item| (item.rule, item.value)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let pair = |rule: &str, value: &str| (rule.to_owned(), value.to_owned());
        assert_eq!(found, [pair("a", " "), pair("a", "z"), pair("b", "a b"), pair("b", "x")], "pages of {limit} items");
    }
    for nowhere in ["nowhere", "a\0b"] {
        assert!(control.overrides().list_in_domain(nowhere, &PageRequest::default()).await.unwrap().items.is_empty());
    }
    let made_up = PageRequest { after: Some("zz".into()), limit: None };
    assert!(matches!(control.overrides().list_in_domain("api", &made_up).await, Err(ControlError::Invalid(_))));
    let note = ActionNote::with_current_time("ann", NotedAction::Reset, Some("api"), "tenant=x");
    control.audit().record_notes(&[note], None).await.unwrap();
    let domains = control.rules().domains().await.unwrap();
    let seen: Vec<_> = domains.iter().map(|one| (&*one.domain, one.rules, one.overrides, one.revision)).collect();
    assert_eq!(seen, [("api", 2, 4, 8), ("other", 1, 1, 7)], "a reset is not a change of a domain");
    let rule = control.rules().get("api", "b").await.unwrap();
    assert_eq!(rule.overrides, 2);
}

async fn api_overrides_precede_overrides_in_the_rule(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let rule = "{limit: 10/s, per: [tenant], overrides: [{when: {tenant: 'a*'}, limit: 20/s}]}";
    put_rule(&control, "api", "each", rule).await;
    set_override(&control, "acme", "limit: 30/s").await.unwrap();
    let snapshot = control.snapshot().await.unwrap();
    assert_eq!(
        snapshot.rules,
        r#"{"domains":[{"domain":"api","rules":[{"id":"each","per":["tenant"],"limit":"10/s","overrides":[{"when":{"tenant":{"equals":"acme"}},"limit":"30/s","set_by":"api"},{"when":{"tenant":"a*"},"limit":"20/s"}]}]}]}"#,
        "an override that was set through the API has `set_by`"
    );
    let read = Rules::read(&[Source { name: "snapshot", text: snapshot.rules.as_bytes() }]).unwrap();
    assert_eq!(read.domains()[0].rules()[0].overrides().len(), 2);
    // The rule itself is unchanged.
    assert_eq!(control.rules().get("api", "each").await.unwrap().rule["overrides"].as_array().map(Vec::len), Some(1));
}

async fn overrides_with_mistakes_are_refused(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "each", "{limit: 10/s, per: [tenant]}").await;
    for text in [
        "",
        "limit: fast",
        "limt: 1/s",
        "when: {a: b}\nlimit: 1/s",
        "until: soon\nlimit: 1/s",
        "allow: true",
        "[]",
        "until: 2030-01-01T00:00:00Z",
    ] {
        let error = set_override(&control, "acme", text).await.unwrap_err();
        assert!(matches!(error, ControlError::Mistakes(_)), "for {text:?}: {error}");
    }
    // The override sets only `burst` and inherits `limit`, so the rule cannot be changed to `limits`.
    set_override(&control, "acme", "burst: 500").await.unwrap();
    let two = b"{limits: [10/s, 100/m], per: [tenant]}";
    let error = control.rules().put(&change_by("ann"), "api", "each", two).await.unwrap_err();
    assert!(error.to_string().starts_with("the override for `acme` does not fit this rule `each`"), "{error}");
    let file = b"domain: api\nrules: [{id: each, limits: [10/s, 100/m], per: [tenant]}]";
    let error =
        control.rule_files().apply(&change_by("ann"), file, OtherRulesPolicy::Keep, &|_| true).await.unwrap_err();
    assert!(matches!(error, ControlError::Invalid(_)));
    put_rule(&control, "api", "each", "{limit: 11/s, per: [tenant]}").await;
    put_rule(&control, "api", "none", "{limit: 10/s}").await;
    let error = control.overrides().put(&change_by("bill"), "api", "none", "acme", b"limit: 1/s").await;
    assert!(matches!(error, Err(ControlError::Mistakes(_))));
}

async fn unusual_values_are_accepted(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "each", "{limit: 10/s, per: [tenant]}").await;
    let values = [
        "'; DROP TABLE overrides; --",
        "a/b c?d#e%",
        "*",
        "{x}",
        "é😀",
        "200",
        "true",
        "null",
        " ",
        "\u{1}",
        "\u{2028}",
    ];
    for value in values {
        set_override(&control, value, "limit: 7/s").await.unwrap();
        assert_eq!(control.overrides().get("api", "each", value).await.unwrap().value, value);
    }
    let longest = "v".repeat(1024);
    set_override(&control, &longest, "limit: 7/s").await.unwrap();
    for value in ["", "a\0b", &"v".repeat(1025)] {
        assert!(matches!(set_override(&control, value, "limit: 7/s").await, Err(ControlError::Invalid(_))));
        assert!(matches!(control.overrides().get("api", "each", value).await, Err(ControlError::Missing(_))));
    }
    let snapshot = control.snapshot().await.unwrap();
    let read = Rules::read(&[Source { name: "snapshot", text: snapshot.rules.as_bytes() }]).unwrap();
    let overrides = read.domains()[0].rules()[0].overrides();
    assert_eq!(overrides.len(), values.len() + 1);
    for value in values {
        let is = |when: &tollgate_engine::rules::Condition| {
            format!("{:?}", when.test).contains(&format!("Equals({value:?})"))
        };
        assert!(overrides.iter().any(|other| is(&other.when[0])), "{value:?}");
    }
}

/// Returns the rules for nodes, in one line.
async fn rules_for_nodes(control: &Control) -> String {
    control.snapshot().await.unwrap().rules.replace('\n', "")
}

async fn overrides_outlive_their_rule(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "each", "{limit: 10/s, per: [tenant]}").await;
    set_override(&control, "acme", "limit: 7/s").await.unwrap();
    let before = rules_for_nodes(&control).await;
    assert!(before.contains("7/s"), "{before}");
    control.rules().delete(&change_by("ann"), "api", "each").await.unwrap();
    assert!(!rules_for_nodes(&control).await.contains("7/s"), "nodes do not receive overrides without a rule");
    let left = control.overrides().list_in_domain("api", &PageRequest::default()).await.unwrap().items;
    assert_eq!(left.iter().map(|one| (&*one.value, one.rule_deleted)).collect::<Vec<_>>(), [("acme", true)]);
    assert_eq!(control.overrides().list("api", "each", &PageRequest::default()).await.unwrap().items, left);
    assert_eq!(control.overrides().get("api", "each", "acme").await.unwrap(), left[0]);
    assert!(matches!(set_override(&control, "zeta", "limit: 8/s").await, Err(ControlError::Missing(_))));

    control.history().rollback(&change_by("ann"), "api", "each", 1).await.unwrap();
    assert_eq!(rules_for_nodes(&control).await, before);
    assert_eq!(control.rules().get("api", "each").await.unwrap().overrides, 1);
    assert!(!control.overrides().get("api", "each", "acme").await.unwrap().rule_deleted);

    // The plan that deletes the rule and the plan that restores it both mention the overrides.
    let gone = b"domain: api\nrules: []";
    let back = b"domain: api\nrules: [{id: each, limit: 10/s, per: [tenant]}, {id: other, limit: 1/s}]";
    let kept = "api/each has 1 override, kept in case the rule is created again";
    assert_eq!(control.rule_files().plan(gone, OtherRulesPolicy::Delete).await.unwrap().warnings, [kept]);
    let applied =
        control.rule_files().apply(&change_by("ann"), gone, OtherRulesPolicy::Delete, &|_| true).await.unwrap();
    assert_eq!((applied.changes.len(), applied.warnings), (1, vec![kept.into()]));
    assert!(control.rules().domains().await.unwrap().is_empty());
    let again = "api/each was deleted before; 1 override of the deleted rule will apply again";
    assert_eq!(control.rule_files().plan(back, OtherRulesPolicy::Keep).await.unwrap().warnings, [again]);
    control.rule_files().apply(&change_by("ann"), back, OtherRulesPolicy::Keep, &|_| true).await.unwrap();
    assert!(rules_for_nodes(&control).await.contains("7/s"));
    assert_eq!(control.rules().get("api", "each").await.unwrap().overrides, 1);
    assert!(control.rule_files().plan(back, OtherRulesPolicy::Keep).await.unwrap().warnings.is_empty());
}

async fn overrides_of_a_deleted_rule_can_be_deleted(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "each", "{limit: 10/s, per: [tenant]}").await;
    set_override(&control, "acme", "burst: 500").await.unwrap();
    set_override(&control, "zeta", "burst: 600").await.unwrap();
    control.rules().delete(&change_by("ann"), "api", "each").await.unwrap();
    // A rule that is incompatible with the overrides is refused.
    let two = b"{limits: [10/s, 100/m], per: [tenant]}";
    let error = control.rules().put(&change_by("ann"), "api", "each", two).await.unwrap_err();
    assert!(error.to_string().starts_with("the override for `acme` does not fit this rule `each`"), "{error}");
    let file = b"domain: api\nrules: [{id: each, limits: [10/s, 100/m], per: [tenant]}]";
    let error =
        control.rule_files().apply(&change_by("ann"), file, OtherRulesPolicy::Keep, &|_| true).await.unwrap_err();
    assert!(matches!(error, ControlError::Invalid(_)), "{error}");
    for value in ["acme", "zeta"] {
        control.overrides().delete(&change_by("bill"), "api", "each", value).await.unwrap();
    }
    assert!(matches!(
        control.overrides().list("api", "each", &PageRequest::default()).await,
        Err(ControlError::Missing(_))
    ));
    let made = control.rules().put(&change_by("ann"), "api", "each", two).await.unwrap();
    assert_eq!((made.value.version, made.value.overrides), (3, 0));
}
