//! Which node runs what, as nodes tell when they ask for rules.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::comment::text;
use super::fault::Fault;
use super::limits::{MAX_NODE_NAME, MAX_NODES, MAX_WHY};
use super::reply::{self, Reply};
use super::{Desk, etag};
use crate::control::model::{NodeReport, Refused};

const NODE: &str = "tollgate-node";
const RUNNING: &str = "tollgate-running";
const REFUSED: &str = "tollgate-refused";

/// What was last heard of each node.
#[derive(Debug, Default)]
pub(super) struct Nodes(Mutex<HashMap<String, ReadReady>>);

/// What a node said about itself.
#[derive(Clone, Debug)]
pub(super) struct ReadReady {
    running: Option<i64>,
    refused: Option<Refused>,
    at: Instant,
}

impl Nodes {
    /// Takes note of what a node said. If there are too many, the one that was silent longest is forgotten.
    pub(super) fn heard(&self, node: &str, heard: ReadReady) {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if nodes.len() >= MAX_NODES && !nodes.contains_key(node) {
            let silent = nodes.iter().min_by_key(|(_, heard)| heard.at).map(|(name, _)| name.clone());
            silent.and_then(|name| nodes.remove(&name));
        }
        nodes.insert(node.to_owned(), heard);
    }

    /// All of them, by name.
    fn reports(&self, now: Instant) -> Vec<NodeReport> {
        let nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut reports: Vec<NodeReport> = nodes
            .into_iter()
            .map(|(node, heard)| NodeReport {
                node,
                running: heard.running,
                refused: heard.refused,
                seen_ms_ago: now.saturating_duration_since(heard.at).as_millis().try_into().unwrap_or(u64::MAX),
            })
            .collect();
        reports.sort_by(|one, other| one.node.cmp(&other.node));
        reports
    }
}

/// What a node says about itself in its headers; none if it gives no name.
///
/// # Errors
/// When they cannot be understood.
pub(super) fn report(headers: &HeaderMap, now: Instant) -> Result<Option<(String, ReadReady)>, Fault> {
    let Some(node) = text(headers, NODE)?.filter(|node| !node.is_empty()) else { return Ok(None) };
    if node.chars().count() > MAX_NODE_NAME {
        return Err(Fault::bad_request(format!("the name of a node has at most {MAX_NODE_NAME} characters")));
    }
    let whole = |text: &str| {
        let wrong = || Fault::bad_request(format!("{RUNNING} and {REFUSED} begin with the number of a revision"));
        text.parse::<i64>().map_err(|_| wrong())
    };
    let running = text(headers, RUNNING)?.map(|running| whole(running.trim())).transpose()?;
    let refused = text(headers, REFUSED)?.map(|refused| {
        let (revision, why) = refused.split_once(' ').unwrap_or((&refused, ""));
        let why = why.chars().take(MAX_WHY).collect();
        whole(revision).map(|revision| Refused { revision, why })
    });
    Ok(Some((node, ReadReady { running, refused: refused.transpose()?, at: now })))
}

/// The nodes that follow this service.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct NodeList {
    /// By name.
    items: Vec<NodeReport>,
}

/// The nodes that follow this service, and what each runs.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", responses(
    (status = 200, description = "The nodes, as they last told", body = NodeList, headers(("etag" = String, description = "The revision of the rules"))),
))]
pub(super) async fn list(State(desk): State<Arc<Desk>>) -> Reply {
    let items = desk.nodes.reports(Instant::now());
    // What nodes say changes all the time, so nobody is told that they have it already.
    reply::json(StatusCode::OK, &etag::of(desk.revision()), &NodeList { items })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_node_tells_what_it_runs_and_what_it_would_not() {
        let now = Instant::now();
        assert!(report(&headers(&[(RUNNING, "3")]), now).is_ok_and(|report| report.is_none()), "it has no name");
        let told = headers(&[(NODE, "a%20b:8080"), (RUNNING, "3"), (REFUSED, "4 line%201 is%20wrong")]);
        let (node, heard) = report(&told, now).unwrap().unwrap();
        let nodes = Nodes::default();
        nodes.heard(&node, heard);
        let reports = nodes.reports(now + Duration::from_millis(1_500));
        assert_eq!(
            reports,
            [NodeReport {
                node: "a b:8080".into(),
                running: Some(3),
                refused: Some(Refused { revision: 4, why: "line 1 is wrong".into() }),
                seen_ms_ago: 1_500,
            }]
        );
        for wrong in [[(NODE, "a"), (RUNNING, "x")], [(NODE, "a"), (REFUSED, "why")]] {
            assert!(report(&headers(&wrong), now).is_err(), "{wrong:?}");
        }
        assert!(report(&headers(&[(NODE, &"n".repeat(MAX_NODE_NAME + 1))]), now).is_err());
        let long = format!("4 {}", "w".repeat(2 * MAX_WHY));
        let (_, heard) = report(&headers(&[(NODE, "a"), (REFUSED, &long)]), now).unwrap().unwrap();
        assert_eq!(heard.refused.unwrap().why.len(), MAX_WHY);
    }

    #[test]
    fn the_one_that_was_silent_longest_gives_way() {
        let nodes = Nodes::default();
        let start = Instant::now();
        for number in 0..=MAX_NODES as u64 {
            let at = start + Duration::from_millis(number);
            nodes.heard(&format!("node-{number}"), ReadReady { running: None, refused: None, at });
        }
        let reports = nodes.reports(start);
        assert_eq!(reports.len(), MAX_NODES);
        assert!(reports.iter().all(|report| report.node != "node-0"));
    }
}
