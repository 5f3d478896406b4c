//! Finds the rules of a domain that match a request, without evaluating every rule.
//!
//! One condition of each rule is its *anchor*: the condition that the fewest rules share, such as a tenant name rather
//! than the method GET. Rules are found by the values of their anchors. The search takes one hash table lookup per
//! attribute of the request, and a few more for path patterns ([`Paths`]). The remaining conditions of each found rule
//! are then evaluated. In this module, a rule matches if its `when` holds; `special.rs` evaluates `if`, `only` and
//! `schedule` afterwards.

mod build;

use super::lookup::Lookup;
use super::paths::{Paths, SearchNodes};
use super::shape::{ItemShape, ItemShapes};
use super::values::Values;
use crate::request::Attribute;
use crate::rules::{Cidr, Condition, parse_address, split_numbered_name};
use build::IndexBuilder;

/// The rules of a domain, indexed by their anchors.
#[derive(Debug)]
pub(crate) struct Index {
    /// Unique among all indexes of the process.
    id: u64,
    /// The index of the first rule.
    first: u32,
    /// Maps attribute names to attribute ids, in the space [`NAMES_SPACE`]. Maps the values of the attribute with the
    /// id `n` to rules, in the space `n + 1`. Path segments, prefixes and networks use higher spaces.
    lookup: Lookup,
    attributes: Box<[AttributeIndex]>,
    /// Numbered attributes, such as `a#2` for the second value of `a`.
    nth: Box<[NumberedAttribute]>,
    /// Lists of rules that share an anchor value.
    shared: Box<[Box<[u32]>]>,
    /// Rules without an anchor, because they have no conditions or only conditions that require the absence of values.
    unanchored: Box<[u32]>,
    /// For each rule, the conditions other than its anchor.
    others: Box<[Box<[FurtherCondition]>]>,
}

const NAMES_SPACE: u32 = 0;
/// The space of names like `a#2`. Request attributes are never looked up in this space.
const NUMBERED_NAMES_SPACE: u32 = u32::MAX;

/// An attribute that represents the nth value of another attribute.
#[derive(Clone, Copy, Debug)]
struct NumberedAttribute {
    attribute: u32,
    of: u32,
    /// The number of values to skip.
    before: u32,
}

/// The index of one attribute. Whole values are in the lookup table instead.
#[derive(Debug)]
struct AttributeIndex {
    /// Whether whole values of the attribute are anchors.
    has_values: bool,
    /// Whether any of the fields below is in use.
    has_others: bool,
    paths: Option<Paths>,
    present: Box<[u32]>,
    starts: Option<Box<PrefixIndex>>,
}

/// Prefixes and networks, with one lookup for each distinct length.
#[derive(Debug)]
struct PrefixIndex {
    /// The prefix lengths in bytes.
    lengths: Box<[u32]>,
    text_space: u32,
    /// The prefix lengths of networks in bits, sorted; [`NOT_AN_ADDRESS`] is last.
    bits: Box<[u8]>,
    network_space: u32,
}

impl PrefixIndex {
    #[inline(never)]
    fn find(&self, value: &[u8], lookup: &Lookup, mut each: impl FnMut(u32)) {
        for length in &self.lengths {
            let start = value.get(..*length as usize);
            if let Some(found) = start.and_then(|start| lookup.get(self.text_space, start)) {
                each(found);
            }
        }
        if self.bits.is_empty() {
            return;
        }
        let Some(address) = parse_address(value) else {
            // The list is sorted, so the marker is last.
            if self.bits.last() == Some(&NOT_AN_ADDRESS)
                && let Some(found) = lookup.get(self.network_space, &network_text(NOT_AN_ADDRESS, [0; 16]))
            {
                each(found);
            }
            return;
        };
        for bits in self.bits.iter().filter(|bits| **bits != NOT_AN_ADDRESS) {
            if let Some(found) = lookup.get(self.network_space, &network_text(*bits, Cidr::bytes_of(address, *bits))) {
                each(found);
            }
        }
    }
}

/// Marker that replaces the prefix length in rules for values that are not addresses.
const NOT_AN_ADDRESS: u8 = u8::MAX;

/// Encodes a network as a key of the lookup table.
fn network_text(bits: u8, network: [u8; 16]) -> [u8; 17] {
    let mut text = [bits; 17];
    text[1..].copy_from_slice(&network);
    text
}

/// The conditions of a rule, and the names of the attributes that the rule reads elsewhere: in `per`, `cost` or `if`.
/// The index assigns an id to each name.
#[derive(Clone, Debug)]
pub(crate) struct IndexEntry<'r> {
    pub(crate) when: &'r [Condition],
    pub(crate) names: Vec<&'r str>,
}

#[derive(Debug)]
struct FurtherCondition {
    attribute: u32,
    asks: CompiledTest,
}

#[derive(Debug)]
enum CompiledTest {
    AnyOf(Values),
    NoneOf(Values),
    Present,
    Absent,
}

/// Marks a rule with conditions besides its anchor. A rule without further conditions matches as soon as it is found.
const HAS_MORE_CONDITIONS: u32 = 1 << 30;
/// Marks an attribute that is not an anchor; it may still be used in `per` or in further conditions.
const NOT_AN_ANCHOR: u32 = 1 << 31;
/// Marks a table value as the index of a list of rules.
const RULE_LIST_FLAG: u32 = 1 << 31;

/// The attributes of an item that rules refer to, and the rules that may match the item. Reused to avoid allocation.
#[derive(Debug, Default)]
pub struct CandidateRules {
    shapes: ItemShapes,
    rules: Vec<u32>,
    walk: SearchNodes,
}

impl CandidateRules {
    /// Returns the rules that may match, in order.
    pub(crate) fn rules(&self) -> &[u32] {
        &self.rules
    }

    /// Returns all values of an attribute.
    pub(crate) fn attribute_values<'e>(
        &self,
        attributes: &'e [Attribute<'e>],
        attribute: u32,
    ) -> impl Iterator<Item = &'e [u8]> {
        let known = self.shapes.current().known.iter();
        let indexes = known.filter(move |(known, _)| *known == attribute).map(|(_, position)| *position as usize);
        indexes.filter_map(|position| attributes.get(position)).map(|found| found.value)
    }

    /// Returns the first value of an attribute.
    #[inline]
    pub(crate) fn first_value<'e>(&self, attributes: &[Attribute<'e>], attribute: u32) -> Option<&'e [u8]> {
        self.shapes.current().first_value(attributes, attribute)
    }
}

impl Index {
    /// Creates an index of rules. The rules are numbered, starting with `first`.
    pub(crate) fn new(index_entries: &[IndexEntry<'_>], first: u32) -> Self {
        let mut builder = IndexBuilder::default();
        index_entries.iter().for_each(|index_entries| builder.count_patterns(index_entries));
        index_entries.iter().zip(0..).for_each(|(index_entries, number)| builder.insert_rule(index_entries, number));
        builder.finish(first)
    }

    /// Returns the id of an attribute; `None` if no rule refers to the attribute.
    pub(crate) fn attribute_id(&self, name: &str) -> Option<u32> {
        let space = if split_numbered_name(name).is_some() { NUMBERED_NAMES_SPACE } else { NAMES_SPACE };
        self.lookup.get(space, name.as_bytes()).map(|named| named & !NOT_AN_ANCHOR)
    }

    /// Returns the number of rules that are evaluated for every request.
    pub(crate) fn unanchored_count(&self) -> usize {
        self.unanchored.len()
    }

    /// Finds the rules that match an item.
    pub(crate) fn find(&self, attributes: &[Attribute<'_>], matched: &mut CandidateRules) {
        let CandidateRules { shapes, rules, walk } = matched;
        rules.clear();
        let mut found = FoundRules { index: self, rules, has_more: false };
        let ItemShape { known, anchors, .. } = shapes.find(self, attributes);
        for (number, position) in anchors {
            found.add_rules_of_value(*number, attributes[*position as usize].value, walk);
        }
        self.unanchored.iter().for_each(|rule| found.add_rule(*rule));
        if found.has_more {
            rules.retain_mut(|rule| {
                let has_more = *rule & HAS_MORE_CONDITIONS != 0;
                *rule &= !HAS_MORE_CONDITIONS;
                let others = &self.others[(*rule - self.first) as usize];
                !has_more || others.iter().all(|remaining| remaining.condition_holds(attributes, known))
            });
        }
        // Sorted, so that the result does not depend on attribute order. A rule may have been found several times.
        match &mut **rules {
            [] | [_] => {}
            [first, second] if first != second => (*first, *second) = (*first.min(second), *second.max(first)),
            several => {
                several.sort_unstable();
                rules.dedup();
            }
        }
    }

    /// Returns the id of this index.
    #[inline]
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the number of attributes that the rules refer to.
    pub(super) fn attribute_count(&self) -> usize {
        self.attributes.len()
    }

    /// Looks up the attribute names of an item. For every known attribute, adds its id and its position in the item to
    /// `known`, and also to `anchors` if the attribute is an anchor. In `anchors`, attributes with patterns come last.
    pub(super) fn resolve(
        &self,
        attributes: &[Attribute<'_>],
        known: &mut Vec<(u32, u32)>,
        anchors: &mut Vec<(u32, u32)>,
    ) {
        for (attribute, position) in attributes.iter().zip(0..) {
            let Some(named) = self.lookup.get(NAMES_SPACE, attribute.name) else { continue };
            let number = named & !NOT_AN_ANCHOR;
            known.push((number, position));
            if named & NOT_AN_ANCHOR == 0 {
                anchors.push((number, position));
            }
        }
        if !self.nth.is_empty() {
            let named = known.len();
            self.add_numbered_attributes(known);
            anchors.extend_from_slice(&known[named..]);
        }
        // Attributes without patterns come first: the cache misses of their lookups overlap with the walk through the
        // patterns.
        anchors.sort_by_key(|(number, _)| self.attributes[*number as usize].has_others);
    }

    /// Adds the numbered attributes that the item has.
    fn add_numbered_attributes(&self, known: &mut Vec<(u32, u32)>) {
        let named = known.len();
        for nth in &self.nth {
            let mut values = known[..named].iter().filter(|(attribute, _)| *attribute == nth.of);
            if let Some((_, position)) = values.nth(nth.before as usize) {
                known.push((nth.attribute, *position));
            }
        }
    }
}

/// The rules found so far.
struct FoundRules<'f> {
    index: &'f Index,
    rules: &'f mut Vec<u32>,
    /// Whether some of these rules have conditions besides their anchors.
    has_more: bool,
}

impl FoundRules<'_> {
    /// Adds the rules whose anchors match a value.
    #[inline(always)]
    fn add_rules_of_value(&mut self, number: u32, value: &[u8], walk: &mut SearchNodes) {
        let index = self.index;
        let attribute = &index.attributes[number as usize];
        if attribute.has_values
            && let Some(rules) = index.lookup.get(value_space_of(number), value)
        {
            self.add_found(rules);
        }
        if attribute.has_others {
            self.add_rules_of_patterns(attribute, value, walk);
        }
    }

    /// Adds the rules whose anchors are patterns, prefixes, networks or the presence of the attribute.
    #[inline(never)]
    fn add_rules_of_patterns(&mut self, attribute: &AttributeIndex, value: &[u8], walk: &mut SearchNodes) {
        let index = self.index;
        if let Some(paths) = &attribute.paths {
            paths.find(value, &index.lookup, walk, |rule| self.add_rule(rule));
        }
        if let Some(starts) = &attribute.starts {
            starts.find(value, &index.lookup, |rules| self.add_found(rules));
        }
        attribute.present.iter().for_each(|rule| self.add_rule(*rule));
    }

    /// Adds a rule or a list of rules.
    #[inline]
    fn add_found(&mut self, found: u32) {
        if found & RULE_LIST_FLAG == 0 {
            return self.add_rule(found);
        }
        self.index.shared[(found & !RULE_LIST_FLAG) as usize].iter().for_each(|rule| self.add_rule(*rule));
    }

    #[inline]
    fn add_rule(&mut self, rule: u32) {
        self.has_more |= rule & HAS_MORE_CONDITIONS != 0;
        self.rules.push(self.index.first + rule);
    }
}

/// Returns the lookup space of an attribute's values.
fn value_space_of(attribute: u32) -> u32 {
    NAMES_SPACE + 1 + attribute
}

impl FurtherCondition {
    #[inline]
    fn condition_holds(&self, attributes: &[Attribute<'_>], known: &[(u32, u32)]) -> bool {
        let mut values = known
            .iter()
            .filter(|(known, _)| *known == self.attribute)
            .map(|(_, position)| attributes[*position as usize].value);
        match &self.asks {
            CompiledTest::AnyOf(patterns) => values.any(|value| patterns.matches(value)),
            CompiledTest::NoneOf(patterns) => !values.any(|value| patterns.matches(value)),
            CompiledTest::Present => values.next().is_some(),
            CompiledTest::Absent => values.next().is_none(),
        }
    }
}

#[cfg(test)]
mod tests;
