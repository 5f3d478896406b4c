//! What went wrong, told as a problem (RFC 9457). The one place where errors of the rules service become statuses.

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

/// Why something was not done, as it is sent. Nothing was changed, unless the detail says that it may have been.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct Members {
    /// Always `about:blank`: the title says it all.
    #[serde(rename = "type")]
    #[schema(example = "about:blank")]
    kind: &'static str,
    /// What is wrong, in a few words.
    title: &'static str,
    /// The status of the answer.
    status: u16,
    /// What is wrong, and what would be right.
    detail: String,
    /// What is wrong with rules, one by one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mistakes: Vec<Finding>,
    /// The version or revision that is there, if it is another than was taken for granted; none if nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<i64>,
    /// Who made it so.
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<String>,
    /// When, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_ms: Option<i64>,
    /// What changed since the version that was taken for granted, line by line.
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<String>,
}

/// Why something was not done.
// In a box, since it is rare and results should not be as large as it is.
#[derive(Debug)]
pub(crate) struct Fault(Box<(Members, Option<(HeaderName, HeaderValue)>)>);

impl Fault {
    pub(super) fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        let members = Members {
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
        Self(Box::new((members, None)))
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad request", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "Not found", detail)
    }

    /// More was asked for at once than there is room for.
    pub(super) fn busy(detail: impl Into<String>, seconds: u32) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "Busy", detail).with(RETRY_AFTER, seconds.into())
    }

    pub(super) fn too_slow(limit: Duration) -> Self {
        let detail = format!("there was no answer within {} s, so it may or may not have been done", limit.as_secs());
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "Too slow", detail).with(RETRY_AFTER, 10_u32.into())
    }

    /// Something that cannot happen did. The details are in the log.
    pub(super) fn bug() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal error",
            "this is a fault of the server; its log says more",
        )
    }

    pub(super) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.1 = Some((name, value));
        self
    }

    pub(super) fn into_answer(self) -> Answer {
        let (members, header) = *self.0;
        // A struct of numbers and texts always serialises.
        let body = Bytes::from(serde_json::to_vec(&members).unwrap_or_default());
        let mut answer = Response::new(Full::new(body));
        *answer.status_mut() = StatusCode::from_u16(members.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some((name, value)) = header {
            answer.headers_mut().insert(name, value);
        }
        answer
    }

    fn mistakes(mistakes: &Mistakes) -> Self {
        let count = mistakes.as_slice().len() + mistakes.left_out();
        let detail = match mistakes.as_slice() {
            [only] if count == 1 => only_in_words(only),
            [first, ..] => format!("there are {count} mistakes; the first: {}", only_in_words(first)),
            [] => "there are mistakes".to_owned(),
        };
        let mut fault = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Mistakes in the rules", detail);
        fault.0.0.mistakes = mistakes.as_slice().iter().map(Finding::from).collect();
        fault
    }

    fn conflict(conflict: Conflict) -> Self {
        let detail = ControlError::Conflict(Box::new(conflict.clone())).to_string();
        let mut fault = Self::new(StatusCode::PRECONDITION_FAILED, "Changed in the meantime", detail);
        let members = &mut fault.0.0;
        (members.current, members.diff) = (conflict.current, conflict.diff);
        if let Some((author, _, at_ms)) = conflict.by {
            (members.author, members.at_ms) = (Some(author), Some(at_ms));
        }
        fault
    }
}

fn only_in_words(mistake: &Mistake) -> String {
    match &mistake.help {
        Some(help) => format!("{}; {help}", mistake.problem),
        None => mistake.problem.clone(),
    }
}

impl From<ControlError> for Fault {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Missing(_) => Self::not_found(error.to_string()),
            ControlError::Conflict(conflict) => Self::conflict(*conflict),
            ControlError::Mistakes(mistakes) => Self::mistakes(&mistakes),
            ControlError::Invalid(why) => Self::bad_request(why),
            ControlError::Taken(why) => Self::new(StatusCode::CONFLICT, "Taken", why),
            ControlError::Full(why) => Self::new(StatusCode::CONFLICT, "Full", why),
            ControlError::Database(error) => {
                // The details are for the log: they name machines, files and tables.
                tracing::warn!(%error, "the database of the rules cannot be used");
                let detail = if is_full(&error) {
                    "the disk of the database is full, nothing was changed; the rules that run stay in force"
                } else {
                    "the database cannot be used at the moment; the rules that run stay in force"
                };
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "Database unavailable", detail)
                    .with(RETRY_AFTER, 1_u32.into())
            }
        }
    }
}

/// Whether the database has no room left, by what SQLite and PostgreSQL call it.
fn is_full(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| matches!(&*code, "13" | "53100"))
}

impl From<Denied> for Fault {
    fn from(denied: Denied) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", denied.to_string())
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> axum::response::Response {
        self.into_answer().map(axum::body::Body::new)
    }
}
