//! Explains decisions, as data and as text.

mod conceal;
mod length;
mod text;

pub use length::Length;

use tollgate::core::{Nanos, Time, Wall};
use tollgate::{Outcome, Report};

use crate::decision::Standing;
use crate::rules::{Consistency, OnFault};

/// Explains how a request would be decided now.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The version of the rules.
    pub version: u64,
    /// The domain of the request.
    pub domain: String,
    /// When it was explained.
    pub at: Time<Wall>,
    /// The outcome of a check.
    pub outcome: Outcome,
    /// The outcome without `observe`, if refusals are only observed.
    pub observed: Option<Outcome>,
    /// Whether the store or a fallback decided.
    pub standing: Standing,
    /// The rule that decides; `None` if no rule matches.
    pub decides: Option<String>,
    /// Matching rules in their order, then the others: those with the most matching conditions
    /// first, in their order.
    pub rules: Vec<RuleExplanation>,
    /// The number of further rules that do not match.
    pub left_out: usize,
}

/// A rule, and why it matches or does not.
#[derive(Clone, Debug)]
pub struct RuleExplanation {
    /// Its id.
    pub rule: String,
    /// File, line and column; or the name of the rule set if its text is not visible to users.
    pub position: Option<String>,
    /// Why it matches or does not.
    pub why: MatchResult,
}

/// Why a rule matches or does not.
#[derive(Clone, Debug)]
pub enum MatchResult {
    /// All of its conditions hold.
    Matches(Box<MatchExplanation>),
    /// A condition does not hold.
    ConditionFailed(FailedCondition),
    /// Its conditions hold, but an earlier `allow` or `deny` rule has decided.
    DecidedBefore {
        /// The id of that rule.
        by: String,
    },
    /// Its conditions hold, but the attributes of the request are not exactly those of `only`.
    OtherAttributes,
    /// Its conditions hold, but its expression does not.
    ExpressionFailed {
        /// The first operand of `&&` that does not hold, counted from 1.
        part: usize,
        /// The number of operands.
        of: usize,
        /// The attributes of the expression, with the values of the request.
        values: Vec<(String, Option<String>)>,
    },
    /// Its conditions hold, but its schedule excludes the present time.
    OutsideSchedule {
        /// When it applies.
        schedule: Vec<String>,
    },
}

/// How a matching rule decides.
#[derive(Clone, Debug)]
pub struct MatchExplanation {
    /// The attributes it counts by, with the values of the request.
    pub counted: Vec<(String, Option<String>)>,
    /// The cost of the request.
    pub cost: u64,
    /// Where the cost comes from.
    pub cost_by: CostSource,
    /// What it does with the request.
    pub effect: RuleEffect,
    /// The rule that replaces it.
    pub replaced_by: Option<String>,
    /// The other matching rules with `suffices`, if it has `suffices`: one of all these must have
    /// capacity.
    pub suffice: Vec<String>,
    /// The longest delay, if it delays requests.
    pub delays: Option<Nanos>,
    /// Whether it is a shadow rule for this counter.
    pub shadow: bool,
    /// Whether that is because `enforce` excludes this counter.
    pub spared: bool,
    /// Whether it refuses, or would refuse as a shadow rule.
    pub refuses: bool,
    /// How nodes that share the store agree on its counters.
    pub consistency: Consistency,
    /// The `on_fault` that was applied, if the store did not answer.
    pub fault: Option<OnFault>,
    /// Which of its overrides applies; `None` if it has none.
    pub overrides: Option<OverrideExplanation>,
    /// The state of its ban, if it has one.
    pub ban: Option<BanState>,
    /// The state of each of its limits.
    pub limits: Vec<LimitState>,
}

/// Where the cost of a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// The rule.
    Rule,
    /// The request.
    Request,
    /// A case of the rule, with these conditions.
    Case(Vec<HeldCondition>),
    /// An attribute of the request, named by the rule.
    Attribute {
        /// The attribute.
        name: String,
        /// Its value.
        said: CostValue,
    },
}

/// The value of the attribute that a cost comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostValue {
    /// A valid cost.
    Number,
    /// The attribute is missing, and the rule has a cost for that.
    Missing,
    /// More than the maximum of the rule.
    AboveMaximum(String),
    /// Not a whole number, which counts as the maximum.
    NotANumber(String),
}

/// What a rule does with a matching request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleEffect {
    /// Counts it by its own limits.
    Limits,
    /// Counts it by the limits of an override.
    Overrides,
    /// Nothing: it has no limit, or none for this request.
    Unlimited,
    /// Admits it, whatever other rules say.
    Allows,
    /// Refuses it without counting.
    Denies,
    /// Nothing: another matching rule replaces it.
    Replaced,
}

impl RuleEffect {
    /// Returns the name of the effect.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::Overrides => "overrides",
            Self::Unlimited => "unlimited",
            Self::Allows => "allows",
            Self::Denies => "denies",
            Self::Replaced => "replaced",
        }
    }
}

/// The overrides of a matching rule.
#[derive(Clone, Debug)]
pub struct OverrideExplanation {
    /// The first one that matches.
    pub applies: Option<AppliedOverride>,
    /// Those before it that do not match, the nearest first; of all if none matches.
    pub unmet: Vec<SkippedOverride>,
    /// The number of further ones that do not match.
    pub more_unmet: usize,
    /// The number of further overrides that were set through the API for other values, by
    /// attribute.
    pub for_others: Vec<(String, usize)>,
    /// The number of overrides after the one that applies, which are not evaluated.
    pub after: usize,
}

/// Where an override is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverridePosition {
    /// File, line and column.
    At(String),
    /// The index in the rule, from 1, if the text is not visible to users.
    InRule(usize),
    /// Separate from the rule, identified by its value.
    Named(String),
}

/// The override that applies.
#[derive(Clone, Debug)]
pub struct AppliedOverride {
    /// Where it is written.
    pub position: OverridePosition,
    /// Its conditions.
    pub when: Vec<HeldCondition>,
    /// When it expires.
    pub until: Option<String>,
}

/// A condition that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCondition {
    /// The attribute.
    pub attribute: String,
    /// The expected value.
    pub expected: String,
    /// The value of the request, if the condition reveals it.
    pub value: Option<String>,
}

/// An override that does not apply.
#[derive(Clone, Debug)]
pub struct SkippedOverride {
    /// Where it is written.
    pub position: OverridePosition,
    /// Why it does not apply.
    pub why: OverrideMismatch,
}

/// Why an override does not apply.
#[derive(Clone, Debug)]
pub enum OverrideMismatch {
    /// A condition does not hold.
    ConditionFailed(FailedCondition),
    /// The override expired at this time.
    Expired(String),
}

/// The state of a ban for the counter of a request.
#[derive(Clone, Debug)]
pub struct BanState {
    /// The number of refusals that start it.
    pub after: u64,
    /// The time in which they must occur.
    pub within: Nanos,
    /// Its duration.
    pub length: Nanos,
    /// Whether it is in force.
    pub stands: BanStatus,
}

/// Whether a ban is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BanStatus {
    /// It is.
    Banned {
        /// The remaining time.
        left: Nanos,
        /// When it ends.
        until: String,
    },
    /// It is not.
    Not {
        /// The number of refusals that count towards it, if known.
        refusals: Option<u64>,
    },
    /// Unknown: another rule refuses the request, or the store does not answer.
    NotEvaluated,
}

/// The state of a limit.
#[derive(Clone, Debug)]
pub struct LimitState {
    /// The limit as written; `None` for an inline limit.
    pub written: Option<String>,
    /// Its usage.
    pub report: Report,
    /// The time in which the whole limit refills; `None` for concurrency.
    pub window: Option<Nanos>,
    /// How it refills.
    pub refill: Refill,
}

/// How a limit refills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refill {
    /// Continuously.
    Steadily,
    /// The limit is restored at the end of the window.
    ByWindow,
    /// The limit is restored at the end of the calendar window.
    ByCalendar {
        /// The time zone.
        zone: String,
        /// When the window began.
        began: String,
        /// When the next one begins.
        resets: String,
    },
    /// Requests expire one by one as they become older than the window.
    Sliding,
    /// When a slot is released or its lease expires.
    Slots,
}

/// The first condition that does not hold.
#[derive(Clone, Debug)]
pub struct FailedCondition {
    /// The attribute.
    pub attribute: String,
    /// The expected value.
    pub expected: String,
    /// The values of the request; empty if it does not have the attribute.
    pub found: Vec<String>,
}

impl MatchExplanation {
    /// Returns the remaining time of its ban, if it is banned.
    pub fn banned(&self) -> Option<Nanos> {
        match self.ban.as_ref()?.stands {
            BanStatus::Banned { left, .. } => Some(left),
            BanStatus::Not { .. } | BanStatus::NotEvaluated => None,
        }
    }
}

impl Explanation {
    /// Returns the matching rules.
    pub fn matching(&self) -> impl Iterator<Item = (&RuleExplanation, &MatchExplanation)> {
        self.rules.iter().filter_map(|explained| match &explained.why {
            MatchResult::Matches(met) => Some((explained, &**met)),
            MatchResult::ConditionFailed(_)
            | MatchResult::OtherAttributes
            | MatchResult::ExpressionFailed { .. }
            | MatchResult::DecidedBefore { .. }
            | MatchResult::OutsideSchedule { .. } => None,
        })
    }
}
