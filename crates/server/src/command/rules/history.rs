//! The versions of a rule: listed, compared, brought back.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use reqwest::Method;
use serde_json::{Value, json};

use super::overrides::beside;
use super::{path, state};
use crate::command::remote::show::{self, Paint, Table, clean, time};
use crate::command::remote::{Remote, with_change};
use crate::config::remote::rules::{DiffArgs, HistoryArgs, RollbackArgs};
use crate::control::model::{Action, StoredRule, Version};

/// Prints versions in columns, newest first.
pub(super) fn history(remote: &Remote, args: &HistoryArgs) -> anyhow::Result<ExitCode> {
    let listed = remote.list(&path(&args.which, &["versions"]), &[], args.limit, "the history")?;
    if args.shown.json {
        show::json(&listed.to_json())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["VERSION", "WHAT", "STATE", "WHEN", "BY", "COMMENT"]);
    for version in listed.parse::<Version>()? {
        let state = if version.rule.is_some() { state(version.enabled) } else { "gone" };
        let (number, when) = (version.version.to_string(), time(version.at_ms));
        let comment = version.comment.unwrap_or_default();
        table.row([number, word(version.action).to_owned(), state.to_owned(), when, version.author, comment]);
    }
    let mut out = std::io::stdout().lock();
    table.write(&mut out)?;
    // Overrides are no part of a rule's versions, which should not look as if there were none. A rule that is gone has none.
    let rule = remote.get(&path(&args.which, &[]), "reading").and_then(|answer| answer.parse::<StoredRule>());
    if let Some(line) = rule.ok().and_then(|rule| beside(&rule)) {
        writeln!(out, "{}; `tollgate audit` has their changes", clean(&line))?;
    }
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
    // Who names a version needs no more of the history than its end, to be told whether that changed anything.
    let most = if args.version.is_some() { 1 } else { MOST_VERSIONS };
    let listed = remote.list(&path(&args.which, &["versions"]), &[], Some(most), "the history")?;
    let is_cut = listed.is_cut();
    let versions: Vec<Version> = listed.parse()?;
    let mut change = args.change.clone();
    let version = match args.version {
        Some(version) => version,
        None => {
            // What was found by looking at the newest is to be done to that one. What was deleted has no version to be compared with.
            if let Some(newest) = versions.first().filter(|newest| newest.rule.is_some()) {
                change.if_version.get_or_insert(newest.version);
            }
            // What was gone back to may be among those that are not there.
            ensure!(
                !is_cut,
                "the rule has more than {MOST_VERSIONS} versions; name one of those that `rules history` lists"
            );
            before(&versions).context("there is no earlier version to go back to; `rules history` lists them")?
        }
    };
    let request = remote.request(Method::POST, &path(&args.which, &["rollback"]))?;
    let request = request.header("content-type", "application/json").body(json!({"version": version}).to_string());
    let answer = remote.send(with_change(request, &change), "rolling back")?;
    if args.shown.json {
        show::json(&answer.parse::<Value>()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rule: StoredRule = answer.parse()?;
    let changed = versions.first().is_none_or(|newest| newest.version != rule.version);
    let what = match changed {
        true => format!("back to version {version}, as version {}, {}", rule.version, state(rule.enabled)),
        false => format!("version {} says what version {version} does; nothing was changed", rule.version),
    };
    writeln!(std::io::stdout(), "{}", clean(&format!("{}/{}: {what}", rule.domain, rule.id)))?;
    Ok(ExitCode::SUCCESS)
}

/// So many versions are looked at, the newest.
const MOST_VERSIONS: usize = 1_000;

/// The version to go back to: the last one that said something else than the rule says now, and was not gone back from. So every call
/// goes one further back, and what was gone back from is not come back to. `versions` are in order, newest first.
fn before(versions: &[Version]) -> Option<i64> {
    // What was said and stands, each on what it replaced: going back takes away what is above that.
    let mut stands: Vec<&Version> = Vec::new();
    for version in versions.iter().rev() {
        let says = |other: &&Version| other.rule == version.rule;
        match version.action {
            Action::Rollback => {
                // One that was named may be one that was gone back from. Then it is said anew, and nothing is taken away.
                let below = stands.len().saturating_sub(1);
                if let Some(place) = stands[..below].iter().rposition(says) {
                    stands.truncate(place);
                }
            }
            // It says what it said, and whether it is in force is part of what it comes back as.
            Action::Enable | Action::Disable if stands.last().is_some_and(says) => drop(stands.pop()),
            Action::Create | Action::Update | Action::Delete | Action::Enable | Action::Disable => {}
        }
        stands.push(version);
    }
    let (newest, earlier) = stands.split_last()?;
    let said_otherwise = |version: &&&Version| version.rule.is_some() && version.rule != newest.rule;
    earlier.iter().rev().find(said_otherwise).map(|version| version.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The history that comes of changes, oldest first: what a rule says then, or `<` for what `before` finds.
    fn check(steps: &[(Action, Option<&str>)], expected: Option<i64>) {
        let mut versions: Vec<Version> = Vec::new();
        for (number, (action, says)) in steps.iter().enumerate() {
            let rule = match says {
                Some("<") => {
                    let to = before(&versions).expect("a version to go back to");
                    versions.iter().find(|version| version.version == to).and_then(|version| version.rule.clone())
                }
                says => says.map(|says| json!(says)),
            };
            let (version, author) = (number as i64 + 1, "ann".to_owned());
            versions
                .insert(0, Version { version, action: *action, enabled: true, rule, author, at_ms: 0, comment: None });
        }
        assert_eq!(before(&versions), expected, "for {steps:?}");
    }

    #[test]
    fn every_rollback_goes_one_further_back() {
        use Action::{Create, Delete, Disable, Enable, Rollback, Update};
        let (a, b, c) = ((Create, Some("a")), (Update, Some("b")), (Update, Some("c")));
        let back = (Rollback, Some("<"));
        check(&[a], None);
        check(&[a, b], Some(1));
        check(&[a, b, c], Some(2));
        check(&[a, b, c, back], Some(1));
        check(&[a, b, c, back, back], None);
        // What it says twice is two versions, and a change after going back is one to go back from.
        check(&[a, b, (Update, Some("a")), back], Some(1));
        check(&[a, b, (Update, Some("a")), back, back], None);
        check(&[a, b, c, back, (Update, Some("d"))], Some(4));
        // Switching it off and on says nothing else.
        check(&[a, b, (Disable, Some("b")), (Enable, Some("b"))], Some(1));
        check(&[a, b, c, back, (Disable, Some("b"))], Some(1));
        // What is gone comes back as it was, and then goes further back.
        check(&[a, b, (Delete, None)], Some(2));
        check(&[a, b, (Delete, None), back], Some(1));
        check(&[a, (Disable, Some("a")), (Delete, None)], Some(2));
        // What was gone back from is not come back to, whatever came after.
        check(&[a, b, back, c], Some(3));
        check(&[a, b, back, c, back], None);
        check(&[a, b, c, back, back, (Update, Some("d")), back], None);
        // A version that was named, also one that was gone back from.
        check(&[a, b, back, (Rollback, Some("b"))], Some(3));
        check(&[a, b, back, (Rollback, Some("b")), back], None);
        check(&[a, b, c, (Rollback, Some("a"))], None);
    }
}
