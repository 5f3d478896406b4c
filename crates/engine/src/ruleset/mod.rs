//! Compiled rules: immutable tables in which each rule has an index.
//!
//! **The naive method** compares every rule as written with every request. With ten thousand rules this takes a
//! thousand times as long as with ten, and a request may see a partly edited rule.
//!
//! **The idea** is to compile all rules into tables once, and to replace all tables together:
//!
//! - `index.rs` finds each rule by one rare condition, with one lookup per attribute of the request. Path patterns form
//!   a tree (`paths.rs`); the remaining conditions are compared afterwards (`values.rs`).
//! - Names and values become numbers (`lookup.rs`), so that matching compares integers.
//! - A rule is two adjacent cache lines ([`ActiveRule`]) that refer to its limits. Features that few rules use, such as
//!   overrides, calendars, schedules and bans, are stored separately behind one flag (`special.rs`).
//! - Limits have ids (`limit_registry.rs`). A state records the id of the limits under which it was charged. If the
//!   limits of a rule change, they get another id, and the state is converted at the next admitted charge.
//!
//! **Invariants.** A rule set is compiled as the successor of the current one: unchanged limits keep their ids, and
//! rules keep their counts. So replacing a rule set resets only the counters of changed rules with `on_change: reset`.
//! If the new rules are invalid, the current rule set stays in force.

mod attributes;
mod index;
mod limit_registry;
mod lookup;
mod paths;
mod shape;
mod special;
mod values;

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tollgate::Limits;
use tollgate::core::{Algorithm, Cost, Time, Wall};

use crate::key;
use crate::meters::{MeterAllocator, RuleMeter};
use crate::request::Attribute;
use crate::rules::{
    Condition, Consistency, DefaultCost, LimitSet, OnChange, OnFault, PerElement, Rule, Rules, is_address_attribute,
};
pub use index::CandidateRules;
pub(crate) use index::{Index, IndexEntry};
use limit_registry::{LimitRegistry, MAX_RETIRED};
pub(crate) use limit_registry::{RuleLimits, refill_times_of};
use lookup::Lookup;
pub(crate) use special::{AllowOrDeny, BanLimits, OverrideEffect, SpecialFeatures, limits_of_ban};

/// The first id of inline limits. Rule limits have lower ids.
pub(crate) const FIRST_INLINE_ID: u32 = 1 << 31;
/// An id that is never assigned to limits.
pub(crate) const UNASSIGNED_ID: u32 = FIRST_INLINE_ID - 1;

/// Marks an attribute whose values are addresses.
const ADDRESS_FLAG: u32 = 1 << 31;

/// Maximum number of earlier limits per rule that are looked up in other tables.
const MAX_EARLIER_LIMITS: usize = 4;

/// A compiled rule set. A rule set is never changed, only replaced.
#[derive(Debug)]
pub struct RuleSet {
    version: u64,
    domains: Vec<CompiledDomain>,
    /// Maps a domain's name to its index.
    domain_names: Lookup,
    rules: Vec<ActiveRule>,
    /// Maps the key prefix of a rule, without `per`, to the rule's index.
    names: FxHashMap<Box<[u8]>, u32>,
    limit_registry: LimitRegistry,
    /// Creates the meters of rules that a successor adds.
    meters: MeterAllocator,
    /// The latest limit ids of removed rules, by rule name. A rule that is added again continues with the existing
    /// states of its keys.
    removed: FxHashMap<Box<[u8]>, Box<[u32]>>,
    /// Whether any rule depends on the time.
    uses_time: bool,
    /// Whether any rule has a ban.
    bans: bool,
    /// Whether any rule has `replaces` or `suffices`.
    may_omit_rules: bool,
}

/// The rules of a domain.
#[derive(Debug)]
pub(crate) struct CompiledDomain {
    name: Box<[u8]>,
    pub(crate) index: Index,
    /// The attributes that the rules read.
    attributes: Box<[Box<str>]>,
    /// Whether any rule has `allow` or `deny`.
    has_allow_or_deny: bool,
}

/// A rule in force.
///
/// A decision reads only one or two rules, which may be any of thousands. Therefore, the key prefix, `per` and the
/// flags are in two adjacent cache lines, unless the prefix or `per` is longer than its inline space. The limits, which
/// many rules share, and the counters are elsewhere.
#[derive(Debug)]
#[repr(align(128))]
pub struct ActiveRule {
    key_prefix: SmallVec<[u8; 40]>,
    /// The range of the rule id in the key prefix.
    id: (u16, u16),
    /// The attributes in `per`, as ids of the domain's index. Attributes whose values are addresses are marked with
    /// [`ADDRESS_FLAG`].
    per: SmallVec<[u32; 4]>,
    shadow: bool,
    is_special: bool,
    pub(crate) on_fault: OnFault,
    pub(crate) consistency: Consistency,
    pub(crate) cost: Cost,
    /// `None` for rules without limits.
    pub(crate) rule_limits: Option<Arc<RuleLimits>>,
    pub(crate) meter: RuleMeter,
    /// Whether [`ColdFields::earlier`] is not empty.
    has_earlier: bool,
    /// Whether the rule is plain: it enforces fixed limits and has no other features, so the fast path applies.
    pub(crate) plain: bool,
    cold: Box<ColdFields>,
}

/// Rarely needed fields of a rule.
#[derive(Debug)]
struct ColdFields {
    domain: Box<str>,
    id: Box<str>,
    /// The ids of override limits whose states have other lengths, and of the rule's earlier limits, newest first.
    earlier: Box<[u32]>,
    special: Option<SpecialFeatures>,
}

impl ActiveRule {
    /// Returns the rule's domain.
    pub fn domain(&self) -> &str {
        &self.cold.domain
    }

    /// Returns whether the rule has one counter per value of `per`, instead of a single counter for all requests.
    pub(crate) fn counts_separately(&self) -> bool {
        !self.per.is_empty()
    }

    /// Returns the id, which is unique within the domain.
    pub fn id(&self) -> &str {
        &self.cold.id
    }

    /// Returns the limits, if the rule has any.
    pub fn limits(&self) -> Option<&Limits> {
        self.rule_limits.as_ref().map(|rule_limits| &rule_limits.limits)
    }

    /// Returns whether the rule is a shadow rule.
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Appends the first part of the rule's keys, which is the same in all of them.
    #[inline]
    pub(crate) fn push_key_prefix(&self, key: &mut Vec<u8>) {
        key.extend_from_slice(&self.key_prefix);
    }

    /// Appends the values of the rule's `per` to a key.
    #[inline(always)]
    pub(crate) fn push_values(&self, key: &mut Vec<u8>, matched: &CandidateRules, attributes: &[Attribute<'_>]) {
        for attribute in &self.per {
            if attribute & ADDRESS_FLAG == 0 {
                key::push_value(key, matched.first_value(attributes, *attribute));
            } else {
                key::push_address(key, matched.first_value(attributes, attribute & !ADDRESS_FLAG));
            }
        }
    }

    /// Returns the range of the rule id in its keys.
    #[inline]
    pub(crate) fn id_range(&self) -> (u16, u16) {
        self.id
    }

    /// Returns the rule's special features, if it has any.
    #[inline]
    pub(crate) fn special(&self) -> Option<&SpecialFeatures> {
        if self.is_special { self.cold.special.as_ref() } else { None }
    }

    /// Returns the ids of other limits under which the rule's counters may have been charged.
    #[inline]
    pub(crate) fn earlier_limit_ids(&self) -> &[u32] {
        if self.has_earlier { &self.cold.earlier } else { &[] }
    }

    /// Returns the ids of the rule's current and earlier limits, newest first.
    fn limit_ids_newest_first(&self) -> impl Iterator<Item = u32> {
        self.rule_limits.iter().map(|rule_limits| rule_limits.id).chain(self.cold.earlier.iter().copied())
    }

    /// Returns the rule's counts.
    pub fn meter(&self) -> &RuleMeter {
        &self.meter
    }
}

impl RuleSet {
    /// Returns a rule set without rules.
    pub(crate) fn empty() -> Self {
        Self {
            version: 0,
            domains: Vec::new(),
            domain_names: Lookup::new(&[]),
            rules: Vec::new(),
            names: FxHashMap::default(),
            limit_registry: LimitRegistry::default(),
            meters: MeterAllocator::default(),
            removed: FxHashMap::default(),
            uses_time: false,
            bans: false,
            may_omit_rules: false,
        }
    }

    /// Assigns an id to the limits of a restored counter. A rule with the same limits gets the same id.
    pub(crate) fn register_limits(&mut self, limits: &Limits) -> u32 {
        self.limit_registry.register(&LimitSet { limits: limits.clone(), calendars: Vec::new() }).id
    }

    /// Compiles `rules` as the successor of `before`: unchanged limits keep their ids, and each rule keeps its earlier
    /// limits and its counts.
    pub(crate) fn compile_successor(before: &Self, rules: &Rules) -> Self {
        let mut compiler = Compiler {
            before,
            limit_registry: before.limit_registry.successor(),
            rules: Vec::with_capacity(rules.len()),
            names: FxHashMap::default(),
            meters: before.meters.clone(),
        };
        let mut domains: Vec<CompiledDomain> = Vec::new();
        for domain in rules.domains() {
            let first = compiler.rules.len();
            let index = index_of(domain.rules(), first as u32);
            let replaces = domain.rules().iter().any(|rule| !rule.replaces().is_empty());
            let ids = domain.rules().iter().zip(first as u32..).filter(|_| replaces);
            let ids: FxHashMap<&str, u32> = ids.map(|(rule, number)| (rule.id(), number)).collect();
            domain.rules().iter().for_each(|rule| compiler.add_rule(domain.name(), rule, &index, &ids));
            let is_allow_or_deny =
                |rule: &ActiveRule| rule.special().is_some_and(|special| special.allow_or_deny.is_some());
            let has_allow_or_deny = compiler.rules[first..].iter().any(is_allow_or_deny);
            let attributes = attributes::attribute_names(domain.rules());
            domains.push(CompiledDomain {
                name: domain.name().as_bytes().into(),
                index,
                attributes,
                has_allow_or_deny,
            });
        }
        compiler.limit_registry.retire();
        let removed = before.limits_of_removed_rules(&compiler);
        let of_calendar = |rule: &ActiveRule| rule.rule_limits.as_ref().is_some_and(|n| !n.calendars.is_empty());
        let specials = || compiler.rules.iter().filter_map(ActiveRule::special);
        let uses_time = compiler.rules.iter().any(of_calendar) || specials().any(SpecialFeatures::uses_time);
        let bans = specials().any(|special| special.ban.is_some());
        let may_omit_rules = specials().any(|special| special.suffices || !special.replaces.is_empty());
        let names = domains.iter().zip(0..).map(|(domain, position)| (0, domain.name.clone(), position));
        Self {
            version: before.version + 1,
            domain_names: Lookup::new(&names.collect::<Vec<_>>()),
            domains,
            rules: compiler.rules,
            names: compiler.names,
            limit_registry: compiler.limit_registry,
            meters: compiler.meters,
            removed,
            uses_time,
            bans,
            may_omit_rules,
        }
    }

    /// Returns the latest limit ids of rules that were removed earlier or are not in `next`.
    fn limits_of_removed_rules(&self, next: &Compiler<'_>) -> FxHashMap<Box<[u8]>, Box<[u32]>> {
        let mut removed = self.removed.clone();
        removed.retain(|name, ids| {
            !next.names.contains_key(name) && ids.iter().any(|id| next.limit_registry.get(*id).is_some())
        });
        for (name, rule) in self.names.iter().filter(|(name, _)| !next.names.contains_key(*name)) {
            let ids: Box<[u32]> = self.rules[*rule as usize].limit_ids_newest_first().collect();
            if !ids.is_empty() && removed.len() < MAX_RETIRED {
                removed.insert(name.clone(), ids);
            }
        }
        removed
    }

    /// Returns whether decisions depend on the time.
    pub(crate) fn uses_time(&self) -> bool {
        self.uses_time
    }

    /// Returns whether any rule has a ban.
    pub(crate) fn has_bans(&self) -> bool {
        self.bans
    }

    /// Returns whether a matching rule may be omitted because of another rule (`replaces` or `suffices`).
    #[inline]
    pub(crate) fn may_omit_rules(&self) -> bool {
        self.may_omit_rules
    }

    /// Returns the number of a domain's rules that cannot be indexed and are evaluated for every request.
    pub fn unindexed_rule_count(&self, domain: &[u8]) -> usize {
        self.find_domain(domain).map_or(0, |domain| domain.index.unanchored_count())
    }

    /// Returns the version. The version increases with every replacement; the initial empty rule set has version 0.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns all rules, by index.
    pub fn rules(&self) -> &[ActiveRule] {
        &self.rules
    }

    /// Returns the domain names, in no particular order.
    pub fn domains(&self) -> impl Iterator<Item = &[u8]> {
        self.domains.iter().map(|domain| &*domain.name)
    }

    /// Returns the attributes that the rules of a domain read, sorted; `None` if the domain is unknown. Other
    /// attributes of a request affect only rules with `only`, which match no request that has them.
    pub fn attributes(&self, domain: &[u8]) -> Option<&[Box<str>]> {
        self.find_domain(domain).map(|domain| &*domain.attributes)
    }

    /// Returns the indices of a domain's rules that may match these attributes, because their `when` holds; `None` if
    /// the domain is unknown. `if`, `only` and `schedule` are not evaluated.
    ///
    /// Used by explanations and benchmarks. Decisions use the same lookup.
    pub fn candidates<'m>(
        &self,
        domain: &[u8],
        attributes: &[Attribute<'_>],
        matched: &'m mut CandidateRules,
    ) -> Option<&'m [u32]> {
        self.find_domain(domain)?.index.find(attributes, matched);
        Some(matched.rules())
    }

    #[inline]
    pub(crate) fn find_domain(&self, name: &[u8]) -> Option<&CompiledDomain> {
        // Most rule sets have one domain, which needs no hash.
        match &*self.domains {
            [only] => (*only.name == *name).then_some(only),
            domains => self.domain_names.get(0, name).and_then(|position| domains.get(position as usize)),
        }
    }

    /// Returns the first matching rule with `allow` or `deny` that is not a shadow rule.
    #[inline]
    pub(crate) fn find_allow_or_deny(
        &self,
        domain: &CompiledDomain,
        matched: &CandidateRules,
        attributes: &[Attribute<'_>],
        now: Time<Wall>,
    ) -> Option<u32> {
        if !domain.has_allow_or_deny {
            return None;
        }
        let decides = |number: &&u32| {
            let rule = &self.rules[**number as usize];
            let special = rule.special().filter(|special| special.allow_or_deny.is_some() && !rule.is_shadow());
            special.is_some_and(|special| special.applies(now, matched, attributes))
        };
        matched.rules().iter().find(decides).copied()
    }

    /// Returns the rule with this name, as encoded by [`key::encode_rule_name`].
    pub(crate) fn find_rule(&self, name: &[u8]) -> Option<&ActiveRule> {
        self.names.get(name).and_then(|number| self.rules.get(*number as usize))
    }

    pub(crate) fn limit_registry(&self) -> &LimitRegistry {
        &self.limit_registry
    }
}

/// Builds an index of rules, including the conditions that their expressions imply.
pub(crate) fn index_of(rules: &[Rule], first: u32) -> Index {
    let conditions: Vec<Cow<'_, [Condition]>> = rules.iter().map(Rule::index_conditions).collect();
    let index_entries = |(rule, when)| IndexEntry { when, names: SpecialFeatures::attribute_names(rule) };
    let index_entries: Vec<IndexEntry<'_>> =
        rules.iter().zip(conditions.iter().map(|when| &**when)).map(index_entries).collect();
    Index::new(&index_entries, first)
}

/// Compiles rules.
struct Compiler<'b> {
    before: &'b RuleSet,
    limit_registry: LimitRegistry,
    rules: Vec<ActiveRule>,
    names: FxHashMap<Box<[u8]>, u32>,
    meters: MeterAllocator,
}

impl Compiler<'_> {
    fn add_rule(&mut self, domain: &str, rule: &Rule, index: &Index, ids: &FxHashMap<&str, u32>) {
        let name = key::encode_rule_name(domain, rule.id());
        let old = self.before.find_rule(&name);
        let rule_limits = rule.effect().limits().map(|set| self.limit_registry.register(set));
        let special = SpecialFeatures::compile(rule, index, ids, &mut self.limit_registry);
        let before: Vec<u32> = match old {
            Some(old) => old.limit_ids_newest_first().collect(),
            None => self.before.removed.get(&name).map_or_else(Vec::new, |ids| ids.to_vec()),
        };
        let earlier = earlier_limits(&before, rule_limits.as_ref(), special.as_ref());
        let shadow = special::is_shadow(rule.on_exceed());
        let limits_only = rule_limits.as_ref().is_some_and(|rule_limits| rule_limits.calendars.is_empty());
        let plain = limits_only && special.is_none() && earlier.is_empty() && !shadow;
        // The encoded name ends with the rule id.
        let id = ((name.len() - rule.id().len()) as u16, name.len() as u16);
        let generation = match rule.on_change {
            OnChange::Keep => None,
            OnChange::Reset => rule.limits(),
        };
        let per_texts = rule.per().iter().map(|counted| &*counted.text);
        let key_prefix = key::counter_key_prefix(domain, rule.id(), per_texts, generation);
        let attribute_of = |counted: &PerElement| {
            let number = index.attribute_id(&counted.text)?;
            Some(if is_address_attribute(&counted.text) { number | ADDRESS_FLAG } else { number })
        };
        self.names.insert(name, self.rules.len() as u32);
        self.rules.push(ActiveRule {
            key_prefix: SmallVec::from_slice(&key_prefix),
            id,
            per: rule.per().iter().filter_map(attribute_of).collect(),
            rule_limits,
            cost: match rule.cost() {
                DefaultCost::Fixed(cost) => *cost,
                DefaultCost::From { missing, .. } => *missing,
                DefaultCost::Cases(_) => Cost::ONE,
            },
            shadow,
            is_special: special.is_some(),
            on_fault: rule.on_fault(),
            consistency: rule.consistency(),
            meter: old.map_or_else(|| self.meters.create(), |old| old.meter.clone()),
            has_earlier: !earlier.is_empty(),
            plain,
            cold: Box::new(ColdFields { domain: domain.into(), id: rule.id().into(), earlier, special }),
        });
    }
}

/// Returns the ids of a rule's earlier limits. If override states have other lengths than the rule's own states, the
/// result includes one id per length. Stores may keep such states in other tables.
fn earlier_limits(before: &[u32], now: Option<&Arc<RuleLimits>>, special: Option<&SpecialFeatures>) -> Box<[u32]> {
    let overrides = special.and_then(|special| special.overrides.as_ref());
    let mut lengths: Vec<(usize, u32)> = Vec::new();
    for rule_limits in now.into_iter().chain(overrides.into_iter().flat_map(|overrides| overrides.rule_limits())) {
        let words = rule_limits.limits.words();
        if lengths.iter().all(|(known, _)| *known != words) {
            lengths.push((words, rule_limits.id));
        }
    }
    let siblings = if lengths.len() > 1 { lengths } else { Vec::new() };
    let before = before.iter().copied().filter(|id| now.is_none_or(|now| now.id != *id)).take(MAX_EARLIER_LIMITS);
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
    use super::*;
    use crate::rules::{LimitSet, Source};

    fn compile_after(before: &RuleSet, rules: &str) -> RuleSet {
        let text = format!("domain: d\nrules:\n{rules}");
        RuleSet::compile_successor(
            before,
            &Rules::read(&[Source { name: "f", text: text.as_bytes() }]).expect("valid rules"),
        )
    }

    fn rule_limits<'s>(set: &'s RuleSet, id: &str) -> &'s RuleLimits {
        set.find_rule(&key::encode_rule_name("d", id))
            .and_then(|rule| rule.rule_limits.as_deref())
            .expect("a rule with limits")
    }

    #[test]
    fn rules_contain_their_names_and_fit_two_cache_lines() {
        let long = "x".repeat(128);
        let set = compile_after(
            &RuleSet::empty(),
            &format!("- {{id: a, limit: 1/s, per: [b, c]}}\n- {{id: {long}, limit: 1/s}}\n"),
        );
        let id_in_key = |rule| {
            let (start, end): (u16, u16) = ActiveRule::id_range(rule);
            str::from_utf8(&rule.key_prefix[start.into()..end.into()]).unwrap()
        };
        let names: Vec<_> = set.rules().iter().map(|rule| (rule.domain(), rule.id(), id_in_key(rule))).collect();
        assert_eq!(names, [("d", "a", "a"), ("d", &*long, &*long)]);
        assert_eq!(size_of::<ActiveRule>(), 128);
    }

    fn earlier_ids<'s>(set: &'s RuleSet, id: &str) -> &'s [u32] {
        set.find_rule(&key::encode_rule_name("d", id)).expect("a rule").earlier_limit_ids()
    }

    #[test]
    fn unchanged_limits_keep_their_id_and_earlier_limits_are_remembered() {
        let first = compile_after(&RuleSet::empty(), "- {id: a, limit: 1/s}\n- {id: b, limit: 1/s}\n");
        let second =
            compile_after(&first, "- {id: b, limit: 2/s}\n- {id: c, limit: 2/s}\n- {id: a, limit: 1/s, per: [x]}\n");
        assert_eq!((first.version(), second.version()), (1, 2));
        assert_eq!(rule_limits(&first, "a").id, rule_limits(&second, "a").id);
        let (old, new) = (rule_limits(&first, "b"), rule_limits(&second, "b"));
        assert_ne!(old.id, new.id);
        assert_eq!(earlier_ids(&second, "b"), [old.id]);
        assert_eq!(second.limit_registry().get(old.id), Some(&old.limits));
        assert!(earlier_ids(&second, "a").is_empty() && earlier_ids(&second, "c").is_empty());
        // The rule is changed back to its first limits.
        let third = compile_after(&second, "- {id: b, limit: 1/s}\n");
        assert_eq!((rule_limits(&third, "b").id, earlier_ids(&third, "b")), (old.id, &[new.id][..]));
    }

    #[test]
    fn rule_that_is_added_again_has_its_earlier_limits() {
        let first = compile_after(&RuleSet::empty(), "- {id: a, limit: 1/s}\n");
        let second = compile_after(&first, "- {id: b, limit: 3/s}\n");
        let third = compile_after(&second, "- {id: a, limit: 2/s}\n");
        assert_eq!(earlier_ids(&third, "a"), [rule_limits(&first, "a").id]);
        assert_eq!(third.removed.len(), 1, "only `b` is removed now");
    }

    #[test]
    fn equal_limits_share_an_id() {
        let set =
            compile_after(&RuleSet::empty(), "- {id: a, limit: 1/s}\n- {id: b, limit: 1/s}\n- {id: c, limit: 2/s}\n");
        assert_eq!(rule_limits(&set, "a").id, rule_limits(&set, "b").id);
        assert_ne!(rule_limits(&set, "a").id, rule_limits(&set, "c").id);
    }

    #[test]
    fn rule_counts_continue_after_a_rule_change() {
        let first = compile_after(&RuleSet::empty(), "- {id: a, limit: 1/s}\n");
        first.rules()[0].meter.count_in(crate::striped::Stripe::of_thread(), crate::meters::RuleEvent::Refused);
        let second = compile_after(&first, "- {id: a, limit: 5/s}\n");
        assert_eq!(second.rules()[0].meter().counts().refused, 1);
    }

    #[test]
    fn remembered_limits_are_bounded() {
        let mut set = compile_after(&RuleSet::empty(), "- {id: keep, limit: 7/s}\n- {id: a, limit: 1/s}\n");
        let kept = rule_limits(&set, "keep").id;
        let first = rule_limits(&set, "a").id;
        // This has the same effect as changing the rule `MAX_RETIRED` times.
        for burst in 0..MAX_RETIRED as u64 {
            let bucket = tollgate::TokenBucket::new("3/s".parse().expect("a rate"), burst + 1).expect("a bucket");
            let limits = Limits::from(tollgate::Limit::from(bucket));
            set.limit_registry.register(&LimitSet { limits, calendars: Vec::new() });
        }
        let set = compile_after(&set, "- {id: keep, limit: 7/s}\n- {id: a, limit: 2/s}\n");
        assert_eq!(set.limit_registry().known.len(), MAX_RETIRED + 2);
        assert_eq!(set.limit_registry().get(first), None);
        assert!(set.limit_registry().get(kept).is_some());
    }
}
