//! Lists and shows rules.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};
use tollgate_engine::rules::{Source, format};

use super::overrides::describe_count;
use super::{RuleArgs, describe_enabled};
use crate::cli::remote::output::{self, OutputArgs, TextTable, format_time, format_value, replace_control_characters};
use crate::cli::remote::{ListAnswer, Remote};
use crate::control::model::{Action, DomainSummary, StoredRule, Version};

#[derive(Clone, Debug, Args)]
pub(super) struct ListArgs {
    /// The domain; by default all
    #[arg(value_name = "DOMAIN")]
    domain: Option<String>,

    /// Only rules whose id or text contains this
    #[arg(long, short = 'q', value_name = "TEXT")]
    search: Option<String>,

    /// Only enabled rules
    #[arg(long, conflicts_with = "disabled")]
    enabled: bool,

    /// Only disabled rules
    #[arg(long)]
    disabled: bool,

    /// The maximum number of rules of each domain
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Debug, Args)]
pub(super) struct GetArgs {
    #[command(flatten)]
    rule: RuleArgs,

    /// An earlier version; by default the current version
    #[arg(long, value_name = "VERSION")]
    version: Option<i64>,

    #[command(flatten)]
    output: OutputArgs,
}

/// Prints rules as a table.
pub(super) fn print_rules(remote: &Remote, args: &ListArgs) -> anyhow::Result<()> {
    let mut query: Vec<(&str, &str)> = args.search.iter().map(|text| ("q", &**text)).collect();
    if args.enabled || args.disabled {
        query.push(("enabled", if args.enabled { "true" } else { "false" }));
    }
    let domains = match &args.domain {
        Some(domain) => vec![domain.clone()],
        None => {
            let domains: Vec<DomainSummary> = remote.get(&["v1", "domains"])?.parse::<ListAnswer>()?.parse()?;
            domains.into_iter().map(|summary| summary.domain).collect()
        }
    };
    let mut lists = domains.iter().map(|domain| {
        remote.get_list(
            &["v1", "domains", domain, "rules"],
            &query,
            args.limit,
            &format!("the rules of {}", replace_control_characters(domain)),
        )
    });
    if args.output.json {
        // For one domain, prints the list as the server sent it. For all domains, joins their lists into one list.
        let document = match &args.domain {
            Some(_) => lists.next().transpose()?.map_or(json!({"items": []}), |listed| listed.to_json()),
            None => {
                let items = lists.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flat_map(|listed| listed.items);
                json!({"items": items.collect::<Vec<_>>()})
            }
        };
        return output::print_json(&document);
    }
    let mut table =
        TextTable::new(&["DOMAIN", "RULE", "WHEN", "PER", "LIMIT", "OVERRIDES", "STATE", "VERSION", "CHANGED", "BY"]);
    for listed in lists {
        for rule in listed?.parse::<StoredRule>()? {
            let (when, per, limit) =
                (summarise_conditions(&rule.rule), counted_by(&rule.rule), summarise_effect(&rule.rule));
            let is_shadow =
                rule.enabled && rule.rule.get("on_exceed").is_some_and(|value| format_value(value) == "shadow");
            let state = if is_shadow { "shadow" } else { describe_enabled(rule.enabled) }.to_owned();
            let (version, changed) = (rule.version.to_string(), format_time(rule.at_ms));
            let written = rule.rule.get("overrides").and_then(Value::as_array).map_or(0, Vec::len) as i64;
            let overrides = (written + rule.overrides).to_string();
            table.add_row([rule.domain, rule.id, when, per, limit, overrides, state, version, changed, rule.author]);
        }
    }
    table.print("no rules")
}

/// Maximum length of the conditions column, in characters.
const MAX_CONDITIONS_CHARS: usize = 40;

/// Summarises the conditions of a rule in the notation of `when`: `method: [GET, POST], path: /v1/**`.
fn summarise_conditions(rule: &Value) -> String {
    let pairs = rule.get("when").and_then(Value::as_object).into_iter().flatten();
    let mut parts: Vec<String> = pairs.map(|(name, test)| format!("{name}: {}", to_flow_yaml(test))).collect();
    parts.extend(rule.get("if").map(|expression| format!("if {}", format_value(expression))));
    parts.extend(rule.get("only").map(|names| format!("only {}", to_flow_yaml(names))));
    parts.extend(rule.get("schedule").map(|_| "schedule".to_owned()));
    let text = if parts.is_empty() { "all".to_owned() } else { parts.join(", ") };
    match text.char_indices().nth(MAX_CONDITIONS_CHARS) {
        Some(_) => text.chars().take(MAX_CONDITIONS_CHARS - 1).chain(['…']).collect(),
        None => text,
    }
}

/// Returns the `per` of a rule in one line.
fn counted_by(rule: &Value) -> String {
    match rule.get("per") {
        Some(Value::Array(per)) => per.iter().map(format_value).collect::<Vec<_>>().join(", "),
        Some(per) => format_value(per),
        None => String::new(),
    }
}

/// Formats a value in YAML flow style, without quotation marks.
fn to_flow_yaml(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(to_flow_yaml).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(name, value)| format!("{name}: {}", to_flow_yaml(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => format_value(value),
    }
}

/// Returns `unlimited`, `deny`, `allow`, or the limits of a rule in one line.
fn summarise_effect(rule: &Value) -> String {
    let is = |key: &str| rule.get(key).is_some_and(|value| format_value(value) == "true");
    if let Some(word) = ["unlimited", "deny", "allow"].into_iter().find(|word| is(word)) {
        return word.to_owned();
    }
    let limit = |value: &Value| value.get("limit").map_or_else(|| format_value(value), format_value);
    match (rule.get("limit"), rule.get("limits").and_then(Value::as_array)) {
        (Some(value), _) => format_value(value),
        (None, Some(limits)) => limits.iter().map(limit).collect::<Vec<_>>().join(", "),
        (None, None) => String::new(),
    }
}

/// Prints a rule as a file, with its version as a comment.
pub(super) fn print_rule(remote: &Remote, args: &GetArgs) -> anyhow::Result<()> {
    let domain = &args.rule.domain;
    let Some(number) = args.version else {
        return remote.get(&args.rule.url_path(&[]))?.print(args.output, |stored: StoredRule| {
            let overrides = describe_count(&stored);
            // Treats the current rule as its newest version. The action is a placeholder, which is not printed.
            let StoredRule { version, enabled, rule, author, at_ms, comment, .. } = stored;
            let action = Action::Update;
            let version = Version { version, action, enabled, rule: Some(rule), author, at_ms, comment };
            print_version(domain, &version, overrides)
        });
    };
    let answer = remote.get(&args.rule.url_path(&["versions", &number.to_string()]))?;
    answer.print(args.output, |version| print_version(domain, &version, None))
}

fn print_version(domain: &str, version: &Version, overrides: Option<String>) -> anyhow::Result<()> {
    let state = describe_enabled(version.enabled);
    // The server leaves the author empty for callers whose role is below operator.
    let by = Some(&version.author).filter(|author| !author.is_empty()).map_or(String::new(), |by| format!(", by {by}"));
    let mut head = format!("# version {}, {state}{by} at {}", version.version, format_time(version.at_ms));
    if let Some(comment) = &version.comment {
        head += &format!(": {comment}");
    }
    let mut out = std::io::stdout().lock();
    match &version.rule {
        Some(rule) => {
            writeln!(out, "{}", replace_control_characters(&head))?;
            if let Some(overrides) = overrides {
                writeln!(out, "# {}", replace_control_characters(&overrides))?;
            }
            write!(out, "{}", to_rule_file(domain, rule))?;
        }
        None => {
            writeln!(
                out,
                "version {} is the deletion of the rule{}",
                version.version,
                replace_control_characters(&by)
            )?;
        }
    }
    Ok(())
}

/// Returns a formatted file with one rule.
fn to_rule_file(domain: &str, rule: &Value) -> String {
    let file = json!({"domain": domain, "rules": [rule]}).to_string();
    // A JSON document is a valid rule file.
    format(&Source { name: "", text: file.as_bytes() }).unwrap_or(file + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_summarised() {
        for (rule, expected) in [
            (json!({"limit": "5/m"}), "5/m"),
            (json!({"limits": ["5/m", {"limit": 2, "algorithm": "concurrency"}]}), "5/m, 2"),
            (json!({"deny": true, "when": {}}), "deny"),
            (json!({"unlimited": "true"}), "unlimited"),
            (json!({}), ""),
        ] {
            assert_eq!(summarise_effect(&rule), expected);
        }
        for (rule, when, per) in [
            (json!({}), "all", ""),
            (
                json!({"when": {"path": "/v1/**", "method": ["GET", "POST"]}, "per": ["user", "a or b"]}),
                "method: [GET, POST], path: /v1/**",
                "user, a or b",
            ),
            (
                json!({"when": {"ip": {"not": {"cidr": "10.0.0.0/8"}}}, "per": "user"}),
                "ip: {not: {cidr: 10.0.0.0/8}}",
                "user",
            ),
            (
                json!({"if": "size(plan) > 2", "only": ["plan"], "schedule": {"days": ["sat"]}}),
                "if size(plan) > 2, only [plan], schedule",
                "",
            ),
            (json!({"when": {"path": "/".repeat(60)}}), "path: /////////////////////////////////…", ""),
        ] {
            assert_eq!((&*summarise_conditions(&rule), &*counted_by(&rule)), (when, per));
        }
    }

    #[test]
    fn rule_is_shown_as_a_file_that_can_be_applied() {
        let rule = json!({"limit": "5/m", "id": "a: b", "message": "x\u{1b}#", "burst": 7});
        let file = to_rule_file("api", &rule);
        assert_eq!(file, "domain: api\nrules:\n- id: 'a: b'\n  limit: 5/m\n  burst: 7\n  message: \"x\\u001b#\"\n");
    }
}
