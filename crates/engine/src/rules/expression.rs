//! Expressions, for conditions that the others cannot say: `size(path) > 200 || int(bytes) >= 4096 && plan != 'pro'`.
//!
//! They are written in the Common Expression Language, in the part of it that is about texts, whole numbers and truths. That
//! part is small enough to be read and evaluated here, and that is done for three reasons: nothing is allocated in a
//! decision, the time is bounded by the lengths of expression and values, since there is no loop and no regular
//! expression, and types are checked when the rules are read. The crate `cel` evaluates all of the language, with macros
//! that loop within each other and values on the heap, and brings two dozen crates along.
//!
//! As in that language, what cannot be computed (a missing attribute, `int` of something else) spoils what it is part of,
//! unless the other side of `&&` or `||` decides by itself. An expression that comes to nothing does not hold.

mod parse;

/// A condition that was read and whose types are right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    truth: Truth,
    attributes: Vec<Box<str>>,
}

impl Expression {
    /// The longest text.
    pub const MAX_BYTES: usize = 1024;
    /// How deep parentheses may lie in each other.
    pub const MAX_DEPTH: usize = 32;

    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > Self::MAX_BYTES {
            return Err(format!("an expression has at most {} bytes, this has {}", Self::MAX_BYTES, text.len()));
        }
        parse::read(text)
    }

    /// The attributes it speaks of.
    pub fn attributes(&self) -> &[Box<str>] {
        &self.attributes
    }

    /// Whether it holds for the values of its attributes, given by their places in [`attributes`](Self::attributes).
    pub(crate) fn holds<'v>(&self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> bool {
        self.truth.of(value) == Some(true)
    }
}

/// Something that is true or false, or cannot be told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Truth {
    Is(bool),
    Not(Box<Truth>),
    And(Box<Truth>, Box<Truth>),
    Or(Box<Truth>, Box<Truth>),
    Has(usize),
    Texts(Comparison, Text, Text),
    Numbers(Comparison, Number, Number),
    Among(Text, Vec<Box<[u8]>>),
    NumberAmong(Number, Vec<i64>),
    StartsWith(Text, Text),
    EndsWith(Text, Text),
    Contains(Text, Text),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Text {
    Attribute(usize),
    Literal(Box<[u8]>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Number {
    Literal(i64),
    /// In characters, as the language has it; in bytes, if it is no text.
    Size(Text),
    Int(Text),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    AtMost,
    More,
    AtLeast,
}

impl Comparison {
    fn of<T: Ord>(self, left: &T, right: &T) -> bool {
        match self {
            Self::Equal => left == right,
            Self::Unequal => left != right,
            Self::Less => left < right,
            Self::AtMost => left <= right,
            Self::More => left > right,
            Self::AtLeast => left >= right,
        }
    }
}

impl Truth {
    fn of<'v>(&self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> Option<bool> {
        Some(match self {
            Self::Is(truth) => *truth,
            Self::Not(inner) => !inner.of(value)?,
            Self::And(left, right) => match (left.of(value), right) {
                (Some(false), _) => false,
                (Some(true), right) => right.of(value)?,
                (None, right) => return right.of(value).filter(|right| !right),
            },
            Self::Or(left, right) => match (left.of(value), right) {
                (Some(true), _) => true,
                (Some(false), right) => right.of(value)?,
                (None, right) => return right.of(value).filter(|right| *right),
            },
            Self::Has(attribute) => value(*attribute).is_some(),
            Self::Texts(comparison, left, right) => comparison.of(&left.of(value)?, &right.of(value)?),
            Self::Numbers(comparison, left, right) => comparison.of(&left.of(value)?, &right.of(value)?),
            Self::Among(text, list) => {
                let text = text.of(value)?;
                list.iter().any(|one| **one == *text)
            }
            Self::NumberAmong(number, list) => list.contains(&number.of(value)?),
            Self::StartsWith(text, part) => text.of(value)?.starts_with(part.of(value)?),
            Self::EndsWith(text, part) => text.of(value)?.ends_with(part.of(value)?),
            Self::Contains(text, part) => {
                let (text, part) = (text.of(value)?, part.of(value)?);
                part.is_empty() || text.windows(part.len()).any(|window| window == part)
            }
        })
    }
}

impl Text {
    fn of<'a, 'v: 'a>(&'a self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> Option<&'a [u8]> {
        match self {
            Self::Attribute(attribute) => value(*attribute),
            Self::Literal(text) => Some(text),
        }
    }
}

impl Number {
    fn of<'v>(&self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> Option<i64> {
        match self {
            Self::Literal(number) => Some(*number),
            Self::Size(text) => {
                let text = text.of(value)?;
                let size = str::from_utf8(text).map_or(text.len(), |text| text.chars().count());
                i64::try_from(size).ok()
            }
            Self::Int(text) => str::from_utf8(text.of(value)?).ok()?.parse().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: &[(&str, &str)] = &[("path", "/v1/üser"), ("bytes", "4096"), ("plan", "pro"), ("header.x-id", "7")];

    fn holds(text: &str) -> bool {
        let expression = Expression::new(text).unwrap_or_else(|problem| panic!("{text}: {problem}"));
        let names = expression.attributes();
        expression
            .holds(&|place| VALUES.iter().find(|(name, _)| *name == &*names[place]).map(|(_, value)| value.as_bytes()))
    }

    #[test]
    fn expressions_say_what_they_say() {
        for text in [
            "true",
            "plan == 'pro'",
            "plan != \"free\" && !(plan == 'own')",
            "int(bytes) >= 4096 && int(bytes) < 4097",
            "size(path) == 8",
            "path.startsWith('/v1/') && path.endsWith('er') && path.contains('üs')",
            "plan in ['free', 'pro']",
            "int(bytes) in [1, -2, 4096]",
            "has(plan) && !has(user)",
            "attributes['header.x-id'] == '7'",
            "'a' < 'b' || 1 > 2",
            "plan == 'free' || plan == 'own' && false || true",
            "plan == 'it\\'s' || plan == 'pro'",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in ["false", "plan == 'own'", "!has(plan)", "path.contains('x')", "plan in []", "1 == 2"] {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_computed_spoils_only_what_depends_on_it() {
        for text in
            ["user == 'a'", "user != 'a'", "!(user == 'a')", "int(plan) > 0", "!(int(plan) > 0)", "true && user == 'a'"]
        {
            assert!(!holds(text), "{text}");
        }
        for text in
            ["user == 'a' || true", "true || user == 'a'", "!(user == 'a' && false)", "!(false && int(plan) > 0)"]
        {
            assert!(holds(text), "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_is_told_with_its_place() {
        let check = |text: &str, expected: &str| assert_eq!(Expression::new(text).unwrap_err(), expected, "{text}");
        check("", "at character 1 something is missing");
        check("plan == ", "at character 9 something is missing");
        check("plan = 'pro'", "at character 6 `=` is no operator, write `==`");
        check("plan == 'pro", "the text at character 9 does not end");
        check("plan == 5", "at character 6 a text is compared with a number; a number is `int(plan)`");
        check("plan", "at character 5 something is missing: a text by itself is neither true nor false");
        check("plan == 'a' plan", "at character 13 `plan` is too much");
        check(
            "path.matches('x')",
            "at character 1 there is no `matches`; there are `startsWith`, `endsWith` and `contains`",
        );
        check("max(plan) == 1", "at character 1 there is no `max`; there are `size`, `int` and `has`");
        check("(plan == 'a'", "at character 13 a `)` is missing");
        check("plan in ['a', 5]", "at character 15 the list is of texts");
        check(&"(".repeat(40), "there are more than 32 parentheses in each other");
        check(&"!".repeat(40), "there are more than 32 parentheses in each other");
        check("bytes > 99999999999999999999", "at character 9 the number is too large");
    }
}
