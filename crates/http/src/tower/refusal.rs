//! Why a request was refused.

use tollgate::{Outcome, Retry};

/// A refused request, as the function given to [`LimitLayer::answer`](super::LimitLayer::answer) sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    pub(super) policy: &'a str,
    pub(super) reason: Reason,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A limit is exceeded: status 429, or `RESOURCE_EXHAUSTED`.
    Exceeded(Retry),
    /// The request has no identity, and the layer was configured with
    /// [`OnUnidentified::Refuse`](super::OnUnidentified::Refuse): status 400, or `INVALID_ARGUMENT`.
    Unidentified,
    /// The server does not provide what the layer identifies clients by, and would count all clients as one: status 500, or
    /// `INTERNAL`. Holds what to configure.
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

    /// Returns when to retry, or `None` if the request never passes.
    pub fn retry(&self) -> Option<Retry> {
        match self.reason {
            Reason::Exceeded(retry) => Some(retry),
            Reason::Unidentified | Reason::Misconfigured(_) => None,
        }
    }
}

/// What an observing layer would have done with a request. It is in the extensions of the response,
/// for metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed(
    /// The refusal or the wait.
    pub Outcome,
);
