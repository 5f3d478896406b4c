//! Formats rule files and keeps their comments.
//!
//! Crates that write YAML drop comments, which reviewers need. Crates that keep comments only edit values in place;
//! they do not sort or align keys. So this module has its own formatter.
//!
//! Parsed trees contain no comments, so a separate scan of the text finds them. A comment on its own line is attached
//! to the next key or item. Any other comment is attached to the key or item before it on the same line. The result is
//! verified by parsing it again: it must have the same content and the same number of comments.

use std::collections::hash_map::Entry;
use std::fmt;

use super::mistake::{MistakeCollector, Mistakes, Position};
use super::text::{self, Node, Value};
use super::write::{Comments, write_file, write_with_comments};
use super::{MAX_ALIASED, Source};
use comments::{Comment, find_comments};

mod comments;

/// Reason why a file was not formatted.
#[derive(Debug)]
pub enum FormatterError {
    /// The file cannot be parsed.
    Mistakes(Mistakes),
    /// Formatting would lose a comment or a YAML construct.
    Loses {
        /// The line.
        line: u32,
        /// The construct that would be lost.
        what: &'static str,
    },
}

impl fmt::Display for FormatterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mistakes(mistakes) => mistakes.fmt(f),
            Self::Loses { line, what } => write!(f, "line {line}: {what} would be lost, so nothing was changed"),
        }
    }
}

impl std::error::Error for FormatterError {}

/// Formats a rule file.
///
/// ```
/// use tollgate_engine::rules::{Source, format};
///
/// let text = "rules:\n    - limit: \"10/s\"   # for all\n      id:   each\n      per: [\n        client_ip]\ndomain: api\n";
/// let formatted = format(&Source { name: "rules.yaml", text: text.as_bytes() })?;
/// assert_eq!(formatted, "domain: api\nrules:\n- id: each\n  per: [client_ip]\n  limit: 10/s  # for all\n");
/// # Ok::<(), tollgate_engine::rules::FormatterError>(())
/// ```
///
/// # Errors
/// Returns an error if the file cannot be parsed, or if formatting would lose a comment or a YAML construct.
pub fn format(source: &Source<'_>) -> Result<String, FormatterError> {
    let mut notes = MistakeCollector::new(source.name);
    let tree = text::parse_tree(source.text, &mut notes);
    notes
        .finish()
        .map_err(|mistakes| FormatterError::Mistakes(mistakes.with_snippets(std::slice::from_ref(source))))?;
    let (Some(tree), Ok(text)) = (tree, str::from_utf8(source.text)) else {
        return Err(FormatterError::Loses { line: 1, what: "everything" });
    };
    let found = find_comments(text).map_err(|(line, what)| FormatterError::Loses { line, what })?;
    let mut comments = attach_comments(&tree, &found);
    let formatted = write_with_comments(&tree, &mut comments);
    verify_nothing_lost(&tree, &found, &formatted)?;
    Ok(formatted)
}

/// Parses the formatted text and checks that no content and no comment was lost.
fn verify_nothing_lost(tree: &Node, found: &[Comment], formatted: &str) -> Result<(), FormatterError> {
    let again = text::parse_tree(formatted.as_bytes(), &mut MistakeCollector::new(""));
    let same = again.is_some_and(|again| write_file(&again) == write_file(tree));
    let count = |found: &[Comment]| found.iter().filter(|found| !found.text.is_empty()).count();
    let kept = find_comments(formatted).is_ok_and(|again| count(&again) == count(found));
    match (same, kept) {
        (true, true) => Ok(()),
        (false, _) => Err(FormatterError::Loses { line: 1, what: "an unusual notation" }),
        (true, false) => {
            let line = found.iter().find(|found| !found.text.is_empty()).map_or(1, |found| found.position.line);
            Err(FormatterError::Loses { line, what: "a comment" })
        }
    }
}

/// A key with its value, or a list item. Comments are attached to targets.
struct CommentTarget {
    position: Position,
    last_line: u32,
    parent: Option<usize>,
}

/// Attaches a comment on its own line to the next target. Attaches any other comment to the largest target that starts
/// and ends on the comment's line.
fn attach_comments(tree: &Node, found: &[Comment]) -> Comments {
    let mut targets = Vec::new();
    collect_targets(tree, None, &mut targets);
    let mut comments = Comments::default();
    for found in found {
        let at = found.position;
        if found.alone {
            let next = targets.get(targets.partition_point(|target| target.position <= at));
            let lines = match next {
                Some(target) => comments.before.entry(target.position).or_default(),
                None => &mut comments.last,
            };
            // Several empty lines become one.
            if !found.text.is_empty() || lines.last().is_none_or(|last| !last.is_empty()) {
                lines.push(found.text.clone());
            }
            continue;
        }
        // Targets are sorted by position.
        let Some(mut target) = targets.partition_point(|target| target.position < at).checked_sub(1) else {
            comments.last.push(found.text.clone());
            continue;
        };
        let within = |target: &CommentTarget| target.position.line == at.line && target.last_line == at.line;
        while let Some(parent) = targets[target].parent.filter(|parent| within(&targets[*parent])) {
            target = parent;
        }
        let position = targets[target].position;
        match comments.after.entry(position) {
            Entry::Vacant(entry) => {
                entry.insert(found.text.clone());
            }
            // The value spans several lines and already has a comment. This comment moves to its own line before the
            // value.
            Entry::Occupied(_) => comments.before.entry(position).or_default().push(found.text.clone()),
        }
    }
    while comments.last.last().is_some_and(String::is_empty) {
        comments.last.pop();
    }
    comments
}

fn collect_targets(node: &Node, parent: Option<usize>, targets: &mut Vec<CommentTarget>) {
    debug_assert!(targets.len() <= super::MAX_NODES + MAX_ALIASED, "a tree has a bounded number of nodes");
    let mut add = |position: Position, value: &Node| {
        let target = targets.len();
        targets.push(CommentTarget { position, last_line: last_line(value).max(position.line), parent });
        collect_targets(value, Some(target), targets);
    };
    match &node.value {
        Value::Map(pairs) => pairs.iter().for_each(|(key, value)| add(key.position, value)),
        Value::List(nodes) => nodes.iter().for_each(|node| add(node.position, node)),
        Value::Empty | Value::Text(_) => {}
    }
}

fn last_line(node: &Node) -> u32 {
    match &node.value {
        Value::Map(pairs) => {
            pairs.last().map_or(node.position.line, |(key, value)| last_line(value).max(key.position.line))
        }
        Value::List(nodes) => nodes.last().map_or(node.position.line, last_line),
        Value::Empty | Value::Text(_) => node.position.line,
    }
}

#[cfg(test)]
mod tests;
