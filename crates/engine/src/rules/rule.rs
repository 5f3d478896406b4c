//! What a rule says, checked.

use std::borrow::Cow;
use std::sync::Arc;

use tollgate::Limits;
use tollgate::core::{Cost, Nanos, Time, Wall};

use super::{CapturePlace, Cidr, Expression, Glob, Place};
use crate::calendar::Calendar;
use crate::schedule::Hours;

/// When it applies, what it counts by, its limits, and what happens when they are exceeded or in doubt.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) id: Box<str>,
    pub(crate) place: Where,
    pub(crate) when: Vec<Condition>,
    pub(crate) expression: Option<Expression>,
    /// The names of all attributes of a request, in order; if there are none, whatever it has.
    pub(crate) only: Box<[Box<str>]>,
    pub(crate) per: Vec<Counted>,
    pub(crate) effect: Effect,
    /// Its limits as they were written, in order.
    pub(crate) words: Box<[Box<str>]>,
    pub(crate) overrides: Vec<Override>,
    /// The ids of rules that are left alone where this one is met.
    pub(crate) replaces: Box<[Box<str>]>,
    /// Whether it need not be kept where another one like it has room.
    pub(crate) suffices: bool,
    pub(crate) cost: CostOf,
    pub(crate) on_exceed: OnExceed,
    pub(crate) on_fault: OnFault,
    pub(crate) on_change: OnChange,
    /// Of ten thousand counters, for how many it is enforced; the others are shadows.
    pub(crate) enforce: u16,
    pub(crate) ban: Option<Ban>,
    pub(crate) schedule: Vec<Hours>,
    pub(crate) refusal: Refusal,
}

/// Every counter is enforced.
pub(crate) const ALL: u16 = 10_000;

impl Rule {
    /// Its identity within the domain.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where it was written.
    pub fn place(&self) -> &Where {
        &self.place
    }

    /// All of these must hold.
    pub fn when(&self) -> &[Condition] {
        &self.when
    }

    /// And this, if there is one.
    pub fn expression(&self) -> Option<&Expression> {
        self.expression.as_ref()
    }

    /// All attributes that a request may have, in order; empty if others do not matter.
    pub fn only(&self) -> &[Box<str>] {
        &self.only
    }

    /// Whether `when` alone says to which requests it applies.
    pub(crate) fn is_unconditional_beyond_when(&self) -> bool {
        self.schedule.is_empty() && self.expression.is_none() && self.only.is_empty()
    }

    /// Conditions to find it by: those of `when`, and, if they name no value, one that its expression cannot hold without.
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

    /// What is counted separately.
    pub fn per(&self) -> &[Counted] {
        &self.per
    }

    /// What it does.
    pub fn effect(&self) -> &Effect {
        &self.effect
    }

    /// The limits, unless it has none on purpose.
    pub fn limits(&self) -> Option<&Limits> {
        self.effect.limits().map(|set| &set.limits)
    }

    /// Other numbers for some, of which the first that holds counts.
    pub fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// The ids of rules that a request is not charged to if it meets this one.
    pub fn replaces(&self) -> &[Box<str>] {
        &self.replaces
    }

    /// What a request weighs that does not say so itself.
    pub fn cost(&self) -> &CostOf {
        &self.cost
    }

    /// What happens beyond the limits.
    pub fn on_exceed(&self) -> OnExceed {
        self.on_exceed
    }

    /// What happens when the store does not answer.
    pub fn on_fault(&self) -> OnFault {
        self.on_fault
    }

    /// Who is refused too often is refused altogether.
    pub fn ban(&self) -> Option<&Ban> {
        self.ban.as_ref()
    }

    /// Every set of limits it may charge to.
    pub(crate) fn all_limits(&self) -> impl Iterator<Item = &LimitSet> {
        let overrides = self.overrides.iter().map(|other| &other.effect);
        std::iter::once(&self.effect).chain(overrides).filter_map(Effect::limits)
    }
}

/// Where a rule was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Where {
    /// The name of the file.
    pub file: Arc<str>,
    /// The place in it.
    pub place: Place,
}

/// What a rule does with a request that meets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Charges it to these.
    Limits(LimitSet),
    /// Nothing but being met.
    Unlimited,
    /// Lets it pass, whatever other rules say.
    Allow,
    /// Refuses it for good.
    Deny,
}

impl Effect {
    /// The limits, if it has any.
    pub fn limits(&self) -> Option<&LimitSet> {
        match self {
            Self::Limits(set) => Some(set),
            Self::Unlimited | Self::Allow | Self::Deny => None,
        }
    }
}

/// Limits, and the calendars of those among them whose windows follow one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitSet {
    /// The numbers.
    pub limits: Limits,
    /// The windows that limits of phase `Given` refer to by position.
    pub calendars: Vec<Calendar>,
}

/// Other numbers for some.
#[derive(Clone, Debug)]
pub struct Override {
    /// Where it stands.
    pub place: Place,
    /// For whom: all of these must hold.
    pub when: Vec<Condition>,
    /// What applies to them.
    pub effect: Effect,
    /// Its limits as they were written, with what it leaves to the rule, in order.
    pub(crate) words: Box<[Box<str>]>,
    /// When it ends by itself.
    pub until: Option<Time<Wall>>,
    /// Whether it was set through the API, by itself.
    pub(crate) by_api: bool,
}

impl Override {
    /// Returns the value it is known by, if it was set through the API.
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

/// Something that is counted separately for each of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// As it was written: part of what the counter is known by.
    pub text: Box<str>,
    /// Where the value comes from: the first of these that there is.
    pub origins: Vec<Origin>,
}

/// Where a value that is counted by comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The attribute of this name.
    Attribute(Box<str>),
    /// A segment of an attribute that the rule has a pattern for.
    Capture {
        /// The attribute.
        attribute: Box<str>,
        /// Its name in the pattern.
        name: Box<str>,
    },
}

/// What one attribute must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The name of the attribute.
    pub attribute: Box<str>,
    /// What is asked of its value. Of a name that occurs several times, one value has to do.
    pub test: Test,
}

/// What is asked of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// It matches one of these, of which there is at least one.
    AnyOf(Vec<Pattern>),
    /// There is none that matches one of these.
    NoneOf(Vec<Pattern>),
    /// There is one, whatever it is.
    Present,
    /// There is none.
    Absent,
}

/// What a value is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Exactly this.
    Equals(Box<str>),
    /// Anything that matches.
    Glob(Glob),
    /// Anything that begins so.
    Prefix(Box<str>),
    /// Any address in the network.
    Cidr(Cidr),
}

impl Pattern {
    /// Where the segment of a name is in it.
    pub(crate) fn capture(&self, name: &str) -> Option<CapturePlace> {
        match self {
            Self::Glob(glob) => glob.capture(name),
            Self::Equals(_) | Self::Prefix(_) | Self::Cidr(_) => None,
        }
    }
}

/// What a request weighs that does not say so itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostOf {
    /// Always this.
    Fixed(Cost),
    /// What an attribute says.
    From {
        /// Which.
        attribute: Box<str>,
        /// What more, or something that is no whole number, counts as.
        max: Cost,
        /// What a request without it weighs.
        missing: Cost,
    },
}

/// What happens to a request beyond the limits of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExceed {
    /// It is refused.
    #[default]
    Deny,
    /// It passes, and that it would have been refused is told.
    Shadow,
    /// It is refused, and the caller is to get no answer.
    Drop,
    /// It passes after a wait of at most so long; the limits were made so that they say it.
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
    /// It is decided in this process, by this node's share of the limits.
    #[default]
    Local,
    /// It passes.
    Open,
    /// It is refused.
    Closed,
}

impl OnFault {
    pub(crate) const WORDS: &[(&str, Self)] = &[("local", Self::Local), ("open", Self::Open), ("closed", Self::Closed)];
}

/// What becomes of what was spent when the limits of a rule change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnChange {
    /// It stays spent.
    #[default]
    Keep,
    /// It is forgotten.
    Reset,
}

impl OnChange {
    pub(crate) const WORDS: &[(&str, Self)] = &[("keep", Self::Keep), ("reset", Self::Reset)];
}

/// Who is refused too often is refused altogether.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// How many refusals.
    pub after: u64,
    /// In what time.
    pub within: Nanos,
    /// How long.
    pub length: Nanos,
}

/// How a refusal is told to the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The status, if it is not the front end's own.
    pub status: Option<u16>,
    /// What to say, if it is not the front end's own.
    pub message: Option<Box<str>>,
    /// Whether the caller is to get no answer at all, where the front end can do that.
    pub silent: bool,
}
