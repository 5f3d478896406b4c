//! Why a request is decided as it is, for people: data with a form as text.

use std::fmt;

use tollgate::{Nanos, Outcome, Report, Retry};

use crate::decision::Standing;

/// Why a request would be decided as it would be now.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The version of the rules it was explained by.
    pub version: u64,
    /// Whose rules.
    pub domain: String,
    /// What a check would come to.
    pub outcome: Outcome,
    /// What would have been done, if that is only observed.
    pub observed: Option<Outcome>,
    /// How sure that is.
    pub standing: Standing,
    /// The rule that decides; none if no rule is met.
    pub decides: Option<String>,
    /// Rules that are met, in the order of the rules, and then those that are not, the nearest first.
    pub rules: Vec<Explained>,
    /// How many more are not met.
    pub left_out: usize,
}

/// A rule, and why it is met or is not.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Its id.
    pub rule: String,
    /// Where it stands: file, line and column.
    pub place: Option<String>,
    /// Why.
    pub why: Why,
}

/// Why a rule is met or is not.
#[derive(Clone, Debug)]
pub enum Why {
    /// All its conditions hold.
    Met(Met),
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
    Expression,
    /// Its conditions hold, and yet it does not apply, because of its schedule.
    NotNow,
}

/// What a rule that is met has to say.
#[derive(Clone, Debug)]
pub struct Met {
    /// What it counts by, with the values of this request.
    pub counted: Vec<(String, Option<String>)>,
    /// What the request weighs.
    pub cost: u64,
    /// What becomes of it.
    pub effect: Does,
    /// Whether it only says what it would do.
    pub shadow: bool,
    /// Whether it refuses, or, as a shadow, would.
    pub refuses: bool,
    /// Whether it refuses because of a ban.
    pub banned: bool,
    /// How each of its limits stands, and its window.
    pub limits: Vec<(Report, Option<Nanos>)>,
}

/// What a rule does with who meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Counts, by its own limits.
    Limits,
    /// Counts, by the limits of an override.
    Overrides,
    /// Lets pass without counting.
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
            Self::Allows => "allows",
            Self::Denies => "denies",
            Self::Replaced => "replaced",
        }
    }
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
    /// How many conditions do not hold.
    pub conditions: usize,
}

impl Explanation {
    /// The rules that are met.
    pub fn met(&self) -> impl Iterator<Item = (&Explained, &Met)> {
        self.rules.iter().filter_map(|explained| match &explained.why {
            Why::Met(met) => Some((explained, met)),
            Why::Unmet(_) | Why::Others | Why::Expression | Why::Judged { .. } | Why::NotNow => None,
        })
    }

    /// Replaces every value that the request brought by what `hide` makes of it, for where it must not be read.
    pub fn conceal(&mut self, hide: impl Fn(&str) -> String) {
        for explained in &mut self.rules {
            match &mut explained.why {
                Why::Met(met) => {
                    met.counted
                        .iter_mut()
                        .filter_map(|(_, value)| value.as_mut())
                        .for_each(|value| *value = hide(value));
                }
                Why::Unmet(unmet) => unmet.found.iter_mut().for_each(|value| *value = hide(value)),
                Why::Judged { .. } | Why::Others | Why::Expression | Why::NotNow => {}
            }
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = self.decides.as_ref().map_or("because no rule is met".into(), |rule| format!("by `{rule}`"));
        write!(f, "{}, {by}", Shown(self.outcome))?;
        if let Some(observed) = self.observed {
            write!(f, "; only observed, it would be: {}", Shown(observed))?;
        }
        if self.standing == Standing::Fallback {
            f.write_str("; the store does not answer")?;
        }
        writeln!(f)?;
        for explained in &self.rules {
            writeln!(f, "{explained}")?;
        }
        match self.left_out {
            0 => Ok(()),
            more => writeln!(f, "and {more} more that are not met"),
        }
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if matches!(self.why, Why::Met(_)) { '+' } else { '-' };
        write!(f, "{sign} {}", self.rule)?;
        if let Some(place) = &self.place {
            write!(f, " ({place})")?;
        }
        write!(f, ": ")?;
        match &self.why {
            Why::Met(met) => met.fmt(f),
            Why::Judged { by } => write!(f, "not asked, `{by}` has decided"),
            Why::Others => {
                f.write_str("its conditions hold, but the attributes are not only those it names, in its order")
            }
            Why::Expression => f.write_str("its conditions hold, but its expression does not"),
            Why::NotNow => f.write_str("its conditions hold, but it does not apply at this time"),
            Why::Unmet(unmet) => unmet.fmt(f),
        }
    }
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.shadow { "met, as a shadow" } else { "met" })?;
        for (place, (name, value)) in self.counted.iter().enumerate() {
            f.write_str(if place == 0 { ", counted by " } else { " and " })?;
            match value {
                Some(value) => write!(f, "{name} = {value:?}")?,
                None => write!(f, "{name}, which is missing")?,
            }
        }
        match self.effect {
            Does::Limits | Does::Overrides => write!(f, ", weighs {}", self.cost)?,
            Does::Allows => f.write_str(", lets it pass without counting")?,
            Does::Denies => f.write_str(", denies it without counting")?,
            Does::Replaced => f.write_str(", and left out for another that is met")?,
        }
        if self.effect == Does::Overrides {
            f.write_str(", by an override")?;
        }
        if self.refuses && self.effect != Does::Denies {
            f.write_str(match (self.banned, self.shadow) {
                (true, _) => ": banned",
                (false, true) => ": would refuse",
                (false, false) => ": refuses",
            })?;
        }
        for (report, window) in &self.limits {
            write!(f, "\n    {} of {} left", report.remaining, report.limit)?;
            if let Some(window) = window {
                write!(f, " for {window}")?;
            }
            if report.reset > Nanos::ZERO {
                write!(f, ", full again in {}", Rounded(report.reset))?;
            }
            match report.retry {
                Retry::After(Nanos::ZERO) => {}
                Retry::After(wait) => write!(f, ", passes in {}", Rounded(wait))?,
                Retry::OnRelease => f.write_str(", passes when something is released")?,
                Retry::Never => f.write_str(", never passes: it weighs too much")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is to be {}, ", self.attribute, self.expected)?;
        match &self.found[..] {
            [] => f.write_str("and there is none"),
            [found] => write!(f, "and is {found:?}"),
            found => write!(f, "and is any of {found:?}"),
        }
    }
}

/// An outcome in words.
struct Shown(Outcome);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Outcome::Allow => f.write_str("allowed"),
            Outcome::Delay(wait) => write!(f, "allowed after {}", Rounded(wait)),
            Outcome::Deny(Retry::After(wait)) => write!(f, "refused for {}", Rounded(wait)),
            Outcome::Deny(Retry::OnRelease) => f.write_str("refused until something is released"),
            Outcome::Deny(Retry::Never) => f.write_str("refused, whenever it comes"),
        }
    }
}

/// Rounded up to what people look at.
struct Rounded(Nanos);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis_ceil();
        if millis < 10_000 { Nanos::from_millis(millis) } else { Nanos::from_secs(millis.div_ceil(1_000)) }.fmt(f)
    }
}
