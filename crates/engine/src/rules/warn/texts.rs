//! Warns about strings that are compared literally but were probably meant as something else.

use std::collections::HashSet;

use super::super::Domain;
use super::super::cidr::{Cidr, is_address_attribute};
use super::super::glob::{CapturePosition, Glob};
use super::super::mistake::MistakeCollector;
use super::super::raw::shorten;
use super::super::rule::{Condition, Origin, Pattern, Rule, Test};
use super::super::suggest::differs_by_one_typo;

/// Warns about names in `per` that look like several attributes.
pub(super) fn warn_about_names_that_look_like_several_attributes(rule: &Rule, notes: &mut MistakeCollector) {
    let per = rule.per().iter().flat_map(|counted| &counted.origins);
    for origin in per {
        if let Origin::Attribute(name) = origin
            && looks_like_several_attributes(name)
        {
            let problem = format!("`{}` counts by a single attribute called `{}`", rule.id(), shorten(name));
            let help = "write several as `per: [a, b]`, alternatives as `per: [a or b]`";
            notes.add_with_help(rule.position().position, problem, help);
        }
    }
}

fn looks_like_several_attributes(name: &str) -> bool {
    // A name may contain a slash, like `example.com/team`. Two plain words around a slash are probably two names.
    let is_word =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let chosen = name.contains('/') && name.split('/').all(is_word);
    chosen || name.contains(|letter: char| matches!(letter, ',' | '|') || letter.is_whitespace())
}

/// Warns about attributes in `per` that no other rule uses, and that look like a typo of a capture in the same rule.
pub(super) fn warn_about_misspelled_captures(domain: &Domain, notes: &mut MistakeCollector) {
    let captures = |rule: &Rule| -> Vec<String> {
        let patterns = rule.when().iter().flat_map(|condition| match &condition.test {
            Test::AnyOf(patterns) => patterns.as_slice(),
            Test::NoneOf(_) | Test::Present | Test::Absent => &[],
        });
        let names = patterns.flat_map(|pattern| match pattern {
            Pattern::Glob(glob) => glob.capture_names().map(str::to_owned).collect(),
            Pattern::Equals(_) | Pattern::Prefix(_) | Pattern::Cidr(_) | Pattern::NotAnAddress => Vec::new(),
        });
        names.collect()
    };
    let naming: Vec<(&Rule, Vec<String>)> = domain.rules().iter().map(|rule| (rule, captures(rule))).collect();
    if naming.iter().all(|(_, names)| names.is_empty()) {
        return;
    }
    let known: HashSet<&str> =
        naming.iter().flat_map(|(rule, names)| attribute_names(rule, names.is_empty())).collect();
    for (rule, names) in &naming {
        let origins = || rule.per().iter().flat_map(|counted| &counted.origins);
        let unused = |name: &&String| {
            !origins().any(|origin| matches!(origin, Origin::Capture { name: used, .. } if **used == ***name))
        };
        for origin in origins() {
            let Origin::Attribute(name) = origin else { continue };
            if known.contains(&**name) || name.len() <= 3 {
                continue;
            }
            if let Some(meant) =
                names.iter().filter(unused).find(|meant| meant.len() > 3 && differs_by_one_typo(name, meant))
            {
                notes.set_file(&rule.position().file);
                let problem = format!("`{}` counts by an attribute `{name}`, not by `{{{meant}}}`", rule.id());
                notes.add_with_help(rule.position().position, problem, format!("did you mean `{meant}`?"));
            }
        }
    }
}

/// Returns the attributes that a rule tests and, if `counted`, the attributes in its `per`.
fn attribute_names(rule: &Rule, counted: bool) -> Vec<&str> {
    let tested = rule.when().iter().chain(rule.overrides().iter().flat_map(|other| &other.when));
    let expressed = rule.expression().map_or(&[][..], |expression| expression.attributes()).iter();
    let per = rule.per().iter().filter(|_| counted).flat_map(|counted| &counted.origins);
    let per = per.map(|origin| match origin {
        Origin::Attribute(name) | Origin::Capture { attribute: name, .. } => &**name,
    });
    tested.map(|condition| &*condition.attribute).chain(expressed.map(|name| &**name)).chain(per).collect()
}

/// Warns about strings that were probably meant as a network, as a regular expression, or as a path with a leading
/// slash.
pub(super) fn warn_about_literal_comparisons(rule: &Rule, notes: &mut MistakeCollector) {
    let own = rule.when().iter().map(|condition| (rule.position().position, condition));
    let others =
        rule.overrides().iter().flat_map(|other| other.when.iter().map(|condition| (other.position, condition)));
    for (position, Condition { attribute, test }) in own.chain(others) {
        let (Test::AnyOf(patterns) | Test::NoneOf(patterns)) = test else { continue };
        // One warning per list is enough.
        if let Some((problem, help)) = patterns.iter().find_map(|pattern| literal_pattern_warning(attribute, pattern)) {
            notes.add_with_help(position, problem, help);
        }
    }
}

/// Returns a warning and a suggestion if the pattern was probably meant differently.
fn literal_pattern_warning(attribute: &str, pattern: &Pattern) -> Option<(String, String)> {
    let text = match pattern {
        Pattern::Equals(text) => {
            // Envoy sends networks as strings in attributes whose names start with `masked_`.
            if text.contains('/') && Cidr::new(text).is_ok() && !attribute.starts_with("masked_") {
                let problem = format!("`{attribute}` is compared with the string `{text}`, which no address equals");
                return Some((problem, format!("write a network as `{attribute}: {{cidr: {text}}}`")));
            }
            text.to_string()
        }
        Pattern::Prefix(text) => text.to_string(),
        Pattern::Glob(glob) => glob_as_written(glob),
        Pattern::Cidr(_) | Pattern::NotAnAddress => return None,
    };
    if is_address_attribute(attribute) && !matches!(pattern, Pattern::Prefix(_)) && !Glob::is_pattern(&text) {
        let problem = format!("`{attribute}` is compared with `{}`, which is not an address", shorten(&text));
        return Some((problem, format!("write an address, or a network as `{attribute}: {{cidr: 192.0.2.0/24}}`")));
    }
    let is_path = attribute == "path";
    if looks_like_regex(&text, is_path) {
        let kind = if is_path { "a path" } else { "a string" };
        let problem =
            format!("`{attribute}` is compared with `{}` as {kind}, not as a regular expression", shorten(&text));
        let help = match regex_to_glob(&text).filter(|_| is_path) {
            Some(glob) => format!("did you mean `{}`?", shorten(&glob)),
            None => {
                "regular expressions are not supported; `*` matches within a segment, `**` any number of segments, \
                     `{prefix: …}` a prefix"
                    .into()
            }
        };
        return Some((problem, help));
    }
    if is_path && !text.is_empty() && !text.starts_with(['/', '*', '{']) {
        let problem = format!("`path` is compared with `{}`, but a path begins with a slash", shorten(&text));
        return Some((problem, format!("did you mean `/{}`?", shorten(&text))));
    }
    None
}

/// Returns whether a string is almost certainly a regular expression; the test is stricter for attributes
/// other than paths.
fn looks_like_regex(text: &str, is_path: bool) -> bool {
    let (begins, ends, any) = (text.starts_with('^'), text.ends_with('$'), text.contains(".*"));
    if !is_path {
        return (begins && (ends || any)) || (ends && any);
    }
    let classes = ["\\d", "\\w", "[^/]", "[0-9]", "[a-z", "[A-Z"];
    let any_segment = text.split('/').any(|segment| matches!(segment, ".*" | ".+"));
    begins || ends || any_segment || classes.iter().any(|class| text.contains(class))
}

/// Translates a simple regular expression for paths into a pattern.
fn regex_to_glob(text: &str) -> Option<String> {
    let mut glob = text.trim_start_matches('^').trim_end_matches('$').to_owned();
    for segment in ["[^/]+", "[^/]*", "[0-9]+", "\\d+", "\\w+"] {
        glob = glob.replace(segment, "*");
    }
    let deep = |segment| if matches!(segment, ".*" | ".+") { "**" } else { segment };
    let glob = glob.split('/').map(deep).collect::<Vec<_>>().join("/");
    let is_left = glob.contains(".*") || glob.contains(['\\', '[', ']', '(', ')', '{', '}', '+', '?', '|', '^', '$']);
    let is_valid = !Glob::is_pattern(&glob) || Glob::new(&glob).is_ok();
    (glob.starts_with('/') && !is_left && is_valid).then_some(glob)
}

/// Returns the pattern as written, with names in braces.
fn glob_as_written(glob: &Glob) -> String {
    let mut segments: Vec<String> = glob.as_str().split('/').map(str::to_owned).collect();
    let count = segments.len();
    for name in glob.capture_names() {
        let position = match glob.capture_position(name) {
            Some(CapturePosition::FromStart(before)) => Some(before),
            Some(CapturePosition::FromEnd(after)) => count.checked_sub(1 + after),
            None => None,
        };
        if let Some(segment) = position.and_then(|position| segments.get_mut(position)) {
            *segment = format!("{{{name}}}");
        }
    }
    segments.join("/")
}
