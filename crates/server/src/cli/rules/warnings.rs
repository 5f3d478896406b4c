//! Warnings about a stored override. `tollgate check` cannot report these warnings, because the override is not in a
//! file.

use std::net::IpAddr;

use tollgate_engine::rules::entry::{self, EntryOverride};
use tollgate_engine::rules::{Origin, Rule, Rules, Source};
use tollgate_engine::{Engine, MemoryStore};

use crate::control::model::{StoredOverride, StoredRule};

/// Returns warnings about an override of a rule, or `None` if the rule cannot be parsed.
pub(super) fn override_warnings(domain: &str, stored: &StoredOverride, rule: &StoredRule) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let whole = parse_single_rule(domain, &rule.rule.to_string())?;
    let known = whole.domains().first()?.rules().first()?;
    found.extend(attribute_not_in_rule_warning(known, stored));
    found.extend(pattern_value_warning(stored));
    let mut alone = rule.rule.clone();
    // Removes the overrides in the rule's text, so that there are no warnings about them.
    alone.as_object_mut()?.remove("overrides");
    let effect = stored.effect.to_string();
    let StoredOverride { attribute, until, .. } = stored;
    // Uses a placeholder value. Stored values are literal, but the engine would warn about a value that looks like a
    // pattern.
    let value = if attribute == "client_ip" { "192.0.2.1" } else { "/value" };
    let one = EntryOverride { attribute, value, effect: &effect, until: until.as_deref() };
    let rules = parse_single_rule(domain, &entry::with_overrides(&alone.to_string(), &[one]).ok()?)?;
    let engine = Engine::new(MemoryStore::new(1).ok()?).ok()?;
    // `with_overrides` appends the override as the last key of the rule, so warnings after its position are about the
    // override.
    let start = rules.domains().first()?.rules().first()?.overrides().first()?.position;
    let of_override = engine.warnings(&rules).into_iter().filter(|warning| warning.position >= start);
    found.extend(of_override.map(|warning| match warning.help {
        Some(help) => format!("{}; {help}", warning.problem),
        None => warning.problem,
    }));
    Some(found)
}

fn parse_single_rule(domain: &str, rule: &str) -> Option<Rules> {
    let text = entry::to_json([(domain, [rule])]);
    Rules::read(&[Source { name: "override", text: text.as_bytes() }]).ok()
}

/// Warns about an attribute that the rule does not name. Such an attribute is valid (an override may apply to all
/// requests of a plan, for example), but it is often a typo.
fn attribute_not_in_rule_warning(rule: &Rule, stored: &StoredOverride) -> Option<String> {
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
        "nothing in the rule `{rule}`{counts} names the attribute `{attribute}`; the override applies to requests that \
         have this attribute"
    ))
}

/// Warns about a value that looks like a pattern or a network, because overrides compare values literally.
fn pattern_value_warning(stored: &StoredOverride) -> Option<String> {
    let StoredOverride { value, attribute, .. } = stored;
    let is_network = value.split_once('/').is_some_and(|(address, length)| {
        address.parse::<IpAddr>().is_ok() && length.bytes().all(|byte| byte.is_ascii_digit())
    });
    let (what, written) = if value.contains('*') {
        ("a pattern", "'…*'")
    } else if is_network && !attribute.starts_with("masked_") {
        // Attributes with this prefix are excluded, because Envoy sends networks in them literally.
        ("a network", "{cidr: …}")
    } else {
        return None;
    };
    Some(format!(
        "`{attribute}` is compared with `{value}` literally; {what} goes into the rule itself: `overrides: [{{when: \
         {{{attribute}: {written}}}, limit: …}}]`"
    ))
}
