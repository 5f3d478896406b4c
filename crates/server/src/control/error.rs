//! Why the rules service did not do something, by who has to act. Nothing was changed in any case but the last.

use std::fmt;

use tollgate_engine::rules::Mistakes;

use super::model::{Action, StoredRule};

/// Why something was not done.
#[derive(Debug)]
pub enum ControlError {
    /// There is no such thing. Which, in words: "the rule `login` of the domain `api`".
    Missing(String),
    /// It does not stand as the writer took for granted.
    Conflict(Box<Conflict>),
    /// The rules have mistakes.
    Mistakes(Mistakes),
    /// Something else about the request is wrong: what, and what would be right.
    Invalid(String),
    /// Something else stands where it would be: what, and how to make room.
    Taken(String),
    /// There would be too much of something.
    Full(String),
    /// The database cannot be asked, or has no room. The operator has to act. A write may have been made if the connection
    /// broke while it was being confirmed; it was made whole or not at all.
    Database(sqlx::Error),
}

/// What somebody else did in the meantime.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    /// What it is about, in words.
    pub what: String,
    /// The version that is there; none if nothing is.
    pub current: Option<i64>,
    /// The rule that is there, if it is about one.
    pub rule: Option<StoredRule>,
    /// Who made it so, how and when, if that is known.
    pub by: Option<(String, Action, i64)>,
    /// What changed since the version the writer knew, line by line.
    pub diff: Option<String>,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(what) => write!(f, "there is no {what}"),
            Self::Conflict(conflict) => match conflict.current {
                Some(version) => write!(f, "{} was changed, it is at version {version} now", conflict.what),
                None => write!(f, "{} is not there", conflict.what),
            },
            Self::Mistakes(mistakes) => mistakes.fmt(f),
            Self::Invalid(why) | Self::Taken(why) | Self::Full(why) => f.write_str(why),
            Self::Database(error) => write!(f, "the database cannot be used: {error}"),
        }
    }
}

impl std::error::Error for ControlError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Database(error) => Some(error),
            Self::Missing(_)
            | Self::Conflict(_)
            | Self::Mistakes(_)
            | Self::Invalid(_)
            | Self::Taken(_)
            | Self::Full(_) => None,
        }
    }
}

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
