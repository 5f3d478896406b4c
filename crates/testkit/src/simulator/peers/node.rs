//! A host and the process on it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tollgate::fingerprint::{Fingerprint, Secret};
use tollgate_core::{Ask, Cost, Limits, Now, Time};
use tollgate_peers::NodeId;
use tollgate_peers::greeting::NodeRecord;
use tollgate_peers::members::Members;
use tollgate_peers::mesh::{MemberState, Mesh, MeshConfig};
use tollgate_peers::table::{Charge, SharedLimits, Table, Verb};

use super::super::{Random, SimulatedClock};

/// A host that runs at most one process at a time.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) process: Option<Process>,
    pub(super) mono: SimulatedClock,
    pub(super) wall: SimulatedClock,
    /// Time until which the host is paused.
    pub(super) paused_until: u64,
}

/// A running node.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: NodeId,
    pub(super) table: Arc<Table>,
    pub(super) mesh: Mesh,
    pub(super) limits: Arc<SharedLimits>,
    /// Earliest scheduled timer, in true time.
    pub(super) timer_at: Option<u64>,
    pub(super) members: Members,
    /// For every known node, the true time at which it was last alive, and its address.
    pub(super) seen: BTreeMap<NodeId, (u64, SocketAddr)>,
    /// Whether the last member list given to the mesh was wrong.
    pub(super) has_wrong_members: bool,
}

impl Host {
    pub(super) fn draw(random: &mut Random) -> Self {
        Self { process: None, mono: SimulatedClock::draw(random), wall: SimulatedClock::draw(random), paused_until: 0 }
    }

    pub(super) fn now(&self, at: u64) -> Now<'static> {
        Now::new(Time::from_nanos(self.mono.shown_at(at)), Time::from_nanos(self.wall.shown_at(at)))
    }

    /// Starts a process with a new id.
    pub(super) fn start(&mut self, at: u64, own: NodeRecord, seeds: &[SocketAddr], limits: &Limits, ring_bytes: usize) {
        let id = own.node;
        let table = Arc::new(Table::new(1_000, Secret::from_points([1, 2])));
        let shared = table.intern_limits(1, limits).unwrap_or_else(|error| panic!("{error}"));
        let config = MeshConfig { ring_bytes, ..MeshConfig::new(id, 7) };
        let mesh = Mesh::new(config, table.clone(), &self.now(at));
        let mut members = Members::new(own, self.now(at).mono());
        members.set_seeds(seeds.iter().copied());
        let (seen, has_wrong_members) = (BTreeMap::new(), false);
        let process = Process { id, table, mesh, limits: shared, timer_at: None, members, seen, has_wrong_members };
        self.process = Some(process);
    }
}

impl Process {
    pub(super) fn is_ready(&self) -> bool {
        self.mesh.state() == MemberState::Ready
    }

    /// Decides a request locally. Returns whether the request is admitted, and whether there are so many unsent charges
    /// that they must be sent now.
    pub(super) fn decide(&self, now: &Now<'_>, key: Fingerprint, cost: u64) -> (bool, bool) {
        let ask = Ask::Exactly(Cost::new(cost));
        let charge = Charge { key, limits: &self.limits, ask, stamps: None };
        let decided = self.table.decide(now, Verb::Check, &[charge], |_, _| ());
        (decided.admitted, decided.urgent)
    }
}
