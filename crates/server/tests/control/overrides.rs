//! Other numbers for one customer.

use std::sync::Arc;

use serde_json::json;
use tollgate_engine::rules::{Rules, Source};
use tollgate_server::control::model::{AuditSearch, Cut, Expected};
use tollgate_server::control::{Control, ControlError, Others};

use crate::place::{Place, by, put};

both!(
    a_plan_is_set_with_one_call,
    overrides_of_a_domain_are_listed_over_pages,
    nodes_are_given_overrides_before_those_of_the_rule,
    overrides_with_mistakes_are_refused,
    any_value_works,
    overrides_outlive_their_rule,
    overrides_left_behind_can_be_deleted,
);

async fn set(control: &Control, value: &str, text: &str) -> tollgate_server::control::Result<i64> {
    let written = control.put_override(&by("bill"), "api", "each", value, text.as_bytes(), Expected::Anything).await?;
    Ok(written.now.version)
}

async fn a_plan_is_set_with_one_call(place: Arc<Place>) {
    let control = place.open().await;
    let nobody = set(&control, "acme", "limit: 1000/s").await;
    assert!(matches!(nobody, Err(ControlError::Missing(_))));
    put(&control, "api", "each", "{limit: 10/s, per: [tenant, path]}").await;
    let text = br#"{"limit": "1000/s", "burst": 2000, "until": "2030-01-01T00:00:00Z"}"#;
    let made = control.put_override(&by("bill"), "api", "each", "acme", text, Expected::Nothing).await.unwrap();
    assert!(made.created && made.changed);
    assert_eq!((&*made.now.attribute, made.now.until.as_deref()), ("tenant", Some("2030-01-01T00:00:00Z")));
    assert_eq!(made.now.effect, json!({"limit": "1000/s", "burst": 2000}));
    assert_eq!(control.override_for("api", "each", "acme").await.unwrap(), made.now);
    let again = control.put_override(&by("bill"), "api", "each", "acme", text, Expected::Something).await.unwrap();
    assert!(!again.changed && again.now == made.now);
    let stale =
        control.put_override(&by("bill"), "api", "each", "acme", b"{unlimited: true}", Expected::Version(1)).await;
    assert!(matches!(stale, Err(ControlError::Conflict(conflict)) if conflict.current == Some(2)));
    set(&control, "zeta", "attribute: path\nunlimited: true").await.unwrap();
    let first = control.overrides("api", "each", &Cut { limit: Some(1), after: None }).await.unwrap();
    let second = control.overrides("api", "each", &Cut { limit: Some(1), after: first.next }).await.unwrap();
    assert_eq!((&*first.items[0].value, &*second.items[0].value, second.next), ("acme", "zeta", None));
    assert!(matches!(control.overrides("api", "no", &Cut::default()).await, Err(ControlError::Missing(_))));
    control.delete_override(&by("bill"), "api", "each", "acme", Expected::Version(2)).await.unwrap();
    let gone = control.delete_override(&by("bill"), "api", "each", "acme", Expected::Anything).await;
    assert!(matches!(gone, Err(ControlError::Missing(_))));
    assert!(matches!(control.override_for("api", "each", "acme").await, Err(ControlError::Missing(_))));
    let log = control.audit(&AuditSearch::default(), &Cut::default()).await.unwrap().items;
    let of = AuditSearch { subject: Some("each/overrides/acme".into()), ..AuditSearch::default() };
    let of = control.audit(&of, &Cut::default()).await.unwrap().items;
    assert_eq!((log.len(), of.len()), (4, 2));
    assert_eq!(
        of[0].before,
        Some(json!({"limit": "1000/s", "burst": 2000, "attribute": "tenant", "until": "2030-01-01T00:00:00Z"}))
    );
}

async fn overrides_of_a_domain_are_listed_over_pages(place: Arc<Place>) {
    let control = place.open().await;
    for (domain, id) in [("api", "b"), ("api", "a"), ("other", "c")] {
        put(&control, domain, id, "{limit: 10/s, per: [tenant]}").await;
    }
    for (domain, id, value) in
        [("api", "b", "x"), ("api", "b", "a b"), ("api", "a", "z"), ("other", "c", "x"), ("api", "a", " ")]
    {
        let text = b"unlimited: true";
        control.put_override(&by("bill"), domain, id, value, text, Expected::Nothing).await.unwrap();
    }
    for limit in 1..5 {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = control.overrides_of_domain("api", &Cut { limit: Some(limit), after }).await.unwrap();
            found.extend(page.items.into_iter().map(|item| (item.rule, item.value)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let pair = |rule: &str, value: &str| (rule.to_owned(), value.to_owned());
        assert_eq!(found, [pair("a", " "), pair("a", "z"), pair("b", "a b"), pair("b", "x")], "{limit} at a time");
    }
    for nowhere in ["nowhere", "a\0b"] {
        assert!(control.overrides_of_domain(nowhere, &Cut::default()).await.unwrap().items.is_empty());
    }
    let made_up = Cut { after: Some("zz".into()), limit: None };
    assert!(matches!(control.overrides_of_domain("api", &made_up).await, Err(ControlError::Invalid(_))));
    control.note(&by("ann"), "key", "reset", Some("api"), "tenant=x").await.unwrap();
    let domains = control.domains().await.unwrap();
    let told: Vec<_> = domains.iter().map(|one| (&*one.domain, one.rules, one.overrides, one.revision)).collect();
    assert_eq!(told, [("api", 2, 4, 8), ("other", 1, 1, 7)], "what was spent is no change of a domain");
    let rule = control.rule("api", "b").await.unwrap();
    assert_eq!(rule.overrides, 2);
}

async fn nodes_are_given_overrides_before_those_of_the_rule(place: Arc<Place>) {
    let control = place.open().await;
    let rule = "{limit: 10/s, per: [tenant], overrides: [{when: {tenant: 'a*'}, limit: 20/s}]}";
    put(&control, "api", "each", rule).await;
    set(&control, "acme", "limit: 30/s").await.unwrap();
    let snapshot = control.snapshot().await.unwrap();
    assert_eq!(
        snapshot.rules,
        r#"{"domains":[{"domain":"api","rules":[{"id":"each","per":["tenant"],"limit":"10/s","overrides":[
{"when":{"tenant":{"equals":"acme"}},"limit":"30/s"},{"when":{"tenant":"a*"},"limit":"20/s"}]}]}]}"#,
        "at the beginning of a line, by which it is told from those of the rule"
    );
    let read = Rules::read(&[Source { name: "snapshot", text: snapshot.rules.as_bytes() }]).unwrap();
    assert_eq!(read.domains()[0].rules()[0].overrides().len(), 2);
    // The rule itself is as it was written.
    assert_eq!(control.rule("api", "each").await.unwrap().rule["overrides"].as_array().map(Vec::len), Some(1));
}

async fn overrides_with_mistakes_are_refused(place: Arc<Place>) {
    let control = place.open().await;
    put(&control, "api", "each", "{limit: 10/s, per: [tenant]}").await;
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
        let error = set(&control, "acme", text).await.unwrap_err();
        assert!(matches!(error, ControlError::Mistakes(_)), "for {text:?}: {error}");
    }
    // What an override leaves to its rule, the rule cannot take away.
    set(&control, "acme", "burst: 500").await.unwrap();
    let two = b"{limits: [10/s, 100/m], per: [tenant]}";
    let error = control.put_rule(&by("ann"), "api", "each", two, Expected::Anything).await.unwrap_err();
    assert!(error.to_string().starts_with("the override for `acme` does not go with this rule `each`"), "{error}");
    let file = b"domain: api\nrules: [{id: each, limits: [10/s, 100/m], per: [tenant]}]";
    let error = control.apply(&by("ann"), file, Others::Keep, Expected::Anything, &|_| true).await.unwrap_err();
    assert!(matches!(error, ControlError::Invalid(_)));
    put(&control, "api", "each", "{limit: 11/s, per: [tenant]}").await;
    put(&control, "api", "none", "{limit: 10/s}").await;
    let error = control.put_override(&by("bill"), "api", "none", "acme", b"limit: 1/s", Expected::Anything).await;
    assert!(matches!(error, Err(ControlError::Mistakes(_))));
}

async fn any_value_works(place: Arc<Place>) {
    let control = place.open().await;
    put(&control, "api", "each", "{limit: 10/s, per: [tenant]}").await;
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
        set(&control, value, "limit: 7/s").await.unwrap();
        assert_eq!(control.override_for("api", "each", value).await.unwrap().value, value);
    }
    let longest = "v".repeat(1024);
    set(&control, &longest, "limit: 7/s").await.unwrap();
    for value in ["", "a\0b", &"v".repeat(1025)] {
        assert!(matches!(set(&control, value, "limit: 7/s").await, Err(ControlError::Invalid(_))));
        assert!(matches!(control.override_for("api", "each", value).await, Err(ControlError::Missing(_))));
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

/// What nodes are given, in one line.
async fn given(control: &Control) -> String {
    control.snapshot().await.unwrap().rules.replace('\n', "")
}

async fn overrides_outlive_their_rule(place: Arc<Place>) {
    let control = place.open().await;
    put(&control, "api", "each", "{limit: 10/s, per: [tenant]}").await;
    set(&control, "acme", "limit: 7/s").await.unwrap();
    let before = given(&control).await;
    assert!(before.contains("7/s"), "{before}");
    control.delete_rule(&by("ann"), "api", "each", Expected::Anything).await.unwrap();
    assert!(!given(&control).await.contains("7/s"), "nodes are not given what has no rule");
    let left = control.overrides_of_domain("api", &Cut::default()).await.unwrap().items;
    assert_eq!(left.iter().map(|one| (&*one.value, one.rule_deleted)).collect::<Vec<_>>(), [("acme", true)]);
    assert_eq!(control.overrides("api", "each", &Cut::default()).await.unwrap().items, left);
    assert_eq!(control.override_for("api", "each", "acme").await.unwrap(), left[0]);
    assert!(matches!(set(&control, "zeta", "limit: 8/s").await, Err(ControlError::Missing(_))));

    control.rollback(&by("ann"), "api", "each", 1, Expected::Anything).await.unwrap();
    assert_eq!(given(&control).await, before);
    assert_eq!(control.rule("api", "each").await.unwrap().overrides, 1);
    assert!(!control.override_for("api", "each", "acme").await.unwrap().rule_deleted);

    // A file that takes the rule away, and one that brings it back, tell of it.
    let gone = b"domain: api\nrules: []";
    let back = b"domain: api\nrules: [{id: each, limit: 10/s, per: [tenant]}, {id: other, limit: 1/s}]";
    let kept = "api/each has 1 override beside it, kept for when the rule comes back";
    assert_eq!(control.plan(gone, Others::Delete).await.unwrap().warnings, [kept]);
    let applied = control.apply(&by("ann"), gone, Others::Delete, Expected::Anything, &|_| true).await.unwrap();
    assert_eq!((applied.changes.len(), applied.warnings), (1, vec![kept.into()]));
    assert!(control.domains().await.unwrap().is_empty());
    let again = "api/each was deleted before, and 1 override from then will apply again";
    assert_eq!(control.plan(back, Others::Keep).await.unwrap().warnings, [again]);
    control.apply(&by("ann"), back, Others::Keep, Expected::Anything, &|_| true).await.unwrap();
    assert!(given(&control).await.contains("7/s"));
    assert_eq!(control.rule("api", "each").await.unwrap().overrides, 1);
    assert!(control.plan(back, Others::Keep).await.unwrap().warnings.is_empty());
}

async fn overrides_left_behind_can_be_deleted(place: Arc<Place>) {
    let control = place.open().await;
    put(&control, "api", "each", "{limit: 10/s, per: [tenant]}").await;
    set(&control, "acme", "burst: 500").await.unwrap();
    set(&control, "zeta", "burst: 600").await.unwrap();
    control.delete_rule(&by("ann"), "api", "each", Expected::Anything).await.unwrap();
    // A rule that they do not go with cannot take their place.
    let two = b"{limits: [10/s, 100/m], per: [tenant]}";
    let error = control.put_rule(&by("ann"), "api", "each", two, Expected::Anything).await.unwrap_err();
    assert!(error.to_string().starts_with("the override for `acme` does not go with this rule `each`"), "{error}");
    let file = b"domain: api\nrules: [{id: each, limits: [10/s, 100/m], per: [tenant]}]";
    let error = control.apply(&by("ann"), file, Others::Keep, Expected::Anything, &|_| true).await.unwrap_err();
    assert!(matches!(error, ControlError::Invalid(_)), "{error}");
    for value in ["acme", "zeta"] {
        control.delete_override(&by("bill"), "api", "each", value, Expected::Anything).await.unwrap();
    }
    assert!(matches!(control.overrides("api", "each", &Cut::default()).await, Err(ControlError::Missing(_))));
    let made = control.put_rule(&by("ann"), "api", "each", two, Expected::Anything).await.unwrap();
    assert_eq!((made.now.version, made.now.overrides), (3, 0));
}
