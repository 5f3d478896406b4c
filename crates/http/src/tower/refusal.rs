//! Refusals and their reasons.

use tollgate::{Outcome, Retry};

/// A refused request, passed to the function given to
/// [`LimitLayer::refusal_response`](super::LimitLayer::refusal_response).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    pub(super) policy: &'a str,
    pub(super) reason: Reason,
}

/// The reason for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A limit is exceeded: status 429, or `RESOURCE_EXHAUSTED`.
    Exceeded(Retry),
    /// The request has no identity, and the layer was configured with
    /// [`OnUnidentified::Refuse`](super::OnUnidentified::Refuse): status 400, or `INVALID_ARGUMENT`.
    Unidentified,
    /// The request lacks the client identifier (such as the peer address), so all clients would share one counter:
    /// status 500, or `INTERNAL`. Contains a configuration hint.
    Misconfigured(&'static str),
}

impl<'a> Refusal<'a> {
    /// Returns the name of the layer or the rule that refused.
    pub fn policy(&self) -> &'a str {
        self.policy
    }

    /// Returns the reason.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns when to retry if a limit refused the request, and otherwise `None`.
    pub fn retry(&self) -> Option<Retry> {
        match self.reason {
            Reason::Exceeded(retry) => Some(retry),
            Reason::Unidentified | Reason::Misconfigured(_) => None,
        }
    }
}

/// The outcome that an observing layer would have applied, stored in the response's extensions for metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedOutcome(
    /// The refusal or the delay.
    pub Outcome,
);
