//! Files of the reference Envoy rate-limit service.
//!
//! There, a request brings descriptors, each an ordered list of entries, and a descriptor meets at most one limit: that at
//! the end of the path which its entries take through the tree, where each level takes the most specific child (the same
//! value, else the first value with stars that matches, else the key without a value) and never comes back to try another.
//!
//! Here, a limit becomes a rule that says all of that by itself:
//!
//! | there | here |
//! |---|---|
//! | the entries and their order | `only` |
//! | the second entry with the same key | its name with a number: `header_match#2` |
//! | a value; a value with stars | a condition; patterns, or a prefix |
//! | a more specific descriptor beside it | its values are excluded: `not`, or an override without a limit |
//! | counted for each value that is not given | `per`; not with `share_threshold` |
//! | so many in a unit, counted anew in each | `fixed_window` |
//! | none in a unit | `deny` |
//! | `shadow_mode` | `on_exceed: shadow` |
//! | `name` | the rule's `id`; without, the path as the reference names it in its metrics |
//! | `replaces` | `replaces`, with the ids of all that have the name |
//! | `quota_mode` | `suffices` |
//!
//! Both look at all descriptors of a request before anything is counted, and whoever is replaced still replaces.

mod pattern;
mod read;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::super::mistake::{Notes, Place};
use super::super::nth::nth_of;
use super::super::raw::shorten;
use super::super::text::{Node, Value};
use super::build::{id_from, list, map, text};
use pattern::{Exclusion, Values};
use read::{Allows, Descriptor, RateLimit, Reader};

/// So many values with stars may stand beside each other under one key: each is compared with all before it.
const MAX_STARRED: usize = 256;
/// So many conditions the rules may have, together: what is excluded is said again for everything below.
const MAX_CONDITIONS: usize = 1_000_000;

/// Whether a file is one of the reference service.
pub(super) fn is_meant(tree: &Node) -> bool {
    read::is_meant(tree)
}

/// The same limits in our language. `None` if there are mistakes that leave nothing to say.
pub(super) fn convert(tree: &Node, notes: &mut Notes, left_out: &mut Notes) -> Option<Node> {
    let file = Reader { notes, left_out }.file(tree)?;
    let mut converter = Converter {
        notes,
        left_out,
        taken: HashSet::new(),
        conditions: 0,
        too_many: false,
        rules: Vec::new(),
        named: HashMap::new(),
        replacing: Vec::new(),
    };
    converter.level(&file.descriptors, &mut Vec::new());
    converter.replace();
    let rules = converter.rules;
    Some(map(tree.place, vec![("domain", file.domain), ("rules", list(tree.place, rules))]))
}

struct Converter<'n, 'd> {
    notes: &'n mut Notes,
    left_out: &'n mut Notes,
    taken: HashSet<String>,
    conditions: usize,
    too_many: bool,
    rules: Vec<Node>,
    /// The ids of the rules whose limits have a name.
    named: HashMap<&'d str, Vec<String>>,
    /// The places of rules that replace others, and whom.
    replacing: Vec<(usize, &'d RateLimit)>,
}

/// A level on the path to a limit.
struct Step<'d> {
    descriptor: &'d Descriptor,
    values: Values<'d>,
    /// What more specific descriptors beside it take.
    excluded: Vec<Values<'d>>,
}

impl<'d> Converter<'_, 'd> {
    fn level(&mut self, descriptors: &'d [Descriptor], path: &mut Vec<Step<'d>>) {
        let mut beside: HashMap<&str, Vec<(usize, Values<'d>)>> = HashMap::new();
        for (place, descriptor) in descriptors.iter().enumerate() {
            let values = Values::new(descriptor.value.as_deref());
            beside.entry(&descriptor.key).or_default().push((place, values));
        }
        let starred = |(_, values): &&(usize, Values<'_>)| matches!(values, Values::Starred(_));
        for (key, beside) in &beside {
            if let Some((place, _)) = beside.iter().filter(starred).nth(MAX_STARRED) {
                let problem =
                    format!("there are more than {MAX_STARRED} values with stars for `{key}` beside each other");
                self.notes.add(descriptors[*place].place, problem);
                return;
            }
        }
        for (place, descriptor) in descriptors.iter().enumerate() {
            let values = Values::new(descriptor.value.as_deref());
            let excluded = excluded(&beside[&*descriptor.key], place, values);
            if excluded.iter().any(|values| values.is_everything()) {
                let problem = "this descriptor is never met, and left out";
                let why = format!("another one takes every value of `{}`", descriptor.key);
                self.left_out.add_with_help(descriptor.place, problem, why);
                continue;
            }
            path.push(Step { descriptor, values, excluded });
            if let Some(limit) = &descriptor.limit {
                self.limit(limit, path);
            }
            self.level(&descriptor.below, path);
            path.pop();
        }
    }

    /// Makes a rule of a limit, or notes why there is none.
    fn limit(&mut self, limit: &'d RateLimit, path: &[Step<'d>]) {
        let named = limit.name.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| path_name(path));
        self.conditions += path.iter().map(|step| 1 + step.excluded.len()).sum::<usize>();
        if self.conditions > MAX_CONDITIONS {
            // Told once: nothing of the file is used.
            if !self.too_many {
                self.notes.add(limit.place, format!("up to here there are more than {MAX_CONDITIONS} conditions"));
            }
            self.too_many = true;
            return;
        }
        if let Err(why) = self.rule(limit, path, &named) {
            self.left_out.add_with_help(limit.place, "this limit is not carried over", why);
        }
    }

    fn rule(&mut self, limit: &'d RateLimit, path: &[Step<'d>], named: &str) -> Result<(), &'static str> {
        let place = path.last().map_or(limit.place, |step| step.descriptor.place);
        let names = attribute_names(path)?;
        let (mut when, mut overrides) = (Vec::new(), Vec::new());
        for (step, name) in path.iter().zip(&names) {
            step.say(name, &mut when, &mut overrides)?;
        }
        if !overrides.is_empty() && !limit.replaces.is_empty() {
            return Err("which values it leaves to others cannot be written beside `replaces`");
        }
        if when.is_empty() {
            // One to find the rule by.
            when.extend(names.last().map(|name| (text(place, &**name), present(place))));
        }
        let counted = path.iter().zip(&names).filter(|(step, _)| step.is_counted());
        let per: Vec<Node> = counted.map(|(_, name)| text(place, &**name)).collect();
        let only = path.iter().map(|step| text(place, &*step.descriptor.key)).collect();
        let when = Node { place, value: Value::Map(when) };
        let mut pairs = vec![("only", list(place, only)), ("when", when)];
        if !per.is_empty() {
            pairs.push(("per", list(place, per)));
        }
        let truth = || text(place, "true");
        match limit.allows {
            Allows::Everything => {
                // Who is excluded has no limit either.
                pairs.push(("unlimited", truth()));
                overrides.clear();
            }
            Allows::Nothing if overrides.is_empty() => pairs.push(("deny", truth())),
            Allows::Nothing => {
                pairs.push(("unlimited", truth()));
                overrides.push(map(place, vec![("deny", truth())]));
            }
            Allows::Rate(count, unit) => {
                pairs.push(("limit", text(limit.place, format!("{count}/{unit}"))));
                pairs.push(("algorithm", text(limit.place, "fixed_window")));
            }
        }
        if !overrides.is_empty() {
            pairs.push(("overrides", list(place, overrides)));
        }
        if limit.shadow && !matches!(limit.allows, Allows::Everything) {
            pairs.push(("on_exceed", text(place, "shadow")));
        }
        let id = id_from(named, &mut self.taken);
        pairs.insert(0, ("id", text(place, id.clone())));
        if let Some(name) = limit.name.as_deref().filter(|name| !name.is_empty()) {
            self.named.entry(name).or_default().push(id);
        }
        if !limit.replaces.is_empty() {
            self.replacing.push((self.rules.len(), limit));
        }
        match (limit.quota, &limit.allows) {
            (Some(_), Allows::Rate(..)) if !limit.shadow => pairs.push(("suffices", truth())),
            (Some(place), Allows::Rate(..) | Allows::Nothing) => {
                let why = "a shadow is never in the way of others, and what nobody may do must be kept by itself";
                self.left_out.add_with_help(place, "`quota_mode` is not carried over", why);
            }
            (Some(_), Allows::Everything) | (None, _) => {}
        }
        self.rules.push(map(place, pairs));
        Ok(())
    }

    /// Says which rules replace which others, once the ids of all are known.
    fn replace(&mut self) {
        for (rule, limit) in std::mem::take(&mut self.replacing) {
            let mut ids: Vec<Node> = Vec::new();
            for (place, name) in &limit.replaces {
                match self.named.get(&**name) {
                    Some(named) => ids.extend(named.iter().map(|id| text(*place, &**id))),
                    None => {
                        let problem = format!("no limit is named `{}`, so nothing is replaced", shorten(name));
                        self.left_out.add_with_help(*place, problem, "it has no effect there, either");
                    }
                }
            }
            if let (Value::Map(pairs), false) = (&mut self.rules[rule].value, ids.is_empty()) {
                pairs.push((text(limit.place, "replaces"), list(limit.place, ids)));
            }
        }
    }
}

impl<'d> Step<'d> {
    /// What a level says about its entry, which is known by `name`.
    fn say(&self, name: &str, when: &mut Vec<(Node, Node)>, overrides: &mut Vec<Node>) -> Result<(), &'static str> {
        let place = self.descriptor.place;
        if self.excluded.is_empty() {
            if !self.values.is_everything() {
                when.push((text(place, name), self.values.condition(place)?));
            }
            return Ok(());
        }
        match Exclusion::new(place, self.values, &self.excluded)? {
            Exclusion::Not(condition) => when.push((text(place, name), condition)),
            Exclusion::Each(conditions) => {
                when.push((text(place, name), self.values.condition(place)?));
                overrides.extend(conditions.into_iter().map(|condition| {
                    map(place, vec![("when", map(place, vec![(name, condition)])), ("unlimited", text(place, "true"))])
                }));
            }
        }
        Ok(())
    }
}

/// What the entries on the way are called here: by their keys, and those with the same key by their place among them, too.
fn attribute_names<'d>(path: &[Step<'d>]) -> Result<Vec<Cow<'d, str>>, &'static str> {
    let same = |key: &str, steps: &[Step<'_>]| steps.iter().filter(|step| step.descriptor.key == key).count();
    let name = |(place, step): (usize, &Step<'d>)| {
        let key = &step.descriptor.key;
        if nth_of(key).is_some() {
            return Err("a key that ends with `#` and a number stands for something else here");
        }
        Ok(match same(key, path) {
            1 => Cow::Borrowed(&**key),
            _ => Cow::Owned(format!("{key}#{}", same(key, &path[..=place]))),
        })
    };
    path.iter().enumerate().map(name).collect()
}

/// What the descriptors with the same key take that are more specific than the one at `place`.
fn excluded<'d>(beside: &[(usize, Values<'d>)], place: usize, values: Values<'d>) -> Vec<Values<'d>> {
    if let Values::Exactly(_) = values {
        return Vec::new();
    }
    let takes_from = |(other, them): &&(usize, Values<'d>)| match (values, them) {
        (Values::Exactly(_), _) | (_, Values::Any) => false,
        (Values::Any, Values::Exactly(_) | Values::Starred(_)) => true,
        (Values::Starred(pattern), Values::Exactly(value)) => may_match(pattern, value),
        (Values::Starred(_), Values::Starred(_)) => *other < place,
    };
    beside.iter().filter(takes_from).map(|(_, values)| *values).collect()
}

/// Whether the ends of a value are those of a pattern. More than match are excluded by that, which changes nothing: they
/// would not have matched. It takes no longer than the value is.
fn may_match(pattern: &str, value: &str) -> bool {
    let (first, last) = (pattern.split('*').next(), pattern.rsplit('*').next());
    value.starts_with(first.unwrap_or_default()) && value.ends_with(last.unwrap_or_default())
}

impl Step<'_> {
    /// Whether each value of the entry has a counter of its own.
    fn is_counted(&self) -> bool {
        match self.values {
            Values::Any => true,
            Values::Exactly(_) => false,
            Values::Starred(_) => !self.descriptor.share_threshold,
        }
    }
}

fn present(place: Place) -> Node {
    map(place, vec![("present", text(place, "true"))])
}

/// The keys and values on the way, as the reference names them in its metrics.
fn path_name(path: &[Step<'_>]) -> String {
    let names = path.iter().map(|step| match &step.descriptor.value {
        Some(value) => format!("{}_{value}", step.descriptor.key),
        None => step.descriptor.key.clone(),
    });
    names.collect::<Vec<_>>().join(".")
}
