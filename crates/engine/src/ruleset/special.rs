//! Features that only some rules use. A flag says whether a rule has special features, so that decisions skip this
//! module for other rules.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tollgate::core::{Cost, Steps, Time, Wall};
use tollgate::{IntervalBucket, Limit, LimitError, Limits, SlidingLog};

use super::index::{CandidateRules, Index, IndexEntry};
use super::limit_registry::{LimitRegistry, RuleLimits};
use crate::key;
use crate::request::Attribute;
use crate::rules::{
    Ban, CapturePosition, Condition, CountedAddress, DefaultCost, Effect, Expression, Glob, LimitSet, Metadata,
    OnExceed, Origin, Override, Pattern, PerElement, Refusal, Rule, Test, is_address_attribute,
};
use crate::schedule::Schedule;

/// The features of a rule beyond plain conditions and limits.
#[derive(Debug)]
pub(crate) struct SpecialFeatures {
    pub(crate) allow_or_deny: Option<AllowOrDeny>,
    schedule: Option<Schedule>,
    /// The expression, and the ids of its attributes.
    expression: Option<(Expression, Box<[u32]>)>,
    /// The exact list of attributes that a request must have, in order.
    only: Option<Box<[Box<str>]>>,
    pub(crate) overrides: Option<CompiledOverrides>,
    /// The indices of the rules that this rule replaces if it matches.
    pub(crate) replaces: Box<[u32]>,
    /// Whether the rule is marked `suffices`. If a request matches several such rules, one rule with capacity is
    /// enough.
    pub(crate) suffices: bool,
    /// Whether a positive cost may put the limits into debt.
    pub(crate) postpaid: bool,
    cost: Option<CompiledCost>,
    /// The sources of the values in `per`; `None` if every value is a plain attribute.
    per: Option<Box<[Box<[ValueSource]>]>>,
    /// The share of counters for which the rule is enforced, in units of 1/10,000.
    enforced_share: u16,
    pub(crate) ban: Option<BanLimits>,
    pub(crate) refusal: Option<Arc<Refusal>>,
    pub(crate) metadata: Option<Arc<Metadata>>,
}

/// The decision of an `allow` or `deny` rule, which counts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllowOrDeny {
    Allow,
    Deny,
}

/// A cost that depends on the request.
#[derive(Debug)]
enum CompiledCost {
    /// The value of an attribute.
    From { attribute: u32, max: Cost, missing: Cost },
    /// The cost of the first matching case.
    Cases { index: Index, costs: Box<[Cost]> },
}

/// The source of a value in `per`.
#[derive(Debug)]
enum ValueSource {
    Attribute(u32),
    /// An attribute whose values are addresses.
    Address(u32),
    /// A segment of the first value that matches one of these patterns.
    Capture(u32, Box<[(Glob, CapturePosition)]>),
}

/// The overrides of a rule, with an index of their conditions.
#[derive(Debug)]
pub(crate) struct CompiledOverrides {
    index: Index,
    compiled: Box<[CompiledOverride]>,
}

#[derive(Debug)]
pub(crate) struct CompiledOverride {
    until: Option<Time<Wall>>,
    pub(crate) effect: OverrideEffect,
}

/// The effect of an override.
#[derive(Debug)]
pub(crate) enum OverrideEffect {
    Limit(Arc<RuleLimits>),
    Unlimited,
    Deny,
}

impl SpecialFeatures {
    /// Returns the special features of a rule, if it has any. `index` is the index of its domain, and `ids` maps the
    /// domain's rule ids to rule indices.
    pub(super) fn compile(
        rule: &Rule,
        index: &Index,
        ids: &FxHashMap<&str, u32>,
        limit_registry: &mut LimitRegistry,
    ) -> Option<Self> {
        let number = |name: &str| index.attribute_id(name).unwrap_or(u32::MAX);
        let allow_or_deny = match rule.effect() {
            Effect::Allow => Some(AllowOrDeny::Allow),
            Effect::Deny => Some(AllowOrDeny::Deny),
            Effect::Limits(_) | Effect::Unlimited => None,
        };
        let cost = match rule.cost() {
            DefaultCost::Fixed(_) => None,
            DefaultCost::From { attribute, max, missing } => {
                Some(CompiledCost::From { attribute: number(attribute), max: *max, missing: *missing })
            }
            DefaultCost::Cases(cases) => {
                let index_entries: Vec<IndexEntry<'_>> =
                    cases.iter().map(|case| IndexEntry { when: &case.when, names: Vec::new() }).collect();
                let costs = cases.iter().map(|case| case.cost).collect();
                Some(CompiledCost::Cases { index: Index::new(&index_entries, 0), costs })
            }
        };
        let plain =
            |counted: &PerElement| matches!(&*counted.origins, [Origin::Attribute(name)] if *name == counted.text);
        let per = (!rule.per().iter().all(plain)).then(|| {
            rule.per()
                .iter()
                .map(|counted| counted.origins.iter().map(|o| ValueSource::new(o, rule, &number)).collect())
                .collect()
        });
        let overrides =
            (!rule.overrides().is_empty()).then(|| CompiledOverrides::new(rule.overrides(), limit_registry));
        let has_refusal = rule.refusal != Refusal::default();
        let special = Self {
            allow_or_deny,
            schedule: (!rule.schedule.is_empty()).then(|| Schedule::new(&rule.schedule)),
            expression: rule.expression().map(|expression| {
                let numbers = expression.attributes().iter().map(|name| number(name)).collect();
                (expression.clone(), numbers)
            }),
            only: (!rule.only().is_empty()).then(|| rule.only().into()),
            overrides,
            replaces: rule.replaces().iter().filter_map(|id| ids.get(&**id).copied()).collect(),
            suffices: rule.suffices,
            postpaid: rule.postpaid,
            cost,
            per,
            enforced_share: rule.enforce,
            ban: rule.ban.as_ref().map(|ban| BanLimits::new(ban, limit_registry)),
            refusal: has_refusal.then(|| Arc::new(rule.refusal.clone())),
            metadata: rule.metadata.clone(),
        };
        let calendars = rule.effect().limits().is_some_and(|set| !set.calendars.is_empty());
        let is_plain = special.allow_or_deny.is_none()
            && special.schedule.is_none()
            && special.expression.is_none()
            && special.only.is_none()
            && special.overrides.is_none()
            && special.replaces.is_empty()
            && !special.suffices
            && !special.postpaid
            && special.cost.is_none()
            && special.per.is_none()
            && special.enforced_share == crate::rules::ENFORCE_ALL
            && special.ban.is_none()
            && special.refusal.is_none()
            && special.metadata.is_none()
            && !calendars;
        (!is_plain).then_some(special)
    }

    /// Returns the names of the attributes that the rule reads outside its conditions: in `per`, `cost` or `if`.
    pub(super) fn attribute_names(rule: &Rule) -> Vec<&str> {
        let origins = rule.per().iter().flat_map(|counted| &counted.origins);
        let counted = origins.map(|origin| match origin {
            Origin::Attribute(name) | Origin::Capture { attribute: name, .. } => &**name,
        });
        let cost = match rule.cost() {
            DefaultCost::Fixed(_) | DefaultCost::Cases(_) => None,
            DefaultCost::From { attribute, .. } => Some(&**attribute),
        };
        let expressed = rule.expression().map_or(&[][..], Expression::attributes).iter().map(|name| &**name);
        counted.chain(cost).chain(expressed).collect()
    }

    /// Returns whether the rule depends on the time.
    pub(super) fn uses_time(&self) -> bool {
        let until =
            |overrides: &CompiledOverrides| overrides.compiled.iter().any(|one| one.until.is_some() || one.uses_time());
        self.schedule.is_some() || self.overrides.as_ref().is_some_and(until)
    }

    /// Returns whether the schedule, `only` and the expression hold.
    pub(crate) fn applies(&self, now: Time<Wall>, matched: &CandidateRules, attributes: &[Attribute<'_>]) -> bool {
        let names = |only: &[Box<str>]| {
            only.len() == attributes.len()
                && only.iter().zip(attributes).all(|(name, attribute)| name.as_bytes() == attribute.name)
        };
        self.only.as_deref().is_none_or(names)
            && self.schedule.as_ref().is_none_or(|schedule| schedule.applies(now))
            && self.expression.as_ref().is_none_or(|(expression, numbers)| {
                expression.holds(&|position| {
                    numbers.get(position).and_then(|number| matched.first_value(attributes, *number))
                })
            })
    }

    /// Returns the cost, if it depends on the request. Overwrites `scratch`.
    pub(crate) fn cost(
        &self,
        matched: &CandidateRules,
        attributes: &[Attribute<'_>],
        scratch: &mut CandidateRules,
    ) -> Option<Cost> {
        match self.cost.as_ref()? {
            CompiledCost::From { attribute, max, missing } => {
                let Some(value) = matched.first_value(attributes, *attribute) else { return Some(*missing) };
                let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
                let number = str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse::<u64>().ok());
                Some(number.map_or(*max, |number| Cost::new(number).min(*max)))
            }
            CompiledCost::Cases { index, costs } => {
                index.find(attributes, scratch);
                scratch.rules().first().and_then(|case| costs.get(*case as usize)).copied()
            }
        }
    }

    /// Appends the values of `per` to a key and returns true. Returns false and appends nothing if every value is a
    /// plain attribute.
    pub(crate) fn push_values(
        &self,
        key: &mut Vec<u8>,
        matched: &CandidateRules,
        attributes: &[Attribute<'_>],
    ) -> bool {
        let Some(per) = &self.per else { return false };
        for origins in per {
            let mut found = origins
                .iter()
                .enumerate()
                .filter_map(|(n, from)| Some((n, from, from.counted_value(matched, attributes)?)));
            let Some((position, from, value)) = found.next() else {
                key::push_value(key, None);
                continue;
            };
            let counted = match from {
                ValueSource::Address(_) => CountedAddress::from_value(value),
                ValueSource::Attribute(_) | ValueSource::Capture(..) => None,
            };
            let value = counted.as_ref().map_or(value, CountedAddress::as_bytes);
            match origins.len() {
                1 => key::push_value(key, Some(value)),
                _ => key::push_alternative(key, position as u8, value),
            }
        }
        true
    }

    /// Returns whether `enforce` makes the rule a shadow rule for a key. All nodes select the same keys, even after
    /// restarts. A higher percentage enforces the rule for additional keys.
    pub(crate) fn is_shadow_for(&self, key: &[u8]) -> bool {
        self.enforced_share < crate::rules::ENFORCE_ALL && key::enforce_hash(key) >= self.enforced_share
    }
}

impl ValueSource {
    fn new(origin: &Origin, rule: &Rule, number: &impl Fn(&str) -> u32) -> Self {
        match origin {
            Origin::Attribute(name) if is_address_attribute(name) => Self::Address(number(name)),
            Origin::Attribute(name) => Self::Attribute(number(name)),
            Origin::Capture { attribute, name } => {
                let patterns = rule.when().iter().filter(|when| when.attribute == *attribute);
                let patterns = patterns.flat_map(|Condition { test, .. }| match test {
                    Test::AnyOf(patterns) => &patterns[..],
                    Test::NoneOf(_) | Test::Present | Test::Absent => &[],
                });
                let captures = patterns.filter_map(|pattern| match pattern {
                    Pattern::Glob(glob) => Some((glob.clone(), glob.capture_position(name)?)),
                    Pattern::Equals(_) | Pattern::Prefix(_) | Pattern::Cidr(_) | Pattern::NotAnAddress => None,
                });
                Self::Capture(number(attribute), captures.collect())
            }
        }
    }

    fn counted_value<'e>(&self, matched: &CandidateRules, attributes: &'e [Attribute<'e>]) -> Option<&'e [u8]> {
        match self {
            Self::Attribute(attribute) | Self::Address(attribute) => matched.first_value(attributes, *attribute),
            Self::Capture(attribute, patterns) => matched.attribute_values(attributes, *attribute).find_map(|value| {
                let (_, position) = patterns.iter().find(|(glob, _)| glob.matches(value))?;
                position.segment_of(value)
            }),
        }
    }
}

impl CompiledOverrides {
    fn new(overrides: &[Override], limit_registry: &mut LimitRegistry) -> Self {
        let index_entries: Vec<IndexEntry<'_>> =
            overrides.iter().map(|other| IndexEntry { when: &other.when, names: Vec::new() }).collect();
        let compiled = overrides.iter().map(|other| CompiledOverride {
            until: other.until,
            effect: match &other.effect {
                Effect::Limits(set) => OverrideEffect::Limit(limit_registry.register(set)),
                Effect::Unlimited | Effect::Allow => OverrideEffect::Unlimited,
                Effect::Deny => OverrideEffect::Deny,
            },
        });
        Self { compiled: compiled.collect(), index: Index::new(&index_entries, 0) }
    }

    /// Returns the index of the first matching override that has not expired.
    pub(crate) fn first_matching(
        &self,
        attributes: &[Attribute<'_>],
        matched: &mut CandidateRules,
        now: Time<Wall>,
    ) -> Option<u32> {
        self.index.find(attributes, matched);
        let holds = |position: &&u32| self.compiled[**position as usize].until.is_none_or(|until| now < until);
        matched.rules().iter().find(holds).copied()
    }

    pub(crate) fn get(&self, position: u32) -> &CompiledOverride {
        &self.compiled[position as usize]
    }

    /// Returns the limits of all overrides.
    pub(crate) fn rule_limits(&self) -> impl Iterator<Item = &Arc<RuleLimits>> {
        self.compiled.iter().filter_map(|each| match &each.effect {
            OverrideEffect::Limit(rule_limits) => Some(rule_limits),
            OverrideEffect::Unlimited | OverrideEffect::Deny => None,
        })
    }
}

impl CompiledOverride {
    fn uses_time(&self) -> bool {
        matches!(&self.effect, OverrideEffect::Limit(rule_limits) if !rule_limits.calendars.is_empty())
    }
}

/// The limits that implement a ban: two counters besides the rule's own, under separate keys.
///
/// **The ban** is an interval bucket with a capacity of 1. The bucket refills 2 tokens, one ban length after it was
/// last full. Every request asks the bucket for a cost of 0, which changes nothing and is refused only if the bucket is
/// in debt. So the ban and the limits are decided in one group. Starting a ban takes [`BanLimits::COST`], which leaves
/// a debt of one token. The refill ends the ban exactly one ban length later, regardless of the clock's tick. The
/// refill also fills the bucket, so the next ban may start at the same instant. Starting a ban again during a ban would
/// exceed the maximum debt, so a ban cannot be prolonged.
///
/// **The refusals** are a sliding log whose capacity is one less than the number of refusals that start a ban. The
/// first refusal that does not fit starts the ban.
#[derive(Debug)]
pub(crate) struct BanLimits {
    pub(crate) ban: Arc<RuleLimits>,
    /// The limit that counts refusals; `None` if the first refusal starts the ban.
    pub(crate) refusals: Option<Arc<RuleLimits>>,
}

impl BanLimits {
    /// The cost that starts a ban.
    pub(crate) const COST: Cost = Cost::new(2);

    fn new(ban: &Ban, limit_registry: &mut LimitRegistry) -> Self {
        let (ban, refusals) = limits_of_ban(ban).unwrap_or((Limit::Unlimited, None));
        let mut of =
            |limit: Limit| limit_registry.register(&LimitSet { limits: Limits::from(limit), calendars: Vec::new() });
        Self { ban: of(ban), refusals: refusals.map(of) }
    }
}

/// Returns the limit that implements a ban, and the limit that counts refusals. The second limit is `None` if the first
/// refusal starts the ban.
pub(crate) fn limits_of_ban(ban: &Ban) -> Result<(Limit, Option<Limit>), LimitError> {
    let bucket = IntervalBucket::new(BanLimits::COST.get(), ban.length)?.burst(1)?.max_debt(1)?;
    let refusals = (ban.after > 1).then(|| SlidingLog::new(ban.after - 1, ban.within)?.max_debt(0));
    Ok((bucket.steps(Steps::FirstRequest).into(), refusals.transpose()?.map(Limit::from)))
}

/// Returns whether a rule is a shadow rule.
pub(super) fn is_shadow(on_exceed: OnExceed) -> bool {
    match on_exceed {
        OnExceed::Deny | OnExceed::Drop | OnExceed::Delay { .. } => false,
        OnExceed::Shadow => true,
    }
}
