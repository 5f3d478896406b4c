//! Parses numbers, durations and booleans.

use tollgate::core::Nanos;
use tollgate::{LimitError, Rate};

use super::super::raw::shorten;
use super::calendar::{has_variable_length, unit_of};

pub(crate) const BOOLEAN_HELP: &str = "write `true` or `false`";

pub(crate) fn not_a_boolean_message(text: &str) -> String {
    format!("`{}` is neither true nor false", shorten(text))
}

pub(crate) fn not_a_count_message(text: &str) -> String {
    format!("`{}` is not a whole number", shorten(text))
}

pub(crate) fn parse_boolean(text: &str) -> Option<bool> {
    match text {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Parses a whole number with an optional suffix: `k`, `M` or `G`.
pub(crate) fn parse_count(text: &str) -> Option<u64> {
    let scales = [('k', 1_000), ('M', 1_000_000), ('G', 1_000_000_000)];
    let scaled = scales.iter().find_map(|(letter, scale)| Some((text.strip_suffix(*letter)?, *scale)));
    let (digits, scale) = scaled.unwrap_or((text, 1));
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if all_digits { digits.parse::<u64>().ok()?.checked_mul(scale) } else { None }
}

/// Parses a duration. Uses the parser for the period of a rate, so that units are defined in one place.
pub(crate) fn parse_length(text: &str) -> Option<Nanos> {
    if text == "0" {
        return Some(Nanos::ZERO);
    }
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let length = |text: &str| format!("1/{text}").parse::<Rate>().ok().map(Rate::per);
    // Zero is a valid duration, but not a valid period of a rate.
    let unit = text.trim_start_matches('0');
    if unit.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return length(unit).map(|_| Nanos::ZERO);
    }
    length(text)
}

/// Parses a count per period: `5/15m` gives 5 and 15 minutes.
pub(crate) fn parse_quota(text: &str) -> Result<(u64, Nanos), LimitError> {
    let parts = || {
        let (count, period) = text.split_once('/').or_else(|| text.split_once(" per "))?;
        let per = format!("1/{period}").parse::<Rate>().ok()?.per();
        Some((parse_count(count.trim())?, per))
    };
    match parts() {
        Some((count, per)) if count > 0 => Ok((count, per)),
        // Invalid input is parsed again as a `Rate`, to get an error message.
        _ => match text.parse::<Rate>() {
            Ok(rate) => Ok((rate.count().into(), rate.per())),
            Err(error) => Err(error),
        },
    }
}

/// Suggests a valid form for a rate that is written in other words. For "5 a minute", suggests `5 per minute` or `5/m`.
/// Returns `None` if the meaning is unclear.
pub(crate) fn suggest_rate(text: &str) -> Option<String> {
    const FILLER_WORDS: &[&str] = &[
        "a", "an", "any", "call", "calls", "each", "every", "in", "per", "request", "requests", "the", "time", "times",
        "within", "x", "/",
    ];
    let lower = text.to_lowercase();
    let short = ["rps", "rpm", "rph"].iter().find_map(|unit| Some((lower.strip_suffix(unit)?, &unit[2..])));
    if let Some((count, unit)) = short {
        let count = parse_count(count.trim()).filter(|count| *count > 0)?;
        return Some(format!("`{count}/{unit}`"));
    }
    if let Some(written) = suggest_number(text) {
        return Some(written);
    }
    let mut words = text.split_whitespace();
    let count = words.next().map(|count| count.trim_end_matches('x'))?;
    parse_count(count).filter(|count| *count > 0)?;
    let period: Vec<&str> = words.filter(|word| !FILLER_WORDS.contains(&&*word.to_lowercase())).collect();
    let period = period.join(" ");
    if unit_of(&period).is_some_and(has_variable_length) {
        return Some(format!("`{count} per {period}` or `{count}/{period}`"));
    }
    let rate = format!("1 per {period}").parse::<Rate>().ok()?.to_string();
    // `Rate` displays one per 15 minutes as 4/h, which would be a misleading suggestion.
    let short = rate.strip_prefix("1/").map(|unit| format!(" or `{count}/{unit}`")).unwrap_or_default();
    Some(format!("`{count} per {period}`{short}"))
}

/// Suggests a valid form for a rate with an invalid number: 10000 for "10,000", and 3 per 2 seconds for "1.5/s".
fn suggest_number(text: &str) -> Option<String> {
    let (count, period) = text.split_once('/').or_else(|| text.split_once(" per "))?;
    let (count, period) = (count.trim(), period.trim());
    let of_calendar = unit_of(period).is_some_and(has_variable_length);
    if !of_calendar && format!("1 per {period}").parse::<Rate>().is_err() {
        return None;
    }
    if let Some((whole, part)) = count.split_once('.') {
        let is_unit = !of_calendar && period.bytes().all(|byte| byte.is_ascii_alphabetic());
        let parts = [10, 100, 1_000].get(part.len().checked_sub(1)?).copied().filter(|_| is_unit)?;
        let number = parse_count(&format!("{whole}{part}")).filter(|number| *number > 0)?;
        let divisor = (1..=parts).rev().find(|by| u64::is_multiple_of(parts, *by) && number.is_multiple_of(*by))?;
        return Some(match parts / divisor {
            1 => format!("`{}/{period}`, in whole numbers", number / divisor),
            times => format!("`{} per {times} {period}`, in whole numbers", number / divisor),
        });
    }
    let plain: String = count.chars().filter(|letter| !matches!(letter, ',' | '_' | '\'' | ' ')).collect();
    let number = parse_count(&plain).filter(|number| *number > 0 && plain != count)?;
    Some(format!("`{number}/{period}`"))
}
