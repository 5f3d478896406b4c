//! Limits that nodes share by talking to each other, without a store.
//!
//! Every node holds the state of every active key in a [`table`] and broadcasts what it takes as *deltas*,
//! which every other node applies exactly once. An `eventual` rule is decided by this node's own state; a
//! `strict` rule is decided by the key's *home*, one of the ready nodes, chosen by hashing. Since the state is
//! everywhere, a home moves without handing anything over.
//!
//! | module | does |
//! |---|---|
//! | [`table`] | keeps the states of all keys, decides, and notes what was taken |
//! | [`homes`] | chooses the home of a key, and the way to it |
//! | [`ask`] | decides what another node asks its home, or passes it on once |
//! | [`mesh`] | replicates: deltas, acknowledgements, snapshots for nodes that join or missed too much; majorities |
//! | [`wire`] | frames as bytes |
//! | [`frame`], [`greeting`] | the frames of a connection, and those by which nodes introduce themselves |
//!
//! None of these reads a clock, opens a socket or starts a task. The simulator of `tollgate-testkit` runs them
//! on up to a hundred nodes with faults and checks the bounds that `mesh` states.
//!
//! [`PeerStore`] connects them: it links this node with all others over TCP, with TLS 1.3 and a secret that all of
//! them have, and implements the engine's `Store`. [`Config`] says where the others are.

pub mod ask;
mod asks;
mod config;
pub mod frame;
pub mod greeting;
pub mod homes;
mod hub;
mod link;
mod members;
pub mod mesh;
mod node;
mod secret;
mod status;
mod store;
pub mod table;
mod tls;
pub mod wire;

use std::fmt;

/// The bounds on what another process can send or occupy.
pub mod bounds {
    pub use crate::ask::Ask;
    pub use crate::link::{MAX_QUEUED, SILENCE, WRITE_TIMEOUT};
    pub use crate::members::MAX_SEEDS;
    pub use crate::node::{HANDSHAKE, MAX_UNGREETED};
    pub use crate::wire::{MAX_FRAME, MAX_NODES};
}

pub use config::{Config, ConfigError, DEFAULT_PORT};
pub use hub::Stage;
pub use status::{LinkCounts, NodeInfo, NodeStatus, PeerStatus};
pub use store::PeerStore;

/// A process of the cluster. The number is random at each start, so a restarted node is another one.
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

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
