//! Conditions on attributes, as written.

use super::super::keys;
use super::super::mistake::MistakeCollector;
use super::super::suggest::join_with_and;
use super::super::text::{Node, Value};
use super::RawText;
use super::fields::{Fields, read_text, read_texts, text_of};

/// A condition on one attribute.
#[derive(Debug)]
pub(crate) enum RawAttributeCondition {
    Values(RawValues),
    Not(RawValues),
    Present(RawText),
    /// `present` inside `not`.
    NotPresent(RawText),
}

/// Values and how they are compared.
#[derive(Debug)]
pub(crate) struct RawValues {
    pub(crate) kind: MatchKind,
    pub(crate) texts: Vec<RawText>,
}

/// How values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchKind {
    /// Values are compared as strings, or as patterns if they contain stars or braces.
    AnyOf,
    /// Values are compared as strings; stars and braces are literal.
    Equals,
    Prefix,
    Cidr,
    /// Values are names of files that contain the values.
    File,
}

const MATCH_KIND_KEYS: &[(&str, MatchKind)] = &[
    ("equals", MatchKind::Equals),
    ("any_of", MatchKind::AnyOf),
    ("prefix", MatchKind::Prefix),
    ("cidr", MatchKind::Cidr),
    ("file", MatchKind::File),
];

pub(super) fn read_when(node: &Node, notes: &mut MistakeCollector) -> Vec<(RawText, RawAttributeCondition)> {
    let pairs = match &node.value {
        Value::Map(pairs) => pairs,
        Value::Empty => return Vec::new(),
        Value::Text(_) | Value::List(_) => {
            let expresses =
                |text: &&str| ["==", "!=", "&&", "||", " in ", "<", ">"].iter().any(|word| text.contains(word));
            let help = match text_of(node).filter(expresses) {
                Some(_) => "write an expression as `if: \"plan == 'pro'\"`, a condition as `when: { plan: pro }`",
                None => "write it like `when: { path: \"/v1/**\", method: [GET, POST] }`",
            };
            notes.add_with_help(
                node.position,
                format!("`when` must be a map of attributes, not {}", node.kind()),
                help,
            );
            return Vec::new();
        }
    };
    let mut tests = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        let attribute = read_text(key, "the name of an attribute", notes);
        let (test, except) = read_test_and_exclusion(value, notes);
        let Some(attribute) = attribute else { continue };
        tests.extend(except.map(|except| (attribute.clone(), except)));
        tests.extend(test.map(|test| (attribute, test)));
    }
    tests
}

/// Splits a condition that combines `not` with another key into two conditions.
fn read_test_and_exclusion(
    node: &Node,
    notes: &mut MistakeCollector,
) -> (Option<RawAttributeCondition>, Option<RawAttributeCondition>) {
    let Value::Map(pairs) = &node.value else { return (read_test(node, notes), None) };
    let is_not = |(key, _): &&(Node, Node)| matches!(&key.value, Value::Text(name) if name == "not");
    let (except, test): (Vec<_>, Vec<_>) = pairs.iter().partition(is_not);
    let ([except], [test]) = (&*except, &*test) else { return (read_test(node, notes), None) };
    let mut read = |pair: &(Node, Node)| {
        read_test(&Node { position: node.position, value: Value::Map(vec![pair.clone()]) }, notes)
    };
    (read(test), read(except))
}

fn read_test(node: &Node, notes: &mut MistakeCollector) -> Option<RawAttributeCondition> {
    let pairs = match &node.value {
        Value::Text(_) | Value::List(_) => {
            return Some(RawAttributeCondition::Values(RawValues {
                kind: MatchKind::AnyOf,
                texts: read_texts(node, "a value", notes),
            }));
        }
        Value::Map(pairs) => pairs,
        Value::Empty => {
            let help = "for any value write `{ present: true }`, for none `{ present: false }`, for all but GET `{ not: GET }`, \
                        for the empty string `\"\"`";
            notes.add_with_help(node.position, "missing value", help);
            return None;
        }
    };
    let fields = Fields::from_node(node, "a condition", &[keys::CONDITION_KEYS], notes)?;
    if pairs.len() != 1 {
        let count = pairs.len();
        let help = format!("valid: {}", join_with_and(&keys::key_names(&[keys::CONDITION_KEYS])));
        let problem = format!("a condition has one key, or two if one is `not`, not {count}");
        notes.add_with_help(node.position, problem, help);
        return None;
    }
    for (name, kind) in MATCH_KIND_KEYS {
        if let Some((_, node)) = fields.find(name) {
            return Some(RawAttributeCondition::Values(RawValues {
                kind: *kind,
                texts: read_texts(node, &format!("`{name}`"), notes),
            }));
        }
    }
    if let Some((_, inner)) = fields.find("not") {
        return match read_test(inner, notes)? {
            RawAttributeCondition::Values(values) => Some(RawAttributeCondition::Not(values)),
            RawAttributeCondition::Present(boolean) => Some(RawAttributeCondition::NotPresent(boolean)),
            RawAttributeCondition::Not(_) | RawAttributeCondition::NotPresent(_) => {
                notes.add_with_help(inner.position, "double negation", "remove both `not`");
                None
            }
        };
    }
    fields.text("present", notes).map(RawAttributeCondition::Present)
}
