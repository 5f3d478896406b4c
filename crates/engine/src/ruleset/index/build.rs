//! Builds an index, in which each rule is stored under its anchor.

use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use super::super::lookup::Lookup;
use super::super::paths::Paths;
use super::super::values::Values;
use super::{
    AttributeIndex, CompiledTest, FurtherCondition, HAS_MORE_CONDITIONS, Index, IndexEntry, NAMES_SPACE,
    NOT_AN_ADDRESS, NOT_AN_ANCHOR, NUMBERED_NAMES_SPACE, NumberedAttribute, PrefixIndex, RULE_LIST_FLAG, network_text,
    value_space_of,
};
use crate::rules::{Condition, Glob, Pattern, Test, split_numbered_name};

#[derive(Default)]
pub(super) struct IndexBuilder {
    names: FxHashMap<Box<str>, u32>,
    nth: Vec<NumberedAttribute>,
    /// The number of rules that use each value or pattern of an attribute.
    popularity: FxHashMap<(u32, Box<str>), u32>,
    anchors: Vec<Anchors>,
    unanchored: Vec<u32>,
    others: Vec<Box<[FurtherCondition]>>,
}

/// The rules whose anchor is a condition on one attribute.
#[derive(Default)]
struct Anchors {
    equals: FxHashMap<Box<[u8]>, Vec<u32>>,
    globs: Vec<(Glob, u32)>,
    prefixes: FxHashMap<Box<[u8]>, Vec<u32>>,
    networks: FxHashMap<[u8; 17], Vec<u32>>,
    present: Vec<u32>,
}

impl IndexBuilder {
    fn intern_attribute(&mut self, attribute: &str) -> u32 {
        let next = self.names.len() as u32;
        let number = *self.names.entry(attribute.into()).or_insert(next);
        if number == next {
            self.anchors.push(Anchors::default());
            if let Some((of, before)) = split_numbered_name(attribute) {
                let of = self.intern_attribute(of);
                self.nth.push(NumberedAttribute { attribute: number, of, before });
            }
        }
        number
    }

    pub(super) fn count_patterns(&mut self, index_entry: &IndexEntry<'_>) {
        index_entry.names.iter().for_each(|attribute| {
            self.intern_attribute(attribute);
        });
        for Condition { attribute, test } in index_entry.when {
            let attribute = self.intern_attribute(attribute);
            match test {
                Test::AnyOf(patterns) => {
                    for pattern in patterns {
                        *self.popularity.entry((attribute, pattern_id(pattern))).or_default() += 1;
                    }
                }
                Test::NoneOf(_) | Test::Present | Test::Absent => {}
            }
        }
    }

    pub(super) fn insert_rule(&mut self, index_entry: &IndexEntry<'_>, number: u32) {
        let anchor = self.rarest_condition(index_entry);
        let others = index_entry.when.iter().enumerate().filter(|(index, _)| Some(*index) != anchor);
        let others: Box<[FurtherCondition]> = others
            .map(|(_, when)| FurtherCondition {
                attribute: self.intern_attribute(&when.attribute),
                asks: CompiledTest::from_test(&when.test),
            })
            .collect();
        let marked = if others.is_empty() { number } else { number | HAS_MORE_CONDITIONS };
        self.others.push(others);
        let Some(Condition { attribute, test }) = anchor.map(|anchor| &index_entry.when[anchor]) else {
            self.unanchored.push(marked);
            return;
        };
        let attribute = self.intern_attribute(attribute) as usize;
        let anchors = &mut self.anchors[attribute];
        match test {
            Test::AnyOf(patterns) => patterns.iter().for_each(|pattern| anchors.add_pattern(pattern, marked)),
            Test::Present => anchors.present.push(marked),
            // The absence of an attribute cannot be looked up.
            Test::Absent | Test::NoneOf(_) => self.unanchored.push(marked),
        }
    }

    /// Returns the index of the condition that the fewest other rules share.
    fn rarest_condition(&mut self, index_entry: &IndexEntry<'_>) -> Option<usize> {
        let mut best = None;
        for (index, Condition { attribute, test }) in index_entry.when.iter().enumerate() {
            let attribute = self.intern_attribute(attribute);
            let shared = match test {
                Test::Absent | Test::NoneOf(_) => continue,
                // Every request that has the attribute matches this condition.
                Test::Present => u32::MAX,
                Test::AnyOf(patterns) => patterns
                    .iter()
                    .map(|pattern| self.estimate_rules_with_pattern(attribute, pattern))
                    .max()
                    .unwrap_or(0),
            };
            if best.is_none_or(|(least, _)| shared < least) {
                best = Some((shared, index));
            }
        }
        best.map(|(_, index)| index)
    }

    /// Estimates how many rules share this pattern. A pattern of only stars matches almost anything, so it is the last
    /// choice.
    fn estimate_rules_with_pattern(&self, attribute: u32, pattern: &Pattern) -> u32 {
        let same = self.popularity.get(&(attribute, pattern_id(pattern))).copied().unwrap_or(0);
        match pattern {
            Pattern::Equals(_) => same,
            Pattern::NotAnAddress => u32::MAX - 1,
            Pattern::Cidr(network) if network.bits() == 0 => u32::MAX - 1,
            Pattern::Glob(glob) if glob.as_str().bytes().all(|byte| b"/*".contains(&byte)) => u32::MAX - 1,
            Pattern::Glob(_) | Pattern::Prefix(_) | Pattern::Cidr(_) => same.saturating_add(1),
        }
    }

    pub(super) fn finish(self, first: u32) -> Index {
        let mut packing = EntryCollector {
            texts: Vec::new(),
            shared: Vec::new(),
            free_space: value_space_of(self.names.len() as u32),
        };
        let not_an_anchor = |number: u32| if self.anchors[number as usize].is_empty() { NOT_AN_ANCHOR } else { 0 };
        packing.texts.extend(self.names.into_iter().map(|(name, number)| {
            let space = if split_numbered_name(&name).is_some() { NUMBERED_NAMES_SPACE } else { NAMES_SPACE };
            (space, name.into_boxed_bytes(), number | not_an_anchor(number))
        }));
        let attributes = self
            .anchors
            .into_iter()
            .zip(0..)
            .map(|(anchors, number)| packing.pack_attribute(anchors, number))
            .collect();
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Index {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            first,
            lookup: Lookup::new(&packing.texts),
            attributes,
            nth: self.nth.into(),
            shared: packing.shared.into(),
            unanchored: self.unanchored.into(),
            others: self.others.into(),
        }
    }
}

/// Collects the entries of the lookup table.
struct EntryCollector {
    texts: Vec<(u32, Box<[u8]>, u32)>,
    shared: Vec<Box<[u32]>>,
    free_space: u32,
}

impl EntryCollector {
    fn pack_attribute(&mut self, anchors: Anchors, number: u32) -> AttributeIndex {
        let has_values = !anchors.equals.is_empty();
        for (value, rules) in anchors.equals {
            self.add_entry(value_space_of(number), value, rules);
        }
        let starts = (!anchors.prefixes.is_empty() || !anchors.networks.is_empty())
            .then(|| Box::new(self.build_prefix_index(anchors.prefixes, anchors.networks)));
        let paths = (!anchors.globs.is_empty()).then(|| {
            let (paths, next_free) = Paths::new(&anchors.globs, self.free_space, &mut self.texts);
            self.free_space = next_free;
            paths
        });
        let has_others = paths.is_some() || starts.is_some() || !anchors.present.is_empty();
        AttributeIndex { has_values, has_others, paths, present: anchors.present.into(), starts }
    }

    fn build_prefix_index(
        &mut self,
        prefixes: FxHashMap<Box<[u8]>, Vec<u32>>,
        networks: FxHashMap<[u8; 17], Vec<u32>>,
    ) -> PrefixIndex {
        let (text_space, network_space) = (self.free_space, self.free_space + 1);
        self.free_space += 2;
        let mut lengths: Vec<u32> = prefixes.keys().map(|text| text.len() as u32).collect();
        let mut bits: Vec<u8> = networks.keys().map(|text| text[0]).collect();
        lengths.sort_unstable();
        lengths.dedup();
        bits.sort_unstable();
        bits.dedup();
        prefixes.into_iter().for_each(|(text, rules)| self.add_entry(text_space, text, rules));
        networks.into_iter().for_each(|(text, rules)| self.add_entry(network_space, Box::new(text), rules));
        PrefixIndex { lengths: lengths.into(), text_space, bits: bits.into(), network_space }
    }

    /// Adds a table entry that maps a string to one or several rules.
    fn add_entry(&mut self, space: u32, text: Box<[u8]>, rules: Vec<u32>) {
        let found = match &*rules {
            [rule] => *rule,
            _ => {
                self.shared.push(rules.into_boxed_slice());
                RULE_LIST_FLAG | (self.shared.len() as u32 - 1)
            }
        };
        self.texts.push((space, text, found));
    }
}

impl Anchors {
    fn is_empty(&self) -> bool {
        let Self { equals, globs, prefixes, networks, present } = self;
        equals.is_empty() && globs.is_empty() && prefixes.is_empty() && networks.is_empty() && present.is_empty()
    }

    fn add_pattern(&mut self, pattern: &Pattern, rule: u32) {
        let rules = match pattern {
            Pattern::Equals(text) => self.equals.entry(text.as_bytes().into()).or_default(),
            Pattern::Prefix(text) => self.prefixes.entry(text.as_bytes().into()).or_default(),
            Pattern::Cidr(network) => self.networks.entry(network_text(network.bits(), network.bytes())).or_default(),
            Pattern::NotAnAddress => self.networks.entry(network_text(NOT_AN_ADDRESS, [0; 16])).or_default(),
            Pattern::Glob(glob) => return self.globs.push((glob.clone(), rule)),
        };
        // A rule that lists a value twice is added once.
        if rules.last() != Some(&rule) {
            rules.push(rule);
        }
    }
}

impl CompiledTest {
    fn from_test(test: &Test) -> Self {
        match test {
            Test::AnyOf(patterns) => Self::AnyOf(Values::new(patterns)),
            Test::NoneOf(patterns) => Self::NoneOf(Values::new(patterns)),
            Test::Present => Self::Present,
            Test::Absent => Self::Absent,
        }
    }
}

/// Returns a string that identifies a pattern.
fn pattern_id(pattern: &Pattern) -> Box<str> {
    match pattern {
        Pattern::Equals(text) => text.clone(),
        Pattern::Glob(glob) => glob.as_str().into(),
        Pattern::Prefix(text) => format!("{text}\0").into(),
        Pattern::Cidr(network) => network.to_string().into(),
        Pattern::NotAnAddress => "\0".into(),
    }
}
