//! What rules weigh. Nodes read all of them as one file, which has a limit: what would not fit is refused when it is written,
//! to the one who writes it.

use tollgate_engine::rules::{MAX_FILE_BYTES, MAX_NODES};

use super::{ControlError, Result};

/// A file may hold fewer values than it has bytes; so many bytes count for each.
const BYTES_OF_A_VALUE: usize = MAX_FILE_BYTES / MAX_NODES + 1;
/// What stands around all of it.
const FRAME: i64 = 64;

/// A rule as JSON, and what separates it from the next.
pub(super) fn of_rule(text: &str) -> i64 {
    let marks = text.bytes().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
    (text.len() + 1).max((marks + 1) * BYTES_OF_A_VALUE) as i64
}

/// What stands around the rules of a domain.
pub(super) fn of_domain(name: &str) -> i64 {
    (name.len() + r#"{"domain":"","rules":[]},"#.len()) as i64
}

/// An override, as it is put into its rule.
pub(super) fn of_override(attribute: &str, value: &str, effect: &str, until: Option<&str>) -> i64 {
    const AROUND: usize = r#""overrides":[],{"when":{"":{"equals":""}},"until":"",}"#.len();
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
