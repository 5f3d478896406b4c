//! What an expression cannot hold without, so that its rule can be found by it.

use super::super::rule::{Condition, Pattern, Test};
use super::{Comparison, Expression, Number, Text, Truth};

impl Expression {
    /// A condition that holds whenever the expression does: a value that an attribute must have, or else that it must be
    /// there. Nothing if neither can be told.
    pub(crate) fn implied(&self) -> Option<Condition> {
        let implied = self.truth.implied();
        let names_values = |(_, test): &&(usize, Test)| matches!(test, Test::AnyOf(_));
        let (attribute, test) = implied.iter().find(names_values).or_else(|| implied.first())?;
        Some(Condition { attribute: self.attributes.get(*attribute)?.clone(), test: test.clone() })
    }
}

impl Truth {
    /// What must be so of attributes for this to be true. The expression goes by the first value of an attribute, and a
    /// condition by any of them, so it may hold where the expression does not, and that is all that is asked for.
    fn implied(&self) -> Vec<(usize, Test)> {
        match self {
            Self::And(left, right) => left.implied().into_iter().chain(right.implied()).collect(),
            Self::Or(left, right) => either(left.implied(), &right.implied()),
            Self::Has(attribute) => vec![(*attribute, Test::Present)],
            Self::Texts(Comparison::Equal, Text::Attribute(attribute), Text::Literal(text))
            | Self::Texts(Comparison::Equal, Text::Literal(text), Text::Attribute(attribute)) => {
                one_of(*attribute, std::slice::from_ref(text))
            }
            Self::Among(Text::Attribute(attribute), texts) => one_of(*attribute, texts),
            Self::StartsWith(Text::Attribute(attribute), Text::Literal(text)) if !text.is_empty() => {
                let prefix = str::from_utf8(text).map(|text| Pattern::Prefix(text.into()));
                prefix.map_or_else(|_| Vec::new(), |prefix| vec![(*attribute, Test::AnyOf(vec![prefix]))])
            }
            // To be false it has to be computed, too.
            Self::Not(inner) => inner.needed(),
            Self::Is(_) | Self::If(_) => Vec::new(),
            Self::Texts(..)
            | Self::Numbers(..)
            | Self::Truths(..)
            | Self::Among(..)
            | Self::NumberAmong(..)
            | Self::StartsWith(..)
            | Self::EndsWith(..)
            | Self::Contains(..) => self.needed(),
        }
    }

    /// The attributes without which this comes to nothing, neither true nor false.
    fn needed(&self) -> Vec<(usize, Test)> {
        let (texts, numbers): (Vec<&Text>, Vec<&Number>) = match self {
            Self::Texts(_, left, right)
            | Self::StartsWith(left, right)
            | Self::EndsWith(left, right)
            | Self::Contains(left, right) => (vec![left, right], Vec::new()),
            Self::Among(text, _) => (vec![text], Vec::new()),
            Self::Numbers(_, left, right) => (Vec::new(), vec![left, right]),
            Self::NumberAmong(number, _) => (Vec::new(), vec![number]),
            Self::Not(inner) => return inner.needed(),
            // One side may decide by itself.
            Self::Is(_) | Self::And(..) | Self::Or(..) | Self::If(_) | Self::Has(_) | Self::Truths(..) => {
                (Vec::new(), Vec::new())
            }
        };
        let mut needed = Vec::new();
        texts.into_iter().for_each(|text| text.needed(&mut needed));
        numbers.into_iter().for_each(|number| number.needed(&mut needed));
        needed
    }
}

impl Text {
    fn needed(&self, needed: &mut Vec<(usize, Test)>) {
        match self {
            Self::Attribute(attribute) => needed.push((*attribute, Test::Present)),
            Self::Literal(_) | Self::If(_) => {}
        }
    }
}

impl Number {
    fn needed(&self, needed: &mut Vec<(usize, Test)>) {
        match self {
            Self::Size(text) | Self::Int(text) => text.needed(needed),
            Self::Negative(number) => number.needed(needed),
            Self::Computed(_, left, right) => {
                left.needed(needed);
                right.needed(needed);
            }
            Self::Literal(_) | Self::If(_) => {}
        }
    }
}

fn one_of(attribute: usize, texts: &[Box<[u8]>]) -> Vec<(usize, Test)> {
    let patterns: Result<Vec<Pattern>, _> =
        texts.iter().map(|text| str::from_utf8(text).map(|text| Pattern::Equals(text.into()))).collect();
    let patterns = patterns.unwrap_or_default();
    if patterns.is_empty() { Vec::new() } else { vec![(attribute, Test::AnyOf(patterns))] }
}

/// What must be so if one of two things is: what both say about the same attribute.
fn either(left: Vec<(usize, Test)>, right: &[(usize, Test)]) -> Vec<(usize, Test)> {
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
    fn rules_are_found_by_what_their_expression_cannot_do_without() {
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
            let implied = Expression::new(text).unwrap_or_else(|problem| panic!("{text}: {problem}")).implied();
            let shown = implied.map(|condition| format!("{} {:?}", condition.attribute, condition.test));
            assert_eq!(shown.as_deref().unwrap_or("nothing"), expected, "{text}");
        }
    }
}
