//! The nodes that follow this service, and the revisions that they report with each request.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use hyper::{HeaderMap, StatusCode};
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::bounds::{MAX_NODE_NAME_CHARS, MAX_NODES, MAX_REASON_CHARS};
use super::call::{ApiCall, header_text};
use super::reply::{self, ApiResult};
use crate::control::model::{NodeReport, RefusedRevision};
use crate::http::problem::Problem;

pub(super) const NODE_HEADER: &str = "tollgate-node";
const RUNNING_HEADER: &str = "tollgate-running";
const REFUSED_HEADER: &str = "tollgate-refused";

/// The last report of each node.
#[derive(Debug, Default)]
pub(super) struct Nodes(Mutex<HashMap<String, ReportedRules>>);

/// The revisions that a node reported, and the time of the report.
#[derive(Clone, Debug)]
pub(super) struct ReportedRules {
    running: Option<i64>,
    refused: Option<RefusedRevision>,
    at: Instant,
}

impl Nodes {
    /// Stores a report. If there are too many nodes, drops the node that reported least recently.
    pub(super) fn store_report(&self, node: &str, report: ReportedRules) {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if nodes.len() >= MAX_NODES && !nodes.contains_key(node) {
            let oldest = nodes.iter().min_by_key(|(_, report)| report.at).map(|(name, _)| name.clone());
            oldest.and_then(|name| nodes.remove(&name));
        }
        nodes.insert(node.to_owned(), report);
    }

    /// Returns all nodes, sorted by name.
    fn list(&self, now: Instant) -> Vec<NodeReport> {
        let nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ms_ago = |at| now.saturating_duration_since(at).as_millis().try_into().unwrap_or(u64::MAX);
        let node = |(node, ReportedRules { running, refused, at })| NodeReport {
            node,
            running,
            refused,
            seen_ms_ago: ms_ago(at),
        };
        let mut nodes: Vec<NodeReport> = nodes.into_iter().map(node).collect();
        nodes.sort_by(|one, other| one.node.cmp(&other.node));
        nodes
    }
}

/// Parses a node's report from its request headers. Returns `None` if the headers contain no node name.
///
/// # Errors
/// Returns an error if a header of the report is invalid.
pub(super) fn parse_node_report(headers: &HeaderMap, now: Instant) -> Result<Option<(String, ReportedRules)>, Problem> {
    let Some(node) = header_text(headers, NODE_HEADER)?.filter(|node| !node.is_empty()) else { return Ok(None) };
    if node.chars().count() > MAX_NODE_NAME_CHARS {
        return Err(Problem::bad_request(format!("node name too long (maximum {MAX_NODE_NAME_CHARS} characters)")));
    }
    let revision = |text: &str| {
        let invalid = || {
            Problem::bad_request(format!("invalid {RUNNING_HEADER} or {REFUSED_HEADER}: both begin with a revision"))
        };
        text.parse::<i64>().map_err(|_| invalid())
    };
    let running = header_text(headers, RUNNING_HEADER)?.map(|running| revision(running.trim())).transpose()?;
    let refused = header_text(headers, REFUSED_HEADER)?.map(|refused| {
        let (number, why) = refused.split_once(' ').unwrap_or((&refused, ""));
        let why = why.chars().take(MAX_REASON_CHARS).collect();
        revision(number).map(|revision| RefusedRevision { revision, why })
    });
    Ok(Some((node, ReportedRules { running, refused: refused.transpose()?, at: now })))
}

/// The nodes that follow this service.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct NodeList {
    /// The nodes, by name.
    items: Vec<NodeReport>,
}

/// Lists the nodes that follow this service, with the revision that each node runs.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", operation_id = "list_nodes", responses(
    (status = 200, description = "The nodes, as they last reported", body = NodeList, headers(("etag" = String, description = "The revision of the rules"))),
))]
pub(super) async fn list(call: ApiCall) -> ApiResult {
    let items = call.state.nodes.list(Instant::now());
    // Reports change constantly, so this call never replies 304.
    reply::reply_json(StatusCode::OK, &call.revision_tag(), &NodeList { items })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn header_map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn report_is_parsed_and_listed() {
        let now = Instant::now();
        assert!(
            parse_node_report(&header_map(&[(RUNNING_HEADER, "3")]), now).is_ok_and(|report| report.is_none()),
            "a report without a name"
        );
        let sent = header_map(&[
            (NODE_HEADER, "a%20b:8080"),
            (RUNNING_HEADER, "3"),
            (REFUSED_HEADER, "4 line%201 is%20wrong"),
        ]);
        let (node, parsed) = parse_node_report(&sent, now).unwrap().unwrap();
        let nodes = Nodes::default();
        nodes.store_report(&node, parsed);
        let listed = nodes.list(now + Duration::from_millis(1_500));
        assert_eq!(
            listed,
            [NodeReport {
                node: "a b:8080".into(),
                running: Some(3),
                refused: Some(RefusedRevision { revision: 4, why: "line 1 is wrong".into() }),
                seen_ms_ago: 1_500,
            }]
        );
        for invalid in [[(NODE_HEADER, "a"), (RUNNING_HEADER, "x")], [(NODE_HEADER, "a"), (REFUSED_HEADER, "why")]] {
            assert!(parse_node_report(&header_map(&invalid), now).is_err(), "{invalid:?}");
        }
        assert!(parse_node_report(&header_map(&[(NODE_HEADER, &"n".repeat(MAX_NODE_NAME_CHARS + 1))]), now).is_err());
        let long = format!("4 {}", "w".repeat(2 * MAX_REASON_CHARS));
        let (_, parsed) =
            parse_node_report(&header_map(&[(NODE_HEADER, "a"), (REFUSED_HEADER, &long)]), now).unwrap().unwrap();
        assert_eq!(parsed.refused.unwrap().why.len(), MAX_REASON_CHARS);
    }

    #[test]
    fn node_that_reported_least_recently_is_dropped() {
        let nodes = Nodes::default();
        let start = Instant::now();
        for number in 0..=MAX_NODES as u64 {
            let at = start + Duration::from_millis(number);
            nodes.store_report(&format!("node-{number}"), ReportedRules { running: None, refused: None, at });
        }
        let listed = nodes.list(start);
        assert_eq!(listed.len(), MAX_NODES);
        assert!(listed.iter().all(|report| report.node != "node-0"));
    }
}
