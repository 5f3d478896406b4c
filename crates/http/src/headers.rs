//! Rate-limit headers.
//!
//! | style | headers | meaning |
//! |---|---|---|
//! | [`Styles::IETF`] | `RateLimit-Policy: "api";q=100;w=60` and `RateLimit: "api";r=7;t=12` | 100 in 60 seconds; 7 remain; full again in 12 seconds, or, for a limit that refused, the request passes in 12 seconds |
//! | [`Styles::X_RATE_LIMIT`] | `X-RateLimit-Limit: 100`, `X-RateLimit-Remaining: 7`, `X-RateLimit-Reset: 12` | the same for the tightest limit; the reset is in seconds from now, because the clocks of client and server may differ |
//! | every refusal | `Retry-After: 12` | whole seconds until the request passes, rounded up and never 0 |
//!
//! The IETF style follows draft-ietf-httpapi-ratelimit-headers from its eighth version on (last checked: the eleventh).
//! Both headers are lists of strings with parameters, as defined by RFC 9651. In a refusal, `t` is the wait for one
//! limit, and `Retry-After` is the wait for the whole request.
//!
//! [`write_policy`] and [`write_status`] write one list element; [`add`] adds headers to a `HeaderMap`.

use std::fmt::{self, Write};

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tollgate::core::Nanos;
use tollgate::{Report, Retry};

/// Parameter names of the draft. Earlier versions of the draft used other names.
mod parameters {
    pub(super) const QUOTA: &str = ";q=";
    pub(super) const WINDOW: &str = ";w=";
    pub(super) const REMAINING: &str = ";r=";
    pub(super) const RESET: &str = ";t=";
    pub(super) const CONCURRENT: &str = ";qu=\"concurrent-requests\"";
}

/// Initial capacity in bytes of a header list. The capacity is enough for one or two limits.
const INITIAL_LIST_CAPACITY: usize = 96;

const LIST_SEPARATOR: &str = ", ";

/// `RateLimit`: the current state of the limits.
pub const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// `RateLimit-Policy`: the limits.
pub const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// `X-RateLimit-Limit`: the capacity of the tightest limit.
pub const X_RATE_LIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// `X-RateLimit-Remaining`: the remaining amount of the tightest limit.
pub const X_RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// `X-RateLimit-Reset`: seconds until the tightest limit is full again.
pub const X_RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Maximum number of limits listed in a header; further limits are omitted.
pub const MAX_LIMITS: usize = 8;

/// The largest integer in a structured header (RFC 9651).
pub const MAX_INTEGER: u64 = 999_999_999_999_999;

/// The name that headers use for a limit without a name.
pub const DEFAULT_LIMIT_NAME: &str = "default";

/// Maximum length of a name in a header; longer names are truncated.
pub const MAX_NAME_CHARS: usize = 128;

/// Value of `Retry-After` for a request that can never pass: one hour, because the header cannot express "never".
pub const RETRY_AFTER_NEVER: u64 = 3_600;

/// The styles of rate-limit headers to send. `Retry-After` is not part of a style, because every refusal has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Styles {
    ietf: bool,
    x_rate_limit: bool,
}

impl Styles {
    /// No headers.
    pub const NONE: Self = Self { ietf: false, x_rate_limit: false };
    /// `RateLimit` and `RateLimit-Policy`.
    pub const IETF: Self = Self { ietf: true, x_rate_limit: false };
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub const X_RATE_LIMIT: Self = Self { ietf: false, x_rate_limit: true };

    /// Returns the combination of both styles.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { ietf: self.ietf || other.ietf, x_rate_limit: self.x_rate_limit || other.x_rate_limit }
    }

    pub(crate) const fn ietf(self) -> bool {
        self.ietf
    }

    pub(crate) const fn x_rate_limit(self) -> bool {
        self.x_rate_limit
    }
}

impl Default for Styles {
    /// [`Styles::IETF`].
    fn default() -> Self {
        Self::IETF
    }
}

/// The state of one limit, as reported in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStatus<'a> {
    /// Name of the limit's rule or layer.
    pub name: &'a str,
    /// Zero-based index of the limit in its rule or layer. Every limit after the first has its number in its name:
    /// `api:2`.
    pub index: usize,
    /// The limit's report.
    pub report: Report,
    /// Time in which an empty limit refills completely; `None` for a concurrency limit.
    pub window: Option<Nanos>,
    /// Whether this limit, or another limit of its rule, refused the request.
    pub refused: bool,
}

#[cfg(feature = "engine")]
impl<'a> From<tollgate_engine::LimitReport<'a>> for LimitStatus<'a> {
    fn from(from: tollgate_engine::LimitReport<'a>) -> Self {
        Self { name: from.rule, index: from.limit, report: from.report, window: from.window, refused: from.refused }
    }
}

/// Adds rate-limit headers in the given styles. `retry` is `None` for admitted requests.
///
/// `RateLimit` and `RateLimit-Policy` are lists: new elements are appended after the elements of other limiters. All
/// other headers are added only if they are missing.
pub fn add<'a>(
    headers: &mut HeaderMap,
    styles: Styles,
    retry: Option<Retry>,
    limits: impl IntoIterator<Item = LimitStatus<'a>>,
) {
    add_retry_after(headers, retry);
    let lists = if styles.ietf() { INITIAL_LIST_CAPACITY } else { 0 };
    let (mut policies, mut statuses) = (String::with_capacity(lists), String::with_capacity(lists));
    let mut tightest: Option<LimitStatus<'_>> = None;
    for (status, counts) in limits_to_report(retry, limits) {
        if styles.ietf() {
            push_limit_elements(&mut policies, &mut statuses, &status, counts);
        }
        if styles.x_rate_limit()
            && counts
            && tightest.is_none_or(|tightest| status.report.remaining < tightest.report.remaining)
        {
            tightest = Some(status);
        }
    }
    append_list(headers, RATE_LIMIT_POLICY, &policies);
    append_list(headers, RATE_LIMIT, &statuses);
    if let Some(status) = tightest {
        add_x_headers(headers, &status.report);
    }
}

/// Appends the `RateLimit-Policy` value to `policies` and the `RateLimit` value to `statuses`. The values are the same
/// as in [`add`].
pub fn write_lists<'a>(
    policies: &mut String,
    statuses: &mut String,
    retry: Option<Retry>,
    limits: impl IntoIterator<Item = LimitStatus<'a>>,
) {
    for (status, counts) in limits_to_report(retry, limits) {
        push_limit_elements(policies, statuses, &status, counts);
    }
}

/// Returns the limits to report, each with a flag that says whether `RateLimit` lists the limit.
fn limits_to_report<'a>(
    retry: Option<Retry>,
    limits: impl IntoIterator<Item = LimitStatus<'a>>,
) -> impl Iterator<Item = (LimitStatus<'a>, bool)> {
    let limits = limits.into_iter().filter(|status| status.report.limit != u64::MAX).take(MAX_LIMITS);
    limits.map(move |status| {
        // A refusal lists only the limits that refused, because other limits may reset later than `Retry-After`.
        let counts = retry.is_none() || status.refused && status.report.retry != Retry::NOW;
        (status, counts)
    })
}

fn push_limit_elements(policies: &mut String, statuses: &mut String, status: &LimitStatus<'_>, counts: bool) {
    push_element(policies, |list| write_policy(list, status));
    if counts {
        push_element(statuses, |list| write_status(list, status));
    }
}

/// Adds the rate-limit headers of a decision. Limits of shadow rules are omitted.
#[cfg(feature = "engine")]
pub fn add_decision(headers: &mut HeaderMap, styles: Styles, decision: &tollgate_engine::Decision<'_>) {
    let limits = decision.reports().filter(|report| !report.shadow).map(LimitStatus::from);
    add(headers, styles, decision.retry(), limits);
}

/// Returns the value of `Retry-After` in whole seconds, at least 1. Returns 1 if the request waits for a concurrency
/// slot, because the time of its release cannot be predicted.
pub fn retry_after(retry: Retry) -> u64 {
    match retry {
        Retry::After(wait) => wait.as_secs_ceil().max(1),
        Retry::OnRelease => 1,
        Retry::Never => RETRY_AFTER_NEVER,
    }
}

/// Writes an element of `RateLimit-Policy`: `"api";q=100;w=60`.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn write_policy(out: &mut impl Write, status: &LimitStatus<'_>) -> fmt::Result {
    write_quoted_name(out, status)?;
    write_parameter(out, parameters::QUOTA, status.report.limit)?;
    match status.window {
        Some(window) => write_parameter(out, parameters::WINDOW, window.as_secs_ceil().max(1)),
        None => out.write_str(parameters::CONCURRENT),
    }
}

/// Writes an element of `RateLimit`: `"api";r=7;t=12`.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn write_status(out: &mut impl Write, status: &LimitStatus<'_>) -> fmt::Result {
    write_quoted_name(out, status)?;
    let time = match status.report.retry {
        Retry::After(wait) if status.refused => Some(wait),
        Retry::OnRelease | Retry::Never if status.refused => None,
        Retry::After(_) | Retry::OnRelease | Retry::Never => Some(status.report.reset),
    };
    write_parameter(out, parameters::REMAINING, status.report.remaining)?;
    match time {
        Some(time) => write_parameter(out, parameters::RESET, time.as_secs_ceil()),
        None => Ok(()),
    }
}

pub(crate) fn add_retry_after(headers: &mut HeaderMap, retry: Option<Retry>) {
    if let Some(retry) = retry {
        headers.entry(RETRY_AFTER).or_insert_with(|| number_header_value(retry_after(retry)));
    }
}

pub(crate) fn add_x_headers(headers: &mut HeaderMap, report: &Report) {
    for (name, value) in [
        (X_RATE_LIMIT_LIMIT, report.limit),
        (X_RATE_LIMIT_REMAINING, report.remaining),
        (X_RATE_LIMIT_RESET, report.reset.as_secs_ceil()),
    ] {
        headers.entry(name).or_insert_with(|| number_header_value(value));
    }
}

/// Formats a number with one allocation; `HeaderValue::from(u64)` needs two.
fn number_header_value(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).unwrap_or_else(|_| HeaderValue::from(number))
}

/// Appends the element written by `write` to a list, after a separator if needed.
pub(crate) fn push_element(list: &mut String, write: impl FnOnce(&mut String) -> fmt::Result) {
    if !list.is_empty() {
        list.push_str(LIST_SEPARATOR);
    }
    let _ = write(list);
}

/// Appends a list to a header unless the list is empty. Copying the string takes one allocation; converting a `String`
/// with spare capacity would take two.
fn append_list(headers: &mut HeaderMap, name: HeaderName, list: &str) {
    if !list.is_empty()
        && let Ok(value) = HeaderValue::from_str(list)
    {
        headers.append(name, value);
    }
}

/// Writes the quoted name, followed by the limit's number if the limit is not the first. Characters that a header
/// cannot contain become question marks.
fn write_quoted_name(out: &mut impl Write, status: &LimitStatus<'_>) -> fmt::Result {
    let name = if status.name.is_empty() { DEFAULT_LIMIT_NAME } else { status.name };
    out.write_char('"')?;
    // Most names need no escaping and are written in one call.
    if name.len() <= MAX_NAME_CHARS
        && name.bytes().all(|character| matches!(character, b' '..=b'~') && character != b'"' && character != b'\\')
    {
        out.write_str(name)?;
    } else {
        for character in name.chars().take(MAX_NAME_CHARS) {
            match character {
                '"' => out.write_str("\\\"")?,
                '\\' => out.write_str("\\\\")?,
                ' '..='~' => out.write_char(character)?,
                _ => out.write_char('?')?,
            }
        }
    }
    if status.index > 0 {
        write_parameter(out, ":", status.index as u64 + 1)?;
    }
    out.write_char('"')
}

fn write_parameter(out: &mut impl Write, before: &str, number: u64) -> fmt::Result {
    out.write_str(before)?;
    out.write_str(itoa::Buffer::new().format(number.min(MAX_INTEGER)))
}

#[cfg(test)]
mod tests;
