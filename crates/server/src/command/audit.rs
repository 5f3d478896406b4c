//! `tollgate audit`: who changed what, and when.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use super::remote::Remote;
use super::remote::show::{self, Paint, Table, clean, time};
use crate::config::remote::AuditArgs;
use crate::control::model::Entry;

/// Prints the newest entries.
///
/// # Errors
/// When the server cannot be asked, or says no.
pub fn run(args: &AuditArgs) -> anyhow::Result<ExitCode> {
    let remote = Remote::new(&args.server)?;
    let wanted = [("domain", &args.domain), ("author", &args.author), ("subject", &args.subject)];
    let query: Vec<(&str, &str)> = wanted.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
    let listed = remote.list(&["v1", "audit"], &query, Some(args.limit), "the audit log")?;
    if args.shown.json {
        show::json(&listed.to_json())?;
        return Ok(ExitCode::SUCCESS);
    }
    let entries: Vec<Entry> = listed.parse()?;
    let mut out = std::io::stdout().lock();
    if args.changes {
        let paint = Paint::new(&out);
        for entry in &entries {
            writeln!(out, "{}", clean(&head(entry)))?;
            for line in difference(entry) {
                writeln!(out, "    {}", paint.diff_line(&line))?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["WHEN", "WHO", "WHAT", "DOMAIN", "WHICH", "COMMENT"]);
    for entry in entries {
        let what = format!("{} {}", entry.action, entry.kind);
        let (domain, comment) = (entry.domain.unwrap_or_default(), entry.comment.unwrap_or_default());
        table.row([time(entry.at_ms), entry.author, what, domain, entry.subject, comment]);
    }
    match table.is_empty() {
        true => writeln!(out, "nothing was changed")?,
        false => table.write(&mut out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn head(entry: &Entry) -> String {
    let Entry { author, kind, action, subject, .. } = entry;
    let of = entry.domain.as_ref().map(|domain| format!("{domain}/")).unwrap_or_default();
    let comment = entry.comment.as_ref().map(|comment| format!(": {comment}")).unwrap_or_default();
    format!("{} {author} {action} {kind} {of}{subject}{comment}", time(entry.at_ms))
}

/// What changed from before to after, without what stayed.
fn difference(entry: &Entry) -> Vec<String> {
    let text = |value: &Option<Value>| {
        value.as_ref().and_then(|value| serde_json::to_string_pretty(value).ok()).unwrap_or_default()
    };
    let (before, after) = (text(&entry.before), text(&entry.after));
    let diff = TextDiff::from_lines(&before, &after);
    let changes = diff.iter_all_changes().filter_map(|change| {
        let sign = match change.tag() {
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
            ChangeTag::Equal => return None,
        };
        Some(format!("{sign} {}", change.value().trim_end()))
    });
    changes.collect()
}
