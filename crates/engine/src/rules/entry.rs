//! Reads and writes single rules, for a rule database.
//!
//! A rule is stored as one line of JSON. Its keys are in the same order as in a formatted rule file. Parsed trees
//! contain only strings, so a string that is a whole number or a boolean is written without quotes: both `200` and
//! `"200"` are stored as `200`. Parsing the JSON gives the same tree again. Rules that refer to value files are
//! refused, because a database contains no files.

mod overrides;

pub use overrides::{EntryOverride, ParsedOverride, parse_override_for_value, with_overrides};

use super::mistake::{MistakeCollector, Mistakes, Position};
use super::text::{self, Node, Value};
use super::write::{self, in_reference_order, write_quoted};
use super::{Rules, Source, check, import, raw};

/// A rule in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleEntry {
    /// The domain of the rule.
    pub domain: String,
    /// The id of the rule.
    pub id: String,
    /// The rule with its id, as one line of JSON.
    pub json: String,
}

/// Rule files that were checked together and split into entries.
#[derive(Debug)]
pub struct SplitFiles {
    /// The domains in the order in which they first occur, including domains without rules.
    pub domains: Vec<String>,
    /// The rules, in order.
    pub entries: Vec<RuleEntry>,
    /// The same rules in checked form.
    pub rules: Rules,
}

const FIRST_POSITION: Position = Position { line: 1, column: 1 };

const NO_FILES_MESSAGE: &str = "the rules service cannot read files; write the values into the rule";

/// Parses a rule whose keys are at the root of the text. The text may omit `id`. An `id` in the text must equal the
/// argument.
///
/// ```
/// use tollgate_engine::rules::{Source, entry};
///
/// let text = "burst: 200\nlimit: 100/s\nper: [client]";
/// let rule = entry::parse_rule(&Source { name: "rule", text: text.as_bytes() }, "api", "each")?;
/// assert_eq!(rule.json, r#"{"id":"each","per":["client"],"limit":"100/s","burst":200}"#);
/// # Ok::<(), tollgate_engine::rules::Mistakes>(())
/// ```
///
/// # Errors
/// Returns every mistake, with its line in the text.
pub fn parse_rule(source: &Source<'_>, domain: &str, id: &str) -> Result<RuleEntry, Mistakes> {
    let (entry, _) = parse_and_check_rule(source, domain, id)?;
    Ok(entry)
}

/// Like [`parse_rule`], but also returns the rule in checked form.
fn parse_and_check_rule(source: &Source<'_>, domain: &str, id: &str) -> Result<(RuleEntry, Rules), Mistakes> {
    let mut notes = MistakeCollector::new(source.name);
    let report =
        |notes: MistakeCollector| notes.finish().map_err(|found| found.with_snippets(std::slice::from_ref(source)));
    let Some(mut rule) = text::parse_tree(source.text, &mut notes) else {
        report(notes)?;
        return Ok((RuleEntry { domain: domain.into(), id: id.into(), json: String::new() }, Rules::default()));
    };
    insert_or_check_id(&mut rule, id, &mut notes);
    let tree = file_node(domain, vec![rule]);
    let rules = check_tree(&tree, &mut notes);
    report(notes)?;
    let json = rule_nodes(&tree).first().map(to_json_text).unwrap_or_default();
    Ok((RuleEntry { domain: domain.into(), id: id.into(), json }, rules))
}

/// Inserts `id` into a rule without an id; otherwise checks that the rule's id equals `id`.
fn insert_or_check_id(rule: &mut Node, id: &str, notes: &mut MistakeCollector) {
    let position = rule.position;
    let Value::Map(pairs) = &mut rule.value else { return };
    let given = pairs.iter().find(|(key, _)| is_text(key, "id"));
    match given {
        None => pairs.insert(0, (text_node(position, "id"), text_node(position, id))),
        Some((_, given)) if is_text(given, id) => {}
        Some((_, given)) => {
            let problem = format!("the `id` differs from the id `{}` in the URL", raw::shorten(id));
            notes.add_with_help(given.position, problem, "omit `id`, or write the same");
        }
    }
}

/// Checks files together and splits them into entries.
///
/// # Errors
/// Returns all mistakes in all files.
pub fn split_files(sources: &[Source<'_>]) -> Result<SplitFiles, Mistakes> {
    let (mut notes, mut left_out) = (MistakeCollector::new(""), MistakeCollector::new(""));
    let mut checker = check::Checker::new(&|_, _| Err(NO_FILES_MESSAGE.into()));
    let mut taken: Vec<(String, Vec<RuleEntry>)> = Vec::new();
    for source in sources {
        notes.set_file(source.name);
        left_out.set_file(source.name);
        let tree = text::parse_tree(source.text, &mut notes);
        let Some(tree) = tree.and_then(|tree| import::translate_if_envoy(tree, &mut notes, &mut left_out)) else {
            continue;
        };
        for domain in raw::read_domains(&tree, &mut notes) {
            checker.check_domain(&domain, &mut notes);
        }
        for domain in domain_nodes(&tree) {
            let name = text_at_key(domain, "domain").unwrap_or_default();
            let position = taken.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
                taken.push((name.into(), Vec::new()));
                taken.len() - 1
            });
            taken[position].1.extend(rule_nodes(domain).iter().map(|rule| RuleEntry {
                domain: name.into(),
                id: text_at_key(rule, "id").unwrap_or_default().into(),
                json: to_json_text(rule),
            }));
        }
    }
    let checked = checker.finish(&mut notes);
    notes.finish().map_err(|mistakes| mistakes.with_snippets(sources))?;
    let left_out = left_out.finish().err().map(|left_out| left_out.with_snippets(sources));
    let rules = Rules { domains: checked, left_out, hides_positions: false, is_partial: false };
    let (domains, entries): (Vec<String>, Vec<Vec<RuleEntry>>) = taken.into_iter().unzip();
    Ok(SplitFiles { domains, entries: entries.into_iter().flatten().collect(), rules })
}

/// Writes domains and their rules as one YAML rule file. Each rule is given as JSON.
///
/// # Errors
/// Returns an error if a rule is not an entry returned by [`parse_rule`] or [`split_files`].
pub fn to_yaml<'e, R>(domains: impl IntoIterator<Item = (&'e str, R)>) -> Result<String, Mistakes>
where
    R: IntoIterator<Item = &'e str>,
{
    let mut trees = Vec::new();
    for (domain, rules) in domains {
        let mut nodes = Vec::new();
        for rule in rules {
            nodes.extend(parse_json_tree(rule)?);
        }
        trees.push(file_node(domain, nodes));
    }
    let tree = match trees.len() {
        1 => trees.swap_remove(0),
        _ => map_node(vec![("domains", Node { position: FIRST_POSITION, value: Value::List(trees) })]),
    };
    Ok(write::write_file(&tree))
}

/// Writes a rule as YAML over several lines, for diffs.
///
/// # Errors
/// Returns an error if `json` is not an entry returned by [`parse_rule`] or [`split_files`].
pub fn rule_to_yaml(json: &str) -> Result<String, Mistakes> {
    Ok(parse_json_tree(json)?.map(|tree| write::write_file(&tree)).unwrap_or_default())
}

/// Writes domains and their rules as a rule file in one line of JSON. Each rule is given as JSON.
pub fn to_json<'e, R>(domains: impl IntoIterator<Item = (&'e str, R)>) -> String
where
    R: IntoIterator<Item = &'e str>,
{
    let mut out = String::from("{\"domains\":[");
    let mut begun = false;
    for (domain, rules) in domains {
        out.push_str(if begun { ",{\"domain\":" } else { "{\"domain\":" });
        begun = true;
        write_quoted(domain, &mut out);
        out.push_str(",\"rules\":[");
        for (position, rule) in rules.into_iter().enumerate() {
            if position > 0 {
                out.push(',');
            }
            out.push_str(rule);
        }
        out.push_str("]}");
    }
    if begun {
        out.push_str("]}");
        return out;
    }
    // An empty list of domains is invalid in a rule file, so write one domain without rules.
    r#"{"domain":"none","rules":[]}"#.into()
}

fn parse_json_tree(json: &str) -> Result<Option<Node>, Mistakes> {
    let mut notes = MistakeCollector::new("rule");
    let tree = text::parse_tree(json.as_bytes(), &mut notes);
    notes.finish()?;
    Ok(tree)
}

/// Checks the tree of a rule file.
fn check_tree(tree: &Node, notes: &mut MistakeCollector) -> Rules {
    let mut checker = check::Checker::new(&|_, _| Err(NO_FILES_MESSAGE.into()));
    for domain in raw::read_domains(tree, notes) {
        checker.check_domain(&domain, notes);
    }
    Rules { domains: checker.finish(notes), left_out: None, hides_positions: false, is_partial: false }
}

fn file_node(domain: &str, rules: Vec<Node>) -> Node {
    let position = rules.first().map_or(FIRST_POSITION, |rule| rule.position);
    map_node(vec![
        ("domain", text_node(FIRST_POSITION, domain)),
        ("rules", Node { position, value: Value::List(rules) }),
    ])
}

fn text_node(position: Position, text: &str) -> Node {
    Node { position, value: Value::Text(text.into()) }
}

fn map_node(pairs: Vec<(&str, Node)>) -> Node {
    let pairs = pairs.into_iter().map(|(key, value)| (text_node(FIRST_POSITION, key), value)).collect();
    Node { position: FIRST_POSITION, value: Value::Map(pairs) }
}

fn is_text(node: &Node, text: &str) -> bool {
    matches!(&node.value, Value::Text(written) if written == text)
}

fn find_key<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let Value::Map(pairs) = &node.value else { return None };
    pairs.iter().find(|(known, _)| is_text(known, key)).map(|(_, value)| value)
}

fn text_at_key<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    match &find_key(node, key)?.value {
        Value::Text(text) => Some(text),
        Value::Empty | Value::List(_) | Value::Map(_) => None,
    }
}

fn list_at_key<'n>(node: &'n Node, key: &str) -> &'n [Node] {
    match find_key(node, key).map(|node| &node.value) {
        Some(Value::List(nodes)) => nodes,
        Some(Value::Empty | Value::Text(_) | Value::Map(_)) | None => &[],
    }
}

fn domain_nodes(tree: &Node) -> &[Node] {
    if find_key(tree, "domains").is_some() { list_at_key(tree, "domains") } else { std::slice::from_ref(tree) }
}

fn rule_nodes(domain: &Node) -> &[Node] {
    list_at_key(domain, "rules")
}

fn to_json_text(node: &Node) -> String {
    let mut out = String::new();
    write_json(node, &mut out);
    out
}

fn write_json(node: &Node, out: &mut String) {
    match &node.value {
        Value::Empty => out.push_str("null"),
        Value::Text(text) if is_integer_or_boolean(text) => out.push_str(text),
        Value::Text(text) => write_quoted(text, out),
        Value::List(nodes) => {
            out.push('[');
            for (position, node) in nodes.iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                write_json(node, out);
            }
            out.push(']');
        }
        Value::Map(pairs) => {
            out.push('{');
            for (position, (key, value)) in in_reference_order(pairs).into_iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                match &key.value {
                    Value::Text(text) => write_quoted(text, out),
                    // Earlier checks ensure that keys are strings.
                    Value::Empty | Value::List(_) | Value::Map(_) => out.push_str("\"\""),
                }
                out.push(':');
                write_json(value, out);
            }
            out.push('}');
        }
    }
}

/// Returns whether a string is written without quotes: a boolean, or a canonical integer that every JSON parser
/// preserves exactly.
fn is_integer_or_boolean(text: &str) -> bool {
    const EXACT_JSON_INTEGERS: std::ops::RangeInclusive<i64> = -(1 << 53)..=1 << 53;
    let number =
        || text.parse::<i64>().is_ok_and(|number| EXACT_JSON_INTEGERS.contains(&number) && number.to_string() == text);
    text == "true" || text == "false" || number()
}

#[cfg(test)]
mod tests;
