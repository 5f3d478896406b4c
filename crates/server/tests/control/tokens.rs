//! Creation and revocation of tokens.

use std::sync::Arc;

use tollgate_server::control::model::{AuditSearch, PageRequest, Role, TokenGrant};
use tollgate_server::control::{ControlError, sha256_hex};

use crate::test_database::{TestDatabase, change_by};

on_both_databases!(
    token_is_shown_once_and_stored_as_a_digest,
    last_admin_token_cannot_be_revoked,
    invalid_tokens_are_refused,
);

fn token_grant(name: &str, role: Role) -> TokenGrant {
    TokenGrant { name: name.into(), role, domains: Vec::new(), expires_ms: None }
}

async fn token_is_shown_once_and_stored_as_a_digest(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let wanted = TokenGrant { domains: vec!["api".into(), "web/x".into()], ..token_grant("ci '; --", Role::Editor) };
    let made = control.tokens().create(&change_by("ann"), &wanted).await.unwrap();
    let [tg, id, secret] = made.token.split('_').collect::<Vec<_>>()[..] else { panic!("{}", made.token) };
    assert_eq!((tg, id, secret.len()), ("tg", &*made.stored.id, 64));
    let other = control.tokens().create(&change_by("ann"), &wanted).await.unwrap();
    assert_ne!(other.token, made.token);
    let listed = control.tokens().list(&PageRequest { limit: Some(1), after: None }).await.unwrap();
    let rest = control.tokens().list(&PageRequest { limit: Some(1), after: listed.next }).await.unwrap();
    let mut both_ids = [listed.items[0].id.clone(), rest.items[0].id.clone()];
    both_ids.sort();
    let mut ids = [made.stored.id.clone(), other.stored.id.clone()];
    ids.sort();
    assert_eq!(both_ids, ids);
    let snapshot = control.snapshot().await.unwrap();
    let verifier = snapshot.tokens.iter().find(|token| token.id == made.stored.id).unwrap();
    assert_eq!(verifier.digest, sha256_hex(made.token.as_bytes()));
    assert_eq!((verifier.grant.role, &verifier.grant.domains), (Role::Editor, &wanted.domains));
    // The audit log does not contain the token itself.
    let log = control.audit().list(&AuditSearch::default(), &PageRequest::default()).await.unwrap();
    assert!(!serde_json::to_string(&log).unwrap().contains(secret));
    let revoked = control.tokens().revoke(&change_by("ann"), &made.stored.id).await.unwrap();
    assert!(revoked.revoked_ms.is_some());
    assert_eq!(control.tokens().revoke(&change_by("ann"), &made.stored.id).await.unwrap(), revoked);
    let snapshot = control.snapshot().await.unwrap();
    assert_eq!(snapshot.tokens.iter().map(|token| &token.id).collect::<Vec<_>>(), [&other.stored.id]);
    assert_eq!(control.tokens().list(&PageRequest::default()).await.unwrap().items.len(), 2);
    for odd in ["no", "", "\0", "' OR 1=1 --"] {
        assert!(matches!(control.tokens().revoke(&change_by("ann"), odd).await, Err(ControlError::Missing(_))));
    }
}

async fn last_admin_token_cannot_be_revoked(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let first = control.tokens().create(&change_by("ann"), &token_grant("ann", Role::Admin)).await.unwrap().stored.id;
    let refused = control.tokens().revoke(&change_by("ann"), &first).await.unwrap_err();
    assert!(refused.to_string().contains("last admin token"), "{refused}");
    let second = control.tokens().create(&change_by("ann"), &token_grant("bob", Role::Admin)).await.unwrap().stored.id;
    control.tokens().revoke(&change_by("ann"), &first).await.unwrap();
    assert!(matches!(control.tokens().revoke(&change_by("ann"), &second).await, Err(ControlError::Invalid(_))));
}

async fn invalid_tokens_are_refused(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let long = "n".repeat(129);
    for name in ["", "  ", "a\nb", "\0", &long] {
        let made = control.tokens().create(&change_by("ann"), &token_grant(name, Role::Reader)).await;
        assert!(matches!(made, Err(ControlError::Invalid(_))), "{name:?}");
    }
    let past = TokenGrant { expires_ms: Some(1), ..token_grant("a", Role::Reader) };
    assert!(matches!(control.tokens().create(&change_by("ann"), &past).await, Err(ControlError::Invalid(_))));
    let odd = TokenGrant { domains: vec!["a b".into()], ..token_grant("a", Role::Reader) };
    assert!(matches!(control.tokens().create(&change_by("ann"), &odd).await, Err(ControlError::Invalid(_))));
    let many = TokenGrant { domains: vec!["a".into(); 101], ..token_grant("a", Role::Reader) };
    assert!(matches!(control.tokens().create(&change_by("ann"), &many).await, Err(ControlError::Invalid(_))));
    assert!(control.tokens().create(&change_by("ann"), &token_grant(&"n".repeat(128), Role::Reader)).await.is_ok());
}
