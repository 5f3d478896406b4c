//! Evaluates conditions and describes them in words.

use std::cmp::Reverse;

use super::printable;
use crate::explain::{FailedCondition, MatchResult, SatisfiedCondition};
use crate::request::Attribute;
use crate::rules::{Condition, Pattern, Rule, Test, parse_address, split_numbered_name};

/// Maximum number of values shown in a list.
const MAX_SHOWN_VALUES: usize = 8;

/// Sort key: how close a list of conditions is to holding. Lists in which all conditions hold come first. The other
/// lists are ordered by the number of conditions that hold (most first), then by the number that fail (fewest first).
pub(super) type Distance = (bool, Reverse<usize>, usize);

pub(super) fn distance(when: &[Condition], attributes: &[Attribute<'_>]) -> Distance {
    match when.iter().filter(|condition| !condition_holds(condition, attributes)).count() {
        0 => (false, Reverse(0), 0),
        failing => (true, Reverse(when.len() - failing), failing),
    }
}

/// Returns the indices of the `most` nearest elements, nearest first.
pub(super) fn nearest_first(mut all: Vec<(Distance, usize)>, most: usize) -> impl Iterator<Item = usize> {
    if all.len() > most {
        all.select_nth_unstable(most);
        all.truncate(most);
    }
    all.sort_unstable();
    all.into_iter().map(|(_, position)| position)
}

/// Returns the first condition that does not hold.
pub(super) fn failed_condition(when: &[Condition], attributes: &[Attribute<'_>]) -> Option<FailedCondition> {
    let first = when.iter().find(|condition| !condition_holds(condition, attributes))?;
    let by_network = match &first.test {
        Test::AnyOf(patterns) => patterns.iter().any(|pattern| matches!(pattern, Pattern::Cidr(_))),
        Test::NoneOf(_) | Test::Present | Test::Absent => false,
    };
    let not_an_address =
        by_network && attribute_values(attributes, &first.attribute).any(|value| parse_address(value).is_none());
    Some(FailedCondition {
        attribute: first.attribute.to_string(),
        expected: if not_an_address { "an address " } else { "" }.to_owned() + &describe_expected(&first.test),
        is_exclusion: matches!(first.test, Test::NoneOf(_)),
        found: attribute_values(attributes, &first.attribute).take(MAX_SHOWN_VALUES).map(printable).collect(),
    })
}

/// Describes a condition that holds.
pub(super) fn describe_satisfied(condition: &Condition, attributes: &[Attribute<'_>]) -> SatisfiedCondition {
    let value = match &condition.test {
        Test::AnyOf(patterns) => {
            attribute_values(attributes, &condition.attribute).find(|value| matches_any(patterns, value)).map(printable)
        }
        Test::NoneOf(_) | Test::Present | Test::Absent => None,
    };
    SatisfiedCondition {
        attribute: condition.attribute.to_string(),
        expected: describe_expected(&condition.test),
        value,
    }
}

/// Returns whether the request has exactly the attributes in the rule's `only`, in the same order. Returns `true` if
/// the rule has no `only`.
pub(super) fn satisfies_only(rule: &Rule, attributes: &[Attribute<'_>]) -> bool {
    let names = rule.only().iter().map(|name| name.as_bytes());
    rule.only().is_empty() || names.eq(attributes.iter().map(|attribute| attribute.name))
}

/// Returns the failing part of a rule's expression; `None` if the expression holds or the rule has no expression.
pub(super) fn failed_expression(rule: &Rule, attributes: &[Attribute<'_>]) -> Option<MatchResult> {
    let expression = rule.expression()?;
    let names = expression.attributes();
    let value = |position: usize| attribute_values(attributes, names.get(position)?).next();
    let (part, of) = expression.first_failing_operand(&value)?;
    let values = names.iter().enumerate().map(|(position, name)| (name.to_string(), value(position).map(printable)));
    Some(MatchResult::ExpressionFailed { part, of, values: values.collect() })
}

fn condition_holds(condition: &Condition, attributes: &[Attribute<'_>]) -> bool {
    let mut values = attribute_values(attributes, &condition.attribute);
    match &condition.test {
        Test::AnyOf(patterns) => values.any(|value| matches_any(patterns, value)),
        Test::NoneOf(patterns) => !values.any(|value| matches_any(patterns, value)),
        Test::Present => values.next().is_some(),
        Test::Absent => values.next().is_none(),
    }
}

fn matches_any(patterns: &[Pattern], value: &[u8]) -> bool {
    patterns.iter().any(|pattern| pattern_matches(pattern, value))
}

fn pattern_matches(pattern: &Pattern, value: &[u8]) -> bool {
    match pattern {
        Pattern::Equals(text) => text.as_bytes() == value,
        Pattern::Glob(glob) => glob.matches(value),
        Pattern::Prefix(text) => value.starts_with(text.as_bytes()),
        Pattern::Cidr(network) => parse_address(value).is_some_and(|address| network.contains(address)),
        Pattern::NotAnAddress => parse_address(value).is_none(),
    }
}

/// Returns the values of an attribute. Does not allocate, because this function is called for each override of a rule.
pub(super) fn attribute_values<'e>(attributes: &'e [Attribute<'e>], name: &str) -> impl Iterator<Item = &'e [u8]> {
    let (name, first, most) = match split_numbered_name(name) {
        Some((name, before)) => (name, before as usize, 1),
        None => (name, 0, usize::MAX),
    };
    attributes
        .iter()
        .filter(move |attribute| attribute.name == name.as_bytes())
        .map(|found| found.value)
        .skip(first)
        .take(most)
}

/// Describes the expected value of a condition.
fn describe_expected(test: &Test) -> String {
    match test {
        Test::AnyOf(patterns) => describe_list(patterns),
        Test::NoneOf(patterns) => format!("other than {}", describe_list(patterns)),
        Test::Present => "present".into(),
        Test::Absent => "absent".into(),
    }
}

fn describe_list(patterns: &[Pattern]) -> String {
    let described: Vec<String> = patterns.iter().take(MAX_SHOWN_VALUES).map(describe_pattern).collect();
    match patterns.len().saturating_sub(MAX_SHOWN_VALUES) {
        0 => described.join(" or "),
        more => format!("{} or {more} others", described.join(" or ")),
    }
}

fn describe_pattern(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Equals(text) => format!("{:?}", printable(text.as_bytes())),
        Pattern::Glob(glob) => format!("like {:?}", printable(glob.as_str().as_bytes())),
        Pattern::Prefix(text) => format!("a value that begins with {:?}", printable(text.as_bytes())),
        Pattern::Cidr(network) => format!("in {network}"),
        Pattern::NotAnAddress => "not an address".into(),
    }
}
