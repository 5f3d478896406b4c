//! Rules in force: compiled, immutable, numbered.

mod index;
mod lookup;
mod paths;

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use tollgate::{Cost, Limit, Limits, Nanos, Rate, Terms};

use crate::key;
use crate::meters::RuleMeter;
use crate::request::Entry;
use crate::rules::{OnExceed, OnFault, Rule, Rules};
pub(crate) use index::Index;
pub use index::Matched;

/// Ids of limits that come along with requests begin here; those of rules are below.
pub(crate) const SENT_IDS: u32 = 1 << 31;
/// An id that nothing ever has.
pub(crate) const SPARE_ID: u32 = SENT_IDS - 1;

/// How many sets of numbers are remembered that no rule has any more, for the states that were written under them.
const MAX_RETIRED: usize = 1 << 16;

/// How many earlier sets of numbers of one rule are looked for in other places.
const MAX_EARLIER: usize = 4;

/// The rules in force at a time. Never changed, only replaced.
#[derive(Debug)]
pub struct RuleSet {
    version: u64,
    domains: FxHashMap<Box<[u8]>, Index>,
    rules: Vec<RunningRule>,
    /// The number of each rule, by what its keys begin with up to what it counts by.
    names: FxHashMap<Box<[u8]>, u32>,
    numbers: Numbers,
    /// What the keys of the rules begin with.
    key_prefixes: Box<[u8]>,
    /// The attributes that the rules count by, by their number in the index of the domain.
    per: Box<[u32]>,
}

/// A rule in force.
///
/// Decisions touch one rule or two among thousands, so what they need is in one line of memory, and the texts are one
/// after the other elsewhere.
#[derive(Debug)]
#[repr(align(64))]
pub struct RunningRule {
    key_prefix: (u32, u32),
    /// Where in the prefix its id is.
    id: (u16, u16),
    per: (u32, u32),
    pub(crate) on_exceed: OnExceed,
    pub(crate) on_fault: OnFault,
    pub(crate) cost: Cost,
    /// None if it is unlimited.
    pub(crate) numbered: Option<Arc<Numbered>>,
    pub(crate) meter: Arc<RuleMeter>,
    /// Whether it had other limits before.
    changed: bool,
    rarely: Box<Rarely>,
}

/// What is rarely needed of a rule.
#[derive(Debug)]
struct Rarely {
    domain: Box<str>,
    id: Box<str>,
    /// The ids of the limits it had before, newest first.
    earlier: Box<[u32]>,
}

/// Limits with the id by which states remember them. Rules with equal limits share them, so that a thousand rules of one kind
/// take up no more of the nearest cache than one.
#[derive(Debug)]
pub(crate) struct Numbered {
    pub(crate) id: u32,
    pub(crate) limits: Limits,
    /// Of its first limit, and of all if there are several.
    window: Option<Nanos>,
    windows: Box<[Option<Nanos>]>,
}

impl Numbered {
    pub(crate) fn windows(&self) -> &[Option<Nanos>] {
        if self.windows.is_empty() { std::slice::from_ref(&self.window) } else { &self.windows }
    }
}

impl RunningRule {
    /// The domain it belongs to.
    pub fn domain(&self) -> &str {
        &self.rarely.domain
    }

    /// Its identity within the domain.
    pub fn id(&self) -> &str {
        &self.rarely.id
    }

    /// The limits, unless it has none on purpose.
    pub fn limits(&self) -> Option<&Limits> {
        self.numbered.as_ref().map(|numbered| &numbered.limits)
    }

    /// Whether it only says what it would do.
    pub fn is_shadow(&self) -> bool {
        match self.on_exceed {
            OnExceed::Deny => false,
            OnExceed::Shadow => true,
        }
    }

    /// The ids of the limits it had before, newest first.
    #[inline]
    pub(crate) fn earlier(&self) -> &[u32] {
        if self.changed { &self.rarely.earlier } else { &[] }
    }

    /// What has been decided by it.
    pub fn meter(&self) -> &RuleMeter {
        &self.meter
    }
}

impl RuleSet {
    /// No rules at all.
    pub(crate) fn empty() -> Self {
        Self {
            version: 0,
            domains: FxHashMap::default(),
            rules: Vec::new(),
            names: FxHashMap::default(),
            numbers: Numbers::default(),
            key_prefixes: Box::default(),
            per: Box::default(),
        }
    }

    /// Compiles `rules` to follow `before`: a rule whose numbers did not change keeps their id, one whose numbers did is
    /// known to have had the others, and its counts go on.
    pub(crate) fn following(before: &Self, rules: &Rules) -> Self {
        let mut compiler = Compiler {
            before,
            numbers: before.numbers.clone(),
            rules: Vec::with_capacity(rules.len()),
            names: FxHashMap::default(),
            key_prefixes: Vec::new(),
            per: Vec::new(),
        };
        let mut domains = FxHashMap::default();
        for domain in rules.domains() {
            let index = Index::new(domain.rules(), compiler.rules.len() as u32);
            domain.rules().iter().for_each(|rule| compiler.add(domain.name(), rule, &index));
            domains.insert(domain.name().as_bytes().into(), index);
        }
        compiler.numbers.retire(&compiler.rules);
        Self {
            version: before.version + 1,
            domains,
            rules: compiler.rules,
            names: compiler.names,
            numbers: compiler.numbers,
            key_prefixes: compiler.key_prefixes.into(),
            per: compiler.per.into(),
        }
    }

    /// Counts up with every change. The empty set before the first is 0.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// All rules, by number.
    pub fn rules(&self) -> &[RunningRule] {
        &self.rules
    }

    /// The names of the domains, in no particular order.
    pub fn domains(&self) -> impl Iterator<Item = &[u8]> {
        self.domains.keys().map(|name| &**name)
    }

    /// The id of a rule, from where its key is.
    #[inline]
    pub(crate) fn id_of(&self, rule: &RunningRule) -> &str {
        let id = self.key_prefix(rule).get(rule.id.0.into()..rule.id.1.into()).unwrap_or_default();
        // It is ASCII.
        str::from_utf8(id).unwrap_or_default()
    }

    /// What all keys of a rule begin with.
    #[inline]
    pub(crate) fn key_prefix(&self, rule: &RunningRule) -> &[u8] {
        &self.key_prefixes[rule.key_prefix.0 as usize..rule.key_prefix.1 as usize]
    }

    /// The attributes whose values follow in the keys of a rule, by their number in the index of the domain.
    #[inline]
    pub(crate) fn per(&self, rule: &RunningRule) -> &[u32] {
        &self.per[rule.per.0 as usize..rule.per.1 as usize]
    }

    /// The rules of a domain that something with these attributes meets, by number; none if there is no such domain.
    ///
    /// For explaining and measuring. Decisions find their rules the same way.
    pub fn meets<'m>(&self, domain: &[u8], entries: &[Entry<'_>], matched: &'m mut Matched) -> Option<&'m [u32]> {
        self.domain(domain)?.find(entries, matched);
        Some(matched.rules())
    }

    pub(crate) fn domain(&self, name: &[u8]) -> Option<&Index> {
        self.domains.get(name)
    }

    /// The rule whose keys begin so.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&RunningRule> {
        self.names.get(name).and_then(|number| self.rules.get(*number as usize))
    }

    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }
}

/// Rules on their way into force.
struct Compiler<'b> {
    before: &'b RuleSet,
    numbers: Numbers,
    rules: Vec<RunningRule>,
    names: FxHashMap<Box<[u8]>, u32>,
    key_prefixes: Vec<u8>,
    per: Vec<u32>,
}

impl Compiler<'_> {
    fn add(&mut self, domain: &str, rule: &Rule, index: &Index) {
        let name = key::rule_name(domain, rule.id());
        let old = self.before.find(&name);
        let numbered = rule.limits().map(|limits| self.numbers.of(limits));
        let earlier = old.map_or(Box::default(), |old| earlier(old, numbered.as_deref()));
        // The name ends with it.
        let id = ((name.len() - rule.id().len()) as u16, name.len() as u16);
        let key_prefix = self.key_prefixes.len() as u32;
        self.key_prefixes.extend_from_slice(&key::rule_prefix(domain, rule.id(), rule.per()));
        let per = self.per.len() as u32;
        self.per.extend(rule.per().iter().filter_map(|attribute| index.attribute(attribute)));
        self.names.insert(name, self.rules.len() as u32);
        self.rules.push(RunningRule {
            key_prefix: (key_prefix, self.key_prefixes.len() as u32),
            id,
            per: (per, self.per.len() as u32),
            numbered,
            cost: rule.cost(),
            on_exceed: rule.on_exceed(),
            on_fault: rule.on_fault(),
            meter: old.map(|old| old.meter.clone()).unwrap_or_default(),
            changed: !earlier.is_empty(),
            rarely: Box::new(Rarely { domain: domain.into(), id: rule.id().into(), earlier }),
        });
    }
}

/// The ids of the limits that a rule had before those it has now.
fn earlier(old: &RunningRule, now: Option<&Numbered>) -> Box<[u32]> {
    let latest = old.numbered.as_ref().map(|numbered| numbered.id);
    let before = latest.into_iter().chain(old.rarely.earlier.iter().copied());
    before.filter(|id| now.is_none_or(|now| now.id != *id)).take(MAX_EARLIER).collect()
}

/// Every set of numbers that rules have or had.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    known: FxHashMap<u32, Arc<Numbered>>,
    ids: FxHashMap<Limits, u32>,
    /// Those that no rule has any more, oldest first.
    retired: VecDeque<u32>,
    next: u32,
}

impl Numbers {
    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&Limits> {
        self.known.get(&id).map(|numbered| &numbered.limits)
    }

    /// Limits with their id, a new one if they have none.
    fn of(&mut self, limits: &Limits) -> Arc<Numbered> {
        if let Some(known) = self.ids.get(limits).and_then(|id| self.known.get(id)) {
            return known.clone();
        }
        // They come round only after two thousand million changes, but then must not hit one that is still known.
        while self.known.contains_key(&self.next) {
            self.next = (self.next + 1) % SPARE_ID;
        }
        let id = self.next;
        self.next = (id + 1) % SPARE_ID;
        let windows = windows_of(limits);
        let numbered = Arc::new(Numbered {
            id,
            limits: limits.clone(),
            window: windows.first().copied().flatten(),
            windows: if windows.len() == 1 { Box::default() } else { windows },
        });
        self.known.insert(id, numbered.clone());
        self.ids.insert(limits.clone(), id);
        numbered
    }

    /// Sorts out which numbers no rule has any more, and forgets the oldest if they are too many.
    fn retire(&mut self, rules: &[RunningRule]) {
        let in_use: FxHashSet<u32> =
            rules.iter().filter_map(|rule| rule.numbered.as_ref()).map(|numbered| numbered.id).collect();
        self.retired.retain(|id| !in_use.contains(id));
        let already: FxHashSet<u32> = self.retired.iter().copied().collect();
        let newly = self.known.keys().copied().filter(|id| !in_use.contains(id) && !already.contains(id));
        let mut newly: Vec<u32> = newly.collect();
        newly.sort_unstable();
        self.retired.extend(newly);
        while self.retired.len() > MAX_RETIRED {
            let oldest = self.retired.pop_front().and_then(|oldest| self.known.remove(&oldest));
            oldest.map(|oldest| self.ids.remove(&oldest.limits));
        }
    }
}

/// For each limit, the time in which as much as the limit comes back: the window, or how long the bucket takes to fill.
/// What is held at a time has none.
pub(crate) fn windows_of(limits: &Limits) -> Box<[Option<Nanos>]> {
    let fill = |rate: Rate, burst: u64| {
        let nanos = u128::from(burst) * u128::from(rate.per().as_nanos());
        let nanos = nanos.div_ceil(u128::from(rate.count()));
        Some(Nanos::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    };
    let window = |limit: &Limit| match limit.terms() {
        Terms::TokenBucket(bucket) | Terms::LeakyBucket { bucket, .. } => fill(bucket.rate, bucket.burst),
        Terms::IntervalBucket { refill, period, burst, .. } => {
            Some(Nanos::from_nanos(period.as_nanos().saturating_mul(burst.div_ceil(refill))))
        }
        Terms::FixedWindow { window, .. }
        | Terms::SlidingWindow(window)
        | Terms::SlidingSlices { window, .. }
        | Terms::SlidingLog { window, .. } => Some(window.length),
        Terms::Concurrency { .. } | Terms::Unlimited | Terms::DenyAll => None,
    };
    limits.as_slice().iter().map(window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Source;

    fn following(before: &RuleSet, rules: &str) -> RuleSet {
        let text = format!("domain: d\nrules:\n{rules}");
        RuleSet::following(before, &Rules::read(&[Source { name: "f", text: text.as_bytes() }]).expect("valid rules"))
    }

    fn numbered<'s>(set: &'s RuleSet, id: &str) -> &'s Numbered {
        set.find(&key::rule_name("d", id)).and_then(|rule| rule.numbered.as_deref()).expect("a rule with limits")
    }

    #[test]
    fn rules_know_their_names() {
        let long = "x".repeat(128);
        let set = following(
            &RuleSet::empty(),
            &format!("- {{id: a, limit: 1/s, per: [b, c]}}\n- {{id: {long}, limit: 1/s}}\n"),
        );
        let names: Vec<_> = set.rules().iter().map(|rule| (rule.domain(), rule.id(), set.id_of(rule))).collect();
        assert_eq!(names, [("d", "a", "a"), ("d", &*long, &*long)]);
        assert_eq!(size_of::<RunningRule>(), 64);
    }

    fn earlier<'s>(set: &'s RuleSet, id: &str) -> &'s [u32] {
        set.find(&key::rule_name("d", id)).expect("a rule").earlier()
    }

    #[test]
    fn unchanged_numbers_keep_their_id_and_changed_ones_are_remembered() {
        let first = following(&RuleSet::empty(), "- {id: a, limit: 1/s}\n- {id: b, limit: 1/s}\n");
        let second =
            following(&first, "- {id: b, limit: 2/s}\n- {id: c, limit: 2/s}\n- {id: a, limit: 1/s, per: [x]}\n");
        assert_eq!((first.version(), second.version()), (1, 2));
        assert_eq!(numbered(&first, "a").id, numbered(&second, "a").id);
        let (old, new) = (numbered(&first, "b"), numbered(&second, "b"));
        assert_ne!(old.id, new.id);
        assert_eq!(earlier(&second, "b"), [old.id]);
        assert_eq!(second.numbers().get(old.id), Some(&old.limits));
        assert!(earlier(&second, "a").is_empty() && earlier(&second, "c").is_empty());
        // There and back again.
        let third = following(&second, "- {id: b, limit: 1/s}\n");
        assert_eq!((numbered(&third, "b").id, earlier(&third, "b")), (old.id, &[new.id][..]));
    }

    #[test]
    fn equal_limits_are_kept_once() {
        let set = following(&RuleSet::empty(), "- {id: a, limit: 1/s}\n- {id: b, limit: 1/s}\n- {id: c, limit: 2/s}\n");
        assert_eq!(numbered(&set, "a").id, numbered(&set, "b").id);
        assert_ne!(numbered(&set, "a").id, numbered(&set, "c").id);
    }

    #[test]
    fn the_counts_of_a_rule_go_on() {
        let first = following(&RuleSet::empty(), "- {id: a, limit: 1/s}\n");
        first.rules()[0].meter.count(crate::meters::RuleEvent::Refused);
        let second = following(&first, "- {id: a, limit: 5/s}\n");
        assert_eq!(second.rules()[0].meter().read().refused, 1);
    }

    #[test]
    fn only_so_many_old_numbers_are_remembered() {
        let mut set = following(&RuleSet::empty(), "- {id: keep, limit: 7/s}\n- {id: a, limit: 1/s}\n");
        let kept = numbered(&set, "keep").id;
        let first = numbered(&set, "a").id;
        // As if it had been changed that often.
        for burst in 0..MAX_RETIRED as u64 {
            let bucket = tollgate::TokenBucket::new("3/s".parse().expect("a rate"), burst + 1).expect("a bucket");
            set.numbers.of(&Limits::from(Limit::from(bucket)));
        }
        let set = following(&set, "- {id: keep, limit: 7/s}\n- {id: a, limit: 2/s}\n");
        assert_eq!(set.numbers().known.len(), MAX_RETIRED + 2);
        assert_eq!(set.numbers().get(first), None);
        assert!(set.numbers().get(kept).is_some());
    }
}
