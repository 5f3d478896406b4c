//! An engine whose clock is set to the times of recorded requests, for `tollgate decide` and `tollgate replay`.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollgate::CapacityError;
use tollgate::clock::ManualClock;
use tollgate_engine::{Attribute, Decision, Decisions, Engine, Item, MemoryStore, Request, RequestError};

/// An in-memory engine whose clock is set by the caller.
pub(crate) type SimulatedEngine = Engine<MemoryStore<ManualClock>>;

/// Creates an engine without rules for at most `keys` keys. Also returns the engine's clock.
///
/// # Errors
/// Returns an error if a table for `keys` keys would exceed the address space.
pub(crate) fn simulated_engine(keys: usize) -> Result<(SimulatedEngine, Arc<ManualClock>), CapacityError> {
    let clock = Arc::new(ManualClock::at(0));
    let store = MemoryStore::with_clock(keys, clock.clone())?;
    Ok((Engine::new(store)?.with_clock(clock.clone()), clock))
}

/// Number of requests that are planned together, so that the store can prefetch their keys.
pub(super) const MAX_PLANNED_REQUESTS: usize = 16;

/// Decides requests at simulated times.
#[derive(Debug)]
pub(super) struct Simulation {
    pub(super) engine: SimulatedEngine,
    clock: Arc<ManualClock>,
    /// One buffer per planned request. The buffers take several kilobytes and a `Simulation` is moved, so they are on
    /// the heap.
    decisions: Box<[Decisions]>,
}

impl Simulation {
    pub(super) fn new(keys: usize) -> Result<Self, CapacityError> {
        let (engine, clock) = simulated_engine(keys)?;
        let decisions = std::iter::repeat_with(Decisions::default).take(MAX_PLANNED_REQUESTS).collect();
        Ok(Self { engine, clock, decisions })
    }

    /// Plans a request for the time `at` (nanoseconds since 1970). `index` is the request's index among the planned
    /// requests.
    #[inline]
    pub(super) fn plan(&mut self, index: usize, domain: &[u8], attributes: &[Attribute<'_>], at: u64) {
        self.clock.set(at);
        let items = [Item::new(attributes)];
        self.engine.plan_check(&Request { domain, items: &items }, &mut self.decisions[index]);
    }

    /// Prefetches the table entries of the first `count` planned requests. With a million keys, memory latency
    /// dominates a decision; prefetching hides most of it.
    pub(super) fn prefetch(&self, count: usize) {
        self.engine.prefetch_planned(&self.decisions[..count]);
    }

    /// Decides the planned request with this index. `at` must be the time for which the request was planned.
    ///
    /// # Errors
    /// Returns an error if the request is invalid.
    #[inline]
    pub(super) fn decide(&mut self, index: usize, at: u64) -> Result<Decision<'_>, RequestError> {
        self.clock.set(at);
        poll_ready_future(self.engine.check_planned(&mut self.decisions[index]))
    }

    /// Decides a request at the time `at`, in nanoseconds since 1970.
    ///
    /// # Errors
    /// Returns an error if the request is invalid.
    #[inline]
    pub(super) fn check(
        &mut self,
        domain: &[u8],
        attributes: &[Attribute<'_>],
        at: u64,
    ) -> Result<Decision<'_>, RequestError> {
        self.clock.set(at);
        let items = [Item::new(attributes)];
        poll_ready_future(self.engine.check(&Request { domain, items: &items }, &mut self.decisions[0]))
    }
}

/// Returns the result of a future that is always ready because the store is in memory.
fn poll_ready_future<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("a store in memory answers immediately"),
    }
}
