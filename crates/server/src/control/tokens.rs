//! Tokens and their permissions. Only digests are stored; a token itself is returned once, when it is created.

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use tollgate_engine::rules::{Source, entry};

use super::audit::NewEntry;
use super::db::{SHORT_TIMEOUT, are_storable, now_ms, with_timeout};
use super::model::{Change, CreatedToken, Page, PageRequest, Role, StoredToken, TokenGrant, Verifier};
use super::paging::{Cursor, build_page};
use super::sql::Sql;
use super::{Control, ControlError, Result, sha256_hex};

/// Maximum number of valid tokens. The number is limited because every node keeps all valid tokens in memory.
pub const MAX_TOKENS: i64 = 10_000;
const MAX_NAME_BYTES: usize = 128;
const MAX_DOMAINS: usize = 100;

const TOKEN_COLUMNS: &str = "id, name, role, domains, created_ms, expires_ms, revoked_ms";
/// SQL condition for valid tokens. The caller appends the current time and a closing parenthesis.
const VALID_TOKEN_CONDITION: &str = "revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > ";

/// The tokens in the database.
#[derive(Debug)]
pub struct Tokens<'c> {
    pub(super) control: &'c Control,
}

impl Tokens<'_> {
    /// Creates a token.
    ///
    /// # Errors
    /// Returns an error if `grant` is invalid, if there are already [`MAX_TOKENS`] valid tokens, or if the database is
    /// unreachable.
    pub async fn create(&self, change: &Change, grant: &TokenGrant) -> Result<CreatedToken> {
        let now = now_ms();
        check_grant(grant, now)?;
        let (id, secret) = (random_hex::<8>()?, random_hex::<32>()?);
        let created = CreatedToken {
            token: format!("tg_{id}_{secret}"),
            stored: StoredToken { id, grant: grant.clone(), created_ms: now, revoked_ms: None },
        };
        let stored = &created.stored;
        with_timeout(SHORT_TIMEOUT, async {
            let mut write = self.control.db.begin_write(change).await?;
            let mut query = Sql::new("SELECT COUNT(*) FROM tokens WHERE ");
            let row = query.push(VALID_TOKEN_CONDITION).bind(now).push(")").fetch_optional(&mut *write.tx).await?;
            if row.map(|row| row.try_get(0)).transpose()?.unwrap_or(0_i64) >= MAX_TOKENS {
                return Err(ControlError::Full(format!("too many tokens (maximum {MAX_TOKENS}); revoke some first")));
            }
            let mut insert =
                Sql::new("INSERT INTO tokens (id, digest, name, role, domains, created_ms, expires_ms) VALUES (");
            insert
                .bind(stored.id.as_str())
                .bind_next(sha256_hex(created.token.as_bytes()))
                .bind_next(grant.name.as_str())
                .bind_next(grant.role.as_str())
                .bind_next(serde_json::to_string(&grant.domains).unwrap_or_default())
                .bind_next(stored.created_ms)
                .bind_next(grant.expires_ms)
                .push(")");
            insert.execute(&mut *write.tx).await?;
            let after = to_audit_json(stored);
            write.append_to_audit_log(&[token_audit_entry("create", stored, None, Some(&after))]).await?;
            write.commit().await
        })
        .await?;
        self.control.wait_until_installed().await;
        Ok(created)
    }

    /// Returns all tokens, including revoked tokens, without their secrets.
    ///
    /// # Errors
    /// Returns an error if the page's `after` is invalid or the database is unreachable.
    pub async fn list(&self, page: &PageRequest) -> Result<Page<StoredToken>> {
        let (limit, after) = page.parse()?;
        let Cursor { number, name } = after.unwrap_or(Cursor::from_number(i64::MIN));
        let mut query = Sql::new("SELECT ");
        query.push(TOKEN_COLUMNS).push(" FROM tokens WHERE (created_ms, id) > (").bind(number).bind_next(name);
        query.push(") ORDER BY created_ms, id LIMIT ").bind(limit + 1);
        let rows = with_timeout(SHORT_TIMEOUT, query.fetch_all(self.control.db.pool())).await?;
        build_page(&rows, limit, read_token, |last| Cursor { number: last.created_ms, name: last.id.clone() })
    }

    /// Revokes a token. Revoking a token again changes nothing. The last valid admin token cannot be revoked, so that
    /// administrators cannot lock themselves out by accident.
    ///
    /// # Errors
    /// Returns an error if the token does not exist, if it is the last valid admin token, or if the database is
    /// unreachable.
    pub async fn revoke(&self, change: &Change, id: &str) -> Result<StoredToken> {
        let missing = || ControlError::Missing(format!("token `{id}`"));
        if !are_storable([id]) {
            return Err(missing());
        }
        let token = with_timeout(SHORT_TIMEOUT, async {
            let mut write = self.control.db.begin_write(change).await?;
            let mut token = find_token(&mut write.tx, id).await?.ok_or_else(missing)?;
            if token.revoked_ms.is_some() {
                write.rollback().await?;
                return Ok(token);
            }
            let now = write.authorship.at_ms;
            if token.grant.role == Role::Admin && token.grant.expires_ms.is_none_or(|end| end > now) {
                let mut others = Sql::new("SELECT id FROM tokens WHERE role = 'admin' AND id <> ");
                others.bind(id).push(" AND ").push(VALID_TOKEN_CONDITION).bind(now).push(") LIMIT 1");
                if others.fetch_optional(&mut *write.tx).await?.is_none() {
                    let why = format!("`{id}` is the last admin token; create another one before revoking it");
                    return Err(ControlError::Invalid(why));
                }
            }
            let before = to_audit_json(&token);
            token.revoked_ms = Some(now);
            let mut update = Sql::new("UPDATE tokens SET revoked_ms = ");
            update.bind(now).push(" WHERE id = ").bind(id).execute(&mut *write.tx).await?;
            let after = to_audit_json(&token);
            write.append_to_audit_log(&[token_audit_entry("revoke", &token, Some(&before), Some(&after))]).await?;
            write.commit().await?;
            Ok(token)
        })
        .await?;
        self.control.wait_until_installed().await;
        Ok(token)
    }
}

/// Returns the digests and grants of all valid tokens. Nodes verify tokens with these digests.
pub(super) async fn load_verifiers(connection: &mut AnyConnection) -> Result<Vec<Verifier>> {
    let mut query = Sql::new("SELECT digest, ");
    query
        .push(TOKEN_COLUMNS)
        .push(" FROM tokens WHERE ")
        .push(VALID_TOKEN_CONDITION)
        .bind(now_ms())
        .push(") ORDER BY created_ms, id");
    let rows = query.fetch_all(connection).await?;
    let verifier = |row: &AnyRow| -> Result<Verifier> {
        let StoredToken { id, grant, .. } = read_token(row)?;
        Ok(Verifier { digest: row.try_get("digest")?, id, grant })
    };
    // An unreadable token is left out: it grants nothing, and nodes still receive the rules.
    let readable = |row| verifier(row).inspect_err(|error| tracing::error!(%error, "unreadable token ignored")).ok();
    Ok(rows.iter().filter_map(readable).collect())
}

fn random_hex<const BYTES: usize>() -> Result<String> {
    let mut bytes = [0; BYTES];
    let failed = |error: getrandom::Error| sqlx::Error::Io(std::io::Error::other(error.to_string()));
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(hex::encode(bytes))
}

fn check_grant(grant: &TokenGrant, now: i64) -> Result<()> {
    let name = &grant.name;
    if name.trim().is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        let why = format!("invalid token name: use 1 to {MAX_NAME_BYTES} bytes without control characters");
        return Err(ControlError::Invalid(why));
    }
    if grant.expires_ms.is_some_and(|end| end <= now) {
        return Err(ControlError::Invalid("the expiry time is in the past".into()));
    }
    if grant.domains.len() > MAX_DOMAINS {
        let count = grant.domains.len();
        return Err(ControlError::Invalid(format!(
            "too many domains: {count} (maximum {MAX_DOMAINS}; an empty list means all)"
        )));
    }
    for domain in &grant.domains {
        // Checks the domain name with the parser of the rule language.
        let rule = Source { name: "token", text: b"unlimited: true" };
        if let Err(mistakes) = entry::parse_rule(&rule, domain, "any") {
            let why = mistakes.as_slice().first().map(|mistake| mistake.problem.clone()).unwrap_or_default();
            return Err(ControlError::Invalid(format!("{why}; use letters, digits and `-_.:/`")));
        }
    }
    Ok(())
}

async fn find_token(connection: &mut AnyConnection, id: &str) -> Result<Option<StoredToken>> {
    let mut query = Sql::new("SELECT ");
    let row = query.push(TOKEN_COLUMNS).push(" FROM tokens WHERE id = ").bind(id).fetch_optional(connection).await?;
    row.as_ref().map(read_token).transpose()
}

fn read_token(row: &AnyRow) -> Result<StoredToken> {
    let (role, domains): (String, String) = (row.try_get("role")?, row.try_get("domains")?);
    // An unknown role is an error, because permissions must not be guessed.
    let role = Role::parse(&role).ok_or_else(|| sqlx::Error::Decode(format!("`{role}` is not a role").into()))?;
    let domains = serde_json::from_str(&domains).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let grant = TokenGrant { name: row.try_get("name")?, role, domains, expires_ms: row.try_get("expires_ms")? };
    let (created_ms, revoked_ms) = (row.try_get("created_ms")?, row.try_get("revoked_ms")?);
    Ok(StoredToken { id: row.try_get("id")?, grant, created_ms, revoked_ms })
}

/// Returns the token, without its secret, as JSON for the audit log.
fn to_audit_json(token: &StoredToken) -> String {
    serde_json::to_string(token).unwrap_or_default()
}

fn token_audit_entry<'e>(
    action: &'e str,
    token: &StoredToken,
    before: Option<&'e str>,
    after: Option<&'e str>,
) -> NewEntry<'e> {
    NewEntry { kind: "token", action, domain: None, subject: token.id.clone(), before, after }
}
