//! Per-counter and per-rule results of a decision, for statistics.

use tollgate::Outcome;
use tollgate::core::Cost;

use crate::decision::Decision;
use crate::key;

/// A counter, and the effect of one decision on it.
#[derive(Clone, Copy, Debug)]
pub struct CounterOutcome<'d> {
    /// The id of the rule; empty for an inline limit.
    pub rule: &'d str,
    /// The encoded key.
    pub key: &'d [u8],
    /// The amount taken.
    pub taken: Cost,
    /// Whether the rule refused the request by its limits or its ban. For a shadow rule: whether it would have refused.
    pub refused: bool,
}

impl<'d> Decision<'d> {
    /// Returns the evaluated counters, ordered by item, then by rule.
    pub fn counters(&self) -> impl Iterator<Item = CounterOutcome<'d>> + use<'d> {
        let (all, charges) = self.charges();
        let end = charges.end;
        charges.filter_map(move |index| {
            let planned = &all.plan.charges[index];
            let (answer, _) = all.answer(planned).filter(|_| !planned.is_ban())?;
            let ban = all.plan.charges.get(index + 1).filter(|next| index + 1 < end && next.is_ban());
            let refuses = |outcome: Outcome| matches!(outcome, Outcome::Deny(_));
            let banned = ban.and_then(|ban| all.answer(ban)).is_some_and(|(ban, _)| refuses(ban.outcome));
            Some(CounterOutcome {
                rule: all.plan.rule_id(index as u32),
                key: all.plan.key(planned),
                taken: answer.taken,
                refused: refuses(answer.outcome) || banned,
            })
        })
    }
}

/// A rule that a request matched, and the outcome of that rule alone.
#[derive(Clone, Copy, Debug)]
pub struct RuleOutcome<'d> {
    /// The rule's index in [`RuleSet::rules`](crate::RuleSet::rules).
    pub number: usize,
    /// The rule's counter.
    pub counter: CounterOutcome<'d>,
    /// Whether the rule was a shadow rule for this request.
    pub is_shadow: bool,
    /// The outcome of this rule and its ban. `None` for a shadow rule that was not evaluated, for example because the
    /// enforced rules refused the request.
    pub outcome: Option<Outcome>,
}

impl<'d> Decision<'d> {
    /// Returns the matched rules, ordered by item, then by rule, without replaced rules and inline limits.
    pub fn rule_outcomes(&self) -> impl Iterator<Item = RuleOutcome<'d>> + use<'d> {
        let (all, charges) = self.charges();
        let end = charges.end;
        charges.filter_map(move |index| {
            let planned = &all.plan.charges[index];
            let number = planned.rule().filter(|_| !planned.is_ban() && !planned.is_omitted())? as usize;
            let answer = all.answer(planned).map(|(answer, _)| answer);
            let unasked = answer.is_none() && planned.shadow && planned.is_sent();
            let ban = all.plan.charges.get(index + 1).filter(|next| index + 1 < end && next.is_ban());
            let by_ban = ban.and_then(|ban| all.answer(ban)).map_or(Outcome::Allow, |(ban, _)| ban.outcome);
            let outcome = all.charge_outcome(planned).stricter(by_ban);
            let counter = CounterOutcome {
                rule: all.plan.rule_id(index as u32),
                key: all.plan.key(planned),
                taken: answer.map_or(Cost::ZERO, |answer| answer.taken),
                refused: !unasked && matches!(outcome, Outcome::Deny(_)),
            };
            Some(RuleOutcome { number, counter, is_shadow: planned.shadow, outcome: (!unasked).then_some(outcome) })
        })
    }
}

impl CounterOutcome<'_> {
    /// Returns the rule's domain.
    pub fn domain(&self) -> String {
        String::from_utf8_lossy(key::domain_of(self.key)).into_owned()
    }

    /// Returns a display name of at most `most` characters: the attribute names and values that the rule counts by, or
    /// the key of an inline limit.
    pub fn name(&self, most: usize) -> String {
        let mut name = String::new();
        match key::decode_counted_values(self.key) {
            Some(counted) => {
                for (attribute, value) in counted {
                    let separator = if name.is_empty() { "" } else { ", " };
                    let value = value.map_or("(none)".into(), |value| String::from_utf8_lossy(clip_value(value, most)));
                    name.push_str(&format!("{separator}{}={value}", String::from_utf8_lossy(attribute)));
                }
            }
            None => name.push_str(&String::from_utf8_lossy(clip_value(key::inline_name_of(self.key), most))),
        }
        if name.chars().count() > most {
            name = name.chars().take(most.saturating_sub(1)).chain(['…']).collect();
        }
        name
    }
}

/// Truncates a value to the maximum byte length of a string with this number of characters. The truncation bounds the
/// cost of formatting a long value.
fn clip_value(value: &[u8], characters: usize) -> &[u8] {
    &value[..value.len().min(characters.saturating_mul(4))]
}
