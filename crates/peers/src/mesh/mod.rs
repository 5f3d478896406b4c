//! Replication between nodes: every node applies the charges of every other node exactly once.
//!
//! **The naive method** sends each charge to every other node and forgets it. A broken link loses the charges in
//! flight. If the node resends them, they may count twice. A node that joins starts with every limit unused.
//!
//! **The idea.** The charges of one node within a tick form a *delta* with that node's next sequence number. Deltas
//! stay in a *ring* of bounded size, and every other node has a cursor into the ring. A receiver applies a delta only
//! if its sequence number is the next one. On each new link, the receiver announces the last delta that it applied. So
//! links may break at any time, and every delta still counts once.
//!
//! - **Age.** A delta contains its age, computed when it is sent, so clocks need not agree. The receiver charges the
//!   delta as of the time when its charges were taken. A delta older than a second never takes a balance below zero, so
//!   a long fault is not followed by a long debt.
//! - **Snapshot.** A node that joins, or that missed more than a ring holds, pulls the state from one other node in
//!   parts. The *vector* lists, for each node, the last of its deltas that the snapshot contains. The vector is read
//!   before the first part, so no delta is lost. A delta that reaches the sender during the transfer may count twice at
//!   the receiver. Merging keeps the larger used amount, because adding would count shared charges twice. Charges that
//!   only one side knows are lost: after a partition, at most one burst plus the refill during the partition.
//! - **Order.** A joining node waits for the vector and then requests all later deltas from every node. So the joining
//!   node does not have to buffer deltas. The joining node gets every delta from the node that made it, even if the
//!   delta was in flight to the snapshot's sender.
//! - **Majority.** A node counts the nodes that it has seen ready, except nodes that left or were replaced at their
//!   address. A node decides `strict` rules only while it is linked to a majority: more than half of these nodes, or
//!   exactly half including the lowest id. Only a node with a majority removes other nodes from its count, after ten
//!   seconds of silence. So a minority never becomes a majority by waiting.
//!
//! **Guarantee.** Let `N` be the number of nodes, `δ` a tick plus a round trip, `B` the burst and `r` the rate.
//! `eventual` rules admit at most `(N − 1)·(B + r·δ)` beyond the limit. For `strict` rules, the excess is zero while
//! all nodes agree about the home. If nodes choose `h` different homes for a key at the same time, the excess is at
//! most `(h − 1)·(B + r·δ)`. A crash loses the charges of one tick. A partition of length `P` into `s` sides adds
//! `(s − 1)·(B + r·P)` for `eventual` rules. For `strict` rules, a partition adds the `on_fault` admissions.
//!
//! [`Mesh::on`] is the whole interface: no sockets, clocks or tasks.

mod members;
mod peer;
mod pull;
mod replicate;
mod ring;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate_core::{Mono, Nanos, Now, Time};

use crate::NodeId;
use crate::homes::Homes;
use crate::table::Table;
use crate::wire::{Frame, Hello, MAX_NODES, VERSION};
use peer::{LinkState, Peer};
use pull::SnapshotPull;
use ring::Ring;

/// Minimum interval between the last delta and an urgent delta, in nanoseconds.
const MIN_URGENT_INTERVAL: u64 = 1_000_000;
/// A link that receives nothing for this time, in nanoseconds, is closed.
const LINK_TIMEOUT: u64 = 1_000_000_000;
/// A link that has sent nothing for this time, in nanoseconds, sends a keepalive.
const KEEPALIVE_AFTER: u64 = 300_000_000;
/// How long a joining node waits for a snapshot to begin before it becomes ready without a snapshot, in nanoseconds.
const JOIN_TIMEOUT: u64 = 2_000_000_000;
/// Maximum time that a joining node waits for a complete snapshot, in nanoseconds.
const MAX_JOIN_TIME: u64 = 30_000_000_000;
/// How long a leaving node waits for acknowledgements, in nanoseconds.
const LEAVE_TIMEOUT: u64 = 2_000_000_000;

/// Mesh parameters.
#[derive(Clone, Copy, Debug)]
pub struct MeshConfig {
    /// Id of this node.
    pub node: NodeId,
    /// Identifies the cluster. Links to nodes of other clusters are closed.
    pub cluster: u64,
    /// Interval between deltas. Default: 100 ms.
    pub tick: Nanos,
    /// Maximum bytes of deltas kept for other nodes. Default: 16 MiB.
    pub ring_bytes: usize,
}

impl MeshConfig {
    /// Returns the default parameters.
    pub fn new(node: NodeId, cluster: u64) -> Self {
        Self { node, cluster, tick: Nanos::from_millis(100), ring_bytes: 16 << 20 }
    }
}

/// Input to the mesh.
#[derive(Clone, Debug)]
pub enum Event {
    /// The time [`Mesh::wake_at`] has been reached.
    Timer,
    /// Many charges are unsent.
    Urgent,
    /// All other nodes that the failure detector considers alive.
    Members(Vec<Member>),
    /// A link is open in both directions.
    LinkUp {
        /// Node at the other end.
        peer: NodeId,
    },
    /// A link is closed.
    LinkDown {
        /// Node at the other end.
        peer: NodeId,
    },
    /// A frame arrived. Frames are passed in sending order. [`Frame::Ask`] and [`Frame::Answer`] are ignored here.
    Frame {
        /// Sender of the frame.
        peer: NodeId,
        /// Decoded frame.
        frame: Frame,
    },
    /// This node is shutting down.
    Leave,
}

/// A live node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Id of the node.
    pub node: NodeId,
    /// Address of the node. A new node at the same address replaces an older node.
    pub address: String,
    /// State that the node announces.
    pub state: MemberState,
}

/// Lifecycle state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// The node does not have all key states yet.
    Joining,
    /// The node can be a home.
    Ready,
    /// The node is shutting down.
    Leaving,
}

/// Action that the mesh requests. Actions are performed in order.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send a frame on a link.
    Send {
        /// Receiver of the frame.
        peer: NodeId,
        /// Frame to encode.
        frame: Frame,
    },
    /// Close the link, because the other node is silent or violates the protocol.
    Close {
        /// Node at the other end.
        peer: NodeId,
        /// Reason for the log.
        why: &'static str,
    },
    /// Route requests of `strict` rules with these homes from now on.
    Homes(Arc<Homes>),
    /// This node is ready; announce it.
    Ready {
        /// Whether all key states are known. `false`: other nodes were ready, but no snapshot arrived in time.
        complete: bool,
    },
    /// This node has left: its peers acknowledged all of its charges, or the time for acknowledgements has passed.
    Left,
}

/// Counters since the mesh was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeshCounts {
    /// Deltas created by this node.
    pub deltas: u64,
    /// Deltas of other nodes that were applied.
    pub applied: u64,
    /// Received deltas that had already been applied.
    pub repeated: u64,
    /// Merged snapshots.
    pub snapshots: u64,
    /// Abandoned snapshots.
    pub snapshots_failed: u64,
    /// Keys that did not fit into a snapshot part.
    pub left_out: u64,
    /// Whether this node became ready without a snapshot although other nodes were ready.
    pub joined_without: bool,
}

/// Another node, for metrics and status pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshPeer {
    /// Id of the node.
    pub node: NodeId,
    /// Address, or empty if the failure detector does not know it.
    pub address: String,
    /// Announced state, if known.
    pub state: Option<MemberState>,
    /// Whether the node is linked.
    pub is_linked: bool,
    /// Whether the node counts towards the majority.
    pub counts_towards_majority: bool,
    /// Deltas of this node that the other node has not acknowledged.
    pub unacknowledged: u64,
    /// Deltas of the other node that are known to be missing here.
    pub missing: u64,
}

/// State of the mesh, for metrics and status pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshStatus {
    /// Id of this node.
    pub node: NodeId,
    /// State of this node.
    pub state: MemberState,
    /// Number of nodes that share the limits.
    pub nodes: u32,
    /// Whether this node sees a majority of these nodes.
    pub has_majority: bool,
    /// Bytes of deltas kept for other nodes.
    pub ring_bytes: usize,
    /// All other nodes.
    pub peers: Vec<MeshPeer>,
    /// Counters since the start.
    pub counts: MeshCounts,
}

/// Progress of this node's shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaveProgress {
    NotAsked,
    /// Waiting for acknowledgements since this instant.
    Since(u64),
    Done,
}

/// One node of the mesh.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they change independently of each other")]
pub struct Mesh {
    config: MeshConfig,
    table: Arc<Table>,
    state: MemberState,
    peers: BTreeMap<NodeId, Peer>,
    ring: Ring,
    started_at: u64,
    next_tick: u64,
    flushed_at: u64,
    is_urgent: bool,
    /// Whether this node requests deltas, because it has a snapshot or has stopped waiting for a snapshot.
    has_joined: bool,
    is_shut_out: bool,
    pull: Option<SnapshotPull>,
    leave: LeaveProgress,
    homes: Arc<Homes>,
    homes_changed: bool,
    counts: MeshCounts,
}

impl Mesh {
    /// Creates a node that has just started.
    pub fn new(config: MeshConfig, table: Arc<Table>, now: &Now<'_>) -> Self {
        let at = now.mono().as_nanos();
        Self {
            table,
            state: MemberState::Joining,
            peers: BTreeMap::new(),
            ring: Ring::new(config.ring_bytes),
            started_at: at,
            next_tick: at.saturating_add(config.tick.as_nanos()),
            flushed_at: 0,
            is_urgent: false,
            has_joined: false,
            is_shut_out: false,
            pull: None,
            leave: LeaveProgress::NotAsked,
            homes: Arc::new(Homes::new(config.node, Vec::new(), 0, false)),
            homes_changed: true,
            counts: MeshCounts::default(),
            config,
        }
    }

    /// Sets whether peer addresses accept connections but no peer is linked, because the peers refuse this node or are
    /// paused. Such a node does not become ready. A node that counts only itself is a majority, so this node would
    /// admit the full amount of every limit a second time.
    pub fn set_shut_out(&mut self, is_shut_out: bool) {
        self.is_shut_out = is_shut_out;
    }

    /// Handles an event at `now` and appends the resulting actions.
    pub fn on(&mut self, now: &Now<'_>, event: Event, actions: &mut Vec<Action>) {
        let at = now.mono().as_nanos();
        match event {
            Event::Timer => self.on_timer(now, actions),
            Event::Urgent => {
                self.is_urgent = true;
                if at >= self.flushed_at.saturating_add(MIN_URGENT_INTERVAL) {
                    self.flush(at, actions);
                }
            }
            Event::Members(members) => members::on_members(self, at, members),
            Event::LinkUp { peer } => self.on_link_up(at, peer, actions),
            Event::LinkDown { peer } => self.on_link_down(at, peer),
            Event::Frame { peer, frame } => self.on_frame(now, peer, frame, actions),
            Event::Leave => {
                if self.leave == LeaveProgress::NotAsked {
                    self.leave = LeaveProgress::Since(at);
                }
                self.state = MemberState::Leaving;
                self.homes_changed = true;
                self.flush(at, actions);
                self.announce(at, actions);
            }
        }
        self.become_ready_if_caught_up(at, actions);
        self.finish_leaving_if_acknowledged(at, actions);
        members::publish_changed_homes(self, actions);
    }

    /// Returns the time at which the next [`Event::Timer`] is due.
    pub fn wake_at(&self) -> Time<Mono> {
        let urgent = if self.is_urgent { self.flushed_at.saturating_add(MIN_URGENT_INTERVAL) } else { u64::MAX };
        let pull = self.pull.as_ref().and_then(SnapshotPull::wake_at).unwrap_or(u64::MAX);
        Time::from_nanos(self.next_tick.min(urgent).min(pull))
    }

    /// Returns the member state of this node.
    pub fn state(&self) -> MemberState {
        self.state
    }

    /// Returns the homes, which route requests of `strict` rules.
    pub fn homes(&self) -> &Arc<Homes> {
        &self.homes
    }

    /// Returns, for each node including this one, the sequence number of its last delta in the table.
    pub fn vector(&self) -> Vec<(NodeId, u64)> {
        let others = self.peers.iter().filter_map(|(node, peer)| Some((*node, peer.applied?)));
        others.chain([(self.config.node, self.ring.last_seq())]).take(MAX_NODES).collect()
    }

    /// Returns the counters.
    pub fn counts(&self) -> MeshCounts {
        self.counts
    }

    /// Returns the status for metrics and status pages.
    pub fn status(&self) -> MeshStatus {
        let peers = self.peers.iter().map(|(node, peer)| {
            let link = peer.link.as_ref();
            MeshPeer {
                node: *node,
                address: peer.address.clone(),
                state: peer.state,
                is_linked: peer.is_linked(),
                counts_towards_majority: peer.counts_towards_majority(),
                unacknowledged: link.map_or(0, |link| self.ring.last_seq().saturating_sub(link.acked)),
                missing: link.map_or(0, |link| link.head.saturating_sub(peer.applied.unwrap_or(0))),
            }
        });
        MeshStatus {
            node: self.config.node,
            state: self.state,
            nodes: self.homes.node_count(),
            has_majority: self.homes.has_majority(),
            ring_bytes: self.ring.bytes(),
            peers: peers.collect(),
            counts: self.counts,
        }
    }

    fn on_timer(&mut self, now: &Now<'_>, actions: &mut Vec<Action>) {
        let at = now.mono().as_nanos();
        if at >= self.next_tick.saturating_add(LINK_TIMEOUT / 2) {
            // This node was paused. The other nodes were not silent, but this node did not read their frames.
            self.links_mut().for_each(|(_, link)| link.heard_at = at);
        }
        let is_tick = at >= self.next_tick;
        if is_tick || (self.is_urgent && at >= self.flushed_at.saturating_add(MIN_URGENT_INTERVAL)) {
            self.flush(at, actions);
        }
        self.request_parts(at, actions);
        if !is_tick {
            return;
        }
        self.next_tick = at.saturating_add(self.config.tick.as_nanos());
        let state = self.state;
        for (node, peer) in &mut self.peers {
            let Some(link) = &mut peer.link else { continue };
            if at >= link.heard_at.saturating_add(LINK_TIMEOUT) {
                actions.push(Action::Close { peer: *node, why: "nothing received for a second" });
                continue;
            }
            if link.is_greeted && (link.owes_ack || at >= link.sent_at.saturating_add(KEEPALIVE_AFTER)) {
                acknowledge(*node, link, peer.applied, state, at, actions);
            }
        }
        members::remove_silent_peers(self, at);
        self.start_or_abandon_pull(now, actions);
    }

    fn on_link_up(&mut self, at: u64, node: NodeId, actions: &mut Vec<Action>) {
        let resume = self.has_joined.then(|| self.peers.get(&node).and_then(|peer| peer.applied).unwrap_or(0));
        let (cluster, own, state) = (self.config.cluster, self.config.node, self.state);
        let Some(peer) = self.peer_entry(node) else {
            actions.push(Action::Close { peer: node, why: "too many nodes" });
            return;
        };
        peer.link = Some(LinkState::new(at));
        peer.applied = resume;
        let hello = Hello { version: VERSION, cluster, node: own, state, resume };
        actions.push(Action::Send { peer: node, frame: Frame::Hello(hello) });
    }

    fn on_link_down(&mut self, at: u64, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.link = None;
            peer.update_silence(at);
            self.homes_changed = true;
        }
        if self.pull.as_ref().is_some_and(|pull| pull.from == node) {
            self.pull = None;
            self.counts.snapshots_failed += 1;
        }
    }

    /// Announces this node's member state (joining, ready or leaving) to all linked nodes.
    fn announce(&mut self, at: u64, actions: &mut Vec<Action>) {
        let state = self.state;
        for (node, peer) in &mut self.peers {
            if let Some(link) = peer.link.as_mut().filter(|link| link.is_greeted) {
                acknowledge(*node, link, peer.applied, state, at, actions);
            }
        }
    }

    fn finish_leaving_if_acknowledged(&mut self, at: u64, actions: &mut Vec<Action>) {
        let LeaveProgress::Since(since) = self.leave else { return };
        let head = self.ring.last_seq();
        let is_flushed = self.links_mut().all(|(_, link)| !link.is_greeted || link.acked >= head);
        if is_flushed || at >= since.saturating_add(LEAVE_TIMEOUT) {
            self.leave = LeaveProgress::Done;
            actions.push(Action::Left);
        }
    }

    fn links_mut(&mut self) -> impl Iterator<Item = (NodeId, &mut LinkState)> {
        self.peers.iter_mut().filter_map(|(node, peer)| Some((*node, peer.link.as_mut()?)))
    }

    /// Returns the entry of another node, creating it if needed. Returns `None` for this node itself, or if there are
    /// too many nodes.
    fn peer_entry(&mut self, node: NodeId) -> Option<&mut Peer> {
        if node == self.config.node {
            return None;
        }
        if self.peers.len() >= MAX_NODES && !self.peers.contains_key(&node) {
            let is_gone = |peer: &Peer| peer.link.is_none() && !peer.is_alive && !peer.counts_towards_majority();
            let gone = self.peers.iter().find(|(_, peer)| is_gone(peer)).map(|(node, _)| *node)?;
            self.peers.remove(&gone);
        }
        Some(self.peers.entry(node).or_default())
    }
}

/// Acknowledges applied deltas. The frame is also a keepalive.
fn acknowledge(
    node: NodeId,
    link: &mut LinkState,
    applied: Option<u64>,
    state: MemberState,
    at: u64,
    actions: &mut Vec<Action>,
) {
    (link.owes_ack, link.unacked_bytes, link.sent_at) = (false, 0, at);
    actions.push(Action::Send { peer: node, frame: Frame::Ack { seq: applied.unwrap_or(0), state } });
}
