//! The network between hosts: delays, cuts in one or both directions, and connections that preserve frame order.

use tollgate_peers::NodeId;

use super::super::Random;

/// All links between hosts.
#[derive(Debug)]
pub(super) struct SimulatedNetwork {
    hosts: usize,
    /// One entry per ordered pair of hosts.
    directions: Vec<Direction>,
    /// One entry per unordered pair, at the index of the ordered pair with the lower host first.
    connections: Vec<SimulatedConnection>,
}

#[derive(Clone, Debug, Default)]
struct Direction {
    delay: (u64, u64),
    cuts: Vec<(u64, u64)>,
    /// Arrival time of the last frame.
    last: u64,
}

/// A connection between two hosts. Each side may see the connection as open or closed.
#[derive(Clone, Copy, Debug, Default)]
struct SimulatedConnection {
    /// Number of connections between this pair so far. Frames of earlier connections are lost.
    number: u64,
    /// Whether the connection is open for the lower and the higher host.
    is_up: [bool; 2],
    /// Processes on the lower and the higher host.
    nodes: [Option<NodeId>; 2],
    /// The process that opened the connection.
    dialler: Option<NodeId>,
}

impl SimulatedNetwork {
    pub(super) fn draw(random: &mut Random, hosts: usize) -> Self {
        let slow = random.pick(&[200_000, 1_000_000, 1_000_000, 20_000_000]);
        let directions = (0..hosts * hosts).map(|_| {
            let slow = if random.happens_in_percent(10) { 30_000_000 } else { slow };
            Direction { delay: (50_000, slow), ..Direction::default() }
        });
        Self {
            hosts,
            directions: directions.collect(),
            connections: vec![SimulatedConnection::default(); hosts * hosts],
        }
    }

    /// Cuts the direction `from` → `to` between `start` and `end`.
    pub(super) fn cut(&mut self, from: usize, to: usize, start: u64, end: u64) {
        self.directions[from * self.hosts + to].cuts.push((start, end));
    }

    /// Returns the end of the cut that is active at `now`, if any.
    pub(super) fn cut_until(&self, from: usize, to: usize, now: u64) -> Option<u64> {
        let cuts = &self.directions[from * self.hosts + to].cuts;
        cuts.iter().filter(|(start, end)| (start..end).contains(&&now)).map(|(_, end)| *end).max()
    }

    /// Returns the arrival time of a frame sent now. Frames sent during a cut are resent after the cut.
    pub(super) fn arrival_time(&mut self, random: &mut Random, from: usize, to: usize, now: u64, extra: u64) -> u64 {
        let mut sent = now;
        while let Some(end) = self.cut_until(from, to, sent) {
            sent = end;
        }
        let direction = &mut self.directions[from * self.hosts + to];
        let delay = random.between(direction.delay.0, direction.delay.1);
        direction.last = direction.last.max(sent + delay + extra);
        direction.last
    }

    pub(super) fn draw_delay(&self, random: &mut Random, from: usize, to: usize) -> u64 {
        let (least, most) = self.directions[from * self.hosts + to].delay;
        random.between(least, most)
    }

    /// Returns the longest round trip of any link, without cuts.
    pub(super) fn longest_round_trip(&self) -> u64 {
        2 * self.directions.iter().map(|direction| direction.delay.1).max().unwrap_or(0)
    }

    fn connection(&mut self, one: usize, other: usize) -> &mut SimulatedConnection {
        &mut self.connections[one.min(other) * self.hosts + one.max(other)]
    }

    /// Opens a connection between two processes and returns its number.
    pub(super) fn open_connection(
        &mut self,
        (one, node): (usize, NodeId),
        (other, other_node): (usize, NodeId),
    ) -> u64 {
        let connection = self.connection(one, other);
        connection.number += 1;
        (connection.is_up, connection.dialler) = ([true, true], Some(node));
        connection.nodes[usize::from(one > other)] = Some(node);
        connection.nodes[usize::from(other > one)] = Some(other_node);
        connection.number
    }

    /// Returns the process at the other end of the last connection.
    pub(super) fn peer(&mut self, own: usize, other: usize) -> Option<NodeId> {
        self.connection(own, other).nodes[usize::from(other > own)]
    }

    /// Returns the processes of the last connection, `own` first.
    pub(super) fn connected_nodes(&mut self, own: usize, other: usize) -> [Option<NodeId>; 2] {
        [self.peer(other, own), self.peer(own, other)]
    }

    /// Returns the process that opened the last connection.
    pub(super) fn dialler(&mut self, one: usize, other: usize) -> Option<NodeId> {
        self.connection(one, other).dialler
    }

    /// Returns the end of the last cut.
    pub(super) fn last_cut(&self) -> u64 {
        self.directions.iter().flat_map(|direction| &direction.cuts).map(|(_, end)| *end).max().unwrap_or(0)
    }

    /// Returns the length of the longest cut.
    pub(super) fn longest_cut(&self) -> u64 {
        let cuts = self.directions.iter().flat_map(|direction| &direction.cuts);
        cuts.map(|(start, end)| end - start).max().unwrap_or(0)
    }

    /// Returns the number of the connection that `own` considers open.
    pub(super) fn open_connection_number(&mut self, own: usize, other: usize) -> Option<u64> {
        let connection = self.connection(own, other);
        connection.is_up[usize::from(own > other)].then_some(connection.number)
    }

    /// Closes the connection on `own`'s side. Returns whether that side was open.
    pub(super) fn close_connection_side(&mut self, own: usize, other: usize) -> bool {
        std::mem::replace(&mut self.connection(own, other).is_up[usize::from(own > other)], false)
    }
}
