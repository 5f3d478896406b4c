//! Checked rules.

use std::borrow::Cow;
use std::sync::Arc;

use tollgate::Limits;
use tollgate::core::{Cost, Nanos, Time, Wall};

use super::{CapturePosition, Cidr, Expression, Glob, Metadata, Position};
use crate::calendar::Calendar;
use crate::schedule::Hours;

/// A rule: its conditions, the attributes that it counts by, its limits, and its treatment of requests above the limits
/// and during a fault.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) id: Box<str>,
    pub(crate) position: RulePosition,
    pub(crate) when: Vec<Condition>,
    pub(crate) expression: Option<Expression>,
    /// The exact attributes of a matching request, in order; empty if any attributes are allowed.
    pub(crate) only: Box<[Box<str>]>,
    pub(crate) per: Vec<PerElement>,
    pub(crate) effect: Effect,
    /// The limits as written, in order.
    pub(crate) written_limits: Box<[Box<str>]>,
    pub(crate) overrides: Vec<Override>,
    /// Ids of rules that do not apply to requests that match this rule.
    pub(crate) replaces: Box<[Box<str>]>,
    /// Whether the rule is marked `suffices`: a request that matches several marked rules needs capacity in only one of
    /// them.
    pub(crate) suffices: bool,
    /// Whether a cost above 0 may be charged into debt.
    pub(crate) postpaid: bool,
    pub(crate) cost: DefaultCost,
    pub(crate) on_exceed: OnExceed,
    pub(crate) on_fault: OnFault,
    pub(crate) consistency: Consistency,
    pub(crate) on_change: OnChange,
    /// The share of counters for which the rule is enforced, in units of 1/10,000. For all other counters, the rule is
    /// a shadow rule.
    pub(crate) enforce: u16,
    pub(crate) ban: Option<Ban>,
    pub(crate) schedule: Vec<Hours>,
    pub(crate) refusal: Refusal,
    pub(crate) metadata: Option<Arc<Metadata>>,
}

/// Value of `enforce` if the rule is enforced for all counters.
pub(crate) const ENFORCE_ALL: u16 = 10_000;

impl Rule {
    /// Returns the id, which is unique within the domain.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the limits as written, in order.
    pub fn limits_as_written(&self) -> &[Box<str>] {
        &self.written_limits
    }

    /// Returns the file and the position in it.
    pub fn position(&self) -> &RulePosition {
        &self.position
    }

    /// Returns the conditions, all of which must hold.
    pub fn when(&self) -> &[Condition] {
        &self.when
    }

    /// Returns the expression. The expression must hold in addition to the conditions.
    pub fn expression(&self) -> Option<&Expression> {
        self.expression.as_ref()
    }

    /// Returns the exact attributes of a matching request, in order; empty if any attributes are allowed.
    pub fn only(&self) -> &[Box<str>] {
        &self.only
    }

    /// Returns whether `when` alone decides which requests match.
    pub(crate) fn matches_by_when_alone(&self) -> bool {
        self.schedule.is_empty() && self.expression.is_none() && self.only.is_empty()
    }

    /// Returns the conditions for the index: the conditions of `when` and, if none of them contains a value, one
    /// condition that the expression implies.
    pub(crate) fn index_conditions(&self) -> Cow<'_, [Condition]> {
        let names_values = |condition: &Condition| matches!(condition.test, Test::AnyOf(_));
        let implied = match &self.expression {
            Some(expression) if !self.when.iter().any(names_values) => expression.implied_condition(),
            Some(_) | None => None,
        };
        match implied {
            Some(implied) => Cow::Owned(self.when.iter().cloned().chain([implied]).collect()),
            None => Cow::Borrowed(&self.when),
        }
    }

    /// Returns the attributes that the rule counts by.
    pub fn per(&self) -> &[PerElement] {
        &self.per
    }

    /// Returns the effect on matching requests.
    pub fn effect(&self) -> &Effect {
        &self.effect
    }

    /// Returns the limits, if the rule has any.
    pub fn limits(&self) -> Option<&Limits> {
        self.effect.limits().map(|set| &set.limits)
    }

    /// Returns the overrides. The first matching override applies.
    pub fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// Returns the ids of rules that do not apply to requests that match this rule.
    pub fn replaces(&self) -> &[Box<str>] {
        &self.replaces
    }

    /// Returns the cost of a request that does not state its own.
    pub fn cost(&self) -> &DefaultCost {
        &self.cost
    }

    /// Returns how the rule treats a request above its limits.
    pub fn on_exceed(&self) -> OnExceed {
        self.on_exceed
    }

    /// Returns how the rule treats a request while the store does not answer.
    pub fn on_fault(&self) -> OnFault {
        self.on_fault
    }

    /// Returns how nodes with a shared store agree on counters.
    pub fn consistency(&self) -> Consistency {
        self.consistency
    }

    /// Returns the ban that follows too many refusals.
    pub fn ban(&self) -> Option<&Ban> {
        self.ban.as_ref()
    }

    /// Returns the metadata for the caller.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_deref()
    }

    /// Returns the limits of the rule and of each override.
    pub(crate) fn all_limits(&self) -> impl Iterator<Item = &LimitSet> {
        let overrides = self.overrides.iter().map(|other| &other.effect);
        std::iter::once(&self.effect).chain(overrides).filter_map(Effect::limits)
    }
}

/// The file and position of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulePosition {
    /// The name of the file.
    pub file: Arc<str>,
    /// The position in the file.
    pub position: Position,
}

/// The effect of a rule on a matching request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Charges the request to these limits.
    Limits(LimitSet),
    /// Applies no limit; the request is only counted in the metrics.
    Unlimited,
    /// Admits the request without evaluating other rules.
    Allow,
    /// Always refuses the request.
    Deny,
}

impl Effect {
    /// Returns the limits, if the effect has any.
    pub fn limits(&self) -> Option<&LimitSet> {
        match self {
            Self::Limits(set) => Some(set),
            Self::Unlimited | Self::Allow | Self::Deny => None,
        }
    }
}

/// Limits, with the calendars of calendar windows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitSet {
    /// The limits.
    pub limits: Limits,
    /// The calendars. Limits with phase `Given` refer to these calendars by index.
    pub calendars: Vec<Calendar>,
}

/// An override: other limits for some requests.
#[derive(Clone, Debug)]
pub struct Override {
    /// The position in the file.
    pub position: Position,
    /// The conditions. All conditions must hold.
    pub when: Vec<Condition>,
    /// The effect on matching requests.
    pub effect: Effect,
    /// The limits as written, in order, including inherited options.
    pub(crate) written_limits: Box<[Box<str>]>,
    /// The expiry time.
    pub until: Option<Time<Wall>>,
    /// Whether the override was set through the API, separately from the rule.
    pub(crate) by_api: bool,
}

impl Override {
    /// Returns the value that identifies an override set through the API.
    pub(crate) fn api_value(&self) -> Option<&str> {
        match &self.when[..] {
            [Condition { test: Test::AnyOf(patterns), .. }] if self.by_api => match &patterns[..] {
                [Pattern::Equals(value)] => Some(value),
                _ => None,
            },
            _ => None,
        }
    }
}

/// An element of `per`: requests are counted separately for each of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerElement {
    /// The element as written. The text is part of the counter's identity.
    pub text: Box<str>,
    /// The sources of the value. The first source that the request has is used.
    pub origins: Vec<Origin>,
}

/// The source of a value to count by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An attribute.
    Attribute(Box<str>),
    /// A segment captured by a pattern of the rule.
    Capture {
        /// The attribute.
        attribute: Box<str>,
        /// The name in the pattern.
        name: Box<str>,
    },
}

/// A condition on one attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// The name of the attribute.
    pub attribute: Box<str>,
    /// The test. If the attribute has several values, [`Test::AnyOf`] holds if one value matches.
    pub test: Test,
}

/// A test of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// The value matches one of these patterns. The list is not empty.
    AnyOf(Vec<Pattern>),
    /// No value matches any of these patterns.
    NoneOf(Vec<Pattern>),
    /// The attribute is present.
    Present,
    /// The attribute is missing.
    Absent,
}

/// A pattern to compare a value with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Exactly this string.
    Equals(Box<str>),
    /// A path pattern.
    Glob(Glob),
    /// A prefix.
    Prefix(Box<str>),
    /// An IP network.
    Cidr(Cidr),
    /// Any value that is not an address.
    NotAnAddress,
}

impl Pattern {
    /// Returns the position of the segment that `name` captures.
    pub(crate) fn capture_position(&self, name: &str) -> Option<CapturePosition> {
        match self {
            Self::Glob(glob) => glob.capture_position(name),
            Self::Equals(_) | Self::Prefix(_) | Self::Cidr(_) | Self::NotAnAddress => None,
        }
    }
}

/// The cost of a request that does not state its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DefaultCost {
    /// A constant.
    Fixed(Cost),
    /// The value of an attribute.
    From {
        /// The attribute.
        attribute: Box<str>,
        /// The maximum cost, also used for values that are not whole numbers.
        max: Cost,
        /// The cost of a request without the attribute.
        missing: Cost,
    },
    /// The cost of the first case that matches; 1 if no case matches.
    Cases(Vec<CostCase>),
}

/// A case of `cost`: the cost of some requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostCase {
    /// The conditions. All conditions must hold.
    pub when: Vec<Condition>,
    /// The cost of matching requests.
    pub cost: Cost,
}

impl DefaultCost {
    /// Returns the cases; empty for other kinds of cost.
    pub(crate) fn cases(&self) -> &[CostCase] {
        match self {
            Self::Cases(cases) => cases,
            Self::Fixed(_) | Self::From { .. } => &[],
        }
    }
}

/// The treatment of a request above the limits of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExceed {
    /// The request is refused.
    #[default]
    Deny,
    /// The request is admitted, and counted and reported as a shadow refusal.
    Shadow,
    /// The request is refused without an answer.
    Drop,
    /// The request is admitted after a wait. The limits compute the wait.
    Delay {
        /// The longest wait.
        max_wait: Nanos,
    },
}

impl OnExceed {
    pub(crate) const CHOICES: &[(&str, Self)] = &[("deny", Self::Deny), ("shadow", Self::Shadow), ("drop", Self::Drop)];
}

/// The treatment of a request while the store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// The request is decided in this process, by this node's share of the limits.
    #[default]
    Local,
    /// The request is admitted.
    Open,
    /// The request is refused.
    Closed,
}

impl OnFault {
    pub(crate) const CHOICES: &[(&str, Self)] =
        &[("local", Self::Local), ("open", Self::Open), ("closed", Self::Closed)];
}

/// How nodes with a shared store agree on the counters of a rule. With the in-memory store, all variants behave like
/// `Strict`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// The store decides every request.
    #[default]
    Strict,
    /// Nodes spend tokens that the store granted them in advance.
    Leased,
    /// Nodes decide by local views, and exchange their charges at this interval.
    Eventual(SyncEvery),
}

impl Consistency {
    pub(crate) const CHOICES: &[&str] = &["strict", "leased", "eventual"];

    /// Returns the name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Leased => "leased",
            Self::Eventual(_) => "eventual",
        }
    }
}

/// Interval at which nodes exchange their charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SyncEvery {
    millis: u16,
}

impl SyncEvery {
    /// The shortest interval.
    pub const MIN: Nanos = Nanos::from_millis(10);
    /// The longest interval.
    pub const MAX: Nanos = Nanos::from_secs(10);
    /// The interval of a rule that does not state one.
    pub const DEFAULT: Self = Self { millis: 100 };

    /// Creates an interval, or returns `None` if it is below [`SyncEvery::MIN`] or above [`SyncEvery::MAX`]. Fractions
    /// of a millisecond are dropped.
    pub fn new(every: Nanos) -> Option<Self> {
        let millis = u16::try_from(every.as_nanos() / 1_000_000).ok()?;
        (Self::MIN <= every && every <= Self::MAX).then_some(Self { millis })
    }

    /// Returns the length of the interval.
    pub const fn length(self) -> Nanos {
        Nanos::from_millis(self.millis as u64)
    }
}

impl Default for SyncEvery {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The treatment of values that are not addresses. Used by rules that deny networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnInvalid {
    /// The rule does not match such values.
    #[default]
    Ignore,
    /// The rule refuses requests with such values.
    Deny,
}

impl OnInvalid {
    pub(crate) const CHOICES: &[(&str, Self)] = &[("ignore", Self::Ignore), ("deny", Self::Deny)];
}

/// The treatment of used amounts when the limits of a rule change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnChange {
    /// Used amounts are kept.
    #[default]
    Keep,
    /// Used amounts are discarded.
    Reset,
}

impl OnChange {
    pub(crate) const CHOICES: &[(&str, Self)] = &[("keep", Self::Keep), ("reset", Self::Reset)];
}

/// A ban: refuses all requests of a counter for some time, after too many refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// The number of refusals that starts a ban.
    pub after: u64,
    /// The time within which these refusals must occur.
    pub within: Nanos,
    /// The duration of the ban.
    pub length: Nanos,
}

/// How a refusal is reported to the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The status code, unless the front end's default applies.
    pub status: Option<u16>,
    /// The message, unless the front end's default applies.
    pub message: Option<Box<str>>,
    /// Whether the front end should send no answer, if it supports this.
    pub silent: bool,
}
