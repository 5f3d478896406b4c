//! A shard of waiters: the lock, the alarm, and everything done outside the lock.
//!
//! A waiter holds no tokens. When the wait of a queue's first waiter ends, the shard retries the limit, takes the
//! tokens for that waiter, and continues with the next waiter. The trigger is the clock's alarm, a refund, a reset, a
//! change of the limit, or the departure of a queue's first waiter. The trigger never depends on the waiter's task, so
//! a future that is not polled delays no other waiter.
//!
//! The cost of granting and leaving does not depend on the queue length. Joining with a deadline takes logarithmic time
//! in the number of deadlines. No operation iterates over a queue. Stale deadlines are removed in sweeps, in amortised
//! constant time per departed waiter.
//!
//! No code of an executor runs under the lock: wakers are cloned before locking, and woken and dropped after unlocking.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;

use tollgate_core::{Cost, Nanos, Verdict};

use super::queue::{Waiter, WaiterAnswer, WaiterId};
use super::state::{JoinResult, QueuesToRetry, WaitState};
use super::{AcquireError, Waitable};
use crate::clock::{Alarm, Clock};

/// All shards of a limiter, and the bounds on the number of waiters.
pub struct Shards<K, S> {
    shards: Box<[Shard<K, S>]>,
    /// Number of waiters in all shards, including waiters that have not collected their answer. Relaxed, because the
    /// count orders no other memory access.
    occupied_slots: AtomicUsize,
    pub(crate) max: usize,
    pub(crate) max_per_key: usize,
}

impl<K, S> fmt::Debug for Shards<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards").field("occupied", &self.occupied_slots).field("max", &self.max).finish_non_exhaustive()
    }
}

impl<K: Copy + Ord, S: Copy + Default> Shards<K, S> {
    /// Default maximum number of waiters.
    pub(crate) const DEFAULT_MAX_WAITERS: usize = 1 << 16;

    pub(crate) fn new(shards: usize) -> Self {
        let shards = (0..shards).map(|_| Shard::new()).collect();
        Self { shards, occupied_slots: AtomicUsize::new(0), max: Self::DEFAULT_MAX_WAITERS, max_per_key: usize::MAX }
    }

    pub(crate) fn max_per_key(mut self, max: usize) -> Self {
        self.max_per_key = max;
        self
    }

    /// Returns the shard for `number`, taken modulo the number of shards.
    #[inline]
    pub(super) fn shard(&self, number: usize) -> &Shard<K, S> {
        match &*self.shards {
            [only] => only,
            shards => &shards[number % shards.len()],
        }
    }

    pub(crate) fn waiter_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.waiting.load(Ordering::Relaxed)).sum()
    }

    /// Retries the queue of `key` in the shard for `number`, after a refund or a change of the limit.
    #[inline]
    pub(crate) fn notify(&self, number: usize, key: K) {
        // Pairs with the fence in `join`: either this thread sees the waiter, or the waiter sees the refund.
        fence(Ordering::SeqCst);
        let shard = self.shard(number);
        if !shard.is_empty()
            && let Some(alarms) = shard.alarm.get()
        {
            alarms.notifier.serve(QueuesToRetry::Queue(key));
        }
    }
}

impl<K: Copy + Ord, S: Copy + Default> Shards<K, S> {
    /// Retries all queues, after a change of the limit.
    pub(crate) fn notify_all(&self) {
        fence(Ordering::SeqCst);
        let waiting = self.shards.iter().filter(|shard| !shard.is_empty());
        waiting
            .filter_map(|shard| shard.alarm.get())
            .for_each(|alarms| alarms.notifier.serve(QueuesToRetry::AllQueues));
    }
}

pub(super) struct Shard<K, S> {
    /// Number of queued waiters. Written under the lock; the fast path reads it without the lock.
    waiting: AtomicUsize,
    /// Locked briefly for each change, and never by the fast path.
    state: Mutex<WaitState<K, S>>,
    /// Created for the first waiter.
    alarm: OnceLock<AlarmHandles<K>>,
}

/// The shard's alarm, as a trait object for each of its two traits.
struct AlarmHandles<K> {
    /// Fired by the clock.
    clock: Arc<dyn Alarm>,
    /// Called after a refund or a change of the limit.
    notifier: Arc<dyn Notifier<K>>,
}

/// Serves a shard of a limiter, if the limiter still exists.
trait Notifier<K>: Send + Sync {
    fn serve(&self, due: QueuesToRetry<K>);
}

impl<K: Copy + Ord, S: Copy + Default> Shard<K, S> {
    fn new() -> Self {
        Self { waiting: AtomicUsize::new(0), state: Mutex::new(WaitState::new()), alarm: OnceLock::new() }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Decides immediately, or enters the queue of the key.
    pub(super) fn join<G>(&self, limiter: &Arc<G>, ask: Waiter<K, S>, patience: Nanos) -> JoinResult<S>
    where
        G: Waitable<Key = K, Stamp = S>,
    {
        let alarms = self.alarm.get_or_init(|| {
            let alarm = Arc::new(ShardAlarm { limiter: Arc::downgrade(limiter), key: ask.key });
            AlarmHandles { clock: Arc::clone(&alarm) as _, notifier: alarm }
        });
        let shards = limiter.shards();
        let occupied_slots = shards.occupied_slots.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        // Counts the waiter before checking the limit; see `Shards::notify`.
        self.waiting.store(state.waiting + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let (joined, mut gone) = state.join(&**limiter, ask, patience, occupied_slots < shards.max);
        self.waiting.store(state.waiting, Ordering::Relaxed);
        let joined = match (state.set_alarm(&**limiter, &alarms.clock), joined) {
            (Err(_), JoinResult::Queued(id)) => {
                // Without a timer thread, no alarm would wake the waiter.
                gone = state.leave(id).map(|(waiter, _)| waiter);
                self.waiting.store(state.waiting, Ordering::Relaxed);
                JoinResult::Decided(Err(AcquireError::NoTimer))
            }
            (_, joined) => joined,
        };
        self.unlock(&**limiter, state);
        drop(gone);
        if let JoinResult::Decided(_) = joined {
            shards.occupied_slots.fetch_sub(1, Ordering::Relaxed);
        }
        joined
    }

    /// Returns the answer to a waiter, or stores `waker` if there is no answer yet.
    pub(super) fn poll_answer<G>(
        &self,
        limiter: &G,
        id: WaiterId,
        waker: &Waker,
    ) -> Option<Result<Verdict<S>, AcquireError>>
    where
        G: Waitable<Key = K, Stamp = S>,
    {
        // Cloned before locking and dropped after unlocking, because wakers are foreign code. Dropping a waker may drop
        // a task that owns an [`Acquire`].
        let fresh = waker.clone();
        let mut state = self.lock();
        let answer = &mut state.slots.get_mut(id)?.answer;
        if let WaiterAnswer::Waiting(kept) = answer {
            let _old = if kept.will_wake(&fresh) { fresh } else { std::mem::replace(kept, fresh) };
            drop(state);
            return None;
        }
        let waiter = state.slots.remove(id)?;
        drop(state);
        limiter.shards().occupied_slots.fetch_sub(1, Ordering::Relaxed);
        match waiter.answer {
            WaiterAnswer::Granted(stamp) => Some(Ok(Verdict::new_allowed_with_stamp(Cost::new(waiter.cost), stamp))),
            WaiterAnswer::Refused(error) => Some(Err(error)),
            WaiterAnswer::Waiting(_) => None,
        }
    }

    /// Removes a waiter, and refunds a cost already taken for it. The waiters after it move up.
    pub(super) fn leave<G: Waitable<Key = K, Stamp = S>>(&self, limiter: &G, id: WaiterId) {
        let mut state = self.lock();
        let Some((waiter, was_first)) = state.leave(id) else { return };
        let mut woken = Vec::new();
        if was_first {
            let now = limiter.now();
            state.advance(limiter, waiter.key, &now, &mut woken);
        }
        self.waiting.store(state.waiting, Ordering::Relaxed);
        self.reset_alarm(limiter, &mut state);
        self.unlock(limiter, state);
        limiter.shards().occupied_slots.fetch_sub(1, Ordering::Relaxed);
        wake(woken);
        if let WaiterAnswer::Granted(stamp) = waiter.answer {
            let cost = Cost::new(waiter.cost);
            limiter.give_back(waiter.key, &Verdict::new_allowed_with_stamp(cost, stamp), cost);
        }
    }

    /// Retries the queues that are `due`, then refuses the waiters whose deadline has passed.
    pub(super) fn serve<G: Waitable<Key = K, Stamp = S>>(&self, limiter: &G, mut due: QueuesToRetry<K>) {
        loop {
            let mut woken = Vec::new();
            let mut state = self.lock();
            state.serve(limiter, due, &mut woken);
            self.waiting.store(state.waiting, Ordering::Relaxed);
            self.reset_alarm(limiter, &mut state);
            let armed = state.armed;
            drop(state);
            wake(woken);
            if !alarm_time_has_passed(limiter, armed) {
                return;
            }
            due = QueuesToRetry::ByTime;
        }
    }

    fn reset_alarm<G: Waitable<Key = K, Stamp = S>>(&self, limiter: &G, state: &mut WaitState<K, S>) {
        if let Some(alarms) = self.alarm.get() {
            // Errors are ignored, because the alarm was set before, so the timer thread exists.
            let _: std::io::Result<()> = state.set_alarm(limiter, &alarms.clock);
        }
    }

    /// Releases the lock, and serves the shard again if the alarm time has already passed.
    fn unlock<G: Waitable<Key = K, Stamp = S>>(&self, limiter: &G, state: MutexGuard<'_, WaitState<K, S>>) {
        let armed = state.armed;
        drop(state);
        if alarm_time_has_passed(limiter, armed) {
            self.serve(limiter, QueuesToRetry::ByTime);
        }
    }

    fn lock(&self) -> MutexGuard<'_, WaitState<K, S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the alarm time has already passed. The alarm time has passed if another thread moved a manual clock,
/// or if the rate is so high that the next waiter can already pass.
fn alarm_time_has_passed<G: Waitable>(limiter: &G, armed: Option<u64>) -> bool {
    armed.is_some_and(|at| at <= limiter.clock().mono().as_nanos())
}

/// Wakes all tasks, even if waking one of them panics.
fn wake(woken: Vec<Waker>) {
    for waker in woken {
        let _: Result<(), _> = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

/// Serves one shard of a limiter, if the limiter still exists.
struct ShardAlarm<G: Waitable> {
    limiter: Weak<G>,
    /// Any key of that shard.
    key: G::Key,
}

impl<G: Waitable> Notifier<G::Key> for ShardAlarm<G> {
    fn serve(&self, due: QueuesToRetry<G::Key>) {
        if let Some(limiter) = self.limiter.upgrade() {
            limiter.shards().shard(G::shard_of(self.key)).serve(&*limiter, due);
        }
    }
}

impl<G: Waitable> Alarm for ShardAlarm<G> {
    fn fire(&self) {
        if let Some(limiter) = self.limiter.upgrade() {
            limiter.shards().shard(G::shard_of(self.key)).serve(&*limiter, QueuesToRetry::ByTime);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::MIN_STALE_TO_SWEEP;
    use super::*;
    use crate::Limiter;
    use crate::testing::{bucket, clock};
    use std::future::Future;
    use std::pin::Pin;
    use std::task::Context;
    use std::time::Duration;

    #[test]
    fn deadlines_of_waiters_that_left_are_removed() {
        let clock = clock();
        let limiter = Arc::new(Limiter::with_clock(bucket(1), Arc::clone(&clock)));
        limiter.drain();
        let joined = |millis| {
            let mut future = limiter.acquire(1).within(Duration::from_millis(millis));
            assert!(Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())).is_pending());
            future
        };
        let mut first = joined(100);
        for turn in 0..5 * MIN_STALE_TO_SWEEP as u64 {
            drop(joined(200 + turn));
            assert!(limiter.shards.shard(0).lock().deadlines.len() <= MIN_STALE_TO_SWEEP + 1);
        }
        let mut second = joined(3_000);
        let _ = limiter.charge(1);
        clock.advance_through_alarms(Nanos::from_millis(100));
        let poll = |future: &mut crate::acquire::Acquire<'_, _>| {
            Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).map(|answer| answer.err())
        };
        assert_eq!(poll(&mut first), std::task::Poll::Ready(Some(AcquireError::TimedOut)));
        clock.advance_through_alarms(Nanos::from_millis(100));
        assert_eq!(poll(&mut second), std::task::Poll::Ready(None));
        assert_eq!(limiter.shards.shard(0).lock().deadlines.len(), 0);
    }

    #[test]
    fn waker_is_not_dropped_under_the_lock() {
        type BucketLimiter = Arc<Limiter<crate::TokenBucket, Arc<crate::clock::ManualClock>>>;
        struct LockCheckingWaker(BucketLimiter, std::sync::mpsc::Sender<bool>);
        impl std::task::Wake for LockCheckingWaker {
            fn wake(self: Arc<Self>) {}
        }
        impl Drop for LockCheckingWaker {
            fn drop(&mut self) {
                self.1.send(self.0.shards.shard(0).state.try_lock().is_ok()).unwrap();
            }
        }
        let limiter: BucketLimiter = Arc::new(Limiter::with_clock(bucket(1), clock()).max_waiters(0));
        let (sender, dropped) = std::sync::mpsc::channel();
        // The shard owns the only reference to the waker.
        let join = |cost, patience| {
            let waker = Waker::from(Arc::new(LockCheckingWaker(Arc::clone(&limiter), sender.clone())));
            let joined = limiter.shards.shard(0).join(&limiter, Waiter::new((), cost, 0, waker), patience);
            assert!(dropped.try_recv().unwrap(), "the shard was locked");
            match joined {
                JoinResult::Decided(result) => result.map(|_| ()),
                JoinResult::Queued(_) => panic!("queued despite a maximum of zero waiters"),
            }
        };
        assert_eq!(join(1, Nanos::MAX), Ok(()));
        assert_eq!(join(2, Nanos::MAX), Err(AcquireError::NeverFits));
        assert!(matches!(join(1, Nanos::ZERO), Err(AcquireError::TooLate { .. })));
        assert_eq!(join(1, Nanos::MAX), Err(AcquireError::Full));
    }
}
