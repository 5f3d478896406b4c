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
//! | a value; a value with stars | a condition; patterns, or a prefix |
//! | a more specific descriptor beside it | its values are excluded: `not`, or an override without a limit |
//! | counted for each value that is not given | `per`; not with `share_threshold` |
//! | so many in a unit, counted anew in each | `fixed_window` |
//! | none in a unit | `deny` |
//! | `shadow_mode` | `on_exceed: shadow` |
//! | `name` | the rule's `id`; without, the path as the reference names it in its metrics |

mod pattern;
mod read;

use std::collections::{HashMap, HashSet};

use super::super::mistake::{Notes, Place};
use super::super::text::Node;
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
    let mut converter =
        Converter { notes, left_out, taken: HashSet::new(), conditions: 0, too_many: false, rules: Vec::new() };
    converter.level(&file.descriptors, &mut Vec::new());
    let rules = converter.rules;
    Some(map(tree.place, vec![("domain", file.domain), ("rules", list(tree.place, rules))]))
}

struct Converter<'n> {
    notes: &'n mut Notes,
    left_out: &'n mut Notes,
    taken: HashSet<String>,
    conditions: usize,
    too_many: bool,
    rules: Vec<Node>,
}

/// A level on the path to a limit.
struct Step<'d> {
    descriptor: &'d Descriptor,
    values: Values<'d>,
    /// What more specific descriptors beside it take.
    excluded: Vec<Values<'d>>,
}

impl Converter<'_> {
    fn level<'d>(&mut self, descriptors: &'d [Descriptor], path: &mut Vec<Step<'d>>) {
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
    fn limit(&mut self, limit: &RateLimit, path: &[Step<'_>]) {
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

    fn rule(&mut self, limit: &RateLimit, path: &[Step<'_>], named: &str) -> Result<(), &'static str> {
        let place = path.last().map_or(limit.place, |step| step.descriptor.place);
        let mut keys = HashSet::new();
        if !path.iter().all(|step| keys.insert(&*step.descriptor.key)) {
            return Err("conditions cannot tell two entries with the same key apart");
        }
        let (mut when, mut overrides) = (Vec::new(), Vec::new());
        for step in path {
            self.step(step, &mut when, &mut overrides)?;
        }
        if when.is_empty() {
            // One to find the rule by.
            when.extend(path.last().map(|step| (&*step.descriptor.key, present(place))));
        }
        let per: Vec<Node> =
            path.iter().filter(|step| step.is_counted()).map(|step| text(place, &*step.descriptor.key)).collect();
        let only = path.iter().map(|step| text(place, &*step.descriptor.key)).collect();
        let mut pairs = vec![("only", list(place, only)), ("when", map(place, when))];
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
            Allows::Nothing if limit.shadow => return Err("a shadow that refuses everybody tells nothing"),
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
        if limit.shadow && matches!(limit.allows, Allows::Rate(..)) {
            pairs.push(("on_exceed", text(place, "shadow")));
        }
        pairs.insert(0, ("id", text(place, id_from(named, &mut self.taken))));
        self.rules.push(map(place, pairs));
        Ok(())
    }

    /// What a level says about its entry.
    fn step<'d>(
        &mut self,
        step: &Step<'d>,
        when: &mut Vec<(&'d str, Node)>,
        overrides: &mut Vec<Node>,
    ) -> Result<(), &'static str> {
        let (key, place) = (&*step.descriptor.key, step.descriptor.place);
        if step.excluded.is_empty() {
            if !step.values.is_everything() {
                when.push((key, step.values.condition(place)?));
            }
            return Ok(());
        }
        match Exclusion::new(place, step.values, &step.excluded)? {
            Exclusion::Not(condition) => when.push((key, condition)),
            Exclusion::Each(conditions) => {
                when.push((key, step.values.condition(place)?));
                overrides.extend(conditions.into_iter().map(|condition| {
                    map(place, vec![("when", map(place, vec![(key, condition)])), ("unlimited", text(place, "true"))])
                }));
            }
        }
        Ok(())
    }
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
