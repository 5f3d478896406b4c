//! Errors as problem details (RFC 9457): the one mapping of errors of the rules service to HTTP statuses.

use std::time::Duration;

use axum::response::IntoResponse;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tollgate_engine::rules::{Mistake, Mistakes};
use utoipa::ToSchema;

use super::Answer;
use crate::control::auth::Denied;
use crate::control::model::Finding;
use crate::control::{Conflict, ControlError};

/// Problem details, as they are sent. Nothing was changed, unless the detail says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct Problem {
    /// Always `about:blank`: the title is sufficient.
    #[serde(rename = "type")]
    #[schema(example = "about:blank")]
    kind: &'static str,
    /// A short summary.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What is wrong, and what would be right.
    detail: String,
    /// The mistakes in the rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mistakes: Vec<Finding>,
    /// The current version or revision, if it is not the expected one; none if nothing exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<i64>,
    /// Who made the current version.
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<String>,
    /// When, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_ms: Option<i64>,
    /// The changes since the expected version, line by line.
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<String>,
}

/// A failed call. Boxed, because it is rare and would make every result large.
#[derive(Debug)]
pub(super) struct ApiError(Box<(Problem, Option<(HeaderName, HeaderValue)>)>);

impl ApiError {
    pub(super) fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        let problem = Problem {
            kind: "about:blank",
            title,
            status: status.as_u16(),
            detail: detail.into(),
            mistakes: Vec::new(),
            current: None,
            author: None,
            at_ms: None,
            diff: None,
        };
        Self(Box::new((problem, None)))
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad request", detail)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "Not found", detail)
    }

    /// Too many calls of this kind are in progress.
    pub(super) fn busy(detail: impl Into<String>, seconds: u32) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "Busy", detail).with(RETRY_AFTER, seconds.into())
    }

    pub(super) fn too_slow(limit: Duration) -> Self {
        let detail = format!("no answer within {} s; the change may or may not have been made", limit.as_secs());
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "Too slow", detail).with(RETRY_AFTER, 10_u32.into())
    }

    /// A bug of this server, whose details are in the log.
    pub(super) fn bug() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal error", "a bug of the server; its log has details")
    }

    pub(super) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.1 = Some((name, value));
        self
    }

    pub(super) fn into_answer(self) -> Answer {
        let (problem, header) = *self.0;
        // A struct of numbers and strings always serialises.
        let body = Bytes::from(serde_json::to_vec(&problem).unwrap_or_default());
        let mut answer = Response::new(Full::new(body));
        *answer.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some((name, value)) = header {
            answer.headers_mut().insert(name, value);
        }
        answer
    }

    fn mistakes(mistakes: &Mistakes) -> Self {
        let count = mistakes.as_slice().len() + mistakes.left_out();
        let detail = match mistakes.as_slice() {
            [only] if count == 1 => describe(only),
            [first, ..] => format!("{count} mistakes; the first: {}", describe(first)),
            [] => "there are mistakes".to_owned(),
        };
        let mut error = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Mistakes in the rules", detail);
        error.0.0.mistakes = mistakes.as_slice().iter().map(Finding::from).collect();
        error
    }

    fn conflict(conflict: Conflict) -> Self {
        let detail = ControlError::Conflict(Box::new(conflict.clone())).to_string();
        let mut error = Self::new(StatusCode::PRECONDITION_FAILED, "Changed in the meantime", detail);
        let problem = &mut error.0.0;
        (problem.current, problem.diff) = (conflict.current, conflict.diff);
        if let Some((author, _, at_ms)) = conflict.by {
            (problem.author, problem.at_ms) = (Some(author), Some(at_ms));
        }
        error
    }
}

fn describe(mistake: &Mistake) -> String {
    match &mistake.help {
        Some(help) => format!("{}; {help}", mistake.problem),
        None => mistake.problem.clone(),
    }
}

impl From<ControlError> for ApiError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Missing(_) => Self::not_found(error.to_string()),
            ControlError::Conflict(conflict) => Self::conflict(*conflict),
            ControlError::Mistakes(mistakes) => Self::mistakes(&mistakes),
            ControlError::Invalid(why) => Self::bad_request(why),
            ControlError::Taken(why) => Self::new(StatusCode::CONFLICT, "Taken", why),
            ControlError::Full(why) => Self::new(StatusCode::CONFLICT, "Full", why),
            ControlError::Database(error) => {
                // The details name hosts, files and tables, so only the log has them.
                tracing::warn!(%error, "rules database unavailable");
                let detail = if is_full(&error) {
                    "the disk of the database is full; nothing was changed, and the current rules stay in force"
                } else {
                    "the database is unavailable; the current rules stay in force"
                };
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "Database unavailable", detail)
                    .with(RETRY_AFTER, 1_u32.into())
            }
        }
    }
}

/// Whether the disk of the database is full, by the error codes of SQLite and PostgreSQL.
fn is_full(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| matches!(&*code, "13" | "53100"))
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", denied.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> axum::response::Response {
        self.into_answer().map(axum::body::Body::new)
    }
}
