//! Conditions, and the attributes that a rule counts by.

use super::super::cidr::Cidr;
use super::super::expression::Expression;
use super::super::glob::Glob;
use super::super::mistake::{Notes, Place};
use super::super::nth::is_wrong_number;
use super::super::raw::{Kind, Placed, RawTest, RawValues, shorten};
use super::super::rule::{Condition, Counted, Origin, Pattern, Test};
use super::{Checker, MAX_NAME_BYTES, check_boolean};
use crate::request::Item;

/// Maximum length of a value in a condition.
const MAX_VALUE_BYTES: usize = 1024;
/// Maximum number of attributes that a rule tests or counts by.
const MAX_ATTRIBUTES: usize = 16;
/// Maximum number of alternatives of an attribute in `per`.
const MAX_CHAIN: usize = 8;

impl Checker<'_> {
    pub(super) fn when(&mut self, raw: &[(Placed, RawTest)], notes: &mut Notes) -> Vec<Condition> {
        // A condition with `not` beside another key is two tests in a row on one attribute.
        let another = |(place, (name, _)): &(usize, &(Placed, RawTest))| *place == 0 || raw[place - 1].0 != *name;
        if let Some((_, (attribute, _))) = raw.iter().enumerate().filter(another).nth(MAX_ATTRIBUTES) {
            notes.add(attribute.place, format!("too many attributes in `when` (maximum {MAX_ATTRIBUTES})"));
            return Vec::new();
        }
        let conditions = raw.iter().filter_map(|(attribute, test)| {
            let named = check_attribute(attribute, notes);
            let test = self.test(test, attribute.place, notes)?;
            named.then(|| Condition { attribute: attribute.text.as_str().into(), test })
        });
        conditions.collect()
    }

    fn test(&mut self, raw: &RawTest, place: Place, notes: &mut Notes) -> Option<Test> {
        match raw {
            RawTest::Present(boolean) => {
                check_boolean(boolean, notes).map(|is| if is { Test::Present } else { Test::Absent })
            }
            RawTest::NotPresent(boolean) => {
                check_boolean(boolean, notes).map(|is| if is { Test::Absent } else { Test::Present })
            }
            RawTest::Values(values) => self.values(values, place, notes).map(Test::AnyOf),
            RawTest::Not(values) => self.values(values, place, notes).map(Test::NoneOf),
        }
    }

    fn values(&mut self, raw: &RawValues, place: Place, notes: &mut Notes) -> Option<Vec<Pattern>> {
        if raw.texts.is_empty() {
            notes.add_with_help(place, "the list of values is empty, so this never matches", "name at least one");
            return None;
        }
        let mut patterns: Vec<Pattern> = Vec::with_capacity(raw.texts.len());
        let mut wrong = false;
        for value in &raw.texts {
            if value.text.len() > MAX_VALUE_BYTES {
                let problem = format!("value too long: {} bytes (maximum {MAX_VALUE_BYTES})", value.text.len());
                notes.add(value.place, problem);
                wrong = true;
            } else if raw.kind == Kind::File {
                wrong |= self.read_values(value, &mut patterns, notes).is_none();
            } else {
                let pattern = check_pattern(raw.kind, value, notes);
                wrong |= pattern.is_none();
                patterns.extend(pattern);
            }
        }
        (!wrong).then_some(patterns)
    }

    /// Reads the lines of a file of values.
    fn read_values(&mut self, name: &Placed, patterns: &mut Vec<Pattern>, notes: &mut Notes) -> Option<()> {
        let bytes = match (self.file)(notes.file(), &name.text) {
            Ok(bytes) => bytes,
            Err(why) => {
                notes.add(name.place, format!("cannot read `{}`: {why}", shorten(&name.text)));
                return None;
            }
        };
        let Ok(text) = str::from_utf8(&bytes) else {
            notes.add(name.place, format!("`{}` is not UTF-8", shorten(&name.text)));
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
                notes.add(name.place, problem);
                return None;
            }
            // A string that parses as an address matches in all notations.
            let network = Cidr::new(line).ok().map(Pattern::Cidr);
            patterns.push(network.unwrap_or_else(|| Pattern::Equals(line.into())));
        }
        if patterns.len() == before {
            let problem = format!("`{}` contains no values, so this never matches", shorten(&name.text));
            notes.add_with_help(name.place, problem, "write one per line");
            return None;
        }
        Some(())
    }
}

fn check_pattern(kind: Kind, value: &Placed, notes: &mut Notes) -> Option<Pattern> {
    let text = &*value.text;
    match kind {
        Kind::AnyOf if Glob::is_meant(text) => match Glob::new(text) {
            Ok(glob) => return Some(Pattern::Glob(glob)),
            Err(problem) => {
                let help = "for literal stars and braces write `{ equals: \"*\" }`";
                notes.add_with_help(value.place, format!("`{}`: {problem}", shorten(text)), help);
            }
        },
        Kind::AnyOf | Kind::Equals | Kind::File => return Some(Pattern::Equals(text.into())),
        Kind::Prefix if text.is_empty() => {
            notes.add_with_help(value.place, "an empty prefix matches everything", "write `{ present: true }`");
        }
        Kind::Prefix => return Some(Pattern::Prefix(text.into())),
        Kind::Cidr => match Cidr::new(text) {
            Ok(network) => return Some(Pattern::Cidr(network)),
            Err(problem) => {
                let help = "write a network like 10.0.0.0/8 or 2001:db8::/32";
                notes.add_with_help(value.place, format!("`{}`: {problem}", shorten(text)), help);
            }
        },
    }
    None
}

pub(super) fn check_attribute(name: &Placed, notes: &mut Notes) -> bool {
    let problem = match &name.text {
        text if text.is_empty() => "empty attribute name".into(),
        text if text.len() > MAX_NAME_BYTES => {
            format!("attribute name too long: {} bytes (maximum {MAX_NAME_BYTES})", text.len())
        }
        text if is_wrong_number(text) => {
            format!("`{}`: values of an attribute are numbered from `#1` to `#{}`", shorten(text), Item::MAX_ENTRIES)
        }
        text if text.chars().any(char::is_control) => "control character in attribute name".into(),
        _ => return true,
    };
    notes.add(name.place, problem);
    false
}

pub(super) fn check_expression(raw: &Placed, notes: &mut Notes) -> Option<Expression> {
    match Expression::new(&raw.text) {
        Ok(expression) => Some(expression),
        Err(problem) => {
            let help = "write an expression like `int(bytes) > 4096 && plan != 'pro'`";
            notes.add_with_help(raw.place, format!("invalid expression: {problem}"), help);
            None
        }
    }
}

pub(super) fn check_only(raw: &[Placed], notes: &mut Notes) -> Box<[Box<str>]> {
    if let Some(attribute) = raw.get(MAX_ATTRIBUTES) {
        notes.add(attribute.place, format!("too many attributes in `only`: {} (maximum {MAX_ATTRIBUTES})", raw.len()));
        return Box::default();
    }
    raw.iter().filter(|name| check_attribute(name, notes)).map(|name| name.text.as_str().into()).collect()
}

pub(super) fn check_per(raw: &[Placed], when: &[Condition], notes: &mut Notes) -> Vec<Counted> {
    if let Some(attribute) = raw.get(MAX_ATTRIBUTES) {
        notes.add(attribute.place, format!("too many attributes in `per`: {} (maximum {MAX_ATTRIBUTES})", raw.len()));
        return Vec::new();
    }
    let mut per: Vec<Counted> = Vec::with_capacity(raw.len());
    for written in raw {
        if !check_attribute(written, notes) {
            continue;
        }
        if per.iter().any(|known| *known.text == *written.text) {
            notes.add(written.place, format!("duplicate attribute `{}`", shorten(&written.text)));
            continue;
        }
        let names: Vec<&str> = written.text.split(" or ").map(str::trim).collect();
        if names.iter().any(|name| name.is_empty()) || names.len() > MAX_CHAIN {
            let problem = format!("`{}` is not a choice between attributes", shorten(&written.text));
            notes.add_with_help(
                written.place,
                problem,
                format!("write it like `user or client_ip` (maximum {MAX_CHAIN} alternatives)"),
            );
            continue;
        }
        let origins = names.iter().filter_map(|name| check_origin(name, written.place, when, notes));
        per.push(Counted { text: written.text.as_str().into(), origins: origins.collect() });
    }
    per
}

/// Resolves a name in `per`: a capture of a pattern in `when`, or else an attribute.
fn check_origin(name: &str, place: Place, when: &[Condition], notes: &mut Notes) -> Option<Origin> {
    for Condition { attribute, test } in when {
        let Test::AnyOf(patterns) = test else { continue };
        let having = patterns.iter().filter(|pattern| pattern.capture(name).is_some()).count();
        if having == 0 {
            continue;
        }
        if having < patterns.len() {
            let problem = format!("only some patterns of `{attribute}` have a `{{{name}}}`");
            notes.add_with_help(place, problem, "add it to all of them, or write two rules");
            return None;
        }
        return Some(Origin::Capture { attribute: attribute.clone(), name: name.into() });
    }
    Some(Origin::Attribute(name.into()))
}
