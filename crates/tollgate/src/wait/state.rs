//! The state of a shard, all of it under the shard's lock: the queues, the time to try each of them again, and the deadlines.
//!
//! Three structures answer three questions in constant or logarithmic time:
//!
//! - Which waiter of a key is next? The first of its queue (`queues`).
//! - Which queue is to be tried next, and when? The first of `wakeups`, ordered by time. A queue has at most one entry:
//!   the end of the wait of its first waiter. Later waiters need none, since they cannot pass before the first.
//! - Whose deadline comes next? The top of `deadlines`, a heap. Removing from the middle of a heap is slow, so a waiter that is
//!   answered or leaves stays in it as a stale entry. Stale entries are skipped when they come up, and removed in one sweep
//!   when they outnumber the others: a sweep of `n` entries follows at least `n / 2` departures, so each departure pays
//!   for two entries.
//!
//! The alarm of the shard is set to the earlier of the first wake-up and the first deadline.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::task::Waker;

use tollgate_core::{Cost, Mono, Nanos, Now, Outcome, Retry, Time, Verdict};

use super::queue::{Queue, Slots, Waiter, WaiterAnswer, WaiterId};
use super::{AcquireError, Waitable};
use crate::clock::{Alarm, Clock};

/// How late a change is noticed for which no alarm can be set: a step of the wall clock, or a table entry that becomes
/// free.
const RECHECK_INTERVAL: Nanos = Nanos::SECOND;

#[derive(Debug)]
pub(super) struct WaitState<K, S> {
    pub(super) slots: Slots<K, S>,
    queues: BTreeMap<K, Queue>,
    /// When the first of a queue is to be tried again.
    wakeups: BTreeSet<(u64, K)>,
    /// The deadlines of waiters, the soonest on top, with stale entries of waiters that were answered or left.
    pub(super) deadlines: BinaryHeap<Reverse<Deadline>>,
    /// The number of stale entries.
    stale: usize,
    /// The serial number of the latest waiter, by which an entry whose slot was reused is known to be stale.
    serials: u64,
    pub(super) waiting: usize,
    /// The time that the alarm is set to.
    pub(super) armed: Option<u64>,
    /// The latest readings of the monotonic and the wall clock, to notice when one went back.
    latest: (u64, u64),
}

/// The time, the waiter, and its serial number.
pub(super) type Deadline = (u64, WaiterId, u64);

/// The least number of stale deadlines for a sweep.
pub(super) const MIN_STALE_TO_SWEEP: usize = 1_024;

/// The queues to be tried, besides those whose time has come. All are tried if the clock was set back: their times were computed
/// before that.
#[derive(Clone, Copy)]
pub(super) enum Due<K> {
    /// No further queue: the alarm has fired.
    ByTime,
    /// This queue: something was refunded.
    Queue(K),
    /// All: the limit changed.
    AllQueues,
}

/// The result of joining.
pub(super) enum Joined<S> {
    Decided(Result<Verdict<S>, AcquireError>),
    Queued(WaiterId),
}

impl<K: Copy + Ord, S: Copy> WaitState<K, S> {
    pub(super) fn new() -> Self {
        Self {
            slots: Slots::new(),
            queues: BTreeMap::new(),
            wakeups: BTreeSet::new(),
            deadlines: BinaryHeap::new(),
            stale: 0,
            serials: 0,
            waiting: 0,
            armed: None,
            latest: (0, 0),
        }
    }

    /// Decides at once, or enters the queue. A waiter that does not enter is returned, to be dropped after the lock: its waker
    /// is foreign code.
    pub(super) fn join<G>(
        &mut self,
        limiter: &G,
        mut waiter: Waiter<K, S>,
        patience: Nanos,
        has_slot: bool,
    ) -> (Joined<S>, Option<Waiter<K, S>>)
    where
        G: Waitable<Key = K, Stamp = S>,
    {
        let refuse = |waiter, error| (Joined::Decided(Err(error)), Some(waiter));
        let (now, key, cost) = (limiter.now(), waiter.key, Cost::new(waiter.cost));
        let (queued, ahead) = self.queues.get(&key).map_or((0, 0), |queue| (queue.len(), queue.cost()));
        let retry = if queued > 0 {
            limiter.wait_behind(key, Cost::new(ahead), cost, &now)
        } else {
            let verdict = limiter.take(key, cost, &now, self.went_back(&now));
            self.note_time(&now);
            match verdict.outcome() {
                Outcome::Allow => return (Joined::Decided(Ok(verdict)), Some(waiter)),
                Outcome::Delay(wait) => Retry::After(wait),
                Outcome::Deny(retry) => retry,
            }
        };
        waiter.deadline = now.mono().saturating_add(patience).as_nanos();
        let in_time = match retry {
            Retry::Never => return refuse(waiter, AcquireError::NeverFits),
            Retry::After(wait) => now.mono().saturating_add(wait).as_nanos() <= waiter.deadline,
            Retry::OnRelease => true,
        };
        // A caller that does not wait is refused while there is a queue, even if the queue may become empty at the same
        // instant.
        if !in_time || patience == Nanos::ZERO {
            return refuse(waiter, AcquireError::TooLate { retry });
        }
        if !has_slot || queued >= limiter.shards().max_per_key {
            return refuse(waiter, AcquireError::Full);
        }
        let deadline = waiter.deadline;
        self.serials += 1;
        waiter.serial = self.serials;
        let id = self.slots.insert(waiter);
        let queue = self.queues.entry(key).or_insert_with(Queue::new);
        queue.join(&mut self.slots, id);
        self.waiting += 1;
        if deadline != u64::MAX {
            self.deadlines.push(Reverse((deadline, id, self.serials)));
        }
        if queued == 0 {
            self.schedule_retry(limiter, key, retry, &now);
        }
        (Joined::Queued(id), None)
    }

    /// Removes a waiter, from its queue as well if it still waits; returns whether it was the first.
    pub(super) fn leave(&mut self, id: WaiterId) -> Option<(Waiter<K, S>, bool)> {
        let waiter = self.slots.get_mut(id)?;
        let (key, waits) = (waiter.key, matches!(waiter.answer, WaiterAnswer::Waiting(_)));
        let was_first = waits && self.queues.get(&key).is_some_and(|queue| queue.first() == Some(id));
        if waits {
            self.leave_queue(key, id);
        }
        Some((self.slots.remove(id)?, was_first))
    }

    fn leave_queue(&mut self, key: K, id: WaiterId) {
        let Some(queue) = self.queues.get_mut(&key) else { return };
        queue.leave(&mut self.slots, id);
        self.waiting -= 1;
        if queue.first().is_none() {
            if let Some(due) = queue.due {
                self.wakeups.remove(&(due, key));
            }
            self.queues.remove(&key);
        }
        if self.slots.get_mut(id).is_some_and(|waiter| waiter.deadline != u64::MAX) {
            self.stale += 1;
        }
        if self.waiting == 0 {
            self.deadlines.clear();
            self.stale = 0;
        } else if self.stale >= MIN_STALE_TO_SWEEP && self.stale > self.deadlines.len() / 2 {
            let Self { deadlines, slots, .. } = self;
            // The waiter that leaves now still has its slot, and stays in until the next sweep.
            deadlines.retain(|Reverse((_, id, serial))| is_waiting(slots, *id, *serial));
            self.stale = 0;
        }
    }

    pub(super) fn serve<G: Waitable<Key = K, Stamp = S>>(&mut self, limiter: &G, due: Due<K>, woken: &mut Vec<Waker>) {
        let now = limiter.now();
        let at = now.mono().as_nanos();
        let went_back = self.went_back(&now);
        if went_back || matches!(due, Due::AllQueues) {
            let keys: Vec<K> = self.queues.keys().copied().collect();
            keys.into_iter().for_each(|key| self.advance(limiter, key, &now, woken));
            if went_back {
                self.latest = (at, now.wall().as_nanos());
            }
        } else if let Due::Queue(key) = due {
            self.advance(limiter, key, &now, woken);
        }
        while let Some((_, key)) = self.wakeups.first().copied().filter(|(due, _)| *due <= at) {
            self.advance(limiter, key, &now, woken);
        }
        // Deadlines come after grants, so that a waiter whose turn came in time is not refused because the alarm was
        // late.
        while let Some(Reverse((deadline, id, serial))) = self.deadlines.peek().copied() {
            if deadline > at {
                break;
            }
            self.deadlines.pop();
            if is_waiting(&mut self.slots, id, serial) {
                self.time_out(limiter, id, &now, woken);
            }
            // The entry was stale, or `time_out` has just counted it as stale.
            self.stale = self.stale.saturating_sub(1);
        }
        // An alarm that fired is no longer set, even if it fired early.
        if let Due::ByTime = due {
            self.armed = None;
        }
    }

    fn time_out<G: Waitable<Key = K, Stamp = S>>(
        &mut self,
        limiter: &G,
        id: WaiterId,
        now: &Now<'_>,
        woken: &mut Vec<Waker>,
    ) {
        let Some(key) = self.slots.get_mut(id).map(|waiter| waiter.key) else { return };
        let was_first = self.queues.get(&key).is_some_and(|queue| queue.first() == Some(id));
        self.settle(key, id, WaiterAnswer::Refused(AcquireError::TimedOut), woken);
        if was_first {
            self.advance(limiter, key, now, woken);
        }
    }

    /// Grants to the first of the queue for as long as the limit admits it.
    pub(super) fn advance<G: Waitable<Key = K, Stamp = S>>(
        &mut self,
        limiter: &G,
        key: K,
        now: &Now<'_>,
        woken: &mut Vec<Waker>,
    ) {
        let went_back = self.went_back(now);
        self.note_time(now);
        let due = self.queues.get(&key).and_then(|queue| queue.due);
        while let Some(id) = self.queues.get(&key).and_then(Queue::first) {
            let Some(waiter) = self.slots.get_mut(id) else { return };
            let now = &limiter.as_of(due, now);
            let verdict = limiter.take(key, Cost::new(waiter.cost), now, went_back);
            let retry = match verdict.outcome() {
                Outcome::Allow => {
                    self.settle(key, id, WaiterAnswer::Granted(verdict), woken);
                    continue;
                }
                // The limit changed, and the cost no longer fits.
                Outcome::Deny(Retry::Never) => {
                    self.settle(key, id, WaiterAnswer::Refused(AcquireError::NeverFits), woken);
                    continue;
                }
                Outcome::Delay(wait) => Retry::After(wait),
                Outcome::Deny(retry) => retry,
            };
            self.schedule_retry(limiter, key, retry, now);
            return;
        }
    }

    /// Schedules the next try of the queue.
    fn schedule_retry<G: Waitable<Key = K, Stamp = S>>(&mut self, limiter: &G, key: K, retry: Retry, now: &Now<'_>) {
        let wait = match retry {
            Retry::After(wait) if limiter.uses_wall_clock() => wait.min(RECHECK_INTERVAL),
            Retry::After(wait) => wait,
            Retry::OnRelease | Retry::Never => limiter.recheck_after(key, now).unwrap_or(RECHECK_INTERVAL),
        };
        // An alarm for this very instant would have fired already.
        let due = now.mono().saturating_add(wait.max(Nanos::from_nanos(1))).as_nanos();
        let Some(queue) = self.queues.get_mut(&key) else { return };
        if let Some(before) = queue.due.replace(due) {
            self.wakeups.remove(&(before, key));
        }
        self.wakeups.insert((due, key));
    }

    /// Answers a waiter and removes it from its queue; it keeps its slot until it collects the answer.
    fn settle(&mut self, key: K, id: WaiterId, answer: WaiterAnswer<S>, woken: &mut Vec<Waker>) {
        self.leave_queue(key, id);
        let Some(waiter) = self.slots.get_mut(id) else { return };
        if let WaiterAnswer::Waiting(waker) = std::mem::replace(&mut waiter.answer, answer) {
            woken.push(waker);
        }
    }

    /// Returns whether one of the clocks was set back by more than a second. Threads may arrive in another order than they
    /// read the clock, so less does not count; limits have the same tolerance.
    fn went_back(&self, now: &Now<'_>) -> bool {
        let back = |now: u64, latest: u64| now.saturating_add(Nanos::SECOND.as_nanos()) < latest;
        back(now.mono().as_nanos(), self.latest.0) || back(now.wall().as_nanos(), self.latest.1)
    }

    fn note_time(&mut self, now: &Now<'_>) {
        self.latest.0 = self.latest.0.max(now.mono().as_nanos());
        self.latest.1 = self.latest.1.max(now.wall().as_nanos());
    }

    /// Sets the alarm to the next wake-up or deadline.
    pub(super) fn arm<G: Waitable<Key = K, Stamp = S>>(
        &mut self,
        limiter: &G,
        alarm: &Arc<dyn Alarm>,
    ) -> std::io::Result<()> {
        let due = self.wakeups.first().map(|(due, _)| *due);
        let deadline = self.deadlines.peek().map(|Reverse((deadline, ..))| *deadline);
        let next = [due, deadline].into_iter().flatten().min();
        match (next, self.armed) {
            // An alarm that is set too early does no harm, so it is not set again.
            (Some(next), Some(armed)) if armed <= next => {}
            (Some(next), _) => {
                limiter.clock().wake_at(Time::<Mono>::from_nanos(next), alarm)?;
                self.armed = Some(next);
            }
            (None, Some(_)) => {
                limiter.clock().cancel_wake(alarm);
                self.armed = None;
            }
            (None, None) => {}
        }
        Ok(())
    }
}

/// Returns whether the slot still holds this waiter, without an answer.
fn is_waiting<K, S>(slots: &mut Slots<K, S>, id: WaiterId, serial: u64) -> bool {
    let waits =
        |waiter: &mut Waiter<K, S>| waiter.serial == serial && matches!(waiter.answer, WaiterAnswer::Waiting(_));
    slots.get_mut(id).is_some_and(waits)
}
