use super::*;

fn verifier(token: &str, role: Role, domains: &[&str], expires_ms: Option<i64>) -> Verifier {
    Verifier {
        digest: hex::encode(digest(token.as_bytes())),
        id: format!("id-{token}"),
        name: format!("name of {token}"),
        role,
        domains: domains.iter().map(|domain| (*domain).to_owned()).collect(),
        expires_ms,
    }
}

fn admit(guards: &Guards, shown: &mut Shown, token: Option<&str>, now: i64) -> Result<String, AuthError> {
    guards.admit(shown, token.map(str::as_bytes), || now).map(|access| access.author().to_owned())
}

#[test]
fn without_required_tokens_every_caller_may_do_everything() {
    let guards = Guards::new(Tokens::NotAsked);
    assert_eq!(admit(&guards, &mut Shown::default(), None, 0).as_deref(), Ok(LOCAL));
    assert_eq!(admit(&guards, &mut Shown::default(), Some("whatever"), 0).as_deref(), Ok(LOCAL));
    assert_eq!(Access::Local.require(Role::Admin, Place::Everywhere), Ok(()));
}

#[test]
fn valid_tokens_are_accepted_and_others_refused_with_the_reason() {
    let guards = Guards::new(Tokens::Asked);
    assert_eq!(admit(&guards, &mut Shown::default(), Some("a"), 0), Err(AuthError::Unknown), "no tokens yet");
    guards.replace(&[verifier("a", Role::Reader, &[], None), verifier("b", Role::Reader, &[], Some(100))]);
    let mut shown = Shown::default();
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
        assert_eq!(admit(&guards, &mut shown, token, now), expected.map(str::to_owned), "{token:?} at {now}");
    }
    let long = "x".repeat(100_000);
    assert_eq!(admit(&guards, &mut shown, Some(&long), 0), Err(AuthError::Unknown));
    assert!(shown.text.len() <= MAX_TOKEN, "a string that is too long is not kept");
}

#[test]
fn revoked_or_changed_token_takes_effect_on_open_connections() {
    let guards = Guards::new(Tokens::Asked);
    guards.replace(&[verifier("a", Role::Reader, &[], None)]);
    let mut shown = Shown::default();
    guards.show(&mut shown, b"a");
    assert!(guards.access(&mut shown, || 0).is_ok());
    guards.replace(&[verifier("a", Role::Admin, &[], None)]);
    assert!(guards.access(&mut shown, || 0).is_ok_and(|access| access.require(Role::Admin, Place::Everywhere).is_ok()));
    guards.replace(&[]);
    assert_eq!(guards.access(&mut shown, || 0), Err(AuthError::Unknown));
    assert_eq!(guards.access(&mut Shown::default(), || 0), Err(AuthError::NoToken));
    let edition = guards.edition.load(Ordering::Relaxed);
    guards.replace(&[]);
    assert_eq!(guards.edition.load(Ordering::Relaxed), edition, "the same tokens change nothing");
}

#[test]
fn role_includes_those_before_it_and_is_limited_to_its_domains() {
    let may = |role, domains: &[&str], needed, place| {
        let access = Access::Token(Arc::new(verifier("t", role, domains, None)));
        access.require(needed, place).is_ok()
    };
    let roles = [Role::Reader, Role::Operator, Role::Editor, Role::Admin];
    for role in roles {
        for needed in roles {
            assert_eq!(may(role, &[], needed, Place::Everywhere), role >= needed);
            assert_eq!(may(role, &[], needed, Place::Domain("a")), role >= needed);
            assert_eq!(may(role, &["b", "a"], needed, Place::Domain("a")), role >= needed);
            assert_eq!(may(role, &["b"], needed, Place::Domain("a")), role == Role::Admin);
            assert_eq!(may(role, &["b"], needed, Place::Everywhere), role == Role::Admin);
        }
    }
}

#[test]
fn refusal_names_the_required_role() {
    let access = Access::Token(Arc::new(verifier("t", Role::Editor, &["a", "b"], None)));
    let denied = access.require(Role::Editor, Place::Domain("c")).unwrap_err();
    assert_eq!(
        denied.to_string(),
        "this needs the role editor for the domain `c`; the token `id-t` has the role editor for a, b"
    );
}

#[test]
fn invalid_digests_match_no_token() {
    for invalid in ["", "0f", &"0g".repeat(32), &"0f".repeat(33), &"ü".repeat(32), &"+f".repeat(32)] {
        let guards = Guards::new(Tokens::Asked);
        guards.replace(&[Verifier { digest: invalid.into(), ..verifier("a", Role::Reader, &[], None) }]);
        assert!(guards.table.read().unwrap().is_empty(), "{invalid}");
    }
}
