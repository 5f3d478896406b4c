//! The versions of a rule: listed, compared, brought back.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use reqwest::Method;
use serde_json::json;

use super::{path, tell_rule};
use crate::command::remote::show::{self, Paint, Table, time};
use crate::command::remote::{Remote, with_change};
use crate::config::remote::Change;
use crate::config::remote::rules::{DiffArgs, HistoryArgs, RollbackArgs};
use crate::control::model::{Action, Version};

/// Prints versions in columns, newest first.
pub(super) fn history(remote: &Remote, args: &HistoryArgs) -> anyhow::Result<ExitCode> {
    let listed = remote.list(&path(&args.which, &["versions"]), &[], args.limit, "the history")?;
    if args.shown.json {
        show::json(&listed.to_json())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["VERSION", "WHAT", "STATE", "WHEN", "BY", "COMMENT"]);
    for version in listed.parse::<Version>()? {
        let state = match (&version.rule, version.enabled) {
            (None, _) => "gone",
            (Some(_), true) => "in force",
            (Some(_), false) => "disabled",
        };
        let (number, when) = (version.version.to_string(), time(version.at_ms));
        let comment = version.comment.unwrap_or_default();
        table.row([number, word(version.action).to_owned(), state.to_owned(), when, version.author, comment]);
    }
    table.write(&mut std::io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

/// What was done, in a word.
pub(super) const fn word(action: Action) -> &'static str {
    match action {
        Action::Create => "create",
        Action::Update => "update",
        Action::Delete => "delete",
        Action::Rollback => "rollback",
        Action::Enable => "enable",
        Action::Disable => "disable",
    }
}

/// Prints what changed between two versions.
pub(super) fn diff(remote: &Remote, args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let ends = [("from", args.from), ("to", args.to)];
    let query: Vec<(&str, i64)> = ends.iter().filter_map(|(name, end)| Some((*name, (*end)?))).collect();
    let request = remote.request(Method::GET, &path(&args.which, &["diff"]))?.query(&query);
    let text = remote.send(request, "comparing")?.text();
    let mut out = std::io::stdout().lock();
    let paint = Paint::new(&out);
    for line in text.lines() {
        writeln!(out, "{}", paint.diff_line(line))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes an earlier version the current one.
pub(super) fn rollback(remote: &Remote, args: &RollbackArgs) -> anyhow::Result<ExitCode> {
    let mut change = args.change.clone();
    let version = match args.version {
        Some(version) => version,
        None => before(remote, args, &mut change)?,
    };
    let request = remote.request(Method::POST, &path(&args.which, &["rollback"]))?;
    let request = request.header("content-type", "application/json").body(json!({"version": version}).to_string());
    tell_rule(&remote.send(with_change(request, &change), "rolling back")?, args.shown)?;
    Ok(ExitCode::SUCCESS)
}

/// The version before the current one, which is to be still that one when it is replaced.
fn before(remote: &Remote, args: &RollbackArgs, change: &mut Change) -> anyhow::Result<i64> {
    let listed = remote.list(&path(&args.which, &["versions"]), &[], Some(2), "the history")?;
    let versions: Vec<Version> = listed.parse()?;
    let (newest, before) = (versions.first(), versions.get(1));
    let before = before.context("there is no earlier version to go back to")?;
    // What was deleted has no version to be compared with.
    if let Some(newest) = newest.filter(|newest| newest.rule.is_some()) {
        change.if_version.get_or_insert(newest.version);
    }
    Ok(before.version)
}
