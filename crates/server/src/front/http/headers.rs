//! The rate-limit headers: `Retry-After`, and `RateLimit` with `RateLimit-Policy` as the IETF's draft has them since its eighth
//! version. Both are lists of names with parameters: `"api";q=100;w=60` says 100 in 60 seconds, and `"api";r=7;t=12` that 7
//! are left and that it is as new in 12 seconds, or, for what is exceeded, that it lets the request pass then.

use std::fmt::Write;

use hyper::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tollgate::{Nanos, Retry};
use tollgate_engine::{Decision, LimitReport};

/// The letters of the draft in one place, since it has changed them before.
mod letters {
    pub(super) const QUOTA: &str = "q";
    pub(super) const WINDOW: &str = "w";
    pub(super) const REMAINING: &str = "r";
    pub(super) const RESET: &str = "t";
}

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Limits that are told; who has more reads the body.
const MAX_POLICIES: usize = 8;

/// The largest number that a structured header may hold.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// What limits without a rule are called.
const UNNAMED: &str = "default";

/// Adds what `decision` has to tell.
pub(super) fn add(headers: &mut HeaderMap, decision: &Decision<'_>) {
    if let Some(retry) = decision.retry() {
        headers.insert(RETRY_AFTER, HeaderValue::from(retry_after(retry)));
    }
    let (mut policies, mut standings) = (String::new(), String::new());
    let told = decision.reports().filter(|limit| !limit.shadow && limit.report.limit != u64::MAX);
    for limit in told.take(MAX_POLICIES) {
        policy(&mut policies, &limit);
        // While something is exceeded the rest is of no interest, and would speak of later than `Retry-After` does.
        if decision.is_allowed() || limit.refused && limit.report.retry != Retry::NOW {
            standing(&mut standings, &limit);
        }
    }
    for (name, text) in [(RATE_LIMIT_POLICY, policies), (RATE_LIMIT, standings)] {
        if !text.is_empty()
            && let Ok(value) = HeaderValue::try_from(text)
        {
            headers.insert(name, value);
        }
    }
}

/// Whole seconds, never 0. What never passes is not worth asking for again soon.
fn retry_after(retry: Retry) -> u64 {
    match retry {
        Retry::After(wait) => wait.as_secs_ceil().max(1),
        Retry::OnRelease => 1,
        Retry::Never => NEVER_SECONDS,
    }
}

/// A request that does not fit at all is told to come back in an hour: the header has no word for never.
const NEVER_SECONDS: u64 = 3_600;

fn policy(text: &mut String, limit: &LimitReport<'_>) {
    name(text, limit);
    // Writing to a text does not fail.
    let _ = write!(text, ";{}={}", letters::QUOTA, limit.report.limit.min(MAX_INTEGER));
    match limit.window {
        Some(window) => {
            let _ = write!(text, ";{}={}", letters::WINDOW, seconds(window).max(1));
        }
        None => text.push_str(";qu=\"concurrent-requests\""),
    }
}

fn standing(text: &mut String, limit: &LimitReport<'_>) {
    name(text, limit);
    let time = match limit.report.retry {
        Retry::After(wait) if limit.refused => Some(wait),
        Retry::OnRelease | Retry::Never if limit.refused => None,
        Retry::After(_) | Retry::OnRelease | Retry::Never => Some(limit.report.reset),
    };
    let _ = write!(text, ";{}={}", letters::REMAINING, limit.report.remaining.min(MAX_INTEGER));
    if let Some(time) = time {
        let _ = write!(text, ";{}={}", letters::RESET, seconds(time));
    }
}

fn seconds(time: Nanos) -> u64 {
    time.as_secs_ceil().min(MAX_INTEGER)
}

/// The next name of a list: the rule's, with the number of the limit from the second on. What a header cannot hold becomes
/// a question mark.
fn name(text: &mut String, limit: &LimitReport<'_>) {
    if !text.is_empty() {
        text.push_str(", ");
    }
    text.push('"');
    let name = if limit.rule.is_empty() { UNNAMED } else { limit.rule };
    for letter in name.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            ' '..='~' => text.push(letter),
            _ => text.push('?'),
        }
    }
    if limit.limit > 0 {
        let _ = write!(text, ":{}", limit.limit + 1);
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::Report;

    fn limit(rule: &str, limit: usize, report: Report, window: Option<u64>, refused: bool) -> LimitReport<'_> {
        LimitReport { item: 0, rule, limit, report, window: window.map(Nanos::from_millis), shadow: false, refused }
    }

    fn report(limit: u64, remaining: u64, retry_ms: u64, reset_ms: u64) -> Report {
        Report {
            limit,
            remaining,
            retry: Retry::After(Nanos::from_millis(retry_ms)),
            reset: Nanos::from_millis(reset_ms),
        }
    }

    #[test]
    fn limits_are_told_as_the_draft_has_them() {
        let (mut policies, mut standings) = (String::new(), String::new());
        for limit in [
            limit("api", 0, report(100, 99, 0, 600), Some(60_000), false),
            limit("api", 1, report(u64::MAX - 1, 0, 1, 86_400_000), Some(1), true),
            limit("a\"ü", 0, report(3, 2, 0, 0), None, false),
        ] {
            policy(&mut policies, &limit);
            standing(&mut standings, &limit);
        }
        assert_eq!(policies, r#""api";q=100;w=60, "api:2";q=999999999999999;w=1, "a\"?";q=3;qu="concurrent-requests""#);
        assert_eq!(standings, r#""api";r=99;t=1, "api:2";r=0;t=1, "a\"?";r=2;t=0"#);
    }

    #[test]
    fn a_refusal_never_says_zero() {
        assert_eq!(retry_after(Retry::After(Nanos::from_nanos(1))), 1);
        assert_eq!(retry_after(Retry::After(Nanos::from_millis(1_001))), 2);
        assert_eq!(retry_after(Retry::OnRelease), 1);
        assert_eq!(retry_after(Retry::Never), 3_600);
    }
}
