//! Hints about missing attributes. A request that lacks attributes uses unexpected counters or none.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cli::remote::output::replace_control_characters;
use crate::cli::remote::{Remote, RequestArgs};
use crate::control::model::StoredRule;

/// The maximum number of hints.
const MAX_HINTS: usize = 5;

/// Returns a hint for each rule that needs more attributes. Rules that do not match are included only if
/// `none_matched`. Returns no hints if the server is unreachable or replies with an error.
pub(super) fn attribute_hints(remote: &Remote, args: &RequestArgs, none_matched: bool) -> Vec<String> {
    let Some(explained) = fetch_explanation(remote, args) else { return Vec::new() };
    let given: BTreeSet<&str> = args.attributes.iter().filter_map(|word| Some(word.split_once('=')?.0)).collect();
    hint_lines(&explained, none_matched, &|id| missing_per_attributes(remote, &args.domain, id, &given))
}

/// Returns the server's explanation of a request, or `None` if there is any error.
pub(super) fn fetch_explanation(remote: &Remote, args: &RequestArgs) -> Option<Value> {
    remote.post(&["v1", "explain"], args.to_json().ok()?).ok()?.parse().ok()
}

/// Returns the attributes in a rule's `per` that are not in `given`. The result is empty if the server has no database.
fn missing_per_attributes(remote: &Remote, domain: &str, id: &str, given: &BTreeSet<&str>) -> Vec<String> {
    let stored = remote.get(&["v1", "domains", domain, "rules", id]).ok();
    let Some(stored) = stored.and_then(|answer| answer.parse::<StoredRule>().ok()) else { return Vec::new() };
    let texts = match &stored.rule["per"] {
        Value::Array(texts) => texts.iter().filter_map(Value::as_str).collect(),
        Value::String(text) => vec![&**text],
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    };
    // A name in a pattern, such as `{user}`, is not missing: it is captured from the attribute with that pattern.
    let patterns = stored.rule["when"].to_string();
    let is_missing =
        |name: &&str| !name.split(" or ").any(|name| given.contains(name) || patterns.contains(&format!("{{{name}}}")));
    texts.into_iter().filter(is_missing).map(str::to_owned).collect()
}

/// Converts an explanation to hints. The closure `per` returns the missing attributes in the `per` of a rule that does
/// not match.
fn hint_lines(explained: &Value, none_matched: bool, per: &dyn Fn(&str) -> Vec<String>) -> Vec<String> {
    let rules = explained["rules"].as_array().map_or(&[][..], Vec::as_slice);
    let counted = rules.iter().filter_map(|rule| {
        let counted = rule["counted_by"].as_object()?;
        let missing: Vec<&str> = counted.iter().filter(|(_, value)| value.is_null()).map(|(name, _)| &**name).collect();
        let id = rule["rule"].as_str()?;
        (!missing.is_empty()).then(|| {
            let by = missing.join(" and ");
            format!(
                "rule {id} counts by {by}, and this is the counter of requests without {by}: add {}",
                as_arguments(&missing)
            )
        })
    });
    let unmatched = rules.iter().filter(|_| none_matched).filter_map(|rule| {
        let (id, attribute) = (rule["rule"].as_str()?, rule["attribute"].as_str()?);
        let expected = rule["expected"].as_str()?;
        let missing = rule["found"].as_array()?.is_empty() && expected != "absent";
        missing.then(|| {
            let per = per(id);
            let mut names = vec![attribute];
            names.extend(per.iter().map(|name| &**name).filter(|name| *name != attribute));
            let by = if per.is_empty() { String::new() } else { format!(" and counts by {}", per.join(" and ")) };
            format!("rule {id} matches only {attribute} {expected}{by}: add {}", as_arguments(&names))
        })
    });
    counted.chain(unmatched).take(MAX_HINTS).map(|line| replace_control_characters(&line)).collect()
}

/// Formats attribute names as arguments like `a=… b=…`. Uses only the first of alternatives like `a or b`.
fn as_arguments(names: &[&str]) -> String {
    let first = |name: &&str| format!("{}=…", name.split(" or ").next().unwrap_or(name));
    names.iter().map(first).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hints_name_the_missing_attributes() {
        let explained = json!({"rules": [
            {"rule": "login", "matches": true, "counted_by": {"client_ip": null}},
            {"rule": "plans", "matches": true, "counted_by": {"api_key or client_ip": null, "path": "/v1"}},
            {"rule": "all", "matches": true, "counted_by": {}},
            {"rule": "export", "matches": false, "attribute": "path", "expected": "\"/export\"", "found": []},
            {"rule": "other", "matches": false, "attribute": "path", "expected": "\"/x\"", "found": ["/v1"]},
            {"rule": "free", "matches": false, "attribute": "plan", "expected": "absent", "found": []},
        ]});
        let per = |id: &str| if id == "export" { vec!["user".to_owned()] } else { Vec::new() };
        let met = [
            "rule login counts by client_ip, and this is the counter of requests without client_ip: add client_ip=…",
            "rule plans counts by api_key or client_ip, and this is the counter of requests without api_key or client_ip: \
             add api_key=…",
        ];
        assert_eq!(hint_lines(&explained, false, &per), met);
        let unmet = "rule export matches only path \"/export\" and counts by user: add path=… user=…";
        assert_eq!(hint_lines(&explained, true, &per), [&met[..], &[unmet]].concat());
    }
}
