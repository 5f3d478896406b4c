//! Reads maps with known keys, lists and strings.

use super::super::keys::{Key, key_names};
use super::super::mistake::{MistakeCollector, Position};
use super::super::suggest::{join_with_and, suggest_valid, suggest_word};
use super::super::text::{Node, Value};
use super::{RawText, shorten};

/// Help for a key that belongs somewhere else, or is not supported.
pub(super) struct KeyHint {
    pub(super) help: &'static str,
    /// The key of this map that the help suggests, if any.
    pub(super) word: Option<&'static str>,
}

/// A map whose keys have been checked.
pub(super) struct Fields<'n> {
    pairs: Vec<(Position, &'n str, &'n Node)>,
    /// For each unknown key with an obvious typo: the valid key that was probably meant.
    meant_keys: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    /// Reads a map. Reports each key that is in none of the tables, and suggests the key that was probably meant.
    pub(super) fn from_node(
        node: &'n Node,
        what: &str,
        tables: &[&[Key]],
        notes: &mut MistakeCollector,
    ) -> Option<Self> {
        Self::from_node_with_hints(node, what, tables, &|_| None, notes)
    }

    /// Like [`from_node`](Self::from_node), but `elsewhere` may return help for keys that belong somewhere else.
    pub(super) fn from_node_with_hints(
        node: &'n Node,
        what: &str,
        tables: &[&[Key]],
        elsewhere: &dyn Fn(&str) -> Option<KeyHint>,
        notes: &mut MistakeCollector,
    ) -> Option<Self> {
        let valid = key_names(tables);
        let Value::Map(pairs) = &node.value else {
            let help = format!("its keys are {}", join_with_and(&valid));
            notes.add_with_help(node.position, format!("{what} must be a map, not {}", node.kind()), help);
            return None;
        };
        let (mut known, mut meant_words) = (Vec::with_capacity(pairs.len()), Vec::new());
        for (key, value) in pairs {
            let Some(name) = text_of(key) else {
                notes.add(key.position, format!("a key of {what} must be a string, not {}", key.kind()));
                continue;
            };
            if valid.contains(&name) {
                known.push((key.position, name, value));
            } else if notes.is_full() {
                // Skip the search for the nearest word, which is the slowest part of parsing.
                notes.count_unlisted();
            } else {
                let problem = format!("`{}` is not a key of {what}", shorten(name));
                let (help, word) = match elsewhere(name) {
                    Some(KeyHint { help, word }) => (help.into(), word),
                    None => (suggest_valid(name, &valid), suggest_word(name, &valid)),
                };
                notes.add_with_help(key.position, problem, help);
                meant_words.extend(word);
            }
        }
        Some(Self { pairs: known, meant_keys: meant_words })
    }

    /// Returns whether an unknown key was probably meant to be one of `names`.
    pub(super) fn has_misspelling_of(&self, names: &[&str]) -> bool {
        self.meant_keys.iter().any(|word| names.contains(word))
    }

    /// Returns the position of a key and its value.
    pub(super) fn find(&self, name: &str) -> Option<(Position, &'n Node)> {
        self.pairs.iter().find(|(_, key, _)| *key == name).map(|(position, _, node)| (*position, *node))
    }

    pub(super) fn text(&self, name: &str, notes: &mut MistakeCollector) -> Option<RawText> {
        self.find(name).and_then(|(_, node)| read_text(node, &format!("`{name}`"), notes))
    }

    pub(super) fn texts(&self, name: &str, notes: &mut MistakeCollector) -> Vec<RawText> {
        self.find(name).map(|(_, node)| read_texts(node, &format!("`{name}`"), notes)).unwrap_or_default()
    }
}

pub(super) fn read_list<'n>(node: &'n Node, what: &str, notes: &mut MistakeCollector) -> Option<&'n [Node]> {
    match &node.value {
        Value::List(nodes) => Some(nodes),
        Value::Empty => Some(&[]),
        Value::Text(_) | Value::Map(_) => {
            let problem = format!("{what} must be a list, not {}", node.kind());
            notes.add_with_help(node.position, problem, "begin each item with `- `");
            None
        }
    }
}

/// Reads a list of strings, or a single string.
pub(super) fn read_texts(node: &Node, what: &str, notes: &mut MistakeCollector) -> Vec<RawText> {
    match &node.value {
        Value::List(nodes) => nodes.iter().filter_map(|node| read_text(node, what, notes)).collect(),
        Value::Empty => Vec::new(),
        Value::Text(_) | Value::Map(_) => read_text(node, what, notes).into_iter().collect(),
    }
}

pub(super) fn read_text(node: &Node, what: &str, notes: &mut MistakeCollector) -> Option<RawText> {
    match text_of(node) {
        Some(text) => Some(RawText { position: node.position, text: text.into() }),
        None => {
            notes.add(node.position, format!("{what} must be a string or a number, not {}", node.kind()));
            None
        }
    }
}

pub(super) fn text_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Text(text) => Some(text),
        Value::Empty | Value::List(_) | Value::Map(_) => None,
    }
}

/// A map of strings, with keys from a table.
#[derive(Debug)]
pub(crate) struct RawMap {
    pub(crate) position: Position,
    values: Vec<(&'static str, Vec<RawText>)>,
}

impl RawMap {
    /// Reads a map. `sample` is an example for the error message.
    pub(super) fn read(
        node: &Node,
        what: &str,
        table: &[Key],
        sample: &str,
        notes: &mut MistakeCollector,
    ) -> Option<Self> {
        if !matches!(node.value, Value::Map(_)) {
            let problem = format!("{what} must be a map, not {}", node.kind());
            notes.add_with_help(node.position, problem, format!("write it like `{sample}`"));
            return None;
        }
        let fields = Fields::from_node(node, what, &[table], notes)?;
        let values = table
            .iter()
            .filter(|key| fields.find(key.name).is_some())
            .map(|key| (key.name, fields.texts(key.name, notes)))
            .collect();
        Some(Self { position: node.position, values })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&RawText> {
        self.all(name).first()
    }

    pub(crate) fn all(&self, name: &str) -> &[RawText] {
        self.values.iter().find(|(key, _)| *key == name).map_or(&[], |(_, values)| values)
    }
}
