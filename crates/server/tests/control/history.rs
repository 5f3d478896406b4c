//! Versions, differences between them, and rollback.

use std::sync::Arc;

use tollgate_server::control::ControlError;
use tollgate_server::control::model::{Action, Change, ExpectedVersion, PageRequest};

use crate::test_database::{TestDatabase, change_by, put_rule};

on_both_databases!(versions_are_kept_newest_first, earlier_version_is_restored, deleted_rule_is_restored);

async fn versions_are_kept_newest_first(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "each", "{limit: 1/s}").await;
    let why = Change { comment: Some("more".into()), ..change_by("bob") };
    control.rules().put(&why, "api", "each", b"{limit: 2/s}").await.unwrap();
    control.rules().set_enabled(&change_by("ann"), "api", "each", false).await.unwrap();
    control.rules().delete(&change_by("ann"), "api", "each").await.unwrap();
    let first = control.history().list("api", "each", &PageRequest { limit: Some(3), after: None }).await.unwrap();
    let second = control
        .history()
        .list("api", "each", &PageRequest { limit: Some(3), after: first.next.clone() })
        .await
        .unwrap();
    let all: Vec<_> = first.items.into_iter().chain(second.items).collect();
    let actions: Vec<_> = all.iter().map(|version| (version.version, version.action)).collect();
    use Action::{Create, Delete, Disable, Update};
    assert_eq!(actions, [(4, Delete), (3, Disable), (2, Update), (1, Create)]);
    assert_eq!((&all[0].rule, all[1].enabled, all[2].comment.as_deref()), (&None, false, Some("more")));
    assert_eq!(control.history().diff("api", "each", 1, 2).await.unwrap(), " id: each\n-limit: 1/s\n+limit: 2/s\n");
    assert_eq!(control.history().diff("api", "each", 2, 3).await.unwrap(), " id: each\n limit: 2/s\n");
    assert_eq!(control.history().diff("api", "each", 4, 1).await.unwrap(), "+id: each\n+limit: 1/s\n");
    assert_eq!(control.history().diff("api", "each", 0, 1).await.unwrap(), "+id: each\n+limit: 1/s\n");
    assert!(matches!(control.history().diff("api", "each", 1, 9).await, Err(ControlError::Missing(_))));
    assert!(matches!(control.history().get("api", "each", 0).await, Err(ControlError::Missing(_))));
}

async fn earlier_version_is_restored(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "each", "{limit: 1/s}").await;
    put_rule(&control, "api", "each", "{limit: 2/s}").await;
    let stale = control
        .history()
        .rollback(&change_by("ann").with_expected(ExpectedVersion::Version(1)), "api", "each", 1)
        .await;
    assert!(matches!(stale, Err(ControlError::Conflict(_))));
    let back = control
        .history()
        .rollback(&change_by("ann").with_expected(ExpectedVersion::Version(2)), "api", "each", 1)
        .await
        .unwrap();
    assert_eq!((back.value.version, back.value.rule["limit"].as_str()), (3, Some("1/s")));
    assert_eq!(control.history().get("api", "each", 3).await.unwrap().action, Action::Rollback);
    assert!(!control.history().rollback(&change_by("ann"), "api", "each", 3).await.unwrap().changed);
    let none = control.history().rollback(&change_by("ann"), "api", "each", 7).await;
    assert!(matches!(none, Err(ControlError::Missing(_))));
}

async fn deleted_rule_is_restored(database: Arc<TestDatabase>) {
    let control = database.open().await;
    put_rule(&control, "api", "each", "{limit: 1/s}").await;
    control.rules().delete(&change_by("ann"), "api", "each").await.unwrap();
    let deletion = control.history().rollback(&change_by("ann"), "api", "each", 2).await;
    assert!(matches!(deletion, Err(ControlError::Invalid(_))));
    let back = control
        .history()
        .rollback(&change_by("ann").with_expected(ExpectedVersion::Absent), "api", "each", 1)
        .await
        .unwrap();
    assert!(back.created);
    assert_eq!(back.value.version, 3);
}
