//! Authentication by tokens, and authorisation by their roles.
//!
//! A token contains 256 random bits, so its SHA-256 digest does not reveal it and the lookup by digest need not take
//! constant time. Hashing costs more than a decision, so each connection caches its verified token. The next request
//! with the same token costs one string comparison and one check that the token table was not replaced. If no tokens
//! are required, authentication costs one branch.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use sha2::{Digest, Sha256};

use super::model::{Role, Verifier};

/// Whether callers must send a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenPolicy {
    /// All calls require a token, except health checks and the files and login of the console.
    Required,
    /// No token is required, and every caller has all permissions. Used if no other machine can connect, or with
    /// `--insecure`.
    #[default]
    NotRequired,
}

/// The author that is recorded for changes if no tokens are required.
pub const LOCAL_AUTHOR: &str = "local";

type TokenDigest = [u8; 32];
type Verifiers = HashMap<TokenDigest, Verifier>;

/// The valid tokens.
#[derive(Debug, Default)]
pub struct Authenticator {
    tokens: TokenPolicy,
    /// Number of times that the table was replaced.
    edition: AtomicU64,
    /// The valid tokens by digest. Locked only when a connection sends a new token or after the table is replaced, so
    /// most decisions do not lock it.
    table: RwLock<Arc<Verifiers>>,
}

/// The token of a connection, and its cached verification.
#[derive(Debug, Default)]
pub struct CachedToken {
    /// The token as sent; empty if the connection sent no token or a token that is too long.
    text: Vec<u8>,
    digest: TokenDigest,
    edition: u64,
    access: Option<Access>,
}

/// An authenticated caller. Every caller has at least the role `reader`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// A caller without a token, where no token is required. Every action is permitted.
    Unrestricted,
    /// The holder of this token.
    Token(Arc<Verifier>),
}

/// The scope of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// One domain.
    Domain(&'a str),
    /// All domains.
    AllDomains,
}

/// Why a caller is not authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthError {
    /// No token was sent.
    NoToken,
    /// The token is unknown; it may have been revoked.
    Unknown,
    /// The token has expired.
    Expired,
}

/// A caller lacks a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRole {
    needed: Role,
    domain: Option<String>,
    token: Arc<Verifier>,
}

impl Authenticator {
    /// Creates an empty token table. If tokens are required, an empty table refuses every caller.
    pub fn new(tokens: TokenPolicy) -> Self {
        Self { tokens, ..Self::default() }
    }

    /// Returns whether tokens are required.
    #[inline]
    pub fn requires_tokens(&self) -> bool {
        self.tokens == TokenPolicy::Required
    }

    /// Replaces the valid tokens. All other tokens are refused from the next request on, even on connections that
    /// already use them. A verifier with an invalid digest is ignored, because no token could match it.
    pub fn replace_tokens(&self, verifiers: &[Verifier]) {
        let known = verifiers.iter().filter_map(|verifier| {
            let mut digest = TokenDigest::default();
            hex::decode_to_slice(&verifier.digest, &mut digest).ok()?;
            Some((digest, verifier.clone()))
        });
        let table: Arc<Verifiers> = Arc::new(known.collect());
        let mut current = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if *current != table {
            *current = table;
            // Release: pairs with the acquire in `authenticate_cached`. The lock publishes the table itself.
            self.edition.fetch_add(1, Ordering::Release);
        }
    }

    /// Authenticates the caller by `token`. The closure `now` returns milliseconds since 1970; it is called only if the
    /// token has an expiry time.
    ///
    /// # Errors
    /// Returns an error if tokens are required and `token` is not valid.
    #[inline]
    pub fn authenticate<'s>(
        &self,
        cached: &'s mut CachedToken,
        token: Option<&[u8]>,
        now: impl FnOnce() -> i64,
    ) -> Result<&'s Access, AuthError> {
        if !self.requires_tokens() {
            return Ok(&Access::Unrestricted);
        }
        let token = token.filter(|token| !token.is_empty()).ok_or(AuthError::NoToken)?;
        if cached.text != token {
            self.set_token(cached, token);
        }
        self.authenticate_cached(cached, now)
    }

    /// Sets the token of a connection.
    pub fn set_token(&self, cached: &mut CachedToken, token: &[u8]) {
        // A string that is longer than any valid token is not cached, and its digest matches no token.
        let text = if token.len() <= MAX_TOKEN_BYTES { token.to_vec() } else { Vec::new() };
        let digest = digest_of_token(token);
        let (edition, access) = self.find_access(&digest);
        *cached = CachedToken { text, digest, edition, access };
    }

    /// Authenticates a connection by its cached token.
    ///
    /// # Errors
    /// Returns an error if tokens are required and the cached token is missing or not valid.
    #[inline]
    pub fn authenticate_cached<'s>(
        &self,
        cached: &'s mut CachedToken,
        now: impl FnOnce() -> i64,
    ) -> Result<&'s Access, AuthError> {
        if !self.requires_tokens() {
            return Ok(&Access::Unrestricted);
        }
        // Acquire: pairs with the release in `replace_tokens`.
        if cached.edition != self.edition.load(Ordering::Acquire) {
            (cached.edition, cached.access) = self.find_access(&cached.digest);
        }
        match &cached.access {
            Some(access) if access.has_expired(now) => Err(AuthError::Expired),
            Some(access) => Ok(access),
            None if cached.digest == TokenDigest::default() => Err(AuthError::NoToken),
            None => Err(AuthError::Unknown),
        }
    }

    fn find_access(&self, digest: &TokenDigest) -> (u64, Option<Access>) {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        // `edition` is read under the lock, so that it matches this table.
        let edition = self.edition.load(Ordering::Acquire);
        // Each connection gets its own copy. With a shared `Arc`, the cache line of its reference count would move
        // between cores.
        (edition, table.get(digest).map(|verifier| Access::Token(Arc::new(verifier.clone()))))
    }
}

/// An upper bound on the length of a token, in bytes.
const MAX_TOKEN_BYTES: usize = 256;

impl Access {
    /// Returns the author that is recorded for the caller's changes.
    pub fn author(&self) -> &str {
        match self {
            Self::Unrestricted => LOCAL_AUTHOR,
            Self::Token(token) => &token.grant.name,
        }
    }

    /// Returns the digest of the caller's token in hexadecimal; empty if tokens are not required.
    pub fn token_digest(&self) -> &str {
        match self {
            Self::Unrestricted => "",
            Self::Token(token) => &token.digest,
        }
    }

    /// Returns whether the caller's permissions are limited to some domains.
    #[inline]
    pub fn is_limited_to_domains(&self) -> bool {
        match self {
            Self::Unrestricted => false,
            Self::Token(token) => token.grant.role != Role::Admin && !token.grant.domains.is_empty(),
        }
    }

    /// Returns whether the caller has at least this role in some domain.
    pub fn has_role_in_some_domain(&self, role: Role) -> bool {
        match self {
            Self::Unrestricted => true,
            Self::Token(token) => token.grant.role >= role,
        }
    }

    /// Checks that the caller has at least the role `needed` in `scope`.
    ///
    /// # Errors
    /// Returns an error that names the required role if the caller lacks it.
    pub fn require_role(&self, needed: Role, scope: Scope<'_>) -> Result<(), MissingRole> {
        let Self::Token(token) = self else { return Ok(()) };
        let grant = &token.grant;
        let reaches = grant.role == Role::Admin
            || grant.domains.is_empty()
            || matches!(scope, Scope::Domain(domain) if grant.domains.iter().any(|own| own == domain));
        if grant.role >= needed && reaches {
            return Ok(());
        }
        let domain = match scope {
            Scope::Domain(domain) => Some(domain.to_owned()),
            Scope::AllDomains => None,
        };
        Err(MissingRole { needed, domain, token: token.clone() })
    }

    fn has_expired(&self, now: impl FnOnce() -> i64) -> bool {
        match self {
            Self::Unrestricted => false,
            Self::Token(token) => token.grant.expires_ms.is_some_and(|end| end <= now()),
        }
    }
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoToken => "a token is required; send it as `Authorization: Bearer …`",
            Self::Unknown => "unknown token; it may have been revoked",
            Self::Expired => "the token has expired",
        })
    }
}

impl fmt::Display for MissingRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, domain, token } = self;
        write!(f, "this call needs the role {}", needed.as_str())?;
        match domain {
            Some(domain) => write!(f, " for the domain `{domain}`")?,
            None => f.write_str(" for all domains")?,
        }
        write!(f, "; the token `{}` has the role {}", token.id, token.grant.role.as_str())?;
        match token.grant.domains.as_slice() {
            [] => Ok(()),
            domains => write!(f, " for {}", domains.join(", ")),
        }
    }
}

fn digest_of_token(token: &[u8]) -> TokenDigest {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests;
