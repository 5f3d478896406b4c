//! Checks raw rules and converts them to [`Rule`]s. Later stages do not validate the rules again.

mod behaviour;
mod condition;
mod consistency;
mod limits;
mod match_limit;

use std::collections::HashMap;
use std::sync::Arc;

use super::limit::{BOOLEAN_HELP, not_a_boolean_message, parse_boolean};
use super::mistake::{MistakeCollector, Position};
use super::raw::{RawDomain, RawRule, RawText, shorten};
use super::rule::{OnChange, OnFault, OnInvalid, Rule, RulePosition};
use super::suggest::suggest_valid;
use super::{Domain, MAX_RULES, ReadFile};
use behaviour::{check_ban, check_conflicting_keys, check_enforce, check_exceed, check_refusal, check_schedule};
use condition::{check_expression, check_only, check_per, match_invalid};
use consistency::check_consistency;
use limits::{check_effect, check_overrides, written_limits};
use match_limit::check_match_limit;

/// Maximum length of the name of a domain, a rule or an attribute.
const MAX_NAME_BYTES: usize = 128;

/// Checks rule files one after another. A rule id must be unique in its domain, across all files.
pub(crate) struct Checker<'f> {
    domains: Vec<Domain>,
    /// File and position of each rule id. The key is the index of the domain and the id.
    id_positions: HashMap<(usize, Box<str>), (Arc<str>, Position)>,
    rule_count: usize,
    file: ReadFile<'f>,
    skips_invalid: bool,
}

/// Maximum number of rules that a rule replaces.
const MAX_REPLACED_RULES: usize = 256;

impl<'f> Checker<'f> {
    pub(crate) fn new(file: ReadFile<'f>) -> Self {
        Self { domains: Vec::new(), id_positions: HashMap::new(), rule_count: 0, file, skips_invalid: false }
    }

    /// Creates a checker that leaves out rules with mistakes.
    pub(crate) fn skipping_invalid(file: ReadFile<'f>) -> Self {
        Self { skips_invalid: true, ..Self::new(file) }
    }

    pub(crate) fn skips_invalid(&self) -> bool {
        self.skips_invalid
    }

    /// Runs the checks that need the rules of all files, and returns the domains.
    pub(crate) fn finish(self, notes: &mut MistakeCollector) -> Vec<Domain> {
        self.domains.iter().for_each(|domain| check_match_limit(domain, notes));
        self.domains
    }

    pub(crate) fn check_domain(&mut self, raw: &RawDomain, notes: &mut MistakeCollector) {
        // Rules are checked even if their domain has no valid name.
        let name =
            raw.name.as_ref().filter(|name| check_name(name, "domain name", notes)).map_or("", |name| &name.text);
        let position = self.domains.iter().position(|domain| *domain.name == *name).unwrap_or_else(|| {
            self.domains.push(Domain { name: name.into(), rules: Vec::new() });
            self.domains.len() - 1
        });
        for raw in &raw.rules {
            self.rule_count += 1;
            if self.rule_count > MAX_RULES {
                notes.add(raw.position, format!("too many rules (maximum {MAX_RULES})"));
                return;
            }
            let (before, rules) = (notes.count(), self.domains[position].rules.len());
            self.check_rule(position, raw, notes);
            if self.skips_invalid && (raw.has_mistakes || notes.count() > before) {
                self.domains[position].rules.truncate(rules);
            }
        }
    }

    fn check_rule(&mut self, domain: usize, raw: &RawRule, notes: &mut MistakeCollector) {
        let id = self.check_id(domain, raw, notes);
        let mut when = self.check_when(&raw.when, notes);
        let expression = raw.expression.as_ref().and_then(|raw| check_expression(raw, notes));
        let only = check_only(&raw.only, notes);
        let per = check_per(&raw.per, &when, notes);
        let on_exceed = check_exceed(raw.on_exceed.as_ref(), notes);
        let effect = check_effect(&raw.effect, "the rule", on_exceed, notes);
        let overrides = check_overrides(self, &raw.overrides, on_exceed, notes);
        let replaces = check_replaces(id, &raw.replaces, notes);
        let suffices = raw.suffices.as_ref().and_then(|raw| check_boolean(raw, notes)).unwrap_or(false);
        let postpaid = raw.postpaid.as_ref().and_then(|raw| check_boolean(raw, notes)).unwrap_or(false);
        let cost = self.check_cost(raw.cost.as_ref(), notes);
        let on_fault = parse_choice(raw.on_fault.as_ref(), OnFault::CHOICES, "on_fault", notes);
        let on_change = parse_choice(raw.on_change.as_ref(), OnChange::CHOICES, "on_change", notes);
        let enforce = check_enforce(raw.enforce.as_ref(), notes);
        let ban = check_ban(raw.ban.as_ref(), notes);
        let schedule = check_schedule(&raw.schedule, notes);
        let refusal = check_refusal(raw, on_exceed, notes);
        let Some(effect) = effect else { return };
        let consistency = check_consistency(raw, &effect, &overrides, notes);
        check_conflicting_keys(raw, &effect, on_exceed, notes);
        let on_invalid = parse_choice(raw.invalid.as_ref(), OnInvalid::CHOICES, "invalid", notes);
        match_invalid(&mut when, on_invalid, &effect, raw.invalid.as_ref(), notes);
        let Some(id) = id else { return };
        self.domains[domain].rules.push(Rule {
            id: id.into(),
            position: RulePosition { file: notes.file().clone(), position: raw.position },
            when,
            expression,
            only,
            per,
            effect,
            written_limits: written_limits(&raw.effect),
            overrides,
            replaces,
            suffices,
            postpaid,
            cost,
            on_exceed,
            on_fault,
            consistency,
            on_change,
            enforce,
            ban,
            schedule,
            refusal,
            metadata: raw.metadata.clone().map(Arc::new),
        });
    }

    fn check_id<'r>(&mut self, domain: usize, raw: &'r RawRule, notes: &mut MistakeCollector) -> Option<&'r str> {
        let Some(id) = &raw.id else {
            if raw.has_id_typo {
                return None;
            }
            notes.add_with_help(raw.position, "missing `id`", "it identifies the rule when its limits change");
            return None;
        };
        if !check_name(id, "rule id", notes) {
            return None;
        }
        let here = (notes.file().clone(), id.position);
        match self.id_positions.entry((domain, id.text.as_str().into())) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(here);
            }
            std::collections::hash_map::Entry::Occupied(entry) => {
                let (file, Position { line, column }) = entry.get();
                let help = format!("the first is at {file}:{line}:{column}");
                notes.add_with_help(id.position, format!("duplicate rule `{}` in this domain", id.text), help);
            }
        }
        Some(&id.text)
    }
}

fn check_name(name: &RawText, what: &str, notes: &mut MistakeCollector) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    let problem = match &name.text {
        text if text.is_empty() => format!("empty {what}"),
        text if text.len() > MAX_NAME_BYTES => {
            format!("{what} too long: {} bytes (maximum {MAX_NAME_BYTES})", text.len())
        }
        text if !text.bytes().all(fits) => format!("`{}` is not a valid {what}", shorten(text)),
        _ => return true,
    };
    notes.add_with_help(name.position, problem, "use letters, digits and `-_.:/`");
    false
}

fn check_boolean(raw: &RawText, notes: &mut MistakeCollector) -> Option<bool> {
    let boolean = parse_boolean(&raw.text);
    if boolean.is_none() {
        notes.add_with_help(raw.position, not_a_boolean_message(&raw.text), BOOLEAN_HELP);
    }
    boolean
}

/// Returns the choice with the given name, or the first choice if no name is given or the name is wrong.
fn parse_choice<T: Copy>(raw: Option<&RawText>, choices: &[(&str, T)], key: &str, notes: &mut MistakeCollector) -> T {
    let (_, default) = choices[0];
    let Some(raw) = raw else { return default };
    if let Some((_, choice)) = choices.iter().find(|(word, _)| *word == raw.text) {
        return *choice;
    }
    let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
    let problem = format!("`{}` is not a choice of `{key}`", shorten(&raw.text));
    notes.add_with_help(raw.position, problem, suggest_valid(&raw.text, &words));
    default
}

/// Checks the ids in `replaces`. The replaced rules need not exist, because rules are created and deleted
/// independently.
fn check_replaces(by: Option<&str>, raw: &[RawText], notes: &mut MistakeCollector) -> Box<[Box<str>]> {
    if let Some(id) = raw.get(MAX_REPLACED_RULES) {
        notes.add(id.position, format!("too many replaced rules: {} (maximum {MAX_REPLACED_RULES})", raw.len()));
        return Box::default();
    }
    for id in raw.iter().filter(|id| by == Some(&*id.text)) {
        notes.add(id.position, "a rule cannot replace itself");
    }
    raw.iter().map(|id| id.text.as_str().into()).collect()
}
