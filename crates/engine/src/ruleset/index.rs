//! Which rules of a domain a request meets, without looking at the others.
//!
//! Of each rule's conditions one is its *anchor*: the one that the fewest rules share, a tenant's name rather than the
//! method GET. Rules are found by the values of their anchors, one look into a hash table for each attribute of the request,
//! and a few more for path patterns ([`Paths`]). What is found there still has to meet the rule's other conditions.

use rustc_hash::FxHashMap;

use super::lookup::Lookup;
use super::paths::{Paths, Walk};
use crate::request::Entry;
use crate::rules::{Condition, Glob, Pattern, Rule, Test};

/// The rules of a domain, by what they ask for.
#[derive(Debug)]
pub(crate) struct Index {
    /// The number of the first rule.
    first: u32,
    /// The names of the attributes that rules speak of in space [`NAMES`], the values of an attribute in the space after
    /// its number, and the literal steps of paths after those.
    lookup: Lookup,
    attributes: Box<[Attribute]>,
    /// Rules that share a value, each list in a row.
    shared: Box<[Box<[u32]>]>,
    /// Rules that can only be tried: they ask for nothing, or only that something is absent.
    unanchored: Box<[u32]>,
    /// For each rule, what remains to be asked once it was found by its anchor.
    others: Box<[Box<[Remaining]>]>,
}

const NAMES: u32 = 0;

/// What is found by one attribute, other than by its values.
#[derive(Debug)]
struct Attribute {
    paths: Option<Paths>,
    present: Box<[u32]>,
}

#[derive(Debug)]
struct Remaining {
    attribute: u32,
    test: Test,
}

/// Marks a rule that has more to ask for than its anchor. Those without are met as soon as they are found, and nothing more
/// has to be fetched for them.
const ASKS_MORE: u32 = 1 << 30;
/// Marks the number of a list of rules.
const SHARED: u32 = 1 << 31;

/// The attributes of an item that rules speak of, and the rules it meets. Kept to be used again.
#[derive(Debug, Default)]
pub struct Matched {
    /// Which attribute, and which entry of the item.
    known: Vec<(u32, u32)>,
    rules: Vec<u32>,
    walk: Walk,
}

impl Matched {
    /// The rules that were met, in order.
    pub(crate) fn rules(&self) -> &[u32] {
        &self.rules
    }

    /// The first value of an attribute.
    #[inline]
    pub(crate) fn value<'e>(&self, entries: &[Entry<'e>], attribute: u32) -> Option<&'e [u8]> {
        let (_, entry) = self.known.iter().find(|(known, _)| *known == attribute)?;
        entries.get(*entry as usize).map(|entry| entry.value)
    }
}

impl Index {
    /// An index of `rules`, which are numbered from `first` on.
    pub(crate) fn new(rules: &[Rule], first: u32) -> Self {
        let mut builder = Builder::default();
        rules.iter().for_each(|rule| builder.count(rule));
        rules.iter().zip(0..).for_each(|(rule, number)| builder.insert(rule, number));
        builder.finish(first)
    }

    /// The number of an attribute that rules speak of.
    pub(crate) fn attribute(&self, name: &str) -> Option<u32> {
        self.lookup.get(NAMES, name.as_bytes())
    }

    /// Finds the rules that an item meets.
    pub(crate) fn find(&self, entries: &[Entry<'_>], matched: &mut Matched) {
        let Matched { known, rules, walk } = matched;
        known.clear();
        rules.clear();
        for (place, entry) in entries.iter().enumerate() {
            if let Some(attribute) = self.lookup.get(NAMES, entry.name) {
                known.push((attribute, place as u32));
            }
        }
        for (number, place) in known.iter() {
            let attribute = &self.attributes[*number as usize];
            let value = entries[*place as usize].value;
            match self.lookup.get(space_of(*number), value) {
                Some(list) if list & SHARED != 0 => rules.extend_from_slice(&self.shared[(list & !SHARED) as usize]),
                Some(rule) => rules.push(rule),
                None => {}
            }
            if let Some(paths) = &attribute.paths {
                paths.find(value, &self.lookup, walk, |rule| rules.push(rule));
            }
            rules.extend_from_slice(&attribute.present);
        }
        rules.extend_from_slice(&self.unanchored);
        rules.retain_mut(|rule| {
            let asks_more = *rule & ASKS_MORE != 0;
            let number = *rule & !ASKS_MORE;
            *rule = self.first + number;
            !asks_more || self.others[number as usize].iter().all(|remaining| remaining.holds(entries, known))
        });
        // By number, so that the answer does not depend on the order of the attributes. An attribute that occurs several
        // times, or is asked for in several ways, may have led to a rule more than once.
        rules.sort_unstable();
        rules.dedup();
    }
}

/// The space of an attribute's values.
fn space_of(attribute: u32) -> u32 {
    NAMES + 1 + attribute
}

impl Remaining {
    #[inline]
    fn holds(&self, entries: &[Entry<'_>], known: &[(u32, u32)]) -> bool {
        let mut values =
            known.iter().filter(|(known, _)| *known == self.attribute).map(|(_, place)| entries[*place as usize].value);
        match &self.test {
            Test::Present => values.next().is_some(),
            Test::Absent => values.next().is_none(),
            Test::AnyOf(patterns) => values.any(|value| patterns.iter().any(|pattern| fits(pattern, value))),
        }
    }
}

fn fits(pattern: &Pattern, value: &[u8]) -> bool {
    match pattern {
        Pattern::Equals(text) => text.as_bytes() == value,
        Pattern::Glob(glob) => glob.matches(value),
    }
}

/// Rules before they are packed.
#[derive(Default)]
struct Builder {
    names: FxHashMap<Box<[u8]>, u32>,
    /// How many rules ask for a value or pattern of an attribute.
    popularity: FxHashMap<(u32, Box<str>), u32>,
    anchors: Vec<Anchors>,
    unanchored: Vec<u32>,
    others: Vec<Box<[Remaining]>>,
}

/// The rules that are found by one attribute.
#[derive(Default)]
struct Anchors {
    equals: FxHashMap<Box<[u8]>, Vec<u32>>,
    globs: Vec<(Glob, u32)>,
    present: Vec<u32>,
}

impl Builder {
    fn name(&mut self, attribute: &str) -> u32 {
        let next = self.names.len() as u32;
        let number = *self.names.entry(attribute.as_bytes().into()).or_insert(next);
        if number == next {
            self.anchors.push(Anchors::default());
        }
        number
    }

    fn count(&mut self, rule: &Rule) {
        rule.per().iter().for_each(|attribute| {
            self.name(attribute);
        });
        for Condition { attribute, test } in rule.when() {
            let attribute = self.name(attribute);
            match test {
                Test::AnyOf(patterns) => {
                    for pattern in patterns {
                        *self.popularity.entry((attribute, text(pattern).into())).or_default() += 1;
                    }
                }
                Test::Present | Test::Absent => {}
            }
        }
    }

    fn insert(&mut self, rule: &Rule, number: u32) {
        let anchor = self.anchor(rule);
        let others = rule.when().iter().enumerate().filter(|(place, _)| Some(*place) != anchor);
        let others: Box<[Remaining]> = others
            .map(|(_, when)| Remaining { attribute: self.name(&when.attribute), test: when.test.clone() })
            .collect();
        let marked = if others.is_empty() { number } else { number | ASKS_MORE };
        self.others.push(others);
        let Some(Condition { attribute, test }) = anchor.map(|anchor| &rule.when()[anchor]) else {
            self.unanchored.push(marked);
            return;
        };
        let attribute = self.name(attribute) as usize;
        let anchors = &mut self.anchors[attribute];
        match test {
            Test::AnyOf(patterns) => patterns.iter().for_each(|pattern| anchors.add(pattern, marked)),
            Test::Present => anchors.present.push(marked),
            // Nothing is found by what is not there.
            Test::Absent => self.unanchored.push(marked),
        }
    }

    /// The place of the condition that fewest other rules share.
    fn anchor(&mut self, rule: &Rule) -> Option<usize> {
        let mut best = None;
        for (place, Condition { attribute, test }) in rule.when().iter().enumerate() {
            let attribute = self.name(attribute);
            let shared = match test {
                Test::Absent => continue,
                // Whoever has the attribute at all would find it.
                Test::Present => u32::MAX,
                Test::AnyOf(patterns) => {
                    patterns.iter().map(|pattern| self.shared(attribute, pattern)).max().unwrap_or(0)
                }
            };
            if best.is_none_or(|(least, _)| shared < least) {
                best = Some((shared, place));
            }
        }
        best.map(|(_, place)| place)
    }

    /// How many rules are found together by this pattern. A pattern of stars alone matches about anything, and is taken only
    /// where there is nothing better.
    fn shared(&self, attribute: u32, pattern: &Pattern) -> u32 {
        let same = self.popularity.get(&(attribute, text(pattern).into())).copied().unwrap_or(0);
        match pattern {
            Pattern::Equals(_) => same,
            Pattern::Glob(glob) if glob.as_str().bytes().all(|byte| b"/*".contains(&byte)) => u32::MAX - 1,
            Pattern::Glob(_) => same.saturating_add(1),
        }
    }

    fn finish(self, first: u32) -> Index {
        let mut texts: Vec<(u32, Box<[u8]>, u32)> = Vec::new();
        let mut shared = Vec::new();
        let mut free_space = space_of(self.names.len() as u32);
        texts.extend(self.names.into_iter().map(|(name, number)| (NAMES, name, number)));
        let mut attributes = Vec::new();
        for (anchors, number) in self.anchors.into_iter().zip(0..) {
            for (value, rules) in anchors.equals {
                let found = match &*rules {
                    [rule] => *rule,
                    _ => {
                        shared.push(rules.into_boxed_slice());
                        SHARED | (shared.len() as u32 - 1)
                    }
                };
                texts.push((space_of(number), value, found));
            }
            let paths = (!anchors.globs.is_empty()).then(|| {
                let (paths, next_free) = Paths::new(&anchors.globs, free_space, &mut texts);
                free_space = next_free;
                paths
            });
            attributes.push(Attribute { paths, present: anchors.present.into() });
        }
        Index {
            first,
            lookup: Lookup::new(&texts),
            attributes: attributes.into(),
            shared: shared.into(),
            unanchored: self.unanchored.into(),
            others: self.others.into(),
        }
    }
}

impl Anchors {
    fn add(&mut self, pattern: &Pattern, rule: u32) {
        match pattern {
            Pattern::Equals(text) => {
                let rules = self.equals.entry(text.as_bytes().into()).or_default();
                // A rule that names a value twice is still found once.
                if rules.last() != Some(&rule) {
                    rules.push(rule);
                }
            }
            Pattern::Glob(glob) => self.globs.push((glob.clone(), rule)),
        }
    }
}

fn text(pattern: &Pattern) -> &str {
    match pattern {
        Pattern::Equals(text) => text,
        Pattern::Glob(glob) => glob.as_str(),
    }
}

#[cfg(test)]
mod tests;
