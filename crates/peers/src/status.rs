//! What a node knows of itself and its peers, for people and metrics.

use crate::NodeId;
use crate::greeting::Record;
use crate::hub::Stage;
use crate::mesh::{MemberState, MeshCounts};
use crate::table::TableCounts;

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its id, which is another after a restart.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Where others reach it.
    pub address: String,
    /// What it announces of itself.
    pub state: &'static str,
}

impl From<&Record> for NodeInfo {
    fn from(record: &Record) -> Self {
        let state = match record.state {
            MemberState::Joining => "joining",
            MemberState::Ready => "ready",
            MemberState::Leaving => "leaving",
        };
        Self { node: record.node, name: record.name.clone(), address: record.address.to_string(), state }
    }
}

/// What a node knows of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Which node.
    pub info: NodeInfo,
    /// Whether there is a link.
    pub linked: bool,
    /// The bytes that wait to be written to it.
    pub queued_bytes: usize,
    /// Deltas of this node that it has not acknowledged.
    pub unacknowledged: u64,
    /// Deltas of it that are known to be missing here.
    pub missing: u64,
}

/// What a node knows of itself and all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// This node.
    pub info: NodeInfo,
    /// How far it has come.
    pub stage: Stage,
    /// Nodes that share the limits, this one included.
    pub nodes: u32,
    /// Whether this node sees a majority of them.
    pub has_majority: bool,
    /// The others that are alive.
    pub peers: Vec<PeerStatus>,
    /// The bytes of deltas that are kept for other nodes.
    pub ring_bytes: usize,
    /// The counts of replication.
    pub mesh: MeshCounts,
    /// The counts of the table.
    pub table: TableCounts,
    /// The counts of the links.
    pub links: LinkCounts,
}

/// What happened on the links of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Bytes received.
    pub received: u64,
    /// Groups of charges that were sent to their home.
    pub asked: u64,
    /// Groups of charges that other nodes sent here.
    pub answered: u64,
    /// Connections that were refused.
    pub refused: u64,
}
