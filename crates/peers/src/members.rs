//! Membership: who is in the cluster, who is alive, and which addresses to dial.
//!
//! Every node has a record of itself with a heartbeat, which it increments every [`BEAT`]. It sends its record to all peers it
//! has a link to, and all records that it believes to be alive to [`FANOUT`] of them in turn. A record with a higher heartbeat
//! than the known one is news, wherever it comes from; a member whose heartbeat has not risen for [`ALIVE`] is not alive. So a
//! node that two others reach stays alive for all three when one link is cut, and a dead one is not kept alive by rumours: only
//! records that the sender believes to be alive are sent.
//!
//! Addresses come from the seeds, which are resolved again and again, and from records. An address is dialled unless a link to
//! its node exists, after a pause that doubles with each failure.
//!
//! This is a state machine: instants and random numbers are arguments, and what is to be done is returned. A gossip library
//! was tried on paper: `chitchat` brings a C library for compression, a port and an encryption of its own for UDP, and reads
//! clocks and spawns tasks by itself. Here every node has a link to every other anyway.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use tollgate_core::{Mono, Nanos, Time};

use crate::NodeId;
use crate::greeting::{MAX_RECORDS, Record};
use crate::mesh::{Member, MemberState};

/// The interval of heartbeats.
pub(crate) const BEAT: Nanos = Nanos::from_millis(500);
/// A member whose heartbeat has not risen for this time is not alive.
pub(crate) const ALIVE: Nanos = Nanos::from_millis(3_000);
/// How many peers get all records with a heartbeat.
const FANOUT: usize = 3;
/// A member that has not been alive for this time is forgotten, and its address no longer dialled.
const FORGET: Nanos = Nanos::from_secs(600);
/// The pause after the first failure to connect, and the longest one.
const PAUSE: (Nanos, Nanos) = (Nanos::from_millis(100), Nanos::from_millis(2_000));
/// The maximum number of seed addresses.
pub const MAX_SEEDS: usize = 256;

/// The members that a node knows.
#[derive(Debug)]
pub(crate) struct Members {
    own: Record,
    known: BTreeMap<NodeId, MemberEntry>,
    seeds: BTreeSet<SocketAddr>,
    dials: HashMap<SocketAddr, Dial>,
    next_beat: Time<Mono>,
    /// Which peers get all records next.
    turn: usize,
    /// What was last returned by [`changes`](Self::changes).
    reported: Option<Vec<(NodeId, MemberState)>>,
}

#[derive(Debug)]
struct MemberEntry {
    record: Record,
    /// When the heartbeat last rose.
    advanced: Time<Mono>,
    linked: bool,
}

#[derive(Debug)]
struct Dial {
    failures: u32,
    next: Time<Mono>,
    dialling: bool,
    /// Whether something listens there.
    answers: bool,
    /// The node that answered there last; the own id for an own address.
    node: Option<NodeId>,
}

impl Default for Dial {
    fn default() -> Self {
        Self { failures: 0, next: Time::ZERO, dialling: false, answers: false, node: None }
    }
}

/// What to send at a heartbeat.
#[derive(Debug)]
pub(crate) struct Beat {
    /// The own record, for all peers.
    pub(crate) own: Record,
    /// All records, for these peers.
    pub(crate) all: Vec<Record>,
    pub(crate) all_to: Vec<NodeId>,
}

impl Members {
    pub(crate) fn new(own: Record, now: Time<Mono>) -> Self {
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

    /// The record of this node.
    pub(crate) fn own(&self) -> &Record {
        &self.own
    }

    /// Replaces the addresses that are dialled besides those of members.
    pub(crate) fn set_seeds(&mut self, seeds: impl IntoIterator<Item = SocketAddr>) {
        self.seeds = seeds.into_iter().take(MAX_SEEDS).collect();
    }

    /// Announces another state of this node with the next heartbeat, which is due now.
    pub(crate) fn set_state(&mut self, state: MemberState, now: Time<Mono>) {
        self.own.state = state;
        self.next_beat = now;
    }

    /// Learns records from a peer.
    pub(crate) fn hear(&mut self, records: impl IntoIterator<Item = Record>, now: Time<Mono>) {
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

    /// Returns why a node with this record cannot join: another one that is alive has its name.
    pub(crate) fn conflict(&self, record: &Record, now: Time<Mono>) -> Option<String> {
        let others = self.known.values().filter(|known| known.is_alive(now)).map(|known| &known.record);
        let other = others
            .chain([&self.own])
            .find(|other| other.name == record.name && other.node != record.node && other.address != record.address)?;
        Some(format!("the name {} is taken by the node at {}", other.name, other.address))
    }

    /// A link to this node exists, perhaps to an address that was dialled. Another process that had its address has ended.
    pub(crate) fn linked(&mut self, record: Record, dialled: Option<SocketAddr>, now: Time<Mono>) {
        let node = record.node;
        self.known.retain(|other, known| *other == node || known.linked || known.record.address != record.address);
        self.hear([record], now);
        if let Some(known) = self.known.get_mut(&node) {
            known.linked = true;
        }
        if let Some(address) = dialled {
            self.dials.insert(address, Dial { node: Some(node), ..Dial::default() });
        }
    }

    /// The link to this node ended.
    pub(crate) fn unlinked(&mut self, node: NodeId) {
        if let Some(known) = self.known.get_mut(&node) {
            known.linked = false;
        }
    }

    /// This node answered at an address that it dialled.
    pub(crate) fn is_own_address(&mut self, address: SocketAddr) {
        self.dials.insert(address, Dial { node: Some(self.own.node), ..Dial::default() });
    }

    /// A connection to an address was made, or could not be made.
    pub(crate) fn reached(&mut self, address: SocketAddr, answers: bool) {
        self.dials.entry(address).or_default().answers = answers;
    }

    /// Returns whether others listen where this node looks for its peers, and it has no link with any of them.
    pub(crate) fn is_shut_out(&self) -> bool {
        !self.known.values().any(|known| known.linked) && self.dials.values().any(|dial| dial.answers)
    }

    /// Dialling an address failed. `random` is uniformly distributed.
    pub(crate) fn dial_failed(&mut self, address: SocketAddr, now: Time<Mono>, random: u64) {
        let dial = self.dials.entry(address).or_default();
        dial.failures = dial.failures.saturating_add(1);
        let (first, longest) = PAUSE;
        let doubled = first.as_nanos().saturating_mul(1 << (dial.failures - 1).min(16)).min(longest.as_nanos());
        // Between half of the pause and all of it, so that nodes do not dial in step.
        let pause = doubled / 2 + (u128::from(doubled / 2) * u128::from(random) / u128::from(u64::MAX)) as u64;
        dial.next = now.saturating_add(Nanos::from_nanos(pause));
        dial.dialling = false;
        // Another node may have the address by now.
        dial.node = None;
    }

    /// Returns the addresses to dial now. Each is dialled until [`dial_failed`](Self::dial_failed), [`linked`](Self::linked) or
    /// [`is_own_address`](Self::is_own_address) is called with it.
    pub(crate) fn due(&mut self, now: Time<Mono>) -> Vec<SocketAddr> {
        let own = (self.own.node, self.own.address);
        self.known.retain(|_, known| known.linked || now.since(known.advanced) < FORGET);
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

    /// Returns the members that are alive, if they or their states changed since the last call.
    pub(crate) fn changes(&mut self, now: Time<Mono>) -> Option<Vec<Member>> {
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
    pub(crate) fn get(&self, node: NodeId) -> Option<&Record> {
        self.known.get(&node).map(|known| &known.record)
    }

    /// Returns what to send if a heartbeat is due.
    pub(crate) fn beat(&mut self, now: Time<Mono>) -> Option<Beat> {
        if now < self.next_beat {
            return None;
        }
        self.next_beat = now.saturating_add(BEAT);
        self.own.heartbeat += 1;
        let linked: Vec<NodeId> = self.known.iter().filter(|(_, known)| known.linked).map(|(node, _)| *node).collect();
        let all_to: Vec<_> = linked.iter().cycle().skip(self.turn).take(FANOUT.min(linked.len())).copied().collect();
        self.turn = if linked.is_empty() { 0 } else { (self.turn + FANOUT) % linked.len() };
        Some(Beat { own: self.own.clone(), all: self.alive(now), all_to })
    }

    /// Returns the records of all members that are alive, with the own one.
    pub(crate) fn alive(&self, now: Time<Mono>) -> Vec<Record> {
        let others = self.known.values().filter(|known| known.is_alive(now)).map(|known| known.record.clone());
        others.chain([self.own.clone()]).collect()
    }

    /// Returns when a heartbeat is due.
    pub(crate) fn wake_at(&self) -> Time<Mono> {
        self.next_beat
    }
}

impl MemberEntry {
    fn is_alive(&self, now: Time<Mono>) -> bool {
        now.since(self.advanced) < ALIVE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time<Mono> {
        Time::from_nanos(millis * 1_000_000)
    }

    fn record(node: u64, heartbeat: u64) -> Record {
        let address = SocketAddr::from(([127, 0, 0, 1], 7_400 + node as u16));
        Record { node: NodeId(node), heartbeat, state: MemberState::Ready, address, name: format!("n{node}") }
    }

    fn members() -> Members {
        Members::new(record(0, 1), at(0))
    }

    fn alive(members: &mut Members, millis: u64) -> Option<Vec<u64>> {
        members.changes(at(millis)).map(|members| members.iter().map(|member| member.node.0).collect())
    }

    #[test]
    fn member_is_alive_while_its_heartbeat_rises_wherever_it_is_heard() {
        let mut members = members();
        assert_eq!(alive(&mut members, 0), Some(vec![]), "at the start");
        members.hear([record(0, 9), record(1, 5), record(2, 5)], at(0));
        assert_eq!(alive(&mut members, 0), Some(vec![1, 2]));
        assert_eq!(alive(&mut members, 1), None, "nothing changed");
        members.hear([record(1, 6), record(2, 5)], at(2_000));
        assert_eq!(alive(&mut members, 3_000), Some(vec![1]), "the heartbeat of 2 did not rise");
        members.hear([record(2, 4)], at(3_500));
        assert_eq!(alive(&mut members, 3_500), None, "an old rumour");
        members.hear([record(2, 6)], at(4_000));
        assert_eq!(alive(&mut members, 4_000), Some(vec![1, 2]));
        members.hear([Record { state: MemberState::Leaving, ..record(2, 7) }], at(4_100));
        assert_eq!(alive(&mut members, 4_100), Some(vec![1, 2]), "its state changed");
    }

    #[test]
    fn every_peer_gets_the_own_record_and_a_few_get_all() {
        let mut members = members();
        for node in 1..=5 {
            members.linked(record(node, 1), None, at(0));
        }
        let (mut reached, mut last) = (BTreeSet::new(), 1);
        for turn in 0..2 {
            assert!(turn == 0 || members.beat(at(turn * 500 - 1)).is_none(), "not yet");
            let beat = members.beat(at(turn * 500)).unwrap();
            assert!(beat.own.heartbeat > last);
            last = beat.own.heartbeat;
            assert_eq!((beat.all.len(), beat.all_to.len()), (6, FANOUT));
            reached.extend(beat.all_to);
        }
        assert_eq!(reached.len(), 5, "all of them in two turns");
        let late = members.beat(at(10_000)).unwrap();
        assert_eq!(late.all.len(), 1, "only those that are alive");
    }

    #[test]
    fn node_is_shut_out_while_others_answer_and_none_is_linked() {
        let mut members = members();
        let (one, other) = (record(1, 0).address, record(2, 0).address);
        members.set_seeds([one, other]);
        assert!(!members.is_shut_out(), "nothing was dialled yet");
        members.due(at(0));
        members.reached(one, false);
        members.dial_failed(one, at(0), 0);
        assert!(!members.is_shut_out(), "no peer listens");
        members.reached(other, true);
        members.dial_failed(other, at(0), 0);
        assert!(members.is_shut_out(), "it answered and refused");
        members.linked(record(1, 1), Some(one), at(1));
        assert!(!members.is_shut_out(), "one of them accepts it");
        members.unlinked(NodeId(1));
        members.is_own_address(other);
        assert!(!members.is_shut_out(), "it is this node itself");
    }

    #[test]
    fn addresses_are_dialled_with_growing_pauses_until_they_are_linked() {
        let mut members = members();
        let seed = record(1, 0).address;
        members.set_seeds([seed, record(0, 0).address]);
        assert_eq!(members.due(at(0)), [seed], "not the own address");
        assert_eq!(members.due(at(0)), [], "it is being dialled");
        members.dial_failed(seed, at(0), u64::MAX);
        assert_eq!(members.due(at(99)), []);
        assert_eq!(members.due(at(100)), [seed]);
        members.dial_failed(seed, at(100), 0);
        assert_eq!(members.due(at(199)), []);
        assert_eq!(members.due(at(200)), [seed], "between half of the pause and all of it");
        for failure in 0..70 {
            members.dial_failed(seed, at(200 + failure), u64::MAX);
        }
        assert_eq!(members.due(at(2_400)), [seed], "at most two seconds");
        members.linked(record(1, 1), Some(seed), at(2_400));
        assert_eq!(members.due(at(2_400)), []);
        members.unlinked(NodeId(1));
        assert_eq!(members.due(at(2_400)), [seed], "immediately");
    }

    #[test]
    fn node_with_several_addresses_is_dialled_at_one() {
        let mut members = members();
        let other = SocketAddr::from(([10, 0, 0, 9], 7_400));
        members.set_seeds([other]);
        assert_eq!(members.due(at(0)), [other]);
        members.linked(record(1, 1), Some(other), at(0));
        assert_eq!(members.due(at(0)), [], "neither there nor at its own address");
        let own = SocketAddr::from(([10, 0, 0, 1], 7_400));
        members.set_seeds([own]);
        assert_eq!(members.due(at(0)), [own]);
        members.is_own_address(own);
        assert_eq!(members.due(at(100_000)), []);
    }

    #[test]
    fn addresses_of_members_are_dialled_until_they_are_forgotten() {
        let mut members = members();
        members.hear([record(2, 1)], at(0));
        assert_eq!(members.due(at(0)), [record(2, 0).address]);
        members.dial_failed(record(2, 0).address, at(0), 0);
        assert_eq!(members.due(at(599_000)), [record(2, 0).address], "it may come back");
        members.dial_failed(record(2, 0).address, at(599_000), 0);
        assert_eq!(members.due(at(601_000)), []);
        assert_eq!(members.get(NodeId(2)), None);
    }

    #[test]
    fn second_node_of_a_name_is_refused_and_a_successor_at_the_same_address_is_not() {
        let mut members = members();
        members.hear([record(1, 1)], at(0));
        let namesake = Record { name: "n1".to_owned(), ..record(2, 1) };
        let why = members.conflict(&namesake, at(0)).unwrap();
        assert_eq!(why, "the name n1 is taken by the node at 127.0.0.1:7401");
        assert_eq!(members.conflict(&namesake, at(3_000)), None, "the other is no longer alive");
        let successor = Record { node: NodeId(9), ..record(1, 1) };
        assert_eq!(members.conflict(&successor, at(0)), None);
        let own = Record { name: "n0".to_owned(), ..record(2, 1) };
        assert!(members.conflict(&own, at(0)).is_some());
    }

    #[test]
    fn process_that_takes_over_an_address_replaces_its_predecessor() {
        let mut members = members();
        members.hear([record(1, 9), record(2, 9)], at(0));
        assert_eq!(alive(&mut members, 0), Some(vec![1, 2]));
        members.linked(Record { node: NodeId(7), ..record(1, 1) }, None, at(1));
        assert_eq!(alive(&mut members, 1), Some(vec![2, 7]));
    }

    #[test]
    fn number_of_members_and_seeds_is_bounded() {
        let mut members = members();
        members.hear((1..2_000).map(|node| record(node, 1)), at(0));
        assert_eq!(members.alive(at(0)).len(), MAX_RECORDS);
        members.set_seeds((0..2_000).map(|host| SocketAddr::from(([10, 0, (host >> 8) as u8, host as u8], 1))));
        assert_eq!(members.seeds.len(), MAX_SEEDS);
    }
}
