//! Adds relations between rules, and time: rules that replace others, rules of which one suffices,
//! overrides that expire, rules that are enforced for no key, and schedules.

use super::super::limit::{Algorithm, Limit};
use super::super::rules::{Does, Override, Rule};
use super::rule_sets::schedule;
use super::{Rng, Trace};

impl Trace {
    /// Returns the trace with these additions to its rules. The steps stay the same.
    #[must_use]
    pub fn extended(mut self, rng: &mut Rng) -> Self {
        let ids: Vec<String> = self.versions[0].rules.iter().map(|rule| rule.id.clone()).collect();
        // A rule is enforced or a shadow rule in all versions, like `on_exceed` of the generator.
        let enforced: Vec<Option<u8>> = ids.iter().map(|_| rng.of(&[None, None, None, Some(0), Some(100)])).collect();
        let start = self.start / 1_000_000_000;
        for rule in self.versions.iter_mut().flat_map(|version| &mut version.rules) {
            if rng.one_in(3) {
                rule.replaces = ids.iter().filter(|id| **id != rule.id && rng.one_in(2)).cloned().collect();
            }
            if rng.one_in(4) {
                rule.schedule = Some(schedule(rng));
            }
            rule.overrides =
                std::mem::take(&mut rule.overrides).into_iter().flat_map(|other| expire(rng, other, start)).collect();
            if !matches!(rule.does, Does::Limits(_)) || rule.is_shadow() {
                continue;
            }
            let position = ids.iter().position(|id| *id == rule.id);
            // What becomes of other shadows where an override of a shadow denies is not defined.
            let denies = rule.overrides.iter().any(|other| other.does == Does::Deny);
            rule.enforce = position.and_then(|position| enforced[position]).filter(|share| !denies || *share > 0);
            if rule.enforce == Some(0) {
                // A shadow rule refuses nothing, so it cannot ban.
                rule.ban = None;
            }
            rule.suffices = !rule.is_shadow() && rng.one_in(2) && may_suffice(rule);
        }
        self
    }
}

/// Returns an override that expires during the trace, sometimes followed by another one for the same requests.
fn expire(rng: &mut Rng, other: Override, start: u64) -> Vec<Override> {
    if rng.one_in(2) {
        return vec![other];
    }
    let until = start.saturating_sub(2) + rng.of(&[0, 3, 10, 4_000, 100_000]) + rng.below(4);
    let expiring = Override { until: Some(until), ..other.clone() };
    if rng.one_in(2) { vec![expiring, other] } else { vec![expiring] }
}

/// Returns whether the documents define the effect of a rule marked `suffices` beside others: not
/// for refusals that it counts, and not for new keys that it begins, while another rule admits the
/// request.
fn may_suffice(rule: &Rule) -> bool {
    let counts = |limit: &Limit| {
        matches!(limit.algorithm, Algorithm::SlidingLog { count_refused: true, .. }) || limit.spent_at_first() > 0
    };
    let limits = |does: &Does| match does {
        Does::Limits(limits) => limits.clone(),
        Does::Count(_) | Does::Unlimited | Does::Allow | Does::Deny => Vec::new(),
    };
    let all = std::iter::once(&rule.does).chain(rule.overrides.iter().map(|other| &other.does)).flat_map(limits);
    rule.ban.is_none() && !all.into_iter().any(|limit| counts(&limit))
}
