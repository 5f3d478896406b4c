//! An engine whose time is that of recorded requests; `tollgate decide` and `tollgate replay` use it.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollgate::CapacityError;
use tollgate::clock::ManualClock;
use tollgate_engine::{Decision, Decisions, Engine, Entry, Item, MemoryStore, Request, RequestError};

/// An engine in memory, whose clock is moved by its caller.
pub(crate) type SimulatedEngine = Engine<MemoryStore<ManualClock>>;

/// Creates an engine without rules for this many keys, and its clock.
///
/// # Errors
/// If the keys do not fit the address space.
pub(crate) fn simulated_engine(keys: usize) -> Result<(SimulatedEngine, Arc<ManualClock>), CapacityError> {
    let clock = Arc::new(ManualClock::at(0));
    let store = MemoryStore::with_clock(keys, clock.clone())?;
    Ok((Engine::new(store)?.with_clock(clock.clone()), clock))
}

/// Decides requests at given times.
#[derive(Debug)]
pub(super) struct Simulation {
    pub(super) engine: SimulatedEngine,
    clock: Arc<ManualClock>,
    decisions: Decisions,
}

impl Simulation {
    pub(super) fn new(keys: usize) -> Result<Self, CapacityError> {
        let (engine, clock) = simulated_engine(keys)?;
        Ok(Self { engine, clock, decisions: Decisions::default() })
    }

    /// Decides a request at a time, in nanoseconds since 1970.
    ///
    /// # Errors
    /// If the request is invalid.
    #[inline]
    pub(super) fn check(
        &mut self,
        domain: &[u8],
        entries: &[Entry<'_>],
        at: u64,
    ) -> Result<Decision<'_>, RequestError> {
        self.clock.set(at);
        let items = [Item::new(entries)];
        let request = Request { domain, items: &items };
        match pin!(self.engine.check(&request, &mut self.decisions)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision,
            Poll::Pending => unreachable!("a store in memory answers immediately"),
        }
    }
}
