//! Asks (requests to other nodes) that are still unanswered.
//!
//! Each ask ends in one of four ways: its answer arrives, its link ends, its deadline passes, or its caller gives up.
//! The peers thread watches the deadlines of all asks with one timer ([`PendingAsks::expire`]). A timer per ask
//! would cost CPU time in every forwarded decision.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::NodeId;
use crate::ask::Answer;
use crate::outbox::Outbox;
use crate::wire::{self, Frame};

/// Maximum number of asks that are unanswered, or whose answer the caller has not taken yet. Further asks fail.
pub(crate) const MAX_ASKS: usize = 1 << 16;
/// Number of bits in an ask's id that contain the index of its slot. The other bits distinguish the asks of one slot.
const SLOT_INDEX_BITS: u32 = MAX_ASKS.trailing_zeros();
/// Number of slots that are kept even if they are free. Free slots beyond this number are dropped after a search for
/// expired asks.
const KEPT_SLOTS: usize = 1_024;

/// Unanswered asks by id.
#[derive(Default)]
pub(crate) struct PendingAsks {
    state: Mutex<State>,
    /// Wakes [`PendingAsks::expire`]: a new ask expires earlier than all others.
    earlier: Notify,
}

/// Each ask has a slot, in which its answer is stored. A map of channels would cost an allocation and several hashes
/// for every forwarded decision.
#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    /// Indices of the free slots. The last index is used next.
    free: VecDeque<u16>,
    /// Number of asks so far. Ids are never used twice.
    made: u64,
    /// Number of unanswered asks.
    waiting: usize,
    /// Time of the next search for expired asks. `None` if there were no asks.
    search_at: Option<Instant>,
    /// Whether the peers thread has ended, so that no ask can be answered.
    is_closed: bool,
}

/// The result is not part of the state, because a move of the large result would copy it.
struct Slot {
    id: u64,
    state: SlotState,
    /// The result of an ended ask.
    result: Result<Answer, AskError>,
}

enum SlotState {
    Free,
    Waiting {
        /// The node that was asked.
        peer: NodeId,
        deadline: Instant,
        waiter: Waiter,
    },
    /// The caller has not taken the result yet.
    Ended,
}

enum Waiter {
    /// A request on this node. The waker is absent until the request waits.
    Caller(Option<Waker>),
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

/// An ask sent by this node. Dropping the `PendingAsk` cancels the wait.
pub(crate) struct PendingAsk<'a> {
    asks: &'a PendingAsks,
    pub(crate) id: u64,
    is_pending: bool,
    /// Whether this ask was the only unanswered ask when it was made.
    pub(crate) is_only: bool,
}

impl PendingAsk<'_> {
    /// Waits for the answer, and returns what `read` returns for it. `read` is called while all asks are locked, so that
    /// the answer does not have to be moved.
    pub(crate) async fn answer<R>(mut self, mut read: impl FnMut(Result<&mut Answer, AskError>) -> R) -> R {
        let read = poll_fn(|context| self.asks.state().poll_answer(self.id, context, &mut read)).await;
        self.is_pending = false;
        read
    }
}

impl Drop for PendingAsk<'_> {
    fn drop(&mut self) {
        if self.is_pending {
            self.asks.state().remove(self.id);
        }
    }
}

impl PendingAsks {
    /// Registers an ask of this node. Returns `None` if there are already [`MAX_ASKS`] asks.
    pub(crate) fn register(&self, peer: NodeId, deadline: Instant) -> Option<PendingAsk<'_>> {
        let (id, is_only) = self.add(peer, deadline, Waiter::Caller(None))?;
        Some(PendingAsk { asks: self, id, is_pending: true, is_only })
    }

    /// Registers an ask that is relayed from another node to `peer`, and returns its local id. Returns `None` if
    /// there are already [`MAX_ASKS`] asks.
    pub(crate) fn register_relayed(
        &self,
        peer: NodeId,
        outbox: Arc<Outbox>,
        id: u64,
        deadline: Instant,
    ) -> Option<u64> {
        self.add(peer, deadline, Waiter::Relay { outbox, id }).map(|(id, _)| id)
    }

    /// Adds an ask. Returns its id, and whether it is the only unanswered ask.
    fn add(&self, peer: NodeId, deadline: Instant, waiter: Waiter) -> Option<(u64, bool)> {
        let mut state = self.state();
        let id = state.add(SlotState::Waiting { peer, deadline, waiter })?;
        let is_earlier = state.search_at.is_none_or(|at| deadline < at);
        if is_earlier {
            state.search_at = Some(deadline);
        }
        let is_only = state.waiting == 1;
        drop(state);
        if is_earlier {
            self.earlier.notify_one();
        }
        Some((id, is_only))
    }

    /// Passes the answers of one read to their waiters. Drops answers without a waiter and answers from the wrong node.
    pub(crate) fn deliver_answers(&self, from: NodeId, answers: &mut Vec<Answer>) {
        if answers.is_empty() {
            return;
        }
        let mut wakers: SmallVec<[Waker; 64]> = SmallVec::new();
        let mut relayed = Vec::new();
        let mut state = self.state();
        for mut answer in answers.drain(..) {
            match state.end_if(answer.id, |peer, _| peer == from) {
                None => {}
                Some((_, Waiter::Caller(waker))) => {
                    wakers.extend(waker);
                    let id = answer.id;
                    state.set_result(id, Ok(answer));
                }
                Some((_, Waiter::Relay { outbox, id })) => {
                    state.remove(answer.id);
                    answer.id = id;
                    relayed.push((outbox, answer));
                }
            }
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        for (outbox, answer) in relayed {
            outbox.push(|to| wire::encode(&Frame::Answer(answer), to));
        }
    }

    /// Ends the asks sent to `peer`, whose link has ended.
    pub(crate) fn end_asks_to(&self, peer: NodeId) {
        let mut state = self.state();
        let (_, wakers) = state.end(AskError::Lost, |asked, _| asked == peer);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends all asks and refuses new asks.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let (_, wakers) = state.end(AskError::Lost, |_, _| true);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until the earliest deadline, and ends the asks whose deadline has passed. Returns the nodes that were
    /// asked.
    pub(crate) async fn expire(&self) -> HashSet<NodeId> {
        loop {
            let search_at = self.state().search_at;
            tokio::select! {
                () = self.earlier.notified() => {}
                () = sleep_until(search_at.unwrap_or_else(Instant::now)), if search_at.is_some() => break,
            }
        }
        let (now, mut state) = (Instant::now(), self.state());
        let (expired, wakers) = state.end(AskError::Expired, |_, deadline| deadline <= now);
        state.drop_free_slots();
        state.search_at = state.deadlines().min();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        expired
    }

    /// Removes an ask that could not be sent.
    pub(crate) fn remove(&self, id: u64) {
        self.state().remove(id);
    }

    /// Returns the number of unanswered asks.
    pub(crate) fn len(&self) -> usize {
        self.state().waiting
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Puts an ask into a free slot and returns its id. Returns `None` if there is no free slot.
    fn add(&mut self, state: SlotState) -> Option<u64> {
        if self.is_closed {
            return None;
        }
        let id = |index: usize| self.made << SLOT_INDEX_BITS | index as u64;
        let id = match self.free.pop_back() {
            Some(index) => {
                let id = id(index.into());
                let slot = &mut self.slots[usize::from(index)];
                (slot.id, slot.state) = (id, state);
                id
            }
            None if self.slots.len() < MAX_ASKS => {
                let id = id(self.slots.len());
                self.slots.push(Slot { id, state, result: Err(AskError::Lost) });
                id
            }
            None => return None,
        };
        self.made += 1;
        self.waiting += 1;
        Some(id)
    }

    /// Ends the asks for which `is_over` returns true. Returns the nodes that were asked, and the callers to wake after
    /// unlocking.
    fn end(&mut self, error: AskError, is_over: impl Fn(NodeId, Instant) -> bool) -> (HashSet<NodeId>, Vec<Waker>) {
        let (mut peers, mut wakers) = (HashSet::new(), Vec::new());
        for index in 0..self.slots.len() {
            let id = self.slots[index].id;
            let Some((peer, waiter)) = self.end_if(id, &is_over) else { continue };
            peers.insert(peer);
            match waiter {
                Waiter::Relay { .. } => self.remove(id),
                Waiter::Caller(waker) => {
                    self.set_result(id, Err(error));
                    wakers.extend(waker);
                }
            }
        }
        (peers, wakers)
    }

    /// Returns the slot of an ask, if the slot still contains the ask.
    fn slot(&mut self, id: u64) -> Option<&mut Slot> {
        let index = id as usize & (MAX_ASKS - 1);
        self.slots.get_mut(index).filter(|slot| slot.id == id)
    }

    /// Ends an unanswered ask if `is_over` returns true for the asked node and the deadline. Returns the node and the
    /// waiter.
    fn end_if(&mut self, id: u64, is_over: impl FnOnce(NodeId, Instant) -> bool) -> Option<(NodeId, Waiter)> {
        let slot = self.slot(id)?;
        match &slot.state {
            SlotState::Waiting { peer, deadline, .. } if is_over(*peer, *deadline) => {}
            _ => return None,
        }
        let ended = std::mem::replace(&mut slot.state, SlotState::Ended);
        self.waiting -= 1;
        match ended {
            SlotState::Waiting { peer, waiter, .. } => Some((peer, waiter)),
            SlotState::Free | SlotState::Ended => None,
        }
    }

    /// Stores the result of an ended ask until the caller takes it.
    fn set_result(&mut self, id: u64, result: Result<Answer, AskError>) {
        if let Some(slot) = self.slot(id) {
            slot.result = result;
        }
    }

    /// Passes the result of an ask to `read` and frees its slot. Stores the waker if there is no result yet.
    fn poll_answer<R>(
        &mut self,
        id: u64,
        context: &Context<'_>,
        mut read: impl FnMut(Result<&mut Answer, AskError>) -> R,
    ) -> Poll<R> {
        let Some(slot) = self.slot(id) else { return Poll::Ready(read(Err(AskError::Lost))) };
        match &mut slot.state {
            SlotState::Waiting { waiter: Waiter::Caller(waker), .. } => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            SlotState::Ended => {
                let read = read(slot.result.as_mut().map_err(|error| *error));
                self.remove(id);
                Poll::Ready(read)
            }
            SlotState::Free | SlotState::Waiting { waiter: Waiter::Relay { .. }, .. } => {
                Poll::Ready(read(Err(AskError::Lost)))
            }
        }
    }

    /// Removes an ask, whether or not it is answered.
    fn remove(&mut self, id: u64) {
        let Some(slot) = self.slot(id) else { return };
        match std::mem::replace(&mut slot.state, SlotState::Free) {
            SlotState::Free => return,
            SlotState::Waiting { .. } => self.waiting -= 1,
            SlotState::Ended => slot.result = Err(AskError::Lost),
        }
        self.free_slot(id);
    }

    /// Lists a slot as free. Slots above [`KEPT_SLOTS`] are used last, so that they can be dropped.
    fn free_slot(&mut self, id: u64) {
        let index = id as u16;
        if usize::from(index) < KEPT_SLOTS {
            self.free.push_back(index);
        } else {
            self.free.push_front(index);
        }
    }

    /// Drops the free slots at the end, above [`KEPT_SLOTS`]. Every search visits all slots, so a rare peak of asks must
    /// not make all later searches slow.
    fn drop_free_slots(&mut self) {
        if self.slots.len() <= KEPT_SLOTS {
            return;
        }
        let is_free = |slot: &Slot| matches!(slot.state, SlotState::Free);
        let used = self.slots.iter().rposition(|slot| !is_free(slot)).map_or(0, |index| index + 1);
        self.slots.truncate(used.max(KEPT_SLOTS));
        let slots = self.slots.len();
        self.free.retain(|index| usize::from(*index) < slots);
    }

    fn deadlines(&self) -> impl Iterator<Item = Instant> {
        self.slots.iter().filter_map(|slot| match slot.state {
            SlotState::Waiting { deadline, .. } => Some(deadline),
            SlotState::Free | SlotState::Ended => None,
        })
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
    use crate::ask::UndecidedReason;
    use std::time::Duration;

    const PEER: NodeId = NodeId(1);

    fn answer(id: u64) -> Answer {
        Answer { id, result: Err(UndecidedReason::NoHome) }
    }

    async fn taken(ask: PendingAsk<'_>) -> Result<Answer, AskError> {
        ask.answer(|answer| answer.cloned()).await
    }

    fn millis_from_now(millis: u64) -> Instant {
        Instant::now() + Duration::from_millis(millis)
    }

    #[tokio::test]
    async fn answer_reaches_its_caller_only_if_the_asked_node_sent_it() {
        let asks = PendingAsks::default();
        let asked = asks.register(PEER, millis_from_now(10)).unwrap();
        let id = asked.id;
        asks.deliver_answers(NodeId(2), &mut vec![answer(id)]);
        assert_eq!(asks.len(), 1, "another node answered");
        asks.deliver_answers(PEER, &mut vec![answer(id)]);
        assert_eq!(taken(asked).await.unwrap().id, id);
        asks.deliver_answers(PEER, &mut vec![answer(id)]);
        assert_eq!(asks.len(), 0, "a second answer is dropped");
    }

    #[tokio::test]
    async fn cancelled_and_lost_asks_are_removed() {
        let asks = PendingAsks::default();
        drop(asks.register(PEER, millis_from_now(10)));
        assert_eq!(asks.len(), 0);
        let asked = asks.register(PEER, millis_from_now(10)).unwrap();
        let other = asks.register(NodeId(2), millis_from_now(10)).unwrap();
        asks.end_asks_to(PEER);
        assert_eq!(taken(asked).await, Err(AskError::Lost));
        assert_eq!(asks.len(), 1);
        asks.close();
        assert_eq!(taken(other).await, Err(AskError::Lost));
        assert!(asks.register(PEER, millis_from_now(10)).is_none(), "no thread would answer");
    }

    #[tokio::test(start_paused = true)]
    async fn slots_are_reused_under_new_ids_and_dropped_after_a_peak() {
        let asks = PendingAsks::default();
        let first = asks.register(PEER, millis_from_now(10)).unwrap().id;
        let second = asks.register(PEER, millis_from_now(10)).unwrap();
        assert_eq!(asks.state().slots.len(), 1);
        asks.deliver_answers(PEER, &mut vec![answer(first)]);
        assert_eq!(asks.len(), 1, "the answer to an earlier ask of the slot is dropped");
        asks.deliver_answers(PEER, &mut vec![answer(second.id)]);
        assert_eq!((asks.len(), asks.state().free.len()), (0, 0), "the answer waits for its caller");
        drop(second);
        assert_eq!(asks.state().free.len(), 1);
        let mut peak: Vec<_> =
            (0..=KEPT_SLOTS + 9).map(|_| asks.register(PEER, millis_from_now(10)).unwrap()).collect();
        let slots = || asks.state().slots.len();
        assert_eq!(slots(), KEPT_SLOTS + 10);
        let used = peak.iter().position(|ask| ask.id as usize & (MAX_ASKS - 1) == KEPT_SLOTS + 3).expect("a slot");
        let used = peak.swap_remove(used);
        drop(peak);
        asks.expire().await;
        assert_eq!((asks.len(), slots()), (0, KEPT_SLOTS + 4), "a result that is not taken keeps its slot");
        assert_eq!(taken(used).await, Err(AskError::Expired));
        let _next = asks.register(PEER, millis_from_now(10)).unwrap();
        asks.expire().await;
        assert_eq!(slots(), KEPT_SLOTS);
        assert!(asks.state().free.iter().all(|index| usize::from(*index) < KEPT_SLOTS));
    }

    #[tokio::test(start_paused = true)]
    async fn each_ask_expires_at_its_own_deadline() {
        let asks = PendingAsks::default();
        let outbox = Arc::new(Outbox::default());
        let start = Instant::now();
        let wait_for = async |millis: u64| {
            assert_eq!(taken(asks.register(PEER, millis_from_now(millis)).unwrap()).await, Err(AskError::Expired));
            start.elapsed().as_millis() as u64
        };
        let waits = async {
            // The second ask expires before the first one, and the relayed ask after both.
            asks.register_relayed(PEER, outbox, 7, millis_from_now(5_000)).unwrap();
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
        let relay = || asks.register_relayed(PEER, outbox.clone(), 7, millis_from_now(10));
        let id = relay().unwrap();
        asks.deliver_answers(PEER, &mut vec![answer(id)]);
        assert!(outbox.queued_bytes() > 0, "the answer is relayed");
        while relay().is_some() {}
        assert_eq!(asks.len(), MAX_ASKS);
        assert!(asks.register(PEER, millis_from_now(10)).is_none());
    }
}
