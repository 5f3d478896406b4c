//! Imports files of the reference Envoy rate-limit service.
//!
//! In that service, a request has descriptors, and a descriptor is an ordered list of entries. The entries select a
//! path through the descriptor tree of the file. The descriptor matches at most one limit: the limit at the end of that
//! path. At each level, the most specific child is selected: the same value, else the first matching value with stars,
//! else the key without a value. There is no backtracking.
//!
//! Each limit becomes one self-contained rule:
//!
//! | Envoy | rule |
//! |---|---|
//! | the entries and their order | `only` |
//! | the second entry with the same key | its name with a number: `header_match#2` |
//! | a value | a condition with that value |
//! | a value with stars | a condition with patterns or a prefix |
//! | a more specific sibling | its values are excluded: `not`, or an override without a limit |
//! | no value, or a value with stars: one counter per value | `per`, unless `share_threshold` is set |
//! | a count per unit | `fixed_window` |
//! | 0 per unit | `deny` |
//! | `shadow_mode` | `on_exceed: shadow` |
//! | `name` | the rule's `id`; without a `name`, the path as in the metrics of the reference service |
//! | `replaces` | `replaces`, with the ids of all rules of that name |
//! | `quota_mode` | `suffices` |
//! | `metadata` | `metadata` |
//!
//! In both systems, all descriptors of a request are matched before any limit is charged, and a replaced limit still
//! replaces other limits.

mod pattern;
mod read;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::super::mistake::{MistakeCollector, Position};
use super::super::numbered_name::split_numbered_name;
use super::super::raw::shorten;
use super::super::text::{Node, Value};
use super::build::{list_node, make_unused_id, map_node, text_node};
use pattern::{DescriptorValue, Exclusion};
use read::{Allowance, Descriptor, EnvoyParser, RateLimit};

/// Maximum number of values with stars under one key. Each value is compared with all earlier values.
const MAX_STARRED_VALUES: usize = 256;
/// Maximum number of conditions in all rules together. The number can be large, because exclusions are repeated at
/// every lower level.
const MAX_CONDITIONS: usize = 1_000_000;

/// Returns whether a file is written for the reference service.
pub(super) fn is_envoy_file(tree: &Node) -> bool {
    read::is_envoy_file(tree)
}

/// Converts a file to the rule language. Returns `None` if the file cannot be read.
pub(super) fn convert(tree: &Node, notes: &mut MistakeCollector, left_out: &mut MistakeCollector) -> Option<Node> {
    let file = EnvoyParser { notes, left_out }.read_file(tree)?;
    let mut converter = Converter {
        notes,
        left_out,
        used_ids: HashSet::new(),
        condition_count: 0,
        has_reported_excess: false,
        rules: Vec::new(),
        ids_by_limit_name: HashMap::new(),
        replacing_rules: Vec::new(),
    };
    converter.convert_level(&file.descriptors, &mut Vec::new());
    converter.add_replaces();
    let rules = converter.rules;
    Some(map_node(tree.position, vec![("domain", file.domain), ("rules", list_node(tree.position, rules))]))
}

struct Converter<'n, 'd> {
    notes: &'n mut MistakeCollector,
    left_out: &'n mut MistakeCollector,
    used_ids: HashSet<String>,
    condition_count: usize,
    has_reported_excess: bool,
    rules: Vec<Node>,
    /// Rule ids by the name of their limit.
    ids_by_limit_name: HashMap<&'d str, Vec<String>>,
    /// For each rule that replaces other rules: its index and its limit.
    replacing_rules: Vec<(usize, &'d RateLimit)>,
}

/// A level on the path to a limit.
struct PathLevel<'d> {
    descriptor: &'d Descriptor,
    values: DescriptorValue<'d>,
    /// The values of more specific siblings.
    excluded: Vec<DescriptorValue<'d>>,
}

impl<'d> Converter<'_, 'd> {
    fn convert_level(&mut self, descriptors: &'d [Descriptor], path: &mut Vec<PathLevel<'d>>) {
        let mut siblings: HashMap<&str, Vec<(usize, DescriptorValue<'d>)>> = HashMap::new();
        for (position, descriptor) in descriptors.iter().enumerate() {
            let values = DescriptorValue::new(descriptor.value.as_deref());
            siblings.entry(&descriptor.key).or_default().push((position, values));
        }
        let starred = |(_, values): &&(usize, DescriptorValue<'_>)| matches!(values, DescriptorValue::Starred(_));
        for (key, siblings) in &siblings {
            if let Some((position, _)) = siblings.iter().filter(starred).nth(MAX_STARRED_VALUES) {
                let problem = format!("too many values with stars for `{key}` (maximum {MAX_STARRED_VALUES})");
                self.notes.add(descriptors[*position].position, problem);
                return;
            }
        }
        for (position, descriptor) in descriptors.iter().enumerate() {
            let values = DescriptorValue::new(descriptor.value.as_deref());
            let excluded = more_specific_siblings(&siblings[&*descriptor.key], position, values);
            if excluded.iter().any(|values| values.is_everything()) {
                let problem = "this descriptor never matches and is left out";
                let why = format!("another descriptor matches every value of `{}`", descriptor.key);
                self.left_out.add_with_help(descriptor.position, problem, why);
                continue;
            }
            path.push(PathLevel { descriptor, values, excluded });
            if let Some(limit) = &descriptor.limit {
                self.add_limit(limit, path);
            }
            self.convert_level(&descriptor.below, path);
            path.pop();
        }
    }

    /// Adds a rule for a limit, or reports that the limit cannot be imported.
    fn add_limit(&mut self, limit: &'d RateLimit, path: &[PathLevel<'d>]) {
        let named = limit.name.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| path_name(path));
        self.condition_count += path.iter().map(|step| 1 + step.excluded.len()).sum::<usize>();
        if self.condition_count > MAX_CONDITIONS {
            // Report this mistake only once, because the whole file is rejected.
            if !self.has_reported_excess {
                self.notes.add(limit.position, format!("too many conditions (maximum {MAX_CONDITIONS})"));
            }
            self.has_reported_excess = true;
            return;
        }
        if let Err(why) = self.add_rule(limit, path, &named) {
            self.left_out.add_with_help(limit.position, "this limit is not imported", why);
        }
    }

    fn add_rule(&mut self, limit: &'d RateLimit, path: &[PathLevel<'d>], named: &str) -> Result<(), &'static str> {
        let position = path.last().map_or(limit.position, |step| step.descriptor.position);
        let names = attribute_names(path)?;
        let (mut when, mut overrides) = (Vec::new(), Vec::new());
        for (step, name) in path.iter().zip(&names) {
            step.add_conditions(name, &mut when, &mut overrides)?;
        }
        if !overrides.is_empty() && !limit.replaces.is_empty() {
            return Err("its exclusions cannot be expressed together with `replaces`");
        }
        if when.is_empty() {
            // Add a condition, so that the rule can be indexed.
            when.extend(names.last().map(|name| (text_node(position, &**name), present_condition(position))));
        }
        let counted = path.iter().zip(&names).filter(|(step, _)| step.has_counter_per_value());
        let per: Vec<Node> = counted.map(|(_, name)| text_node(position, &**name)).collect();
        let only = path.iter().map(|step| text_node(position, &*step.descriptor.key)).collect();
        let when = Node { position, value: Value::Map(when) };
        let mut pairs = vec![("only", list_node(position, only)), ("when", when)];
        if !per.is_empty() {
            pairs.push(("per", list_node(position, per)));
        }
        let boolean = || text_node(position, "true");
        match limit.allows {
            Allowance::Everything => {
                // The rule is unlimited, so it needs no overrides that exempt the excluded values.
                pairs.push(("unlimited", boolean()));
                overrides.clear();
            }
            Allowance::Nothing if overrides.is_empty() => pairs.push(("deny", boolean())),
            Allowance::Nothing => {
                pairs.push(("unlimited", boolean()));
                overrides.push(map_node(position, vec![("deny", boolean())]));
            }
            Allowance::Rate(count, unit) => {
                pairs.push(("limit", text_node(limit.position, format!("{count}/{unit}"))));
                pairs.push(("algorithm", text_node(limit.position, "fixed_window")));
            }
        }
        if !overrides.is_empty() {
            pairs.push(("overrides", list_node(position, overrides)));
        }
        if limit.shadow && !matches!(limit.allows, Allowance::Everything) {
            pairs.push(("on_exceed", text_node(position, "shadow")));
        }
        if let Some(metadata) = path.last().and_then(|step| step.descriptor.metadata.clone()) {
            pairs.push(("metadata", metadata));
        }
        let id = make_unused_id(named, &mut self.used_ids);
        pairs.insert(0, ("id", text_node(position, id.clone())));
        if let Some(name) = limit.name.as_deref().filter(|name| !name.is_empty()) {
            self.ids_by_limit_name.entry(name).or_default().push(id);
        }
        if !limit.replaces.is_empty() {
            self.replacing_rules.push((self.rules.len(), limit));
        }
        match (limit.quota, &limit.allows) {
            (Some(_), Allowance::Rate(..)) if !limit.shadow => pairs.push(("suffices", boolean())),
            (Some(position), Allowance::Rate(..) | Allowance::Nothing) => {
                let why = "it has no effect on shadow rules or limits of 0";
                self.left_out.add_with_help(position, "`quota_mode` is not imported", why);
            }
            (Some(_), Allowance::Everything) | (None, _) => {}
        }
        self.rules.push(map_node(position, pairs));
        Ok(())
    }

    /// Adds `replaces` to the rules, after all rule ids are known.
    fn add_replaces(&mut self) {
        for (rule, limit) in std::mem::take(&mut self.replacing_rules) {
            let mut ids: Vec<Node> = Vec::new();
            for (position, name) in &limit.replaces {
                match self.ids_by_limit_name.get(&**name) {
                    Some(named) => ids.extend(named.iter().map(|id| text_node(*position, &**id))),
                    None => {
                        let problem = format!("no limit is named `{}`, so nothing is replaced", shorten(name));
                        self.left_out.add_with_help(*position, problem, "it has no effect in Envoy either");
                    }
                }
            }
            if let (Value::Map(pairs), false) = (&mut self.rules[rule].value, ids.is_empty()) {
                pairs.push((text_node(limit.position, "replaces"), list_node(limit.position, ids)));
            }
        }
    }
}

impl<'d> PathLevel<'d> {
    /// Adds this level's conditions on the attribute `name`.
    fn add_conditions(
        &self,
        name: &str,
        when: &mut Vec<(Node, Node)>,
        overrides: &mut Vec<Node>,
    ) -> Result<(), &'static str> {
        let position = self.descriptor.position;
        if self.excluded.is_empty() {
            if !self.values.is_everything() {
                when.push((text_node(position, name), self.values.condition(position)?));
            }
            return Ok(());
        }
        match Exclusion::new(position, self.values, &self.excluded)? {
            Exclusion::Not(condition) => when.push((text_node(position, name), condition)),
            Exclusion::Each(conditions) => {
                when.push((text_node(position, name), self.values.condition(position)?));
                overrides.extend(conditions.into_iter().map(|condition| {
                    map_node(
                        position,
                        vec![
                            ("when", map_node(position, vec![(name, condition)])),
                            ("unlimited", text_node(position, "true")),
                        ],
                    )
                }));
            }
        }
        Ok(())
    }
}

/// Returns the attribute name for each level: its key, with a number if the key occurs several times.
fn attribute_names<'d>(path: &[PathLevel<'d>]) -> Result<Vec<Cow<'d, str>>, &'static str> {
    let same = |key: &str, steps: &[PathLevel<'_>]| steps.iter().filter(|step| step.descriptor.key == key).count();
    let name = |(position, step): (usize, &PathLevel<'d>)| {
        let key = &step.descriptor.key;
        if split_numbered_name(key).is_some() {
            return Err("a key that ends with `#` and a number has another meaning here");
        }
        Ok(match same(key, path) {
            1 => Cow::Borrowed(&**key),
            _ => Cow::Owned(format!("{key}#{}", same(key, &path[..=position]))),
        })
    };
    path.iter().enumerate().map(name).collect()
}

/// Returns the values of siblings with the same key that are more specific than the descriptor at `position`.
fn more_specific_siblings<'d>(
    siblings: &[(usize, DescriptorValue<'d>)],
    position: usize,
    values: DescriptorValue<'d>,
) -> Vec<DescriptorValue<'d>> {
    if let DescriptorValue::Exactly(_) = values {
        return Vec::new();
    }
    let takes_from = |(other, them): &&(usize, DescriptorValue<'d>)| match (values, them) {
        (DescriptorValue::Exactly(_), _) | (_, DescriptorValue::Any) => false,
        (DescriptorValue::Any, DescriptorValue::Exactly(_) | DescriptorValue::Starred(_)) => true,
        (DescriptorValue::Starred(pattern), DescriptorValue::Exactly(value)) => may_match(pattern, value),
        (DescriptorValue::Starred(_), DescriptorValue::Starred(_)) => *other < position,
    };
    siblings.iter().filter(takes_from).map(|(_, values)| *values).collect()
}

/// Returns whether a value has the prefix and suffix of a pattern, in linear time. The result may be `true` for values
/// that do not match the whole pattern. Excluding these values is harmless, because the pattern does not match them
/// anyway.
fn may_match(pattern: &str, value: &str) -> bool {
    let (first, last) = (pattern.split('*').next(), pattern.rsplit('*').next());
    value.starts_with(first.unwrap_or_default()) && value.ends_with(last.unwrap_or_default())
}

impl PathLevel<'_> {
    /// Returns whether each value of the entry has its own counter.
    fn has_counter_per_value(&self) -> bool {
        match self.values {
            DescriptorValue::Any => true,
            DescriptorValue::Exactly(_) => false,
            DescriptorValue::Starred(_) => !self.descriptor.share_threshold,
        }
    }
}

fn present_condition(position: Position) -> Node {
    map_node(position, vec![("present", text_node(position, "true"))])
}

/// Returns the name of a path in the metrics of the reference service: its keys and values.
fn path_name(path: &[PathLevel<'_>]) -> String {
    let names = path.iter().map(|step| match &step.descriptor.value {
        Some(value) => format!("{}_{value}", step.descriptor.key),
        None => step.descriptor.key.clone(),
    });
    names.collect::<Vec<_>>().join(".")
}
