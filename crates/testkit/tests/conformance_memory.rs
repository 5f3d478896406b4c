//! The conformance suite on the memory store, with a manual clock.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollgate::clock::ManualClock;
use tollgate_core::Nanos;
use tollgate_engine::MemoryStore;
use tollgate_testkit::conformance::Subject;

struct Memory {
    store: MemoryStore<ManualClock>,
    clock: Arc<ManualClock>,
}

impl Subject for Memory {
    type Store = MemoryStore<ManualClock>;

    fn store(&self) -> &Self::Store {
        &self.store
    }

    fn unit(&self) -> Nanos {
        Nanos::SECOND
    }

    fn is_time_frozen(&self) -> bool {
        true
    }

    fn tick(&self) -> Nanos {
        Nanos::from_nanos(1)
    }

    async fn wait(&mut self, length: Nanos) {
        self.clock.advance(length);
    }
}

fn run_case(case: impl AsyncFnOnce(&mut Memory)) {
    let clock = Arc::new(ManualClock::at(1_700_000_000_000_000_000));
    let store = MemoryStore::with_clock(1_000, clock.clone()).expect("a small table");
    let mut memory = Memory { store, clock };
    let done = std::pin::pin!(case(&mut memory)).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(done, Poll::Ready(()), "the memory store is ready at the first poll");
}

tollgate_testkit::store_conformance!(run_case);
