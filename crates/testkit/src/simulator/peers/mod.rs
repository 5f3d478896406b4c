//! Simulates nodes that share limits without a store: `tollgate-peers` on 2 to 100 nodes.
//!
//! Each run has one rule, `eventual` or `strict`. A run has one key, or several keys that requests charge as groups.
//! Frames are encoded and decoded, and every node runs its own membership (`membership.rs`). The checks (`check.rs`):
//!
//! - no node applies a delta twice;
//! - every interval admits at most `B + r·T + E`;
//! - after a quiet period, the views of all nodes are equal, except for charges within one tick and round trip;
//! - no view owes more than the nodes can charge in about a second without knowing of each other's charges;
//! - during a partition, the minority side decides nothing under a `strict` rule;
//! - a group charges all of its keys or none, if no answer is lost;
//! - some time after the last fault, every node knows exactly the running nodes, and is linked to all of them.

mod check;
mod draw;
mod groups;
mod membership;
mod net;
mod node;
pub mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use tollgate::fingerprint::Fingerprint;
use tollgate_core::{Ask as Amount, Cost, Limits, Rate};
use tollgate_peers::NodeId;
use tollgate_peers::ask::{self, Ask, AskAction, AskCharge};
use tollgate_peers::greeting::{self, NodeFigures, NodeRecord};
use tollgate_peers::group::Home;
use tollgate_peers::homes::{Hop, Route};
use tollgate_peers::mesh::{Action, Event as MeshEvent, MemberState};
use tollgate_peers::table::Verb;
use tollgate_peers::wire::{self, Frame};

use super::{EventQueue, Random};
use groups::SimulatedGroup;
use membership::{DialResult, address_of};
use net::SimulatedNetwork;
use node::Host;

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
const TICK: u64 = 100 * MILLI;
/// Quiet period at the end of a run.
const QUIET_PERIOD: u64 = 5 * SECOND;

/// A deliberate defect, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeersDefect {
    /// The unchanged protocol.
    None,
    /// The vector of a snapshot is read after the table walk, so deltas applied during the walk are lost.
    VectorAfterWalk,
    /// A minority removes silent members from its count.
    MinorityStrikes,
    /// A delta older than a second is charged as if it were recent, and creates debt.
    OldDeltaMakesDebt,
    /// A refused group does not undo the charges at other homes.
    GroupNotUndone,
}

#[derive(Debug)]
enum PeersEvent {
    Request { host: usize, cost: u64, key: u32 },
    Timer { host: usize, id: NodeId },
    DialEnded { host: usize, id: NodeId, address: SocketAddr, dialled: DialResult },
    LinkDown { host: usize, other: usize, number: u64 },
    Arrive { from: usize, to: usize, number: u64, bytes: Vec<u8>, sent_at: u64 },
    GiveUp { ask: u64 },
    Start { host: usize },
    Crash { host: usize, silently: bool },
    Leave { host: usize },
    Pause { host: usize, until: u64 },
    BreakLink { one: usize, other: usize },
    Step { host: usize, by: i64 },
}

/// Figures of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeersOutcome {
    /// Admitted tokens.
    pub admitted: u64,
    /// Number of frames.
    pub frames: u64,
    /// Bytes of all frames with their length prefixes.
    pub bytes: u64,
    /// Applied deltas.
    pub deltas: u64,
    /// Merged snapshots.
    pub snapshots: u64,
    /// Largest amount admitted beyond `B + r·T` in any interval, rounded up.
    pub excess: u64,
    /// Upper bound on `excess`.
    pub bound: u64,
}

/// One simulation run.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent options of a run")]
pub struct PeersSimulation {
    random: Random,
    queue: EventQueue<PeersEvent>,
    hosts: Vec<Host>,
    net: SimulatedNetwork,
    key: Fingerprint,
    limits: Limits,
    capacity: u64,
    rate: Option<Rate>,
    window: u64,
    is_strict: bool,
    /// A partition into two sides: start, end, and the hosts of the first side.
    partition: Option<(u64, u64, BTreeSet<usize>)>,
    defect: PeersDefect,
    ring_bytes: usize,
    length: u64,
    /// Frames are counted from this time until the quiet period begins.
    counted_from: u64,
    next_id: u64,
    /// Whether member lists are sometimes wrong.
    wrong_members: bool,
    has_faults: bool,
    duplicates: bool,
    // The following fields are recorded during the run.
    history: Vec<(u64, u64)>,
    deciders: BTreeSet<NodeId>,
    applied: BTreeSet<(NodeId, NodeId, u64)>,
    longest_lag: u64,
    longest_transit: u64,
    worst_debt: u64,
    /// Time of the last membership change or broken link, or of the end of the last pause.
    last_fault: u64,
    faults: Faults,
    outcome: PeersOutcome,
    /// Requests in flight to a home: the host that receives the answer, by request number.
    asks: BTreeMap<u64, usize>,
    next_ask: u64,
    /// Number of keys. If there are several keys, each request charges some of the keys as a group.
    group_size: u64,
    groups: BTreeMap<u64, SimulatedGroup>,
    /// Admitted tokens of each key.
    group_admitted: Vec<u64>,
    /// Group number and home of each ask that belongs to a group, by ask number.
    group_asks: BTreeMap<u64, (u64, Home)>,
    /// Origin host and original number of each relayed ask, by its new number.
    relays: BTreeMap<u64, (usize, u64)>,
    violation: Option<String>,
}

/// Faults of a run that add to its bound.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    crashes: u64,
    /// Snapshots that were merged into the state of a ready node.
    merged_snapshots: u64,
    /// Number of wall clock steps.
    clock_steps: u64,
    /// Nodes that became ready without a snapshot although other nodes were ready.
    joined_without_snapshot: u64,
    /// Longest pause of a host.
    longest_pause: u64,
    /// Asks of groups that received no answer in time.
    unanswered: u64,
    /// Largest amount, on any node, that was not charged because it was too old.
    forgiven: u64,
}

impl PeersSimulation {
    /// Draws a run on 2 to 100 nodes, in which every kind of fault may occur.
    pub fn draw(seed: u64, defect: PeersDefect) -> Self {
        draw::draw(seed, defect)
    }

    /// Runs to the end and checks the result.
    ///
    /// # Errors
    /// Returns an error if a check fails.
    pub fn run(mut self) -> Result<PeersOutcome, String> {
        let end = self.length + QUIET_PERIOD;
        while let Some((now, event)) = self.queue.pop() {
            if now > end {
                break;
            }
            self.handle_event(now, event);
            if let Some(violation) = self.violation.take() {
                return Err(format!("at {} ms: {violation}", now / MILLI));
            }
        }
        check::check(self, end)
    }

    fn handle_event(&mut self, now: u64, event: PeersEvent) {
        // Events of a paused host are postponed and keep their order.
        let host = match &event {
            PeersEvent::Timer { host, .. } | PeersEvent::LinkDown { host, .. } | PeersEvent::DialEnded { host, .. } => {
                Some(*host)
            }
            PeersEvent::Arrive { to, .. } => Some(*to),
            _ => None,
        };
        if let Some(until) = host.map(|host| self.hosts[host].paused_until).filter(|until| *until > now) {
            return self.queue.add(until, event);
        }
        match event {
            PeersEvent::Request { host, cost, key } => self.make_request(now, host, cost, key),
            PeersEvent::Timer { host, id } => {
                let Some(process) = self.hosts[host].process.as_mut().filter(|process| process.id == id) else {
                    return;
                };
                process.timer_at = None;
                self.run_due_work(now, host);
            }
            PeersEvent::DialEnded { host, id, address, dialled } => self.on_dialled(now, host, id, address, dialled),
            PeersEvent::LinkDown { host, other, number } => {
                if self.net.open_connection_number(host, other) == Some(number) {
                    self.close_link_side(now, host, other);
                }
            }
            PeersEvent::Arrive { from, to, number, bytes, sent_at } => {
                if self.net.open_connection_number(to, from) == Some(number) {
                    self.receive_bytes(now, from, to, &bytes, sent_at);
                }
            }
            PeersEvent::GiveUp { ask } => self.abandon_ask(now, ask),
            PeersEvent::Start { host } => self.start(now, host),
            PeersEvent::Crash { host, silently } => self.stop_process(now, host, silently),
            PeersEvent::Leave { host } => {
                let mono = self.hosts[host].now(now).mono();
                if let Some(process) = self.hosts[host].process.as_mut() {
                    process.members.set_state(MemberState::Leaving, mono);
                }
                self.last_fault = now;
                self.handle_mesh_event(now, host, MeshEvent::Leave);
            }
            PeersEvent::Pause { host, until } => {
                self.hosts[host].paused_until = until;
                self.last_fault = self.last_fault.max(until);
                self.faults.longest_pause = self.faults.longest_pause.max(until - now);
            }
            PeersEvent::BreakLink { one, other } => {
                self.last_fault = self.last_fault.max(now);
                self.close_link_side(now, one, other);
                self.close_link_side(now, other, one);
            }
            PeersEvent::Step { host, by } => {
                self.faults.clock_steps += 1;
                self.hosts[host].wall.add_step(now, by);
            }
        }
    }

    fn start(&mut self, now: u64, host: usize) {
        if self.hosts[host].process.is_some() {
            return;
        }
        // Ids are random, so that any node may have the lowest id.
        let id = NodeId(self.random.below(1 << 40) << 16 | self.next_id);
        self.next_id += 1;
        let (state, address, name) = (MemberState::Joining, address_of(host), format!("host-{host}"));
        let own = NodeRecord { node: id, heartbeat: 0, state, address, name, figures: NodeFigures::default() };
        let seeds: Vec<SocketAddr> = (0..self.hosts.len()).map(address_of).collect();
        self.hosts[host].start(now, own, &seeds, &self.limits, self.ring_bytes);
        self.last_fault = self.last_fault.max(now);
        self.run_due_work(now, host);
    }

    /// Ends a process. The other nodes see their links go down or, if `silently`, notice only that the process stopped
    /// sending.
    fn stop_process(&mut self, now: u64, host: usize, silently: bool) {
        let Some(process) = self.hosts[host].process.take() else { return };
        self.last_fault = self.last_fault.max(now);
        if process.mesh.state() != MemberState::Leaving {
            self.faults.crashes += 1;
        }
        self.faults.forgiven = self.faults.forgiven.max(process.table.counts().forgiven);
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            if let Some(number) = self.net.open_connection_number(other, host)
                && !silently
            {
                let delay = self.net.draw_delay(&mut self.random, host, other);
                self.queue.add(now + delay, PeersEvent::LinkDown { host: other, other: host, number });
            }
            self.net.close_connection_side(host, other);
        }
        self.asks.retain(|_, origin| *origin != host);
    }

    /// Closes one side of a link and notifies the process on that side.
    fn close_link_side(&mut self, now: u64, host: usize, other: usize) {
        if !self.end_link(now, host, other) {
            return;
        }
        if let Some(number) = self.net.open_connection_number(other, host)
            && self.net.cut_until(host, other, now).is_none()
        {
            let delay = self.net.draw_delay(&mut self.random, host, other);
            self.queue.add(now + delay, PeersEvent::LinkDown { host: other, other: host, number });
        }
    }

    /// Passes an event to a host's mesh and performs the resulting actions.
    fn handle_mesh_event(&mut self, now: u64, host: usize, event: MeshEvent) {
        let local = self.hosts[host].now(now);
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let mut actions = Vec::new();
        process.mesh.on(&local, event, &mut actions);
        for action in actions {
            match action {
                Action::Send { peer, frame } => self.send(now, host, peer, &frame),
                Action::Close { peer, .. } => {
                    // The other process may have ended.
                    let other = (0..self.hosts.len()).find(|other| self.net.peer(host, *other) == Some(peer));
                    if let Some(other) = other {
                        self.close_link_side(now, host, other);
                    }
                }
                Action::Homes(_) => {}
                // A node that joins before the first request cannot miss charges.
                Action::Ready { complete } => {
                    if let Some(process) = self.hosts[host].process.as_mut() {
                        process.members.set_state(MemberState::Ready, local.mono());
                    }
                    self.faults.joined_without_snapshot += u64::from(!complete && !self.history.is_empty());
                }
                Action::Left => self.stop_process(now, host, false),
            }
        }
        self.schedule(now, host);
    }

    fn schedule(&mut self, now: u64, host: usize) {
        let mono = &self.hosts[host].mono;
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        let wake_at = process.mesh.wake_at().min(process.members.wake_at());
        let wake = mono.instant_of_shown(wake_at.as_nanos()).max(now);
        if process.timer_at.is_none_or(|at| wake < at) {
            let id = process.id;
            self.queue.add(wake, PeersEvent::Timer { host, id });
            if let Some(process) = self.hosts[host].process.as_mut() {
                process.timer_at = Some(wake);
            }
        }
    }

    fn host_of(&self, node: NodeId) -> Option<usize> {
        self.hosts.iter().position(|host| host.process.as_ref().is_some_and(|process| process.id == node))
    }

    fn send(&mut self, now: u64, from: usize, peer: NodeId, frame: &Frame) {
        let Some(to) = self.host_of(peer) else { return };
        let mut bytes = Vec::new();
        wire::encode(frame, &mut bytes);
        let is_held =
            self.defect == PeersDefect::VectorAfterWalk && matches!(frame, Frame::Part(part) if part.part == 0);
        self.send_bytes(now, from, to, bytes, if is_held { 800 * MILLI } else { 0 });
    }

    fn send_bytes(&mut self, now: u64, from: usize, to: usize, bytes: Vec<u8>, extra: u64) {
        let Some(number) = self.net.open_connection_number(from, to) else { return };
        if (self.counted_from..=self.length).contains(&now) {
            self.outcome.frames += 1;
            self.outcome.bytes += bytes.len() as u64;
        }
        let at = self.net.arrival_time(&mut self.random, from, to, now, extra);
        let repeats = self.duplicates && !is_ask_or_answer(&bytes) && self.random.happens_in_percent(2);
        if repeats {
            let bytes = bytes.clone();
            self.queue.add(at, PeersEvent::Arrive { from, to, number, bytes, sent_at: now });
        }
        self.queue.add(at, PeersEvent::Arrive { from, to, number, bytes, sent_at: now });
    }

    fn receive_bytes(&mut self, now: u64, from: usize, to: usize, bytes: &[u8], sent_at: u64) {
        let Some(peer) = self.net.peer(to, from) else { return };
        if greeting::is_link_frame(bytes) {
            return self.handle_link_frame(now, to, bytes);
        }
        let mut frame = match wire::decode(bytes) {
            Ok(Some((frame, length))) if length == bytes.len() => frame,
            other => return self.violation = Some(format!("a frame was not decoded: {other:?}")),
        };
        match &mut frame {
            Frame::Ask(_) | Frame::Answer(_) => return self.receive_ask_or_answer(now, from, to, frame),
            Frame::Part(part) if part.part == 0 && self.defect == PeersDefect::VectorAfterWalk => {
                if let Some(sender) = self.hosts[from].process.as_ref() {
                    part.vector = sender.mesh.vector();
                }
            }
            Frame::Delta(delta) if self.defect == PeersDefect::OldDeltaMakesDebt => {
                delta.age = delta.age.min(SECOND);
            }
            _ => {}
        }
        let Some(receiver) = self.hosts[to].process.as_ref() else { return };
        let before = receiver.mesh.counts();
        let delta = match &frame {
            Frame::Delta(delta) => Some((delta.seq, delta.age)),
            _ => None,
        };
        let (own, was_ready) = (receiver.id, receiver.is_ready());
        self.handle_mesh_event(now, to, MeshEvent::Frame { peer, frame });
        let Some(receiver) = self.hosts[to].process.as_ref() else { return };
        let after = receiver.mesh.counts();
        if after.snapshots > before.snapshots {
            self.outcome.snapshots += 1;
            // Both the node's state and the snapshot may lack charges.
            self.faults.merged_snapshots += u64::from(was_ready);
        }
        if after.applied > before.applied
            && let Some((seq, age)) = delta
        {
            self.longest_transit = self.longest_transit.max(now - sent_at);
            self.record_applied_delta(now, own, to, peer, seq, age + (now - sent_at));
        }
    }

    /// Records that a node applied a delta. Reports a violation if the delta was already applied.
    fn record_applied_delta(&mut self, now: u64, own: NodeId, host: usize, origin: NodeId, seq: u64, lag: u64) {
        self.outcome.deltas += 1;
        if !self.applied.insert((own, origin, seq)) {
            self.violation = Some(format!("{own:?} applied delta {seq} of {origin:?} twice"));
        }
        self.longest_lag = self.longest_lag.max(lag);
        let local = self.hosts[host].now(now);
        if let Some(process) = self.hosts[host].process.as_ref() {
            let used = process.table.used(self.key, &local);
            self.worst_debt = self.worst_debt.max(used.saturating_sub(self.capacity));
        }
    }

    /// Makes a request for the key with this index. Only requests for the first key are checked.
    fn make_request(&mut self, now: u64, host: usize, cost: u64, place: u32) {
        if self.hosts[host].paused_until > now {
            return;
        }
        let local = self.hosts[host].now(now);
        let Some(process) = self.hosts[host].process.as_ref().filter(|process| process.is_ready()) else { return };
        if place > 0 {
            let (low, high) = self.key.parts();
            let key = Fingerprint::from_parts(low, high.wrapping_add(place));
            process.decide(&local, key, cost);
            return;
        }
        if self.group_size > 1 {
            return self.request_group(now, host, cost);
        }
        if !self.is_strict {
            let (admitted, urgent) = process.decide(&local, self.key, cost);
            return self.record_decision(now, host, admitted, cost, urgent);
        }
        match process.mesh.homes().route(self.key, Hop::Origin) {
            Route::Here => {
                let (admitted, urgent) = process.decide(&local, self.key, cost);
                self.record_decision(now, host, admitted, cost, urgent);
            }
            Route::To(node) => {
                let amount = Amount::Exactly(Cost::new(cost));
                let charge =
                    AskCharge { key: self.key, limits: process.limits.encoded().clone(), amount, stamps: None };
                self.next_ask += 1;
                self.asks.insert(self.next_ask, host);
                let ask = Ask { id: self.next_ask, hop: Hop::FromOrigin, verb: Verb::Check, charges: vec![charge] };
                self.send(now, host, node, &Frame::Ask(ask));
            }
            // The rule's `on_fault` would decide here, but it is not simulated.
            Route::Unavailable(_) => {}
        }
    }

    fn receive_ask_or_answer(&mut self, now: u64, from: usize, to: usize, frame: Frame) {
        let local = self.hosts[to].now(now);
        let Some(process) = self.hosts[to].process.as_ref() else { return };
        let ask = match frame {
            Frame::Ask(ask) => ask,
            Frame::Answer(answer) => {
                // The relaying node returns the answer to the origin.
                self.asks.remove(&answer.id);
                return self.receive_group_answer(now, to, answer);
            }
            _ => return,
        };
        let is_group = self.group_size > 1;
        let cost = ask.charges.first().map_or(0, |charge| charge.amount.cost().get());
        match ask::receive_ask(process.mesh.homes(), &process.table, &local, ask) {
            AskAction::Forward(node, mut ask) => {
                if is_group {
                    self.next_ask += 1;
                    self.relays.insert(self.next_ask, (from, ask.id));
                    ask.id = self.next_ask;
                }
                self.send(now, to, node, &Frame::Ask(ask));
            }
            AskAction::Answer { answer, urgent } => {
                if let Some(peer) = self.hosts[from].process.as_ref().map(|process| process.id) {
                    self.send(now, to, peer, &Frame::Answer(answer.clone()));
                }
                if is_group {
                    return self.record_group_decision(now, to, &answer, urgent);
                }
                let charges = answer.result.unwrap_or_default();
                let admitted = charges.first().is_some_and(|charge| charge.outcome.is_admitted());
                self.record_decision(now, to, admitted, cost, urgent);
            }
        }
    }

    /// Records a host's decision.
    fn record_decision(&mut self, now: u64, host: usize, admitted: bool, cost: u64, urgent: bool) {
        if admitted {
            self.history.push((now, cost));
            self.outcome.admitted += cost;
            self.deciders.extend(self.hosts[host].process.as_ref().map(|process| process.id));
            check::check_majority(self, now, host);
        }
        if urgent {
            self.handle_mesh_event(now, host, MeshEvent::Urgent);
        }
    }
}

/// Returns whether a frame is an ask or an answer. The simulation never duplicates these frames.
fn is_ask_or_answer(bytes: &[u8]) -> bool {
    matches!(wire::decode(bytes), Ok(Some((Frame::Ask(_) | Frame::Answer(_), _))))
}
