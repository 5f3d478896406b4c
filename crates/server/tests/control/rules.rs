//! Single rules.

use std::sync::Arc;

use serde_json::json;
use tollgate_server::control::model::{Action, AuditSearch, Change, ExpectedVersion, PageRequest, RuleSearch};
use tollgate_server::control::{ActionNote, ControlError, MAX_RULE_BYTES, NotedAction};

use crate::test_database::{TestDatabase, change_by, put_rule};

on_both_databases!(
    stored_rule_is_read_back_unchanged,
    identical_write_changes_nothing,
    rules_with_mistakes_are_refused_with_their_lines,
    patch_changes_parts_of_a_rule,
    disabled_rule_is_kept_and_not_sent_to_nodes,
    stale_write_is_refused_with_the_difference,
    version_numbers_continue_after_a_deletion,
    lists_come_in_pages_in_order,
    search_text_is_literal,
    unusual_names_are_safe,
    size_limits_are_exact,
    every_change_is_in_the_audit_log,
);

async fn stored_rule_is_read_back_unchanged(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let written = put_rule(&control, "api", "each", "limit: 100/s\nper: [client]\nburst: 200\nstatus: 503").await;
    assert!(written.created && written.changed);
    assert_eq!(written.value.version, 1);
    let rule = json!({"id": "each", "limit": "100/s", "per": ["client"], "burst": 200, "status": 503});
    assert_eq!(written.value.rule, rule);
    assert_eq!(control.rules().get("api", "each").await.unwrap(), written.value);
    assert_eq!(control.rules().domains().await.unwrap()[0].rules, 1);
    // The rule is still there after the database is opened again.
    drop(control);
    assert_eq!(database.open().await.rules().get("api", "each").await.unwrap().rule, rule);
}

async fn identical_write_changes_nothing(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let first = put_rule(&control, "api", "each", "{limit: 100/s, when: {a: b, c: d}}").await;
    let revision = *control.watch_revision().borrow();
    for same in ["limit: 100/s\nid: each\nwhen: {a: b, c: d}", r#"{"when": {"c": "d", "a": "b"}, "limit": "100/s"}"#] {
        let again = put_rule(&control, "api", "each", same).await;
        assert!(!again.created && !again.changed);
        assert_eq!(again.value, first.value);
    }
    assert_eq!(*control.watch_revision().borrow(), revision);
    assert_eq!(control.history().list("api", "each", &PageRequest::default()).await.unwrap().items.len(), 1);
}

async fn rules_with_mistakes_are_refused_with_their_lines(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let text = b"limit: 100/s\nburts: 3\n";
    let error = control.rules().put(&change_by("ann"), "api", "each", text).await.unwrap_err();
    let ControlError::Mistakes(mistakes) = error else { panic!("{error}") };
    assert_eq!((mistakes.as_slice()[0].position.line, mistakes.as_slice()[0].position.column), (2, 1));
    for (domain, id) in [("a b", "each"), ("api", "x y"), ("", "each"), ("api", &"x".repeat(129))] {
        let error = control.rules().put(&change_by("ann"), domain, id, b"{limit: 1/s}").await.unwrap_err();
        assert!(matches!(error, ControlError::Mistakes(_)), "{error}");
    }
    let named = control.rules().put(&change_by("ann"), "api", "each", b"{id: other, limit: 1/s}").await;
    assert!(matches!(named, Err(ControlError::Mistakes(_))));
    assert!(matches!(control.rules().get("api", "each").await, Err(ControlError::Missing(_))));
    assert_eq!(*control.watch_revision().borrow(), 0);
}

async fn patch_changes_parts_of_a_rule(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let missing = control.rules().patch(&change_by("ann"), "api", "each", b"{}").await;
    assert!(matches!(missing, Err(ControlError::Missing(_))));
    put_rule(&control, "api", "each", "{limit: 100/s, burst: 200, when: {a: b, c: d}}").await;
    let patch = br#"{"limit": "50/s", "burst": null, "when": {"a": null, "e": ["f", "g"]}}"#;
    let patched = control
        .rules()
        .patch(&change_by("bob").with_expected(ExpectedVersion::Version(1)), "api", "each", patch)
        .await
        .unwrap()
        .value;
    assert_eq!(patched.rule, json!({"id": "each", "limit": "50/s", "when": {"c": "d", "e": ["f", "g"]}}));
    assert_eq!((patched.version, &*patched.author), (2, "bob"));
    for wrong in [&b"{\"limit\": null}"[..], b"{\"id\": \"other\"}", b"[1]", b"3", b"{\"limt\": 3}"] {
        let error = control.rules().patch(&change_by("bob"), "api", "each", wrong).await.unwrap_err();
        assert!(matches!(error, ControlError::Mistakes(_)), "{error}");
    }
    let error = control.rules().patch(&change_by("bob"), "api", "each", b"limit: 1/s").await.unwrap_err();
    assert!(matches!(error, ControlError::Invalid(_)));
    assert_eq!(control.rules().get("api", "each").await.unwrap(), patched);
}

async fn disabled_rule_is_kept_and_not_sent_to_nodes(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "one", "{limit: 1/s}").await;
    put_rule(&control, "api", "two", "{limit: 2/s}").await;
    let off = control.rules().set_enabled(&change_by("ann"), "api", "one", false).await.unwrap();
    assert!(!off.value.enabled && off.changed && off.value.version == 2);
    assert!(!control.rules().set_enabled(&change_by("ann"), "api", "one", false).await.unwrap().changed);
    // Changing a rule does not enable it.
    assert!(!put_rule(&control, "api", "one", "{limit: 3/s}").await.value.enabled);
    let snapshot = control.snapshot().await.unwrap();
    assert_eq!(snapshot.rules, r#"{"domains":[{"domain":"api","rules":[{"id":"two","limit":"2/s"}]}]}"#);
    let disabled = RuleSearch { enabled: Some(false), text: None };
    let found = control.rules().list("api", &disabled, &PageRequest::default()).await.unwrap().items;
    assert_eq!(found.iter().map(|rule| &*rule.id).collect::<Vec<_>>(), ["one"]);
    control
        .rules()
        .set_enabled(&change_by("ann").with_expected(ExpectedVersion::Version(3)), "api", "one", true)
        .await
        .unwrap();
    assert!(control.snapshot().await.unwrap().rules.contains("\"one\""));
    assert!(matches!(
        control.rules().set_enabled(&change_by("ann"), "api", "no", true).await,
        Err(ControlError::Missing(_))
    ));
}

async fn stale_write_is_refused_with_the_difference(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "each", "{limit: 100/s}").await;
    control
        .rules()
        .put(&change_by("bob").with_expected(ExpectedVersion::Version(1)), "api", "each", b"{limit: 50/s}")
        .await
        .unwrap();
    let error = control
        .rules()
        .put(&change_by("ann").with_expected(ExpectedVersion::Version(1)), "api", "each", b"{limit: 9/s}")
        .await
        .unwrap_err();
    let ControlError::Conflict(conflict) = error else { panic!("{error}") };
    assert_eq!(conflict.current, Some(2));
    assert_eq!(conflict.diff.as_deref(), Some(" id: each\n-limit: 100/s\n+limit: 50/s\n"));
    let (author, action, at_ms) = conflict.by.unwrap();
    assert_eq!((&*author, action), ("bob", Action::Update));
    assert!(at_ms > 1_600_000_000_000);
    assert_eq!(conflict.rule.unwrap().version, 2);
    let made = control
        .rules()
        .put(&change_by("ann").with_expected(ExpectedVersion::Absent), "api", "each", b"{limit: 9/s}")
        .await
        .unwrap_err();
    assert!(matches!(made, ControlError::Conflict(conflict) if conflict.current == Some(2)));
    let gone = control
        .rules()
        .put(&change_by("ann").with_expected(ExpectedVersion::Present), "api", "new", b"{limit: 9/s}")
        .await
        .unwrap_err();
    assert!(matches!(gone, ControlError::Conflict(conflict) if conflict.current.is_none()));
    control.rules().delete(&change_by("eve").with_expected(ExpectedVersion::Version(2)), "api", "each").await.unwrap();
    let error = control
        .rules()
        .delete(&change_by("ann").with_expected(ExpectedVersion::Version(2)), "api", "each")
        .await
        .unwrap_err();
    let ControlError::Conflict(conflict) = error else { panic!("{error}") };
    assert_eq!((conflict.current, conflict.by.map(|by| (by.0, by.1))), (None, Some(("eve".into(), Action::Delete))));
    assert_eq!(conflict.diff.as_deref(), Some("-id: each\n-limit: 50/s\n"));
    let missing = control.rules().delete(&change_by("ann"), "api", "each").await.unwrap_err();
    assert_eq!(missing.to_string(), "there is no rule `each` of the domain `api`");
}

async fn version_numbers_continue_after_a_deletion(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "each", "{limit: 1/s}").await;
    control.rules().delete(&change_by("ann"), "api", "each").await.unwrap();
    let again = put_rule(&control, "api", "each", "{limit: 1/s}").await;
    assert!(again.created);
    assert_eq!(again.value.version, 3);
}

async fn lists_come_in_pages_in_order(database: Arc<TestDatabase>) {
    let control = database.open().await;
    for id in ["z", "a", "m", "b", "y"] {
        put_rule(&control, "api", id, "{limit: 1/s}").await;
    }
    put_rule(&control, "web", "w", "{limit: 1/s}").await;
    let mut cut = PageRequest { after: None, limit: Some(2) };
    let mut ids = Vec::new();
    let mut pages = 0;
    loop {
        let page = control.rules().list("api", &RuleSearch::default(), &cut).await.unwrap();
        ids.extend(page.items.into_iter().map(|rule| rule.id));
        pages += 1;
        // Deletes the last item of the first page. The next page still begins after that item's position.
        if pages == 1 {
            control.rules().delete(&change_by("ann"), "api", "a").await.unwrap();
        }
        cut.after = page.next;
        if cut.after.is_none() {
            break;
        }
    }
    assert_eq!((ids.join(""), pages), ("zamby".into(), 3));
    assert!(
        control.rules().list("none", &RuleSearch::default(), &PageRequest::default()).await.unwrap().items.is_empty()
    );
    let made_up = PageRequest { after: Some("x".into()), limit: None };
    assert!(matches!(
        control.rules().list("api", &RuleSearch::default(), &made_up).await,
        Err(ControlError::Invalid(_))
    ));
}

async fn search_text_is_literal(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "login_page", "{limit: 1/s, when: {path: /Login}}").await;
    put_rule(&control, "api", "loginXpage", "{limit: 1/s, message: \"100% of it!\"}").await;
    let found = async |text: &str| {
        let search = RuleSearch { text: Some(text.into()), enabled: None };
        let page = control.rules().list("api", &search, &PageRequest::default()).await.unwrap();
        page.items.into_iter().map(|rule| rule.id).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(found("login_").await, "login_page");
    assert_eq!(found("LOGIN").await, "login_page loginXpage");
    assert_eq!(found("/login").await, "login_page");
    assert_eq!(found("0% of it!").await, "loginXpage");
    assert_eq!(found("%").await, "loginXpage");
    assert_eq!(found("' OR 1=1 --").await, "");
    assert_eq!(found("\0").await, "");
    assert_eq!(found("\\").await, "");
}

async fn unusual_names_are_safe(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "a/b:c.d-e_f", "x/y:z.1-2_3", "{limit: 1/s}").await;
    assert_eq!(control.rules().get("a/b:c.d-e_f", "x/y:z.1-2_3").await.unwrap().version, 1);
    let odd = ["'; DROP TABLE rules; --", "\0", "\u{202e}", "%", "$1", "\\", "\"", "é", ""];
    for odd in odd {
        assert!(matches!(control.rules().get(odd, odd).await, Err(ControlError::Missing(_))), "{odd:?}");
        assert!(matches!(control.history().get(odd, odd, 1).await, Err(ControlError::Missing(_))));
        assert!(matches!(
            control.history().list(odd, odd, &PageRequest::default()).await,
            Err(ControlError::Missing(_))
        ));
        assert!(
            control.rules().list(odd, &RuleSearch::default(), &PageRequest::default()).await.unwrap().items.is_empty()
        );
        let delete =
            control.rules().delete(&change_by("ann").with_expected(ExpectedVersion::Version(1)), odd, odd).await;
        assert!(matches!(delete, Err(ControlError::Conflict(_))));
        let delete = control.rules().delete(&change_by("ann"), odd, odd).await;
        assert!(matches!(delete, Err(ControlError::Missing(_))));
        let put = control.rules().put(&change_by("ann"), odd, odd, b"{limit: 1/s}").await;
        assert!(matches!(put, Err(ControlError::Mistakes(_))));
    }
    // Values may contain any characters.
    let text = r#"{"limit": "1/s", "when": {"v": ["'; DROP TABLE rules; --", "\u0000", "\u2028", "$1", "\\", "é😀"]}}"#;
    let written = put_rule(&control, "api", "odd", text).await;
    assert_eq!(control.rules().get("api", "odd").await.unwrap().rule, written.value.rule);
    assert_eq!(written.value.rule["when"]["v"][1], "\0");
}

async fn size_limits_are_exact(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let comment = |letters: usize| Change { comment: Some("ü".repeat(letters)), ..change_by("ann") };
    let rule = b"{limit: 1/s}";
    assert!(control.rules().put(&comment(1000), "api", "a", rule).await.is_ok());
    let long = control.rules().put(&comment(1001), "api", "b", rule).await;
    assert!(matches!(long, Err(ControlError::Invalid(_))));
    let zero = Change { comment: Some("\0".into()), ..change_by("ann") };
    assert!(matches!(control.rules().put(&zero, "api", "b", rule).await, Err(ControlError::Invalid(_))));
    assert_eq!(control.rules().get("api", "a").await.unwrap().comment, Some("ü".repeat(1000)));
    // Stores a rule of the maximum size.
    let values = |bytes: usize| format!(r#"{{"id":"c","when":{{"v":["{}"]}},"limit":"1/s"}}"#, long_list(bytes - 42));
    let fits = values(MAX_RULE_BYTES);
    assert_eq!(fits.len(), MAX_RULE_BYTES);
    let kept = put_rule(&control, "api", "c", &fits).await.value;
    assert_eq!(kept.rule.to_string().len(), MAX_RULE_BYTES);
    let long = values(MAX_RULE_BYTES + 1);
    let long = control.rules().put(&change_by("ann"), "api", "c", long.as_bytes()).await;
    assert!(matches!(long, Err(ControlError::Full(_))));
}

/// Returns `bytes` bytes of JSON: the values of a list, without the first and the last quotation mark.
fn long_list(bytes: usize) -> String {
    let mut list = String::new();
    while list.len() + 1003 < bytes {
        list += &"v".repeat(900);
        list += "\",\"";
    }
    let rest = bytes - list.len();
    list + &"w".repeat(rest)
}

async fn every_change_is_in_the_audit_log(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "each", "{limit: 1/s}").await;
    let why = Change { comment: Some("too \"much\"".into()), ..change_by("bob") };
    control.rules().put(&why, "api", "each", b"{limit: 2/s}").await.unwrap();
    control.rules().delete(&change_by("ann"), "api", "each").await.unwrap();
    let revision = *control.watch_revision().borrow();
    let note = ActionNote::with_current_time("eve", NotedAction::Observe, None, "all");
    control.audit().record_notes(&[note], None).await.unwrap();
    assert_eq!(*control.watch_revision().borrow(), revision);
    let log = control.audit().list(&AuditSearch::default(), &PageRequest::default()).await.unwrap().items;
    let entries: Vec<String> = log
        .iter()
        .map(|line| format!("{} {} {} {} {}", line.seq, line.author, line.kind, line.action, line.subject))
        .collect();
    assert_eq!(
        entries,
        ["4 eve enforcement observe all", "3 ann rule delete each", "2 bob rule update each", "1 ann rule create each"]
    );
    assert_eq!(log[2].before, Some(json!({"id": "each", "limit": "1/s"})));
    assert_eq!(log[2].after, Some(json!({"id": "each", "limit": "2/s"})));
    assert_eq!(log[2].comment.as_deref(), Some("too \"much\""));
    assert_eq!((log[1].after.clone(), log[3].before.clone()), (None, None));
    assert_eq!(log.iter().map(|line| line.revision).collect::<Vec<_>>(), [3, 3, 2, 1]);
    let search = AuditSearch { author: Some("ann".into()), domain: Some("api".into()), subject: Some("each".into()) };
    let first = control.audit().list(&search, &PageRequest { limit: Some(1), after: None }).await.unwrap();
    let second = control.audit().list(&search, &PageRequest { limit: Some(1), after: first.next }).await.unwrap();
    assert_eq!((first.items[0].seq, second.items[0].seq, second.next), (3, 1, None));
    let unknown_author = AuditSearch { author: Some("' OR 1=1 --".into()), ..AuditSearch::default() };
    assert!(control.audit().list(&unknown_author, &PageRequest::default()).await.unwrap().items.is_empty());
}
