//! Live data for viewers: rates once a second, their history, and the rules in force.
//!
//! Once a second a task on the background thread reads the counters that decisions write anyway ([`sample()`]), adds the rates to
//! the [`LiveHistory`] and publishes one event, which all viewers share (`stream.rs`). A decision pays nothing for this.

mod answer;
mod history;
mod rules;
mod sample;
mod stream;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

pub(crate) use answer::{answer, owns};
pub use history::{LiveHistory, MAX_RULES, SECONDS, TENS};
pub(crate) use rules::RulesInForcePage;
pub use sample::sample;

/// Maximum number of viewers of live data at a time.
pub const MAX_VIEWERS: usize = 64;

/// Maximum number of requests for the history or the rules at a time.
pub const MAX_READS: usize = 64;

/// The history, and the events that viewers read.
#[derive(Debug)]
pub struct Live {
    /// Locked once a second by the sampler, and by readers of the history; never by a decision.
    history: Mutex<LiveHistory>,
    /// The last event as it is sent.
    events: watch::Sender<Bytes>,
    viewers: Arc<Semaphore>,
    /// Has a permit for each request for the history or the rules.
    reads: Arc<Semaphore>,
    /// The thread that reads the history and the rules for viewers.
    background: OnceLock<Handle>,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            history: Mutex::default(),
            events: watch::Sender::new(Bytes::new()),
            viewers: Arc::new(Semaphore::new(MAX_VIEWERS)),
            reads: Arc::new(Semaphore::new(MAX_READS)),
            background: OnceLock::new(),
        }
    }
}

impl Live {
    /// Reads the history and the rules on this thread from now on, instead of on the threads that decide.
    pub fn set_background(&self, background: Handle) {
        // A second call would name the same thread.
        let _ = self.background.set(background);
    }

    fn history(&self) -> MutexGuard<'_, LiveHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
