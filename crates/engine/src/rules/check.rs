//! From what was written to rules that hold water: after this, nobody validates again.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate::{Cost, Limits};

use super::glob::Glob;
use super::limit::{self, TRUTHS, Words, not_a_count, not_a_truth, parse_count, parse_truth};
use super::mistake::{Notes, Place};
use super::raw::{Placed, RawDomain, RawLimit, RawRule, RawTest, shorten};
use super::words::valid_instead;
use super::{Condition, Domain, MAX_RULES, OnExceed, OnFault, Pattern, Rule, Test, Where};

/// The longest name of a domain, a rule or an attribute.
const MAX_NAME_BYTES: usize = 128;
/// The longest text that an attribute is compared with.
const MAX_VALUE_BYTES: usize = 1024;
/// How many attributes a rule may test or count by.
const MAX_ATTRIBUTES: usize = 16;

/// Checks files one after the other; names are unique over all of them.
pub(crate) struct Checker {
    domains: Vec<Domain>,
    /// Where each rule of each domain was first written.
    seen: HashMap<(usize, Box<str>), (Arc<str>, Place)>,
    rules: usize,
}

impl Checker {
    pub(crate) fn new() -> Self {
        Self { domains: Vec::new(), seen: HashMap::new(), rules: 0 }
    }

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
            self.rule(place, raw, notes);
        }
    }

    fn rule(&mut self, domain: usize, raw: &RawRule, notes: &mut Notes) {
        let id = self.id(domain, raw, notes);
        let when = check_when(&raw.when, notes);
        let per = check_per(&raw.per, notes);
        let limits = check_limits(raw, notes);
        let cost = check_cost(raw.cost.as_ref(), notes);
        let on_exceed = choose(raw.on_exceed.as_ref(), OnExceed::WORDS, "on_exceed", notes);
        let on_fault = choose(raw.on_fault.as_ref(), OnFault::WORDS, "on_fault", notes);
        let (Some(id), Some(limits)) = (id, limits) else { return };
        self.domains[domain].rules.push(Rule {
            id: id.into(),
            place: Where { file: notes.file().clone(), place: raw.place },
            when,
            per,
            limits,
            cost,
            on_exceed,
            on_fault,
        });
    }

    fn id<'r>(&mut self, domain: usize, raw: &'r RawRule, notes: &mut Notes) -> Option<&'r str> {
        let Some(id) = &raw.id else {
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

fn check_attribute(name: &Placed, notes: &mut Notes) -> bool {
    let problem = match &name.text {
        text if text.is_empty() => "the name of an attribute is empty".into(),
        text if text.len() > MAX_NAME_BYTES => {
            format!("the name of an attribute has at most {MAX_NAME_BYTES} bytes, this has {}", text.len())
        }
        text if text.chars().any(char::is_control) => "the name of an attribute has a control character".into(),
        _ => return true,
    };
    notes.add(name.place, problem);
    false
}

fn check_when(raw: &[(Placed, RawTest)], notes: &mut Notes) -> Vec<Condition> {
    if let Some((attribute, _)) = raw.get(MAX_ATTRIBUTES) {
        notes.add(attribute.place, format!("a rule tests at most {MAX_ATTRIBUTES} attributes"));
        return Vec::new();
    }
    let conditions = raw.iter().filter_map(|(attribute, test)| {
        let named = check_attribute(attribute, notes);
        let test = check_test(test, attribute.place, notes)?;
        named.then(|| Condition { attribute: attribute.text.as_str().into(), test })
    });
    conditions.collect()
}

fn check_test(raw: &RawTest, place: Place, notes: &mut Notes) -> Option<Test> {
    let values = match raw {
        RawTest::Present(truth) => {
            return match check_truth(truth, notes)? {
                true => Some(Test::Present),
                false => Some(Test::Absent),
            };
        }
        RawTest::AnyOf(values) | RawTest::Equals(values) => values,
    };
    if values.is_empty() {
        notes.add_with_help(place, "the list of values is empty, so this would never apply", "name at least one");
    }
    let mut patterns: Vec<Pattern> = Vec::with_capacity(values.len());
    for value in values {
        if value.text.len() > MAX_VALUE_BYTES {
            notes.add(
                value.place,
                format!("a value has at most {MAX_VALUE_BYTES} bytes, this has {}", value.text.len()),
            );
            continue;
        }
        if matches!(raw, RawTest::Equals(_)) || !Glob::is_meant(&value.text) {
            patterns.push(Pattern::Equals(value.text.as_str().into()));
            continue;
        }
        match Glob::new(&value.text) {
            Ok(glob) => patterns.push(Pattern::Glob(glob)),
            Err(problem) => {
                let help = "a star that is meant literally is written `{ equals: \"*\" }`";
                notes.add_with_help(value.place, format!("`{}`: {problem}", shorten(&value.text)), help);
            }
        }
    }
    (patterns.len() == values.len() && !values.is_empty()).then_some(Test::AnyOf(patterns))
}

fn check_per(raw: &[Placed], notes: &mut Notes) -> Vec<Box<str>> {
    if let Some(attribute) = raw.get(MAX_ATTRIBUTES) {
        notes.add(attribute.place, format!("a rule counts by at most {MAX_ATTRIBUTES} attributes"));
        return Vec::new();
    }
    let mut per: Vec<Box<str>> = Vec::with_capacity(raw.len());
    for attribute in raw {
        if !check_attribute(attribute, notes) {
            continue;
        }
        if per.iter().any(|known| **known == *attribute.text) {
            notes.add(attribute.place, format!("`{}` is named twice", shorten(&attribute.text)));
            continue;
        }
        per.push(attribute.text.as_str().into());
    }
    per
}

/// The limits of a rule; `Some(None)` if it is meant to have none.
fn check_limits(raw: &RawRule, notes: &mut Notes) -> Option<Option<Limits>> {
    let unlimited = raw.unlimited.as_ref().and_then(|truth| Some((truth.place, check_truth(truth, notes)?)));
    let limits: Vec<_> = raw.limits.iter().filter_map(|limit| check_limit(limit, notes)).collect();
    match unlimited {
        Some((place, true)) if !raw.limits.is_empty() => {
            notes.add(place, "a rule has limits or is unlimited, not both");
            None
        }
        Some((_, true)) => Some(None),
        Some((_, false)) | None if raw.limits.is_empty() => {
            let help = "add one like `limit: 100/s`, or `unlimited: true`";
            notes.add_with_help(raw.place, "the rule has no `limit`", help);
            None
        }
        // What is wrong with one of them has been noted.
        Some((_, false)) | None if limits.len() < raw.limits.len() => None,
        Some((_, false)) | None => match Limits::new(limits) {
            Ok(limits) => Some(Some(limits)),
            Err(error) => {
                notes.add(raw.place, error.to_string());
                None
            }
        },
    }
}

fn check_limit(raw: &RawLimit, notes: &mut Notes) -> Option<tollgate::Limit> {
    let option = |name: &str| raw.options.iter().find(|(option, _)| *option == name).map(|(_, value)| &*value.text);
    let words = Words {
        limit: raw.limit.as_ref().map(|limit| &*limit.text),
        algorithm: raw.algorithm.as_ref().map(|algorithm| &*algorithm.text),
        option: &option,
    };
    let mistakes = match limit::read(&words) {
        Ok(limit) => return Some(limit),
        Err(mistakes) => mistakes,
    };
    for mistake in mistakes {
        let place = match mistake.word {
            "limit" => raw.limit.as_ref().map(|limit| limit.place),
            "algorithm" => raw.algorithm.as_ref().map(|algorithm| algorithm.place),
            option => raw.options.iter().find(|(name, _)| *name == option).map(|(_, value)| value.place),
        };
        let place = place.unwrap_or(raw.place);
        match mistake.help {
            Some(help) => notes.add_with_help(place, mistake.problem, help),
            None => notes.add(place, mistake.problem),
        }
    }
    None
}

fn check_cost(raw: Option<&Placed>, notes: &mut Notes) -> Cost {
    let Some(raw) = raw else { return Cost::ONE };
    match parse_count(&raw.text) {
        Some(cost) => Cost::new(cost),
        None => {
            notes.add_with_help(raw.place, not_a_count(&raw.text), "`cost` is what a request weighs, like 1 or 5");
            Cost::ONE
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
    notes.add_with_help(
        raw.place,
        format!("`{}` is not a choice of `{key}`", shorten(&raw.text)),
        valid_instead(&raw.text, &words),
    );
    default
}
