//! Browser sessions: a cookie that represents a token for a limited time.
//!
//! The console sends a token once and gets a cookie with a random 256-bit session id. The cookie is `HttpOnly`, so
//! scripts cannot read it, and `SameSite=Strict`, so browsers do not send it with requests from other sites. The cookie
//! is accepted only together with the console's header ([`super::CONSOLE_HEADER`]). A session has the rights of its
//! token. A session ends when the user logs out, when it expires, when too many sessions are open, or when the token
//! becomes invalid.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, COOKIE, HeaderValue, ORIGIN, SET_COOKIE};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Response, StatusCode};
use serde::{Deserialize, Serialize};
use tollgate::core::{Mono, Nanos, Time};
use tollgate_engine::Store;
use utoipa::ToSchema;

use crate::app::App;
use crate::control::auth::{Access, CachedToken};
use crate::control::model::Role;
use crate::http::HttpResponse;
use crate::http::body::ReplyBody;
use crate::http::problem::Problem;

/// The path of the session API.
pub(crate) const SESSION_PATH: &str = "/v1/session";

/// Maximum size of the request body that opens a session, in bytes.
pub(crate) const MAX_BODY_BYTES: usize = 4 * 1024;

/// Maximum number of open sessions. Opening another session ends the least recently used one.
pub(crate) const MAX_SESSIONS: usize = 1_024;

/// Idle timeout of a session.
pub(crate) const IDLE_TIMEOUT: Nanos = Nanos::from_secs(3_600);

/// Maximum age of a session.
pub(crate) const MAX_AGE: Nanos = Nanos::from_secs(12 * 3_600);

const COOKIE_NAME: &str = "tollgate-session";
type SessionId = [u8; 32];

/// The open sessions.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<HashMap<SessionId, BrowserSession>>);

struct BrowserSession {
    token: Box<[u8]>,
    began: Time<Mono>,
    used: Time<Mono>,
}

// Hides the token.
impl std::fmt::Debug for BrowserSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("began", &self.began).field("used", &self.used).finish_non_exhaustive()
    }
}

impl BrowserSession {
    fn has_ended(&self, now: Time<Mono>) -> bool {
        now.since(self.used) >= IDLE_TIMEOUT || now.since(self.began) >= MAX_AGE
    }
}

impl Sessions {
    /// Opens a session for a token. `id` must be random.
    fn open(&self, id: SessionId, token: &[u8], now: Time<Mono>) {
        let mut sessions = self.lock_sessions();
        if sessions.len() >= MAX_SESSIONS {
            sessions.retain(|_, session| !session.has_ended(now));
        }
        if sessions.len() >= MAX_SESSIONS {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.used).map(|(id, _)| *id);
            oldest.and_then(|id| sessions.remove(&id));
        }
        sessions.insert(id, BrowserSession { token: token.into(), began: now, used: now });
    }

    /// Restarts the idle timeout of a session, and returns its token. Returns `None` if the session is unknown or has
    /// ended.
    fn touch(&self, id: &SessionId, now: Time<Mono>) -> Option<Box<[u8]>> {
        let mut sessions = self.lock_sessions();
        let session = sessions.get_mut(id)?;
        if session.has_ended(now) {
            sessions.remove(id);
            return None;
        }
        session.used = now;
        Some(session.token.clone())
    }

    fn close(&self, id: &SessionId) {
        self.lock_sessions().remove(id);
    }

    fn lock_sessions(&self) -> MutexGuard<'_, HashMap<SessionId, BrowserSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The credentials of a caller. An event stream keeps its credentials, because it checks them again later.
#[derive(Debug, Default)]
pub(crate) struct Credentials {
    /// The token, or `None` if the request has none or tokens are not required.
    token: Option<Box<[u8]>>,
    /// The session that the token belongs to, or `None` for a bearer token.
    session: Option<SessionId>,
    cached: CachedToken,
}

impl Credentials {
    /// Returns the credentials of a request: its bearer token, or the token of its session.
    pub(crate) fn from_request<S: Store>(app: &App<S>, head: &Parts, bearer: Option<&[u8]>) -> Self {
        if !app.auth.requires_tokens() {
            return Self::default();
        }
        if let Some(token) = bearer {
            return Self { token: Some(token.into()), ..Self::default() };
        }
        let session = session_id(head);
        let token = session.and_then(|id| app.sessions.touch(&id, app.now()));
        Self { token, session, cached: CachedToken::default() }
    }

    /// Returns the token.
    pub(crate) fn token(&self) -> Option<&[u8]> {
        self.token.as_deref()
    }

    /// Returns whether the token and the session are still valid. Each call restarts the session's idle timeout, so a
    /// session with an open stream does not become idle.
    pub(crate) fn touch_if_valid<S: Store>(&mut self, app: &App<S>) -> bool {
        let session_lasts = self.session.is_none_or(|id| app.sessions.touch(&id, app.now()).is_some());
        session_lasts && app.auth.authenticate(&mut self.cached, self.token.as_deref(), || app.wall_ms()).is_ok()
    }
}

/// Returns the session id in the cookie of a console request, or `None` if there is none.
fn session_id(head: &Parts) -> Option<SessionId> {
    if !head.headers.contains_key(super::CONSOLE_HEADER) {
        return None;
    }
    let cookies = head.headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    let (_, value) = pairs.find(|(name, _)| *name == COOKIE_NAME)?;
    let mut id = SessionId::default();
    hex::decode_to_slice(value, &mut id).ok()?;
    Some(id)
}

/// The identity and rights of the caller, as returned by `/v1/session`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionView<'a> {
    /// The name of the token, which is recorded as the author of changes; `local` if no tokens are required.
    name: &'a str,
    /// The role of the caller.
    role: Role,
    /// The domains in which the caller may change rules and charge limits; empty for all domains.
    domains: &'a [String],
    /// When the token expires, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ms: Option<i64>,
    /// Whether the server requires tokens.
    tokens_required: bool,
    /// The source of the rules, as in `/v1/rules-status`.
    rules_source: String,
    /// The version of the server.
    version: &'static str,
}

/// Opens a session. This request needs no authentication, because its body contains the token.
///
/// # Errors
/// Returns an error if the body is not a JSON object with a `token`, or if the token is not valid.
pub(crate) fn open_session<S: Store>(app: &App<S>, head: &Parts, body: &[u8]) -> Result<HttpResponse, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, expecting = "an object with `token`")]
    struct OpenRequest {
        token: String,
    }
    let OpenRequest { token } = serde_json::from_slice(body).map_err(|error| Problem::from_json_error(&error))?;
    let token = token.trim().as_bytes();
    let mut cached = CachedToken::default();
    let access = app.auth.authenticate(&mut cached, Some(token), || app.wall_ms())?.clone();
    let mut answer = session_response(app, &access);
    if app.auth.requires_tokens() {
        let mut id = SessionId::default();
        getrandom::fill(&mut id).map_err(|error| Problem::internal_error("cannot generate a session id", &error))?;
        app.sessions.open(id, token, app.now());
        set_cookie(answer.headers_mut(), head, &hex::encode(id), MAX_AGE.as_nanos() / 1_000_000_000)?;
    }
    Ok(answer)
}

/// Answers `GET` and `DELETE /v1/session`.
///
/// # Errors
/// Returns an error if the method is neither GET nor DELETE.
pub(crate) fn answer<S: Store>(app: &App<S>, head: &Parts, access: &Access) -> Result<HttpResponse, Problem> {
    match head.method {
        Method::GET => Ok(session_response(app, access)),
        Method::DELETE => {
            if let Some(id) = session_id(head) {
                app.sessions.close(&id);
            }
            let mut answer = Response::new(ReplyBody::default());
            *answer.status_mut() = StatusCode::NO_CONTENT;
            set_cookie(answer.headers_mut(), head, "", 0)?;
            Ok(answer)
        }
        _ => Err(Problem::method_not_allowed(SESSION_PATH, "GET, POST, DELETE")),
    }
}

fn session_response<S: Store>(app: &App<S>, access: &Access) -> HttpResponse {
    let (role, domains, expires_ms) = match access {
        Access::Unrestricted => (Role::Admin, &[][..], None),
        Access::Token(token) => (token.grant.role, &token.grant.domains[..], token.grant.expires_ms),
    };
    let view = SessionView {
        name: access.author(),
        role,
        domains,
        expires_ms,
        tokens_required: app.auth.requires_tokens(),
        rules_source: app.source.to_string(),
        version: env!("CARGO_PKG_VERSION"),
    };
    // Serialising a struct of strings cannot fail.
    let mut answer = Response::new(ReplyBody::from(serde_json::to_vec(&view).unwrap_or_default()));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Sets the session cookie. The cookie is marked `Secure` if `Origin` is an `https` URL. `Origin` shows that the
/// browser uses TLS even if a proxy terminates it.
fn set_cookie(headers: &mut HeaderMap, head: &Parts, value: &str, max_age: u64) -> Result<(), Problem> {
    let is_secure = head.headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let secure = if is_secure { "; Secure" } else { "" };
    let cookie = format!("{COOKIE_NAME}={value}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Strict{secure}");
    let cookie = HeaderValue::from_str(&cookie)
        .map_err(|error| Problem::internal_error("cannot set the session cookie", &error))?;
    headers.insert(SET_COOKIE, cookie);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time_at(seconds: u64) -> Time<Mono> {
        Time::from_nanos((seconds + 1) * 1_000_000_000)
    }

    #[test]
    fn session_ends_when_idle_or_too_old() {
        let sessions = Sessions::default();
        let idle = IDLE_TIMEOUT.as_nanos() / 1_000_000_000;
        sessions.open([1; 32], b"token", time_at(0));
        assert_eq!(sessions.touch(&[1; 32], time_at(idle - 1)).as_deref(), Some(&b"token"[..]));
        assert_eq!(sessions.touch(&[1; 32], time_at(2 * idle - 1)), None);
        assert_eq!(sessions.touch(&[2; 32], time_at(0)), None);
        sessions.open([3; 32], b"token", time_at(0));
        let end = MAX_AGE.as_nanos() / 1_000_000_000;
        for used in (0..end).step_by(600) {
            assert!(sessions.touch(&[3; 32], time_at(used)).is_some(), "{used}");
        }
        assert_eq!(sessions.touch(&[3; 32], time_at(end)), None);
    }

    #[test]
    fn number_of_sessions_is_bounded_and_the_least_recently_used_ends() {
        let sessions = Sessions::default();
        let id = |number: u64| {
            let mut id = SessionId::default();
            id[..8].copy_from_slice(&number.to_le_bytes());
            id
        };
        for number in 0..MAX_SESSIONS as u64 {
            sessions.open(id(number), b"t", time_at(number));
        }
        assert!(sessions.touch(&id(0), time_at(2_000)).is_some());
        sessions.open([9; 32], b"t", time_at(2_000));
        assert_eq!(sessions.lock_sessions().len(), MAX_SESSIONS);
        assert!(sessions.touch(&id(0), time_at(2_000)).is_some() && sessions.touch(&id(1), time_at(2_000)).is_none());
    }

    #[test]
    fn cookie_is_accepted_only_with_the_console_header() {
        let value = "ab".repeat(32);
        let of = |headers: &[(&str, &str)]| {
            let mut request = hyper::Request::get("/v1/rules");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            session_id(&request.body(()).unwrap().into_parts().0)
        };
        let cookie = format!("a=b; {COOKIE_NAME}={value}");
        assert_eq!(of(&[("cookie", &cookie)]), None);
        assert_eq!(of(&[("cookie", &cookie), (super::super::CONSOLE_HEADER, "1")]), Some([0xab; 32]));
        assert_eq!(of(&[("cookie", &cookie[..40]), (super::super::CONSOLE_HEADER, "1")]), None);
    }
}
