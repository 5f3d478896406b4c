//! Why an operation was not carried out. Each front end has one function from this to its own form.

use std::borrow::Cow;

use tollgate_engine::{EngineError, RequestError};

use crate::control::auth::MissingRole;

/// Why an operation was not carried out. An error of an operation. Nothing was taken, unless the kind is
/// [`ErrorKind::StoreFailed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpError {
    /// The kind, which front ends map to status codes.
    pub kind: ErrorKind,
    /// The field of the input that is wrong, empty for the whole input, `None` if the error is not about the input.
    pub field: Option<&'static str>,
    /// What is wrong and what would be right, for the caller.
    pub detail: Cow<'static, str>,
}

/// The kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The input is wrong.
    Invalid,
    /// The caller lacks the role.
    Forbidden,
    /// A request with the same idempotency key is running.
    KeyInUse,
    /// The idempotency key was used with another request.
    KeyReused,
    /// The audit log cannot keep an entry for the action, so it is not carried out.
    NotRecorded,
    /// The store failed. The store failed; it may have carried out the operation.
    StoreFailed,
}

impl OpError {
    /// Returns an error about one field of the input.
    pub fn invalid(field: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind: ErrorKind::Invalid, field: Some(field), detail: detail.into() }
    }

    /// Returns the error of an action that the audit log cannot keep.
    pub fn not_recorded() -> Self {
        let detail =
            "too many entries wait for the audit log, which is unreachable; nothing was changed, try again later";
        Self { kind: ErrorKind::NotRecorded, field: None, detail: detail.into() }
    }

    /// Returns the error of a request in a list whose response is full.
    pub fn no_room() -> Self {
        let detail = "the response to this list is full; nothing was taken for this request, send it in another list";
        Self { kind: ErrorKind::Invalid, field: Some(""), detail: detail.into() }
    }

    /// Returns an error about the idempotency key.
    pub fn key(kind: ErrorKind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, field: None, detail: detail.into() }
    }
}

impl From<RequestError> for OpError {
    fn from(error: RequestError) -> Self {
        let field = match error {
            RequestError::UnknownDomain { .. } => "domain",
            RequestError::TooMany { .. } => "attributes",
            RequestError::BadLimit { .. } => "limit",
            RequestError::NoAmount => "cost",
            RequestError::NoItems => "",
        };
        Self::invalid(field, error.to_string())
    }
}

impl From<EngineError> for OpError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Request(error) => error.into(),
            EngineError::Store(error) => {
                // The details name the store, so they are for the log only.
                tracing::warn!(%error, "store operation failed");
                let detail = "the store did not answer; the operation may or may not have been carried out";
                Self { kind: ErrorKind::StoreFailed, field: Some(""), detail: detail.into() }
            }
        }
    }
}

impl From<MissingRole> for OpError {
    fn from(denied: MissingRole) -> Self {
        Self { kind: ErrorKind::Forbidden, field: Some(""), detail: denied.to_string().into() }
    }
}
