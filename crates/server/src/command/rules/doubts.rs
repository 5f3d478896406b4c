//! What is probably not meant about an override that is set by itself: there is no file in which `tollgate check` would tell.

use std::net::IpAddr;

use tollgate_engine::rules::entry::{self, EntryOverride};
use tollgate_engine::rules::{Origin, Rule, Rules, Source};
use tollgate_engine::{Engine, MemoryStore};

use crate::control::model::{StoredOverride, StoredRule};

/// What is to be told of an override, seen beside its rule. None if the rule cannot be read, which is not what was asked.
pub(super) fn doubts(domain: &str, stored: &StoredOverride, rule: &StoredRule) -> Option<Vec<String>> {
    let mut told = Vec::new();
    let whole = read(domain, &rule.rule.to_string())?;
    let known = whole.domains().first()?.rules().first()?;
    told.extend(unknown_attribute(known, stored));
    told.extend(compared_as_text(stored));
    let mut alone = rule.rule.clone();
    // Of the others nothing is to be told now.
    alone.as_object_mut()?.remove("overrides");
    let effect = stored.effect.to_string();
    let StoredOverride { attribute, until, .. } = stored;
    // What the engine says of values is meant for those in files, which may be patterns; of this one it says nothing, whatever
    // attribute it is of.
    let one = EntryOverride { attribute, value: "/value", effect: &effect, until: until.as_deref() };
    let rules = read(domain, &entry::with_overrides(&alone.to_string(), &[one]).ok()?)?;
    let engine = Engine::new(MemoryStore::new(1).ok()?).ok()?;
    // Overrides that are put into a rule stand at the beginning of a line, and all else in the first one.
    let of_override = engine.warnings(&rules).into_iter().filter(|warning| warning.place.line > 1);
    told.extend(of_override.map(|warning| match warning.help {
        Some(help) => format!("{}; {help}", warning.problem),
        None => warning.problem,
    }));
    Some(told)
}

fn read(domain: &str, rule: &str) -> Option<Rules> {
    let text = entry::to_json([(domain, [rule])]);
    Rules::read(&[Source { name: "override", text: text.as_bytes() }]).ok()
}

/// An attribute that the rule knows nothing of is right where customers are told by something else, such as a plan, and often
/// mistyped.
fn unknown_attribute(rule: &Rule, stored: &StoredOverride) -> Option<String> {
    let counted = rule.per().iter().flat_map(|counted| &counted.origins).map(|origin| match origin {
        Origin::Attribute(name) | Origin::Capture { attribute: name, .. } => &**name,
    });
    let tested = rule.when().iter().chain(rule.overrides().iter().flat_map(|other| &other.when));
    let expressed = rule.expression().map_or(&[][..], |expression| expression.attributes()).iter().map(|name| &**name);
    let mut named = counted.chain(tested.map(|condition| &*condition.attribute)).chain(expressed);
    if named.any(|name| name == stored.attribute) {
        return None;
    }
    let per: Vec<String> = rule.per().iter().map(|counted| format!("`{}`", counted.text)).collect();
    let counts = if per.is_empty() { String::new() } else { format!(", which counts by {},", per.join(" and ")) };
    let StoredOverride { attribute, rule, .. } = stored;
    Some(format!(
        "nothing in the rule `{rule}`{counts} names the attribute `{attribute}`; the override is for requests that bring it"
    ))
}

/// A value that looks like a pattern or a network and is neither.
fn compared_as_text(stored: &StoredOverride) -> Option<String> {
    let StoredOverride { value, attribute, .. } = stored;
    let is_network = value.split_once('/').is_some_and(|(address, length)| {
        address.parse::<IpAddr>().is_ok() && length.bytes().all(|byte| byte.is_ascii_digit())
    });
    let (what, written) = if value.contains('*') {
        ("a pattern", "'…*'")
    } else if is_network && !attribute.starts_with("masked_") {
        // Envoy sends networks as they are, under such names.
        ("a network", "{cidr: …}")
    } else {
        return None;
    };
    Some(format!(
        "`{attribute}` is compared with the text `{value}` as it stands; {what} goes into the rule itself: `overrides: [{{when: \
         {{{attribute}: {written}}}, limit: …}}]`"
    ))
}
