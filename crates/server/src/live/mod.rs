//! Live data: current rates per second, their history, and the rules in force.
//!
//! Once a second, a task on the background thread ([`sample_every_second`]) reads the metrics counters and adds the
//! rates to the [`LiveHistory`]. The task also publishes one event to all viewers (`stream.rs`). Decisions update the
//! metrics counters anyway, so live data does not slow them down.

mod answer;
mod history;
mod rules;
mod sample;
mod stream;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

pub(crate) use answer::{answer, owns_path};
pub use history::{LiveHistory, MAX_TRACKED_RULES, ONE_SECOND_POINTS, TEN_SECOND_POINTS};
pub(crate) use rules::RulesInForcePage;
pub use sample::sample_every_second;

/// Maximum number of concurrent viewers of live data.
pub const MAX_VIEWERS: usize = 64;

/// Maximum number of concurrent requests for the history or the rules.
pub const MAX_LIVE_REQUESTS: usize = 64;

/// The history of rates, and the event stream of viewers.
#[derive(Debug)]
pub struct LiveData {
    /// Locked by the sampler once a second and by requests for the history, but never by decisions.
    history: Mutex<LiveHistory>,
    /// The last event, encoded for sending.
    events: watch::Sender<Bytes>,
    viewers: Arc<Semaphore>,
    /// One permit for each concurrent request for the history or the rules.
    reads: Arc<Semaphore>,
    /// The background thread that serves the history and the rules.
    background: OnceLock<Handle>,
}

impl Default for LiveData {
    fn default() -> Self {
        Self {
            history: Mutex::default(),
            events: watch::Sender::new(Bytes::new()),
            viewers: Arc::new(Semaphore::new(MAX_VIEWERS)),
            reads: Arc::new(Semaphore::new(MAX_LIVE_REQUESTS)),
            background: OnceLock::new(),
        }
    }
}

impl LiveData {
    /// Sets the background thread that serves the history and the rules. If no thread is set, worker threads serve the
    /// history and the rules.
    pub fn set_background(&self, background: Handle) {
        // An error means that the thread was already set, so it is ignored.
        let _ = self.background.set(background);
    }

    fn lock_history(&self) -> MutexGuard<'_, LiveHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
