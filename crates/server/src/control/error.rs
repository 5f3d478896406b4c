//! Errors of the rules service. A failed call changes nothing, with one exception: after [`ControlError::Database`],
//! the write may have been made.

use std::fmt;

use tollgate_engine::rules::Mistakes;

use super::model::{Action, StoredRule};

/// An error of the rules service.
#[derive(Debug)]
pub enum ControlError {
    /// The resource does not exist. The text names the resource, such as "rule `login` of the domain `api`".
    Missing(String),
    /// The resource is not at the version that the writer expected.
    Conflict(Box<Conflict>),
    /// The rules have mistakes.
    Mistakes(Mistakes),
    /// The request is invalid for another reason.
    Invalid(String),
    /// A different resource is stored under the same name.
    Taken(String),
    /// The write would exceed a maximum size or count.
    Full(String),
    /// The database is unreachable or full. The operator must fix the database. If the connection broke during a
    /// commit, the write was made either completely or not at all.
    Database(sqlx::Error),
}

/// The current state of a resource that is not at the expected version.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    /// Names the resource.
    pub what: String,
    /// The kind of the resource's number: `version` or `revision`.
    pub number: &'static str,
    /// The version that the writer expected, or `None` if the writer named none.
    pub expected: Option<i64>,
    /// The current version, or `None` if the resource does not exist.
    pub current: Option<i64>,
    /// The current rule, if the resource is a rule.
    pub rule: Option<StoredRule>,
    /// Author, action and time of the last change, if known.
    pub by: Option<(String, Action, i64)>,
    /// The line diff between the version that the writer expected and the current version.
    pub diff: Option<String>,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(what) => write!(f, "there is no {what}"),
            Self::Conflict(conflict) => {
                let Conflict { what, number, expected, current, .. } = &**conflict;
                match (current, expected) {
                    (None, _) => write!(f, "{what} does not exist"),
                    (Some(current), Some(expected)) => write!(f, "{what} has {number} {current}, not {expected}"),
                    (Some(current), None) => write!(f, "{what} already exists, with {number} {current}"),
                }
            }
            Self::Mistakes(mistakes) => mistakes.fmt(f),
            Self::Invalid(why) | Self::Taken(why) | Self::Full(why) => f.write_str(why),
            Self::Database(error) => write!(f, "the database cannot be used: {error}"),
        }
    }
}

impl std::error::Error for ControlError {}

impl From<sqlx::Error> for ControlError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<Mistakes> for ControlError {
    fn from(mistakes: Mistakes) -> Self {
        Self::Mistakes(mistakes)
    }
}
