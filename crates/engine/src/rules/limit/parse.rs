//! Numbers, lengths of time and truths as people write them.

use tollgate::{LimitError, Nanos, Rate};

use super::super::raw::shorten;

pub(crate) const TRUTHS: &str = "write `true` or `false`";

pub(crate) fn not_a_truth(text: &str) -> String {
    format!("`{}` is neither true nor false", shorten(text))
}

pub(crate) fn not_a_count(text: &str) -> String {
    format!("`{}` is not a whole number", shorten(text))
}

pub(crate) fn parse_truth(text: &str) -> Option<bool> {
    match text {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Digits, and a letter for thousands, millions or milliards.
pub(crate) fn parse_count(text: &str) -> Option<u64> {
    let scales = [('k', 1_000), ('M', 1_000_000), ('G', 1_000_000_000)];
    let scaled = scales.iter().find_map(|(letter, scale)| Some((text.strip_suffix(*letter)?, *scale)));
    let (digits, scale) = scaled.unwrap_or((text, 1));
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if all_digits { digits.parse::<u64>().ok()?.checked_mul(scale) } else { None }
}

/// One per a period is the period, so that there is one reader of units.
pub(crate) fn parse_length(text: &str) -> Option<Nanos> {
    if text == "0" {
        return Some(Nanos::ZERO);
    }
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    format!("1/{text}").parse::<Rate>().ok().map(Rate::per)
}

/// `5/15m` as 5 and 15 minutes.
pub(crate) fn parse_quota(text: &str) -> Result<(u64, Nanos), LimitError> {
    let parts = || {
        let (count, period) = text.split_once('/').or_else(|| text.split_once(" per "))?;
        let per = format!("1/{period}").parse::<Rate>().ok()?.per();
        Some((parse_count(count.trim())?, per))
    };
    match parts() {
        Some((count, per)) if count > 0 => Ok((count, per)),
        // The rate's own reader says best what is wrong; what it takes, the parts above took.
        _ => match text.parse::<Rate>() {
            Ok(rate) => Ok((rate.count().into(), rate.per())),
            Err(error) => Err(error),
        },
    }
}
