//! Checks for too many rules that match the same requests.

use std::collections::HashMap;

use super::super::Domain;
use super::super::mistake::MistakeCollector;
use super::super::rule::{Condition, Rule};
use crate::request::Item;

/// Reports each group of rules with the same `when` that has more than [`Item::MAX_RULES`] rules, because every
/// matching request would be rejected. Rules with an empty `when` are counted in every group. Rules with `if`,
/// `only` or `schedule` are counted in no group, because they may not match.
pub(super) fn check_match_limit(domain: &Domain, notes: &mut MistakeCollector) {
    if domain.rules.len() <= Item::MAX_RULES {
        return;
    }
    let mut groups: HashMap<Vec<&Condition>, Vec<&Rule>> = HashMap::new();
    for rule in domain.rules.iter().filter(|rule| rule.matches_by_when_alone()) {
        let mut when: Vec<&Condition> = rule.when().iter().collect();
        when.sort_by(|one, other| one.attribute.cmp(&other.attribute));
        groups.entry(when).or_default().push(rule);
    }
    let always = groups.remove(&Vec::new()).unwrap_or_default();
    if always.len() > Item::MAX_RULES {
        return report_group(&always, always.len(), notes);
    }
    // Mistakes are sorted by position at the end, so the order of the groups does not matter.
    for group in groups.values().filter(|group| group.len() + always.len() > Item::MAX_RULES) {
        report_group(group, group.len() + always.len(), notes);
    }
}

/// Reports a group that is too large, at the position of its last rule.
fn report_group(group: &[&Rule], count: usize, notes: &mut MistakeCollector) {
    let Some(last) = group.last() else { return };
    notes.set_file(&last.position().file);
    let problem = format!("too many rules that match the same requests: {count} (maximum {})", Item::MAX_RULES);
    let help = "a request that matches more rules is invalid; use `overrides`, or several values in `per`, instead of separate rules";
    notes.add_with_help(last.position().position, problem, help);
}
