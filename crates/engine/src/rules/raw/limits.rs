//! Limits and their options, as written.

use super::super::keys;
use super::super::mistake::{MistakeCollector, Position};
use super::super::text::{Node, Value};
use super::RawText;
use super::fields::{Fields, read_list, read_text};

#[derive(Clone, Debug)]
pub(crate) struct RawLimit {
    pub(crate) position: Position,
    pub(crate) limit: Option<RawText>,
    pub(crate) algorithm: Option<RawText>,
    pub(crate) options: Vec<(&'static str, RawText)>,
    /// Whether the limit inherited the algorithm and options of the rule's limit.
    pub(crate) inherits: bool,
}

/// The limits of a rule or an override, or the keys that are given instead of limits.
#[derive(Debug)]
pub(crate) struct RawEffect {
    pub(crate) position: Position,
    pub(crate) limits: Vec<RawLimit>,
    /// `unlimited`, `allow` and `deny`, if given.
    pub(crate) instead: Vec<(&'static str, RawText)>,
    /// Whether a reported mistake may explain missing limits. Missing limits are then not reported.
    pub(crate) has_mistakes: bool,
}

const KEYS_INSTEAD_OF_LIMITS: [&str; 3] = ["unlimited", "allow", "deny"];

/// Options that depend on the rate: an override with another rate does not inherit them.
const OPTIONS_DEPENDENT_ON_RATE: [&str; 4] = ["burst", "free", "initial", "max_debt"];

/// Reads the limits of a rule or an override. If the rule of an override has exactly one limit, `base` is that limit,
/// and the override inherits from it.
pub(super) fn read_effect(
    position: Position,
    fields: &Fields<'_>,
    base: Option<&RawLimit>,
    notes: &mut MistakeCollector,
) -> RawEffect {
    let before = notes.count();
    let instead = KEYS_INSTEAD_OF_LIMITS.iter().filter_map(|name| Some((*name, fields.text(name, notes)?))).collect();
    let limits = read_limits(fields, base, notes);
    let has_mistakes =
        notes.count() > before || fields.has_misspelling_of(&["limit", "limits", "unlimited", "allow", "deny"]);
    RawEffect { position, limits, instead, has_mistakes }
}

fn read_limits(fields: &Fields<'_>, base: Option<&RawLimit>, notes: &mut MistakeCollector) -> Vec<RawLimit> {
    let options = keys::LIMIT_OPTIONS.iter().map(|key| key.name).chain(["algorithm"]);
    let beside: Vec<(Position, &str)> =
        options.filter_map(|name| fields.find(name).map(|(position, _)| (position, name))).collect();
    let one = fields.find("limit");
    let Some((position, several)) = fields.find("limits") else {
        let first = one.map(|(position, _)| position).or(beside.first().map(|(position, _)| *position));
        return match (one, first, base) {
            (Some((_, node)), _, _) if matches!(node.value, Value::Map(_)) => {
                report_stray_options(&beside, "`limit`", notes);
                read_limit(node, notes).into_iter().collect()
            }
            (Some(_), Some(position), None) => vec![read_limit_fields(position, fields, notes)],
            (_, Some(position), Some(base)) => vec![inherit_from(base, read_limit_fields(position, fields, notes))],
            _ => {
                for (position, name) in beside {
                    notes.add_with_help(position, format!("`{name}` without a `limit`"), "add one like `limit: 100/s`");
                }
                Vec::new()
            }
        };
    };
    if one.is_some() {
        notes.add_with_help(position, "`limit` and `limits` are mutually exclusive", "put all of them into `limits`");
    }
    // A string in `limits` was probably meant as `limit`. Read the string with the options beside `limits`, to
    // report further mistakes.
    if let (None, Value::Text(_)) = (one, &several.value) {
        notes.add_with_help(position, "`limits` must be a list, not a string", "did you mean `limit`?");
        let limit =
            RawLimit { limit: read_text(several, "`limit`", notes), ..read_limit_fields(position, fields, notes) };
        return vec![base.map_or(limit.clone(), |base| inherit_from(base, limit))];
    }
    report_stray_options(&beside, "`limits`", notes);
    let Some(several) = read_list(several, "`limits`", notes) else { return Vec::new() };
    if several.is_empty() {
        notes.add_with_help(position, "`limits` is empty", "for no limit write `unlimited: true`");
    }
    several.iter().filter_map(|node| read_limit(node, notes)).collect()
}

/// Combines an override with the limit that it inherits from. If the override has another algorithm, it inherits only
/// the rate.
fn inherit_from(base: &RawLimit, mut limit: RawLimit) -> RawLimit {
    if limit.algorithm.is_some() && algorithm_name(&limit) != algorithm_name(base) {
        limit.limit = limit.limit.or_else(|| base.limit.clone());
        return limit;
    }
    limit.algorithm = limit.algorithm.or_else(|| base.algorithm.clone());
    limit.inherits = true;
    for (name, value) in &base.options {
        let given = limit.options.iter().any(|(option, _)| option == name);
        let replaced = limit.limit.is_some() && OPTIONS_DEPENDENT_ON_RATE.contains(name);
        if !given && !replaced {
            limit.options.push((name, value.clone()));
        }
    }
    limit.limit = limit.limit.or_else(|| base.limit.clone());
    limit
}

fn algorithm_name(limit: &RawLimit) -> &str {
    limit.algorithm.as_ref().map_or("token_bucket", |name| &name.text)
}

fn report_stray_options(beside: &[(Position, &str)], list: &str, notes: &mut MistakeCollector) {
    for (position, name) in beside {
        let help = "move it into the limit that it belongs to";
        notes.add_with_help(*position, format!("`{name}` beside {list} applies to no limit"), help);
    }
}

/// Reads an element of `limits`: a map, or only a rate.
fn read_limit(node: &Node, notes: &mut MistakeCollector) -> Option<RawLimit> {
    if let Value::Text(_) = node.value {
        let limit = read_text(node, "a limit", notes);
        return Some(RawLimit {
            position: node.position,
            limit,
            algorithm: None,
            options: Vec::new(),
            inherits: false,
        });
    }
    let fields = Fields::from_node(node, "a limit", &[keys::LIMIT_KEYS, keys::LIMIT_OPTIONS], notes)?;
    Some(read_limit_fields(node.position, &fields, notes))
}

fn read_limit_fields(position: Position, fields: &Fields<'_>, notes: &mut MistakeCollector) -> RawLimit {
    let options =
        keys::LIMIT_OPTIONS.iter().filter_map(|key| Some((key.name, fields.text(key.name, notes)?))).collect();
    let (limit, algorithm) = (fields.text("limit", notes), fields.text("algorithm", notes));
    RawLimit { position, limit, algorithm, options, inherits: false }
}
