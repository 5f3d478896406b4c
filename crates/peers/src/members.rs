//! Membership: which nodes exist, which are alive, and which addresses to dial.
//!
//! Every node has a record of itself with a heartbeat, which it increments every [`HEARTBEAT_INTERVAL`]. A node sends
//! its record to all linked peers. `GOSSIP_FANOUT` of these peers, in rotation, also get the records of all members
//! that the node considers alive. A record with a higher heartbeat replaces the known record, regardless of which peer
//! sent it. A member whose heartbeat has not risen for [`DEAD_AFTER`] is dead. So if the link between two of three
//! nodes is cut, the two nodes still see each other through the third node. Old records do not revive a dead node,
//! because a node sends only the records of members that it considers alive.
//!
//! Addresses come from records and from the seeds, which are resolved repeatedly. An address is dialled unless its node
//! is already linked. After a failure the backoff doubles.
//!
//! This module is a state machine: instants and random numbers are arguments, and the required actions are return
//! values. The alternative was a gossip library such as `chitchat`. `chitchat` needs a C library for compression,
//! another port, and separate encryption for UDP. It also reads clocks and spawns tasks itself. Every node already has
//! a link to every other node, so gossip needs no transport of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use tollgate_core::{Mono, Nanos, Time};

use crate::NodeId;
use crate::greeting::{MAX_RECORDS, NodeFigures, NodeRecord};
use crate::mesh::{Member, MemberState};

/// Interval between heartbeats.
pub const HEARTBEAT_INTERVAL: Nanos = Nanos::from_millis(500);
/// A member whose heartbeat has not risen for this time is considered dead.
pub const DEAD_AFTER: Nanos = Nanos::from_millis(3_000);
/// Number of peers that receive all records at each heartbeat.
const GOSSIP_FANOUT: usize = 3;
/// An unlinked member whose heartbeat has not risen for this time is removed, and its address is no longer dialled.
const FORGET_DEAD_AFTER: Nanos = Nanos::from_secs(600);
/// Shortest and longest backoff after a failed dial.
const DIAL_BACKOFF: (Nanos, Nanos) = (Nanos::from_millis(100), Nanos::from_millis(2_000));
/// Maximum number of seed addresses.
pub const MAX_SEEDS: usize = 256;

/// Members known to this node.
#[derive(Debug)]
pub struct Members {
    own: NodeRecord,
    known: BTreeMap<NodeId, MemberEntry>,
    seeds: BTreeSet<SocketAddr>,
    dials: HashMap<SocketAddr, DialState>,
    next_beat: Time<Mono>,
    /// Index of the first peer that receives all records at the next heartbeat.
    turn: usize,
    /// Last result of [`changed_members`](Self::changed_members).
    reported: Option<Vec<(NodeId, MemberState)>>,
}

#[derive(Debug)]
struct MemberEntry {
    record: NodeRecord,
    /// When the heartbeat last rose.
    advanced: Time<Mono>,
    linked: bool,
}

#[derive(Debug)]
struct DialState {
    failures: u32,
    next: Time<Mono>,
    dialling: bool,
    /// Whether the address accepts connections.
    answers: bool,
    /// The last node that answered at this address, which may be this node itself.
    node: Option<NodeId>,
}

impl Default for DialState {
    fn default() -> Self {
        Self { failures: 0, next: Time::ZERO, dialling: false, answers: false, node: None }
    }
}

/// Messages to send at a heartbeat.
#[derive(Debug)]
pub struct HeartbeatMessages {
    /// This node's record, for all peers.
    pub own: NodeRecord,
    /// All live records, for the peers in `all_to`.
    pub all: Vec<NodeRecord>,
    /// The peers that receive all records.
    pub all_to: Vec<NodeId>,
}

impl Members {
    /// Creates the member list of a node that has just started. The list contains only the node itself.
    pub fn new(own: NodeRecord, now: Time<Mono>) -> Self {
        Self {
            own,
            known: BTreeMap::new(),
            seeds: BTreeSet::new(),
            dials: HashMap::new(),
            next_beat: now,
            turn: 0,
            reported: None,
        }
    }

    /// Returns this node's record.
    pub fn own_record(&self) -> &NodeRecord {
        &self.own
    }

    /// Replaces the seed addresses, which are dialled in addition to the members' addresses.
    pub fn set_seeds(&mut self, seeds: impl IntoIterator<Item = SocketAddr>) {
        self.seeds = seeds.into_iter().take(MAX_SEEDS).collect();
    }

    /// Changes this node's member state and schedules an immediate heartbeat to announce it.
    pub fn set_state(&mut self, state: MemberState, now: Time<Mono>) {
        self.own.state = state;
        self.next_beat = now;
    }

    /// Sets the figures that the next heartbeat reports.
    pub fn set_figures(&mut self, figures: NodeFigures) {
        self.own.figures = figures;
    }

    /// Merges records from a peer.
    pub fn merge_records(&mut self, records: impl IntoIterator<Item = NodeRecord>, now: Time<Mono>) {
        for record in records {
            if record.node == self.own.node {
                continue;
            }
            if let Some(known) = self.known.get_mut(&record.node) {
                if record.heartbeat > known.record.heartbeat {
                    known.record = record;
                    known.advanced = now;
                }
            } else if self.known.len() < MAX_RECORDS - 1 {
                self.known.insert(record.node, MemberEntry { record, advanced: now, linked: false });
            }
        }
    }

    /// Returns the reason if a node with this record cannot join, because a live node has the same name at another
    /// address.
    pub fn name_conflict(&self, record: &NodeRecord, now: Time<Mono>) -> Option<String> {
        let others = self.known.values().filter(|known| known.is_alive(now)).map(|known| &known.record);
        let other = others
            .chain([&self.own])
            .find(|other| other.name == record.name && other.node != record.node && other.address != record.address)?;
        Some(format!("the name {} is taken by the node at {}", other.name, other.address))
    }

    /// Records a link to the node, and the address that was dialled, if any. Removes other unlinked members with the
    /// same address, because their processes have ended.
    pub fn record_link(&mut self, record: NodeRecord, dialled: Option<SocketAddr>, now: Time<Mono>) {
        let node = record.node;
        self.known.retain(|other, known| *other == node || known.linked || known.record.address != record.address);
        self.merge_records([record], now);
        if let Some(known) = self.known.get_mut(&node) {
            known.linked = true;
        }
        if let Some(address) = dialled {
            self.dials.insert(address, DialState { node: Some(node), ..DialState::default() });
        }
    }

    /// Records that the link to this node ended.
    pub fn record_link_end(&mut self, node: NodeId) {
        if let Some(known) = self.known.get_mut(&node) {
            known.linked = false;
        }
    }

    /// Records that a dialled address belongs to this node itself.
    pub fn record_own_address(&mut self, address: SocketAddr) {
        self.dials.insert(address, DialState { node: Some(self.own.node), ..DialState::default() });
    }

    /// Records whether an address accepted a connection.
    pub fn record_dial_answer(&mut self, address: SocketAddr, answers: bool) {
        self.dials.entry(address).or_default().answers = answers;
    }

    /// Returns whether peer addresses accept connections but no peer is linked.
    pub fn is_shut_out(&self) -> bool {
        !self.known.values().any(|known| known.linked) && self.dials.values().any(|dial| dial.answers)
    }

    /// Records a failed dial and sets the backoff. `random` is uniformly distributed.
    pub fn record_failed_dial(&mut self, address: SocketAddr, now: Time<Mono>, random: u64) {
        let dial = self.dials.entry(address).or_default();
        dial.failures = dial.failures.saturating_add(1);
        let (first, longest) = DIAL_BACKOFF;
        let doubled = first.as_nanos().saturating_mul(1 << (dial.failures - 1).min(16)).min(longest.as_nanos());
        // Jitter: 50 to 100% of the backoff, so that nodes do not dial at the same time.
        let pause = doubled / 2 + (u128::from(doubled / 2) * u128::from(random) / u128::from(u64::MAX)) as u64;
        dial.next = now.saturating_add(Nanos::from_nanos(pause));
        dial.dialling = false;
        // Another node may have taken over the address.
        dial.node = None;
    }

    /// Returns the addresses to dial now. An address counts as being dialled until the caller calls
    /// [`record_failed_dial`](Self::record_failed_dial), [`record_link`](Self::record_link) or
    /// [`record_own_address`](Self::record_own_address) for it.
    pub fn take_due_dials(&mut self, now: Time<Mono>) -> Vec<SocketAddr> {
        let own = (self.own.node, self.own.address);
        self.known.retain(|_, known| known.linked || now.since(known.advanced) < FORGET_DEAD_AFTER);
        let is_wanted = |known: &&MemberEntry| !known.linked && known.record.state != MemberState::Leaving;
        let members = self.known.values().filter(is_wanted).map(|known| known.record.address);
        let candidates: BTreeSet<SocketAddr> = members.chain(self.seeds.iter().copied()).collect();
        let linked: BTreeSet<SocketAddr> =
            self.known.values().filter(|known| known.linked).map(|known| known.record.address).collect();
        self.dials.retain(|address, dial| dial.dialling || candidates.contains(address));
        let mut due = Vec::new();
        for address in candidates {
            let dial = self.dials.entry(address).or_default();
            let is_linked = linked.contains(&address)
                || dial.node.is_some_and(|node| self.known.get(&node).is_some_and(|known| known.linked));
            if address == own.1 || dial.node == Some(own.0) || is_linked || dial.dialling || dial.next > now {
                continue;
            }
            dial.dialling = true;
            due.push(address);
        }
        due
    }

    /// Returns the live members if the members or their states changed since the last call.
    pub fn changed_members(&mut self, now: Time<Mono>) -> Option<Vec<Member>> {
        let alive = || self.known.values().filter(|known| known.is_alive(now)).map(|known| &known.record);
        let states: Vec<_> = alive().map(|record| (record.node, record.state)).collect();
        if self.reported.as_ref() == Some(&states) {
            return None;
        }
        let members = alive().map(|record| Member {
            node: record.node,
            address: record.address.to_string(),
            state: record.state,
        });
        let members = members.collect();
        self.reported = Some(states);
        Some(members)
    }

    /// Returns the record of a known member.
    pub fn get(&self, node: NodeId) -> Option<&NodeRecord> {
        self.known.get(&node).map(|known| &known.record)
    }

    /// Returns the messages to send if a heartbeat is due.
    pub fn take_due_heartbeat(&mut self, now: Time<Mono>) -> Option<HeartbeatMessages> {
        if now < self.next_beat {
            return None;
        }
        self.next_beat = now.saturating_add(HEARTBEAT_INTERVAL);
        self.own.heartbeat += 1;
        let linked: Vec<NodeId> = self.known.iter().filter(|(_, known)| known.linked).map(|(node, _)| *node).collect();
        let all_to: Vec<_> =
            linked.iter().cycle().skip(self.turn).take(GOSSIP_FANOUT.min(linked.len())).copied().collect();
        self.turn = if linked.is_empty() { 0 } else { (self.turn + GOSSIP_FANOUT) % linked.len() };
        Some(HeartbeatMessages { own: self.own.clone(), all: self.live_records(now), all_to })
    }

    /// Returns the records of all live members and of this node.
    pub fn live_records(&self, now: Time<Mono>) -> Vec<NodeRecord> {
        let others = self.known.values().filter(|known| known.is_alive(now)).map(|known| known.record.clone());
        others.chain([self.own.clone()]).collect()
    }

    /// Returns when the next heartbeat is due.
    pub fn wake_at(&self) -> Time<Mono> {
        self.next_beat
    }
}

impl MemberEntry {
    fn is_alive(&self, now: Time<Mono>) -> bool {
        now.since(self.advanced) < DEAD_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time<Mono> {
        Time::from_nanos(millis * 1_000_000)
    }

    fn record(node: u64, heartbeat: u64) -> NodeRecord {
        let address = SocketAddr::from(([127, 0, 0, 1], 7_400 + node as u16));
        NodeRecord {
            node: NodeId(node),
            heartbeat,
            state: MemberState::Ready,
            address,
            name: format!("n{node}"),
            figures: NodeFigures::default(),
        }
    }

    fn members() -> Members {
        Members::new(record(0, 1), at(0))
    }

    fn changed_ids(members: &mut Members, millis: u64) -> Option<Vec<u64>> {
        members.changed_members(at(millis)).map(|members| members.iter().map(|member| member.node.0).collect())
    }

    #[test]
    fn member_is_alive_while_any_peer_reports_a_rising_heartbeat() {
        let mut members = members();
        assert_eq!(changed_ids(&mut members, 0), Some(vec![]), "at the start");
        members.merge_records([record(0, 9), record(1, 5), record(2, 5)], at(0));
        assert_eq!(changed_ids(&mut members, 0), Some(vec![1, 2]));
        assert_eq!(changed_ids(&mut members, 1), None, "nothing changed");
        members.merge_records([record(1, 6), record(2, 5)], at(2_000));
        assert_eq!(changed_ids(&mut members, 3_000), Some(vec![1]), "the heartbeat of 2 did not rise");
        members.merge_records([record(2, 4)], at(3_500));
        assert_eq!(changed_ids(&mut members, 3_500), None, "a stale record");
        members.merge_records([record(2, 6)], at(4_000));
        assert_eq!(changed_ids(&mut members, 4_000), Some(vec![1, 2]));
        members.merge_records([NodeRecord { state: MemberState::Leaving, ..record(2, 7) }], at(4_100));
        assert_eq!(changed_ids(&mut members, 4_100), Some(vec![1, 2]), "its state changed");
    }

    #[test]
    fn every_peer_gets_the_own_record_and_three_peers_get_all_records() {
        let mut members = members();
        for node in 1..=5 {
            members.record_link(record(node, 1), None, at(0));
        }
        let (mut reached, mut last) = (BTreeSet::new(), 1);
        for turn in 0..2 {
            assert!(turn == 0 || members.take_due_heartbeat(at(turn * 500 - 1)).is_none(), "not yet");
            let beat = members.take_due_heartbeat(at(turn * 500)).unwrap();
            assert!(beat.own.heartbeat > last);
            last = beat.own.heartbeat;
            assert_eq!((beat.all.len(), beat.all_to.len()), (6, GOSSIP_FANOUT));
            reached.extend(beat.all_to);
        }
        assert_eq!(reached.len(), 5, "all peers get all records within two heartbeats");
        let late = members.take_due_heartbeat(at(10_000)).unwrap();
        assert_eq!(late.all.len(), 1, "only live records");
    }

    #[test]
    fn node_is_shut_out_while_peers_answer_but_none_is_linked() {
        let mut members = members();
        let (one, other) = (record(1, 0).address, record(2, 0).address);
        members.set_seeds([one, other]);
        assert!(!members.is_shut_out(), "nothing was dialled yet");
        members.take_due_dials(at(0));
        members.record_dial_answer(one, false);
        members.record_failed_dial(one, at(0), 0);
        assert!(!members.is_shut_out(), "no peer listens");
        members.record_dial_answer(other, true);
        members.record_failed_dial(other, at(0), 0);
        assert!(members.is_shut_out(), "a peer answered and refused");
        members.record_link(record(1, 1), Some(one), at(1));
        assert!(!members.is_shut_out(), "one peer is linked");
        members.record_link_end(NodeId(1));
        members.record_own_address(other);
        assert!(!members.is_shut_out(), "the address is this node's own");
    }

    #[test]
    fn addresses_are_dialled_with_backoff_until_linked() {
        let mut members = members();
        let seed = record(1, 0).address;
        members.set_seeds([seed, record(0, 0).address]);
        assert_eq!(members.take_due_dials(at(0)), [seed], "this node's own address is not dialled");
        assert_eq!(members.take_due_dials(at(0)), [], "already being dialled");
        members.record_failed_dial(seed, at(0), u64::MAX);
        assert_eq!(members.take_due_dials(at(99)), []);
        assert_eq!(members.take_due_dials(at(100)), [seed]);
        members.record_failed_dial(seed, at(100), 0);
        assert_eq!(members.take_due_dials(at(199)), []);
        assert_eq!(members.take_due_dials(at(200)), [seed], "between half the backoff and all of it");
        for failure in 0..70 {
            members.record_failed_dial(seed, at(200 + failure), u64::MAX);
        }
        assert_eq!(members.take_due_dials(at(2_400)), [seed], "at most two seconds");
        members.record_link(record(1, 1), Some(seed), at(2_400));
        assert_eq!(members.take_due_dials(at(2_400)), []);
        members.record_link_end(NodeId(1));
        assert_eq!(members.take_due_dials(at(2_400)), [seed], "immediately");
    }

    #[test]
    fn node_with_several_addresses_is_dialled_at_only_one() {
        let mut members = members();
        let other = SocketAddr::from(([10, 0, 0, 9], 7_400));
        members.set_seeds([other]);
        assert_eq!(members.take_due_dials(at(0)), [other]);
        members.record_link(record(1, 1), Some(other), at(0));
        assert_eq!(members.take_due_dials(at(0)), [], "neither at the dialled nor at the recorded address");
        let own = SocketAddr::from(([10, 0, 0, 1], 7_400));
        members.set_seeds([own]);
        assert_eq!(members.take_due_dials(at(0)), [own]);
        members.record_own_address(own);
        assert_eq!(members.take_due_dials(at(100_000)), []);
    }

    #[test]
    fn member_addresses_are_dialled_until_the_member_is_removed() {
        let mut members = members();
        members.merge_records([record(2, 1)], at(0));
        assert_eq!(members.take_due_dials(at(0)), [record(2, 0).address]);
        members.record_failed_dial(record(2, 0).address, at(0), 0);
        assert_eq!(members.take_due_dials(at(599_000)), [record(2, 0).address], "it may recover");
        members.record_failed_dial(record(2, 0).address, at(599_000), 0);
        assert_eq!(members.take_due_dials(at(601_000)), []);
        assert_eq!(members.get(NodeId(2)), None);
    }

    #[test]
    fn duplicate_name_is_refused_unless_the_address_is_the_same() {
        let mut members = members();
        members.merge_records([record(1, 1)], at(0));
        let namesake = NodeRecord { name: "n1".to_owned(), ..record(2, 1) };
        let why = members.name_conflict(&namesake, at(0)).unwrap();
        assert_eq!(why, "the name n1 is taken by the node at 127.0.0.1:7401");
        assert_eq!(members.name_conflict(&namesake, at(3_000)), None, "the other node is dead");
        let successor = NodeRecord { node: NodeId(9), ..record(1, 1) };
        assert_eq!(members.name_conflict(&successor, at(0)), None);
        let own = NodeRecord { name: "n0".to_owned(), ..record(2, 1) };
        assert!(members.name_conflict(&own, at(0)).is_some());
    }

    #[test]
    fn new_process_replaces_the_old_one_at_its_address() {
        let mut members = members();
        members.merge_records([record(1, 9), record(2, 9)], at(0));
        assert_eq!(changed_ids(&mut members, 0), Some(vec![1, 2]));
        members.record_link(NodeRecord { node: NodeId(7), ..record(1, 1) }, None, at(1));
        assert_eq!(changed_ids(&mut members, 1), Some(vec![2, 7]));
    }

    #[test]
    fn number_of_members_and_seeds_is_bounded() {
        let mut members = members();
        members.merge_records((1..2_000).map(|node| record(node, 1)), at(0));
        assert_eq!(members.live_records(at(0)).len(), MAX_RECORDS);
        members.set_seeds((0..2_000).map(|host| SocketAddr::from(([10, 0, (host >> 8) as u8, host as u8], 1))));
        assert_eq!(members.seeds.len(), MAX_SEEDS);
    }
}
