//! Snapshots, pulled in parts by a node that joins or that missed more than a ring holds.

use tollgate_core::Now;

use super::peer::{Membership, Peer};
use super::{Action, JOIN_TIMEOUT, MAX_JOIN_TIME, MemberState, Mesh};
use crate::NodeId;
use crate::wire::body::PartBuilder;
use crate::wire::{Frame, PartBody, SnapshotPart};

/// Number of parts requested in advance.
const PARTS_AHEAD: u32 = 16;
/// A snapshot without progress for this time, in nanoseconds, is abandoned.
const PULL_TIMEOUT: u64 = 1_000_000_000;
/// Maximum number of parts in a snapshot.
const MAX_PARTS: u32 = 1 << 16;
/// Time per requested byte, in nanoseconds: 12.5 MB per second. A million keys then take less than two seconds. Without
/// this bound, packing and merging would keep a core of each node busy, and so delay the decisions of both nodes.
const NANOS_PER_BYTE: u64 = 80;
/// Maximum time over which the requests for a snapshot's parts are spread, in nanoseconds. A larger snapshot is pulled
/// faster, because the peers' rings must hold all deltas made during the transfer.
const MAX_SPREAD_NANOS: u64 = 5_000_000_000;
/// Maximum delay that later requests make up for, in nanoseconds. Timers may be some milliseconds late.
const MAX_CATCH_UP: u64 = 5_000_000;

/// A snapshot transfer in progress.
#[derive(Debug)]
pub(super) struct SnapshotPull {
    pub(super) from: NodeId,
    /// Last delta of each node in the snapshot. Sent with the first part.
    vector: Vec<(NodeId, u64)>,
    parts: u32,
    /// Next part to arrive.
    next: u32,
    /// Next part to request.
    asked: u32,
    /// Size of the last part, in bytes. The next part has about the same size, because keys are spread by their hash.
    part_bytes: u64,
    /// When the next part may be requested, see [`NANOS_PER_BYTE`].
    request_at: u64,
    progress_at: u64,
}

impl SnapshotPull {
    /// Returns when the next part can be requested. `None` if a part has to arrive first.
    pub(super) fn wake_at(&self) -> Option<u64> {
        let can_ask = self.next > 0 && self.asked < self.parts.min(self.next + PARTS_AHEAD);
        can_ask.then_some(self.request_at)
    }

    /// Returns the next part to request at `at`, if there is one.
    fn next_request(&mut self, at: u64) -> Option<u32> {
        self.wake_at().filter(|wake_at| *wake_at <= at)?;
        let due_at = self.request_at.max(at.saturating_sub(MAX_CATCH_UP));
        let interval =
            self.part_bytes.saturating_mul(NANOS_PER_BYTE).min(MAX_SPREAD_NANOS / u64::from(self.parts.max(1)));
        self.request_at = due_at.saturating_add(interval);
        self.asked += 1;
        Some(self.asked - 1)
    }
}

impl Mesh {
    /// Starts pulling a snapshot if this node needs one, and abandons a stalled snapshot.
    pub(super) fn start_or_abandon_pull(&mut self, now: &Now<'_>, actions: &mut Vec<Action>) {
        let at = now.mono().as_nanos();
        if self.pull.as_ref().is_some_and(|pull| at >= pull.progress_at.saturating_add(PULL_TIMEOUT)) {
            self.pull = None;
            self.counts.snapshots_failed += 1;
        }
        if self.pull.is_some() {
            return;
        }
        // A joining node asks any ready peer. A joined node asks a peer whose deltas it lacks. Peers that were asked
        // less often are preferred.
        let joins = !self.has_joined;
        let useful = self.peers.iter_mut().filter(|(_, peer)| {
            peer.is_linked() && if joins { peer.state == Some(MemberState::Ready) } else { peer.has_gap }
        });
        let Some((from, peer)) = useful.min_by_key(|(_, peer)| peer.pulls) else { return };
        peer.pulls += 1;
        let from = *from;
        let (vector, part_bytes, request_at) = (Vec::new(), 0, 0);
        self.pull =
            Some(SnapshotPull { from, vector, parts: 1, next: 0, asked: 1, part_bytes, request_at, progress_at: at });
        self.send(at, from, Frame::Want { part: 0 }, actions);
    }

    /// Sends a part of this node's snapshot.
    pub(super) fn on_want(&mut self, now: &Now<'_>, node: NodeId, part: u32, actions: &mut Vec<Action>) {
        let (at, parts) = (now.mono().as_nanos(), self.table.part_count());
        if part >= parts {
            actions.push(Action::Close { peer: node, why: "requests a snapshot part that does not exist" });
            return;
        }
        let mut vector = Vec::new();
        if part == 0 {
            // Unsent charges become a delta first; otherwise they would count twice. The vector is read before any
            // state, so the receiver loses no delta that is applied here during the transfer.
            self.flush(at, actions);
            vector = self.vector();
        }
        let mut builder = PartBuilder::default();
        self.table.for_each_used_key(part, now, |limits, known| builder.add(limits, &known));
        self.counts.left_out += builder.left_out;
        let (body, limits) = builder.finish();
        if let Some(link) = self.peers.get_mut(&node).and_then(|peer| peer.link.as_mut()) {
            for limits in limits.iter().filter(|limits| link.mark_limits_sent(limits.number())) {
                let params = Frame::Params { number: limits.number(), encoded: limits.encoded().clone() };
                actions.push(Action::Send { peer: node, frame: params });
            }
        }
        self.send(at, node, Frame::Part(SnapshotPart { part, parts, vector, body: body.into() }), actions);
    }

    /// Merges a snapshot part.
    pub(super) fn on_part(&mut self, now: &Now<'_>, node: NodeId, part: SnapshotPart, actions: &mut Vec<Action>) {
        let at = now.mono().as_nanos();
        let Some(pull) = self.pull.as_mut().filter(|pull| pull.from == node && pull.next == part.part) else { return };
        let Some(link) = self.peers.get(&node).and_then(|peer| peer.link.as_ref()) else { return };
        let Ok(body) = PartBody::decode(&part.body) else {
            actions.push(Action::Close { peer: node, why: "sent a malformed snapshot part" });
            return;
        };
        for (number, known) in &body.blocks {
            let Some(limits) = link.params.get(number) else {
                actions.push(Action::Close { peer: node, why: "refers to unknown limits" });
                return;
            };
            known.iter().for_each(|known| self.table.merge(now, limits, known));
        }
        if part.part == 0 {
            (pull.vector, pull.parts) = (part.vector, part.parts.clamp(1, MAX_PARTS));
        }
        (pull.next, pull.part_bytes, pull.progress_at) = (pull.next + 1, part.body.len() as u64, at);
        if pull.next >= pull.parts {
            let pull = self.pull.take();
            self.finish_pull(at, pull.map_or_else(Vec::new, |pull| pull.vector), actions);
            return;
        }
        self.request_parts(at, actions);
    }

    /// Requests the snapshot parts that are due.
    pub(super) fn request_parts(&mut self, at: u64, actions: &mut Vec<Action>) {
        while let Some((from, part)) = self.pull.as_mut().and_then(|pull| Some((pull.from, pull.next_request(at)?))) {
            self.send(at, from, Frame::Want { part }, actions);
        }
    }

    /// Completes a snapshot, and requests the deltas after it from every node that is not yet sending them.
    fn finish_pull(&mut self, at: u64, vector: Vec<(NodeId, u64)>, actions: &mut Vec<Action>) {
        self.counts.snapshots += 1;
        let joins = !std::mem::replace(&mut self.has_joined, true);
        for (node, seq) in vector {
            let Some(peer) = self.peer_entry(node) else { continue };
            // If the peer's deltas have no gap, this node does not skip to the snapshot's position. The snapshot may
            // lack some of the charges in these deltas.
            if joins || peer.has_gap {
                let is_newer = peer.applied.is_none_or(|applied| applied < seq);
                if is_newer {
                    (peer.applied, peer.has_gap) = (Some(seq), false);
                }
            }
        }
        self.resume_all(at, actions);
    }

    /// Requests deltas from every node that is not yet sending them. Nodes whose link is still opening are included,
    /// because this node's `Hello` to them requested nothing.
    fn resume_all(&mut self, at: u64, actions: &mut Vec<Action>) {
        let is_waiting = |peer: &Peer| peer.link.as_ref().is_some_and(|link| !link.is_resumed) && !peer.has_gap;
        let waiting = self.peers.iter_mut().filter(|(_, peer)| is_waiting(peer));
        let waiting: Vec<(NodeId, u64)> = waiting.map(|(node, peer)| (*node, *peer.applied.get_or_insert(0))).collect();
        for (node, from) in waiting {
            self.send(at, node, Frame::Resume { from }, actions);
        }
    }

    /// Becomes ready once this node has all deltas that other nodes announced, or after a timeout.
    pub(super) fn become_ready_if_caught_up(&mut self, at: u64, actions: &mut Vec<Action>) {
        if self.state != MemberState::Joining {
            return;
        }
        // A snapshot that makes progress gets more time. A large snapshot takes seconds. The deltas that were made
        // during the transfer arrive after the snapshot, and also take seconds.
        let has_begun = self.has_joined || self.pull.as_ref().is_some_and(|pull| pull.next > 0);
        let wait = if has_begun { MAX_JOIN_TIME } else { JOIN_TIMEOUT };
        let is_late = at >= self.started_at.saturating_add(wait);
        let is_complete = self.has_joined && self.has_caught_up();
        if !is_complete && (!is_late || self.is_shut_out) {
            return;
        }
        // If no peer has ever been ready, this node is the first node and has missed nothing.
        let complete = is_complete || !self.peers.values().any(|peer| peer.membership != Membership::New);
        self.counts.joined_without = !complete;
        self.state = MemberState::Ready;
        self.homes_changed = true;
        if !std::mem::replace(&mut self.has_joined, true) {
            self.pull = None;
            self.resume_all(at, actions);
        }
        actions.push(Action::Ready { complete });
        self.announce(at, actions);
    }

    fn has_caught_up(&self) -> bool {
        self.peers.values().filter(|peer| peer.state == Some(MemberState::Ready)).all(|peer| {
            let Some(link) = peer.link.as_ref().filter(|link| link.is_greeted) else { return true };
            link.is_resumed && peer.applied.unwrap_or(0) >= link.head
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    #[test]
    fn parts_are_requested_at_the_byte_rate_even_if_timers_are_late() {
        const PARTS: u32 = 1_000;
        const PART_BYTES: u64 = 20_000;
        const NANOS_PER_PART: u64 = PART_BYTES * NANOS_PER_BYTE;
        let start = 1_000 * MILLI;
        let (from, vector, part_bytes) = (NodeId(1), Vec::new(), PART_BYTES);
        let mut pull = SnapshotPull {
            from,
            vector,
            parts: PARTS,
            next: 1,
            asked: 1,
            part_bytes,
            request_at: start,
            progress_at: 0,
        };
        let mut at = start;
        assert!(u64::from(PARTS) * NANOS_PER_PART < MAX_SPREAD_NANOS);
        while pull.asked < PARTS {
            while pull.next_request(at).is_some() {}
            assert!(u64::from(pull.asked) * NANOS_PER_PART <= at - start + MAX_CATCH_UP + 2 * NANOS_PER_PART);
            // All requested parts arrive before the next timer.
            pull.next = pull.asked;
            at = pull.wake_at().map_or(at, |wake_at| wake_at.max(at) + 2 * MILLI);
        }
        let ideal = u64::from(PARTS) * NANOS_PER_PART;
        assert!((ideal * 9 / 10..ideal * 11 / 10).contains(&(at - start)), "{} of {ideal}", at - start);
        assert_eq!(pull.wake_at(), None, "nothing is left to request");
    }

    #[test]
    fn requests_stop_while_parts_do_not_arrive() {
        let (from, vector, part_bytes) = (NodeId(1), Vec::new(), 10);
        let mut pull =
            SnapshotPull { from, vector, parts: 1_000, next: 0, asked: 1, part_bytes, request_at: 0, progress_at: 0 };
        assert_eq!(pull.next_request(MILLI), None, "the first part contains the number of parts");
        pull.next = 1;
        while pull.next_request(1_000 * MILLI).is_some() {}
        assert_eq!((pull.asked, pull.wake_at()), (1 + PARTS_AHEAD, None));
    }
}
