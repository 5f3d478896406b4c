//! Asks (requests to other nodes) that are still unanswered.
//!
//! Each ask ends in one of four ways: its answer arrives, its link ends, its deadline passes, or its caller gives up.
//! The peers thread watches the deadlines of all asks with one timer ([`PendingAsks::expire`]). A timer per ask
//! would cost CPU time in every forwarded decision.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::NodeId;
use crate::ask::Answer;
use crate::outbox::Outbox;
use crate::wire::{self, Frame};

/// Maximum number of unanswered asks. Further asks fail.
pub(crate) const MAX_ASKS: usize = 1 << 16;

/// Unanswered asks by id.
#[derive(Default)]
pub(crate) struct PendingAsks {
    state: Mutex<State>,
    /// Wakes [`PendingAsks::expire`]: a new ask expires earlier than all others.
    earlier: Notify,
}

#[derive(Default)]
struct State {
    next_id: u64,
    waiting: HashMap<u64, PendingEntry, BuildHasherDefault<IdHasher>>,
    /// When the asks are next searched for expired ones. `None` if there were no asks.
    search_at: Option<Instant>,
    /// Whether the peers thread has ended, so that no ask can be answered.
    is_closed: bool,
}

struct PendingEntry {
    /// The node that was asked.
    peer: NodeId,
    waiter: Waiter,
    deadline: Instant,
}

enum Waiter {
    /// A request on this node.
    Caller(oneshot::Sender<Result<Answer, AskError>>),
    /// Another node, with the id that it gave the ask.
    Relay { outbox: Arc<Outbox>, id: u64 },
}

/// Reason why an ask has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskError {
    /// The link to the asked node ended.
    Lost,
    /// The deadline passed.
    Expired,
}

/// An ask sent by this node. Dropping it cancels the wait.
pub(crate) struct PendingAsk<'a> {
    asks: &'a PendingAsks,
    pub(crate) id: u64,
    answer: oneshot::Receiver<Result<Answer, AskError>>,
    is_pending: bool,
    /// Whether no other ask was unanswered when this one was made.
    pub(crate) is_only: bool,
}

impl PendingAsk<'_> {
    /// Waits for the answer.
    pub(crate) async fn answer(mut self) -> Result<Answer, AskError> {
        let answer = (&mut self.answer).await.unwrap_or(Err(AskError::Lost));
        self.is_pending = false;
        answer
    }
}

impl Drop for PendingAsk<'_> {
    fn drop(&mut self) {
        if self.is_pending {
            self.asks.state().waiting.remove(&self.id);
        }
    }
}

impl PendingAsks {
    /// Registers an ask of this node. `None` if [`MAX_ASKS`] are unanswered.
    pub(crate) fn ask(&self, peer: NodeId, deadline: Instant) -> Option<PendingAsk<'_>> {
        let (sender, answer) = oneshot::channel();
        let (id, is_only) = self.add(PendingEntry { peer, waiter: Waiter::Caller(sender), deadline })?;
        Some(PendingAsk { asks: self, id, answer, is_pending: true, is_only })
    }

    /// Registers an ask that is relayed from another node to `peer`, and returns its local id. `None` if [`MAX_ASKS`]
    /// are unanswered.
    pub(crate) fn relay(&self, peer: NodeId, outbox: Arc<Outbox>, id: u64, deadline: Instant) -> Option<u64> {
        self.add(PendingEntry { peer, waiter: Waiter::Relay { outbox, id }, deadline }).map(|(id, _)| id)
    }

    /// Adds an ask. Returns its id, and whether it is the only one.
    fn add(&self, entry: PendingEntry) -> Option<(u64, bool)> {
        let mut state = self.state();
        if state.is_closed || state.waiting.len() >= MAX_ASKS {
            return None;
        }
        let is_earlier = state.search_at.is_none_or(|at| entry.deadline < at);
        if is_earlier {
            state.search_at = Some(entry.deadline);
        }
        let id = state.next_id;
        state.next_id += 1;
        state.waiting.insert(id, entry);
        let is_only = state.waiting.len() == 1;
        drop(state);
        if is_earlier {
            self.earlier.notify_one();
        }
        Some((id, is_only))
    }

    /// Passes the answers of one read to their waiters. Drops answers without a waiter and answers from the wrong node.
    pub(crate) fn answer(&self, from: NodeId, answers: &mut Vec<Answer>) {
        if answers.is_empty() {
            return;
        }
        let mut state = self.state();
        let waiters = answers.drain(..).filter_map(|answer| {
            let Entry::Occupied(found) = state.waiting.entry(answer.id) else { return None };
            (found.get().peer == from).then(|| (found.remove().waiter, answer))
        });
        let waiters: SmallVec<[(Waiter, Answer); 8]> = waiters.collect();
        drop(state);
        for (waiter, mut answer) in waiters {
            match waiter {
                // The caller may have given up.
                Waiter::Caller(sender) => drop(sender.send(Ok(answer))),
                Waiter::Relay { outbox, id } => {
                    answer.id = id;
                    outbox.push(|to| wire::encode(&Frame::Answer(answer), to));
                }
            }
        }
    }

    /// Ends the asks sent to `peer`, whose link has ended.
    pub(crate) fn lost(&self, peer: NodeId) {
        self.state().end(AskError::Lost, |entry| entry.peer == peer);
    }

    /// Ends all asks, and refuses new ones.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.end(AskError::Lost, |_| true);
    }

    /// Waits until the earliest deadline, and ends the asks whose deadline has passed. Returns the asked nodes.
    pub(crate) async fn expire(&self) -> HashSet<NodeId> {
        loop {
            let search_at = self.state().search_at;
            tokio::select! {
                () = self.earlier.notified() => {}
                () = sleep_until(search_at.unwrap_or_else(Instant::now)), if search_at.is_some() => break,
            }
        }
        let (now, mut state) = (Instant::now(), self.state());
        let expired = state.end(AskError::Expired, |entry| entry.deadline <= now);
        state.search_at = state.waiting.values().map(|entry| entry.deadline).min();
        expired
    }

    /// Returns the number of unanswered asks.
    pub(crate) fn len(&self) -> usize {
        self.state().waiting.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Ends the asks for which `is_over` returns true. Returns the asked nodes.
    fn end(&mut self, error: AskError, is_over: impl Fn(&PendingEntry) -> bool) -> HashSet<NodeId> {
        let ended = self.waiting.extract_if(|_, entry| is_over(entry)).map(|(_, entry)| {
            if let Waiter::Caller(sender) = entry.waiter {
                // The caller may have given up.
                drop(sender.send(Err(error)));
            }
            entry.peer
        });
        ended.collect()
    }
}

/// Hashes ids, which are consecutive numbers, by a multiplication. Other nodes cannot choose them.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0 ^ id).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
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
    use std::time::Duration;

    const PEER: NodeId = NodeId(1);

    fn answer(id: u64) -> Answer {
        Answer { id, result: Err(Refusal::NoHome) }
    }

    fn later(millis: u64) -> Instant {
        Instant::now() + Duration::from_millis(millis)
    }

    #[tokio::test]
    async fn answer_reaches_its_caller_only_if_the_asked_node_sent_it() {
        let asks = PendingAsks::default();
        let asked = asks.ask(PEER, later(10)).unwrap();
        let id = asked.id;
        asks.answer(NodeId(2), &mut vec![answer(id)]);
        assert_eq!(asks.len(), 1, "another node answered");
        asks.answer(PEER, &mut vec![answer(id)]);
        assert_eq!(asked.answer().await.unwrap().id, id);
        asks.answer(PEER, &mut vec![answer(id)]);
        assert_eq!(asks.len(), 0, "a second answer is dropped");
    }

    #[tokio::test]
    async fn cancelled_and_lost_asks_are_removed() {
        let asks = PendingAsks::default();
        drop(asks.ask(PEER, later(10)));
        assert_eq!(asks.len(), 0);
        let asked = asks.ask(PEER, later(10)).unwrap();
        let other = asks.ask(NodeId(2), later(10)).unwrap();
        asks.lost(PEER);
        assert_eq!(asked.answer().await, Err(AskError::Lost));
        assert_eq!(asks.len(), 1);
        asks.close();
        assert_eq!(other.answer().await, Err(AskError::Lost));
        assert!(asks.ask(PEER, later(10)).is_none(), "no thread would answer");
    }

    #[tokio::test(start_paused = true)]
    async fn each_ask_expires_at_its_own_deadline() {
        let asks = PendingAsks::default();
        let outbox = Arc::new(Outbox::default());
        let start = Instant::now();
        let wait_for = async |millis: u64| {
            assert_eq!(asks.ask(PEER, later(millis)).unwrap().answer().await, Err(AskError::Expired));
            start.elapsed().as_millis() as u64
        };
        let waits = async {
            // The second ask expires before the first one, and the relayed ask after both.
            asks.relay(PEER, outbox, 7, later(5_000)).unwrap();
            let ended = tokio::join!(wait_for(30), wait_for(10));
            assert!((30..=31).contains(&ended.0) && (10..=11).contains(&ended.1), "{ended:?}");
            assert!((40..=42).contains(&wait_for(10).await));
            assert_eq!(asks.len(), 1);
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(asks.len(), 0);
            let at = start.elapsed().as_millis() as u64;
            assert!((at + 10..=at + 12).contains(&wait_for(10).await), "the search resumes after a pause");
        };
        let expiring = async {
            for _ in 0.. {
                asks.expire().await;
            }
        };
        tokio::select! {
            () = expiring => {}
            () = waits => {}
        }
    }

    #[tokio::test]
    async fn relayed_asks_are_answered_and_all_asks_are_bounded() {
        let asks = PendingAsks::default();
        let outbox = Arc::new(Outbox::default());
        let relay = || asks.relay(PEER, outbox.clone(), 7, later(10));
        let id = relay().unwrap();
        asks.answer(PEER, &mut vec![answer(id)]);
        assert!(outbox.queued() > 0, "the answer is relayed");
        while relay().is_some() {}
        assert_eq!(asks.len(), MAX_ASKS);
        assert!(asks.ask(PEER, later(10)).is_none());
    }
}
