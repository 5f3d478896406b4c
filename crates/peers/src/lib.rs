//! Limits that nodes share by sending messages to each other, without a shared store.
//!
//! Every node holds the state of every active key in a [`table`]. A node broadcasts its own charges as *deltas*, and
//! every other node applies each delta exactly once. A node decides `eventual` rules from its own state. A `strict`
//! rule is decided by the key's *home*, a ready node chosen by hashing. Because every node has the state, a key's home
//! can move without a handover.
//!
//! | module | does |
//! |---|---|
//! | [`table`] | keeps the states of all keys, decides charges, and records unsent charges |
//! | [`homes`] | chooses the home of a key and the route to it |
//! | [`ask`] | decides requests from other nodes, or forwards them once |
//! | [`group`] | decides groups whose charges have several homes |
//! | [`mesh`] | replicates charges with deltas, acknowledgements and snapshots, and determines majorities |
//! | [`wire`] | encodes and decodes frames |
//! | [`frame`], [`greeting`] | framing on a connection; handshake and gossip frames |
//! | [`members`] | tracks which nodes are alive and which addresses to dial |
//!
//! None of these modules reads a clock, opens a socket or starts a task. The simulator in `tollgate-testkit` runs these
//! modules on up to a hundred nodes with faults, and checks the bounds that [`mesh`] states.
//!
//! [`PeerStore`] adds the I/O and implements the engine's `Store`. The store links this node with all other nodes over
//! TCP, secured by TLS 1.3 and a shared secret. [`Config`] lists the other nodes.

pub mod ask;
mod config;
pub mod frame;
pub mod greeting;
pub mod group;
pub mod homes;
mod hub;
mod link;
pub mod members;
pub mod mesh;
mod node;
mod outbox;
mod pending_asks;
mod secret;
mod status;
mod store;
pub mod table;
mod tls;
pub mod wire;

use std::fmt;

/// Bounds on the data that other processes can send, and on the memory that they can occupy.
pub mod bounds {
    pub use crate::ask::Ask;
    pub use crate::link::SILENCE_TIMEOUT;
    pub use crate::members::MAX_SEEDS;
    pub use crate::node::{HANDSHAKE_TIMEOUT, MAX_UNGREETED};
    pub use crate::outbox::{MAX_QUEUED_BYTES, WRITE_TIMEOUT};
    pub use crate::wire::{MAX_FRAME_BYTES, MAX_NODES};
}

pub use config::{Config, ConfigError, DEFAULT_PORT};
pub use greeting::NodeFigures;
pub use hub::Stage;
pub use status::{LinkCounts, NodeInfo, NodeStatus, PeerStatus};
pub use store::PeerStore;

/// Id of a process in the cluster. Each start draws a random id, so a restarted node counts as a new node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Compiles the README example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
