//! Deltas: built from unsent charges, sent from the ring, applied once.

use std::sync::Arc;

use tollgate_core::{Nanos, Now};

use super::{Action, Mesh, acknowledge};
use crate::NodeId;
use crate::table::DrainedCharges;
use crate::wire::{Delta, DeltaBody, Frame, Hello, VERSION};

/// Approximate maximum number of keys in a delta.
const MAX_DELTA_CHARGES: usize = 32_768;
/// Maximum bytes of unacknowledged deltas in flight to one peer.
const MAX_IN_FLIGHT_BYTES: u64 = 4 << 20;
/// After this many bytes, deltas are acknowledged immediately instead of at the next tick.
const ACK_AFTER_BYTES: usize = 1 << 20;
/// How long a delta stays in the ring for joining nodes although all nodes have acknowledged it, in nanoseconds.
const KEEP_FOR_JOINING: u64 = 30_000_000_000;

impl Mesh {
    /// Builds deltas from unsent charges and sends them.
    pub(super) fn flush(&mut self, at: u64, actions: &mut Vec<Action>) {
        (self.is_urgent, self.flushed_at) = (false, at);
        loop {
            let mut drained = DrainedCharges::default();
            let is_all = self.table.drain(MAX_DELTA_CHARGES, &mut drained);
            if !drained.is_empty() {
                let taken_at = if drained.items.is_empty() { at } else { drained.taken_at.min(at) };
                let mut body = Vec::with_capacity(16 * drained.items.len());
                let limits = DeltaBody::encode_drained(&mut drained, &mut body);
                self.ring.push(taken_at, body.into(), limits);
                self.counts.deltas += 1;
            }
            if is_all {
                break;
            }
        }
        let acked = self.peers.values().filter(|peer| peer.counts_towards_majority() || peer.link.is_some());
        let acked = acked.map(|peer| peer.link.as_ref().map_or(0, |link| link.acked)).min();
        self.ring.remove_acknowledged(acked.unwrap_or(u64::MAX), at.saturating_sub(KEEP_FOR_JOINING));
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.send_deltas(at, node, actions));
    }

    /// Sends deltas from the ring until [`MAX_IN_FLIGHT_BYTES`] bytes are in flight.
    pub(super) fn send_deltas(&mut self, at: u64, node: NodeId, actions: &mut Vec<Action>) {
        let Some(link) = self.peers.get_mut(&node).and_then(|peer| peer.link.as_mut()) else { return };
        let Some(mut cursor) = link.cursor else { return };
        while let Some(delta) = self.ring.get(cursor) {
            if cursor > link.acked + 1 && self.ring.bytes_between(link.acked + 1, cursor) > MAX_IN_FLIGHT_BYTES {
                break;
            }
            for limits in delta.limits.iter().filter(|limits| link.mark_limits_sent(limits.number())) {
                let params = Frame::Params { number: limits.number(), encoded: limits.encoded().clone() };
                actions.push(Action::Send { peer: node, frame: params });
            }
            let age = at.saturating_sub(delta.taken_at);
            let frame = Frame::Delta(Delta { seq: cursor, age, body: Arc::clone(&delta.body) });
            actions.push(Action::Send { peer: node, frame });
            link.sent_at = at;
            cursor += 1;
        }
        link.cursor = Some(cursor);
        if cursor <= self.ring.last_seq() && self.ring.get(cursor).is_none() {
            // The peer was too slow: its next delta is no longer in the ring.
            link.cursor = None;
            let head = self.ring.last_seq();
            self.send(at, node, Frame::Head { head, gap: true }, actions);
        }
    }

    pub(super) fn on_frame(&mut self, now: &Now<'_>, node: NodeId, frame: Frame, actions: &mut Vec<Action>) {
        let at = now.mono().as_nanos();
        let Some(link) = self.peers.get_mut(&node).and_then(|peer| peer.link.as_mut()) else { return };
        link.heard_at = at;
        if !link.is_greeted && !matches!(frame, Frame::Hello(_)) {
            actions.push(Action::Close { peer: node, why: "first frame is not a greeting" });
            return;
        }
        match frame {
            Frame::Hello(hello) => self.on_hello(now, node, &hello, actions),
            Frame::Resume { from } => self.on_resume(at, node, from, actions),
            Frame::Head { head, gap } => self.on_head(now, node, head, gap, actions),
            Frame::Params { number, encoded } => match self.table.intern_encoded_limits(&encoded) {
                Ok(limits) => link.remember_limits(number, limits),
                Err(_) => actions.push(Action::Close { peer: node, why: "sent limits that nodes cannot share" }),
            },
            Frame::Delta(delta) => self.on_delta(now, node, &delta, actions),
            Frame::Ack { seq, state } => {
                if seq > self.ring.last_seq() {
                    actions.push(Action::Close { peer: node, why: "acknowledges a delta that was not sent" });
                    return;
                }
                link.acked = link.acked.max(seq);
                let changed = self.peers.get_mut(&node).is_some_and(|peer| peer.set_state(state));
                self.homes_changed |= changed;
                self.send_deltas(at, node, actions);
                if changed {
                    self.start_or_abandon_pull(now, actions);
                }
            }
            Frame::Want { part } => self.on_want(now, node, part, actions),
            Frame::Part(part) => self.on_part(now, node, part, actions),
            // The mesh does not handle requests of `strict` rules.
            Frame::Ask(_) | Frame::Answer(_) => {}
        }
    }

    fn on_hello(&mut self, now: &Now<'_>, node: NodeId, hello: &Hello, actions: &mut Vec<Action>) {
        let at = now.mono().as_nanos();
        let why = if hello.version != VERSION {
            Some("uses another protocol version")
        } else if hello.cluster != self.config.cluster {
            Some("belongs to another cluster")
        } else if hello.node != node {
            Some("claims another node id")
        } else {
            None
        };
        if let Some(why) = why {
            actions.push(Action::Close { peer: node, why });
            return;
        }
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if let Some(link) = peer.link.as_mut() {
            link.is_greeted = true;
        }
        peer.set_state(hello.state);
        peer.update_silence(at);
        self.homes_changed = true;
        if let Some(from) = hello.resume {
            self.on_resume(at, node, from, actions);
        }
        self.start_or_abandon_pull(now, actions);
    }

    /// Starts sending the deltas after `from`, the last delta that the peer has.
    fn on_resume(&mut self, at: u64, node: NodeId, from: u64, actions: &mut Vec<Action>) {
        let head = self.ring.last_seq();
        if from > head {
            actions.push(Action::Close { peer: node, why: "requests deltas after one that does not exist" });
            return;
        }
        let holds = self.ring.holds_after(from);
        if let Some(link) = self.peers.get_mut(&node).and_then(|peer| peer.link.as_mut()) {
            link.acked = link.acked.max(from);
            link.cursor = holds.then_some(from + 1);
        }
        self.send(at, node, Frame::Head { head, gap: !holds }, actions);
        self.send_deltas(at, node, actions);
    }

    /// Records the last delta that the peer announces. If the peer reports a gap, this node needs a snapshot.
    fn on_head(&mut self, now: &Now<'_>, node: NodeId, head: u64, gap: bool, actions: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.has_gap = gap;
        if let Some(link) = peer.link.as_mut() {
            (link.head, link.is_resumed) = (head, !gap);
        }
        if gap {
            self.start_or_abandon_pull(now, actions);
        }
    }

    fn on_delta(&mut self, now: &Now<'_>, node: NodeId, delta: &Delta, actions: &mut Vec<Action>) {
        let at = now.mono().as_nanos();
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let (Some(link), Some(applied)) = (peer.link.as_mut(), peer.applied) else { return };
        if delta.seq <= applied {
            self.counts.repeated += 1;
            link.owes_ack = true;
            return;
        }
        if delta.seq != applied + 1 {
            actions.push(Action::Close { peer: node, why: "skipped a delta" });
            return;
        }
        let Ok(body) = DeltaBody::decode(&delta.body) else {
            actions.push(Action::Close { peer: node, why: "sent a malformed delta" });
            return;
        };
        if body.blocks.iter().any(|(number, _)| !link.params.contains_key(number)) {
            actions.push(Action::Close { peer: node, why: "refers to unknown limits" });
            return;
        }
        // Resets are applied first, because the charges in the same delta were taken after the resets.
        body.resets.iter().for_each(|(key, generation)| self.table.apply_reset(now, *key, *generation));
        let age = Nanos::from_nanos(delta.age);
        for (number, items) in &body.blocks {
            if let Some(limits) = link.params.get(number) {
                items.iter().for_each(|item| self.table.apply(now, age, limits, item));
            }
        }
        peer.applied = Some(delta.seq);
        self.counts.applied += 1;
        link.head = link.head.max(delta.seq);
        link.owes_ack = true;
        link.unacked_bytes += delta.body.len();
        if link.unacked_bytes >= ACK_AFTER_BYTES {
            acknowledge(node, link, peer.applied, self.state, at, actions);
        }
    }

    pub(super) fn send(&mut self, at: u64, node: NodeId, frame: Frame, actions: &mut Vec<Action>) {
        if let Some(link) = self.peers.get_mut(&node).and_then(|peer| peer.link.as_mut()) {
            link.sent_at = at;
            actions.push(Action::Send { peer: node, frame });
        }
    }
}
