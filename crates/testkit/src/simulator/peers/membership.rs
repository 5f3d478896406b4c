//! Membership: runs `tollgate_peers::members` on every host, in the same way as the program's hub. Heartbeats and
//! member lists are frames on the links. Dialling takes time, may fail, and is repeated.

use std::net::{Ipv4Addr, SocketAddr};

use tollgate_peers::NodeId;
use tollgate_peers::greeting::{self, LinkFrame, NodeRecord};
use tollgate_peers::members::HeartbeatMessages;
use tollgate_peers::mesh::{Event as MeshEvent, Member, MemberState};

use super::node::Process;
use super::{MILLI, PeersDefect, PeersEvent, PeersSimulation, SECOND};

/// Timeout of a connection attempt or greeting, as in the program.
const HANDSHAKE_TIMEOUT: u64 = 2 * SECOND;

/// Time without faults after which all nodes must be linked: the longest pause between dials, a failed handshake, and
/// a margin.
const LINKED_AFTER: u64 = 6_500 * MILLI;
/// Time without faults after which nodes must have forgotten ended nodes.
const FORGOTTEN_AFTER: u64 = 10 * SECOND;

/// Returns the address of a host.
pub(super) fn address_of(host: usize) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 7_000 + host as u16).into()
}

fn host_at(address: SocketAddr) -> usize {
    usize::from(address.port() - 7_000)
}

/// Result of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DialResult {
    /// Nothing answers.
    Unreachable,
    /// The connection was accepted, but no greeting arrived.
    Ungreeted,
    /// Both sides have sent their greetings.
    Greeted,
}

impl PeersSimulation {
    /// Runs everything that is due on a host: mesh timers, heartbeats, member changes and dials.
    pub(super) fn run_due_work(&mut self, now: u64, host: usize) {
        let local = self.hosts[host].now(now);
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        process.mesh.set_shut_out(process.members.is_shut_out());
        if process.mesh.wake_at() <= local.mono() {
            self.handle_mesh_event(now, host, MeshEvent::Timer);
        }
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        if let Some(beat) = process.members.take_due_heartbeat(local.mono()) {
            self.send_heartbeats(now, host, &beat);
        }
        self.report_members(now, host);
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let (id, due) = (process.id, process.members.take_due_dials(local.mono()));
        for address in due {
            self.dial(now, host, id, address);
        }
        self.schedule(now, host);
    }

    /// Sends a heartbeat to all linked nodes.
    fn send_heartbeats(&mut self, now: u64, host: usize, beat: &HeartbeatMessages) {
        let (mut own, mut all) = (Vec::new(), Vec::new());
        greeting::push_gossip(&mut own, [&beat.own]);
        greeting::push_gossip(&mut all, &beat.all);
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            let Some(peer) = self.net.open_connection_number(host, other).and_then(|_| self.net.peer(host, other))
            else {
                continue;
            };
            let gossip = if beat.all_to.contains(&peer) { &all } else { &own };
            self.send_bytes(now, host, other, gossip.clone(), 0);
        }
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        for record in &beat.all {
            process.seen.insert(record.node, (now, record.address));
        }
        self.plant_wrong_members(now, host);
    }

    /// Occasionally gives the mesh a wrong member list, until the next heartbeat.
    fn plant_wrong_members(&mut self, now: u64, host: usize) {
        let local = self.hosts[host].now(now);
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let own = process.id;
        let mut members: Vec<Member> = process.members.live_records(local.mono()).iter().map(to_member).collect();
        members.retain(|member| member.node != own);
        let mut is_wrong = false;
        if self.wrong_members && self.random.happens_in_percent(5) && !members.is_empty() {
            let place = self.random.below(members.len() as u64) as usize;
            members.remove(place);
            is_wrong = true;
        }
        if self.defect == PeersDefect::MinorityStrikes && !process.mesh.homes().has_majority() {
            let silent = process.seen.iter().filter(|(_, (seen, _))| now > seen + 10 * SECOND);
            members.extend(silent.map(|(node, (_, address))| Member {
                node: *node,
                address: address.to_string(),
                state: MemberState::Leaving,
            }));
            is_wrong = true;
        }
        if std::mem::replace(&mut process.has_wrong_members, is_wrong) || is_wrong {
            self.handle_mesh_event(now, host, MeshEvent::Members(members));
        }
    }

    /// Gives the mesh the list of live members, if it changed.
    pub(super) fn report_members(&mut self, now: u64, host: usize) {
        let local = self.hosts[host].now(now);
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        if let Some(alive) = process.members.changed_members(local.mono()) {
            self.handle_mesh_event(now, host, MeshEvent::Members(alive));
        }
    }

    /// Handles a frame that belongs to the link itself, such as a heartbeat.
    pub(super) fn handle_link_frame(&mut self, now: u64, to: usize, bytes: &[u8]) {
        let local = self.hosts[to].now(now);
        match greeting::decode(bytes) {
            Ok(LinkFrame::Gossip(records)) => {
                let Some(process) = self.hosts[to].process.as_mut() else { return };
                process.members.merge_records(records, local.mono());
                self.report_members(now, to);
            }
            other => self.violation = Some(format!("not gossip: {other:?}")),
        }
    }

    fn is_cut(&self, one: usize, other: usize, now: u64) -> bool {
        self.net.cut_until(one, other, now).or(self.net.cut_until(other, one, now)).is_some()
    }

    fn dial(&mut self, now: u64, host: usize, id: NodeId, address: SocketAddr) {
        let other = host_at(address);
        let round_trip =
            self.net.draw_delay(&mut self.random, host, other) + self.net.draw_delay(&mut self.random, other, host);
        let (dialled, at) = if self.is_cut(host, other, now) {
            (DialResult::Unreachable, now + HANDSHAKE_TIMEOUT)
        } else if self.hosts[other].process.is_none() {
            (DialResult::Unreachable, now + round_trip)
        } else if self.hosts[other].paused_until > now {
            (DialResult::Ungreeted, now + HANDSHAKE_TIMEOUT)
        } else {
            (DialResult::Greeted, now + 2 * round_trip)
        };
        self.queue.add(at, PeersEvent::DialEnded { host, id, address, dialled });
    }

    /// Handles the end of a connection attempt.
    pub(super) fn on_dialled(&mut self, now: u64, host: usize, id: NodeId, address: SocketAddr, dialled: DialResult) {
        let (local, other, random) = (self.hosts[host].now(now), host_at(address), self.random.below(u64::MAX));
        let is_open = dialled == DialResult::Greeted
            && !self.is_cut(host, other, now)
            && self.hosts[other].paused_until <= now
            && self.hosts[other].process.is_some();
        let Some(process) = self.hosts[host].process.as_mut().filter(|process| process.id == id) else { return };
        process.members.record_dial_answer(address, dialled != DialResult::Unreachable);
        if !is_open || !self.connect(now, host, other) {
            let Some(process) = self.hosts[host].process.as_mut() else { return };
            process.members.record_failed_dial(address, local.mono(), random);
        }
    }

    /// Opens a link that `host` has dialled. Returns whether there is a link afterwards. Of two links between two
    /// nodes, both nodes keep the link that the node with the lower id dialled.
    fn connect(&mut self, now: u64, host: usize, other: usize) -> bool {
        let (one, two) = (self.record_of(host), self.record_of(other));
        let (Some(one), Some(two)) = (one, two) else { return false };
        let conflict = |at: usize, record: &NodeRecord| {
            let mono = self.hosts[at].now(now).mono();
            self.hosts[at].process.as_ref().is_some_and(|process| process.members.name_conflict(record, mono).is_some())
        };
        if conflict(host, &two) || conflict(other, &one) {
            return false;
        }
        let is_known = self.net.connected_nodes(host, other) == [Some(one.node), Some(two.node)];
        let is_preferred = |dialler: NodeId| dialler == one.node.min(two.node);
        let is_kept = |dialler: Option<NodeId>| dialler.is_some_and(is_preferred) && !is_preferred(one.node);
        let (here, there) =
            (self.net.open_connection_number(host, other), self.net.open_connection_number(other, host));
        if is_known && (here.is_some() || there.is_some()) && is_kept(self.net.dialler(host, other)) {
            if here.is_some() {
                let mono = self.hosts[host].now(now).mono();
                let Some(process) = self.hosts[host].process.as_mut() else { return false };
                process.members.record_link(two, Some(address_of(other)), mono);
            }
            return here.is_some();
        }
        self.end_link(now, host, other);
        self.end_link(now, other, host);
        self.net.open_connection((host, one.node), (other, two.node));
        let (peer, dialler) = (two.node, one.node);
        self.open_link_side(now, host, other, two, Some(address_of(other)));
        self.open_link_side(now, other, host, one, None);
        self.net.peer(host, other) == Some(peer) && self.net.peer(other, host) == Some(dialler)
    }

    fn record_of(&self, host: usize) -> Option<NodeRecord> {
        Some(self.hosts[host].process.as_ref()?.members.own_record().clone())
    }

    /// Opens one side of a new link.
    fn open_link_side(&mut self, now: u64, host: usize, other: usize, record: NodeRecord, dialled: Option<SocketAddr>) {
        let (mono, peer) = (self.hosts[host].now(now).mono(), record.node);
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        process.members.record_link(record, dialled, mono);
        let mut gossip = Vec::new();
        greeting::push_gossip(&mut gossip, &process.members.live_records(mono));
        self.send_bytes(now, host, other, gossip, 0);
        self.report_members(now, host);
        self.handle_mesh_event(now, host, MeshEvent::LinkUp { peer });
    }

    /// Ends one side of a link. Returns whether that side was open.
    pub(super) fn end_link(&mut self, now: u64, host: usize, other: usize) -> bool {
        let peer = self.net.peer(host, other);
        if !self.net.close_connection_side(host, other) {
            return false;
        }
        if let Some(peer) = peer {
            if let Some(process) = self.hosts[host].process.as_mut() {
                process.members.record_link_end(peer);
            }
            self.handle_mesh_event(now, host, MeshEvent::LinkDown { peer });
        }
        true
    }

    /// Checks that, some time after the last fault, every node knows all running nodes and is linked to exactly these
    /// nodes. A node that has ended may count as alive for a few more seconds: each node that learns of it for the
    /// first time waits for another heartbeat.
    pub(super) fn check_members(&self, end: u64) -> Result<(), String> {
        let quiet = end.saturating_sub(self.net.last_cut().max(self.last_fault));
        if quiet < LINKED_AFTER {
            return Ok(());
        }
        let running = || self.hosts.iter().filter_map(|host| host.process.as_ref());
        for (at, host) in self.hosts.iter().enumerate() {
            let Some(process) = &host.process else { continue };
            let alive = process.members.live_records(host.now(end).mono());
            let is_known = |other: &Process| alive.iter().any(|record| record.node == other.id);
            let linked = process.mesh.status().peers.iter().filter(|peer| peer.is_linked).count();
            let (known, all) = (running().filter(|other| is_known(other)).count(), running().count());
            if known != all || linked + 1 != all || (quiet >= FORGOTTEN_AFTER && alive.len() != all) {
                return Err(format!(
                    "host {at} knows {} nodes, {known} of the {all} that run, and has {linked} links",
                    alive.len()
                ));
            }
        }
        Ok(())
    }
}

fn to_member(record: &NodeRecord) -> Member {
    Member { node: record.node, address: record.address.to_string(), state: record.state }
}
