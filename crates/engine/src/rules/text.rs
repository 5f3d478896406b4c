//! Parses YAML or JSON into a tree whose nodes have positions.
//!
//! Every scalar is kept as written: `1.10` stays a string and does not become the number 1.1, and `yes` does not become
//! a boolean. The code that uses a value interprets the string. JSON needs no separate parser, because YAML includes
//! it.

mod help;

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Error, Location, Spanned, UserMessageFormatter};

use super::mistake::{MistakeCollector, Position};

/// Maximum size of a rule file.
pub const MAX_FILE_BYTES: usize = 16 << 20;
/// Maximum nesting of lists and maps. Rules need five levels.
pub const MAX_DEPTH: usize = 16;
/// Maximum number of values in a file; a rule has about 20.
pub const MAX_NODES: usize = 4_000_000;
/// Maximum number of values to which all aliases of a file expand together.
pub const MAX_ALIASED: usize = 200_000;

/// A value and its position in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) position: Position,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Missing, or `null`.
    Empty,
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// Returns the name of the value's type for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Empty => "null",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

/// Parses a file into a tree. If the file cannot be parsed, returns `None` and adds the reason to `notes`. A duplicate
/// key is reported and ignored, so that the rest of the file is checked as well.
pub(crate) fn parse_tree(bytes: &[u8], notes: &mut MistakeCollector) -> Option<Node> {
    if bytes.len() > MAX_FILE_BYTES {
        notes.add(FIRST_POSITION, format!("file too large: {} bytes (maximum {MAX_FILE_BYTES})", bytes.len()));
        return None;
    }
    let text = match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            notes.add(position_of_byte(bytes, error.valid_up_to()), "not UTF-8");
            return None;
        }
    };
    let tree = match parse_yaml(text, DuplicateKeyPolicy::Error) {
        Ok(tree) => tree,
        Err(error) => {
            report_error(&error, text, notes);
            // After a duplicate key, the rest of the file can still be read.
            let Error::DuplicateMappingKey { .. } = error.without_snippet() else { return None };
            parse_yaml(text, DuplicateKeyPolicy::FirstWins).ok()?
        }
    };
    Some(restore_text(tree, text))
}

const FIRST_POSITION: Position = Position { line: 1, column: 1 };

fn parse_yaml(text: &str, duplicate_keys: DuplicateKeyPolicy) -> Result<Spanned<RawNode>, Error> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
            max_total_scalar_bytes: MAX_FILE_BYTES,
            max_recorded_anchor_events: MAX_ALIASED,
            // The total expansion of aliases is bounded, so the number of aliases per anchor does not matter.
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_ALIASED,
            max_replay_stack_depth: MAX_DEPTH,
        },
        duplicate_keys: duplicate_keys,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options)
}

fn report_error(error: &Error, text: &str, notes: &mut MistakeCollector) {
    let position = error.location().map_or(FIRST_POSITION, to_position);
    match error.without_snippet() {
        Error::DuplicateMappingKey { key: Some(key), .. } => notes.add(position, format!("duplicate key `{key}`")),
        Error::DuplicateMappingKey { key: None, .. } => notes.add(position, "duplicate key"),
        other => {
            let message = other.render_with_formatter(&UserMessageFormatter);
            // The position is already printed before the message.
            let message = message.split(" at line ").next().unwrap_or_default();
            let problem = format!("invalid YAML: {message}");
            match help::suggest_fix(text, position, message) {
                (position, Some(help)) => notes.add_with_help(position, problem, help),
                (position, None) => notes.add(position, problem),
            }
        }
    }
}

fn to_position(location: Location) -> Position {
    // Before the first token the parser reports line 0; a file begins at 1:1.
    let narrow = |n: u64| u32::try_from(n.max(1)).unwrap_or(u32::MAX);
    Position { line: narrow(location.line()), column: narrow(location.column()) }
}

fn position_of_byte(bytes: &[u8], at: usize) -> Position {
    let before = &bytes[..at];
    let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
    let column = 1 + String::from_utf8_lossy(&before[line_start..]).chars().count();
    Position { line: line as u32, column: column as u32 }
}

/// A value as returned by the parser, which has already interpreted numbers and booleans.
enum RawNode {
    Empty,
    Text(String),
    /// A number or a boolean. [`restore_text`] restores its original text.
    NumberOrBoolean,
    List(Vec<Spanned<RawNode>>),
    Map(Vec<(Spanned<RawNode>, Spanned<RawNode>)>),
}

/// Replaces every number and boolean with its original text, and every span with a position.
fn restore_text(tree: Spanned<RawNode>, text: &str) -> Node {
    let written = || {
        let span = tree.defined.span();
        let start = usize::try_from(span.byte_offset()?).ok()?;
        text.get(start..start.checked_add(usize::try_from(span.byte_len()?).ok()?)?)
    };
    let value = match tree.value {
        RawNode::Empty => Value::Empty,
        RawNode::Text(text) => Value::Text(text),
        RawNode::NumberOrBoolean => Value::Text(written().unwrap_or_default().trim().into()),
        RawNode::List(nodes) => Value::List(nodes.into_iter().map(|node| restore_text(node, text)).collect()),
        RawNode::Map(pairs) => Value::Map(
            pairs.into_iter().map(|(key, value)| (restore_text(key, text), restore_text(value, text))).collect(),
        ),
    };
    Node { position: to_position(tree.referenced), value }
}

impl<'de> Deserialize<'de> for RawNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = RawNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a list or a map")
    }

    fn visit_unit<E: de::Error>(self) -> Result<RawNode, E> {
        Ok(RawNode::Empty)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<RawNode, E> {
        Ok(RawNode::Text(text.into()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<RawNode, E> {
        Ok(RawNode::Text(text))
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<RawNode, E> {
        Ok(RawNode::NumberOrBoolean)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<RawNode, E> {
        Ok(RawNode::NumberOrBoolean)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<RawNode, E> {
        Ok(RawNode::NumberOrBoolean)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<RawNode, E> {
        Ok(RawNode::NumberOrBoolean)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<RawNode, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = sequence.next_element()? {
            nodes.push(node);
        }
        Ok(RawNode::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawNode, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(RawNode::Map(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats a tree in one line, each value with its position.
    fn show_tree(node: &Node) -> String {
        let Position { line, column } = node.position;
        let value = match &node.value {
            Value::Empty => "-".into(),
            Value::Text(text) => format!("{text:?}"),
            Value::List(nodes) => format!("[{}]", nodes.iter().map(show_tree).collect::<Vec<_>>().join(" ")),
            Value::Map(pairs) => {
                let pairs: Vec<String> =
                    pairs.iter().map(|(key, value)| format!("{}={}", show_tree(key), show_tree(value))).collect();
                format!("{{{}}}", pairs.join(" "))
            }
        };
        format!("{line}:{column}{value}")
    }

    fn assert_tree(text: impl AsRef<[u8]>, expected: &str) {
        let mut notes = MistakeCollector::new("f");
        let tree = parse_tree(text.as_ref(), &mut notes);
        let mistakes = notes.finish().err().map(|mistakes| mistakes.to_string());
        let shown: Vec<String> = tree.iter().map(show_tree).chain(mistakes).collect();
        assert_eq!(shown.join("\n"), expected);
    }

    #[test]
    fn scalars_are_kept_as_written() {
        assert_tree("v: 1.10", r#"1:1{1:1"v"=1:4"1.10"}"#);
        assert_tree(
            "[yes, 0x10, -5, 1e999, .nan, 007, \"1\", '']",
            r#"1:1[1:2"yes" 1:7"0x10" 1:13"-5" 1:17"1e999" 1:24".nan" 1:30"007" 1:35"1" 1:40""]"#,
        );
        assert_tree("a: ~\nb:\nc: null", r#"1:1{1:1"a"=1:4- 2:1"b"=2:2- 3:1"c"=3:4-}"#);
        assert_tree("99999999999999999999999: ä", r#"1:1{1:1"99999999999999999999999"=1:26"ä"}"#);
    }

    #[test]
    fn json_values_have_positions() {
        assert_tree("{\n\t\"a\\/b\": [1.50, \"\\ud83d\\ude00\"]\n}", r#"1:1{2:2"a/b"=2:10[2:11"1.50" 2:17"😀"]}"#);
    }

    #[test]
    fn aliased_values_have_the_position_of_the_alias() {
        assert_tree("a: &x [1.20]\nb: *x", r#"1:1{1:1"a"=1:7[1:8"1.20"] 2:1"b"=2:4[2:4"1.20"]}"#);
    }

    #[test]
    fn duplicate_key_does_not_hide_later_keys() {
        assert_tree("a: 1\na: 2\nb: 3", "1:1{1:1\"a\"=1:4\"1\" 3:1\"b\"=3:4\"3\"}\nf:2:1: duplicate key `a`");
    }

    #[test]
    fn syntax_errors_are_reported_with_their_position() {
        assert_tree("a: [1\n", "f:1:4: invalid YAML: unclosed bracket '['");
        assert_tree(b"a: b\nc: \xff", "f:2:4: not UTF-8");
    }

    #[test]
    fn deep_nesting_and_alias_bombs_are_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let items = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb += &format!("a{level}: &a{level} [{items}]\n");
        }
        for text in [bomb, "[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000), "? ".repeat(100_000)] {
            let mut notes = MistakeCollector::new("f");
            assert_eq!(parse_tree(text.as_bytes(), &mut notes), None, "for {}…", &text[..20]);
            assert!(notes.finish().is_err());
        }
    }

    #[test]
    fn file_above_the_maximum_size_is_refused() {
        assert_tree(vec![b' '; MAX_FILE_BYTES + 1], "f:1:1: file too large: 16777217 bytes (maximum 16777216)");
    }
}
