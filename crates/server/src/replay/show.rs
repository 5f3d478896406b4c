//! Formats numbers and times for the terminal and the HTML page.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::report::{ComparisonReport, SuggestionReport};

/// Explains the burst columns for a log with whole seconds.
pub(super) const BURST_COLUMNS_NOTE: &str = "The log has whole seconds. `burst` is the larger of the bursts that clients need if the \
                                      requests of a second come evenly (spread)\nand if all come at its beginning (at once).";

/// Returns the column headings and the rows for the table of suggested limits.
pub(super) fn candidate_table(suggestion: &SuggestionReport) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let mut head = vec!["limit", "burst", "at most in a minute", "requests refused", "clients refused"];
    if suggestion.has_at_once_results() {
        head = vec!["limit", "burst", "spread", "at once", "at most in a minute"];
        head.extend(["requests refused", "at once", "clients refused", "at once"]);
    }
    let row = |candidate: &super::CandidateReport| {
        let mut row = vec![candidate.burst];
        match &candidate.at_once {
            None => row.extend([candidate.per_minute, candidate.refused, candidate.clients_refused]),
            Some(at_once) => {
                row.extend([candidate.spread_burst, at_once.burst, candidate.per_minute]);
                row.extend([candidate.refused, at_once.refused, candidate.clients_refused, at_once.clients_refused]);
            }
        }
        std::iter::once(candidate.limit.clone()).chain(row.into_iter().map(format_number)).collect()
    };
    (head, suggestion.candidates.iter().map(row).collect())
}

/// Describes the difference between two rule sets in one line.
pub(super) fn format_comparison(comparison: &ComparisonReport) -> String {
    let ComparisonReport { newly_refused, newly_refused_keys, relieved, relieved_keys, .. } = comparison;
    let [newly, newly_keys, relieved, relieved_keys] =
        [newly_refused, newly_refused_keys, relieved, relieved_keys].map(|number| format_number(*number));
    format!(
        "newly refused: {newly} requests of {newly_keys} keys; no longer refused: {relieved} requests of {relieved_keys} keys"
    )
}

/// Formats a number with thousands separators: `1,234,567`.
pub(super) fn format_number(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// Formats an estimated number. Estimates above 100 are marked with `≈`; smaller estimates are almost always exact.
pub(super) fn format_estimate(estimate: u64) -> String {
    let about = if estimate > 100 { "≈ " } else { "" };
    format!("{about}{}", format_number(estimate))
}

/// Formats a number in short form for axis labels: `1.5k`, `20M`.
pub(super) fn format_short(number: u64) -> String {
    let (scale, unit) = match number {
        0..1_000 => return number.to_string(),
        1_000..1_000_000 => (1_000, "k"),
        1_000_000..1_000_000_000 => (1_000_000, "M"),
        _ => (1_000_000_000, "G"),
    };
    match number % scale * 10 / scale {
        0 => format!("{}{unit}", number / scale),
        tenth => format!("{}.{tenth}{unit}", number / scale),
    }
}

/// Formats a fraction as a percentage with up to three significant digits: `12.3 %`, `0.012 %`.
pub(super) fn format_percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".into();
    }
    let share = part as f64 * 100.0 / whole as f64;
    match share {
        100.0 => "100 %".into(),
        10.0.. => format!("{share:.1} %"),
        1.0.. => format!("{share:.2} %"),
        0.001.. => format!("{share:.3} %"),
        _ => "< 0.001 %".into(),
    }
}

/// Formats a duration: `250 ms`, `1.5 s`, `2 min 5 s`, `3 h 20 min`.
pub(super) fn format_duration(millis: u64) -> String {
    let two = |large: u64, unit: &str, small: u64, next: &str| match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {next}"),
    };
    let seconds = millis / 1_000;
    match millis {
        0 => "–".into(),
        1..1_000 => format!("{millis} ms"),
        1_000..10_000 => format!("{}.{} s", seconds, millis % 1_000 / 100),
        10_000..60_000 => format!("{seconds} s"),
        60_000..3_600_000 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600_000..86_400_000 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// Formats a time in UTC: `2026-11-16 09:00:00`.
pub(super) fn format_time(millis: u64) -> String {
    format_timestamp(millis, "%Y-%m-%d %H:%M:%S")
}

/// Formats the label of a time axis whose labels are `step_ms` apart.
pub(super) fn axis_time_label(millis: u64, step_ms: u64) -> String {
    match step_ms {
        0..60_000 => format_timestamp(millis, "%H:%M:%S"),
        60_000..86_400_000 => format_timestamp(millis, "%H:%M"),
        _ => format_timestamp(millis, "%Y-%m-%d"),
    }
}

fn format_timestamp(millis: u64, form: &str) -> String {
    let stamp = i64::try_from(millis).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok());
    stamp.map_or_else(|| "?".into(), |stamp| stamp.to_zoned(TimeZone::UTC).strftime(form).to_string())
}

/// Sums groups of neighbouring columns, so that at most `most` columns remain.
pub(super) fn join_columns(columns: &[u64], most: usize) -> Vec<u64> {
    let size = columns.len().div_ceil(most.max(1)).max(1);
    columns.chunks(size).map(|part| part.iter().sum()).collect()
}

/// Replaces control characters and invisible direction marks, so that a log cannot manipulate the terminal.
pub(super) fn strip_control_characters(text: &str) -> String {
    text.replace(|letter: char| letter.is_control() || ('\u{200b}'..='\u{202e}').contains(&letter), "�")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_shares_and_durations_are_formatted_for_readers() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(format_number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 999, 1_500, 20_000_000].map(format_short), ["0", "999", "1.5k", "20M"]);
        let shares = [(0, 5), (1, 0), (1, 3), (1, 40), (1, 900), (1, 1_000_000), (7, 7)];
        let shares = shares.map(|(part, whole)| format_percent(part, whole));
        assert_eq!(shares, ["0 %", "0 %", "33.3 %", "2.50 %", "0.111 %", "< 0.001 %", "100 %"]);
        let lengths = [0, 250, 1_500, 59_999, 125_000, 12_000_000, 90_000_000].map(format_duration);
        assert_eq!(lengths, ["–", "250 ms", "1.5 s", "59 s", "2 min 5 s", "3 h 20 min", "1 d 1 h"]);
        assert_eq!(format_time(1_794_819_600_000), "2026-11-16 09:00:00");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(strip_control_characters("a\x1b[31m\u{202e}b"), "a�[31m�b");
    }
}
