//! Looking at rules.

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Value, json};
use tollgate_engine::rules::{Source, format};

use super::overrides::beside;
use super::{path, state};
use crate::command::remote::show::{self, Table, clean, plain, time};
use crate::command::remote::{Listed, Remote};
use crate::config::remote::rules::{GetArgs, ListArgs};
use crate::control::model::{DomainSummary, StoredRule, Version};

/// Prints rules in columns.
pub(super) fn list(remote: &Remote, args: &ListArgs) -> anyhow::Result<ExitCode> {
    let mut query: Vec<(&str, &str)> = args.search.iter().map(|text| ("q", &**text)).collect();
    if args.enabled || args.disabled {
        query.push(("enabled", if args.enabled { "true" } else { "false" }));
    }
    let domains = match &args.domain {
        Some(domain) => vec![domain.clone()],
        None => {
            let domains: Vec<DomainSummary> =
                remote.get(&["v1", "domains"], "reading domains")?.parse::<Listed>()?.parse()?;
            domains.into_iter().map(|summary| summary.domain).collect()
        }
    };
    let mut lists = domains.iter().map(|domain| {
        remote.list(&["v1", "domains", domain, "rules"], &query, args.limit, &format!("the rules of {}", clean(domain)))
    });
    if args.shown.json {
        // That of one domain is as it was sent; those of several are put together.
        let document = match &args.domain {
            Some(_) => lists.next().transpose()?.map_or(json!({"items": []}), |listed| listed.to_json()),
            None => {
                let items = lists.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flat_map(|listed| listed.items);
                json!({"items": items.collect::<Vec<_>>()})
            }
        };
        show::json(&document)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["DOMAIN", "RULE", "LIMIT", "OVERRIDES", "STATE", "VERSION", "CHANGED", "BY"]);
    for listed in lists {
        for rule in listed?.parse::<StoredRule>()? {
            let (limit, state) = (summary(&rule.rule), state(rule.enabled).to_owned());
            let (version, changed) = (rule.version.to_string(), time(rule.at_ms));
            let written = rule.rule.get("overrides").and_then(Value::as_array).map_or(0, Vec::len) as i64;
            let overrides = (written + rule.overrides).to_string();
            table.row([rule.domain, rule.id, limit, overrides, state, version, changed, rule.author]);
        }
    }
    let mut out = std::io::stdout().lock();
    match table.is_empty() {
        true => writeln!(out, "no rules")?,
        false => table.write(&mut out)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What a rule does, in a few words.
fn summary(rule: &Value) -> String {
    let is = |key: &str| rule.get(key).is_some_and(|value| plain(value) == "true");
    if let Some(word) = ["unlimited", "deny", "allow"].into_iter().find(|word| is(word)) {
        return word.to_owned();
    }
    let limit = |value: &Value| value.get("limit").map_or_else(|| plain(value), plain);
    match (rule.get("limit"), rule.get("limits").and_then(Value::as_array)) {
        (Some(value), _) => plain(value),
        (None, Some(limits)) => limits.iter().map(limit).collect::<Vec<_>>().join(", "),
        (None, None) => String::new(),
    }
}

/// Prints a rule as a file, with what is known about it as comments.
pub(super) fn get(remote: &Remote, args: &GetArgs) -> anyhow::Result<ExitCode> {
    let number = args.version.map(|version| version.to_string());
    let answer = match &number {
        Some(number) => remote.get(&path(&args.which, &["versions", number]), "reading")?,
        None => remote.get(&path(&args.which, &[]), "reading")?,
    };
    if args.shown.json {
        show::json(&answer.parse::<Value>()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    // A rule is its newest version, and has all that a version tells except what made it.
    let mut others = None;
    let version = match &number {
        Some(_) => answer.parse::<Version>()?,
        None => {
            let rule: StoredRule = answer.parse()?;
            others = beside(&rule);
            let StoredRule { version, enabled, rule, author, at_ms, comment, .. } = rule;
            let action = crate::control::model::Action::Update;
            Version { version, action, enabled, rule: Some(rule), author, at_ms, comment }
        }
    };
    let state = state(version.enabled);
    let mut head = format!("# version {}, {state}, by {} at {}", version.version, version.author, time(version.at_ms));
    if let Some(comment) = &version.comment {
        head += &format!(": {comment}");
    }
    let mut out = std::io::stdout().lock();
    match &version.rule {
        Some(rule) => {
            writeln!(out, "{}", clean(&head))?;
            if let Some(others) = others {
                writeln!(out, "# {}", clean(&others))?;
            }
            write!(out, "{}", as_file(&args.which.domain, rule))?;
        }
        None => writeln!(out, "version {} is its deletion, by {}", version.version, clean(&version.author))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A file with one rule, in its canonical form.
fn as_file(domain: &str, rule: &Value) -> String {
    let file = json!({"domain": domain, "rules": [rule]}).to_string();
    // JSON is a rule file too, if a less pleasant one.
    format(&Source { name: "", text: file.as_bytes() }).unwrap_or(file + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_summed_up() {
        for (rule, expected) in [
            (json!({"limit": "5/m"}), "5/m"),
            (json!({"limits": ["5/m", {"limit": 2, "algorithm": "concurrency"}]}), "5/m, 2"),
            (json!({"deny": true, "when": {}}), "deny"),
            (json!({"unlimited": "true"}), "unlimited"),
            (json!({}), ""),
        ] {
            assert_eq!(summary(&rule), expected);
        }
    }

    #[test]
    fn a_rule_is_shown_as_a_file_that_can_be_applied() {
        let rule = json!({"limit": "5/m", "id": "a: b", "message": "x\u{1b}#", "burst": 7});
        let file = as_file("api", &rule);
        assert_eq!(file, "domain: api\nrules:\n- id: 'a: b'\n  limit: 5/m\n  burst: 7\n  message: \"x\\u001b#\"\n");
    }
}
