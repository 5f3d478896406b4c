//! Adds features that the plain generator leaves out: rules that replace other rules, rules marked `suffices`,
//! overrides that expire, rules enforced for no key, schedules, denying shadow rules, and debt of calendar windows.

use super::super::limit::{Algorithm, Limit, Windows};
use super::super::rules::{Effect, OnExceed, Override, Rule};
use super::limits::any_initial_and_debt;
use super::rule_sets::any_schedule;
use super::{Rng, Trace};

impl Trace {
    /// Returns the trace with these features added to its rules. The steps stay the same.
    #[must_use]
    pub fn with_extensions(mut self, rng: &mut Rng) -> Self {
        let ids: Vec<String> = self.versions[0].rules.iter().map(|rule| rule.id.clone()).collect();
        // Chooses once per rule id, so that a rule is either enforced or a shadow rule in all versions.
        let enforced: Vec<Option<u8>> = ids.iter().map(|_| rng.pick(&[None, None, None, Some(0), Some(100)])).collect();
        let start = self.start / 1_000_000_000;
        for rule in self.versions.iter_mut().flat_map(|version| &mut version.rules) {
            if rng.one_in(3) {
                rule.replaces = ids.iter().filter(|id| **id != rule.id && rng.one_in(2)).cloned().collect();
            }
            if rng.one_in(4) {
                rule.schedule = Some(any_schedule(rng));
            }
            rule.overrides = std::mem::take(&mut rule.overrides)
                .into_iter()
                .flat_map(|other| expiring_overrides(rng, other, start))
                .collect();
            if !matches!(rule.effect, Effect::Limits(_)) || rule.is_shadow() {
                continue;
            }
            let position = ids.iter().position(|id| *id == rule.id);
            rule.enforce = position.and_then(|position| enforced[position]);
            if rule.enforce == Some(0) {
                // A shadow rule refuses nothing, so it cannot ban.
                rule.ban = None;
            }
            rule.suffices = !rule.is_shadow() && rng.one_in(2) && may_suffice(rule);
        }
        for rule in self.versions.iter_mut().flat_map(|version| &mut version.rules) {
            deny_in_shadow(rng, rule);
            vary_calendar_debt(rng, rule);
            rule.suffices = rule.suffices && may_suffice(rule);
        }
        self
    }
}

/// Turns some denying rules into shadow rules, and lets some overrides of shadow rules deny.
fn deny_in_shadow(rng: &mut Rng, rule: &mut Rule) {
    if rule.effect == Effect::Deny && rng.one_in(2) {
        rule.on_exceed = OnExceed::Shadow;
    }
    let is_shadow = rule.is_shadow();
    for other in rule.overrides.iter_mut().filter(|_| is_shadow) {
        if rng.one_in(3) {
            other.effect = Effect::Deny;
        }
    }
}

/// Gives calendar windows random debt and initial amounts.
fn vary_calendar_debt(rng: &mut Rng, rule: &mut Rule) {
    let effects = std::iter::once(&mut rule.effect).chain(rule.overrides.iter_mut().map(|other| &mut other.effect));
    let limits = effects.flat_map(|effect| match effect {
        Effect::Limits(limits) => limits.as_mut_slice(),
        Effect::Count(_) | Effect::Unlimited | Effect::Allow | Effect::Deny => &mut [],
    });
    for limit in limits.filter(|limit| matches!(limit.algorithm, Algorithm::FixedWindow(Windows::Calendar(_)))) {
        (limit.initial, limit.max_debt) = any_initial_and_debt(rng, limit.count);
    }
}

/// Returns the override unchanged, or with an expiry around or after the start of the trace. After an expiring
/// override, the list may also contain the original override.
fn expiring_overrides(rng: &mut Rng, other: Override, start: u64) -> Vec<Override> {
    if rng.one_in(2) {
        return vec![other];
    }
    let until = start.saturating_sub(2) + rng.pick(&[0, 3, 10, 4_000, 100_000]) + rng.below(4);
    let expiring = Override { until: Some(until), ..other.clone() };
    if rng.one_in(2) { vec![expiring, other] } else { vec![expiring] }
}

/// Returns whether the documents define the effect of marking this rule `suffices`. The documents do not define what
/// happens to refusals that the rule counts, or to new keys that it starts, if another rule admits the request.
fn may_suffice(rule: &Rule) -> bool {
    let counts = |limit: &Limit| {
        matches!(limit.algorithm, Algorithm::SlidingLog { count_refused: true, .. }) || limit.spent_at_first() > 0
    };
    let limits = |effect: &Effect| match effect {
        Effect::Limits(limits) => limits.clone(),
        Effect::Count(_) | Effect::Unlimited | Effect::Allow | Effect::Deny => Vec::new(),
    };
    let all = std::iter::once(&rule.effect).chain(rule.overrides.iter().map(|other| &other.effect)).flat_map(limits);
    rule.ban.is_none() && !all.into_iter().any(|limit| counts(&limit))
}
