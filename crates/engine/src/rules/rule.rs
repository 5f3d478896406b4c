//! Checked rules.

use std::borrow::Cow;
use std::sync::Arc;

use tollgate::Limits;
use tollgate::core::{Cost, Nanos, Time, Wall};

use super::{CapturePosition, Cidr, Expression, Glob, Metadata, Position};
use crate::calendar::Calendar;
use crate::schedule::Hours;

/// A rule: its conditions, the attributes it counts by, its limits, and what happens above them or
/// on a fault.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) id: Box<str>,
    pub(crate) position: RulePosition,
    pub(crate) when: Vec<Condition>,
    pub(crate) expression: Option<Expression>,
    /// All attributes that a request must have, in order; empty if any are allowed.
    pub(crate) only: Box<[Box<str>]>,
    pub(crate) per: Vec<PerElement>,
    pub(crate) effect: Effect,
    /// Its limits as written, in order.
    pub(crate) words: Box<[Box<str>]>,
    pub(crate) overrides: Vec<Override>,
    /// The ids of rules that are left out where this one matches.
    pub(crate) replaces: Box<[Box<str>]>,
    /// Whether it is enough that one of several such rules admits the request.
    pub(crate) suffices: bool,
    /// Whether a cost above 0 is taken into debt.
    pub(crate) postpaid: bool,
    pub(crate) cost: CostOf,
    pub(crate) on_exceed: OnExceed,
    pub(crate) on_fault: OnFault,
    pub(crate) consistency: Consistency,
    pub(crate) on_change: OnChange,
    /// Of ten thousand counters, the number for which it is enforced; for the others it is a shadow
    /// rule.
    pub(crate) enforce: u16,
    pub(crate) ban: Option<Ban>,
    pub(crate) schedule: Vec<Hours>,
    pub(crate) refusal: Refusal,
    pub(crate) metadata: Option<Arc<Metadata>>,
}

/// `enforce` for all counters.
pub(crate) const ALL: u16 = 10_000;

impl Rule {
    /// Its identity within the domain.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the limits as written, in order.
    pub fn limits_as_written(&self) -> &[Box<str>] {
        &self.words
    }

    /// Returns where it is written.
    pub fn position(&self) -> &RulePosition {
        &self.position
    }

    /// Returns the conditions, all of which must hold.
    pub fn when(&self) -> &[Condition] {
        &self.when
    }

    /// Returns the expression, which must hold as well.
    pub fn expression(&self) -> Option<&Expression> {
        self.expression.as_ref()
    }

    /// Returns all attributes that a request must have, in order; empty if any are allowed.
    pub fn only(&self) -> &[Box<str>] {
        &self.only
    }

    /// Returns whether `when` alone decides which requests it matches.
    pub(crate) fn is_unconditional_beyond_when(&self) -> bool {
        self.schedule.is_empty() && self.expression.is_none() && self.only.is_empty()
    }

    /// Returns the conditions to index it by: those of `when` and, if they contain no value, one
    /// that its expression implies.
    pub(crate) fn sought(&self) -> Cow<'_, [Condition]> {
        let names_values = |condition: &Condition| matches!(condition.test, Test::AnyOf(_));
        let implied = match &self.expression {
            Some(expression) if !self.when.iter().any(names_values) => expression.implied(),
            Some(_) | None => None,
        };
        match implied {
            Some(implied) => Cow::Owned(self.when.iter().cloned().chain([implied]).collect()),
            None => Cow::Borrowed(&self.when),
        }
    }

    /// Returns the attributes that it counts by.
    pub fn per(&self) -> &[PerElement] {
        &self.per
    }

    /// Returns what it does with matching requests.
    pub fn effect(&self) -> &Effect {
        &self.effect
    }

    /// Returns the limits, if it has any.
    pub fn limits(&self) -> Option<&Limits> {
        self.effect.limits().map(|set| &set.limits)
    }

    /// Other limits for some requests; the first one that matches applies.
    pub fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// Returns the ids of rules that a request is not charged to if it matches this one.
    pub fn replaces(&self) -> &[Box<str>] {
        &self.replaces
    }

    /// Returns the cost of a request that does not state its own.
    pub fn cost(&self) -> &CostOf {
        &self.cost
    }

    /// Returns what happens above the limits.
    pub fn on_exceed(&self) -> OnExceed {
        self.on_exceed
    }

    /// Returns what happens when the store does not answer.
    pub fn on_fault(&self) -> OnFault {
        self.on_fault
    }

    /// How nodes that share a store agree.
    pub fn consistency(&self) -> Consistency {
        self.consistency
    }

    /// Returns the ban after too many refusals.
    pub fn ban(&self) -> Option<&Ban> {
        self.ban.as_ref()
    }

    /// Returns the metadata for the caller.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_deref()
    }

    /// Every set of limits that it may charge.
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
    /// The position in it.
    pub position: Position,
}

/// What a rule does with a matching request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Charges it to these limits.
    Limits(LimitSet),
    /// Nothing, except that it is counted in the metrics.
    Unlimited,
    /// Admits it, whatever other rules say.
    Allow,
    /// Always refuses it.
    Deny,
}

impl Effect {
    /// Returns the limits, if it has any.
    pub fn limits(&self) -> Option<&LimitSet> {
        match self {
            Self::Limits(set) => Some(set),
            Self::Unlimited | Self::Allow | Self::Deny => None,
        }
    }
}

/// Limits, and the calendars of those that are calendar windows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitSet {
    /// The limits.
    pub limits: Limits,
    /// The windows that limits of phase `Given` refer to by index.
    pub calendars: Vec<Calendar>,
}

/// Other limits for some requests.
#[derive(Clone, Debug)]
pub struct Override {
    /// Its position.
    pub position: Position,
    /// The conditions, all of which must hold.
    pub when: Vec<Condition>,
    /// What applies to these requests.
    pub effect: Effect,
    /// Its limits as written, with what it inherits from the rule, in order.
    pub(crate) words: Box<[Box<str>]>,
    /// When it expires.
    pub until: Option<Time<Wall>>,
    /// Whether it was set through the API, separately from the rule.
    pub(crate) by_api: bool,
}

impl Override {
    /// Returns the value that identifies it, if it was set through the API.
    pub(crate) fn name(&self) -> Option<&str> {
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
    /// The element as written, which is part of the identity of the counter.
    pub text: Box<str>,
    /// The sources of the value; the first that the request has counts.
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
    /// The test. If the attribute has several values, one must pass.
    pub test: Test,
}

/// A test of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// The value matches one of these patterns; there is at least one.
    AnyOf(Vec<Pattern>),
    /// No value matches one of these patterns.
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
    /// Returns the segment that a name captures.
    pub(crate) fn capture(&self, name: &str) -> Option<CapturePosition> {
        match self {
            Self::Glob(glob) => glob.capture(name),
            Self::Equals(_) | Self::Prefix(_) | Self::Cidr(_) | Self::NotAnAddress => None,
        }
    }
}

/// The cost of a request that does not state its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostOf {
    /// A constant.
    Fixed(Cost),
    /// The value of an attribute.
    From {
        /// The attribute.
        attribute: Box<str>,
        /// The largest cost; also used for values that are not whole numbers.
        max: Cost,
        /// The cost of a request without the attribute.
        missing: Cost,
    },
    /// The cost of the first case that matches; 1 if none does.
    Cases(Vec<CostCase>),
}

/// The cost of some requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostCase {
    /// The conditions, all of which must hold.
    pub when: Vec<Condition>,
    /// The cost.
    pub cost: Cost,
}

impl CostOf {
    /// Returns the cases, if it has any.
    pub(crate) fn cases(&self) -> &[CostCase] {
        match self {
            Self::Cases(cases) => cases,
            Self::Fixed(_) | Self::From { .. } => &[],
        }
    }
}

/// What happens to a request above the limits of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExceed {
    /// It is refused.
    #[default]
    Deny,
    /// The request is admitted, and reported as one that would have been refused.
    Shadow,
    /// The request is refused without an answer.
    Drop,
    /// It is admitted after a wait; the limits are built so that they return the wait.
    Delay {
        /// The longest wait.
        max_wait: Nanos,
    },
}

impl OnExceed {
    pub(crate) const WORDS: &[(&str, Self)] = &[("deny", Self::Deny), ("shadow", Self::Shadow), ("drop", Self::Drop)];
}

/// What happens to a request when the store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// The request is decided in this process, by this node's share of the limits.
    #[default]
    Local,
    /// It is admitted.
    Open,
    /// It is refused.
    Closed,
}

impl OnFault {
    pub(crate) const WORDS: &[(&str, Self)] = &[("local", Self::Local), ("open", Self::Open), ("closed", Self::Closed)];
}

/// How nodes that share a store agree on the counters of a rule. A store in the memory of one process decides all of them alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// The store decides every request.
    #[default]
    Strict,
    /// Nodes spend tokens that the store granted them in advance.
    Leased,
    /// Nodes decide by what they know, and exchange what they took.
    Eventual(SyncEvery),
}

impl Consistency {
    pub(crate) const WORDS: &[&str] = &["strict", "leased", "eventual"];

    /// Returns the name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Leased => "leased",
            Self::Eventual(_) => "eventual",
        }
    }
}

/// How often nodes exchange what they took.
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

    /// Creates an interval; `None` unless it is from [`SyncEvery::MIN`] to [`SyncEvery::MAX`]. Parts of a millisecond are dropped.
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

/// What a rule that denies networks does with values that are not addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnInvalid {
    /// The rule does not match them.
    #[default]
    Ignore,
    /// It refuses them.
    Deny,
}

impl OnInvalid {
    pub(crate) const WORDS: &[(&str, Self)] = &[("ignore", Self::Ignore), ("deny", Self::Deny)];
}

/// What happens to usage when the limits of a rule change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnChange {
    /// It is kept.
    #[default]
    Keep,
    /// It is discarded.
    Reset,
}

impl OnChange {
    pub(crate) const WORDS: &[(&str, Self)] = &[("keep", Self::Keep), ("reset", Self::Reset)];
}

/// Refuses all requests for a while after too many refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// The number of refusals.
    pub after: u64,
    /// The time in which they must occur.
    pub within: Nanos,
    /// The duration of the ban.
    pub length: Nanos,
}

/// What a refusal looks like to the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The status code, if it is not that of the front end.
    pub status: Option<u16>,
    /// The message, if it is not that of the front end.
    pub message: Option<Box<str>>,
    /// Whether to send no answer, where the front end can do that.
    pub silent: bool,
}
