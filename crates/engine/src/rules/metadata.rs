//! `metadata` of a rule: values that are passed to the caller and do not affect decisions.

use super::mistake::MistakeCollector;
use super::text::{Node, Value};

/// A value that a rule passes to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// No value.
    Null,
    /// A string as written. A string that looks like a number or a boolean may be passed on as a number or a boolean.
    Text(Box<str>),
    /// A list.
    List(Box<[Metadata]>),
    /// Names and values, in the order of the file.
    Map(Box<[(Box<str>, Metadata)]>),
}

impl Metadata {
    /// Maximum size of a rule's metadata: the bytes of its strings, plus one byte per value. Envoy receives the
    /// metadata with every request that the rule admits.
    pub const MAX_BYTES: usize = 4_096;

    /// Reads the `metadata` map of a rule.
    pub(crate) fn read(node: &Node, notes: &mut MistakeCollector) -> Option<Self> {
        if !matches!(node.value, Value::Map(_)) {
            let problem = format!("`metadata` must be a map, not {}", node.kind());
            notes.add_with_help(node.position, problem, "write it like `metadata: {tier: gold}`");
            return None;
        }
        let bytes = metadata_size(node);
        if bytes > Self::MAX_BYTES {
            let problem = format!("metadata too large: {bytes} bytes (maximum {})", Self::MAX_BYTES);
            notes.add(node.position, problem);
            return None;
        }
        Self::convert_value(node, notes)
    }

    /// Converts a value recursively. The nesting of a file is bounded, so the recursion is bounded too.
    fn convert_value(node: &Node, notes: &mut MistakeCollector) -> Option<Self> {
        Some(match &node.value {
            Value::Empty => Self::Null,
            Value::Text(text) => Self::Text(text.as_str().into()),
            Value::List(nodes) => {
                Self::List(nodes.iter().filter_map(|node| Self::convert_value(node, notes)).collect())
            }
            Value::Map(pairs) => {
                let mut map = Vec::with_capacity(pairs.len());
                for (name, value) in pairs {
                    let Value::Text(text) = &name.value else {
                        notes.add(name.position, format!("a name in `metadata` must be a string, not {}", name.kind()));
                        return None;
                    };
                    map.push((text.as_str().into(), Self::convert_value(value, notes)?));
                }
                Self::Map(map.into())
            }
        })
    }
}

fn metadata_size(node: &Node) -> usize {
    1 + match &node.value {
        Value::Empty => 0,
        Value::Text(text) => text.len(),
        Value::List(nodes) => nodes.iter().map(metadata_size).sum(),
        Value::Map(pairs) => pairs.iter().map(|(name, value)| metadata_size(name) + metadata_size(value)).sum(),
    }
}
