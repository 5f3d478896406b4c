//! Waiting for capacity in FIFO order.
//!
//! The naive method sleeps for the retry time of a refusal and tries again. This method starves callers: a newcomer can
//! take the tokens just before the sleeper wakes, and large costs never pass among small costs. Reserving immediately
//! and sleeping until the reserved time is fair, but a caller that gives up has already delayed all callers after it.
//!
//! In this module, waiters are in a queue per key and hold no tokens. Only the first waiter of a queue is retried, at
//! the end of its wait, and its tokens are taken at that moment. So the order is FIFO, a waiter that leaves does not
//! delay other waiters, and a changed limit applies to all waiters.
//!
//! ```text
//!   acquire ──▶ queue empty and cost fits? ──▶ taken; no lock, no allocation
//!                      │ no
//!                      ▼
//!   shard (by key) ── lock ── state: queue per key:   [first] ◀ [second] ◀ [third]
//!                                 │                      │ retried on the first of these events:
//!                                 ▼                      │  the clock's alarm, a refund, a waiter that leaves
//!                       one alarm per shard ─────────────┘
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `shard.rs` | the lock, the alarm, waking; everything done outside the lock |
//! | `state.rs` | everything done under the lock: queues, deadlines, the next wake-up |
//! | `queue.rs` | the waiters and their linked queues |
//!
//! [`Acquire`] lists the events of a waiter.

mod queue;
mod shard;
mod state;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use tollgate_core::{Cost, Mono, Nanos, Now, Outcome, Retry, Time, Verdict};

use crate::clock::{Alarm, Clock};
use queue::{Waiter, WaiterId};
pub(crate) use shard::Shards;
use state::JoinResult;

/// A limiter whose callers can wait: [`Limiter`](crate::Limiter), [`Keyed`](crate::Keyed), [`Pacer`](crate::Pacer).
/// Sealed: cannot be implemented outside this crate.
pub trait Waitable: Send + Sync + Sized + 'static {
    /// Identifies a queue.
    type Key: Copy + Ord + Send + Sync + 'static;
    /// Identifies a charge, to undo it.
    type Stamp: Copy + Default + Send + Sync + 'static;
    /// The source of time.
    type Clock: Clock;

    /// Returns the shards of the waiters.
    fn shards(&self) -> &Shards<Self::Key, Self::Stamp>;
    /// Returns a number that selects the shard of a key, modulo the number of shards.
    fn shard_of(key: Self::Key) -> usize;
    /// Returns the clock.
    fn clock(&self) -> &Self::Clock;
    /// Reads the clock.
    fn now(&self) -> Now<'static>;
    /// Returns the decision time for the first waiter of a queue, whose wait ended at `due`. The default is `now`. A
    /// pacer returns `due`, so that a late wake-up does not delay the waiters after it.
    fn decision_time<'a>(&self, due: Option<u64>, now: &Now<'a>) -> Now<'a> {
        let _ = due;
        *now
    }
    /// Returns whether waits may change when the wall clock is set.
    fn uses_wall_clock(&self) -> bool;
    /// The fast path of [`take`](Self::take), for states without stamps. Reads the clock itself. `false`: the fast path
    /// does not apply, and nothing was taken.
    fn try_take_fast(&self, key: Self::Key, cost: Cost) -> bool {
        let _ = (key, cost);
        false
    }
    /// Takes `cost` if the request passes without delay, or if its own cost is the only cause of the delay. A refusal
    /// writes to the state only if `repair` is set, to repair the state after the clock stepped back.
    fn take(&self, key: Self::Key, cost: Cost, now: &Now<'_>, repair: bool) -> Verdict<Self::Stamp>;
    /// Returns the wait for `cost` after waiters with a total cost of `ahead`.
    fn wait_in_queue(&self, key: Self::Key, ahead: Cost, cost: Cost, now: &Now<'_>) -> Retry;
    /// Returns the time until a waiter may pass without a release, if it was refused with [`Retry::OnRelease`].
    fn recheck_after(&self, key: Self::Key, now: &Now<'_>) -> Option<Nanos>;
    /// Gives back up to `cost` of the `verdict`'s charge, and returns the amount given back.
    fn give_back(&self, key: Self::Key, verdict: &Verdict<Self::Stamp>, cost: Cost) -> u64;
    /// Takes `cost` even if less is available, and goes into debt.
    fn charge(&self, key: Self::Key, cost: Cost) -> Verdict<Self::Stamp>;
}

/// Reason why waiting failed. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError {
    /// The cost is above the capacity. Returned immediately, or after the limit has changed.
    NeverFits,
    /// The wait would end after the deadline. Returned immediately.
    TooLate {
        /// Minimum time until the wait would end.
        retry: Retry,
    },
    /// The deadline passed before the cost could be taken, because other callers took the tokens or no lease was
    /// released in time.
    TimedOut,
    /// The wait queue is full. Returned immediately.
    Full,
    /// The timer thread could not be started. Returned immediately.
    NoTimer,
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverFits => f.write_str("the cost is above the capacity of the limit"),
            Self::TooLate { retry: Retry::After(wait) } => write!(f, "the wait of {wait} would end after the deadline"),
            Self::TooLate { retry: Retry::OnRelease | Retry::Never } => {
                f.write_str("no slot is free before the deadline")
            }
            Self::TimedOut => f.write_str("the deadline passed before the cost could be taken"),
            Self::Full => f.write_str("the wait queue is full"),
            Self::NoTimer => f.write_str("the timer thread could not be started"),
        }
    }
}

impl std::error::Error for AcquireError {}

/// A future that takes a cost as soon as the limit has capacity for it. Await it, or block on it with
/// [`wait`](Self::wait).
///
/// The first poll takes the cost, fails, or enters the queue. Dropping the future leaves the queue. The future works
/// with any executor, and allocates only if it has to wait.
///
/// | event while a waiter waits | outcome |
/// |---|---|
/// | its turn comes | the cost is taken for it and it is woken; nothing was held before |
/// | it leaves (the future is dropped) | the waiters after it move up; a cost already taken for it is given back |
/// | its deadline comes | [`AcquireError::TimedOut`], nothing taken |
/// | the limit changes so that the cost no longer fits | [`AcquireError::NeverFits`], nothing taken |
/// | a refund or a reset | the first waiter of the queue is retried immediately |
/// | the clock leaps forward | the first waiters get the capacity of the new time, even if their deadline was skipped |
/// | the clock goes back | all waiters are retried; no waiter is delayed by more than one window, or the time to repay the largest debt |
/// | its executor is shut down | it leaves if the executor drops the future; otherwise it is granted in turn, and delays no other waiter |
/// | its waker panics | the other waiters are still woken |
///
/// [`check`](crate::Limiter::check) ignores the queue and takes available tokens; use [`at_once`](Self::at_once) to
/// respect the queue without waiting. Tokens are taken at the real wake-up time, so a wake-up that is late by tens of
/// microseconds also delays the waiters after it. The delay matters at high rates with a burst of one. A
/// [`Pacer`](crate::Pacer) makes up for late wake-ups.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::{AcquireError, Limiter, TokenBucket};
///
/// let limiter = Arc::new(Limiter::new(TokenBucket::new("100/s".parse()?, 1)?));
/// # pollster(async {
/// limiter.acquire(1).await?;
/// limiter.acquire(1).within(Duration::from_secs(1)).await?;
/// # Ok::<(), AcquireError>(()) })?;
/// // The same for a thread.
/// limiter.acquire(1).within(Duration::from_secs(1)).wait()?;
/// // A turn after the deadline, and a cost above the capacity, are refused immediately.
/// let hourly = Arc::new(Limiter::new(TokenBucket::new("1/h".parse()?, 1)?));
/// hourly.acquire(1).wait()?;
/// let refused = hourly.acquire(1).within(Duration::from_secs(60)).wait();
/// assert!(matches!(refused, Err(AcquireError::TooLate { .. })));
/// assert_eq!(hourly.acquire(2).wait(), Err(AcquireError::NeverFits));
/// # fn pollster<T>(future: impl Future<Output = T>) -> T {
/// #     let (mut future, mut cx) = (Box::pin(future), std::task::Context::from_waker(std::task::Waker::noop()));
/// #     loop { if let std::task::Poll::Ready(out) = future.as_mut().poll(&mut cx) { return out; } }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is taken until it is awaited or waited for"]
pub struct Acquire<'a, G: Waitable> {
    limiter: LimiterRef<'a, G>,
    key: G::Key,
    cost: u64,
    patience: Nanos,
    jitter: Nanos,
    /// Set only if there is jitter.
    deadline: Time<Mono>,
    stage: AcquireStage<G::Stamp>,
}

enum LimiterRef<'a, G> {
    Borrowed(&'a Arc<G>),
    Owned(Arc<G>),
}

impl<G> LimiterRef<'_, G> {
    #[inline]
    fn get(&self) -> &Arc<G> {
        match self {
            Self::Borrowed(limiter) => limiter,
            Self::Owned(limiter) => limiter,
        }
    }
}

enum AcquireStage<S> {
    New,
    Queued(WaiterId),
    /// Granted, and delayed by a random time. Boxed, because this stage is rare.
    Delayed(Box<DelayedGrant<S>>),
    Done,
}

type AcquireResult<S> = Result<Grant<S>, AcquireError>;

/// The result of a successful [`Acquire`]. A grant dereferences to its [`Verdict`], which is always allowed and can be
/// refunded. Unlike a verdict, a grant need not be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant<S>(Verdict<S>);

impl<S> Deref for Grant<S> {
    type Target = Verdict<S>;

    fn deref(&self) -> &Verdict<S> {
        &self.0
    }
}

impl<'a, G: Waitable> Acquire<'a, G> {
    #[inline]
    pub(crate) fn new(limiter: &'a Arc<G>, key: G::Key, cost: u64) -> Self {
        Self::with_ref(LimiterRef::Borrowed(limiter), key, cost)
    }

    pub(crate) fn owned(limiter: Arc<G>, key: G::Key, cost: u64) -> Self {
        Self::with_ref(LimiterRef::Owned(limiter), key, cost)
    }

    #[inline]
    fn with_ref(limiter: LimiterRef<'a, G>, key: G::Key, cost: u64) -> Self {
        Self {
            limiter,
            key,
            cost,
            patience: Nanos::MAX,
            jitter: Nanos::ZERO,
            deadline: Time::ZERO,
            stage: AcquireStage::New,
        }
    }

    pub(crate) fn limiter(&self) -> (&Arc<G>, G::Key) {
        (self.limiter.get(), self.key)
    }

    /// Sets a deadline of `patience` after the first poll. A request whose wait would end later is refused without
    /// waiting.
    #[inline]
    pub fn within(mut self, patience: Duration) -> Self {
        self.patience = patience.into();
        self
    }

    /// Refuses instead of waiting, like `check`, and also refuses while other callers wait.
    #[inline]
    pub fn at_once(mut self) -> Self {
        self.patience = Nanos::ZERO;
        self
    }

    /// Adds a random delay of up to `max` to a wait, within the deadline. The delay spreads out processes that wait for
    /// the same instant, such as the start of a window. A request that passes immediately is not delayed.
    pub fn jitter(mut self, max: Duration) -> Self {
        self.jitter = max.into();
        self
    }

    /// Blocks the thread until the cost is taken.
    ///
    /// # Errors
    /// Returns an [`AcquireError`] if the cost was not taken.
    #[inline]
    pub fn wait(mut self) -> Result<Grant<G::Stamp>, AcquireError> {
        self.wait_for_turn()
    }

    #[inline]
    pub(crate) fn wait_for_turn(&mut self) -> AcquireResult<G::Stamp> {
        match self.try_fast() {
            Some(grant) => Ok(grant),
            None => self.block_until_granted(),
        }
    }

    /// The fast path: takes the cost from a single-word state if the shard has no waiters. This path reduces an acquire
    /// from 322 to 68 instructions (callgrind).
    #[inline(always)]
    fn try_fast(&mut self) -> Option<Grant<G::Stamp>> {
        let (limiter, cost) = (self.limiter.get(), Cost::new(self.cost));
        if !limiter.shards().shard(G::shard_of(self.key)).is_empty() || !limiter.try_take_fast(self.key, cost) {
            return None;
        }
        self.stage = AcquireStage::Done;
        Some(Grant(Verdict::new_allowed(cost)))
    }

    /// If the shard has no waiters, takes the cost, or fails if the cost is above the capacity. `None`: join the queue.
    fn try_slow(&mut self) -> Option<AcquireResult<G::Stamp>> {
        let limiter = self.limiter.get();
        if !limiter.shards().shard(G::shard_of(self.key)).is_empty() {
            return None;
        }
        let verdict = limiter.take(self.key, Cost::new(self.cost), &limiter.now(), false);
        let result = match verdict.outcome() {
            Outcome::Allow => Ok(Grant(verdict)),
            Outcome::Deny(Retry::Never) => Err(AcquireError::NeverFits),
            Outcome::Delay(_) | Outcome::Deny(_) => return None,
        };
        self.stage = AcquireStage::Done;
        Some(result)
    }

    #[inline(never)]
    fn poll_slow(&mut self, waker: &Waker) -> Poll<AcquireResult<G::Stamp>> {
        if let AcquireStage::New = self.stage
            && let Some(result) = self.try_slow()
        {
            return Poll::Ready(result);
        }
        let limiter = self.limiter.get();
        let shard = limiter.shards().shard(G::shard_of(self.key));
        let result = match &self.stage {
            AcquireStage::New => {
                let waiter = Waiter::new(self.key, self.cost, 0, waker.clone());
                match shard.join(limiter, waiter, self.patience) {
                    JoinResult::Decided(result) => Some(result.map(Grant)),
                    JoinResult::Queued(id) => {
                        if self.jitter > Nanos::ZERO {
                            self.deadline = limiter.clock().mono().saturating_add(self.patience);
                        }
                        self.stage = AcquireStage::Queued(id);
                        return Poll::Pending;
                    }
                }
            }
            AcquireStage::Queued(id) => match shard.poll_answer(&**limiter, *id, waker) {
                Some(Ok(verdict)) if self.jitter > Nanos::ZERO => {
                    let delayed = DelayedGrant::new(verdict, self.jitter, limiter.clock().mono(), self.deadline, waker);
                    self.stage = AcquireStage::Delayed(Box::new(delayed));
                    None
                }
                result => result.map(|result| result.map(Grant)),
            },
            AcquireStage::Delayed(_) | AcquireStage::Done => None,
        };
        if let (None, AcquireStage::Delayed(delayed)) = (&result, &self.stage) {
            if delayed.poll(limiter.clock(), waker).is_pending() {
                return Poll::Pending;
            }
            let verdict = delayed.verdict;
            self.stage = AcquireStage::Done;
            return Poll::Ready(Ok(Grant(verdict)));
        }
        match result {
            Some(result) => {
                self.stage = AcquireStage::Done;
                Poll::Ready(result)
            }
            None => Poll::Pending,
        }
    }

    /// Gives up the wait. Not inlined, so that the compiler inlines `drop` for a future that did not wait.
    #[inline(never)]
    fn leave(&mut self) {
        let limiter = self.limiter.get();
        match &self.stage {
            AcquireStage::New | AcquireStage::Done => {}
            AcquireStage::Queued(id) => limiter.shards().shard(G::shard_of(self.key)).leave(&**limiter, *id),
            AcquireStage::Delayed(delayed) => {
                limiter.give_back(self.key, &delayed.verdict, delayed.verdict.taken());
            }
        }
    }

    #[inline(never)]
    fn block_until_granted(&mut self) -> AcquireResult<G::Stamp> {
        // Tried before `block_on` allocates a waker.
        self.try_slow().unwrap_or_else(|| block_on(self))
    }
}

/// A granted waiter with a random delay.
struct DelayedGrant<S> {
    verdict: Verdict<S>,
    until: Time<Mono>,
    alarm: Arc<WakerAlarm>,
}

/// Wakes a task.
struct WakerAlarm(Mutex<Waker>);

impl Alarm for WakerAlarm {
    fn fire(&self) {
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        waker.wake();
    }
}

impl<S> DelayedGrant<S> {
    fn new(verdict: Verdict<S>, jitter: Nanos, now: Time<Mono>, deadline: Time<Mono>, waker: &Waker) -> Self {
        // Each `RandomState` has different random keys.
        let random = RandomState::new().hash_one(());
        let delay = Nanos::from_nanos(random % jitter.as_nanos().saturating_add(1).max(1));
        let until = now.saturating_add(delay).min(deadline.max(now));
        Self { verdict, until, alarm: Arc::new(WakerAlarm(Mutex::new(waker.clone()))) }
    }

    fn poll<C: Clock>(&self, clock: &C, waker: &Waker) -> Poll<()> {
        if clock.mono() >= self.until {
            return Poll::Ready(());
        }
        let waker = waker.clone();
        let _old = std::mem::replace(&mut *self.alarm.0.lock().unwrap_or_else(PoisonError::into_inner), waker);
        let alarm: Arc<dyn Alarm> = self.alarm.clone();
        // Reads the clock again, because `until` may have passed before the alarm was set.
        if clock.wake_at(self.until, &alarm).is_err() || clock.mono() >= self.until {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

/// Runs a future on this thread, which parks until the future wakes it.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(UnparkWaker(std::thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}

struct UnparkWaker(Thread);

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<G: Waitable> Future for Acquire<'_, G> {
    type Output = Result<Grant<G::Stamp>, AcquireError>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let AcquireStage::New = self.stage
            && let Some(grant) = self.try_fast()
        {
            return Poll::Ready(Ok(grant));
        }
        self.poll_slow(context.waker())
    }
}

// The future contains no pointers into itself.
impl<G: Waitable> Unpin for Acquire<'_, G> {}

impl<G: Waitable> Drop for Acquire<'_, G> {
    #[inline]
    fn drop(&mut self) {
        if let AcquireStage::Queued(_) | AcquireStage::Delayed(_) = self.stage {
            self.leave();
        }
    }
}

impl<G: Waitable> fmt::Debug for Acquire<'_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match &self.stage {
            AcquireStage::New => "new",
            AcquireStage::Queued(_) => "queued",
            AcquireStage::Delayed(_) => "delayed",
            AcquireStage::Done => "done",
        };
        f.debug_struct("Acquire").field("cost", &self.cost).field("stage", &stage).finish_non_exhaustive()
    }
}
