//! Checks that a running server answers, that its peers are linked, that no node is stale, and that no key receives
//! nearly all traffic of its rule.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;

use super::DoctorFinding;
use super::rules::root_cause;
use crate::cli::count_with_noun;
use crate::cli::remote::{ListAnswer, ServerArgs};
use crate::client::Client;
use crate::control::model::NodeReport;
use crate::observe::peers::PeersPage;
use crate::observe::top_keys::{TopKeysPage, TopRule};
use crate::rules_source::status::RulesStatus;

/// Timeout of a call.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Time without a report after which a node counts as silent. A node polls about every 30 s, or more often.
const SILENT_AFTER: Duration = Duration::from_secs(90);

/// A key that takes more than this percentage of its rule's charged tokens is reported.
const MAX_KEY_PERCENT: u64 = 90;

/// A rule with fewer charged tokens is not checked, because its percentages would not be meaningful.
const MIN_CHARGED_TOKENS: u64 = 1_000;

/// Checks a running server.
pub(super) async fn check_running_server(args: &ServerArgs) -> Vec<DoctorFinding> {
    let client = match args.client() {
        Ok(client) => client,
        Err(error) => {
            return vec![DoctorFinding::error("server", format!("{error:#}"), "write it like http://127.0.0.1:8080")];
        }
    };
    let url = client.url().as_str().trim_end_matches('/').to_owned();
    let status: RulesStatus = match get_json(&client, &["v1", "rules-status"]).await {
        Ok(status) => status,
        Err(GetError::Unreachable(why)) => {
            let found = format!("no answer from {url} ({why}), so nodes and keys were not checked");
            return vec![DoctorFinding::warning("server", found, "start it, or name it with --server")];
        }
        Err(GetError::Status(status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN))) => {
            return vec![token_finding(&url, status, args.displayed_token().as_deref())];
        }
        Err(GetError::Status(status)) => {
            let found = format!("{url} answers {status} to /v1/rules-status");
            return vec![DoctorFinding::error("server", found, "name a tollgate server of this version with --server")];
        }
    };
    let mut findings = vec![check_server(&url, &status)];
    // Only a server with a database has nodes.
    let nodes = get_json::<ListAnswer>(&client, &["v1", "nodes"]).await.map(ListAnswer::parse::<NodeReport>);
    if let Ok(Ok(nodes)) = nodes {
        findings.extend(node_findings(&nodes, status.revision));
    }
    if let Ok(page) = get_json::<PeersPage>(&client, &["v1", "peers"]).await {
        findings.extend(peers_finding(&page));
    }
    if let Ok(top) = get_json::<TopKeysPage>(&client, &["v1", "top"]).await {
        findings.extend(key_findings(&top));
    }
    findings
}

/// Returns the finding about a server that refuses the call. `token` is the part of the token that may be shown.
fn token_finding(url: &str, status: StatusCode, token: Option<&str>) -> DoctorFinding {
    let found = match token {
        None => format!("{url} requires a token"),
        Some(token) if status == StatusCode::UNAUTHORIZED => format!("{url} does not know the token {token}"),
        Some(token) => format!("the token {token} may not read the status of {url}"),
    };
    DoctorFinding::warning("server", found, "set TOLLGATE_TOKEN to a token with the role reader")
}

fn check_server(url: &str, status: &RulesStatus) -> DoctorFinding {
    let found =
        format!("{url} runs with {}, from {}", count_with_noun(status.rules.unwrap_or(0), "rule"), status.source);
    match &status.refused {
        Some(refused) => DoctorFinding::error(
            "server",
            format!("{url} refused the rules of revision {}: {}", refused.revision, refused.why),
            "correct them; the previous rules stay in force",
        ),
        None => DoctorFinding::ok("server", found),
    }
}

/// Returns a finding for each stale or silent node, or a single `ok` finding if there is none.
fn node_findings(nodes: &[NodeReport], revision: Option<i64>) -> Vec<DoctorFinding> {
    let newest = revision.or_else(|| nodes.iter().filter_map(|node| node.running).max()).unwrap_or(0);
    let mut findings = Vec::new();
    for node in nodes {
        let name = &node.node;
        let silent = Duration::from_millis(node.seen_ms_ago);
        if let Some(refused) = &node.refused {
            let found = format!("{name} refuses revision {}: {}", refused.revision, refused.why);
            findings.push(DoctorFinding::error("node", found, "update the node, or correct the rules"));
        } else if silent > SILENT_AFTER {
            let found = format!("{name} has not reported for {} s", silent.as_secs());
            findings.push(DoctorFinding::warning(
                "node",
                found,
                "check that the node is running and reaches this server",
            ));
        } else if node.running.unwrap_or(0) < newest {
            let runs = node.running.map_or("no rules".to_owned(), |revision| format!("revision {revision}"));
            let found = format!("{name} runs {runs}, but the newest is {newest}");
            findings.push(DoctorFinding::warning(
                "node",
                found,
                "check again in a second; if the node is still behind, read its log",
            ));
        }
    }
    if findings.is_empty() {
        findings.push(DoctorFinding::ok(
            "nodes",
            match nodes.len() {
                0 => "none follow this server".to_owned(),
                number => format!("{} up to date", count_with_noun(number, "node")),
            },
        ));
    }
    findings
}

/// Returns a finding for each rule with a key that receives nearly all its traffic, or a single `ok` finding if there
/// is none.
fn key_findings(top: &TopKeysPage) -> Vec<DoctorFinding> {
    let findings: Vec<DoctorFinding> = top.rules.iter().filter_map(key_finding).collect();
    if findings.is_empty() {
        vec![DoctorFinding::ok("keys", "no key takes nearly all traffic of its rule")]
    } else {
        findings
    }
}

fn key_finding(rule: &TopRule) -> Option<DoctorFinding> {
    let [first, _, ..] = &*rule.charged else {
        // A single key is normal: the rule counts all requests together, or has seen only one caller.
        return None;
    };
    let total: u64 = rule.charged.iter().map(|key| key.count.saturating_sub(key.error)).sum();
    let own = first.count.saturating_sub(first.error);
    if total < MIN_CHARGED_TOKENS || own * 100 <= total * MAX_KEY_PERCENT {
        return None;
    }
    let rule = rule.rule.as_deref().unwrap_or("inline limits");
    let found = format!("{} takes {} % of the tokens of {rule}", first.key, own * 100 / total);
    let action = "a proxy in front may hide the clients (--trusted-proxies), or this caller needs its own limit";
    Some(DoctorFinding::warning("key", found, action))
}

/// Returns a finding about the servers that share limits with the checked server, if there are any.
fn peers_finding(page: &PeersPage) -> Option<DoctorFinding> {
    let own = page.node.as_ref()?;
    let unlinked: Vec<&str> = page.peers.iter().filter(|peer| !peer.linked).map(|peer| &*peer.node.name).collect();
    let is_other = |checksum: &Option<String>| checksum.is_some() && *checksum != own.checksum;
    let others = page.peers.iter().filter(|peer| is_other(&peer.node.checksum));
    let others: Vec<&str> = others.map(|peer| &*peer.node.name).collect();
    Some(if !page.majority {
        let found =
            format!("the server sees no majority of the {} servers that share limits, so on_fault decides", page.nodes);
        DoctorFinding::warning("peers", found, "start the others, or check the network between them")
    } else if !unlinked.is_empty() {
        let found = format!("no link to {}", unlinked.join(", "));
        DoctorFinding::warning("peers", found, "check the network between the servers; the log has the reason")
    } else if !others.is_empty() {
        let found = format!("other rules on {}", others.join(", "));
        DoctorFinding::warning("peers", found, "check again in a second; all servers should have the same rules")
    } else {
        DoctorFinding::ok("peers", format!("{}, all linked", count_with_noun(page.nodes as usize, "server")))
    })
}

enum GetError {
    Unreachable(String),
    Status(StatusCode),
}

async fn get_json<T: DeserializeOwned>(client: &Client, path: &[&str]) -> Result<T, GetError> {
    let answer = client.request(Method::GET, path).timeout(CALL_TIMEOUT).send().await;
    let answer = answer.map_err(|error| GetError::Unreachable(root_cause(&error)))?;
    let status = answer.status();
    let body = if status.is_success() { answer.bytes().await.ok() } else { None };
    body.and_then(|body| serde_json::from_slice(&body).ok()).ok_or(GetError::Status(status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::top_keys::TopKey;

    fn top_keys_page(counts: &[u64]) -> TopKeysPage {
        let key = |(number, count): (usize, &u64)| TopKey { key: format!("user={number}"), count: *count, error: 0 };
        let charged = counts.iter().enumerate().map(key).collect();
        let rule = TopRule { domain: "d".into(), rule: Some("r".into()), charged, refused: Vec::new() };
        TopKeysPage { rules: vec![rule], half_life_s: 600 }
    }

    #[test]
    fn only_a_key_with_nearly_all_of_many_tokens_is_reported() {
        for (counts, expected) in [
            (&[5_000, 10][..], "user=0 takes 99 % of the tokens of r"),
            (&[900, 50], "no key"),
            (&[5_000, 4_000], "no key"),
            (&[5_000], "no key"),
            (&[], "no key"),
        ] {
            let found = key_findings(&top_keys_page(counts));
            assert!(found.len() == 1 && found[0].text.contains(expected), "{counts:?}: {found:?}");
        }
    }

    #[test]
    fn missing_majority_and_links_and_other_rules_are_reported() {
        let peers = crate::observe::peers::Peers::default();
        assert!(peers_finding(&peers.page()).is_none(), "another store");
        peers.set(crate::observe::peers::sample_status());
        let well = peers.page();
        assert_eq!(peers_finding(&well).unwrap().to_string(), "ok       peers         2 servers, all linked");
        let text = |change: &dyn Fn(&mut PeersPage)| {
            let mut page = well.clone();
            change(&mut page);
            peers_finding(&page).unwrap().to_string()
        };
        let lone = text(&|page| page.majority = false);
        assert!(lone.starts_with("warning  peers         the server sees no majority of the 2 servers"), "{lone}");
        assert!(text(&|page| page.peers[0].linked = false).contains("no link to n2; check"));
        assert!(text(&|page| page.peers[0].node.checksum = Some("1".into())).contains("other rules on n2; check"));
    }

    #[test]
    fn missing_unknown_and_insufficient_tokens_are_distinguished() {
        let text = |status, token| token_finding("http://h", status, token).text;
        let action = "; set TOLLGATE_TOKEN to a token with the role reader";
        for (status, token, expected) in [
            (StatusCode::UNAUTHORIZED, None, "http://h requires a token"),
            (StatusCode::UNAUTHORIZED, Some("`3f9a`"), "http://h does not know the token `3f9a`"),
            (StatusCode::FORBIDDEN, Some("`3f9a`"), "the token `3f9a` may not read the status of http://h"),
        ] {
            assert_eq!(text(status, token), format!("{expected}{action}"));
        }
    }

    #[test]
    fn stale_silent_and_refusing_nodes_are_reported() {
        let node = |running, seen_ms_ago| NodeReport { node: "n".into(), running, refused: None, seen_ms_ago };
        let texts =
            |nodes: &[NodeReport]| node_findings(nodes, Some(7)).into_iter().map(|it| it.text).collect::<Vec<_>>();
        assert_eq!(texts(&[]), ["none follow this server"]);
        assert_eq!(texts(&[node(Some(7), 10)]), ["1 node up to date"]);
        assert!(texts(&[node(Some(6), 10)])[0].starts_with("n runs revision 6, but the newest is 7"));
        assert!(texts(&[node(Some(7), 100_000)])[0].starts_with("n has not reported for 100 s"));
    }
}
