//! The state of a connection beyond its socket.

use tokio::time::Instant;

use super::wire::RespVersion;
use crate::control::auth::{Access, Authenticator, CachedToken};
use crate::net::protocol::AUTH_TIMEOUT;

/// The error of Redis for a command before authentication; clients compare the first word.
pub(super) const NO_AUTH: &str = "NOAUTH Authentication required.";

/// The state of a connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) version: RespVersion,
    /// The name of the client, by `CLIENT SETNAME`.
    pub(super) name: Option<Box<[u8]>>,
    /// Whether the client has sent `MULTI`, which is refused: its commands must not run either.
    pub(super) in_transaction: bool,
    /// The token that the client has sent.
    cached: CachedToken,
    /// The rights of the client when it was last authenticated.
    pub(super) access: Access,
    /// When a connection that needs a token must have sent one.
    auth_deadline: Instant,
}

impl Session {
    pub(super) fn new(id: u64) -> Self {
        Self {
            id,
            version: RespVersion::Two,
            name: None,
            in_transaction: false,
            cached: CachedToken::default(),
            access: Access::Local,
            auth_deadline: Instant::now() + AUTH_TIMEOUT,
        }
    }

    /// Resets the session and drops its token. A client that had sent a valid token has time to send another; a client
    /// without one gains no time.
    pub(super) fn reset(&mut self) {
        let unused = (!self.is_authenticated()).then_some(self.auth_deadline);
        *self = Self::new(self.id);
        self.auth_deadline = unused.unwrap_or(self.auth_deadline);
    }

    /// Returns when the connection is closed unless it sends a valid token before, or `None` if it needs none or has sent one.
    #[inline]
    pub(super) fn auth_deadline(&self, auth: &Authenticator) -> Option<Instant> {
        (auth.requires_tokens() && !self.is_authenticated()).then_some(self.auth_deadline)
    }

    /// Returns whether the client may send commands: no tokens are needed, or it has sent a valid one.
    pub(super) fn authenticate(&mut self, auth: &Authenticator, wall_ms: impl FnOnce() -> i64) -> bool {
        if !auth.requires_tokens() {
            return true;
        }
        let Ok(access) = auth.authenticate_cached(&mut self.cached, wall_ms) else { return false };
        self.access = access.clone();
        true
    }

    /// Returns whether the client has sent a valid token.
    fn is_authenticated(&self) -> bool {
        matches!(self.access, Access::Token(_))
    }

    /// Uses a token if it is valid; an invalid one changes nothing, as in Redis.
    pub(super) fn use_token(&mut self, auth: &Authenticator, token: &[u8], wall_ms: impl FnOnce() -> i64) -> bool {
        let mut cached = CachedToken::default();
        auth.set_token(&mut cached, token);
        let is_valid = auth.authenticate_cached(&mut cached, wall_ms).is_ok();
        if is_valid {
            self.cached = cached;
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
    async fn reset_gives_time_only_to_a_client_that_had_a_token() {
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
