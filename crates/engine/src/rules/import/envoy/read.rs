//! Parses files of the reference Envoy service and reports all mistakes.

use super::super::super::mistake::{MistakeCollector, Position};
use super::super::super::raw::shorten;
use super::super::super::suggest::suggest_valid;
use super::super::super::text::{Node, Value};

/// One level of the tree: a key, an optional value and limit, and the levels below.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) position: Position,
    pub(super) key: String,
    /// Matches any value if `None` or empty.
    pub(super) value: Option<String>,
    pub(super) limit: Option<RateLimit>,
    pub(super) share_threshold: bool,
    pub(super) below: Vec<Descriptor>,
    pub(super) metadata: Option<Node>,
}

#[derive(Debug)]
pub(super) struct RateLimit {
    pub(super) position: Position,
    pub(super) name: Option<String>,
    /// Names of limits that do not apply to requests that match this limit.
    pub(super) replaces: Vec<(Position, String)>,
    pub(super) shadow: bool,
    /// Position of `quota_mode`, if set. A request passes if any one of its matching limits with this mode admits it.
    pub(super) quota: Option<Position>,
    pub(super) allows: Allowance,
}

#[derive(Debug)]
pub(super) enum Allowance {
    Everything,
    Nothing,
    /// A count, and a period in the syntax of the rule language.
    Rate(u32, &'static str),
}

/// Settings of a descriptor that apply to its limit.
#[derive(Clone, Copy, Debug)]
struct LimitSettings {
    shadow: bool,
    quota: Option<Position>,
}

#[derive(Debug)]
pub(super) struct EnvoyFile {
    pub(super) domain: Node,
    pub(super) descriptors: Vec<Descriptor>,
}

/// Units, and their periods in the rule language. In the reference service, a month has 30 days and a year has 365
/// days.
const UNITS_AND_PERIODS: &[(&str, &str)] = &[
    ("second", "s"),
    ("minute", "m"),
    ("hour", "h"),
    ("day", "day"),
    ("week", "week"),
    ("month", "30days"),
    ("year", "365days"),
];

/// Maximum length of a key or value, the same as in rules.
const MAX_KEY_OR_VALUE_BYTES: usize = 1024;

const FILE_KEYS: &[&str] = &["domain", "descriptors"];
const DESCRIPTOR_KEYS: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const RATE_LIMIT_KEYS: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// Returns whether a file is written for the reference service.
pub(super) fn is_envoy_file(tree: &Node) -> bool {
    let named = |name: &str| matches!(&tree.value, Value::Map(pairs) if pairs.iter().any(|(key, _)| as_text(key) == Some(name)));
    named("descriptors") && !named("rules") && !named("domains")
}

/// Parses a file. Mistakes go to `notes`; settings that the import leaves out go to `left_out`.
pub(super) struct EnvoyParser<'n> {
    pub(super) notes: &'n mut MistakeCollector,
    pub(super) left_out: &'n mut MistakeCollector,
}

impl EnvoyParser<'_> {
    pub(super) fn read_file(&mut self, tree: &Node) -> Option<EnvoyFile> {
        let fields = self.known_fields(tree, "a file of the reference service", FILE_KEYS)?;
        let domain =
            find_field(&fields, "domain").filter(|(_, node)| as_text(node).is_some_and(|text| !text.is_empty()));
        if domain.is_none() {
            self.notes.add_with_help(tree.position, "missing `domain`", "add one like `domain: edge`");
        }
        let descriptors =
            find_field(&fields, "descriptors").map(|(_, node)| self.read_descriptors(node)).unwrap_or_default();
        Some(EnvoyFile { domain: domain?.1.clone(), descriptors })
    }

    fn read_descriptors(&mut self, node: &Node) -> Vec<Descriptor> {
        let nodes = match &node.value {
            Value::List(nodes) => nodes,
            Value::Empty => return Vec::new(),
            Value::Text(_) | Value::Map(_) => {
                let problem = format!("`descriptors` must be a list, not {}", node.kind());
                self.notes.add_with_help(node.position, problem, "begin each item with `- key: `");
                return Vec::new();
            }
        };
        let mut seen = std::collections::HashMap::new();
        let mut found = Vec::with_capacity(nodes.len());
        for node in nodes {
            let Some(descriptor) = self.read_descriptor(node) else { continue };
            let name = (descriptor.key.clone(), descriptor.value.clone());
            if let Some(Position { line, .. }) = seen.insert(name, descriptor.position) {
                let problem = "duplicate descriptor: same key and value";
                self.notes.add_with_help(descriptor.position, problem, format!("the first is in line {line}"));
            }
            found.push(descriptor);
        }
        found
    }

    fn read_descriptor(&mut self, node: &Node) -> Option<Descriptor> {
        let fields = self.known_fields(node, "a descriptor", DESCRIPTOR_KEYS)?;
        let key = self.text_field(&fields, "key").filter(|(_, key)| !key.is_empty());
        if key.is_none() {
            self.notes.add_with_help(node.position, "missing `key`", "add one like `key: remote_address`");
        }
        let value = self.text_field(&fields, "value").map(|(_, value)| value).filter(|value| !value.is_empty());
        let long = [key.as_ref().map(|(_, key)| key), value.as_ref()]
            .into_iter()
            .flatten()
            .any(|text| text.len() > MAX_KEY_OR_VALUE_BYTES);
        if long {
            self.notes.add(node.position, format!("key or value too long (maximum {MAX_KEY_OR_VALUE_BYTES} bytes)"));
            return None;
        }
        let share_threshold = self.position_if_true(&fields, "share_threshold");
        if let Some(position) = share_threshold.filter(|_| !value.as_ref().is_some_and(|value| value.contains('*'))) {
            self.notes.add(position, "`share_threshold` needs a value with a star");
        }
        let why = "metrics have no labels with values from requests; `/v1/top` lists the values that are charged most";
        for name in ["detailed_metric", "value_to_metric"] {
            if let Some(position) = self.position_if_true(&fields, name) {
                self.left_out.add_with_help(position, format!("`{name}` is not imported"), why);
            }
        }
        let settings = LimitSettings {
            shadow: self.position_if_true(&fields, "shadow_mode").is_some(),
            quota: self.position_if_true(&fields, "quota_mode"),
        };
        let limit = find_field(&fields, "rate_limit").and_then(|(_, node)| self.read_rate_limit(node, settings));
        let metadata = find_field(&fields, "metadata").map(|(_, node)| node.clone());
        let below = find_field(&fields, "descriptors").map(|(_, node)| self.read_descriptors(node)).unwrap_or_default();
        Some(Descriptor {
            position: node.position,
            key: key?.1,
            value,
            limit,
            share_threshold: share_threshold.is_some(),
            below,
            metadata: metadata.filter(|node| node.value != Value::Empty),
        })
    }

    fn read_rate_limit(&mut self, node: &Node, settings: LimitSettings) -> Option<RateLimit> {
        let LimitSettings { shadow, quota } = settings;
        if node.value == Value::Empty {
            return None;
        }
        let fields = self.known_fields(node, "`rate_limit`", RATE_LIMIT_KEYS)?;
        let name = self.text_field(&fields, "name").map(|(_, name)| name);
        let replaces = find_field(&fields, "replaces").map(|(_, node)| self.read_replaces(node, name.as_deref()));
        let replaces = replaces.unwrap_or_default();
        let unit = self.text_field(&fields, "unit");
        let count = self.text_field(&fields, "requests_per_unit");
        if self.position_if_true(&fields, "unlimited").is_some() {
            for (name, given) in [("unit", &unit), ("requests_per_unit", &count)] {
                if let Some((position, _)) = given {
                    self.notes.add(*position, format!("`{name}` and `unlimited` are mutually exclusive"));
                }
            }
            return Some(RateLimit {
                position: node.position,
                name,
                replaces,
                shadow,
                quota,
                allows: Allowance::Everything,
            });
        }
        let units: Vec<&str> = UNITS_AND_PERIODS.iter().map(|(unit, _)| *unit).collect();
        let Some((position, unit)) = unit else {
            self.notes.add_with_help(node.position, "missing `unit`", "add one like `unit: minute`");
            return None;
        };
        let period =
            UNITS_AND_PERIODS.iter().find(|(known, _)| unit.eq_ignore_ascii_case(known)).map(|(_, period)| *period);
        if period.is_none() {
            let problem = format!("`{}` is not a unit", shorten(&unit));
            self.notes.add_with_help(position, problem, suggest_valid(&unit.to_lowercase(), &units));
        }
        let Some((position, count)) = count else {
            let help = "add a number like `requests_per_unit: 10`";
            self.notes.add_with_help(node.position, "missing `requests_per_unit`", help);
            return None;
        };
        let Ok(count) = count.parse::<u32>() else {
            self.notes.add(position, format!("`{}` is not a number of requests", shorten(&count)));
            return None;
        };
        let allows = if count == 0 { Allowance::Nothing } else { Allowance::Rate(count, period?) };
        Some(RateLimit { position: node.position, name, replaces, shadow, quota, allows })
    }

    /// Reads the names of the limits that a limit replaces.
    fn read_replaces(&mut self, node: &Node, name: Option<&str>) -> Vec<(Position, String)> {
        let nodes = match &node.value {
            Value::List(nodes) => nodes,
            Value::Empty => return Vec::new(),
            Value::Text(_) | Value::Map(_) => {
                let help = "write it like `replaces: [{name: other}]`";
                self.notes.add_with_help(node.position, "`replaces` must be a list", help);
                return Vec::new();
            }
        };
        let mut replaced = Vec::with_capacity(nodes.len());
        for node in nodes {
            let Some(fields) = self.known_fields(node, "an entry of `replaces`", &["name"]) else { continue };
            match self.text_field(&fields, "name") {
                Some((_, other)) if Some(&*other) == name => {
                    self.notes.add(node.position, "a limit cannot replace itself");
                }
                Some((position, other)) if !other.is_empty() => replaced.push((position, other)),
                _ => self.notes.add(node.position, "missing `name` in an entry of `replaces`"),
            }
        }
        replaced
    }

    /// Returns the known keys of a map with their values, and reports the other keys.
    fn known_fields<'t>(
        &mut self,
        node: &'t Node,
        what: &str,
        valid: &[&str],
    ) -> Option<Vec<(Position, &'t str, &'t Node)>> {
        let Value::Map(pairs) = &node.value else {
            self.notes.add(node.position, format!("{what} must be a map, not {}", node.kind()));
            return None;
        };
        let mut known = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            match as_text(key) {
                Some(name) if valid.contains(&name) => known.push((key.position, name, value)),
                Some(name) => {
                    let problem = format!("`{}` is not a key of {what}", shorten(name));
                    self.notes.add_with_help(key.position, problem, suggest_valid(name, valid));
                }
                None => self.notes.add(key.position, format!("a key of {what} must be a string, not {}", key.kind())),
            }
        }
        Some(known)
    }

    fn text_field(&mut self, fields: &[(Position, &str, &Node)], name: &str) -> Option<(Position, String)> {
        let (_, node) = find_field(fields, name)?;
        if node.value == Value::Empty {
            return None;
        }
        if as_text(node).is_none() {
            self.notes.add(node.position, format!("`{name}` must be a string or a number, not {}", node.kind()));
        }
        as_text(node).map(|text| (node.position, text.to_owned()))
    }

    /// Returns the position of the key `name` if its value is `true`.
    fn position_if_true(&mut self, fields: &[(Position, &str, &Node)], name: &str) -> Option<Position> {
        let (position, boolean) = self.text_field(fields, name)?;
        match &*boolean {
            "true" => Some(position),
            "false" => None,
            other => {
                let problem = format!("`{}` is neither true nor false", shorten(other));
                self.notes.add_with_help(position, problem, "write `true` or `false`");
                None
            }
        }
    }
}

fn find_field<'t>(fields: &[(Position, &str, &'t Node)], name: &str) -> Option<(Position, &'t Node)> {
    fields.iter().find(|(_, key, _)| *key == name).map(|(position, _, node)| (*position, *node))
}

fn as_text(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Text(text) => Some(text),
        Value::Empty | Value::List(_) | Value::Map(_) => None,
    }
}
