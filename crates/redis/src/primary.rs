//! A primary server with its request queue.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tollgate_engine::store::{StoreError, UnsentFlag};

use crate::batcher::{Batcher, CallCounters, Claim, GroupReply, Health, QueuedRequest, unavailable_error};
use crate::config::{Config, MAX_QUEUED_REQUESTS};
use crate::request::QueuedGroup;
use crate::script::Scripts;

/// A server with its queue, connection and circuit breaker. Dropping the `Primary` ends its task.
#[derive(Debug)]
pub(crate) struct Primary {
    config: Config,
    queue: mpsc::Sender<QueuedRequest>,
    health: watch::Receiver<Health>,
}

impl Primary {
    /// Starts the task, which connects and reconnects automatically. `changed` is notified when the health changes.
    pub(crate) fn start(
        config: Config,
        scripts: Arc<Scripts>,
        counters: Arc<CallCounters>,
        changed: Option<Arc<Notify>>,
    ) -> Self {
        let (queue, waiting) = mpsc::channel(MAX_QUEUED_REQUESTS);
        let (health_sender, health) = watch::channel(Health::Connecting);
        let batcher =
            Batcher { config: config.clone(), scripts, queue: waiting, health: health_sender, counters, changed };
        tokio::spawn(batcher.run());
        Self { config, queue, health }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Queues groups to be sent.
    ///
    /// # Errors
    /// Fails if the server is not up, or its queue is full.
    pub(crate) fn send(&self, groups: Vec<QueuedGroup>) -> Result<Ticket, StoreError> {
        if let health @ (Health::Connecting | Health::Down { .. }) = &*self.health.borrow() {
            return Err(unavailable_error(&self.config, health));
        }
        let (reply, answer) = oneshot::channel();
        let claim = Arc::new(Claim::default());
        let unsent = groups.iter().find_map(|group| group.unsent.clone());
        let ticket = Ticket { claim: claim.clone(), answer, unsent };
        let why = match self.queue.try_send(QueuedRequest { groups, claim, reply }) {
            Ok(()) => return Ok(ticket),
            Err(mpsc::error::TrySendError::Full(_)) => format!("the queue is full ({MAX_QUEUED_REQUESTS} requests)"),
            Err(mpsc::error::TrySendError::Closed(_)) => "the runtime of the connection has ended".to_owned(),
        };
        Err(StoreError::Unavailable { why })
    }
}

/// A queued request. If the ticket is dropped before the request is sent, the request is cancelled.
pub(crate) struct Ticket {
    claim: Arc<Claim>,
    answer: oneshot::Receiver<Result<Vec<GroupReply>, StoreError>>,
    unsent: Option<UnsentFlag>,
}

impl Ticket {
    /// Waits for the answers, one per group.
    ///
    /// # Errors
    /// Fails if the whole request failed or missed the deadline.
    pub(crate) async fn await_answers(
        mut self,
        deadline: Instant,
        config: &Config,
    ) -> Result<Vec<GroupReply>, StoreError> {
        match timeout_at(deadline, &mut self.answer).await {
            Ok(Ok(answer)) => answer,
            // The task has ended and dropped the queue. A call in flight may have been executed.
            Ok(Err(_)) => Err(StoreError::Unknown { why: "the runtime of the connection has ended".to_owned() }),
            Err(_) if self.claim.take() => {
                Err(StoreError::Unavailable { why: format!("not sent within {:?}", config.deadline) })
            }
            Err(_) => Err(StoreError::Unknown {
                why: format!("no answer from {} within {:?}", config.address, config.deadline),
            }),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.claim.take()
            && let Some(unsent) = &self.unsent
        {
            unsent.set();
        }
    }
}
