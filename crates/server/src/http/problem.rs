//! Problem details (RFC 9457): the error type of all HTTP endpoints, and the mapping from errors to status codes.

use std::borrow::Cow;
use std::fmt::Display;

use axum::response::IntoResponse;
use hyper::StatusCode;
use hyper::header::{ALLOW, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde::{Deserialize, Serialize};
use tollgate_engine::rules::{Mistake, Mistakes, nearest_word};
use utoipa::ToSchema;

use super::serve::{HttpResponse, new_response};
use crate::control::auth::{AuthError, MissingRole};
use crate::control::model::Finding;
use crate::control::{Conflict, ControlError};
use crate::ops::error::{ErrorKind, OpError};

/// A failed call. No tokens were taken and nothing was changed, unless the detail says otherwise.
// Boxed to keep `Result`s small: the details are large, and errors are rare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(Box<ProblemDetails>);

/// Problem details, as they are sent. No tokens were taken and nothing was changed, unless the detail says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Problem)]
#[serde(default)]
pub struct ProblemDetails {
    /// Always `about:blank`: the status and the title identify the problem.
    #[serde(rename = "type")]
    #[schema(example = "about:blank", required = true)]
    pub kind: Cow<'static, str>,
    /// A short summary.
    #[schema(required = true)]
    pub title: Cow<'static, str>,
    /// The HTTP status.
    #[schema(required = true)]
    pub status: u16,
    /// What is wrong, and what would be right.
    #[schema(required = true)]
    pub detail: String,
    /// The invalid part of the body, as a JSON pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// The number of the line with the JSON error, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The column of the error in `line`, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// The mistakes in the rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<Finding>,
    /// The current version or revision, if it differs from the expected one. Absent if the object does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<i64>,
    /// The author of the current version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// When the current version was created, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<i64>,
    /// The changes since the expected version, line by line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// An extra response header.
    #[serde(skip)]
    header: Option<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// Creates a problem. Status 503 also sets `Retry-After: 1`.
    pub fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        let problem = Self(Box::new(ProblemDetails {
            kind: "about:blank".into(),
            title: title.into(),
            status: status.as_u16(),
            detail: detail.into(),
            ..ProblemDetails::default()
        }));
        if status == StatusCode::SERVICE_UNAVAILABLE { problem.with_retry_after(1) } else { problem }
    }

    /// Returns a 400.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad request", detail)
    }

    /// Returns a 403.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", detail)
    }

    /// Returns a 404.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "Not found", detail)
    }

    /// Returns a 405 with the methods that the path accepts.
    pub fn method_not_allowed(path: &str, methods: &str) -> Self {
        let detail = format!("{path} accepts {methods}");
        let problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", detail);
        HeaderValue::from_str(methods).into_iter().fold(problem, |problem, methods| problem.with_header(ALLOW, methods))
    }

    /// Logs an internal error of this server, and returns a 500 that refers to the log.
    #[cold]
    pub fn internal_error(event: &'static str, error: &dyn Display) -> Self {
        tracing::error!(%error, "{event}");
        let detail = "internal error in the server; see its log";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal error", detail)
    }

    /// Converts the error of an operation on the item at `pointer`.
    pub fn from_op_error(error: &OpError, pointer: &str) -> Self {
        let (status, title) = match error.kind {
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "Bad request"),
            ErrorKind::Forbidden => (StatusCode::FORBIDDEN, "Forbidden"),
            ErrorKind::KeyInUse => (StatusCode::CONFLICT, "Conflict"),
            ErrorKind::KeyReused => (StatusCode::UNPROCESSABLE_ENTITY, "Idempotency key already used"),
            ErrorKind::NotRecorded => (StatusCode::SERVICE_UNAVAILABLE, "Audit log full"),
            ErrorKind::StoreFailed => (StatusCode::SERVICE_UNAVAILABLE, "Store unavailable"),
        };
        let problem = Self::new(status, title, error.detail.clone());
        match error.field {
            None => problem,
            Some("") => problem.with_pointer(pointer),
            Some(field) => problem.with_pointer(format!("{pointer}/{field}")),
        }
    }

    /// Returns a 400 for a body that is not JSON or has the wrong structure.
    pub fn from_json_error(error: &serde_json::Error) -> Self {
        // Cut off the position, which has its own fields.
        let text = error.to_string();
        let detail = text.rsplit_once(" at line ").map_or(text.as_str(), |(detail, _)| detail);
        let mut problem = match error.is_data() {
            true => Self::bad_request(with_suggestion(detail)),
            false => Self::bad_request(format!("the body is not JSON: {detail}")),
        };
        if error.line() > 0 {
            (problem.0.line, problem.0.column) = (Some(error.line()), Some(error.column()));
        }
        problem
    }

    /// Sets the JSON pointer to the invalid part of the body.
    #[must_use]
    pub fn with_pointer(mut self, pointer: impl Into<String>) -> Self {
        self.0.pointer = Some(pointer.into());
        self
    }

    /// Sets the line number, for files with one request per line.
    #[must_use]
    pub fn with_line(mut self, line: usize) -> Self {
        self.0.line = Some(line);
        let detail = self.0.detail.replacen("the body is not JSON", "this is not JSON", 1);
        self.0.detail = format!("at line {line}: {detail}");
        self
    }

    /// Sets the extra response header.
    fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.header = Some((name, value));
        self
    }

    /// Sets the `Retry-After` header, in seconds.
    #[must_use]
    pub fn with_retry_after(self, seconds: u32) -> Self {
        self.with_header(RETRY_AFTER, seconds.into())
    }

    /// Returns the error message.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Returns the status of the response.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns the methods that the path accepts, for a 405.
    pub fn allowed_methods(&self) -> Option<&HeaderValue> {
        self.0.header.as_ref().filter(|(name, _)| *name == ALLOW).map(|(_, methods)| methods)
    }

    /// Returns the problem as a response.
    pub fn to_response(&self) -> HttpResponse {
        let mut answer = new_response(self.status(), "application/problem+json", self.to_json());
        answer.headers_mut().extend(self.0.header.clone());
        answer
    }

    /// Returns the problem as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        // Serialising a struct of numbers and strings cannot fail.
        serde_json::to_vec(&*self.0).unwrap_or_default()
    }

    fn from_mistakes(mistakes: &Mistakes) -> Self {
        let describe = |mistake: &Mistake| match &mistake.help {
            Some(help) => format!("{}; {help}", mistake.problem),
            None => mistake.problem.clone(),
        };
        let count = mistakes.as_slice().len() + mistakes.unlisted_count();
        let detail = match mistakes.as_slice() {
            [only] if count == 1 => describe(only),
            [first, ..] => format!("{count} mistakes; the first: {}", describe(first)),
            [] => "the rules contain mistakes".to_owned(),
        };
        let mut problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Mistakes in the rules", detail);
        problem.0.mistakes = mistakes.as_slice().iter().map(Finding::from).collect();
        problem
    }

    fn from_conflict(conflict: Conflict, detail: String) -> Self {
        let mut problem = Self::new(StatusCode::PRECONDITION_FAILED, "Precondition failed", detail);
        (problem.0.current, problem.0.diff) = (conflict.current, conflict.diff);
        if let Some((author, _, at_ms)) = conflict.by {
            (problem.0.author, problem.0.at_ms) = (Some(author), Some(at_ms));
        }
        problem
    }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Self {
        let detail = error.to_string();
        match error {
            ControlError::Missing(_) => Self::not_found(detail),
            ControlError::Conflict(conflict) => Self::from_conflict(*conflict, detail),
            ControlError::Mistakes(mistakes) => Self::from_mistakes(&mistakes),
            ControlError::Invalid(_) => Self::bad_request(detail),
            ControlError::Taken(_) => Self::new(StatusCode::CONFLICT, "Already exists", detail),
            ControlError::Full(_) => Self::new(StatusCode::CONFLICT, "Limit reached", detail),
            ControlError::Database(error) => {
                // Only the log gets the details, because they name hosts, files and tables.
                tracing::warn!(%error, "rules database unavailable");
                let detail = if is_disk_full(&error) {
                    "the disk of the database is full; nothing was changed, and the current rules stay in force"
                } else {
                    "the database is unavailable; the current rules stay in force"
                };
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "Database unavailable", detail)
            }
        }
    }
}

/// Returns whether the database disk is full: code 13 (SQLite) or 53100 (PostgreSQL).
fn is_disk_full(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| matches!(&*code, "13" | "53100"))
}

impl From<MissingRole> for Problem {
    fn from(missing: MissingRole) -> Self {
        Self::forbidden(missing.to_string())
    }
}

impl From<AuthError> for Problem {
    fn from(error: AuthError) -> Self {
        let challenge = HeaderValue::from_static(match error {
            AuthError::NoToken => "Bearer realm=\"tollgate\"",
            AuthError::Unknown | AuthError::Expired => "Bearer realm=\"tollgate\", error=\"invalid_token\"",
        });
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", error.to_string()).with_header(WWW_AUTHENTICATE, challenge)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> axum::response::Response {
        self.to_response().map(axum::body::Body::new)
    }
}

/// Adds a suggestion to an error about an unknown field: the valid field with the nearest name.
fn with_suggestion(detail: &str) -> String {
    let meant = || {
        let (given, valid) = detail.strip_prefix("unknown field `")?.split_once("`, expected ")?;
        let valid: Vec<&str> = valid.split('`').skip(1).step_by(2).collect();
        Some(format!("unknown field `{given}`, did you mean `{}`?", nearest_word(given, &valid)?))
    };
    meant().unwrap_or_else(|| detail.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::testing::captured_log;

    #[test]
    fn internal_error_is_logged() {
        let mut problem = None;
        let log = captured_log(|| problem = Some(Problem::internal_error("cannot serialise a reply", &"no reason")));
        assert!(log.contains("ERROR") && log.contains("cannot serialise a reply error=no reason"), "{log}");
        let problem = problem.unwrap();
        assert_eq!((problem.status().as_u16(), problem.detail()), (500, "internal error in the server; see its log"));
    }

    #[test]
    fn problem_says_what_is_wrong_and_where() {
        let error = serde_json::from_str::<Vec<u8>>("[1,\n x]").unwrap_err();
        assert_eq!(
            String::from_utf8(Problem::from_json_error(&error).to_json()).unwrap(),
            r#"{"type":"about:blank","title":"Bad request","status":400,"detail":"the body is not JSON: expected value","line":2,"column":2}"#
        );
        let corrected = |detail| with_suggestion(&format!("unknown field {detail}"));
        assert_eq!(corrected("`limt`, expected one of `key`, `limit`"), "unknown field `limt`, did you mean `limit`?");
        assert_eq!(corrected("`limt`, expected `limit`"), "unknown field `limt`, did you mean `limit`?");
        let unknown = "`x`, expected one of `key`, `limit`";
        assert_eq!(corrected(unknown), format!("unknown field {unknown}"));
        let problem = Problem::bad_request("`x` is not a rate").with_pointer("/limit");
        assert!(String::from_utf8(problem.to_json()).unwrap().ends_with(r#""pointer":"/limit"}"#));
    }
}
