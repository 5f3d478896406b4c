//! Replication between nodes: every node applies what every other one took, exactly once.
//!
//! **The naive method** sends each other node what was taken and forgets it. A link that breaks loses what was on its
//! way; sending it again counts it twice; and a node that joins starts with every limit full.
//!
//! **The idea.** What a node takes within a tick is a *delta* with the next number of that node. Deltas stay in a *ring*
//! of bounded size, and every other node has a cursor into it. The receiver applies a delta if its number is the next one,
//! and says on each new link which it applied last; so links may break anywhere, and every delta counts once.
//!
//! - **Age.** A delta says how long ago it was taken, computed when it is sent, so clocks need not agree. It is charged as of
//!   then. What is older than a second never takes a balance below zero, so a fault is not followed by a debt of its length.
//! - **Snapshot.** A node that joins, or missed more than a ring holds, pulls the state from one other node in parts.
//!   The *vector*, which says what deltas are in the snapshot, is read before the first part; so a delta that arrives at the
//!   sender during the walk may count twice at the receiver, and none is lost. States are merged by the larger amount used, since
//!   adding would count twice what both know. What only one of two sides knows is lost: at most a burst for each merge.
//! - **Order.** A node that joins asks for no deltas before it has the vector, then for all after it. Nothing has to be
//!   buffered, and a delta that was still on its way to the sender of the snapshot is replayed by its own node.
//! - **Majority.** A node counts the nodes that it has seen ready, without those that left or were replaced at their address.
//!   It decides `strict` rules only while it is linked to more than half of them, or to half with the lowest id. Only such a
//!   node strikes others that are silent for ten seconds from its count. So a minority never becomes a majority by waiting.
//!
//! **Guarantee**, with `δ` the tick and a round trip, `B` the burst and `r` the rate: `eventual` rules admit at most
//! `(N − 1)·(B + r·δ)` beyond the limit. For `strict` rules this is zero while all nodes agree about the home, and
//! `(h − 1)·(B + r·δ)` for `h` homes at a time. A crash loses one tick. A partition of length `P` into `s` sides:
//! `(s − 1)·(B + r·P)` for `eventual` rules, and what `on_fault` allows for `strict` ones.
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
use peer::{Link, Peer};
use pull::Pull;
use ring::Ring;

/// How long after a delta the next one may be sent at once.
const URGENT_APART: u64 = 1_000_000;
/// A link on which nothing arrives for this long is closed.
const LINK_TIMEOUT: u64 = 1_000_000_000;
/// A link on which nothing was sent for this long gets a sign of life.
const SIGN_OF_LIFE: u64 = 300_000_000;
/// How long a node waits for a snapshot to begin before it is ready without.
const JOIN_TIMEOUT: u64 = 2_000_000_000;
/// How long a node waits for a snapshot in all.
const JOIN_MAX: u64 = 30_000_000_000;
/// How long a node that leaves waits for acknowledgements.
const LEAVE_TIMEOUT: u64 = 2_000_000_000;

/// The parameters of a mesh.
#[derive(Clone, Copy, Debug)]
pub struct MeshConfig {
    /// This node.
    pub node: NodeId,
    /// Identifies the cluster; links to nodes of another one are closed.
    pub cluster: u64,
    /// How often what was taken is sent; 100 ms.
    pub tick: Nanos,
    /// The most bytes of deltas that are kept for other nodes; 16 MiB.
    pub ring_bytes: usize,
}

impl MeshConfig {
    /// Returns the usual parameters.
    pub fn new(node: NodeId, cluster: u64) -> Self {
        Self { node, cluster, tick: Nanos::from_millis(100), ring_bytes: 16 << 20 }
    }
}

/// What happens to a mesh.
#[derive(Clone, Debug)]
pub enum Event {
    /// The instant of [`Mesh::wake_at`] has come.
    Timer,
    /// A decision left much unsent.
    Urgent,
    /// All nodes that are alive as far as the failure detector knows, without this one.
    Members(Vec<Member>),
    /// A link to a node is open in both directions.
    LinkUp {
        /// The node.
        peer: NodeId,
    },
    /// The link to a node is closed.
    LinkDown {
        /// The node.
        peer: NodeId,
    },
    /// A frame arrived, in the order in which it was sent. [`Frame::Ask`] and [`Frame::Answer`] are ignored here.
    Frame {
        /// Its sender.
        peer: NodeId,
        /// The frame.
        frame: Frame,
    },
    /// This node is shutting down.
    Leave,
}

/// A node that is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// Its address. A new node at the address of another one replaces it.
    pub address: String,
    /// Its state as it announces it.
    pub state: MemberState,
}

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// The node does not know all states yet.
    Joining,
    /// The node may be a home.
    Ready,
    /// The node is shutting down.
    Leaving,
}

/// The actions that a mesh requests, in order.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send a frame.
    Send {
        /// The receiver.
        peer: NodeId,
        /// The frame.
        frame: Frame,
    },
    /// Close the link, since the other node is silent or breaks the protocol.
    Close {
        /// The node.
        peer: NodeId,
        /// The reason, for the log.
        why: &'static str,
    },
    /// Route requests of `strict` rules by this from now on.
    Homes(Arc<Homes>),
    /// This node is ready; announce that.
    Ready {
        /// Whether it knows all states. `false`: others were ready, and no snapshot arrived in time.
        complete: bool,
    },
    /// All that this node took is acknowledged, or no peer has acknowledged it in time.
    Left,
}

/// Counts since the mesh was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeshCounts {
    /// Deltas of this node.
    pub deltas: u64,
    /// Deltas of other nodes that were applied.
    pub applied: u64,
    /// Deltas that had been applied before.
    pub repeated: u64,
    /// Snapshots that were merged.
    pub snapshots: u64,
    /// Snapshots that were given up.
    pub snapshots_failed: u64,
    /// Keys that did not fit a part of a snapshot.
    pub left_out: u64,
    /// Whether this node became ready without the snapshot of a ready one.
    pub joined_without: bool,
}

/// Another node, for metrics and pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshPeer {
    /// The node.
    pub node: NodeId,
    /// Its address, if the failure detector knows it.
    pub address: String,
    /// Its state, if it has said so.
    pub state: Option<MemberState>,
    /// Whether there is a link to it.
    pub is_linked: bool,
    /// Whether a majority is counted of it.
    pub counts: bool,
    /// Deltas of this node that it has not acknowledged.
    pub unacknowledged: u64,
    /// Deltas of it that are known to be missing here.
    pub missing: u64,
}

/// The state of a mesh, for metrics and pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// This node.
    pub node: NodeId,
    /// Its state.
    pub state: MemberState,
    /// The number of nodes that share the limits.
    pub nodes: u32,
    /// Whether it sees a majority of them.
    pub has_majority: bool,
    /// The bytes of deltas that are kept for other nodes.
    pub ring_bytes: usize,
    /// All other nodes.
    pub peers: Vec<MeshPeer>,
    /// What has happened.
    pub counts: MeshCounts,
}

/// The progress of the shutdown of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    NotAsked,
    /// Waits for acknowledgements since this instant.
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
    /// Whether deltas are asked for: it has a snapshot, or has stopped waiting for one.
    has_joined: bool,
    is_shut_out: bool,
    pull: Option<Pull>,
    leave: Leave,
    homes: Arc<Homes>,
    homes_changed: bool,
    counts: MeshCounts,
}

impl Mesh {
    /// Makes a node that has just started.
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
            leave: Leave::NotAsked,
            homes: Arc::new(Homes::new(config.node, Vec::new(), 0, false)),
            homes_changed: true,
            counts: MeshCounts::default(),
            config,
        }
    }

    /// Sets whether others answer where this node looks for its peers, and none of them is linked: they refuse it, or are paused. It
    /// does not become ready then. As the only node it would be a majority, and would admit again what the others have admitted.
    pub fn set_shut_out(&mut self, is_shut_out: bool) {
        self.is_shut_out = is_shut_out;
    }

    /// Handles an event at `now`, and adds what is to be done.
    pub fn on(&mut self, now: &Now<'_>, event: Event, actions: &mut Vec<Action>) {
        let at = now.mono().as_nanos();
        match event {
            Event::Timer => self.on_timer(now, actions),
            Event::Urgent => {
                self.is_urgent = true;
                if at >= self.flushed_at.saturating_add(URGENT_APART) {
                    self.flush(at, actions);
                }
            }
            Event::Members(members) => members::on_members(self, at, members),
            Event::LinkUp { peer } => self.on_link_up(at, peer, actions),
            Event::LinkDown { peer } => self.on_link_down(at, peer),
            Event::Frame { peer, frame } => self.on_frame(now, peer, frame, actions),
            Event::Leave => {
                if self.leave == Leave::NotAsked {
                    self.leave = Leave::Since(at);
                }
                self.state = MemberState::Leaving;
                self.homes_changed = true;
                self.flush(at, actions);
                self.announce(at, actions);
            }
        }
        self.check_joined(at, actions);
        self.check_left(at, actions);
        members::check_homes(self, actions);
    }

    /// Returns when to pass [`Event::Timer`] at the latest.
    pub fn wake_at(&self) -> Time<Mono> {
        let urgent = if self.is_urgent { self.flushed_at.saturating_add(URGENT_APART) } else { u64::MAX };
        Time::from_nanos(self.next_tick.min(urgent))
    }

    /// Returns the state of this node.
    pub fn state(&self) -> MemberState {
        self.state
    }

    /// Returns where requests of `strict` rules are decided.
    pub fn homes(&self) -> &Arc<Homes> {
        &self.homes
    }

    /// Returns the last delta of each node that is in the table, this one included.
    pub fn vector(&self) -> Vec<(NodeId, u64)> {
        let others = self.peers.iter().filter_map(|(node, peer)| Some((*node, peer.applied?)));
        others.chain([(self.config.node, self.ring.head())]).take(MAX_NODES).collect()
    }

    /// Returns what has happened since the mesh was made.
    pub fn counts(&self) -> MeshCounts {
        self.counts
    }

    /// Returns the state of the mesh.
    pub fn status(&self) -> Status {
        let peers = self.peers.iter().map(|(node, peer)| {
            let link = peer.link.as_ref();
            MeshPeer {
                node: *node,
                address: peer.address.clone(),
                state: peer.state,
                is_linked: peer.is_linked(),
                counts: peer.counts(),
                unacknowledged: link.map_or(0, |link| self.ring.head().saturating_sub(link.acked)),
                missing: link.map_or(0, |link| link.head.saturating_sub(peer.applied.unwrap_or(0))),
            }
        });
        Status {
            node: self.config.node,
            state: self.state,
            nodes: self.homes.nodes(),
            has_majority: self.homes.has_majority(),
            ring_bytes: self.ring.bytes(),
            peers: peers.collect(),
            counts: self.counts,
        }
    }

    fn on_timer(&mut self, now: &Now<'_>, actions: &mut Vec<Action>) {
        let at = now.mono().as_nanos();
        if at >= self.next_tick.saturating_add(LINK_TIMEOUT / 2) {
            // This node was paused, so the others were not silent: their frames were not read.
            self.links().for_each(|(_, link)| link.heard_at = at);
        }
        let is_tick = at >= self.next_tick;
        if is_tick || (self.is_urgent && at >= self.flushed_at.saturating_add(URGENT_APART)) {
            self.flush(at, actions);
        }
        if !is_tick {
            return;
        }
        self.next_tick = at.saturating_add(self.config.tick.as_nanos());
        let state = self.state;
        for (node, peer) in &mut self.peers {
            let Some(link) = &mut peer.link else { continue };
            if at >= link.heard_at.saturating_add(LINK_TIMEOUT) {
                actions.push(Action::Close { peer: *node, why: "nothing arrived for a second" });
                continue;
            }
            if link.is_greeted && (link.owes_ack || at >= link.sent_at.saturating_add(SIGN_OF_LIFE)) {
                acknowledge(*node, link, peer.applied, state, at, actions);
            }
        }
        members::strike(self, at);
        self.check_pull(now, actions);
    }

    fn on_link_up(&mut self, at: u64, node: NodeId, actions: &mut Vec<Action>) {
        let resume = self.has_joined.then(|| self.peers.get(&node).and_then(|peer| peer.applied).unwrap_or(0));
        let (cluster, own, state) = (self.config.cluster, self.config.node, self.state);
        let Some(peer) = self.peer(node) else {
            actions.push(Action::Close { peer: node, why: "too many nodes" });
            return;
        };
        peer.link = Some(Link::new(at));
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

    /// Sends the state of this node to all linked nodes.
    fn announce(&mut self, at: u64, actions: &mut Vec<Action>) {
        let state = self.state;
        for (node, peer) in &mut self.peers {
            if let Some(link) = peer.link.as_mut().filter(|link| link.is_greeted) {
                acknowledge(*node, link, peer.applied, state, at, actions);
            }
        }
    }

    fn check_left(&mut self, at: u64, actions: &mut Vec<Action>) {
        let Leave::Since(since) = self.leave else { return };
        let head = self.ring.head();
        let is_flushed = self.links().all(|(_, link)| !link.is_greeted || link.acked >= head);
        if is_flushed || at >= since.saturating_add(LEAVE_TIMEOUT) {
            self.leave = Leave::Done;
            actions.push(Action::Left);
        }
    }

    fn links(&mut self) -> impl Iterator<Item = (NodeId, &mut Link)> {
        self.peers.iter_mut().filter_map(|(node, peer)| Some((*node, peer.link.as_mut()?)))
    }

    /// Returns what is known of another node; `None` if it is this one, or there are too many.
    fn peer(&mut self, node: NodeId) -> Option<&mut Peer> {
        if node == self.config.node {
            return None;
        }
        if self.peers.len() >= MAX_NODES && !self.peers.contains_key(&node) {
            let is_gone = |peer: &Peer| peer.link.is_none() && !peer.is_alive && !peer.counts();
            let gone = self.peers.iter().find(|(_, peer)| is_gone(peer)).map(|(node, _)| *node)?;
            self.peers.remove(&gone);
        }
        Some(self.peers.entry(node).or_default())
    }
}

/// Acknowledges what was applied. Also a sign of life.
fn acknowledge(
    node: NodeId,
    link: &mut Link,
    applied: Option<u64>,
    state: MemberState,
    at: u64,
    actions: &mut Vec<Action>,
) {
    (link.owes_ack, link.unacked_bytes, link.sent_at) = (false, 0, at);
    actions.push(Action::Send { peer: node, frame: Frame::Ack { seq: applied.unwrap_or(0), state } });
}
