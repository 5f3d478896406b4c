//! `tollgate rules`: the rules of a server, and changing them.

mod apply;
mod doubts;
mod history;
mod list;
mod nodes;
mod overrides;
mod validate;

use std::io::Write;
use std::process::ExitCode;

use reqwest::Method;
use serde_json::Value;

use super::remote::show::{self, clean};
use super::remote::{Answer, Remote, with_change};
use crate::config::remote::Shown;
use crate::config::remote::rules::{DeleteArgs, ExportArgs, RulesArgs, RulesCommand, SwitchArgs, Which};
use crate::control::model::StoredRule;

/// Does what was asked.
///
/// # Errors
/// When the server cannot be asked, or says no.
pub fn run(args: &RulesArgs) -> anyhow::Result<ExitCode> {
    let remote = Remote::new(&args.server)?;
    match &args.command {
        RulesCommand::List(args) => list::list(&remote, args),
        RulesCommand::Get(args) => list::get(&remote, args),
        RulesCommand::Apply(args) => Ok(apply::run(&remote, args)),
        RulesCommand::Delete(args) => delete(&remote, args),
        RulesCommand::Diff(args) => history::diff(&remote, args),
        RulesCommand::History(args) => history::history(&remote, args),
        RulesCommand::Rollback(args) => history::rollback(&remote, args),
        RulesCommand::Export(args) => export(&remote, args),
        RulesCommand::Enable(args) => switch(&remote, args, "enable"),
        RulesCommand::Disable(args) => switch(&remote, args, "disable"),
        RulesCommand::Overrides(args) => overrides::run(&remote, &args.command),
        RulesCommand::Nodes(shown) => nodes::nodes(&remote, *shown),
        RulesCommand::Status(shown) => nodes::status(&remote, *shown),
        RulesCommand::Validate(args) => validate::run(&remote, args),
    }
}

/// The path of a rule, and what is below it.
fn path<'a>(which: &'a Which, below: &[&'a str]) -> Vec<&'a str> {
    let mut path = vec!["v1", "domains", &which.domain, "rules", &which.id];
    path.extend_from_slice(below);
    path
}

fn delete(remote: &Remote, args: &DeleteArgs) -> anyhow::Result<ExitCode> {
    // What customers have bought stays, and whoever deletes should know what there is. Without an answer nothing is told of it.
    let rule = remote.get(&path(&args.which, &[]), "reading").and_then(|answer| answer.parse::<StoredRule>());
    let overrides = rule.ok().and_then(|rule| usize::try_from(rule.overrides).ok()).filter(|count| *count > 0);
    let with = overrides.map(|count| format!(", with its {}", show::count(count, "override"))).unwrap_or_default();
    let request = remote.request(Method::DELETE, &path(&args.which, &[]))?;
    remote.send(with_change(request, &args.change), "deleting")?;
    let Which { domain, id } = &args.which;
    writeln!(std::io::stdout(), "{}/{} is deleted; `rules rollback` brings it back{with}", clean(domain), clean(id))?;
    Ok(ExitCode::SUCCESS)
}

fn switch(remote: &Remote, args: &SwitchArgs, to: &str) -> anyhow::Result<ExitCode> {
    let request = remote.request(Method::POST, &path(&args.which, &[to]))?;
    let answer = remote.send(with_change(request, &args.change), "asking")?;
    tell_rule(&answer, args.shown)?;
    Ok(ExitCode::SUCCESS)
}

/// A rule after a change, in a line.
fn tell_rule(answer: &Answer, shown: Shown) -> anyhow::Result<()> {
    if shown.json {
        return show::json(&answer.parse::<Value>()?);
    }
    let rule: StoredRule = answer.parse()?;
    let line = format!("{}/{}: version {}, {}", rule.domain, rule.id, rule.version, state(rule.enabled));
    Ok(writeln!(std::io::stdout(), "{}", clean(&line))?)
}

/// Whether nodes are given a rule, in words.
const fn state(enabled: bool) -> &'static str {
    if enabled { "in force" } else { "disabled" }
}

fn export(remote: &Remote, args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let query: Vec<(&str, &str)> = args.domains.iter().map(|domain| ("domain", &**domain)).collect();
    let request = remote.request(Method::GET, &["v1", "export"])?.query(&query);
    let answer = remote.send(request, "exporting")?;
    std::io::stdout().lock().write_all(&answer.body)?;
    Ok(ExitCode::SUCCESS)
}
