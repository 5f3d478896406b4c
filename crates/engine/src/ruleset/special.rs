//! What only some rules have. The others do not pay for it: they are marked, and none of this is looked at.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tollgate::core::{Cost, Steps, Time, Wall};
use tollgate::{IntervalBucket, Limit, LimitError, Limits, SlidingLog};

use super::index::{Index, Matched, Sought};
use super::numbers::{Numbered, Numbers};
use crate::key;
use crate::request::Entry;
use crate::rules::{
    Ban, CapturePlace, Condition, CostOf, Counted, Effect, Expression, Glob, LimitSet, OnExceed, Origin, Override,
    Pattern, Refusal, Rule, Test,
};
use crate::schedule::Schedule;

/// What a rule says beyond its limits and when it applies.
#[derive(Debug)]
pub(crate) struct Special {
    pub(crate) judges: Option<Judgement>,
    schedule: Option<Schedule>,
    /// A condition, and the numbers of its attributes.
    expression: Option<(Expression, Box<[u32]>)>,
    /// The names that a request has, all of them and in this order.
    only: Option<Box<[Box<str>]>>,
    pub(crate) overrides: Option<Overrides>,
    /// The numbers of the rules that are left alone where this one is met.
    pub(crate) replaces: Box<[u32]>,
    /// Whether it need not be kept where another one like it has room.
    pub(crate) suffices: bool,
    cost: Option<CostFrom>,
    /// What is counted by, if attributes alone do not say it.
    per: Option<Box<[Box<[From]>]>>,
    /// Of ten thousand counters, for how many it is enforced.
    enforce: u16,
    pub(crate) ban: Option<Banning>,
    pub(crate) refusal: Option<Arc<Refusal>>,
}

/// What a rule says of a request, without counting anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Allow,
    Deny,
}

#[derive(Debug)]
struct CostFrom {
    attribute: u32,
    max: Cost,
    missing: Cost,
}

/// Where a value comes from.
#[derive(Debug)]
enum From {
    Attribute(u32),
    /// The segment of the first value that one of these patterns matches.
    Capture(u32, Box<[(Glob, CapturePlace)]>),
}

/// The numbers that some have instead of the rule's, found like rules are.
#[derive(Debug)]
pub(crate) struct Overrides {
    index: Index,
    each: Box<[Exception]>,
}

#[derive(Debug)]
pub(crate) struct Exception {
    until: Option<Time<Wall>>,
    pub(crate) does: Does,
}

/// What an override does.
#[derive(Debug)]
pub(crate) enum Does {
    Limit(Arc<Numbered>),
    Nothing,
    Deny,
}

impl Special {
    /// What is special about a rule, if anything is. `index` and `ids`, the numbers of the rules, are those of its domain.
    pub(super) fn of(rule: &Rule, index: &Index, ids: &FxHashMap<&str, u32>, numbers: &mut Numbers) -> Option<Self> {
        let number = |name: &str| index.attribute(name).unwrap_or(u32::MAX);
        let judges = match rule.effect() {
            Effect::Allow => Some(Judgement::Allow),
            Effect::Deny => Some(Judgement::Deny),
            Effect::Limits(_) | Effect::Unlimited => None,
        };
        let cost = match rule.cost() {
            CostOf::Fixed(_) => None,
            CostOf::From { attribute, max, missing } => {
                Some(CostFrom { attribute: number(attribute), max: *max, missing: *missing })
            }
        };
        let plain = |counted: &Counted| matches!(&*counted.origins, [Origin::Attribute(name)] if *name == counted.text);
        let per = (!rule.per().iter().all(plain)).then(|| {
            rule.per()
                .iter()
                .map(|counted| counted.origins.iter().map(|o| From::new(o, rule, &number)).collect())
                .collect()
        });
        let overrides = (!rule.overrides().is_empty()).then(|| Overrides::new(rule.overrides(), numbers));
        let has_refusal = rule.refusal != Refusal::default();
        let special = Self {
            judges,
            schedule: (!rule.schedule.is_empty()).then(|| Schedule::new(&rule.schedule)),
            expression: rule.expression().map(|expression| {
                let numbers = expression.attributes().iter().map(|name| number(name)).collect();
                (expression.clone(), numbers)
            }),
            only: (!rule.only().is_empty()).then(|| rule.only().into()),
            overrides,
            replaces: rule.replaces().iter().filter_map(|id| ids.get(&**id).copied()).collect(),
            suffices: rule.suffices,
            cost,
            per,
            enforce: rule.enforce,
            ban: rule.ban.as_ref().map(|ban| Banning::new(ban, numbers)),
            refusal: has_refusal.then(|| Arc::new(rule.refusal.clone())),
        };
        let calendars = rule.effect().limits().is_some_and(|set| !set.calendars.is_empty());
        let is_plain = special.judges.is_none()
            && special.schedule.is_none()
            && special.expression.is_none()
            && special.only.is_none()
            && special.overrides.is_none()
            && special.replaces.is_empty()
            && !special.suffices
            && special.cost.is_none()
            && special.per.is_none()
            && special.enforce == crate::rules::ALL
            && special.ban.is_none()
            && special.refusal.is_none()
            && !calendars;
        (!is_plain).then_some(special)
    }

    /// The attributes that a rule needs the numbers of, beside those it tests.
    pub(super) fn names(rule: &Rule) -> Vec<&str> {
        let origins = rule.per().iter().flat_map(|counted| &counted.origins);
        let counted = origins.map(|origin| match origin {
            Origin::Attribute(name) | Origin::Capture { attribute: name, .. } => &**name,
        });
        let cost = match rule.cost() {
            CostOf::Fixed(_) => None,
            CostOf::From { attribute, .. } => Some(&**attribute),
        };
        let expressed = rule.expression().map_or(&[][..], Expression::attributes).iter().map(|name| &**name);
        counted.chain(cost).chain(expressed).collect()
    }

    /// Whether it depends on the time.
    pub(super) fn uses_time(&self) -> bool {
        let until = |overrides: &Overrides| overrides.each.iter().any(|each| each.until.is_some() || each.uses_time());
        self.schedule.is_some() || self.overrides.as_ref().is_some_and(until)
    }

    /// Whether it is the time for the rule, the request has nothing that it should not have, and its expression holds.
    pub(crate) fn applies(&self, now: Time<Wall>, matched: &Matched, entries: &[Entry<'_>]) -> bool {
        let names = |only: &[Box<str>]| {
            only.len() == entries.len() && only.iter().zip(entries).all(|(name, entry)| name.as_bytes() == entry.name)
        };
        self.only.as_deref().is_none_or(names)
            && self.schedule.as_ref().is_none_or(|schedule| schedule.applies(now))
            && self.expression.as_ref().is_none_or(|(expression, numbers)| {
                expression.holds(&|place| numbers.get(place).and_then(|number| matched.value(entries, *number)))
            })
    }

    /// What the request weighs, if an attribute says so.
    pub(crate) fn cost(&self, matched: &Matched, entries: &[Entry<'_>]) -> Option<Cost> {
        let from = self.cost.as_ref()?;
        let Some(value) = matched.value(entries, from.attribute) else { return Some(from.missing) };
        let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let number = str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse::<u64>().ok());
        Some(number.map_or(from.max, |number| Cost::new(number).min(from.max)))
    }

    /// Adds the values that are counted by to a key, if attributes alone do not say them.
    pub(crate) fn push_values(&self, key: &mut Vec<u8>, matched: &Matched, entries: &[Entry<'_>]) -> bool {
        let Some(per) = &self.per else { return false };
        for origins in per {
            let mut found = origins.iter().enumerate().filter_map(|(n, from)| Some((n, from.value(matched, entries)?)));
            match (found.next(), origins.len()) {
                (None, _) => key::push_value(key, None),
                (Some((_, value)), 1) => key::push_value(key, Some(value)),
                (Some((place, value)), _) => key::push_chosen(key, place as u8, value),
            }
        }
        true
    }

    /// Whether the rule is only a shadow for a key. The same ones on every node and after every restart; more of them are
    /// enforced when the share is raised, and none of those that were are not any more.
    pub(crate) fn spares(&self, key: &[u8]) -> bool {
        self.enforce < crate::rules::ALL && key::place_of(key) >= self.enforce
    }
}

impl From {
    fn new(origin: &Origin, rule: &Rule, number: &impl Fn(&str) -> u32) -> Self {
        match origin {
            Origin::Attribute(name) => Self::Attribute(number(name)),
            Origin::Capture { attribute, name } => {
                let patterns = rule.when().iter().filter(|when| when.attribute == *attribute);
                let patterns = patterns.flat_map(|Condition { test, .. }| match test {
                    Test::AnyOf(patterns) => &patterns[..],
                    Test::NoneOf(_) | Test::Present | Test::Absent => &[],
                });
                let captures = patterns.filter_map(|pattern| match pattern {
                    Pattern::Glob(glob) => Some((glob.clone(), glob.capture(name)?)),
                    Pattern::Equals(_) | Pattern::Prefix(_) | Pattern::Cidr(_) => None,
                });
                Self::Capture(number(attribute), captures.collect())
            }
        }
    }

    fn value<'e>(&self, matched: &Matched, entries: &'e [Entry<'e>]) -> Option<&'e [u8]> {
        match self {
            Self::Attribute(attribute) => matched.value(entries, *attribute),
            Self::Capture(attribute, patterns) => matched.values(entries, *attribute).find_map(|value| {
                let (_, place) = patterns.iter().find(|(glob, _)| glob.matches(value))?;
                place.of(value)
            }),
        }
    }
}

impl Overrides {
    fn new(overrides: &[Override], numbers: &mut Numbers) -> Self {
        let sought: Vec<Sought<'_>> =
            overrides.iter().map(|other| Sought { when: &other.when, names: Vec::new() }).collect();
        let each = overrides.iter().map(|other| Exception {
            until: other.until,
            does: match &other.effect {
                Effect::Limits(set) => Does::Limit(numbers.of(set)),
                Effect::Unlimited | Effect::Allow => Does::Nothing,
                Effect::Deny => Does::Deny,
            },
        });
        Self { each: each.collect(), index: Index::new(&sought, 0) }
    }

    /// The place of the first that holds.
    pub(crate) fn first(&self, entries: &[Entry<'_>], matched: &mut Matched, now: Time<Wall>) -> Option<u32> {
        self.index.find(entries, matched);
        let holds = |place: &&u32| self.each[**place as usize].until.is_none_or(|until| now < until);
        matched.rules().iter().find(holds).copied()
    }

    pub(crate) fn get(&self, place: u32) -> &Exception {
        &self.each[place as usize]
    }

    /// All sets of numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = &Arc<Numbered>> {
        self.each.iter().filter_map(|each| match &each.does {
            Does::Limit(numbered) => Some(numbered),
            Does::Nothing | Does::Deny => None,
        })
    }
}

impl Exception {
    fn uses_time(&self) -> bool {
        matches!(&self.does, Does::Limit(numbered) if !numbered.calendars.is_empty())
    }
}

/// How a counter is banned: by two more counters beside it, under keys of their own.
///
/// **The ban** is an interval bucket that holds 1 and gets 2 back when the length of a ban has passed since it was full. Requests
/// ask it for a cost of 0, which passes unless the bucket is in debt and changes nothing, so a ban is decided in one group
/// with the limits. Starting a ban takes [`Banning::COST`], which leaves a debt of 1. The refill ends the ban exactly its
/// length later, whatever the tick of the clock is, and fills the bucket, so the next ban may start at that very
/// instant. A second start while a ban lasts does not fit the largest debt, so it cannot prolong the ban.
///
/// **The refusals** are a sliding log that has room for one less than lead to a ban: the refusal that does not fit starts it.
#[derive(Debug)]
pub(crate) struct Banning {
    pub(crate) ban: Arc<Numbered>,
    /// None if the first refusal starts the ban.
    pub(crate) refusals: Option<Arc<Numbered>>,
}

impl Banning {
    /// What the start of a ban takes.
    pub(crate) const COST: Cost = Cost::new(2);

    fn new(ban: &Ban, numbers: &mut Numbers) -> Self {
        let (ban, refusals) = limits_of(ban).unwrap_or((Limit::Unlimited, None));
        let mut of = |limit: Limit| numbers.of(&LimitSet { limits: Limits::from(limit), calendars: Vec::new() });
        Self { ban: of(ban), refusals: refusals.map(of) }
    }
}

/// Returns the limit of a ban, and that of the refusals that lead to it, unless the first one does.
pub(crate) fn limits_of(ban: &Ban) -> Result<(Limit, Option<Limit>), LimitError> {
    let bucket = IntervalBucket::new(Banning::COST.get(), ban.length)?.burst(1)?.max_debt(1)?;
    let refusals = (ban.after > 1).then(|| SlidingLog::new(ban.after - 1, ban.within)?.max_debt(0));
    Ok((bucket.steps(Steps::FirstRequest).into(), refusals.transpose()?.map(Limit::from)))
}

/// Whether a rule only says what it would do.
pub(super) fn is_shadow(on_exceed: OnExceed) -> bool {
    match on_exceed {
        OnExceed::Deny | OnExceed::Drop | OnExceed::Delay { .. } => false,
        OnExceed::Shadow => true,
    }
}
