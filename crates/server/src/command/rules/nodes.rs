//! Who runs what.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

use crate::command::remote::show::{self, Table, clean, span};
use crate::command::remote::{Listed, Remote};
use crate::config::remote::Shown;
use crate::control::model::{DomainSummary, NodeReport, Refused};
use crate::control::origin::RulesStatus;

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
            let refused = node.refused.as_ref().map(told);
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

/// What would not run, in one line, however many mistakes it has.
fn told(refused: &Refused) -> String {
    let why: Vec<&str> = refused.why.lines().collect();
    format!("revision {}: {}", refused.revision, why.join("; "))
}

/// Prints what a server itself runs, how much of it, and what each of its domains has; fails if it refused newer rules.
pub(super) fn status(remote: &Remote, shown: Shown) -> anyhow::Result<ExitCode> {
    let answer = remote.get(&["v1", "rules-status"], "asking")?;
    let status: RulesStatus = answer.parse()?;
    let refused = status.refused.is_some();
    if shown.json {
        show::json(&answer.parse::<Value>()?)?;
    } else {
        let lines = [
            ("source", Some(status.source)),
            ("revision", status.revision.map(|revision| revision.to_string())),
            ("domains", status.domains.map(|count| count.to_string())),
            ("rules", status.rules.map(|count| count.to_string())),
            ("overrides", status.overrides.map(|count| count.to_string())),
            ("checksum", status.checksum),
            ("loaded", status.loaded_ms_ago.map(|ms| format!("{} ago", span(ms)))),
            ("refused", status.refused.as_ref().map(told)),
        ];
        let mut out = std::io::stdout().lock();
        for (name, value) in lines {
            if let Some(value) = value {
                writeln!(out, "{name:<10}{}", clean(&value))?;
            }
        }
        // A server that keeps its rules itself knows when each domain was last changed; others have nothing to add.
        let listed = remote.get(&["v1", "domains"], "asking").and_then(|answer| answer.parse::<Listed>());
        let mut table = Table::new(&["DOMAIN", "RULES", "OVERRIDES BESIDE THEM", "CHANGED IN REVISION"]);
        for domain in listed.and_then(Listed::parse::<DomainSummary>).unwrap_or_default() {
            let numbers = [domain.rules, domain.overrides, domain.revision].map(|number| number.to_string());
            let [rules, overrides, revision] = numbers;
            table.row([domain.domain, rules, overrides, revision]);
        }
        if !table.is_empty() {
            table.write(&mut out)?;
        }
    }
    Ok(if refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
