//! The dynamic metadata of a response, in the format of the reference service. Dynamic metadata contains the request,
//! and the merged `metadata` of the rules that match the admitted descriptors. Each descriptor also contains its code
//! and its rule.
//!
//! By default, dynamic metadata is sent only if a matching rule has `metadata`, because dynamic metadata repeats the
//! whole request.

use serde_json::{Map, Value, json};
use tollgate_engine::rules::Metadata;
use tollgate_engine::{Decision, RuleMatch};

use super::options::MetadataWhen;
use super::wire::{Descriptor, DescriptorStatus, LimitOverride, RateLimitRequest, ResponseCode, UNIT_NAMES};

/// Returns the metadata of a response, or `None` if the response has none.
///
/// `decision` is `None` if no descriptor needed a decision. `indices` maps each item of the decision to its descriptor.
pub(super) fn response_metadata(
    when: MetadataWhen,
    message: &RateLimitRequest<'_>,
    decision: Option<&Decision<'_>>,
    indices: &[usize],
    statuses: &[DescriptorStatus],
) -> Option<Map<String, Value>> {
    let matches =
        || decision.into_iter().flat_map(|decision| decision.rule_matches().filter(|matched| !matched.is_omitted));
    if when == MetadataWhen::Rules && matches().all(|matched| matched.metadata.is_none()) {
        return None;
    }
    let mut merged = Map::new();
    let is_ok = |matched: &RuleMatch<'_>| statuses[indices[matched.item]].code == ResponseCode::Ok;
    for metadata in matches().filter(is_ok).filter_map(|matched| matched.metadata) {
        merge_metadata(&mut merged, metadata);
    }
    let descriptors: Vec<Value> =
        message.descriptors.iter().zip(statuses).map(|(sent, status)| describe_descriptor(sent, status)).collect();
    let mut all = Map::new();
    all.insert("domain".into(), lossy_text(message.domain).into());
    all.insert("descriptors".into(), descriptors.into());
    if message.hits_addend > 0 {
        all.insert("hitsAddend".into(), message.hits_addend.into());
    }
    if !merged.is_empty() {
        all.insert("metadata".into(), merged.into());
    }
    Some(all)
}

fn describe_descriptor(sent: &Descriptor<'_>, status: &DescriptorStatus) -> Value {
    let entries: Vec<String> =
        sent.entries.iter().map(|(key, value)| format!("{}={}", lossy_text(key), lossy_text(value))).collect();
    let code = match status.code {
        ResponseCode::Ok => "OK",
        ResponseCode::OverLimit => "OVER_LIMIT",
    };
    let mut map = json!({"entries": entries, "code": code});
    if let Some(limit) = &status.limit {
        map["rule"] = json!(limit.name);
    }
    if let Some(limit) = &sent.limit {
        map["limit"] = json!(format_limit(limit));
    }
    if let Some(hits) = sent.hits_addend {
        map["hitsAddend"] = json!(hits);
    }
    map
}

/// Formats a limit in the Protocol Buffers text format, which the reference service also uses. Fields with default
/// values are omitted.
fn format_limit(limit: &LimitOverride) -> String {
    let requests = (limit.requests_per_unit > 0).then(|| format!("requests_per_unit:{}", limit.requests_per_unit));
    let unit = usize::try_from(limit.unit).ok().and_then(|unit| UNIT_NAMES.get(unit)).filter(|_| limit.unit > 0);
    let unit = unit.map(|name| format!("unit:{name}"));
    requests.into_iter().chain(unit).collect::<Vec<_>>().join(" ")
}

/// Recursively merges a metadata map into `into`. An existing value that is not a map is kept.
fn merge_metadata(into: &mut Map<String, Value>, metadata: &Metadata) {
    let Metadata::Map(pairs) = metadata else { return };
    for (name, value) in pairs {
        match into.get_mut(&**name) {
            Some(Value::Object(map)) => merge_metadata(map, value),
            Some(_) => {}
            None => {
                into.insert(name.to_string(), to_json(value));
            }
        }
    }
}

fn to_json(metadata: &Metadata) -> Value {
    match metadata {
        Metadata::Null => Value::Null,
        Metadata::Text(text) => parse_scalar(text),
        Metadata::List(values) => values.iter().map(to_json).collect(),
        Metadata::Map(pairs) => pairs.iter().map(|(name, value)| (name.to_string(), to_json(value))).collect(),
    }
}

/// Parses a JSON number or boolean. Other text becomes a string.
fn parse_scalar(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ (Value::Number(_) | Value::Bool(_))) => value,
        _ => text.into(),
    }
}

fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_merged_and_the_first_value_of_a_name_wins() {
        let text = |text: &str| Metadata::Text(text.into());
        let map = |pairs: &[(&str, Metadata)]| {
            Metadata::Map(pairs.iter().map(|(name, value)| ((*name).into(), value.clone())).collect())
        };
        let mut merged = Map::new();
        merge_metadata(&mut merged, &map(&[("a", map(&[("x", text("1")), ("y", text("on"))])), ("b", text("true"))]));
        merge_metadata(&mut merged, &map(&[("a", map(&[("x", text("2")), ("z", Metadata::Null)])), ("b", map(&[]))]));
        assert_eq!(Value::Object(merged), json!({"a": {"x": 1, "y": "on", "z": null}, "b": true}));
    }

    #[test]
    fn limits_are_printed_with_the_name_of_their_unit() {
        let text = |requests_per_unit, unit| format_limit(&LimitOverride { requests_per_unit, unit });
        assert_eq!(text(42, 3), "requests_per_unit:42 unit:HOUR");
        assert_eq!(
            (text(0, 6), text(5, 0), text(1, 99)),
            ("unit:YEAR".into(), "requests_per_unit:5".into(), "requests_per_unit:1".into())
        );
    }

    #[test]
    fn text_that_is_not_a_json_number_stays_a_string() {
        for text in ["007", "1_000", "+1", "", "NaN", "yes", "[1]", "\"a\""] {
            assert_eq!(parse_scalar(text), Value::String(text.into()));
        }
        assert_eq!((parse_scalar("-1.5"), parse_scalar("false")), (json!(-1.5), json!(false)));
    }
}
