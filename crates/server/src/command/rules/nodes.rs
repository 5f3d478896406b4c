//! Who runs what.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

use crate::command::remote::show::{self, Table, clean, plain, span};
use crate::command::remote::{Listed, Remote};
use crate::config::remote::Shown;
use crate::control::model::NodeReport;

/// Prints the nodes that follow a server; fails if one of them refuses its rules.
pub(super) fn nodes(remote: &Remote, shown: Shown) -> anyhow::Result<ExitCode> {
    let listed = remote.get(&["v1", "nodes"], "asking")?.parse::<Listed>()?;
    let document = listed.to_json();
    let nodes: Vec<NodeReport> = listed.parse()?;
    let refuses = nodes.iter().any(|node| node.refused.is_some());
    if shown.json {
        show::json(&document)?;
    } else {
        let mut table = Table::new(&["NODE", "RUNS", "SEEN", "REFUSES"]);
        for node in nodes {
            let runs = node.running.map_or("nothing yet".to_owned(), |revision| revision.to_string());
            let refused = node.refused.map(|refused| format!("{}: {}", refused.revision, refused.why));
            table.row([node.node, runs, format!("{} ago", span(node.seen_ms_ago)), refused.unwrap_or_default()]);
        }
        let mut out = std::io::stdout().lock();
        match table.is_empty() {
            true => writeln!(out, "no nodes follow this server")?,
            false => table.write(&mut out)?,
        }
    }
    Ok(if refuses { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Prints what a server itself runs; fails if it refused newer rules.
pub(super) fn status(remote: &Remote, shown: Shown) -> anyhow::Result<ExitCode> {
    let status: Value = remote.get(&["v1", "rules-status"], "asking")?.parse()?;
    if shown.json {
        show::json(&status)?;
    } else {
        let mut out = std::io::stdout().lock();
        for (name, value) in status.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
            let (name, value) = match name.strip_suffix("_ms_ago") {
                Some(name) => (name, value.as_u64().map_or(plain(value), |ms| format!("{} ago", span(ms)))),
                None => (&**name, plain(value)),
            };
            writeln!(out, "{:<10}  {}", clean(name), clean(&value))?;
        }
    }
    let refused = status.get("refused").is_some_and(|refused| !refused.is_null());
    Ok(if refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
