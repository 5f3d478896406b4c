//! An explanation for where values must not be read.

use super::{CostBy, Explanation, Held, Met, NotHeld, OverridePlace, Overrides, Unmet, Weight, Why};

impl Explanation {
    /// Replaces every value that the request brought by what `hide` makes of it, for where it must not be read: also where it
    /// shows in what an override is for. What is to be and is not stays, since it says nothing about the request.
    pub fn conceal(&mut self, hide: impl Fn(&str) -> String) {
        for explained in &mut self.rules {
            match &mut explained.why {
                Why::Met(met) => met.conceal(&hide),
                Why::Unmet(unmet) => unmet.conceal(&hide),
                Why::Expression { values, .. } => of_pairs(values, &hide),
                Why::Judged { .. } | Why::Others | Why::NotNow { .. } => {}
            }
        }
    }
}

impl Met {
    fn conceal(&mut self, hide: &impl Fn(&str) -> String) {
        of_pairs(&mut self.counted, hide);
        if let CostBy::Attribute { said: Weight::TooMuch(value) | Weight::NoNumber(value), .. } = &mut self.cost_by {
            *value = hide(value);
        }
        if let Some(overrides) = &mut self.overrides {
            overrides.conceal(hide);
        }
    }
}

impl Overrides {
    fn conceal(&mut self, hide: &impl Fn(&str) -> String) {
        if let Some(applies) = &mut self.applies {
            applies.place.conceal(hide);
            applies.when.iter_mut().for_each(|held| held.conceal(hide));
        }
        for unmet in &mut self.unmet {
            unmet.place.conceal(hide);
            match &mut unmet.why {
                NotHeld::Unmet(unmet) => unmet.conceal(hide),
                NotHeld::Ended(_) => {}
            }
        }
    }
}

impl OverridePlace {
    fn conceal(&mut self, hide: &impl Fn(&str) -> String) {
        match self {
            Self::Named(name) => *name = hide(name),
            Self::At(_) | Self::Own(_) => {}
        }
    }
}

impl Held {
    fn conceal(&mut self, hide: &impl Fn(&str) -> String) {
        if let Some(value) = &mut self.value {
            *value = hide(value);
            self.expected = format!("{value:?}");
        }
    }
}

impl Unmet {
    fn conceal(&mut self, hide: &impl Fn(&str) -> String) {
        self.found.iter_mut().for_each(|value| *value = hide(value));
    }
}

fn of_pairs(pairs: &mut [(String, Option<String>)], hide: &impl Fn(&str) -> String) {
    pairs.iter_mut().filter_map(|(_, value)| value.as_mut()).for_each(|value| *value = hide(value));
}
