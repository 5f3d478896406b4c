//! Whether the store answers.
//!
//! A server whose store is unreachable is still ready: it decides by each rule's `on_fault`. If it were not, a failing shared store
//! would take every server of a fleet out of service at once, and a degraded limiter would become an outage. So `/readyz` only
//! reports it; alert on the metric `tollgate_store_up`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The last known state of the store. A store in this process always answers.
#[derive(Debug, Default)]
pub struct StoreHealth {
    // Relaxed: it is only reported, and no decision depends on it.
    down: AtomicBool,
    /// The reason that was last logged.
    why: Mutex<String>,
}

impl StoreHealth {
    /// Returns whether the store answers.
    pub fn is_up(&self) -> bool {
        !self.down.load(Ordering::Relaxed)
    }

    /// Records that the store answers.
    pub fn up(&self) {
        if self.down.swap(false, Ordering::Relaxed) {
            tracing::info!("store reachable again; limits are shared again");
        }
    }

    /// Records that the store does not answer. The reason is only logged, since it may name machines; again when it changes.
    pub fn down(&self, why: &str) {
        let mut logged = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.down.swap(true, Ordering::Relaxed) || *logged != why {
            why.clone_into(&mut logged);
            tracing::warn!(why, "store unreachable; on_fault of each rule decides");
        }
    }
}
