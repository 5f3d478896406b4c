//! `tollgate rules overrides`: manages overrides, which replace the rule's limits for one customer.

use std::io::Write;

use anyhow::Context;
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::RuleArgs;
use super::warnings::override_warnings;
use crate::cli::count_with_noun;
use crate::cli::remote::output::{OutputArgs, TextTable, format_time, format_value, replace_control_characters};
use crate::cli::remote::{ChangeArgs, Remote, with_change, with_json};
use crate::control::model::{StoredOverride, StoredRule};

#[derive(Clone, Debug, Args)]
pub(super) struct OverridesArgs {
    #[command(subcommand)]
    command: OverridesCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum OverridesCommand {
    /// List the overrides of a rule, or of all rules of a domain.
    List(ListOverridesArgs),
    /// Set an override, which replaces the rule's limits for one customer.
    Set(Box<SetOverrideArgs>),
    /// Delete an override. The rule's own limits apply again.
    Delete(DeleteOverrideArgs),
}

#[derive(Clone, Debug, Args)]
struct ListOverridesArgs {
    /// The domain of the rules
    #[arg(value_name = "DOMAIN")]
    domain: String,

    /// The rule; by default all
    #[arg(value_name = "RULE")]
    id: Option<String>,

    /// The maximum number of overrides
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Debug, Args)]
struct SetOverrideArgs {
    #[command(flatten)]
    rule: RuleArgs,

    /// The customer: the value of the attribute that the rule counts by
    #[arg(value_name = "VALUE")]
    value: String,

    #[command(flatten)]
    effect: EffectArgs,

    /// When the override expires, like 2030-01-31T18:00:00Z
    #[arg(long, value_name = "TIME")]
    until: Option<String>,

    /// The attribute of the value, if it is not the first in the rule's `per`; required if `per` begins with `a or b`
    #[arg(long, value_name = "NAME")]
    attribute: Option<String>,

    #[command(flatten)]
    change: ChangeArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// The replacement for the limits of the rule.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = true)]
struct EffectArgs {
    /// Limit, like 1000/s
    #[arg(long, value_name = "LIMIT")]
    limit: Option<String>,

    /// Burst size
    #[arg(long, value_name = "COUNT")]
    burst: Option<u64>,

    /// Algorithm; by default the algorithm of the rule
    #[arg(long, value_name = "NAME")]
    algorithm: Option<String>,

    /// No limit
    #[arg(long, conflicts_with_all = ["limit", "burst", "algorithm", "deny"])]
    unlimited: bool,

    /// Refuse every request
    #[arg(long, conflicts_with_all = ["limit", "burst", "algorithm"])]
    deny: bool,

    /// Any override as JSON, such as '{"limits":["10/s","1000/h"]}'
    #[arg(long, value_name = "JSON", conflicts_with_all = ["limit", "burst", "algorithm", "unlimited", "deny"])]
    effect: Option<String>,
}

#[derive(Clone, Debug, Args)]
struct DeleteOverrideArgs {
    #[command(flatten)]
    rule: RuleArgs,

    /// The customer
    #[arg(value_name = "VALUE")]
    value: String,

    #[command(flatten)]
    change: ChangeArgs,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate rules overrides set api per-client acme --limit 1000/s --burst 2000
  tollgate rules overrides set api per-client trial-7 --unlimited --until 2030-01-31T18:00:00Z
  tollgate rules overrides list api                  of all rules; with a rule, of that one
  tollgate rules overrides delete api per-client acme

An override changes the limits, not the counter: tokens that a customer has spent stay spent.";

/// Runs the command.
pub(super) fn run(remote: &Remote, args: &OverridesArgs) -> anyhow::Result<()> {
    match &args.command {
        OverridesCommand::List(args) => list_overrides(remote, args),
        OverridesCommand::Set(args) => set_override(remote, args),
        OverridesCommand::Delete(args) => {
            let request = remote.request(Method::DELETE, &args.rule.url_path(&["overrides", &args.value]))?;
            remote.send(with_change(request, &args.change), "deleting")?;
            let line = format!("{}/{}: the override of `{}` is deleted", args.rule.domain, args.rule.id, args.value);
            Ok(writeln!(std::io::stdout(), "{}", replace_control_characters(&line))?)
        }
    }
}

fn list_overrides(remote: &Remote, args: &ListOverridesArgs) -> anyhow::Result<()> {
    let mut path = vec!["v1", "domains", &*args.domain];
    path.extend(args.id.iter().flat_map(|id| ["rules", id]));
    path.push("overrides");
    remote.get_list(&path, &[], args.limit, "overrides")?.print(args.output, print_overrides)
}

fn print_overrides(overrides: Vec<StoredOverride>) -> anyhow::Result<()> {
    let mut table = TextTable::new(&["RULE", "ATTRIBUTE", "VALUE", "INSTEAD", "UNTIL", "CHANGED", "BY", "VERSION"]);
    for item in overrides {
        let (instead, until) = (summarise_effect(&item.effect), item.until.unwrap_or_default());
        let (changed, version) = (format_time(item.at_ms), item.version.to_string());
        // An override of a deleted rule has no effect; it is listed with the rule marked as deleted.
        let rule = if item.rule_deleted { format!("{} (deleted)", item.rule) } else { item.rule };
        table.add_row([rule, item.attribute, item.value, instead, until, changed, item.author, version]);
    }
    table.print("no overrides")
}

/// Describes how many overrides are stored for a rule, and how to list them. Returns `None` if there are none.
pub(super) fn describe_count(rule: &StoredRule) -> Option<String> {
    let overrides = usize::try_from(rule.overrides).ok().filter(|count| *count > 0)?;
    let StoredRule { domain, id, .. } = rule;
    Some(format!(
        "{} stored separately: `tollgate rules overrides list {domain} {id}`",
        count_with_noun(overrides, "override")
    ))
}

/// Summarises an override's effect in one line.
fn summarise_effect(effect: &Value) -> String {
    let Some(members) = effect.as_object() else { return format_value(effect) };
    // Moves the limit to the start of the line.
    let mut members: Vec<(&String, &Value)> = members.iter().collect();
    members.sort_by_key(|(key, _)| *key != "limit");
    let words = members.into_iter().map(|(key, value)| match (&**key, value) {
        ("limit", value) => format_value(value),
        (key, Value::Bool(true)) => key.to_owned(),
        (key, value) => format!("{key} {}", format_value(value)),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn set_override(remote: &Remote, args: &SetOverrideArgs) -> anyhow::Result<()> {
    let mut body = effect_of_args(&args.effect)?;
    if let Some(until) = &args.until {
        body.insert("until".into(), json!(until));
    }
    if let Some(attribute) = &args.attribute {
        body.insert("attribute".into(), json!(attribute));
    }
    let request = remote.request(Method::PUT, &args.rule.url_path(&["overrides", &args.value]))?;
    let request = with_json(request, Value::Object(body).to_string());
    let answer = remote.send(with_change(request, &args.change), "waiting for an answer")?;
    answer.print(args.output, |stored| print_stored_override(remote, &args.rule, stored))
}

fn print_stored_override(remote: &Remote, rule: &RuleArgs, stored: StoredOverride) -> anyhow::Result<()> {
    let domain = &rule.domain;
    let warnings = rule.fetch(remote).and_then(|rule| override_warnings(domain, &stored, &rule));
    for warning in warnings.unwrap_or_default() {
        writeln!(std::io::stderr(), "warning: {}", replace_control_characters(&warning))?;
    }
    let until = stored.until.map(|until| format!(" until {until}")).unwrap_or_default();
    let StoredOverride { rule, value, attribute, effect, version, .. } = stored;
    let line =
        format!("{domain}/{rule}: {} for {attribute} `{value}`{until}, version {version}", summarise_effect(&effect));
    Ok(writeln!(std::io::stdout(), "{}", replace_control_characters(&line))?)
}

fn effect_of_args(args: &EffectArgs) -> anyhow::Result<Map<String, Value>> {
    if let Some(text) = &args.effect {
        return serde_json::from_str(text)
            .context("--effect is not a JSON object; write it like '{\"limit\":\"10/s\"}'");
    }
    let members = [
        ("limit", args.limit.as_ref().map(|limit| json!(limit))),
        ("burst", args.burst.map(|burst| json!(burst))),
        ("algorithm", args.algorithm.as_ref().map(|algorithm| json!(algorithm))),
        ("unlimited", args.unlimited.then_some(json!(true))),
        ("deny", args.deny.then_some(json!(true))),
    ];
    Ok(members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_are_summarised() {
        assert_eq!(summarise_effect(&json!({"burst": 20, "limit": "10/s"})), "10/s, burst 20");
        assert_eq!(summarise_effect(&json!({"unlimited": true})), "unlimited");
    }
}
