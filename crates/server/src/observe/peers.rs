//! The status of the servers that share limits with this server, as a page and as metrics.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tollgate_peers::{NodeInfo, NodeStatus, Stage};
use utoipa::ToSchema;

use super::metrics::MetricsText;
use super::rule_metrics::escape_label;

/// The last status of the peers, or `None` if the store is not `peers`.
#[derive(Debug, Default)]
pub struct Peers(Mutex<Option<NodeStatus>>);

/// The response of `GET /v1/peers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PeersPage {
    /// This server; null if its store is not `peers`.
    #[schema(inline)]
    pub node: Option<Node>,
    /// Number of servers that share the limits, including this one.
    pub nodes: u32,
    /// Whether this server sees a majority of the servers. Without a majority, `on_fault` decides for strict rules.
    pub majority: bool,
    /// Whether this server had received the states of the other servers when it became ready. Also true if no other
    /// server was ready.
    pub complete: bool,
    /// Number of keys that this server stores.
    pub keys: u64,
    /// Number of tokens that all servers together admitted beyond a limit, as seen by this server.
    pub overshoot: u64,
    /// The other servers that are alive, by name.
    #[schema(inline)]
    pub peers: Vec<Peer>,
}

/// A server of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// The id of the server, which changes with every restart.
    pub id: String,
    /// The name of the server.
    pub name: String,
    /// The address at which others reach the server.
    pub address: String,
    /// `joining`, `ready` or `leaving`. Ready servers are the homes of keys.
    pub state: String,
    /// The revision of the rules that the server runs; null if it has none.
    pub revision: Option<u64>,
    /// The first 16 digits of the checksum of the server's rules, equal on servers with the same rules; null if not known.
    pub checksum: Option<String>,
    /// Number of links of the server to other servers.
    pub links: u16,
    /// Number of keys whose home is the server. An estimate if there are more than about 4,000 keys.
    pub homes: u64,
    /// Number of tokens that all servers together admitted beyond a limit, as seen by the server.
    pub overshoot: u64,
}

/// Another server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Peer {
    /// The server.
    #[serde(flatten)]
    #[schema(inline)]
    pub node: Node,
    /// Whether this server has a link to the peer.
    pub linked: bool,
    /// Number of deltas of this server that the peer has not acknowledged.
    pub unacknowledged: u64,
    /// Number of deltas of the peer that this server has not received.
    pub missing: u64,
    /// Number of bytes that wait to be written to the peer.
    pub queued_bytes: u64,
}

impl Node {
    fn new(info: &NodeInfo, homes: u64) -> Self {
        let NodeInfo { node, name, address, state, figures } = info;
        Self {
            id: node.to_string(),
            name: name.clone(),
            address: address.clone(),
            state: (*state).to_owned(),
            revision: Some(figures.rules_revision).filter(|revision| *revision > 0),
            checksum: Some(figures.rules_checksum).filter(|checksum| *checksum > 0).map(|it| format!("{it:016x}")),
            links: figures.links,
            homes,
            overshoot: figures.overshoot,
        }
    }
}

impl Peers {
    /// Sets the status.
    pub fn set(&self, status: NodeStatus) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }

    /// Returns the response of `GET /v1/peers`.
    pub fn page(&self) -> PeersPage {
        let status = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(status) = &*status else {
            let (nodes, majority, complete) = (1, true, true);
            return PeersPage { node: None, nodes, majority, complete, keys: 0, overshoot: 0, peers: Vec::new() };
        };
        let peers = status.peers.iter().map(|peer| Peer {
            node: Node::new(&peer.info, peer.homes),
            linked: peer.linked,
            unacknowledged: peer.unacknowledged,
            missing: peer.missing,
            queued_bytes: peer.queued_bytes as u64,
        });
        let mut peers: Vec<Peer> = peers.collect();
        peers.sort_by(|one, other| one.node.name.cmp(&other.node.name));
        PeersPage {
            node: Some(Node::new(&status.info, status.homes)),
            nodes: status.nodes,
            majority: status.has_majority,
            complete: status.stage == Stage::Ready { complete: true },
            keys: status.table.keys,
            overshoot: status.table.overshoot,
            peers,
        }
    }

    /// Writes the metrics, if the store is `peers`.
    pub(super) fn write(&self, page: &mut MetricsText) {
        let status = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(status) = &*status else { return };
        page.write_gauge(
            "tollgate_peers_nodes",
            "Servers that share the limits, including this one.",
            status.nodes.into(),
        );
        page.write_gauge(
            "tollgate_peers_majority",
            "1 while this server sees a majority of the servers.",
            status.has_majority.into(),
        );
        page.write_head("tollgate_peers_linked", "gauge", "1 while this server has a link to the named live server.");
        for peer in &status.peers {
            page.write_line(&peer_label(&peer.info), u8::from(peer.linked));
        }
        page.write_head("tollgate_peers_unacknowledged", "gauge", "Deltas that the named server has not acknowledged.");
        for peer in &status.peers {
            page.write_line(&peer_label(&peer.info), peer.unacknowledged);
        }
        page.write_head("tollgate_peers_missing", "gauge", "Deltas from the named server that are missing here.");
        for peer in &status.peers {
            page.write_line(&peer_label(&peer.info), peer.missing);
        }
        page.write_head(
            "tollgate_peers_same_rules",
            "gauge",
            "1 while the named server runs the same rules as this one.",
        );
        let own = status.info.figures.rules_checksum;
        for peer in &status.peers {
            page.write_line(&peer_label(&peer.info), u8::from(peer.info.figures.rules_checksum == own));
        }
        page.write_head("tollgate_peers_homes", "gauge", "Estimated number of keys whose home is the named server.");
        let homes = status.peers.iter().map(|peer| (&peer.info, peer.homes));
        for (info, homes) in [(&status.info, status.homes)].into_iter().chain(homes) {
            page.write_line(&peer_label(info), homes);
        }
        let NodeStatus { table, mesh, links, .. } = status;
        page.write_gauge("tollgate_peers_keys", "Keys that this server stores for all servers.", table.keys);
        for (name, help, value) in [
            (
                "tollgate_peers_overshoot_tokens_total",
                "Tokens that all servers together admitted beyond a limit, for keys that this server charged too.",
                table.overshoot,
            ),
            (
                "tollgate_peers_forgiven_tokens_total",
                "Tokens taken on other servers that arrived too late to be charged in full.",
                table.forgiven,
            ),
            (
                "tollgate_peers_dropped_total",
                "Updates from other servers that were dropped for lack of space.",
                table.dropped,
            ),
            ("tollgate_peers_deltas_total", "Deltas that this server has sent.", mesh.deltas),
            ("tollgate_peers_applied_total", "Deltas from other servers that were applied.", mesh.applied),
            ("tollgate_peers_snapshots_total", "Snapshots from other servers that were merged.", mesh.snapshots),
            ("tollgate_peers_received_bytes_total", "Bytes received from other servers.", links.received),
            ("tollgate_peers_asked_total", "Requests that were decided by another server.", links.asked),
            ("tollgate_peers_answered_total", "Requests that arrived from other servers.", links.answered),
            (
                "tollgate_peers_refused_links_total",
                "Connections from other servers that this server refused.",
                links.refused,
            ),
        ] {
            page.write_counter(name, help, value);
        }
    }
}

/// Returns the label of a peer. Names are escaped, because other servers choose them.
fn peer_label(info: &NodeInfo) -> String {
    format!("{{peer=\"{}\"}}", escape_label(&info.name))
}

/// Returns a sample status with all values set, for tests of the metrics.
#[cfg(test)]
pub(crate) fn sample_status() -> NodeStatus {
    use tollgate_peers::mesh::MeshCounts;
    use tollgate_peers::table::TableCounts;
    use tollgate_peers::{LinkCounts, NodeFigures, NodeId, PeerStatus};
    let info = |node: u64| NodeInfo {
        node: NodeId(node),
        name: format!("n{node}"),
        address: format!("10.0.0.{node}:7400"),
        state: "ready",
        figures: NodeFigures { rules_revision: 3, rules_checksum: 0xab, links: 1, overshoot: node },
    };
    NodeStatus {
        info: info(1),
        homes: 6,
        stage: Stage::Ready { complete: true },
        nodes: 2,
        has_majority: true,
        peers: vec![PeerStatus {
            info: info(2),
            linked: true,
            homes: 4,
            queued_bytes: 3,
            unacknowledged: 4,
            missing: 5,
        }],
        ring_bytes: 6,
        mesh: MeshCounts { deltas: 7, applied: 8, snapshots: 9, ..MeshCounts::default() },
        table: TableCounts { keys: 10, dropped: 11, forgiven: 12, overshoot: 13, overflowed: 0 },
        links: LinkCounts { received: 14, asked: 15, answered: 16, refused: 17 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_peers_are_escaped_in_labels() {
        let info = NodeInfo { name: r#"a"} 1 \n"#.to_owned(), ..sample_status().info };
        assert_eq!(peer_label(&info), r#"{peer="a\"} 1 \\n"}"#);
    }

    #[test]
    fn page_shows_this_server_and_the_others() {
        let peers = Peers::default();
        assert_eq!((peers.page().node, peers.page().nodes), (None, 1));
        peers.set(sample_status());
        let page = peers.page();
        assert_eq!(page.node.as_ref().map(|node| &*node.name), Some("n1"));
        assert_eq!((page.peers[0].unacknowledged, page.peers[0].missing, page.overshoot), (4, 5, 13));
        let json = serde_json::to_value(&page).unwrap();
        assert_eq!(json["peers"][0]["address"], "10.0.0.2:7400");
        assert_eq!(
            (&json["peers"][0]["revision"], &json["peers"][0]["checksum"]),
            (&3.into(), &"00000000000000ab".into())
        );
        assert_eq!((&json["node"]["homes"], &json["peers"][0]["overshoot"]), (&6.into(), &2.into()));
        assert_eq!(serde_json::from_value::<PeersPage>(json).unwrap(), page);
    }
}
