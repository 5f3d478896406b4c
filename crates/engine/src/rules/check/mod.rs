//! From what was written to rules that hold water: after this, nobody validates again.

mod behaviour;
mod condition;
mod limits;

use std::collections::HashMap;
use std::sync::Arc;

use super::limit::{TRUTHS, not_a_truth, parse_truth};
use super::mistake::{Notes, Place};
use super::raw::{Placed, RawDomain, RawRule, shorten};
use super::rule::{OnChange, OnFault, Rule, Where};
use super::words::valid_instead;
use super::{Domain, MAX_RULES, ReadFile};
use behaviour::{check_ban, check_cost, check_enforce, check_exceed, check_refusal, check_schedule, check_together};
use condition::{check_expression, check_only, check_per};
use limits::{check_effect, words_of};

/// The longest name of a domain, a rule or an attribute.
const MAX_NAME_BYTES: usize = 128;

/// Checks files one after the other; names are unique over all of them.
pub(crate) struct Checker<'f> {
    domains: Vec<Domain>,
    /// Where each rule of each domain was first written.
    seen: HashMap<(usize, Box<str>), (Arc<str>, Place)>,
    rules: usize,
    file: ReadFile<'f>,
    only_sound: bool,
}

/// The most rules that one may replace.
const MAX_REPLACED: usize = 256;

impl<'f> Checker<'f> {
    pub(crate) fn new(file: ReadFile<'f>) -> Self {
        Self { domains: Vec::new(), seen: HashMap::new(), rules: 0, file, only_sound: false }
    }

    /// One that leaves out every rule that something is wrong with.
    pub(crate) fn of_sound_rules(file: ReadFile<'f>) -> Self {
        Self { only_sound: true, ..Self::new(file) }
    }

    pub(crate) fn only_sound(&self) -> bool {
        self.only_sound
    }

    /// All domains, once the last file has been looked at.
    pub(crate) fn finish(self) -> Vec<Domain> {
        self.domains
    }

    pub(crate) fn domain(&mut self, raw: &RawDomain, notes: &mut Notes) {
        // Without a name its rules are looked at all the same, in a domain that nobody can ask for.
        let name = raw.name.as_ref().filter(|name| check_name(name, "a domain", notes)).map_or("", |name| &name.text);
        let place = self.domains.iter().position(|domain| *domain.name == *name).unwrap_or_else(|| {
            self.domains.push(Domain { name: name.into(), rules: Vec::new() });
            self.domains.len() - 1
        });
        for raw in &raw.rules {
            self.rules += 1;
            if self.rules > MAX_RULES {
                notes.add(raw.place, format!("there are more than {MAX_RULES} rules"));
                return;
            }
            let (before, rules) = (notes.count(), self.domains[place].rules.len());
            self.rule(place, raw, notes);
            if self.only_sound && (raw.noted || notes.count() > before) {
                self.domains[place].rules.truncate(rules);
            }
        }
    }

    fn rule(&mut self, domain: usize, raw: &RawRule, notes: &mut Notes) {
        let id = self.id(domain, raw, notes);
        let when = self.when(&raw.when, notes);
        let expression = raw.expression.as_ref().and_then(|raw| check_expression(raw, notes));
        let only = check_only(&raw.only, notes);
        let per = check_per(&raw.per, &when, notes);
        let on_exceed = check_exceed(raw.on_exceed.as_ref(), notes);
        let effect = check_effect(&raw.effect, "the rule", on_exceed, notes);
        let overrides = self.overrides(&raw.overrides, on_exceed, notes);
        let replaces = check_replaces(id, &raw.replaces, notes);
        let suffices = raw.suffices.as_ref().and_then(|raw| check_truth(raw, notes)).unwrap_or(false);
        let cost = check_cost(raw.cost.as_ref(), notes);
        let on_fault = choose(raw.on_fault.as_ref(), OnFault::WORDS, "on_fault", notes);
        let on_change = choose(raw.on_change.as_ref(), OnChange::WORDS, "on_change", notes);
        let enforce = check_enforce(raw.enforce.as_ref(), notes);
        let ban = check_ban(raw.ban.as_ref(), notes);
        let schedule = check_schedule(&raw.schedule, notes);
        let refusal = check_refusal(raw, on_exceed, notes);
        check_consistency(raw.consistency.as_ref(), notes);
        let Some(effect) = effect else { return };
        check_together(raw, &effect, on_exceed, notes);
        let Some(id) = id else { return };
        self.domains[domain].rules.push(Rule {
            id: id.into(),
            place: Where { file: notes.file().clone(), place: raw.place },
            when,
            expression,
            only,
            per,
            effect,
            words: words_of(&raw.effect),
            overrides,
            replaces,
            suffices,
            cost,
            on_exceed,
            on_fault,
            on_change,
            enforce,
            ban,
            schedule,
            refusal,
        });
    }

    fn id<'r>(&mut self, domain: usize, raw: &'r RawRule, notes: &mut Notes) -> Option<&'r str> {
        let Some(id) = &raw.id else {
            if raw.id_noted {
                return None;
            }
            notes.add_with_help(raw.place, "there is no `id`", "a rule is known by it when its numbers change");
            return None;
        };
        if !check_name(id, "an id", notes) {
            return None;
        }
        let here = (notes.file().clone(), id.place);
        match self.seen.entry((domain, id.text.as_str().into())) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(here);
            }
            std::collections::hash_map::Entry::Occupied(entry) => {
                let (file, Place { line, column }) = entry.get();
                let help = format!("the first one is at {file}:{line}:{column}");
                notes.add_with_help(id.place, format!("there is another rule `{}` in this domain", id.text), help);
            }
        }
        Some(&id.text)
    }
}

fn check_name(name: &Placed, what: &str, notes: &mut Notes) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    let problem = match &name.text {
        text if text.is_empty() => format!("{what} is empty"),
        text if text.len() > MAX_NAME_BYTES => {
            format!("{what} has at most {MAX_NAME_BYTES} bytes, this has {}", text.len())
        }
        text if !text.bytes().all(fits) => format!("`{}` is not {what}", shorten(text)),
        _ => return true,
    };
    notes.add_with_help(name.place, problem, "use letters, digits and `-_.:/`");
    false
}

/// There is one that every store and every algorithm keeps; the others are told apart from slips.
fn check_consistency(raw: Option<&Placed>, notes: &mut Notes) {
    let Some(raw) = raw else { return };
    match &*raw.text {
        "strict" => {}
        word @ ("leased" | "eventual") => {
            let problem = format!("`consistency: {word}` does not exist yet, for any algorithm");
            notes.add_with_help(raw.place, problem, "write `strict`, or leave it out");
        }
        other => {
            let problem = format!("`{}` is not a choice of `consistency`", shorten(other));
            notes.add_with_help(raw.place, problem, valid_instead(other, &["strict"]));
        }
    }
}

fn check_truth(raw: &Placed, notes: &mut Notes) -> Option<bool> {
    let truth = parse_truth(&raw.text);
    if truth.is_none() {
        notes.add_with_help(raw.place, not_a_truth(&raw.text), TRUTHS);
    }
    truth
}

/// The choice with the given name, the first one if none was given.
fn choose<T: Copy>(raw: Option<&Placed>, choices: &[(&str, T)], key: &str, notes: &mut Notes) -> T {
    let (_, default) = choices[0];
    let Some(raw) = raw else { return default };
    if let Some((_, choice)) = choices.iter().find(|(word, _)| *word == raw.text) {
        return *choice;
    }
    let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
    let problem = format!("`{}` is not a choice of `{key}`", shorten(&raw.text));
    notes.add_with_help(raw.place, problem, valid_instead(&raw.text, &words));
    default
}

/// The ids of the rules that one replaces. That there are such is not asked here: rules come and go by themselves, and one
/// that is gone needs no replacing.
fn check_replaces(by: Option<&str>, raw: &[Placed], notes: &mut Notes) -> Box<[Box<str>]> {
    if let Some(id) = raw.get(MAX_REPLACED) {
        notes.add(id.place, format!("a rule replaces at most {MAX_REPLACED} others"));
        return Box::default();
    }
    for id in raw.iter().filter(|id| by == Some(&*id.text)) {
        notes.add(id.place, "a rule cannot replace itself");
    }
    raw.iter().map(|id| id.text.as_str().into()).collect()
}
