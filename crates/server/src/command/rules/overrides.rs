//! Other numbers for one customer.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::doubts::doubts;
use super::path;
use crate::command::remote::show::{self, Table, clean, plain, time};
use crate::command::remote::{Remote, with_change};
use crate::config::remote::rules::{OverrideEffect, OverrideSetArgs, OverridesCommand, OverridesListArgs};
use crate::control::model::{StoredOverride, StoredRule};

/// Lists, sets or deletes.
pub(super) fn run(remote: &Remote, command: &OverridesCommand) -> anyhow::Result<ExitCode> {
    match command {
        OverridesCommand::List(args) => list(remote, args)?,
        OverridesCommand::Set(args) => set(remote, args)?,
        OverridesCommand::Delete(args) => {
            let request = remote.request(Method::DELETE, &path(&args.which, &["overrides", &args.value]))?;
            remote.send(with_change(request, &args.change), "deleting")?;
            let line = format!("{}/{}: `{}` has no numbers of its own", args.which.domain, args.which.id, args.value);
            writeln!(std::io::stdout(), "{}", clean(&line))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(remote: &Remote, args: &OverridesListArgs) -> anyhow::Result<()> {
    let mut path = vec!["v1", "domains", &*args.domain];
    path.extend(args.id.iter().flat_map(|id| ["rules", id]));
    path.push("overrides");
    let listed = remote.list(&path, &[], args.limit, "overrides")?;
    if args.shown.json {
        return show::json(&listed.to_json());
    }
    let mut table = Table::new(&["RULE", "ATTRIBUTE", "VALUE", "INSTEAD", "UNTIL", "CHANGED", "BY", "VERSION"]);
    for item in listed.parse::<StoredOverride>()? {
        let (instead, until) = (summary(&item.effect), item.until.unwrap_or_default());
        let (changed, version) = (time(item.at_ms), item.version.to_string());
        // Whoever looks for one that is gone finds it, and sees that it applies to nothing.
        let rule = if item.rule_deleted { format!("{} (deleted)", item.rule) } else { item.rule };
        table.row([rule, item.attribute, item.value, instead, until, changed, item.author, version]);
    }
    let mut out = std::io::stdout().lock();
    match table.is_empty() {
        true => writeln!(out, "no overrides")?,
        false => table.write(&mut out)?,
    }
    Ok(())
}

/// That a rule has overrides beside it, if it has, and where they are shown.
pub(super) fn beside(rule: &StoredRule) -> Option<String> {
    let count = usize::try_from(rule.overrides).ok().filter(|count| *count > 0)?;
    let StoredRule { domain, id, .. } = rule;
    Some(format!("{} beside it: `tollgate rules overrides list {domain} {id}`", show::count(count, "override")))
}

/// What applies instead, in one line.
fn summary(effect: &Value) -> String {
    let Some(members) = effect.as_object() else { return plain(effect) };
    // The limit first, as everywhere.
    let mut members: Vec<(&String, &Value)> = members.iter().collect();
    members.sort_by_key(|(key, _)| *key != "limit");
    let words = members.into_iter().map(|(key, value)| match (&**key, value) {
        ("limit", value) => plain(value),
        (key, Value::Bool(true)) => key.to_owned(),
        (key, value) => format!("{key} {}", plain(value)),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn set(remote: &Remote, args: &OverrideSetArgs) -> anyhow::Result<()> {
    let mut body = effect(&args.effect)?;
    if let Some(until) = &args.until {
        body.insert("until".into(), json!(until));
    }
    if let Some(attribute) = &args.attribute {
        body.insert("attribute".into(), json!(attribute));
    }
    let request = remote.request(Method::PUT, &path(&args.which, &["overrides", &args.value]))?;
    let request = request.header("content-type", "application/json").body(Value::Object(body).to_string());
    let answer = remote.send(with_change(request, &args.change), "asking")?;
    if args.shown.json {
        return show::json(&answer.parse::<Value>()?);
    }
    let stored: StoredOverride = answer.parse()?;
    // Somebody who may set overrides and see no rules is told nothing.
    let rule = remote.get(&path(&args.which, &[]), "asking").and_then(|answer| answer.parse::<StoredRule>());
    let doubts = rule.ok().and_then(|rule| doubts(&args.which.domain, &stored, &rule));
    for warning in doubts.unwrap_or_default() {
        writeln!(std::io::stderr(), "warning: {}", clean(&warning))?;
    }
    let until = stored.until.map(|until| format!(" until {until}")).unwrap_or_default();
    let StoredOverride { rule, value, attribute, effect, version, .. } = stored;
    let domain = &args.which.domain;
    let line = format!("{domain}/{rule}: {} for {attribute} `{value}`{until}, version {version}", summary(&effect));
    Ok(writeln!(std::io::stdout(), "{}", clean(&line))?)
}

fn effect(args: &OverrideEffect) -> anyhow::Result<Map<String, Value>> {
    if let Some(text) = &args.effect {
        return serde_json::from_str(text).context("--effect is no JSON object; write it like '{\"limit\":\"10/s\"}'");
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
    fn effects_are_summed_up() {
        assert_eq!(summary(&json!({"burst": 20, "limit": "10/s"})), "10/s, burst 20");
        assert_eq!(summary(&json!({"unlimited": true})), "unlimited");
    }
}
