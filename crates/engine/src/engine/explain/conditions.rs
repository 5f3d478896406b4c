//! Which conditions hold, and what they ask for in words.

use std::cmp::Reverse;

use super::shown;
use crate::explain::{Held, Unmet, Why};
use crate::request::Entry;
use crate::rules::{Condition, Pattern, Rule, Test, address, nth_of};

/// How many of several values are shown.
const SHOWN_VALUES: usize = 8;

/// How far conditions are from holding. Those that do come first, then those of which most do, then those of which fewest do not.
pub(super) type Distance = (bool, Reverse<usize>, usize);

pub(super) fn distance(when: &[Condition], entries: &[Entry<'_>]) -> Distance {
    match when.iter().filter(|condition| !holds(condition, entries)).count() {
        0 => (false, Reverse(0), 0),
        failing => (true, Reverse(when.len() - failing), failing),
    }
}

/// The `most` that are nearest, in order.
pub(super) fn nearest(mut all: Vec<(Distance, usize)>, most: usize) -> impl Iterator<Item = usize> {
    if all.len() > most {
        all.select_nth_unstable(most);
        all.truncate(most);
    }
    all.sort_unstable();
    all.into_iter().map(|(_, place)| place)
}

/// The first of the conditions that does not hold, if there is one.
pub(super) fn unmet(when: &[Condition], entries: &[Entry<'_>]) -> Option<Unmet> {
    let first = when.iter().find(|condition| !holds(condition, entries))?;
    Some(Unmet {
        attribute: first.attribute.to_string(),
        expected: expected(&first.test),
        found: values(entries, &first.attribute).take(SHOWN_VALUES).map(shown).collect(),
    })
}

/// A condition that holds.
pub(super) fn held(condition: &Condition, entries: &[Entry<'_>]) -> Held {
    let value = match &condition.test {
        Test::AnyOf(patterns) => values(entries, &condition.attribute).find(|value| among(patterns, value)).map(shown),
        Test::NoneOf(_) | Test::Present | Test::Absent => None,
    };
    Held { attribute: condition.attribute.to_string(), expected: expected(&condition.test), value }
}

/// Whether the attributes are those that a rule wants to be the only ones, if it does.
pub(super) fn has_only(rule: &Rule, entries: &[Entry<'_>]) -> bool {
    let names = rule.only().iter().map(|name| name.as_bytes());
    rule.only().is_empty() || names.eq(entries.iter().map(|entry| entry.name))
}

/// Why the expression of a rule does not hold, if it has one that does not.
pub(super) fn not_expressed(rule: &Rule, entries: &[Entry<'_>]) -> Option<Why> {
    let expression = rule.expression()?;
    let names = expression.attributes();
    let value = |place: usize| values(entries, names.get(place)?).next();
    let (part, of) = expression.failing(&value)?;
    let values = names.iter().enumerate().map(|(place, name)| (name.to_string(), value(place).map(shown)));
    Some(Why::Expression { part, of, values: values.collect() })
}

fn holds(condition: &Condition, entries: &[Entry<'_>]) -> bool {
    let mut values = values(entries, &condition.attribute);
    match &condition.test {
        Test::AnyOf(patterns) => values.any(|value| among(patterns, value)),
        Test::NoneOf(patterns) => !values.any(|value| among(patterns, value)),
        Test::Present => values.next().is_some(),
        Test::Absent => values.next().is_none(),
    }
}

fn among(patterns: &[Pattern], value: &[u8]) -> bool {
    patterns.iter().any(|pattern| matches(pattern, value))
}

fn matches(pattern: &Pattern, value: &[u8]) -> bool {
    match pattern {
        Pattern::Equals(text) => text.as_bytes() == value,
        Pattern::Glob(glob) => glob.matches(value),
        Pattern::Prefix(text) => value.starts_with(text.as_bytes()),
        Pattern::Cidr(network) => address(value).is_some_and(|address| network.contains(address)),
    }
}

/// The values of an attribute. Nothing is allocated for them: this is asked for each of a rule's overrides.
pub(super) fn values<'e>(entries: &'e [Entry<'e>], name: &str) -> impl Iterator<Item = &'e [u8]> {
    let (name, first, most) = match nth_of(name) {
        Some((name, before)) => (name, before as usize, 1),
        None => (name, 0, usize::MAX),
    };
    entries.iter().filter(move |entry| entry.name == name.as_bytes()).map(|entry| entry.value).skip(first).take(most)
}

/// What a condition asks of a value, in words.
fn expected(test: &Test) -> String {
    match test {
        Test::AnyOf(patterns) => list(patterns),
        Test::NoneOf(patterns) => format!("other than {}", list(patterns)),
        Test::Present => "present".into(),
        Test::Absent => "absent".into(),
    }
}

fn list(patterns: &[Pattern]) -> String {
    let told: Vec<String> = patterns.iter().take(SHOWN_VALUES).map(told).collect();
    match patterns.len().saturating_sub(SHOWN_VALUES) {
        0 => told.join(" or "),
        more => format!("{} or {more} others", told.join(" or ")),
    }
}

fn told(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Equals(text) => format!("{:?}", shown(text.as_bytes())),
        Pattern::Glob(glob) => format!("like {:?}", shown(glob.as_str().as_bytes())),
        Pattern::Prefix(text) => format!("something that begins with {:?}", shown(text.as_bytes())),
        Pattern::Cidr(network) => format!("in {network}"),
    }
}
