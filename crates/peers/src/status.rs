//! Status of a node and its peers, for status pages and metrics.

use crate::NodeId;
use crate::greeting::{NodeFigures, NodeRecord};
use crate::hub::Stage;
use crate::mesh::{MemberState, MeshCounts};
use crate::table::TableCounts;

/// Identity and state of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Id of the node, which changes at every restart.
    pub node: NodeId,
    /// Name of the node.
    pub name: String,
    /// Address that other nodes dial.
    pub address: String,
    /// State that the node announces.
    pub state: &'static str,
    /// Figures from the node's last heartbeat.
    pub figures: NodeFigures,
}

impl From<&NodeRecord> for NodeInfo {
    fn from(record: &NodeRecord) -> Self {
        let state = match record.state {
            MemberState::Joining => "joining",
            MemberState::Ready => "ready",
            MemberState::Leaving => "leaving",
        };
        let (name, address) = (record.name.clone(), record.address.to_string());
        Self { node: record.node, name, address, state, figures: record.figures }
    }
}

/// A node's view of one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Identity of the peer.
    pub info: NodeInfo,
    /// Whether the peer is linked.
    pub linked: bool,
    /// Number of keys whose home is the peer; an estimate if there are many keys.
    pub homes: u64,
    /// Bytes queued for the peer.
    pub queued_bytes: usize,
    /// Deltas of this node that the peer has not acknowledged.
    pub unacknowledged: u64,
    /// Deltas of the peer that are known to be missing here.
    pub missing: u64,
}

/// A node's view of itself and all peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Identity of this node.
    pub info: NodeInfo,
    /// Number of keys whose home is this node; an estimate if there are many keys.
    pub homes: u64,
    /// Lifecycle stage.
    pub stage: Stage,
    /// Number of nodes that share the limits, including this node.
    pub nodes: u32,
    /// Whether this node sees a majority of the nodes.
    pub has_majority: bool,
    /// Live peers.
    pub peers: Vec<PeerStatus>,
    /// Bytes of deltas kept for other nodes.
    pub ring_bytes: usize,
    /// Replication counters.
    pub mesh: MeshCounts,
    /// Table counters.
    pub table: TableCounts,
    /// Link counters.
    pub links: LinkCounts,
}

/// Counters over all links of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Bytes received.
    pub received: u64,
    /// Groups sent to their home.
    pub asked: u64,
    /// Groups received from other nodes.
    pub answered: u64,
    /// Refused connections.
    pub refused: u64,
}
