//! What rules weigh. Nodes read all of them as one file, which has a limit: what would not fit is refused when it is written,
//! to the one who writes it.

use tollgate_engine::rules::{MAX_FILE_BYTES, MAX_NODES};

use super::{ControlError, Result};

/// What stands around all of it.
const FRAME: i64 = 64;

/// A rule as JSON, and what separates it from the next. A file may hold fewer values than it has bytes, so many small values weigh
/// more than their letters.
pub(super) fn of_rule(text: &str) -> i64 {
    let marks = text.bytes().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
    (text.len() + 1).max((marks + 1) * MAX_FILE_BYTES / MAX_NODES + 1) as i64
}

/// What stands around the rules of a domain.
pub(super) fn of_domain(name: &str) -> i64 {
    (name.len() + r#"{"domain":"","rules":[]},"#.len()) as i64
}

/// An override, as it is put into its rule.
pub(super) fn of_override(attribute: &str, value: &str, effect: &str, until: Option<&str>) -> i64 {
    const AROUND: usize = r#""overrides":[],{"when":{"":{"equals":""}},"until":"",}"#.len() + "\n".len();
    let quoted = |text: &str| -> usize {
        let of = |letter: char| if letter.is_alphanumeric() { letter.len_utf8() } else { 6 };
        text.chars().map(of).sum()
    };
    (AROUND + quoted(attribute) + quoted(value) + effect.len() + until.map_or(0, quoted)) as i64
}

/// Whether it is not too much.
pub(super) fn check_weight(weight: i64) -> Result<()> {
    if weight + FRAME > MAX_FILE_BYTES as i64 {
        let why =
            format!("all rules and overrides together have at most {MAX_FILE_BYTES} bytes, this would be {weight}");
        return Err(ControlError::Full(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tollgate_engine::rules::entry::{self, EntryOverride};

    use super::*;

    #[test]
    fn nothing_weighs_less_than_it_takes() {
        let rule = r#"{"id":"a","per":["t"],"limit":"1/s"}"#;
        assert_eq!(of_rule(rule), rule.len() as i64 + 1);
        let file = entry::to_json([("some/domain", [rule, rule])]);
        assert!(of_domain("some/domain") + 2 * of_rule(rule) + FRAME >= file.len() as i64);
        for value in ["acme", "\u{1}\u{2028}\"", "é😀", &"\u{7f}".repeat(1024)] {
            let (effect, until) = (r#"{"limit":"2/s"}"#, Some("2030-01-01T00:00:00Z"));
            let one = EntryOverride { attribute: "t", value, effect, until };
            let with = entry::with_overrides(rule, &[one]).unwrap();
            assert!(of_rule(rule) + of_override("t", value, effect, until) >= with.len() as i64, "{value:?}");
        }
    }

    #[test]
    fn many_small_values_weigh_what_a_reader_makes_of_them() {
        // A list of so many values that it has more of them than bytes allow.
        let rule = format!(r#"{{"when":{{"a":[{}]}}}}"#, vec!["1"; 30_000].join(","));
        assert!(of_rule(&rule) as usize * MAX_NODES >= 30_000 * MAX_FILE_BYTES);
        assert!(of_rule(&rule) > rule.len() as i64);
    }

    #[test]
    fn too_much_is_refused() {
        assert!(check_weight(MAX_FILE_BYTES as i64 - FRAME).is_ok());
        assert!(check_weight(MAX_FILE_BYTES as i64 - FRAME + 1).is_err());
    }
}
