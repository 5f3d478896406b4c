//! What this node knows about another one.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::MemberState;
use crate::table::SharedLimits;

/// The most sets of limits of another node that are known by number. Beyond it, those with the lowest numbers are forgotten.
const MAX_PARAMS: usize = 1 << 16;

/// Another node.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// The link, if there is one.
    pub(super) link: Option<Link>,
    pub(super) address: String,
    pub(super) state: Option<MemberState>,
    /// Whether the failure detector says that it is alive.
    pub(super) is_alive: bool,
    /// Since when it is neither linked nor alive.
    pub(super) silent_since: Option<u64>,
    /// Whether a majority is counted of it.
    pub(super) membership: Membership,
    /// The last of its deltas that this node has applied; `None` if that is not known before a snapshot.
    pub(super) applied: Option<u64>,
    /// Whether it no longer has the deltas that are missing here.
    pub(super) has_gap: bool,
    /// How often a snapshot was asked of it.
    pub(super) pulls: u32,
}

/// Whether a majority is counted of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Membership {
    /// The node was not ready yet.
    #[default]
    New,
    /// The node was ready, and counts.
    Counted,
    /// The node was silent for too long, and no longer counts.
    Struck,
    /// The node left, or was replaced by another process at its address.
    Left,
}

/// A link to another node, from when it opens until it closes.
#[derive(Debug)]
pub(super) struct Link {
    /// Whether its `Hello` has arrived.
    pub(super) is_greeted: bool,
    /// The next delta to send; `None` until it says where to begin.
    pub(super) cursor: Option<u64>,
    /// The last delta of this node that it has applied.
    pub(super) acked: u64,
    /// The last of its deltas when it last said so.
    pub(super) head: u64,
    /// Whether it has said that it sends the deltas that are missing here.
    pub(super) is_resumed: bool,
    /// The limits whose numbers were sent to it.
    pub(super) announced: HashSet<u32>,
    /// Its limits by number.
    pub(super) params: BTreeMap<u32, Arc<SharedLimits>>,
    /// When a frame last arrived, and when one was last sent.
    pub(super) heard_at: u64,
    pub(super) sent_at: u64,
    /// Whether deltas were applied that are not acknowledged, and their bytes.
    pub(super) owes_ack: bool,
    pub(super) unacked_bytes: usize,
}

impl Link {
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

    pub(super) fn learn(&mut self, number: u32, limits: Arc<SharedLimits>) {
        if self.params.len() >= MAX_PARAMS {
            self.params.pop_first();
        }
        self.params.insert(number, limits);
    }

    /// Records that the receiver knows this number; returns whether it did not know it before.
    pub(super) fn tell(&mut self, number: u32) -> bool {
        if self.announced.len() >= MAX_PARAMS {
            self.announced.clear();
        }
        self.announced.insert(number)
    }
}

impl Peer {
    pub(super) fn is_linked(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_greeted)
    }

    /// Returns whether it is one of the nodes that a majority is counted of.
    pub(super) fn counts(&self) -> bool {
        self.membership == Membership::Counted
    }

    /// Notes its state; returns whether that changes anything.
    pub(super) fn enter(&mut self, state: MemberState) -> bool {
        let before = (self.state, self.membership);
        self.state = Some(state);
        self.membership = match (state, self.membership) {
            (MemberState::Leaving, _) => Membership::Left,
            (MemberState::Ready, Membership::New) => Membership::Counted,
            // The node is reachable again. A majority that had removed it counts it again.
            (MemberState::Ready, Membership::Struck) if self.is_linked() => Membership::Counted,
            (MemberState::Joining | MemberState::Ready, same) => same,
        };
        before != (self.state, self.membership)
    }

    /// Records since when nothing was received from it.
    pub(super) fn update_silence(&mut self, at: u64) {
        if self.is_linked() || self.is_alive {
            self.silent_since = None;
        } else if self.silent_since.is_none() {
            self.silent_since = Some(at);
        }
    }
}
