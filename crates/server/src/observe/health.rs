//! Tracks whether the store answers.
//!
//! A server whose store is unreachable is still ready: it decides by each rule's `on_fault`. If it were not ready, a
//! failing shared store would take every server of a fleet out of service at once. `/readyz` therefore only reports the
//! store's state. For alerts, use the metric `tollgate_store_up`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The last known state of the store. A store in this process always answers.
#[derive(Debug, Default)]
pub struct StoreHealth {
    // Relaxed: the flag is only reported, and no decision depends on it.
    down: AtomicBool,
    /// The reason that was last logged.
    why: Mutex<String>,
}

/// Substrings of error messages that indicate a configuration mistake, each group with a description of the mistake.
const PROBLEMS: &[(&[&str], &str)] = &[
    (&["NOAUTH", "WRONGPASS", "AuthenticationFailed", "NOPERM"], "store refuses the password"),
    (&["DB index"], "store has no such database"),
    (&["if the port expects TLS"], "store closes the connection; it may expect TLS"),
    (&["cluster support disabled", "belongs to a Redis Cluster"], "store is of another kind than its address says"),
    (&["watches no master"], "sentinels do not know the master"),
    (&["it would count keys elsewhere"], "store counts in another number of lanes"),
    (&["certificate", "TLS", "tls", "handshake"], "no TLS with the store"),
];

impl StoreHealth {
    /// Returns a description of the store's problem that names no machines or users, or `None` if the store answers.
    pub fn problem(&self) -> Option<&'static str> {
        if self.is_up() {
            return None;
        }
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        let found = PROBLEMS.iter().find(|(signs, _)| signs.iter().any(|sign| why.contains(sign)));
        Some(found.map_or("store unreachable", |(_, problem)| problem))
    }

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

    /// Records that the store does not answer. The reason may name machines, so it is only logged, at first and
    /// whenever it changes.
    pub fn set_down(&self, why: &str) {
        let mut logged = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.down.swap(true, Ordering::Relaxed) || *logged != why {
            why.clone_into(&mut logged);
            tracing::warn!(why, "store unreachable; on_fault of each rule decides");
        }
    }
}
