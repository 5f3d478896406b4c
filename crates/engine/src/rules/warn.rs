//! Warns about rules that are valid but probably not intended.
//!
//! A warning that a rule or an override never applies is reported only if the text of the rules proves it. For
//! conditions with fixed values, the proof is a match against a request that has exactly these values.

mod costs;
mod leases;
mod overrides;
mod texts;

use std::collections::{HashMap, HashSet};

use tollgate::Limit;
use tollgate::core::{Algorithm, Time, Wall};

use super::limit::DEFAULT_LEASE;
use super::mistake::{Mistake, MistakeCollector};
use super::numbered_name::split_numbered_name;
use super::raw::shorten;
use super::rule::{Condition, Effect, OnExceed, Origin, Pattern, Rule, Test};
use super::suggest::nearest_word;
use super::{Domain, Rules};
use crate::key;
use crate::request::Attribute;
use crate::ruleset::{CandidateRules, Index, IndexEntry, RuleSet, refill_times_of};
use costs::warn_about_costs_above_capacity;
use leases::warn_about_leases_with_little_benefit;
use overrides::{warn_about_contradicting_overrides, warn_about_overrides_that_never_apply};
use texts::{
    warn_about_literal_comparisons, warn_about_misspelled_captures, warn_about_names_that_look_like_several_attributes,
};

/// The factor by which a limit must grow or shrink to cause a warning.
const WARNING_FACTOR: u128 = 10;
/// Maximum number of rules without an indexed condition. More rules cause a warning.
const WARN_ABOVE_UNINDEXED_RULES: usize = 256;
/// Maximum number of ids that an unknown id is compared with.
const MAX_COMPARED_IDS: usize = 1000;
/// Maximum number of value combinations that are tried.
const MAX_VALUE_COMBINATIONS: usize = 256;

/// Returns the warnings in the order of the files, at most [`Mistakes::MAX`](super::Mistakes::MAX).
pub(crate) fn all_warnings(rules: &Rules, running: &RuleSet, now: Time<Wall>) -> Vec<Mistake> {
    let mut notes = MistakeCollector::new("");
    for domain in rules.domains() {
        warn_about_unreachable_rules(domain, &mut notes);
        // If rules with mistakes were left out, these warnings could be wrong: an attribute or an id may occur only in
        // such a rule.
        if !rules.is_partial() {
            warn_about_unindexed_rules(domain, &mut notes);
            warn_about_misspelled_attributes(domain, &mut notes);
            warn_about_unknown_replaced_rules(domain, &mut notes);
            warn_about_misspelled_captures(domain, &mut notes);
        }
        for rule in domain.rules() {
            notes.set_file(&rule.position().file);
            warn_about_names_that_look_like_several_attributes(rule, &mut notes);
            warn_about_literal_comparisons(rule, &mut notes);
            warn_about_costs_above_capacity(rule, &mut notes);
            warn_about_slots_without_lease(rule, &mut notes);
            warn_about_leases_with_little_benefit(rule, &mut notes);
            warn_about_overrides_that_never_apply(rule, now, &mut notes);
            warn_about_contradicting_overrides(rule, &mut notes);
            warn_about_tenfold_changes_of_limits(domain.name(), rule, running, &mut notes);
        }
    }
    notes.into_all()
}

/// Warns about rules that never apply, because an `allow` or `deny` rule decides all of their requests.
fn warn_about_unreachable_rules(domain: &Domain, notes: &mut MistakeCollector) {
    let is_allow_or_deny = |rule: &&Rule| matches!(rule.effect(), Effect::Allow | Effect::Deny);
    let always = |rule: &Rule| rule.matches_by_when_alone() && requires_only_presence(rule.when());
    let judging: Vec<(usize, &Rule)> = domain
        .rules()
        .iter()
        .enumerate()
        .filter(|(_, rule)| is_allow_or_deny(rule) && always(rule) && rule.on_exceed() != OnExceed::Shadow)
        .collect();
    if judging.is_empty() {
        return;
    }
    let index_conditions: Vec<IndexEntry<'_>> = judging.iter().map(|(_, rule)| index_entry(rule.when())).collect();
    let index = Index::new(&index_conditions, 0);
    for (position, rule) in domain.rules().iter().enumerate() {
        // An `allow` or `deny` rule can be hidden only by an earlier `allow` or `deny` rule.
        let stops = |number: u32| {
            let (judge, _) = judging[number as usize];
            judge != position && (judge < position || !is_allow_or_deny(&rule))
        };
        if let Some(number) = find_covering_entry(&index, rule.when(), stops) {
            let (_, judge) = judging[number as usize];
            let verb = if *judge.effect() == Effect::Allow { "allows" } else { "denies" };
            notes.set_file(&rule.position().file);
            let problem =
                format!("`{}` never applies: `{}` {verb} every request that it matches", rule.id(), judge.id());
            notes.add(rule.position().position, problem);
        }
    }
}

/// Warns about ids in `replaces` that do not exist.
fn warn_about_unknown_replaced_rules(domain: &Domain, notes: &mut MistakeCollector) {
    let mut replacing = domain.rules().iter().filter(|rule| !rule.replaces().is_empty()).peekable();
    if replacing.peek().is_none() {
        return;
    }
    let ids: HashSet<&str> = domain.rules().iter().map(Rule::id).collect();
    for rule in replacing {
        for id in rule.replaces().iter().filter(|id| !ids.contains(&***id)) {
            let compared: Vec<&str> = domain.rules().iter().take(MAX_COMPARED_IDS).map(Rule::id).collect();
            let help = match nearest_word(id, &compared) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "write the `id` of another rule".into(),
            };
            notes.set_file(&rule.position().file);
            let problem = format!("`{}` replaces `{}`, but this domain has no such rule", rule.id(), shorten(id));
            notes.add_with_help(rule.position().position, problem, help);
        }
    }
}

/// Warns if too many rules are evaluated for every request. A rule cannot be indexed if it requires neither a value nor
/// the presence of an attribute.
fn warn_about_unindexed_rules(domain: &Domain, notes: &mut MistakeCollector) {
    let is_found = |rule: &Rule| {
        rule.index_conditions().iter().any(|condition| matches!(condition.test, Test::AnyOf(_) | Test::Present))
    };
    let mut tried = domain.rules().iter().filter(|rule| !is_found(rule));
    let Some(first_too_many) = tried.nth(WARN_ABOVE_UNINDEXED_RULES) else { return };
    let count = WARN_ABOVE_UNINDEXED_RULES + 1 + tried.count();
    notes.set_file(&first_too_many.position().file);
    let problem = format!("{count} rules of `{}` are evaluated one by one for every request", domain.name());
    let why = "a rule is indexed by a value in `when`, or by one that `if` requires; these rules have none";
    notes.add_with_help(first_too_many.position().position, problem, why);
}

fn index_entry(when: &[Condition]) -> IndexEntry<'_> {
    IndexEntry { when, names: Vec::new() }
}

/// Returns whether all conditions require an attribute or a value to be present, so that no additional attribute can
/// make them fail.
fn requires_only_presence(when: &[Condition]) -> bool {
    when.iter().all(|condition| matches!(condition.test, Test::AnyOf(_) | Test::Present))
}

/// Returns an index entry that matches every request that `when` matches. Considers only entries that `stops` accepts.
/// Returns `None` if no entry can be proved to match all of these requests.
fn find_covering_entry(index: &Index, when: &[Condition], stops: impl Fn(u32) -> bool) -> Option<u32> {
    let mut requests: Vec<Vec<Attribute<'_>>> = vec![Vec::new()];
    for Condition { attribute, test } in when {
        let Test::AnyOf(patterns) = test else { continue };
        let texts: Option<Vec<&str>> = patterns
            .iter()
            .map(|pattern| match pattern {
                Pattern::Equals(text) => Some(&**text),
                Pattern::Glob(_) | Pattern::Prefix(_) | Pattern::Cidr(_) | Pattern::NotAnAddress => None,
            })
            .collect();
        // Attributes with patterns are left out: an entry that matches without the attribute also matches with it.
        let Some(texts) = texts.filter(|texts| texts.len() * requests.len() <= MAX_VALUE_COMBINATIONS) else {
            continue;
        };
        requests = requests
            .iter()
            .flat_map(|request| {
                texts.iter().map(|text| {
                    let mut request = request.clone();
                    request.push(Attribute::new(&**attribute, *text));
                    request
                })
            })
            .collect();
    }
    let mut matched = CandidateRules::default();
    let mut found = None;
    for request in &requests {
        index.find(request, &mut matched);
        found = Some(matched.rules().iter().copied().find(|number| stops(*number))?);
    }
    found
}

/// Warns about attributes that are used once and look like a typo of a more common attribute.
fn warn_about_misspelled_attributes(domain: &Domain, notes: &mut MistakeCollector) {
    let mut named: HashMap<&str, (usize, &Rule)> = HashMap::new();
    for rule in domain.rules() {
        let counted = rule.per().iter().flat_map(|counted| counted.origins.iter()).map(|origin| match origin {
            Origin::Attribute(name) | Origin::Capture { attribute: name, .. } => &**name,
        });
        let tested = rule.when().iter().chain(rule.overrides().iter().flat_map(|other| &other.when));
        let tested = tested.chain(rule.cost().cases().iter().flat_map(|case| &case.when));
        let expressed = rule.expression().map_or(&[][..], |expression| expression.attributes()).iter();
        for name in tested.map(|condition| &*condition.attribute).chain(counted).chain(expressed.map(|name| &**name)) {
            let name = split_numbered_name(name).map_or(name, |(name, _)| name);
            named.entry(name).or_insert((0, rule)).0 += 1;
        }
    }
    let often: Vec<&str> = named.iter().filter(|(_, (times, _))| *times > 1).map(|(name, _)| *name).collect();
    for (name, (times, rule)) in &named {
        if *times == 1
            && let Some(meant) = nearest_word(name, &often).filter(|meant| meant.len() > 3 && name.len() > 3)
        {
            notes.set_file(&rule.position().file);
            let problem = format!("only `{}` uses the attribute `{name}`", rule.id());
            notes.add_with_help(rule.position().position, problem, format!("did you mean `{meant}`?"));
        }
    }
}

/// Warns about concurrency limits without a `lease`: a caller that never releases its slot holds it for the default
/// time.
fn warn_about_slots_without_lease(rule: &Rule, notes: &mut MistakeCollector) {
    let Some(limits) = rule.limits() else { return };
    let has_lease = |words: &str| words.split(", ").any(|word| word.starts_with("lease "));
    let mut slots =
        limits.as_slice().iter().zip(&rule.written_limits).filter(|(limit, _)| matches!(limit, Limit::Concurrency(_)));
    if slots.any(|(_, words)| !has_lease(words)) {
        let problem = format!(
            "`{}` counts slots: a caller that never releases its slot, such as a proxy with forward-auth, holds it for {DEFAULT_LEASE}",
            rule.id()
        );
        let help = "release slots by their receipt, and write the time that a request may take, like `lease: 10s`";
        notes.add_with_help(rule.position().position, problem, help);
    }
}

/// Warns about limits that differ from the limits in force by more than a factor of ten.
fn warn_about_tenfold_changes_of_limits(domain: &str, rule: &Rule, running: &RuleSet, notes: &mut MistakeCollector) {
    let old = running.find_rule(&key::encode_rule_name(domain, rule.id()));
    let (Some(old), Some(new)) = (old.and_then(|old| old.limits()), rule.limits()) else { return };
    let speeds = |limits: &tollgate::Limits| -> Vec<Option<(u128, u128)>> {
        let refill_times = refill_times_of(limits);
        let both = limits.as_slice().iter().zip(refill_times);
        both.map(|(limit, time)| Some((limit.capacity().into(), time?.as_nanos().into()))).collect()
    };
    for (old, new) in speeds(old).into_iter().zip(speeds(new)) {
        let (Some((old_count, old_time)), Some((new_count, new_time))) = (old, new) else { continue };
        let (before, after) = (old_count.saturating_mul(new_time), new_count.saturating_mul(old_time));
        let jump = if after > before.saturating_mul(WARNING_FACTOR) {
            "more than ten times"
        } else if before > after.saturating_mul(WARNING_FACTOR) {
            "less than a tenth of"
        } else {
            continue;
        };
        notes.add(rule.position().position, format!("a limit of `{}` admits {jump} the limit in force", rule.id()));
    }
}
