//! An explanation as text.

use std::fmt;

use tollgate::core::Nanos;
use tollgate::{Outcome, Retry};

use super::length::{Count, Length};
use super::{
    BanStands, BanState, CostBy, Does, Explained, Explanation, Held, LimitState, Met, NotHeld, OverridePlace,
    Overrides, Refill, Unmet, Weight, Why,
};
use crate::decision::Standing;
use crate::rules::OnFault;

/// What the lines about a rule begin with.
const INDENT: &str = "\n    ";

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decides = self.decides.as_ref();
        let met = decides.and_then(|id| self.met().find(|(explained, _)| explained.rule == *id)).map(|(_, met)| met);
        let outcome = match self.observed {
            Some(observed) => {
                f.write_str("allowed, since refusals are only observed; it would be ")?;
                observed
            }
            None => self.outcome,
        };
        write!(f, "{}", Shown(outcome))?;
        match (decides, met.map(|met| met.effect)) {
            (None, _) if self.met().next().is_some() => f.write_str(", because no rule that is enforced is met")?,
            (None, _) => f.write_str(", because no rule is met")?,
            (Some(rule), _) if rule.is_empty() => f.write_str(", by the limit that came along")?,
            (Some(rule), Some(Does::Limits | Does::Overrides)) if outcome == Outcome::Allow => {
                write!(f, "; `{rule}` has least left")?;
                self.write_nearest(rule, f)?;
            }
            (Some(rule), Some(Does::Unlimited)) => write!(f, "; `{rule}` is met and unlimited")?,
            (Some(rule), _) => write!(f, ", by `{rule}`")?,
        }
        if let Some(BanStands::Banned { until, .. }) = met.and_then(|met| met.ban.as_ref()).map(|ban| &ban.stands) {
            write!(f, ", banned until {until}")?;
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

impl Explanation {
    /// Which rule allows fewest requests like this one, where that is another one than the one with least left: what it costs
    /// is up to each rule.
    fn write_nearest(&self, least: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let enforced = self.met().filter(|(_, met)| !met.shadow);
        let enough: Vec<(u64, &str)> =
            enforced.filter_map(|(explained, met)| Some((met.enough_for()?, &*explained.rule))).collect();
        let Some((fewest, nearest)) = enough.iter().min_by_key(|(count, _)| *count) else { return Ok(()) };
        if nearest.is_empty() || enough.contains(&(*fewest, least)) {
            return Ok(());
        }
        write!(f, ", but `{nearest}` is enough for only {} of them", Count(*fewest))
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if matches!(self.why, Why::Met(_)) { '+' } else { '-' };
        write!(f, "{sign} {}", if self.rule.is_empty() { "the limit that came along" } else { &self.rule })?;
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
            Why::Expression { part, of, values } => {
                f.write_str("its conditions hold, but its expression does not")?;
                if *of > 1 {
                    write!(f, " in part {part} of {of}")?;
                }
                for (place, (name, value)) in values.iter().enumerate() {
                    f.write_str(if place == 0 { ", with " } else { " and " })?;
                    match value {
                        Some(value) => write!(f, "{name} = {value:?}")?,
                        None => write!(f, "no {name}")?,
                    }
                }
                Ok(())
            }
            Why::NotNow { schedule } => {
                f.write_str("its conditions hold, but it does not apply at this time")?;
                if !schedule.is_empty() {
                    write!(f, ", only {}", schedule.join(" or "))?;
                }
                Ok(())
            }
            Why::Unmet(unmet) => unmet.fmt(f),
        }
    }
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.shadow, self.spared) {
            (true, true) => "met, as a shadow, since its `enforce` spares this one",
            (true, false) => "met, as a shadow",
            (false, _) => "met",
        })?;
        for (place, (name, value)) in self.counted.iter().enumerate() {
            f.write_str(if place == 0 { ", counted by " } else { " and " })?;
            match value {
                Some(value) => write!(f, "{name} = {value:?}")?,
                None => write!(f, "{name}, which is missing")?,
            }
        }
        match self.effect {
            Does::Limits | Does::Overrides => self.write_cost(f)?,
            Does::Unlimited => f.write_str(", unlimited")?,
            Does::Allows => f.write_str(", lets it pass, whatever other rules say")?,
            Does::Denies => f.write_str(", refuses it without counting")?,
            Does::Replaced => match &self.replaced_by {
                Some(by) => write!(f, ", and left out, since `{by}` replaces it")?,
                None => f.write_str(", and left out, since another one that suffices has room")?,
            },
        }
        if self.refuses && self.effect != Does::Denies {
            f.write_str(match (self.banned(), self.shadow) {
                (Some(_), _) => ": banned",
                (None, true) => ": would refuse",
                (None, false) => ": refuses",
            })?;
        }
        if self.effect == Does::Replaced {
            return Ok(());
        }
        if let Some(overrides) = &self.overrides {
            self.write_overrides(overrides, f)?;
        }
        match self.fault {
            Some(OnFault::Local) => {
                write!(f, "{INDENT}decided here, by this node's share, while the store does not answer")?;
            }
            Some(OnFault::Open) => write!(f, "{INDENT}passes while the store does not answer (`on_fault: open`)")?,
            Some(OnFault::Closed) => write!(f, "{INDENT}refuses while the store does not answer (`on_fault: closed`)")?,
            None => {}
        }
        if let Some(ban) = &self.ban {
            write!(f, "{INDENT}{ban}")?;
        }
        if !self.suffice.is_empty() {
            let others: Vec<String> = self.suffice.iter().map(|rule| format!("`{rule}`")).collect();
            write!(f, "{INDENT}one of the rules that suffice has to have room: this one or {}", others.join(" or "))?;
        }
        // Limits say when others may pass. Of who is banned, only one for which that is not enough has something to add.
        let matters = |limit: &&LimitState| self.banned().is_none_or(|left| limit.report.retry > Retry::After(left));
        for limit in self.limits.iter().filter(matters) {
            write!(f, "{INDENT}")?;
            limit.write(self, f)?;
        }
        if self.fault.is_none() && self.limits.is_empty() && matches!(self.effect, Does::Limits | Does::Overrides) {
            write!(f, "{INDENT}not looked at, since the request is refused anyway")?;
        }
        Ok(())
    }
}

impl Met {
    /// For how many requests like this one its limits are enough, if they were looked at.
    fn enough_for(&self) -> Option<u64> {
        self.limits.iter().filter_map(|limit| limit.report.remaining.checked_div(self.cost)).min()
    }

    fn write_cost(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ", costs {}", Count(self.cost))?;
        match &self.cost_by {
            CostBy::Rule => Ok(()),
            CostBy::Request => f.write_str(" (as the request says)"),
            CostBy::Attribute { name, said: Weight::Number } => write!(f, " (by {name})"),
            CostBy::Attribute { name, said: Weight::Missing } => write!(f, " (there is no {name})"),
            CostBy::Attribute { name, said: Weight::TooMuch(value) } => {
                write!(f, " ({name} is {value:?}, more than the most)")
            }
            CostBy::Attribute { name, said: Weight::NoNumber(value) } => {
                write!(f, " ({name} is {value:?}, no whole number, so the most)")
            }
        }
    }

    fn write_overrides(&self, overrides: &Overrides, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Overrides { applies, unmet, more_unmet, for_others, behind } = overrides;
        if let Some(overriding) = applies {
            let does = match self.effect {
                Does::Unlimited => "unlimited ",
                Does::Denies => "refused ",
                Does::Limits | Does::Overrides | Does::Allows | Does::Replaced => "",
            };
            write!(f, "{INDENT}{does}by override {}", overriding.place)?;
            match &overriding.when[..] {
                [] => f.write_str(", which is for everybody")?,
                when => {
                    for (place, held) in when.iter().enumerate() {
                        write!(f, "{}{held}", if place == 0 { ", since " } else { " and " })?;
                    }
                }
            }
            if let Some(until) = &overriding.until {
                write!(f, ", until {until}")?;
            }
        } else {
            let others: usize = for_others.iter().map(|(_, count)| count).sum();
            write!(f, "{INDENT}by none of its {} overrides", Count((unmet.len() + more_unmet + others) as u64))?;
        }
        for unmet in unmet {
            write!(f, "{INDENT}not by override {}: ", unmet.place)?;
            match &unmet.why {
                NotHeld::Unmet(unmet) => write!(f, "{unmet}")?,
                NotHeld::Ended(until) => write!(f, "it ended {until}")?,
            }
        }
        if *more_unmet > 0 {
            write!(f, "{INDENT}nor by {} more", Count(*more_unmet as u64))?;
        }
        for (attribute, count) in for_others {
            let count = Count(*count as u64);
            write!(f, "{INDENT}not by {count} for other values of {attribute}, set through the API")?;
        }
        if *behind > 0 {
            write!(f, "{INDENT}{} more behind it, not looked at", Count(*behind as u64))?;
        }
        Ok(())
    }
}

impl fmt::Display for OverridePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(place) => f.write_str(place),
            Self::Own(place) => write!(f, "{place} of those in the rule"),
            Self::Named(name) => write!(f, "{name:?}, set through the API"),
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}", self.attribute, self.expected)
    }
}

impl fmt::Display for BanState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, within, length, stands } = self;
        let (within, length) = (Length(*within), Length(*length));
        let leads = match after {
            1 => format!("a refusal leads to a ban of {length}"),
            _ => format!("{} refusals within {within} lead to a ban of {length}", Count(*after)),
        };
        match stands {
            BanStands::Banned { left, until } => {
                write!(f, "banned for {} more, until {until}: {leads}; `tollgate keys reset` lifts it", Length(*left))
            }
            BanStands::NotLookedAt => write!(f, "whether it is banned was not looked at: {leads}"),
            BanStands::Not { refusals: Some(refusals) } if *after > 1 => {
                write!(f, "not banned: {} of {} refusals within {within}", Count(*refusals), Count(*after))?;
                write!(f, " that lead to a ban of {length}")
            }
            BanStands::Not { .. } => write!(f, "not banned: {leads}"),
        }
    }
}

impl LimitState {
    fn write(&self, met: &Met, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { written, report, refill, .. } = self;
        let left = if *refill == Refill::Slots { "free" } else { "left" };
        if let Some(written) = written {
            f.write_str(written)?;
            if let Some(longest) = met.delays {
                write!(f, ", delayed for up to {}", Length(longest))?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{} of {} {left}", Count(report.remaining), Count(report.limit))?;
        if met.cost > 1 && report.remaining >= met.cost {
            write!(f, ", enough for {} of them", Count(report.remaining / met.cost))?;
        }
        let reset = Length(report.reset);
        match refill {
            Refill::ByCalendar { zone, began, resets } => {
                write!(f, ", calendar of {zone}, began {began}, resets {resets}")?;
            }
            _ if report.reset == Nanos::ZERO => {}
            Refill::Steadily => write!(f, ", full again in {reset}")?,
            Refill::ByWindow => write!(f, ", resets in {reset}")?,
            Refill::Sliding => write!(f, ", all of it free again in {reset}")?,
            Refill::Slots => write!(f, ", the last lease ends in {reset}")?,
        }
        let next = if met.refuses { "passes" } else { "the next one passes" };
        match report.retry {
            Retry::After(Nanos::ZERO) => Ok(()),
            Retry::After(wait) => write!(f, ", {next} in {}", Length(wait)),
            Retry::OnRelease => write!(f, ", {next} when a slot is given back"),
            Retry::Never => f.write_str(", never passes: it costs more than the limit ever holds"),
        }
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
            Outcome::Delay(wait) => write!(f, "allowed after {}", Length(wait)),
            Outcome::Deny(Retry::After(wait)) => write!(f, "refused for {}", Length(wait)),
            Outcome::Deny(Retry::OnRelease) => f.write_str("refused until something is released"),
            Outcome::Deny(Retry::Never) => f.write_str("refused, whenever it comes"),
        }
    }
}
