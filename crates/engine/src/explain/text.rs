//! Formats explanations as text.

use std::fmt;

use tollgate::core::Nanos;
use tollgate::{Outcome, Retry};

use super::human::{HumanCount, HumanDuration};
use super::{
    BanState, BanStatus, CostSource, CostValue, Explanation, FailedCondition, LimitState, MatchExplanation,
    MatchResult, OverrideExplanation, OverrideMismatch, OverridePosition, Refill, RuleEffect, RuleExplanation,
    SatisfiedCondition,
};
use crate::decision::Exactness;
use crate::rules::{Consistency, OnFault};

/// Line break and indentation before each additional line about a rule.
const INDENT: &str = "\n    ";

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decides = self.decides.as_ref();
        let matched = decides
            .and_then(|id| self.matching_rules().find(|(explained, _)| explained.rule == *id))
            .map(|(_, matched)| matched);
        let outcome = match self.observed {
            Some(observed) => {
                f.write_str("allowed, because refusals are only observed; otherwise ")?;
                observed
            }
            None => self.outcome,
        };
        write!(f, "{}", OutcomeText(outcome))?;
        match (decides, matched.map(|matched| matched.effect)) {
            (None, _) if self.matching_rules().next().is_some() => f.write_str(", because no enforced rule matches")?,
            (None, _) => f.write_str(", because no rule matches")?,
            (Some(rule), _) if rule.is_empty() => f.write_str(", by the inline limit")?,
            (Some(rule), Some(RuleEffect::Limits | RuleEffect::Overrides)) if outcome == Outcome::Allow => {
                write!(f, "; `{rule}` has the least left")?;
                self.write_tightest_rule(rule, f)?;
            }
            (Some(rule), Some(RuleEffect::Unlimited)) => write!(f, "; `{rule}` matches and is unlimited")?,
            (Some(rule), _) => write!(f, ", by `{rule}`")?,
        }
        if let Some(BanStatus::Banned { until, .. }) =
            matched.and_then(|matched| matched.ban.as_ref()).map(|ban| &ban.status)
        {
            write!(f, ", banned until {until}")?;
        }
        if self.exactness == Exactness::Fallback {
            f.write_str("; the store does not answer")?;
        }
        writeln!(f)?;
        for explained in &self.rules {
            writeln!(f, "{explained}")?;
        }
        match self.left_out {
            0 => Ok(()),
            more => writeln!(f, "and {more} more that do not match"),
        }
    }
}

impl Explanation {
    /// Writes the name of the rule that admits the fewest further requests like the explained request. Writes nothing
    /// if that rule is `least`, the rule with the smallest remaining amount. The two rules can differ because the cost
    /// depends on the rule.
    fn write_tightest_rule(&self, least: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let enforced = self.matching_rules().filter(|(_, matched)| !matched.shadow);
        let enough: Vec<(u64, &str)> =
            enforced.filter_map(|(explained, matched)| Some((matched.requests_left()?, &*explained.rule))).collect();
        let Some((fewest, nearest)) = enough.iter().min_by_key(|(count, _)| *count) else { return Ok(()) };
        if nearest.is_empty() || enough.contains(&(*fewest, least)) {
            return Ok(());
        }
        write!(f, ", but `{nearest}` is enough for only {} like this", HumanCount(*fewest))
    }
}

impl fmt::Display for RuleExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if matches!(self.why, MatchResult::Matches(_)) { '+' } else { '-' };
        write!(f, "{sign} {}", if self.rule.is_empty() { "inline limit" } else { &self.rule })?;
        if let Some(position) = &self.position {
            write!(f, " ({position})")?;
        }
        write!(f, ": ")?;
        match &self.why {
            MatchResult::Matches(matched) => matched.fmt(f),
            MatchResult::DecidedBefore { by } => write!(f, "not evaluated: `{by}` has decided"),
            MatchResult::OtherAttributes => {
                f.write_str("its conditions hold, but the attributes are not exactly those of `only`, in its order")
            }
            MatchResult::ExpressionFailed { part, of, values } => {
                f.write_str("its conditions hold, but its expression does not")?;
                if *of > 1 {
                    write!(f, " in part {part} of {of}")?;
                }
                for (position, (name, value)) in values.iter().enumerate() {
                    f.write_str(if position == 0 { ", with " } else { " and " })?;
                    match value {
                        Some(value) => write!(f, "{name} = {value:?}")?,
                        None => write!(f, "no {name}")?,
                    }
                }
                Ok(())
            }
            MatchResult::OutsideSchedule { schedule } => {
                f.write_str("its conditions hold, but it does not apply at this time")?;
                if !schedule.is_empty() {
                    write!(f, ", only {}", schedule.join(" or "))?;
                }
                Ok(())
            }
            MatchResult::ConditionFailed(failed) => failed.fmt(f),
        }
    }
}

impl fmt::Display for MatchExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.shadow, self.excluded_by_enforce) {
            (true, true) => "matches, as a shadow rule: `enforce` excludes this counter",
            (true, false) => "matches, as a shadow rule",
            (false, _) => "matches",
        })?;
        for (position, (name, value)) in self.counted.iter().enumerate() {
            f.write_str(if position == 0 { ", counted by " } else { " and " })?;
            match value {
                Some(value) => write!(f, "{name} = {value:?}")?,
                None => write!(f, "{name} (missing)")?,
            }
        }
        match self.effect {
            RuleEffect::Limits | RuleEffect::Overrides => self.write_cost(f)?,
            RuleEffect::Unlimited => f.write_str(", unlimited")?,
            RuleEffect::Allows => f.write_str(", admits it, regardless of other rules")?,
            RuleEffect::Denies => f.write_str(", refuses it without counting")?,
            RuleEffect::Replaced => match &self.replaced_by {
                Some(by) => write!(f, ", left out: `{by}` replaces it")?,
                None => f.write_str(", left out: another rule with `suffices` has capacity")?,
            },
        }
        if self.refuses && self.effect != RuleEffect::Denies {
            f.write_str(match (self.remaining_ban_time(), self.shadow) {
                (Some(_), _) => ": banned",
                (None, true) => ": would refuse",
                (None, false) => ": refuses",
            })?;
        }
        if self.effect == RuleEffect::Replaced {
            return Ok(());
        }
        if let Some(overrides) = &self.overrides {
            self.write_overrides(overrides, f)?;
        }
        match self.fault {
            Some(OnFault::Local) => {
                write!(f, "{INDENT}decided locally, by this node's share, while the store does not answer")?;
            }
            Some(OnFault::Open) => write!(f, "{INDENT}admits while the store does not answer (`on_fault: open`)")?,
            Some(OnFault::Closed) => write!(f, "{INDENT}refuses while the store does not answer (`on_fault: closed`)")?,
            None => {}
        }
        match self.consistency {
            Consistency::Strict => {}
            Consistency::Leased => write!(f, "{INDENT}`consistency: leased`")?,
            Consistency::Eventual(every) => {
                write!(f, "{INDENT}`consistency: eventual`, synced every {}", every.length())?;
            }
        }
        if let Some(ban) = &self.ban {
            write!(f, "{INDENT}{ban}")?;
        }
        if !self.suffice.is_empty() {
            let others: Vec<String> = self.suffice.iter().map(|rule| format!("`{rule}`")).collect();
            write!(
                f,
                "{INDENT}one of the rules with `suffices` must have capacity: this one or {}",
                others.join(" or ")
            )?;
        }
        // Each limit states when the next request passes. During a ban, only limits with a longer wait than the ban
        // matter.
        let matters =
            |limit: &&LimitState| self.remaining_ban_time().is_none_or(|left| limit.report.retry > Retry::After(left));
        for limit in self.limits.iter().filter(matters) {
            write!(f, "{INDENT}")?;
            limit.write_state(self, f)?;
        }
        if self.fault.is_none()
            && self.limits.is_empty()
            && matches!(self.effect, RuleEffect::Limits | RuleEffect::Overrides)
        {
            write!(f, "{INDENT}not evaluated: another rule refuses the request")?;
        }
        Ok(())
    }
}

impl MatchExplanation {
    /// Returns the number of further requests of the same cost that the rule's limits admit. Returns `None` if the
    /// limits were not evaluated or the cost is 0.
    fn requests_left(&self) -> Option<u64> {
        self.limits.iter().filter_map(|limit| limit.report.remaining.checked_div(self.cost)).min()
    }

    fn write_cost(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ", costs {}", HumanCount(self.cost))?;
        match &self.cost_by {
            CostSource::Rule => Ok(()),
            CostSource::Request => f.write_str(" (stated by the request)"),
            CostSource::Case(when) if when.is_empty() => Ok(()),
            CostSource::Case(when) => {
                let when: Vec<String> = when.iter().map(ToString::to_string).collect();
                write!(f, " (because {})", when.join(" and "))
            }
            CostSource::Attribute { name, value: CostValue::Number } => write!(f, " (from {name})"),
            CostSource::Attribute { name, value: CostValue::Missing } => write!(f, " (no {name})"),
            CostSource::Attribute { name, value: CostValue::AboveMaximum(value) } => {
                write!(f, " ({name} is {value:?}, above the maximum)")
            }
            CostSource::Attribute { name, value: CostValue::NotANumber(value) } => {
                write!(f, " ({name} is {value:?}, not a whole number: counts as the maximum)")
            }
        }
    }

    fn write_overrides(&self, overrides: &OverrideExplanation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverrideExplanation { applies, skipped, more_skipped, for_others, after } = overrides;
        if let Some(overriding) = applies {
            let does = match self.effect {
                RuleEffect::Unlimited => "unlimited ",
                RuleEffect::Denies => "refused ",
                RuleEffect::Limits | RuleEffect::Overrides | RuleEffect::Allows | RuleEffect::Replaced => "",
            };
            write!(f, "{INDENT}{does}by override {}", overriding.position)?;
            match &overriding.when[..] {
                [] => f.write_str(", which matches every request")?,
                when => {
                    for (position, held) in when.iter().enumerate() {
                        write!(f, "{}{held}", if position == 0 { ", because " } else { " and " })?;
                    }
                }
            }
            if let Some(until) = &overriding.until {
                write!(f, ", until {until}")?;
            }
        } else {
            let others: usize = for_others.iter().map(|(_, count)| count).sum();
            write!(
                f,
                "{INDENT}none of its {} overrides applies",
                HumanCount((skipped.len() + more_skipped + others) as u64)
            )?;
        }
        for skipped in skipped {
            write!(f, "{INDENT}override {} does not apply: ", skipped.position)?;
            match &skipped.why {
                OverrideMismatch::ConditionFailed(failed) => write!(f, "{failed}")?,
                OverrideMismatch::Expired(until) => write!(f, "it expired {until}")?,
            }
        }
        if *more_skipped > 0 {
            write!(f, "{INDENT}further overrides that do not apply: {}", HumanCount(*more_skipped as u64))?;
        }
        for (attribute, count) in for_others {
            let count = HumanCount(*count as u64);
            write!(f, "{INDENT}overrides set through the API for other values of {attribute}: {count}")?;
        }
        if *after > 0 {
            write!(f, "{INDENT}{} more after it, not evaluated", HumanCount(*after as u64))?;
        }
        Ok(())
    }
}

impl fmt::Display for OverridePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(position) => f.write_str(position),
            Self::InRule(position) => write!(f, "{position} of the rule"),
            Self::Named(name) => write!(f, "{name:?}, set through the API"),
        }
    }
}

impl fmt::Display for SatisfiedCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}", self.attribute, self.expected)
    }
}

impl fmt::Display for BanState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, within, length, status } = self;
        let (within, length) = (HumanDuration(*within), HumanDuration(*length));
        let leads = match after {
            1 => format!("a refusal leads to a ban of {length}"),
            _ => format!("{} refusals within {within} lead to a ban of {length}", HumanCount(*after)),
        };
        match status {
            BanStatus::Banned { left, until } => {
                write!(
                    f,
                    "banned for {} more, until {until}: {leads}; `tollgate keys reset` lifts it",
                    HumanDuration(*left)
                )
            }
            BanStatus::NotEvaluated => write!(f, "ban not evaluated: {leads}"),
            BanStatus::Not { refusals: Some(refusals) } if *after > 1 => {
                write!(f, "not banned: {} of {} refusals within {within}", HumanCount(*refusals), HumanCount(*after))?;
                write!(f, " that lead to a ban of {length}")
            }
            BanStatus::Not { .. } => write!(f, "not banned: {leads}"),
        }
    }
}

impl LimitState {
    fn write_state(&self, matched: &MatchExplanation, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { written, report, refill, .. } = self;
        let left = if *refill == Refill::Slots { "free" } else { "left" };
        if let Some(written) = written {
            f.write_str(written)?;
            if let Some(longest) = matched.delays {
                write!(f, ", delayed for up to {}", HumanDuration(longest))?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{} of {} {left}", HumanCount(report.remaining), HumanCount(report.limit))?;
        if matched.cost > 1 && report.remaining >= matched.cost {
            write!(f, ", enough for {} like this", HumanCount(report.remaining / matched.cost))?;
        }
        let reset = HumanDuration(report.reset);
        match refill {
            Refill::ByCalendar { zone, began, resets } => {
                write!(f, ", calendar of {zone}, began {began}, resets {resets}")?;
            }
            _ if report.reset == Nanos::ZERO => {}
            Refill::Steadily => write!(f, ", full again in {reset}")?,
            Refill::ByWindow => write!(f, ", resets in {reset}")?,
            Refill::Sliding => write!(f, ", unused again in {reset}")?,
            Refill::Slots => write!(f, ", the last lease expires in {reset}")?,
        }
        let next = if matched.refuses { "passes" } else { "the next one passes" };
        match report.retry {
            Retry::After(Nanos::ZERO) => Ok(()),
            Retry::After(wait) => write!(f, ", {next} in {}", HumanDuration(wait)),
            Retry::OnRelease => write!(f, ", {next} when a slot is released"),
            Retry::Never => f.write_str(", never passes: the cost exceeds the capacity"),
        }
    }
}

impl fmt::Display for FailedCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}, ", self.attribute, self.expected)?;
        match &self.found[..] {
            [] => f.write_str("but is missing"),
            [found] => write!(f, "but is {found:?}"),
            found => write!(f, "but is one of {found:?}"),
        }
    }
}

struct OutcomeText(Outcome);

impl fmt::Display for OutcomeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Outcome::Allow => f.write_str("allowed"),
            Outcome::Delay(wait) => write!(f, "allowed after {}", HumanDuration(wait)),
            Outcome::Deny(Retry::After(wait)) => write!(f, "refused for {}", HumanDuration(wait)),
            Outcome::Deny(Retry::OnRelease) => f.write_str("refused until a slot is released"),
            Outcome::Deny(Retry::Never) => f.write_str("always refused"),
        }
    }
}
