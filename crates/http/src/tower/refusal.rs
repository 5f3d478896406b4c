//! Why a request did not pass.

use tollgate::{Outcome, Retry};

/// A request that does not pass, for whoever makes the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    pub(super) policy: &'a str,
    pub(super) reason: Reason,
}

/// Why it does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A limit is exceeded: 429, or `RESOURCE_EXHAUSTED`.
    Exceeded(Retry),
    /// It does not say who asks, and [`Missing::Refuse`](super::Missing::Refuse) is in force: 400, or `INVALID_ARGUMENT`.
    Unidentified,
}

impl<'a> Refusal<'a> {
    /// The name of the layer or of the rule that refused.
    pub fn policy(&self) -> &'a str {
        self.policy
    }

    /// Why.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// When it is worth asking again; none if that does not depend on time.
    pub fn retry(&self) -> Option<Retry> {
        match self.reason {
            Reason::Exceeded(retry) => Some(retry),
            Reason::Unidentified => None,
        }
    }
}

/// What would have been done with a request, had the layer not only observed. It is among the extensions of the answer, for whoever
/// counts or logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed(
    /// A refusal or a wait.
    pub Outcome,
);
