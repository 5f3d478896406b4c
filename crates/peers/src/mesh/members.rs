//! Decides which nodes count towards the majority, and which nodes can be homes.

use std::sync::Arc;

use super::peer::Membership;
use super::{Action, Member, MemberState, Mesh};
use crate::NodeId;
use crate::homes::{Homes, Reach};

/// A node with a majority removes a peer from its count after this duration of silence, in nanoseconds.
const REMOVE_AFTER: u64 = 10_000_000_000;

pub(super) fn on_members(mesh: &mut Mesh, at: u64, members: Vec<Member>) {
    mesh.peers.values_mut().for_each(|peer| peer.is_alive = false);
    for member in members.into_iter().take(crate::wire::MAX_NODES) {
        let Some(peer) = mesh.peer_entry(member.node) else { continue };
        peer.is_alive = true;
        // A linked node announces its state itself, and that state is newer.
        if !peer.is_linked() {
            peer.set_state(member.state);
        }
        if peer.address != member.address {
            peer.address.clone_from(&member.address);
            mark_replaced_peers(mesh, member.node, &member.address);
        }
    }
    mesh.peers.values_mut().for_each(|peer| peer.update_silence(at));
    mesh.homes_changed = true;
}

/// Marks other nodes at this address as gone, because a new process has started there.
fn mark_replaced_peers(mesh: &mut Mesh, node: NodeId, address: &str) {
    for (other, peer) in &mut mesh.peers {
        if *other != node && peer.address == address && !peer.is_linked() && !peer.is_alive {
            peer.membership = Membership::Left;
        }
    }
}

/// Removes silent nodes from the count, if this node sees a majority. If a minority removed silent nodes, the minority
/// would become a majority.
pub(super) fn remove_silent_peers(mesh: &mut Mesh, at: u64) {
    if !mesh.homes.has_majority() {
        return;
    }
    for peer in mesh.peers.values_mut() {
        let is_silent = peer.silent_since.is_some_and(|since| at >= since.saturating_add(REMOVE_AFTER));
        if is_silent && peer.counts_towards_majority() {
            peer.membership = Membership::Removed;
            mesh.homes_changed = true;
        }
    }
}

/// Publishes new homes if a node's state, link or membership has changed.
pub(super) fn publish_changed_homes(mesh: &mut Mesh, actions: &mut Vec<Action>) {
    if !std::mem::take(&mut mesh.homes_changed) {
        return;
    }
    let is_ready = mesh.state == MemberState::Ready;
    let own = mesh.config.node;
    let mut candidates: Vec<(NodeId, Reach)> = Vec::with_capacity(mesh.peers.len() + 1);
    candidates.extend(is_ready.then_some((own, Reach::Own)));
    // The number of counted nodes, the number of them that this node sees, and the lowest id in each of the two sets.
    let (mut nodes, mut seen) = (u32::from(is_ready), u32::from(is_ready));
    let (mut lowest, mut lowest_seen) = (own, own);
    if !is_ready {
        (lowest, lowest_seen) = (NodeId(u64::MAX), NodeId(u64::MAX));
    }
    for (node, peer) in &mesh.peers {
        if !peer.counts_towards_majority() {
            continue;
        }
        (nodes, lowest) = (nodes + 1, lowest.min(*node));
        if peer.is_linked() {
            (seen, lowest_seen) = (seen + 1, lowest_seen.min(*node));
        }
        let is_candidate = peer.state == Some(MemberState::Ready) && (peer.is_linked() || peer.is_alive);
        let reach = if peer.is_linked() { Reach::Linked } else { Reach::Alive };
        candidates.extend(is_candidate.then_some((*node, reach)));
    }
    let has_majority = 2 * seen > nodes || (2 * seen == nodes && nodes > 0 && lowest == lowest_seen);
    mesh.homes = Arc::new(Homes::new(own, candidates, nodes, has_majority));
    actions.push(Action::Homes(mesh.homes.clone()));
}
