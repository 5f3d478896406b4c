//! Derives conditions from an expression, so that its rule can be indexed.

use super::super::rule::{Condition, Pattern, Test};
use super::{Bool, Comparison, Expression, Number, Text};

impl Expression {
    /// Returns a condition that holds whenever the expression holds. Prefers a condition on an attribute's value to a
    /// condition on its presence. Returns `None` if the expression implies neither.
    pub(crate) fn implied_condition(&self) -> Option<Condition> {
        let implied = self.condition.implied_tests();
        let names_values = |(_, test): &&(usize, Test)| matches!(test, Test::AnyOf(_));
        let (attribute, test) = implied.iter().find(names_values).or_else(|| implied.first())?;
        Some(Condition { attribute: self.attributes.get(*attribute)?.clone(), test: test.clone() })
    }
}

impl Bool {
    /// Returns necessary conditions on attributes. An expression uses only the first value of an attribute, but a
    /// condition tests all values. So a condition may hold although the expression does not. An index tolerates such a
    /// condition, because the expression itself is evaluated later.
    fn implied_tests(&self) -> Vec<(usize, Test)> {
        match self {
            Self::And(left, right) => left.implied_tests().into_iter().chain(right.implied_tests()).collect(),
            Self::Or(left, right) => implied_by_either(left.implied_tests(), &right.implied_tests()),
            Self::Has(attribute) => vec![(*attribute, Test::Present)],
            Self::Texts(Comparison::Equal, Text::Attribute(attribute), Text::Literal(text))
            | Self::Texts(Comparison::Equal, Text::Literal(text), Text::Attribute(attribute)) => {
                equals_any_of(*attribute, std::slice::from_ref(text))
            }
            Self::Among(Text::Attribute(attribute), texts) => equals_any_of(*attribute, texts),
            Self::StartsWith(Text::Attribute(attribute), Text::Literal(text)) if !text.is_empty() => {
                let prefix = str::from_utf8(text).map(|text| Pattern::Prefix(text.into()));
                prefix.map_or_else(|_| Vec::new(), |prefix| vec![(*attribute, Test::AnyOf(vec![prefix]))])
            }
            // `!x` holds only if `x` is defined.
            Self::Not(inner) => inner.needed_attributes(),
            Self::Is(_) | Self::If(_) => Vec::new(),
            Self::Texts(..)
            | Self::Numbers(..)
            | Self::Bools(..)
            | Self::Among(..)
            | Self::NumberAmong(..)
            | Self::StartsWith(..)
            | Self::EndsWith(..)
            | Self::Contains(..) => self.needed_attributes(),
        }
    }

    /// Returns presence tests for the attributes that must be present for the expression to be defined.
    fn needed_attributes(&self) -> Vec<(usize, Test)> {
        let (texts, numbers): (Vec<&Text>, Vec<&Number>) = match self {
            Self::Texts(_, left, right)
            | Self::StartsWith(left, right)
            | Self::EndsWith(left, right)
            | Self::Contains(left, right) => (vec![left, right], Vec::new()),
            Self::Among(text, _) => (vec![text], Vec::new()),
            Self::Numbers(_, left, right) => (Vec::new(), vec![left, right]),
            Self::NumberAmong(number, _) => (Vec::new(), vec![number]),
            Self::Not(inner) => return inner.needed_attributes(),
            // These expressions may be defined even if an attribute is missing.
            Self::Is(_) | Self::And(..) | Self::Or(..) | Self::If(_) | Self::Has(_) | Self::Bools(..) => {
                (Vec::new(), Vec::new())
            }
        };
        let mut needed_attributes = Vec::new();
        texts.into_iter().for_each(|text| text.needed_attributes(&mut needed_attributes));
        numbers.into_iter().for_each(|number| number.needed_attributes(&mut needed_attributes));
        needed_attributes
    }
}

impl Text {
    fn needed_attributes(&self, needed_attributes: &mut Vec<(usize, Test)>) {
        match self {
            Self::Attribute(attribute) => needed_attributes.push((*attribute, Test::Present)),
            Self::Literal(_) | Self::If(_) => {}
        }
    }
}

impl Number {
    fn needed_attributes(&self, needed_attributes: &mut Vec<(usize, Test)>) {
        match self {
            Self::Size(text) | Self::Int(text) => text.needed_attributes(needed_attributes),
            Self::Negative(number) => number.needed_attributes(needed_attributes),
            Self::Computed(_, left, right) => {
                left.needed_attributes(needed_attributes);
                right.needed_attributes(needed_attributes);
            }
            Self::Literal(_) | Self::If(_) => {}
        }
    }
}

fn equals_any_of(attribute: usize, texts: &[Box<[u8]>]) -> Vec<(usize, Test)> {
    let patterns: Result<Vec<Pattern>, _> =
        texts.iter().map(|text| str::from_utf8(text).map(|text| Pattern::Equals(text.into()))).collect();
    let patterns = patterns.unwrap_or_default();
    if patterns.is_empty() { Vec::new() } else { vec![(attribute, Test::AnyOf(patterns))] }
}

/// Returns the conditions that `left || right` implies, given the conditions that each operand implies. The result
/// contains only attributes that occur in both lists.
fn implied_by_either(left: Vec<(usize, Test)>, right: &[(usize, Test)]) -> Vec<(usize, Test)> {
    let both = left.into_iter().filter_map(|(attribute, test)| {
        let (_, other) = right.iter().find(|(other, _)| *other == attribute)?;
        let test = match (test, other) {
            (Test::AnyOf(mut patterns), Test::AnyOf(others)) => {
                patterns.extend_from_slice(others);
                Test::AnyOf(patterns)
            }
            (Test::AnyOf(_) | Test::NoneOf(_) | Test::Present | Test::Absent, _) => Test::Present,
        };
        Some((attribute, test))
    });
    both.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_imply_a_condition_to_index_by() {
        for (text, expected) in [
            ("plan == 'pro'", "plan AnyOf([Equals(\"pro\")])"),
            ("'pro' == plan && int(bytes) > 5", "plan AnyOf([Equals(\"pro\")])"),
            ("int(bytes) > 5 && plan in ['a', 'b']", "plan AnyOf([Equals(\"a\"), Equals(\"b\")])"),
            ("path.startsWith('/a')", "path AnyOf([Prefix(\"/a\")])"),
            ("plan == 'a' || plan == 'b' && user == 'c'", "plan AnyOf([Equals(\"a\"), Equals(\"b\")])"),
            ("plan == 'a' || has(plan)", "plan Present"),
            ("plan != 'a'", "plan Present"),
            ("!(plan == 'a')", "plan Present"),
            ("size(path) + int(bytes) > 5", "path Present"),
            ("has(user)", "user Present"),
            ("plan == 'a' || user == 'b'", "nothing"),
            ("!has(user)", "nothing"),
            ("!(plan == 'a' && user == 'b')", "nothing"),
            ("(has(user) ? user : plan) == 'a'", "nothing"),
            ("has(user) ? user == 'a' : plan == 'a'", "nothing"),
            ("has(user) == has(plan)", "nothing"),
            ("true", "nothing"),
        ] {
            let implied =
                Expression::new(text).unwrap_or_else(|problem| panic!("{text}: {problem}")).implied_condition();
            let shown = implied.map(|condition| format!("{} {:?}", condition.attribute, condition.test));
            assert_eq!(shown.as_deref().unwrap_or("nothing"), expected, "{text}");
        }
    }
}
