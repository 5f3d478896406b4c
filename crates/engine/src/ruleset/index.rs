//! Finds the rules of a domain that a request matches, without looking at the others.
//!
//! One condition of each rule is its *anchor*: the one that the fewest rules share, a tenant's name
//! rather than the method GET. Rules are found by the values of their anchors, with one hash table
//! lookup for each attribute of the request, and a few more for path patterns ([`Paths`]). The
//! other conditions of a rule that is found are then evaluated.

mod build;

use super::lookup::Lookup;
use super::paths::{Paths, Walk};
use super::values::Values;
use crate::request::Entry;
use crate::rules::{Cidr, Condition, nth_of, parse_address};
use build::IndexBuilder;

/// The rules of a domain, indexed by their anchors.
#[derive(Debug)]
pub(crate) struct Index {
    /// The number of the first rule.
    first: u32,
    /// Attribute names are in the space [`NAMES`], the values of attribute `n` in the space `n + 1`. The segments of paths, prefixes
    /// and networks use the spaces after those.
    lookup: Lookup,
    attributes: Box<[Attribute]>,
    /// Numbered attributes, like the second value of another.
    nth: Box<[NumberedAttribute]>,
    /// Lists of rules that share a value.
    shared: Box<[Box<[u32]>]>,
    /// Rules without an anchor: they require nothing, or only that something is absent.
    unanchored: Box<[u32]>,
    /// For each rule, the conditions other than its anchor.
    others: Box<[Box<[FurtherCondition]>]>,
}

const NAMES: u32 = 0;
/// The space of names like `a#2`, in which no attribute of a request is looked up.
const NTH_NAMES: u32 = u32::MAX;

/// An attribute that is one of the values of another.
#[derive(Clone, Copy, Debug)]
struct NumberedAttribute {
    attribute: u32,
    of: u32,
    /// The number of values before it.
    before: u32,
}

/// The ways to find rules by an attribute other than by its whole value.
#[derive(Debug)]
struct Attribute {
    /// Whether anchors have values of it.
    has_values: bool,
    /// Whether anything is found by the fields below.
    has_others: bool,
    paths: Option<Paths>,
    present: Box<[u32]>,
    starts: Option<Box<PrefixIndex>>,
}

/// Prefixes and networks. For each length that occurs there is one lookup.
#[derive(Debug)]
struct PrefixIndex {
    /// Lengths in bytes.
    lengths: Box<[u32]>,
    text_space: u32,
    /// Prefix lengths of networks in bits, sorted, and [`NOT_AN_ADDRESS`].
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
            // The list is sorted, so the mark is last.
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

/// Takes the place of a prefix length for rules that match values that are not addresses.
const NOT_AN_ADDRESS: u8 = u8::MAX;

/// Encodes a network as a key of the lookup table.
fn network_text(bits: u8, network: [u8; 16]) -> [u8; 17] {
    let mut text = [bits; 17];
    text[1..].copy_from_slice(&network);
    text
}

/// What to index: its conditions, and further attributes whose numbers are needed.
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

/// Marks a rule with conditions beside its anchor. Rules without further conditions match as soon as they are found,
/// and nothing more is read for them.
const HAS_MORE_CONDITIONS: u32 = 1 << 30;
/// Marks an attribute that is not an anchor; its value may still be counted by or compared.
const NOT_AN_ANCHOR: u32 = 1 << 31;
/// Marks the index of a list of rules.
const SHARED: u32 = 1 << 31;

/// The known attributes of an item and the rules it matches. Reused to avoid allocation.
#[derive(Debug, Default)]
pub struct Matched {
    /// The number of the attribute, and the index of the entry.
    known: Vec<(u32, u32)>,
    rules: Vec<u32>,
    walk: Walk,
}

impl Matched {
    /// Returns the matching rules, in order.
    pub(crate) fn rules(&self) -> &[u32] {
        &self.rules
    }

    /// Returns all values of an attribute.
    pub(crate) fn attribute_values<'e>(
        &self,
        entries: &'e [Entry<'e>],
        attribute: u32,
    ) -> impl Iterator<Item = &'e [u8]> {
        let places = self.known.iter().filter(move |(known, _)| *known == attribute).map(|(_, entry)| *entry as usize);
        places.filter_map(|place| entries.get(place)).map(|entry| entry.value)
    }

    /// Returns the first value of an attribute.
    #[inline]
    pub(crate) fn first_value<'e>(&self, entries: &[Entry<'e>], attribute: u32) -> Option<&'e [u8]> {
        let (_, entry) = self.known.iter().find(|(known, _)| *known == attribute)?;
        entries.get(*entry as usize).map(|entry| entry.value)
    }
}

impl Index {
    /// Creates an index, numbered from `first`.
    pub(crate) fn new(sought: &[IndexEntry<'_>], first: u32) -> Self {
        let mut builder = IndexBuilder::default();
        sought.iter().for_each(|sought| builder.count(sought));
        sought.iter().zip(0..).for_each(|(sought, number)| builder.insert(sought, number));
        builder.finish(first)
    }

    /// Returns the number of an attribute that rules refer to.
    pub(crate) fn attribute_number(&self, name: &str) -> Option<u32> {
        let space = if nth_of(name).is_some() { NTH_NAMES } else { NAMES };
        self.lookup.get(space, name.as_bytes()).map(|named| named & !NOT_AN_ANCHOR)
    }

    /// Returns the number of rules that are evaluated for every request.
    pub(crate) fn tried(&self) -> usize {
        self.unanchored.len()
    }

    /// Finds the rules that an item matches.
    pub(crate) fn find(&self, entries: &[Entry<'_>], matched: &mut Matched) {
        let Matched { known, rules, walk } = matched;
        known.clear();
        rules.clear();
        let mut found = FoundRules { index: self, rules, has_more: false };
        for (entry, place) in entries.iter().zip(0..) {
            let Some(named) = self.lookup.get(NAMES, entry.name) else { continue };
            let number = named & !NOT_AN_ANCHOR;
            known.push((number, place));
            if named & NOT_AN_ANCHOR == 0 {
                found.add_rules_of_value(number, entry.value, walk);
            }
        }
        if !self.nth.is_empty() {
            let named = known.len();
            self.add_numbered(known);
            for (number, place) in &known[named..] {
                found.add_rules_of_value(*number, entries[*place as usize].value, walk);
            }
        }
        self.unanchored.iter().for_each(|rule| found.add_one(*rule));
        if found.has_more {
            rules.retain_mut(|rule| {
                let has_more = *rule & HAS_MORE_CONDITIONS != 0;
                *rule &= !HAS_MORE_CONDITIONS;
                let others = &self.others[(*rule - self.first) as usize];
                !has_more || others.iter().all(|remaining| remaining.condition_holds(entries, known))
            });
        }
        // Sorted by number, so that the result does not depend on the order of attributes. A rule
        // may have been found several times.
        match &mut **rules {
            [] | [_] => {}
            [first, second] if first != second => (*first, *second) = (*first.min(second), *second.max(first)),
            several => {
                several.sort_unstable();
                rules.dedup();
            }
        }
    }

    /// Adds the numbered attributes.
    fn add_numbered(&self, known: &mut Vec<(u32, u32)>) {
        let named = known.len();
        for nth in &self.nth {
            let mut values = known[..named].iter().filter(|(attribute, _)| *attribute == nth.of);
            if let Some((_, place)) = values.nth(nth.before as usize) {
                known.push((nth.attribute, *place));
            }
        }
    }
}

/// The rules found so far.
struct FoundRules<'f> {
    index: &'f Index,
    rules: &'f mut Vec<u32>,
    /// Whether some have conditions beside their anchor.
    has_more: bool,
}

impl FoundRules<'_> {
    /// Adds the rules found by a value.
    #[inline(always)]
    fn add_rules_of_value(&mut self, number: u32, value: &[u8], walk: &mut Walk) {
        let index = self.index;
        let attribute = &index.attributes[number as usize];
        if attribute.has_values
            && let Some(rules) = index.lookup.get(space_of(number), value)
        {
            self.add(rules);
        }
        if attribute.has_others {
            self.lead_further(attribute, value, walk);
        }
    }

    /// Adds the rules found by patterns, prefixes, networks and presence.
    #[inline(never)]
    fn lead_further(&mut self, attribute: &Attribute, value: &[u8], walk: &mut Walk) {
        let index = self.index;
        if let Some(paths) = &attribute.paths {
            paths.find(value, &index.lookup, walk, |rule| self.add_one(rule));
        }
        if let Some(starts) = &attribute.starts {
            starts.find(value, &index.lookup, |rules| self.add(rules));
        }
        attribute.present.iter().for_each(|rule| self.add_one(*rule));
    }

    /// Adds a rule or a list of rules.
    #[inline]
    fn add(&mut self, found: u32) {
        if found & SHARED == 0 {
            return self.add_one(found);
        }
        self.index.shared[(found & !SHARED) as usize].iter().for_each(|rule| self.add_one(*rule));
    }

    #[inline]
    fn add_one(&mut self, rule: u32) {
        self.has_more |= rule & HAS_MORE_CONDITIONS != 0;
        self.rules.push(self.index.first + rule);
    }
}

/// Returns the space of the values of an attribute.
fn space_of(attribute: u32) -> u32 {
    NAMES + 1 + attribute
}

impl FurtherCondition {
    #[inline]
    fn condition_holds(&self, entries: &[Entry<'_>], known: &[(u32, u32)]) -> bool {
        let mut values =
            known.iter().filter(|(known, _)| *known == self.attribute).map(|(_, place)| entries[*place as usize].value);
        match &self.asks {
            CompiledTest::AnyOf(patterns) => values.any(|value| patterns.hold(value)),
            CompiledTest::NoneOf(patterns) => !values.any(|value| patterns.hold(value)),
            CompiledTest::Present => values.next().is_some(),
            CompiledTest::Absent => values.next().is_none(),
        }
    }
}

#[cfg(test)]
mod tests;
