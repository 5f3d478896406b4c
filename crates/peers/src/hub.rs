//! What the links of a node have in common: the mesh, the members, and who is linked.
//!
//! Everything here runs on the thread of the peers, so its lock is never contended. The threads that decide requests use the
//! table, the [`Homes`] and the outboxes, which need no lock of the hub.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};
use tollgate::clock::{Clock, PreciseClock};
use tollgate_core::{Mono, Nanos, Now, Time};

use crate::NodeId;
use crate::asks::Asks;
use crate::config::Config;
use crate::greeting::{self, Record};
use crate::homes::Homes;
use crate::link::Outbox;
use crate::members::Members;
use crate::mesh::{Action, Event, MemberState, Mesh, MeshConfig};
use crate::status::{LinkCounts, NodeInfo, NodeStatus, PeerStatus};
use crate::table::Table;
use crate::wire::{self, Frame};

/// What all threads share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) cluster: u64,
    pub(crate) node: NodeId,
    pub(crate) table: Arc<Table>,
    pub(crate) clock: PreciseClock,
    pub(crate) homes: ArcSwap<Homes>,
    pub(crate) outboxes: ArcSwap<HashMap<NodeId, Arc<Outbox>>>,
    pub(crate) asks: Asks,
    /// Much was taken and not sent, or this node is to leave.
    pub(crate) urgent: Notify,
    pub(crate) stage: watch::Sender<Stage>,
    pub(crate) counters: Counters,
    hub: Mutex<Hub>,
}

/// The progress of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for the states of the others.
    Joining,
    /// It has joined.
    Ready {
        /// Whether it knows all states. `false`: other nodes were ready, and none sent its states in time.
        complete: bool,
    },
    /// It has left: all that it took is acknowledged by others, or none of them could be reached.
    Left,
}

/// Counts of all links.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received: AtomicU64,
    pub(crate) asked: AtomicU64,
    pub(crate) answered: AtomicU64,
    pub(crate) refused_links: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: usize) {
        // Orders nothing: it is only reported.
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn read(&self) -> LinkCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LinkCounts {
            received: read(&self.received),
            asked: read(&self.asked),
            answered: read(&self.answered),
            refused: read(&self.refused_links),
        }
    }
}

struct Hub {
    mesh: Mesh,
    members: Members,
    links: HashMap<NodeId, LinkEntry>,
    /// Distinguishes a link from its predecessor to the same peer.
    generation: u64,
    actions: Vec<Action>,
    /// This node has left: links are neither dialled nor accepted.
    closed: bool,
    /// The addresses and reasons of refused links that were logged.
    logged: HashSet<(String, String)>,
    /// When the first of them was logged.
    logged_at: Time<Mono>,
}

struct LinkEntry {
    outbox: Arc<Outbox>,
    generation: u64,
    /// Whether this node dialled.
    dialled: bool,
}

/// A link that was accepted.
pub(crate) struct Admission {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) generation: u64,
}

/// The maximum number of refused links that are remembered as logged. Further ones are only counted, so that a stream of
/// connections cannot fill the log.
const MAX_LOGGED: usize = 256;
/// After this time the remembered ones are logged again.
const LOG_AGAIN: Nanos = Nanos::from_secs(3_600);

impl Shared {
    pub(crate) fn new(config: Config, node: NodeId, secret: tollgate::fingerprint::Secret) -> Self {
        let clock = PreciseClock::new();
        let now = clock.now();
        let table = Arc::new(Table::new(config.max_keys, secret));
        let cluster = config.cluster_id();
        let mesh = Mesh::new(MeshConfig::new(node, cluster), table.clone(), &now);
        let (address, name) = (config.advertised(), config.name());
        let own = Record { node, heartbeat: 0, state: MemberState::Joining, address, name };
        let hub = Hub {
            mesh,
            members: Members::new(own, now.mono()),
            links: HashMap::new(),
            generation: 0,
            actions: Vec::new(),
            closed: false,
            logged: HashSet::new(),
            logged_at: now.mono(),
        };
        Self {
            config,
            cluster,
            node,
            table,
            clock,
            homes: ArcSwap::from_pointee(Homes::new(node, Vec::new(), 1, false)),
            outboxes: ArcSwap::default(),
            asks: Asks::default(),
            urgent: Notify::new(),
            stage: watch::Sender::new(Stage::Joining),
            counters: Counters::default(),
            hub: Mutex::new(hub),
        }
    }

    /// Returns the time by which requests are decided.
    #[inline]
    pub(crate) fn now(&self) -> Now<'static> {
        match &self.config.manual_clock {
            None => self.clock.now(),
            Some(clock) => clock.now(),
        }
    }

    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what is due. Returns the addresses to dial, and when to call it again.
    pub(crate) fn step(&self, urgent: bool) -> (Vec<SocketAddr>, Time<Mono>) {
        let now = self.clock.now();
        let mut hub = self.hub();
        let Hub { mesh, members, links, actions, .. } = &mut *hub;
        if urgent {
            mesh.on(&now, Event::Urgent, actions);
        }
        mesh.set_shut_out(members.is_shut_out());
        if mesh.wake_at() <= now.mono() {
            mesh.on(&now, Event::Timer, actions);
        }
        if let Some(beat) = members.beat(now.mono()) {
            let mut own = Vec::new();
            greeting::push_gossip(&mut own, [&beat.own]);
            let mut all = Vec::new();
            greeting::push_gossip(&mut all, &beat.all);
            for (node, link) in links {
                let gossip = if beat.all_to.contains(node) { &all } else { &own };
                link.outbox.push(|to| to.extend_from_slice(gossip));
            }
            self.asks.expire(now.mono());
        }
        if let Some(alive) = members.changes(now.mono()) {
            mesh.on(&now, Event::Members(alive), actions);
        }
        let due = if hub.closed { Vec::new() } else { hub.members.due(now.mono()) };
        self.perform(&mut hub, &now);
        let wake_at = hub.mesh.wake_at().min(hub.members.wake_at());
        (due, wake_at)
    }

    /// Begins to leave.
    pub(crate) fn leave(&self) {
        let now = self.clock.now();
        let mut hub = self.hub();
        hub.members.set_state(MemberState::Leaving, now.mono());
        let Hub { mesh, actions, .. } = &mut *hub;
        mesh.on(&now, Event::Leave, actions);
        self.perform(&mut hub, &now);
        drop(hub);
        // The heartbeat that announces it is due.
        self.urgent.notify_one();
    }

    /// Ends all links after what is queued has been written; there are no new ones.
    pub(crate) fn close(&self) {
        let mut hub = self.hub();
        hub.closed = true;
        hub.links.values().for_each(|link| link.outbox.close());
    }

    /// Returns whether [`close`](Self::close) was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.hub().closed
    }

    /// The addresses that the seeds stand for.
    pub(crate) fn set_seeds(&self, seeds: Vec<SocketAddr>) {
        self.hub().members.set_seeds(seeds);
    }

    /// The record of this node.
    pub(crate) fn own(&self) -> Record {
        self.hub().members.own().clone()
    }

    /// Returns why a node cannot have a link.
    pub(crate) fn conflict(&self, record: &Record) -> Option<String> {
        self.hub().members.conflict(record, self.clock.mono())
    }

    /// Accepts a link to the node with this record, which was dialled at an address or was accepted. Of two links to one node,
    /// both sides keep the one that the lower id dialled; of two that one side dialled, the later. `None`: another link stays.
    pub(crate) fn admit(&self, record: Record, dialled: Option<SocketAddr>) -> Option<Admission> {
        let now = self.clock.now();
        let peer = record.node;
        let mut hub = self.hub();
        if hub.closed {
            return None;
        }
        let is_preferred = |dialled: bool| dialled == (self.node < peer);
        if let Some(existing) = hub.links.get(&peer) {
            if is_preferred(existing.dialled) && !is_preferred(dialled.is_some()) {
                if dialled.is_some() {
                    hub.members.linked(record, dialled, now.mono());
                }
                return None;
            }
            existing.outbox.end();
            self.unlink(&mut hub, peer, &now);
        }
        hub.generation += 1;
        let (outbox, generation) = (Arc::new(Outbox::default()), hub.generation);
        hub.links.insert(peer, LinkEntry { outbox: outbox.clone(), generation, dialled: dialled.is_some() });
        tracing::info!(peer = record.name, address = %record.address, node = %peer, "peer linked");
        let address = record.address.to_string();
        hub.logged.retain(|(logged, _)| *logged != address);
        hub.members.linked(record, dialled, now.mono());
        let known = hub.members.alive(now.mono());
        outbox.push(|to| greeting::push_gossip(to, &known));
        self.publish(&hub);
        let Hub { mesh, members, actions, .. } = &mut *hub;
        if let Some(alive) = members.changes(now.mono()) {
            mesh.on(&now, Event::Members(alive), actions);
        }
        mesh.on(&now, Event::LinkUp { peer }, actions);
        self.perform(&mut hub, &now);
        Some(Admission { outbox, generation })
    }

    /// A link ended.
    pub(crate) fn ended(&self, peer: NodeId, generation: u64, why: &str) {
        let now = self.clock.now();
        let mut hub = self.hub();
        if hub.links.get(&peer).is_none_or(|link| link.generation != generation) {
            return;
        }
        self.log_loss(&hub, peer, why);
        self.unlink(&mut hub, peer, &now);
        self.perform(&mut hub, &now);
        drop(hub);
        // It is dialled again immediately.
        self.urgent.notify_one();
    }

    fn unlink(&self, hub: &mut Hub, peer: NodeId, now: &Now<'_>) {
        hub.links.remove(&peer);
        hub.members.unlinked(peer);
        self.publish(hub);
        self.asks.lost(peer);
        let Hub { mesh, actions, .. } = hub;
        mesh.on(now, Event::LinkDown { peer }, actions);
    }

    /// Makes the outboxes known to the threads that decide.
    fn publish(&self, hub: &Hub) {
        let outboxes = hub.links.iter().map(|(node, link)| (*node, link.outbox.clone())).collect();
        self.outboxes.store(Arc::new(outboxes));
    }

    /// Passes a frame of a link to the mesh.
    pub(crate) fn frame(&self, peer: NodeId, generation: u64, frame: Frame) {
        let now = self.clock.now();
        let mut hub = self.hub();
        if hub.links.get(&peer).is_some_and(|link| link.generation == generation) {
            let Hub { mesh, actions, .. } = &mut *hub;
            mesh.on(&now, Event::Frame { peer, frame }, actions);
            self.perform(&mut hub, &now);
        }
    }

    /// Learns the members that a peer knows.
    pub(crate) fn hear(&self, records: Vec<Record>) {
        let now = self.clock.now();
        let mut hub = self.hub();
        let Hub { mesh, members, actions, .. } = &mut *hub;
        members.hear(records, now.mono());
        if let Some(alive) = members.changes(now.mono()) {
            mesh.on(&now, Event::Members(alive), actions);
            self.perform(&mut hub, &now);
        }
    }

    /// A connection to an address was made, or could not be made.
    pub(crate) fn reached(&self, address: SocketAddr, answers: bool) {
        self.hub().members.reached(address, answers);
    }

    /// Dialling an address failed.
    pub(crate) fn dial_failed(&self, address: SocketAddr, why: &str) {
        // The seconds of a clock are random enough for a pause.
        let (now, random) = (self.clock.mono(), self.clock.mono().as_nanos().wrapping_mul(0x9E37_79B9_7F4A_7C15));
        self.hub().members.dial_failed(address, now, random);
        self.log_refusal(&address.to_string(), why);
    }

    /// This node answered at an address that it dialled.
    pub(crate) fn is_own_address(&self, address: SocketAddr) {
        self.hub().members.is_own_address(address);
    }

    /// Logs why there is no link with an address: once an hour for each reason, and again after a link with it existed. Several nodes
    /// may have one address, each with its own reason.
    pub(crate) fn log_refusal(&self, address: &str, why: &str) {
        let now = self.clock.mono();
        let mut hub = self.hub();
        if now.since(hub.logged_at) >= LOG_AGAIN {
            (hub.logged, hub.logged_at) = (HashSet::new(), now);
        }
        if hub.logged.len() < MAX_LOGGED && hub.logged.insert((address.to_owned(), why.to_owned())) {
            tracing::warn!(address, why, "no link with peer");
        }
    }

    /// Returns what is known of this node and its peers.
    pub(crate) fn status(&self) -> NodeStatus {
        let hub = self.hub();
        let mesh = hub.mesh.status();
        let others = hub.members.alive(self.clock.mono()).into_iter().filter(|record| record.node != self.node);
        let peers = others.map(|record| {
            let link = hub.links.get(&record.node);
            let known = mesh.peers.iter().find(|peer| peer.node == record.node);
            PeerStatus {
                info: NodeInfo::from(&record),
                linked: link.is_some(),
                queued_bytes: link.map_or(0, |link| link.outbox.queued()),
                unacknowledged: known.map_or(0, |known| known.unacknowledged),
                missing: known.map_or(0, |known| known.missing),
            }
        });
        NodeStatus {
            info: NodeInfo::from(hub.members.own()),
            stage: *self.stage.borrow(),
            nodes: mesh.nodes,
            has_majority: mesh.has_majority,
            peers: peers.collect(),
            ring_bytes: mesh.ring_bytes,
            mesh: mesh.counts,
            table: self.table.counts(),
            links: self.counters.read(),
        }
    }

    /// Carries out what the mesh has decided.
    fn perform(&self, hub: &mut Hub, now: &Now<'_>) {
        // Closing a link makes the mesh decide more.
        while !hub.actions.is_empty() {
            for action in std::mem::take(&mut hub.actions) {
                match action {
                    Action::Send { peer, frame } => {
                        let Some(link) = hub.links.get(&peer) else { continue };
                        if !link.outbox.push(|to| wire::encode(&frame, to)) {
                            self.cut(hub, peer, "its queue is full", now);
                        }
                    }
                    Action::Close { peer, why } => self.cut(hub, peer, why, now),
                    Action::Homes(homes) => self.homes.store(homes),
                    Action::Ready { complete } => {
                        hub.members.set_state(MemberState::Ready, now.mono());
                        self.stage.send_replace(Stage::Ready { complete });
                        self.urgent.notify_one();
                    }
                    Action::Left => drop(self.stage.send_replace(Stage::Left)),
                }
            }
        }
    }

    /// Ends a link.
    fn cut(&self, hub: &mut Hub, peer: NodeId, why: &str, now: &Now<'_>) {
        let Some(link) = hub.links.get(&peer) else { return };
        link.outbox.end();
        self.log_loss(hub, peer, why);
        self.unlink(hub, peer, now);
    }

    fn log_loss(&self, hub: &Hub, peer: NodeId, why: &str) {
        let Some(record) = hub.members.get(peer) else { return };
        let (name, address) = (&*record.name, record.address);
        if hub.closed || record.state == MemberState::Leaving {
            tracing::info!(peer = name, %address, "link with peer closed");
        } else {
            tracing::warn!(peer = name, %address, why, "peer lost");
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).field("node", &self.node).finish_non_exhaustive()
    }
}
