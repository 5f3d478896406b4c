//! Hides the request's values in an explanation.

use super::{
    CostSource, CostValue, Explanation, FailedCondition, MatchExplanation, MatchResult, OverrideExplanation,
    OverrideMismatch, OverridePosition, SatisfiedCondition,
};

impl Explanation {
    /// Replaces every value of the request with the result of `hide`, including values in the conditions of an
    /// override. The values that a failed condition expects stay visible; excluded values do not.
    pub fn conceal(&mut self, hide: impl Fn(&str) -> String) {
        for explained in &mut self.rules {
            match &mut explained.why {
                MatchResult::Matches(matched) => matched.conceal(&hide),
                MatchResult::ConditionFailed(failed) => failed.conceal(&hide),
                MatchResult::ExpressionFailed { values, .. } => conceal_values(values, &hide),
                MatchResult::DecidedBefore { .. }
                | MatchResult::OtherAttributes
                | MatchResult::OutsideSchedule { .. } => {}
            }
        }
    }
}

impl MatchExplanation {
    fn conceal(&mut self, hide: &impl Fn(&str) -> String) {
        conceal_values(&mut self.counted, hide);
        match &mut self.cost_by {
            CostSource::Attribute { value: CostValue::AboveMaximum(value) | CostValue::NotANumber(value), .. } => {
                *value = hide(value);
            }
            CostSource::Case(when) => when.iter_mut().for_each(|held| held.conceal(hide)),
            CostSource::Rule | CostSource::Request | CostSource::Attribute { .. } => {}
        }
        if let Some(overrides) = &mut self.overrides {
            overrides.conceal(hide);
        }
    }
}

impl OverrideExplanation {
    fn conceal(&mut self, hide: &impl Fn(&str) -> String) {
        if let Some(applies) = &mut self.applies {
            applies.position.conceal(hide);
            applies.when.iter_mut().for_each(|held| held.conceal(hide));
        }
        for skipped in &mut self.skipped {
            skipped.position.conceal(hide);
            match &mut skipped.why {
                OverrideMismatch::ConditionFailed(failed) => failed.conceal(hide),
                OverrideMismatch::Expired(_) => {}
            }
        }
    }
}

impl OverridePosition {
    fn conceal(&mut self, hide: &impl Fn(&str) -> String) {
        match self {
            Self::Named(name) => *name = hide(name),
            Self::At(_) | Self::InRule(_) => {}
        }
    }
}

impl SatisfiedCondition {
    fn conceal(&mut self, hide: &impl Fn(&str) -> String) {
        if let Some(value) = &mut self.value {
            *value = hide(value);
            self.expected = format!("{value:?}");
        }
    }
}

impl FailedCondition {
    fn conceal(&mut self, hide: &impl Fn(&str) -> String) {
        self.found.iter_mut().for_each(|value| *value = hide(value));
        // The request has an excluded value, so the list of excluded values would reveal it.
        if self.is_exclusion {
            self.expected = "other than the excluded values".to_owned();
        }
    }
}

fn conceal_values(pairs: &mut [(String, Option<String>)], hide: &impl Fn(&str) -> String) {
    pairs.iter_mut().filter_map(|(_, value)| value.as_mut()).for_each(|value| *value = hide(value));
}
