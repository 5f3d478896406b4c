//! Why a request is decided as it is, for people: data with a form as text.

mod conceal;
mod length;
mod text;

pub use length::Length;

use tollgate::core::{Nanos, Time, Wall};
use tollgate::{Outcome, Report};

use crate::decision::Standing;
use crate::rules::OnFault;

/// Why a request would be decided as it would be now.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The version of the rules it was explained by.
    pub version: u64,
    /// Whose rules.
    pub domain: String,
    /// When it was explained.
    pub at: Time<Wall>,
    /// What a check would come to.
    pub outcome: Outcome,
    /// What would have been done, if that is only observed.
    pub observed: Option<Outcome>,
    /// How sure that is.
    pub standing: Standing,
    /// The rule that decides; none if no rule is met.
    pub decides: Option<String>,
    /// Rules that are met, in the order of the rules, and then those that are not, the nearest first, those that are as near in
    /// the order of the rules.
    pub rules: Vec<Explained>,
    /// How many more are not met.
    pub left_out: usize,
}

/// A rule, and why it is met or is not.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Its id.
    pub rule: String,
    /// Where it stands: file, line and column; or which rules it is one of, where nobody sees lines.
    pub place: Option<String>,
    /// Why.
    pub why: Why,
}

/// Why a rule is met or is not.
#[derive(Clone, Debug)]
pub enum Why {
    /// All its conditions hold.
    Met(Box<Met>),
    /// A condition does not hold.
    Unmet(Unmet),
    /// Its conditions hold, and an earlier rule that allows or denies without counting has decided.
    Judged {
        /// The id of that rule.
        by: String,
    },
    /// Its conditions hold, and the request has other attributes than `only` those it names.
    Others,
    /// Its conditions hold, its expression does not.
    Expression {
        /// Of the parts that `&&` joins, which is the first that does not, counted from one.
        part: usize,
        /// How many there are.
        of: usize,
        /// What it speaks of, with the values of this request.
        values: Vec<(String, Option<String>)>,
    },
    /// Its conditions hold, and yet it does not apply, because of its schedule.
    NotNow {
        /// When it does.
        schedule: Vec<String>,
    },
}

/// What a rule that is met has to say.
#[derive(Clone, Debug)]
pub struct Met {
    /// What it counts by, with the values of this request.
    pub counted: Vec<(String, Option<String>)>,
    /// What the request costs.
    pub cost: u64,
    /// Who says so.
    pub cost_by: CostBy,
    /// What becomes of it.
    pub effect: Does,
    /// The rule that is in its place, by `replaces`.
    pub replaced_by: Option<String>,
    /// The others that are met and suffice, if it suffices, too: one of all these has to have room.
    pub suffice: Vec<String>,
    /// For how long it delays what would exceed it, if it does.
    pub delays: Option<Nanos>,
    /// Whether it only says what it would do.
    pub shadow: bool,
    /// Whether that is because its `enforce` spares this counter.
    pub spared: bool,
    /// Whether it refuses, or, as a shadow, would.
    pub refuses: bool,
    /// What its `on_fault` made of it, if the store did not answer.
    pub fault: Option<OnFault>,
    /// Which of its overrides applies; none if it has no overrides.
    pub overrides: Option<Overrides>,
    /// How its ban stands, if it has one.
    pub ban: Option<BanState>,
    /// How each of its limits stands.
    pub limits: Vec<LimitState>,
}

/// Who says what a request costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostBy {
    /// The rule.
    Rule,
    /// The request.
    Request,
    /// An attribute of the request, by the rule.
    Attribute {
        /// Which.
        name: String,
        /// What it says.
        said: Weight,
    },
}

/// What the attribute says that a request's cost comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The cost.
    Number,
    /// Nothing: there is none, and the rule says what that costs.
    Missing,
    /// More than the most that the rule takes for it.
    TooMuch(String),
    /// Something that is no whole number, which counts as the most.
    NoNumber(String),
}

/// What a rule does with who meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Counts, by its own limits.
    Limits,
    /// Counts, by the limits of an override.
    Overrides,
    /// Nothing: it has no limit, or none for this request.
    Unlimited,
    /// Lets pass, whatever other rules say.
    Allows,
    /// Refuses without counting.
    Denies,
    /// Nothing: another rule that is met is in its place.
    Replaced,
}

impl Does {
    /// In one word.
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

/// The overrides of a rule that is met.
#[derive(Clone, Debug)]
pub struct Overrides {
    /// The first that holds.
    pub applies: Option<Overriding>,
    /// Those before it that do not hold, the nearest first; of all if none does.
    pub unmet: Vec<UnmetOverride>,
    /// How many more of these there are.
    pub more_unmet: usize,
    /// How many more there are that were set through the API, each for one value of an attribute that the request does not
    /// have, by attribute.
    pub for_others: Vec<(String, usize)>,
    /// How many stand behind the one that applies, and are not looked at.
    pub behind: usize,
}

/// Where an override stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverridePlace {
    /// File, line and column.
    At(String),
    /// Which of those in the rule, from one, where nobody sees lines.
    Own(usize),
    /// Beside the rule, by what it is known by: the value that it is for.
    Named(String),
}

/// An override that applies.
#[derive(Clone, Debug)]
pub struct Overriding {
    /// Where it stands.
    pub place: OverridePlace,
    /// What holds.
    pub when: Vec<Held>,
    /// When it ends by itself.
    pub until: Option<String>,
}

/// A condition that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Of which attribute.
    pub attribute: String,
    /// What is asked of it.
    pub expected: String,
    /// What the request has, where the condition gives that away.
    pub value: Option<String>,
}

/// An override that does not apply.
#[derive(Clone, Debug)]
pub struct UnmetOverride {
    /// Where it stands.
    pub place: OverridePlace,
    /// Why.
    pub why: NotHeld,
}

/// Why an override does not hold.
#[derive(Clone, Debug)]
pub enum NotHeld {
    /// A condition does not.
    Unmet(Unmet),
    /// It ended then.
    Ended(String),
}

/// How the ban of a rule stands for the counter of a request.
#[derive(Clone, Debug)]
pub struct BanState {
    /// How many refusals lead to it.
    pub after: u64,
    /// In what time.
    pub within: Nanos,
    /// How long it lasts.
    pub length: Nanos,
    /// How it stands.
    pub stands: BanStands,
}

/// Whether somebody is banned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BanStands {
    /// For so long.
    Banned {
        /// What is left of it.
        left: Nanos,
        /// When it ends.
        until: String,
    },
    /// Not yet.
    Not {
        /// How many refusals count towards it, where somebody asked.
        refusals: Option<u64>,
    },
    /// Nobody asked: the request is refused anyway, or the store does not answer.
    NotLookedAt,
}

/// How a limit stands.
#[derive(Clone, Debug)]
pub struct LimitState {
    /// The limit as it was written; none if it came along with the request.
    pub written: Option<String>,
    /// What may be told about it.
    pub report: Report,
    /// The time in which as much as the limit comes back; none for what is held at a time.
    pub window: Option<Nanos>,
    /// How what was spent comes back.
    pub refill: Refill,
}

/// How what was spent comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refill {
    /// Little by little, until it is full.
    Steadily,
    /// All at once with the next window.
    ByWindow,
    /// All at once with the next window of a calendar.
    ByCalendar {
        /// The zone of the calendar.
        zone: String,
        /// When the window began there.
        began: String,
        /// When the next one begins there.
        resets: String,
    },
    /// What is older than the window counts no more.
    Sliding,
    /// When it is given back, or its lease ends.
    Slots,
}

/// The first condition that does not hold.
#[derive(Clone, Debug)]
pub struct Unmet {
    /// Of which attribute.
    pub attribute: String,
    /// What is asked of it.
    pub expected: String,
    /// What the request has; nothing if it has no such attribute.
    pub found: Vec<String>,
}

impl Met {
    /// How long it is banned for, if it is.
    pub fn banned(&self) -> Option<Nanos> {
        match self.ban.as_ref()?.stands {
            BanStands::Banned { left, .. } => Some(left),
            BanStands::Not { .. } | BanStands::NotLookedAt => None,
        }
    }
}

impl Explanation {
    /// The rules that are met.
    pub fn met(&self) -> impl Iterator<Item = (&Explained, &Met)> {
        self.rules.iter().filter_map(|explained| match &explained.why {
            Why::Met(met) => Some((explained, &**met)),
            Why::Unmet(_) | Why::Others | Why::Expression { .. } | Why::Judged { .. } | Why::NotNow { .. } => None,
        })
    }
}
