use super::*;
use crate::control::model::TokenGrant;

fn test_verifier(token: &str, role: Role, domains: &[&str], expires_ms: Option<i64>) -> Verifier {
    Verifier {
        digest: hex::encode(digest_of_token(token.as_bytes())),
        id: format!("id-{token}"),
        grant: TokenGrant {
            name: format!("name of {token}"),
            role,
            domains: domains.iter().map(|domain| (*domain).to_owned()).collect(),
            expires_ms,
        },
    }
}

fn author_of_token(
    auth: &Authenticator,
    cached: &mut CachedToken,
    token: Option<&str>,
    now: i64,
) -> Result<String, AuthError> {
    auth.authenticate(cached, token.map(str::as_bytes), || now).map(|access| access.author().to_owned())
}

#[test]
fn without_required_tokens_every_caller_may_do_everything() {
    let auth = Authenticator::new(TokenPolicy::NotRequired);
    assert_eq!(author_of_token(&auth, &mut CachedToken::default(), None, 0).as_deref(), Ok(LOCAL_AUTHOR));
    assert_eq!(author_of_token(&auth, &mut CachedToken::default(), Some("whatever"), 0).as_deref(), Ok(LOCAL_AUTHOR));
    assert_eq!(Access::Unrestricted.require_role(Role::Admin, Scope::AllDomains), Ok(()));
}

#[test]
fn valid_tokens_are_accepted_and_others_refused_with_the_reason() {
    let auth = Authenticator::new(TokenPolicy::Required);
    assert_eq!(
        author_of_token(&auth, &mut CachedToken::default(), Some("a"), 0),
        Err(AuthError::Unknown),
        "no tokens yet"
    );
    auth.replace_tokens(&[
        test_verifier("a", Role::Reader, &[], None),
        test_verifier("b", Role::Reader, &[], Some(100)),
    ]);
    let mut cached = CachedToken::default();
    for (token, now, expected) in [
        (None, 0, Err(AuthError::NoToken)),
        (Some(""), 0, Err(AuthError::NoToken)),
        (Some("a"), 0, Ok("name of a")),
        (Some("a"), i64::MAX, Ok("name of a")),
        (Some("b"), 99, Ok("name of b")),
        (Some("b"), 100, Err(AuthError::Expired)),
        (Some("c"), 0, Err(AuthError::Unknown)),
        (Some("a"), 0, Ok("name of a")),
        (None, 0, Err(AuthError::NoToken)),
    ] {
        assert_eq!(author_of_token(&auth, &mut cached, token, now), expected.map(str::to_owned), "{token:?} at {now}");
    }
    let long = "x".repeat(100_000);
    assert_eq!(author_of_token(&auth, &mut cached, Some(&long), 0), Err(AuthError::Unknown));
    assert!(cached.text.len() <= MAX_TOKEN_BYTES, "a string that is too long is not kept");
}

#[test]
fn revocations_and_role_changes_apply_to_open_connections() {
    let auth = Authenticator::new(TokenPolicy::Required);
    auth.replace_tokens(&[test_verifier("a", Role::Reader, &[], None)]);
    let mut cached = CachedToken::default();
    auth.set_token(&mut cached, b"a");
    assert!(auth.authenticate_cached(&mut cached, || 0).is_ok());
    auth.replace_tokens(&[test_verifier("a", Role::Admin, &[], None)]);
    assert!(
        auth.authenticate_cached(&mut cached, || 0)
            .is_ok_and(|access| access.require_role(Role::Admin, Scope::AllDomains).is_ok())
    );
    auth.replace_tokens(&[]);
    assert_eq!(auth.authenticate_cached(&mut cached, || 0), Err(AuthError::Unknown));
    assert_eq!(auth.authenticate_cached(&mut CachedToken::default(), || 0), Err(AuthError::NoToken));
    let edition = auth.edition.load(Ordering::Relaxed);
    auth.replace_tokens(&[]);
    assert_eq!(auth.edition.load(Ordering::Relaxed), edition, "the same tokens change nothing");
}

#[test]
fn role_includes_lower_roles_and_is_limited_to_its_domains() {
    let may = |role, domains: &[&str], needed, scope| {
        let access = Access::Token(Arc::new(test_verifier("t", role, domains, None)));
        access.require_role(needed, scope).is_ok()
    };
    let roles = [Role::Reader, Role::Operator, Role::Editor, Role::Admin];
    for role in roles {
        for needed in roles {
            assert_eq!(may(role, &[], needed, Scope::AllDomains), role >= needed);
            assert_eq!(may(role, &[], needed, Scope::Domain("a")), role >= needed);
            assert_eq!(may(role, &["b", "a"], needed, Scope::Domain("a")), role >= needed);
            assert_eq!(may(role, &["b"], needed, Scope::Domain("a")), role == Role::Admin);
            assert_eq!(may(role, &["b"], needed, Scope::AllDomains), role == Role::Admin);
        }
    }
}

#[test]
fn refusal_names_the_required_role() {
    let access = Access::Token(Arc::new(test_verifier("t", Role::Editor, &["a", "b"], None)));
    let denied = access.require_role(Role::Editor, Scope::Domain("c")).unwrap_err();
    assert_eq!(
        denied.to_string(),
        "this call needs the role editor for the domain `c`; the token `id-t` has the role editor for a, b"
    );
}

#[test]
fn invalid_digests_match_no_token() {
    for invalid in ["", "0f", &"0g".repeat(32), &"0f".repeat(33), &"ü".repeat(32), &"+f".repeat(32)] {
        let auth = Authenticator::new(TokenPolicy::Required);
        auth.replace_tokens(&[Verifier { digest: invalid.into(), ..test_verifier("a", Role::Reader, &[], None) }]);
        assert!(auth.table.read().unwrap().is_empty(), "{invalid}");
    }
}
