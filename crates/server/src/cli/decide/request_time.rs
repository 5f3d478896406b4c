//! The time of a request: the JSON member `at`. Only `tollgate decide` accepts this member, not `/v1/check`.

use serde::de::IgnoredAny;
use tollgate_engine::rules::{TimeError, parse_time};

use crate::http::problem::Problem;

/// Removes the member `at` from a JSON object and returns its time in nanoseconds since 1970. Overwrites the member
/// with spaces, so that column numbers in errors stay correct. Returns `None` if there is no `at`. Leaves a line that
/// is not a JSON object unchanged.
///
/// # Errors
/// Returns an error if `at` is not a valid time.
pub(super) fn remove_at(line: &mut [u8]) -> Result<Option<u64>, Problem> {
    let named = line.windows(4).any(|part| part == b"\"at\"");
    if !named || serde_json::from_slice::<IgnoredAny>(line).is_err() {
        return Ok(None);
    }
    let Some(member) = find_at_member(line) else { return Ok(None) };
    let at = parse_at(&line[member.value.clone()]);
    line[member.all].fill(b' ');
    at.map(Some).map_err(|detail| Problem::bad_request(detail).with_pointer("/at"))
}

/// Parses the value of `at`. Returns nanoseconds since 1970, or an error message.
fn parse_at(value: &[u8]) -> Result<u64, String> {
    const AT_HELP: &str = "`at` is a whole number of milliseconds since 1970, or a time like \"2030-01-31T18:00:00Z\", \
                      \"2030-01-31T18:00:00+01:00\" or \"2030-01-31T18:00[Europe/Paris]\"";
    if let Ok(millis) = serde_json::from_slice::<u64>(value) {
        let late = || format!("`at` is {millis} milliseconds, which is after the year 2554; is it in another unit?");
        return millis.checked_mul(1_000_000).ok_or_else(late);
    }
    let Ok(text) = serde_json::from_slice::<String>(value) else { return Err(AT_HELP.into()) };
    parse_time(&text).map(|at| at.as_nanos()).map_err(|wrong| match &wrong {
        TimeError::Unreadable(_) => AT_HELP.into(),
        TimeError::NoZone(text) | TimeError::Beyond(text) => format!("{}; {}", text.problem, text.help),
    })
}

/// The byte ranges of a JSON member: `value` without its name, and `all` with its name and one adjacent comma.
struct JsonMember {
    value: std::ops::Range<usize>,
    all: std::ops::Range<usize>,
}

/// Finds the member `at` in valid JSON. Returns `None` if the JSON is not an object or has no `at`.
fn find_at_member(json: &[u8]) -> Option<JsonMember> {
    let mut at = skip_spaces(json, 0);
    if json.get(at) != Some(&b'{') {
        return None;
    }
    // The position of the comma before the member, if there is one.
    let mut comma = None;
    at += 1;
    loop {
        let start = skip_spaces(json, at);
        if json.get(start)? == &b'}' {
            return None;
        }
        let key_end = value_end(json, start)?;
        let colon = skip_spaces(json, key_end);
        let value_start = skip_spaces(json, colon + 1);
        let value_end = value_end(json, value_start)?;
        let next = skip_spaces(json, value_end);
        let last = json.get(next)? == &b'}';
        if &json[start..key_end] == b"\"at\"" {
            let all = match (last, comma) {
                (false, _) => start..next + 1,
                (true, Some(comma)) => comma..value_end,
                (true, None) => start..value_end,
            };
            return Some(JsonMember { value: value_start..value_end, all });
        }
        if last {
            return None;
        }
        comma = Some(next);
        at = next + 1;
    }
}

fn skip_spaces(json: &[u8], from: usize) -> usize {
    from + json.get(from..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

/// Returns the end of the value that begins at `from`.
fn value_end(json: &[u8], from: usize) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, from);
    loop {
        match json.get(at)? {
            b'"' => {
                at += 1;
                while json.get(at)? != &b'"' {
                    at += if json[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'{' | b'[' => {
                depth += 1;
                at += 1;
                continue;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            byte if byte.is_ascii_whitespace() || matches!(byte, b',' | b':') => {
                at += 1;
                continue;
            }
            _ => {
                let more = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                at += json[at..].iter().take_while(more).count().max(1);
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_removed(line: &str, rest: &str, moment: Option<u64>) {
        let mut bytes = line.as_bytes().to_vec();
        assert_eq!(remove_at(&mut bytes).unwrap_or_else(|_| panic!("{line}")), moment, "{line}");
        let left = String::from_utf8(bytes).unwrap();
        assert_eq!(left.len(), line.len());
        assert_eq!(left.replace(' ', ""), rest, "{line}");
    }

    #[test]
    fn at_is_removed_in_any_position() {
        assert_removed(r#"{"at":5,"a":1}"#, r#"{"a":1}"#, Some(5_000_000));
        assert_removed(r#"{"a":{"at":7},"at": "1970-01-01T00:00:01Z" }"#, r#"{"a":{"at":7}}"#, Some(1_000_000_000));
        assert_removed(
            r#"{"a":["at",{"b":"}\""}],"at":6,"c":2}"#,
            r#"{"a":["at",{"b":"}\""}],"c":2}"#,
            Some(6_000_000),
        );
        assert_removed(r#"{"at":1}"#, "{}", Some(1_000_000));
        let instant = Some(1_794_819_600_000_000_000);
        for at in [
            "2026-11-16T09:00:00Z",
            "2026-11-16T10:00:00+01:00",
            "2026-11-16T10:00:00[Europe/Paris]",
            "2026-11-16T10:00+01:00[Europe/Paris]",
        ] {
            assert_removed(&format!(r#"{{"at":"{at}"}}"#), "{}", instant);
        }
        assert_removed(r#"{"at":"1969-12-31T19:00:00-05:00"}"#, "{}", Some(0));
        assert_removed(r#"{"a":"at"}"#, r#"{"a":"at"}"#, None);
        assert_removed(r#"[{"at":1}]"#, r#"[{"at":1}]"#, None);
        assert_removed(r#"{"at":1"#, r#"{"at":1"#, None);
    }

    #[test]
    fn invalid_times_are_refused() {
        for at in [
            "-1",
            "1.5",
            "null",
            "\"\"",
            "\"tomorrow\"",
            "18446744073709551615",
            "[1]",
            "\"1900-01-01T00:00:00Z\"",
            "\"1970-01-01T00:00:00+01:00\"",
            "\"9999-01-01T00:00:00Z\"",
        ] {
            let mut line = format!("{{\"at\":{at}}}").into_bytes();
            assert!(remove_at(&mut line).is_err(), "{at}");
        }
    }
}
