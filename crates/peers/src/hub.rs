//! State shared by all links of a node: the mesh, the members and the link table.
//!
//! Almost all of this code runs on the peers thread, so the hub's lock is rarely contended. Threads that decide
//! requests use the table, the [`Homes`] and the outboxes without taking the hub's lock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};
use tollgate::clock::{Clock, PreciseClock};
use tollgate_core::{Mono, Nanos, Now, Time};

use crate::NodeId;
use crate::config::Config;
use crate::greeting::{self, NodeFigures, NodeRecord};
use crate::homes::Homes;
use crate::members::Members;
use crate::mesh::{Action, Event, MemberState, Mesh, MeshConfig};
use crate::outbox::Outbox;
use crate::pending_asks::PendingAsks;
use crate::status::{LinkCounts, NodeInfo, NodeStatus, PeerStatus};
use crate::table::Table;
use crate::wire::{self, Frame};

/// State shared by all threads.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) cluster: u64,
    pub(crate) node: NodeId,
    pub(crate) table: Arc<Table>,
    pub(crate) clock: PreciseClock,
    pub(crate) homes: ArcSwap<Homes>,
    pub(crate) outboxes: ArcSwap<BTreeMap<NodeId, Arc<Outbox>>>,
    pub(crate) asks: PendingAsks,
    /// Wakes the peers thread, for example because many charges are unsent or a link ended.
    pub(crate) urgent: Notify,
    /// Wakes the timers: work is due earlier than the time that [`Shared::run_due_work`] returned.
    pub(crate) earlier: Notify,
    pub(crate) stage: watch::Sender<Stage>,
    pub(crate) counters: Counters,
    /// Revision of the active rules, and the first bytes of their checksum.
    pub(crate) rules: Mutex<(u64, u64)>,
    hub: Mutex<Hub>,
}

/// Lifecycle stage of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Waiting for the other nodes' states.
    Joining,
    /// Joined.
    Ready {
        /// Whether all states are known. `false`: other nodes were ready, but no node sent its states in time.
        complete: bool,
    },
    /// The node has left: all linked nodes acknowledged its charges, or the time for acknowledgements passed.
    Left,
}

/// Counters over all links.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received: AtomicU64,
    pub(crate) asked: AtomicU64,
    pub(crate) answered: AtomicU64,
    pub(crate) refused_links: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: usize) {
        // Relaxed ordering is enough, because the counter is only a statistic.
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

/// Minimum number of keys in the sample from which the key count of each home is estimated.
const HOME_SAMPLE_KEYS: usize = 4_096;

struct Hub {
    mesh: Mesh,
    members: Members,
    links: HashMap<NodeId, LinkEntry>,
    /// Distinguishes a link from an earlier link to the same peer.
    generation: u64,
    actions: Vec<Action>,
    /// When the timers run next.
    wake_at: Time<Mono>,
    /// Whether this node has left, so that it neither dials nor accepts links.
    closed: bool,
    /// Addresses and reasons of refused links that were already logged.
    logged: HashSet<(String, String)>,
    /// When `logged` was last cleared.
    logged_at: Time<Mono>,
}

struct LinkEntry {
    outbox: Arc<Outbox>,
    generation: u64,
    /// Whether this node dialled.
    dialled: bool,
}

/// An accepted link.
pub(crate) struct AcceptedLink {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) generation: u64,
}

/// Maximum size of `logged`. Further refusals are not logged, so connection attempts cannot flood the log.
const MAX_LOGGED_REFUSALS: usize = 256;
/// Interval after which `logged` is cleared and refusals are logged again.
const REFUSAL_LOG_INTERVAL: Nanos = Nanos::from_secs(3_600);

impl Shared {
    pub(crate) fn new(config: Config, node: NodeId, secret: tollgate::fingerprint::Secret) -> Self {
        let clock = PreciseClock::new();
        let now = clock.now();
        let table = Arc::new(Table::new(config.max_keys, secret));
        let cluster = config.cluster_id();
        let mesh = Mesh::new(MeshConfig::new(node, cluster), table.clone(), &now);
        let (address, name) = (config.advertised(), config.name());
        let (state, figures) = (MemberState::Joining, NodeFigures::default());
        let own = NodeRecord { node, heartbeat: 0, state, address, name, figures };
        let hub = Hub {
            mesh,
            members: Members::new(own, now.mono()),
            links: HashMap::new(),
            generation: 0,
            actions: Vec::new(),
            wake_at: now.mono(),
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
            asks: PendingAsks::default(),
            urgent: Notify::new(),
            earlier: Notify::new(),
            stage: watch::Sender::new(Stage::Joining),
            counters: Counters::default(),
            rules: Mutex::default(),
            hub: Mutex::new(hub),
        }
    }

    /// Returns the time used for decisions.
    #[inline]
    pub(crate) fn now(&self) -> Now<'static> {
        match &self.config.manual_clock {
            None => self.clock.now(),
            Some(clock) => clock.now(),
        }
    }

    fn lock_hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs all due work. Returns the addresses to dial and the time of the next call.
    pub(crate) fn run_due_work(&self, urgent: bool) -> (Vec<SocketAddr>, Time<Mono>) {
        let now = self.clock.now();
        let mut hub = self.lock_hub();
        let Hub { mesh, members, links, actions, .. } = &mut *hub;
        if urgent {
            mesh.on(&now, Event::Urgent, actions);
        }
        mesh.set_shut_out(members.is_shut_out());
        if mesh.wake_at() <= now.mono() {
            mesh.on(&now, Event::Timer, actions);
        }
        let (rules_revision, rules_checksum) = *self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let (links_now, overshoot) = (links.len() as u16, self.table.overshoot());
        members.set_figures(NodeFigures { rules_revision, rules_checksum, links: links_now, overshoot });
        if let Some(beat) = members.take_due_heartbeat(now.mono()) {
            let mut own = Vec::new();
            greeting::push_gossip(&mut own, [&beat.own]);
            let mut all = Vec::new();
            greeting::push_gossip(&mut all, &beat.all);
            for (node, link) in links {
                let gossip = if beat.all_to.contains(node) { &all } else { &own };
                link.outbox.push(|to| to.extend_from_slice(gossip));
            }
        }
        if let Some(alive) = members.changed_members(now.mono()) {
            mesh.on(&now, Event::Members(alive), actions);
        }
        let due = if hub.closed { Vec::new() } else { hub.members.take_due_dials(now.mono()) };
        self.perform_actions(&mut hub, &now);
        hub.wake_at = hub.mesh.wake_at().min(hub.members.wake_at());
        (due, hub.wake_at)
    }

    /// Starts leaving the cluster.
    pub(crate) fn leave(&self) {
        let now = self.clock.now();
        let mut hub = self.lock_hub();
        hub.members.set_state(MemberState::Leaving, now.mono());
        let Hub { mesh, actions, .. } = &mut *hub;
        mesh.on(&now, Event::Leave, actions);
        self.perform_actions(&mut hub, &now);
        drop(hub);
        // Wake the peers thread to send the heartbeat that announces the departure.
        self.urgent.notify_one();
    }

    /// Ends all links after their queues are written, and prevents new links.
    pub(crate) fn close(&self) {
        let mut hub = self.lock_hub();
        hub.closed = true;
        hub.links.values().for_each(|link| link.outbox.close());
    }

    /// Returns whether [`close`](Self::close) was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock_hub().closed
    }

    /// Sets the resolved addresses of the seeds.
    pub(crate) fn set_seeds(&self, seeds: Vec<SocketAddr>) {
        self.lock_hub().members.set_seeds(seeds);
    }

    /// Returns this node's record.
    pub(crate) fn own_record(&self) -> NodeRecord {
        self.lock_hub().members.own_record().clone()
    }

    /// Returns the reason why a link to the node with this record must be refused, or `None` if the link is acceptable.
    pub(crate) fn name_conflict(&self, record: &NodeRecord) -> Option<String> {
        self.lock_hub().members.name_conflict(record, self.clock.mono())
    }

    /// Accepts a link to the node with this record. `dialled` is the dialled address, or `None` for an incoming link.
    /// If two nodes dialled each other, both keep the link that the node with the lower id dialled. If one node dialled
    /// twice, both keep the later link. Returns `None` if an existing link stays.
    pub(crate) fn accept_link(&self, record: NodeRecord, dialled: Option<SocketAddr>) -> Option<AcceptedLink> {
        let now = self.clock.now();
        let peer = record.node;
        let mut hub = self.lock_hub();
        if hub.closed {
            return None;
        }
        let is_preferred = |dialled: bool| dialled == (self.node < peer);
        if let Some(existing) = hub.links.get(&peer) {
            if is_preferred(existing.dialled) && !is_preferred(dialled.is_some()) {
                if dialled.is_some() {
                    hub.members.record_link(record, dialled, now.mono());
                }
                return None;
            }
            existing.outbox.end();
            self.remove_link(&mut hub, peer, &now);
        }
        hub.generation += 1;
        let (outbox, generation) = (Arc::new(Outbox::default()), hub.generation);
        hub.links.insert(peer, LinkEntry { outbox: outbox.clone(), generation, dialled: dialled.is_some() });
        tracing::info!(peer = record.name, address = %record.address, node = %peer, "peer linked");
        let address = record.address.to_string();
        hub.logged.retain(|(logged, _)| *logged != address);
        hub.members.record_link(record, dialled, now.mono());
        let known = hub.members.live_records(now.mono());
        outbox.push(|to| greeting::push_gossip(to, &known));
        self.publish_outboxes(&hub);
        let Hub { mesh, members, actions, .. } = &mut *hub;
        if let Some(alive) = members.changed_members(now.mono()) {
            mesh.on(&now, Event::Members(alive), actions);
        }
        mesh.on(&now, Event::LinkUp { peer }, actions);
        self.perform_actions(&mut hub, &now);
        Some(AcceptedLink { outbox, generation })
    }

    /// Removes a link that has ended.
    pub(crate) fn on_link_end(&self, peer: NodeId, generation: u64, why: &str) {
        let now = self.clock.now();
        let mut hub = self.lock_hub();
        if hub.links.get(&peer).is_none_or(|link| link.generation != generation) {
            return;
        }
        self.log_lost_link(&hub, peer, why);
        self.remove_link(&mut hub, peer, &now);
        self.perform_actions(&mut hub, &now);
        drop(hub);
        // Redial at once.
        self.urgent.notify_one();
    }

    fn remove_link(&self, hub: &mut Hub, peer: NodeId, now: &Now<'_>) {
        hub.links.remove(&peer);
        hub.members.record_link_end(peer);
        self.publish_outboxes(hub);
        self.asks.end_asks_to(peer);
        let Hub { mesh, actions, .. } = hub;
        mesh.on(now, Event::LinkDown { peer }, actions);
    }

    /// Publishes the outboxes to the threads that decide requests.
    fn publish_outboxes(&self, hub: &Hub) {
        let outboxes = hub.links.iter().map(|(node, link)| (*node, link.outbox.clone())).collect();
        self.outboxes.store(Arc::new(outboxes));
    }

    /// Passes a received frame to the mesh.
    pub(crate) fn pass_to_mesh(&self, peer: NodeId, generation: u64, frame: Frame) {
        let now = self.clock.now();
        let mut hub = self.lock_hub();
        if hub.links.get(&peer).is_some_and(|link| link.generation == generation) {
            let Hub { mesh, actions, .. } = &mut *hub;
            mesh.on(&now, Event::Frame { peer, frame }, actions);
            self.perform_actions(&mut hub, &now);
            if hub.mesh.wake_at() < hub.wake_at {
                hub.wake_at = hub.mesh.wake_at();
                self.earlier.notify_one();
            }
        }
    }

    /// Merges the member records that a peer sent.
    pub(crate) fn merge_records(&self, records: Vec<NodeRecord>) {
        let now = self.clock.now();
        let mut hub = self.lock_hub();
        let Hub { mesh, members, actions, .. } = &mut *hub;
        members.merge_records(records, now.mono());
        if let Some(alive) = members.changed_members(now.mono()) {
            mesh.on(&now, Event::Members(alive), actions);
            self.perform_actions(&mut hub, &now);
        }
    }

    /// Records whether an address accepted a connection.
    pub(crate) fn record_dial_answer(&self, address: SocketAddr, answers: bool) {
        self.lock_hub().members.record_dial_answer(address, answers);
    }

    /// Records a failed dial and schedules the retry.
    pub(crate) fn record_failed_dial(&self, address: SocketAddr, why: &str) {
        // The clock reading is random enough for the retry jitter.
        let (now, random) = (self.clock.mono(), self.clock.mono().as_nanos().wrapping_mul(0x9E37_79B9_7F4A_7C15));
        self.lock_hub().members.record_failed_dial(address, now, random);
        self.log_refusal(&address.to_string(), why);
    }

    /// Records that a dialled address belongs to this node itself.
    pub(crate) fn record_own_address(&self, address: SocketAddr) {
        self.lock_hub().members.record_own_address(address);
    }

    /// Logs why there is no link to an address, at most once per hour for each reason. After a new link to the address,
    /// its reasons are logged again. Several nodes may share an address, so one address can have several reasons.
    pub(crate) fn log_refusal(&self, address: &str, why: &str) {
        let now = self.clock.mono();
        let mut hub = self.lock_hub();
        if now.since(hub.logged_at) >= REFUSAL_LOG_INTERVAL {
            (hub.logged, hub.logged_at) = (HashSet::new(), now);
        }
        if hub.logged.len() < MAX_LOGGED_REFUSALS && hub.logged.insert((address.to_owned(), why.to_owned())) {
            tracing::warn!(address, why, "no link with peer");
        }
    }

    /// Returns the status of this node and its peers.
    pub(crate) fn status(&self) -> NodeStatus {
        let homes = self.count_keys_by_home();
        let homes_of = |node: NodeId| homes.get(&node).copied().unwrap_or(0);
        let hub = self.lock_hub();
        let mesh = hub.mesh.status();
        let others = hub.members.live_records(self.clock.mono()).into_iter().filter(|record| record.node != self.node);
        let peers = others.map(|record| {
            let link = hub.links.get(&record.node);
            let known = mesh.peers.iter().find(|peer| peer.node == record.node);
            PeerStatus {
                info: NodeInfo::from(&record),
                linked: link.is_some(),
                homes: homes_of(record.node),
                queued_bytes: link.map_or(0, |link| link.outbox.queued_bytes()),
                unacknowledged: known.map_or(0, |known| known.unacknowledged),
                missing: known.map_or(0, |known| known.missing),
            }
        });
        NodeStatus {
            info: NodeInfo::from(hub.members.own_record()),
            homes: homes_of(self.node),
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

    /// Returns the number of keys by home. Beyond [`HOME_SAMPLE_KEYS`] keys, the numbers are estimates.
    fn count_keys_by_home(&self) -> HashMap<NodeId, u64> {
        let (homes, mut counts) = (self.homes.load(), HashMap::new());
        let keys = self.table.sample_keys(HOME_SAMPLE_KEYS);
        keys.iter().filter_map(|key| homes.home(*key)).for_each(|node| *counts.entry(node).or_default() += 1);
        let (all, sampled) = (u128::from(self.table.key_count()), keys.len().max(1) as u128);
        counts.values_mut().for_each(|count: &mut u64| *count = (u128::from(*count) * all / sampled) as u64);
        counts
    }

    /// Performs the mesh's pending actions.
    fn perform_actions(&self, hub: &mut Hub, now: &Now<'_>) {
        // Closing a link can queue further actions.
        while !hub.actions.is_empty() {
            for action in std::mem::take(&mut hub.actions) {
                match action {
                    Action::Send { peer, frame } => {
                        let Some(link) = hub.links.get(&peer) else { continue };
                        if !link.outbox.push(|to| wire::encode(&frame, to)) {
                            self.end_link(hub, peer, "the send queue is full", now);
                        }
                    }
                    Action::Close { peer, why } => self.end_link(hub, peer, why, now),
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
    fn end_link(&self, hub: &mut Hub, peer: NodeId, why: &str, now: &Now<'_>) {
        let Some(link) = hub.links.get(&peer) else { return };
        link.outbox.end();
        self.log_lost_link(hub, peer, why);
        self.remove_link(hub, peer, now);
    }

    fn log_lost_link(&self, hub: &Hub, peer: NodeId, why: &str) {
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
