//! The session: the protocol state of a connection.

use tokio::time::Instant;

use super::wire::RespVersion;
use crate::control::auth::{Access, Authenticator, CachedToken};
use crate::net::protocol::AUTH_TIMEOUT;

/// Redis's error for a command before authentication. Clients compare the first word.
pub(super) const AUTHENTICATION_REQUIRED: &str = "NOAUTH Authentication required.";

/// The state of a connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) version: RespVersion,
    /// The client name, set by `CLIENT SETNAME`.
    pub(super) name: Option<Box<[u8]>>,
    /// Whether the client has sent `MULTI`. Transactions are refused, so their commands must not run.
    pub(super) in_transaction: bool,
    /// The client's token.
    token: CachedToken,
    /// The client's rights, as of the last authentication.
    pub(super) access: Access,
    /// Deadline for sending a valid token, if one is required.
    auth_deadline: Instant,
}

impl Session {
    pub(super) fn new(id: u64) -> Self {
        Self {
            id,
            version: RespVersion::Two,
            name: None,
            in_transaction: false,
            token: CachedToken::default(),
            access: Access::Unrestricted,
            auth_deadline: Instant::now() + AUTH_TIMEOUT,
        }
    }

    /// Resets the session and drops its token. An authenticated client gets a new deadline for its next token. Any
    /// other client keeps its old deadline.
    pub(super) fn reset(&mut self) {
        let unused = (!self.is_authenticated()).then_some(self.auth_deadline);
        *self = Self::new(self.id);
        self.auth_deadline = unused.unwrap_or(self.auth_deadline);
    }

    /// Returns the deadline for sending a valid token. Returns `None` if no token is required or the client is
    /// authenticated.
    #[inline]
    pub(super) fn auth_deadline(&self, auth: &Authenticator) -> Option<Instant> {
        (auth.requires_tokens() && !self.is_authenticated()).then_some(self.auth_deadline)
    }

    /// Checks the token again. Returns whether the client may send commands, which is always true if no token is
    /// required.
    pub(super) fn authenticate(&mut self, auth: &Authenticator, wall_ms: impl FnOnce() -> i64) -> bool {
        if !auth.requires_tokens() {
            return true;
        }
        let Ok(access) = auth.authenticate_cached(&mut self.token, wall_ms) else { return false };
        self.access = access.clone();
        true
    }

    /// Returns whether the client has sent a valid token.
    fn is_authenticated(&self) -> bool {
        matches!(self.access, Access::Token(_))
    }

    /// Sets the token of the session if the token is valid. Returns whether the token is valid. As in Redis, an invalid
    /// token changes nothing.
    pub(super) fn use_token(&mut self, auth: &Authenticator, token: &[u8], wall_ms: impl FnOnce() -> i64) -> bool {
        let mut cached = CachedToken::default();
        auth.set_token(&mut cached, token);
        let is_valid = auth.authenticate_cached(&mut cached, wall_ms).is_ok();
        if is_valid {
            self.token = cached;
        }
        is_valid
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::auth::TokenPolicy;
    use crate::control::model::{Role, TokenGrant, Verifier};
    use std::sync::Arc;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn reset_extends_the_deadline_only_of_an_authenticated_client() {
        let auth = Authenticator::new(TokenPolicy::Required);
        let grant = TokenGrant { name: "n".into(), role: Role::Reader, domains: Vec::new(), expires_ms: None };
        let token = Verifier { digest: String::new(), id: "i".into(), grant };
        let mut session = Session::new(1);
        let first = session.auth_deadline(&auth).expect("a deadline");
        tokio::time::advance(Duration::from_secs(3)).await;
        session.reset();
        assert_eq!(session.auth_deadline(&auth), Some(first));
        session.access = Access::Token(Arc::new(token));
        assert_eq!(session.auth_deadline(&auth), None);
        session.reset();
        assert_eq!(session.auth_deadline(&auth), Some(first + Duration::from_secs(3)));
        assert_eq!(session.auth_deadline(&Authenticator::default()), None);
    }
}
