//! The counters and rules of a decision, for statistics.

use tollgate::Outcome;
use tollgate::core::Cost;

use crate::decision::Decision;
use crate::key;

/// A counter, and the effect of a decision on it.
#[derive(Clone, Copy, Debug)]
pub struct Counter<'d> {
    /// The rule it belongs to; empty for an inline limit.
    pub rule: &'d str,
    /// The key of its state.
    pub key: &'d [u8],
    /// What was taken from it.
    pub taken: Cost,
    /// Whether it refused, or is banned, or would have refused as a shadow rule.
    pub refused: bool,
}

impl<'d> Decision<'d> {
    /// Returns the counters that were evaluated, in the order of the rules.
    pub fn counters(&self) -> impl Iterator<Item = Counter<'d>> + use<'d> {
        let (all, charges) = self.charges();
        let end = charges.end;
        charges.filter_map(move |place| {
            let planned = &all.plan.charges[place];
            let (answer, _) = all.answer(planned).filter(|_| !planned.is_ban())?;
            let ban = all.plan.charges.get(place + 1).filter(|next| place + 1 < end && next.is_ban());
            let refuses = |outcome: Outcome| matches!(outcome, Outcome::Deny(_));
            let banned = ban.and_then(|ban| all.answer(ban)).is_some_and(|(ban, _)| refuses(ban.outcome));
            Some(Counter {
                rule: all.plan.name(place as u32),
                key: all.plan.key(planned),
                taken: answer.taken,
                refused: refuses(answer.outcome) || banned,
            })
        })
    }
}

/// A rule that a request matched, and the outcome by that rule.
#[derive(Clone, Copy, Debug)]
pub struct RuleOutcome<'d> {
    /// The index of the rule in [`RuleSet::rules`](crate::RuleSet::rules).
    pub number: usize,
    /// The counter of the rule.
    pub counter: Counter<'d>,
    /// Whether the rule is in shadow for this request.
    pub is_shadow: bool,
    /// The outcome by this rule alone, with its ban. `None`: not asked, because the enforced rules
    /// refused the request, and this is a shadow rule.
    pub outcome: Option<Outcome>,
}

impl<'d> Decision<'d> {
    /// Returns the rules that were evaluated, in their order, without replaced rules and inline limits.
    pub fn rule_outcomes(&self) -> impl Iterator<Item = RuleOutcome<'d>> + use<'d> {
        let (all, charges) = self.charges();
        let end = charges.end;
        charges.filter_map(move |place| {
            let planned = &all.plan.charges[place];
            let number = planned.rule().filter(|_| !planned.is_ban() && !planned.is_replaced())? as usize;
            let answer = all.answer(planned).map(|(answer, _)| answer);
            let unasked = answer.is_none() && planned.shadow && planned.has_limits();
            let ban = all.plan.charges.get(place + 1).filter(|next| place + 1 < end && next.is_ban());
            let by_ban = ban.and_then(|ban| all.answer(ban)).map_or(Outcome::Allow, |(ban, _)| ban.outcome);
            let outcome = all.charge_outcome(planned).and(by_ban);
            let counter = Counter {
                rule: all.plan.name(place as u32),
                key: all.plan.key(planned),
                taken: answer.map_or(Cost::ZERO, |answer| answer.taken),
                refused: !unasked && matches!(outcome, Outcome::Deny(_)),
            };
            Some(RuleOutcome { number, counter, is_shadow: planned.shadow, outcome: (!unasked).then_some(outcome) })
        })
    }
}

impl Counter<'_> {
    /// Returns the domain of its rule.
    pub fn domain(&self) -> String {
        String::from_utf8_lossy(key::domain_of(self.key)).into_owned()
    }

    /// Describes what it counts by, in at most `most` characters: names and values, or the key of
    /// an inline limit.
    pub fn name(&self, most: usize) -> String {
        let mut name = String::new();
        match key::counted_by(self.key) {
            Some(counted) => {
                for (attribute, value) in counted {
                    let separator = if name.is_empty() { "" } else { ", " };
                    let value = value.map_or("(none)".into(), |value| String::from_utf8_lossy(cut(value, most)));
                    name.push_str(&format!("{separator}{}={value}", String::from_utf8_lossy(attribute)));
                }
            }
            None => name.push_str(&String::from_utf8_lossy(cut(key::inline_name_of(self.key), most))),
        }
        if name.chars().count() > most {
            name = name.chars().take(most.saturating_sub(1)).chain(['…']).collect();
        }
        name
    }
}

/// Cuts a value to the bytes that this many characters can have, so that a long value costs no more
/// than a short one.
fn cut(value: &[u8], characters: usize) -> &[u8] {
    &value[..value.len().min(characters.saturating_mul(4))]
}
