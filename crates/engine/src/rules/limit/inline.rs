//! Inline limits, and mistakes in limits.

use std::fmt;

use tollgate::Limits;

use super::{NO_LIMIT_HELP, WrittenLimit, ZERO_LIMIT_HELP, parse_limit};

/// An inline limit, as written in a request.
///
/// ```
/// use tollgate_engine::rules::LimitText;
///
/// let limits = LimitText { limit: "100/s", burst: Some(20), algorithm: None }.read()?;
/// assert_eq!(limits.as_slice().len(), 1);
/// let mistake = LimitText { limit: "100/s", burst: None, algorithm: Some("tokenbucket") }.read().unwrap_err();
/// assert_eq!(mistake.to_string(), "algorithm: `tokenbucket` is not an algorithm; did you mean `token_bucket`?");
/// # Ok::<(), tollgate_engine::rules::LimitMistake>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitText<'a> {
    /// A rate like `100/s`; for concurrency a whole number.
    pub limit: &'a str,
    /// The burst of a bucket; by default, the count of the rate.
    pub burst: Option<u64>,
    /// The algorithm; by default, `token_bucket`.
    pub algorithm: Option<&'a str>,
}

impl LimitText<'_> {
    /// Parses the limit.
    ///
    /// # Errors
    /// Returns the first mistake.
    pub fn read(&self) -> Result<Limits, LimitMistake> {
        let burst = self.burst.map(|burst| burst.to_string());
        let words = WrittenLimit {
            limit: Some(self.limit),
            algorithm: self.algorithm,
            option: &|name| match name {
                "burst" => burst.as_deref(),
                _ => None,
            },
            position: 0,
            inherits: false,
        };
        match parse_limit(&words) {
            Ok((limit, None)) => Ok(limit.into()),
            Ok((_, Some(_))) => {
                let problem = "calendar windows are supported only in rules".into();
                Err(LimitMistake { word: "limit", problem, help: None })
            }
            Err(mut mistakes) => {
                let mut first = mistakes.swap_remove(0);
                // `unlimited`, `allow` and `deny` exist only in rules.
                first.help = first.help.filter(|help| help != ZERO_LIMIT_HELP && help != NO_LIMIT_HELP);
                Err(first)
            }
        }
    }
}

/// A mistake in one part of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitMistake {
    /// The part with the mistake: `limit`, `algorithm` or the name of an option.
    pub word: &'static str,
    /// What is wrong.
    pub problem: String,
    /// A suggestion, if there is one.
    pub help: Option<String>,
}

impl fmt::Display for LimitMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.word, self.problem)?;
        match &self.help {
            Some(help) => write!(f, "; {help}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for LimitMistake {}
