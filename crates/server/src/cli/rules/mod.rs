//! `tollgate rules`: shows and changes the rules of a server.

mod apply;
mod fleet;
mod history;
mod list;
mod nodes;
mod overrides;
mod validate;
mod warnings;

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use reqwest::Method;

use super::count_with_noun;
use super::remote::output::{OutputArgs, replace_control_characters};
use super::remote::{ChangeArgs, Remote, ServerArgs, with_change};
use crate::control::model::StoredRule;

#[derive(Clone, Debug, Args)]
pub(super) struct RulesArgs {
    #[command(flatten)]
    server: ServerArgs,

    #[command(subcommand)]
    command: RulesCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum RulesCommand {
    /// List rules, of one domain or of all.
    List(list::ListArgs),
    /// Show a rule, as a file that can be edited and applied.
    Get(list::GetArgs),
    /// Apply rule files, all of them or none.
    #[command(after_help = apply::EXAMPLES)]
    Apply(apply::ApplyArgs),
    /// Delete a rule; its history remains.
    Delete(DeleteArgs),
    /// Show the difference between two versions of a rule.
    Diff(history::DiffArgs),
    /// List the versions of a rule, newest first.
    History(history::HistoryArgs),
    /// Restore an earlier version of a rule, as a new version.
    Rollback(history::RollbackArgs),
    /// Export rules as a file for `apply`; the overrides and disabled rules are only listed in comments.
    Export(ExportArgs),
    /// Enable a rule.
    Enable(EnableOrDisableArgs),
    /// Disable a rule without deleting it.
    Disable(EnableOrDisableArgs),
    /// Manage overrides, which replace the rule's limits for one customer.
    #[command(after_help = overrides::EXAMPLES)]
    Overrides(overrides::OverridesArgs),
    /// List the nodes that follow the server, with their revisions; the exit status is 1 if a node refuses its rules.
    Nodes(OutputArgs),
    /// Show the source and the revision of the server's rules; the exit status is 1 if the server refused newer rules.
    Status(OutputArgs),
    /// Check rule files on the server without changing anything.
    Validate(validate::ValidateArgs),
    /// Show or set the kill switch of all nodes that follow the server, and of the server itself.
    Enforcement(fleet::EnforcementArgs),
}

/// A rule.
#[derive(Clone, Debug, Args)]
struct RuleArgs {
    /// The domain of the rule
    #[arg(value_name = "DOMAIN")]
    domain: String,

    /// The id of the rule
    #[arg(value_name = "RULE")]
    id: String,
}

#[derive(Clone, Debug, Args)]
struct DeleteArgs {
    #[command(flatten)]
    rule: RuleArgs,

    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Clone, Debug, Args)]
struct EnableOrDisableArgs {
    #[command(flatten)]
    rule: RuleArgs,

    #[command(flatten)]
    change: ChangeArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Debug, Args)]
struct ExportArgs {
    /// The domains; by default all
    #[arg(value_name = "DOMAIN")]
    domains: Vec<String>,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate rules list api
  tollgate rules get api login > login.yaml          edit it, then:
  tollgate rules apply login.yaml
  tollgate rules history api login
  tollgate rules rollback api login 3
  tollgate rules overrides set api per-client acme --limit 1000/s

Exit status: 0: done, 1: something is wrong or differs, 2: usage error.";

/// Runs the command.
///
/// # Errors
/// Returns an error if the server cannot be reached or refuses the request.
pub(super) fn run(args: &RulesArgs) -> anyhow::Result<ExitCode> {
    let remote = Remote::new(&args.server)?;
    match &args.command {
        RulesCommand::List(args) => list::print_rules(&remote, args)?,
        RulesCommand::Get(args) => list::print_rule(&remote, args)?,
        RulesCommand::Apply(args) => return Ok(apply::run(&remote, args)),
        RulesCommand::Delete(args) => delete_rule(&remote, args)?,
        RulesCommand::Diff(args) => history::print_diff(&remote, args)?,
        RulesCommand::History(args) => history::print_versions(&remote, args)?,
        RulesCommand::Rollback(args) => history::rollback(&remote, args)?,
        RulesCommand::Export(args) => export_rules(&remote, args)?,
        RulesCommand::Enable(args) => enable_or_disable_rule(&remote, args, "enable")?,
        RulesCommand::Disable(args) => enable_or_disable_rule(&remote, args, "disable")?,
        RulesCommand::Overrides(args) => overrides::run(&remote, args)?,
        RulesCommand::Nodes(output) => return nodes::print_nodes(&remote, *output),
        RulesCommand::Status(output) => return nodes::print_status(&remote, *output),
        RulesCommand::Validate(args) => return validate::run(&remote, args),
        RulesCommand::Enforcement(args) => fleet::run(&remote, args)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl RuleArgs {
    /// Returns the URL path of the rule, followed by the segments in `below`.
    fn url_path<'a>(&'a self, below: &[&'a str]) -> Vec<&'a str> {
        [&["v1", "domains", &self.domain, "rules", &self.id], below].concat()
    }

    /// Returns the rule if it exists and the caller may read it.
    fn fetch(&self, remote: &Remote) -> Option<StoredRule> {
        remote.get(&self.url_path(&[])).ok()?.parse().ok()
    }
}

fn delete_rule(remote: &Remote, args: &DeleteArgs) -> anyhow::Result<()> {
    // Stored overrides remain after their rule is deleted, so the output mentions them.
    let overrides =
        args.rule.fetch(remote).and_then(|rule| usize::try_from(rule.overrides).ok()).filter(|count| *count > 0);
    let with =
        overrides.map(|overrides| format!(", with its {}", count_with_noun(overrides, "override"))).unwrap_or_default();
    let request = remote.request(Method::DELETE, &args.rule.url_path(&[]))?;
    remote.send(with_change(request, &args.change), "deleting")?;
    let RuleArgs { domain, id } = &args.rule;
    writeln!(
        std::io::stdout(),
        "{}/{} is deleted; `rules rollback` restores it{with}",
        replace_control_characters(domain),
        replace_control_characters(id)
    )?;
    Ok(())
}

fn enable_or_disable_rule(remote: &Remote, args: &EnableOrDisableArgs, action: &str) -> anyhow::Result<()> {
    let request = remote.request(Method::POST, &args.rule.url_path(&[action]))?;
    let answer = remote.send(with_change(request, &args.change), "waiting for an answer")?;
    answer.print(args.output, |rule: StoredRule| {
        let line = format!("{}/{}: version {}, {}", rule.domain, rule.id, rule.version, describe_enabled(rule.enabled));
        Ok(writeln!(std::io::stdout(), "{}", replace_control_characters(&line))?)
    })
}

/// Returns the state of a rule in words.
const fn describe_enabled(enabled: bool) -> &'static str {
    if enabled { "in force" } else { "disabled" }
}

fn export_rules(remote: &Remote, args: &ExportArgs) -> anyhow::Result<()> {
    let query: Vec<(&str, &str)> = args.domains.iter().map(|domain| ("domain", &**domain)).collect();
    let request = remote.request(Method::GET, &["v1", "export"])?.query(&query);
    Ok(std::io::stdout().lock().write_all(&remote.send(request, "exporting")?.body)?)
}
