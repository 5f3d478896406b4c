//! Runs the conformance suite on real servers, with a manual clock and with the server's own clock.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use std::time::Duration;

use support::{StoreClock, store, with_manual_clock};
use tollgate_core::Nanos;
use tollgate_redis::RedisStore;
use tollgate_testkit::conformance::Subject;
use tollgate_testkit::servers::{Kind, Server};

struct RedisSubject {
    store: RedisStore,
    /// The manual clock and its time; `None` with the server's own clock.
    store_clock: Option<(StoreClock, u64)>,
    _server: Server,
}

impl Subject for RedisSubject {
    type Store = RedisStore;

    fn store(&self) -> &Self::Store {
        &self.store
    }

    fn unit(&self) -> Nanos {
        // This unit is longer than the usual delays on a loaded machine.
        Nanos::SECOND
    }

    fn is_time_frozen(&self) -> bool {
        self.store_clock.is_some()
    }

    fn tick(&self) -> Nanos {
        Nanos::from_micros(1)
    }

    async fn wait(&mut self, length: Nanos) {
        match &mut self.store_clock {
            Some((store_clock, now)) => {
                *now += length.as_nanos().div_ceil(1_000);
                store_clock.set(*now);
            }
            None => tokio::time::sleep(length.into()).await,
        }
    }
}

const START: u64 = 1_700_000_000_000_000;

fn run(case: impl AsyncFnOnce(&mut RedisSubject), kind: Kind, is_manual: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut shared = if is_manual {
            let (server, store, mut store_clock) = with_manual_clock(kind).await;
            store_clock.set(START);
            RedisSubject { store, store_clock: Some((store_clock, START)), _server: server }
        } else {
            let server = Server::start(kind);
            RedisSubject { store: store(&server).await, store_clock: None, _server: server }
        };
        // A case that hangs fails instead of blocking the run.
        tokio::time::timeout(Duration::from_secs(60), case(&mut shared)).await.unwrap();
    });
}

mod redis_with_manual_clock {
    fn run(case: impl AsyncFnOnce(&mut super::RedisSubject)) {
        super::run(case, super::Kind::Redis, true);
    }

    tollgate_testkit::store_conformance!(run);
}

mod redis_with_its_own_clock {
    fn run(case: impl AsyncFnOnce(&mut super::RedisSubject)) {
        super::run(case, super::Kind::Redis, false);
    }

    tollgate_testkit::store_conformance!(run);
}

mod valkey_with_manual_clock {
    fn run(case: impl AsyncFnOnce(&mut super::RedisSubject)) {
        super::run(case, super::Kind::Valkey, true);
    }

    tollgate_testkit::store_conformance!(run);
}

mod valkey_with_its_own_clock {
    fn run(case: impl AsyncFnOnce(&mut super::RedisSubject)) {
        super::run(case, super::Kind::Valkey, false);
    }

    tollgate_testkit::store_conformance!(run);
}
