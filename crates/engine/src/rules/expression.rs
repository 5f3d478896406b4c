//! Expressions, for conditions that `when` cannot express:
//! `size(path) > 200 || int(bytes) >= 4096 && plan != 'pro'`.
//!
//! The language is a subset of the Common Expression Language (CEL), with strings, integers and booleans. This
//! implementation has three advantages over the `cel` crate. Evaluation allocates nothing. The evaluation time is
//! bounded by the lengths of the expression and the values, because there are no loops and no regular expressions.
//! Types are checked when the rules are loaded. The `cel` crate implements the whole language and adds about 24
//! dependencies.
//!
//! As in CEL, a part of an expression can be undefined: a missing attribute, `int` of a string that is not a number, a
//! division by zero, or an overflow. An undefined part makes the whole expression undefined, unless the other operand
//! of `&&` or `||` decides the result or `?:` selects the other branch. An undefined expression does not hold.
//!
//! Each part is evaluated at most once, and takes time proportional to the lengths of its values. There are fewer parts
//! than bytes in the expression.

mod implied;
mod parse;
mod token;

/// A parsed and type-checked condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    condition: Bool,
    attributes: Vec<Box<str>>,
}

impl Expression {
    /// Maximum length in bytes.
    pub const MAX_BYTES: usize = 1024;
    /// Maximum nesting of parentheses.
    pub const MAX_DEPTH: usize = 32;

    /// Parses an expression.
    ///
    /// # Errors
    /// Returns a description of the problem if the expression is invalid.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > Self::MAX_BYTES {
            return Err(format!("expression too long: {} bytes (maximum {})", text.len(), Self::MAX_BYTES));
        }
        parse::parse(text)
    }

    /// Returns the attributes in the expression.
    pub fn attributes(&self) -> &[Box<str>] {
        &self.attributes
    }

    /// Returns whether the expression holds. `value` returns the value of an attribute, given its index in
    /// [`attributes`](Self::attributes).
    pub fn holds<'v>(&self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> bool {
        self.condition.evaluate(value) == Some(true)
    }

    /// For an expression `a && b && …`, returns the number of the first operand that does not hold, and the operand
    /// count. Operands are numbered from 1. Returns `None` if all operands hold.
    pub(crate) fn first_failing_operand<'v>(
        &self,
        value: &impl Fn(usize) -> Option<&'v [u8]>,
    ) -> Option<(usize, usize)> {
        let mut parts = Vec::new();
        self.condition.collect_operands(&mut parts);
        let failing = parts.iter().position(|part| part.evaluate(value) != Some(true))?;
        Some((failing + 1, parts.len()))
    }
}

/// A boolean expression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Bool {
    Is(bool),
    Not(Box<Bool>),
    And(Box<Bool>, Box<Bool>),
    Or(Box<Bool>, Box<Bool>),
    If(Box<Choice<Bool>>),
    Has(usize),
    Texts(Comparison, Text, Text),
    Numbers(Comparison, Number, Number),
    Bools(Comparison, Box<Bool>, Box<Bool>),
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
    /// The length in characters, as in CEL; in bytes if the value is not UTF-8.
    Size(Text),
    Int(Text),
    Negative(Box<Number>),
    Computed(Operation, Box<Number>, Box<Number>),
    If(Box<Choice<Number>>),
}

/// `holds ? this : other`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice<T> {
    holds: Bool,
    this: T,
    other: T,
}

impl<T> Choice<T> {
    fn evaluate<'v>(&self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> Option<&T> {
        Some(if self.holds.evaluate(value)? { &self.this } else { &self.other })
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
    /// Computes the result. Division rounds towards zero, as in CEL. Returns `None` for an overflow or a division by
    /// zero.
    fn apply(self, left: i64, right: i64) -> Option<i64> {
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
    fn holds<T: Ord>(self, left: &T, right: &T) -> bool {
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

impl Bool {
    /// Flattens nested `&&` into a list of operands, from left to right.
    fn collect_operands<'t>(&'t self, parts: &mut Vec<&'t Self>) {
        if let Self::And(left, right) = self {
            left.collect_operands(parts);
            right.collect_operands(parts);
        } else {
            parts.push(self);
        }
    }

    fn evaluate<'v>(&self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> Option<bool> {
        Some(match self {
            Self::Is(boolean) => *boolean,
            Self::Not(inner) => !inner.evaluate(value)?,
            Self::And(left, right) => match (left.evaluate(value), right) {
                (Some(false), _) => false,
                (Some(true), right) => right.evaluate(value)?,
                (None, right) => return right.evaluate(value).filter(|right| !right),
            },
            Self::Or(left, right) => match (left.evaluate(value), right) {
                (Some(true), _) => true,
                (Some(false), right) => right.evaluate(value)?,
                (None, right) => return right.evaluate(value).filter(|right| *right),
            },
            Self::If(choice) => choice.evaluate(value)?.evaluate(value)?,
            Self::Has(attribute) => value(*attribute).is_some(),
            Self::Texts(comparison, left, right) => comparison.holds(&left.evaluate(value)?, &right.evaluate(value)?),
            Self::Numbers(comparison, left, right) => comparison.holds(&left.evaluate(value)?, &right.evaluate(value)?),
            Self::Bools(comparison, left, right) => comparison.holds(&left.evaluate(value)?, &right.evaluate(value)?),
            Self::Among(text, list) => {
                let text = text.evaluate(value)?;
                list.iter().any(|one| **one == *text)
            }
            Self::NumberAmong(number, list) => list.contains(&number.evaluate(value)?),
            Self::StartsWith(text, part) => text.evaluate(value)?.starts_with(part.evaluate(value)?),
            Self::EndsWith(text, part) => text.evaluate(value)?.ends_with(part.evaluate(value)?),
            Self::Contains(text, part) => contains(text.evaluate(value)?, part.evaluate(value)?)?,
        })
    }
}

/// Returns whether `text` contains `part`, in linear time. Returns `None` (undefined) if `part` is not UTF-8. It is
/// enough to search the valid UTF-8 chunks of `text`, because a valid part never overlaps an invalid sequence.
fn contains(text: &[u8], part: &[u8]) -> Option<bool> {
    let part = str::from_utf8(part).ok()?;
    Some(part.is_empty() || text.utf8_chunks().any(|chunk| chunk.valid().contains(part)))
}

impl Text {
    fn evaluate<'a, 'v: 'a>(&'a self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> Option<&'a [u8]> {
        match self {
            Self::Attribute(attribute) => value(*attribute),
            Self::Literal(text) => Some(text),
            Self::If(choice) => choice.evaluate(value)?.evaluate(value),
        }
    }
}

impl Number {
    fn evaluate<'v>(&self, value: &impl Fn(usize) -> Option<&'v [u8]>) -> Option<i64> {
        match self {
            Self::Literal(number) => Some(*number),
            Self::Size(text) => {
                let text = text.evaluate(value)?;
                let size = str::from_utf8(text).map_or(text.len(), |text| text.chars().count());
                i64::try_from(size).ok()
            }
            Self::Int(text) => str::from_utf8(text.evaluate(value)?).ok()?.parse().ok(),
            Self::Negative(number) => number.evaluate(value)?.checked_neg(),
            Self::Computed(operation, left, right) => operation.apply(left.evaluate(value)?, right.evaluate(value)?),
            Self::If(choice) => choice.evaluate(value)?.evaluate(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTRIBUTE_VALUES: &[(&str, &str)] =
        &[("path", "/v1/üser"), ("bytes", "4096"), ("plan", "pro"), ("header.x-id", "7")];

    fn evaluates_to_true(text: &str) -> bool {
        let expression = Expression::new(text).unwrap_or_else(|problem| panic!("{text}: {problem}"));
        let names = expression.attributes();
        expression.holds(&|position| {
            ATTRIBUTE_VALUES.iter().find(|(name, _)| *name == &*names[position]).map(|(_, value)| value.as_bytes())
        })
    }

    #[test]
    fn expressions_evaluate_as_in_cel() {
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
            assert!(evaluates_to_true(text), "{text}");
        }
        for text in ["false", "plan == 'own'", "!has(plan)", "path.contains('x')", "plan in []", "1 == 2"] {
            assert!(!evaluates_to_true(text), "{text}");
        }
    }

    #[test]
    fn undefined_operand_matters_unless_the_other_operand_decides() {
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
            assert!(!evaluates_to_true(text), "{text}");
        }
        for text in
            ["user == 'a' || true", "true || user == 'a'", "!(user == 'a' && false)", "!(false && int(plan) > 0)"]
        {
            assert!(evaluates_to_true(text), "{text}");
        }
    }

    #[test]
    fn first_failing_operand_is_reported() {
        for (text, failing) in [
            ("plan == 'pro'", None),
            ("plan == 'own'", Some((1, 1))),
            ("plan == 'pro' && int(bytes) > 1 && user == 'a' && false", Some((3, 4))),
            ("has(plan) && (has(bytes) && has(user))", Some((3, 3))),
            ("has(plan) && (has(user) || !has(path)) && true", Some((2, 3))),
        ] {
            let expression = Expression::new(text).unwrap_or_else(|problem| panic!("{text}: {problem}"));
            let names = expression.attributes();
            let value = |position: usize| {
                ATTRIBUTE_VALUES.iter().find(|(name, _)| *name == &*names[position]).map(|it| it.1.as_bytes())
            };
            assert_eq!(expression.first_failing_operand(&value), failing, "{text}");
        }
    }

    #[test]
    fn syntax_and_type_errors_have_positions() {
        let check = |text: &str, expected: &str| assert_eq!(Expression::new(text).unwrap_err(), expected, "{text}");
        check("", "character 1: unexpected end");
        check("plan == ", "character 9: unexpected end");
        check("plan = 'pro'", "character 6: `=` is not an operator; write `==`");
        check("plan == 'pro", "character 9: unterminated string");
        check("plan == 5", "character 6: cannot compare a string with a number; write `int(plan)` for a number");
        check("plan", "character 5: incomplete: a string is neither true nor false");
        check("plan == 'a' plan", "character 13: unexpected `plan`");
        let methods = "available: `startsWith`, `endsWith`, `contains` and `size`";
        check(
            "path.matches('x')",
            &format!(
                "character 1: unknown function `matches` (regular expressions are not supported; use a pattern in `when`); {methods}"
            ),
        );
        check(
            "attributes['a'].exists(x, x > 1)",
            &format!(
                "character 17: unknown function `exists` (loops are not supported; lists occur only after `in`); {methods}"
            ),
        );
        check("path.foo()", &format!("character 1: unknown function `foo`; {methods}"));
        check(
            "double(plan) > 1",
            "character 1: unknown function `double` (only whole numbers are supported; `int` parses them); available: `size`, `int` and `has`",
        );
        check("1.5 > int(plan)", "character 1: fractions are not supported");
        check("plan + 'x' == 'y'", "character 6: `+` needs numbers; write `int(plan)` for a number");
        check(
            "header.x-id == '7'",
            "character 9: `-` needs numbers; write `int(header.x)` for a number, `attributes['header.x-id']` for a name",
        );
        check("true ? 1 : 'a'", "character 6: both branches must have the same type, not a number and a string");
        check("plan ? true : false", "character 6: a string is neither true nor false");
        check("true < false", "character 6: booleans have no order");
        check("true == 1", "character 6: cannot compare a boolean with a number");
        check("5.size() == 1", "character 1: fractions are not supported");
        check("(1).size() == 1", "character 5: `size` needs a string");
        check("true in [1]", "character 6: `in` needs a string or a number");
        check("max(plan) == 1", "character 1: unknown function `max`; available: `size`, `int` and `has`");
        check("(plan == 'a'", "character 13: missing `)`");
        check("plan in ['a', 5]", "character 15: the list must contain only strings");
        check(&"(".repeat(40), "nesting too deep (maximum 32)");
        check(&"!".repeat(40), "nesting too deep (maximum 32)");
        check("bytes > 99999999999999999999", "character 9: number too large");
    }

    /// Returns how many attribute values an evaluation reads.
    fn count_values_read(text: &str) -> usize {
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
    fn hostile_expressions_read_fewer_values_than_they_have_bytes() {
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
                Ok(_) => assert!(count_values_read(text) <= text.len(), "{text}"),
                Err(problem) => assert!(problem.contains("too deep") || problem.contains("too long"), "{problem}"),
            }
        }
    }

    #[test]
    fn invalid_utf8_is_searched_chunk_by_chunk() {
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
