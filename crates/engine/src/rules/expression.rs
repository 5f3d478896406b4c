//! Expressions, for conditions that the others cannot say: `size(path) > 200 || int(bytes) >= 4096 && plan != 'pro'`.
//!
//! They are written in the Common Expression Language, in the part of it that is about texts, whole numbers and truths. That
//! part is small enough to be read and evaluated here, and that is done for three reasons: nothing is allocated in a
//! decision, the time is bounded by the lengths of expression and values, since there is no loop and no regular
//! expression, and types are checked when the rules are read. Numbers are whole, as everywhere on the way to a decision. The
//! crate `cel` evaluates all of the language, with macros that loop within each other, floating point and values on the
//! heap, and brings two dozen crates along.
//!
//! As in that language, what cannot be computed (a missing attribute, `int` of something else, a division by zero, a
//! number too large) spoils what it is part of, unless the other side of `&&` or `||` decides by itself. An expression that
//! comes to nothing does not hold.
//!
//! A part of an expression is looked at once at most, and there are fewer parts than the text has bytes; what a part does
//! takes no longer than its values are.

mod implied;
mod parse;
mod token;

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
    pub fn holds<'v>(&self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> bool {
        self.truth.of(value) == Some(true)
    }

    /// Of the parts that `&&` joins, which is the first that does not hold, counted from one, and how many there are.
    pub(crate) fn failing<'v>(&self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> Option<(usize, usize)> {
        let mut parts = Vec::new();
        self.truth.parts(&mut parts);
        let failing = parts.iter().position(|part| part.of(value) != Some(true))?;
        Some((failing + 1, parts.len()))
    }
}

/// Something that is true or false, or cannot be told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Truth {
    Is(bool),
    Not(Box<Truth>),
    And(Box<Truth>, Box<Truth>),
    Or(Box<Truth>, Box<Truth>),
    If(Box<Choice<Truth>>),
    Has(usize),
    Texts(Comparison, Text, Text),
    Numbers(Comparison, Number, Number),
    /// Whether both are the same, or not.
    Truths(Comparison, Box<Truth>, Box<Truth>),
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
    If(Box<Choice<Text>>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Number {
    Literal(i64),
    /// In characters, as the language has it; in bytes, if it is no text.
    Size(Text),
    Int(Text),
    Negative(Box<Number>),
    Computed(Operation, Box<Number>, Box<Number>),
    If(Box<Choice<Number>>),
}

/// `holds ? this : other`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice<T> {
    holds: Truth,
    this: T,
    other: T,
}

impl<T> Choice<T> {
    fn of<'v>(&self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> Option<&T> {
        Some(if self.holds.of(value)? { &self.this } else { &self.other })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Operation {
    /// Division rounds towards zero, as in the language. What is too large, or divided by zero, is nothing.
    fn of(self, left: i64, right: i64) -> Option<i64> {
        match self {
            Self::Add => left.checked_add(right),
            Self::Subtract => left.checked_sub(right),
            Self::Multiply => left.checked_mul(right),
            Self::Divide => left.checked_div(right),
            Self::Remainder => left.checked_rem(right),
        }
    }
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
    /// What `&&` joins, from left to right.
    fn parts<'t>(&'t self, parts: &mut Vec<&'t Self>) {
        if let Self::And(left, right) = self {
            left.parts(parts);
            right.parts(parts);
        } else {
            parts.push(self);
        }
    }

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
            Self::If(choice) => choice.of(value)?.of(value)?,
            Self::Has(attribute) => value(*attribute).is_some(),
            Self::Texts(comparison, left, right) => comparison.of(&left.of(value)?, &right.of(value)?),
            Self::Numbers(comparison, left, right) => comparison.of(&left.of(value)?, &right.of(value)?),
            Self::Truths(comparison, left, right) => comparison.of(&left.of(value)?, &right.of(value)?),
            Self::Among(text, list) => {
                let text = text.of(value)?;
                list.iter().any(|one| **one == *text)
            }
            Self::NumberAmong(number, list) => list.contains(&number.of(value)?),
            Self::StartsWith(text, part) => text.of(value)?.starts_with(part.of(value)?),
            Self::EndsWith(text, part) => text.of(value)?.ends_with(part.of(value)?),
            Self::Contains(text, part) => contains(text.of(value)?, part.of(value)?)?,
        })
    }
}

/// Whether a part is somewhere in a value, in a time that grows with their lengths and not with their product. A part that
/// is no text cannot be looked for. One that is begins with the first byte of a letter, and such a byte is never in the
/// middle of what is no text: so it is found in the pieces of the value that are.
fn contains(text: &[u8], part: &[u8]) -> Option<bool> {
    let part = str::from_utf8(part).ok()?;
    Some(part.is_empty() || text.utf8_chunks().any(|chunk| chunk.valid().contains(part)))
}

impl Text {
    fn of<'a, 'v: 'a>(&'a self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> Option<&'a [u8]> {
        match self {
            Self::Attribute(attribute) => value(*attribute),
            Self::Literal(text) => Some(text),
            Self::If(choice) => choice.of(value)?.of(value),
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
            Self::Negative(number) => number.of(value)?.checked_neg(),
            Self::Computed(operation, left, right) => operation.of(left.of(value)?, right.of(value)?),
            Self::If(choice) => choice.of(value)?.of(value),
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
            "int(bytes) * 2 - 4096 == 4096 && int(bytes) / 3 == 1365 && int(bytes) % 3 == 1",
            "-int(bytes) + 1 < -4094 && 2 + 3 * 4 == 14 && (2 + 3) * 4 == 20 && -7 / 2 == -3",
            "int(bytes)-1 == 4095 && -9223372036854775808 < 0",
            "has(user) ? user == 'x' : plan == 'pro'",
            "(has(user) ? user : plan) == 'pro' && (plan == 'pro' ? 5 : 6) == 5",
            "false ? true : true ? true : false",
            "path.size() == size(path) && 'abc'.contains('b') && attributes['header.x-id'].startsWith('7')",
            "'plan' in attributes && !('user' in attributes) && attributes.plan == 'pro' && has(attributes.plan)",
            "has(plan) == true && (plan == 'x') != has(plan)",
            "int(int(bytes)) == 4096",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in ["false", "plan == 'own'", "!has(plan)", "path.contains('x')", "plan in []", "1 == 2"] {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_computed_spoils_only_what_depends_on_it() {
        for text in [
            "user == 'a'",
            "user != 'a'",
            "!(user == 'a')",
            "int(plan) > 0",
            "!(int(plan) > 0)",
            "true && user == 'a'",
            "1 / (int(bytes) - 4096) == 0",
            "9223372036854775807 + int(bytes) != 0",
            "user == 'a' ? true : true",
            "(user == 'a') == (user == 'b')",
        ] {
            assert!(!holds(text), "{text}");
        }
        for text in
            ["user == 'a' || true", "true || user == 'a'", "!(user == 'a' && false)", "!(false && int(plan) > 0)"]
        {
            assert!(holds(text), "{text}");
        }
    }

    #[test]
    fn the_first_part_that_does_not_hold_is_known() {
        for (text, failing) in [
            ("plan == 'pro'", None),
            ("plan == 'own'", Some((1, 1))),
            ("plan == 'pro' && int(bytes) > 1 && user == 'a' && false", Some((3, 4))),
            ("has(plan) && (has(bytes) && has(user))", Some((3, 3))),
            ("has(plan) && (has(user) || !has(path)) && true", Some((2, 3))),
        ] {
            let expression = Expression::new(text).unwrap_or_else(|problem| panic!("{text}: {problem}"));
            let names = expression.attributes();
            let value =
                |place: usize| VALUES.iter().find(|(name, _)| *name == &*names[place]).map(|it| it.1.as_bytes());
            assert_eq!(expression.failing(&value), failing, "{text}");
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
        let methods = "there are `startsWith`, `endsWith`, `contains` and `size`";
        check(
            "path.matches('x')",
            &format!(
                "at character 1 there is no `matches` (a regular expression may take any time, a pattern in `when` does not); {methods}"
            ),
        );
        check(
            "attributes['a'].exists(x, x > 1)",
            &format!(
                "at character 17 there is no `exists` (nothing loops here, and the only lists are those after `in`); {methods}"
            ),
        );
        check("path.foo()", &format!("at character 1 there is no `foo`; {methods}"));
        check(
            "double(plan) > 1",
            "at character 1 there is no `double` (numbers are whole, and `int` reads them); there are `size`, `int` and `has`",
        );
        check("1.5 > int(plan)", "at character 1 there is a fraction; numbers are whole");
        check("plan + 'x' == 'y'", "at character 6 `+` is for numbers; a number is `int(plan)`");
        check(
            "header.x-id == '7'",
            "at character 9 `-` is for numbers; a number is `int(header.x)`, a name with other letters `attributes['header.x-id']`",
        );
        check("true ? 1 : 'a'", "at character 6 the choice is between a number and a text");
        check("plan ? true : false", "at character 6 a text by itself is neither true nor false");
        check("true < false", "at character 6 truths have no order");
        check("true == 1", "at character 6 a truth is compared with a number");
        check("5.size() == 1", "at character 1 there is a fraction; numbers are whole");
        check("(1).size() == 1", "at character 5 `size` is for texts");
        check("true in [1]", "at character 6 a truth is not looked for in lists");
        check("max(plan) == 1", "at character 1 there is no `max`; there are `size`, `int` and `has`");
        check("(plan == 'a'", "at character 13 a `)` is missing");
        check("plan in ['a', 5]", "at character 15 the list is of texts");
        check(&"(".repeat(40), "there are more than 32 parentheses in each other");
        check(&"!".repeat(40), "there are more than 32 parentheses in each other");
        check("bytes > 99999999999999999999", "at character 9 the number is too large");
    }

    /// Parts of an expression, each of which is looked at once at most.
    fn parts(text: &str) -> usize {
        let expression = Expression::new(text).unwrap_or_else(|problem| panic!("{problem}"));
        let asked = std::cell::Cell::new(0);
        let long = "a".repeat(8192);
        expression.holds(&|_| {
            asked.set(asked.get() + 1);
            Some(long.as_bytes())
        });
        asked.get()
    }

    #[test]
    fn hostile_expressions_ask_for_no_more_values_than_they_have_bytes() {
        let longest = |part: &str, between: &str| {
            let count = (Expression::MAX_BYTES + between.len()) / (part.len() + between.len());
            vec![part; count].join(between)
        };
        for text in [
            longest("a.contains(b)", "||"),
            longest("!(a==b)", "&&"),
            longest("(a==b)", "!="),
            format!("{} == 0", longest("int(a)", "*").replacen("int(a)*", "", 1)),
            format!("{}a==b{}", "(".repeat(31), ")".repeat(31)),
            longest("a==b?true", ":") + ":a==a",
        ] {
            let text = &text[..];
            match Expression::new(text) {
                Ok(_) => assert!(parts(text) <= text.len(), "{text}"),
                Err(problem) => assert!(problem.contains("parentheses") || problem.contains("at most"), "{problem}"),
            }
        }
    }

    #[test]
    fn what_is_no_text_is_looked_through_in_pieces() {
        for (text, part, found) in [
            (&b"abc"[..], &b"bc"[..], Some(true)),
            (b"abc", b"", Some(true)),
            (b"\xffbc\xe2\x82", b"bc", Some(true)),
            (b"b\xffc", b"bc", Some(false)),
            (b"\xe2\x82bc", b"bc", Some(true)),
            ("aüb".as_bytes(), "üb".as_bytes(), Some(true)),
            (b"abc", b"\xff", None),
        ] {
            assert_eq!(contains(text, part), found, "{text:?} {part:?}");
        }
    }
}
