//! What is valid and yet probably not meant.
//!
//! A warning is worth its line only if it is true, so these are told only where they can be proved from the text: for
//! conditions that name values, by asking the rules what a request with exactly these values would meet.

mod costs;
mod overrides;
mod texts;

use std::collections::{HashMap, HashSet};

use tollgate::core::{Algorithm, Time, Wall};

use super::mistake::{Mistake, Notes};
use super::nth::nth_of;
use super::raw::shorten;
use super::rule::{Condition, Effect, OnExceed, Origin, Pattern, Rule, Test};
use super::words::nearest;
use super::{Domain, Rules};
use crate::key;
use crate::request::Entry;
use crate::ruleset::{Index, Matched, RuleSet, Sought, windows_of};
use costs::costs_without_room;
use overrides::{contradicting_overrides, shadowed_overrides};
use texts::{captures_missed, compared_literally, counted_literally};

/// A number that grew or shrank by more than this is pointed out.
const JUMP: u128 = 10;
/// More rules than this that have to be tried for every request are pointed out.
const MAX_TRIED: usize = 256;
/// So many ids are compared with one that is wrong.
const MAX_COMPARED: usize = 1000;
/// Lists of values are multiplied out up to so many requests.
const MAX_REQUESTS: usize = 256;

/// Everything worth a warning, in the order of the files.
pub(crate) fn warnings(rules: &Rules, running: &RuleSet, now: Time<Wall>) -> Vec<Mistake> {
    let mut notes = Notes::new("");
    for domain in rules.domains() {
        unreachable_rules(domain, &mut notes);
        // What is said of all rules together needs all of them.
        if !rules.are_only_sound() {
            tried_rules(domain, &mut notes);
            lonely_attributes(domain, &mut notes);
            replaced_rules(domain, &mut notes);
            captures_missed(domain, &mut notes);
        }
        for rule in domain.rules() {
            notes.turn_to(&rule.place().file);
            counted_literally(rule, &mut notes);
            compared_literally(rule, &mut notes);
            costs_without_room(rule, &mut notes);
            shadowed_overrides(rule, now, &mut notes);
            contradicting_overrides(rule, &mut notes);
            jumped_limits(domain.name(), rule, running, &mut notes);
        }
    }
    notes.into_all()
}

/// Rules that an `allow` or `deny` rule leaves nothing to.
fn unreachable_rules(domain: &Domain, notes: &mut Notes) {
    let judges = |rule: &&Rule| matches!(rule.effect(), Effect::Allow | Effect::Deny);
    let always = |rule: &Rule| rule.is_unconditional_beyond_when() && is_positive(rule.when());
    let judging: Vec<(usize, &Rule)> = domain
        .rules()
        .iter()
        .enumerate()
        .filter(|(_, rule)| judges(rule) && always(rule) && rule.on_exceed() != OnExceed::Shadow)
        .collect();
    if judging.is_empty() {
        return;
    }
    let sought: Vec<Sought<'_>> = judging.iter().map(|(_, rule)| sought(rule.when())).collect();
    let index = Index::new(&sought, 0);
    for (place, rule) in domain.rules().iter().enumerate() {
        // Another one that judges is only stopped by those before it.
        let stops = |number: u32| {
            let (judge, _) = judging[number as usize];
            judge != place && (judge < place || !judges(&rule))
        };
        if let Some(number) = always_meets(&index, rule.when(), stops) {
            let (_, judge) = judging[number as usize];
            let verb = if *judge.effect() == Effect::Allow { "allows" } else { "denies" };
            notes.turn_to(&rule.place().file);
            let problem =
                format!("`{}` is never asked: `{}` {verb} every request that it is for", rule.id(), judge.id());
            notes.add(rule.place().place, problem);
        }
    }
}

/// Rules that are to be replaced and are not there.
fn replaced_rules(domain: &Domain, notes: &mut Notes) {
    let mut replacing = domain.rules().iter().filter(|rule| !rule.replaces().is_empty()).peekable();
    if replacing.peek().is_none() {
        return;
    }
    let ids: HashSet<&str> = domain.rules().iter().map(Rule::id).collect();
    for rule in replacing {
        for id in rule.replaces().iter().filter(|id| !ids.contains(&***id)) {
            let compared: Vec<&str> = domain.rules().iter().take(MAX_COMPARED).map(Rule::id).collect();
            let help = match nearest(id, &compared) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "write the `id` of another rule".into(),
            };
            notes.turn_to(&rule.place().file);
            let problem =
                format!("`{}` replaces `{}`, and there is no such rule in this domain", rule.id(), shorten(id));
            notes.add_with_help(rule.place().place, problem, help);
        }
    }
}

/// Rules that are looked at for every request, if they are many. Nothing finds a rule that asks for no value and for nothing
/// to be there, and most of them are met by nearly every request, so that an index would gain nothing.
fn tried_rules(domain: &Domain, notes: &mut Notes) {
    let is_found =
        |rule: &Rule| rule.sought().iter().any(|condition| matches!(condition.test, Test::AnyOf(_) | Test::Present));
    let mut tried = domain.rules().iter().filter(|rule| !is_found(rule));
    let Some(first_too_many) = tried.nth(MAX_TRIED) else { return };
    let count = MAX_TRIED + 1 + tried.count();
    notes.turn_to(&first_too_many.place().file);
    let problem = format!("{count} rules of `{}` are tried one by one for every request", domain.name());
    let why = "rules are found by a value in `when`, or one that `if` cannot hold without; these name none, \
               or only what is not to be";
    notes.add_with_help(first_too_many.place().place, problem, why);
}

fn sought(when: &[Condition]) -> Sought<'_> {
    Sought { when, names: Vec::new() }
}

/// Whether conditions ask only for what is there: then a request with more to it meets them, too.
fn is_positive(when: &[Condition]) -> bool {
    when.iter().all(|condition| matches!(condition.test, Test::AnyOf(_) | Test::Present))
}

/// Something that `stops` accepts and every request meets that meets `when`; `None` if that cannot be told.
fn always_meets(index: &Index, when: &[Condition], stops: impl Fn(u32) -> bool) -> Option<u32> {
    let mut requests: Vec<Vec<Entry<'_>>> = vec![Vec::new()];
    for Condition { attribute, test } in when {
        let Test::AnyOf(patterns) = test else { continue };
        let texts: Option<Vec<&str>> = patterns
            .iter()
            .map(|pattern| match pattern {
                Pattern::Equals(text) => Some(&**text),
                Pattern::Glob(_) | Pattern::Prefix(_) | Pattern::Cidr(_) => None,
            })
            .collect();
        // What is no text is left out: whoever is met without it is met with it.
        let Some(texts) = texts.filter(|texts| texts.len() * requests.len() <= MAX_REQUESTS) else { continue };
        requests = requests
            .iter()
            .flat_map(|request| {
                texts.iter().map(|text| {
                    let mut request = request.clone();
                    request.push(Entry::new(&**attribute, *text));
                    request
                })
            })
            .collect();
    }
    let mut matched = Matched::default();
    let mut found = None;
    for request in &requests {
        index.find(request, &mut matched);
        found = Some(matched.rules().iter().copied().find(|number| stops(*number))?);
    }
    found
}

/// Attributes that are named once and look like a slip of one that is named more often.
fn lonely_attributes(domain: &Domain, notes: &mut Notes) {
    let mut named: HashMap<&str, (usize, &Rule)> = HashMap::new();
    for rule in domain.rules() {
        let counted = rule.per().iter().flat_map(|counted| counted.origins.iter()).map(|origin| match origin {
            Origin::Attribute(name) | Origin::Capture { attribute: name, .. } => &**name,
        });
        let tested = rule.when().iter().chain(rule.overrides().iter().flat_map(|other| &other.when));
        let expressed = rule.expression().map_or(&[][..], |expression| expression.attributes()).iter();
        for name in tested.map(|condition| &*condition.attribute).chain(counted).chain(expressed.map(|name| &**name)) {
            let name = nth_of(name).map_or(name, |(name, _)| name);
            named.entry(name).or_insert((0, rule)).0 += 1;
        }
    }
    let often: Vec<&str> = named.iter().filter(|(_, (times, _))| *times > 1).map(|(name, _)| *name).collect();
    for (name, (times, rule)) in &named {
        if *times == 1
            && let Some(meant) = nearest(name, &often).filter(|meant| meant.len() > 3 && name.len() > 3)
        {
            notes.turn_to(&rule.place().file);
            let problem = format!("`{}` is the only rule that names the attribute `{name}`", rule.id());
            notes.add_with_help(rule.place().place, problem, format!("did you mean `{meant}`?"));
        }
    }
}

/// Limits that let more than ten times as much pass as those in force, or less than a tenth.
fn jumped_limits(domain: &str, rule: &Rule, running: &RuleSet, notes: &mut Notes) {
    let old = running.find(&key::rule_name(domain, rule.id()));
    let (Some(old), Some(new)) = (old.and_then(|old| old.limits()), rule.limits()) else { return };
    let speeds = |limits: &tollgate::Limits| -> Vec<Option<(u128, u128)>> {
        let windows = windows_of(limits);
        let both = limits.as_slice().iter().zip(windows);
        both.map(|(limit, window)| Some((limit.capacity().into(), window?.as_nanos().into()))).collect()
    };
    for (old, new) in speeds(old).into_iter().zip(speeds(new)) {
        let (Some((old_count, old_time)), Some((new_count, new_time))) = (old, new) else { continue };
        let (before, after) = (old_count.saturating_mul(new_time), new_count.saturating_mul(old_time));
        let jump = if after > before.saturating_mul(JUMP) {
            "more than ten times as much as the one in force"
        } else if before > after.saturating_mul(JUMP) {
            "less than a tenth of the one in force"
        } else {
            continue;
        };
        notes.add(rule.place().place, format!("a limit of `{}` lets pass {jump}", rule.id()));
    }
}
