//! What clients are told about their limits.
//!
//! | style | headers | says |
//! |---|---|---|
//! | [`Styles::IETF`] | `RateLimit-Policy: "api";q=100;w=60` and `RateLimit: "api";r=7;t=12` | 100 in 60 seconds; 7 are left, and it is as new in 12 seconds, or, for what is exceeded, lets the request pass then |
//! | [`Styles::X_RATE_LIMIT`] | `X-RateLimit-Limit: 100`, `X-RateLimit-Remaining: 7`, `X-RateLimit-Reset: 12` | the same of the tightest limit; seconds from now, since the answer's clock and the client's may differ |
//! | always, when refused | `Retry-After: 12` | in how many whole seconds it is worth asking again, rounded up and never 0 |
//!
//! The first are those of draft-ietf-httpapi-ratelimit-headers since its eighth version (last looked at: the eleventh): lists of
//! strings with parameters, as RFC 9651 writes them. They say `t` where a client has to wait, and never less than
//! `Retry-After` does.
//!
//! [`policy`] and [`standing`] write an element of such a list into anything that takes text; [`add`] writes into a `HeaderMap`.

use std::fmt::{self, Write};

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tollgate::{Nanos, Report, Retry};

/// The letters of the draft in one place, since it has changed them before.
mod letters {
    pub(super) const QUOTA: &str = ";q=";
    pub(super) const WINDOW: &str = ";w=";
    pub(super) const REMAINING: &str = ";r=";
    pub(super) const RESET: &str = ";t=";
    pub(super) const CONCURRENT: &str = ";qu=\"concurrent-requests\"";
}

/// What is between the elements of a list.
const AND: &str = ", ";

/// `RateLimit`: how the limits stand.
pub const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// `RateLimit-Policy`: what the limits are.
pub const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// `X-RateLimit-Limit`: what the tightest limit is.
pub const X_RATE_LIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// `X-RateLimit-Remaining`: what is left of it.
pub const X_RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// `X-RateLimit-Reset`: in how many seconds it is as new.
pub const X_RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// How many limits are told; who has more than that reads the first.
pub const MAX_TOLD: usize = 8;

/// The largest number that a structured header may hold.
pub const MAX_INTEGER: u64 = 999_999_999_999_999;

/// What a limit without a name is called.
pub const UNNAMED: &str = "default";

/// How long a name may be in a header; the rest of it is left out.
pub const MAX_NAME: usize = 128;

/// A request that does not fit at all is told to come back in an hour: `Retry-After` has no word for never.
pub const NEVER_SECONDS: u64 = 3_600;

/// Which headers tell about limits. `Retry-After` is not among them: a refusal always has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Styles {
    ietf: bool,
    x: bool,
}

impl Styles {
    /// None of them.
    pub const NONE: Self = Self { ietf: false, x: false };
    /// `RateLimit` and `RateLimit-Policy`.
    pub const IETF: Self = Self { ietf: true, x: false };
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub const X_RATE_LIMIT: Self = Self { ietf: false, x: true };

    /// These and those.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { ietf: self.ietf || other.ietf, x: self.x || other.x }
    }

    pub(crate) const fn ietf(self) -> bool {
        self.ietf
    }

    pub(crate) const fn x(self) -> bool {
        self.x
    }
}

impl Default for Styles {
    /// [`Styles::IETF`].
    fn default() -> Self {
        Self::IETF
    }
}

/// One limit, to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told<'a> {
    /// The name of the rule or the layer it belongs to.
    pub name: &'a str,
    /// Its place there, from 0. From the second on it is part of the name: `api:2`.
    pub place: usize,
    /// How it stands.
    pub report: Report,
    /// The time in which as much as the limit comes back; none for what is held at a time.
    pub window: Option<Nanos>,
    /// Whether it is one of those that refused.
    pub refused: bool,
}

#[cfg(feature = "engine")]
impl<'a> From<tollgate_engine::LimitReport<'a>> for Told<'a> {
    fn from(told: tollgate_engine::LimitReport<'a>) -> Self {
        Self { name: told.rule, place: told.limit, report: told.report, window: told.window, refused: told.refused }
    }
}

/// Adds what there is to tell about limits, in the given styles. `retry` is that of a refusal.
///
/// `RateLimit` and `RateLimit-Policy` are lists and are added to those that are there already, from another limiter on the
/// way; the others are not added where they are.
pub fn add<'a>(
    headers: &mut HeaderMap,
    styles: Styles,
    retry: Option<Retry>,
    told: impl IntoIterator<Item = Told<'a>>,
) {
    add_retry_after(headers, retry);
    let (mut policies, mut standings) = (String::new(), String::new());
    let mut tightest: Option<Told<'_>> = None;
    for told in told.into_iter().filter(|told| told.report.limit != u64::MAX).take(MAX_TOLD) {
        // While something is exceeded the rest is of no interest, and would speak of later than `Retry-After` does.
        let counts = retry.is_none() || told.refused && told.report.retry != Retry::NOW;
        if styles.ietf() {
            push(&mut policies, |list| policy(list, &told));
            if counts {
                push(&mut standings, |list| standing(list, &told));
            }
        }
        if styles.x() && counts && tightest.is_none_or(|tightest| told.report.remaining < tightest.report.remaining) {
            tightest = Some(told);
        }
    }
    append(headers, RATE_LIMIT_POLICY, policies);
    append(headers, RATE_LIMIT, standings);
    if let Some(told) = tightest {
        add_x(headers, &told.report);
    }
}

/// Adds what a decision of the engine has to tell. Limits of shadow rules are not told.
#[cfg(feature = "engine")]
pub fn add_decision(headers: &mut HeaderMap, styles: Styles, decision: &tollgate_engine::Decision<'_>) {
    let told = decision.reports().filter(|report| !report.shadow).map(Told::from);
    add(headers, styles, decision.retry(), told);
}

/// Whole seconds to put into `Retry-After`, never 0. When something is let go of cannot be known; a second is a good time to look.
pub fn retry_after(retry: Retry) -> u64 {
    match retry {
        Retry::After(wait) => wait.as_secs_ceil().max(1),
        Retry::OnRelease => 1,
        Retry::Never => NEVER_SECONDS,
    }
}

/// Writes a limit as an element of `RateLimit-Policy`: `"api";q=100;w=60`.
///
/// # Errors
/// Those of `out`.
pub fn policy(out: &mut impl Write, told: &Told<'_>) -> fmt::Result {
    name(out, told)?;
    number(out, letters::QUOTA, told.report.limit)?;
    match told.window {
        Some(window) => number(out, letters::WINDOW, window.as_secs_ceil().max(1)),
        None => out.write_str(letters::CONCURRENT),
    }
}

/// Writes a limit as an element of `RateLimit`: `"api";r=7;t=12`.
///
/// # Errors
/// Those of `out`.
pub fn standing(out: &mut impl Write, told: &Told<'_>) -> fmt::Result {
    name(out, told)?;
    let time = match told.report.retry {
        Retry::After(wait) if told.refused => Some(wait),
        Retry::OnRelease | Retry::Never if told.refused => None,
        Retry::After(_) | Retry::OnRelease | Retry::Never => Some(told.report.reset),
    };
    number(out, letters::REMAINING, told.report.remaining)?;
    match time {
        Some(time) => number(out, letters::RESET, time.as_secs_ceil()),
        None => Ok(()),
    }
}

pub(crate) fn add_retry_after(headers: &mut HeaderMap, retry: Option<Retry>) {
    if let Some(retry) = retry {
        headers.entry(RETRY_AFTER).or_insert_with(|| digits(retry_after(retry)));
    }
}

pub(crate) fn add_x(headers: &mut HeaderMap, report: &Report) {
    for (name, value) in [
        (X_RATE_LIMIT_LIMIT, report.limit),
        (X_RATE_LIMIT_REMAINING, report.remaining),
        (X_RATE_LIMIT_RESET, report.reset.as_secs_ceil()),
    ] {
        headers.entry(name).or_insert_with(|| digits(value));
    }
}

/// `HeaderValue::from` a number reserves more than it needs, which takes a second allocation.
fn digits(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).unwrap_or_else(|_| HeaderValue::from(number))
}

/// Adds an element that `write` wrote to a list. Writing to a text does not fail.
pub(crate) fn push(list: &mut String, write: impl FnOnce(&mut String) -> fmt::Result) {
    if !list.is_empty() {
        list.push_str(AND);
    }
    let _ = write(list);
}

fn append(headers: &mut HeaderMap, name: HeaderName, list: String) {
    if !list.is_empty()
        && let Ok(value) = HeaderValue::try_from(list)
    {
        headers.append(name, value);
    }
}

/// That of the rule, with the number of the limit from the second on. What a header cannot hold becomes a question mark.
fn name(out: &mut impl Write, told: &Told<'_>) -> fmt::Result {
    let name = if told.name.is_empty() { UNNAMED } else { told.name };
    out.write_char('"')?;
    // Most names are written as they are, in one go.
    if name.len() <= MAX_NAME
        && name.bytes().all(|letter| matches!(letter, b' '..=b'~') && letter != b'"' && letter != b'\\')
    {
        out.write_str(name)?;
    } else {
        for letter in name.chars().take(MAX_NAME) {
            match letter {
                '"' => out.write_str("\\\"")?,
                '\\' => out.write_str("\\\\")?,
                ' '..='~' => out.write_char(letter)?,
                _ => out.write_char('?')?,
            }
        }
    }
    if told.place > 0 {
        number(out, ":", told.place as u64 + 1)?;
    }
    out.write_char('"')
}

fn number(out: &mut impl Write, before: &str, number: u64) -> fmt::Result {
    out.write_str(before)?;
    out.write_str(itoa::Buffer::new().format(number.min(MAX_INTEGER)))
}

#[cfg(test)]
mod tests;
