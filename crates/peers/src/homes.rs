//! Chooses the node that decides about a key under a `strict` rule.
//!
//! The home of a key is the ready node with the largest hash of node and key (rendezvous hashing): when a node joins or
//! leaves, only its own keys move. Every node knows the state of every key, so a home moves without handing anything
//! over; what the new home has not heard yet is the excess of the move.
//!
//! Two nodes may disagree for a while about who is ready, and a link between two nodes may be broken while both are
//! well. So a request that cannot reach the home goes to the next node in order of the key, which passes it on to
//! the home if it can. Only if it cannot either does it decide itself. A request is passed on at most once.
//!
//! A node that does not see a majority decides nothing: the rule's `on_fault` applies.

use tollgate::fingerprint::Fingerprint;

use crate::NodeId;

/// The homes of keys, as one node sees them. The mesh makes a new one whenever something changes.
#[derive(Clone, Debug)]
pub struct Homes {
    own: NodeId,
    /// This node, if it is ready, and the ready nodes that are alive.
    candidates: Vec<(NodeId, Reach)>,
    nodes: u32,
    has_majority: bool,
}

/// How this node reaches another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is this node.
    Own,
    /// By a link.
    Linked,
    /// It is alive, but there is no link to it.
    Alive,
}

/// Whether a request was passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// The request was made on this node.
    Origin,
    /// The node on which it was made has sent it here.
    Relayed,
    /// It was passed on once, and is decided here in any case.
    Last,
}

/// Where a request is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// On this node.
    Here,
    /// On that node, or on the one that it passes the request on to.
    To(NodeId),
    /// No node that this one knows of: the rule's `on_fault` applies.
    Unavailable(Unavailable),
}

/// Why a request cannot be decided. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// This node does not see a majority of the nodes.
    Minority,
    /// No node is ready that this node has a link to.
    NoHome,
}

impl Unavailable {
    /// Returns the reason, for the log.
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
        match self.first(key, |_, _| true) {
            Some((_, Reach::Own)) => return Route::Here,
            Some((home, Reach::Linked)) => return Route::To(home),
            Some((_, Reach::Alive)) | None => {}
        }
        // The home is alive but not linked. At its origin, a request goes to another node, which may have a link; the next node in
        // order is the one that decides if no node has.
        let next = self.first(key, |_, reach| match reach {
            Reach::Own => hop == Hop::Relayed,
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

    /// Returns the number of nodes that share the limits, at least 1.
    pub fn nodes(&self) -> u32 {
        self.nodes.max(1)
    }

    /// Returns whether this node sees a majority of the nodes.
    pub fn has_majority(&self) -> bool {
        self.has_majority
    }

    /// Returns the node that this picture belongs to.
    pub fn own(&self) -> NodeId {
        self.own
    }

    fn first(&self, key: Fingerprint, fits: impl Fn(NodeId, Reach) -> bool) -> Option<(NodeId, Reach)> {
        let fitting = self.candidates.iter().copied().filter(|(node, reach)| fits(*node, *reach));
        fitting.max_by_key(|(node, _)| (weight(*node, key), *node))
    }
}

/// Returns the rank of a node for a key: a hash of both (SplitMix64).
fn weight(node: NodeId, key: Fingerprint) -> u64 {
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
    fn all_nodes_agree_and_keys_are_even() {
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
    fn only_keys_of_a_node_that_leaves_move() {
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
    fn request_that_cannot_reach_the_home_goes_through_one_other_node() {
        let all = homes(1, &[(2, Reach::Linked), (3, Reach::Linked)]);
        let number = (0..).find(|number| all.route(key(*number), Hop::Origin) == Route::To(NodeId(3))).unwrap();
        let cut = homes(1, &[(2, Reach::Linked), (3, Reach::Alive)]);
        assert_eq!(cut.route(key(number), Hop::Origin), Route::To(NodeId(2)));
        let relay = homes(2, &[(1, Reach::Linked), (3, Reach::Linked)]);
        assert_eq!(relay.route(key(number), Hop::Relayed), Route::To(NodeId(3)));
        // If the other node has no link either, the next node of the key decides, and no request is passed on twice.
        let both = homes(2, &[(1, Reach::Linked), (3, Reach::Alive)]);
        assert_ne!(both.route(key(number), Hop::Relayed), Route::To(NodeId(3)));
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
