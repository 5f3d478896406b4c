//! Which rules of a domain a request meets, without looking at the others.
//!
//! Of each rule's conditions one is its *anchor*: the one that the fewest rules share, a tenant's name rather than the
//! method GET. Rules are found by the values of their anchors, one look into a hash table for each attribute of the request,
//! and a few more for path patterns ([`Paths`]). What is found there still has to meet the rule's other conditions.

mod build;

use super::lookup::Lookup;
use super::paths::{Paths, Walk};
use super::values::Values;
use crate::request::Entry;
use crate::rules::{Cidr, Condition, address, nth_of};
use build::Builder;

/// The rules of a domain, by what they ask for.
#[derive(Debug)]
pub(crate) struct Index {
    /// The number of the first rule.
    first: u32,
    /// The names of the attributes that rules speak of in space [`NAMES`], the values of an attribute in the space after
    /// its number, and the literal steps of paths after those.
    lookup: Lookup,
    attributes: Box<[Attribute]>,
    /// Attributes that are the second value of another, or any by its number.
    nth: Box<[Nth]>,
    /// Rules that share a value, each list in a row.
    shared: Box<[Box<[u32]>]>,
    /// Rules that can only be tried: they ask for nothing, or only that something is absent.
    unanchored: Box<[u32]>,
    /// For each rule, what remains to be asked once it was found by its anchor.
    others: Box<[Box<[Remaining]>]>,
}

const NAMES: u32 = 0;
/// The space of names like `a#2`, which nothing that is sent is looked for in.
const NTH_NAMES: u32 = u32::MAX;

/// That an attribute is one of the values of another.
#[derive(Clone, Copy, Debug)]
struct Nth {
    attribute: u32,
    of: u32,
    /// So many are before it.
    before: u32,
}

/// What is found by one attribute, other than by its values.
#[derive(Debug)]
struct Attribute {
    /// Whether some rules ask for certain values of it.
    has_values: bool,
    /// Whether anything is found by it in any of the ways below.
    has_others: bool,
    paths: Option<Paths>,
    present: Box<[u32]>,
    starts: Option<Box<Starts>>,
}

/// What values begin with: as texts, or as addresses in networks. Of each length that occurs there is one to look for.
#[derive(Debug)]
struct Starts {
    /// In bytes.
    lengths: Box<[u32]>,
    text_space: u32,
    /// In bits, of networks.
    bits: Box<[u8]>,
    network_space: u32,
}

impl Starts {
    #[inline(never)]
    fn find(&self, value: &[u8], lookup: &Lookup, mut each: impl FnMut(u32)) {
        for length in &self.lengths {
            let start = value.get(..*length as usize);
            if let Some(found) = start.and_then(|start| lookup.get(self.text_space, start)) {
                each(found);
            }
        }
        let Some(address) = (!self.bits.is_empty()).then(|| address(value)).flatten() else { return };
        for bits in &self.bits {
            if let Some(found) = lookup.get(self.network_space, &network_text(*bits, Cidr::bytes_of(address, *bits))) {
                each(found);
            }
        }
    }
}

/// A network in the table of texts.
fn network_text(bits: u8, network: [u8; 16]) -> [u8; 17] {
    let mut text = [bits; 17];
    text[1..].copy_from_slice(&network);
    text
}

/// Something to be found: what it asks for, and of which further attributes the numbers are needed.
#[derive(Clone, Debug)]
pub(crate) struct Sought<'r> {
    pub(crate) when: &'r [Condition],
    pub(crate) names: Vec<&'r str>,
}

#[derive(Debug)]
struct Remaining {
    attribute: u32,
    asks: Asks,
}

#[derive(Debug)]
enum Asks {
    AnyOf(Values),
    NoneOf(Values),
    Present,
    Absent,
}

/// Marks a rule that has more to ask for than its anchor. Those without are met as soon as they are found, and nothing more
/// has to be fetched for them.
const ASKS_MORE: u32 = 1 << 30;
/// Marks an attribute by which nothing is found; its value may be counted by, or compared once something was found.
const LEADS_NOWHERE: u32 = 1 << 31;
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

    /// All values of an attribute.
    pub(crate) fn values<'e>(&self, entries: &'e [Entry<'e>], attribute: u32) -> impl Iterator<Item = &'e [u8]> {
        let places = self.known.iter().filter(move |(known, _)| *known == attribute).map(|(_, entry)| *entry as usize);
        places.filter_map(|place| entries.get(place)).map(|entry| entry.value)
    }

    /// The first value of an attribute.
    #[inline]
    pub(crate) fn value<'e>(&self, entries: &[Entry<'e>], attribute: u32) -> Option<&'e [u8]> {
        let (_, entry) = self.known.iter().find(|(known, _)| *known == attribute)?;
        entries.get(*entry as usize).map(|entry| entry.value)
    }
}

impl Index {
    /// An index of what is sought, numbered from `first` on.
    pub(crate) fn new(sought: &[Sought<'_>], first: u32) -> Self {
        let mut builder = Builder::default();
        sought.iter().for_each(|sought| builder.count(sought));
        sought.iter().zip(0..).for_each(|(sought, number)| builder.insert(sought, number));
        builder.finish(first)
    }

    /// The number of an attribute that rules speak of.
    pub(crate) fn attribute(&self, name: &str) -> Option<u32> {
        let space = if nth_of(name).is_some() { NTH_NAMES } else { NAMES };
        self.lookup.get(space, name.as_bytes()).map(|named| named & !LEADS_NOWHERE)
    }

    /// How many rules are tried whatever the request is.
    pub(crate) fn tried(&self) -> usize {
        self.unanchored.len()
    }

    /// Finds the rules that an item meets.
    pub(crate) fn find(&self, entries: &[Entry<'_>], matched: &mut Matched) {
        let Matched { known, rules, walk } = matched;
        known.clear();
        rules.clear();
        let mut found = Found { index: self, rules, asks_more: false };
        for (entry, place) in entries.iter().zip(0..) {
            let Some(named) = self.lookup.get(NAMES, entry.name) else { continue };
            let number = named & !LEADS_NOWHERE;
            known.push((number, place));
            if named & LEADS_NOWHERE == 0 {
                found.lead(number, entry.value, walk);
            }
        }
        if !self.nth.is_empty() {
            let named = known.len();
            self.number(known);
            for (number, place) in &known[named..] {
                found.lead(*number, entries[*place as usize].value, walk);
            }
        }
        self.unanchored.iter().for_each(|rule| found.add_one(*rule));
        if found.asks_more {
            rules.retain_mut(|rule| {
                let asks_more = *rule & ASKS_MORE != 0;
                *rule &= !ASKS_MORE;
                let others = &self.others[(*rule - self.first) as usize];
                !asks_more || others.iter().all(|remaining| remaining.holds(entries, known))
            });
        }
        // By number, so that the answer does not depend on the order of the attributes. An attribute that occurs several
        // times, or is asked for in several ways, may have led to a rule more than once.
        match &mut **rules {
            [] | [_] => {}
            [first, second] if first != second => (*first, *second) = (*first.min(second), *second.max(first)),
            several => {
                several.sort_unstable();
                rules.dedup();
            }
        }
    }

    /// Adds what is known under a name with a number.
    fn number(&self, known: &mut Vec<(u32, u32)>) {
        let named = known.len();
        for nth in &self.nth {
            let mut values = known[..named].iter().filter(|(attribute, _)| *attribute == nth.of);
            if let Some((_, place)) = values.nth(nth.before as usize) {
                known.push((nth.attribute, *place));
            }
        }
    }
}

/// What was found so far.
struct Found<'f> {
    index: &'f Index,
    rules: &'f mut Vec<u32>,
    /// Whether some of it has still to be asked for more, which takes all attributes.
    asks_more: bool,
}

impl Found<'_> {
    /// Adds what the value of an attribute leads to.
    #[inline(always)]
    fn lead(&mut self, number: u32, value: &[u8], walk: &mut Walk) {
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

    /// By other than the value as a whole.
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

    /// Adds a rule, or those of a list.
    #[inline]
    fn add(&mut self, found: u32) {
        if found & SHARED == 0 {
            return self.add_one(found);
        }
        self.index.shared[(found & !SHARED) as usize].iter().for_each(|rule| self.add_one(*rule));
    }

    #[inline]
    fn add_one(&mut self, rule: u32) {
        self.asks_more |= rule & ASKS_MORE != 0;
        self.rules.push(self.index.first + rule);
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
        match &self.asks {
            Asks::AnyOf(patterns) => values.any(|value| patterns.hold(value)),
            Asks::NoneOf(patterns) => !values.any(|value| patterns.hold(value)),
            Asks::Present => values.next().is_some(),
            Asks::Absent => values.next().is_none(),
        }
    }
}

#[cfg(test)]
mod tests;
