//! Chooses the home of a key: the node that decides its `strict` rules.
//!
//! The home of a key is the ready node with the largest hash of node and key (rendezvous hashing). When a node joins or
//! leaves, only the keys of that node move. Every node has the state of every key, so a home moves without a handover.
//! After a move, a limit can be exceeded by the charges that the new home has not yet received.
//!
//! Nodes may disagree for a while about which nodes are ready, and the link between two healthy nodes may be broken. A
//! request that cannot reach its home therefore goes to the next-ranked node for the key. That node forwards the
//! request to the home, or decides itself if it has no link to the home either. A request is forwarded at most once.
//!
//! A node without a majority decides nothing; the rule's `on_fault` applies.

use tollgate::fingerprint::Fingerprint;

use crate::NodeId;

/// One node's view of the homes. The mesh replaces this view whenever a node, its state or its link changes.
#[derive(Clone, Debug)]
pub struct Homes {
    own: NodeId,
    /// Live nodes that are ready, including this node if it is ready.
    candidates: Vec<(NodeId, Reach)>,
    nodes: u32,
    has_majority: bool,
}

/// How this node reaches a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The candidate is this node.
    Own,
    /// Over a link.
    Linked,
    /// The candidate is alive, but there is no link to it.
    Alive,
}

/// How far a request has travelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// The request was received from a client by this node.
    Origin,
    /// The origin sent the request here.
    FromOrigin,
    /// The request was forwarded once and must be decided here.
    Last,
}

/// Where a request is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// On this node.
    Here,
    /// On the given node, or on a node to which the given node forwards the request.
    To(NodeId),
    /// Nowhere: the rule's `on_fault` applies.
    Unavailable(Unavailable),
}

/// Reason why a request cannot be decided. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// This node does not see a majority of the nodes.
    Minority,
    /// This node has no link to a ready node.
    NoHome,
}

impl Unavailable {
    /// Returns the reason as text for the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minority => "this node does not see a majority of the nodes",
            Self::NoHome => "no ready node is linked",
        }
    }
}

impl Homes {
    pub(crate) fn new(own: NodeId, candidates: Vec<(NodeId, Reach)>, nodes: u32, has_majority: bool) -> Self {
        Self { own, candidates, nodes, has_majority }
    }

    /// Returns where a request for a key is decided.
    pub fn route(&self, key: Fingerprint, hop: Hop) -> Route {
        if !self.has_majority {
            return Route::Unavailable(Unavailable::Minority);
        }
        if hop == Hop::Last {
            return Route::Here;
        }
        match self.highest_ranked(key, |_| true) {
            Some((_, Reach::Own)) => return Route::Here,
            Some((home, Reach::Linked)) => return Route::To(home),
            Some((_, Reach::Alive)) | None => {}
        }
        // The home is alive but not linked. The origin sends the request to the next-ranked linked node, which may have
        // a link to the home and otherwise decides.
        let next = self.highest_ranked(key, |reach| match reach {
            Reach::Own => hop == Hop::FromOrigin,
            Reach::Linked => true,
            Reach::Alive => false,
        });
        match next {
            Some((_, Reach::Own)) => Route::Here,
            Some((node, _)) => Route::To(node),
            None if self.candidates.iter().any(|(_, reach)| *reach == Reach::Own) => Route::Here,
            None => Route::Unavailable(Unavailable::NoHome),
        }
    }

    /// Returns the home of a key, even if this node has no link to it.
    pub(crate) fn home(&self, key: Fingerprint) -> Option<NodeId> {
        self.highest_ranked(key, |_| true).map(|(node, _)| node)
    }

    /// Returns the number of nodes that share the limits, which is at least 1.
    pub fn node_count(&self) -> u32 {
        self.nodes.max(1)
    }

    /// Returns whether this node sees a majority of the nodes.
    pub fn has_majority(&self) -> bool {
        self.has_majority
    }

    /// Returns the id of this node.
    pub fn own(&self) -> NodeId {
        self.own
    }

    fn highest_ranked(&self, key: Fingerprint, fits: impl Fn(Reach) -> bool) -> Option<(NodeId, Reach)> {
        let mut highest: Option<((u64, NodeId), Reach)> = None;
        for (node, reach) in &self.candidates {
            let rank = (rank(*node, key), *node);
            if fits(*reach) && highest.is_none_or(|(highest, _)| rank > highest) {
                highest = Some((rank, *reach));
            }
        }
        highest.map(|((_, node), reach)| (node, reach))
    }
}

/// Returns the rank of a node for a key: a SplitMix64 hash of the node id and the key.
fn rank(node: NodeId, key: Fingerprint) -> u64 {
    let (low, high) = key.parts();
    let mut mixed = node.0 ^ low.rotate_left(17) ^ u64::from(high) << 32;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Fingerprint {
        Fingerprint::from_parts(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number as u32)
    }

    fn homes(own: u64, others: &[(u64, Reach)]) -> Homes {
        let mut candidates = vec![(NodeId(own), Reach::Own)];
        candidates.extend(others.iter().map(|(node, reach)| (NodeId(*node), *reach)));
        Homes::new(NodeId(own), candidates, 1 + others.len() as u32, true)
    }

    #[test]
    fn all_nodes_agree_and_keys_are_spread_evenly() {
        let linked = |nodes: &[u64]| nodes.iter().map(|node| (*node, Reach::Linked)).collect::<Vec<_>>();
        let (one, two) = (homes(71, &linked(&[82, 93])), homes(82, &linked(&[93, 71])));
        let mut counts = [0; 3];
        for number in 0..3_000 {
            let home = |homes: &Homes| match homes.route(key(number), Hop::Origin) {
                Route::Here => homes.own(),
                Route::To(node) => node,
                Route::Unavailable(why) => panic!("{why:?}"),
            };
            assert_eq!(home(&one), home(&two));
            counts[[71, 82, 93].iter().position(|node| NodeId(*node) == home(&one)).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }

    #[test]
    fn only_the_leaving_nodes_keys_move() {
        let three = homes(1, &[(2, Reach::Linked), (3, Reach::Linked)]);
        let two = homes(1, &[(2, Reach::Linked)]);
        for number in 0..1_000 {
            let before = three.route(key(number), Hop::Origin);
            if before != Route::To(NodeId(3)) {
                assert_eq!(two.route(key(number), Hop::Origin), before);
            }
        }
    }

    #[test]
    fn request_that_cannot_reach_its_home_is_relayed_once() {
        let all = homes(1, &[(2, Reach::Linked), (3, Reach::Linked)]);
        let number = (0..).find(|number| all.route(key(*number), Hop::Origin) == Route::To(NodeId(3))).unwrap();
        let cut = homes(1, &[(2, Reach::Linked), (3, Reach::Alive)]);
        assert_eq!(cut.route(key(number), Hop::Origin), Route::To(NodeId(2)));
        let relay = homes(2, &[(1, Reach::Linked), (3, Reach::Linked)]);
        assert_eq!(relay.route(key(number), Hop::FromOrigin), Route::To(NodeId(3)));
        // If the relaying node has no link to the home either, the next-ranked node decides. No request is forwarded
        // twice.
        let both = homes(2, &[(1, Reach::Linked), (3, Reach::Alive)]);
        assert_ne!(both.route(key(number), Hop::FromOrigin), Route::To(NodeId(3)));
        assert_eq!(both.route(key(number), Hop::Last), Route::Here);
    }

    #[test]
    fn without_a_majority_nothing_is_decided() {
        let mut few = homes(1, &[(2, Reach::Linked)]);
        few.has_majority = false;
        assert_eq!(few.route(key(1), Hop::Last), Route::Unavailable(Unavailable::Minority));
        let joining = Homes::new(NodeId(1), vec![(NodeId(2), Reach::Alive)], 1, true);
        assert_eq!(joining.route(key(1), Hop::Origin), Route::Unavailable(Unavailable::NoHome));
    }
}
