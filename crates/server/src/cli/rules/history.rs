//! Commands that list, compare and restore the versions of a rule.

use std::io::Write;

use anyhow::{Context, ensure};
use clap::Args;
use reqwest::Method;
use serde_json::json;

use super::overrides::describe_count;
use super::{RuleArgs, describe_enabled};
use crate::cli::remote::output::{DiffColours, OutputArgs, TextTable, format_time, replace_control_characters};
use crate::cli::remote::{ChangeArgs, Remote, with_change, with_json};
use crate::control::model::{Action, StoredRule, Version};

#[derive(Clone, Debug, Args)]
pub(super) struct HistoryArgs {
    #[command(flatten)]
    rule: RuleArgs,

    /// The maximum number of versions
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Debug, Args)]
pub(super) struct DiffArgs {
    #[command(flatten)]
    rule: RuleArgs,

    /// The older version; by default the previous version
    #[arg(value_name = "FROM")]
    from: Option<i64>,

    /// The newer version; by default the current version
    #[arg(value_name = "TO")]
    to: Option<i64>,
}

#[derive(Clone, Debug, Args)]
pub(super) struct RollbackArgs {
    #[command(flatten)]
    rule: RuleArgs,

    /// The version to restore; by default the last version with a different text
    ///
    /// Each further rollback goes back one more version. To undo a rollback, name the version to restore.
    #[arg(value_name = "VERSION")]
    version: Option<i64>,

    #[command(flatten)]
    change: ChangeArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// Prints the versions, newest first.
pub(super) fn print_versions(remote: &Remote, args: &HistoryArgs) -> anyhow::Result<()> {
    let listed = remote.get_list(&args.rule.url_path(&["versions"]), &[], args.limit, "the history")?;
    listed.print(args.output, |versions| print_history(remote, &args.rule, versions))
}

fn print_history(remote: &Remote, rule: &RuleArgs, versions: Vec<Version>) -> anyhow::Result<()> {
    let mut table = TextTable::new(&["VERSION", "WHAT", "STATE", "WHEN", "BY", "COMMENT"]);
    for version in versions {
        let state = if version.rule.is_some() { describe_enabled(version.enabled) } else { "gone" };
        let (number, when) = (version.version.to_string(), format_time(version.at_ms));
        let comment = version.comment.unwrap_or_default();
        table.add_row([number, version.action.as_str().to_owned(), state.to_owned(), when, version.author, comment]);
    }
    let mut out = std::io::stdout().lock();
    table.write(&mut out)?;
    // Versions do not contain overrides, so the output says how many overrides there are.
    if let Some(line) = rule.fetch(remote).and_then(|rule| describe_count(&rule)) {
        writeln!(out, "{}; `tollgate audit` lists their changes", replace_control_characters(&line))?;
    }
    Ok(())
}

/// Prints the diff of two versions.
pub(super) fn print_diff(remote: &Remote, args: &DiffArgs) -> anyhow::Result<()> {
    let ends = [("from", args.from), ("to", args.to)];
    let query: Vec<(&str, i64)> = ends.iter().filter_map(|(name, end)| Some((*name, (*end)?))).collect();
    let request = remote.request(Method::GET, &args.rule.url_path(&["diff"]))?.query(&query);
    let text = remote.send(request, "comparing")?.body_text();
    let mut out = std::io::stdout().lock();
    let paint = DiffColours::new(&out);
    for line in text.lines() {
        writeln!(out, "{}", paint.colour_diff_line(line))?;
    }
    Ok(())
}

/// Restores an earlier version as a new version.
pub(super) fn rollback(remote: &Remote, args: &RollbackArgs) -> anyhow::Result<()> {
    // If a version is named, only the newest version is read, to detect whether the rollback changes anything.
    let most = if args.version.is_some() { 1 } else { MAX_VERSIONS };
    let listed = remote.get_list(&args.rule.url_path(&["versions"]), &[], Some(most), "the history")?;
    let has_more = listed.has_more();
    let versions: Vec<Version> = listed.parse()?;
    let mut change = args.change.clone();
    let version = match args.version {
        Some(version) => version,
        None => {
            // The target depends on the newest version, so the server rolls back only if that version is still current.
            // A deleted rule has no current version to check.
            if let Some(newest) = versions.first().filter(|newest| newest.rule.is_some()) {
                change.if_version.get_or_insert(newest.version);
            }
            // An unread version may be a rollback, which would affect the choice of the target.
            ensure!(!has_more, "the rule has more than {MAX_VERSIONS} versions; name one that `rules history` lists");
            rollback_target(&versions)
                .context("no earlier version to roll back to; `rules history` lists all versions")?
        }
    };
    let request = remote.request(Method::POST, &args.rule.url_path(&["rollback"]))?;
    let request = with_json(request, json!({"version": version}).to_string());
    let answer = remote.send(with_change(request, &change), "rolling back")?;
    answer.print(args.output, |rule: StoredRule| {
        let changed = versions.first().is_none_or(|newest| newest.version != rule.version);
        let what = match changed {
            true => {
                format!("restored version {version} as version {}, {}", rule.version, describe_enabled(rule.enabled))
            }
            false => format!("version {} equals version {version}; nothing was changed", rule.version),
        };
        Ok(writeln!(
            std::io::stdout(),
            "{}",
            replace_control_characters(&format!("{}/{}: {what}", rule.domain, rule.id))
        )?)
    })
}

/// Maximum number of versions to read, newest first.
const MAX_VERSIONS: usize = 1_000;

/// Returns the version to roll back to: the newest version that differs from the current rule and has not been rolled
/// back itself. Repeated rollbacks therefore go further back instead of alternating between two versions. Returns
/// `None` if there is no such version. `versions` starts with the newest.
fn rollback_target(versions: &[Version]) -> Option<i64> {
    // A stack of versions, each above the version that it replaced. A rollback pops all versions above its target and
    // replaces the target.
    let mut stack: Vec<&Version> = Vec::new();
    for version in versions.iter().rev() {
        let equals = |other: &&Version| other.rule == version.rule;
        match version.action {
            Action::Rollback => {
                // The user may have named a version that an earlier rollback undid, and that is no longer on the stack.
                // Such a target counts as new, and nothing is popped.
                let below = stack.len().saturating_sub(1);
                if let Some(index) = stack[..below].iter().rposition(equals) {
                    stack.truncate(index);
                }
            }
            // The text is unchanged, so this version replaces the top of the stack. A later rollback to this version
            // restores its enabled flag too.
            Action::Enable | Action::Disable if stack.last().is_some_and(equals) => drop(stack.pop()),
            Action::Create | Action::Update | Action::Delete | Action::Enable | Action::Disable => {}
        }
        stack.push(version);
    }
    let (newest, earlier) = stack.split_last()?;
    let differs = |version: &&&Version| version.rule.is_some() && version.rule != newest.rule;
    earlier.iter().rev().find(differs).map(|version| version.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Builds a history from `steps`, oldest first, and checks the rollback target. Each step contains the text of the
    /// rule, or `<` for the text of the rollback target.
    fn assert_rollback_target(steps: &[(Action, Option<&str>)], expected: Option<i64>) {
        let mut versions: Vec<Version> = Vec::new();
        for (number, (action, text)) in steps.iter().enumerate() {
            let rule = match text {
                Some("<") => {
                    let to = rollback_target(&versions).expect("a version to go back to");
                    versions.iter().find(|version| version.version == to).and_then(|version| version.rule.clone())
                }
                text => text.map(|text| json!(text)),
            };
            let (version, author) = (number as i64 + 1, "ann".to_owned());
            versions
                .insert(0, Version { version, action: *action, enabled: true, rule, author, at_ms: 0, comment: None });
        }
        assert_eq!(rollback_target(&versions), expected, "for {steps:?}");
    }

    #[test]
    fn each_rollback_goes_back_one_more_version() {
        use Action::{Create, Delete, Disable, Enable, Rollback, Update};
        let (a, b, c) = ((Create, Some("a")), (Update, Some("b")), (Update, Some("c")));
        let back = (Rollback, Some("<"));
        assert_rollback_target(&[a], None);
        assert_rollback_target(&[a, b], Some(1));
        assert_rollback_target(&[a, b, c], Some(2));
        assert_rollback_target(&[a, b, c, back], Some(1));
        assert_rollback_target(&[a, b, c, back, back], None);
        // Two versions with equal texts are distinct, and a change after a rollback can be rolled back.
        assert_rollback_target(&[a, b, (Update, Some("a")), back], Some(1));
        assert_rollback_target(&[a, b, (Update, Some("a")), back, back], None);
        assert_rollback_target(&[a, b, c, back, (Update, Some("d"))], Some(4));
        // Disabling and enabling does not change the text.
        assert_rollback_target(&[a, b, (Disable, Some("b")), (Enable, Some("b"))], Some(1));
        assert_rollback_target(&[a, b, c, back, (Disable, Some("b"))], Some(1));
        // The first rollback restores a deleted rule, and further rollbacks restore earlier versions.
        assert_rollback_target(&[a, b, (Delete, None)], Some(2));
        assert_rollback_target(&[a, b, (Delete, None), back], Some(1));
        assert_rollback_target(&[a, (Disable, Some("a")), (Delete, None)], Some(2));
        // A version that a rollback undid is never the default target again.
        assert_rollback_target(&[a, b, back, c], Some(3));
        assert_rollback_target(&[a, b, back, c, back], None);
        assert_rollback_target(&[a, b, c, back, back, (Update, Some("d")), back], None);
        // The user may roll back to a version that an earlier rollback undid.
        assert_rollback_target(&[a, b, back, (Rollback, Some("b"))], Some(3));
        assert_rollback_target(&[a, b, back, (Rollback, Some("b")), back], None);
        assert_rollback_target(&[a, b, c, (Rollback, Some("a"))], None);
    }
}
