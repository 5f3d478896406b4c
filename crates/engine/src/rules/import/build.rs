//! Builds trees of the rule language. Their nodes have positions in the imported text.

use super::super::mistake::Position;
use super::super::text::{Node, Value};

pub(super) fn text_node(position: Position, text: impl Into<String>) -> Node {
    Node { position, value: Value::Text(text.into()) }
}

pub(super) fn list_node(position: Position, nodes: Vec<Node>) -> Node {
    Node { position, value: Value::List(nodes) }
}

pub(super) fn map_node(position: Position, pairs: Vec<(&str, Node)>) -> Node {
    let pairs = pairs.into_iter().map(|(key, value)| (text_node(position, key), value)).collect();
    Node { position, value: Value::Map(pairs) }
}

/// Returns a single node unchanged, and several nodes as a list.
pub(super) fn one_or_list(position: Position, mut texts: Vec<Node>) -> Node {
    if texts.len() == 1 { texts.swap_remove(0) } else { list_node(position, texts) }
}

/// Builds a valid and unused rule id from a name.
pub(super) fn make_unused_id(wanted: &str, taken: &mut std::collections::HashSet<String>) -> String {
    const MAX_ID_CHARS: usize = 100;
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.:/".contains(letter);
    let named: String =
        wanted.chars().map(|letter| if fits(letter) { letter } else { '-' }).take(MAX_ID_CHARS).collect();
    let named = if named.is_empty() { "rule".to_owned() } else { named };
    let mut id = named.clone();
    let mut number = 1_u32;
    while !taken.insert(id.clone()) {
        number += 1;
        id = format!("{named}-{number}");
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_ids_are_valid_and_unique() {
        let mut taken = std::collections::HashSet::new();
        let names = ["a b*", "a-b-", "", &"é".repeat(300)].map(|wanted| make_unused_id(wanted, &mut taken));
        assert_eq!(names, ["a-b-".to_owned(), "a-b--2".into(), "rule".into(), "-".repeat(100)]);
    }
}
