//! Numbered attribute names: `header_match#2` is the second value of `header_match`.

use crate::request::Item;

/// Splits a numbered name into the attribute and the zero-based index of its value. Returns `None` for other names.
pub(crate) fn split_numbered_name(name: &str) -> Option<(&str, u32)> {
    let (of, number) = split_at_number(name)?;
    let number: usize = number.parse().ok()?;
    (1..=Item::MAX_ATTRIBUTES).contains(&number).then(|| (of, number as u32 - 1))
}

/// Returns whether a name ends with a number that is out of range.
pub(crate) fn has_invalid_number(name: &str) -> bool {
    split_at_number(name).is_some() && split_numbered_name(name).is_none()
}

fn split_at_number(name: &str) -> Option<(&str, &str)> {
    let (of, number) = name.rsplit_once('#')?;
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (digits && !of.is_empty()).then_some((of, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_after_a_name_selects_a_value() {
        for (name, expected) in [
            ("a#1", Some(("a", 0))),
            ("a#2", Some(("a", 1))),
            ("a#b#128", Some(("a#b", 127))),
            ("a", None),
            ("a#", None),
            ("a#x", None),
            ("#2", None),
            ("a#0", None),
            ("a#129", None),
            ("a#99999999999999999999", None),
        ] {
            assert_eq!(split_numbered_name(name), expected, "{name}");
        }
        assert!(
            has_invalid_number("a#0")
                && has_invalid_number("a#129")
                && !has_invalid_number("a#x")
                && !has_invalid_number("a#3")
        );
    }
}
