//! What was written, by name: keys are known or refused here, values are still text.

use super::mistake::{Notes, Place};
use super::text::{Node, Value};
use super::words::{listed, valid_instead};

/// A text and where it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) place: Place,
    pub(crate) text: String,
}

/// Rules under one name.
#[derive(Debug)]
pub(crate) struct RawDomain {
    pub(crate) name: Option<Placed>,
    pub(crate) rules: Vec<RawRule>,
}

#[derive(Debug)]
pub(crate) struct RawRule {
    pub(crate) place: Place,
    pub(crate) id: Option<Placed>,
    pub(crate) when: Vec<(Placed, RawTest)>,
    pub(crate) per: Vec<Placed>,
    pub(crate) limits: Vec<RawLimit>,
    pub(crate) unlimited: Option<Placed>,
    pub(crate) cost: Option<Placed>,
    pub(crate) on_exceed: Option<Placed>,
    pub(crate) on_fault: Option<Placed>,
}

/// What an attribute must be.
#[derive(Debug)]
pub(crate) enum RawTest {
    /// One of these texts or patterns.
    AnyOf(Vec<Placed>),
    /// One of these texts, stars included.
    Equals(Vec<Placed>),
    Present(Placed),
}

/// A limit with its options, by name.
#[derive(Debug)]
pub(crate) struct RawLimit {
    pub(crate) place: Place,
    pub(crate) limit: Option<Placed>,
    pub(crate) algorithm: Option<Placed>,
    pub(crate) options: Vec<(&'static str, Placed)>,
}

const FILE_KEYS: &[&str] = &["domain", "rules", "domains"];
const DOMAIN_KEYS: &[&str] = &["domain", "rules"];
const RULE_KEYS: &[&str] =
    &["id", "when", "per", "limit", "limits", "unlimited", "cost", "on_exceed", "on_fault", "algorithm"];
const LIMIT_KEYS: &[&str] = &["limit", "algorithm"];
const TEST_KEYS: &[&str] = &["present", "equals", "any_of"];
/// What any algorithm may be told; which of them takes which is checked with the values.
pub(crate) const OPTION_KEYS: &[&str] = &[
    "burst",
    "free",
    "max_wait",
    "phase",
    "offset",
    "precision",
    "minimum_gap",
    "count_refused",
    "lease",
    "initial",
    "max_debt",
];

/// The domains of a file. What is out of place is noted and left out.
pub(crate) fn read(tree: &Node, notes: &mut Notes) -> Vec<RawDomain> {
    if tree.value == Value::Empty {
        notes.add_with_help(tree.place, "the file is empty", "begin with `domain: NAME` and `rules:`");
        return Vec::new();
    }
    let Some(fields) = Fields::of(tree, "a rule file", &[FILE_KEYS], notes) else { return Vec::new() };
    let Some((key, domains)) = fields.find("domains") else {
        return vec![read_domain(tree.place, &fields, notes)];
    };
    for other in DOMAIN_KEYS {
        if let Some((place, _)) = fields.find(other) {
            notes.add_with_help(place, format!("`{other}` and `domains` exclude each other"), "put it into the list");
        }
    }
    let Some(domains) = list(domains, "`domains`", notes) else { return Vec::new() };
    if domains.is_empty() {
        notes.add(key, "`domains` is empty");
    }
    let domains = domains.iter().filter_map(|node| {
        let fields = Fields::of(node, "a domain", &[DOMAIN_KEYS], notes)?;
        Some(read_domain(node.place, &fields, notes))
    });
    domains.collect()
}

fn read_domain(place: Place, fields: &Fields<'_>, notes: &mut Notes) -> RawDomain {
    let name = fields.text("domain", notes);
    if fields.find("domain").is_none() {
        notes.add_with_help(place, "there is no `domain`", "rules belong to one; name it like `domain: api`");
    }
    let rules = match fields.find("rules") {
        Some((_, node)) => list(node, "`rules`", notes).unwrap_or_default(),
        None => {
            notes.add_with_help(place, "there are no `rules`", "an empty list is written `rules: []`");
            &[]
        }
    };
    RawDomain { name, rules: rules.iter().filter_map(|node| read_rule(node, notes)).collect() }
}

fn read_rule(node: &Node, notes: &mut Notes) -> Option<RawRule> {
    let fields = Fields::of(node, "a rule", &[RULE_KEYS, OPTION_KEYS], notes)?;
    Some(RawRule {
        place: node.place,
        id: fields.text("id", notes),
        when: fields.find("when").map(|(_, node)| read_when(node, notes)).unwrap_or_default(),
        per: fields.texts("per", notes),
        limits: read_limits(&fields, notes),
        unlimited: fields.text("unlimited", notes),
        cost: fields.text("cost", notes),
        on_exceed: fields.text("on_exceed", notes),
        on_fault: fields.text("on_fault", notes),
    })
}

fn read_when(node: &Node, notes: &mut Notes) -> Vec<(Placed, RawTest)> {
    let pairs = match &node.value {
        Value::Map(pairs) => pairs,
        Value::Empty => return Vec::new(),
        Value::Text(_) | Value::List(_) => {
            let help = "write it like `when: { path: \"/v1/**\", method: [GET, POST] }`";
            notes.add_with_help(node.place, format!("`when` is a map of attributes, this is {}", node.kind()), help);
            return Vec::new();
        }
    };
    let tests = pairs.iter().filter_map(|(key, value)| {
        let attribute = text(key, "the name of an attribute", notes);
        Some((attribute?, read_test(value, notes)?))
    });
    tests.collect()
}

fn read_test(node: &Node, notes: &mut Notes) -> Option<RawTest> {
    let pairs = match &node.value {
        Value::Text(_) | Value::List(_) => return Some(RawTest::AnyOf(texts(node, "a value", notes))),
        Value::Map(pairs) => pairs,
        Value::Empty => {
            let help = "an empty text is written `\"\"`, any value `{ present: true }`";
            notes.add_with_help(node.place, "there is no value to compare with", help);
            return None;
        }
    };
    let fields = Fields::of(node, "a condition", &[TEST_KEYS], notes)?;
    if pairs.len() != 1 {
        let count = pairs.len();
        notes.add_with_help(node.place, format!("a condition has one key, this has {count}"), listed_keys(TEST_KEYS));
        return None;
    }
    if let Some((_, node)) = fields.find("equals") {
        return Some(RawTest::Equals(texts(node, "`equals`", notes)));
    }
    if let Some((_, node)) = fields.find("any_of") {
        return Some(RawTest::AnyOf(texts(node, "`any_of`", notes)));
    }
    fields.text("present", notes).map(RawTest::Present)
}

fn listed_keys(keys: &[&str]) -> String {
    format!("valid are {}", listed(keys))
}

fn read_limits(fields: &Fields<'_>, notes: &mut Notes) -> Vec<RawLimit> {
    let beside: Vec<(Place, &str)> = OPTION_KEYS
        .iter()
        .chain(&["algorithm"])
        .filter_map(|name| fields.find(name).map(|(place, _)| (place, *name)))
        .collect();
    let one = fields.find("limit");
    let Some((place, several)) = fields.find("limits") else {
        return match one {
            Some((_, node)) if matches!(node.value, Value::Map(_)) => {
                stray_options(&beside, "`limit`", notes);
                read_limit(node, notes).into_iter().collect()
            }
            Some((place, _)) => vec![RawLimit {
                place,
                limit: fields.text("limit", notes),
                algorithm: fields.text("algorithm", notes),
                options: read_options(fields, notes),
            }],
            None => {
                for (place, name) in beside {
                    notes.add_with_help(place, format!("`{name}` without a `limit`"), "add one like `limit: 100/s`");
                }
                Vec::new()
            }
        };
    };
    if one.is_some() {
        notes.add_with_help(place, "`limit` and `limits` exclude each other", "put all of them into `limits`");
    }
    stray_options(&beside, "`limits`", notes);
    let Some(several) = list(several, "`limits`", notes) else { return Vec::new() };
    if several.is_empty() {
        notes.add_with_help(place, "`limits` is empty", "for no limit at all write `unlimited: true`");
    }
    several.iter().filter_map(|node| read_limit(node, notes)).collect()
}

fn stray_options(beside: &[(Place, &str)], list: &str, notes: &mut Notes) {
    for (place, name) in beside {
        let help = format!("put it into the map in {list} that it is for");
        notes.add_with_help(*place, format!("`{name}` beside {list} belongs to none of them"), help);
    }
}

/// One of several: a map, or the rate alone.
fn read_limit(node: &Node, notes: &mut Notes) -> Option<RawLimit> {
    if let Value::Text(_) = node.value {
        let limit = text(node, "a limit", notes);
        return Some(RawLimit { place: node.place, limit, algorithm: None, options: Vec::new() });
    }
    let fields = Fields::of(node, "a limit", &[LIMIT_KEYS, OPTION_KEYS], notes)?;
    Some(RawLimit {
        place: node.place,
        limit: fields.text("limit", notes),
        algorithm: fields.text("algorithm", notes),
        options: read_options(&fields, notes),
    })
}

fn read_options(fields: &Fields<'_>, notes: &mut Notes) -> Vec<(&'static str, Placed)> {
    OPTION_KEYS.iter().filter_map(|name| Some((*name, fields.text(name, notes)?))).collect()
}

/// The pairs of a map whose keys are all known.
struct Fields<'n> {
    pairs: Vec<(Place, &'n str, &'n Node)>,
}

impl<'n> Fields<'n> {
    /// Notes keys that are in none of the tables, with the word that was probably meant.
    fn of(node: &'n Node, what: &str, tables: &[&[&str]], notes: &mut Notes) -> Option<Self> {
        let valid = tables.concat();
        let Value::Map(pairs) = &node.value else {
            let help = format!("its keys are {}", listed(&valid));
            notes.add_with_help(node.place, format!("{what} is a map, this is {}", node.kind()), help);
            return None;
        };
        let mut known = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let Some(name) = text_of(key) else {
                notes.add(key.place, format!("a key of {what} is a text, this is {}", key.kind()));
                continue;
            };
            if valid.contains(&name) {
                known.push((key.place, name, value));
            } else {
                let problem = format!("`{}` is not a key of {what}", shorten(name));
                notes.add_with_help(key.place, problem, valid_instead(name, &valid));
            }
        }
        Some(Self { pairs: known })
    }

    /// The place of a key and its value.
    fn find(&self, name: &str) -> Option<(Place, &'n Node)> {
        self.pairs.iter().find(|(_, key, _)| *key == name).map(|(place, _, node)| (*place, *node))
    }

    fn text(&self, name: &str, notes: &mut Notes) -> Option<Placed> {
        self.find(name).and_then(|(_, node)| text(node, &format!("`{name}`"), notes))
    }

    fn texts(&self, name: &str, notes: &mut Notes) -> Vec<Placed> {
        self.find(name).map(|(_, node)| texts(node, &format!("`{name}`"), notes)).unwrap_or_default()
    }
}

fn list<'n>(node: &'n Node, what: &str, notes: &mut Notes) -> Option<&'n [Node]> {
    match &node.value {
        Value::List(nodes) => Some(nodes),
        Value::Empty => Some(&[]),
        Value::Text(_) | Value::Map(_) => {
            notes.add_with_help(
                node.place,
                format!("{what} is a list, this is {}", node.kind()),
                "begin each with `- `",
            );
            None
        }
    }
}

/// A list of texts, or a single one.
fn texts(node: &Node, what: &str, notes: &mut Notes) -> Vec<Placed> {
    match &node.value {
        Value::List(nodes) => nodes.iter().filter_map(|node| text(node, what, notes)).collect(),
        Value::Empty => Vec::new(),
        Value::Text(_) | Value::Map(_) => text(node, what, notes).into_iter().collect(),
    }
}

fn text(node: &Node, what: &str, notes: &mut Notes) -> Option<Placed> {
    match text_of(node) {
        Some(text) => Some(Placed { place: node.place, text: text.into() }),
        None => {
            notes.add(node.place, format!("{what} is a text or a number, this is {}", node.kind()));
            None
        }
    }
}

fn text_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Text(text) => Some(text),
        Value::Empty | Value::List(_) | Value::Map(_) => None,
    }
}

/// So much of a text as belongs into a message.
pub(crate) fn shorten(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() <= LONGEST {
        return text.into();
    }
    text.chars().take(LONGEST).chain(['…']).collect()
}
