//! The error type of all operations. Each front end converts the error to its own format.

use std::borrow::Cow;

use tollgate_engine::{EngineError, RequestError};

use crate::control::auth::MissingRole;

/// The error of a failed operation. Nothing was taken, except possibly if the kind is [`ErrorKind::StoreFailed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpError {
    /// The kind of error, from which front ends derive a status code.
    pub kind: ErrorKind,
    /// The invalid input field. Empty if the error concerns the whole input, `None` if it does not concern the input.
    pub field: Option<&'static str>,
    /// Message for the caller: what is wrong, then what would be right.
    pub detail: Cow<'static, str>,
}

/// The kind of an [`OpError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The input is invalid.
    Invalid,
    /// The caller lacks the required role.
    Forbidden,
    /// A request with the same idempotency key is running.
    KeyInUse,
    /// The idempotency key was used with another request.
    KeyReused,
    /// The audit-log queue is full, so the action was not carried out.
    NotRecorded,
    /// The store failed, but may have carried out the operation.
    StoreFailed,
}

impl OpError {
    /// Returns an error about one input field. An empty field name means the whole input.
    pub fn invalid(field: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind: ErrorKind::Invalid, field: Some(field), detail: detail.into() }
    }

    /// Returns the error for an action that cannot be recorded, because the audit-log queue is full.
    pub fn not_recorded() -> Self {
        let detail =
            "too many entries wait for the audit log, which is unreachable; nothing was changed, try again later";
        Self { kind: ErrorKind::NotRecorded, field: None, detail: detail.into() }
    }

    /// Returns the error for a list item that is not run, because the response to the list is full.
    pub fn response_full() -> Self {
        let detail = "the response to this list is full; nothing was taken for this request, send it in another list";
        Self { kind: ErrorKind::Invalid, field: Some(""), detail: detail.into() }
    }

    /// Returns an error about the idempotency key.
    pub fn about_key(kind: ErrorKind, detail: impl Into<Cow<'static, str>>) -> Self {
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
                // Only the log gets the details, because they name the store.
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
