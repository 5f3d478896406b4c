//! Rules in force: compiled, immutable, numbered.

mod attributes;
mod index;
mod lookup;
mod numbers;
mod paths;
mod special;
mod values;

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tollgate::Limits;
use tollgate::core::{Algorithm, Cost, Time, Wall};

use crate::key;
use crate::meters::RuleMeter;
use crate::request::Entry;
use crate::rules::{Condition, CostOf, LimitSet, OnChange, OnFault, Rule, Rules};
pub use index::Matched;
pub(crate) use index::{Index, Sought};
use lookup::Lookup;
use numbers::Numbers;
pub(crate) use numbers::{Numbered, windows_of};
pub(crate) use special::{Banning, Does, Judgement, Special, limits_of as limits_of_ban};

/// Ids of limits that come along with requests begin here; those of rules are below.
pub(crate) const INLINE_IDS: u32 = 1 << 31;
/// An id that nothing ever has.
pub(crate) const SPARE_ID: u32 = INLINE_IDS - 1;

/// How many earlier sets of numbers of one rule are looked for in other places.
const MAX_EARLIER: usize = 4;

/// The rules in force at a time. Never changed, only replaced.
#[derive(Debug)]
pub struct RuleSet {
    version: u64,
    domains: Vec<InForce>,
    /// The place of each domain, by its name.
    domain_names: Lookup,
    rules: Vec<RunningRule>,
    /// The number of each rule, by what its keys begin with up to what it counts by.
    names: FxHashMap<Box<[u8]>, u32>,
    numbers: Numbers,
    /// What the keys of the rules begin with.
    key_prefixes: Box<[u8]>,
    /// The attributes that the rules count by, by their number in the index of the domain.
    per: Box<[u32]>,
    /// Whether any of them depends on the time of the day.
    uses_time: bool,
    /// Whether any of them bans.
    bans: bool,
    /// Whether any of them replaces others, or is not needed beside others.
    leaves_out: bool,
}

/// The rules of a domain.
#[derive(Debug)]
pub(crate) struct InForce {
    name: Box<[u8]>,
    pub(crate) index: Index,
    /// The names of the attributes that the rules read.
    attributes: Box<[Box<str>]>,
    /// Whether some of them allow or deny without counting.
    judges: bool,
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
    shadow: bool,
    is_special: bool,
    pub(crate) on_fault: OnFault,
    pub(crate) cost: Cost,
    /// None if it is unlimited.
    pub(crate) numbered: Option<Arc<Numbered>>,
    pub(crate) meter: Arc<RuleMeter>,
    /// Whether it had other limits before.
    changed: bool,
    /// Whether it does nothing but enforce limits that are always the same: no more is needed than to charge them.
    pub(crate) plain: bool,
    rarely: Box<Rarely>,
}

/// What is rarely needed of a rule.
#[derive(Debug)]
struct Rarely {
    domain: Box<str>,
    id: Box<str>,
    /// The ids of the limits it had before, newest first, and of its overrides if they are of other lengths.
    earlier: Box<[u32]>,
    special: Option<Special>,
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
        self.shadow
    }

    /// Where in its keys the id is.
    #[inline]
    pub(crate) fn id_place(&self) -> (u16, u16) {
        self.id
    }

    /// What only some rules have.
    #[inline]
    pub(crate) fn special(&self) -> Option<&Special> {
        if self.is_special { self.rarely.special.as_ref() } else { None }
    }

    /// The ids of other limits that its counters may have been charged under.
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
            domains: Vec::new(),
            domain_names: Lookup::new(&[]),
            rules: Vec::new(),
            names: FxHashMap::default(),
            numbers: Numbers::default(),
            key_prefixes: Box::default(),
            per: Box::default(),
            uses_time: false,
            bans: false,
            leaves_out: false,
        }
    }

    /// Gives limits that a counter belongs to an id, and returns it. A rule with the same limits gets the same id.
    pub(crate) fn remember(&mut self, limits: &Limits) -> u32 {
        self.numbers.of(&LimitSet { limits: limits.clone(), calendars: Vec::new() }).id
    }

    /// Compiles `rules` to follow `before`: a rule whose numbers did not change keeps their id, one whose numbers did is
    /// known to have had the others, and its counts go on.
    pub(crate) fn following(before: &Self, rules: &Rules) -> Self {
        let mut compiler = Compiler {
            before,
            numbers: before.numbers.successor(),
            rules: Vec::with_capacity(rules.len()),
            names: FxHashMap::default(),
            key_prefixes: Vec::new(),
            per: Vec::new(),
        };
        let mut domains: Vec<InForce> = Vec::new();
        for domain in rules.domains() {
            let first = compiler.rules.len();
            let index = index_of(domain.rules(), first as u32);
            let replaces = domain.rules().iter().any(|rule| !rule.replaces().is_empty());
            let ids = domain.rules().iter().zip(first as u32..).filter(|_| replaces);
            let ids: FxHashMap<&str, u32> = ids.map(|(rule, number)| (rule.id(), number)).collect();
            domain.rules().iter().for_each(|rule| compiler.add(domain.name(), rule, &index, &ids));
            let judges = |rule: &RunningRule| rule.special().is_some_and(|special| special.judges.is_some());
            let judges = compiler.rules[first..].iter().any(judges);
            let attributes = attributes::names(domain.rules());
            domains.push(InForce { name: domain.name().as_bytes().into(), index, attributes, judges });
        }
        compiler.numbers.retire();
        let of_calendar = |rule: &RunningRule| rule.numbered.as_ref().is_some_and(|n| !n.calendars.is_empty());
        let specials = || compiler.rules.iter().filter_map(RunningRule::special);
        let uses_time = compiler.rules.iter().any(of_calendar) || specials().any(Special::uses_time);
        let bans = specials().any(|special| special.ban.is_some());
        let leaves_out = specials().any(|special| special.suffices || !special.replaces.is_empty());
        let names = domains.iter().zip(0..).map(|(domain, place)| (0, domain.name.clone(), place));
        Self {
            version: before.version + 1,
            domain_names: Lookup::new(&names.collect::<Vec<_>>()),
            domains,
            rules: compiler.rules,
            names: compiler.names,
            numbers: compiler.numbers,
            key_prefixes: compiler.key_prefixes.into(),
            per: compiler.per.into(),
            uses_time,
            bans,
            leaves_out,
        }
    }

    /// Whether decisions depend on the time of the day.
    pub(crate) fn uses_time(&self) -> bool {
        self.uses_time
    }

    /// Whether any rule bans.
    pub(crate) fn bans(&self) -> bool {
        self.bans
    }

    /// Whether any rule that is met may be left out for another.
    #[inline]
    pub(crate) fn leaves_out(&self) -> bool {
        self.leaves_out
    }

    /// How many rules of a domain are tried one by one for each request, because they name nothing to be found by.
    pub fn tried(&self, domain: &[u8]) -> usize {
        self.domain(domain).map_or(0, |domain| domain.index.tried())
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
        self.domains.iter().map(|domain| &*domain.name)
    }

    /// Returns the names of the attributes that the rules of a domain read, sorted; `None` if there is no such domain. Other
    /// attributes of a request do not change how it is decided.
    pub fn attributes(&self, domain: &[u8]) -> Option<&[Box<str>]> {
        self.domain(domain).map(|domain| &*domain.attributes)
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
        self.domain(domain)?.index.find(entries, matched);
        Some(matched.rules())
    }

    #[inline]
    pub(crate) fn domain(&self, name: &[u8]) -> Option<&InForce> {
        self.domain_names.get(0, name).and_then(|place| self.domains.get(place as usize))
    }

    /// The first of the rules that were met which allows or denies without counting.
    #[inline]
    pub(crate) fn judge(
        &self,
        domain: &InForce,
        matched: &Matched,
        entries: &[Entry<'_>],
        now: Time<Wall>,
    ) -> Option<u32> {
        if !domain.judges {
            return None;
        }
        let judges = |number: &&u32| {
            let rule = &self.rules[**number as usize];
            let special = rule.special().filter(|special| special.judges.is_some() && !rule.is_shadow());
            special.is_some_and(|special| special.applies(now, matched, entries))
        };
        matched.rules().iter().find(judges).copied()
    }

    /// The rule whose keys begin so.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&RunningRule> {
        self.names.get(name).and_then(|number| self.rules.get(*number as usize))
    }

    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }
}

/// An index of rules by what they ask for, with what their expressions cannot do without.
pub(crate) fn index_of(rules: &[Rule], first: u32) -> Index {
    let conditions: Vec<Cow<'_, [Condition]>> = rules.iter().map(Rule::sought).collect();
    let sought = |(rule, when)| Sought { when, names: Special::names(rule) };
    let sought: Vec<Sought<'_>> = rules.iter().zip(conditions.iter().map(|when| &**when)).map(sought).collect();
    Index::new(&sought, first)
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
    fn add(&mut self, domain: &str, rule: &Rule, index: &Index, ids: &FxHashMap<&str, u32>) {
        let name = key::rule_name(domain, rule.id());
        let old = self.before.find(&name);
        let numbered = rule.effect().limits().map(|set| self.numbers.of(set));
        let special = Special::of(rule, index, ids, &mut self.numbers);
        let earlier = earlier(old, numbered.as_ref(), special.as_ref());
        let shadow = special::is_shadow(rule.on_exceed());
        let limits_only = numbered.as_ref().is_some_and(|numbered| numbered.calendars.is_empty());
        let plain = limits_only && special.is_none() && earlier.is_empty() && !shadow;
        // The name ends with it.
        let id = ((name.len() - rule.id().len()) as u16, name.len() as u16);
        let key_prefix = self.key_prefixes.len() as u32;
        let generation = match rule.on_change {
            OnChange::Keep => None,
            OnChange::Reset => rule.limits(),
        };
        let per_texts = rule.per().iter().map(|counted| &*counted.text);
        self.key_prefixes.extend_from_slice(&key::rule_prefix(domain, rule.id(), per_texts, generation));
        let per = self.per.len() as u32;
        self.per.extend(rule.per().iter().filter_map(|counted| index.attribute(&counted.text)));
        self.names.insert(name, self.rules.len() as u32);
        self.rules.push(RunningRule {
            key_prefix: (key_prefix, self.key_prefixes.len() as u32),
            id,
            per: (per, self.per.len() as u32),
            numbered,
            cost: match rule.cost() {
                CostOf::Fixed(cost) => *cost,
                CostOf::From { missing, .. } => *missing,
            },
            shadow,
            is_special: special.is_some(),
            on_fault: rule.on_fault(),
            meter: old.map(|old| old.meter.clone()).unwrap_or_default(),
            changed: !earlier.is_empty(),
            plain,
            rarely: Box::new(Rarely { domain: domain.into(), id: rule.id().into(), earlier, special }),
        });
    }
}

/// The ids of the limits that a rule had before those it has now. Where its overrides keep states of other lengths than the
/// rule itself, one id of each length: stores may keep them in other places.
fn earlier(old: Option<&RunningRule>, now: Option<&Arc<Numbered>>, special: Option<&Special>) -> Box<[u32]> {
    let overrides = special.and_then(|special| special.overrides.as_ref());
    let mut lengths: Vec<(usize, u32)> = Vec::new();
    for numbered in now.into_iter().chain(overrides.into_iter().flat_map(|overrides| overrides.numbered())) {
        let words = numbered.limits.words();
        if lengths.iter().all(|(known, _)| *known != words) {
            lengths.push((words, numbered.id));
        }
    }
    let siblings = if lengths.len() > 1 { lengths } else { Vec::new() };
    let latest = old.and_then(|old| old.numbered.as_ref()).map(|numbered| numbered.id);
    let before = latest.into_iter().chain(old.map_or(&[][..], |old| &old.rarely.earlier).iter().copied());
    let before = before.filter(|id| now.is_none_or(|now| now.id != *id)).take(MAX_EARLIER);
    let mut ids: Vec<u32> = siblings.into_iter().map(|(_, id)| id).collect();
    for id in before {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids.into()
}

#[cfg(test)]
mod tests {
    use super::numbers::MAX_RETIRED;
    use super::*;
    use crate::rules::{LimitSet, Source};

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
        let id_in_key = |rule| {
            let (start, end): (u16, u16) = RunningRule::id_place(rule);
            str::from_utf8(&set.key_prefix(rule)[start.into()..end.into()]).unwrap()
        };
        let names: Vec<_> = set.rules().iter().map(|rule| (rule.domain(), rule.id(), id_in_key(rule))).collect();
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
        first.rules()[0].meter.count_in(crate::striped::Stripe::of_thread(), crate::meters::RuleEvent::Refused);
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
            let limits = Limits::from(tollgate::Limit::from(bucket));
            set.numbers.of(&LimitSet { limits, calendars: Vec::new() });
        }
        let set = following(&set, "- {id: keep, limit: 7/s}\n- {id: a, limit: 2/s}\n");
        assert_eq!(set.numbers().known.len(), MAX_RETIRED + 2);
        assert_eq!(set.numbers().get(first), None);
        assert!(set.numbers().get(kept).is_some());
    }
}
