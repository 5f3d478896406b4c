//! `tollgate audit`: prints the audit log.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use super::remote::output::{self, DiffColours, OutputArgs, TextTable, format_time, replace_control_characters};
use super::remote::{Remote, ServerArgs};
use crate::control::model::AuditEntry;

#[derive(Clone, Debug, Args)]
pub(super) struct AuditArgs {
    #[command(flatten)]
    server: ServerArgs,

    /// Only this domain
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,

    /// Only changes by this author (the name of a token)
    #[arg(long, value_name = "NAME")]
    author: Option<String>,

    /// Only this rule, override or token
    #[arg(long, value_name = "NAME")]
    subject: Option<String>,

    /// The maximum number of entries
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    limit: usize,

    /// Also show the changes, line by line
    #[arg(long)]
    changes: bool,

    #[command(flatten)]
    output: OutputArgs,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate audit
  tollgate audit --domain api --author ci --changes
  tollgate audit --limit 1000 --json > audit.json

Newest first.";

/// Prints the newest entries.
///
/// # Errors
/// Returns an error if the server cannot be reached or refuses the request.
pub(super) fn run(args: &AuditArgs) -> anyhow::Result<ExitCode> {
    let remote = Remote::new(&args.server)?;
    let filters = [("domain", &args.domain), ("author", &args.author), ("subject", &args.subject)];
    let query: Vec<(&str, &str)> =
        filters.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
    let listed = remote.get_list(&["v1", "audit"], &query, Some(args.limit), "the audit log")?;
    if args.output.json {
        output::print_json(&listed.to_json())?;
    } else if args.changes {
        let mut out = std::io::stdout().lock();
        let paint = DiffColours::new(&out);
        for entry in &listed.parse::<AuditEntry>()? {
            writeln!(out, "{}", replace_control_characters(&entry_heading(entry)))?;
            for line in changed_lines(entry) {
                writeln!(out, "    {}", paint.colour_diff_line(&line))?;
            }
        }
    } else {
        let mut table = TextTable::new(&["WHEN", "WHO", "WHAT", "DOMAIN", "WHICH", "COMMENT"]);
        for entry in listed.parse::<AuditEntry>()? {
            let what = format!("{} {}", entry.action, entry.kind);
            let (domain, comment) = (entry.domain.unwrap_or_default(), entry.comment.unwrap_or_default());
            table.add_row([format_time(entry.at_ms), entry.author, what, domain, entry.subject, comment]);
        }
        table.print("nothing was changed")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn entry_heading(entry: &AuditEntry) -> String {
    let AuditEntry { author, kind, action, subject, .. } = entry;
    let domain = entry.domain.as_ref().map(|domain| format!("{domain}/")).unwrap_or_default();
    let comment = entry.comment.as_ref().map(|comment| format!(": {comment}")).unwrap_or_default();
    format!("{} {author} {action} {kind} {domain}{subject}{comment}", format_time(entry.at_ms))
}

/// Returns the added (`+`) and removed (`-`) lines of a change.
fn changed_lines(entry: &AuditEntry) -> Vec<String> {
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
