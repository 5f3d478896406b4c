//! Reads rule files as written. Checks the keys; the values remain strings.

mod condition;
mod fields;
mod limits;

use super::keys;
use super::metadata::Metadata;
use super::mistake::{MistakeCollector, Position};
use super::text::{Node, Value};
use condition::read_when;
pub(crate) use condition::{MatchKind, RawAttributeCondition, RawValues};
pub(crate) use fields::RawMap;
use fields::{Fields, KeyHint, read_list, read_text};
use limits::read_effect;
pub(crate) use limits::{RawEffect, RawLimit};

/// A string and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawText {
    pub(crate) position: Position,
    pub(crate) text: String,
}

#[derive(Debug)]
pub(crate) struct RawDomain {
    pub(crate) name: Option<RawText>,
    pub(crate) rules: Vec<RawRule>,
}

#[derive(Debug)]
pub(crate) struct RawRule {
    pub(crate) position: Position,
    /// Whether a mistake was reported while this rule was read.
    pub(crate) has_mistakes: bool,
    pub(crate) id: Option<RawText>,
    /// Whether an unknown key was probably meant to be the id.
    pub(crate) has_id_typo: bool,
    pub(crate) when: Vec<(RawText, RawAttributeCondition)>,
    pub(crate) expression: Option<RawText>,
    pub(crate) only: Vec<RawText>,
    pub(crate) per: Vec<RawText>,
    pub(crate) effect: RawEffect,
    pub(crate) overrides: Vec<RawOverride>,
    pub(crate) replaces: Vec<RawText>,
    pub(crate) suffices: Option<RawText>,
    pub(crate) postpaid: Option<RawText>,
    pub(crate) cost: Option<RawCost>,
    pub(crate) on_exceed: Option<RawExceed>,
    pub(crate) on_fault: Option<RawText>,
    pub(crate) consistency: Option<RawText>,
    pub(crate) sync_every: Option<RawText>,
    pub(crate) on_change: Option<RawText>,
    pub(crate) enforce: Option<RawText>,
    pub(crate) ban: Option<RawMap>,
    pub(crate) schedule: Vec<RawMap>,
    pub(crate) status: Option<RawText>,
    pub(crate) message: Option<RawText>,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) invalid: Option<RawText>,
}

/// An override: other limits for some requests.
#[derive(Debug)]
pub(crate) struct RawOverride {
    pub(crate) position: Position,
    pub(crate) when: Vec<(RawText, RawAttributeCondition)>,
    pub(crate) effect: RawEffect,
    pub(crate) until: Option<RawText>,
    pub(crate) set_by: Option<RawText>,
}

#[derive(Debug)]
pub(crate) enum RawCost {
    Fixed(RawText),
    From(RawMap),
    Cases(Vec<RawCostCase>),
}

/// A case of `cost`: the cost of some requests.
#[derive(Debug)]
pub(crate) struct RawCostCase {
    pub(crate) position: Position,
    pub(crate) when: Vec<(RawText, RawAttributeCondition)>,
    pub(crate) cost: Option<RawText>,
}

#[derive(Debug)]
pub(crate) enum RawExceed {
    Word(RawText),
    Delay(RawMap),
}

/// Reads the domains of a file. Parts with mistakes are reported and left out.
pub(crate) fn read_domains(tree: &Node, notes: &mut MistakeCollector) -> Vec<RawDomain> {
    if tree.value == Value::Empty {
        notes.add_with_help(tree.position, "the file is empty", "begin with `domain: NAME` and `rules:`");
        return Vec::new();
    }
    let Some(fields) = Fields::from_node(tree, "a rule file", &[keys::FILE_KEYS], notes) else { return Vec::new() };
    let Some((_, domains)) = fields.find("domains") else {
        return vec![read_domain(tree.position, &fields, notes)];
    };
    for other in keys::DOMAIN_KEYS {
        if let Some((position, _)) = fields.find(other.name) {
            let problem = format!("`{}` and `domains` are mutually exclusive", other.name);
            notes.add_with_help(position, problem, "move it into an element of `domains`");
        }
    }
    let Some(domains) = read_list(domains, "`domains`", notes) else { return Vec::new() };
    let domains = domains.iter().filter_map(|node| {
        let fields = Fields::from_node(node, "a domain", &[keys::DOMAIN_KEYS], notes)?;
        Some(read_domain(node.position, &fields, notes))
    });
    domains.collect()
}

fn read_domain(position: Position, fields: &Fields<'_>, notes: &mut MistakeCollector) -> RawDomain {
    let name = fields.text("domain", notes);
    if fields.find("domain").is_none() {
        notes.add_with_help(position, "missing `domain`", "add one like `domain: api`");
    }
    let rules = match fields.find("rules") {
        Some((_, node)) => read_list(node, "`rules`", notes).unwrap_or_default(),
        None => {
            notes.add_with_help(position, "missing `rules`", "for an empty list write `rules: []`");
            &[]
        }
    };
    RawDomain { name, rules: rules.iter().filter_map(|node| read_rule(node, notes)).collect() }
}

fn read_rule(node: &Node, notes: &mut MistakeCollector) -> Option<RawRule> {
    let before = notes.count();
    let tables = [keys::RULE_KEYS, keys::LIMIT_KEYS, keys::LIMIT_OPTIONS];
    let fields = Fields::from_node_with_hints(node, "a rule", &tables, &unknown_key_hint, notes)?;
    let effect = read_effect(node.position, &fields, None, notes);
    let overrides =
        fields.find("overrides").and_then(|(_, node)| read_list(node, "`overrides`", notes)).unwrap_or_default();
    let base = effect.limits.first().filter(|_| effect.limits.len() == 1);
    let rule = RawRule {
        position: node.position,
        has_mistakes: false,
        id: fields.text("id", notes),
        has_id_typo: fields.has_misspelling_of(&["id"]),
        when: fields.find("when").map(|(_, node)| read_when(node, notes)).unwrap_or_default(),
        expression: fields.text("if", notes),
        only: fields.texts("only", notes),
        per: fields.texts("per", notes),
        overrides: overrides.iter().filter_map(|node| read_override(node, base, notes)).collect(),
        effect,
        replaces: fields.texts("replaces", notes),
        suffices: fields.text("suffices", notes),
        postpaid: fields.text("postpaid", notes),
        cost: fields.find("cost").and_then(|(_, node)| read_cost(node, notes)),
        on_exceed: fields.find("on_exceed").and_then(|(_, node)| read_exceed(node, notes)),
        on_fault: fields.text("on_fault", notes),
        consistency: fields.text("consistency", notes),
        sync_every: fields.text("sync_every", notes),
        on_change: fields.text("on_change", notes),
        enforce: fields.text("enforce", notes),
        ban: fields.find("ban").and_then(|(_, node)| RawMap::read(node, "`ban`", keys::BAN_KEYS, BAN_EXAMPLE, notes)),
        schedule: fields.find("schedule").map(|(_, node)| read_schedule(node, notes)).unwrap_or_default(),
        status: fields.text("status", notes),
        message: fields.text("message", notes),
        metadata: fields.find("metadata").and_then(|(_, node)| Metadata::read(node, notes)),
        invalid: fields.text("invalid", notes),
    };
    Some(RawRule { has_mistakes: notes.count() > before, ..rule })
}

fn read_override(node: &Node, base: Option<&RawLimit>, notes: &mut MistakeCollector) -> Option<RawOverride> {
    let tables = [keys::OVERRIDE_KEYS, keys::LIMIT_KEYS, keys::LIMIT_OPTIONS];
    let fields = Fields::from_node_with_hints(node, "an override", &tables, &misplaced_rule_key_hint, notes)?;
    Some(RawOverride {
        position: node.position,
        when: fields.find("when").map(|(_, node)| read_when(node, notes)).unwrap_or_default(),
        effect: read_effect(node.position, &fields, base, notes),
        until: fields.text("until", notes),
        set_by: fields.text("set_by", notes),
    })
}

/// Returns help for a key that belongs in a rule but was written in an override. Such a key may explain why the
/// override has no limit.
fn misplaced_rule_key_hint(key: &str) -> Option<KeyHint> {
    let help = match key {
        "cost" => {
            "an override changes only limits; write costs of some requests in the rule, like \
             `cost: [{when: {path: /export}, cost: 50}]`"
        }
        "allow" => "for no limit write `unlimited: true`",
        _ if keys::RULE_KEYS.iter().any(|known| known.name == key) => {
            "an override changes only limits; write this in the rule, for all requests"
        }
        _ => return None,
    };
    Some(KeyHint { help, word: Some("limit") })
}

/// Returns help for plausible keys that do not exist.
fn unknown_key_hint(key: &str) -> Option<KeyHint> {
    let help = match key {
        "period" | "window" | "interval" | "unit" | "duration" => {
            "the period is part of the limit, like `limit: 100/day` or `limit: 5 per 15 minutes`"
        }
        "enabled" | "disabled" | "active" => {
            "every rule in a file is in force; on a server with a rules database use `tollgate rules disable`"
        }
        "comment" | "comments" | "description" | "note" => "write comments after `#`",
        _ => return None,
    };
    Some(KeyHint { help, word: None })
}

fn read_cost(node: &Node, notes: &mut MistakeCollector) -> Option<RawCost> {
    match &node.value {
        Value::Map(_) => RawMap::read(node, "`cost`", keys::COST_KEYS, COST_EXAMPLE, notes).map(RawCost::From),
        Value::List(cases) => {
            Some(RawCost::Cases(cases.iter().filter_map(|node| read_cost_case(node, notes)).collect()))
        }
        Value::Text(_) | Value::Empty => read_text(node, "`cost`", notes).map(RawCost::Fixed),
    }
}

fn read_cost_case(node: &Node, notes: &mut MistakeCollector) -> Option<RawCostCase> {
    let fields = Fields::from_node(node, "a case of `cost`", &[keys::COST_CASE_KEYS], notes)?;
    let when = fields.find("when").map(|(_, node)| read_when(node, notes)).unwrap_or_default();
    if fields.find("cost").is_none() {
        notes.add_with_help(
            node.position,
            "a case of `cost` needs `cost`",
            "write it like `{when: {path: /export}, cost: 50}`",
        );
    }
    Some(RawCostCase { position: node.position, when, cost: fields.text("cost", notes) })
}

/// Reads `on_exceed`: a word, or a map with the single key `delay`.
fn read_exceed(node: &Node, notes: &mut MistakeCollector) -> Option<RawExceed> {
    let Value::Map(pairs) = &node.value else { return read_text(node, "`on_exceed`", notes).map(RawExceed::Word) };
    let [(key, delay)] = &**pairs else {
        notes.add_with_help(node.position, "`on_exceed` must be a word or a delay", ON_EXCEED_HELP);
        return None;
    };
    if !matches!(&key.value, Value::Text(text) if text == "delay") {
        notes.add_with_help(key.position, "`on_exceed` must be a word or a delay", ON_EXCEED_HELP);
        return None;
    }
    RawMap::read(delay, "`delay`", keys::DELAY_KEYS, DELAY_EXAMPLE, notes).map(RawExceed::Delay)
}

const BAN_EXAMPLE: &str = "ban: {after: 20, within: 10m, for: 1h}";
const COST_EXAMPLE: &str = "cost: {from: bytes, max: 100k}";
const DELAY_EXAMPLE: &str = "on_exceed: {delay: {max_wait: 2s}}";
const SCHEDULE_EXAMPLE: &str = "schedule: {days: [mon, fri], from: '09:00', to: '17:00', zone: Europe/Paris}";
const ON_EXCEED_HELP: &str = "write `deny`, `shadow`, `drop` or `{ delay: { max_wait: 2s } }`";

fn read_schedule(node: &Node, notes: &mut MistakeCollector) -> Vec<RawMap> {
    let read = |node: &Node, notes: &mut MistakeCollector| {
        RawMap::read(node, "`schedule`", keys::SCHEDULE_KEYS, SCHEDULE_EXAMPLE, notes)
    };
    match &node.value {
        Value::List(nodes) => nodes.iter().filter_map(|node| read(node, notes)).collect(),
        Value::Map(_) | Value::Text(_) | Value::Empty => read(node, notes).into_iter().collect(),
    }
}

/// Shortens a string for quotation in a message.
pub(crate) fn shorten(text: &str) -> String {
    const MAX_QUOTED_CHARS: usize = 60;
    if text.chars().count() <= MAX_QUOTED_CHARS {
        return text.into();
    }
    text.chars().take(MAX_QUOTED_CHARS).chain(['…']).collect()
}
