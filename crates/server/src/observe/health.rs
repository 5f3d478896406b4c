//! Whether the store answers, for people and machines that look after the server.
//!
//! A server whose store is gone is still ready: it decides as each rule's `on_fault` says. If it said otherwise, every server of a
//! fleet would be taken out of service together at the moment their shared store is, and a slow limiter would have
//! become an outage. So readiness stays and only tells; alarms belong on the metric `tollgate_store_up`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What was last heard of the store. One that lies in this process always answers.
#[derive(Debug, Default)]
pub struct StoreHealth {
    // Orders nothing: it is only told, never decided by.
    down: AtomicBool,
    /// Why it does not answer, as last told.
    why: Mutex<String>,
}

impl StoreHealth {
    /// Whether the store answers.
    pub fn is_up(&self) -> bool {
        !self.down.load(Ordering::Relaxed)
    }

    /// The store answers.
    pub fn up(&self) {
        if self.down.swap(false, Ordering::Relaxed) {
            tracing::info!("the store answers again, limits are shared again");
        }
    }

    /// The store does not answer. Why is for the log only, since it may name machines; it is told again when it changes.
    pub fn down(&self, why: &str) {
        let mut told = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.down.swap(true, Ordering::Relaxed) || *told != why {
            why.clone_into(&mut told);
            tracing::warn!(
                why,
                "the store does not answer, decisions are made without it as each rule's on_fault says"
            );
        }
    }
}
