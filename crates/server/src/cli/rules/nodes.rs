//! Shows the rules in force on a server and on the nodes that follow the server.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

use crate::cli::exit_code;
use crate::cli::remote::output::{self, OutputArgs, TextTable, format_span, replace_control_characters};
use crate::cli::remote::{ListAnswer, Remote};
use crate::control::model::{DomainSummary, NodeReport, RefusedRevision};
use crate::rules_source::status::RulesStatus;

/// Prints the nodes that follow a server. The exit status is 1 if a node refuses the server's rules.
pub(super) fn print_nodes(remote: &Remote, output: OutputArgs) -> anyhow::Result<ExitCode> {
    let listed = remote.get(&["v1", "nodes"])?.parse::<ListAnswer>()?;
    let document = listed.to_json();
    let nodes: Vec<NodeReport> = listed.parse()?;
    let refuses = nodes.iter().any(|node| node.refused.is_some());
    if output.json {
        output::print_json(&document)?;
    } else {
        let mut table = TextTable::new(&["NODE", "RUNS", "SEEN", "REFUSES"]);
        for node in nodes {
            let runs = node.running.map_or("nothing yet".to_owned(), |revision| revision.to_string());
            let refused = node.refused.as_ref().map(describe_refused);
            table.add_row([
                node.node,
                runs,
                format!("{} ago", format_span(node.seen_ms_ago)),
                refused.unwrap_or_default(),
            ]);
        }
        table.print("no nodes follow this server")?;
    }
    Ok(exit_code(!refuses))
}

/// Describes a refused revision in one line.
fn describe_refused(refused: &RefusedRevision) -> String {
    let why: Vec<&str> = refused.why.lines().collect();
    format!("revision {}: {}", refused.revision, why.join("; "))
}

/// Prints the status of the server's own rules, and its domains. The exit status is 1 if the server refused newer
/// rules.
pub(super) fn print_status(remote: &Remote, output: OutputArgs) -> anyhow::Result<ExitCode> {
    let answer = remote.get(&["v1", "rules-status"])?;
    let status: RulesStatus = answer.parse()?;
    let refused = status.refused.is_some();
    if output.json {
        output::print_json(&answer.parse::<Value>()?)?;
    } else {
        let lines = [
            ("source", Some(status.source)),
            ("revision", status.revision.map(|revision| revision.to_string())),
            ("domains", status.domains.map(|count| count.to_string())),
            ("rules", status.rules.map(|count| count.to_string())),
            ("overrides", status.overrides.map(|count| count.to_string())),
            ("checksum", status.checksum),
            ("loaded", status.loaded_ms_ago.map(|ms| format!("{} ago", format_span(ms)))),
            ("refused", status.refused.as_ref().map(describe_refused)),
        ];
        let mut out = std::io::stdout().lock();
        for (name, value) in lines {
            if let Some(value) = value {
                writeln!(out, "{name:<10}{}", replace_control_characters(&value))?;
            }
        }
        // Only a server with a database lists its domains.
        let listed = remote.get(&["v1", "domains"]).and_then(|answer| answer.parse::<ListAnswer>());
        let mut table = TextTable::new(&["DOMAIN", "RULES", "STORED OVERRIDES", "CHANGED IN REVISION"]);
        for domain in listed.and_then(ListAnswer::parse::<DomainSummary>).unwrap_or_default() {
            let numbers = [domain.rules, domain.overrides, domain.revision].map(|number| number.to_string());
            let [rules, overrides, revision] = numbers;
            table.add_row([domain.domain, rules, overrides, revision]);
        }
        if !table.is_empty() {
            table.write(&mut out)?;
        }
    }
    Ok(exit_code(!refused))
}
