//! Tracks whether the store answers.
//!
//! A server whose store is unreachable is still ready, because each rule's `on_fault` then decides. If such
//! servers were not ready, a failing shared store would take a whole fleet out of service. `/readyz` therefore only
//! reports the store's state. For alerts, use the metric `tollgate_store_up`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The last known state of the store. An in-process store is always up.
#[derive(Debug, Default)]
pub struct StoreHealth {
    // Relaxed: the flag is only reported, and no decision depends on it.
    is_down: AtomicBool,
    /// The last logged reason.
    logged_reason: Mutex<String>,
}

/// Each entry lists substrings of store errors, and describes the configuration mistake that they indicate.
const CONFIGURATION_MISTAKES: &[(&[&str], &str)] = &[
    (&["NOAUTH", "WRONGPASS", "AuthenticationFailed", "NOPERM"], "store refuses the password"),
    (&["DB index"], "store has no such database"),
    (&["if the port expects TLS"], "store closes the connection; it may expect TLS"),
    (&["cluster support disabled", "belongs to a Redis Cluster"], "store is not of the kind that its URL names"),
    (&["watches no master"], "sentinels do not know the master of the URL"),
    (&["it would count keys in other lanes"], "store uses another number of lanes"),
    (&["certificate", "TLS", "tls", "handshake"], "TLS with the store fails"),
];

impl StoreHealth {
    /// Returns a description of the store's problem that names no machines or users, or `None` if the store answers.
    pub fn problem(&self) -> Option<&'static str> {
        if self.is_up() {
            return None;
        }
        let why = self.logged_reason.lock().unwrap_or_else(PoisonError::into_inner);
        let found = CONFIGURATION_MISTAKES.iter().find(|(signs, _)| signs.iter().any(|sign| why.contains(sign)));
        Some(found.map_or("store unreachable", |(_, problem)| problem))
    }

    /// Returns whether the store answers.
    pub fn is_up(&self) -> bool {
        !self.is_down.load(Ordering::Relaxed)
    }

    /// Records that the store answers.
    pub fn set_up(&self) {
        if self.is_down.swap(false, Ordering::Relaxed) {
            tracing::info!("store reachable again; limits are shared again");
        }
    }

    /// Records that the store does not answer. The reason may name machines, so it is only logged: when the store goes
    /// down, and whenever the reason changes.
    pub fn set_down(&self, why: &str) {
        let mut logged = self.logged_reason.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_down.swap(true, Ordering::Relaxed) || *logged != why {
            why.clone_into(&mut logged);
            tracing::warn!(why, "store unreachable; on_fault of each rule decides");
        }
    }
}
