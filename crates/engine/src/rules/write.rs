//! Writes rule files in their canonical form.
//!
//! Rules and lists of rules are written over several lines. Each value inside a rule is written in one line if the line
//! is not longer than 120 characters. Keys are in the order of the reference page. Strings are quoted only where
//! necessary.

use std::collections::HashMap;

use super::keys;
use super::mistake::Position;
use super::text::{Node, Value};

/// Maximum length of a line that combines several values.
const MAX_LINE_CHARS: usize = 120;

/// Comments, each with the position of its key or list item.
#[derive(Debug, Default)]
pub(super) struct Comments {
    pub(super) before: HashMap<Position, Vec<String>>,
    pub(super) after: HashMap<Position, String>,
    /// Comments at the end of the file.
    pub(super) last: Vec<String>,
}

/// Writes a file without comments.
pub(super) fn write_file(tree: &Node) -> String {
    write_with_comments(tree, &mut Comments::default())
}

/// Writes a file with its comments. Removes each comment from `comments` when it is written.
pub(super) fn write_with_comments(tree: &Node, comments: &mut Comments) -> String {
    let mut writer = Writer { out: String::new(), comments };
    match &tree.value {
        Value::Map(pairs) if !pairs.is_empty() => writer.write_map(pairs, Layout::FILE, false),
        Value::List(nodes) if !nodes.is_empty() => writer.write_list(nodes, Layout::FILE),
        Value::Empty => {}
        Value::Map(_) | Value::List(_) | Value::Text(_) => {
            write_on_one_line(tree, &mut writer.out);
            writer.out.push('\n');
        }
    }
    let last = std::mem::take(&mut writer.comments.last);
    writer.write_comment_lines(&last, 0);
    writer.out
}

/// The indentation of a value, and whether the value is written over several lines.
#[derive(Clone, Copy)]
struct Layout {
    indent: usize,
    /// Number of nested levels that are written over several lines even if they would fit on one line.
    expanded_levels: usize,
}

impl Layout {
    const FILE: Self = Self { indent: 0, expanded_levels: 0 };

    fn indented_by(self, indent: usize) -> Self {
        Self { indent: self.indent + indent, expanded_levels: self.expanded_levels.saturating_sub(1) }
    }

    /// Returns the layout of a value. Lists of rules, and each rule, are written over several lines.
    fn layout_of_value(self, key: &Node) -> Self {
        let of_rules = matches!(&key.value, Value::Text(name) if name == "rules" || name == "domains");
        if of_rules { Self { expanded_levels: 2, ..self } } else { self }
    }
}

struct Writer<'c> {
    out: String,
    comments: &'c mut Comments,
}

impl Writer<'_> {
    /// Writes a map over several lines. If `begun`, the first line is already indented.
    fn write_map(&mut self, pairs: &[(Node, Node)], layout: Layout, mut begun: bool) {
        for (key, value) in in_reference_order(pairs) {
            if !begun {
                self.write_comments_before(key.position, layout.indent);
                self.write_indent(layout.indent);
            }
            begun = false;
            write_on_one_line(key, &mut self.out);
            self.out.push(':');
            self.write_value(key.position, value, layout.layout_of_value(key));
        }
    }

    fn write_list(&mut self, nodes: &[Node], layout: Layout) {
        for node in nodes {
            self.move_comment_before_map(node, layout);
            self.write_comments_before(node.position, layout.indent);
            self.write_indent(layout.indent);
            self.out.push('-');
            match &node.value {
                Value::Map(pairs) if !pairs.is_empty() && !self.fits_on_line(node, layout) => {
                    self.out.push(' ');
                    self.write_map(pairs, layout.indented_by(2), true);
                }
                _ => self.write_value(node.position, node, layout),
            }
        }
    }

    /// Writes the value after a colon or a dash, on the rest of the line or on separate lines.
    fn write_value(&mut self, owner: Position, value: &Node, layout: Layout) {
        match &value.value {
            Value::Map(pairs) if !pairs.is_empty() && !self.fits_on_line(value, layout) => {
                self.write_comment_after(owner);
                self.write_map(pairs, layout.indented_by(2), false);
            }
            // Within a map, dashes are aligned with the key.
            Value::List(nodes) if !nodes.is_empty() && !self.fits_on_line(value, layout) => {
                self.write_comment_after(owner);
                self.write_list(nodes, Layout { indent: layout.indent, ..layout.indented_by(0) });
            }
            // An empty value is written as `null`, so that a comment after it stays attached to it.
            Value::Map(_) | Value::List(_) | Value::Text(_) | Value::Empty => {
                self.out.push(' ');
                match &value.value {
                    Value::Text(text) => write_scalar(text, StringContext::Line, &mut self.out),
                    Value::Map(_) | Value::List(_) | Value::Empty => write_on_one_line(value, &mut self.out),
                }
                self.write_comment_after(owner);
            }
        }
    }

    /// Returns whether a value fits on the rest of the current line.
    fn fits_on_line(&self, node: &Node, layout: Layout) -> bool {
        if layout.expanded_levels > 0 || self.has_comments(node) {
            return false;
        }
        let mut line = String::new();
        write_on_one_line(node, &mut line);
        let begun = self.out.rsplit('\n').next().unwrap_or_default().chars().count();
        begun + 1 + line.chars().count() <= MAX_LINE_CHARS
    }

    fn has_comments(&self, node: &Node) -> bool {
        let here = |position: &Position| {
            let comment = |lines: &Vec<String>| lines.iter().any(|line| !line.is_empty());
            self.comments.before.get(position).is_some_and(comment) || self.comments.after.contains_key(position)
        };
        if self.comments.before.is_empty() && self.comments.after.is_empty() {
            return false;
        }
        match &node.value {
            Value::Map(pairs) => pairs.iter().any(|(key, value)| here(&key.position) || self.has_comments(value)),
            Value::List(nodes) => nodes.iter().any(|node| here(&node.position) || self.has_comments(node)),
            Value::Empty | Value::Text(_) => false,
        }
    }

    /// Moves a comment from the end of a map's line to the line before the map, if the map is written over
    /// several lines.
    fn move_comment_before_map(&mut self, node: &Node, layout: Layout) {
        let Value::Map(pairs) = &node.value else { return };
        let of_a_pair = pairs.iter().any(|(key, _)| key.position == node.position);
        if !of_a_pair && !self.fits_on_line(node, layout) {
            let comment = self.comments.after.remove(&node.position);
            self.comments.before.entry(node.position).or_default().extend(comment);
        }
    }

    fn write_comments_before(&mut self, position: Position, indent: usize) {
        let lines = self.comments.before.remove(&position).unwrap_or_default();
        self.write_comment_lines(&lines, indent);
    }

    fn write_comment_lines(&mut self, lines: &[String], indent: usize) {
        for line in lines {
            if !line.is_empty() {
                self.write_indent(indent);
                self.out.push_str(line);
                self.out.push('\n');
            } else if !self.out.is_empty() {
                self.out.push('\n');
            }
        }
    }

    fn write_comment_after(&mut self, position: Position) {
        if let Some(comment) = self.comments.after.remove(&position) {
            self.out.push_str("  ");
            self.out.push_str(&comment);
        }
        self.out.push('\n');
    }

    fn write_indent(&mut self, indent: usize) {
        self.out.extend(std::iter::repeat_n(' ', indent));
    }
}

/// Sorts the keys of a rule, a limit or a file: known keys in the order of the reference page, then the other keys.
pub(super) fn in_reference_order(pairs: &[(Node, Node)]) -> Vec<&(Node, Node)> {
    let mut ordered: Vec<&(Node, Node)> = pairs.iter().collect();
    let name = |key: &Node| match &key.value {
        Value::Text(text) => text.clone(),
        Value::Empty | Value::List(_) | Value::Map(_) => String::new(),
    };
    // Attributes in `when` keep their order: only rules, limits and files are sorted.
    let sure = ["id", "limit", "limits", "rules", "domains", "unlimited", "deny", "allow", "algorithm"];
    if ordered.iter().any(|(key, _)| sure.contains(&&*name(key))) {
        let order: Vec<&str> = ["domain", "id", "when", "if", "only", "per", "limit", "limits", "algorithm"]
            .into_iter()
            .chain(keys::key_names(&[keys::LIMIT_OPTIONS]))
            .chain(keys::key_names(&[keys::FILE_KEYS, keys::RULE_KEYS]))
            .collect();
        ordered.sort_by_key(|(key, _)| order.iter().position(|known| *known == name(key)).unwrap_or(order.len()));
    }
    ordered
}

/// Writes a node in one line.
fn write_on_one_line(node: &Node, out: &mut String) {
    let separated = |out: &mut String, first: bool| {
        if !first {
            out.push_str(", ");
        }
    };
    match &node.value {
        Value::Empty => out.push_str("null"),
        Value::Text(text) => write_scalar(text, StringContext::Inside, out),
        Value::List(nodes) => {
            out.push('[');
            for (position, node) in nodes.iter().enumerate() {
                separated(out, position == 0);
                write_on_one_line(node, out);
            }
            out.push(']');
        }
        Value::Map(pairs) => {
            out.push('{');
            for (position, (key, value)) in in_reference_order(pairs).into_iter().enumerate() {
                separated(out, position == 0);
                write_on_one_line(key, out);
                out.push_str(": ");
                write_on_one_line(value, out);
            }
            out.push('}');
        }
    }
}

/// Where a string is written: alone after a key, or inside a list or map.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StringContext {
    Line,
    Inside,
}

fn write_scalar(text: &str, context: StringContext, out: &mut String) {
    if needs_no_quotes(text, context) {
        out.push_str(text);
    } else if text.chars().any(|letter| {
        letter.is_control()
            || matches!(letter, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
    }) {
        write_quoted(text, out);
    } else {
        out.push('\'');
        out.push_str(&text.replace('\'', "''"));
        out.push('\'');
    }
}

/// Returns whether a string needs no quotes for any YAML parser.
fn needs_no_quotes(text: &str, context: StringContext) -> bool {
    let begins = |first: char| first.is_alphanumeric() || matches!(first, '/' | '_' | '.' | '$');
    let within = |letter: char| {
        letter.is_alphanumeric()
            || "/_.$-+*%@()=<>&|^~!?; ".contains(letter)
            || (context == StringContext::Line && letter == ',')
    };
    let colons = || {
        text.char_indices().filter(|(_, letter)| *letter == ':').all(|(at, _)| {
            // Some parsers read a time as a number, and a string with a trailing colon as a key.
            text[at + 1..]
                .starts_with(|next: char| !next.is_whitespace() && (context == StringContext::Line || next != ','))
                && !text.starts_with(|first: char| first.is_ascii_digit())
        })
    };
    let empty = matches!(text, "null" | "Null" | "NULL");
    text.starts_with(begins)
        && !text.ends_with(' ')
        && text.chars().all(|letter| within(letter) || letter == ':')
        && colons()
        && !empty
}

/// Writes a JSON string that YAML parsers read as the same string.
pub(super) fn write_quoted(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            letter
                if letter.is_control()
                    || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') =>
            {
                out.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
}
