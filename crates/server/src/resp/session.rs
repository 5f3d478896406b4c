//! The state of a connection beyond its socket.

use super::wire::Version;
use crate::control::auth::{Access, Guards, Shown};

/// The error of Redis for a command before authentication; clients look for the first word.
pub(super) const NO_AUTH: &str = "NOAUTH Authentication required.";

/// The state of a connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) version: Version,
    /// The name of the client, by `CLIENT SETNAME`.
    pub(super) name: Option<Box<[u8]>>,
    /// The token that the client has sent.
    shown: Shown,
    /// The rights of the client when it was last authenticated.
    pub(super) access: Access,
}

impl Session {
    pub(super) fn new(id: u64) -> Self {
        Self { id, version: Version::Two, name: None, shown: Shown::default(), access: Access::Local }
    }

    /// Returns whether the client may send commands: no tokens are needed, or it has sent a valid one.
    pub(super) fn authenticate(&mut self, guards: &Guards, wall_ms: impl FnOnce() -> i64) -> bool {
        if !guards.ask() {
            return true;
        }
        let Ok(access) = guards.access(&mut self.shown, wall_ms) else { return false };
        self.access = access.clone();
        true
    }

    /// Uses a token if it is valid; an invalid one changes nothing, as in Redis.
    pub(super) fn use_token(&mut self, guards: &Guards, token: &[u8], wall_ms: impl FnOnce() -> i64) -> bool {
        let mut shown = Shown::default();
        guards.show(&mut shown, token);
        let is_valid = guards.access(&mut shown, wall_ms).is_ok();
        if is_valid {
            self.shown = shown;
        }
        is_valid
    }
}
