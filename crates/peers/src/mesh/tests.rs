use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tollgate::fingerprint::{Fingerprint, Secret};
use tollgate_core::{Ask, Cost, Limit, Limits, Now, TokenBucket};

use super::*;
use crate::homes::{Hop, Route, Unavailable};
use crate::table::{Charge, Verb};
use crate::wire::{self, Delta};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;

/// Simulated nodes, whose links have no latency.
struct Cluster {
    at: u64,
    nodes: Vec<Node>,
    links: BTreeSet<(usize, usize)>,
    queue: VecDeque<(usize, usize, Frame)>,
    bytes: usize,
    closed: Vec<&'static str>,
}

struct Node {
    mesh: Mesh,
    table: Arc<Table>,
    actions: Vec<Action>,
}

fn limits(rate: &str, burst: u64) -> Limits {
    Limit::from(TokenBucket::new(rate.parse().unwrap(), burst).unwrap()).into()
}

impl Cluster {
    fn new(count: usize) -> Self {
        let mut cluster = Self {
            at: SECOND,
            nodes: Vec::new(),
            links: BTreeSet::new(),
            queue: VecDeque::new(),
            bytes: 0,
            closed: Vec::new(),
        };
        (0..count).for_each(|_| cluster.add_node(16 << 20));
        cluster
    }

    fn add_node(&mut self, ring_bytes: usize) {
        let table = Arc::new(Table::new(100_000, Secret::from_points([3, 4])));
        let config = MeshConfig { ring_bytes, ..MeshConfig::new(NodeId(self.nodes.len() as u64), 7) };
        let mesh = Mesh::new(config, table.clone(), &Now::at(self.at));
        self.nodes.push(Node { mesh, table, actions: Vec::new() });
    }

    /// Creates a cluster whose nodes are linked and ready.
    fn with_ready_nodes(count: usize) -> Self {
        let mut cluster = Self::new(count);
        cluster.link_all();
        cluster.run_for(2_200 * MILLI);
        assert!(cluster.nodes.iter().all(|node| node.mesh.state() == MemberState::Ready));
        cluster
    }

    fn link_all(&mut self) {
        for one in 0..self.nodes.len() {
            (0..one).for_each(|other| self.link(one, other));
        }
    }

    fn link(&mut self, one: usize, other: usize) {
        if self.links.insert((one.min(other), one.max(other))) {
            self.on(one, Event::LinkUp { peer: NodeId(other as u64) });
            self.on(other, Event::LinkUp { peer: NodeId(one as u64) });
        }
    }

    fn cut_link(&mut self, one: usize, other: usize) {
        if self.links.remove(&(one.min(other), one.max(other))) {
            self.queue.retain(|(from, to, _)| (*from, *to) != (one, other) && (*from, *to) != (other, one));
            self.on(one, Event::LinkDown { peer: NodeId(other as u64) });
            self.on(other, Event::LinkDown { peer: NodeId(one as u64) });
        }
    }

    fn on(&mut self, node: usize, event: Event) {
        let mut actions = Vec::new();
        self.nodes[node].mesh.on(&Now::at(self.at), event, &mut actions);
        for action in actions {
            match &action {
                Action::Send { peer, frame } => {
                    let to = peer.0 as usize;
                    if self.links.contains(&(node.min(to), node.max(to))) {
                        let mut bytes = Vec::new();
                        wire::encode(frame, &mut bytes);
                        self.bytes += bytes.len();
                        let (decoded, length) = wire::decode(&bytes).unwrap().unwrap();
                        assert_eq!((&decoded, length), (frame, bytes.len()));
                        self.queue.push_back((node, to, decoded));
                    }
                }
                Action::Close { why, .. } => self.closed.push(why),
                Action::Homes(_) | Action::Ready { .. } | Action::Left => {}
            }
            self.nodes[node].actions.push(action);
        }
    }

    fn deliver_frames(&mut self) {
        while let Some((from, to, frame)) = self.queue.pop_front() {
            self.on(to, Event::Frame { peer: NodeId(from as u64), frame });
        }
    }

    /// Advances time in steps of 10 ms.
    fn run_for(&mut self, time: u64) {
        let end = self.at + time;
        self.deliver_frames();
        while self.at < end {
            self.at += 10 * MILLI;
            for node in 0..self.nodes.len() {
                if self.nodes[node].mesh.wake_at().as_nanos() <= self.at {
                    self.on(node, Event::Timer);
                }
            }
            self.deliver_frames();
        }
    }

    fn decide(&self, node: usize, key: Fingerprint, limits: &Limits, verb: Verb, ask: Ask) -> bool {
        let table = &self.nodes[node].table;
        let limits = table.intern_limits(0, limits).unwrap();
        let charge = Charge { key, limits: &limits, ask, stamps: None };
        table.decide(&Now::at(self.at), verb, &[charge], |_, _| ()).admitted
    }

    fn take(&self, node: usize, key: Fingerprint, limits: &Limits, cost: u64) -> bool {
        self.decide(node, key, limits, Verb::Check, Ask::Exactly(Cost::new(cost)))
    }

    fn used(&self, key: Fingerprint) -> Vec<u64> {
        self.nodes.iter().map(|node| node.table.used(key, &Now::at(self.at))).collect()
    }
}

fn key(number: u64) -> Fingerprint {
    Fingerprint::from_parts(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 3, number as u32)
}

#[test]
fn twelve_requests_on_three_nodes_against_four_tokens_leave_a_balance_of_minus_eight() {
    let mut cluster = Cluster::with_ready_nodes(3);
    let limits = limits("4/s", 4);
    let key = cluster.nodes[0].table.fingerprint(b"customer");
    // Urgent deltas are at least a millisecond apart.
    cluster.at += 2 * MILLI;
    for node in 0..3 {
        (0..4).for_each(|_| assert!(cluster.take(node, key, &limits, 1)));
        assert!(!cluster.take(node, key, &limits, 1));
        cluster.on(node, Event::Urgent);
    }
    cluster.deliver_frames();
    assert_eq!(cluster.used(key), [12, 12, 12]);
    assert_eq!(cluster.nodes[0].table.counts().overshoot, 8);
    cluster.run_for(2_000 * MILLI);
    assert!((0..3).all(|node| !cluster.take(node, key, &limits, 1)), "the debt is repaid first");
    cluster.run_for(250 * MILLI);
    assert!(cluster.take(0, key, &limits, 1));
}

#[test]
fn deltas_are_replayed_after_a_broken_link_and_count_once() {
    let mut cluster = Cluster::with_ready_nodes(2);
    let limits = limits("1/day", 1_000);
    assert!(cluster.take(0, key(1), &limits, 5));
    cluster.run_for(150 * MILLI);
    cluster.cut_link(0, 1);
    assert!(cluster.take(0, key(1), &limits, 7) && cluster.take(1, key(1), &limits, 11));
    cluster.run_for(500 * MILLI);
    assert_eq!(cluster.used(key(1)), [12, 16]);
    cluster.link(0, 1);
    cluster.deliver_frames();
    assert_eq!(cluster.used(key(1)), [23, 23]);
    cluster.run_for(SECOND);
    // A duplicate frame changes nothing.
    let body = cluster.nodes[0].mesh.ring.get(1).unwrap().body.clone();
    cluster.on(1, Event::Frame { peer: NodeId(0), frame: Frame::Delta(Delta { seq: 1, age: 0, body }) });
    assert_eq!(cluster.used(key(1)), [23, 23]);
    assert_eq!(cluster.nodes[1].mesh.counts().repeated, 1);
    assert!(cluster.closed.is_empty(), "{:?}", cluster.closed);
}

#[test]
fn joining_node_has_all_states_before_it_is_ready() {
    let mut cluster = Cluster::with_ready_nodes(2);
    let limits = limits("1/day", 1_000);
    (0..500).for_each(|number| assert!(cluster.take(0, key(number), &limits, number + 1)));
    // The charges are still unsent when the snapshot is taken, and must count only once.
    cluster.add_node(16 << 20);
    cluster.link(2, 0);
    cluster.link(2, 1);
    cluster.deliver_frames();
    assert!(matches!(cluster.nodes[2].actions.last(), Some(Action::Homes(_))));
    assert!(cluster.nodes[2].actions.iter().any(|action| matches!(action, Action::Ready { complete: true })));
    cluster.run_for(200 * MILLI);
    for number in 0..500 {
        assert_eq!(cluster.used(key(number)), [number + 1; 3], "key {number}");
    }
    assert_eq!(cluster.nodes[2].mesh.status().nodes, 3);
}

#[test]
fn joining_node_waits_only_for_a_snapshot_that_makes_progress() {
    let mut cluster = Cluster::with_ready_nodes(1);
    (0..200).for_each(|number| assert!(cluster.take(0, key(number), &limits("1/day", 1_000), 9)));
    cluster.add_node(16 << 20);
    cluster.link(0, 1);
    let is_ready = |cluster: &Cluster| cluster.nodes[1].mesh.state() == MemberState::Ready;
    // Each step takes 100 ms and delivers at most eight frames.
    let start = cluster.at;
    while !is_ready(&cluster) {
        cluster.at += 100 * MILLI;
        // Charge all keys during the transfer. The parts with most of these keys have already been
        // sent.
        if cluster.at == start + 2 * SECOND {
            (0..200).for_each(|number| assert!(cluster.take(0, key(number), &limits("1/day", 1_000), 7)));
        }
        (0..2).for_each(|node| cluster.on(node, Event::Timer));
        for (from, to, frame) in (0..8).map_while(|_| cluster.queue.pop_front()).collect::<Vec<_>>() {
            cluster.on(to, Event::Frame { peer: NodeId(from as u64), frame });
        }
        assert!(cluster.at < start + 25 * SECOND);
    }
    assert!(cluster.at > start + 2 * SECOND, "the node did not wait");
    assert!(cluster.nodes[1].actions.iter().any(|action| matches!(action, Action::Ready { complete: true })));
    for number in 0..200 {
        // A charge that is made before its key's part is packed counts twice in a joining node: in
        // the part and in the delta.
        assert!(matches!(*cluster.used(key(number)), [16, 16 | 23]), "{number}: {:?}", cluster.used(key(number)));
    }
    // No peer answers the snapshot request.
    cluster.add_node(16 << 20);
    cluster.link(0, 2);
    let start = cluster.at;
    while cluster.nodes[2].mesh.state() != MemberState::Ready {
        cluster.at += 100 * MILLI;
        (0..3).for_each(|node| cluster.on(node, Event::Timer));
        while let Some((from, to, frame)) = cluster.queue.pop_front() {
            if !matches!(frame, Frame::Part(_)) {
                cluster.on(to, Event::Frame { peer: NodeId(from as u64), frame });
            }
        }
        assert!(cluster.at < start + 5 * SECOND);
    }
    assert!(cluster.nodes[2].mesh.counts().joined_without);
}

#[test]
fn node_that_missed_more_than_the_ring_holds_gets_a_snapshot() {
    let mut cluster = Cluster::new(0);
    (0..3).for_each(|_| cluster.add_node(1_000));
    cluster.link_all();
    cluster.run_for(2_200 * MILLI);
    let limits = limits("1/day", 50_000);
    cluster.cut_link(2, 0);
    cluster.cut_link(2, 1);
    for number in 0..50 {
        assert!(cluster.take((number % 2) as usize, key(number % 7), &limits, number + 1));
        cluster.run_for(100 * MILLI);
    }
    cluster.link(2, 0);
    cluster.link(2, 1);
    cluster.run_for(500 * MILLI);
    assert!(cluster.nodes[2].mesh.counts().snapshots >= 1);
    for number in 0..7 {
        let used = cluster.used(key(number));
        assert!(used.iter().all(|one| *one == used[0]) && used[0] > 0, "{used:?}");
    }
    // Afterwards, deltas work again.
    assert!(cluster.take(0, key(1), &limits, 1));
    let before = cluster.used(key(1))[0];
    cluster.run_for(200 * MILLI);
    assert_eq!(cluster.used(key(1)), [before; 3]);
    assert!(cluster.closed.is_empty(), "{:?}", cluster.closed);
}

#[test]
fn reset_reaches_all_nodes_and_a_snapshot_does_not_undo_it() {
    let mut cluster = Cluster::with_ready_nodes(2);
    let limits = limits("1/day", 100);
    assert!(cluster.take(0, key(1), &limits, 60));
    cluster.run_for(200 * MILLI);
    cluster.decide(1, key(1), &limits, Verb::Reset, Ask::Exactly(Cost::ZERO));
    cluster.run_for(200 * MILLI);
    assert_eq!(cluster.used(key(1)), [0, 0]);
    assert!(cluster.take(0, key(1), &limits, 3));
    cluster.add_node(16 << 20);
    cluster.link(2, 1);
    cluster.link(2, 0);
    cluster.run_for(300 * MILLI);
    assert_eq!(cluster.used(key(1)), [3, 3, 3]);
    cluster.decide(2, key(1), &limits, Verb::Refund, Ask::Exactly(Cost::new(2)));
    cluster.run_for(200 * MILLI);
    assert_eq!(cluster.used(key(1)), [1, 1, 1]);
}

#[test]
fn leaving_node_waits_for_acknowledgements() {
    let mut cluster = Cluster::with_ready_nodes(3);
    assert!(cluster.take(2, key(1), &limits("1/day", 100), 9));
    cluster.on(2, Event::Leave);
    let has_left = |cluster: &Cluster| cluster.nodes[2].actions.iter().any(|action| matches!(action, Action::Left));
    assert!(!has_left(&cluster));
    cluster.run_for(200 * MILLI);
    assert!(has_left(&cluster));
    assert_eq!(cluster.used(key(1)), [9, 9, 9]);
    assert_eq!(cluster.nodes[0].mesh.status().nodes, 2);
    let routes: BTreeSet<bool> = (0..100)
        .map(|number| cluster.nodes[0].mesh.homes().route(key(number), Hop::Origin) == Route::To(NodeId(2)))
        .collect();
    assert_eq!(routes, BTreeSet::from([false]), "the leaving node is no longer a home");
}

#[test]
fn only_a_majority_removes_silent_nodes() {
    let mut cluster = Cluster::with_ready_nodes(5);
    for one in 0..2 {
        (2..5).for_each(|other| cluster.cut_link(one, other));
    }
    cluster.run_for(20 * SECOND);
    let status = |cluster: &Cluster, node: usize| {
        let status = cluster.nodes[node].mesh.status();
        (status.nodes, status.has_majority)
    };
    assert_eq!([0, 1].map(|node| status(&cluster, node)), [(5, false); 2]);
    assert_eq!([2, 3, 4].map(|node| status(&cluster, node)), [(3, true); 3]);
    let homes = cluster.nodes[0].mesh.homes();
    assert_eq!(homes.route(key(1), Hop::Origin), Route::Unavailable(Unavailable::Minority));
    cluster.link_all();
    cluster.run_for(SECOND);
    assert_eq!([0, 1, 2, 3, 4].map(|node| status(&cluster, node)), [(5, true); 5]);
}

#[test]
fn half_with_the_lowest_id_keeps_deciding() {
    let mut cluster = Cluster::with_ready_nodes(2);
    cluster.cut_link(0, 1);
    assert_eq!([0, 1].map(|node| cluster.nodes[node].mesh.homes().has_majority()), [true, false]);
}

#[test]
fn new_process_at_an_address_replaces_the_old_one_in_the_count() {
    let mut cluster = Cluster::with_ready_nodes(2);
    let member = |node, address: &str, state| Member { node: NodeId(node), address: address.into(), state };
    cluster.on(0, Event::Members(vec![member(1, "b:7400", MemberState::Ready)]));
    cluster.cut_link(0, 1);
    cluster.on(0, Event::Members(vec![member(9, "b:7400", MemberState::Ready)]));
    assert_eq!(cluster.nodes[0].mesh.status().nodes, 2, "this node and the new node");
}

#[test]
fn protocol_violations_close_the_link() {
    let hello = |version, cluster, node| {
        Frame::Hello(Hello { version, cluster, node: NodeId(node), state: MemberState::Ready, resume: None })
    };
    let body: Arc<[u8]> = [1, 9, 1].into();
    let cases = [
        (false, Frame::Ack { seq: 0, state: MemberState::Ready }, "first frame is not a greeting"),
        (false, hello(VERSION + 1, 7, 1), "uses another protocol version"),
        (false, hello(VERSION, 8, 1), "belongs to another cluster"),
        (false, hello(VERSION, 7, 2), "claims another node id"),
        (true, Frame::Ack { seq: 99, state: MemberState::Ready }, "acknowledges a delta that was not sent"),
        (true, Frame::Resume { from: 99 }, "requests deltas after one that does not exist"),
        (true, Frame::Want { part: u32::MAX }, "requests a snapshot part that does not exist"),
        (true, Frame::Params { number: 1, encoded: [7, 7][..].into() }, "sent limits that nodes cannot share"),
        (true, Frame::Delta(Delta { seq: 9, age: 0, body: body.clone() }), "skipped a delta"),
        (true, Frame::Delta(Delta { seq: 1, age: 0, body: body.clone() }), "sent a malformed delta"),
        (true, Frame::Delta(Delta { seq: 1, age: 0, body: [1, 5, 0, 0][..].into() }), "refers to unknown limits"),
    ];
    for (is_greeted, frame, why) in cases {
        let mut cluster = Cluster::new(1);
        cluster.run_for(2_200 * MILLI);
        cluster.on(0, Event::LinkUp { peer: NodeId(1) });
        if is_greeted {
            cluster.on(0, Event::Frame { peer: NodeId(1), frame: hello(VERSION, 7, 1) });
        }
        cluster.on(0, Event::Frame { peer: NodeId(1), frame });
        assert_eq!(cluster.closed, [why]);
    }
}

#[test]
fn silent_link_is_closed_unless_this_node_was_paused() {
    let mut cluster = Cluster::new(1);
    cluster.on(0, Event::LinkUp { peer: NodeId(1) });
    cluster.run_for(900 * MILLI);
    assert!(cluster.closed.is_empty());
    cluster.run_for(300 * MILLI);
    assert!(cluster.closed.contains(&"nothing received for a second"));
    let mut paused = Cluster::with_ready_nodes(2);
    paused.at += 5 * SECOND;
    paused.run_for(300 * MILLI);
    assert!(paused.closed.is_empty(), "{:?}", paused.closed);
}

#[test]
fn key_update_takes_at_most_24_bytes_per_node() {
    let mut cluster = Cluster::with_ready_nodes(3);
    let limits = limits("1000/s", 1_000);
    let before = cluster.bytes;
    for tick in 0..10 {
        (0..300).for_each(|number| assert!(cluster.take(0, key(tick * 7 + number), &limits, 1 + number % 100)));
        cluster.run_for(100 * MILLI);
    }
    // Counts all frames of the three nodes in this second, including acknowledgements and keepalives.
    let per_update = (cluster.bytes - before) as f64 / (10.0 * 300.0 * 2.0);
    println!("{per_update:.1} bytes per key update and node");
    assert!(per_update <= 24.0, "{per_update}");
}
