//! Explanations of decisions, as data and as text.

mod conceal;
mod human;
mod text;

pub use human::HumanDuration;

use tollgate::core::{Nanos, Time, Wall};
use tollgate::{Outcome, Report};

use crate::decision::Exactness;
use crate::rules::{Consistency, OnFault};

/// The explanation of a decision about a request.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The version of the rules.
    pub version: u64,
    /// The domain of the request.
    pub domain: String,
    /// The time of the explanation.
    pub at: Time<Wall>,
    /// The outcome of the decision.
    pub outcome: Outcome,
    /// In observe mode, the refusal or delay that would be enforced, if any; otherwise `None`.
    pub observed: Option<Outcome>,
    /// How exact the decision is.
    pub exactness: Exactness,
    /// The id of the deciding rule; `None` if no enforced rule matches.
    pub decides: Option<String>,
    /// The matching rules in order, followed by non-matching rules. The non-matching rules with the most matching
    /// conditions come first.
    pub rules: Vec<RuleExplanation>,
    /// The number of further non-matching rules, which are omitted.
    pub left_out: usize,
}

/// A rule, and the reason why it matches or does not match.
#[derive(Clone, Debug)]
pub struct RuleExplanation {
    /// The id of the rule.
    pub rule: String,
    /// File, line and column; or the name of the rule set if its text is not visible to users.
    pub position: Option<String>,
    /// The reason why the rule matches or does not match.
    pub why: MatchResult,
}

/// The reason why a rule matches or does not match.
#[derive(Clone, Debug)]
pub enum MatchResult {
    /// All conditions hold.
    Matches(Box<MatchExplanation>),
    /// A condition does not hold.
    ConditionFailed(FailedCondition),
    /// The conditions hold, but a matching `allow` or `deny` rule decides alone.
    DecidedBefore {
        /// The id of that rule.
        by: String,
    },
    /// The conditions hold, but the request's attributes are not exactly the attributes in `only`.
    OtherAttributes,
    /// The conditions hold, but the expression does not.
    ExpressionFailed {
        /// The position of the first `&&` operand that does not hold, counted from 1.
        part: usize,
        /// The number of operands.
        of: usize,
        /// The attributes of the expression, with the request's values.
        values: Vec<(String, Option<String>)>,
    },
    /// The conditions hold, but the rule does not apply at the current time.
    OutsideSchedule {
        /// The times at which the rule applies.
        schedule: Vec<String>,
    },
}

/// The explanation of a rule that matches.
#[derive(Clone, Debug)]
pub struct MatchExplanation {
    /// The attributes that the rule counts by, with the request's values.
    pub counted: Vec<(String, Option<String>)>,
    /// The cost of the request.
    pub cost: u64,
    /// The source of the cost.
    pub cost_by: CostSource,
    /// The effect on the request.
    pub effect: RuleEffect,
    /// The rule that replaces this rule.
    pub replaced_by: Option<String>,
    /// The other matching rules marked `suffices`, if this rule is marked too. At least one of the marked rules must
    /// have capacity.
    pub suffice: Vec<String>,
    /// The maximum delay, if the rule delays requests.
    pub delays: Option<Nanos>,
    /// Whether the rule is a shadow rule for this counter.
    pub shadow: bool,
    /// Whether the rule is a shadow rule because `enforce` excludes this counter.
    pub excluded_by_enforce: bool,
    /// Whether the rule refuses or, as a shadow rule, would refuse.
    pub refuses: bool,
    /// How nodes that share the store agree on the rule's counters.
    pub consistency: Consistency,
    /// The `on_fault` that was applied, if the store did not answer.
    pub fault: Option<OnFault>,
    /// The overrides; `None` if the rule has none.
    pub overrides: Option<OverrideExplanation>,
    /// The state of the ban, if the rule has one.
    pub ban: Option<BanState>,
    /// The state of each limit.
    pub limits: Vec<LimitState>,
}

/// The source of a request's cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// The rule.
    Rule,
    /// The request.
    Request,
    /// A case of the rule's `cost`, with its conditions.
    Case(Vec<SatisfiedCondition>),
    /// A request attribute that the rule names.
    Attribute {
        /// The attribute.
        name: String,
        /// Its value.
        value: CostValue,
    },
}

/// The value of the attribute that determines the cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostValue {
    /// A valid cost.
    Number,
    /// The attribute is missing; the rule's `missing` cost applies.
    Missing,
    /// Above the rule's maximum; the maximum applies.
    AboveMaximum(String),
    /// Not a whole number; the rule's maximum applies.
    NotANumber(String),
}

/// The effect of a rule on a matching request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleEffect {
    /// Charges the rule's own limits.
    Limits,
    /// Charges the limits of an override.
    Overrides,
    /// No effect: the rule has no limits, or no limits for this request.
    Unlimited,
    /// Admits the request regardless of other rules.
    Allows,
    /// Refuses the request without counting.
    Denies,
    /// No effect: another matching rule replaces this rule, or makes it unnecessary with `suffices`.
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
    /// The first matching override.
    pub applies: Option<AppliedOverride>,
    /// Non-matching overrides, nearest match first. If an override applies, the list contains only overrides before it.
    pub skipped: Vec<SkippedOverride>,
    /// The number of further overrides that do not match.
    pub more_skipped: usize,
    /// For each attribute, the number of overrides that were set through the API for other values.
    pub for_others: Vec<(String, usize)>,
    /// The number of overrides after the applied override. Overrides after the applied override are not evaluated.
    pub after: usize,
}

/// The source of an override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverridePosition {
    /// File, line and column.
    At(String),
    /// The index in the rule, counted from 1, if the rule text is not visible to users.
    InRule(usize),
    /// Set through the API, identified by its value.
    Named(String),
}

/// The override that applies.
#[derive(Clone, Debug)]
pub struct AppliedOverride {
    /// The source of the override.
    pub position: OverridePosition,
    /// The conditions.
    pub when: Vec<SatisfiedCondition>,
    /// The expiry time.
    pub until: Option<String>,
}

/// A condition that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SatisfiedCondition {
    /// The attribute.
    pub attribute: String,
    /// The expected value.
    pub expected: String,
    /// The request's value that matches one of the condition's values; `None` for other kinds of conditions.
    pub value: Option<String>,
}

/// An override that does not apply.
#[derive(Clone, Debug)]
pub struct SkippedOverride {
    /// The source of the override.
    pub position: OverridePosition,
    /// The reason.
    pub why: OverrideMismatch,
}

/// The reason why an override does not apply.
#[derive(Clone, Debug)]
pub enum OverrideMismatch {
    /// A condition does not hold.
    ConditionFailed(FailedCondition),
    /// The override expired at this time.
    Expired(String),
}

/// The state of the ban of a request's counter.
#[derive(Clone, Debug)]
pub struct BanState {
    /// The number of refusals that start a ban.
    pub after: u64,
    /// The time within which the refusals must occur.
    pub within: Nanos,
    /// The duration of a ban.
    pub length: Nanos,
    /// Whether the counter is banned.
    pub status: BanStatus,
}

/// Whether a counter is banned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BanStatus {
    /// Banned.
    Banned {
        /// The remaining time.
        left: Nanos,
        /// The end of the ban.
        until: String,
    },
    /// Not banned.
    Not {
        /// The number of refusals that count towards a ban, if known.
        refusals: Option<u64>,
    },
    /// Unknown, because another rule refuses the request or the store does not answer.
    NotEvaluated,
}

/// The state of a limit.
#[derive(Clone, Debug)]
pub struct LimitState {
    /// The limit as written; `None` for an inline limit.
    pub written: Option<String>,
    /// The current report.
    pub report: Report,
    /// The time in which an exhausted limit refills completely; `None` for concurrency.
    pub window: Option<Nanos>,
    /// How the limit refills.
    pub refill: Refill,
}

/// How a limit refills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refill {
    /// By rate: continuously, or once per period for an interval bucket.
    Steadily,
    /// The limit is restored at the end of the window.
    ByWindow,
    /// The limit is restored at the end of the calendar window.
    ByCalendar {
        /// The time zone.
        zone: String,
        /// The start of the window.
        began: String,
        /// The start of the next window.
        resets: String,
    },
    /// Usage expires as it becomes older than the window.
    Sliding,
    /// Slots become free when they are released or their leases expire.
    Slots,
}

/// The first condition that does not hold.
#[derive(Clone, Debug)]
pub struct FailedCondition {
    /// The attribute.
    pub attribute: String,
    /// The expected value.
    pub expected: String,
    /// Whether `expected` lists excluded values, one of which the request has.
    pub is_exclusion: bool,
    /// The values of the attribute in the request; empty if the request lacks the attribute.
    pub found: Vec<String>,
}

impl MatchExplanation {
    /// Returns the remaining time of the ban, if the counter is banned.
    pub fn remaining_ban_time(&self) -> Option<Nanos> {
        match self.ban.as_ref()?.status {
            BanStatus::Banned { left, .. } => Some(left),
            BanStatus::Not { .. } | BanStatus::NotEvaluated => None,
        }
    }
}

impl Explanation {
    /// Returns the matching rules.
    pub fn matching_rules(&self) -> impl Iterator<Item = (&RuleExplanation, &MatchExplanation)> {
        self.rules.iter().filter_map(|explained| match &explained.why {
            MatchResult::Matches(matched) => Some((explained, &**matched)),
            MatchResult::ConditionFailed(_)
            | MatchResult::OtherAttributes
            | MatchResult::ExpressionFailed { .. }
            | MatchResult::DecidedBefore { .. }
            | MatchResult::OutsideSchedule { .. } => None,
        })
    }
}
