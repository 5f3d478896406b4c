//! Who may do what: tokens by their digests, and what each allows.
//!
//! A token is 256 random bits, so its SHA-256 tells nothing about it and looking it up needs no care about timing. Hashing costs
//! more than deciding does; so a connection remembers what it has shown, and a request that shows the same again costs a comparison of
//! the texts and a look at whether tokens have changed since. Where no tokens are asked for, it costs a branch.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use sha2::{Digest, Sha256};

use super::model::{Role, Verifier};

/// Whether calls have to show a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tokens {
    /// Everybody has to, except to ask whether the server is well.
    Asked,
    /// Nobody has to, and everybody may do everything: for listeners on loopback.
    #[default]
    NotAsked,
}

/// The author of what is done where no tokens are asked for.
pub const LOCAL: &str = "local";

type Digested = [u8; 32];
type Table = HashMap<Digested, Verifier>;

/// The tokens that are good now.
#[derive(Debug, Default)]
pub struct Guards {
    tokens: Tokens,
    /// How often the table was replaced.
    edition: AtomicU64,
    /// Read when a connection shows a token for the first time, or after tokens have changed: never by most decisions.
    table: RwLock<Arc<Table>>,
}

/// What a connection has shown, and what came of it.
#[derive(Debug, Default)]
pub struct Shown {
    /// As it was sent; empty if nothing was.
    text: Vec<u8>,
    digest: Digested,
    edition: u64,
    access: Option<Access>,
}

/// Who asks, once that is known. Whoever has one may at least read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Somebody on this machine; no tokens are asked for.
    Local,
    /// Whoever has this token.
    Token(Arc<Verifier>),
}

/// Where something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// In one domain.
    Domain(&'a str),
    /// In all of them at once.
    Everywhere,
}

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthError {
    /// No token was shown.
    NoToken,
    /// The token is not known; it may have been revoked.
    Unknown,
    /// Its time is over.
    Expired,
}

/// Why somebody who is known may not do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    needed: Role,
    domain: Option<String>,
    token: Arc<Verifier>,
}

impl Guards {
    /// No tokens are known yet: if they are asked for, nobody is let in.
    pub fn new(tokens: Tokens) -> Self {
        Self { tokens, ..Self::default() }
    }

    /// Whether tokens are asked for.
    #[inline]
    pub fn ask(&self) -> bool {
        self.tokens == Tokens::Asked
    }

    /// These are the good tokens from now on. Those that are not among them are refused from the next request on, on connections
    /// that have shown them before too. A digest that is none is left out: nothing could match it.
    pub fn replace(&self, verifiers: &[Verifier]) {
        let known = verifiers.iter().filter_map(|verifier| Some((read_hex(&verifier.digest)?, verifier.clone())));
        let table: Arc<Table> = Arc::new(known.collect());
        let mut place = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if *place != table {
            *place = table;
            // Release: pairs with the acquire in `access`, which sees the table by the lock.
            self.edition.fetch_add(1, Ordering::Release);
        }
    }

    /// Lets in whoever shows `token`, or says why not. `now` gives milliseconds since 1970, if that matters.
    ///
    /// # Errors
    /// When tokens are asked for and this is no good one.
    #[inline]
    pub fn admit<'s>(
        &self,
        shown: &'s mut Shown,
        token: Option<&[u8]>,
        now: impl FnOnce() -> i64,
    ) -> Result<&'s Access, AuthError> {
        if !self.ask() {
            return Ok(&Access::Local);
        }
        let token = token.filter(|token| !token.is_empty()).ok_or(AuthError::NoToken)?;
        if shown.text != token {
            self.show(shown, token);
        }
        self.access(shown, now)
    }

    /// Takes note of a token that will be used from now on.
    pub fn show(&self, shown: &mut Shown, token: &[u8]) {
        // What is longer than any token is not kept. It is not found either.
        let text = if token.len() <= MAX_TOKEN { token.to_vec() } else { Vec::new() };
        let digest = digest(token);
        let (edition, access) = self.find(&digest);
        *shown = Shown { text, digest, edition, access };
    }

    /// Lets in a connection by what it has shown before.
    ///
    /// # Errors
    /// When tokens are asked for and it has shown no good one.
    #[inline]
    pub fn access<'s>(&self, shown: &'s mut Shown, now: impl FnOnce() -> i64) -> Result<&'s Access, AuthError> {
        if !self.ask() {
            return Ok(&Access::Local);
        }
        // Acquire: pairs with the release in `replace`.
        if shown.edition != self.edition.load(Ordering::Acquire) {
            (shown.edition, shown.access) = self.find(&shown.digest);
        }
        match &shown.access {
            Some(access) if access.has_ended(now) => Err(AuthError::Expired),
            Some(access) => Ok(access),
            None if shown.digest == Digested::default() => Err(AuthError::NoToken),
            None => Err(AuthError::Unknown),
        }
    }

    fn find(&self, digest: &Digested) -> (u64, Option<Access>) {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that it belongs to the table.
        let edition = self.edition.load(Ordering::Acquire);
        // A copy for the connection: a count that all connections share would be passed from core to core.
        (edition, table.get(digest).map(|verifier| Access::Token(Arc::new(verifier.clone()))))
    }
}

/// Longer than any token that was made here.
const MAX_TOKEN: usize = 256;

impl Access {
    /// The name that stands beside what is done.
    pub fn author(&self) -> &str {
        match self {
            Self::Local => LOCAL,
            Self::Token(token) => &token.name,
        }
    }

    /// Whether it has this role somewhere.
    pub fn is_at_least(&self, role: Role) -> bool {
        match self {
            Self::Local => true,
            Self::Token(token) => token.role >= role,
        }
    }

    /// Whether this may be done.
    ///
    /// # Errors
    /// When it may not; it says which role would be needed.
    pub fn require(&self, needed: Role, place: Place<'_>) -> Result<(), Denied> {
        let Self::Token(token) = self else { return Ok(()) };
        let reaches = token.role == Role::Admin
            || token.domains.is_empty()
            || matches!(place, Place::Domain(domain) if token.domains.iter().any(|own| own == domain));
        if token.role >= needed && reaches {
            return Ok(());
        }
        let domain = match place {
            Place::Domain(domain) => Some(domain.to_owned()),
            Place::Everywhere => None,
        };
        Err(Denied { needed, domain, token: token.clone() })
    }

    fn has_ended(&self, now: impl FnOnce() -> i64) -> bool {
        match self {
            Self::Local => false,
            Self::Token(token) => token.expires_ms.is_some_and(|end| end <= now()),
        }
    }
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoToken => "a token is needed; send it as `Authorization: Bearer …`",
            Self::Unknown => "the token is not known; it may have been revoked",
            Self::Expired => "the token has expired",
        })
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, domain, token } = self;
        write!(f, "this needs the role {}", name(*needed))?;
        match domain {
            Some(domain) => write!(f, " for the domain `{domain}`")?,
            None => f.write_str(" for all domains")?,
        }
        write!(f, "; the token `{}` has the role {}", token.id, name(token.role))?;
        match token.domains.as_slice() {
            [] => Ok(()),
            domains => write!(f, " for {}", domains.join(", ")),
        }
    }
}

/// A role in one word, as in JSON.
pub const fn name(role: Role) -> &'static str {
    match role {
        Role::Reader => "reader",
        Role::Operator => "operator",
        Role::Editor => "editor",
        Role::Admin => "admin",
    }
}

fn digest(token: &[u8]) -> Digested {
    Sha256::digest(token).into()
}

fn read_hex(text: &str) -> Option<Digested> {
    let mut digest = Digested::default();
    if text.len() != 2 * digest.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests;
