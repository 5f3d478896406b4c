//! Errors as problems (RFC 9457): what is wrong, where, and what would be right.

use hyper::StatusCode;
use hyper::header::{ALLOW, HeaderValue, RETRY_AFTER};
use serde::Serialize;
use tollgate_engine::rules::nearest;

use super::serve::{HttpResponse, response};
use crate::ops::error::{ErrorKind, OpError};

/// Why a request failed. Nothing was taken unless the title says so.
// Boxed, because it is rare and responses should not be as large as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(Box<Members>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Members {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    detail: String,
    /// The place in the body, as a JSON pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pointer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    /// The methods that the path accepts, for a 405.
    #[serde(skip)]
    allow: Option<String>,
}

impl Problem {
    /// Returns a problem without a place.
    pub fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Self(Box::new(Members {
            kind: "about:blank",
            title,
            status,
            detail: detail.into(),
            pointer: None,
            line: None,
            column: None,
            allow: None,
        }))
    }

    /// Returns a 400.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad request", detail)
    }

    /// Returns a 403.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", detail)
    }

    /// Returns the problem of an operation on the item at `pointer`. The one place where such errors become a status.
    pub fn from_op(error: &OpError, pointer: &str) -> Self {
        let (status, title) = match error.kind {
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "Bad request"),
            ErrorKind::Forbidden => (StatusCode::FORBIDDEN, "Forbidden"),
            ErrorKind::KeyInUse => (StatusCode::CONFLICT, "Conflict"),
            ErrorKind::KeyReused => (StatusCode::UNPROCESSABLE_ENTITY, "Key used before"),
            ErrorKind::StoreFailed => (StatusCode::SERVICE_UNAVAILABLE, "Store unavailable"),
        };
        let problem = Self::new(status, title, error.detail.clone());
        match error.field {
            None => problem,
            Some("") => problem.at(pointer),
            Some(field) => problem.at(format!("{pointer}/{field}")),
        }
    }

    /// Returns a 400 for a body that is not JSON, or not of the right form.
    pub fn json(error: &serde_json::Error) -> Self {
        // The place has fields of its own.
        let text = error.to_string();
        let detail = text.rsplit_once(" at line ").map_or(text.as_str(), |(detail, _)| detail);
        let mut problem = match error.is_data() {
            true => Self::bad_request(with_nearest(detail)),
            false => Self::bad_request(format!("the body is not JSON: {detail}")),
        };
        if error.line() > 0 {
            (problem.0.line, problem.0.column) = (Some(error.line()), Some(error.column()));
        }
        problem
    }

    /// Adds the place in the body.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>) -> Self {
        self.0.pointer = Some(pointer.into());
        self
    }

    /// Adds the line of a file that has one request per line.
    #[must_use]
    pub fn in_line(mut self, line: usize) -> Self {
        self.0.line = Some(line);
        let detail = self.0.detail.replacen("the body is not JSON", "this is not JSON", 1);
        self.0.detail = format!("at line {line}: {detail}");
        self
    }

    /// Returns what is wrong.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Adds the methods that the path accepts.
    #[must_use]
    pub fn allowing(mut self, methods: impl Into<String>) -> Self {
        self.0.allow = Some(methods.into());
        self
    }

    /// Returns the status of the response.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// Returns the methods that the path accepts, for a 405.
    pub fn allow(&self) -> Option<&str> {
        self.0.allow.as_deref()
    }

    /// Returns the problem as a response.
    pub(super) fn to_response(&self) -> HttpResponse {
        let mut answer = response(self.status(), "application/problem+json", self.to_json());
        if let Some(Ok(methods)) = self.allow().map(HeaderValue::from_str) {
            answer.headers_mut().insert(ALLOW, methods);
        }
        if self.status() == StatusCode::SERVICE_UNAVAILABLE {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }

    /// Returns the problem as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        // A struct of numbers and strings always serialises.
        serde_json::to_vec(&*self.0).unwrap_or_default()
    }
}

/// Adds the field that was probably meant to an error about an unknown field.
fn with_nearest(detail: &str) -> String {
    let meant = || {
        let (given, valid) = detail.strip_prefix("unknown field `")?.split_once("`, expected ")?;
        let valid: Vec<&str> = valid.split('`').skip(1).step_by(2).collect();
        Some(format!("unknown field `{given}`, did you mean `{}`?", nearest(given, &valid)?))
    };
    meant().unwrap_or_else(|| detail.to_owned())
}

fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_says_what_is_wrong_and_where() {
        let error = serde_json::from_str::<Vec<u8>>("[1,\n x]").unwrap_err();
        assert_eq!(
            String::from_utf8(Problem::json(&error).to_json()).unwrap(),
            r#"{"type":"about:blank","title":"Bad request","status":400,"detail":"the body is not JSON: expected value","line":2,"column":2}"#
        );
        let told = |detail| with_nearest(&format!("unknown field {detail}"));
        assert_eq!(told("`limt`, expected one of `key`, `limit`"), "unknown field `limt`, did you mean `limit`?");
        assert_eq!(told("`limt`, expected `limit`"), "unknown field `limt`, did you mean `limit`?");
        assert_eq!(told("`x`, expected one of `key`, `limit`"), "unknown field `x`, expected one of `key`, `limit`");
        let problem = Problem::bad_request("`x` is not a rate").at("/limit");
        assert!(String::from_utf8(problem.to_json()).unwrap().ends_with(r#""pointer":"/limit"}"#));
    }
}
