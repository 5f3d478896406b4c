//! Asks (requests to other nodes) that are still unanswered.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tollgate_core::{Mono, Nanos, Time};

use crate::NodeId;
use crate::ask::Answer;
use crate::link::Outbox;
use crate::wire::{self, Frame};

/// Maximum number of unanswered asks. Further asks fail.
pub(crate) const MAX_ASKS: usize = 1 << 16;

/// How long a relayed ask waits for its answer. The original caller gives up much earlier.
const RELAY: Nanos = Nanos::from_secs(5);

/// Unanswered asks by id.
#[derive(Default)]
pub(crate) struct PendingAsks {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, PendingEntry>>,
}

struct PendingEntry {
    /// The node that was asked.
    peer: NodeId,
    waiter: Waiter,
}

enum Waiter {
    /// A request on this node.
    Caller(oneshot::Sender<Answer>),
    /// Another node, with the id that it gave the ask.
    Relay { outbox: Arc<Outbox>, id: u64, until: Time<Mono> },
}

/// An ask sent by this node. Dropping it cancels the wait.
pub(crate) struct PendingAsk<'a> {
    asks: &'a PendingAsks,
    pub(crate) id: u64,
    pub(crate) answer: oneshot::Receiver<Answer>,
}

impl Drop for PendingAsk<'_> {
    fn drop(&mut self) {
        self.asks.lock().remove(&self.id);
    }
}

impl PendingAsks {
    /// Registers an ask of this node. `None` if [`MAX_ASKS`] are unanswered.
    pub(crate) fn ask(&self, peer: NodeId) -> Option<PendingAsk<'_>> {
        let (sender, answer) = oneshot::channel();
        let id = self.add(peer, Waiter::Caller(sender))?;
        Some(PendingAsk { asks: self, id, answer })
    }

    /// Registers an ask that is relayed from another node to `peer`, and returns its local id. `None` if [`MAX_ASKS`]
    /// are unanswered.
    pub(crate) fn relay(&self, peer: NodeId, outbox: Arc<Outbox>, id: u64, now: Time<Mono>) -> Option<u64> {
        self.add(peer, Waiter::Relay { outbox, id, until: now.saturating_add(RELAY) })
    }

    fn add(&self, peer: NodeId, waiter: Waiter) -> Option<u64> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut waiting = self.lock();
        if waiting.len() >= MAX_ASKS {
            return None;
        }
        waiting.insert(id, PendingEntry { peer, waiter });
        Some(id)
    }

    /// Passes an answer to its waiter. Drops answers without a waiter and answers from the wrong node.
    pub(crate) fn answer(&self, from: NodeId, mut answer: Answer) {
        let mut waiting = self.lock();
        if waiting.get(&answer.id).is_none_or(|waiting| waiting.peer != from) {
            return;
        }
        let Some(PendingEntry { waiter, .. }) = waiting.remove(&answer.id) else { return };
        drop(waiting);
        match waiter {
            // The caller may have given up.
            Waiter::Caller(sender) => drop(sender.send(answer)),
            Waiter::Relay { outbox, id, .. } => {
                answer.id = id;
                outbox.push(|to| wire::encode(&Frame::Answer(answer), to));
            }
        }
    }

    /// Drops the asks sent to `peer`, whose link has ended.
    pub(crate) fn lost(&self, peer: NodeId) {
        self.lock().retain(|_, waiting| waiting.peer != peer);
    }

    /// Drops relayed asks that have timed out.
    pub(crate) fn expire(&self, now: Time<Mono>) {
        self.lock().retain(|_, waiting| match waiting.waiter {
            Waiter::Caller(_) => true,
            Waiter::Relay { until, .. } => until > now,
        });
    }

    /// Returns the number of unanswered asks.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, PendingEntry>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PendingAsks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingAsks").field("waiting", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Refusal;

    const PEER: NodeId = NodeId(1);

    fn answer(id: u64) -> Answer {
        Answer { id, result: Err(Refusal::NoHome) }
    }

    #[tokio::test]
    async fn answer_reaches_its_caller_only_if_the_asked_node_sent_it() {
        let asks = PendingAsks::default();
        let mut asked = asks.ask(PEER).unwrap();
        asks.answer(NodeId(2), answer(asked.id));
        assert_eq!(asks.len(), 1, "another node answered");
        asks.answer(PEER, answer(asked.id));
        assert_eq!((&mut asked.answer).await.unwrap().id, asked.id);
        asks.answer(PEER, answer(asked.id));
        assert_eq!(asks.len(), 0, "a second answer is dropped");
    }

    #[tokio::test]
    async fn cancelled_and_lost_asks_are_removed() {
        let asks = PendingAsks::default();
        drop(asks.ask(PEER));
        assert_eq!(asks.len(), 0);
        let mut asked = asks.ask(PEER).unwrap();
        let other = asks.ask(NodeId(2)).unwrap();
        asks.lost(PEER);
        assert!((&mut asked.answer).await.is_err(), "the ask ends without an answer");
        assert_eq!(asks.len(), 1);
        drop(other);
    }

    #[test]
    fn relayed_asks_expire_and_all_asks_are_bounded() {
        let asks = PendingAsks::default();
        let outbox = Arc::new(Outbox::default());
        let relay = |at: u64| asks.relay(PEER, outbox.clone(), 7, Time::from_nanos(at));
        assert!(relay(0).is_some() && relay(1).is_some());
        asks.expire(Time::from_nanos(RELAY.as_nanos()));
        assert_eq!(asks.len(), 1);
        let id = relay(2).unwrap();
        asks.answer(PEER, answer(id));
        assert!(outbox.queued() > 0, "the answer is relayed");
        while relay(3).is_some() {}
        assert_eq!(asks.len(), MAX_ASKS);
        assert!(asks.ask(PEER).is_none());
    }
}
