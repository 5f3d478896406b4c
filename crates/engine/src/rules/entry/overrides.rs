//! Overrides that are stored separately from their rule. Each override sets other limits for one attribute value.

use super::super::mistake::{MistakeCollector, Mistakes, Position};
use super::super::raw::shorten;
use super::super::text::{self, Node, Value};
use super::super::{Origin, Rules, Source};
use super::{
    FIRST_POSITION, check_tree, file_node, find_key, is_text, map_node, parse_json_tree, text_at_key, text_node,
    to_json_text,
};

/// An override to insert into its rule.
#[derive(Clone, Copy, Debug)]
pub struct EntryOverride<'o> {
    /// The attribute to compare.
    pub attribute: &'o str,
    /// The value that the attribute must have.
    pub value: &'o str,
    /// The limits, as in [`ParsedOverride::effect`].
    pub effect: &'o str,
    /// The expiry time.
    pub until: Option<&'o str>,
}

/// An override that was parsed separately and is valid for its rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedOverride {
    /// The attribute to compare: the given attribute, or the first attribute in the rule's `per`.
    pub attribute: String,
    /// The other keys of the override, as one line of JSON.
    pub effect: String,
    /// The expiry time.
    pub until: Option<String>,
}

/// Parses an override for one attribute value. `rule` is the rule as JSON. The text has the keys of an override in a
/// rule file, but no `when`. The text may also have the key `attribute`.
///
/// # Errors
/// Returns every mistake, with its line in the text.
pub fn parse_override_for_value(source: &Source<'_>, rule: &str, value: &str) -> Result<ParsedOverride, Mistakes> {
    let mut notes = MistakeCollector::new(source.name);
    let given = parse_override(source, rule, value, &mut notes);
    notes.finish().map_err(|found| found.with_snippets(std::slice::from_ref(source)))?;
    Ok(given.unwrap_or_else(|| ParsedOverride { attribute: String::new(), effect: "{}".into(), until: None }))
}

fn parse_override(
    source: &Source<'_>,
    rule: &str,
    value: &str,
    notes: &mut MistakeCollector,
) -> Option<ParsedOverride> {
    let mut given = text::parse_tree(source.text, notes)?;
    let position = given.position;
    let Value::Map(pairs) = &mut given.value else {
        notes.add_with_help(
            position,
            format!("an override must be a map, not {}", given.kind()),
            "write it like `limit: 1000/s`",
        );
        return None;
    };
    for (name, help) in [
        ("when", "the value is part of the URL; `attribute` names the attribute to compare"),
        ("set_by", "the rules service sets it"),
    ] {
        if let Some((key, _)) = pairs.iter().find(|(key, _)| is_text(key, name)) {
            notes.add_with_help(key.position, format!("`{name}` is not allowed here"), help);
        }
        pairs.retain(|(key, _)| !is_text(key, name));
    }
    let mut rule = text::parse_tree(rule.as_bytes(), notes)?;
    let attribute = match pairs.iter().position(|(key, _)| is_text(key, "attribute")) {
        Some(at) => match pairs.remove(at).1 {
            Node { value: Value::Text(name), .. } => name,
            other => {
                notes.add(other.position, format!("`attribute` must be a string, not {}", other.kind()));
                return None;
            }
        },
        None => first_counted_attribute(&rule, value, position, notes)?,
    };
    let effect =
        Node { position, value: Value::Map(pairs.iter().filter(|(key, _)| !is_text(key, "until")).cloned().collect()) };
    let until = text_at_key(&given, "until").map(str::to_owned);
    let whole = override_node(position, &attribute, value, given);
    // Only the new override is checked. The rule's own overrides were checked when the rule was stored.
    set_overrides(&mut rule, vec![whole]);
    check_tree(&file_node("domain", vec![rule]), notes);
    Some(ParsedOverride { attribute, effect: to_json_text(&effect), until })
}

/// Returns the first attribute in a rule's `per`, or reports that the override must name an attribute.
fn first_counted_attribute(
    rule: &Node,
    value: &str,
    position: Position,
    notes: &mut MistakeCollector,
) -> Option<String> {
    let rules: Rules = check_tree(&file_node("domain", vec![rule.clone()]), &mut MistakeCollector::new(""));
    let per = rules.domains().first().and_then(|domain| domain.rules().first()).map_or(&[][..], |rule| rule.per());
    let named = per.iter().flat_map(|counted| &counted.origins).find_map(|origin| match origin {
        Origin::Attribute(name) => Some(&**name),
        Origin::Capture { .. } => None,
    });
    let problem = match per.first().map(|counted| (&*counted.origins, &*counted.text)) {
        Some(([Origin::Attribute(name)], _)) => return Some(name.to_string()),
        Some(([] | [Origin::Capture { .. }], text)) => {
            format!("the rule counts first by `{text}`, a part of an attribute, which cannot be compared")
        }
        Some((_, text)) => {
            format!("the rule counts by `{text}`, so it is ambiguous whose value `{}` is", shorten(value))
        }
        None => "the rule has no `per`, so there is no attribute to compare".to_owned(),
    };
    let name = named.unwrap_or("tenant");
    let help = format!("name the attribute like `attribute: {name}`, on the command line `--attribute {name}`");
    notes.add_with_help(position, problem, help);
    None
}

/// Inserts overrides before the rule's own overrides and marks them as set through the API. Returns the rule as JSON.
///
/// # Errors
/// Returns the mistakes if an override is not valid for the rule.
pub fn with_overrides(rule: &str, overrides: &[EntryOverride<'_>]) -> Result<String, Mistakes> {
    let Some(mut tree) = parse_json_tree(rule)? else { return Ok(String::new()) };
    let mut nodes = Vec::with_capacity(overrides.len());
    for EntryOverride { attribute, value, effect, until } in overrides {
        let mut effect = parse_json_tree(effect)?.unwrap_or_else(|| map_node(Vec::new()));
        if let Value::Map(pairs) = &mut effect.value {
            pairs.extend(until.map(|until| (text_node(FIRST_POSITION, "until"), text_node(FIRST_POSITION, until))));
            pairs.push((text_node(FIRST_POSITION, "set_by"), text_node(FIRST_POSITION, "api")));
        }
        nodes.push(override_node(FIRST_POSITION, attribute, value, effect));
    }
    if let Some(Value::List(own)) = find_key(&tree, "overrides").map(|node| &node.value) {
        nodes.extend(own.iter().cloned());
    }
    set_overrides(&mut tree, nodes);
    let mut notes = MistakeCollector::new("rule");
    check_tree(&file_node("domain", vec![tree.clone()]), &mut notes);
    notes.finish()?;
    Ok(to_json_text(&tree))
}

/// Builds an override as it is written inside a rule.
fn override_node(position: Position, attribute: &str, value: &str, effect: Node) -> Node {
    let equals = Node { value: map_node(vec![("equals", text_node(position, value))]).value, position };
    let when = Node { value: Value::Map(vec![(text_node(position, attribute), equals)]), position };
    let mut pairs = vec![(text_node(position, "when"), when)];
    if let Value::Map(given) = effect.value {
        pairs.extend(given);
    }
    Node { position, value: Value::Map(pairs) }
}

fn set_overrides(rule: &mut Node, overrides: Vec<Node>) {
    let Value::Map(pairs) = &mut rule.value else { return };
    pairs.retain(|(key, _)| !is_text(key, "overrides"));
    pairs.push((
        text_node(FIRST_POSITION, "overrides"),
        Node { position: FIRST_POSITION, value: Value::List(overrides) },
    ));
}
