//! The state of a shard, protected by the shard's lock: queues, their retry times, and deadlines.
//!
//! Three structures answer three questions in constant or logarithmic time:
//!
//! - Which waiter of a key is next? The first waiter of its queue (`queues`).
//! - Which queue is retried next, and when? The first entry of `wakeups`, ordered by time. A queue has at most one
//!   wake-up: the end of its first waiter's wait. Later waiters need no wake-up, because they cannot pass before the
//!   first waiter.
//! - Which deadline passes next? The top of `deadlines`, a heap. Removing from the middle of a heap is slow, so the
//!   deadline of a waiter that is answered or leaves stays in the heap as a stale entry. Stale entries are skipped at
//!   the top, and removed in one sweep when they are the majority. A sweep of `n` entries follows at least `n / 2`
//!   departures, so its amortised cost is two entries per departure.
//!
//! The alarm of the shard is set to the earlier of the first wake-up and the first deadline.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::task::Waker;

use tollgate_core::{Cost, Mono, Nanos, Now, Outcome, Retry, Time, Verdict};

use super::queue::{Queue, Waiter, WaiterAnswer, WaiterId, WaiterSlots};
use super::{AcquireError, Waitable};
use crate::clock::{Alarm, Clock};

/// Polling interval for changes without an alarm: a step of the wall clock, or a table entry that becomes vacant.
const RECHECK_INTERVAL: Nanos = Nanos::SECOND;

#[derive(Debug)]
pub(super) struct WaitState<K, S> {
    pub(super) slots: WaiterSlots<K, S>,
    queues: BTreeMap<K, Queue>,
    /// Retry times of the queues.
    wakeups: BTreeSet<(u64, K)>,
    /// Deadlines of waiters, earliest on top. Contains stale entries of waiters that were answered or left.
    pub(super) deadlines: BinaryHeap<Reverse<Deadline>>,
    /// Number of stale entries in `deadlines`.
    stale: usize,
    /// Serial number of the latest waiter. Serial numbers identify stale deadlines whose slot was reused.
    last_serial: u64,
    pub(super) waiting: usize,
    /// The time to which the alarm is set.
    pub(super) armed: Option<u64>,
    /// The latest readings of the monotonic and the wall clock, to detect steps back.
    latest_readings: (u64, u64),
}

/// The time, the waiter, and its serial number.
pub(super) type Deadline = (u64, WaiterId, u64);

/// Minimum number of stale deadlines for a sweep.
pub(super) const MIN_STALE_TO_SWEEP: usize = 1_024;

/// The queues to retry, in addition to the queues whose retry time has passed. If the clock was set back, all queues
/// are retried, because their retry times are no longer valid.
#[derive(Clone, Copy)]
pub(super) enum QueuesToRetry<K> {
    /// No further queues; the alarm has fired.
    ByTime,
    /// This queue, after a refund, a reset or a change of its limit.
    Queue(K),
    /// All queues, after a change of the limit.
    AllQueues,
}

/// The result of joining.
pub(super) enum JoinResult<S> {
    Decided(Result<Verdict<S>, AcquireError>),
    Queued(WaiterId),
}

impl<K: Copy + Ord, S: Copy> WaitState<K, S> {
    pub(super) fn new() -> Self {
        Self {
            slots: WaiterSlots::new(),
            queues: BTreeMap::new(),
            wakeups: BTreeSet::new(),
            deadlines: BinaryHeap::new(),
            stale: 0,
            last_serial: 0,
            waiting: 0,
            armed: None,
            latest_readings: (0, 0),
        }
    }

    /// Decides immediately, or adds the waiter to the queue. A waiter that is not queued is returned, so that the
    /// caller can drop its waker after unlocking.
    pub(super) fn join<G>(
        &mut self,
        limiter: &G,
        mut waiter: Waiter<K, S>,
        patience: Nanos,
        has_slot: bool,
    ) -> (JoinResult<S>, Option<Waiter<K, S>>)
    where
        G: Waitable<Key = K, Stamp = S>,
    {
        let refuse = |waiter, error| (JoinResult::Decided(Err(error)), Some(waiter));
        let (now, key, cost) = (limiter.now(), waiter.key, Cost::new(waiter.cost));
        let (queued, ahead) = self.queues.get(&key).map_or((0, 0), |queue| (queue.len(), queue.cost()));
        let retry = if queued > 0 {
            limiter.wait_in_queue(key, Cost::new(ahead), cost, &now)
        } else {
            let verdict = limiter.take(key, cost, &now, self.clock_was_set_back(&now));
            self.record_time(&now);
            match verdict.outcome() {
                Outcome::Allow => return (JoinResult::Decided(Ok(verdict)), Some(waiter)),
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
        // A caller that does not wait (zero `patience`) is refused while there is a queue, even if the queue could
        // become empty at the same instant.
        if !in_time || patience == Nanos::ZERO {
            return refuse(waiter, AcquireError::TooLate { retry });
        }
        if !has_slot || queued >= limiter.shards().max_per_key {
            return refuse(waiter, AcquireError::Full);
        }
        let deadline = waiter.deadline;
        self.last_serial += 1;
        waiter.serial = self.last_serial;
        let id = self.slots.insert(waiter);
        let queue = self.queues.entry(key).or_insert_with(Queue::new);
        queue.join(&mut self.slots, id);
        self.waiting += 1;
        if deadline != u64::MAX {
            self.deadlines.push(Reverse((deadline, id, self.last_serial)));
        }
        if queued == 0 {
            self.schedule_retry(limiter, key, retry, &now);
        }
        (JoinResult::Queued(id), None)
    }

    /// Removes a waiter, and also removes it from its queue if it still waits. Returns the waiter, and whether it was
    /// first in its queue.
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
            // The leaving waiter still has its slot, so its deadline stays until the next sweep.
            deadlines.retain(|Reverse((_, id, serial))| is_waiting(slots, *id, *serial));
            self.stale = 0;
        }
    }

    pub(super) fn serve<G: Waitable<Key = K, Stamp = S>>(
        &mut self,
        limiter: &G,
        due: QueuesToRetry<K>,
        woken: &mut Vec<Waker>,
    ) {
        let now = limiter.now();
        let at = now.mono().as_nanos();
        let clock_was_set_back = self.clock_was_set_back(&now);
        if clock_was_set_back || matches!(due, QueuesToRetry::AllQueues) {
            let keys: Vec<K> = self.queues.keys().copied().collect();
            keys.into_iter().for_each(|key| self.advance(limiter, key, &now, woken));
            if clock_was_set_back {
                self.latest_readings = (at, now.wall().as_nanos());
            }
        } else if let QueuesToRetry::Queue(key) = due {
            self.advance(limiter, key, &now, woken);
        }
        while let Some((_, key)) = self.wakeups.first().copied().filter(|(due, _)| *due <= at) {
            self.advance(limiter, key, &now, woken);
        }
        // Deadlines are handled after grants, so that a late alarm does not refuse a waiter whose wait ended in time.
        while let Some(Reverse((deadline, id, serial))) = self.deadlines.peek().copied() {
            if deadline > at {
                break;
            }
            self.deadlines.pop();
            if is_waiting(&mut self.slots, id, serial) {
                self.refuse_timed_out(limiter, id, &now, woken);
            }
            // The entry was stale, or `refuse_timed_out` has just counted it as stale.
            self.stale = self.stale.saturating_sub(1);
        }
        // An alarm that fired is no longer set, even if it fired early.
        if let QueuesToRetry::ByTime = due {
            self.armed = None;
        }
    }

    fn refuse_timed_out<G: Waitable<Key = K, Stamp = S>>(
        &mut self,
        limiter: &G,
        id: WaiterId,
        now: &Now<'_>,
        woken: &mut Vec<Waker>,
    ) {
        let Some(key) = self.slots.get_mut(id).map(|waiter| waiter.key) else { return };
        let was_first = self.queues.get(&key).is_some_and(|queue| queue.first() == Some(id));
        self.answer_waiter(key, id, WaiterAnswer::Refused(AcquireError::TimedOut), woken);
        if was_first {
            self.advance(limiter, key, now, woken);
        }
    }

    /// Grants the first waiter of the queue, then the next, until the limit refuses.
    pub(super) fn advance<G: Waitable<Key = K, Stamp = S>>(
        &mut self,
        limiter: &G,
        key: K,
        now: &Now<'_>,
        woken: &mut Vec<Waker>,
    ) {
        let clock_was_set_back = self.clock_was_set_back(now);
        self.record_time(now);
        let due = self.queues.get(&key).and_then(|queue| queue.due);
        while let Some(id) = self.queues.get(&key).and_then(Queue::first) {
            let Some(waiter) = self.slots.get_mut(id) else { return };
            let now = &limiter.decision_time(due, now);
            let verdict = limiter.take(key, Cost::new(waiter.cost), now, clock_was_set_back);
            let retry = match verdict.outcome() {
                Outcome::Allow => {
                    self.answer_waiter(key, id, WaiterAnswer::Granted(verdict.stamp()), woken);
                    continue;
                }
                // The limit has changed, and the cost no longer fits.
                Outcome::Deny(Retry::Never) => {
                    self.answer_waiter(key, id, WaiterAnswer::Refused(AcquireError::NeverFits), woken);
                    continue;
                }
                Outcome::Delay(wait) => Retry::After(wait),
                Outcome::Deny(retry) => retry,
            };
            self.schedule_retry(limiter, key, retry, now);
            return;
        }
    }

    /// Schedules the next retry of the queue.
    fn schedule_retry<G: Waitable<Key = K, Stamp = S>>(&mut self, limiter: &G, key: K, retry: Retry, now: &Now<'_>) {
        let wait = match retry {
            Retry::After(wait) if limiter.uses_wall_clock() => wait.min(RECHECK_INTERVAL),
            Retry::After(wait) => wait,
            Retry::OnRelease | Retry::Never => limiter.recheck_after(key, now).unwrap_or(RECHECK_INTERVAL),
        };
        // The wait is at least 1 ns, because an alarm for the present instant would already have fired.
        let due = now.mono().saturating_add(wait.max(Nanos::from_nanos(1))).as_nanos();
        let Some(queue) = self.queues.get_mut(&key) else { return };
        if let Some(before) = queue.due.replace(due) {
            self.wakeups.remove(&(before, key));
        }
        self.wakeups.insert((due, key));
    }

    /// Answers a waiter and removes it from its queue. The waiter keeps its slot until it collects the answer.
    fn answer_waiter(&mut self, key: K, id: WaiterId, answer: WaiterAnswer<S>, woken: &mut Vec<Waker>) {
        self.leave_queue(key, id);
        let Some(waiter) = self.slots.get_mut(id) else { return };
        if let WaiterAnswer::Waiting(waker) = std::mem::replace(&mut waiter.answer, answer) {
            woken.push(waker);
        }
    }

    /// Returns whether the monotonic or the wall clock was set back by more than a second. Smaller steps do not count,
    /// because threads may get the lock in a different order than they read the clock. Limits have the same tolerance.
    fn clock_was_set_back(&self, now: &Now<'_>) -> bool {
        let back = |now: u64, latest_readings: u64| now.saturating_add(Nanos::SECOND.as_nanos()) < latest_readings;
        back(now.mono().as_nanos(), self.latest_readings.0) || back(now.wall().as_nanos(), self.latest_readings.1)
    }

    fn record_time(&mut self, now: &Now<'_>) {
        self.latest_readings.0 = self.latest_readings.0.max(now.mono().as_nanos());
        self.latest_readings.1 = self.latest_readings.1.max(now.wall().as_nanos());
    }

    /// Sets the alarm to the next wake-up or deadline.
    pub(super) fn set_alarm<G: Waitable<Key = K, Stamp = S>>(
        &mut self,
        limiter: &G,
        alarm: &Arc<dyn Alarm>,
    ) -> std::io::Result<()> {
        let due = self.wakeups.first().map(|(due, _)| *due);
        let deadline = self.deadlines.peek().map(|Reverse((deadline, ..))| *deadline);
        let next = [due, deadline].into_iter().flatten().min();
        match (next, self.armed) {
            // An alarm that fires early is harmless, so an alarm that is set to an earlier time is not changed.
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

/// Returns whether the slot still holds the waiter with this serial number, and whether that waiter still waits.
fn is_waiting<K, S>(slots: &mut WaiterSlots<K, S>, id: WaiterId, serial: u64) -> bool {
    let waits =
        |waiter: &mut Waiter<K, S>| waiter.serial == serial && matches!(waiter.answer, WaiterAnswer::Waiting(_));
    slots.get_mut(id).is_some_and(waits)
}
