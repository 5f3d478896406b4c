//! Tokens: who may do what. Only digests are kept; the token itself is told once, to whoever made it.

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use tollgate_engine::rules::{Source, entry};

use super::audit::Line;
use super::cut::{Cursor, page_of};
use super::db::{SHORT, now_ms, storable, within};
use super::hex::{hex, sha256};
use super::model::{Change, Cut, MadeToken, NewToken, Page, Role, StoredToken, Verifier};
use super::{Control, ControlError, Result};

/// How many may be good at once: nodes keep all of them.
pub const MAX_TOKENS: i64 = 10_000;
const MAX_NAME_BYTES: usize = 128;
const MAX_DOMAINS: usize = 100;

impl Control {
    /// Makes a token.
    ///
    /// # Errors
    /// When something about it is wrong, there are too many, or the database cannot be asked.
    pub async fn make_token(&self, change: &Change, token: &NewToken) -> Result<MadeToken> {
        let now = now_ms();
        check(token, now)?;
        let (id, secret) = (random::<8>()?, random::<32>()?);
        let made = MadeToken {
            token: format!("tg_{id}_{secret}"),
            stored: StoredToken {
                id,
                name: token.name.clone(),
                role: token.role,
                domains: token.domains.clone(),
                created_ms: now,
                expires_ms: token.expires_ms,
                revoked_ms: None,
            },
        };
        let stored = &made.stored;
        let domains = serde_json::to_string(&stored.domains).unwrap_or_default();
        let revision = within(SHORT, async {
            let mut write = self.db.write(change).await?;
            let good =
                "SELECT COUNT(*) FROM tokens WHERE revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > $1)";
            let good: i64 = sqlx::query(good).bind(now).fetch_one(&mut *write.tx).await?.try_get(0)?;
            if good >= MAX_TOKENS {
                return Err(ControlError::Full(format!("there are at most {MAX_TOKENS} tokens; revoke some first")));
            }
            let insert = "INSERT INTO tokens (id, digest, name, role, domains, created_ms, expires_ms) \
                          VALUES ($1, $2, $3, $4, $5, $6, $7)";
            sqlx::query(insert)
                .bind(stored.id.as_str())
                .bind(digest(&made.token))
                .bind(stored.name.as_str())
                .bind(stored.role.as_str())
                .bind(domains.as_str())
                .bind(stored.created_ms)
                .bind(stored.expires_ms)
                .execute(&mut *write.tx)
                .await?;
            let after = logged(stored);
            write.log(&[line("create", stored, None, Some(&after))]).await?;
            write.commit().await
        })
        .await?;
        self.tell(revision);
        self.until_landed().await;
        Ok(made)
    }

    /// All tokens, without their secrets, also those that are revoked.
    ///
    /// # Errors
    /// When `after` was made up, or the database cannot be asked.
    pub async fn tokens(&self, cut: &Cut) -> Result<Page<StoredToken>> {
        let (limit, after) = cut.read()?;
        let query = "SELECT id, name, role, domains, created_ms, expires_ms, revoked_ms FROM tokens \
                     WHERE (created_ms, id) > ($1, $2) ORDER BY created_ms, id LIMIT $3";
        let Cursor { number, name } = after.unwrap_or(Cursor { number: i64::MIN, name: String::new() });
        let rows = within(SHORT, async {
            Ok(sqlx::query(query).bind(number).bind(name).bind(limit + 1).fetch_all(self.db.pool()).await?)
        })
        .await?;
        page_of(&rows, limit, stored, |last| Cursor { number: last.created_ms, name: last.id.clone() })
    }

    /// Revokes a token; revoking it again changes nothing. The last good admin token stays, so that nobody is locked out by a
    /// slip: who wants to get rid of it makes another one first.
    ///
    /// # Errors
    /// When there is no such token, it is the last good admin token, or the database cannot be asked.
    pub async fn revoke_token(&self, change: &Change, id: &str) -> Result<StoredToken> {
        let missing = || ControlError::Missing(format!("token `{id}`"));
        if !storable(id) {
            return Err(missing());
        }
        let (token, revision) = within(SHORT, async {
            let mut write = self.db.write(change).await?;
            let mut token = find(&mut write.tx, id).await?.ok_or_else(missing)?;
            if token.revoked_ms.is_some() {
                write.undo().await?;
                return Ok((token, None));
            }
            let now = write.at_ms;
            if token.role == Role::Admin && token.expires_ms.is_none_or(|end| end > now) {
                let others = "SELECT id FROM tokens WHERE role = 'admin' AND id <> $1 AND revoked_ms IS NULL \
                              AND (expires_ms IS NULL OR expires_ms > $2) LIMIT 1";
                if sqlx::query(others).bind(id).bind(now).fetch_optional(&mut *write.tx).await?.is_none() {
                    let why = format!("`{id}` is the last admin token; make another one before you revoke it");
                    return Err(ControlError::Invalid(why));
                }
            }
            let before = logged(&token);
            token.revoked_ms = Some(now);
            let revoke = "UPDATE tokens SET revoked_ms = $1 WHERE id = $2";
            sqlx::query(revoke).bind(now).bind(id).execute(&mut *write.tx).await?;
            let after = logged(&token);
            write.log(&[line("revoke", &token, Some(&before), Some(&after))]).await?;
            let revision = write.commit().await?;
            Ok((token, Some(revision)))
        })
        .await?;
        if let Some(revision) = revision {
            self.tell(revision);
            self.until_landed().await;
        }
        Ok(token)
    }
}

/// What nodes check tokens by: those that are good.
pub(super) async fn verifiers(connection: &mut AnyConnection) -> Result<Vec<Verifier>> {
    let query = "SELECT digest, id, name, role, domains, created_ms, expires_ms, revoked_ms FROM tokens \
                 WHERE revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > $1) ORDER BY created_ms, id";
    let rows = sqlx::query(query).bind(now_ms()).fetch_all(connection).await?;
    let read = |row: &AnyRow| -> Result<Verifier> {
        let StoredToken { id, name, role, domains, expires_ms, .. } = stored(row)?;
        Ok(Verifier { digest: row.try_get("digest")?, id, name, role, domains, expires_ms })
    };
    // One that cannot be understood is not good for anything, and must not keep rules from nodes either.
    let good = rows.iter().filter_map(|row| match read(row) {
        Ok(verifier) => Some(verifier),
        Err(error) => {
            tracing::error!(%error, "a token is left out");
            None
        }
    });
    Ok(good.collect())
}

/// What is kept of a token.
pub fn digest(token: &str) -> String {
    sha256(token.as_bytes())
}

fn random<const BYTES: usize>() -> Result<String> {
    let mut bytes = [0; BYTES];
    let failed = |error: getrandom::Error| sqlx::Error::Io(std::io::Error::other(error.to_string()));
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(hex(&bytes))
}

fn check(token: &NewToken, now: i64) -> Result<()> {
    let name = &token.name;
    if name.trim().is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        let why = format!("the name of a token has 1 to {MAX_NAME_BYTES} bytes and no control characters");
        return Err(ControlError::Invalid(why));
    }
    if token.expires_ms.is_some_and(|end| end <= now) {
        return Err(ControlError::Invalid("the token would have ended already".into()));
    }
    if token.domains.len() > MAX_DOMAINS {
        return Err(ControlError::Invalid(format!("a token is for at most {MAX_DOMAINS} domains, or for all")));
    }
    for domain in &token.domains {
        // Names are what the language says.
        let rule = Source { name: "token", text: b"unlimited: true" };
        if let Err(mistakes) = entry::one(&rule, domain, "any") {
            let why = mistakes.as_slice().first().map(|mistake| mistake.problem.clone()).unwrap_or_default();
            return Err(ControlError::Invalid(format!("{why}; use letters, digits and `-_.:/`")));
        }
    }
    Ok(())
}

async fn find(connection: &mut AnyConnection, id: &str) -> Result<Option<StoredToken>> {
    let query = "SELECT id, name, role, domains, created_ms, expires_ms, revoked_ms FROM tokens WHERE id = $1";
    let row = sqlx::query(query).bind(id).fetch_optional(connection).await?;
    row.as_ref().map(stored).transpose()
}

fn stored(row: &AnyRow) -> Result<StoredToken> {
    let (role, domains): (String, String) = (row.try_get("role")?, row.try_get("domains")?);
    // What may be done is never guessed.
    let role = Role::from_str(&role).ok_or_else(|| sqlx::Error::Decode(format!("`{role}` is not a role").into()))?;
    let domains = serde_json::from_str(&domains).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(StoredToken {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        role,
        domains,
        created_ms: row.try_get("created_ms")?,
        expires_ms: row.try_get("expires_ms")?,
        revoked_ms: row.try_get("revoked_ms")?,
    })
}

/// As the audit log has it.
fn logged(token: &StoredToken) -> String {
    serde_json::to_string(token).unwrap_or_default()
}

fn line<'l>(action: &'l str, token: &'l StoredToken, before: Option<&'l str>, after: Option<&'l str>) -> Line<'l> {
    Line { kind: "token", action, domain: None, subject: token.id.clone(), before, after }
}

impl Role {
    /// In one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Operator => "operator",
            Self::Editor => "editor",
            Self::Admin => "admin",
        }
    }

    fn from_str(word: &str) -> Option<Self> {
        [Self::Reader, Self::Operator, Self::Editor, Self::Admin].into_iter().find(|role| role.as_str() == word)
    }
}
