//! Checks the conditions of a rule, and the attributes that it counts by.

use super::super::cidr::{Cidr, is_address_attribute};
use super::super::expression::Expression;
use super::super::glob::Glob;
use super::super::mistake::{MistakeCollector, Position};
use super::super::numbered_name::has_invalid_number;
use super::super::raw::{MatchKind, RawAttributeCondition, RawText, RawValues, shorten};
use super::super::rule::{Condition, Effect, OnInvalid, Origin, Pattern, PerElement, Test};
use super::{Checker, MAX_NAME_BYTES, check_boolean};
use crate::request::Item;

/// Maximum length of a value in a condition.
const MAX_VALUE_BYTES: usize = 1024;
/// Maximum number of attributes in each of `when`, `only` and `per`.
const MAX_ATTRIBUTES: usize = 16;
/// Maximum number of alternatives in an element of `per` like `user or client_ip`.
const MAX_ALTERNATIVES: usize = 8;

impl Checker<'_> {
    pub(super) fn check_when(
        &mut self,
        raw: &[(RawText, RawAttributeCondition)],
        notes: &mut MistakeCollector,
    ) -> Vec<Condition> {
        // A condition that combines `not` with another key becomes two consecutive tests of the same attribute. They
        // count as one attribute towards the maximum.
        let another = |(position, (name, _)): &(usize, &(RawText, RawAttributeCondition))| {
            *position == 0 || raw[position - 1].0 != *name
        };
        if let Some((_, (attribute, _))) = raw.iter().enumerate().filter(another).nth(MAX_ATTRIBUTES) {
            notes.add(attribute.position, format!("too many attributes in `when` (maximum {MAX_ATTRIBUTES})"));
            return Vec::new();
        }
        let conditions = raw.iter().filter_map(|(attribute, test)| {
            let named = check_attribute(attribute, notes);
            let mut test = self.check_test(test, attribute.position, notes)?;
            if is_address_attribute(&attribute.text) {
                compare_as_addresses(&mut test);
            }
            named.then(|| Condition { attribute: attribute.text.as_str().into(), test })
        });
        conditions.collect()
    }

    fn check_test(
        &mut self,
        raw: &RawAttributeCondition,
        position: Position,
        notes: &mut MistakeCollector,
    ) -> Option<Test> {
        match raw {
            RawAttributeCondition::Present(boolean) => {
                check_boolean(boolean, notes).map(|is| if is { Test::Present } else { Test::Absent })
            }
            RawAttributeCondition::NotPresent(boolean) => {
                check_boolean(boolean, notes).map(|is| if is { Test::Absent } else { Test::Present })
            }
            RawAttributeCondition::Values(values) => self.check_values(values, position, notes).map(Test::AnyOf),
            RawAttributeCondition::Not(values) => self.check_values(values, position, notes).map(Test::NoneOf),
        }
    }

    fn check_values(
        &mut self,
        raw: &RawValues,
        position: Position,
        notes: &mut MistakeCollector,
    ) -> Option<Vec<Pattern>> {
        if raw.texts.is_empty() {
            notes.add_with_help(position, "the list of values is empty, so this never matches", "name at least one");
            return None;
        }
        let mut patterns: Vec<Pattern> = Vec::with_capacity(raw.texts.len());
        let mut wrong = false;
        for value in &raw.texts {
            if value.text.len() > MAX_VALUE_BYTES {
                let problem = format!("value too long: {} bytes (maximum {MAX_VALUE_BYTES})", value.text.len());
                notes.add(value.position, problem);
                wrong = true;
            } else if raw.kind == MatchKind::File {
                wrong |= self.read_value_file(value, &mut patterns, notes).is_none();
            } else {
                let pattern = check_pattern(raw.kind, value, notes);
                wrong |= pattern.is_none();
                patterns.extend(pattern);
            }
        }
        (!wrong).then_some(patterns)
    }

    /// Adds the lines of a value file to `patterns`. Returns `None` if the file has a mistake.
    fn read_value_file(
        &mut self,
        name: &RawText,
        patterns: &mut Vec<Pattern>,
        notes: &mut MistakeCollector,
    ) -> Option<()> {
        let bytes = match (self.file)(notes.file(), &name.text) {
            Ok(bytes) => bytes,
            Err(why) => {
                notes.add(name.position, format!("cannot read `{}`: {why}", shorten(&name.text)));
                return None;
            }
        };
        let Ok(text) = str::from_utf8(&bytes) else {
            notes.add(name.position, format!("`{}` is not UTF-8", shorten(&name.text)));
            return None;
        };
        let before = patterns.len();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if line.len() > MAX_VALUE_BYTES {
                let problem = format!(
                    "line {} of `{}` is too long (maximum {MAX_VALUE_BYTES} bytes)",
                    number + 1,
                    shorten(&name.text)
                );
                notes.add(name.position, problem);
                return None;
            }
            // A line that parses as an address or a network matches every notation of an address.
            let network = Cidr::new(line).ok().map(Pattern::Cidr);
            patterns.push(network.unwrap_or_else(|| Pattern::Equals(line.into())));
        }
        if patterns.len() == before {
            let problem = format!("`{}` contains no values, so this never matches", shorten(&name.text));
            notes.add_with_help(name.position, problem, "write one per line");
            return None;
        }
        Some(())
    }
}

/// Changes a test so that it compares addresses by value instead of by notation.
fn compare_as_addresses(test: &mut Test) {
    let (Test::AnyOf(patterns) | Test::NoneOf(patterns)) = test else { return };
    for pattern in patterns {
        // A network in a string comparison matches no client. `tollgate check` warns about such a
        // network.
        if let Pattern::Equals(text) = pattern
            && !text.contains('/')
            && let Ok(address) = Cidr::new(text)
        {
            *pattern = Pattern::Cidr(address);
        }
    }
}

/// For `invalid: deny`, makes network conditions also match values that are not addresses. Reports `invalid` in a rule
/// where it has no effect.
pub(super) fn match_invalid(
    when: &mut [Condition],
    on_invalid: OnInvalid,
    effect: &Effect,
    raw: Option<&RawText>,
    notes: &mut MistakeCollector,
) {
    let Some(raw) = raw else { return };
    let is_network = |pattern: &Pattern| matches!(pattern, Pattern::Cidr(_));
    let mut found = false;
    for condition in when {
        if let Test::AnyOf(patterns) = &mut condition.test
            && patterns.iter().any(is_network)
        {
            found = true;
            if on_invalid == OnInvalid::Deny {
                patterns.push(Pattern::NotAnAddress);
            }
        }
    }
    if !found || *effect != Effect::Deny {
        let help = "write it in a rule with `deny: true` and a condition with `cidr`";
        notes.add_with_help(raw.position, "`invalid` has no effect in this rule", help);
    }
}

fn check_pattern(kind: MatchKind, value: &RawText, notes: &mut MistakeCollector) -> Option<Pattern> {
    let text = &*value.text;
    match kind {
        MatchKind::AnyOf if Glob::is_pattern(text) => match Glob::new(text) {
            Ok(glob) => return Some(Pattern::Glob(glob)),
            Err(problem) => {
                let help = "for literal stars and braces write `{ equals: \"*\" }`";
                notes.add_with_help(value.position, format!("`{}`: {problem}", shorten(text)), help);
            }
        },
        MatchKind::AnyOf | MatchKind::Equals | MatchKind::File => return Some(Pattern::Equals(text.into())),
        MatchKind::Prefix if text.is_empty() => {
            notes.add_with_help(value.position, "an empty prefix matches everything", "write `{ present: true }`");
        }
        MatchKind::Prefix => return Some(Pattern::Prefix(text.into())),
        MatchKind::Cidr => match Cidr::new(text) {
            Ok(network) => return Some(Pattern::Cidr(network)),
            Err(problem) => {
                let help = "write a network like 10.0.0.0/8 or 2001:db8::/32";
                notes.add_with_help(value.position, format!("`{}`: {problem}", shorten(text)), help);
            }
        },
    }
    None
}

pub(super) fn check_attribute(name: &RawText, notes: &mut MistakeCollector) -> bool {
    let problem = match &name.text {
        text if text.is_empty() => "empty attribute name".into(),
        text if text.len() > MAX_NAME_BYTES => {
            format!("attribute name too long: {} bytes (maximum {MAX_NAME_BYTES})", text.len())
        }
        text if has_invalid_number(text) => {
            format!("`{}`: values of an attribute are numbered from `#1` to `#{}`", shorten(text), Item::MAX_ATTRIBUTES)
        }
        text if text.chars().any(char::is_control) => "control character in attribute name".into(),
        _ => return true,
    };
    notes.add(name.position, problem);
    false
}

pub(super) fn check_expression(raw: &RawText, notes: &mut MistakeCollector) -> Option<Expression> {
    match Expression::new(&raw.text) {
        Ok(expression) => Some(expression),
        Err(problem) => {
            let help = "write an expression like `int(bytes) > 4096 && plan != 'pro'`";
            notes.add_with_help(raw.position, format!("invalid expression: {problem}"), help);
            None
        }
    }
}

pub(super) fn check_only(raw: &[RawText], notes: &mut MistakeCollector) -> Box<[Box<str>]> {
    if let Some(attribute) = raw.get(MAX_ATTRIBUTES) {
        notes.add(
            attribute.position,
            format!("too many attributes in `only`: {} (maximum {MAX_ATTRIBUTES})", raw.len()),
        );
        return Box::default();
    }
    raw.iter().filter(|name| check_attribute(name, notes)).map(|name| name.text.as_str().into()).collect()
}

pub(super) fn check_per(raw: &[RawText], when: &[Condition], notes: &mut MistakeCollector) -> Vec<PerElement> {
    if let Some(attribute) = raw.get(MAX_ATTRIBUTES) {
        notes
            .add(attribute.position, format!("too many attributes in `per`: {} (maximum {MAX_ATTRIBUTES})", raw.len()));
        return Vec::new();
    }
    let mut per: Vec<PerElement> = Vec::with_capacity(raw.len());
    for written in raw {
        if !check_attribute(written, notes) {
            continue;
        }
        if per.iter().any(|known| *known.text == *written.text) {
            notes.add(written.position, format!("duplicate attribute `{}`", shorten(&written.text)));
            continue;
        }
        let names: Vec<&str> = written.text.split(" or ").map(str::trim).collect();
        if names.iter().any(|name| name.is_empty()) || names.len() > MAX_ALTERNATIVES {
            let problem = format!("`{}` is not a choice between attributes", shorten(&written.text));
            notes.add_with_help(
                written.position,
                problem,
                format!("write it like `user or client_ip` (maximum {MAX_ALTERNATIVES} alternatives)"),
            );
            continue;
        }
        let origins = names.iter().filter_map(|name| resolve_origin(name, written.position, when, notes));
        per.push(PerElement { text: written.text.as_str().into(), origins: origins.collect() });
    }
    per
}

/// Resolves a name in `per`: a capture of a pattern in `when`, or else an attribute.
fn resolve_origin(name: &str, position: Position, when: &[Condition], notes: &mut MistakeCollector) -> Option<Origin> {
    for Condition { attribute, test } in when {
        let Test::AnyOf(patterns) = test else { continue };
        let having = patterns.iter().filter(|pattern| pattern.capture_position(name).is_some()).count();
        if having == 0 {
            continue;
        }
        if having < patterns.len() {
            let problem = format!("only some patterns of `{attribute}` have a `{{{name}}}`");
            notes.add_with_help(position, problem, "add it to all of them, or write two rules");
            return None;
        }
        return Some(Origin::Capture { attribute: attribute.clone(), name: name.into() });
    }
    Some(Origin::Attribute(name.into()))
}
