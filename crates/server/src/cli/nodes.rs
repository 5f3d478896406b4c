//! `tollgate nodes`: shows the servers that share limits with a server.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::remote::output::{self, OutputArgs, TextTable};
use super::remote::{Remote, ServerArgs};
use super::{count_with_noun, exit_code};
use crate::observe::peers::{Node, Peer, PeersPage};

#[derive(Clone, Debug, Args)]
pub(super) struct NodesArgs {
    #[command(flatten)]
    server: ServerArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate nodes
  tollgate nodes --server https://10.0.0.9:8080 --json

For servers with `--store peers://…`. RULES is the revision and the checksum of the rules that a server runs, LINKS the number of
its links. LAG has two numbers: the updates that the other server has not acknowledged, and its updates that are missing here.
HOMES is the number of keys about which a server decides under strict rules, OVERSHOOT the tokens that passed beyond limits. The exit status is 1 if the server sees no majority of the servers, or has no link to one of them.";

/// Prints the servers that share limits, as the queried server sees them.
///
/// # Errors
/// Returns an error if the server cannot be reached or refuses the request.
pub(super) fn run(args: &NodesArgs) -> anyhow::Result<ExitCode> {
    let answer = Remote::new(&args.server)?.get(&["v1", "peers"])?;
    let page: PeersPage = answer.parse()?;
    if args.output.json {
        output::print_json(&answer.parse::<Value>()?)?;
        return Ok(exit_code(is_healthy(&page)));
    }
    let Some(node) = &page.node else {
        writeln!(std::io::stdout(), "this server does not share limits with others (--store peers://…)")?;
        return Ok(exit_code(true));
    };
    let mut table =
        TextTable::new(&["NODE", "ADDRESS", "STATE", "RULES", "LINK", "LINKS", "LAG", "HOMES", "OVERSHOOT"]);
    table.add_row(node_row(node, "this server", String::new()));
    for Peer { node, linked, unacknowledged, missing, .. } in &page.peers {
        let link = if *linked { "linked" } else { "no link" };
        table.add_row(node_row(node, link, format!("{unacknowledged} unacknowledged, {missing} missing")));
    }
    table.print("")?;
    writeln!(std::io::stdout(), "{}", summary(&page))?;
    Ok(exit_code(is_healthy(&page)))
}

fn summary(page: &PeersPage) -> String {
    let majority = if page.majority { "with a majority" } else { "no majority: on_fault decides for strict rules" };
    let share = if page.nodes == 1 { "shares" } else { "share" };
    let count = |count: u64, noun| count_with_noun(usize::try_from(count).unwrap_or(usize::MAX), noun);
    let (nodes, keys) = (count(page.nodes.into(), "server"), count(page.keys, "key"));
    let overshoot = count(page.overshoot, "token");
    format!("{nodes} {share} limits, {majority}; {keys}, {overshoot} beyond a limit")
}

fn node_row(node: &Node, link: &str, lag: String) -> [String; 9] {
    let rules = match (&node.revision, &node.checksum) {
        (Some(revision), Some(checksum)) => format!("{revision} {}", checksum.get(..8).unwrap_or(checksum)),
        (Some(revision), None) => revision.to_string(),
        (None, _) => "none".to_owned(),
    };
    let (links, homes, overshoot) = (node.links.to_string(), node.homes.to_string(), node.overshoot.to_string());
    let (name, address, state) = (node.name.clone(), node.address.clone(), node.state.clone());
    [name, address, state, rules, link.to_owned(), links, lag, homes, overshoot]
}

fn is_healthy(page: &PeersPage) -> bool {
    page.majority && page.peers.iter().all(|peer| peer.linked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_uses_singular_and_plural() {
        let peers = crate::observe::peers::Peers::default();
        peers.set(crate::observe::peers::sample_status());
        let several = PeersPage { majority: true, nodes: 3, keys: 0, overshoot: 0, ..peers.page() };
        assert_eq!(summary(&several), "3 servers share limits, with a majority; 0 keys, 0 tokens beyond a limit");
        let one = PeersPage { nodes: 1, keys: 1, overshoot: 1, ..several };
        assert_eq!(summary(&one), "1 server shares limits, with a majority; 1 key, 1 token beyond a limit");
    }
}
