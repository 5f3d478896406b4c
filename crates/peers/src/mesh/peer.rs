//! The state that this node keeps about another node.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::MemberState;
use crate::table::SharedLimits;

/// Maximum number of limit sets remembered per link and direction. Beyond this, the received set with the lowest number
/// is dropped, and all sent sets are sent again when they are next used.
const MAX_LIMIT_SETS: usize = 1 << 16;

/// Another node.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// The link, if there is one.
    pub(super) link: Option<LinkState>,
    pub(super) address: String,
    pub(super) state: Option<MemberState>,
    /// Whether the failure detector considers the node alive.
    pub(super) is_alive: bool,
    /// Start of the current silence, in which the node is neither linked nor alive.
    pub(super) silent_since: Option<u64>,
    /// Whether the node counts towards the majority.
    pub(super) membership: Membership,
    /// Sequence number of the node's last delta that was applied here. `None` until a snapshot
    /// arrives.
    pub(super) applied: Option<u64>,
    /// Whether the node no longer has the deltas that are missing here.
    pub(super) has_gap: bool,
    /// Number of snapshot requests to the node.
    pub(super) pulls: u32,
}

/// Whether a node counts towards the majority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Membership {
    /// The node has not been ready yet.
    #[default]
    New,
    /// The node was ready and counts.
    Counted,
    /// The node was silent for too long and no longer counts.
    Removed,
    /// The node left, or another process replaced it at its address.
    Left,
}

/// An open link to another node.
#[derive(Debug)]
pub(super) struct LinkState {
    /// Whether the peer's `Hello` has arrived.
    pub(super) is_greeted: bool,
    /// The next delta to send. `None` until the peer requests a starting point.
    pub(super) cursor: Option<u64>,
    /// Last delta of this node that the peer has applied.
    pub(super) acked: u64,
    /// The peer's last delta, as of its latest announcement.
    pub(super) head: u64,
    /// Whether the peer has confirmed that it will send all deltas that this node lacks.
    pub(super) is_resumed: bool,
    /// Numbers of the limits already sent to the peer.
    pub(super) announced: HashSet<u32>,
    /// The peer's limits by number.
    pub(super) params: BTreeMap<u32, Arc<SharedLimits>>,
    /// Time of the last received frame.
    pub(super) heard_at: u64,
    /// Time of the last sent frame.
    pub(super) sent_at: u64,
    /// Whether this node has applied deltas that it has not acknowledged.
    pub(super) owes_ack: bool,
    /// Size of these unacknowledged deltas, in bytes.
    pub(super) unacked_bytes: usize,
}

impl LinkState {
    pub(super) fn new(at: u64) -> Self {
        Self {
            is_greeted: false,
            cursor: None,
            acked: 0,
            head: 0,
            is_resumed: false,
            announced: HashSet::new(),
            params: BTreeMap::new(),
            heard_at: at,
            sent_at: at,
            owes_ack: false,
            unacked_bytes: 0,
        }
    }

    pub(super) fn remember_limits(&mut self, number: u32, limits: Arc<SharedLimits>) {
        if self.params.len() >= MAX_LIMIT_SETS {
            self.params.pop_first();
        }
        self.params.insert(number, limits);
    }

    /// Records that the limits with this number were sent to the peer. Returns whether the number
    /// is new to the peer.
    pub(super) fn mark_limits_sent(&mut self, number: u32) -> bool {
        if self.announced.len() >= MAX_LIMIT_SETS {
            self.announced.clear();
        }
        self.announced.insert(number)
    }
}

impl Peer {
    pub(super) fn is_linked(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_greeted)
    }

    /// Returns whether the node counts towards the majority.
    pub(super) fn counts_towards_majority(&self) -> bool {
        self.membership == Membership::Counted
    }

    /// Records the node's state. Returns whether the state or the membership changed.
    pub(super) fn set_state(&mut self, state: MemberState) -> bool {
        let before = (self.state, self.membership);
        self.state = Some(state);
        self.membership = match (state, self.membership) {
            (MemberState::Leaving, _) => Membership::Left,
            (MemberState::Ready, Membership::New) => Membership::Counted,
            // The node is reachable again, so it counts again.
            (MemberState::Ready, Membership::Removed) if self.is_linked() => Membership::Counted,
            (MemberState::Joining | MemberState::Ready, same) => same,
        };
        before != (self.state, self.membership)
    }

    /// Records when the node became silent: neither linked nor alive.
    pub(super) fn update_silence(&mut self, at: u64) {
        if self.is_linked() || self.is_alive {
            self.silent_since = None;
        } else if self.silent_since.is_none() {
            self.silent_since = Some(at);
        }
    }
}
