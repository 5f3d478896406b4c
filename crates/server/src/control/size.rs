//! The total size of all rules and overrides. Nodes read all rules and overrides as one file of limited size, so a
//! write that would exceed the limit is refused.

use tollgate_engine::rules::{MAX_FILE_BYTES, MAX_NODES};

use super::{ControlError, Result};

/// Size of the JSON around the list of domains, in bytes.
const FILE_FRAME_BYTES: i64 = 64;

/// Returns the size of a rule as JSON, including its separator. A rule with many small values counts as larger than its
/// byte length, because the number of values in a file is limited too.
pub(super) fn rule_size(text: &str) -> i64 {
    let values = text.bytes().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
    (text.len() + 1).max((values + 1) * MAX_FILE_BYTES / MAX_NODES + 1) as i64
}

/// Returns the size of the JSON around the rules of a domain.
pub(super) fn domain_size(name: &str) -> i64 {
    (name.len() + r#"{"domain":"","rules":[]},"#.len()) as i64
}

/// Returns an upper bound on the size of an override inside its rule.
pub(super) fn override_size(attribute: &str, value: &str, effect: &str, until: Option<&str>) -> i64 {
    const SYNTAX_BYTES: usize = r#""overrides":[],{"when":{"":{"equals":""}},"until":"","set_by":"api",}"#.len();
    let quoted = |text: &str| -> usize {
        text.chars().map(|char| if char.is_alphanumeric() { char.len_utf8() } else { 6 }).sum()
    };
    (SYNTAX_BYTES + quoted(attribute) + quoted(value) + effect.len() + until.map_or(0, quoted)) as i64
}

/// Checks that rules of this total size do not exceed the maximum size of a rule file.
pub(super) fn check_total_size(size: i64) -> Result<()> {
    if size + FILE_FRAME_BYTES > MAX_FILE_BYTES as i64 {
        let why = format!("rules and overrides too large: {size} bytes together (maximum {MAX_FILE_BYTES})");
        return Err(ControlError::Full(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tollgate_engine::rules::entry::{self, EntryOverride};

    use super::*;

    #[test]
    fn computed_sizes_are_upper_bounds() {
        let rule = r#"{"id":"a","per":["t"],"limit":"1/s"}"#;
        assert_eq!(rule_size(rule), rule.len() as i64 + 1);
        let file = entry::to_json([("some/domain", [rule, rule])]);
        assert!(domain_size("some/domain") + 2 * rule_size(rule) + FILE_FRAME_BYTES >= file.len() as i64);
        for value in ["acme", "\u{1}\u{2028}\"", "é😀", &"\u{7f}".repeat(1024)] {
            let (effect, until) = (r#"{"limit":"2/s"}"#, Some("2030-01-01T00:00:00Z"));
            let one = EntryOverride { attribute: "t", value, effect, until };
            let with = entry::with_overrides(rule, &[one]).unwrap();
            assert!(rule_size(rule) + override_size("t", value, effect, until) >= with.len() as i64, "{value:?}");
        }
    }

    #[test]
    fn many_small_values_count_for_more_than_their_bytes() {
        let rule = format!(r#"{{"when":{{"a":[{}]}}}}"#, vec!["1"; 30_000].join(","));
        assert!(rule_size(&rule) as usize * MAX_NODES >= 30_000 * MAX_FILE_BYTES);
        assert!(rule_size(&rule) > rule.len() as i64);
    }

    #[test]
    fn total_size_may_equal_but_not_exceed_the_maximum() {
        assert!(check_total_size(MAX_FILE_BYTES as i64 - FILE_FRAME_BYTES).is_ok());
        assert!(check_total_size(MAX_FILE_BYTES as i64 - FILE_FRAME_BYTES + 1).is_err());
    }
}
