//! Warns about overrides that never apply.

use tollgate::core::{Time, Wall};

use super::super::mistake::MistakeCollector;
use super::super::numbered_name::split_numbered_name;
use super::super::raw::shorten;
use super::super::rule::{Condition, Override, Pattern, Rule, Test};
use super::{find_covering_entry, index_entry, requires_only_presence};
use crate::request::Attribute;
use crate::ruleset::{CandidateRules, Index};

/// Warns about expired overrides, and about overrides that never apply because an earlier override matches first.
pub(super) fn warn_about_overrides_that_never_apply(rule: &Rule, now: Time<Wall>, notes: &mut MistakeCollector) {
    let overrides = rule.overrides();
    if overrides.is_empty() {
        return;
    }
    let index = Index::new(&overrides.iter().map(|other| index_entry(&other.when)).collect::<Vec<_>>(), 0);
    let lasts = |earlier: &Override, later: &Override| match (earlier.until, later.until) {
        (None, _) => true,
        (Some(earlier), Some(later)) => earlier >= later,
        (Some(_), None) => false,
    };
    for (position, other) in overrides.iter().enumerate() {
        if other.until.is_some_and(|until| until <= now) {
            notes.add(other.position, "this override has expired");
            continue;
        }
        let stops = |number: u32| {
            let earlier = &overrides[number as usize];
            (number as usize) < position && requires_only_presence(&earlier.when) && lasts(earlier, other)
        };
        if let Some(number) = find_covering_entry(&index, &other.when, stops) {
            let at = overrides[number as usize].position;
            let problem = "this override never applies: an earlier one matches whenever it does";
            notes.add_with_help(other.position, problem, format!("the earlier one is at {}:{}", at.line, at.column));
        }
    }
}

/// Warns about overrides for requests that their rule does not match. Tests each value with a request that has only
/// that value.
pub(super) fn warn_about_contradicting_overrides(rule: &Rule, notes: &mut MistakeCollector) {
    let own = rule.index_conditions();
    if rule.overrides().is_empty() || own.is_empty() {
        return;
    }
    let index =
        Index::new(&own.iter().map(|condition| index_entry(std::slice::from_ref(condition))).collect::<Vec<_>>(), 0);
    let mut matched = CandidateRules::default();
    for other in rule.overrides() {
        // A numbered attribute is skipped, because the request would also need the values before it.
        let pairs = other.when.iter().filter(|condition| split_numbered_name(&condition.attribute).is_none());
        let mut pairs = pairs.flat_map(|condition| {
            let same = own.iter().enumerate().filter(|(_, own)| own.attribute == condition.attribute);
            same.map(move |(number, own)| (condition, number, own))
        });
        let excluded = pairs.find_map(|(condition, number, own)| {
            let Condition { attribute, test } = condition;
            match (test, &own.test) {
                (Test::AnyOf(patterns), _) => {
                    let texts: Option<Vec<&str>> = patterns.iter().map(literal_text).collect();
                    let texts = texts?;
                    let holds = texts.iter().any(|text| {
                        index.find(&[Attribute::new(&**attribute, *text)], &mut matched);
                        matched.rules().contains(&(number as u32))
                    });
                    (!holds).then(|| (condition, own, texts.first().copied()))
                }
                (Test::Absent, Test::AnyOf(_) | Test::Present) | (Test::Present, Test::Absent) => {
                    Some((condition, own, None))
                }
                (Test::Absent, Test::NoneOf(_) | Test::Absent)
                | (Test::Present, Test::AnyOf(_) | Test::NoneOf(_) | Test::Present)
                | (Test::NoneOf(_), _) => None,
            }
        });
        let Some((Condition { attribute, .. }, own, text)) = excluded else { continue };
        let whom = match text {
            Some(text) => format!("`{}`", shorten(text)),
            None if matches!(own.test, Test::Absent) => "requests that have it".into(),
            None => "requests without it".into(),
        };
        // If a request has several values of the attribute, one value may match the rule and another value the
        // override.
        let problem = match (text, &own.test) {
            (Some(_), Test::AnyOf(_)) => {
                format!(
                    "this override never applies to a request with one `{attribute}`: its rule does not match {whom}"
                )
            }
            _ => format!("this override never applies: because of `{attribute}`, its rule does not match {whom}"),
        };
        let help = "extend `when` of the rule, or write a separate rule";
        notes.add_with_help(other.position, problem, help);
    }
}

fn literal_text(pattern: &Pattern) -> Option<&str> {
    match pattern {
        Pattern::Equals(text) => Some(text),
        Pattern::Glob(_) | Pattern::Prefix(_) | Pattern::Cidr(_) | Pattern::NotAnAddress => None,
    }
}
